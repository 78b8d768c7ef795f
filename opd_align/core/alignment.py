"""Alignment: the cosine between each objective's update and the ideal update at every node.

The node table has one row per question, path, depth, teacher and objective, for every node with at least two
significant children (success known well enough). Each row includes its uncertainty, from joint posterior draws of
`Q`. With exactly two significant children both updates sum to zero, so the cosine is ±1 and only its sign is
estimated: see also `p_positive` and `verdict`.

The child table has one row for every kept token along a path, so that reports can show a node without any model.

Computes from estimates and scores only; no sampling, no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opd_align.core.estimate import PathEstimate
from opd_align.core.objectives import LOG_FLOOR, Nodes, Objective, unified_update
from opd_align.core.tree import PathCounts
from opd_align.settings import Rules
from opd_align.types import DIVERGENCES, REWARD, Floats, Ints, PathScores

MIN_UPDATE_NORM = 1e-7
"""Updates with a smaller norm count as zero: student and teacher agree up to rounding, and the alignment is 0."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_NUMBERS = pa.list_(pa.field("element", pa.float32()))  # the field name Parquet uses
SCHEMA = pa.schema(
    [
        ("question", _TEXT), ("path", pa.int16()), ("path_correct", pa.bool_()), ("path_length", pa.int32()),
        ("depth", pa.int32()), ("depth_normalised", pa.float64()), ("token", pa.uint32()),
        ("teacher", _TEXT), ("objective", _TEXT),
        ("alignment", pa.float64()), ("alignment_mean", pa.float64()),
        ("alignment_low", pa.float64()), ("alignment_high", pa.float64()),
        ("p_positive", pa.float64()), ("verdict", _TEXT),
        ("alignment_a", pa.float64()), ("alignment_b", pa.float64()),
        ("advantage", pa.float64()), ("sr_range", pa.float64()), ("children", pa.int16()),
        ("visits", pa.int64()), ("effective_visits", pa.float64()), ("tail_mass", pa.float64()),
        ("value", pa.float64()), ("update_norm", pa.float64()),
        *[(name, pa.float64()) for name in DIVERGENCES],
        ("student_entropy", pa.float64()), ("teacher_entropy", pa.float64()),
    ]
)  # fmt: skip
"""Columns of the node table."""

CHILDREN = pa.schema(
    [
        ("question", _TEXT), ("path", pa.int16()), ("path_correct", pa.bool_()), ("depth", pa.int32()),
        ("token", pa.uint32()), ("own", pa.bool_()), ("significant", pa.bool_()),
        ("p", pa.float32()), ("q", pa.float32()), ("q_low", pa.float32()), ("q_high", pa.float32()),
        ("visits", pa.int64()), ("effective", pa.float32()), ("ideal", pa.float32()),
        ("t", _NUMBERS), ("update", _NUMBERS),
    ]
)  # fmt: skip
"""Columns of the child table. `own` marks the path's next token, `significant` the members of `S_u`; `ideal` and
`update` are null for other children. `t` has one entry per teacher and `update` one per pair of teacher and objective,
in the order given by `teachers_of` and `pairs_of` (stored in the schema metadata)."""


@dataclass(frozen=True)
class EstimatedPath:
    """One path with all inputs of its table rows.

    Args:
        question: Id of the question.
        index: Index of the path within the question.
        correct: Whether the path is correct.
        scores: Student and teacher log-probabilities.
        estimate: Estimated success probabilities.
        counts: Counts of the tree along the path.
        pass_rate: Pass rate of the question.
        halves: Estimates from two disjoint halves of the rollouts. `None`: no split-half columns.
        to_go: Reward-to-go by teacher name. `None` unless an objective needs it.
    """

    question: str
    index: int
    correct: bool
    scores: PathScores
    estimate: PathEstimate
    counts: PathCounts
    pass_rate: float
    halves: tuple[PathEstimate, PathEstimate] | None = None
    to_go: Mapping[str, Floats] | None = None


def node_table(paths: Sequence[EstimatedPath], objectives: Sequence[Objective], rules: Rules) -> pa.Table:
    """The rows of all paths; an empty table if no node qualifies."""
    parts = [part for path in paths for part in _path_rows(path, objectives, rules)]
    return pa.concat_tables(parts).unify_dictionaries() if parts else SCHEMA.empty_table()


def child_table(
    paths: Sequence[EstimatedPath], teachers: Sequence[str], objectives: Sequence[Objective], rules: Rules
) -> pa.Table:
    """Every kept child at every depth of all paths; `teachers` defines the metadata even if there are no paths."""
    pairs = _pairs(teachers, objectives)
    order = {"teachers": list(teachers), "pairs": list(pairs)}
    schema = CHILDREN.with_metadata({f"opd_align.{name}": json.dumps(value) for name, value in order.items()})
    parts = [_path_children(path, teachers, pairs, rules).cast(schema) for path in paths]
    return pa.concat_tables(parts).unify_dictionaries() if parts else schema.empty_table()


def teachers_of(children: pa.Table) -> list[str]:
    """Teacher names in the order of the column `t`."""
    return [str(name) for name in _order(children, "teachers")]


def pairs_of(children: pa.Table) -> list[tuple[str, str]]:
    """Pairs (teacher, objective) in the order of the column `update`."""
    return [(str(teacher), str(objective)) for teacher, objective in _order(children, "pairs")]


def significant(path: PathScores, estimate: PathEstimate, rules: Rules) -> NDArray[np.bool_]:
    """The children in `S_u`: probable for the student or a teacher (or on the path), with enough effective visits."""
    significant_C = (path.above(rules.tau) | path.on_path_C) & (estimate.effective_C >= rules.n_sig)
    # `backup` has an estimate for every child, but a node with fewer than two observed children has no evidence.
    depth_C = path.depth_C
    observed_T = np.bincount(depth_C, significant_C & (estimate.visits_C > 0), len(path))
    return significant_C & (observed_T[depth_C] >= 2)


@dataclass(frozen=True)
class _NodeGroup:
    """All nodes of a path with the same number of selected children; `child_NK` indexes the path's children."""

    depth_N: Ints
    child_NK: Ints


def _groups(selected_C: NDArray[np.bool_], offsets: Ints, least: int) -> Iterator[_NodeGroup]:
    nodes = len(offsets) - 1
    depth_C = np.repeat(np.arange(nodes), np.diff(offsets))
    child = np.flatnonzero(selected_C)
    size_T = np.bincount(depth_C[child], minlength=nodes)
    begin_T = np.concatenate([[0], np.cumsum(size_T)[:-1]]) if nodes else np.empty(0, np.int64)
    for size in np.unique(size_T[size_T >= least]):
        depth_N = np.flatnonzero(size_T == size)
        yield _NodeGroup(depth_N, child[begin_T[depth_N][:, None] + np.arange(size)])


def _path_rows(path: EstimatedPath, objectives: Sequence[Objective], rules: Rules) -> Iterator[pa.Table]:
    selected_C = significant(path.scores, path.estimate, rules)
    updates = {
        pair: _update_C(path, objective, teacher, selected_C, rules)
        for pair, (objective, teacher) in _pairs(list(path.scores.teachers), objectives).items()
    }
    # Seeded by content: the draws do not depend on which other questions are analyzed, or in what order.
    seed = blake2b(f"{rules.seed}\0{path.question}\0{path.index}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    for group in _groups(selected_C, path.scores.offsets, least=2):
        for block in range(0, len(group.depth_N), 2000):
            part = _NodeGroup(group.depth_N[block : block + 2000], group.child_NK[block : block + 2000])
            yield from _group_rows(path, part, updates, rules, rng)


def _pairs(teachers: Sequence[str], objectives: Sequence[Objective]) -> dict[tuple[str, str], tuple[Objective, str]]:
    """Every (teacher, objective) that gets a row; objectives without a teacher get one with the teacher `REWARD`."""
    pairs = {}
    for objective in objectives:
        for teacher in [REWARD] if objective.signal == "reward" else teachers:
            pairs[teacher, objective.name] = (objective, teacher)
    return pairs


def _order(children: pa.Table, name: str) -> list[Any]:
    return list(json.loads((children.schema.metadata or {}).get(f"opd_align.{name}".encode(), b"[]")))


def _path_children(
    path: EstimatedPath,
    teachers: Sequence[str],
    pairs: Mapping[tuple[str, str], tuple[Objective, str]],
    rules: Rules,
) -> pa.Table:
    scores, estimate = path.scores, path.estimate
    n = len(scores.token_C)
    selected_C = significant(scores, estimate, rules)
    ideal_C = np.full(n, np.nan)
    for group in _groups(selected_C, scores.offsets, least=1):
        p_NK = np.exp(_normalised(scores.log_p_C[group.child_NK]))
        ideal_C[group.child_NK] = unified_update(p_NK, estimate.q_C[group.child_NK])
    low_C, high_C = estimate.interval_C()
    # A teacher that was not available on this question has no values.
    unknown_C = np.full(n, np.nan)
    log_t = [scores.teachers[name].log_t_C if name in scores.teachers else unknown_C for name in teachers]
    t_CT = np.exp(np.array(log_t).reshape(len(teachers), n).T)
    updates = [
        _update_C(path, objective, teacher, selected_C, rules)
        if teacher == REWARD or teacher in scores.teachers
        else unknown_C
        for objective, teacher in pairs.values()
    ]
    update_CO = np.array(updates).reshape(len(pairs), n).T[selected_C]
    columns = {
        "question": _constant_text(path.question, n),
        "path": np.full(n, path.index),
        "path_correct": np.full(n, path.correct),
        "depth": scores.depth_C,
        "token": scores.token_C,
        "own": scores.on_path_C,
        "significant": selected_C,
        "p": np.exp(scores.log_p_C),
        "q": estimate.q_C,
        "q_low": low_C,
        "q_high": high_C,
        "visits": estimate.visits_C,
        "effective": estimate.effective_C,
        "ideal": pa.array(ideal_C, pa.float32(), mask=~selected_C),
        "t": _list_column(np.arange(n + 1) * len(teachers), t_CT),
        "update": _list_column(np.append(0, np.cumsum(selected_C)) * len(pairs), update_CO, null=~selected_C),
    }
    arrays = [_column(columns[field.name], field.type) for field in CHILDREN]
    return pa.Table.from_arrays(arrays, schema=CHILDREN)


def _column(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Array):
        return value
    return pa.array(value.astype(np.float32) if kind == pa.float32() else value, kind)


def _list_column(offsets: Ints, values: Floats, null: NDArray[np.bool_] | None = None) -> pa.Array:
    flat = pa.array(values.ravel().astype(np.float32))
    mask = None if null is None else pa.array(null)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=_NUMBERS, mask=mask)


def _group_rows(
    path: EstimatedPath,
    group: _NodeGroup,
    updates: Mapping[tuple[str, str], Floats],
    rules: Rules,
    rng: np.random.Generator,
) -> Iterator[pa.Table]:
    scores, depth_N, child_NK = path.scores, group.depth_N, group.child_NK
    p_NK = np.exp(_normalised(scores.log_p_C[child_NK]))
    q_NK = path.estimate.q_C[child_NK]
    sr_range_N = np.ptp(q_NK, axis=-1)
    nonzero_N = sr_range_N > rules.resolution
    ideal_NK = unified_update(p_NK, q_NK)
    q_DNK = path.estimate.draws(child_NK, depth_N, n=rules.draws, rng=rng)
    ideal_DNK = unified_update(p_NK, q_DNK)
    halves = [unified_update(p_NK, half.q_C[child_NK]) for half in path.halves or ()]
    natural_T = np.add.reduceat(np.append(path.counts.natural_C, 0), path.counts.offsets[:-1]) * (
        np.diff(path.counts.offsets) > 0
    )
    n, length = len(depth_N), len(scores)
    shared = {
        "question": _constant_text(path.question, n),
        "path": np.full(n, path.index),
        "path_correct": np.full(n, path.correct),
        "path_length": np.full(n, length),
        "depth": depth_N,
        "depth_normalised": depth_N / max(length - 1, 1),
        "token": scores.completion_T[depth_N],
        "sr_range": sr_range_N,
        "children": np.full(n, child_NK.shape[1]),
        "visits": natural_T[depth_N],
        "effective_visits": path.estimate.effective_C[child_NK].min(-1),
        "tail_mass": path.estimate.tail_mass_T[depth_N],
        "value": path.estimate.value_T[depth_N],
        "student_entropy": scores.entropy_T[depth_N],
    }
    for (teacher, objective), update_C in updates.items():
        update_NK = update_C[child_NK]
        alignment_N = np.where(nonzero_N, cosine(ideal_NK, update_NK), np.nan)
        cosine_DN = cosine(ideal_DNK, update_NK)
        positive_N = (cosine_DN > 0).mean(0) + (cosine_DN == 0).mean(0) / 2
        low_N, high_N = np.quantile(cosine_DN, [0.05, 0.95], axis=0)
        half_N = [cosine(half_NK, update_NK) for half_NK in halves] or [np.full(n, np.nan)] * 2
        columns = shared | {
            "teacher": _constant_text(teacher, n),
            "objective": _constant_text(objective, n),
            "alignment": alignment_N,
            "alignment_mean": cosine_DN.mean(0),
            "alignment_low": low_N,
            "alignment_high": high_N,
            "p_positive": positive_N,
            "verdict": _verdicts(np.where(nonzero_N, positive_N, 0.5), rules.confidence),
            "alignment_a": half_N[0],
            "alignment_b": half_N[1],
            "update_norm": np.linalg.norm(update_NK, axis=-1),
        }
        columns |= _teacher_columns(scores, teacher, group, p_NK, q_NK)
        yield pa.table({field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}, schema=SCHEMA)


def _teacher_columns(
    scores: PathScores, teacher: str, group: _NodeGroup, p_NK: Floats, q_NK: Floats
) -> dict[str, Floats]:
    if teacher == REWARD:
        missing = np.full(len(p_NK), np.nan)
        return dict.fromkeys((*DIVERGENCES, "teacher_entropy", "advantage"), missing)
    teacher_scores = scores.teachers[teacher]
    t_NK = np.exp(_normalised(teacher_scores.log_t_C[group.child_NK]))
    columns = {name: getattr(teacher_scores, f"{name}_T")[group.depth_N] for name in DIVERGENCES}
    return columns | {
        "teacher_entropy": teacher_scores.entropy_T[group.depth_N],
        "advantage": ((t_NK - p_NK) * q_NK).sum(-1),
    }


def _update_C(
    path: EstimatedPath, objective: Objective, teacher: str, selected_C: NDArray[np.bool_], rules: Rules
) -> Floats:
    """The objective's update for every child of the path; NaN outside its support."""
    full = rules.restrict == "full"
    scores = path.scores
    # With "full", the rest of the vocabulary acts as one more token, so that the mean f̄ is that of the full
    # distribution; the update is restricted to S_u only afterwards.
    support_C = np.ones_like(selected_C) if full else selected_C
    counts = _natural_counts(path)
    log_t_C = scores.log_p_C if teacher == REWARD else scores.teachers[teacher].log_t_C
    update_C = np.full(len(selected_C), np.nan)
    for group in _groups(support_C, scores.offsets, least=1):
        child_NK = group.child_NK

        def gather(value_C: Floats, rest: Floats | float, child_NK: Ints = child_NK) -> Floats:
            value_NK = value_C[child_NK]
            if not full:
                return value_NK
            return np.concatenate([value_NK, np.broadcast_to(rest, (len(value_NK),))[:, None]], axis=-1)

        nodes = Nodes(
            _normalised(gather(scores.log_p_C, _log_rest(scores.log_p_C[child_NK]))),
            _normalised(gather(log_t_C, _log_rest(log_t_C[child_NK]))),
            gather(path.estimate.q_C, path.estimate.value_T[group.depth_N]),
            **{name: gather(column_C, 0.0) for name, column_C in counts.items()},
            mean_reward=path.pass_rate,
            to_go=gather(path.to_go[teacher], 0.0) if objective.signal == "future" and path.to_go else None,
        )
        result = objective.update(nodes)
        if result.shape != nodes.log_p.shape:
            raise ValueError(
                f"objective {objective.name!r} returned shape {result.shape}, expected {nodes.log_p.shape}"
            )
        update_C[child_NK] = result[:, : child_NK.shape[1]]
    return update_C


def _natural_counts(path: EstimatedPath) -> dict[str, Any]:
    """Counts of natural rollouts for each scored child."""
    counts = path.counts.reindex(path.scores.offsets, path.scores.token_C)
    return {
        "natural": counts.natural_C.astype(float),
        "natural_wins": counts.natural_wins_C.astype(float),
        "natural_inverse_length": counts.natural_inverse_length_C,
        "natural_wins_inverse_length": counts.natural_wins_inverse_length_C,
    }


def cosine(ideal: Floats, update: Floats) -> Floats:
    """Cosine along the last axis; 0 where either vector is zero."""
    ideal_norm, update_norm = np.linalg.norm(ideal, axis=-1), np.linalg.norm(update, axis=-1)
    nonzero = (ideal_norm > 0) & (update_norm > MIN_UPDATE_NORM)
    dot = (ideal * update).sum(-1)
    return np.clip(np.where(nonzero, dot / np.where(nonzero, ideal_norm * update_norm, 1.0), 0.0), -1.0, 1.0)


def _normalised(log_NK: Floats) -> Floats:
    log_NK = np.maximum(log_NK, LOG_FLOOR)
    return np.maximum(log_NK - np.logaddexp.reduce(log_NK, axis=-1, keepdims=True), LOG_FLOOR)


def _log_rest(log_NK: Floats) -> Floats:
    return np.log(np.maximum(1 - np.exp(log_NK).sum(-1), np.exp(LOG_FLOOR)))


def _verdicts(positive_N: Floats, confidence: float) -> pa.Array:
    code_N = np.where(positive_N >= confidence, 0, np.where(positive_N <= 1 - confidence, 1, 2)).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(code_N), pa.array(["helpful", "harmful", "undecided"]))


def _constant_text(value: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([value]))
