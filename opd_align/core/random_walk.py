"""Alignment along a training as a random walk that evaluations read with noise: what is known of it, step by step.

`filtered` uses the readings until each step, as `core.alarm` needs it. `smoothed` uses those after it too: it dates a
change better than a filter can, and is what a training that returns to an earlier state should ask. How fast the walk
moves is not known, so every posterior is a mixture over speeds. Pure functions of the readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, pi, sqrt

import numpy as np
from scipy.special import ndtr

from opd_align.types import Floats, OpdAlignError

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


@dataclass(frozen=True, eq=False)
class Posterior:
    """The alignment at one step: a mixture of normal distributions, one per speed of the walk.

    Args:
        weight_D: Probabilities of the speeds.
        mean_D: Mean of the alignment for each speed.
        variance_D: Its variance.
    """

    weight_D: Floats
    mean_D: Floats
    variance_D: Floats

    @property
    def mean(self) -> float:
        return float(self.weight_D @ self.mean_D)

    @property
    def sd(self) -> float:
        """Standard deviation of the whole mixture."""
        return sqrt(float(self.weight_D @ (self.variance_D + (self.mean_D - self.mean) ** 2)))

    @property
    def p_positive(self) -> float:
        """Probability that the alignment is above zero."""
        return float(self.weight_D @ ndtr(self.mean_D / np.sqrt(self.variance_D)))


PRIOR = Posterior(np.ones(1), np.zeros(1), np.full(1, PRIOR_SD**2))
"""What is known before the first reading."""


@dataclass(frozen=True, eq=False)
class _Forward:
    """The filter's pass: means and variances after each reading by speed, and the log-likelihood of each speed."""

    started_N: list[bool]
    mean_ND: Floats
    variance_ND: Floats
    log_weight_ND: Floats


def _forward(readings: Sequence[Reading], drifts: Sequence[float]) -> _Forward:
    mean_D, variance_D = np.zeros(len(drifts)), np.full(len(drifts), PRIOR_SD**2)
    log_weight_D, step_variance_D = np.zeros(len(drifts)), np.square(drifts)
    started, started_N, means, variances, log_weights = False, [], [], [], []
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
        started_N.append(started)
        means.append(mean_D)
        variances.append(variance_D)
        log_weights.append(log_weight_D)
    shape = (len(readings), len(drifts))
    stacked = [np.array(each, np.float64).reshape(shape) for each in (means, variances, log_weights)]
    return _Forward(started_N, *stacked)


def _normalised(log_weight_D: Floats) -> Floats:
    weight_D: Floats = np.exp(log_weight_D - log_weight_D.max())
    weight_D /= weight_D.sum()
    return weight_D


def filtered(readings: Sequence[Reading], *, drifts: Sequence[float] = DRIFTS) -> list[Posterior | None]:
    """What is known after each reading from it and earlier ones; `None` before the first known reading.

    Raises OpdAlignError if steps do not increase.
    """
    found = _forward(readings, drifts)
    return [
        Posterior(_normalised(found.log_weight_ND[n]), found.mean_ND[n], found.variance_ND[n]) if started else None
        for n, started in enumerate(found.started_N)
    ]


def smoothed(readings: Sequence[Reading], *, drifts: Sequence[float] = DRIFTS) -> list[Posterior | None]:
    """What is known of each reading's step from all readings, later ones too; `None` before the first known one.

    Raises OpdAlignError if steps do not increase.
    """
    found = _forward(readings, drifts)
    if not any(found.started_N):
        return [None] * len(readings)
    weight_D = _normalised(found.log_weight_ND[-1])
    mean_D, variance_D = found.mean_ND[-1], found.variance_ND[-1]
    posteriors: list[Posterior | None] = [Posterior(weight_D, mean_D, variance_D)]
    for n in range(len(readings) - 2, -1, -1):
        if not found.started_N[n]:
            posteriors.append(None)
            continue
        steps = readings[n + 1].step - readings[n].step
        predicted_D = found.variance_ND[n] + steps * np.square(drifts)
        gain_D = found.variance_ND[n] / predicted_D
        mean_D = found.mean_ND[n] + gain_D * (mean_D - found.mean_ND[n])
        variance_D = found.variance_ND[n] + gain_D**2 * (variance_D - predicted_D)
        posteriors.append(Posterior(weight_D, mean_D, variance_D))
    return posteriors[::-1]


def expected_alignment(readings: Sequence[Reading], steps: Sequence[int]) -> Floats:
    """The mean of the smoothed alignment at each of `steps`; NaN outside of the known readings.

    Linear between readings.
    """
    known = [(reading.step, each.mean) for reading, each in zip(readings, smoothed(readings), strict=True) if each]
    if not known:
        return np.full(len(steps), nan)
    step_N, mean_N = (np.array(column, np.float64) for column in zip(*known, strict=True))
    return np.interp(steps, step_N, mean_N, left=nan, right=nan)


def cumulative_gain(readings: Sequence[Reading], steps: Sequence[int]) -> Floats:
    """The expected alignment, summed over the steps from the first known reading to each of `steps`; NaN before it.

    Success rises while the update is aligned with it and falls afterwards, so the largest sum is where a training was
    best as far as alignment can tell. Linear between readings; after the last one it stays at its value there.
    """
    known = [(reading.step, each.mean) for reading, each in zip(readings, smoothed(readings), strict=True) if each]
    if not known:
        return np.full(len(steps), nan)
    step_N, mean_N = (np.array(column, np.float64) for column in zip(*known, strict=True))

    def until(step: int) -> float:
        if step < step_N[0]:
            return nan
        inside = np.append(step_N[step_N < step], min(step, step_N[-1]))
        return float(np.trapezoid(np.interp(inside, step_N, mean_N), inside))

    return np.array([until(step) for step in steps], np.float64)
