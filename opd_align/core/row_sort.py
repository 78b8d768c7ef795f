"""Sorting the rollouts of a tree: one row per key, in canonical order.

The canonical order is completion (as big-endian bytes), then launch, then key, so a tree does not depend on the order
in which rollouts arrive. Works on a flat token buffer and per-row arrays; counts and nodes are in `tree`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opd_align.types import Ints, OpdAlignError, Rollouts, Tokens

WINDOWS = (32, 64, 128)
"""Number of tokens compared at a time while sorting: few at first, since most rows differ early, then more."""

RANK_BITS = 30
"""Ranks with more bits are renumbered before they share a 64-bit word with a token; no tree has 2³⁰ rows."""

BLOCK_TOKENS = 1 << 20
"""Number of tokens gathered at a time when rows are moved or compared."""


class Rows(NamedTuple):
    """The per-rollout arrays of a tree; row r is `tokens[start[r]:start[r] + length[r]]`.

    Args:
        start: Position of each row's first token in the buffer.
        length: Number of tokens.
        launch: Number of leading tokens that were forced.
        outcome: `Outcome` of each row.
        finish: `Finish` of each row.
        key: Content key of each row.
    """

    start: Ints
    length: Ints
    launch: Ints
    outcome: NDArray[np.int8]
    finish: NDArray[np.uint8]
    key: NDArray[np.uint64]

    @staticmethod
    def of(part: Rollouts, shift: int) -> Rows:
        """The rows of a batch whose tokens begin at position `shift` of the buffer."""
        return Rows(
            part.offsets[:-1].astype(np.int64) + shift,
            part.length_R.astype(np.int64),
            part.launch_R.astype(np.int64),
            part.outcome_R.astype(np.int8),
            part.finish_R.astype(np.uint8),
            part.key_R.astype(np.uint64),
        )

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def take(self, rows: NDArray[Any]) -> Rows:
        return Rows(*(column[rows] for column in self))


def remove_duplicates(tokens: Tokens, rows: Rows) -> Rows:
    """One row per key, with the buffer compacted in place; two different rollouts with the same key are an error."""
    order = np.argsort(rows.key)
    repeated = np.flatnonzero(rows.key[order][1:] == rows.key[order][:-1])
    if not len(repeated):
        return rows
    first, second = rows.take(order[repeated]), rows.take(order[repeated + 1])
    for name in ("length", "launch", "outcome", "finish"):
        _raise_on_conflict(first.key[getattr(first, name) != getattr(second, name)], name)
    ends = np.cumsum(first.length)
    pairs = zip(row_blocks(first.start, first.length), row_blocks(second.start, second.length), strict=True)
    for (block, first_cells), (_, second_cells) in pairs:
        differs = np.flatnonzero(tokens[first_cells] != tokens[second_cells])
        _raise_on_conflict(first.key[np.searchsorted(ends, block.start + differs[:1], side="right")], "completion")

    rows = rows.take(np.delete(np.arange(len(order)), order[repeated + 1]))
    rows = rows.take(np.argsort(rows.start))
    # Rows only move toward the front, so a block never overwrites cells that are still to be read.
    for block, cells in row_blocks(rows.start, rows.length):
        tokens[block] = tokens[cells]
    tokens.resize(int(rows.length.sum()), refcheck=False)
    return rows._replace(start=np.cumsum(rows.length) - rows.length)


def _raise_on_conflict(keys: NDArray[np.uint64], field: str) -> None:
    if len(keys):
        raise OpdAlignError(
            f"two rollouts have the key {keys[0]} but differ in {field}; a key identifies one rollout by content: "
            "give different rollouts different keys, or keep only one of the two"
        )


def canonical_order(tokens: Tokens, rows: Rows) -> Ints:
    """Row indices sorted by completion, then launch, then key.

    A quicksort for strings that processes all groups of a round at once. Every row of a group is compared with one of
    them, the pivot. Among the smaller rows, those that differ from it early come first; among the larger rows, those
    that differ late. Rows that differ at the same depth with the same token form a group of the next round, starting
    from that depth.
    """
    tokens.resize(len(tokens) + WINDOWS[-1], refcheck=False)  # the last row's window reads beyond the end
    order = np.arange(len(rows.start))
    same = np.zeros(len(order), bool)  # the row at this position has the same completion as the previous one
    above = int(rows.length.max(initial=0)) + 1
    lo, size, depth = np.array([0]), np.array([len(order)]), np.array([0])
    while size.sum() > 1:
        positions, group = _cells(lo, size), np.repeat(np.arange(len(lo)), size)
        row = order[positions]
        start, length = rows.start[row], rows.length[row]
        pivot = _pivots(rows.launch[row], np.cumsum(size) - size)[group]
        common = _common_length(tokens, start, start[pivot], depth[group], np.minimum(length, length[pivot]))
        token, pivot_token = (
            np.where(common < length[i], tokens[start[i] + common].astype(np.int64), -1) for i in (slice(None), pivot)
        )
        rank = np.where(token < pivot_token, common, np.where(token > pivot_token, 2 * above - common, above))
        rank += group * (2 * above + 1)
        if rank.max() >> RANK_BITS:
            rank = np.unique(rank, return_inverse=True)[1]
        # Rank and token in one word: half the time of a sort by two keys.
        word = rank << 33 | token + 1
        by_word = np.argsort(word)
        word = word[by_word]
        order[positions] = row[by_word]
        tied = np.append(False, word[1:] == word[:-1])
        ended = word & (1 << 33) - 1 == 0
        same[positions] = tied & ended
        first = np.flatnonzero(~tied)
        size = np.diff(first, append=len(row))
        unsorted = (size > 1) & ~ended[first]
        lo, size, depth = positions[first[unsorted]], size[unsorted], common[by_word[first[unsorted]]] + 1
    tokens.resize(len(tokens) - WINDOWS[-1], refcheck=False)
    if same.any():
        positions = np.flatnonzero(same | np.append(same[1:], False))
        equal = order[positions]
        order[positions] = equal[np.lexsort((rows.key[equal], rows.launch[equal], np.cumsum(~same)[positions]))]
    return order


def _pivots(launch: Ints, first: Ints) -> Ints:
    """One position per group: a row with the largest launch, since it follows its path longest and so sorts all exits
    from that path.

    Among equal launches the choice is pseudo-random: the last row of a group could be its shortest in every round.
    """
    odd, mask = 0x9E3779B1, 0xFFFFFFFF
    best = np.maximum.reduceat(launch << 32 | np.arange(len(launch)) * odd & mask, first) & mask
    return (best.astype(np.uint64) * np.uint64(pow(odd, -1, 1 << 32)) & np.uint64(mask)).astype(np.int64)


def _common_length(tokens: Tokens, start_a: Ints, start_b: Ints, depth: Ints, limit: Ints) -> Ints:
    """Length of the common prefix of pairs of rows, known to be at least `depth`; at most `limit`."""
    common = depth.copy()
    todo = np.flatnonzero(depth < limit)
    for first in range(0, len(todo), 4096):  # in chunks of pairs whose windows fit in the cache
        active = todo[first : first + 4096]
        widths = chain(WINDOWS, repeat(WINDOWS[-1]))
        while len(active):
            width = next(widths)
            windows = np.ndarray(len(tokens) - width + 1, f"V{4 * width}", tokens, strides=(4,))
            at = common[active]
            left, right = (windows[start[active] + at].view(np.uint32) for start in (start_a, start_b))
            differs = (left != right).reshape(-1, width)
            step = differs.argmax(axis=1)
            found = differs[np.arange(len(active)), step]
            common[active] = at = at + np.where(found, step, width)
            active = active[~found & (at < limit[active])]
    return np.minimum(common, limit)


def _cells(start: Ints, length: Ints) -> Ints:
    """start[0], start[0] + 1, ..., start[0] + length[0] - 1, start[1], ..."""
    ends = np.cumsum(length)
    return np.repeat(start - ends + length, length) + np.arange(ends[-1] if len(ends) else 0)


def row_blocks(start: Ints, length: Ints) -> Iterator[tuple[slice, Ints]]:
    """Token positions of all rows, in blocks of rows, each with the slice it fills when rows are concatenated."""
    ends = np.concatenate([[0], np.cumsum(length)])
    cuts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] + BLOCK_TOKENS, BLOCK_TOKENS)))
    cuts = np.minimum(cuts, len(start))
    for lo, hi in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield slice(int(ends[lo]), int(ends[hi])), _cells(start[lo:hi], length[lo:hi])
