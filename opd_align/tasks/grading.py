"""Grades sampled tokens: decodes them, verifies the text, maps the verdict to an outcome.

The engine's `Grader` for tasks with text responses. Text without an answer is incorrect, as in the paper's pass rates;
an unknown verdict stays unknown. Identical completions are verified once.
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
    """Grades rollouts with a task's verifier.

    Args:
        task: Task whose verifier is used.
        decode: Function from token ids to text.
        end_tokens: Token ids that are removed from the end of a completion before decoding.
    """

    task: Task
    decode: Callable[[Sequence[int]], str]
    end_tokens: Collection[int] = ()

    @property
    def fingerprint(self) -> str:
        return f"{self.task.name}:{self.task.verifier.fingerprint}"

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        return np.array([OUTCOME_OF[verdict] for verdict in self.verdicts(question, rollouts)], np.int8)

    def verdicts(self, question: Question, rollouts: Rollouts) -> list[Verdict]:
        """One verdict per rollout, which distinguishes incorrect from unparseable."""
        verdict_of: dict[bytes, Verdict] = {}
        verdicts = []
        for row in range(len(rollouts)):
            tokens = rollouts.completion(row)
            key = tokens.tobytes()
            if key not in verdict_of:
                verdict_of[key] = self._judge(question, tokens.tolist())
            verdicts.append(verdict_of[key])
        return verdicts

    def _judge(self, question: Question, tokens: list[int]) -> Verdict:
        while tokens and tokens[-1] in self.end_tokens:
            tokens = tokens[:-1]
        return self.task.verifier.judge(self.decode(tokens), question.answer, question.fields.get("choices"))
