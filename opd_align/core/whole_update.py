"""One training step as a whole: its cosine with the ideal update, and the success that it gains to first order.

A node's alignment says where an update helps. What an optimizer step changes is the sum over all tokens of all
rollouts, so here the updates of all nodes are parts of one vector: large updates count more than small ones, and tokens
that decide success more than those that do not.

Per question, expectations are over the student's own rollouts. The analyzed paths are half correct and half incorrect,
the student's rollouts are not: a correct path has the weight (pass rate) / (number of correct paths), an incorrect one
(1 − pass rate) / (number of incorrect paths). Along a path, sums run over the nodes with at least two significant
children.

    gain    E Σ_t Σ_k Q_k g_k = E Σ_t Cov_p(Q, f): the derivative of the pass rate along p ∝ p exp(ε f), at ε = 0
    cosine  Σ <ideal, g> / √(Σ |ideal|² · Σ |g|²), summed over nodes, rollouts and questions

For KL(student ‖ teacher) the direction f = log t − log p is a step of geometric interpolation toward the teacher.
Computes from the child table only; no sampling, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np
import pyarrow as pa
from scipy import stats

from opd_align.core.alignment import pairs_of
from opd_align.core.engine import Analysis
from opd_align.core.interval_metrics import half_width
from opd_align.core.metric_schema import Metric
from opd_align.core.metrics import TAILS, Estimate, interval
from opd_align.core.node_rows import group_rows
from opd_align.types import Floats, Ints, OpdAlignError


@dataclass(frozen=True)
class WholeUpdate:
    """The update of one teacher and objective as one vector.

    Args:
        cosine: Cosine with the ideal update, with a jackknife interval over questions. The ideal update is estimated,
            and its noise lowers the cosine toward zero, about equally for all teachers.
        gain: Expected first-order gain in success per question, with a t interval over questions.
    """

    cosine: Estimate
    gain: Estimate


@dataclass(frozen=True)
class _Sums:
    """Sums over the nodes of each question, in expectation over the student's rollouts; NaN where unknown."""

    gain_Q: Floats
    dot_Q: Floats
    ideal_Q: Floats
    update_Q: Floats


def whole_update(analysis: Analysis, teacher: str, objective: str) -> WholeUpdate:
    """Cosine and first-order gain of one teacher and objective; raises on unknown names."""
    sums = _sums(analysis, teacher, objective)
    return WholeUpdate(_cosine(sums), interval(sums.gain_Q))


def _sums(analysis: Analysis, teacher: str, objective: str) -> _Sums:
    children = analysis.children
    pairs = pairs_of(children)
    if (teacher, objective) not in pairs:
        known = ", ".join(f"{one} with {other}" for one, other in pairs)
        raise OpdAlignError(f"the analysis has no {teacher!r} with {objective!r}; available: {known}")
    update_S = _updates(children, len(pairs), pairs.index((teacher, objective)))
    rows = children.select(["question", "path", "path_correct", "q", "ideal"]).filter(children["significant"])
    own_S = np.isfinite(update_S)  # NaN on questions on which this teacher was not available
    update_S, rows = update_S[own_S], rows.filter(pa.array(own_S))
    question_S = _question_numbers(analysis, rows)
    q_S, ideal_S = (rows[name].to_numpy().astype(np.float64) for name in ("q", "ideal"))
    unit_S, first_U = group_rows(question_S, rows["path"].to_numpy().astype(np.int64))
    question_U, correct_U = question_S[first_U], rows["path_correct"].to_numpy()[first_U]
    weight_U = _path_weights(analysis, question_U, correct_U)
    n = analysis.questions.num_rows

    def expected(value_S: Floats) -> Floats:
        total_Q = np.bincount(question_U, weight_U * np.bincount(unit_S, value_S, len(question_U)), n)
        return np.where(np.bincount(question_U, minlength=n) > 0, total_Q, nan)

    terms = q_S * update_S, ideal_S * update_S, ideal_S**2, update_S**2
    return _Sums(*map(expected, terms))


def _updates(children: pa.Table, n_pairs: int, index: int) -> Floats:
    """The update of one pair at each significant child."""
    flat = children["update"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, n_pairs)[:, index].astype(np.float64)


def _question_numbers(analysis: Analysis, rows: pa.Table) -> Ints:
    number = {name: at for at, name in enumerate(analysis.questions["question"].to_pylist())}
    column = rows["question"] if pa.types.is_dictionary(rows["question"].type) else rows["question"].dictionary_encode()
    encoded = column.unify_dictionaries().combine_chunks()
    number_D = np.array([number[name] for name in encoded.dictionary.to_pylist()], np.int64)
    return np.asarray(number_D[encoded.indices.to_numpy()])


def _path_weights(analysis: Analysis, question_U: Ints, correct_U: Floats) -> Floats:
    """Probability of each path's outcome, divided among the analyzed paths of that outcome; sums to 1 per question.

    Of the paths without any significant child nothing is to be summed, but they count: their updates are zero.
    """
    pass_Q = analysis.questions["pass_rate"].to_numpy().astype(np.float64)
    counts = [analysis.questions[name].to_numpy().astype(np.float64) for name in ("incorrect_paths", "correct_paths")]
    share_KQ = np.stack([1 - pass_Q, pass_Q])
    # An outcome without an analyzed path is not represented: the other one stands for all rollouts.
    known_KQ = np.stack(counts) > 0
    share_KQ = np.where(known_KQ, share_KQ, 0.0)
    total_Q = share_KQ.sum(0)
    share_KQ = np.where(total_Q > 0, share_KQ / np.where(total_Q > 0, total_Q, 1.0), known_KQ / 1.0)
    kind_U = correct_U.astype(np.int64)
    return np.asarray(share_KQ[kind_U, question_U] / np.stack(counts)[kind_U, question_U])


def _cosine(sums: _Sums) -> Estimate:
    """The ratio of sums over questions, with the half-width of its jackknife interval."""
    parts_3Q = np.stack([sums.dot_Q, sums.ideal_Q, sums.update_Q])
    parts_3Q = parts_3Q[:, np.isfinite(parts_3Q).all(0)]
    n = parts_3Q.shape[1]
    total_3 = parts_3Q.sum(1)
    mean = float(_ratio(total_3))
    if n < 2 or not np.isfinite(mean):
        return Estimate(mean, nan, n)
    left_out_Q = _ratio(total_3[:, None] - parts_3Q)
    spread = sqrt((n - 1) / n * float(((left_out_Q - left_out_Q.mean()) ** 2).sum()))
    return Estimate(mean, float(stats.t.ppf(TAILS[1], n - 1)) * spread, n)


def _ratio(sums_3: Floats) -> Floats:
    dot, ideal, update = sums_3
    scale = np.sqrt(np.maximum(ideal, 0.0) * np.maximum(update, 0.0))
    return np.asarray(np.where(scale > 0, dot / np.where(scale > 0, scale, 1.0), 0.0))


WHOLE_UPDATE_METRICS = (
    Metric("teacher", "update/cosine",
        "Cosine of the ideal update and the objective's update, over all nodes of all rollouts as one vector, with "
        "paths weighted by the pass rate: what an optimizer step sees.", "cosine", "higher",
        lambda r: r.whole_update.cosine.mean, half_width="update/cosine_half_width",
        charts={"Cosine of the whole update": ""}),
    half_width("update/cosine_half_width", "update/cosine", "cosine", lambda r: r.whole_update.cosine),
    Metric("teacher", "update/gain",
        "Expected first-order gain: change of the success rate per unit of a step along the objective's update, summed "
        "over the tokens of a rollout.", "probability", "higher", lambda r: r.whole_update.gain.mean, (-inf, inf),
        half_width="update/gain_half_width", charts={"First-order gain": ""}),
    half_width("update/gain_half_width", "update/gain", "probability", lambda r: r.whole_update.gain, (-inf, inf)),
)  # fmt: skip
"""Registered in `core.metric_registry`, whose records have the whole update."""
