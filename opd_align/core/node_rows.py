"""Which rows of a node table count, and how their values are averaged.

A row counts if its alignment is finite and its SR range is positive. Axis suffixes: `_N` rows, `_U` (path, teacher)
combinations, `_Q` questions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import nan
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from opd_align.types import REWARD, Floats, Ints, OpdAlignError


@dataclass(frozen=True)
class NodeRows:
    """The rows of one objective that count. Columns are read when they are used: a table has dozens.

    Args:
        source: The table that the rows are taken from.
        selected: Which of its rows count.
        objective: Name of the objective.
        teachers: Names of the teachers of this objective.
        question_N: Index of each row's question.
        path_N: Index of each row's (path, teacher) combination.
        question_U: Index of each combination's question.
        teacher_U: Name of each combination's teacher.
        n_questions: Number of questions.
    """

    source: pa.Table
    selected: pa.ChunkedArray
    objective: str
    teachers: list[str]
    question_N: Ints
    path_N: Ints
    question_U: Ints
    teacher_U: NDArray[np.object_]
    n_questions: int
    _read: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def table(self) -> pa.Table:
        """The rows with all columns."""
        return self.source.filter(self.selected)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of the rows."""
        return self.source[name].filter(self.selected)

    def __getitem__(self, name: str) -> Floats:
        if name not in self._read:
            # Missing values of any type, including booleans, become NaN.
            value_N = np.asarray(self.column(name).to_numpy(), np.float64)
            value_N.setflags(write=False)  # every statistic reads the same array
            self._read[name] = value_N
        return self._read[name]

    @cached_property
    def _size_U(self) -> Ints:
        return np.bincount(self.path_N, minlength=len(self.question_U))

    def path_means(self, value_N: Floats) -> Floats:
        if np.isfinite(value_N).all():
            return np.bincount(self.path_N, value_N, len(self.question_U)) / self._size_U
        return mean_by(self.path_N, value_N, len(self.question_U))

    def over_paths(self, value_U: Floats) -> Floats:
        return mean_by(self.question_U, value_U, self.n_questions)

    def question_means(self, value_N: Floats) -> Floats:
        return self.over_paths(self.path_means(value_N))


Nodes: TypeAlias = "pa.Table | NodeRows"
"""A node table, or rows that `select_rows` took from one: several statistics of the same rows select them once."""


def select_rows(nodes: Nodes, objective: str | None, teacher: str | None = None, known: str = "alignment") -> NodeRows:
    """The rows of one objective that count and where `known` is finite; raises on unknown names.

    Rows that are already selected are returned as they are, if they are the rows asked for.
    """
    if isinstance(nodes, NodeRows):
        objective = objective or nodes.objective
        if teacher is None and len(nodes.teachers) == 1:
            teacher = nodes.teachers[0]
        same = objective == nodes.objective and (teacher is None or [teacher] == nodes.teachers)
        if same and np.isfinite(nodes[known]).all():
            return nodes
        nodes = nodes.source
    found = nodes.unify_dictionaries().group_by(["objective", "teacher"]).aggregate([]).to_pylist()
    pairs = sorted((row["objective"], row["teacher"]) for row in found)
    if objective is None:
        pairs = [pair for pair in pairs if pair[1] != REWARD] or pairs
    objectives = sorted({name for name, _ in pairs})
    if objectives and (objective not in objectives if objective else len(objectives) > 1):
        raise OpdAlignError(
            f"the table contains the objectives {', '.join(objectives)}; pass objective= with one of them, "
            f"not {objective!r}"
        )
    objective = objective or "".join(objectives)
    teachers = [teacher_name for name, teacher_name in pairs if name == objective]
    if teacher is not None and teachers and teacher not in teachers:
        raise OpdAlignError(f"{objective!r} has no teacher {teacher!r}; available: {', '.join(teachers)}")
    teachers = teachers if teacher is None else [teacher]
    selected = pc.equal(nodes["objective"], objective), pc.is_in(nodes["teacher"], pa.array(teachers, pa.string()))
    counts = *map(pc.is_finite, (nodes["alignment"], nodes[known])), pc.greater(nodes["sr_range"], 0)
    kept = reduce(pc.and_, (*selected, *counts))
    question, teacher_name, path = (nodes[name].filter(kept) for name in ("question", "teacher", "path"))
    (questions, question_N), (names, teacher_N) = _codes(question), _codes(teacher_name)
    path_N, first_U = group_rows(teacher_N, question_N, path.to_numpy().astype(np.int64))
    of_path = question_N[first_U], names[teacher_N[first_U]]
    return NodeRows(nodes, kept, objective, teachers, question_N, path_N, *of_path, len(questions))


def rank_correlation(group_N: Ints, a_N: Floats, b_N: Floats, size: int) -> Floats:
    """Spearman correlation within each group, from `centred_ranks`.

    NaN for groups with fewer than three rows or where either column is constant.
    """
    count = np.bincount(group_N, minlength=size)
    aa, bb, ab = (np.bincount(group_N, term, size) for term in (a_N * a_N, b_N * b_N, a_N * b_N))
    varies = (count >= 3) & (aa > 0) & (bb > 0)
    return np.where(varies, ab, nan) / np.sqrt(np.where(varies, aa * bb, nan))


def centred_ranks(group_N: Ints, value_N: Floats, size: int) -> Floats:
    """The rank of each value within its group minus the group's mean rank; ties have the mean of their ranks.

    Twice the mean rank of ties is an integer, as is twice that of the group, so a constant column gives exact zeros.
    """
    count = np.bincount(group_N, minlength=size)
    # A stable sort of 16-bit integers is a radix sort, several times as fast as a second sort of floats.
    order = np.argsort(value_N)
    order = order[np.argsort(group_N[order].astype(np.uint16 if size < 2**16 else np.int64), kind="stable")]
    group, value = group_N[order], value_N[order]
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(group) != 0) | (np.diff(value) != 0)])[: len(order)])
    run = np.diff(np.append(starts, len(order)))
    twice_rank = np.repeat(2 * starts + run + 1, run)  # first and last rank of the run
    before = np.cumsum(count) - count
    centred_N = np.empty(len(order))
    centred_N[order] = (twice_rank - (2 * before + count + 1)[group]) / 2
    return centred_N


def mean_by(group: Ints, value: Floats, size: int, weight: Floats | None = None) -> Floats:
    """(Weighted) mean of the finite values of each group; NaN where there are none."""
    known = np.isfinite(value)
    if not known.all():
        group, value = group[known], value[known]
        weight = None if weight is None else weight[known]
    total = np.bincount(group, weight, size)
    return np.bincount(group, value if weight is None else weight * value, size) / np.where(total > 0, total, nan)


def share(mask: NDArray[np.bool_]) -> float:
    return float(mask.mean()) if len(mask) else nan


def group_rows(*codes: Ints) -> tuple[Ints, Ints]:
    """A dense index for each row's combination of codes, and the first row of each combination."""
    key = np.ravel_multi_index(codes, [int(code.max(initial=0)) + 1 for code in codes])
    _, first, dense = np.unique(key, return_index=True, return_inverse=True)
    return dense, first


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.object_], Ints]:
    """The sorted distinct values of a string column, and each row's index into them."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    encoded = column.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no chunks at all
        return np.empty(0, object), np.empty(0, np.int64)
    code_N = encoded.indices.to_numpy().astype(np.int64)
    listed = np.array(encoded.dictionary.to_pylist(), object)
    used, dense_N = _distinct(code_N, len(listed))
    names, index = np.unique(listed[used], return_inverse=True)
    return names, index[dense_N]


def _distinct(code_N: Ints, size: int) -> tuple[Ints, Ints]:
    """The codes that occur, and each row's index into them; without sorting."""
    occurs = np.zeros(size, bool)
    occurs[code_N] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[code_N]
