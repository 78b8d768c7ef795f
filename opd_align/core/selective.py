"""What choosing tokens could gain: signal of distilling only a share of the decisions, by several ways to choose.

Every way keeps the same share of the same decisions, weighted alike: each question counts the same, each of its paths,
each decision of a path. So the oracle, which keeps the decisions with the largest signal (SR range × alignment), is the
best possible choice by construction: no filter can be above it. It chooses and values with the same noisy estimate and
is biased upwards; the cross-fitted oracle chooses on one half of the rollouts and values on the other without shrinkage
(`core.oracle`), so its curve has a beginning of its own, and its intervals include what the halves share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, nan

import numpy as np
import pyarrow as pa

from opd_align.core.intervals import NORMAL, TAILS
from opd_align.core.metrics import MEASURES, MIN_QUESTIONS
from opd_align.core.node_rows import NodeRows, select_rows
from opd_align.core.oracle import SHARED_SD, half_signals, half_values
from opd_align.types import Floats, Ints, OpdAlignError

SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05)
"""Shares of the decisions that are kept."""
DRAWS, MAX_VALUES, SEED = 200, 4_000_000, 0
"""Bootstrap draws, and their number times that of decisions, above which there are fewer draws."""
ORACLE, CROSS_FITTED = "oracle", "cross-fitted"


@dataclass(frozen=True)
class CurvePoint:
    """The signal of distilling a share of the decisions.

    Args:
        share: Share of the decisions that is kept.
        signal: Their mean signal; NaN if there are none.
        low: Lower end of the 95 % interval, from a bootstrap over questions; NaN for fewer than four questions.
        high: Upper end of that interval.
    """

    share: float
    signal: float
    low: float
    high: float


def selective_curves(
    nodes: pa.Table,
    measures: Sequence[str] = ("kl", "js"),
    *,
    objective: str | None = None,
    teacher: str | None = None,
    shares: Sequence[float] = SHARES,
) -> dict[str, list[CurvePoint]]:
    """The curves of the oracle, of the cross-fitted oracle, and of each divergence.

    Args:
        nodes: `Analysis.nodes`.
        measures: Divergences or entropies; the decisions with the largest values are kept, for the similarity `cosine`
            those with the smallest. One that is known nowhere has no curve.
        objective: Name of the objective. `None`: the only one.
        teacher: Name of the teacher. `None`: all together.
        shares: Shares of the decisions to keep, in (0, 1].
    """
    unknown = [name for name in measures if name not in MEASURES]
    if unknown:
        raise OpdAlignError(f"unknown measure {unknown[0]!r}; choose from {', '.join(MEASURES)}")
    rows = select_rows(nodes, objective, teacher)
    weight_N = node_weights(rows)
    signal_N = rows["sr_range"] * rows["alignment"]
    cross_fitted = list(zip(half_signals(rows), half_values(rows)[::-1], strict=True))
    choices = {ORACLE: [(signal_N, signal_N)], CROSS_FITTED: cross_fitted}
    for name in measures:
        score_N = -rows[name] if name == "cosine" else rows[name]
        if np.isfinite(score_N).any():
            choices[name] = [(score_N, signal_N)]
    times_DQ = _resampled(rows.n_questions, len(weight_N))
    curves = {
        name: _curve(folds, weight_N, rows.question_N, times_DQ, np.asarray(shares, np.float64))
        for name, folds in choices.items()
    }
    return curves | {CROSS_FITTED: [_with_shared_error(point) for point in curves[CROSS_FITTED]]}


def node_weights(rows: NodeRows) -> Floats:
    """The weight of each row: questions, their paths and the decisions of a path count the same; the sum is 1."""
    nodes_U = np.bincount(rows.path_N, minlength=len(rows.question_U))
    paths_Q = np.bincount(rows.question_U, minlength=rows.n_questions)
    weight_U = 1 / (np.maximum(nodes_U, 1) * paths_Q[rows.question_U] * max(rows.n_questions, 1))
    return np.asarray(weight_U[rows.path_N], np.float64)


def _resampled(n: int, n_nodes: int) -> Floats:
    """How often each question is in each sample; the first row is the original one."""
    original_1Q = np.ones((1, n))
    if n < MIN_QUESTIONS:
        return original_1Q
    draws = max(20, min(DRAWS, MAX_VALUES // max(n_nodes, 1)))
    times_DQ = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), draws)
    return np.vstack([original_1Q, times_DQ]).astype(np.float64)


def _curve(
    folds: Sequence[tuple[Floats, Floats]], weight_N: Floats, question_N: Ints, times_DQ: Floats, share_S: Floats
) -> list[CurvePoint]:
    signal_FDS = [_kept_signal(score_N, value_N, weight_N, question_N, times_DQ, share_S) for score_N, value_N in folds]
    signal_DS = np.mean(signal_FDS, axis=0)
    if len(signal_DS) > 1 and np.isfinite(signal_DS).all():
        low_S, high_S = np.quantile(signal_DS[1:], TAILS, axis=0)
    else:
        low_S = high_S = np.full(len(share_S), nan)
    return [CurvePoint(*map(float, values)) for values in zip(share_S, signal_DS[0], low_S, high_S, strict=True)]


def _with_shared_error(point: CurvePoint) -> CurvePoint:
    """The point with the error that both halves have in common; without a choice there is none."""
    if point.share == 1:
        return point
    shared = NORMAL * SHARED_SD
    low, high = (hypot(end - point.signal, shared) for end in (point.low, point.high))
    return replace(point, low=point.signal - low, high=point.signal + high)


def _kept_signal(
    score_N: Floats, value_N: Floats, weight_N: Floats, question_N: Ints, times_DQ: Floats, share_S: Floats
) -> Floats:
    """Mean value of the decisions with the highest scores, for each sample and share; the last one counts in part."""
    known_N = np.isfinite(value_N)
    score_N = np.where(np.isfinite(score_N), score_N, -np.inf)[known_N]
    value_N, weight_N, question_N = value_N[known_N], weight_N[known_N], question_N[known_N]
    if not len(value_N):
        return np.full((len(times_DQ), len(share_S)), nan)
    order = np.argsort(-score_N, kind="stable")
    weight_DN = times_DQ[:, question_N[order]] * weight_N[order]
    total_DN = np.cumsum(weight_DN, axis=1)
    sum_DN = np.cumsum(weight_DN * value_N[order], axis=1)
    result_DS = np.full((len(times_DQ), len(share_S)), nan)
    for draw, (total_N, sum_N) in enumerate(zip(total_DN, sum_DN, strict=True)):
        if total_N[-1] > 0:
            kept_S = share_S * total_N[-1]
            result_DS[draw] = np.interp(kept_S, np.append(0.0, total_N), np.append(0.0, sum_N)) / kept_S
    return result_DS
