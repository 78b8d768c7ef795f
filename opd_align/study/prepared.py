"""What the preparation of a study found: the questions to analyze, and why others are skipped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opd_align.teachers.contexts import Demonstration
from opd_align.types import Question


class SkippedQuestionsWarning(UserWarning):
    """A question is skipped, with the reason."""


@dataclass(frozen=True)
class PreparedStudy:
    """What an analysis starts from.

    Args:
        demonstrations: The demonstrations for the teachers' prompts, by question ID.
        questions: The questions to analyze.
        skipped: The questions that are not analyzed: ID → reason.
        partly: The questions that are analyzed without some of the teachers: ID → teacher → reason.
    """

    demonstrations: Mapping[str, Sequence[Demonstration]]
    questions: Sequence[Question]
    skipped: Mapping[str, str]
    partly: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def warn(self) -> None:
        """Warns about the questions that are skipped, or analyzed without some of the teachers."""
        for name, by_teacher in self.partly.items():
            reasons = "; ".join(f"{teacher}: {reason}" for teacher, reason in by_teacher.items())
            warnings.warn(f"question {name!r} is analyzed without {reasons}", SkippedQuestionsWarning, stacklevel=3)
        for name, reason in self.skipped.items():
            warnings.warn(f"skipping question {name!r}: {reason}", SkippedQuestionsWarning, stacklevel=3)
