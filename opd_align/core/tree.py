"""Generation trees: how often each prefix was visited, and how often its rollouts were correct.

A tree is a sorted list of graded rollouts. A node is a prefix, so it is a contiguous range of rows; there are no node
objects. Rows are in canonical order (completion as big-endian bytes, then launch, then key), so nothing here depends
on the order in which rollouts arrived. A tree is built once and never modified. At every node, visits = rows that end
there + visits of its children.

It handles tokens, not text, and counts, not models; which counts to use is decided in `estimate`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.core.row_sort import Rows, canonical_order, remove_duplicates, row_blocks
from opd_align.types import Failure, Finish, Floats, Ints, Outcome, Rollouts, Tokens

Path = Sequence[int] | Tokens
Mask = NDArray[np.bool_]
Columns = tuple[NDArray[Any], ...]  # the columns of `ChildCounts` from visits on


@dataclass(frozen=True, eq=False)
class PathExits:
    """Where each row leaves a path.

    Args:
        depth_R: Length of the common prefix.
        token_R: The row's next token; -1 if the row ends there.
    """

    depth_R: Ints
    token_R: Ints


@dataclass(frozen=True, eq=False)
class ChildCounts:
    """Counts at the children of one node at depth m, in ascending order of token.

    Args:
        ends: Number of rollouts that end at the node itself.
        token_K: Token of each child.
        visits_K: Number of rollouts through the child (the paper's pooled counting).
        wins_K: Number of correct rollouts among `visits_K`.
        evidence_K: Rollouts with launch <= m + 1: samples from the student after the child.
        evidence_wins_K: Number of correct rollouts among `evidence_K`.
        natural_K: Rollouts with launch <= m: the student sampled the child itself.
        natural_wins_K: Number of correct rollouts among `natural_K`.
        natural_inverse_length_K: Sum of 1 / completion length over `natural_K`.
        natural_wins_inverse_length_K: Sum of 1 / completion length over `natural_wins_K`.
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


@dataclass(frozen=True, eq=False)
class PathCounts:
    """`ChildCounts` at every depth of a path, concatenated: depth m has the children `offsets[m]:offsets[m + 1]`.

    At every node that some row reaches, the path's own next token is among the children, even with zero visits.

    Args:
        offsets: First child of each node, plus the number of children.
        ends_T: Number of rollouts that end at each node.
        token_C: Token of each child. This and the other `_C` arrays are the `_K` arrays of `ChildCounts`.
        visits_C: See `ChildCounts.visits_K`.
        wins_C: See `ChildCounts.wins_K`.
        evidence_C: See `ChildCounts.evidence_K`.
        evidence_wins_C: See `ChildCounts.evidence_wins_K`.
        natural_C: See `ChildCounts.natural_K`.
        natural_wins_C: See `ChildCounts.natural_wins_K`.
        natural_inverse_length_C: See `ChildCounts.natural_inverse_length_K`.
        natural_wins_inverse_length_C: See `ChildCounts.natural_wins_inverse_length_K`.
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

    def __len__(self) -> int:
        return len(self.ends_T)

    @property
    def depth_C(self) -> Ints:
        """Depth of the node that each child belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def at(self, depth: int) -> ChildCounts:
        """The counts of the node at one depth."""
        here = slice(self.offsets[depth], self.offsets[depth + 1])
        columns = [getattr(self, column.name)[here] for column in fields(self)[2:]]
        return ChildCounts(int(self.ends_T[depth]), *columns)

    def reindex(self, offsets: Ints, token_C: Tokens) -> PathCounts:
        """The counts of the given children of the same path; zero for children that are not in the tree."""
        depth_C = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        found_C, at_C = find_sorted(child_keys(depth_C, token_C), child_keys(self.depth_C, self.token_C))
        columns = {}
        for column in fields(self)[3:]:
            counted = getattr(self, column.name)
            columns[column.name] = np.zeros(len(token_C), counted.dtype)
            columns[column.name][found_C] = counted[at_C[found_C]]
        return replace(self, offsets=offsets, token_C=token_C, **columns)


@dataclass(frozen=True, eq=False)
class GenerationTree:
    """The graded rollouts of one question. Use `GenerationTree.build` to create one.

    Ungraded rows (unknown outcome or failed) are not visits. Their keys and failures are kept until a graded rollout
    with the same key replaces them.

    Args:
        tokens: Big-endian token buffer. It keeps the order of arrival; only the row arrays are sorted.
        start_R: Start of each row in `tokens`; row r is `tokens[start_R[r]:start_R[r] + length_R[r]]`.
        length_R: Completion length of each row in tokens.
        launch_R: Number of leading tokens that were forced.
        outcome_R: `Outcome` of each row, correct or incorrect.
        finish_R: `Finish` of each row.
        key_R: Content key of each row.
        unknown_key_U: Keys of the rollouts without a grade.
        failures: Rollouts that could not be generated.
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
        """Builds a tree from batches in any order. A part may be a generator, so batches need not fit in memory."""
        tokens = np.empty(sum(len(part.tokens) for part in parts if isinstance(part, Rollouts)), ">u4")
        used = 0
        rows, unknown, failures = [Rows.of(Rollouts.of([]), 0)], [np.empty(0, np.uint64)], list[Failure]()
        for part in chain.from_iterable([part] if isinstance(part, Rollouts) else part for part in parts):
            graded_R = (part.outcome_R != Outcome.UNKNOWN) & (part.finish_R != Finish.FAILED)
            unknown.append(part.key_R[~graded_R].astype(np.uint64))
            failures.extend(part.failures)
            kept = part if graded_R.all() else part.take(graded_R)
            needed = used + len(kept.tokens)
            if needed > len(tokens):
                # In place (realloc, so mremap): a second buffer would double the peak memory of a large tree.
                tokens.resize(needed + needed // 8, refcheck=False)
            tokens[used:needed] = kept.tokens
            rows.append(Rows.of(kept, used))
            used = needed
        tokens.resize(used, refcheck=False)
        return _assemble(tokens, Rows.join(rows), np.concatenate(unknown), failures)

    def extended(self, *parts: Rollouts | Iterable[Rollouts]) -> GenerationTree:
        """A new tree with further rollouts."""
        return self.merge(GenerationTree.build(*parts))

    def merge(self, other: GenerationTree) -> GenerationTree:
        """A new tree with the rollouts of both. Associative, commutative and idempotent."""
        other_rows = other._rows._replace(start=other.start_R + len(self.tokens))
        return _assemble(
            np.concatenate([self.tokens, other.tokens], dtype=">u4"),  # the default would be native byte order
            Rows.join([self._rows, other_rows]),
            np.concatenate([self.unknown_key_U, other.unknown_key_U]),
            [*self.failures, *other.failures],
        )

    def __len__(self) -> int:
        return len(self.start_R)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickle protocols below 5 return arrays in native byte order, and rows would no longer be sorted.
        self.__dict__.update(state, tokens=state["tokens"].astype(">u4", copy=False))

    @property
    def _rows(self) -> Rows:
        return Rows(self.start_R, self.length_R, self.launch_R, self.outcome_R, self.finish_R, self.key_R)

    @property
    def unknown(self) -> int:
        """Number of rollouts that are known by key but have no grade."""
        return len(self.unknown_key_U)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays in bytes."""
        return self.tokens.nbytes + sum(column.nbytes for column in self._rows) + self.unknown_key_U.nbytes

    def subset(self, rows_R: Mask) -> GenerationTree:
        """A tree of the selected rows only; shares the token buffer."""
        selected = {column.name: getattr(self, column.name)[rows_R] for column in fields(self)[1:7]}
        return replace(self, **selected)

    def completion(self, row: int) -> Tokens:
        """The tokens of one row."""
        start = self.start_R[row]
        return self.tokens[start : start + self.length_R[row]].astype(np.uint32)

    def rollouts(self, lo: int = 0, hi: int | None = None) -> Rollouts:
        """Rows lo to hi as a batch, in canonical order, with the tree's failures."""
        rows = self._rows.take(np.arange(len(self))[lo:hi])
        offsets = np.concatenate([[0], np.cumsum(rows.length)]).astype(np.int64)
        tokens = np.empty(offsets[-1], np.uint32)
        for block, cells in row_blocks(rows.start, rows.length):
            tokens[block] = self.tokens[cells]
        return Rollouts(tokens, offsets, rows.launch, rows.outcome, rows.finish, rows.key, self.failures)

    def range(self, prefix: Path) -> tuple[int, int]:
        """The rows that start with a prefix, as `lo, hi`; equal if there are none."""
        wanted = np.asarray(prefix, np.uint32).astype(">u4").tobytes()
        raw = self.tokens.view(np.uint8).data

        def head(row: int) -> bytes:
            start = 4 * self.start_R.item(row)
            return raw[start : start + min(4 * self.length_R.item(row), len(wanted))].tobytes()

        rows = range(len(self))
        lo = bisect_left(rows, wanted, key=head)
        return lo, bisect_right(rows, wanted, lo=lo, key=head)

    def exits(self, path: Path) -> PathExits:
        """Where every row leaves a path; the path need not be in the tree."""
        path_T = np.asarray(path, np.uint32).astype(">u4")
        before, after, remaining = self._exits_by_side(path_T)
        depths, sizes = np.asarray([*before, (len(path_T), remaining), *reversed(after)], np.int64).T
        depth_R = np.repeat(depths, sizes)
        token_R = np.full(len(self), -1, np.int64)
        continues_R = depth_R < self.length_R
        token_R[continues_R] = self.tokens[(self.start_R + depth_R)[continues_R]]
        return PathExits(depth_R, token_R)

    def children(self, prefix: Path) -> ChildCounts:
        """The counts at one node; no children if no row contains the prefix."""
        (lo, hi), depth = self.range(prefix), len(prefix)
        ends = int(np.count_nonzero(self.length_R[lo:hi] == depth))
        rows = np.arange(lo + ends, hi)  # rows that end here sort before rows that continue
        token_R = self.tokens[self.start_R[rows] + depth]
        first_K = _run_starts(token_R)
        columns = self._off_path_counts(rows, np.full(len(rows), depth), first_K)
        return ChildCounts(ends, token_R[first_K].astype(np.uint32), *columns)

    def counts_along(self, path: Path) -> PathCounts:
        """The counts at every node of a path, depths 0 to len(path) - 1."""
        path_T, length = np.asarray(path, np.uint32), len(path)
        exits = self.exits(path)
        reached = min(int(exits.depth_R.max(initial=-1)) + 1, length)
        ends_T = np.bincount(exits.depth_R[exits.token_R < 0], minlength=length + 1)

        rows = np.flatnonzero((exits.depth_R < length) & (exits.token_R >= 0))
        depth_R = exits.depth_R[rows]
        # In canonical order the rows of one exit are adjacent, and no exit appears twice.
        node_R = depth_R << 32 | exits.token_R[rows]
        first_C = _run_starts(node_R)
        off_path = self._off_path_counts(rows, depth_R, first_C)
        on_path = self._on_path_counts(exits.depth_R, length, reached)

        node_C = np.concatenate([node_R[first_C], np.arange(reached) << 32 | path_T[:reached].astype(np.int64)])
        order = np.argsort(node_C)
        node_C = node_C[order]
        columns = [np.concatenate(pair)[order] for pair in zip(off_path, on_path, strict=True)]
        offsets = np.searchsorted(node_C, np.arange(length + 1) << 32)
        return PathCounts(offsets, ends_T[:length], node_C.astype(np.uint32), *columns)

    def _exits_by_side(self, path_T: Tokens) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
        """Narrows the range of rows along a path.

        Returns (depth, number of rows that leave) for rows sorted before and after the path, and how many rows follow
        it to the end. All rows of the range match the path as far as its first and last row do, so there is one
        step per depth at which a side loses rows, with an exponential search over the rows lost.
        """
        cells, path = self.tokens.view(np.uint32), path_T.view(np.uint32)  # equality does not depend on byte order
        path_tokens = path_T.tolist()
        before, after = list[tuple[int, int]](), list[tuple[int, int]]()
        lo, hi, depth, first, last = 0, len(self), 0, 0, 0

        def common_length(row: int) -> int:
            start, stop = self.start_R.item(row), min(self.length_R.item(row), len(path))
            at, step = depth, 16
            while at < stop:
                until = min(at + step, stop)
                differs = cells[start + at : start + until] != path[at:until]
                if differs[offset := int(differs.argmax())]:
                    return at + offset
                at, step = until, 4 * step
            return stop

        def token(row: int) -> int:
            return self.tokens.item(self.start_R.item(row) + depth) if depth < self.length_R.item(row) else -1

        first_leaves = last_leaves = True
        while lo < hi:
            first = common_length(lo) if first_leaves else first
            last = common_length(hi - 1) if last_leaves else last
            depth = min(first, last)
            if depth == len(path):
                break
            first_leaves, last_leaves = first == depth, last == depth
            if first_leaves:
                before.append((depth, _count_below(range(lo, hi), path_tokens[depth], token)))
                lo += before[-1][1]
            if last_leaves:
                rows = range(hi - 1, lo - 1, -1)
                after.append((depth, _count_below(rows, -path_tokens[depth], lambda row: -token(row))))
                hi -= after[-1][1]
        return before, after, hi - lo

    def _off_path_counts(self, rows: Ints, depth_R: Ints, first_C: Ints) -> Columns:
        """Sums over runs of rows; all rows of a run take the same child of the node at `depth_R`."""
        launch_R, length_R = self.launch_R[rows], self.length_R[rows]
        win_R = self.outcome_R[rows] == Outcome.CORRECT
        evidence_R, natural_R = launch_R <= depth_R + 1, launch_R <= depth_R
        inverse_length_R = natural_R / length_R  # a row with a next token is not empty
        masks = (np.ones_like(win_R), evidence_R, natural_R)
        counts = [np.add.reduceat(mask & kind, first_C, dtype=np.int64) for mask in masks for kind in (mask, win_R)]
        inverse_lengths = [np.add.reduceat(inverse_length_R * kind, first_C) for kind in (natural_R, win_R)]
        return *counts, *inverse_lengths

    def _on_path_counts(self, depth_R: Ints, length: int, reached: int) -> Columns:
        """The path's own child at each depth; a row counts from where it is a sample to where it leaves the path."""
        on_path = np.flatnonzero(depth_R)
        depth_R, launch_R, length_R = depth_R[on_path], self.launch_R[on_path], self.length_R[on_path]

        def total(begin_R: Ints, weight_R: Floats) -> Floats:
            rows = np.flatnonzero(begin_R < depth_R)
            enter_T, leave_T = (np.bincount(x_R[rows], weight_R[rows], length + 1) for x_R in (begin_R, depth_R))
            return np.cumsum(enter_T - leave_T)[:reached]

        weights = (np.ones(len(on_path)), (self.outcome_R[on_path] == Outcome.CORRECT).astype(np.float64))
        begins = (np.zeros_like(depth_R), np.maximum(launch_R - 1, 0), launch_R)
        counts = [total(begin_R, weight_R).astype(np.int64) for begin_R in begins for weight_R in weights]
        inverse_lengths = [total(launch_R, weight_R / length_R) for weight_R in weights]
        # Where no row is left, the difference of float sums may leave a rounding error.
        inverse_lengths = [np.where(n > 0, sums, 0.0) for n, sums in zip(counts[4:], inverse_lengths, strict=True)]
        return *counts, *inverse_lengths


def child_keys(depth: Ints, token: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Depth and token in one sortable integer."""
    return (depth.astype(np.uint64) << np.uint64(32)) | token.astype(np.uint64)


def find_sorted(keys: NDArray[np.uint64], sorted_keys: NDArray[np.uint64]) -> tuple[Mask, Ints]:
    """Whether each key is in a sorted array, and its position there."""
    if not len(sorted_keys):
        return np.zeros(len(keys), bool), np.zeros(len(keys), np.int64)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[at] == keys, at


def _assemble(tokens: Tokens, rows: Rows, unknown: NDArray[np.uint64], failures: Iterable[Failure]) -> GenerationTree:
    """Removes duplicates, sorts and makes the arrays read-only. Takes ownership of `tokens`."""
    rows = remove_duplicates(tokens, rows)
    rows = rows.take(canonical_order(tokens, rows))
    graded = np.sort(rows.key)
    unknown = np.unique(unknown[_not_in(unknown, graded)])
    # A key may have failed for two reasons; keep the smaller text, so that the order of arrival does not matter.
    reasons = dict(sorted(((failure.key, failure.reason) for failure in failures), reverse=True))
    ungraded = _not_in(np.array(list(reasons), np.uint64), graded).tolist()
    remaining = [Failure(*item) for item, keep in zip(reasons.items(), ungraded, strict=True) if keep]
    for array in (tokens, *rows, unknown):
        array.setflags(write=False)
    return GenerationTree(tokens, *rows, unknown, tuple(remaining[::-1]))


def _not_in(keys: NDArray[np.uint64], sorted_keys: NDArray[np.uint64]) -> Mask:
    """Which keys are not in the sorted array; `np.isin` takes seconds for millions of keys."""
    absent: Mask = np.searchsorted(sorted_keys, keys, "left") == np.searchsorted(sorted_keys, keys, "right")
    return absent


def _count_below(rows: range, bound: int, key: Callable[[int], int]) -> int:
    """Number of leading rows with a key below the bound, keys ascending; exponential search, fast for few rows."""
    stop = 1
    while stop < len(rows) and key(rows[stop]) < bound:
        stop *= 2
    return bisect_left(rows, bound, lo=stop // 2, hi=min(stop, len(rows)), key=key)


def _run_starts(value_R: NDArray[Any]) -> Ints:
    """Positions at which a run of equal values starts."""
    changes = np.flatnonzero(value_R[1:] != value_R[:-1]) + 1
    return np.concatenate([[0], changes]) if len(value_R) else changes
