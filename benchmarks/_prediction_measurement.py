"""What is measured before any training: all teachers on the same rollouts of the student.

The evidence of each question is kept in a file, so that the predictors can be computed again, with another estimator
for example, without sampling. For each teacher, only its own scores are used: the result is what an analysis of this
teacher alone would give on these rollouts.
"""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _prediction_models import sample
from _prediction_teachers import CONTEXTS, MAX_TOKENS, Entry, World
from _prediction_training import correct_counts

from opd_align.backends.hf import HFTeacher
from opd_align.core import metrics
from opd_align.core.collect import Evidence, collect
from opd_align.core.engine import Analysis, QuestionResult, _question_result, combine_results
from opd_align.core.estimate import estimate
from opd_align.core.objectives import ForwardKL, GeneralisedJSD, MiniLLM, Nodes, Objective, ReverseKL, unified_update
from opd_align.core.reward_to_go import log_ratio, reward_to_go
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Settings
from opd_align.teachers.contexts import ContextPrompt
from opd_align.types import Floats, PathScores, Question

TO_GO_ROLLOUTS = 400
"""Rollouts per question that the reward-to-go of MiniLLM is averaged over: each needs a forward pass per teacher."""


@dataclass(frozen=True)
class RewardAndDistillation:
    """Rewards on correct rollouts, KL(student ‖ teacher) on incorrect ones: the loss of `GatedGRPOTrainer`.

    A rollout through child k is correct with probability Q_k and then has the advantage (1 − m) / √(m (1 − m)), with
    the pass rate m; the node lies on an incorrect rollout, and is distilled, with probability 1 − Σ p Q.
    """

    name: str = "grpo+distillation"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        m = float(np.clip(nodes.mean_reward, 0.05, 0.95))
        failure_N1 = 1 - (nodes.p * nodes.q).sum(-1, keepdims=True)
        reward = unified_update(nodes.p, nodes.q * (1 - m) / (m * (1 - m)) ** 0.5)
        return reward + failure_N1 * unified_update(nodes.p, nodes.log_t - nodes.log_p)


def objective_of(loss: str) -> Objective:
    jsd = re.fullmatch(r"jsd\((.*)\)", loss)
    if jsd:
        return GeneralisedJSD(float(jsd[1]))
    known: tuple[Objective, ...] = (ReverseKL(), ForwardKL(), MiniLLM(), RewardAndDistillation())
    return next(objective for objective in known if objective.name == loss)


def collect_evidence(
    world: World, entries: Sequence[Entry], folder: Path, *, initial: int, targeted: int
) -> list[Evidence]:
    """Rollouts and scores of all measured questions; each question's file is written once."""
    teachers = {entry.model_key: entry for entry in entries}
    student = world.sampler(world.student_model)
    settings = Settings(budget=Budget(initial=initial, targeted=targeted, allocation="adaptive", rounds=4))
    scored = [HFTeacher(key, world.build(entry), world.prompt) for key, entry in teachers.items()]
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, question in enumerate(world.measured_questions):
        file = folder / f"{question.id}.pickle"
        if not file.exists():
            start = time.monotonic()
            evidence = collect(student, scored, question, world.grader, settings=settings)
            evidence = replace(evidence, to_go=_to_go(world, entries, evidence))
            # Not the tree itself: numpy changes the byte order that it relies on.
            file.write_bytes(pickle.dumps((replace(evidence, tree=None), evidence.tree.rollouts())))
            print(f"measured question {number + 1}: {time.monotonic() - start:.0f} s", flush=True)
        evidence, rollouts = pickle.loads(file.read_bytes())
        found.append(replace(evidence, tree=GenerationTree.build(rollouts)))
    return found


def _to_go(world: World, entries: Sequence[Entry], evidence: Evidence) -> list[dict[str, Floats]]:
    """The reward-to-go along each path, for the teachers that are distilled with MiniLLM."""
    names = {entry.model_key: entry for entry in entries if entry.loss == "minillm"}
    if not names:
        return [{} for _ in evidence.paths]
    tree = evidence.tree
    keep_R = np.zeros(len(tree), bool)
    keep_R[np.argsort(tree.key_R, kind="stable")[:TO_GO_ROLLOUTS]] = True
    keep_R |= tree.launch_R == tree.length_R  # endings that are certain
    tree = tree.subset(keep_R)
    student, ends = world.sampler(world.student_model), np.array(world.end_tokens, np.uint32)
    rollouts = tree.rollouts()
    log_p = student.token_log_probs(evidence.question, rollouts, None)
    to_go: list[dict[str, Floats]] = [{} for _ in evidence.paths]
    for key, entry in names.items():
        teacher = HFTeacher(key, world.build(entry), world.prompt)
        ratio = log_ratio(student.token_log_probs(evidence.question, rollouts, teacher), log_p)
        for by_teacher, scores in zip(to_go, evidence.paths, strict=True):
            by_teacher[key] = reward_to_go(tree, scores, key, ratio, ends=ends)
    return to_go


def analysis_of(evidence: Sequence[Evidence], entry: Entry) -> Analysis:
    """The analysis of one teacher with its loss."""
    settings = Settings(objectives=(objective_of(entry.loss),))
    results: list[QuestionResult] = []
    for each in evidence:
        own = replace(each, paths=[_only(path, entry) for path in each.paths])
        to_go = [{entry.name: path[entry.model_key]} if entry.model_key in path else {} for path in each.to_go]
        own = replace(own, to_go=to_go)
        results.append(_question_result(_NoText(), [_Named(entry.name)], own, settings))
    return combine_results(results, settings)


@dataclass(frozen=True)
class _Named:
    name: str


class _NoText:
    """A student of which only the text of tokens would be asked."""


def _only(path: PathScores, entry: Entry) -> PathScores:
    return replace(path, teachers={entry.name: path.teachers[entry.model_key]})


def predictors(evidence: Sequence[Evidence], entry: Entry) -> dict[str, Any]:
    """Every predictor of one teacher that follows from the evidence, with the half-width of its 95 % interval."""
    from opd_align.core.whole_update import whole_update

    analysis = analysis_of(evidence, entry)
    objective = objective_of(entry.loss).name
    (rank,) = metrics.teacher_ranking(analysis.nodes, objective)
    whole = whole_update(analysis, entry.name, objective)
    return {
        "weighted_alignment": (rank.weighted_cosine.mean, rank.weighted_cosine.half_width),
        "whole_update_cosine": (whole.cosine.mean, whole.cosine.half_width),
        "mean_alignment": (rank.alignment.mean, rank.alignment.half_width),
        "first_order_gain": (whole.gain.mean, whole.gain.half_width),
        "advantage": (rank.advantage.mean, rank.advantage.half_width),
        "questions": rank.n_questions,
    }


RARE = 0.01


def rare_tokens(evidence: Sequence[Evidence]) -> dict[str, float]:
    """What becomes of rollouts that are forced through tokens below `RARE`, beside the value of the same prefixes.

    `choice` is the share of positions with at least two tokens that count for the student.
    """
    wins = visits = value = choices = positions = 0.0
    for each in evidence:
        for scores, estimated in zip(each.paths, estimate(each.tree, each.paths), strict=True):
            counts = each.tree.counts_along(scores.completion_T).reindex(scores.offsets, scores.token_C)
            rare_C = (scores.log_p_C < np.log(RARE)) & ~scores.on_path_C
            wins += counts.evidence_wins_C[rare_C].sum()
            visits += counts.evidence_C[rare_C].sum()
            value += (counts.evidence_C * estimated.value_T[scores.depth_C])[rare_C].sum()
            likely_T = np.bincount(scores.depth_C, scores.log_p_C > np.log(Settings().rules.tau), len(scores))
            choices += (likely_T >= 2).sum()
            positions += len(scores)
    return {"success": wins / visits, "value": value / visits, "choice": choices / positions, "rollouts": visits}


def own_accuracy(world: World, entry: Entry, questions: list[Question]) -> float:
    """Pass rate of the teacher's own samples at temperature 1."""
    if entry.kind == "mixture":
        two_step = [world.is_two_step(world.prompt(question)) for question in questions]
        sides = [
            (side, [each for each, is_two in zip(questions, two_step, strict=True) if is_two is wanted])
            for side, wanted in zip(world.sides(entry.params), (True, False), strict=True)
        ]
        return sum(own_accuracy(world, side, own) * len(own) for side, own in sides) / len(questions)
    if entry.kind == "context":
        # Demonstrations exist for these questions only.
        prompt = ContextPrompt(world.chat, world.task, CONTEXTS[entry.params["context"]], world.demonstrations)
        sampler = world.sampler(world.student_model, prompt=prompt)
        counts = correct_counts(world, sampler, world.measured_questions, samples=8, seed=0)
        return sum(counts) / (8 * len(counts))
    end = world.tokenizer.convert_tokens_to_ids("<|im_end|>")
    prompts = [world.prompt(question) for question in questions]
    completions = sample(world.build(entry), prompts, max_tokens=MAX_TOKENS, end=end, seed=0)
    # A truncated completion is incorrect.
    texts = [world.chat.decode(tokens) if tokens[-1] == end else "" for tokens in completions.tolist()]
    verdicts = world.task.verifier(completions=texts, answer=[question.answer for question in questions])
    return float(np.mean([verdict == 1 for verdict in verdicts]))
