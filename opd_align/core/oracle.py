"""Distillation of a part of the nodes: the selective oracle and the divergence filter.

The oracle keeps the nodes with the largest alignment. Choosing and valuing nodes with the same noisy estimates is
biased upwards, so it is also cross-fitted: nodes are chosen on one half of the rollouts, and everything about their
value, the SR range included, comes from the other half. The value is not shrunk: both halves are shrunk toward the same
prior and toward paths that were chosen for their outcomes, so the errors of two posterior means have the same sign more
often than not. What the halves still have in common (`SHARED_SD`) is part of the interval. Pure functions of one node
table, like `core.metrics`, which has the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from opd_align.core.attenuation import QuestionValues
from opd_align.core.intervals import Estimate, interval
from opd_align.core.node_rows import NodeRows, Nodes, mean_by, select_rows, share
from opd_align.types import DIVERGENCES, Floats, OpdAlignError

Name = str | None
MEASURES = (*DIVERGENCES, "student_entropy", "teacher_entropy")

# With two children the cosine is +-1 up to rounding. Values that differ by less than this are treated as equal: as a
# tie, as exactly one, as no improvement.
ROUNDING = 1e-9

SHARED_SD = 0.012
"""Standard deviation of the cross-fitted oracle's error that more questions do not reduce.

Both halves contain the paths, which were chosen for their outcome. Where there is nothing to find, the oracle is
−0.003 ± 0.002 (standard error, 120 worlds); if rounds are planned from all rollouts, −0.017 ± 0.003, since `adaptive`
then samples again where both halves deviate, which pulls them apart.
"""


@dataclass(frozen=True)
class OracleRow:
    """Distillation restricted to the nodes with alignment above a threshold.

    Args:
        threshold: Nodes with a larger alignment are kept; None keeps all nodes.
        signal: Mean signal (SR range × alignment) of the kept nodes. Nodes are selected and valued with the same noisy
            estimate, so it is biased upwards.
        gain: `signal` minus the mean signal of all nodes, over questions that keep at least one node.
        share_kept: Share of nodes that are kept.
        n_nodes: Number of nodes that are kept.
        share_beating: Share of paths whose kept nodes have a larger mean signal than all their nodes; NaN for None.
        cross_fitted_signal: `signal` with nodes selected on one half of the rollouts and valued on the other half
            without shrinkage, which removes the bias except for what the halves share; the interval includes that.
            Compare it with that of all nodes, not with `signal`.
        cross_fitted_gain: `cross_fitted_signal` minus the mean signal of all nodes in the same halves.
    """

    threshold: float | None
    signal: Estimate
    gain: Estimate
    share_kept: float
    n_nodes: int
    share_beating: float
    cross_fitted_signal: Estimate
    cross_fitted_gain: Estimate


@dataclass(frozen=True)
class FilterRow:
    """Distillation restricted to the nodes where student and teacher differ most.

    Args:
        measure: The divergence or entropy that is thresholded.
        quantile: Quantile of the measure over all nodes that is used as the threshold.
        threshold: The threshold itself; nodes at or beyond it are kept.
        signal: Mean signal (SR range × alignment) of the kept nodes.
        gain: `signal` minus the mean signal of all nodes, over questions that keep at least one node.
        share_kept: Share of nodes that are kept.
        n_nodes: Number of nodes that are kept.
        share_of_oracle_gain: Gain of the kept nodes divided by that of the selective oracle at threshold 0, both
            valued like the cross-fitted oracle; NaN if the oracle's gain is not larger than its error.
    """

    measure: str
    quantile: float
    threshold: float
    signal: Estimate
    gain: Estimate
    share_kept: float
    n_nodes: int
    share_of_oracle_gain: float


def selective_oracle(
    nodes: Nodes, thresholds: Sequence[float] = (0.0, 0.3), *, objective: Name = None, teacher: Name = None
) -> list[OracleRow]:
    """Mean signal (SR range × alignment) of the nodes above each threshold; the first row is for all nodes."""
    rows = select_rows(nodes, objective, teacher)
    alignment_N = rows["alignment"]
    full_U = rows.path_means(rows["sr_range"] * alignment_N)
    table = []
    for threshold in (None, *thresholds):
        cut = -inf if threshold is None else threshold
        kept_U = rows.path_means(np.where(alignment_N > cut, rows["sr_range"] * alignment_N, nan))
        # A path that keeps no node is NaN here and does not count as beating full distillation.
        beating = nan if threshold is None else share(kept_U > full_U + ROUNDING)
        shared_sd = 0.0 if threshold is None else SHARED_SD  # without a choice there is nothing to share
        cross_fitted = [interval(QuestionValues(value_Q, common=shared_sd)) for value_Q in _cross_fitted(rows, cut)]
        table.append(OracleRow(threshold, *_distilled(rows, alignment_N > cut), beating, *cross_fitted))
    return table


def half_signals(rows: NodeRows) -> tuple[Floats, Floats]:
    """The signal of each node in both halves of the rollouts, each with the half's own SR range."""
    halves = "sr_range_a" in rows.source.column_names  # made tables may have one range only
    a_N, b_N = (rows[f"sr_range_{half}" if halves else "sr_range"] * rows[f"alignment_{half}"] for half in ("a", "b"))
    return a_N, b_N


def half_values(rows: NodeRows) -> tuple[Floats, Floats]:
    """The signal of each node in both halves without shrinkage; `half_signals` in tables that do not know it."""
    if "signal_a" not in rows.source.column_names:
        return half_signals(rows)
    values = rows["signal_a"], rows["signal_b"]
    return values if any(np.isfinite(each).any() for each in values) else half_signals(rows)


def _cross_fitted(rows: NodeRows, cut: float) -> tuple[Floats, Floats]:
    """Signal per question of the nodes chosen on one half and valued on the other, and its gain over all nodes."""
    return _valued(rows, rows["alignment_a"] > cut, rows["alignment_b"] > cut)


def _valued(rows: NodeRows, by_a_N: NDArray[np.bool_], by_b_N: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Signal per question of nodes chosen on half a or b, valued on the other half, and its gain over all nodes."""
    kept_UU, all_UU = [], []
    for kept_N, value_N in zip((by_a_N, by_b_N), half_values(rows)[::-1], strict=True):
        kept_UU.append(rows.path_means(np.where(kept_N, value_N, nan)))
        all_UU.append(rows.path_means(value_N))
    question_UU = np.tile(rows.question_U, 2)
    kept_Q, all_Q = (mean_by(question_UU, np.concatenate(each), rows.n_questions) for each in (kept_UU, all_UU))
    return kept_Q, kept_Q - all_Q


def divergence_filter(
    nodes: Nodes,
    measure: str = "kl",
    quantiles: Sequence[float] = (0.5, 0.75, 0.9),
    *,
    objective: Name = None,
    teacher: Name = None,
) -> list[FilterRow]:
    """Mean signal of the nodes beyond each quantile of a divergence or entropy measure.

    Nodes with large values are kept, except for the similarity `cosine`, where small values are kept: quantile 0.9
    always keeps a tenth of the nodes.
    """
    if measure not in MEASURES:
        raise OpdAlignError(f"unknown measure {measure!r}; choose from {', '.join(MEASURES)}")
    rows = select_rows(nodes, objective, teacher, known=measure)
    sign = -1.0 if measure == "cosine" else 1.0
    divergence_N = sign * rows[measure]
    oracle = interval(QuestionValues(_cross_fitted(rows, 0.0)[1], common=SHARED_SD))
    # A gain within its own error is not a denominator.
    oracle_gain = oracle.mean if oracle.mean > oracle.half_width / 2 else nan
    table = []
    for quantile in quantiles:
        # "higher" makes the threshold a value that occurs, so a gate with this threshold keeps exactly these nodes.
        cut = float(np.quantile(divergence_N, quantile, method="higher")) if len(divergence_N) else nan
        kept_N = divergence_N >= cut
        kept = _distilled(rows, kept_N)
        # Shrunk signals, as in `gain`, are closer to zero than those of the oracle's gain.
        recovered = interval(_valued(rows, kept_N, kept_N)[1]).mean / oracle_gain
        table.append(FilterRow(measure, quantile, sign * cut, *kept, recovered))
    return table


def _distilled(rows: NodeRows, kept_N: NDArray[np.bool_]) -> tuple[Estimate, Estimate, float, int]:
    """Signal of distilling only the kept nodes, gain over all nodes, share and number of nodes kept."""
    signal_N = rows["sr_range"] * rows["alignment"]
    kept_Q = rows.question_means(np.where(kept_N, signal_N, nan))
    gain_Q = kept_Q - rows.question_means(signal_N)
    return interval(kept_Q), interval(gain_Q), share(kept_N), int(kept_N.sum())
