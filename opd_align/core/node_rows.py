"""Which rows of a node table count, and how their values are averaged.

A row counts if its alignment is finite and its SR range is positive. Axis suffixes: `_N` rows, `_U` (path, teacher)
combinations, `_Q` questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import nan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import stats

from opd_align.types import REWARD, Floats, Ints, OpdAlignError


@dataclass(frozen=True)
class NodeRows:
    """The rows of one objective that count.

    Args:
        table: The rows.
        objective: Name of the objective.
        teachers: Names of the teachers of this objective.
        question_N: Index of each row's question.
        path_N: Index of each row's (path, teacher) combination.
        question_U: Index of each combination's question.
        teacher_U: Name of each combination's teacher.
        n_questions: Number of questions.
    """

    table: pa.Table
    objective: str
    teachers: list[str]
    question_N: Ints
    path_N: Ints
    question_U: Ints
    teacher_U: NDArray[np.object_]
    n_questions: int

    def __getitem__(self, name: str) -> Floats:
        # Missing values of any type, including booleans, become NaN.
        return np.asarray(self.table[name].to_numpy(), np.float64)

    def path_means(self, value_N: Floats) -> Floats:
        return mean_by(self.path_N, value_N, len(self.question_U))

    def over_paths(self, value_U: Floats) -> Floats:
        return mean_by(self.question_U, value_U, self.n_questions)

    def question_means(self, value_N: Floats) -> Floats:
        return self.over_paths(self.path_means(value_N))


def select_rows(
    nodes: pa.Table, objective: str | None, teacher: str | None = None, known: str = "alignment"
) -> NodeRows:
    """The rows of one objective that count and where `known` is finite; raises on unknown names."""
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
    table = nodes.filter(reduce(pc.and_, (*selected, *counts)))
    (questions, question_N), (names, teacher_N) = _codes(table, "question"), _codes(table, "teacher")
    path_N, first_U = group_rows(teacher_N, question_N, table["path"].to_numpy().astype(np.int64))
    of_path = question_N[first_U], names[teacher_N[first_U]]
    return NodeRows(table, objective, teachers, question_N, path_N, *of_path, len(questions))


def spearman_within(group_N: Ints, a_N: Floats, b_N: Floats, size: int) -> Floats:
    """Rank correlation within each group; NaN with fewer than three rows or where either column is constant."""
    count = np.bincount(group_N, minlength=size)
    centred = []
    for side_N in (a_N, b_N):
        _, dense_N = np.unique(side_N, return_inverse=True)
        rank_N = stats.rankdata(group_N * len(side_N) + dense_N)  # ranks over all rows, ordered by group
        # The mean rank of a group does not depend on ties, so a constant column gives exact zeros.
        centred.append(rank_N - (np.cumsum(count) - count + (count + 1) / 2)[group_N])
    a_N, b_N = centred
    aa, bb, ab = (np.bincount(group_N, term, size) for term in (a_N * a_N, b_N * b_N, a_N * b_N))
    varies = (count >= 3) & (aa > 0) & (bb > 0)
    return np.where(varies, ab, nan) / np.sqrt(np.where(varies, aa * bb, nan))


def mean_by(group: Ints, value: Floats, size: int, weight: Floats | None = None) -> Floats:
    """(Weighted) mean of the finite values of each group; NaN where there are none."""
    known = np.isfinite(value)
    group, value = group[known], value[known]
    weight = np.ones(len(value)) if weight is None else weight[known]
    total = np.bincount(group, weight, size)
    return np.bincount(group, weight * value, size) / np.where(total > 0, total, nan)


def share(mask: NDArray[np.bool_]) -> float:
    return float(mask.mean()) if len(mask) else nan


def group_rows(*codes: Ints) -> tuple[Ints, Ints]:
    """A dense index for each row's combination of codes, and the first row of each combination."""
    key = np.ravel_multi_index(codes, [int(code.max(initial=0)) + 1 for code in codes])
    _, first, dense = np.unique(key, return_index=True, return_inverse=True)
    return dense, first


def _codes(nodes: pa.Table, name: str) -> tuple[NDArray[np.object_], Ints]:
    """The sorted distinct values of a string column, and each row's index into them."""
    encoded = nodes[name].cast(pa.string()).combine_chunks().dictionary_encode()
    names, index = np.unique(np.array(encoded.dictionary.to_pylist(), object), return_inverse=True)
    return names, index[encoded.indices.to_numpy()]
