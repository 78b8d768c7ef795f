"""The parts of benchmarks/ideas.py that its figures rest on: coupled sampling, signs, predictors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ideas
from _worlds import explore, settings, teachers_of, world_of

from opd_align.core.alignment import node_table
from opd_align.core.collect import Evidence
from opd_align.core.engine import estimated_paths
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import exact_estimate
from opd_align.settings import Budget
from opd_align.types import Question, SampleRequest

SEED = 5


@pytest.fixture(scope="module")
def world():
    return world_of("stakes", SEED, 40)


@pytest.fixture(scope="module")
def evidence(world) -> Evidence:
    return explore(world, teachers_of(world, SEED), Budget(initial=60, targeted=600, allocation="adaptive"))


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_coupled_rollouts_are_samples_of_the_student_and_siblings_resemble_each_other(world, evidence, loss):
    scores = evidence.paths[0]
    exact_C = world.exact_q_along(scores)
    depth = next(
        depth
        for depth in range(3, len(scores))
        if ((scores.log_p_C > np.log(0.05)) & (scores.depth_C == depth) & (abs(exact_C - 0.5) < 0.45)).sum() >= 2
    )
    child = np.flatnonzero((scores.log_p_C > np.log(0.05)) & (scores.depth_C == depth))[:2]
    requests = [
        SampleRequest(
            Question("world"), np.append(scores.completion_T[:depth], scores.token_C[c]).astype(np.uint32), 1500
        )
        for c in child
    ]
    tables = (world.log_p_LSV, world.next_LSV, world.success_S, world.start)
    correlation = {}
    for name, student in (("alone", world), ("coupled", ideas.CoupledWorld(*tables, by_node=True, loss=loss))):
        rollouts = student.sample(requests)
        won_KR = student.grade(Question("world"), rollouts).reshape(2, 1500)
        error_K = np.sqrt(exact_C[child] * (1 - exact_C[child]) / 1500)
        assert (np.abs(won_KR.mean(-1) - exact_C[child]) < 4 * error_K).all()
        correlation[name] = np.corrcoef(won_KR)[0, 1]
    five_standard_errors = 5 / np.sqrt(1500)
    assert abs(correlation["alone"]) < five_standard_errors
    assert correlation["coupled"] > five_standard_errors


def test_sign_scores_agree_with_the_posterior_without_ties(evidence):
    found = estimate(evidence.tree, evidence.paths, ties=False)
    paths = [
        replace(path, estimate=one, halves=None, unshrunk=None)
        for path, one in zip(estimated_paths(evidence, settings()), found, strict=True)
    ]
    rows = node_table(paths, settings().objectives, settings().rules)
    z = {at: ideas.sign_scores(scores, found[at]) for at, scores in enumerate(evidence.paths)}
    names = list(evidence.paths[0].teachers)
    expected = [
        ideas.ndtr(z[path][names.index(teacher), depth])
        for path, teacher, depth in zip(*(rows[c].to_pylist() for c in ("path", "teacher", "depth")), strict=True)
    ]
    said = rows["p_positive"].to_numpy()
    assert len(said) > 50
    # Nodes of the table have the tokens with rollouts only.
    assert np.abs(np.asarray(expected) - said).max() < 0.08


@pytest.mark.parametrize("smooth", [True, False])
def test_a_predictor_has_the_stated_correlation_on_states_that_rollouts_visit(world, smooth):
    predicted_LS = ideas.predictor(world, 0.7, 1, smooth=smooth)
    rollouts = world.sample([SampleRequest(Question("world"), np.empty(0, np.uint32), 2000)])
    parts = [(predicted_LS[t, state], world.value_LS[t, state]) for _, t, state, _ in world._walk(rollouts)]
    predicted, truth = (np.concatenate(each) for each in zip(*parts, strict=True))
    assert np.corrcoef(predicted, truth)[0, 1] == pytest.approx(0.7, abs=0.05)


def test_predicted_gains_have_mean_zero_and_a_perfect_predictor_leaves_no_noise(world, evidence):
    natural_R = evidence.tree.launch_R == 0
    rough = ideas.gains(world, evidence, ideas.predictor(world, 0.7, 1))(np.zeros(len(evidence.tree), np.int64))[
        natural_R
    ]
    assert abs(rough.mean()) < 4 * rough.std() / np.sqrt(len(rough))
    # Perfect includes knowing the outcome of a completion that ends, which `gains` does not assume.
    assert ideas.ControlBackup(evidence, ideas.gains(world, evidence, world.value_LS)).left < 0.8
    assert ideas.ControlBackup(evidence, ideas.gains(world, evidence, np.full_like(world.value_LS, 0.5))).left == 1.0


def test_exact_estimates_have_no_error_and_a_good_predictor_lowers_it(world, evidence):
    known = [exact_estimate(scores, world.exact_q_along(scores)) for scores in evidence.paths]
    assert ideas.difference_mse(world, evidence, known) == 0.0
    plain = ideas.difference_mse(world, evidence, estimate(evidence.tree, evidence.paths))
    after = [world.exact_q_along(scores) for scores in evidence.paths]
    assert ideas.difference_mse(world, evidence, ideas.PriorBackup(evidence, after).solve()) < 0.3 * plain
    slopes, errors = [], []
    for seed in range(8):
        noise = [np.random.default_rng([seed, i]).random(len(each)) for i, each in enumerate(after)]
        useless = ideas.PriorBackup(evidence, noise)
        errors.append(ideas.difference_mse(world, evidence, useless.solve()))
        slopes.append(useless.slope)
    assert np.mean(errors) < 1.1 * plain
    assert np.mean(slopes) < 0.2
