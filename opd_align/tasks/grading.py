"""From sampled tokens to outcomes: decode, judge, map.

The engine's `Grader` for tasks whose replies are text. Text without an answer is incorrect, as in the paper's pass
rates; a verdict that nobody could reach stays unknown. Completions that are the same tokens are judged once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opd_align.tasks.task import Task
from opd_align.tasks.verify import Verdict
from opd_align.types import Outcome, Question, Rollouts

OUTCOME_OF = {
    Verdict.CORRECT: Outcome.CORRECT,
    Verdict.INCORRECT: Outcome.INCORRECT,
    Verdict.UNPARSEABLE: Outcome.INCORRECT,
    Verdict.UNKNOWN: Outcome.UNKNOWN,
}


@dataclass(frozen=True)
class TextGrader:
    """Grades rollouts by what they say; `end_tokens` at the end of a completion are not part of that."""

    task: Task
    decode: Callable[[Sequence[int]], str]
    end_tokens: Collection[int] = ()

    @property
    def fingerprint(self) -> str:
        return f"{self.task.name}:{self.task.verifier.fingerprint}"

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        return np.array([OUTCOME_OF[verdict] for verdict in self.verdicts(question, rollouts)], np.int8)

    def verdicts(self, question: Question, rollouts: Rollouts) -> list[Verdict]:
        """One verdict per row, for those who tell the wrong from the unreadable."""
        judged: dict[bytes, Verdict] = {}
        verdicts = []
        for row in range(len(rollouts)):
            tokens = rollouts.completion(row)
            key = tokens.tobytes()
            if key not in judged:
                judged[key] = self._judge(question, tokens.tolist())
            verdicts.append(judged[key])
        return verdicts

    def _judge(self, question: Question, tokens: list[int]) -> Verdict:
        while tokens and tokens[-1] in self.end_tokens:
            tokens = tokens[:-1]
        return self.task.verifier.judge(self.decode(tokens), question.answer, question.fields.get("choices"))
