"""Alignment: the cosine between each objective's update and the ideal update at every node.

The node table has one row per question, path, depth, teacher and objective, for every node with at least two observed
children in `S_u`. Each row includes its uncertainty, from joint posterior draws of `Q`. With exactly two children in
`S_u` both updates sum to zero, so the cosine is ±1 and only its sign is estimated: see also `p_positive` and `verdict`.
`alignment` is the posterior mean of the cosine, except with counting estimators, where it is the cosine of the counts.

The child table has one row for every kept token along a path, so that reports can show a node without any model.

Computes from estimates and scores only; no sampling, no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opd_align.core.attenuation import (
    ADVANTAGE_MOMENTS,
    ALIGNMENT_MOMENTS,
    MOMENTS,
    advantage_moments,
    alignment_moments,
    mean_gap,
)
from opd_align.core.objectives import LOG_FLOOR, Nodes, Objective, unified_update
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.reliability import HALVES, MIN_UPDATE_NORM, p_positive
from opd_align.core.tree import PathCounts
from opd_align.settings import Rules
from opd_align.types import DIVERGENCES, REWARD, Floats, Ints, PathScores

_TEXT = pa.dictionary(pa.int32(), pa.string())
_NUMBERS = pa.list_(pa.field("element", pa.float32()))  # the field name Parquet uses
SCHEMA = pa.schema(
    [
        ("question", _TEXT), ("path", pa.int16()), ("path_correct", pa.bool_()), ("path_length", pa.int32()),
        ("depth", pa.int32()), ("depth_normalised", pa.float64()), ("token", pa.uint32()),
        ("teacher", _TEXT), ("objective", _TEXT),
        ("alignment", pa.float64()), ("alignment_mean", pa.float64()),
        ("alignment_low", pa.float64()), ("alignment_high", pa.float64()),
        ("p_positive", pa.float64()), ("verdict", _TEXT), *[(name, pa.float64()) for name in HALVES],
        *[(f"{name}_{half}", pa.float64()) for name in ("alignment", "sr_range", "signal") for half in ("a", "b")],
        ("advantage", pa.float64()), ("sr_range", pa.float64()), ("children", pa.int16()),
        ("visits", pa.int64()), ("effective_visits", pa.float64()), ("tail_mass", pa.float64()),
        ("value", pa.float64()), ("update_norm", pa.float64()),
        *[(name, pa.float64()) for name in MOMENTS],
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
"""Columns of the child table. `own` marks the path's next token, `significant` the members of `S_u` for any teacher;
`ideal` (0 outside the student's own `S_u`) and `update` (0 outside that teacher's) are null for other children. `t` has
one entry per teacher and `update` one per pair of teacher and objective, in the order given by `teachers_of` and
`pairs_of` (stored in the schema metadata)."""


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
        unshrunk: Estimates from the same halves without shrinkage.
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
    unshrunk: tuple[PathEstimate, PathEstimate] | None = None
    to_go: Mapping[str, Floats] | None = None

    @cached_property
    def gain_C(self) -> Floats:
        """Fraction of correct rollouts after each child minus the value after the path's own; NaN without rollouts.

        Children whose value comes from exits further down (on this or on another scored path) have their estimate.
        """
        counts, estimate = self.counts.reindex(self.scores.offsets, self.scores.token_C), self.estimate
        n_C = counts.evidence_C
        plain_C = np.where(n_C > 0, counts.evidence_wins_C / np.maximum(n_C, 1), np.nan)
        success_C = np.where(self.scores.on_path_C | (estimate.visits_C != n_C), estimate.q_C, plain_C)
        return np.asarray(success_C - estimate.path_q_T[self.scores.depth_C])


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


def significant(
    path: PathScores, estimate: PathEstimate, rules: Rules, teacher: str | None = None
) -> NDArray[np.bool_]:
    """The children in `S_u`: above `rules.tau` for the student or for this one teacher, or on the path.

    So `S_u` does not depend on the other teachers of a run. Counting estimators leave out children with fewer than
    `rules.n_sig` visits. `backup` keeps them all: its posterior knows how uncertain each one is, and leaving out the
    uncertain ones would compare with another truth than the node's. A node without two observed children has none.
    """
    significant_C = _candidates(path, rules, teacher)
    observed_C = significant_C & (estimate.visits_C > 0)
    if estimate.counted:
        significant_C &= estimate.effective_C >= rules.n_sig
        observed_C &= significant_C
    observed_T = np.bincount(path.depth_C, observed_C, len(path))
    return significant_C & (observed_T[path.depth_C] >= 2)


def _candidates(path: PathScores, rules: Rules, teacher: str | None) -> NDArray[np.bool_]:
    """The children above `rules.tau` for the student or for this teacher, or on the path, with or without rollouts."""
    probable_C = (path.log_p_C > np.log(rules.tau)) if rules.tau else np.ones(len(path.log_p_C), bool)
    if teacher is not None and teacher != REWARD and rules.tau:
        probable_C = probable_C | (path.teachers[teacher].log_t_C > np.log(rules.tau))
    return np.asarray(probable_C | path.on_path_C)


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
    pairs = _pairs(list(path.scores.teachers), objectives)
    selected = {
        teacher: significant(path.scores, path.estimate, rules, teacher)
        for teacher in dict.fromkeys(teacher for teacher, _ in pairs)
    }
    if not selected:
        return
    updates = {
        pair: _update_C(path, objective, teacher, selected[teacher], rules)
        for pair, (objective, teacher) in pairs.items()
    }
    # Seeded by content: the draws do not depend on which other questions are analyzed, or in what order.
    seed = blake2b(f"{rules.seed}\0{path.question}\0{path.index}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    any_C = np.logical_or.reduce(list(selected.values()))
    for group in _groups(any_C, path.scores.offsets, least=2):
        for block in range(0, len(group.depth_N), 2000):
            part = _NodeGroup(group.depth_N[block : block + 2000], group.child_NK[block : block + 2000])
            yield from _group_rows(path, part, selected, updates, rules, rng)


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
    of_teacher = {teacher: significant(scores, estimate, rules, teacher) for teacher in (REWARD, *scores.teachers)}
    selected_C = np.logical_or.reduce(list(of_teacher.values()))
    ideal_C = np.zeros(n)
    for group in _groups(of_teacher[REWARD], scores.offsets, least=1):
        p_NK = np.exp(_normalised(scores.log_p_C[group.child_NK]))
        ideal_C[group.child_NK] = unified_update(p_NK, estimate.q_C[group.child_NK])
    low_C, high_C = estimate.interval_C()
    # A teacher that was not available on this question has no values.
    unknown_C = np.full(n, np.nan)
    log_t = [scores.teachers[name].log_t_C if name in scores.teachers else unknown_C for name in teachers]
    t_CT = np.exp(np.array(log_t).reshape(len(teachers), n).T)
    updates = [
        np.where(of_teacher[teacher], _update_C(path, objective, teacher, of_teacher[teacher], rules), 0.0)
        if teacher in of_teacher
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
    selected: Mapping[str, NDArray[np.bool_]],
    updates: Mapping[tuple[str, str], Floats],
    rules: Rules,
    rng: np.random.Generator,
) -> Iterator[pa.Table]:
    """The rows of nodes with the same number of children in the `S_u` of any teacher; they share the draws of `Q`."""
    q_DNK = path.estimate.draws(group.child_NK, group.depth_N, n=rules.draws, rng=rng)
    for teacher, selected_C in selected.items():
        kept_N = selected_C[group.child_NK].sum(-1) >= 2
        if kept_N.any():
            part = _NodeGroup(group.depth_N[kept_N], group.child_NK[kept_N])
            own = {objective: update_C for (name, objective), update_C in updates.items() if name == teacher}
            drawn_DNK = q_DNK if kept_N.all() else q_DNK[:, kept_N]
            yield from _teacher_rows(path, part, teacher, selected_C[part.child_NK], drawn_DNK, own, rules)


def _teacher_rows(
    path: EstimatedPath,
    group: _NodeGroup,
    teacher: str,
    selected_NK: NDArray[np.bool_],
    q_DNK: Floats,
    updates: Mapping[str, Floats],
    rules: Rules,
) -> Iterator[pa.Table]:
    """The rows of one teacher. Children outside its `S_u` have probability 0, so they drop out of every sum."""
    scores, estimate, depth_N, child_NK = path.scores, path.estimate, group.depth_N, group.child_NK
    p_NK = _restricted(scores.log_p_C[child_NK], selected_NK)
    q_NK = np.where(selected_NK, estimate.q_C[child_NK], 0.0)
    sr_range_N = _range(q_NK, selected_NK)
    nonzero_N = sr_range_N > rules.resolution
    ideal_NK, ideal_DNK = unified_update(p_NK, q_NK), unified_update(p_NK, q_DNK)
    sr_range_DN = _range(q_DNK, selected_NK)
    estimates = (estimate, *(path.halves or ()))
    half_q = [np.where(selected_NK, half.q_C[child_NK], 0.0) for half in estimates[1:]]
    halves = [unified_update(p_NK, half_NK) for half_NK in half_q]
    unshrunk_q = [np.where(selected_NK, half.q_C[child_NK], 0.0) for half in path.unshrunk or ()]
    unshrunk = [(unified_update(p_NK, half_NK), _range(half_NK, selected_NK)) for half_NK in unshrunk_q]
    half_range = [_range(half_NK, selected_NK) for half_NK in half_q] or [np.full(len(p_NK), np.nan)] * 2
    natural_T = np.add.reduceat(np.append(path.counts.natural_C, 0), path.counts.offsets[:-1]) * (
        np.diff(path.counts.offsets) > 0
    )
    n, length = len(depth_N), len(scores)
    missing_N = np.full(n, np.nan)
    shared = {
        "question": _constant_text(path.question, n),
        "path": np.full(n, path.index),
        "path_correct": np.full(n, path.correct),
        "path_length": np.full(n, length),
        "depth": depth_N,
        "depth_normalised": depth_N / max(length - 1, 1),
        "token": scores.completion_T[depth_N],
        "teacher": _constant_text(teacher, n),
        "sr_range": sr_range_N,
        "sr_range_a": half_range[0],
        "sr_range_b": half_range[1],
        "children": selected_NK.sum(-1),
        "visits": natural_T[depth_N],
        "effective_visits": np.where(selected_NK, estimate.effective_C[child_NK], np.inf).min(-1),
        "tail_mass": estimate.tail_mass_T[depth_N],
        "value": estimate.value_T[depth_N],
        "student_entropy": scores.entropy_T[depth_N],
    } | _teacher_columns(path, teacher, group, selected_NK, p_NK, rules)
    for objective, update_C in updates.items():
        update_NK = np.where(selected_NK, update_C[child_NK], 0.0)
        # Tokens that are equally good leave rounding errors, which have a direction.
        cosine_DN = np.where(sr_range_DN > 0, cosine(ideal_DNK, update_NK), 0.0)
        mean_N, plain_N = cosine_DN.mean(0), cosine(ideal_NK, update_NK)
        moments = alignment_moments(cosine_DN, sr_range_DN)
        positive = [p_positive(each, child_NK, depth_N, p_NK, update_NK) for each in estimates]
        low_N, high_N = np.quantile(cosine_DN, [0.05, 0.95], axis=0)
        half_N = [cosine(half_NK, update_NK) for half_NK in halves] or [missing_N] * 2
        signal_N = [sr_N * cosine(half_NK, update_NK) for half_NK, sr_N in unshrunk] or [missing_N] * 2
        columns = shared | {
            "objective": _constant_text(objective, n),
            "alignment": np.where(nonzero_N, plain_N if estimate.counted else mean_N, np.nan),
            "alignment_mean": mean_N,
            "alignment_low": low_N,
            "alignment_high": high_N,
            "p_positive": positive[0],
            **dict(zip(HALVES, positive[1:] or [missing_N] * 2, strict=True)),
            "verdict": _verdicts(np.where(nonzero_N, positive[0], 0.5), rules.confidence),
            "alignment_a": half_N[0],
            "alignment_b": half_N[1],
            "signal_a": signal_N[0],
            "signal_b": signal_N[1],
            "update_norm": np.linalg.norm(update_NK, axis=-1),
        }
        # Counted fractions are not shrunk, so there is no attenuation.
        columns |= dict.fromkeys(ALIGNMENT_MOMENTS, missing_N) if estimate.counted else moments
        yield pa.table({field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}, schema=SCHEMA)


def _teacher_columns(
    path: EstimatedPath, teacher: str, group: _NodeGroup, selected_NK: NDArray[np.bool_], p_NK: Floats, rules: Rules
) -> dict[str, Floats]:
    if teacher == REWARD:
        missing = np.full(len(p_NK), np.nan)
        return dict.fromkeys((*DIVERGENCES, "teacher_entropy", "advantage", *ADVANTAGE_MOMENTS), missing)
    teacher_scores = path.scores.teachers[teacher]
    t_NK = _restricted(teacher_scores.log_t_C[group.child_NK], selected_NK)
    columns = {name: getattr(teacher_scores, f"{name}_T")[group.depth_N] for name in DIVERGENCES}
    return (
        columns
        | {
            "teacher_entropy": teacher_scores.entropy_T[group.depth_N],
            "advantage": ((t_NK - p_NK) * np.where(selected_NK, path.estimate.q_C[group.child_NK], 0.0)).sum(-1),
        }
        | advantage_moments(p_NK, t_NK, path.gain_C[group.child_NK], _mean_gap(path.scores, teacher, rules))
    )


def _mean_gap(scores: PathScores, teacher: str, rules: Rules) -> dict[str, float]:
    """The mean gap between teacher and student at the nodes of a path with two or more candidates."""
    kept_C = _candidates(scores, rules, teacher)
    kept_C &= (np.bincount(scores.depth_C, kept_C, len(scores)) >= 2)[scores.depth_C]
    depth_C = scores.depth_C[kept_C]
    log_t_C = scores.teachers[teacher].log_t_C
    p_C, t_C = (np.exp(np.maximum(log_C[kept_C], LOG_FLOOR)) for log_C in (scores.log_p_C, log_t_C))
    p_C, t_C = (each_C / np.bincount(depth_C, each_C, len(scores))[depth_C] for each_C in (p_C, t_C))
    return mean_gap(p_C, t_C, depth_C)


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


def _restricted(log_NK: Floats, selected_NK: NDArray[np.bool_]) -> Floats:
    """Probabilities renormalised on the selected children, 0 for the others."""
    mass_NK = np.where(selected_NK, np.exp(np.maximum(log_NK, LOG_FLOOR)), 0.0)
    return np.asarray(mass_NK / mass_NK.sum(-1, keepdims=True))


def _range(value: Floats, selected_NK: NDArray[np.bool_]) -> Floats:
    """Largest minus smallest value of the selected children."""
    high, low = np.where(selected_NK, value, -np.inf).max(-1), np.where(selected_NK, value, np.inf).min(-1)
    return np.asarray(high - low)


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
