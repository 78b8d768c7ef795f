"""What the contexts of a training show: solutions that the student wrote, and the same ones ever after.

A question's demonstrations are written when an evaluation first needs them. A student that cannot write them yet may
well later: such a question is tried again, after all others. What was found is kept beside the checkpoints, for a
training that is resumed.
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
from opd_align.training.distributed import on_all_ranks
from opd_align.types import Question

logger = logging.getLogger(__name__)

DEMONSTRATIONS = "demonstrations.json"


class DemonstrationCache:
    """Demonstrations by question, in the order in which they were found; those tried in vain hold too few."""

    def __init__(self, contexts: Sequence[Context], questions: Sequence[Question], folder: Path) -> None:
        self.contexts = [each for each in contexts if each.correct + each.wrong]
        self.questions, self.file = questions, folder / DEMONSTRATIONS
        self.found: dict[str, list[Demonstration]] = {}

    def lacking(self, questions: Sequence[Question]) -> dict[str, str]:
        """Question → what a context misses."""
        missing = missing_demonstrations(questions, self.contexts, self.found)
        return {name: f"{context}: {why}" for name, by in missing.items() for context, why in by.items()}

    def in_turn(self, questions: Sequence[Question]) -> list[Question]:
        """The order in which to ask: what was asked before, what was never tried, what was tried in vain."""
        if not self.contexts:
            return list(questions)
        lacking, place = self.lacking(questions), {name: at for at, name in enumerate(self.found)}

        def turn(question: Question) -> tuple[int, int]:
            if question.id not in lacking:
                return 0, place[question.id]
            return (1, 0) if question.id not in place else (2, 0)

        return sorted(questions, key=turn)

    def write(self, cast: DemonstrationWriters, questions: Sequence[Question], rank: int, world: int) -> bool:
        """Lets the student write what these questions lack, spread over the processes; whether any lacked something."""
        lacking = self.lacking(questions)
        open_ones = [question for question in questions if question.id in lacking]
        mine = open_ones[rank::world]
        written: dict[str, list[Demonstration]] = {}
        for share in (
            on_all_ranks(lambda: collect_demonstrations(cast, self.contexts, mine) if mine else {}) if open_ones else ()
        ):
            written |= share
        for question in open_ones:
            self.found.pop(question.id, None)  # to the end: what is new comes last
            self.found[question.id] = written[question.id]

        def keep() -> None:
            if not rank:
                found = {name: [asdict(each) for each in by] for name, by in self.found.items()}
                self.file.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"of": self._needed(), "found": found}, indent=1)
                write_atomic(self.file, text.encode())

        if open_ones:
            on_all_ranks(keep)
        return bool(open_ones)

    def recall(self) -> None:
        """Takes up what was shown before a training was resumed, if it was shown of these questions."""

        def read() -> dict[str, list[Demonstration]]:
            try:
                stored = json.loads(self.file.read_text(encoding="utf-8"))
                if stored["of"] == self._needed():
                    return {name: [Demonstration(**each) for each in by] for name, by in stored["found"].items()}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                logger.warning("%s cannot be read, the student writes other demonstrations: %r", self.file, error)
            return {}

        if self.contexts and not self.found:
            self.found.update(on_all_ranks(read)[0])

    def _needed(self) -> dict[str, Any]:
        """What demonstrations are for."""
        return {
            "contexts": [[each.name, each.correct, each.wrong, each.summarised] for each in self.contexts],
            "questions": {question.id: question_digest(question) for question in self.questions},
        }
