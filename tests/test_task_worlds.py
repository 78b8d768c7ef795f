"""The worlds of `benchmarks/_task_worlds.py` are what they say: exact, reproducible, with different teachers."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _task_worlds
from _task_sums import RESULT, RIGHT, SUMS_PARTS, WORDING
from _task_yesno import NO, VERDICT, YES, YESNO_PARTS

from opd_align.types import Question, SampleRequest

SEED, SAMPLES = 3, 2_000
FAMILIES = ("sums", "plans", "yesno")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def world(family):
    return _task_worlds.world_of(family, SEED)


@pytest.fixture(scope="module")
def teachers(family, world):
    return _task_worlds.teachers_of(family, world, SEED)


@pytest.fixture(scope="module")
def rollouts(world):
    return world.sample([SampleRequest(Question("world"), np.empty(0, np.uint32), SAMPLES)])


def test_these_are_all_families() -> None:
    assert tuple(_task_worlds.FAMILIES) == FAMILIES


def test_the_exact_success_probability_agrees_with_samples(world, rollouts) -> None:
    exact = world.value_LS[0, world.start]
    error = (exact * (1 - exact) / SAMPLES) ** 0.5
    assert world.grade(Question("world"), rollouts).mean() == pytest.approx(exact, abs=4 * error)


@pytest.mark.parametrize("seed", range(4))
def test_pass_rates_and_sizes_are_in_range(family, seed) -> None:
    world = _task_worlds.world_of(family, seed)
    assert 0.03 < world.value_LS[0, world.start] < 0.97
    assert 12 <= world.vocabulary <= 40
    assert 40 <= _task_worlds.length_of(family, seed) <= _task_worlds.FAMILIES[family].longest
    assert len(world.success_S) <= 256


def test_student_and_teachers_are_normalized(world, teachers) -> None:
    assert len(teachers) == 5
    for log_LSV in [world.log_p_LSV, *(teacher.log_t_LSV for teacher in teachers)]:
        assert log_LSV.shape == world.next_LSV.shape
        assert np.isfinite(log_LSV).all()
        np.testing.assert_allclose(np.exp(log_LSV).sum(-1), 1.0, atol=1e-9)


def test_the_same_seed_gives_the_same_world_and_teachers(family, world, teachers) -> None:
    again, other = (_task_worlds.world_of(family, seed) for seed in (SEED, SEED + 1))
    assert again.fingerprint == world.fingerprint != other.fingerprint
    for teacher, twin in zip(teachers, _task_worlds.teachers_of(family, again, SEED), strict=True):
        assert teacher.name == twin.name
        np.testing.assert_array_equal(teacher.log_t_LSV, twin.log_t_LSV)


def test_teachers_differ(teachers) -> None:
    assert len({teacher.name for teacher in teachers}) == len(teachers)
    for one, other in combinations(teachers, 2):
        distance_LS = np.abs(np.exp(one.log_t_LSV) - np.exp(other.log_t_LSV)).sum(-1) / 2
        assert distance_LS.mean() > 0.005


def test_the_typical_length_is_that_of_the_completions(family, rollouts) -> None:
    assert 0.5 < np.median(rollouts.length_R) / _task_worlds.length_of(family, SEED) < 1.8


def test_numbers_decide_in_sums() -> None:
    world = _task_worlds.world_of("sums", SEED)
    state = np.arange(np.prod(SUMS_PARTS)).reshape(SUMS_PARTS)
    p_LSV = np.exp(world.log_p_LSV[:20])
    q_LSV = world.value_LS[np.arange(1, 21)[:, None, None], world.next_LSV[:20]]
    mean_LS = (p_LSV * q_LSV).sum(-1)
    spread_LS = (p_LSV * (q_LSV - mean_LS[..., None]) ** 2).sum(-1) ** 0.5
    at_words, at_results = (spread_LS[:, state[0, place, RIGHT]].mean() for place in (WORDING, RESULT))
    assert at_words < at_results


def test_the_specialist_of_yesno_wants_to_hear_yes() -> None:
    world = _task_worlds.world_of("yesno", SEED)
    specialist = _task_worlds.teachers_of("yesno", world, SEED)[-1]
    verdict_S = np.arange(np.prod(YESNO_PARTS)).reshape(YESNO_PARTS)[:, :, VERDICT].ravel()
    shift_LSV = (specialist.log_t_LSV - world.log_p_LSV)[:, verdict_S]
    assert (shift_LSV[..., YES] - shift_LSV[..., NO]).mean() > 1.0
