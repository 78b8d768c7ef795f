"""Means over questions with 95 % intervals that stay inside the range of values."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf, nan, sqrt

import numpy as np
from scipy import stats

from opd_align.core.attenuation import QuestionValues
from opd_align.types import Floats

LEVEL, TAILS = 0.95, (0.025, 0.975)
NORMAL = float(stats.norm.ppf(TAILS[1]))
COSINE = (-1.0, 1.0)


@dataclass(frozen=True)
class Estimate:
    """A mean over questions with its 95 % confidence interval.

    Args:
        mean: Mean over the questions with a known value; NaN if there are none.
        half_width: Half-width of the interval before it is cut at the ends of the range; NaN with fewer than two
            questions.
        n: Number of questions with a known value.
        low: Lower end of the interval, inside the range of values.
        high: Upper end of the interval.
        attenuation: Share of the truth that was left before the correction (`core.attenuation`); 1: not corrected.
    """

    mean: float
    half_width: float
    n: int
    low: float = nan
    high: float = nan
    attenuation: float = 1.0


def interval(value_Q: Floats | QuestionValues, *, bounds: tuple[float, float] = (-inf, inf)) -> Estimate:
    """Mean of the finite values with its 95 % t interval, wider by the error of a correction."""
    values = value_Q if isinstance(value_Q, QuestionValues) else QuestionValues(value_Q)
    known = values.value_Q[np.isfinite(values.value_Q)]
    n = len(known)
    if not n:
        return Estimate(nan, nan, 0)
    mean = min(max(float(known.mean()), bounds[0]), bounds[1])
    half_width = nan
    if n > 1:
        sampling = float(stats.t.ppf(TAILS[1], n - 1)) * float(known.std(ddof=1)) / sqrt(n)
        half_width = hypot(sampling, NORMAL * values.model_sd)
    low, high = max(mean - half_width, bounds[0]), min(mean + half_width, bounds[1])
    return Estimate(mean, half_width, n, low if n > 1 else nan, high if n > 1 else nan, values.attenuation)
