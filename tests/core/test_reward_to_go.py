"""Reward-to-go: by hand on a tree of six rollouts, against a slow reference, and against an exact world."""

from __future__ import annotations

from dataclasses import replace
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
REST = -1
reward_to_go = partial(module.reward_to_go, ends=np.empty(0, np.uint32))


def tokens(prefix: Any = ()) -> Tokens:
    return np.array(prefix, np.uint32)


def path_scores(completion: list[int], children: list[dict[int, tuple[float, float]]]) -> PathScores:
    """A path from `{token: (p, t)}` at each depth; all other tokens have equal probabilities in student and teacher."""
    kl_T = [sum(p * np.log(p / t) for p, t in node.values()) for node in children]
    pairs = [pair for node in children for _, pair in sorted(node.items())]
    p_C, t_C = np.array(pairs, float).reshape(-1, 2).T
    unused_T = np.zeros(len(completion))
    return PathScores(
        tokens(completion),
        np.cumsum([0, *(len(node) for node in children)]),
        tokens([token for node in children for token in sorted(node)]),
        np.log(p_C),
        unused_T,
        {"t": TeacherScores(np.log(t_C), unused_T, np.array(kl_T), *[unused_T] * 5)},
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
    (6, 1, EOS): [-9.0, 1.0, 1.0],
    (6, 2, 2, EOS): [-9.0, 1.5, 0.5, 0.0],
    (5, 9, EOS): [-9.0, -9.0, 3.0],
    (5, 9, 3, EOS): [-9.0, -9.0, 2.0, 1.0],
    (5, 7, 4, 1): [-9.0, -9.0, -9.0, -3.0],
}


def tree_of(*rows: tuple[tuple[int, ...], int]) -> GenerationTree:
    return GenerationTree.build(
        Rollouts.of([row[0] for row in rows], launch=[row[1] for row in rows], outcome=[0] * len(rows))
    )


def test_an_unvisited_end_token_has_nothing_after_it() -> None:
    path, children = [5, EOS], [{5: (0.5, 0.25), EOS: (0.4, 0.2)}, {EOS: (0.5, 0.5), 4: (0.5, 0.5)}]
    tree = tree_of(((5, EOS), 0), ((5, 4, 1), 0), ((5, 4, 1), 0))
    ratio = in_tree_order(tree, {(5, EOS): [0.0, 0.0], (5, 4, 1): [0.0, 0.0, -6.0]})
    blind = module.reward_to_go(tree, path_scores(path, children), "t", ratio, ends=tokens())
    found = module.reward_to_go(tree, path_scores(path, children), "t", ratio, ends=tokens([EOS]))
    np.testing.assert_allclose(found[0], np.log(0.2 / 0.4))  # token 0, the end: its own term and nothing more
    np.testing.assert_allclose(blind[0], np.log(0.2 / 0.4) - 3.0)  # without that knowledge, the path's future


def test_six_rollouts_by_hand() -> None:
    tree = tree_of(*((completion, 0) for completion in RATIOS))
    found = reward_to_go(tree, path_scores(PATH, CHILDREN), "t", in_tree_order(tree, RATIOS))
    # After 6: 1+1 and 1.5+0.5+0; after 9: 3 and 2+1; after 4: -3; 8 was not sampled. Rollouts of the same exit agree,
    # so nothing is shrunk.
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


def test_unsampled_children_have_their_own_term_and_what_follows_the_path() -> None:
    """Only 9 is sampled off the path."""
    tree = tree_of(((5, 9, EOS), 0), ((5, 9, EOS), 0))
    found = reward_to_go(tree, path_scores(PATH, CHILDREN), "t", in_tree_order(tree, RATIOS))
    (step_5, step_6, step_8), (step_7, step_9), (step_end, step_4) = STEP
    value_2 = 0.25 * step_end + 0.75 * step_4
    value_1 = 0.8 * (step_7 + value_2) + 0.2 * (step_9 + 3.0)
    expected = [step_5 + value_1, step_6 + value_1, step_8 + value_1, step_7 + value_2, step_9 + 3.0, step_end, step_4]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("others", [None, 100.0])
def test_tokens_that_were_not_kept_have_a_share_of_their_own(others: float | None) -> None:
    """8 was not sampled, and a tenth of the mass was not kept; the level above shows the value of the node."""
    scores = path_scores([3, *PATH], [{3: (1.0, 1.0)}, *CHILDREN])
    more = {(4, EOS): [0.0, others], (2, 1, EOS): [0.0, others, 0.0]} if others is not None else {}
    ratios = {(3, *completion): [0.0, *ratio] for completion, ratio in (RATIOS | more).items()}
    tree = tree_of(*((completion, 0) for completion in ratios))
    found = reward_to_go(tree, scores, "t", in_tree_order(tree, ratios))
    short = tree_of(*((completion, 0) for completion in RATIOS))
    below = reward_to_go(short, path_scores(PATH, CHILDREN), "t", in_tree_order(short, RATIOS))
    np.testing.assert_allclose(found[1:], below, rtol=1e-12)
    rest = below[0] - STEP[0][0] if others is None else others
    assert found[0] == pytest.approx(0.5 * below[0] + 0.3 * below[1] + 0.1 * below[2] + 0.1 * rest)


def test_a_rollout_forced_past_its_exit_does_not_count() -> None:
    scores = path_scores(PATH, CHILDREN)
    launches = {(6, 1, EOS): 1, (6, 2, 2, EOS): 2, (5, 9, EOS): 2, (5, 9, 3, EOS): 3, (5, 7, 4, 1): 3}
    tree = tree_of(*launches.items())
    found = reward_to_go(tree, scores, "t", in_tree_order(tree, RATIOS))
    # Launched one token past the exit child, (6, 2, ...) and (5, 9, 3, ...) are not samples of what follows it.
    believed = tree_of(*((completion, launches[completion]) for completion in ((6, 1, EOS), (5, 9, EOS), (5, 7, 4, 1))))
    np.testing.assert_array_equal(found, reward_to_go(believed, scores, "t", in_tree_order(believed, RATIOS)))


def test_without_rollouts_only_the_scores_are_known() -> None:
    found = reward_to_go(GenerationTree.build(), path_scores(PATH, CHILDREN), "t", np.empty(0))
    mean = [sum(p * np.log(t / p) for p, t in node.values()) for node in CHILDREN]
    rest = [mean[1] + mean[2], mean[2], 0.0]
    expected = [step + rest[depth] for depth, steps in enumerate(STEP) for step in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_a_finite_divergence_the_kept_tokens_stand_for_all() -> None:
    scores = path_scores(PATH, CHILDREN)
    teacher = scores.teachers["t"]
    infinite = replace(scores, teachers={"t": replace(teacher, kl_T=np.full(3, np.inf))})
    # Nodes 1 and 2 have all their mass on kept tokens.
    np.testing.assert_allclose(
        reward_to_go(GenerationTree.build(), infinite, "t", np.empty(0)),
        reward_to_go(GenerationTree.build(), scores, "t", np.empty(0)),
    )


def test_an_exit_with_few_rollouts_is_closer_to_the_path_than_one_with_many() -> None:
    """Rollouts of an exit vary between 0 and 8; the more there are with mean 4, the closer the estimate is to 4."""
    children = [{5: (0.5, 0.5), 6: (0.5, 0.5)}, {EOS: (0.5, 0.5), 7: (0.5, 0.5)}]
    after = []
    for n in (1, 10, 100):
        rows = [((6, 1 + i % 2, EOS), 1) for i in range(2 * n)]
        tree = tree_of(*rows)
        ratio = in_tree_order(tree, {(6, 1, EOS): [0.0, 0.0, 0.0], (6, 2, EOS): [0.0, 0.0, 8.0]})
        after.append(reward_to_go(tree, path_scores([5, EOS], children), "t", ratio)[1])
    assert 0 < after[0] < after[1] < after[2] < 4
    assert after[2] == pytest.approx(4, abs=0.2)


def test_rollouts_that_differ_by_rounding_alone_agree() -> None:
    """A running sum loses 1e-118 beside 1; an exit must not be shrunk otherwise because of it."""
    children = [{5: (0.5, 0.5), 6: (0.5, 0.5)}, {EOS: (0.5, 0.5), 7: (0.5, 0.5)}]
    tree = tree_of(((6, 1, EOS), 1), ((6, 2, EOS), 1), ((7, 1), 0))
    found = []
    for tiny in (0.0, 1e-118, 1e-16):
        ratio = in_tree_order(tree, {(6, 1, EOS): [0.0, 1.0, 0.0], (6, 2, EOS): [0.0, 1.0, tiny], (7, 1): [0.0, 1.0]})
        found.append(reward_to_go(tree, path_scores([5, EOS], children), "t", ratio))
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-12)


def test_an_empty_path_has_no_children() -> None:
    assert reward_to_go(GenerationTree.build(), path_scores([], []), "t", np.empty(0)).shape == (0,)
    assert reward_to_go(tree_of(((5,), 0)), path_scores([], []), "t", np.zeros(1)).shape == (0,)


def test_log_ratio_is_floored_on_both_sides() -> None:
    log_t, log_p = np.array([-1.0, -np.inf, -2.0, -np.inf, -80.0]), np.array([-3.0, -2.0, -np.inf, -np.inf, -70.0])
    np.testing.assert_array_equal(log_ratio(log_t, log_p), [2.0, LOG_FLOOR + 2.0, -2.0 - LOG_FLOOR, 0.0, 0.0])


# -- slow reference -------------------------------------------------------------------------------------------


def slow_reward_to_go(rows: list[tuple[list[int], int, list[float]]], scores: PathScores) -> list[float]:
    """Backwards from the end of the path; at each depth the rollouts that leave there, child by child."""
    path, kl = scores.completion_T.tolist(), scores.teachers["t"].kl_T.tolist()
    nodes = []
    for m in range(len(path)):
        here = slice(scores.offsets[m], scores.offsets[m + 1])
        children = scores.token_C[here].tolist()
        step = dict(zip(children, (scores.teachers["t"].log_t_C - scores.log_p_C)[here].tolist(), strict=True))
        p = dict(zip(children, np.exp(scores.log_p_C[here]).tolist(), strict=True))
        p[REST] = min(max(1 - sum(p.values()), 0.0), 1.0)
        after: dict[int, list[float]] = {child: [] for child in p if child != path[m]}
        ends = set()
        for completion, launch, ratio in rows:
            if len(completion) > m and completion[:m] == path[:m] and completion[m] != path[m]:
                child = completion[m] if completion[m] in children else REST
                if launch <= (m if child == REST else m + 1):
                    after[child].append(sum(ratio[m + 1 :]))
                    if len(completion) == m + 1 and child != REST:
                        ends.add(child)
        nodes.append((step, p, after, ends))
    longer = [
        sum(ratio[len(path) :]) for completion, launch, ratio in rows if len(completion) > len(path) and not launch
    ]
    beyond, alike, follows = sum(longer) / len(longer) if longer else 0.0, 1.0, list[float]()
    for _ in range(3):
        follows, value, used = [beyond], 0.0, alike
        for m in range(len(path) - 1, -1, -1):
            _, p, after, ends = nodes[m]
            total = -kl[m] + p[path[m]] * value
            for child, through in after.items():
                total += p[child] * slow_exit(through, child in ends, follows[0], used)
            value = total
            follows = [value, *follows]
        alike = slow_alike([(m, through) for m, (_, _, after, ends) in enumerate(nodes)
                            for child, through in after.items() if through and child not in ends], follows)  # fmt: skip
    result = []
    for m, (step, _, after, ends) in enumerate(nodes):
        for child in step:
            own = follows[m + 1] if m + 1 < len(path) else 0.0
            off_path = child != path[m]
            result.append(
                step[child] + (slow_exit(after[child], child in ends, follows[m + 1], used) if off_path else own)
            )
    return result


def slow_exit(through: list[float], ended: bool, follows: float, alike: float) -> float:
    if ended:
        return 0.0
    return (sum(through) + alike * follows) / (len(through) + alike) if through else follows


def slow_alike(exits: list[tuple[int, list[float]]], follows: list[float]) -> float:
    if not exits:
        return 1.0
    mean = [sum(through) / len(through) for _, through in exits]
    left = [len(follows) - 1 - m for m, _ in exits]
    square = [(x - follows[m + 1]) ** 2 / n for x, (m, _), n in zip(mean, exits, left, strict=True)]
    freedom = sum(len(through) - 1 for _, through in exits)
    within = sum(sum((y - x) ** 2 for y in through) / n for x, (_, through), n in zip(mean, exits, left, strict=True))
    within = within / freedom if freedom else sum(square) / len(square) / 2
    if within <= 1e-18:
        return 0.0

    def loss(alike: float) -> float:
        variances = [within * (1 / len(through) + 1 / alike) for _, through in exits]
        return sum(float(np.log(v)) + s / v for v, s in zip(variances, square, strict=True))

    return min((2.0**power for power in range(-4, 9)), key=loss)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[list[int], int, list[float]]], PathScores]:
    # Tokens above 2^31 must work in combined depth and token keys.
    alphabet = [0, 1, 2**32 - 1]
    completions = st.lists(st.sampled_from(alphabet), min_size=1, max_size=5)
    # Sums of eighths are exact. Elsewhere rounding alone could decide whether two rollouts agree, and with it how much
    # an exit is shrunk.
    ratios = st.integers(-40, 40).map(lambda eighths: eighths / 8)
    path = draw(completions)
    rows = []
    for completion in draw(st.lists(completions, max_size=12)):
        launch = draw(st.integers(0, len(completion)))
        ratio = draw(st.lists(ratios, min_size=len(completion), max_size=len(completion)))
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


@pytest.mark.parametrize("launched", ["on the path", "nowhere"])
def test_the_error_falls_with_the_number_of_rollouts(launched: str) -> None:
    """Few rollouts at most exits, and tokens that are not kept: neither may hide what more rollouts bring."""
    squares: dict[int, list[float]] = {300: [], 2000: []}
    spread = []
    for seed in range(3):
        world = ExactWorld.random(seed, length=40)
        teacher = world.tilted_teacher(strength=4.0, noise=1.0, seed=1)
        path = world.sample([SampleRequest(Q, tokens(), 1)]).completion(0)
        scores = scored(world, teacher, path, floor=0.02)
        exact_C = world.exact_reward_to_go_along(scores, teacher)
        spread.append(float(exact_C.std()))
        for n, found in squares.items():
            starts = [path[:depth] for depth in range(len(path))] if launched == "on the path" else [path[:0]]
            tree = grown(world, [SampleRequest(Q, start, -(-n // len(starts))) for start in starts])
            rollouts = tree.rollouts()
            log_t, log_p = world.token_log_probs(Q, rollouts, teacher), world.token_log_probs(Q, rollouts, None)
            ratio = log_ratio(log_t, log_p)
            found_C = module.reward_to_go(tree, scores, teacher.name, ratio, ends=tokens([EOS]))
            found.append(float(((found_C - exact_C) ** 2).mean()))
    error = {n: np.sqrt(np.mean(found)) for n, found in squares.items()}
    assert error[2000] < (0.9 if launched == "on the path" else 1.0) * error[300]
    assert error[300] < 0.5 * np.mean(spread)


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
