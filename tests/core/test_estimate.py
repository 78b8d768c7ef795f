"""Success probabilities: properties on small trees counted by hand, then errors on exact worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.backends.exact import ExactWorld
from opd_align.core.chosen_paths import natural_weights
from opd_align.core.collect import Evidence, collect
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import CERTAIN, PathEstimate, exact_estimate
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Settings
from opd_align.types import OpdAlignError, PathScores, Question, Rollouts, SampleRequest, ScoreRequest

END, DEEPEST = 0, 5
Row = tuple[Sequence[int], int, int]  # completion, launch, outcome
Kept = Mapping[tuple[int, ...], Mapping[int, float]]  # node -> kept child -> probability


def tree_of(rows: Sequence[Row]) -> GenerationTree:
    completions, launch, outcome = ([row[column] for row in rows] for column in range(3))
    return GenerationTree.build(Rollouts.of(completions, launch=launch, outcome=outcome))


def scored(completion: Sequence[int], kept: Kept) -> PathScores:
    """Scores of a path from a table of node probabilities, without teachers."""
    nodes = [sorted(kept[tuple(completion[:depth])].items()) for depth in range(len(completion))]
    with np.errstate(divide="ignore"):
        log_p_C = np.log([p for node in nodes for _, p in node])
    return PathScores(
        np.array(completion, np.uint32),
        np.cumsum([0] + [len(node) for node in nodes]),
        np.array([token for node in nodes for token, _ in node], np.uint32),
        log_p_C,
        np.zeros(len(completion)),
        {},
    )


def by_child(scores: PathScores, column_C: np.ndarray) -> dict[tuple[int, int], float]:
    depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
    return dict(zip(zip(depth_C.tolist(), scores.token_C.tolist(), strict=True), column_C.tolist(), strict=True))


def assert_same(one: Sequence[PathEstimate], other: Sequence[PathEstimate], tolerance: float = 0.0) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        pairs = [(a, b)]
        if a.ties is not None and b.ties is not None:
            pairs.append((a.ties, b.ties))
        assert (a.ties is None) == (b.ties is None)
        for x, y in pairs:
            for column in fields(x):
                if column.name != "ties":
                    left, right = getattr(x, column.name), getattr(y, column.name)
                    assert np.allclose(left, right, rtol=0, atol=tolerance, equal_nan=True), column.name


# A fork at the root with probabilities 1/2; after 1, nine in ten are correct and one takes 2 and fails; all of 2 fail.
FORKED: Kept = {(): {1: 0.5, 2: 0.5}, (1,): {1: 0.9, 2: 0.1}, (1, 1): {END: 1.0}}
NATURAL: list[Row] = [*[((1, 1, END), 0, 1)] * 9, ((1, 2, END), 0, 0), *[((2, 3, END), 0, 0)] * 10]


# -- forced rollouts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["direct", "backup"])
def test_forced_rollouts_do_not_count_at_their_ancestors(method) -> None:
    path = scored((1, 1, END), FORKED)
    forced: list[Row] = [((1, 2, END), 2, 0)] * 100
    before = estimate(tree_of(NATURAL), [path], method=method, shrink=False)[0]
    after = estimate(tree_of([*NATURAL, *forced]), [path], method=method, shrink=False)[0]
    # Of ten natural rollouts after 1, one is the path itself; counting leaves it out.
    after_1 = 8 / 9 if method == "direct" else 0.9
    assert by_child(path, before.q_C) == pytest.approx({(0, 1): after_1, (0, 2): 0, (1, 1): 1, (1, 2): 0, (2, END): 1})
    assert np.allclose(after.q_C, before.q_C, atol=1e-12)
    assert np.allclose(after.value_T, before.value_T, atol=1e-12)


def test_pooled_counts_forced_rollouts_everywhere_and_is_biased() -> None:
    path = scored((1, 1, END), FORKED)
    forced: list[Row] = [((1, 2, END), 2, 0)] * 100
    pooled = estimate(tree_of([*NATURAL, *forced]), [path], method="pooled")[0]
    assert by_child(path, pooled.q_C)[0, 1] == pytest.approx(8 / 109)  # the truth is 0.9
    assert by_child(path, pooled.visits_C)[0, 1] == 109


def test_direct_counts_a_rollout_from_its_launch_on() -> None:
    path = scored((1, 1, END), FORKED)
    forced: list[Row] = [((1, 2, END), 2, 0)] * 7 + [((1, 1, END), 1, 1)] * 5
    found = estimate(tree_of([*NATURAL, *forced]), [path], method="direct")[0]
    # Forced up to (1, 2): a sample after that child, but 1 was not sampled. Forced up to (1): a sample after 1.
    # The path itself does not count.
    expected = {(0, 1): 14, (0, 2): 10, (1, 1): 13, (1, 2): 8, (2, END): 13}
    assert by_child(path, found.visits_C) == expected
    assert by_child(path, found.q_C)[0, 1] == pytest.approx(13 / 14)
    assert np.array_equal(found.effective_C, found.visits_C)


@pytest.mark.parametrize("method", ["direct", "pooled"])
def test_counting_leaves_out_one_rollout_per_path(method) -> None:
    one, other = scored((1, 1, END), FORKED), scored((1, 2, END), {**FORKED, (1, 2): {END: 1.0}})
    first, second = estimate(tree_of(NATURAL), [one, other], method=method)
    assert by_child(one, first.visits_C) == {(0, 1): 8, (0, 2): 10, (1, 1): 8, (1, 2): 0, (2, END): 8}
    assert by_child(other, second.visits_C) == {(0, 1): 8, (0, 2): 10, (1, 1): 8, (1, 2): 0, (2, END): 0}
    assert np.isnan(by_child(other, second.q_C)[2, END])  # only the path itself was there
    assert np.isnan(second.value_T[2])


def test_rollouts_stand_for_the_paths_that_were_chosen_among_them() -> None:
    """Two of six correct rollouts became paths: four are left and count for six, and the others for themselves."""
    after_three: list[Row] = [*[((3, 4, END), 0, 1)] * 4, *[((3, 5, END), 0, 0)] * 13]
    rows: list[Row] = [((1, END), 0, 1), ((2, END), 0, 1), *after_three, ((3, 4, END), 1, 1)]
    kept: Kept = {(): {1: 0.3, 2: 0.3, 3: 0.4}, (1,): {END: 1.0}, (2,): {END: 1.0}}
    paths = [scored((1, END), kept), scored((2, END), kept)]
    tree = tree_of(rows)
    weight_R = natural_weights(tree, paths)
    assert weight_R[tree.launch_R > 0].tolist() == [1.0]
    assert weight_R[(tree.launch_R == 0) & (tree.outcome_R == 0)].tolist() == [1.0] * 13
    first, _ = estimate(tree, paths, shrink=False)
    assert by_child(paths[0], first.q_C)[0, 3] == pytest.approx(7 / 20)  # six and a forced one, of 19 and one
    assert by_child(paths[0], first.visits_C)[0, 3] == 18  # visits are rollouts, whatever they count for
    # Half of the rollouts: on average one of the two paths is among them.
    assert natural_weights(tree, paths, 0.5)[(tree.launch_R == 0) & (tree.outcome_R == 1)].max() == 5 / 4
    # No correct rollout is left to stand for the path.
    assert natural_weights(tree_of([((1, END), 0, 1), ((3, 5, END), 0, 0)]), paths[:1]).tolist() == [1.0, 1.0]


def test_values_are_unbiased_where_few_rollouts_are_correct() -> None:
    """Leaving out the path takes one of about five correct rollouts away."""
    weighted, plain = [], []
    kept: Kept = {(): dict.fromkeys(range(1, 9), 1 / 8)}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        token_R, won_R = rng.integers(1, 9, 100), rng.random(100) < 0.05
        if won_R.sum() < 3 or len(set(token_R[won_R])) < 3:
            continue
        rows = [((int(token), 9 + i), 0, int(won)) for i, (token, won) in enumerate(zip(token_R, won_R, strict=True))]
        path = next(row[0] for row in rows if row[2])
        scores = scored(path, {**kept, path[:1]: {path[1]: 0.5}})
        others = np.array([row[2] for row in rows if row[0][0] != path[0]])
        found = by_child(scores, estimate(tree_of(rows), [scores], shrink=False)[0].q_C)
        weighted.append(np.mean([found[0, token] for token in range(1, 9) if token != path[0]]) / won_R.mean())
        plain.append(others.mean() / won_R.mean())
    assert len(weighted) > 100
    assert np.mean(plain) < 0.9
    assert np.mean(weighted) == pytest.approx(1.0, abs=0.05)


def test_the_path_is_no_evidence_about_itself() -> None:
    """A path is chosen because it is correct: counted, it makes its own tokens look better than they are."""
    world = ExactWorld.random(0, length=30, vocabulary=8, states=20, stakes=4.0)
    rng = np.random.default_rng(0)
    counted, left_out = [], []
    for replicate in range(60):
        rollouts = world.sample([SampleRequest(Question(str(replicate)), np.empty(0, np.uint32), 60)])
        rollouts.outcome_R[:] = world.grade(Question("q"), rollouts)
        for kind in (0, 1):
            path = rollouts.completion(int(rng.choice(np.flatnonzero(rollouts.outcome_R == kind))))
            scores = world.score(ScoreRequest(Question("q"), path, np.empty(0, np.int64), path[:0], 0.02), [])
            exact_C = world.exact_q_along(scores)
            found = estimate(GenerationTree.build(rollouts), [scores], method="direct")[0]
            seen_C = scores.on_path_C & (found.visits_C > 0)
            n_C, q_C = found.visits_C[seen_C], found.q_C[seen_C]
            sign = 2 * kind - 1
            left_out += (sign * (q_C - exact_C[seen_C])).tolist()
            counted += (sign * ((n_C * q_C + kind) / (n_C + 1) - exact_C[seen_C])).tolist()
    assert len(counted) > 500
    assert np.mean(counted) > 0.03
    # What is left: where few rollouts are correct, those beside a correct path are fewer than they should be.
    assert abs(np.mean(left_out)) < 0.5 * np.mean(counted)


def test_a_rollout_forced_past_its_exit_does_not_count() -> None:
    path = scored((1, 1, END), FORKED)
    past: list[Row] = [((2, 3, 3, END), 3, 1)] * 50
    for method in ("direct", "backup"):
        before = estimate(tree_of(NATURAL), [path], method=method)
        assert_same(before, estimate(tree_of([*NATURAL, *past]), [path], method=method))
    pooled = estimate(tree_of([*NATURAL, *past]), [path], method="pooled")[0]
    assert by_child(path, pooled.q_C)[0, 2] == pytest.approx(50 / 60)


def test_an_exit_that_is_a_scored_path_takes_that_paths_value() -> None:
    kept = {**FORKED, (2,): {3: 1.0}, (2, 3): {3: 0.25, END: 0.75}, (2, 3, 3): {END: 1.0}}
    one, two = scored((1, 1, END), kept), scored((2, 3, END), kept)
    past: list[Row] = [((2, 3, 3, END), 3, 1)] * 48
    rows = [*NATURAL, *past]
    found = estimate(tree_of(rows), [one, two], shrink=False)
    # Counting after 2 gives 0 of 10; its path has a branch of probability 1/4 with 48 of 48 correct.
    for scores, result in zip((one, two), found, strict=True):
        assert by_child(scores, result.q_C)[0, 2] == pytest.approx(0.25)
        assert result.value_T[0] == pytest.approx(0.5 * 0.9 + 0.5 * 0.25)


def test_the_rest_slot_counts_only_natural_rollouts() -> None:
    kept = {(): {1: 0.5, 2: 0.1}, (1,): {END: 1.0}}
    path = scored((1, END), kept)
    rows: list[Row] = [((1, END), 0, 1), ((2, 4, END), 0, 0)]
    rest: list[Row] = [((7, 4, END), 0, 1), *[((8, 4, END), 0, 0)] * 3]
    forced: list[Row] = [((7, 4, END), 1, 1)] * 20  # chosen for the rest, not drawn from it
    for extra in ([], forced):
        found = estimate(tree_of([*rows, *rest, *extra]), [path], shrink=False)[0]
        # One of four is correct, and stands for the path too.
        assert found.value_T[0] == pytest.approx(0.5 * 1 + 0.1 * 0 + 0.4 * 2 / 5)
        assert found.tail_mass_T[0] == pytest.approx(0, abs=1e-12)


def test_tail_mass_is_the_probability_of_children_without_evidence() -> None:
    kept = {(): {1: 0.5, 2: 0.1, 3: 0.15}, (1,): {2: 0.2, END: 0.8}}
    path = scored((1, END), kept)
    rows: list[Row] = [((1, END), 0, 1), ((1, END), 0, 1), ((2, 4, END), 0, 0)]
    found = estimate(tree_of(rows), [path], shrink=False)[0]
    assert found.tail_mass_T == pytest.approx([0.15 + 0.25, 0.2])
    # The tail is not renormalized away: its uncertainty is part of the value above.
    assert found.path_var_T[0] > 0
    for method in ("direct", "pooled"):
        counted = estimate(tree_of(rows), [path], method=method)[0]
        assert counted.tail_mass_T == pytest.approx([0.4, 0.2])
        assert np.isnan(by_child(path, counted.q_C)[0, 3])
    full = estimate(tree_of([*rows, ((3, 4, END), 1, 0), ((9, 4, END), 0, 0)]), [path], shrink=False)[0]
    assert full.tail_mass_T == pytest.approx([0, 0.2], abs=1e-12)


@pytest.mark.parametrize("shrink", [True, False])
@pytest.mark.parametrize("outcome", [0, 1])
def test_certain_ends_are_known_exactly(shrink: bool, outcome: int) -> None:
    kept = {(): {END: 0.2, 1: 0.5, 2: 0.3}, (1,): {END: 0.5, 3: 0.5}}
    path = scored((1, END), kept)
    # The immediate end was graded once without sampling: it is forced up to its end.
    rows: list[Row] = [((END,), 1, outcome), ((1, END), 0, 1 - outcome), ((2, 5, END), 0, 1), ((2, 6, END), 0, 0)]
    found = estimate(tree_of([*rows, ((1, 3, 3, END), 0, 0)]), [path], shrink=shrink)[0]
    q, effective = by_child(path, found.q_C), by_child(path, found.effective_C)
    assert q[0, END] == outcome
    assert q[1, END] == 1 - outcome
    assert effective[0, END] == effective[1, END] == CERTAIN
    assert by_child(path, found.se_C)[0, END] == by_child(path, found.se_C)[1, END] == 0
    for child in ((0, 1), (0, 2), (1, 3)):
        assert 0 < effective[child] < 100


def test_inconsistent_grades_are_not_certain() -> None:
    kept = {(): {2: 0.5, 1: 0.5}, (1,): {END: 1.0}}
    path = scored((1, END), kept)
    rows: list[Row] = [((1, END), 0, 1), ((2,), 0, 1), ((2,), 0, 0)]
    found = estimate(tree_of(rows), [path], shrink=False)[0]
    assert by_child(path, found.q_C)[0, 2] == pytest.approx(2 / 3)  # the correct one also stands for the path
    assert by_child(path, found.effective_C)[0, 2] < 10


# -- slow reference -------------------------------------------------------------------------------------------


def tiny(seed: int) -> tuple[list[Row], list[PathScores]]:
    """Rollouts over four tokens, natural and forced, and up to three scored paths that share and part.

    Every child with probability was taken by a natural rollout, so nothing is left to opinion; some of them are
    not kept.
    """
    rng = np.random.default_rng(seed)

    def finished(prefix: list[int]) -> tuple[int, ...]:
        while len(prefix) < DEEPEST and (not prefix or prefix[-1] != END):
            prefix = [*prefix, int(rng.choice(4, p=[0.15, 0.4, 0.25, 0.2]))]
        return tuple(prefix)

    natural = [finished([]) for _ in range(25)]
    rows: list[Row] = [(completion, 0) for completion in natural]  # type: ignore[misc]
    for _ in range(25):
        base = natural[rng.integers(len(natural))]
        launch = int(rng.integers(1, len(base) + 1))
        rows.append((finished([*base[: launch - 1], int(rng.integers(4))]), launch))  # type: ignore[arg-type]
    outcome = {row[0]: int(rng.integers(2)) for row in rows}
    rows = [(row[0], row[1], outcome[row[0]]) for row in rows]  # type: ignore[index]

    # Adjacent completions in sorted order share the longest prefixes.
    ordered, first = sorted(set(natural)), rng.integers(3)
    paths = [ordered[i] for i in rng.permutation(np.arange(first, first + rng.integers(1, 4)))]
    kept: dict[tuple[int, ...], dict[int, float]] = {}
    for node in {path[:depth] for path in paths for depth in range(len(path))}:
        seen = sorted({c[len(node)] for c in natural if c[: len(node)] == node and len(c) > len(node)})
        share = dict(zip(seen, rng.dirichlet(np.ones(len(seen))).tolist(), strict=True))
        used = {path[len(node)] for path in paths if path[: len(node)] == node}
        kept[node] = {k: share.get(k, 0.0) for k in range(4) if k in used or rng.random() < 0.7}
    return rows, [scored(path, kept) for path in paths]


def slow_backup(rows: Sequence[Row], paths: Sequence[PathScores]) -> dict[tuple[int, ...], tuple[float, float]]:
    """Mean and variance of the value after every kept child, directly from the formula."""
    completions = [tuple(path.completion_T.tolist()) for path in paths]
    kept = {}
    for path, completion in zip(paths, completions, strict=True):
        for (depth, token), p in by_child(path, np.exp(path.log_p_C)).items():
            kept.setdefault(completion[:depth], {})[token] = p
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    # Of the natural rollouts with the same outcome as a path, those that are no path stand for all.
    natural = Counter(outcome for _, launch, outcome in rows if launch == 0)
    chosen = Counter(o for c, launch, o in {row for row in rows if row[0] in completions} if launch == 0)
    weight = {o: natural[o] / max(natural[o] - chosen[o], 1) for o in natural}

    def counted(outcomes: list[tuple[int, int]]) -> tuple[float, float]:
        n = sum(weight[o] if launch == 0 else 1.0 for launch, o in outcomes)
        w = sum(weight[o] if launch == 0 else 1.0 for launch, o in outcomes if o)
        middle = (w + 0.5) / (n + 1)
        return w / n, middle * (1 - middle) / (n + 2)

    def value(node: tuple[int, ...]) -> tuple[float, float]:
        if node in completions:
            return float(next(outcome for c, _, outcome in rows if c == node)), 0.0
        mean = var = 0.0
        rest = [(launch, o) for c, launch, o in rows if c[: len(node)] == node and launch <= len(node) < len(c)
                and c[len(node)] not in kept[node]]  # fmt: skip
        for token, p in kept[node].items():
            child = (*node, token)
            after = [(c, launch, o) for c, launch, o in rows if c[: len(child)] == child and launch <= len(child)]
            if any(c[: len(child)] == child for c in completions):
                found[child] = value(child)
            elif any(c == child for c, _, _ in after):
                found[child] = float(after[0][2]), 0.0
            elif after:
                found[child] = counted([(launch, o) for _, launch, o in after])
            else:
                assert p == 0
                continue
            mean, var = mean + p * found[child][0], var + p**2 * found[child][1]
        left = 1 - sum(kept[node].values())
        if left > 1e-12:
            mean, var = mean + left * counted(rest)[0], var + left**2 * counted(rest)[1]
        return mean, var

    found[()] = value(())
    return found


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_backup_matches_the_formula(seed: int) -> None:
    rows, paths = tiny(seed)
    slow = slow_backup(rows, paths)
    for path, fast in zip(paths, estimate(tree_of(rows), paths, shrink=False), strict=True):
        completion = tuple(path.completion_T.tolist())
        assert fast.value_T == pytest.approx([slow[completion[:depth]][0] for depth in range(len(path))], abs=1e-12)
        assert fast.tail_mass_T == pytest.approx(np.zeros(len(path)), abs=1e-12)
        columns = (fast.q_C, fast.se_C, fast.effective_C)
        for (depth, token), (q, se, effective) in by_child(path, np.stack(columns, axis=-1)).items():
            child = (*completion[:depth], token)
            if child not in slow:
                continue  # no probability and no evidence
            mean, var = slow[child]
            assert q == pytest.approx(mean, abs=1e-12)
            assert se**2 == pytest.approx(var, abs=1e-12)
            assert effective == pytest.approx(min(max(mean * (1 - mean), 0.001) / max(var, 1e-12), CERTAIN), rel=1e-6)


def test_the_small_trees_cover_all_cases_of_the_reference() -> None:
    shared = branched_twice = rest = past_exit = zero = 0
    for seed in range(100):
        rows, paths = tiny(seed)
        completions = [tuple(path.completion_T.tolist()) for path in paths]
        common = [sum(a == b for a, b in zip(*pair, strict=False)) for pair in pairwise(completions)]
        shared += any(common)
        branched_twice += len(paths) == 3 and len({c[:2] for c in completions}) == 1
        mass = [np.bincount(np.repeat(np.arange(len(p)), np.diff(p.offsets)), np.exp(p.log_p_C)) for p in paths]
        rest += any((m < 0.999).any() for m in mass)
        exits = [tree_of(rows).exits(path.completion_T).depth_R for path in paths]
        past_exit += bool((tree_of(rows).launch_R > np.max(exits, axis=0) + 1).any())
        zero += any(np.isneginf(path.log_p_C).any() for path in paths)
    assert min(shared, rest, past_exit, zero) > 20
    assert branched_twice > 5


@given(seed=st.integers(0, 2**32 - 1), shrink=st.booleans(), method=st.sampled_from(["backup", "direct", "pooled"]))
@settings(deadline=None, max_examples=60)
def test_the_order_of_arrival_does_not_matter(seed: int, shrink: bool, method) -> None:
    rows, paths = tiny(seed)
    batch = tree_of(rows).rollouts()
    order = np.random.default_rng(seed).permutation(len(batch))
    parts = [batch.take(piece) for piece in np.array_split(order, 3)]
    one = estimate(GenerationTree.build(batch), paths, method=method, shrink=shrink)
    assert_same(one, estimate(GenerationTree.build(*parts), paths, method=method, shrink=shrink))


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_the_order_of_the_paths_does_not_matter(seed: int) -> None:
    rows, paths = tiny(seed)
    one, other = (estimate(tree_of(rows), given, shrink=False) for given in (paths, paths[::-1]))
    for path, a, b in zip(paths, one, other[::-1], strict=True):
        informed_C = (a.visits_C > 0) | (np.exp(path.log_p_C) > 0)
        assert np.allclose(a.value_T, b.value_T, atol=1e-12)
        assert np.allclose(a.q_C[informed_C], b.q_C[informed_C], atol=1e-12)
        assert np.allclose(a.se_C[informed_C], b.se_C[informed_C], atol=1e-9)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_paths_that_share_a_node_agree_on_it(seed: int) -> None:
    rows, paths = tiny(seed)
    by_prefix: dict[tuple[int, ...], tuple[float, float]] = {}
    for path, found in zip(paths, estimate(tree_of(rows), paths), strict=True):
        completion = tuple(path.completion_T.tolist())
        assert ((found.q_C >= 0) & (found.q_C <= 1)).all()
        for (depth, token), (q, se) in by_child(path, np.stack([found.q_C, found.se_C], axis=-1)).items():
            if token != completion[depth] or depth == 0:
                assert by_prefix.setdefault((*completion[:depth], token), (q, se)) == pytest.approx((q, se), abs=1e-9)


# -- shrinkage ------------------------------------------------------------------------------------------------


def test_shrinkage_is_strong_for_few_samples_and_weak_for_many() -> None:
    kept = {(): {1: 0.4, 2: 0.3, 3: 0.3}, (1,): {4: 0.5, END: 0.5}}
    path = scored((1, END), kept)
    shares = {}
    for few in (2, 2000):
        rows: list[Row] = [((1, END), 0, 1), *[((1, 4, 4, END), 2, i % 2) for i in range(1000)]]
        rows += [((2, 4, END), 1, i % 2) for i in range(1000)] + [((3, 4, END), 1, 0)] * few
        found = estimate(tree_of(rows), [path])[0]
        shares[few] = by_child(path, found.q_C)[0, 3]
    assert shares[2] > 0.15
    assert shares[2000] < 0.01


def test_an_exit_without_samples_is_not_certain() -> None:
    kept = {(): {1: 0.5, 2: 0.5}, (1,): {END: 1.0}}
    path = scored((1, END), kept)
    for shrink in (True, False):
        found = estimate(tree_of([((1, END), 0, 1)] * 50), [path], shrink=shrink)[0]
        # Its siblings were correct 50 times of 50: it resembles them, but is known less well.
        assert by_child(path, found.effective_C)[0, 2] < 40
        assert by_child(path, found.visits_C)[0, 2] == 0
        assert found.tail_mass_T[0] == pytest.approx(0.5)


@pytest.mark.parametrize("outcome", [0, 1])
def test_all_correct_and_all_incorrect_are_finite(outcome: int) -> None:
    path = scored((1, 1, END), FORKED)
    for shrink in (True, False):
        found = estimate(tree_of([(c, launch, outcome) for c, launch, _ in NATURAL]), [path], shrink=shrink)[0]
        for column in (found.q_C, found.se_C, found.effective_C, found.value_T, *found.interval_C()):
            assert np.isfinite(column).all()
        assert np.abs(found.q_C - outcome).max() < 0.05


# -- invalid inputs -------------------------------------------------------------------------------------------


def test_a_path_that_is_not_in_the_tree_raises() -> None:
    kept = {**FORKED, (1, 1): {2: 1.0}, (1, 1, 2): {END: 1.0}}
    with pytest.raises(OpdAlignError, match="not among the rollouts"):
        estimate(tree_of(NATURAL), [scored((1, 1, 2, END), kept)])


def test_a_prefix_of_a_rollout_is_not_in_the_tree() -> None:
    with pytest.raises(OpdAlignError, match="not among the rollouts"):
        estimate(tree_of(NATURAL), [scored((1, 1), FORKED)])


def test_an_unknown_method_raises_with_the_choices() -> None:
    with pytest.raises(OpdAlignError, match=r"'beckup'.*backup, direct, pooled"):
        estimate(tree_of(NATURAL), [scored((1, 1, END), FORKED)], method="beckup")  # type: ignore[arg-type]


def test_the_same_path_twice_raises() -> None:
    path = scored((1, 1, END), FORKED)
    with pytest.raises(ValueError, match="pass each completion once"):
        estimate(tree_of(NATURAL), [path, path])


def test_shared_nodes_must_have_the_same_children() -> None:
    one = scored((1, 1, END), FORKED)
    two = scored((2, 3, END), {(): {1: 0.5, 2: 0.3, 3: 0.2}, (2,): {3: 1.0}, (2, 3): {END: 1.0}})
    with pytest.raises(ValueError, match="same children"):
        estimate(tree_of(NATURAL), [one, two])


def test_no_paths_give_no_estimates() -> None:
    for method in ("backup", "direct", "pooled"):
        assert estimate(tree_of(NATURAL), [], method=method) == []
        assert estimate(GenerationTree.build(), [], method=method) == []


# -- layout ---------------------------------------------------------------------------------------------------


def test_counts_are_reindexed_to_the_scores() -> None:
    kept = {(): {1: 0.5, 5: 0.25, 6: 0.25}, (1,): {1: 0.9, 2: 0.1}, (1, 1): {END: 0.9, 4: 0.1}}
    path, tree = scored((1, 1, END), kept), tree_of(NATURAL)
    counts = tree.counts_along(path.completion_T).reindex(path.offsets, path.token_C)
    expected = {(0, 1): 10, (0, 5): 0, (0, 6): 0, (1, 1): 9, (1, 2): 1, (2, END): 9, (2, 4): 0}
    assert by_child(path, counts.visits_C) == expected
    assert np.array_equal(counts.token_C, path.token_C)


def test_the_exact_estimate_has_no_uncertainty() -> None:
    path = scored((1, 1, END), FORKED)
    truth = exact_estimate(path, np.array([0.9, 0.2, 1.0, 0.0, 1.0]))
    assert truth.value_T == pytest.approx([0.55, 0.9, 1.0])
    assert truth.path_q_T == pytest.approx([0.9, 1.0, 1.0])
    assert (truth.effective_C == CERTAIN).all()
    draws = truth.draws(np.array([[0, 1]]), np.array([0]), n=5, rng=np.random.default_rng(0))
    assert np.array_equal(draws, np.broadcast_to([0.9, 0.2], (5, 1, 2)))


# -- posterior ------------------------------------------------------------------------------------------------


def posterior_of(
    q: Sequence[float],
    own_var: Sequence[float],
    load: Sequence[float],
    path_var: float,
    sibling_sd: Sequence[float] | None = None,
) -> PathEstimate:
    """One node whose first child is on the path."""
    q_C, own_var_C, load_C, sd_C = (
        np.array(column, float) for column in (q, own_var, load, sibling_sd or [0] * len(q))
    )
    return PathEstimate(
        q_C, own_var_C, load_C, sd_C, np.array([path_var]), q_C[:1], np.ones(len(q_C), int), np.ones(len(q_C)),
        q_C[:1], np.zeros(1), np.array([0, len(q_C)]),
    )  # fmt: skip


def test_draws_have_the_stated_mean_and_spread() -> None:
    found = posterior_of([0.4, 0.6, 0.5], [0.0, 0.004, 0.001], [1.0, 0.5, 0.0], 0.003)
    draws = found.draws(np.array([[0, 1, 2]]), np.array([0]), n=40_000, rng=np.random.default_rng(0))[:, 0]
    assert draws.shape == (40_000, 3)
    assert draws.mean(0) == pytest.approx(found.q_C, abs=0.002)
    assert draws.std(0) == pytest.approx(found.se_C, rel=0.03)
    assert found.se_C**2 == pytest.approx([0.003, 0.004 + 0.25 * 0.003, 0.001])
    assert np.corrcoef(draws[:, 0], draws[:, 2])[0, 1] == pytest.approx(0, abs=0.02)


def test_shared_error_cancels_between_siblings() -> None:
    found = posterior_of([0.4, 0.5], [0.0, 1e-5], [1.0, 0.95], 0.01)
    draws = found.draws(np.array([[0, 1]]), np.array([0]), n=20_000, rng=np.random.default_rng(1))[:, 0]
    assert draws.std(0).min() > 0.09
    difference = draws[:, 1] - draws[:, 0]
    assert difference.std() == pytest.approx((1e-5 + 0.05**2 * 0.01) ** 0.5, rel=0.05)
    # Independent errors of the same size would make the sign uncertain.
    alone = posterior_of([0.4, 0.5], found.se_C**2, [0.0, 0.0], 0.0)
    draws = alone.draws(np.array([[0, 1]]), np.array([0]), n=20_000, rng=np.random.default_rng(1))[:, 0]
    assert (draws[:, 1] > draws[:, 0]).mean() < 0.8
    assert (difference > 0).mean() > 0.999


def test_the_error_of_the_common_centre_moves_siblings_together() -> None:
    found = posterior_of([0.4, 0.5, 0.5], [0.0, 1e-4, 1e-4], [1.0, 0.0, 0.0], 0.0, [0.0, 0.1, 0.05])
    draws = found.draws(np.array([[0, 1, 2]]), np.array([0]), n=20_000, rng=np.random.default_rng(2))[:, 0]
    assert draws.std(0) == pytest.approx(found.se_C, rel=0.03, abs=1e-12)
    assert found.se_C**2 == pytest.approx([0, 0.01 + 1e-4, 0.0025 + 1e-4])
    assert np.corrcoef(draws[:, 1], draws[:, 2])[0, 1] == pytest.approx(0.1 * 0.05 / np.prod(found.se_C[1:]), abs=0.02)


def test_equal_siblings_near_zero_are_above_and_below_equally_often() -> None:
    found = posterior_of([0.02, 0.02], [0.0, 0.01], [1.0, 0.0], 1e-5)
    draws = found.draws(np.array([[0, 1]]), np.array([0]), n=20_000, rng=np.random.default_rng(2))[:, 0]
    assert (draws[:, 1] > draws[:, 0]).mean() == pytest.approx(0.5, abs=0.02)


def test_an_interval_contains_its_estimate_close_to_zero_and_one() -> None:
    """A Beta distribution with mean 0.001 and standard deviation 0.02 has 95 % of its mass below its mean."""
    found = posterior_of([0.001, 0.999], [4e-4, 4e-4], [0, 0], 0.0)
    low_C, high_C = found.interval_C()
    assert (low_C <= found.q_C).all()
    assert (found.q_C <= high_C).all()


def test_an_interval_close_to_zero_or_one_is_as_wide_as_its_standard_error_says() -> None:
    """A Beta distribution of this mean and standard deviation has 95 % of its mass below 0.003."""
    found = posterior_of([0.001, 0.999, 0.3], [49e-6, 49e-6, 0.01], [0, 0, 0], 0.0)
    low_C, high_C = found.interval_C(0.9)
    assert low_C[:2] == pytest.approx([0.0, 0.999 - 1.2816 * 0.007], abs=1e-5)
    assert high_C[:2] == pytest.approx([0.001 + 1.2816 * 0.007, 1.0], abs=1e-5)
    # Everywhere else it is equal-tailed: here 0.3 ± 1.64 · 0.1, somewhat skewed.
    assert low_C[2] == pytest.approx(0.15, abs=0.01)
    assert high_C[2] == pytest.approx(0.475, abs=0.01)


def test_an_interval_contains_its_fraction_of_the_draws() -> None:
    found = posterior_of([0.3, 0.7, 1.0], [0.0, 0.01, 0.0], [1.0, 0.0, 0.0], 0.005)
    low_C, high_C = found.interval_C(0.8)
    draws = found.draws(np.array([[0, 1, 2]]), np.array([0]), n=20_000, rng=np.random.default_rng(3))[:, 0]
    assert ((draws > low_C) & (draws < high_C)).mean(0)[:2] == pytest.approx([0.8, 0.8], abs=0.015)
    assert (draws < low_C).mean(0)[:2] == pytest.approx([0.1, 0.1], abs=0.015)
    wide_low, wide_high = found.interval_C(0.95)
    assert ((wide_low < low_C) & (wide_high > high_C))[:2].all()
    assert high_C[2] - low_C[2] < 1e-3


# -- exact worlds ---------------------------------------------------------------------------------------------

SEEDS = range(8)


@pytest.fixture(scope="module")
def explored() -> list[tuple[ExactWorld, Evidence]]:
    """Enriched trees as in the engine, with the paper's plan and fewer rollouts per target."""
    found = []
    for seed in SEEDS:
        world = ExactWorld.random(seed, length=50, stakes=2.0)
        teachers = [world.tilted_teacher(strength=4.0, noise=1.0, seed=seed)]
        settings = Settings(budget=Budget(initial=100, allocation="paper", n_min=50))
        found.append((world, collect(world, teachers, Question(f"w{seed}"), world, settings=settings)))
    assert all(len(evidence.paths) == 4 for _, evidence in found)
    return found


def errors(world: ExactWorld, evidence: Evidence, method, least: int = 20) -> Iterator[tuple[np.ndarray, PathEstimate]]:
    for scores, found in zip(evidence.paths, estimate(evidence.tree, evidence.paths, method=method), strict=True):
        known_C = (found.effective_C >= least) & (found.visits_C > 0)
        yield np.where(known_C, found.q_C - world.exact_q_along(scores), np.nan), found


def test_backup_is_better_than_direct_and_direct_than_pooled(explored) -> None:
    mean = {}
    for method in ("pooled", "direct", "backup"):
        rows = [np.abs(miss_C) for world, evidence in explored for miss_C, _ in errors(world, evidence, method)]
        mean[method] = np.nanmean(np.concatenate(rows))
    assert mean["backup"] < 0.75 * mean["direct"]
    assert mean["direct"] < 0.6 * mean["pooled"]


def test_direct_is_unbiased_and_pooled_is_not(explored) -> None:
    z: dict[str, np.ndarray] = {}
    for method in ("direct", "pooled"):
        parts = []
        for world, evidence in explored:
            for scores, (miss_C, found) in zip(evidence.paths, errors(world, evidence, method, 30), strict=True):
                exact_C = world.exact_q_along(scores)
                # Ends are certain, and the normal approximation needs both correct and incorrect rollouts.
                fair_C = np.isfinite(miss_C) & (found.visits_C * exact_C * (1 - exact_C) > 3)
                parts.append((miss_C / np.sqrt(exact_C * (1 - exact_C) / np.maximum(found.visits_C, 1)))[fair_C])
        z[method] = np.concatenate(parts)
        assert len(z[method]) > 500
    assert abs(z["direct"].mean()) < 0.2
    assert 0.85 < z["direct"].std() < 1.15
    assert z["pooled"].std() > 2


def test_pooled_is_too_high_on_correct_and_too_low_on_incorrect_paths(explored) -> None:
    bias: dict[bool, list[float]] = {True: [], False: []}
    for world, evidence in explored:
        for scores, right, (miss_C, _) in zip(
            evidence.paths, evidence.correct, errors(world, evidence, "pooled"), strict=True
        ):
            on_path_C = scores.token_C == np.repeat(scores.completion_T, np.diff(scores.offsets))
            bias[right].append(float(np.nanmean(miss_C[on_path_C])))
    assert np.mean(bias[True]) > np.mean(bias[False]) + 0.03


def test_ninety_percent_intervals_cover_about_ninety_percent(explored) -> None:
    inside = []
    for world, evidence in explored:
        for scores, (miss_C, found) in zip(evidence.paths, errors(world, evidence, "backup"), strict=True):
            low_C, high_C = found.interval_C(0.9)
            exact_C = world.exact_q_along(scores)
            open_C = np.isfinite(miss_C) & (found.se_C > 1e-6)
            inside.append(((low_C <= exact_C) & (exact_C <= high_C))[open_C])
    assert 0.8 < np.concatenate(inside).mean() < 0.97


def test_more_rollouts_give_less_error() -> None:
    mean = []
    for n_min, initial in ((5, 20), (40, 160), (320, 1280)):
        rows = []
        for seed in range(3):
            world = ExactWorld.random(seed, length=40, stakes=2.0)
            teachers = [world.tilted_teacher(strength=4.0, noise=1.0, seed=seed)]
            plan = Settings(budget=Budget(initial=initial, n_min=n_min))
            evidence = collect(world, teachers, Question("grows"), world, settings=plan)
            for scores, (miss_C, _) in zip(evidence.paths, errors(world, evidence, "backup", least=0), strict=True):
                rows.append(np.abs(miss_C[scores.log_p_C > np.log(0.02)]))
        mean.append(np.nanmean(np.concatenate(rows)))
    assert mean[1] < 0.7 * mean[0]
    assert mean[2] < 0.7 * mean[1]


def test_ends_along_a_path_are_exact(explored) -> None:
    ends = 0
    for world, evidence in explored:
        for scores, found in zip(evidence.paths, estimate(evidence.tree, evidence.paths), strict=True):
            end_C = (scores.token_C == END) & (np.exp(scores.log_p_C) > 0.02)
            assert np.array_equal(found.q_C[end_C], world.exact_q_along(scores)[end_C])
            assert (found.effective_C[end_C] == CERTAIN).all()
            ends += int(end_C.sum())
    assert ends > 50
