"""Verifiers: from a model's text to a verdict.

There is one verifier for each of four kinds of answer. A verifier is also a reward function with TRL's signature, so
that evaluation, GRPO and gates apply the same rules. A verdict depends only on the text, the gold answer and the
choices (except that comparing two expressions has a time limit; exceeding it gives `UNKNOWN`).
`UNKNOWN` is not `INCORRECT`: a missing or unreadable gold answer says nothing about the model. Text without an answer
is always `UNPARSEABLE`, never `UNKNOWN`.

`extract` finds the answer in the text; this module defines what counts as an answer of each kind.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from opd_align.tasks.extract import AMBIGUOUS, Placement, find_answer, strip_lead_in, strip_markup, strip_thinking
from opd_align.tasks.numbers import canonical_number, gold_number, read_number
from opd_align.types import OpdAlignError

RULES_VERSION = 1
"""Version of the rules in this module, `extract` and `numbers`; increased whenever a verdict can change."""


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
            return {"1": "True", "0": "False"}.get(answer.strip(), _read_true_false(answer, Placement.BARE) or None)
        return None

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        return _compare(find_answer(text, _read_true_false), self.canonical(answer))

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
        letters = _letters(choices)
        if isinstance(answer, bool):
            return None
        if isinstance(answer, int):
            return letters[answer] if 0 <= answer < len(letters) else None
        if not isinstance(answer, str):
            return None
        answer = answer.strip()
        if len(answer) == 1 and answer.isalpha():
            return answer.upper() if answer.upper() in letters else None
        named = _choice_by_text(answer, choices)
        if answer.isdecimal() and answer.isascii():
            # "2" in a CSV file is an index, unless a choice has this text too: then it is ambiguous.
            index = letters[int(answer)] if len(answer) < 3 and int(answer) < len(letters) else None
            return index if named in (None, index) else None
        return named or (_read_choice(answer, Placement.BARE, letters, choices) or None)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        letters = _letters(choices)
        response = _CALLED_CORRECT.sub(r"the answer is \1.", strip_thinking(text) or "")
        found = find_answer(response, lambda words, placement: _read_choice(words, placement, letters, choices))
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
        return _compare(find_answer(_HASHES.sub("\nAnswer: ", text), read_number), self.canonical(answer))

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
            number = _read_maths(answer, Placement.BARE)
            if number and _FRACTION.fullmatch(number):
                return number
            return answer.strip() if _is_expression(answer) else None
        value = gold_number(answer)
        return None if value is None else canonical_number(value)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        gold = self.canonical(answer)
        if gold is None or not (_FRACTION.fullmatch(gold) or _parsed(gold)):
            return Verdict.UNKNOWN
        found = find_answer(text, _read_maths)
        if found is None or found == gold or (_FRACTION.fullmatch(gold) and _FRACTION.fullmatch(found)):
            return _compare(found, gold)
        if len(found) > _LONGEST_EXPRESSION or _UNBOUNDED.search(found):
            return Verdict.UNPARSEABLE
        return _judge_expression(found, gold)

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        return rewards(self, completions, answer, None)


def _compare(found: str | None, gold: str | None) -> Verdict:
    if gold is None:
        return Verdict.UNKNOWN
    if found is None:
        return Verdict.UNPARSEABLE
    return Verdict.CORRECT if found == gold else Verdict.INCORRECT


# True or false

_TRUTH = {"true": "True", "yes": "True", "t": "True", "false": "False", "no": "False", "f": "False"}
_TRUTH_FIRST = re.compile(r"\W{0,4}(true|false|yes|no|t|f)\b(?!['’]\w)(.*)", re.IGNORECASE | re.DOTALL)
_TRUTH_ALSO = re.compile(r"\W{0,3}(?:or|and|and/or|/|,|\||nor)\W{0,3}(true|false|yes|no)\b", re.IGNORECASE)
_TRUTH_WORDS = re.compile(r"\b(?:not )?(true|false)\b", re.IGNORECASE)
_REASON = re.compile(r"\W{0,3}(?:$|[.,;:!()\-—]|(?:because|since|as|it|that|the|based|according)\b)", re.IGNORECASE)


def _read_true_false(words: str, placement: Placement) -> str | None:
    text = strip_lead_in(strip_markup(words))
    if placement is Placement.LOOSE:
        values = {word.group(0).lower() for word in _TRUTH_WORDS.finditer(text)}
        if len(values) > 1:
            return AMBIGUOUS
        return _TRUTH.get(values.pop()) if values else None
    first = _TRUTH_FIRST.fullmatch(text)
    if first is None:
        return None
    word, rest = first.group(1).lower(), first.group(2)
    if placement is Placement.BARE and re.search(r"\w", rest):
        return None
    if placement is Placement.OPENING and not re.match(r"[.,:;!]", rest):
        return None  # "No doubt ..."
    also = _TRUTH_ALSO.match(rest)
    if also and _TRUTH[also.group(1).lower()] != _TRUTH[word]:
        return AMBIGUOUS
    if len(word) == 1 and re.search(r"\w", rest):
        return None
    return _TRUTH[word] if _REASON.match(rest) or word in ("true", "false") else None


# Choices

_LETTER_FIRST = re.compile(
    r"(?P<open>[\(\[<]?)\s?(?P<letter>[A-Za-z])\s?(?P<close>[\)\]>]?)(?![A-Za-z\d'’])(?P<rest>.*)", re.DOTALL
)
_LETTER_ALSO = re.compile(
    r"[\s).\]]{0,4}(?:(?:or|and|and/or|nor|to|,|/|&|\||\+)[\s,]{0,2}){1,2}(?:option |choice )?\(?([A-Z])\)?(?![\w'’])"
)
_LETTER_REMARK = re.compile(r"\s{0,2}(?:$|[).:,;\-—(\[]|(?:is|because|since|as|which|would|based|due)\b)")
_LETTER_LOOSE = re.compile(r"\(([A-Z])\)|(?<![\w(])([A-Z])\)|\b(?:option|choice) ([A-Z])\b", re.IGNORECASE)
# "Option B is correct" means the same as "the answer is B".
_CALLED_CORRECT = re.compile(
    r"(?<![\w-])(?<![Ii]f )(?<!whether )(?<!only )(?<!option )(?<!choice )(?:[Oo]ption |[Cc]hoice |[Aa]nswer )?"
    r"\*{0,2}\(?([A-Z])\)?(?:[).:][^.\n]{0,80}?)?\*{0,2}"
    r" is (?:therefore |thus |indeed )?(?:the |most likely the )?(?:correct|right|best)\b(?! (?:if|only|when)\b)"
)


def _letters(choices: Sequence[str] | None) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 10 if choices is None else len(choices)]


def _read_choice(words: str, placement: Placement, letters: str, choices: Sequence[str] | None) -> str | None:
    whole = strip_markup(words).strip(".,;: {}")
    text = strip_lead_in(whole)
    if placement is Placement.OPENING:
        return None  # "A) 1" where 1 is choice B: letter and text contradict each other
    if placement is Placement.LOOSE:
        groups = [match.groups() for match in _LETTER_LOOSE.finditer(text)]
        mentioned = {next(filter(None, group)).upper() for group in groups} & set(letters)
        return AMBIGUOUS if len(mentioned) > 1 else next(iter(mentioned), None)
    first = _LETTER_FIRST.fullmatch(text)
    named = _choice_by_text(whole, choices) or _choice_by_text(text, choices)
    if first is None:
        return named
    letter, rest = first["letter"].upper(), first["rest"]
    if named and re.match(r"\s?\w", rest) and not first["close"]:
        return named  # "A and B" where that is the text of choice C
    if letter not in letters:
        return named
    if (also := _LETTER_ALSO.match(rest)) and also.group(1) in letters:
        return AMBIGUOUS
    closed = bool(first["close"]) or rest[:1] in (".", ":", ")")
    if first["letter"].islower() and rest and not closed:
        return named  # "a cat"
    if placement is Placement.BARE:
        own = choices is not None and _normalised(rest.lstrip(").:- ")) == _normalised(choices[letters.index(letter)])
        return letter if not rest or own or (closed and choices is None) else named
    # "A" and "I" are words as well: what follows must show that the letter is meant.
    if closed or _LETTER_REMARK.match(rest) or letter not in "AI":
        return letter
    own = choices is not None and _normalised(rest) == _normalised(choices[letters.index(letter)])
    return letter if own else named


def _choice_by_text(words: str, choices: Sequence[str] | None) -> str | None:
    """Letter of the only choice with this text; `None` if there is none, or several."""
    if choices is None or not (text := _normalised(words)):
        return None
    same = [letter for letter, choice in zip(_letters(choices), choices, strict=False) if _normalised(choice) == text]
    return same[0] if len(same) == 1 else None


def _normalised(words: str) -> str:
    return strip_markup(str(words)).strip(" .,;:!(){}").casefold()


# Numbers and expressions

_HASHES = re.compile(r"####[ \t]{0,3}(?=[-$€£]{0,2}\d[\d,. ]{0,30}%?\s{0,3}$)", re.MULTILINE)
_FRACTION = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
_NOT_A_NUMBER = re.compile(r"^\s?\d[\d.,]*[A-Za-z](?![A-Za-z])|\d\s?!")  # 5x, 5!
_PROSE = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{3,}|(?:is|it|of|to|in|an|at|on|by|we|so|no|be|as|if|do|my)\b)")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s?\{[^{}]*\}")
_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\b(?:sqrt|frac|log|sin|cos|tan|pi|circ|degrees?)\b")
# "$5\pi$ because ..." is an answer with a reason; "$m/n$ where ..." is not an answer yet.
_MATHS_MODE = re.compile(
    r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))(?=[ *]{0,4}(?:$|[.,;!]|(?:because|since|as|by|from|which)\b))"
)
_ALTERNATIVES = re.compile(r"\bor\b", re.IGNORECASE)
# Towers of powers, factorials and long exponents would take sympy hours, and no real answer contains them.
_UNBOUNDED = re.compile(r"!|\^\s?\{?\s?\(?-?\d{4}|\^[^+\-=,]{0,30}\^|\*\*[^+\-=,]{0,30}\*\*|\d{60}|binom|prod|sum|int")
_LONGEST_EXPRESSION = 300
_TIMEOUT_S = 5


def _read_maths(words: str, placement: Placement) -> str | None:
    text = strip_lead_in(strip_markup(words)).rstrip(". ")
    if placement is Placement.OPENING:
        return None
    if _ALTERNATIVES.search(text):
        return AMBIGUOUS
    if "boxed" in text or text.count("{") != text.count("}"):
        return None  # truncated
    if not _NOT_A_NUMBER.search(text.rpartition("=")[2]) and (number := read_number(words, placement)) is not None:
        # Tuples and lists of numbers are several numbers but one expression.
        if number != AMBIGUOUS:
            return number
        if placement is Placement.LOOSE or not _is_expression(words):
            return AMBIGUOUS
    segment = (
        _MATHS_MODE.search(words)
        if placement is Placement.LOOSE
        else _MATHS_MODE.match(strip_lead_in(words.lstrip(" *:")))
    )
    if segment and segment.group(1) != words:
        return _read_maths(segment.group(1), Placement.MARKED)
    if placement is Placement.LOOSE or not _is_expression(words):
        return None
    if placement is Placement.BARE and "$" not in words and "\\" not in words:
        return None
    # The original text: math-verify handles units and text commands better than `strip_markup`.
    expression = re.sub(r"\*\*|\$|\\[\[\]()]", "", strip_lead_in(words.strip())).replace("−", "-").strip(" .:")
    return re.split(r"(?<![<>!\\])=", expression)[-1].strip() or None


def _is_expression(words: str) -> bool:
    """Whether there is something other than prose, after removing text commands (mostly units) and other commands."""
    left = _COMMANDS.sub(" ", _TEXT.sub(" ", strip_lead_in(words.strip())))
    return bool(re.search(r"\w|\\", _TEXT.sub(" ", words))) and not _PROSE.search(left)


def _judge_expression(found: str, gold: str) -> Verdict:
    wanted, given = _parsed(gold), _parsed(found)
    if not given:
        return Verdict.UNPARSEABLE
    verify, limit_s, errors = _math_verify("verify")
    try:
        same = verify(wanted, given, timeout_seconds=limit_s, raise_on_error=True)
    except errors:  # an error in math-verify is not the model's error
        return Verdict.UNKNOWN
    return Verdict.CORRECT if same else Verdict.INCORRECT


def _parsed(expression: str) -> list[Any]:
    parse, limit_s, errors = _math_verify("parse")
    try:
        return parse(rf"\boxed{{{expression}}}", fallback_mode="no_fallback", parsing_timeout=limit_s)
    except errors:
        return []


def _math_verify(name: str) -> tuple[Any, int | None, tuple[type[BaseException], ...]]:
    """A function of math-verify, the time limit available in this thread, and the exceptions it may raise."""
    try:
        import math_verify
        from math_verify.errors import TimeoutException
    except ImportError as error:
        raise OpdAlignError(
            "comparing mathematical expressions needs math-verify; install it with: pip install 'opd-align[tasks]'"
        ) from error
    # Its time limits use alarm signals, which only the main thread can set. In other threads, the limits on length and
    # form of the expression have to suffice.
    limit_s = _TIMEOUT_S if threading.current_thread() is threading.main_thread() else None
    return getattr(math_verify, name), limit_s, (Exception, TimeoutException)
