"""The alarm: does the teacher's update still help, given all evaluations of a training so far?

One evaluation on a few questions is too noisy to say so. Evaluations are pooled by a filter: the true alignment is a
random walk along training, and each evaluation is a noisy reading of it, so that earlier readings count as long as they
still can. The state after a reading uses that reading and earlier ones only. Pure functions of the readings; who
measures them, and who is told, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, pi, sqrt
from typing import Literal

import numpy as np
from scipy.special import ndtr

from opd_align.core.intervals import COSINE, NORMAL
from opd_align.types import OpdAlignError

Level = Literal["helps", "unsure", "fades", "harms"]

LEVELS: Mapping[Level, int] = {"helps": 1, "unsure": 0, "fades": -1, "harms": -2}
"""Each level as a number for trackers; the alarm is raised below zero."""

ENTER, LEAVE = 0.9, 0.5
"""A level is entered at this probability and left at that one: in between, noise would move it back and forth."""

PRIOR_SD = 0.5
"""Standard deviation of the alignment before the first reading: two of them are the range of a cosine."""

DRIFTS: tuple[float, ...] = tuple(0.001 * 2**power for power in range(7))
"""Standard deviations of the change of the true alignment in one step, equally likely before the first reading.

How fast a student changes depends on learning rate, batch and optimizer, so no fixed value is right for all trainings;
and a few noisy readings do not determine one either, so their posterior is averaged instead of taking the likeliest.
The change in n steps has the standard deviation √n times as large: in 100 steps, 0.01 to 0.64.
"""

MIN_ERROR = 0.05
"""Smallest standard error of a reading: where a few questions agree by chance, their own is zero."""


@dataclass(frozen=True)
class Reading:
    """What one evaluation measured.

    Args:
        step: The training step.
        mean: The alignment; NaN if it is not known.
        standard_error: Its standard error; NaN if it is not known. A reading without one does not count.
    """

    step: int
    mean: float
    standard_error: float

    @property
    def known(self) -> bool:
        """Whether it counts."""
        return isfinite(self.mean) and isfinite(self.standard_error) and self.standard_error >= 0


@dataclass(frozen=True)
class Alarm:
    """What is known after an evaluation, from it and all earlier ones; NaN before the first known reading.

    Args:
        step: The training step.
        mean: The alignment, filtered.
        low: Lower end of its 95 % interval, inside the range of a cosine.
        high: Upper end of the interval.
        p_helps: Probability that the alignment is above zero.
        level: `helps`: above zero with a probability of at least 0.9, and since then of at least 0.5. `harms`: below
            zero, in the same way. `fades`: it has helped, and is now more likely not to. `unsure`: nothing of this.
    """

    step: int
    mean: float
    low: float
    high: float
    p_helps: float
    level: Level

    @property
    def raised(self) -> bool:
        """Whether someone should look at the training: the level is `fades` or `harms`."""
        return LEVELS[self.level] < 0


def alarms(readings: Sequence[Reading], *, drifts: Sequence[float] = DRIFTS) -> list[Alarm]:
    """The alarm after each reading; raises OpdAlignError if steps do not increase.

    Args:
        readings: The readings of one teacher and objective, in the order of their steps.
        drifts: Standard deviations of the change in one step, equally likely before the first reading.
    """
    mean_D, variance_D = np.zeros(len(drifts)), np.full(len(drifts), PRIOR_SD**2)
    log_weight_D, step_variance_D = np.zeros(len(drifts)), np.square(drifts)
    found: list[Alarm] = []
    level: Level = "unsure"
    started = helped = False
    for number, reading in enumerate(readings):
        steps = reading.step - readings[number - 1].step if number else 0
        if number and steps <= 0:
            raise OpdAlignError(f"steps must increase, but {reading.step} follows {readings[number - 1].step}")
        if started:
            variance_D = variance_D + steps * step_variance_D
        if reading.known:
            started = True
            error = max(reading.standard_error, MIN_ERROR)
            expected_D, surprise_D = variance_D + error**2, reading.mean - mean_D
            log_weight_D = log_weight_D - (np.log(2 * pi * expected_D) + surprise_D**2 / expected_D) / 2
            gain_D = variance_D / expected_D
            mean_D, variance_D = mean_D + gain_D * surprise_D, (1 - gain_D) * variance_D
        if not started:
            found.append(Alarm(reading.step, nan, nan, nan, nan, level))
            continue
        weight_D = np.exp(log_weight_D - log_weight_D.max())
        weight_D /= weight_D.sum()
        p_helps = float(weight_D @ ndtr(mean_D / np.sqrt(variance_D)))
        level = _next_level(level, p_helps, helped=helped)
        helped |= level == "helps"
        # The mixture over drifts has this mean and variance; its ends are those of the normal distribution with them.
        mean = float(weight_D @ mean_D)
        half_width = NORMAL * sqrt(float(weight_D @ (variance_D + (mean_D - mean) ** 2)))
        low, high = (min(max(end, COSINE[0]), COSINE[1]) for end in (mean - half_width, mean + half_width))
        found.append(Alarm(reading.step, mean, low, high, p_helps, level))
    return found


def _next_level(level: Level, p_helps: float, *, helped: bool) -> Level:
    if p_helps >= ENTER:
        return "helps"
    if 1 - p_helps >= ENTER:
        return "harms"
    if level == "helps" and p_helps < LEAVE:
        return "fades"
    if level == "harms" and 1 - p_helps < LEAVE:
        return "fades" if helped else "unsure"
    return level
