"""Tables of random exact worlds, shaped like measured reasoning traces (see `ExactWorld.random`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opd_align.types import Floats, Ints, OpdAlignError

EOS = 0
"""The end-of-sequence token of every exact world."""


def random_tables(
    seed: int, *, length: int, vocabulary: int, states: int, forks: float, peakedness: float, stakes: float
) -> tuple[Floats, NDArray[np.uint8], NDArray[np.bool_], int]:
    """Log-probabilities, next states, successful states and initial state of a random world."""
    states = states or max(24, min(200, 200_000 // max(length, 1)))
    if vocabulary < 4 or states < 4 or states > 256 or length < 4:
        raise OpdAlignError(
            f"an exact world needs vocabulary >= 4, 4 <= states <= 256 and length >= 4; "
            f"got vocabulary={vocabulary}, states={states}, length={length}"
        )
    if not (0 <= forks <= 1 and 0.5 < peakedness < 1 and 0 <= stakes < np.inf):
        raise OpdAlignError(
            f"forks must lie in [0, 1], peakedness in (0.5, 1) and stakes in [0, ∞); "
            f"got forks={forks}, peakedness={peakedness}, stakes={stakes}"
        )
    rng = np.random.default_rng(seed)
    limit = length + max(length // 2, 70)
    base_LV = _base_probabilities(rng, limit, vocabulary, forks, peakedness)
    # Token probabilities depend on the state, in bands: neighboring states have the same probabilities.
    bands = 4
    offset = rng.normal(0.0, 0.35, (limit, bands, vocabulary))
    band_S = np.arange(states) * bands // states
    log_p = np.log(base_LV)[:, None, :] + offset[:, band_S, :]
    log_p[:, :, EOS] = -np.inf
    log_p -= np.logaddexp.reduce(log_p, axis=-1, keepdims=True)
    hazard_L = _end_hazard(limit, length)
    log_p += np.log1p(-hazard_L)[:, None, None]
    log_p[:, :, EOS] = np.log(hazard_L)[:, None]
    jump_LV = _jumps(rng, base_LV, stakes=stakes * (length / 150) ** 0.5, unit=states / 200)
    # No drift: otherwise every completion would reach the same extreme state.
    jump_LV -= np.rint((base_LV * jump_LV).sum(-1, keepdims=True)).astype(np.int64)
    next_state = np.arange(states)[None, :, None] + jump_LV[:, None, :]
    start = int(np.clip(round(states / 2 + rng.normal(0, states / 10)), 1, states - 2))
    return log_p, np.clip(next_state, 0, states - 1).astype(np.uint8), np.arange(states) >= states // 2, start


def _base_probabilities(
    rng: np.random.Generator, limit: int, vocabulary: int, forks: float, peakedness: float
) -> Floats:
    """Token probabilities by position, before state and end-of-sequence: main token, alternatives, tail."""
    tail_L1 = np.minimum((1 - peakedness) * rng.gamma(1.0, 1.0, (limit, 1)), 0.3)
    base_LV = tail_L1 * rng.dirichlet(np.full(vocabulary, 0.3), limit)
    forked_L = rng.random(limit) < forks
    second_L = np.where(forked_L, rng.uniform(0.08, 0.5, limit), 0.0)
    third_L = np.where(forked_L & (rng.random(limit) < 0.2), rng.uniform(0.05, 0.2, limit), 0.0) * (1 - second_L)
    positions = np.arange(limit)
    # Three different tokens per position, none of them end-of-sequence.
    chosen_L3 = 1 + np.argsort(rng.random((limit, vocabulary - 1)), axis=-1)[:, :3]
    for rank, mass_L in enumerate((1 - second_L - third_L, second_L, third_L)):
        base_LV[positions, chosen_L3[:, rank]] += (1 - tail_L1[:, 0]) * mass_L
    return base_LV + 1e-6


def _end_hazard(limit: int, length: int) -> Floats:
    """Probability to end at each position: small at first, rising around the typical length."""
    relative_L = (np.arange(limit) - length) / (0.12 * length)
    return 0.02 / length + min(8 / length, 0.045) / (1 + np.exp(-relative_L))


def _jumps(rng: np.random.Generator, base_LV: Floats, *, stakes: float, unit: float) -> Ints:
    """State change of each token: mostly small for likely alternatives, often large for unlikely tokens."""
    small = rng.normal(0.0, 5.0 * stakes, base_LV.shape)
    far = rng.uniform(10.0, 40.0, base_LV.shape) * rng.choice((-1.0, 1.0), base_LV.shape)
    decisive = np.where(base_LV > 0.05, 0.015, 0.8)
    size = np.where(rng.random(base_LV.shape) < decisive, far, small) * unit
    # Stochastic rounding: with few states, most small changes round to zero instead of all of them.
    whole = np.floor(size + rng.random(base_LV.shape)).astype(np.int64)
    return np.where(rng.random(base_LV.shape) < 0.05, 0, whole)
