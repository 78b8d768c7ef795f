"""From the log-probabilities of a chunk of positions to what a node needs, and the results of all chunks.

Models come one after the other: of each teacher's distribution over the vocabulary only entropies, divergences and the
log-probabilities of a few tokens remain, so that a chunk has the same memory for one teacher and for ten. Which tokens
are kept is known after the last teacher; rows in which a later teacher added some are computed once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from opd_align.types import OVERLAP_TOP_K, PathScores, ScoreRequest, TeacherScores, Tokens

COMPARED = ("entropy_T", "kl_T", "js_T", "l2_T", "cosine_T", "overlap_T", "overlap_advantage_T")
"""Full-vocabulary columns of a teacher."""

CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 64 << 20, 256 << 20
"""Memory for what is computed from the rows that are reduced together: small enough for a CPU's caches; on a GPU, large
enough that starting a kernel costs little."""
BLOCK_ARRAYS = 5
"""Arrays of a block's size that are alive at once."""


class LogProbs(Protocol):
    """Where a teacher's log-probabilities come from."""

    def log_probs(self, rows: Any, log_p: Tensor) -> Tensor:
        """Those at some positions of the path, a slice or array, at which `log_p` has the student's."""
        ...


def block_bytes(device: Any) -> int:
    """Memory for what is computed from the rows that are reduced together."""
    return CPU_BLOCK_BYTES if device.type == "cpu" else GPU_BLOCK_BYTES


def rows_per_block(array: Tensor) -> int:
    """How many rows are reduced together, so that what is computed from them stays small."""
    return max(1, block_bytes(array.device) // (BLOCK_ARRAYS * 4 * array.shape[-1]))


def row_blocks(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all arrays, a block at a time."""
    rows = rows_per_block(arrays[0])
    for start in range(0, len(arrays[0]), rows):
        yield tuple(array[start : start + rows] for array in arrays)


class Columns:
    """The results of the chunks so far.

    Arrays for all positions are allocated at once, and those for children grow by doubling: small arrays that outlive
    their chunk would fill the gaps that its large ones leave, and malloc would need new memory for every next chunk
    (28 MB each, with two models and 152,000 tokens).
    """

    def __init__(self, completion: Tokens, teachers: Sequence[str]) -> None:
        length = len(completion)
        self.completion, self.teachers, self.filled = completion, teachers, 0
        self.size_T, self.entropy_T = np.zeros(length, np.int64), np.zeros(length)
        self.comparison = [{name: np.zeros(length) for name in COMPARED} for _ in teachers]
        self.token_C = np.zeros(4 * length + 64, np.uint32)
        self.log_C = np.zeros((1 + len(teachers), len(self.token_C)))

    def put(self, start: int, size_T: Tensor, token: Tensor, log: Sequence[Tensor]) -> None:
        """Adds the kept children of a chunk that starts at a position; `log` has student first, then the teachers."""
        end = self.filled + len(token)
        while end > len(self.token_C):
            self.token_C = np.concatenate([self.token_C, np.zeros_like(self.token_C)])
            self.log_C = np.concatenate([self.log_C, np.zeros_like(self.log_C)], axis=1)
        self.size_T[start : start + len(size_T)] = size_T.cpu().numpy()
        self.token_C[self.filled : end] = token.cpu().numpy()
        for column_C, log_model in zip(self.log_C, log, strict=True):
            column_C[self.filled : end] = log_model.double().cpu().numpy()
        self.filled = end

    def scores(self) -> PathScores:
        """The scores of the path, once all chunks were added."""
        teachers = {
            name: TeacherScores(log_t_C=self.log_C[1 + index, : self.filled].copy(), **self.comparison[index])
            for index, name in enumerate(self.teachers)
        }
        return PathScores(
            self.completion,
            np.concatenate([[0], np.cumsum(self.size_T)]).astype(np.int64),
            self.token_C[: self.filled].copy(),
            self.log_C[0, : self.filled].copy(),
            self.entropy_T,
            teachers,
        )


class Chunk:
    """The positions from `start` on, of which `log_p` has the student's log-probabilities: (positions, vocabulary).

    A child is numbered by position and token: `position · vocabulary + token`.
    """

    def __init__(self, log_p: Tensor, request: ScoreRequest, start: int, columns: Columns) -> None:
        self.log_p, self.start, self.columns = log_p, start, columns
        self.rows = slice(start, start + len(log_p))
        self.floor = float(np.log(request.floor))
        vocabulary = log_p.shape[-1]
        inside = (request.keep_depth >= start) & (request.keep_depth < self.rows.stop)
        inside &= request.keep_token < vocabulary
        asked = (request.keep_depth[inside] - start) * vocabulary + request.keep_token[inside].astype(np.int64)
        own = np.arange(len(log_p)) * vocabulary + columns.completion[self.rows].astype(np.int64)
        wanted = torch.as_tensor(np.concatenate([asked, own]).astype(np.int64), device=log_p.device)
        self.kept = self._union(wanted, self._above_floor(log_p))
        columns.entropy_T[self.rows] = _by_block(lambda log_p: {"": _entropy(log_p, log_p.exp())}, log_p)[""]

    def reduce(self, teachers: Sequence[LogProbs]) -> None:
        """Adds the teachers, one after the other, and the kept children to the columns."""
        known: list[tuple[Tensor, Tensor]] = []
        for teacher, comparison in zip(teachers, self.columns.comparison, strict=True):
            log_t = teacher.log_probs(self.rows, self.log_p)
            self.kept = self._union(self.kept, self._above_floor(log_t))
            for name, value in _by_block(_compare, self.log_p, log_t).items():
                comparison[name][self.rows] = value
            known.append((self.kept, self._at(self.kept, log_t)))
            del log_t  # before the next teacher's is made
        vocabulary = self.log_p.shape[-1]
        position, token = self.kept // vocabulary, self.kept % vocabulary
        log = [self._at(self.kept, self.log_p)]
        for teacher, (children, values) in zip(teachers, known, strict=True):
            is_known = torch.isin(self.kept, children, assume_unique=True)
            column = values.new_empty(len(self.kept))
            column[is_known] = values
            column[~is_known] = self._later(teacher, position[~is_known], token[~is_known], values)
            log.append(column)
        self.columns.put(self.start, torch.bincount(position, minlength=len(self.log_p)), token, log)

    def _later(self, teacher: LogProbs, position: Tensor, token: Tensor, like: Tensor) -> Tensor:
        """A teacher's log-probabilities of children that only a later teacher prefers; few rows at a time."""
        found = like.new_empty(len(token))
        rows, row = torch.unique(position, return_inverse=True)
        for first in range(0, len(rows), step := rows_per_block(self.log_p)):
            some = rows[first : first + step]
            log_t = teacher.log_probs(some.cpu().numpy() + self.start, self.log_p[some])
            here = (row >= first) & (row < first + step)
            found[here] = log_t[row[here] - first, token[here]]
            del log_t  # before the next rows are made
        return found

    def _above_floor(self, log: Tensor) -> Tensor:
        row, token = (log > self.floor).nonzero(as_tuple=True)
        return row * log.shape[-1] + token

    def _union(self, *children: Tensor) -> Tensor:
        return torch.unique(torch.cat(children))

    def _at(self, children: Tensor, log: Tensor) -> Tensor:
        return log[children // log.shape[-1], children % log.shape[-1]]


def _by_block(function: Callable[..., dict[str, Any]], *arrays: Tensor) -> dict[str, Any]:
    """The function's columns over all rows, computed some rows at a time."""
    parts = [function(*block) for block in row_blocks(*arrays)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _compare(log_p: Tensor, log_t: Tensor) -> dict[str, Any]:
    p, t = log_p.exp(), log_t.exp()
    log_m = ((p + t) / 2).log_()
    js = (_kl(p, log_p, log_m) + _kl(t, log_t, log_m)) / 2
    del log_m
    cosine = _sum(p * t) / (_norm(p) * _norm(t))
    columns = {"kl_T": _kl(p, log_p, log_t), "js_T": js, "l2_T": _norm(p - t), "cosine_T": cosine}
    columns["overlap_T"], columns["overlap_advantage_T"] = _overlap(log_p, log_t)
    return {name: column.cpu().numpy() for name, column in columns.items()} | {"entropy_T": _entropy(log_t, t)}


def _overlap(log_p: Tensor, log_t: Tensor) -> tuple[Tensor, Tensor]:
    """How far the most likely tokens of student and teacher are the same, and the teacher's preference among those."""
    k = min(OVERLAP_TOP_K, log_p.shape[-1])
    top_p, top_t = log_p.topk(k, dim=-1).indices, log_t.topk(k, dim=-1).indices
    log_p, log_t = log_p.gather(-1, top_t).double(), log_t.gather(-1, top_t).double()
    # Tokens that sampling cuts off are not among the student's, whatever rank `topk` gives them.
    shared = (top_t[:, :, None] == top_p[:, None, :]).any(-1) & torch.isfinite(log_p) & torch.isfinite(log_t)
    count = shared.sum(-1)
    advantage = (log_t.exp() * (log_p - log_t)).masked_fill(~shared, 0.0).sum(-1) / count  # 0 / 0 is NaN
    return count.double() / k, advantage


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1).double()


def _norm(values: Tensor) -> Tensor:
    return _sum(values * values).sqrt_()


def _kl(weight: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    # 0 · log(0 / x) is 0, and rounding must not make a divergence negative.
    return _sum((log_a - log_b).mul_(weight).masked_fill_(weight == 0, 0.0)).clamp(min=0.0)


def _entropy(log_p: Tensor, p: Tensor) -> Any:
    return -_sum((p * log_p).masked_fill_(p == 0, 0.0)).cpu().numpy()
