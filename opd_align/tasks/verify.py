"""Verifiers: from a model's text to a verdict.

There is one verifier for each of four kinds of answer. A verifier is also a reward function with TRL's signature, so
that evaluation, GRPO and gates apply the same rules. A verdict depends only on the text, the gold answer and the
choices (except that comparing two expressions has a time limit; exceeding it gives `UNKNOWN`).
`UNKNOWN` is not `INCORRECT`: a missing or unreadable gold answer says nothing about the model. Text without an answer
is always `UNPARSEABLE`, never `UNKNOWN`.

`extract` finds the answer in the text; `truth`, `choices`, `numbers` and `maths` define what counts as an answer of
each kind.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from opd_align.tasks import choice_wording, math_compare, maths
from opd_align.tasks import choices as choice_rules
from opd_align.tasks.choice_rewrites import with_called_correct
from opd_align.tasks.extract import Placement, find_answer
from opd_align.tasks.math_rewrites import rewrite_for
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.numbers import gold_number, is_percentage_of, read_number
from opd_align.tasks.truth import read_true_false
from opd_align.tasks.truth_words import with_answered_questions
from opd_align.types import OpdAlignError

RULES_VERSION = 6
"""Version of the rules by which answers are found and read; increased whenever a verdict can change."""

_HASHES = re.compile(r"####[ \t]{0,3}(?=[-$€£]{0,2}\d[\d,. ]{0,30}%?\s{0,3}$)", re.MULTILINE)

_LINE_A = re.compile(r"(^|\n)[ \t]{0,4}A:[ \t]")  # the reply to "Q: ..."


class Verdict(Enum):
    """Result of verifying one text."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNPARSEABLE = "unparseable"
    UNKNOWN = "unknown"


class Verifier(Protocol):
    """Compares model output with a gold answer: `judge` takes one text, a call takes a batch as TRL passes it."""

    @property
    def fingerprint(self) -> str:
        """Identifies the rules: two runs with the same fingerprint used the same rules."""
        ...

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        """A dataset's answer in the form used for comparison; `None` if it cannot be read."""
        ...

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        """The verdict on one text.

        Args:
            text: Completion of the model, thinking included.
            answer: Gold answer, as in the dataset or in canonical form.
            choices: Choices of a multiple-choice question; `None` if there are none.
        """
        ...

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Rewards for a batch, as TRL calls a reward function.

        Args:
            prompts: Not used.
            completions: Texts, or conversations whose last assistant message is graded.
            answer: Gold answer of each completion.
            choices: Choices of each completion's question.
            **columns: Other dataset columns; not used.

        Returns:
            1.0 for correct, 0.0 for incorrect or unparseable, `None` for unknown.
        """
        ...


def rewards(
    verifier: Verifier, completions: Sequence[Any], answer: Sequence[Any] | None, choices: Sequence[Any] | None
) -> list[float | None]:
    """1 for correct, 0 for incorrect and unparseable, `None` for unknown, which TRL excludes from its averages."""
    if answer is None:
        raise OpdAlignError(
            "the verifier needs the column 'answer'; add the gold answer of each row to the training dataset "
            "(TRL passes every dataset column to its reward functions)"
        )
    reward_of = {Verdict.CORRECT: 1.0, Verdict.INCORRECT: 0.0, Verdict.UNPARSEABLE: 0.0, Verdict.UNKNOWN: None}
    choices = [None] * len(completions) if choices is None else choices
    return [
        reward_of[verifier.judge(completion_text(completion), gold, options)]
        for completion, gold, options in zip(completions, answer, choices, strict=True)
    ]


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or the content of the last assistant message."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if isinstance(message, Mapping) and message.get("role", "assistant") == "assistant":
            content = message.get("content") or ""
            if isinstance(content, str):
                return content
            return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return ""


@dataclass(frozen=True)
class TrueFalse:
    """Verifier for true/false and yes/no answers. Takes no arguments."""

    __name__ = "true_false"
    fingerprint = f"true_false/{RULES_VERSION}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        if isinstance(answer, bool) or (isinstance(answer, int) and answer in (0, 1)):
            return str(bool(answer))
        if isinstance(answer, str):
            return _gold_truth(answer)
        return None

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        return _compare(
            find_answer(text, read_true_false, lambda response: with_answered_questions(_with_answer_lines(response))),
            self.canonical(answer),
        )

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        return rewards(self, completions, answer, None)


@dataclass(frozen=True)
class Choice:
    """Verifier for multiple choice, by letter or text of the choice; without choices, A to J. Takes no arguments."""

    __name__ = "choice"
    fingerprint = f"choice/{RULES_VERSION}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        letters = choice_wording.letters_of(choices)
        if isinstance(answer, bool):
            return None
        if isinstance(answer, int):
            return letters[answer] if 0 <= answer < len(letters) else None
        if not isinstance(answer, str):
            return None
        answer = answer.strip()
        if len(answer) == 1 and answer.isalpha():
            return answer.upper() if answer.upper() in letters else None
        named = choice_wording.choice_by_text(answer, choices)
        if answer.isdecimal() and answer.isascii():
            # "2" in a CSV file is an index, unless a choice has this text too: then it is ambiguous.
            index = letters[int(answer)] if len(answer) < 3 and int(answer) < len(letters) else None
            return index if named in (None, index) else None
        return named or (choice_rules.read_choice(answer, Placement.BARE, letters, choices) or None)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        letters = choice_wording.letters_of(choices)
        found = find_answer(
            text,
            lambda words, placement: choice_rules.read_choice(words, placement, letters, choices),
            lambda response: with_called_correct(response, letters, choices),
        )
        return _compare(found, self.canonical(answer, choices))

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        return rewards(self, completions, answer, choices)


@dataclass(frozen=True)
class Number:
    """Verifier for one number, compared exactly; units, currencies and separators are ignored. Takes no arguments."""

    __name__ = "number"
    fingerprint = f"number/{RULES_VERSION}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        value = gold_number(answer)
        return None if value is None else canonical_number(value)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        found, gold = find_answer(text, read_number, _with_answer_lines), self.canonical(answer)
        return Verdict.CORRECT if is_percentage_of(found, gold, text) else _compare(found, gold)

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        return rewards(self, completions, answer, None)


@dataclass(frozen=True)
class Maths:
    """Verifier for mathematical expressions, compared by math-verify; numbers need no library. Takes no arguments."""

    __name__ = "maths"
    fingerprint = f"maths/{RULES_VERSION}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        if isinstance(answer, str):
            return maths.canonical_expression(answer) if answer.strip() else None
        value = gold_number(answer)
        return None if value is None else canonical_number(value)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        gold = self.canonical(answer)
        if gold is None:
            return Verdict.UNKNOWN
        words = maths.gold_words(gold)
        if words is not None:
            return _compare(find_answer(text, lambda w, placement: maths.read_words(w, placement, words)), words)
        if not math_compare.is_readable(gold):
            return Verdict.UNKNOWN
        whole = math_compare.is_whole(gold)
        found = find_answer(
            text,
            lambda w, placement: maths.read_maths(w, placement, whole=whole),
            rewrite_for(gold),
        )
        if is_percentage_of(found, gold, text):
            return Verdict.CORRECT
        if (
            found is None
            or found == gold
            or (math_compare.NUMBER.fullmatch(gold) and math_compare.NUMBER.fullmatch(found))
        ):
            return _compare(found, gold)
        return _VERDICT_OF[math_compare.compare_expressions(found, gold)]

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        return rewards(self, completions, answer, None)


_VERDICT_OF = {
    "same": Verdict.CORRECT,
    "different": Verdict.INCORRECT,
    "unparseable": Verdict.UNPARSEABLE,
    "unknown": Verdict.UNKNOWN,
}


@functools.lru_cache(maxsize=4096)  # a question's answer is read for each of its completions
def _gold_truth(answer: str) -> str | None:
    return {"1": "True", "0": "False"}.get(answer.strip(), read_true_false(answer, Placement.BARE) or None)


def _with_answer_lines(response: str) -> str:
    """The text with "#### 18" and the reply to "Q: ..." written as "Answer: 18"."""
    response = _HASHES.sub("\nAnswer: ", response)
    return response if re.search(r"\bB:", response) else _LINE_A.sub(r"\1Answer: ", response)


def _compare(found: str | None, gold: str | None) -> Verdict:
    if gold is None:
        return Verdict.UNKNOWN
    if found is None:
        return Verdict.UNPARSEABLE
    return Verdict.CORRECT if found == gold else Verdict.INCORRECT
