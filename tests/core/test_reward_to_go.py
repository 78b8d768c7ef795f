"""Reward-to-go: by hand on a tree of six rollouts, against a slow reference, and against an exact world."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.backends.exact import EOS, ExactTeacher, ExactWorld
from opd_align.core import reward_to_go as module
from opd_align.core.objectives import LOG_FLOOR
from opd_align.core.reward_to_go import log_ratio
from opd_align.core.tree import GenerationTree
from opd_align.types import Floats, PathScores, Question, Rollouts, SampleRequest, ScoreRequest, TeacherScores, Tokens

Q = Question("q")
reward_to_go = partial(module.reward_to_go, ends=np.empty(0, np.uint32))


def tokens(prefix: Any = ()) -> Tokens:
    return np.array(prefix, np.uint32)


def path_scores(completion: list[int], children: list[dict[int, tuple[float, float]]]) -> PathScores:
    """A path from `{token: (p, t)}` at each depth."""
    pairs = [pair for node in children for _, pair in sorted(node.items())]
    p_C, t_C = np.array(pairs, float).reshape(-1, 2).T
    unused_T = np.zeros(len(completion))
    return PathScores(
        tokens(completion),
        np.cumsum([0, *(len(node) for node in children)]),
        tokens([token for node in children for token in sorted(node)]),
        np.log(p_C),
        unused_T,
        {"t": TeacherScores(np.log(t_C), *[unused_T] * 7)},
    )


def in_tree_order(tree: GenerationTree, ratios: dict[tuple[int, ...], list[float]]) -> Floats:
    """The log-ratios of each completion's tokens, in the order of `tree.rollouts()`."""
    completions = [tuple(tree.completion(row).tolist()) for row in range(len(tree))]
    return np.array([ratio for completion in completions for ratio in ratios[completion]])


# -- by hand --------------------------------------------------------------------------------------------------

PATH = [5, 7, EOS]
CHILDREN = [
    {5: (0.5, 0.25), 6: (0.3, 0.6), 8: (0.1, 0.1)},
    {7: (0.8, 0.4), 9: (0.2, 0.6)},
    {EOS: (0.25, 0.5), 4: (0.75, 0.5)},
]
STEP = [[np.log(t / p) for _, (p, t) in sorted(node.items())] for node in CHILDREN]
RATIOS = {
    (5, 7, EOS): [-9.0, -9.0, -9.0],  # the path itself: its ratios come from the scores
    (6, 1, EOS): [-9.0, 1.0, 2.0],
    (6, 2, 2, EOS): [-9.0, 0.5, 0.5, 0.0],
    (5, 9, EOS): [-9.0, -9.0, 4.0],
    (5, 9, 3, EOS): [-9.0, -9.0, 1.0, 1.0],
    (5, 7, 4, 1): [-9.0, -9.0, -9.0, -3.0],
}


def tree_of(*rows: tuple[tuple[int, ...], int]) -> GenerationTree:
    return GenerationTree.build(
        Rollouts.of([row[0] for row in rows], launch=[row[1] for row in rows], outcome=[0] * len(rows))
    )


def test_an_unvisited_end_token_has_nothing_after_it() -> None:
    path, children = [5, EOS], [{5: (0.5, 0.25), EOS: (0.4, 0.2)}, {EOS: (0.5, 0.5), 4: (0.5, 0.5)}]
    tree = tree_of(((5, EOS), 0), ((5, 4, 1), 0))
    ratio = in_tree_order(tree, {(5, EOS): [0.0, 0.0], (5, 4, 1): [0.0, 0.0, -6.0]})
    blind = module.reward_to_go(tree, path_scores(path, children), "t", ratio, ends=tokens())
    found = module.reward_to_go(tree, path_scores(path, children), "t", ratio, ends=tokens([EOS]))
    np.testing.assert_allclose(found[0], np.log(0.2 / 0.4))  # token 0, the end: its own term and nothing more
    np.testing.assert_allclose(blind[0], np.log(0.2 / 0.4) - 3.0)  # without that knowledge, the path's future


def test_six_rollouts_by_hand() -> None:
    tree = tree_of(*((completion, 0) for completion in RATIOS))
    found = reward_to_go(tree, path_scores(PATH, CHILDREN), "t", in_tree_order(tree, RATIOS))
    # After 6: 1+2 and 0.5+0.5+0; after 9: 4 and 1+1; after 4: -3; 8 was not sampled.
    after_6, after_9, after_4 = 2.0, 3.0, -3.0
    (step_5, step_6, step_8), (step_7, step_9), (step_end, step_4) = STEP
    value_2 = 0.25 * step_end + 0.75 * (step_4 + after_4)
    value_1 = 0.8 * (step_7 + value_2) + 0.2 * (step_9 + after_9)
    expected = [
        *(step_5 + value_1, step_6 + after_6, step_8 + value_1),
        *(step_7 + value_2, step_9 + after_9),
        *(step_end, step_4 + after_4),
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_unsampled_mass_has_the_mean_of_the_rest_of_the_node() -> None:
    """Only 9 is sampled off the path: at depth 2 the end of the path is the value of the whole node."""
    tree = tree_of(((5, 9, EOS), 0))
    found = reward_to_go(tree, path_scores(PATH, CHILDREN), "t", in_tree_order(tree, RATIOS))
    (step_5, step_6, step_8), (step_7, step_9), (step_end, step_4) = STEP
    value_2 = step_end
    value_1 = 0.8 * (step_7 + value_2) + 0.2 * (step_9 + 4.0)
    expected = [step_5 + value_1, step_6 + value_1, step_8 + value_1, step_7 + value_2, step_9 + 4.0, step_end, step_4]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_node_with_unsampled_children_divides_by_the_sampled_mass() -> None:
    """8 was not sampled, and a tenth of the mass was not scored; the level above shows the value of the node."""
    scores = path_scores([3, *PATH], [{3: (1.0, 1.0)}, *CHILDREN])
    ratios = {(3, *completion): [0.0, *ratio] for completion, ratio in RATIOS.items()}
    tree = tree_of(*((completion, 0) for completion in ratios))
    found = reward_to_go(tree, scores, "t", in_tree_order(tree, ratios))
    short = tree_of(*((completion, 0) for completion in RATIOS))
    below = reward_to_go(short, path_scores(PATH, CHILDREN), "t", in_tree_order(short, RATIOS))
    np.testing.assert_allclose(found[1:], below, rtol=1e-12)
    assert found[0] == pytest.approx((0.5 * below[0] + 0.3 * below[1]) / 0.8)


def test_a_rollout_forced_past_its_exit_does_not_count() -> None:
    scores = path_scores(PATH, CHILDREN)
    launches = {(6, 1, EOS): 1, (6, 2, 2, EOS): 2, (5, 9, EOS): 2, (5, 9, 3, EOS): 3, (5, 7, 4, 1): 3}
    tree = tree_of(*launches.items())
    found = reward_to_go(tree, scores, "t", in_tree_order(tree, RATIOS))
    # Launched one token past the exit child, (6, 2, ...) and (5, 9, 3, ...) are not samples of what follows it.
    believed = tree_of(((6, 1, EOS), 0), ((5, 9, EOS), 0), ((5, 7, 4, 1), 0))
    np.testing.assert_array_equal(found, reward_to_go(believed, scores, "t", in_tree_order(believed, RATIOS)))
    assert found[1] == pytest.approx(STEP[0][1] + 3.0)


def test_children_that_were_not_scored_are_ignored() -> None:
    scores = path_scores(PATH, CHILDREN)
    ratios = RATIOS | {(4, EOS): [-9.0, 100.0], (5, 7, 9, EOS): [-9.0, -9.0, -9.0, 100.0], (5,): [-9.0]}
    tree, plain = tree_of(*((c, 0) for c in ratios)), tree_of(*((c, 0) for c in RATIOS))
    found = reward_to_go(tree, scores, "t", in_tree_order(tree, ratios))
    np.testing.assert_array_equal(found, reward_to_go(plain, scores, "t", in_tree_order(plain, RATIOS)))


def test_without_rollouts_only_the_path_is_known() -> None:
    found = reward_to_go(GenerationTree.build(), path_scores(PATH, CHILDREN), "t", np.empty(0))
    own = [STEP[0][0], STEP[1][0], STEP[2][0]]
    rest = [own[1] + own[2], own[2], 0.0]
    expected = [step + rest[depth] for depth, steps in enumerate(STEP) for step in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_empty_path_has_no_children() -> None:
    assert reward_to_go(GenerationTree.build(), path_scores([], []), "t", np.empty(0)).shape == (0,)
    assert reward_to_go(tree_of(((5,), 0)), path_scores([], []), "t", np.zeros(1)).shape == (0,)


def test_log_ratio_is_floored_on_both_sides() -> None:
    log_t, log_p = np.array([-1.0, -np.inf, -2.0, -np.inf, -80.0]), np.array([-3.0, -2.0, -np.inf, -np.inf, -70.0])
    np.testing.assert_array_equal(log_ratio(log_t, log_p), [2.0, LOG_FLOOR + 2.0, -2.0 - LOG_FLOOR, 0.0, 0.0])


# -- slow reference -------------------------------------------------------------------------------------------


def slow_reward_to_go(rows: list[tuple[list[int], int, list[float]]], scores: PathScores) -> list[float]:
    """Backwards from the end of the path; at each depth the rollouts that leave there, child by child."""
    path, result, value = scores.completion_T.tolist(), list[float](), 0.0
    for m in range(len(path) - 1, -1, -1):
        here = slice(scores.offsets[m], scores.offsets[m + 1])
        children = scores.token_C[here].tolist()
        step = dict(zip(children, (scores.teachers["t"].log_t_C - scores.log_p_C)[here].tolist(), strict=True))
        p = dict(zip(children, np.exp(scores.log_p_C[here]).tolist(), strict=True))
        after = {path[m]: value}
        for child in children:
            through = [
                sum(ratio[m + 1 :])
                for completion, launch, ratio in rows
                if child != path[m] and completion[: m + 1] == [*path[:m], child] and launch <= m + 1
            ]
            if through:
                after[child] = sum(through) / len(through)
        result = [step[child] + after.get(child, value) for child in children] + result
        value = sum(p[k] * (step[k] + after[k]) for k in after) / sum(p[k] for k in after)
    return result


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[list[int], int, list[float]]], PathScores]:
    # Tokens above 2^31 must work in combined depth and token keys.
    alphabet = [0, 1, 2**32 - 1]
    completions = st.lists(st.sampled_from(alphabet), min_size=1, max_size=5)
    path = draw(completions)
    rows = []
    for completion in draw(st.lists(completions, max_size=12)):
        launch = draw(st.integers(0, len(completion)))
        ratio = draw(st.lists(st.floats(-5, 5), min_size=len(completion), max_size=len(completion)))
        rows.append((completion, launch, ratio))
    p = st.floats(0.01, 0.33)
    children = [
        {token: (draw(p), draw(p)) for token in alphabet if token == own or draw(st.booleans())} for own in path
    ]
    return rows, path_scores(path, children)


@settings(deadline=None, max_examples=200)
@given(cases())
def test_reward_to_go_matches_the_slow_reference(
    case: tuple[list[tuple[list[int], int, list[float]]], PathScores],
) -> None:
    rows, scores = case
    tree = GenerationTree.build(
        Rollouts.of([row[0] for row in rows], launch=[row[1] for row in rows], outcome=[0] * len(rows))
    )
    ratio = [value for key in tree.key_R.tolist() for value in rows[key][2]]
    found = reward_to_go(tree, scores, "t", np.array(ratio))
    np.testing.assert_allclose(found, slow_reward_to_go(rows, scores), rtol=1e-9, atol=1e-9)


# -- exact world ----------------------------------------------------------------------------------------------


def estimated(world: ExactWorld, teacher: ExactTeacher, tree: GenerationTree, scores: PathScores) -> Floats:
    rollouts = tree.rollouts()
    log_t, log_p = world.token_log_probs(Q, rollouts, teacher), world.token_log_probs(Q, rollouts, None)
    return reward_to_go(tree, scores, teacher.name, log_ratio(log_t, log_p))


def grown(world: ExactWorld, requests: list[SampleRequest]) -> GenerationTree:
    rollouts = world.sample(requests)
    rollouts.outcome_R[:] = world.grade(Q, rollouts)
    return GenerationTree.build(rollouts)


def scored(world: ExactWorld, teacher: ExactTeacher, completion: Tokens, floor: float) -> PathScores:
    return world.score(ScoreRequest(Q, completion, np.empty(0, np.int64), tokens(), floor), [teacher])


@pytest.mark.parametrize("seed", [0, 1])
def test_many_rollouts_converge_to_the_exact_reward_to_go(seed: int) -> None:
    world = ExactWorld.random(seed, length=12, vocabulary=6, states=20, forks=0.7, peakedness=0.9)
    teacher = world.tilted_teacher(noise=0.7)
    path = world.sample([SampleRequest(Q, tokens(), 1)]).completion(0)
    scores = scored(world, teacher, path, floor=1e-9)
    exact_C = world.exact_reward_to_go_along(scores, teacher)
    depth_C = np.repeat(np.arange(len(path)), np.diff(scores.offsets))
    off_path = np.flatnonzero((scores.token_C != path[depth_C]) & (scores.token_C != EOS))
    forced = [tokens([*path[: depth_C[child]], scores.token_C[child]]) for child in off_path]
    errors = []
    for n in (20, 320):
        # Ends are certain: one forced rollout is enough.
        ends = [tokens([*path[:depth], EOS]) for depth in range(len(path))]
        certain = Rollouts.of(ends, launch=[len(end) for end in ends], outcome=[0] * len(ends))
        tree = grown(world, [SampleRequest(Q, prefix, n) for prefix in forced]).extended(certain)
        found_C = estimated(world, teacher, tree, scores)
        errors.append(np.abs(found_C - exact_C).mean())
    # Sixteen times the rollouts, a quarter of the error.
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.2 * exact_C.std()
    assert np.corrcoef(found_C, exact_C)[0, 1] > 0.98


def short_world(seed: int) -> ExactWorld:
    """Four tokens, three states, at most seven positions: 20,000 rollouts sample every likely child often."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 0.7, (7, 3, 4))
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return ExactWorld(log_p, rng.integers(0, 3, (7, 3, 4)).astype(np.uint8), np.array([True, False, True]), 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_natural_rollouts_are_enough_for_visited_children(seed: int) -> None:
    world = short_world(seed)
    teacher = world.tilted_teacher(strength=1.0, noise=0.8)
    rollouts = world.sample([SampleRequest(Q, tokens(), 40_000)])
    rollouts.outcome_R[:] = world.grade(Q, rollouts)
    tree, path = GenerationTree.build(rollouts), rollouts.completion(int(rollouts.length_R.argmax()))
    scores = scored(world, teacher, path, floor=1e-9)
    found_C, exact_C = estimated(world, teacher, tree, scores), world.exact_reward_to_go_along(scores, teacher)
    counts = tree.counts_along(path)
    visits = [
        dict(zip(counts.at(depth).token_K.tolist(), counts.at(depth).visits_K.tolist(), strict=True))
        for depth in range(len(path))
    ]
    depth_C = np.repeat(np.arange(len(path)), np.diff(scores.offsets))
    visits_C = np.array([visits[m].get(k, 0) for m, k in zip(depth_C, scores.token_C.tolist(), strict=True)])
    well = visits_C >= 100
    assert well.sum() >= 10
    assert np.corrcoef(found_C[well], exact_C[well])[0, 1] > 0.99
    assert np.abs(found_C - exact_C)[well].mean() < 0.05
    # Four standard errors; continuations vary less than whole completions, or only slightly more.
    ratio = log_ratio(world.token_log_probs(Q, rollouts, teacher), world.token_log_probs(Q, rollouts, None))
    spread = 1.2 * np.add.reduceat(ratio, rollouts.offsets[:-1]).std()
    assert (np.abs(found_C - exact_C)[well] < 4 * spread / np.sqrt(visits_C[well])).all()
    assert exact_C[well].std() > 0.3


def test_forced_rollouts_do_not_bias_the_nodes_above() -> None:
    """A second path is enriched far below the branching point; the first path must not change."""
    world = ExactWorld.random(4, length=12, vocabulary=6, states=20, forks=0.7, peakedness=0.97)
    teacher = world.tilted_teacher(noise=0.7)
    natural = world.sample([SampleRequest(Q, tokens(), 300)])
    natural.outcome_R[:] = world.grade(Q, natural)
    path = natural.completion(0)
    scores = scored(world, teacher, path, floor=0.02)
    tree = GenerationTree.build(natural)
    before_C = estimated(world, teacher, tree, scores)
    leave = tree.exits(path)
    row = int(np.flatnonzero((leave.depth_R <= 2) & (leave.token_R > 0) & (tree.length_R >= leave.depth_R + 6))[0])
    elsewhere = tree.completion(row)[: leave.depth_R[row] + 4]
    more = grown(world, [SampleRequest(Q, elsewhere, 2000)]).rollouts()
    after_C = estimated(world, teacher, tree.extended(more), scores)
    np.testing.assert_allclose(after_C, before_C, rtol=1e-9)
