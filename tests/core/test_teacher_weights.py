"""Weights of teachers from what is known of their alignment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opd_align.core.random_walk import PRIOR, Posterior, Reading, filtered
from opd_align.core.teacher_weights import STRATEGIES, best_probability, check_floor, expected_gain, teacher_weights
from opd_align.types import OpdAlignError


def normal(mean: float, sd: float) -> Posterior:
    return Posterior(np.ones(1), np.array([mean]), np.array([sd**2]))


def mixture(seed: int) -> Posterior:
    rng = np.random.default_rng(seed)
    return filtered([Reading(20 * n, m, 0.2) for n, m in enumerate(rng.normal(0, 0.3, 4))])[-1]


def draws(posterior: Posterior, rng: np.random.Generator, n: int = 200_000) -> np.ndarray:
    which = rng.choice(len(posterior.weight_D), n, p=posterior.weight_D)
    return rng.normal(posterior.mean_D[which], np.sqrt(posterior.variance_D[which]))


def test_both_strategies_are_what_sampling_gives():
    posteriors, rng = [mixture(1), mixture(2), mixture(3)], np.random.default_rng(0)
    sampled = np.array([draws(each, rng) for each in posteriors])
    best = np.bincount(sampled.argmax(0), minlength=3) / sampled.shape[1]
    assert best_probability(posteriors) == pytest.approx(best, abs=0.005)
    assert expected_gain(posteriors) == pytest.approx(np.maximum(sampled, 0).mean(1), abs=0.002)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_known_means_equal_weights(strategy):
    assert teacher_weights([None] * 4, [False] * 4, strategy=strategy, floor=0.1) == pytest.approx([0.25] * 4)
    assert PRIOR.p_positive == 0.5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_teacher_that_cannot_be_measured_has_the_floor(strategy):
    known, options = normal(-0.1, 0.05), {"strategy": strategy, "floor": 0.1}
    assert teacher_weights([known, None], [False, False], **options)[1] > 0.5, "it may still be measured"
    found = teacher_weights([known, None], [False, False], unmeasured=[False, True], **options)
    assert found == pytest.approx([0.9, 0.1])
    found = teacher_weights([known, None, known], [True, False, False], unmeasured=[False, True, False], **options)
    assert found == pytest.approx([0, 0.1, 0.9])
    assert not teacher_weights([known, None], [True, False], unmeasured=[False, True], **options).any()


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(0.03, 0.6), st.booleans()), min_size=1, max_size=5),
    st.sampled_from(sorted(STRATEGIES)),
    st.floats(0, 0.2),
)
def test_weights_are_probabilities_above_the_floor_unless_a_teacher_harms(rows, strategy, floor):
    harmful = [harms for _, _, harms in rows]
    posteriors = [normal(mean, sd) for mean, sd, _ in rows]
    weights = teacher_weights(posteriors, harmful, strategy=strategy, floor=floor)
    assert weights.sum() == pytest.approx(0 if all(harmful) else 1)
    for weight, harms in zip(weights, harmful, strict=True):
        assert weight == 0 if harms else weight >= floor - 1e-12


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_better_teacher_gets_more_the_surer_that_is(strategy):
    def share(sd: float) -> float:
        found = teacher_weights([normal(0.3, sd), normal(0.0, sd)], [False, False], strategy=strategy, floor=0)
        return float(found[0])

    assert 0.5 < share(0.5) < share(0.1) <= 1
    assert share(0.01) > 0.97


def test_one_teacher_has_weight_one_to_the_bit():
    for strategy in STRATEGIES:
        assert teacher_weights([normal(-0.2, 0.1)], [False], strategy=strategy, floor=0.05)[0] == 1.0


def test_a_floor_must_fit():
    check_floor(0.5, 2)
    for floor in (-0.1, 0.6, float("nan")):
        with pytest.raises(OpdAlignError, match="floor must be between 0 and 1/2"):
            check_floor(floor, 2)
