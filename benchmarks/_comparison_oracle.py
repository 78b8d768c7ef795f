"""Oracle gate: weights from success probabilities that are measured on the training batch itself.

For every completion of a batch, rollouts of the student measure the success probability `Q_k` after each likely next
token along the completion, as an analysis does along its paths. At every node this gives the first-order effect of
reverse KL (`beta=1`), whose direction is `f = log t − log p`:

    gain        Cov_p(Q, f), the change of the success rate at that node along p ∝ p exp(ε f)
    p_positive  posterior probability that the update points toward success, <p (Q − V), p (f − mean f)> > 0

No practical gate can afford this: it takes thousands of rollouts per step. It is an upper bound: where training with it
is not better than without a gate, a cheaper guess of the same signs cannot be either.

The completion itself is graded, but it is no evidence about the nodes it passes. All completions of a batch are sampled
together. Nothing of the training is changed: mode, caches and random number generators are as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.core.alignment import significant
from opd_align.core.collect import collect_group
from opd_align.core.estimate import estimate
from opd_align.core.objectives import LOG_FLOOR, unified_update
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.reliability import p_positive
from opd_align.settings import Budget, Rules, Sampling, Settings
from opd_align.tasks import Task
from opd_align.tasks.grading import TextGrader
from opd_align.training.gates import Gate, GateBatch
from opd_align.training.model_state import preserve_model_state, unwrapped
from opd_align.types import Floats, OpdAlignError, PathScores, Question

Mode = Literal["sign", "soft", "rollout"]

TEACHER = "teacher"
INITIAL_SHARE = 0.25
"""Share of the rollouts that start at the prompt; the others start at children along the completion."""
ROUNDS = 2
"""Rounds of targeted rollouts. Each has to wait for its longest rollout, so more of them cost more."""
BATCH_ROWS = 4096
"""Rollouts that are decoded together: with a small model the cost of a step hardly depends on their number."""


@dataclass(frozen=True)
class NodeEffects:
    """What reverse KL does to success at each token of a completion; NaN at nodes that decide nothing.

    These are nodes without two likely tokens whose success probability was measured.

    Args:
        gain_T: First-order gain in success.
        p_positive_T: Posterior probability that the update points toward success.
    """

    gain_T: Floats
    p_positive_T: Floats

    @staticmethod
    def unknown(length: int) -> NodeEffects:
        return NodeEffects(np.full(length, np.nan), np.full(length, np.nan))


class OracleGate(Gate):
    """Keeps the tokens at which distillation raises the success probability, as measured by rollouts.

    Args:
        task: Verifies completions; the data set needs its column `answer`.
        teacher_model: The teacher of the training. It reads the same prompts as the student.
        tokenizer: The tokenizer of both.
        mode: "sign" keeps the tokens at which the update probably points toward success (`p_positive` of 0.5 or more),
            and none where it was not measured. "soft" has the weight `2 p_positive`, from 0 (surely harmful) to 2
            (surely helpful), and 1 where it was not measured: a gate that knows nothing makes the same step as no gate.
            "rollout" keeps all tokens of a completion if their gains sum to 0 or more, and none otherwise.
        rollouts: Number of rollouts per completion.
        seed: Random seed of the rollouts.
    """

    def __init__(
        self,
        task: Task,
        teacher_model: Any,
        tokenizer: Any,
        mode: Mode = "sign",
        *,
        rollouts: int = 160,
        seed: int = 0,
    ) -> None:
        if mode not in get_args(Mode):
            raise OpdAlignError(f"unknown mode {mode!r}; choose one of {', '.join(get_args(Mode))}")
        if rollouts < 8:
            raise OpdAlignError(f"rollouts must be at least 8, not {rollouts}")
        self.task, self.teacher_model, self.tokenizer = task, teacher_model, tokenizer
        self.mode, self.rollouts, self.seed = mode, rollouts, seed
        self.latest: list[NodeEffects] = []

    @property
    def name(self) -> str:
        return f"oracle_{self.mode}"

    def scorer(
        self, trainer: Any, prompts: Sequence[Any], token_ids: Sequence[Sequence[int]], columns: Mapping[str, Any]
    ) -> list[list[float]]:
        """The weight of every token."""
        student = unwrapped(trainer.accelerator, trainer.model)
        self.latest = self.effects(
            student,
            prompts,
            token_ids,
            columns["answer"],
            temperature=trainer.args.temperature,
            max_tokens=trainer.args.max_completion_length,
        )
        return [weights(effects, self.mode).tolist() for effects in self.latest]

    def __call__(self, batch: GateBatch) -> Tensor:
        if batch.score_BT is None:
            raise OpdAlignError("this gate needs a trainer, which scores completions once they are generated")
        return batch.score_BT * batch.mask_BT

    def extra_metrics(self) -> dict[str, float]:
        """Of this process's completions."""
        known = [np.isfinite(effects.gain_T) for effects in self.latest]
        gains = [float(np.nansum(effects.gain_T)) for effects in self.latest]
        positive = [effects.p_positive_T[here] for effects, here in zip(self.latest, known, strict=True)]
        if not gains:
            return {}
        found = {
            "oracle/nodes": float(np.mean([here.sum() for here in known])),
            "oracle/gain": float(np.mean(gains)),
            "oracle/completions_harmed": float(np.mean(np.array(gains) < 0)),
        }
        if sum(map(len, positive)):
            found["oracle/p_positive"] = float(np.concatenate(positive).mean())
        return found

    def effects(
        self,
        student: Any,
        prompts: Sequence[Any],
        token_ids: Sequence[Sequence[int]],
        answers: Sequence[str],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[NodeEffects]:
        """Samples around every completion and returns what distillation does to success at its tokens."""
        chat = Chat(self.tokenizer)
        ends = chat.end_tokens(student.config)
        # Numbered, so that two completions of the same prompt get rollouts of their own.
        questions = [Question(str(number), answer=answer) for number, answer in enumerate(answers)]
        ids = {question.id: chat.prompt(prompt) for question, prompt in zip(questions, prompts, strict=True)}
        sampling = Sampling(temperature, max_tokens=max_tokens, seed=self.seed)

        def prompt_ids(question: Question) -> tuple[int, ...]:
            return ids[question.id]

        initial = max(1, round(INITIAL_SHARE * self.rollouts))
        targeted = self.rollouts - initial
        budget = Budget(initial=initial, targeted=targeted, allocation="adaptive", rounds=ROUNDS)
        with preserve_model_state(student, self.teacher_model, tokenizer=self.tokenizer):
            evidence = collect_group(
                HFStudent("student", student, prompt_ids, ends, sampling, batch_rows=BATCH_ROWS),
                [HFTeacher(TEACHER, self.teacher_model, prompt_ids)],
                questions,
                TextGrader(self.task, chat.decode, ends),
                settings=Settings(budget=budget),
                completions=[np.asarray(tokens, np.uint32) for tokens in token_ids],
            )
        found = []
        for tokens, each in zip(token_ids, evidence, strict=True):
            # The path was given, not chosen among the rollouts, so none of them has to stand for it.
            estimates = estimate(each.tree, each.paths, share=0.0)
            effects = [node_effects(scores, values) for scores, values in zip(each.paths, estimates, strict=True)]
            found.append(effects[0] if effects else NodeEffects.unknown(len(tokens)))
        return found


def node_effects(scores: PathScores, values: PathEstimate, rules: Rules | None = None) -> NodeEffects:
    """Gain and sign of reverse KL at every node of a path, over its significant children."""
    kept = np.flatnonzero(significant(scores, values, rules or Rules(), TEACHER))
    effects = NodeEffects.unknown(len(scores))
    if not len(kept):
        return effects
    depth_N, first_N, size_N = np.unique(scores.depth_C[kept], return_index=True, return_counts=True)
    column_K = np.arange(size_N.max())
    # Shorter rows repeat their last child, which counts once.
    child_NK = kept[first_N[:, None] + np.minimum(column_K, size_N[:, None] - 1)]
    counts_NK = column_K < size_N[:, None]
    log_p_NK, log_t_NK = (
        _restricted(log_C[child_NK], counts_NK) for log_C in (scores.log_p_C, scores.teachers[TEACHER].log_t_C)
    )
    p_NK = np.where(counts_NK, np.exp(log_p_NK), 0.0)
    update_NK = unified_update(p_NK, log_t_NK - log_p_NK)
    effects.gain_T[depth_N] = (update_NK * values.q_C[child_NK]).sum(-1)
    effects.p_positive_T[depth_N] = p_positive(values, child_NK, depth_N, p_NK, update_NK)
    return effects


def weights(effects: NodeEffects, mode: Mode) -> Floats:
    """The weight of every token of one completion."""
    if mode == "rollout":
        return np.full(len(effects.gain_T), float(np.nansum(effects.gain_T) >= 0))
    positive_T = effects.p_positive_T
    return (positive_T >= 0.5).astype(float) if mode == "sign" else np.where(np.isnan(positive_T), 1.0, 2 * positive_T)


def _restricted(log_NK: Floats, counts_NK: Any) -> Floats:
    """Log-probabilities renormalised on the children that count; the others keep a finite value."""
    log_NK = np.maximum(log_NK, LOG_FLOOR)
    total_N1 = np.logaddexp.reduce(np.where(counts_NK, log_NK, -np.inf), axis=-1, keepdims=True)
    return np.maximum(log_NK - total_N1, LOG_FLOOR)
