"""90 % intervals of counted success probabilities, against exact binomial worlds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.tree import GenerationTree
from opd_align.types import PathScores, Rollouts

VISITS = range(5, 101)
Q = np.linspace(0.01, 0.99, 99)


def counted(wins: np.ndarray, visits: np.ndarray) -> PathEstimate:
    """Children of one node, so many of whose rollouts are correct."""
    n, zeros = len(wins), np.zeros(len(wins))
    with np.errstate(invalid="ignore"):
        q_C = wins / visits
    return PathEstimate(
        q_C, zeros, zeros, zeros, np.zeros(1), q_C[:1], visits, visits.astype(float), q_C[:1], np.zeros(1),
        np.array([0, n]), counted=True,
    )  # fmt: skip


def coverage(level: float) -> np.ndarray:
    """Probability that the interval contains q, for all numbers of visits (rows) and all q (columns)."""
    rows = []
    for visits in VISITS:
        wins = np.arange(visits + 1)
        low_C, high_C = counted(wins, np.full(visits + 1, visits)).interval_C(level)
        inside = (low_C[:, None] <= Q) & (high_C[:, None] >= Q)
        rows.append((binom.pmf(wins[:, None], visits, Q) * inside).sum(0))
    return np.array(rows)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_intervals_cover_at_their_level(level: float) -> None:
    found = coverage(level)
    # Counts are whole numbers, so for a single q and n the coverage is above or below the level, never at it.
    assert np.abs(found.mean(1) - level).max() < 0.02  # for any number of visits, over all q
    assert (found.mean(0) > level - 0.035).all()  # for any q, over all numbers of visits


def test_ninety_percent_intervals_cover_close_to_zero_and_one() -> None:
    found = coverage(0.9)
    assert found[:, (Q < 0.105) | (Q > 0.895)].mean() > 0.9
    assert found.min() > 0.76
    assert (found < 0.85).mean() < 0.04


def test_intervals_are_the_same_for_failures_and_successes() -> None:
    wins = np.arange(21)
    low_C, high_C = counted(wins, np.full(21, 20)).interval_C()
    assert low_C == pytest.approx(1 - high_C[::-1])
    assert (np.diff(low_C) > 0).all()
    assert (np.diff(high_C) > 0).all()
    assert (low_C <= wins / 20).all()
    assert (wins / 20 <= high_C).all()


@pytest.mark.parametrize("method", ["direct", "pooled"])
def test_none_of_twenty_may_still_be_one_in_eleven(method) -> None:
    """0 of 20 after token 1, 20 of 20 after token 2, nothing after token 3."""
    rollouts = [(1, 4)] * 20 + [(2, 4)] * 20 + [(2, 5)]
    outcome = [0] * 20 + [1] * 21
    tree = GenerationTree.build(Rollouts.of(rollouts, launch=[0] * 41, outcome=outcome))
    log_p_C = np.log([0.4, 0.4, 0.1, 0.9, 0.1])
    path = PathScores(
        np.array([2, 5], np.uint32), np.array([0, 3, 5]), np.array([1, 2, 3, 4, 5], np.uint32), log_p_C, np.zeros(2), {}
    )
    (found,) = estimate(tree, [path], method=method)
    assert found.visits_C[:3].tolist() == [20, 20, 0]
    low_C, high_C = found.interval_C()
    assert [low_C[0], high_C[1]] == [0.0, 1.0]
    assert high_C[0] == pytest.approx(0.0905, abs=1e-4)
    assert low_C[1] == pytest.approx(1 - 0.0905, abs=1e-4)
    assert np.isnan([low_C[2], high_C[2]]).all()
