"""Allocation plans on hand-made paths and as properties; nothing is sampled here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.backends.exact import ExactWorld
from opd_align.core import allocation
from opd_align.core import collect as collect_module
from opd_align.core.allocation import (
    Sampleable,
    Target,
    depth_windows,
    plan_adaptive,
    plan_on_path,
    plan_paper,
    plan_unvisited,
)
from opd_align.core.chosen_paths import halves_of
from opd_align.core.collect import collect
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import CERTAIN, PathEstimate, exact_estimate
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Settings
from opd_align.types import OpdAlignError, PathScores, Question, Rollouts, SampleRequest, TeacherScores

END = 0
ENDS = np.array([END], np.uint32)
TOKENS = Sampleable(0.02, ENDS)
Kept = Mapping[int, tuple[float, float]]  # token -> probability of student and teacher


def scored(completion: Sequence[int], nodes: Sequence[Kept], **more: Sequence[Mapping[int, float]]) -> PathScores:
    """A path with teacher T and optional further teachers by name."""
    kept = [(token, *node[token]) for node in nodes for token in sorted(node)]
    token_C, p_C, t_C = (np.array(column) for column in zip(*kept, strict=True))
    others = {name: np.array([node[k] for node in t for k in sorted(node)]) for name, t in more.items()}
    blank_T = np.zeros(len(completion))
    with np.errstate(divide="ignore"):
        return PathScores(
            np.array(completion, np.uint32),
            np.cumsum([0] + [len(node) for node in nodes]),
            token_C.astype(np.uint32),
            np.log(p_C),
            blank_T,
            {name: TeacherScores(np.log(t), *[blank_T] * 7) for name, t in ({"T": t_C} | others).items()},
        )


def forks(length: int, *, seed: int = 0, tokens: int = 3) -> PathScores:
    """A path that always takes 1, with every other token likely at every position."""
    rng = np.random.default_rng(seed)
    nodes = []
    for _ in range(length):
        p, t = rng.dirichlet(np.full(tokens, 20.0), 2)
        nodes.append({k + 1: (p[k], t[k]) for k in range(tokens)})
    return scored([1] * length, nodes)


def tree_of(*completions: Sequence[int]) -> GenerationTree:
    return GenerationTree.build(Rollouts.of(completions, outcome=[0] * len(completions)))


def planned(targets: Sequence[Target]) -> dict[tuple[int, ...], int]:
    found = {tuple(target.prefix.tolist()): target.n for target in targets}
    assert len(found) == len(targets), "a prefix was planned twice"
    return found


# -- budget ---------------------------------------------------------------------------------------------------


def test_all_defaults_but_the_allocation_are_the_papers() -> None:
    budget = Budget()
    assert budget.allocation == "adaptive"
    assert (budget.initial, budget.correct_paths, budget.incorrect_paths, budget.tau) == (200, 2, 2, 0.02)
    assert (budget.n_min, budget.by_update, budget.by_gap, budget.first_window) == (100, 20, 20, 50)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"allocation": "papre"}, r"unknown allocation 'papre'; choose 'adaptive' or 'paper'"),
        ({"initial": 0}, r"initial must be at least 1, not 0"),
        ({"n_min": -3}, r"n_min must be at least 1, not -3"),
        ({"first_window": 0}, r"first_window must be at least 1"),
        ({"rounds": 0}, r"rounds must be at least 1"),
        ({"correct_paths": 0, "incorrect_paths": 0}, r"at least one path"),
        ({"correct_paths": -1, "incorrect_paths": 3}, r"at least one path"),
        ({"tau": 0.0}, r"tau must lie between 0 and 1, not 0.0"),
        ({"tau": 1.0}, r"tau must lie between 0 and 1, not 1.0"),
        ({"targeted": -1}, r"targeted and seconds cannot be negative"),
        ({"seconds": -0.5}, r"targeted and seconds cannot be negative"),
        ({"by_update": -1}, r"by_update and by_gap cannot be negative"),
        ({"by_gap": -2}, r"by_update and by_gap cannot be negative"),
    ],
)
def test_invalid_budgets_raise(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OpdAlignError, match=message):
        Budget(**wrong)


def test_a_budget_of_zero_targeted_rollouts_is_valid() -> None:
    assert Budget(targeted=0, seconds=0, by_update=0, by_gap=0).targeted == 0


# -- windows --------------------------------------------------------------------------------------------------


def test_depth_windows_double() -> None:
    assert depth_windows(700, 50).tolist() == [0, 50, 150, 350, 750]
    assert depth_windows(30_000, 50)[-1] >= 30_000
    assert len(depth_windows(30_000, 50)) == 11


@given(length=st.integers(0, 100_000), first=st.integers(1, 500))
@settings(deadline=None)
def test_depth_windows_cover_the_path_and_no_more(length: int, first: int) -> None:
    edges = depth_windows(length, first)
    width = np.diff(edges)
    assert edges[0] == 0
    assert width.tolist() == [first * 2**i for i in range(len(width))]
    assert edges[-1] >= length
    assert length == 0 or edges[-2] < length


# -- paper plan -----------------------------------------------------------------------------------------------


def test_each_window_has_targets_by_update_and_by_gap() -> None:
    # By |GKD update| token 2 comes first, then 4; by |t - p| the order is reversed.
    p, t = [0.6, 0.2, 0.15, 0.05], [0.5, 0.05, 0.15, 0.3]
    path = scored([1], [{k + 1: (p[k], t[k]) for k in range(4)}])
    f = np.log(t) - np.log(p)
    push = np.abs(np.array(p) * (f - np.dot(p, f)))
    gap = np.abs(np.array(t) - np.array(p))
    for k, r in ((0, 0), (1, 0), (0, 1), (2, 1), (1, 2), (4, 4)):
        found = planned(plan_paper(tree_of([1]), [path], Budget(n_min=10, by_update=k, by_gap=r), ENDS))
        best = {*np.argsort(-push)[:k].tolist(), *np.argsort(-gap)[:r].tolist()}
        assert set(found) == {(child + 1,) for child in best}
    assert (np.argmax(push), np.argmax(gap)) == (1, 3)


def test_each_window_has_its_own_quota() -> None:
    path = forks(40)
    budget = Budget(n_min=10, by_update=3, by_gap=0, first_window=5)
    depths = [len(prefix) - 1 for prefix in planned(plan_paper(tree_of([1] * 40), [path], budget, ENDS))]
    # Windows 0-5, 5-15, 15-35, 35-75.
    assert np.histogram(depths, [0, 5, 15, 35, 75])[0].tolist() == [3, 3, 3, 3]


def test_the_largest_update_over_teachers_counts() -> None:
    calm = {1: (0.5, 0.5), 2: (0.5, 0.5)}
    path = scored([1, 1], [calm, calm], loud=[{1: 0.5, 2: 0.5}, {1: 0.1, 2: 0.9}])
    for budget in (Budget(n_min=10, by_update=2, by_gap=0), Budget(n_min=10, by_update=0, by_gap=2)):
        assert set(planned(plan_paper(tree_of([1, 1]), [path], budget, ENDS))) == {(1, 1), (1, 2)}


def test_only_tokens_above_tau_for_student_or_teacher_are_planned() -> None:
    path = scored([1], [{1: (0.9, 0.9), 2: (0.03, 0.001), 3: (0.001, 0.03), 4: (0.019, 0.019)}])
    assert set(planned(plan_paper(tree_of([1]), [path], Budget(tau=0.02), ENDS))) == {(1,), (2,), (3,)}
    assert set(planned(plan_paper(tree_of([1]), [path], Budget(tau=0.01), ENDS))) == {(1,), (2,), (3,), (4,)}
    assert set(planned(plan_paper(tree_of([1]), [path], Budget(tau=0.5), ENDS))) == {(1,)}


def test_visits_are_topped_up_to_n_min() -> None:
    path = scored([1, 1], [{1: (0.4, 0.6), 2: (0.3, 0.2), 3: (0.3, 0.2)}, {1: (0.5, 0.6), 4: (0.5, 0.4)}])
    tree = tree_of([1, 1], [1, 4], [1, 4], *[[2, 9]] * 6)
    # Pooled counts, as in the paper: 1 counts every rollout through it; 2 has enough.
    assert planned(plan_paper(tree, [path], Budget(n_min=5), ENDS)) == {(1,): 2, (3,): 5, (1, 1): 4, (1, 4): 3}


def test_end_tokens_are_never_targets() -> None:
    path = scored([1, END], [{END: (0.3, 0.6), 1: (0.7, 0.4)}, {END: (0.5, 0.9), 7: (0.3, 0.05), 8: (0.2, 0.05)}])
    tree = tree_of([1, END])
    assert set(planned(plan_paper(tree, [path], Budget(), ENDS))) == {(1,), (1, 7), (1, 8)}
    assert set(planned(plan_paper(tree, [path], Budget(), np.array([END, 7], np.uint32)))) == {(1,), (1, 8)}


def test_shared_prefixes_are_planned_once() -> None:
    root = {1: (0.5, 0.6), 2: (0.5, 0.4)}
    fork = {1: (0.3, 0.5), 2: (0.3, 0.3), 3: (0.4, 0.2)}
    one, two = scored([1, 1, 1], [root, fork, fork]), scored([1, 2, 1], [root, fork, fork])
    found = planned(plan_paper(tree_of([1, 1, 1], [1, 2, 1]), [one, two], Budget(n_min=10), ENDS))
    shared, own = {(1,): 8, (2,): 10, (1, 1): 9, (1, 2): 9, (1, 3): 10}, {(1, 1, 1): 9, (1, 2, 1): 9}
    rest = {(1, branch, token): 10 for branch in (1, 2) for token in (2, 3)}
    assert found == shared | own | rest


@given(limit=st.integers(0, 700), paths=st.integers(1, 3))
@settings(deadline=None)
def test_the_limit_is_hard_and_drops_the_deepest_windows_first(limit: int, paths: int) -> None:
    given_paths = [forks(40, seed=seed) for seed in range(paths)]
    # Different first tokens, so that no prefix is shared.
    given_paths = [
        replace(p, completion_T=np.append(np.uint32(i + 1), p.completion_T[1:])) for i, p in enumerate(given_paths)
    ]
    tree = tree_of(*[path.completion_T.tolist() for path in given_paths])
    budget = Budget(n_min=10, by_update=3, by_gap=1, first_window=5)
    whole = plan_paper(tree, given_paths, budget, ENDS)
    cut = plan_paper(tree, given_paths, replace(budget, targeted=limit), ENDS)
    total = sum(target.n for target in whole)
    assert sum(target.n for target in cut) == min(limit, total)
    edges = depth_windows(40, 5)
    for plan in (whole, cut):
        window = [int(np.searchsorted(edges, len(target.prefix) - 1, "right")) for target in plan]
        assert window == sorted(window)
    for kept, planned_target in zip(cut[:-1], whole, strict=False):
        assert (kept.prefix.tobytes(), kept.n) == (planned_target.prefix.tobytes(), planned_target.n)
    assert len(planned(cut)) == len(cut)


def test_zero_probabilities_can_be_planned() -> None:
    path = scored([1], [{1: (1.0, 0.5), 2: (0.0, 0.5), 3: (0.0, 0.0)}])
    assert set(planned(plan_paper(tree_of([1]), [path], Budget(), ENDS))) == {(1,), (2,)}


# -- adaptive plan --------------------------------------------------------------------------------------------


def estimated(path: PathScores, own_var: Sequence[float] | float, q: float = 0.5) -> PathEstimate:
    """An estimate with these variances and the loads of unsampled exits."""
    found = exact_estimate(path, np.full(len(path.token_C), q))
    own_var_C = np.broadcast_to(np.asarray(own_var, float), len(path.token_C)).copy()
    on_path_C = path.token_C == np.repeat(path.completion_T, np.diff(path.offsets))
    own_var_C[on_path_C] = 0.0
    return replace(
        found,
        own_var_C=own_var_C,
        load_C=on_path_C.astype(float),
        effective_C=q * (1 - q) / np.maximum(own_var_C, 1e-9),
    )


@given(rollouts=st.integers(0, 5000), seed=st.integers(0, 100))
@settings(deadline=None)
def test_an_adaptive_round_uses_all_its_rollouts(rollouts: int, seed: int) -> None:
    path = forks(20, seed=seed)
    own_var_C = np.random.default_rng(seed).uniform(1e-4, 0.05, len(path.token_C))
    targets = plan_adaptive([path], [estimated(path, own_var_C)], TOKENS, rollouts=rollouts)
    assert sum(planned(targets).values()) == rollouts
    assert all(target.n > 0 for target in targets)


def test_on_path_end_and_certain_children_get_no_rollouts() -> None:
    nodes = [{END: (0.2, 0.2), 1: (0.3, 0.3), 2: (0.25, 0.25), 3: (0.25, 0.25)}] * 3
    path = scored([1, 1, 1], nodes)
    path_estimate = estimated(path, 0.01)
    effective_C = path_estimate.effective_C.copy()
    effective_C[path.token_C == 3] = CERTAIN
    path_estimate = replace(path_estimate, effective_C=effective_C)
    found = planned(plan_adaptive([path], [path_estimate], TOKENS, rollouts=300))
    assert set(found) == {(2,), (1, 2), (1, 1, 2)}


def test_no_targets_without_uncertainty_or_rollouts() -> None:
    path = forks(5)
    assert plan_adaptive([path], [exact_estimate(path, np.full(15, 0.5))], TOKENS, rollouts=100) == []
    assert plan_adaptive([path], [estimated(path, 0.0)], TOKENS, rollouts=100) == []
    assert plan_adaptive([], [], TOKENS, rollouts=100) == []
    assert plan_adaptive([path], [estimated(path, 0.01)], TOKENS, rollouts=0) == []


def test_tokens_below_tau_get_no_rollouts() -> None:
    path = scored([1], [{1: (0.9, 0.9), 2: (0.05, 0.001), 3: (0.001, 0.05), 4: (0.01, 0.01)}])
    assert set(planned(plan_adaptive([path], [estimated(path, 0.01)], TOKENS, rollouts=50))) == {
        (2,),
        (3,),
    }


def test_uncertain_children_get_more_rollouts() -> None:
    path = scored([1], [{1: (0.4, 0.4), 2: (0.2, 0.2), 3: (0.2, 0.2), 4: (0.2, 0.2)}])
    found = planned(plan_adaptive([path], [estimated(path, [0, 0.05, 0.005, 0.0001])], TOKENS, rollouts=100))
    assert found[2,] > found[3,] > found.get((4,), 0)
    assert (4,) not in found
    # The remaining variances are equal for all children that got rollouts.
    after = {token: var / (1 + found[token,] * var / 0.25) for token, var in ((2, 0.05), (3, 0.005))}
    assert after[2] == pytest.approx(after[3], rel=0.05)
    assert after[3] > 0.0001


def test_children_below_many_nodes_get_more_rollouts() -> None:
    path = forks(30, tokens=2)
    path = replace(path, log_p_C=np.log(np.tile([0.9, 0.1], 30)))
    found = planned(plan_adaptive([path], [estimated(path, 0.01)], TOKENS, rollouts=3000))
    by_depth = [found[(1,) * depth + (2,)] for depth in range(30)]
    assert by_depth[0] < by_depth[1] < by_depth[29]


def test_shared_nodes_get_rollouts_once_and_scored_paths_get_none() -> None:
    root = {1: (0.5, 0.5), 2: (0.3, 0.3), 3: (0.2, 0.2)}
    one, two, three = (scored(completion, [root] * 3) for completion in ([1, 1, 1], [1, 2, 1], [3, 1, 1]))
    paths = [one, two, three]
    path_estimates = [estimated(path, 0.01) for path in paths]
    # At the node where two paths separate, each sees the other as an exit with its own error.
    path_estimates = [replace(path_estimate, own_var_C=np.full(9, 0.01)) for path_estimate in path_estimates]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        targets = plan_adaptive([paths[i] for i in order], [path_estimates[i] for i in order], TOKENS, rollouts=5000)
        found = planned(targets)
        below = {(a, b, c) for a, b in ((1, 1), (1, 2), (3, 1)) for c in (2, 3)}
        assert set(found) == {(2,), (1, 3), (3, 2), (3, 3), *below}
        assert sum(found.values()) == 5000


@given(
    children=st.lists(st.tuples(st.floats(1e-5, 0.5), st.floats(0.1, 1e4)), min_size=1, max_size=40),
    rollouts=st.integers(0, 100_000),
)
@settings(deadline=None)
def test_water_fill_uses_all_rollouts_and_equalizes(children, rollouts: int) -> None:
    std_E, effective_E = (np.array([child[i] for child in children]) for i in range(2))
    n_E = allocation._water_fill(std_E, effective_E, rollouts)
    assert n_E.sum() == rollouts
    assert (n_E >= 0).all()
    # Removing one rollout from any child would leave it with at least the standard deviation of all others.
    after_E = std_E * np.sqrt(effective_E / (effective_E + n_E))
    without_E = std_E * np.sqrt(effective_E / (effective_E + np.maximum(n_E - 1, 0)))
    with_one_more_E = std_E * np.sqrt(effective_E / (effective_E + n_E + 1))
    if (n_E > 0).any():
        assert without_E[n_E > 0].min() >= with_one_more_E.max() * (1 - 1e-6)
    assert after_E.max() <= std_E.max()


def test_an_adaptive_plan_on_a_real_tree() -> None:
    world = ExactWorld.random(5, length=30)
    evidence = collect(
        world, [world.tilted_teacher()], Question("q"), world, settings=Settings(budget=Budget(initial=50, targeted=0))
    )
    estimates = estimate(evidence.tree, evidence.paths)
    targets = plan_adaptive(evidence.paths, estimates, TOKENS, rollouts=777)
    found = planned(targets)
    assert sum(found.values()) == 777
    on_path = {tuple(p.completion_T[:depth].tolist()) for p in evidence.paths for depth in range(1, len(p) + 1)}
    assert len(on_path) > 50
    assert not on_path & set(found)
    assert all(prefix[:-1] in on_path | {()} for prefix in found)
    assert all(END not in prefix for prefix in found)
    # Planning again from the same estimates gives the same plan.
    assert planned(plan_adaptive(evidence.paths, estimates, TOKENS, rollouts=777)) == found


def test_water_fill_stops_at_the_minimum_standard_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_MIN_STD", 0.01)
    std_E, effective_E = np.array([0.009, 0.2]), np.array([100.0, 10.0])
    n_E = allocation._water_fill(std_E, effective_E, 10**6)
    assert n_E.tolist() == [0, 3990]  # 10 · ((0.2 / 0.01)² − 1)


def unvisited(path: PathScores, *visited: tuple[int, int]) -> PathEstimate:
    """An estimate with rollouts at the path's own tokens and at these (depth, token)."""
    pairs = list(zip(path.depth_C.tolist(), path.token_C.tolist(), strict=True))
    seen_C = np.array([pair in visited for pair in pairs]) | path.on_path_C
    return replace(estimated(path, 0.01), visits_C=seen_C.astype(np.int64))


def test_every_token_without_rollouts_is_visited_once_the_most_probable_first() -> None:
    nodes = [{END: (0.1, 0.1), 1: (0.5, 0.5), 2: (0.25, 0.25), 3: (0.15, 0.15)}, {1: (0.8, 0.5), 2: (0.2, 0.5)}]
    path = scored([1, 1], nodes)
    targets = plan_unvisited([path], [unvisited(path)], TOKENS, rollouts=10)
    assert [(tuple(target.prefix.tolist()), target.n) for target in targets] == [((2,), 1), ((1, 2), 1), ((3,), 1)]
    targets = plan_unvisited([path], [unvisited(path, (1, 2))], TOKENS, rollouts=10)
    assert set(planned(targets)) == {(2,), (3,)}
    assert set(planned(plan_unvisited([path], [unvisited(path)], TOKENS, rollouts=2))) == {(2,), (1, 2)}
    assert plan_unvisited([], [], TOKENS, rollouts=10) == []


def test_tokens_of_shared_nodes_are_visited_once_and_those_below_tau_never() -> None:
    root = {1: (0.5, 0.5), 2: (0.3, 0.3), 3: (0.19, 0.19), 4: (0.01, 0.01)}
    paths = [scored(completion, [root] * 2) for completion in ([1, 1], [2, 1])]
    for order in ([0, 1], [1, 0]):
        chosen = [paths[i] for i in order]
        targets = plan_unvisited(chosen, [unvisited(path) for path in chosen], TOKENS, rollouts=99)
        assert set(planned(targets)) == {(3,), (1, 2), (1, 3), (2, 2), (2, 3)}


@pytest.mark.parametrize("seed", range(5))
def test_with_enough_rollouts_every_token_above_tau_has_one(seed: int) -> None:
    world = ExactWorld.random(seed, length=50)
    budget = Budget(initial=40, targeted=2000)
    evidence = collect(world, [world.style_teacher()], Question("q"), world, settings=Settings(budget=budget))
    assert evidence.paths
    for path, found in zip(evidence.paths, estimate(evidence.tree, evidence.paths), strict=True):
        # At the length limit nothing is left to sample.
        open_C = path.above(budget.tau) & (path.depth_C < world.limit - 1)
        assert (found.visits_C[open_C] > 0).all()


@pytest.mark.parametrize("targeted", [8, 100])
@pytest.mark.parametrize("seed", range(4))
def test_truncation_costs_no_rollouts(seed: int, targeted: int) -> None:
    """Tokens at the length limit cannot be sampled, so they are not planned."""
    world = ExactWorld.random(seed, length=60)
    short = ExactWorld(world.log_p_LSV[:30], world.next_LSV[:30], world.success_S, world.start)
    budget = Budget(initial=20, targeted=targeted, rounds=3, correct_paths=0)
    evidence = collect(short, [short.style_teacher()], Question("q"), short, settings=Settings(budget=budget))
    assert any(path.completion_T[-1] not in short.end_tokens for path in evidence.paths)
    assert evidence.targeted == targeted


def test_first_visits_come_first_and_take_at_most_half_of_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []
    sample = ExactWorld.sample

    def counted(self: ExactWorld, requests: Sequence[SampleRequest]) -> Rollouts:
        calls.append([request.n for request in requests])
        return sample(self, requests)

    monkeypatch.setattr(ExactWorld, "sample", counted)
    world = ExactWorld.random(3, length=200)
    budget = Budget(initial=5, targeted=20, rounds=2)
    evidence = collect(world, [world.style_teacher()], Question("q"), world, settings=Settings(budget=budget))
    assert calls[0] == [5]
    assert calls[1][:10] == [1] * 10
    assert (sum(calls[1]), sum(calls[2])) == (15, 5)
    assert evidence.targeted == 20


def test_rounds_are_planned_from_one_half_of_the_rollouts_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[int, Sequence[PathEstimate]]] = []

    def recorded(paths: Any, estimates: Sequence[PathEstimate], tokens: Any, *, rollouts: int) -> list[Target]:
        rounds.append((len(rounds), estimates))
        return plan_adaptive(paths, estimates, tokens, rollouts=rollouts)

    monkeypatch.setattr(collect_module, "plan_adaptive", recorded)
    world = ExactWorld.random(3, length=60)
    budget = Budget(initial=40, targeted=60, rounds=1)
    evidence = collect(world, [world.style_teacher()], Question("q"), world, settings=Settings(budget=budget))
    # Before the first round there are only the initial rollouts and certain ends.
    tree = evidence.tree.subset((evidence.tree.launch_R == 0) | (evidence.tree.launch_R == evidence.tree.length_R))
    ((_, planned_from),) = rounds
    for index, half in enumerate(halves_of(tree, evidence.paths)):
        expected = estimate(half, evidence.paths, share=0.5, ties=False)
        same = [np.array_equal(a.q_C, b.q_C) for a, b in zip(planned_from, expected, strict=True)]
        assert all(same) if index == 0 else not all(same)
    monkeypatch.setattr(collect_module, "halves_of", lambda tree, paths: ("even round", "odd round"))
    asked: list[Any] = []
    whole = collect_module.estimate

    def of_half(tree: Any, paths: Any, **options: Any) -> list[PathEstimate]:
        asked.append(tree)
        return whole(evidence.tree, evidence.paths, **options)

    monkeypatch.setattr(collect_module, "estimate", of_half)
    settings = Settings(budget=replace(budget, rounds=3))
    collect(world, [world.style_teacher()], Question("q"), world, settings=settings)
    assert [tree for tree in asked if isinstance(tree, str)] == ["even round", "odd round", "even round"]


def test_on_path_launches_are_prefixes_of_the_path_and_use_all_rollouts() -> None:
    world = ExactWorld.random(3, length=60)
    teacher = world.tilted_teacher()
    evidence = collect(world, [teacher], Question("q"), world, settings=Settings(budget=Budget(initial=40, targeted=0)))
    targets = plan_on_path(evidence.paths, rollouts=101)
    assert sum(target.n for target in targets) == 101
    assert len({target.prefix.tobytes() for target in targets}) == len(targets) > 10
    for target in targets:
        same = [path.completion_T[: len(target.prefix)].tolist() == target.prefix.tolist() for path in evidence.paths]
        assert any(same)
    assert plan_on_path([], rollouts=10) == []


def test_a_quarter_of_the_rollouts_after_first_visits_follows_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "UNVISITED_SHARE", 0.0)
    world = ExactWorld.random(3, length=60)
    budget = Budget(initial=40, targeted=200, allocation="adaptive", rounds=2)
    evidence = collect(world, [world.tilted_teacher()], Question("q"), world, settings=Settings(budget=budget))
    tree, paths = evidence.tree, evidence.paths
    prefixes = {path.completion_T[:depth].tobytes() for path in paths for depth in range(1, len(path))}
    targeted = np.flatnonzero((tree.launch_R > 0) & (tree.launch_R < tree.length_R))
    follows = [
        np.asarray(tree.completion(int(row)), np.uint32)[: tree.launch_R[row]].tobytes() in prefixes for row in targeted
    ]
    assert len(targeted) == 200
    assert sum(follows) == 50
