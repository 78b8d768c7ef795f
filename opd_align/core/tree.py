"""Generation trees: how often each prefix was visited, and how often it won.

A tree is a sorted list of graded rollouts. A node is a prefix, so a contiguous range of rows; there are no
node objects. Rows stand in one canonical order (completion as big-endian bytes, then launch, then key), hence
nothing here depends on the order in which rollouts arrived. A tree is built once and never edited. At every
node, visits = rows that end there + visits of its children.

It knows tokens, not text; counts, not models; and it does not judge which of its counts to believe.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opd_align.types import Failure, Finish, Floats, Ints, OpdAlignError, Outcome, Rollouts, Tokens

Path = Sequence[int] | Tokens
Mask = NDArray[np.bool_]
Columns = tuple[NDArray[Any], ...]  # of `ChildCounts`, from visits to terminal

WINDOWS = (32, 64, 128)
"""How many tokens are compared at a time while sorting: few first, since most rows part soon, then more."""

RANK_BITS = 30
"""Larger numbers are numbered afresh before they share a 64-bit word with a token; no tree has 2³⁰ rows."""

BLOCK_TOKENS = 1 << 20
"""How many tokens are gathered at a time when rows are moved or compared."""


@dataclass(frozen=True, eq=False)
class Exits:
    """Where each row leaves a path: the length of the common prefix, the row's next token (-1: it ends there)."""

    depth_R: Ints
    token_R: Ints


@dataclass(frozen=True, eq=False)
class ChildCounts:
    """The children of one node at depth m, tokens ascending, with visits and wins of three kinds.

    `visits`: all rollouts through the child (the paper's pooled counting). `evidence`: those with launch <= m+1,
    samples of the student after the child. `natural`: those with launch <= m, samples of the student's choice
    at the node; the inverse lengths sum 1 / len(completion) over them. `terminal`: some rollout ends right
    after the child. `ends`: rollouts that end at the node itself.
    """

    ends: int
    token_K: Tokens
    visits_K: Ints
    wins_K: Ints
    evidence_K: Ints
    evidence_wins_K: Ints
    natural_K: Ints
    natural_wins_K: Ints
    natural_inverse_length_K: Floats
    natural_wins_inverse_length_K: Floats
    terminal_K: Mask


@dataclass(frozen=True, eq=False)
class PathCounts:
    """`ChildCounts` at every depth of a path, end to end: those of depth m are `offsets[m]:offsets[m + 1]`.

    Wherever some row reaches the node, the path's own next token is among the children, visited or not.
    """

    offsets: Ints
    ends_T: Ints
    token_C: Tokens
    visits_C: Ints
    wins_C: Ints
    evidence_C: Ints
    evidence_wins_C: Ints
    natural_C: Ints
    natural_wins_C: Ints
    natural_inverse_length_C: Floats
    natural_wins_inverse_length_C: Floats
    terminal_C: Mask

    def __len__(self) -> int:
        return len(self.ends_T)

    def at(self, depth: int) -> ChildCounts:
        """The node at one depth."""
        here = slice(self.offsets[depth], self.offsets[depth + 1])
        columns = [getattr(self, column.name)[here] for column in fields(self)[2:]]
        return ChildCounts(int(self.ends_T[depth]), *columns)


@dataclass(frozen=True, eq=False)
class GenerationTree:
    """The graded rollouts of one question: row r is `tokens[start_R[r]:start_R[r] + length_R[r]]`.

    `tokens` are big-endian and stay where they arrived; only the row arrays are sorted. Rows without a grade
    (unknown, or failed) are no visits: their keys wait in `unknown_key_U`, failures in `failures`, until a
    graded rollout of the same key takes their place.
    """

    tokens: Tokens
    start_R: Ints
    length_R: Ints
    launch_R: Ints
    outcome_R: NDArray[np.int8]
    finish_R: NDArray[np.uint8]
    key_R: NDArray[np.uint64]
    unknown_key_U: NDArray[np.uint64]
    failures: tuple[Failure, ...] = ()

    @staticmethod
    def build(*parts: Rollouts | Iterable[Rollouts]) -> GenerationTree:
        """A tree of batches in any order; a part may be a generator, whose batches need not fit in memory."""
        tokens = np.empty(sum(len(part.tokens) for part in parts if isinstance(part, Rollouts)), ">u4")
        used = 0
        rows, unknown, failures = [_Rows.of(Rollouts.of([]), 0)], [np.empty(0, np.uint64)], list[Failure]()
        for part in chain.from_iterable([part] if isinstance(part, Rollouts) else part for part in parts):
            graded_R = (part.outcome_R != Outcome.UNKNOWN) & (part.finish_R != Finish.FAILED)
            unknown.append(part.key_R[~graded_R].astype(np.uint64))
            failures.extend(part.failures)
            kept = part if graded_R.all() else part.take(graded_R)
            need = used + len(kept.tokens)
            if need > len(tokens):
                # In place (realloc, so mremap): a second buffer would double the peak of a large tree.
                tokens.resize(need + need // 8, refcheck=False)
            tokens[used:need] = kept.tokens
            rows.append(_Rows.of(kept, used))
            used = need
        tokens.resize(used, refcheck=False)
        return _assemble(tokens, _Rows.join(rows), np.concatenate(unknown), failures)

    def extended(self, *parts: Rollouts | Iterable[Rollouts]) -> GenerationTree:
        """This tree and more rollouts, as a new tree."""
        return self.merge(GenerationTree.build(*parts))

    def merge(self, other: GenerationTree) -> GenerationTree:
        """The rollouts of both; associative and commutative, and a tree merged with itself is itself."""
        theirs = other._rows._replace(start=other.start_R + len(self.tokens))
        return _assemble(
            np.concatenate([self.tokens, other.tokens], dtype=">u4"),  # would go native by itself
            _Rows.join([self._rows, theirs]),
            np.concatenate([self.unknown_key_U, other.unknown_key_U]),
            [*self.failures, *other.failures],
        )

    def __len__(self) -> int:
        return len(self.start_R)

    @property
    def _rows(self) -> _Rows:
        return _Rows(self.start_R, self.length_R, self.launch_R, self.outcome_R, self.finish_R, self.key_R)

    @property
    def unknown(self) -> int:
        """How many rollouts are known by key but have no grade."""
        return len(self.unknown_key_U)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return self.tokens.nbytes + sum(column.nbytes for column in self._rows) + self.unknown_key_U.nbytes

    def subset(self, rows_R: Mask) -> GenerationTree:
        """The tree of the marked rows only; shares the tokens."""
        chosen = {column.name: getattr(self, column.name)[rows_R] for column in fields(self)[1:7]}
        return replace(self, **chosen)

    def completion(self, row: int) -> Tokens:
        """The tokens of one row."""
        start = self.start_R[row]
        return self.tokens[start : start + self.length_R[row]].astype(np.uint32)

    def rollouts(self, lo: int = 0, hi: int | None = None) -> Rollouts:
        """Rows lo to hi as a batch, in canonical order, with the tree's failures."""
        rows = self._rows.take(np.arange(len(self))[lo:hi])
        offsets = np.concatenate([[0], np.cumsum(rows.length)]).astype(np.int64)
        tokens = np.empty(offsets[-1], np.uint32)
        for block, cells in _blocks(rows.start, rows.length):
            tokens[block] = self.tokens[cells]
        return Rollouts(tokens, offsets, rows.launch, rows.outcome, rows.finish, rows.key, self.failures)

    def range(self, prefix: Path) -> tuple[int, int]:
        """The rows that start with a prefix: `lo, hi`, equal where there are none."""
        wanted = np.asarray(prefix, np.uint32).astype(">u4").tobytes()
        raw = self.tokens.view(np.uint8).data

        def head(row: int) -> bytes:
            start = 4 * self.start_R.item(row)
            return raw[start : start + min(4 * self.length_R.item(row), len(wanted))].tobytes()

        rows = range(len(self))
        lo = bisect_left(rows, wanted, key=head)
        return lo, bisect_right(rows, wanted, lo=lo, key=head)

    def exits(self, path: Path) -> Exits:
        """Where every row leaves a path, which need not be in the tree."""
        path_T = np.asarray(path, np.uint32).astype(">u4")
        left, right, stayed = self._descend(path_T)
        depths, sizes = np.asarray([*left, (len(path_T), stayed), *reversed(right)], np.int64).T
        depth_R = np.repeat(depths, sizes)
        token_R = np.full(len(self), -1, np.int64)
        goes_on_R = depth_R < self.length_R
        token_R[goes_on_R] = self.tokens[(self.start_R + depth_R)[goes_on_R]]
        return Exits(depth_R, token_R)

    def children(self, prefix: Path) -> ChildCounts:
        """The counts at one node; no children where no row passes."""
        (lo, hi), depth = self.range(prefix), len(prefix)
        ends = int(np.count_nonzero(self.length_R[lo:hi] == depth))
        rows = np.arange(lo + ends, hi)  # a row that ends here sorts before those that go on
        token_R = self.tokens[self.start_R[rows] + depth]
        first_K = _run_starts(token_R)
        columns = self._off_path(rows, np.full(len(rows), depth), first_K)
        return ChildCounts(ends, token_R[first_K].astype(np.uint32), *columns)

    def counts_along(self, path: Path) -> PathCounts:
        """The counts at every node of a path, depths 0 to len(path) - 1."""
        path_T, length = np.asarray(path, np.uint32), len(path)
        exits = self.exits(path)
        reached = min(int(exits.depth_R.max(initial=-1)) + 1, length)
        ends_T = np.bincount(exits.depth_R[exits.token_R < 0], minlength=length + 1)

        rows = np.flatnonzero((exits.depth_R < length) & (exits.token_R >= 0))
        depth_R = exits.depth_R[rows]
        # The order of the tree has the rows of one exit side by side, and no exit twice.
        node_R = depth_R << 32 | exits.token_R[rows]
        first_C = _run_starts(node_R)
        off = self._off_path(rows, depth_R, first_C)
        on = self._on_path(exits.depth_R, ends_T, reached)

        node_C = np.concatenate([node_R[first_C], np.arange(reached) << 32 | path_T[:reached].astype(np.int64)])
        order = np.argsort(node_C)
        node_C = node_C[order]
        columns = [np.concatenate(pair)[order] for pair in zip(off, on, strict=True)]
        offsets = np.searchsorted(node_C, np.arange(length + 1) << 32)
        return PathCounts(offsets, ends_T[:length], node_C.astype(np.uint32), *columns)

    def _descend(self, path_T: Tokens) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
        """Narrow the rows along a path: (depth, rows that leave) on either side, and how many stay to the end.

        All rows of the range agree with the path as far as its first and its last row do, so there is one step
        per depth at which a side loses rows, and it gallops over the rows that it loses.
        """
        cells, path = self.tokens.view(np.uint32), path_T.view(np.uint32)  # equality needs no byte order
        goal = path_T.tolist()
        left, right = list[tuple[int, int]](), list[tuple[int, int]]()
        lo, hi, depth, first, last = 0, len(self), 0, 0, 0

        def agreement(row: int) -> int:
            start, stop = self.start_R.item(row), min(self.length_R.item(row), len(path))
            at, step = depth, 16
            while at < stop:
                until = min(at + step, stop)
                differs = cells[start + at : start + until] != path[at:until]
                if differs[off := int(differs.argmax())]:
                    return at + off
                at, step = until, 4 * step
            return stop

        def token(row: int) -> int:
            return self.tokens.item(self.start_R.item(row) + depth) if depth < self.length_R.item(row) else -1

        first_left = last_left = True
        while lo < hi:
            first = agreement(lo) if first_left else first
            last = agreement(hi - 1) if last_left else last
            depth = min(first, last)
            if depth == len(path):
                break
            first_left, last_left = first == depth, last == depth
            if first_left:
                left.append((depth, _gallop(range(lo, hi), goal[depth], token)))
                lo += left[-1][1]
            if last_left:
                right.append((depth, _gallop(range(hi - 1, lo - 1, -1), -goal[depth], lambda row: -token(row))))
                hi -= right[-1][1]
        return left, right, hi - lo

    def _off_path(self, rows: Ints, depth_R: Ints, first_C: Ints) -> Columns:
        """Sums over runs of rows, each of which takes one child of the node at `depth_R`."""
        launch_R, length_R = self.launch_R[rows], self.length_R[rows]
        win_R = self.outcome_R[rows] == Outcome.CORRECT
        evidence_R, natural_R = launch_R <= depth_R + 1, launch_R <= depth_R
        share_R = natural_R / length_R  # a row with a next token is not empty
        masks = (np.ones_like(win_R), evidence_R, natural_R)
        counts = [np.add.reduceat(mask & of, first_C, dtype=np.int64) for mask in masks for of in (mask, win_R)]
        shares = [np.add.reduceat(share_R * of, first_C) for of in (natural_R, win_R)]
        return *counts, *shares, np.logical_or.reduceat(length_R == depth_R + 1, first_C)

    def _on_path(self, depth_R: Ints, ends_T: Ints, reached: int) -> Columns:
        """The path's own child at each depth; a row counts from where it is a sample to where it leaves."""

        on = np.flatnonzero(depth_R)
        depth_R, launch_R, length_R = depth_R[on], self.launch_R[on], self.length_R[on]

        def total(begin_R: Ints, weight_R: Floats) -> Floats:
            rows = np.flatnonzero(begin_R < depth_R)
            enter_T, leave_T = (np.bincount(x_R[rows], weight_R[rows], len(ends_T)) for x_R in (begin_R, depth_R))
            return np.cumsum(enter_T - leave_T)[:reached]

        kinds = (np.ones(len(on)), (self.outcome_R[on] == Outcome.CORRECT).astype(np.float64))
        begins = (np.zeros_like(depth_R), np.maximum(launch_R - 1, 0), launch_R)
        counts = [total(begin_R, kind_R).astype(np.int64) for begin_R in begins for kind_R in kinds]
        shares = [total(launch_R, kind_R / length_R) for kind_R in kinds]
        # Where nobody is left, a difference of float sums may leave a crumb.
        shares = [np.where(count > 0, share, 0.0) for count, share in zip(counts[4:], shares, strict=True)]
        return *counts, *shares, ends_T[1 : reached + 1] > 0


class _Rows(NamedTuple):
    """What a tree holds per rollout."""

    start: Ints
    length: Ints
    launch: Ints
    outcome: NDArray[np.int8]
    finish: NDArray[np.uint8]
    key: NDArray[np.uint64]

    @staticmethod
    def of(part: Rollouts, shift: int) -> _Rows:
        return _Rows(
            part.offsets[:-1].astype(np.int64) + shift,
            part.length_R.astype(np.int64),
            part.launch_R.astype(np.int64),
            part.outcome_R.astype(np.int8),
            part.finish_R.astype(np.uint8),
            part.key_R.astype(np.uint64),
        )

    @staticmethod
    def join(parts: Sequence[_Rows]) -> _Rows:
        return _Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def take(self, rows: NDArray[Any]) -> _Rows:
        return _Rows(*(column[rows] for column in self))


def _assemble(tokens: Tokens, rows: _Rows, unknown: NDArray[np.uint64], failures: Iterable[Failure]) -> GenerationTree:
    """Drop second deliveries, sort, freeze. `tokens` is ours to change."""
    rows = _without_duplicates(tokens, rows)
    rows = rows.take(_canonical_order(tokens, rows))
    graded = np.sort(rows.key)
    unknown = np.unique(unknown[_absent(unknown, graded)])
    # A key may have failed for two reasons; the smaller text stays, so that no order of arrival shows.
    reasons = dict(sorted(((failure.key, failure.reason) for failure in failures), reverse=True))
    absent = _absent(np.array(list(reasons), np.uint64), graded).tolist()
    left = [Failure(*item) for item, is_absent in zip(reasons.items(), absent, strict=True) if is_absent]
    for array in (tokens, *rows, unknown):
        array.setflags(write=False)
    return GenerationTree(tokens, *rows, unknown, tuple(left[::-1]))


def _without_duplicates(tokens: Tokens, rows: _Rows) -> _Rows:
    """One row per key, the buffer closed up behind them; two different rollouts of one key are refused."""
    order = np.argsort(rows.key)
    again = np.flatnonzero(rows.key[order][1:] == rows.key[order][:-1])
    if not len(again):
        return rows
    one, two = rows.take(order[again]), rows.take(order[again + 1])
    for name in ("length", "launch", "outcome", "finish"):
        _refuse(one.key[getattr(one, name) != getattr(two, name)], name)
    ends = np.cumsum(one.length)
    blocks = zip(_blocks(one.start, one.length), _blocks(two.start, two.length), strict=True)
    for (block, cells_one), (_, cells_two) in blocks:
        differs = np.flatnonzero(tokens[cells_one] != tokens[cells_two])
        _refuse(one.key[np.searchsorted(ends, block.start + differs[:1], side="right")], "completion")

    rows = rows.take(np.delete(np.arange(len(order)), order[again + 1]))
    rows = rows.take(np.argsort(rows.start))
    # Rows only ever move towards the front, so a block never overwrites cells that are still to be read.
    for block, cells in _blocks(rows.start, rows.length):
        tokens[block] = tokens[cells]
    tokens.resize(int(rows.length.sum()), refcheck=False)
    return rows._replace(start=np.cumsum(rows.length) - rows.length)


def _refuse(keys: NDArray[np.uint64], what: str) -> None:
    if len(keys):
        raise OpdAlignError(
            f"two rollouts have the key {keys[0]} but differ in {what}; a key names one rollout by content: "
            "give different rollouts different keys, or keep one of the two deliveries"
        )


def _canonical_order(tokens: Tokens, rows: _Rows) -> Ints:
    """Row numbers by completion, then launch, then key.

    A quicksort for strings, all groups of a round at once. Every row of a group is compared with one of them,
    the pivot: of the smaller rows, those that leave it early come first; of the larger ones, those that leave it
    late. Rows that leave it at one depth with one token are a group of the next round, from there on.
    """
    tokens.resize(len(tokens) + WINDOWS[-1], refcheck=False)  # the last row's window looks beyond the end
    order = np.arange(len(rows.start))
    same = np.zeros(len(order), bool)  # the row at this place has the completion of the one before
    above = int(rows.length.max(initial=0)) + 1
    lo, size, depth = np.array([0]), np.array([len(order)]), np.array([0])
    while size.sum() > 1:
        places, group = _cells(lo, size), np.repeat(np.arange(len(lo)), size)
        row = order[places]
        start, length = rows.start[row], rows.length[row]
        pivot = _pivots(rows.launch[row], np.cumsum(size) - size)[group]
        leave = _agreement(tokens, start, start[pivot], depth[group], np.minimum(length, length[pivot]))
        token, other = (
            np.where(leave < length[i], tokens[start[i] + leave].astype(np.int64), -1) for i in (slice(None), pivot)
        )
        rank = np.where(token < other, leave, np.where(token > other, 2 * above - leave, above))
        rank += group * (2 * above + 1)
        if rank.max() >> RANK_BITS:
            rank = np.unique(rank, return_inverse=True)[1]
        # Rank and token in one word: half the time of a sort by two keys.
        word = rank << 33 | token + 1
        by = np.argsort(word)
        word = word[by]
        order[places] = row[by]
        tied = np.append(False, word[1:] == word[:-1])
        ended = word & (1 << 33) - 1 == 0
        same[places] = tied & ended
        first = np.flatnonzero(~tied)
        size = np.diff(first, append=len(row))
        again = (size > 1) & ~ended[first]
        lo, size, depth = places[first[again]], size[again], leave[by[first[again]]] + 1
    tokens.resize(len(tokens) - WINDOWS[-1], refcheck=False)
    if same.any():
        among = np.flatnonzero(same | np.append(same[1:], False))
        equal = order[among]
        order[among] = equal[np.lexsort((rows.key[equal], rows.launch[equal], np.cumsum(~same)[among]))]
    return order


def _pivots(launch: Ints, first: Ints) -> Ints:
    """One place in each group: a row forced furthest, for it follows its path longest and sorts all exits from it.

    Among equals the place is scrambled: the end of a group could be its shortest row, round after round.
    """
    odd, mask = 0x9E3779B1, 0xFFFFFFFF
    best = np.maximum.reduceat(launch << 32 | np.arange(len(launch)) * odd & mask, first) & mask
    return (best.astype(np.uint64) * np.uint64(pow(odd, -1, 1 << 32)) & np.uint64(mask)).astype(np.int64)


def _agreement(tokens: Tokens, one: Ints, two: Ints, depth: Ints, until: Ints) -> Ints:
    """How far pairs of rows agree, given that they do up to `depth`; no further than `until`."""
    agreed = depth.copy()
    todo = np.flatnonzero(depth < until)
    for first in range(0, len(todo), 4096):  # pairs at a time, so that their windows stay in the cache
        live = todo[first : first + 4096]
        widths = chain(WINDOWS, repeat(WINDOWS[-1]))
        while len(live):
            width = next(widths)
            windows = np.ndarray(len(tokens) - width + 1, f"V{4 * width}", tokens, strides=(4,))
            at = agreed[live]
            left, right = (windows[start[live] + at].view(np.uint32) for start in (one, two))
            differs = (left != right).reshape(-1, width)
            step = differs.argmax(axis=1)
            found = differs[np.arange(len(live)), step]
            agreed[live] = at = at + np.where(found, step, width)
            live = live[~found & (at < until[live])]
    return np.minimum(agreed, until)


def _absent(keys: NDArray[np.uint64], graded: NDArray[np.uint64]) -> Mask:
    """Which keys are not among the graded ones, ascending; `np.isin` takes seconds for millions of them."""
    absent: Mask = np.searchsorted(graded, keys, "left") == np.searchsorted(graded, keys, "right")
    return absent


def _gallop(rows: range, goal: int, key: Callable[[int], int]) -> int:
    """How many leading rows have a key below the goal, keys ascending; cheap when they are few."""
    bound = 1
    while bound < len(rows) and key(rows[bound]) < goal:
        bound *= 2
    return bisect_left(rows, goal, lo=bound // 2, hi=min(bound, len(rows)), key=key)


def _run_starts(value_R: NDArray[Any]) -> Ints:
    """Where a run of equal values begins."""
    changes = np.flatnonzero(value_R[1:] != value_R[:-1]) + 1
    return np.concatenate([[0], changes]) if len(value_R) else changes


def _cells(start: Ints, length: Ints) -> Ints:
    """start[0], start[0] + 1, ..., start[0] + length[0] - 1, start[1], ..."""
    ends = np.cumsum(length)
    return np.repeat(start - ends + length, length) + np.arange(ends[-1] if len(ends) else 0)


def _blocks(start: Ints, length: Ints) -> Iterator[tuple[slice, Ints]]:
    """Cells of all rows, some rows at a time, each with the place they take when laid end to end."""
    ends = np.concatenate([[0], np.cumsum(length)])
    cuts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] + BLOCK_TOKENS, BLOCK_TOKENS)))
    cuts = np.minimum(cuts, len(start))
    for lo, hi in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield slice(int(ends[lo]), int(ends[hi])), _cells(start[lo:hi], length[lo:hi])
