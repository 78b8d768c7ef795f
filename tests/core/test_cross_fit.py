"""Values of nodes that were chosen on other rollouts: by hand, and where there is no signal to find."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pyarrow as pa
import pytest

from opd_align import metrics
from opd_align.backends.exact import ExactWorld
from opd_align.core.alignment import cosine
from opd_align.core.collect import collect
from opd_align.core.cross_fit import SIGNALS, counted_signal
from opd_align.core.engine import _halves, align
from opd_align.core.estimate import chosen_rows
from opd_align.core.objectives import unified_update
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Question

SMALL = Settings(
    budget=Budget(initial=40, targeted=120, allocation="adaptive", correct_paths=1, incorrect_paths=1),
    rules=Rules(draws=20),
)


def test_between_two_children_the_value_is_their_difference_whatever_chose_the_node():
    p_NK, update_NK = np.array([[0.3, 0.7]] * 3), np.array([[0.2, -0.2], [-0.2, 0.2], [0.2, -0.2]])
    value_NK = np.array([[0.9, 0.4], [0.9, 0.4], [0.25, 1.0]])
    for chosen_q_NK in (np.full((3, 2), 0.5), np.array([[0.1, 0.8]] * 3)):
        assert counted_signal(value_NK, chosen_q_NK, p_NK, update_NK) == pytest.approx([0.5, -0.5, -0.75])


def test_with_the_same_values_in_both_halves_it_is_sr_range_times_alignment():
    rng = np.random.default_rng(0)
    p_NK, q_NK = rng.dirichlet(np.ones(4), 50), rng.uniform(size=(50, 4))
    update_NK = unified_update(p_NK, rng.standard_normal((50, 4)))
    expected_N = np.ptp(q_NK, axis=-1) * cosine(unified_update(p_NK, q_NK), update_NK)
    assert counted_signal(q_NK, q_NK, p_NK, update_NK) == pytest.approx(expected_N)


def test_a_token_without_rollouts_leaves_the_node_without_a_value_only_if_it_matters():
    p_NK, q_NK = np.array([[0.25, 0.25, 0.5]] * 2), np.array([[0.2, 0.6, 0.4]] * 2)
    update_NK = np.array([[0.1, -0.1, 0.0], [0.1, -0.3, 0.2]])
    first, second = counted_signal(np.array([[0.2, 0.6, nan]] * 2), q_NK, p_NK, update_NK)
    assert first == pytest.approx(-0.4)
    assert isnan(second)
    assert counted_signal(q_NK, q_NK, p_NK, np.zeros((2, 3))) == pytest.approx(0.0)


@pytest.mark.parametrize("children", [2, 4])
def test_equally_good_children_have_no_value_even_if_every_choice_makes_the_same_mistake(children):
    # Both halves overrate the first child, and the teacher prefers it at half of the nodes: posterior means agree.
    rng = np.random.default_rng(children)
    nodes, q, rollouts = 20_000, 0.7, 3
    p_NK = rng.dirichlet(np.full(children, 2.0), nodes)
    update_NK = unified_update(p_NK, rng.standard_normal((nodes, children)))
    biased_K = q + 0.1 * np.eye(children)[0]
    chosen_q_NK = np.clip(biased_K + 0.05 * rng.standard_normal((nodes, children)), 0, 1)
    chosen_N = (unified_update(p_NK, chosen_q_NK) * update_NK).sum(-1) > 0
    value_NK = rng.binomial(rollouts, q, (nodes, children)) / rollouts
    found_N = counted_signal(value_NK, chosen_q_NK, p_NK, update_NK)[chosen_N]
    assert abs(found_N.mean()) < 2 * found_N.std() / np.sqrt(len(found_N))
    shared_N = counted_signal(chosen_q_NK, chosen_q_NK, p_NK, update_NK)[chosen_N]
    assert shared_N.mean() > 0.03


def test_the_oracle_is_valued_by_counts_where_the_table_has_them():
    nodes = pa.table({
        "question": ["a", "a", "b"], "path": [0, 0, 0], "teacher": ["T"] * 3, "objective": ["gkd"] * 3,
        "alignment": [0.5] * 3, "sr_range": [0.2] * 3, "sr_range_a": [0.2] * 3, "sr_range_b": [0.2] * 3,
        "alignment_a": [0.5, -0.5, 0.5], "alignment_b": [0.5, 0.5, 0.5],
        "signal_a": [0.3, -0.1, nan], "signal_b": [0.1, 0.7, -0.2],
    })  # fmt: skip
    full, kept = metrics.selective_oracle(nodes, (0.0,))
    # Question a: chosen by a, valued 0.1; chosen by b, (0.3 − 0.1) / 2. Question b: only half b has a value.
    assert kept.cross_fitted_signal.mean == pytest.approx((0.1 - 0.2) / 2)
    assert full.cross_fitted_signal.mean == pytest.approx(((0.4 + 0.1) / 2 - 0.2) / 2)


def test_halves_share_the_chosen_paths_and_certain_ends_only():
    world = ExactWorld.random(8300, length=12, vocabulary=5, stakes=2.0)
    evidence = collect(world, [world.tilted_teacher("T", seed=1)], Question("q"), world, settings=SMALL)
    tree, (a, b) = evidence.tree, _halves(evidence.tree, evidence.paths)
    certain = int(((tree.launch_R == tree.length_R)).sum())
    assert len(a) + len(b) == len(tree) + certain + len(chosen_rows(tree, evidence.paths))
    nodes = align(evidence, SMALL)
    assert set(SIGNALS) <= set(nodes.column_names)
    value = np.concatenate([nodes[name].to_numpy() for name in SIGNALS])
    assert np.isfinite(value).any() and np.nanmax(np.abs(value)) <= 1
