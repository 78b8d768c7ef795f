"""Half-widths of the 95 % intervals of reported metrics, as metrics of their own.

Records only; `core.metric_registry` has all metrics. They are in `summary.json` and in `history.jsonl`, where the
dashboard finds the intervals it draws; trackers get only those that are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np

from opd_align.core import metrics
from opd_align.core.intervals import Estimate, interval
from opd_align.core.metric_schema import RANGES, Level, Metric, Unit

HALF_WIDTH = "_half_width"
"""What the stem of a half-width adds to that of its metric."""


def half_width(
    stem: str,
    of: str,
    unit: Unit,
    estimate: Callable[[Any], Estimate],
    range_of: tuple[float, float] | None = None,
    *,
    level: Level = "teacher",
    **options: Any,
) -> Metric:
    """The metric with the half-width of another one's interval.

    Args:
        stem: Its stem.
        of: Stem of the metric that the interval belongs to.
        unit: Unit of both.
        estimate: Function from what the metric is computed from to its mean and interval.
        range_of: Range of the values of `of`; None uses the range of the unit.
        level: Level of both.
        options: Further arguments of `Metric`.
    """
    meaning = (
        f"Half-width of the 95 % confidence interval of `{of}` over questions; unknown below {metrics.MIN_QUESTIONS} "
        "questions. The interval ends where the range of values ends."
    )
    low, high = range_of or RANGES.get(unit, (-inf, inf))

    def compute(records: Any) -> float:
        mean = estimate(records)
        # An interval that covers the whole range cannot get wider.
        return min(mean.half_width, max(mean.mean - low, high - mean.mean)) if mean.n >= metrics.MIN_QUESTIONS else nan

    return Metric(level, stem, meaning, unit, "lower", compute, (0, high - low), **options)


def _recorded(of: str, unit: Unit, estimate: Callable[[Any], Estimate], **options: Any) -> Metric:
    """A half-width that is not logged to trackers."""
    return half_width(f"{of}{HALF_WIDTH}", of, unit, estimate, logged=False, **options)


def _of_questions(column: str) -> Callable[[Any], Estimate]:
    def estimate(analysis: Any) -> Estimate:
        return interval(analysis.questions[column].to_numpy().astype(np.float64))

    return estimate


def _of_teacher(column: str) -> Callable[[Any], Estimate]:
    return lambda records: interval(records.question_values(column))


def _rho(feature: str) -> Callable[[Any], Estimate]:
    return lambda records: records.correlations[feature].rho


TEACHER_INTERVALS = (
    _recorded("alignment/correct", "cosine", lambda r: r.contrast.correct_interval),
    _recorded("alignment/incorrect", "cosine", lambda r: r.contrast.incorrect_interval),
    _recorded("alignment/first_third", "cosine", lambda r: r.thirds[0]),
    _recorded("alignment/middle_third", "cosine", lambda r: r.thirds[1]),
    _recorded("alignment/last_third", "cosine", lambda r: r.thirds[2]),
    _recorded("gated/signal", "SR range × cosine", lambda r: r.gated.signal, needs_teacher=True, needs_gate=True),
    _recorded("oracle/gain", "SR range × cosine", lambda r: r.oracle.gain, range_of=(-2, 2)),
    _recorded("filter/signal", "SR range × cosine", lambda r: r.filter.signal, needs_teacher=True),
    _recorded("overlap_ratio", "share", _of_teacher("overlap_ratio"), needs_teacher=True),
    _recorded("overlap_token_advantage", "nats", _of_teacher("overlap_token_advantage"), needs_teacher=True),
    _recorded("teacher_entropy", "nats", _of_teacher("teacher_entropy"), needs_teacher=True),
    *(
        _recorded(f"spearman/{stem}", "correlation", _rho(feature), needs_teacher=True)
        for stem, feature in (
            ("depth", "depth_normalised"), ("kl", "kl"), ("js", "js"), ("l2", "l2"), ("cosine", "cosine"),
        )
    ),
)  # fmt: skip

STUDENT_INTERVALS = (
    _recorded("pass_rate", "share", _of_questions("pass_rate"), level="student"),
    _recorded("entropy", "nats", _of_questions("student_entropy"), level="student"),
)
