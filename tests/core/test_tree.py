"""Generation trees against brute force: properties on random small trees, then edge cases."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opd_align.core import row_sort
from opd_align.core.tree import ChildCounts, GenerationTree
from opd_align.types import Failure, Finish, OpdAlignError, Outcome, Rollouts

LARGEST = 2**32 - 1
Row = tuple[list[int], int, int]  # completion, launch, outcome

KINDS = ("visits", "wins", "evidence", "evidence_wins", "natural", "natural_wins")
NAMES = (*KINDS, "natural_inverse_length", "natural_wins_inverse_length")

# 1 and 256 differ in order as big-endian and as little-endian bytes.
completions = st.lists(st.sampled_from([0, 1, 256, LARGEST]), max_size=6)


@st.composite
def worlds(draw: st.DrawFn, outcomes: tuple[int, ...] = (0, 1)) -> Rollouts:
    """A batch with distinct keys in any order."""
    rows: list[Row] = draw(
        st.lists(
            completions.flatmap(lambda c: st.tuples(st.just(c), st.integers(0, len(c)), st.sampled_from(outcomes))),
            max_size=25,
        )
    )
    keys = draw(st.permutations(range(len(rows))))
    return batch(rows, keys)


def batch(rows: list[Row], keys: Any = ()) -> Rollouts:
    return Rollouts.of(
        [row[0] for row in rows], launch=[row[1] for row in rows], outcome=[row[2] for row in rows], key=keys
    )


def records(rollouts: Rollouts) -> list[tuple[Any, ...]]:
    columns = (rollouts.launch_R, rollouts.key_R, rollouts.outcome_R, rollouts.finish_R)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(tuple(rollouts.completion(r).tolist()), *row) for r, row in enumerate(rows)]


def content(tree: GenerationTree) -> tuple[Any, ...]:
    return records(tree.rollouts()), tree.unknown_key_U.tolist(), tree.failures


def shuffled(rollouts: Rollouts, draw: st.DataObject) -> list[Rollouts]:
    """The same rows in another order, cut into batches."""
    order = np.array(draw.draw(st.permutations(range(len(rollouts)))), np.int64)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    return [rollouts.take(piece) for piece in np.split(order, cuts)]


def slow_children(rollouts: Rollouts, prefix: tuple[int, ...], also: int | None = None) -> dict[str, Any]:
    """Slow reference: one pass over all rows, children in a dict."""
    m, ends, children = len(prefix), 0, dict[int, dict[str, Any]]()
    for completion, launch, _, outcome, _ in records(rollouts):
        if completion[:m] != prefix:
            continue
        if also is not None:
            children.setdefault(also, dict.fromkeys(NAMES, 0))
        if len(completion) == m:
            ends += 1
            continue
        child = children.setdefault(completion[m], dict.fromkeys(NAMES, 0))
        for kind, counted in (("visits", True), ("evidence", launch <= m + 1), ("natural", launch <= m)):
            child[kind] += counted
            child["wins" if kind == "visits" else f"{kind}_wins"] += counted * outcome
        child["natural_inverse_length"] += (launch <= m) / len(completion)
        child["natural_wins_inverse_length"] += (launch <= m) * outcome / len(completion)
    rounded = {token: {name: round(value, 12) for name, value in child.items()} for token, child in children.items()}
    return {"ends": ends, "children": rounded}


def as_dict(counts: ChildCounts) -> dict[str, Any]:
    columns = {name: getattr(counts, f"{name}_K").tolist() for name in NAMES}
    children = {
        token: {name: round(columns[name][i], 12) for name in NAMES} for i, token in enumerate(counts.token_K.tolist())
    }
    assert list(children) == sorted(children)
    return {"ends": counts.ends, "children": children}


def slow_exit(completion: tuple[int, ...], path: list[int]) -> tuple[int, int]:
    depth = 0
    while depth < min(len(completion), len(path)) and completion[depth] == path[depth]:
        depth += 1
    return depth, completion[depth] if depth < len(completion) else -1


@given(worlds())
def test_rows_are_sorted_by_completion_then_launch_then_key(world: Rollouts) -> None:
    assert records(GenerationTree.build(world).rollouts()) == sorted(records(world))


@given(worlds(outcomes=(-1, 0, 1)), st.data())
def test_the_order_of_arrival_does_not_matter(world: Rollouts, data: st.DataObject) -> None:
    tree = GenerationTree.build(world)
    parts = shuffled(world, data)
    some, others = parts[:1], parts[1:]
    assert content(GenerationTree.build(*parts)) == content(tree)
    assert content(GenerationTree.build(part for part in parts)) == content(tree)
    assert content(GenerationTree.build(*some).extended(*others)) == content(tree)


@given(worlds(outcomes=(-1, 0, 1)), st.data())
def test_merge_is_associative_and_commutative(world: Rollouts, data: st.DataObject) -> None:
    picks = [data.draw(st.lists(st.booleans(), min_size=len(world), max_size=len(world))) for _ in range(3)]
    # Overlapping parts, and in each of them some outcomes are still unknown.
    parts = []
    for pick in picks:
        part = world.take(np.array(pick, bool))
        hidden = np.array(data.draw(st.lists(st.booleans(), min_size=len(part), max_size=len(part))), bool)
        outcome_R = np.where(hidden, Outcome.UNKNOWN, part.outcome_R).astype(np.int8)
        failures = tuple(Failure(int(key), data.draw(st.sampled_from("xy"))) for key in part.key_R[hidden])
        parts.append(GenerationTree.build(replace(part, outcome_R=outcome_R, failures=failures)))
    a, b, c = parts
    assert content(a.merge(b)) == content(b.merge(a))
    assert content(a.merge(b).merge(c)) == content(a.merge(b.merge(c)))
    assert content(a.merge(a)) == content(a)


@given(worlds(), st.data())
def test_duplicates_change_nothing(world: Rollouts, data: st.DataObject) -> None:
    tree = GenerationTree.build(world)
    again = GenerationTree.build(world, *shuffled(world, data), world)
    assert content(again) == content(tree) == content(tree.extended(world))
    assert again.nbytes == tree.nbytes


@pytest.mark.parametrize("block_tokens", [1, 5, 1 << 20])
def test_duplicates_leave_no_tokens_in_the_buffer(monkeypatch: pytest.MonkeyPatch, block_tokens: int) -> None:
    monkeypatch.setattr(row_sort, "BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(0)
    world = batch([(rng.integers(0, 3, rng.integers(0, 9)).tolist(), 0, 1) for _ in range(50)])
    mixed = Rollouts.join([world, world]).take(rng.permutation(100))
    tree = GenerationTree.build(world)
    part = GenerationTree.build(world.take(np.arange(30)))
    for again in (GenerationTree.build(mixed), part.merge(tree), tree.merge(part)):
        assert content(again) == content(tree)
        assert len(again.tokens) == len(world.tokens)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (([7, 8], 0, 1), "length"),
        (([7, 8, 9], 1, 1), "launch"),
        (([7, 8, 9], 0, 0), "outcome"),
        (([7, 9, 9], 0, 1), "completion"),
    ],
)
def test_two_rollouts_with_the_same_key_raise(other: Row, what: str) -> None:
    first = batch([([5], 0, 1), ([], 0, 0), ([7, 8, 9], 0, 1)], keys=[3, 4, 42])
    second = batch([([5], 0, 1), ([], 0, 0), other], keys=[3, 4, 42])
    with pytest.raises(OpdAlignError, match=f"key 42 .*{what}"):
        GenerationTree.build(first, second)
    with pytest.raises(OpdAlignError, match=f"key 42 .*{what}"):
        GenerationTree.build(first).merge(GenerationTree.build(second))


def test_finish_is_part_of_a_rollout() -> None:
    stopped = Rollouts.of([[1]], outcome=[0])
    truncated = Rollouts.of([[1]], outcome=[0], truncated=[True])
    with pytest.raises(OpdAlignError, match="finish"):
        GenerationTree.build(stopped, truncated)


@given(worlds(), st.data())
def test_children_agree_with_brute_force(world: Rollouts, data: st.DataObject) -> None:
    prefix = data.draw(completions)
    counts = GenerationTree.build(world).children(prefix)
    assert as_dict(counts) == slow_children(world, tuple(prefix))


@given(worlds(), st.data())
def test_visits_are_ends_and_visits_of_children(world: Rollouts, data: st.DataObject) -> None:
    tree, path = GenerationTree.build(world), data.draw(completions)
    along = tree.counts_along(path)
    for depth in range(len(path)):
        lo, hi = tree.range(path[:depth])
        assert hi - lo == along.at(depth).ends + along.at(depth).visits_K.sum()
        assert hi - lo == sum(record[0][:depth] == tuple(path[:depth]) for record in records(world))


@given(worlds(), st.data())
def test_counts_along_agree_with_brute_force(world: Rollouts, data: st.DataObject) -> None:
    paths = st.sampled_from([record[0] for record in records(world)]) if len(world) else st.nothing()
    path = list(data.draw(paths | completions.map(tuple)))
    along = GenerationTree.build(world).counts_along(path)
    assert len(along) == len(path)
    assert along.offsets[0] == 0
    assert along.offsets[-1] == len(along.token_C)
    for depth, token in enumerate(path):
        assert as_dict(along.at(depth)) == slow_children(world, tuple(path[:depth]), also=token)


@given(worlds(), st.data())
def test_exits_agree_with_brute_force(world: Rollouts, data: st.DataObject) -> None:
    tree, path = GenerationTree.build(world), data.draw(completions)
    exits = tree.exits(path)
    expected = [slow_exit(record[0], path) for record in sorted(records(world))]
    assert list(zip(exits.depth_R.tolist(), exits.token_R.tolist(), strict=True)) == expected


@given(worlds(), st.data())
def test_forced_rollouts_do_not_count_at_their_ancestors(world: Rollouts, data: st.DataObject) -> None:
    path = data.draw(completions.filter(len))
    launch = data.draw(st.integers(1, len(path)))
    forced = batch([([*path, 1], launch, 1)] * 3, keys=[1000, 1001, 1002])
    tree = GenerationTree.build(world)
    before, after = tree.counts_along(path), tree.extended(forced).counts_along(path)
    for depth, token in enumerate(path):
        old = as_dict(before.at(depth))["children"].get(token, dict.fromkeys(NAMES, 0))
        new = as_dict(after.at(depth))["children"][token]
        for name in NAMES:
            counts = {"e": launch <= depth + 1, "n": launch <= depth}.get(name[0], True)
            assert (new[name] > old[name]) if counts else (new[name] == old[name]), (name, depth)


@pytest.mark.parametrize("windows", [(1,), (1, 3), (7, 20), (500,)])
@pytest.mark.parametrize("rank_bits", [0, 30])
def test_sorting_works_with_any_window_sizes(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...], rank_bits: int
) -> None:
    rng = np.random.default_rng(1)
    paths = rng.integers(0, 3, (3, 60))
    rows: list[Row] = []
    for _ in range(40):
        path = paths[rng.integers(3)][: rng.integers(61)].tolist()
        tail = rng.integers(0, 3, rng.integers(4)).tolist()
        rows += [([*path, *tail], int(rng.integers(3)), 1)] * int(rng.integers(1, 4))
    world = batch(rows, keys=rng.permutation(len(rows)))
    monkeypatch.setattr(row_sort, "WINDOWS", windows)
    monkeypatch.setattr(row_sort, "RANK_BITS", rank_bits)
    tree = GenerationTree.build(world)
    assert records(tree.rollouts()) == sorted(records(world))
    assert content(GenerationTree.build(world.take(np.arange(3))).extended(world)) == content(tree)


@pytest.mark.parametrize("step", [1, -1])
def test_nested_completions_take_few_rounds(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Each row is a prefix of the next: a bad choice of pivots would take one round per row."""
    rounds = []
    pivots = row_sort._pivots
    monkeypatch.setattr(row_sort, "_pivots", lambda *args: (rounds.append(1), pivots(*args))[1])
    tree = GenerationTree.build(Rollouts.of([[7] * n for n in range(500)][::step], outcome=[1] * 500))
    assert tree.length_R.tolist() == list(range(500))
    assert 0 < len(rounds) < 30


def test_ungraded_rollouts_are_not_visits() -> None:
    world = Rollouts.of([[1, 2], [1, 3], [1, 4], [1, 5]], outcome=[1, -1, 0, 0])
    finish_R = np.array([Finish.STOPPED, Finish.STOPPED, Finish.FAILED, Finish.TRUNCATED], np.uint8)
    tree = GenerationTree.build(replace(world, finish_R=finish_R, failures=(Failure(2, "lost"),)))
    assert len(tree) == 2
    assert tree.unknown == 2
    assert tree.failures == (Failure(2, "lost"),)
    assert tree.children([1]).token_K.tolist() == [2, 5]
    assert tree.merge(tree).unknown == 2


def test_a_graded_rollout_replaces_an_unknown_and_a_failure() -> None:
    unknown = replace(Rollouts.of([[1, 2], [3]]), failures=(Failure(0, "timeout"), Failure(9, "timeout")))
    graded = Rollouts.of([[1, 2]], outcome=[1])
    trees = [GenerationTree.build(unknown), GenerationTree.build(graded)]
    for tree in (trees[0].merge(trees[1]), trees[1].merge(trees[0]), GenerationTree.build(unknown, graded)):
        assert len(tree) == 1
        assert tree.unknown == 1
        assert tree.failures == (Failure(9, "timeout"),)


def test_failures_are_listed_once_in_order_of_key() -> None:
    parts = [
        replace(Rollouts.of([]), failures=failures)
        for failures in ((Failure(5, "b"), Failure(3, "c")), (Failure(5, "a"),))
    ]
    assert GenerationTree.build(*parts).failures == (Failure(3, "c"), Failure(5, "a"))
    assert GenerationTree.build(*parts[::-1]).failures == (Failure(3, "c"), Failure(5, "a"))


def test_an_empty_tree_can_be_queried() -> None:
    for tree in (GenerationTree.build(), GenerationTree.build(Rollouts.of([])), GenerationTree.build(iter([]))):
        assert len(tree) == tree.unknown == 0
        assert tree.range([]) == tree.range([1]) == (0, 0)
        assert len(tree.exits([1, 2]).depth_R) == 0
        assert tree.counts_along([1, 2]).offsets.tolist() == [0, 0, 0]
        assert len(tree.children([]).token_K) == 0
        assert len(tree.rollouts()) == 0
        assert len(tree.merge(tree)) == 0


def test_empty_rollouts_end_at_the_root() -> None:
    tree = GenerationTree.build(Rollouts.of([[], [], [0]], outcome=[0, 1, 1]))
    assert tree.exits([0, 0]).token_R.tolist() == [-1, -1, -1]
    assert tree.exits([0, 0]).depth_R.tolist() == [0, 0, 1]
    assert tree.counts_along([0, 0]).ends_T.tolist() == [2, 1]
    only_empty = GenerationTree.build(Rollouts.of([[], []], outcome=[0, 1]))
    assert only_empty.exits([5]).token_R.tolist() == [-1, -1]
    assert only_empty.counts_along([5]).visits_C.tolist() == [0]


def test_a_single_child_has_all_counts() -> None:
    tree = GenerationTree.build(Rollouts.of([[4, 5], [4, 5], [4, 5]], outcome=[1, 0, 1]))
    along = tree.counts_along([4, 5])
    assert along.token_C.tolist() == [4, 5]
    assert along.visits_C.tolist() == along.natural_C.tolist() == [3, 3]
    assert along.wins_C.tolist() == [2, 2]
    assert along.natural_wins_inverse_length_C == pytest.approx([1.0, 1.0])


def test_the_largest_token_sorts_last() -> None:
    tree = GenerationTree.build(Rollouts.of([[LARGEST], [0], [1], [256]], outcome=[1, 0, 0, 0]))
    assert tree.children([]).token_K.tolist() == [0, 1, 256, LARGEST]
    assert tree.children([]).wins_K.tolist() == [0, 0, 0, 1]
    assert tree.range([LARGEST]) == (3, 4)
    assert tree.exits([LARGEST]).token_R.tolist() == [0, 1, 256, -1]


def test_a_tree_is_immutable() -> None:
    tree = GenerationTree.build(Rollouts.of([[1], [2]], outcome=[1, 0]))
    before = content(tree)
    tree.extended(Rollouts.of([[0]], outcome=[1], key=[7]))
    assert content(tree) == before
    with pytest.raises(ValueError, match="read-only"):
        tree.outcome_R[0] = 0


def test_a_long_path_is_followed_to_its_end() -> None:
    rng = np.random.default_rng(2)
    length = 30_000
    path = rng.integers(0, 2**32, length, dtype=np.uint32)
    leave = rng.integers(0, length, 400)
    rows = [np.append(path[:depth], np.uint32(path[depth] ^ (1 + side))) for side in (0, 1) for depth in leave]
    tree = GenerationTree.build(Rollouts.of([*rows, path], outcome=[0] * 800 + [1]))
    exits = tree.exits(path)
    assert sorted(exits.depth_R.tolist()) == sorted([*leave.tolist() * 2, length])
    along = tree.counts_along(path)
    own = along.token_C == np.repeat(path, np.diff(along.offsets))
    assert own.sum() == length
    assert along.visits_C[own].tolist() == [1 + 2 * int((leave > depth).sum()) for depth in range(length)]
    assert (along.wins_C[own] == 1).all()
    assert along.wins_C[~own].sum() == 0


def test_memory_is_little_more_than_four_bytes_per_token() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 150_000, (200, 300))
    parts = (
        Rollouts.of([*chunk], outcome=[1] * 50, key=range(50 * i, 50 * i + 50))
        for i, chunk in enumerate(np.split(tokens, 4))
    )
    tree = GenerationTree.build(parts)
    arrays = [tree.tokens, tree.start_R, tree.length_R, tree.launch_R, tree.outcome_R, tree.finish_R, tree.key_R]
    assert tree.nbytes == sum(array.nbytes for array in arrays)
    assert 4 <= tree.nbytes / tokens.size <= 6


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_tree_is_the_same_tree(protocol: int) -> None:
    """Token 256 sorts after 1 in big-endian bytes only."""
    rows = [[1, 2], [1, 256], [256, 1], [256, 2, 1]]
    tree = GenerationTree.build(Rollouts.of(rows, launch=[0] * 4, outcome=[0, 1, 0, 1]))
    loaded = pickle.loads(pickle.dumps(tree, protocol))
    assert loaded.range([256]) == tree.range([256]) == (2, 4)
    np.testing.assert_array_equal(loaded.exits([256, 1]).depth_R, tree.exits([256, 1]).depth_R)
