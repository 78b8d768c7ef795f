"""The worlds of `benchmarks/_other_worlds.py` are what they say: exact, reproducible, with proper teachers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _other_worlds

from opd_align.backends.exact_random import EOS
from opd_align.types import Question, SampleRequest

SEED, SAMPLES = 3, 2_000
FAMILIES = ("cot", "search", "late")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def world(family):
    return _other_worlds.world_of(family, SEED)


def test_these_are_all_families() -> None:
    assert tuple(_other_worlds.FAMILIES) == FAMILIES


def test_the_exact_success_probability_agrees_with_samples(world) -> None:
    question = Question("world")
    rollouts = world.sample([SampleRequest(question, np.empty(0, np.uint32), SAMPLES)])
    exact = world.value_LS[0, world.start]
    error = (exact * (1 - exact) / SAMPLES) ** 0.5
    assert 0.02 < exact < 0.98
    assert world.grade(question, rollouts).mean() == pytest.approx(exact, abs=4 * error)


def test_student_and_teachers_are_normalized(family, world) -> None:
    teachers = _other_worlds.teachers_of(family, world, SEED)
    assert len(teachers) == 5
    for log_LSV in [world.log_p_LSV, *(teacher.log_t_LSV for teacher in teachers)]:
        assert log_LSV.shape == world.next_LSV.shape
        np.testing.assert_allclose(np.exp(log_LSV).sum(-1), 1.0, atol=1e-9)


def test_the_same_seed_gives_the_same_world(family, world) -> None:
    again, other = (_other_worlds.world_of(family, seed) for seed in (SEED, SEED + 1))
    assert again.fingerprint == world.fingerprint != other.fingerprint


def test_the_typical_length_is_that_of_the_completions(family, world) -> None:
    rollouts = world.sample([SampleRequest(Question("world"), np.empty(0, np.uint32), SAMPLES)])
    length = _other_worlds.length_of(family, SEED)
    assert 0.5 * length < np.median(rollouts.length_R) < 1.8 * length


def test_in_late_worlds_nothing_but_the_last_tokens_matters() -> None:
    world = _other_worlds.world_of("late", SEED)
    completion = world.sample([SampleRequest(Question("world"), np.empty(0, np.uint32), 1)]).tokens
    states_T = world.states_along(completion)[:-1]
    value_T = world.value_LS[np.arange(len(states_T)), states_T]
    first_half_T = value_T[: len(value_T) // 2]
    assert completion[-1] == EOS
    assert np.ptp(first_half_T) < 0.05 < np.ptp(value_T)
