"""What a training with `AlignmentSchedule` ends with, read from the same training without it.

Until a schedule acts, a training with it is that without it to the bit (tests/training/test_acting_on_alignment.py). So
one ungated training has all arms: `stop` is the step at which the schedule ends it, `rollback` the evaluation that it
returns to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd_align.core.alarm import LEVELS, Reading
from opd_align.core.decline import PassRates, decline
from opd_align.training.alignment_schedule import best_step, judge
from opd_align.training.pass_rates import PassRateLog

PASS_RATE = "opd_align/student/pass_rate"


@dataclass(frozen=True)
class Acted:
    """When a schedule ends a training, and with the student of which step.

    Args:
        at: Step at which it acts; `None` if it never does.
        stop: Step whose student `on_harm="stop"` ends with.
        rollback: Step whose student `on_harm="rollback"` ends with.
    """

    at: int | None
    stop: int
    rollback: int


def acted(readings: Sequence[Reading]) -> Acted:
    """What a schedule does with these readings."""
    last = readings[-1].step
    for n in range(len(readings)):
        until = list(readings[: n + 1])
        if LEVELS[judge([until]).level] < 0:
            target = best_step([until], [each.step for each in until])
            return Acted(until[-1].step, until[-1].step, until[-1].step if target is None else target)
    return Acted(None, last, last)


def acted_by_pass_rate(rates_by_step: Mapping[str, Mapping[str, float]]) -> Acted:
    """What a schedule that follows the pass rate does with these pass rates by step and question."""
    evaluations = [PassRates(int(step), rates) for step, rates in rates_by_step.items()]
    for n in range(2, len(evaluations) + 1):
        until = evaluations[:n]
        fall = decline(until)
        if fall is not None and fall.sure:
            log = PassRateLog()
            log.evaluations = until
            target = log.best_step([each.step for each in until])
            return Acted(until[-1].step, until[-1].step, until[-1].step if target is None else target)
    last = evaluations[-1].step
    return Acted(None, last, last)


def readings_of(history: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """The readings of the only teacher of a training."""
    from opd_align.training.alarm_log import readings_by_variant

    ((_, readings),) = readings_by_variant([(line["step"], line) for line in history]).items()
    return list(readings)


def best_by_pass_rate(history: Sequence[Mapping[str, Any]]) -> int:
    """The evaluation with the largest pass rate of the student, on the callback's questions."""
    return int(max(history, key=lambda line: (line["metrics"][PASS_RATE], -line["step"]))["step"])
