"""The weights that a trainer's gate gives to the nodes of an analysis.

The gate is called as in training, with the analyzed rollouts as one batch: their tokens, their outcomes, and measures
at every token. At nodes the measures are exact. At other tokens, which only matter to a gate that compares tokens (such
as a quantile), they are computed from the tokens that the analysis kept, with all other tokens as one. `teacher_mass`
is computed from the kept tokens everywhere: from the student's most likely ones among them, so an upper bound.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from opd_align.core.alignment import pairs_of, teachers_of
from opd_align.core.engine import Analysis
from opd_align.core.node_rows import group_rows
from opd_align.training.gates import Gate, GateBatch, compute_weights
from opd_align.training.measures import (
    FLOAT32_EPS,
    LOG_RATIO,
    MEASURES,
    STUDENT_LOG_PROB,
    TEACHER_LOG_PROB,
    TEACHER_MASS,
)
from opd_align.training.trainers.sdpo import SDPOGate
from opd_align.types import OVERLAP_TOP_K, REWARD, Floats, Ints, Outcome

logger = logging.getLogger(__name__)

SMALLEST = 1e-12
"""Smallest probability of the tokens that the analysis did not keep."""


def gate_of(trainer: Any) -> Gate | None:
    """The gate of a gated trainer, or of SDPO's callback; `None` without one."""
    runtime = getattr(trainer, "_gate_runtime", None)
    if runtime is not None:
        gate: Gate = runtime.gate
        return gate
    attached = [one for one in trainer.callback_handler.callbacks if isinstance(one, SDPOGate)]
    return attached[0].gate if attached else None


def gate_eps(trainer: Any) -> float:
    """The rounding of measures that the gate of a trainer allows for; an evaluation has the precision of the loss."""
    runtime = getattr(trainer, "_gate_runtime", None)
    return FLOAT32_EPS if runtime is None else float(runtime.eps)


def gate_state(trainer: Any) -> dict[str, Any]:
    """The state of a trainer's gate for a checkpoint; empty without a gate, or if it cannot be stored as JSON."""
    gate = gate_of(trainer)
    if gate is None:
        return {}
    try:
        state: dict[str, Any] = json.loads(json.dumps(gate.state_dict()))
        return state
    except Exception as error:  # of a gate of the user's own
        logger.warning("The state of the gate %s is not in the checkpoint: %r", gate.name, error)
        return {}


def gate_weights(gate: Gate, analysis: Analysis, *, eps: float = FLOAT32_EPS) -> dict[tuple[str, str], Floats]:
    """For each teacher and objective with a teacher, the gate's weight at each of its rows in the node table.

    Empty if the gate has a scorer of its own.

    Args:
        gate: The gate.
        analysis: The analysis.
        eps: `GateBatch.eps` of the forward passes that the rollouts were scored with.
    """
    if gate.scorer is not None:
        return {}  # it scores completions of the trainer's own data set
    paths = _Paths.of(analysis)
    weights: dict[tuple[str, str], Floats] = {}
    by_teacher: dict[str, Floats] = {}
    for teacher, objective in pairs_of(analysis.children):
        if teacher == REWARD:
            continue
        nodes = analysis.nodes
        rows = nodes.filter(pc.and_(pc.equal(nodes["teacher"], teacher), pc.equal(nodes["objective"], objective)))
        at = paths.positions(rows)
        if teacher not in by_teacher:
            exact = {name: rows[name].to_numpy() for name in MEASURES}
            batch = paths.batch(teachers_of(analysis.children).index(teacher), at, exact)
            by_teacher[teacher] = compute_weights(gate, replace(batch, eps=eps)).double().numpy()
        weights[teacher, objective] = by_teacher[teacher][at]
    return weights


@dataclass(frozen=True)
class _Paths:
    """The analyzed rollouts as a batch; `_C` are the rows of the child table.

    Args:
        row_of: Row of the batch by question id and path.
        row_C: Row of the batch.
        depth_C: Position in the completion.
        own_C: Whether it is the completion's own token.
        token_C: Token.
        p_C: The student's probability.
        t_CT: The teachers' probabilities.
        correct_B: Whether the completion is correct.
    """

    row_of: dict[tuple[str, int], int]
    row_C: Ints
    depth_C: Ints
    own_C: Any
    token_C: Ints
    p_C: Floats
    t_CT: Floats
    correct_B: Any

    @staticmethod
    def of(analysis: Analysis) -> _Paths:
        children = analysis.children
        question = children["question"].combine_chunks()
        codes, path_C = question.indices.to_numpy().astype(np.int64), children["path"].to_numpy().astype(np.int64)
        row_C, first_B = group_rows(codes, path_C)
        names = question.dictionary.to_pylist()
        n = len(teachers_of(children))
        flat = children["t"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        return _Paths(
            {(names[codes[at]], int(path_C[at])): row for row, at in enumerate(first_B)},
            row_C,
            children["depth"].to_numpy().astype(np.int64),
            children["own"].to_numpy(),
            children["token"].to_numpy().astype(np.int64),
            children["p"].to_numpy().astype(np.float64),
            flat.reshape(len(row_C), n),
            children["path_correct"].to_numpy()[first_B],
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_of), int(self.depth_C.max(initial=-1)) + 1

    def positions(self, rows: Any) -> tuple[Ints, Ints]:
        """Row and column in the batch of rows of the node table."""
        keys = zip(rows["question"].to_pylist(), rows["path"].to_pylist(), strict=True)
        row_N = np.array([self.row_of[key] for key in keys], np.int64)
        return row_N, rows["depth"].to_numpy().astype(np.int64)

    def batch(self, teacher: int, at: tuple[Ints, Ints], exact: dict[str, Floats]) -> GateBatch:
        """The rollouts as a gate sees them, with the measures of one teacher."""
        own = self.row_C[self.own_C], self.depth_C[self.own_C]
        token_ids_BT, mask_BT = np.zeros(self.shape, np.int64), np.zeros(self.shape, bool)
        token_ids_BT[own], mask_BT[own] = self.token_C[self.own_C], True
        measures = self._measures(self.t_CT[:, teacher])
        for name, value_N in exact.items():
            measures[name][at] = value_N
        outcome_B = np.where(self.correct_B, int(Outcome.CORRECT), int(Outcome.INCORRECT))
        tensors = {name: torch.from_numpy(value_BT).float() for name, value_BT in measures.items()}
        return GateBatch(
            torch.from_numpy(token_ids_BT), torch.from_numpy(mask_BT), torch.from_numpy(outcome_B), tensors.__getitem__
        )

    def _measures(self, t_C: Floats) -> dict[str, Floats]:
        at = self.row_C, self.depth_C
        p_C, t_C = np.maximum(self.p_C, SMALLEST), np.maximum(t_C, SMALLEST)

        def total(term_C: Floats, of_rest: Any) -> Floats:
            """The sum over the tokens of each position, with the tokens that were not kept as one."""
            sum_BT = np.zeros(self.shape)
            np.add.at(sum_BT, at, term_C)
            return sum_BT + of_rest(rest_p_BT, rest_t_BT)

        kept_p_BT, kept_t_BT = np.zeros(self.shape), np.zeros(self.shape)
        np.add.at(kept_p_BT, at, p_C)
        np.add.at(kept_t_BT, at, t_C)
        rest_p_BT, rest_t_BT = np.maximum(1 - kept_p_BT, SMALLEST), np.maximum(1 - kept_t_BT, SMALLEST)
        terms: dict[str, Callable[[Any, Any], Any]] = {
            "kl": lambda p, t: p * np.log(p / t),
            "js": lambda p, t: (p * np.log(2 * p / (p + t)) + t * np.log(2 * t / (p + t))) / 2,
            "student_entropy": lambda p, t: -p * np.log(p),
            "teacher_entropy": lambda p, t: -t * np.log(t),
        }
        measures = {name: np.maximum(total(term(p_C, t_C), term), 0.0) for name, term in terms.items()}
        measures[TEACHER_MASS] = np.zeros(self.shape)
        rank_C = _ranks(self.row_C * self.shape[1] + self.depth_C, -p_C)
        top_C = rank_C < OVERLAP_TOP_K
        np.add.at(measures[TEACHER_MASS], (self.row_C[top_C], self.depth_C[top_C]), t_C[top_C])
        own = self.own_C
        at_own = self.row_C[own], self.depth_C[own]
        sampled = {STUDENT_LOG_PROB: np.log(p_C), TEACHER_LOG_PROB: np.log(t_C), LOG_RATIO: np.log(t_C / p_C)}
        for name, value_C in sampled.items():
            measures[name] = np.zeros(self.shape)
            measures[name][at_own] = value_C[own]
        return measures


def _ranks(group_C: Ints, value_C: Floats) -> Ints:
    """The rank of each value within its group, from 0."""
    order = np.lexsort((value_C, group_C))
    sorted_C = group_C[order]
    first_C = np.searchsorted(sorted_C, sorted_C)
    rank_C = np.empty(len(order), np.int64)
    rank_C[order] = np.arange(len(order)) - first_C
    return rank_C
