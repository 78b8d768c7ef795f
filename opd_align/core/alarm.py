"""The alarm: does the teacher's update still help, given all evaluations of a training so far?

One evaluation on a few questions is too noisy to say so. Evaluations are pooled by a filter: the true alignment is a
random walk along training, and each evaluation is a noisy reading of it, so that earlier readings count as long as they
still can. The state after a reading uses that reading and earlier ones only. Pure functions of the readings; who
measures them, and who is told, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

from opd_align.core.intervals import COSINE, NORMAL
from opd_align.core.random_walk import DRIFTS as DRIFTS
from opd_align.core.random_walk import MIN_ERROR as MIN_ERROR
from opd_align.core.random_walk import PRIOR_SD as PRIOR_SD
from opd_align.core.random_walk import Reading as Reading
from opd_align.core.random_walk import filtered

Level = Literal["helps", "unsure", "fades", "harms"]

LEVELS: Mapping[Level, int] = {"helps": 1, "unsure": 0, "fades": -1, "harms": -2}
"""Each level as a number for trackers; the alarm is raised below zero."""

ENTER, LEAVE = 0.9, 0.5
"""A level is entered at this probability and left at that one: in between, noise would move it back and forth."""


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
    found: list[Alarm] = []
    level: Level = "unsure"
    helped = False
    for reading, posterior in zip(readings, filtered(readings, drifts=drifts), strict=True):
        if posterior is None:
            found.append(Alarm(reading.step, nan, nan, nan, nan, level))
            continue
        p_helps = posterior.p_positive
        level = _next_level(level, p_helps, helped=helped)
        helped |= level == "helps"
        # The ends are those of the normal distribution with the mixture's mean and variance.
        mean, half_width = posterior.mean, NORMAL * posterior.sd
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
