"""How often to distill from each of several teachers, given what is known of their alignment.

Weights are probabilities from posteriors, so a teacher that was measured poorly is neither trusted nor dropped. Pure
functions; the posteriors come from `core.random_walk`, and who draws a teacher is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import pi

import numpy as np
from scipy.special import ndtr

from opd_align.core.random_walk import PRIOR, Posterior
from opd_align.types import Floats, OpdAlignError

GRID = np.linspace(-4, 4, 4001)
"""Where the densities are evaluated: a cosine with the widest posterior that the prior allows is inside."""


def teacher_weights(
    posteriors: Sequence[Posterior | None],
    harmful: Sequence[bool],
    *,
    strategy: str,
    floor: float,
    unmeasured: Sequence[bool] | None = None,
) -> Floats:
    """The probability with which each teacher is used; they add up to 1, or are all 0 if every measured teacher harms.

    Args:
        posteriors: What is known of each teacher's alignment; `None`: nothing yet.
        harmful: Whether each teacher surely harms: its weight is 0, whatever the floor.
        strategy: One of `STRATEGIES`.
        floor: Smallest weight of the others.
        unmeasured: Whether each teacher could not be measured so far, and is unlikely to be: its weight is the floor.
            `None`: none of them.
    """
    used_K = ~np.array(harmful, bool)
    ranked_K = used_K if unmeasured is None else used_K & ~np.array(unmeasured, bool)
    weight_K = np.zeros(len(posteriors))
    if not ranked_K.any():
        return weight_K
    ranked = [each or PRIOR for each, rank in zip(posteriors, ranked_K, strict=True) if rank]
    value_U = STRATEGIES[strategy](ranked)
    total = value_U.sum()
    share_U = value_U / total if total > 0 else np.full(len(ranked), 1 / len(ranked))
    weight_K[used_K] = floor
    weight_K[ranked_K] += (1 - floor * used_K.sum()) * share_U
    return weight_K


def best_probability(posteriors: Sequence[Posterior]) -> Floats:
    """The probability that each alignment is the largest: Thompson sampling draws a teacher with it."""
    if len(posteriors) == 1:
        return np.ones(1)
    density_KG, below_KG = (
        np.array([_density(each) for each in posteriors]),
        np.array([_cdf(each) for each in posteriors]),
    )
    others_KG = np.array([np.prod(np.delete(below_KG, k, 0), 0) for k in range(len(posteriors))])
    value_K: Floats = np.trapezoid(density_KG * others_KG, GRID, axis=1)
    return value_K / value_K.sum()


def expected_gain(posteriors: Sequence[Posterior]) -> Floats:
    """The expected positive part of each alignment: what distilling gains if it is only used where it helps."""
    return np.array([float(each.weight_D @ _positive_part(each)) for each in posteriors])


Strategy = Callable[[Sequence[Posterior]], Floats]
STRATEGIES: Mapping[str, Strategy] = {"thompson": best_probability, "expected_gain": expected_gain}


def check_floor(floor: float, teachers: int) -> None:
    """Refuses a floor that is no probability, or too large for so many teachers."""
    if not 0 <= floor <= 1 / teachers:
        raise OpdAlignError(f"floor must be between 0 and 1/{teachers} with {teachers} teachers, not {floor}")


def _positive_part(posterior: Posterior) -> Floats:
    sd_D = np.sqrt(posterior.variance_D)
    z_D = posterior.mean_D / sd_D
    value_D: Floats = posterior.mean_D * ndtr(z_D) + sd_D * np.exp(-(z_D**2) / 2) / np.sqrt(2 * pi)
    return np.maximum(value_D, 0.0)


def _z(posterior: Posterior) -> tuple[Floats, Floats]:
    sd_D1 = np.sqrt(posterior.variance_D)[:, None]
    return (GRID - posterior.mean_D[:, None]) / sd_D1, sd_D1


def _density(posterior: Posterior) -> Floats:
    z_DG, sd_D1 = _z(posterior)
    density_G: Floats = posterior.weight_D @ (np.exp(-(z_DG**2) / 2) / (np.sqrt(2 * pi) * sd_D1))
    return density_G


def _cdf(posterior: Posterior) -> Floats:
    below_G: Floats = posterior.weight_D @ ndtr(_z(posterior)[0])
    return below_G
