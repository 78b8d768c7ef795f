"""Aggregates without the pull toward zero: what shrinkage leaves of a teacher's effect, and values without it.

The posterior of a node does not know the teacher: tokens that it prefers are as likely to be better as to be worse. So
where rollouts are few, every alignment is close to 0, and so is their mean, however many questions there are. How much
of the truth is left follows from the posteriors themselves. Let `x` be the true signal of a node (SR range × alignment)
and `m` its posterior mean. If the truth favours a teacher, nodes with signal `x` are `1 + κ x` times as frequent as the
prior says, for some unknown κ. Then, to first order in κ, `E[x] = κ E[x²]` and `E[m] = κ E[m x] = κ E[m²]`, both under
the prior: the mean of `m` is `E[m²] / E[x²]` of the truth. The same for the alignment `c` with
posterior mean `a`: `E[a m] / E[c x]`. All four moments are known from posterior draws. Dividing by this *attenuation*
gives an estimate that is not pulled toward zero.

The advantage is linear in `Q`, so it needs no prior: the fractions of correct rollouts are used as they are. Tokens
without rollouts are assumed to gain as much as those with rollouts, for the same gap between teacher and student;
separately for unlikely and likely tokens, and at all nodes of the paths, with or without a row.

Both are models, so intervals are wider than the spread over questions. A correction's own error has two parts:

- One is proportional to the value: `MODEL_SD` of it. For alignments a second model is at hand, in which a teacher's
  effect does not depend on what is at stake: `E[a²] / E[c²]`, for the signal `E[a m] / E[c x]`. Where the two differ
  much, as where many tokens are rare and matter little, it is a share of that difference (`SENSITIVITY`). The true
  value may be larger than the estimate, so it is a share of the estimate plus its standard error.
- One is not. Posterior means may contain a part `b` that has nothing to do with what this teacher knows and that is not
  attenuated: an alignment that every teacher has. (Seen on exact worlds; its cause is not established.) Dividing it,
  too, is wrong by `b (1 / attenuation − 1)`, however small the estimate is. `COMMON_SD` is the standard deviation of
  `b`.

The values per question are such that their mean is the estimate over all questions and their spread gives its standard
error (linearised ratios), so every later step treats them as ordinary values. Updates from rewards are functions of the
same rollouts and are not corrected, nor are counting estimators, which do not shrink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, log, sqrt

import numpy as np
from numpy.typing import NDArray

from opd_align.core.node_rows import NodeRows, mean_by
from opd_align.types import REWARD, Floats, Ints

UNLIKELY = 0.02
"""Student probability below which a token is unlikely. Unlikely tokens change the outcome more often."""
KINDS = ("unlikely", "likely")
ALIGNMENT_MOMENTS = (
    "alignment_square", "signal_mean", "signal_square", "signal_alignment", "sr_range_mean", "at_stake",
)  # fmt: skip
ADVANTAGE_MOMENTS = tuple(f"{name}_{kind}" for name in ("advantage_seen", "gap_seen", "gap") for kind in KINDS)
MOMENTS = ALIGNMENT_MOMENTS + ADVANTAGE_MOMENTS
"""Columns of the node table that corrections need. Posterior means of alignment², signal, signal², signal × alignment
and SR range; the probability that anything is at stake; then, for each kind of token, the advantage from tokens with
rollouts, their part of the gap, and the mean gap of all nodes of the path. The gap of a token is
`(t − p)(log t − log p)`."""
MODEL_SD = 0.15
"""Standard deviation of a correction's own error as a share of the value where nothing is left of the truth; it falls
with the square root of what is missing (chosen on exact worlds)."""
ADVANTAGE_SD = 0.45
"""The same for the advantage: tokens without rollouts often gain more than those with rollouts."""
SENSITIVITY = 0.4
"""Standard deviation of an alignment's correction, as a share of the log ratio of the two attenuations (chosen on exact
worlds with heavy tails)."""
COMMON_SD = 0.02
"""Standard deviation of the part of a mean posterior alignment that is not attenuated (chosen on exact worlds)."""
LEAST = 0.02
"""Smallest attenuation, and smallest share of the gap with rollouts, that is corrected in full: below, there is too
little evidence to divide by."""
_SMALLEST_P = 1e-9

Mean = Callable[[Floats], Floats]
"""From a value per row to a value per question."""


@dataclass(frozen=True)
class QuestionValues:
    """A quantity per question, corrected for attenuation.

    Args:
        value_Q: The values; NaN where unknown. Their mean is the estimate over all questions.
        attenuation: Share of the truth that the values had before; 1 if they are not corrected.
        error: `MODEL_SD` of the correction.
        doubt: Least standard deviation of the correction's own error as a share of the value.
        common: Standard deviation of the part of the correction's own error that does not depend on the value.
    """

    value_Q: Floats
    attenuation: float = 1.0
    error: float = MODEL_SD
    doubt: float = 0.0
    common: float = 0.0

    @property
    def model_sd(self) -> float:
        """Standard deviation of the correction's own error, which more questions do not reduce."""
        known_Q = self.value_Q[np.isfinite(self.value_Q)]
        if not len(known_Q):
            return 0.0
        # The error is a share of the true value, which may be larger than the estimate.
        standard_error = float(known_Q.std(ddof=1)) / sqrt(len(known_Q)) if len(known_Q) > 1 else 0.0
        share = max(self.error * sqrt(1 - self.attenuation), self.doubt)
        return hypot(share * (abs(float(known_Q.mean())) + standard_error), self.common)


def alignment_values(rows: NodeRows, mean: Mean | None = None) -> QuestionValues:
    """Mean alignment per question. `mean`: how rows are averaged; `None`: along paths, then over paths.

    Nodes where nothing is at stake do not count: each node counts with the probability that something is.
    """
    mean = mean or rows.question_means
    if not is_corrected(rows):
        return QuestionValues(mean(rows["alignment"]))
    alignment_N = rows["alignment"]
    left_Q = _share_left(mean(alignment_N * rows["signal_mean"]), mean(rows["signal_alignment"]))
    constant_Q = _share_left(mean(alignment_N**2), mean(rows["alignment_square"]))
    return _divided(mean(alignment_N) / _positive(mean(rows["at_stake"])), left_Q, constant_Q)


def weighted_values(rows: NodeRows, kept_N: NDArray[np.bool_] | None = None) -> QuestionValues:
    """SR-weighted alignment per question, of all rows or of those kept."""
    kept_N = np.ones(len(rows.question_N), bool) if kept_N is None else kept_N

    def total(value_N: Floats) -> Floats:
        return mean_by(rows.question_N, np.where(kept_N, value_N, np.nan), rows.n_questions)

    if not is_corrected(rows):
        sr_N = np.where(kept_N, rows["sr_range"], 0.0)
        return QuestionValues(mean_by(rows.question_N, rows["alignment"], rows.n_questions, sr_N))
    signal_N = rows["signal_mean"]
    left_Q = _share_left(total(signal_N**2), total(rows["signal_square"]))
    constant_Q = _share_left(total(rows["alignment"] * signal_N), total(rows["signal_alignment"]))
    return _divided(total(signal_N) / _positive(total(rows["sr_range_mean"])), left_Q, constant_Q)


def advantage_values(rows: NodeRows, mean: Mean | None = None) -> QuestionValues:
    """Teacher advantage per question."""
    mean = mean or rows.question_means
    plain_Q = mean(rows["advantage"])
    if not is_corrected(rows):
        return QuestionValues(plain_Q)
    value_Q = np.zeros(rows.n_questions)
    for kind in KINDS:
        gain_Q, seen_Q, gap_Q = (mean(rows[f"{name}_{kind}"]) for name in ("advantage_seen", "gap_seen", "gap"))
        value_Q += _extrapolated(gain_Q, seen_Q, gap_Q)
    estimate, plain = (float(np.nanmean(each_Q)) if np.isfinite(each_Q).any() else 0.0 for each_Q in (value_Q, plain_Q))
    left = plain / estimate if abs(estimate) > abs(plain) else 1.0
    return QuestionValues(value_Q, float(np.clip(left, 0.0, 1.0)), ADVANTAGE_SD)


def is_corrected(rows: NodeRows) -> bool:
    """Whether the rows have what corrections need, and are shrunk posterior means of a teacher."""
    if rows.teachers == [REWARD] or any(name not in rows.source.column_names for name in MOMENTS):
        return False
    return bool(np.isfinite(rows["signal_mean"]).all())


def _divided(value_Q: Floats, left_Q: Floats, constant_Q: Floats) -> QuestionValues:
    """Values divided by their mean attenuation, linearised so that their spread includes that of the attenuation.

    Args:
        value_Q: Values of the questions.
        left_Q: Their attenuation.
        constant_Q: Their attenuation if a teacher's effect does not depend on what is at stake.
    """
    known_Q = np.isfinite(value_Q) & np.isfinite(left_Q)
    if not known_Q.any():
        return QuestionValues(np.where(known_Q, value_Q, np.nan))
    left = max(float(left_Q[known_Q].mean()), LEAST)
    estimate = float(np.clip(value_Q[known_Q].mean() / left, -1.0, 1.0))
    corrected_Q = estimate + (value_Q - value_Q[known_Q].mean() - estimate * (left_Q - left_Q[known_Q].mean())) / left
    doubt = SENSITIVITY * abs(log(left / max(float(constant_Q[known_Q].mean()), LEAST)))
    common = COMMON_SD * (1 / min(left, 1.0) - 1)
    return QuestionValues(np.where(known_Q, corrected_Q, np.nan), min(left, 1.0), doubt=doubt, common=common)


def _extrapolated(gain_Q: Floats, seen_Q: Floats, gap_Q: Floats) -> Floats:
    """Gain per gap of the tokens with rollouts, times the gap of all; linearised like `_divided`."""
    known_Q = np.isfinite(gain_Q)
    gain, seen, gap = (float(each_Q[known_Q].mean()) if known_Q.any() else 0.0 for each_Q in (gain_Q, seen_Q, gap_Q))
    if seen <= 0:
        return np.where(known_Q, 0.0, np.nan)
    if seen < LEAST * gap:
        return np.asarray(gain_Q / LEAST)
    slope = gain / seen
    return np.asarray(slope * gap_Q + (gain_Q - slope * seen_Q) * gap / seen)


def _share_left(known_Q: Floats, whole_Q: Floats) -> Floats:
    """The attenuation of each question; 1 where there is nothing to lose, as for a teacher equal to the student."""
    return np.where(whole_Q > 0, known_Q / _positive(whole_Q), 1.0)


def _positive(value_Q: Floats) -> Floats:
    return np.where(value_Q > 0, value_Q, np.nan)


def alignment_moments(cosine_DN: Floats, sr_range_DN: Floats) -> dict[str, Floats]:
    """The columns `ALIGNMENT_MOMENTS` from posterior draws of alignment and SR range."""
    signal_DN = cosine_DN * sr_range_DN
    values = (cosine_DN**2, signal_DN, signal_DN**2, signal_DN * cosine_DN, sr_range_DN, sr_range_DN > 0)
    return {name: value_DN.mean(0) for name, value_DN in zip(ALIGNMENT_MOMENTS, values, strict=True)}


def advantage_moments(p_NK: Floats, t_NK: Floats, gain_NK: Floats, path_gap: dict[str, float]) -> dict[str, Floats]:
    """The columns `ADVANTAGE_MOMENTS`.

    Args:
        p_NK: Student probabilities.
        t_NK: Teacher probabilities.
        gain_NK: Success rate of each child's rollouts minus that of the path; NaN without rollouts.
        path_gap: Mean gap of the path's nodes by kind of token.
    """
    seen_NK, gap_NK = np.isfinite(gain_NK), _gap(p_NK, t_NK)
    columns = {}
    for kind, of_kind_NK in zip(KINDS, _kinds(p_NK), strict=True):
        here_NK = seen_NK & of_kind_NK
        columns[f"advantage_seen_{kind}"] = np.where(here_NK, (t_NK - p_NK) * np.nan_to_num(gain_NK), 0.0).sum(-1)
        columns[f"gap_seen_{kind}"] = np.where(here_NK, gap_NK, 0.0).sum(-1)
        columns[f"gap_{kind}"] = np.full(len(p_NK), path_gap[kind])
    return columns


def mean_gap(p_C: Floats, t_C: Floats, depth_C: Ints) -> dict[str, float]:
    """The mean gap of the nodes of a path by kind of token, from the probabilities of all its children."""
    nodes = max(len(np.unique(depth_C)), 1)
    gap_C = _gap(p_C, t_C)
    return {kind: float(gap_C[of_kind_C].sum()) / nodes for kind, of_kind_C in zip(KINDS, _kinds(p_C), strict=True)}


def _gap(p: Floats, t: Floats) -> Floats:
    return np.asarray((t - p) * np.log(np.maximum(t, _SMALLEST_P) / np.maximum(p, _SMALLEST_P)))


def _kinds(p: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return p < UNLIKELY, p >= UNLIKELY
