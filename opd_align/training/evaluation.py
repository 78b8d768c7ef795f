"""One evaluation, given its models: select the questions, write demonstrations, analyze, in a run directory.

What is here is shared by the callback, which evaluates the live models of a trainer (`evaluator`), and by
`opd-align watch`, which evaluates checkpoints in a process of its own (`study.watch`): the same models and questions
give the same bytes. Nothing here knows a trainer. With several processes, all of them call these methods together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from opd_align.backends.chat import Chat
from opd_align.core.engine import Analysis
from opd_align.runs.execute import LocalExecutor, execute_run
from opd_align.runs.manifest import RunMismatch, describe
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Settings
from opd_align.teachers.contexts import SELF, Context
from opd_align.teachers.demonstrations import DemonstrationSource, DemonstrationWriters, NoGrading, TrialBudget
from opd_align.teachers.eligibility import prompts_too_long
from opd_align.training.demonstration_cache import DemonstrationCache, NoDemonstrationYet
from opd_align.training.distributed import EvaluationFailed, RankExecutor, on_all_ranks
from opd_align.training.held_out import HeldOut
from opd_align.training.overhead import MIN_QUESTIONS, group_size, num_questions, questions_per_rank
from opd_align.training.time_limit import TimeLimit
from opd_align.types import Question

logger = logging.getLogger(__name__)

OWN = "teacher"
"""The name of the trainer's own teacher."""

DEFAULT_BUDGET = Budget(initial=32, targeted=512, allocation="adaptive", rounds=3)
"""Rollouts per question by default; in few rounds, since each round takes as long as its longest rollout."""

QUESTIONS_PER_GROUP = 4
"""Questions whose rollouts are sampled in one call."""

REPLACEMENT_ROUNDS = 3
"""How often an evaluation replaces questions for which the student could not write demonstrations."""


@dataclass(frozen=True)
class EvaluatedModels:
    """The models of one evaluation.

    Args:
        student: The student, a `TimedStudent`.
        writers: The student as writer of demonstrations.
        teachers: The teachers, in the order of the results.
        precision: The precision in which they are scored, in words; part of the manifest.
    """

    student: Any
    writers: DemonstrationWriters
    teachers: Sequence[Any]
    precision: str | None = None


class HeldOutEvaluation:
    """Evaluations on the held-out questions of one training.

    Args:
        held_out: The questions and their verifier.
        contexts: The contexts of all teachers that have one.
        chat: The student's tokenizer and chat template.
        max_tokens: Maximum length of a completion, in tokens.
        folder: Where run directories and demonstrations are stored.
        rank: This process.
        world: The number of processes that share the questions.
    """

    def __init__(
        self,
        held_out: HeldOut,
        contexts: Sequence[Context],
        chat: Chat,
        *,
        max_tokens: int,
        folder: Path,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.held_out, self.contexts, self.chat = held_out, tuple(contexts), chat
        self.max_tokens, self.folder, self.rank, self.world = max_tokens, folder, rank, world
        self.demonstrations = DemonstrationCache(self.contexts, held_out.questions, folder)
        self.num_selected = 0
        self._logged_exclusions: set[str] = set()

    def prompting(self, context: Context | None = None) -> Any:
        """From a question to token ids, for the student or for a teacher with a context."""
        return self.held_out.prompting(self.chat, context, self.demonstrations.by_question)

    def plain_prompt(self, question: Question) -> tuple[int, ...]:
        """The text of a question as a message, without a task's instruction: for summaries."""
        return self.chat.prompt([{"role": "user", "content": question.text}])

    @property
    def needs_summaries(self) -> bool:
        return any(context.summarised for context in self.contexts)

    def writers(self, student: Any, summarising: Any = None, state: Any = None) -> DemonstrationWriters:
        """The student with its present weights writes the demonstrations and summarises them.

        Args:
            student: The student, a `TimedStudent`.
            summarising: The same with `plain_prompt`; `None` unless `needs_summaries`.
            state: The trainer's state, for reward functions that read it.
        """
        grader = self.held_out.grader(self.chat, student.end_tokens, state)
        source = DemonstrationSource(SELF, student.without_errors(), self.chat.decode, grader)
        summariser = None
        if summarising is not None:
            summariser = DemonstrationSource("summariser", summarising.without_errors(), self.chat.decode, NoGrading())
        return DemonstrationWriters({SELF: source}, summariser, TrialBudget())

    def run(self, models: EvaluatedModels, settings: Settings, step: int, scale: float = 1.0) -> tuple[Analysis, str]:
        """The analysis at this step on a share `scale` of the questions, and the name of its run directory.

        The questions of a smaller share are also in a larger one. Fewer questions save more time than fewer rollouts
        per question, since a batch takes as long as its longest rollout, and the estimates stay as precise.
        """
        questions = self._select_questions(models, scale)
        self.num_selected, largest = len(questions), settings.questions_per_group
        settings = replace(settings, questions_per_group=group_size(len(questions), self.world, largest))
        grader = models.writers.sources[SELF].grader

        def open_directory() -> RunDirectory:
            manifest = describe(models.student, models.teachers, questions, grader, settings)
            return self._directory(f"step-{step:06d}", {**manifest, "precision": models.precision})

        local = LocalExecutor(models.student, models.teachers, grader, settings)
        executor = RankExecutor(local, self.rank, self.world, self.folder)
        analysis, path = execute_run(executor, open_directory, questions, settings)
        return analysis, path.name

    def time_limit(self, settings: Settings, scale: float = 1.0, time_limit_s: float | None = None) -> TimeLimit:
        """The smaller of the evaluation's own limit and what `Budget.seconds` permits one rank's questions."""
        limits = [] if time_limit_s is None else [time_limit_s]
        if settings.budget.seconds is not None:
            questions = num_questions(len(self.held_out.questions), scale)
            # As much again for demonstrations, scores and set-up.
            limits.append(2 * questions_per_rank(questions, self.world) * settings.budget.seconds)
        return TimeLimit(min(limits) if limits else None)

    def exclude_too_long(self, student: Any) -> dict[str, str]:
        """Question id → why its prompt does not fit the student; each is logged once."""
        reasons = prompts_too_long(student, self.held_out.questions, self.max_tokens)
        self._log_excluded(reasons)
        return reasons

    def _directory(self, name: str, manifest: Mapping[str, Any]) -> RunDirectory:
        """A run directory of that name, or with a number appended if another run has it (a training started again)."""
        number = 1
        while True:
            try:
                return RunDirectory(self.folder / (name if number == 1 else f"{name}-{number}"), manifest)
            except RunMismatch:
                number += 1

    def _select_questions(self, models: EvaluatedModels, scale: float) -> list[Question]:
        """A share of the questions that are usable for the student and for all teachers.

        Questions of earlier evaluations come first. Where the student cannot write the demonstrations of a context,
        other questions replace it, for a few rounds: each costs at worst as many trials as a whole evaluation.
        """
        student, teachers = models.student, models.teachers
        reasons = dict(
            on_all_ranks(lambda: prompts_too_long(student, self.held_out.questions, self.max_tokens), "questions")[0]
        )
        usable = [question for question in self.held_out.questions if question.id not in reasons]
        wanted = max(MIN_QUESTIONS, num_questions(len(usable), scale))
        key = on_all_ranks(lambda: f"{student.fingerprint} {wanted}", "weights")[0] if self.contexts else ""
        candidates, selected, rounds = self.demonstrations.ordered(usable), list[Question](), 0
        interrupted = self.demonstrations.selected_before(key)
        if interrupted is not None:  # the same evaluation, in a process that was killed
            candidates, wanted = [each for each in candidates if each.id in interrupted], len(interrupted)
            tried = [each for each in usable if each.id in self.demonstrations.by_question]
            reasons |= self.demonstrations.missing(tried)
        while candidates and len(selected) < wanted and rounds < REPLACEMENT_ROUNDS:
            count = wanted - len(selected)
            batch, candidates = candidates[:count], candidates[count:]
            rounds += self.demonstrations.write(models.writers, batch, student.limit, self.rank, self.world)
            reasons |= self.demonstrations.missing(batch)
            remaining = [question for question in batch if question.id not in reasons]
            reasons |= on_all_ranks(partial(_too_long_for, teachers, remaining, self.max_tokens), "teachers' prompts")[
                0
            ]
            selected += [question for question in batch if question.id not in reasons]
        if rounds:
            self.demonstrations.save(key, selected, self.rank)
        without = reasons.keys() & self.demonstrations.missing(usable).keys()
        # As long as no question has a demonstration, one message for all of them is enough.
        if self.rank == 0:
            self._log_excluded({name: reason for name, reason in reasons.items() if selected or name not in without})
        if not selected and without:
            names = ", ".join(context.name for context in self.demonstrations.contexts)
            raise NoDemonstrationYet(
                f"the student could not write the demonstrations of {names} for any of the {len(without)} questions "
                "that were tried; the next evaluation tries again"
            )
        if not selected:
            raise EvaluationFailed(f"no held-out question is usable; the last one: {[*reasons.values()][-1]}")
        return selected

    def _log_excluded(self, reasons: Mapping[str, str]) -> None:
        """Logs each excluded question once."""
        for question_id, reason in reasons.items():
            if question_id not in self._logged_exclusions:
                logger.warning("Excluding held-out question %r: %s", question_id, reason)
        self._logged_exclusions |= reasons.keys()


def _too_long_for(teachers: Sequence[Any], questions: Sequence[Question], max_tokens: int) -> dict[str, str]:
    """Question id → why a teacher's prompt does not fit."""
    reasons: dict[str, str] = {}
    for teacher in teachers:
        reasons |= prompts_too_long(teacher, [each for each in questions if each.id not in reasons], max_tokens)
    return reasons
