"""Demonstrations for the contexts of a training: solutions that the student wrote, kept for all later evaluations.

A question's demonstrations are written when an evaluation first needs them. A student that cannot write them yet may be
able to later: such a question is tried again, after all others. The demonstrations are stored beside the checkpoints,
so that a resumed training uses the same ones; with them, the questions that the latest evaluation selected, so that an
evaluation whose process was killed selects the same ones.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opd_align.runs.filesystem import write_atomic
from opd_align.runs.manifest import question_digest
from opd_align.teachers.contexts import Context, Demonstration
from opd_align.teachers.demonstrations import DemonstrationWriters, collect_demonstrations
from opd_align.teachers.eligibility import missing_demonstrations
from opd_align.training.distributed import EvaluationFailed, on_all_ranks
from opd_align.training.time_limit import TimeLimit
from opd_align.types import Question

logger = logging.getLogger(__name__)

DEMONSTRATIONS = "demonstrations.json"


class NoDemonstrationYet(EvaluationFailed):
    """The student could not write the demonstrations of a context for any question. It may be able to later."""


def is_waiting_for_demonstrations(error: BaseException | None) -> bool:
    """Whether an evaluation ended because there is no demonstration yet; other processes may report it as a cause."""
    while error is not None and not isinstance(error, NoDemonstrationYet):
        error = error.__cause__
    return error is not None


class DemonstrationCache:
    """Demonstrations by question id, in the order in which they were written.

    A question that was tried without success has an entry with too few demonstrations.

    Args:
        contexts: The contexts of the training; those without demonstrations are ignored.
        questions: All held-out questions.
        folder: Where `demonstrations.json` is stored.
    """

    def __init__(self, contexts: Sequence[Context], questions: Sequence[Question], folder: Path) -> None:
        self.contexts = [context for context in contexts if context.correct + context.wrong]
        self.questions, self.file = questions, folder / DEMONSTRATIONS
        self.by_question: dict[str, list[Demonstration]] = {}
        self._selected: tuple[str, list[str]] | None = None  # what was read from the file

    def missing(self, questions: Sequence[Question]) -> dict[str, str]:
        """Question id → the demonstrations that a context lacks."""
        lacking = missing_demonstrations(questions, self.contexts, self.by_question)
        return {
            question_id: f"{context}: {reason}"
            for question_id, reasons in lacking.items()
            for context, reason in reasons.items()
        }

    def ordered(self, questions: Sequence[Question]) -> list[Question]:
        """Questions with demonstrations first, then those never tried, then those tried without success."""
        if not self.contexts:
            return list(questions)
        missing = self.missing(questions)
        position = {question_id: index for index, question_id in enumerate(self.by_question)}

        def rank(question: Question) -> tuple[int, int]:
            if question.id not in missing:
                return 0, position[question.id]
            return (1, 0) if question.id not in position else (2, 0)

        return sorted(questions, key=rank)

    def write(
        self, writers: DemonstrationWriters, questions: Sequence[Question], limit: TimeLimit, rank: int, world: int
    ) -> bool:
        """Lets the student write the missing demonstrations, split over the processes; whether any were missing.

        At the time limit, the demonstrations that are complete are stored, and `TimeLimitExceeded` is raised; otherwise
        `save` stores them. Questions that lack some at the limit were not tried to the end, so they do not count as
        tried without success.
        """
        missing = self.missing(questions)
        incomplete = [question for question in questions if question.id in missing]
        if not incomplete:
            return False
        own = incomplete[rank::world]
        written: dict[str, list[Demonstration]] = {}
        parts = on_all_ranks(
            lambda: (collect_demonstrations(writers, self.contexts, own) if own else {}, limit.exceeded),
            "demonstrations",
        )
        for part, _ in parts:
            written |= part
        if any(exceeded for _, exceeded in parts):
            lacking = missing_demonstrations(incomplete, self.contexts, written)
            incomplete = [question for question in incomplete if question.id not in lacking]
        for question in incomplete:
            self.by_question.pop(question.id, None)  # to the end: new ones come last
            self.by_question[question.id] = written[question.id]
        if any(exceeded for _, exceeded in parts):
            self.save("", [], rank)
        on_all_ranks(limit.check, "demonstrations")
        return True

    def save(self, key: str, selected: Sequence[Question], rank: int) -> None:
        """Stores the demonstrations; all ranks call it.

        Args:
            key: The evaluation that they were written for.
            selected: The questions that it selected.
            rank: This process; rank 0 writes the file.
        """
        ids = [question.id for question in selected]
        on_all_ranks(lambda: self._save(key, ids) if rank == 0 else None, "saving demonstrations")

    def selected_before(self, key: str) -> list[str] | None:
        """The questions that this evaluation had selected when its process ended; `None` if it had not. Once only."""
        (stored, ids), self._selected = self._selected or ("", []), None
        return ids if key and stored == key else None

    def load(self, rank: int) -> None:
        """Reads the demonstrations of the training that is resumed, if they belong to these questions and contexts.

        All ranks call it and get those of rank 0: the others may not see its files.
        """

        def read() -> tuple[dict[str, list[Demonstration]], tuple[str, list[str]] | None]:
            try:
                stored = json.loads(self.file.read_text(encoding="utf-8"))
                if stored["of"] == self._key():
                    found = {
                        question_id: [Demonstration(**fields) for fields in demonstrations]
                        for question_id, demonstrations in stored["found"].items()
                    }
                    key, ids = stored.get("selected", ("", []))
                    return found, (str(key), [str(each) for each in ids])
            except FileNotFoundError:
                pass
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                logger.warning("Cannot read %s, new demonstrations will be generated: %r", self.file, error)
            return {}, None

        if self.contexts and not self.by_question:
            found, self._selected = on_all_ranks(lambda: read() if rank == 0 else ({}, None), "reading demonstrations")[
                0
            ]
            self.by_question.update(found)

    def _save(self, key: str, selected: Sequence[str]) -> None:
        found = {
            question_id: [asdict(demonstration) for demonstration in demonstrations]
            for question_id, demonstrations in self.by_question.items()
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        stored = {"of": self._key(), "found": found, "selected": [key, list(selected)]}
        write_atomic(self.file, json.dumps(stored, indent=1).encode())

    def _key(self) -> dict[str, Any]:
        """What the demonstrations depend on."""
        return {
            "contexts": [[each.name, each.correct, each.wrong, each.summarised] for each in self.contexts],
            "questions": {question.id: question_digest(question) for question in self.questions},
        }
