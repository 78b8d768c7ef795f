"""From a model's text to a verdict.

Four kinds of answer, one verifier each. A verifier is also a reward function as TRL calls it, so that evaluation,
GRPO and gates judge by one rule. A verdict depends on the text, the gold answer and the choices, on nothing else
(save that comparing two expressions has a time limit, and running into it is `UNKNOWN`).
`UNKNOWN` is not `INCORRECT`: a gold answer that is missing or unreadable says nothing about the model. What the model
wrote is never to blame on the gold: text without an answer is `UNPARSEABLE`, whatever its length or form.

Where in the text the answer stands is decided in `extract`; here is what counts as an answer of each kind.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from opd_align.tasks.extract import SEVERAL, How, find_answer, plain, without_lead, without_thought
from opd_align.tasks.numbers import number_of, read_number, written
from opd_align.types import OpdAlignError

RULES = 1
"""Version of the rules in this module and in `extract` and `numbers`: raised whenever a verdict can change."""


class Verdict(Enum):
    """What a verifier says of one text."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNPARSEABLE = "unparseable"
    UNKNOWN = "unknown"


class Verifier(Protocol):
    """Judges one text, or a batch with TRL's reward signature."""

    @property
    def fingerprint(self) -> str:
        """Names the rules; two runs with the same fingerprint judged alike."""
        ...

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        """A data set's answer in the form it is compared in; `None` if it cannot be read."""
        ...

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict: ...

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        answer: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]: ...


def rewards(
    verifier: Verifier, completions: Sequence[Any], answer: Sequence[Any] | None, choices: Sequence[Any] | None
) -> list[float | None]:
    """1 for correct, 0 for incorrect and unparseable, `None` for unknown: TRL leaves those out of its averages."""
    if answer is None:
        raise OpdAlignError(
            "the verifier was called without the column 'answer'; give the training data set one that holds "
            "the gold answer of each row (TRL passes every column on to its reward functions)"
        )
    worth = {Verdict.CORRECT: 1.0, Verdict.INCORRECT: 0.0, Verdict.UNPARSEABLE: 0.0, Verdict.UNKNOWN: None}
    choices = [None] * len(completions) if choices is None else choices
    return [
        worth[verifier.judge(completion_text(completion), gold, offered)]
        for completion, gold, offered in zip(completions, answer, choices, strict=True)
    ]


def completion_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of the last message that the assistant wrote."""
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
    """True or false, yes or no."""

    __name__ = "true_false"
    fingerprint = f"true_false/{RULES}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        if isinstance(answer, bool) or (isinstance(answer, int) and answer in (0, 1)):
            return str(bool(answer))
        if isinstance(answer, str):
            return {"1": "True", "0": "False"}.get(answer.strip(), _read_truth(answer, How.BARE) or None)
        return None

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        return _same(find_answer(text, _read_truth), self.canonical(answer))

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
    """One of several choices, by its letter or in its own words. Without a list of choices, A to J."""

    __name__ = "choice"
    fingerprint = f"choice/{RULES}"

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
        named = _choice_in_words(answer, choices)
        if answer.isdecimal() and answer.isascii():
            # "2" in a CSV file is an index, unless a choice reads so too: then nobody can tell.
            index = letters[int(answer)] if len(answer) < 3 and int(answer) < len(letters) else None
            return index if named in (None, index) else None
        return named or (_letter(answer, How.BARE, letters, choices) or None)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        letters = _letters(choices)
        said = _CALLED_CORRECT.sub(r"the answer is \1.", without_thought(text) or "")
        found = find_answer(said, lambda words, how: _letter(words, how, letters, choices))
        return _same(found, self.canonical(answer, choices))

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
    """One number, compared exactly; units, currencies, separators and trailing zeros do not matter."""

    __name__ = "number"
    fingerprint = f"number/{RULES}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        value = number_of(answer)
        return None if value is None else written(value)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        return _same(find_answer(_HASHES.sub("\nAnswer: ", text), read_number), self.canonical(answer))

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
    """A mathematical expression, compared by math-verify; plain numbers, AIME's among them, need no library."""

    __name__ = "maths"
    fingerprint = f"maths/{RULES}"

    def canonical(self, answer: object, choices: Sequence[str] | None = None) -> str | None:
        if isinstance(answer, str):
            number = _read_maths(answer, How.BARE)
            if number and _FRACTION.fullmatch(number):
                return number
            return answer.strip() if _is_expression(answer) else None
        value = number_of(answer)
        return None if value is None else written(value)

    def judge(self, text: str, answer: object, choices: Sequence[str] | None = None) -> Verdict:
        gold = self.canonical(answer)
        if gold is None or not (_FRACTION.fullmatch(gold) or _parsed(gold)):
            return Verdict.UNKNOWN
        found = find_answer(text, _read_maths)
        if found is None or found == gold or (_FRACTION.fullmatch(gold) and _FRACTION.fullmatch(found)):
            return _same(found, gold)
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


def _same(found: str | None, gold: str | None) -> Verdict:
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


def _read_truth(words: str, how: How) -> str | None:
    text = without_lead(plain(words))
    if how is How.LOOSE:
        said = {word.group(0).lower() for word in _TRUTH_WORDS.finditer(text)}
        if len(said) > 1:
            return SEVERAL
        return _TRUTH.get(said.pop()) if said else None
    first = _TRUTH_FIRST.fullmatch(text)
    if first is None:
        return None
    word, rest = first.group(1).lower(), first.group(2)
    if how is How.BARE and re.search(r"\w", rest):
        return None
    if how is How.OPENING and not re.match(r"[.,:;!]", rest):
        return None  # "No doubt ..."
    also = _TRUTH_ALSO.match(rest)
    if also and _TRUTH[also.group(1).lower()] != _TRUTH[word]:
        return SEVERAL
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
# "Option B is correct" says what "the answer is B" says.
_CALLED_CORRECT = re.compile(
    r"(?<![\w-])(?<![Ii]f )(?<!whether )(?<!only )(?<!option )(?<!choice )(?:[Oo]ption |[Cc]hoice |[Aa]nswer )?"
    r"\*{0,2}\(?([A-Z])\)?(?:[).:][^.\n]{0,80}?)?\*{0,2}"
    r" is (?:therefore |thus |indeed )?(?:the |most likely the )?(?:correct|right|best)\b(?! (?:if|only|when)\b)"
)


def _letters(choices: Sequence[str] | None) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 10 if choices is None else len(choices)]


def _letter(words: str, how: How, letters: str, choices: Sequence[str] | None) -> str | None:
    whole = plain(words).strip(".,;: {}")
    text = without_lead(whole)
    if how is How.OPENING:
        return None  # "A) 1" where 1 is choice B: letter and wording contradict each other
    if how is How.LOOSE:
        said = {next(filter(None, match.groups())).upper() for match in _LETTER_LOOSE.finditer(text)} & set(letters)
        return SEVERAL if len(said) > 1 else next(iter(said), None)
    first = _LETTER_FIRST.fullmatch(text)
    named = _choice_in_words(whole, choices) or _choice_in_words(text, choices)
    if first is None:
        return named
    letter, rest = first["letter"].upper(), first["rest"]
    if named and re.match(r"\s?\w", rest) and not first["close"]:
        return named  # "A and B" where that is the wording of choice C
    if letter not in letters:
        return named
    if (also := _LETTER_ALSO.match(rest)) and also.group(1) in letters:
        return SEVERAL
    closed = bool(first["close"]) or rest[:1] in (".", ":", ")")
    if first["letter"].islower() and rest and not closed:
        return named  # "a cat"
    if how is How.BARE:
        own = choices is not None and _wording(rest.lstrip(").:- ")) == _wording(choices[letters.index(letter)])
        return letter if not rest or own or (closed and choices is None) else named
    # "A" and "I" are words as well: what follows must show that the letter is meant.
    if closed or _LETTER_REMARK.match(rest) or letter not in "AI":
        return letter
    own = choices is not None and _wording(rest) == _wording(choices[letters.index(letter)])
    return letter if own else named


def _choice_in_words(words: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the one choice that reads so; `None` if none does, or several."""
    if choices is None or not (said := _wording(words)):
        return None
    same = [letter for letter, choice in zip(_letters(choices), choices, strict=False) if _wording(choice) == said]
    return same[0] if len(same) == 1 else None


def _wording(words: str) -> str:
    return plain(str(words)).strip(" .,;:!(){}").casefold()


# Numbers and expressions

_HASHES = re.compile(r"####[ \t]{0,3}(?=[-$€£]{0,2}\d[\d,. ]{0,30}%?\s{0,3}$)", re.MULTILINE)
_FRACTION = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
_NOT_A_NUMBER = re.compile(r"^\s?\d[\d.,]*[A-Za-z](?![A-Za-z])|\d\s?!")  # 5x, 5!
_PROSE = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{3,}|(?:is|it|of|to|in|an|at|on|by|we|so|no|be|as|if|do|my)\b)")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s?\{[^{}]*\}")
_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\b(?:sqrt|frac|log|sin|cos|tan|pi|circ|degrees?)\b")
# "$5\pi$ because ..." is an answer with its reason; "$m/n$ where ..." has only begun to explain itself.
_MATHS_MODE = re.compile(
    r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))(?=[ *]{0,4}(?:$|[.,;!]|(?:because|since|as|by|from|which)\b))"
)
_ALTERNATIVES = re.compile(r"\bor\b", re.IGNORECASE)
# Towers of powers, factorials and long exponents: sympy would work on them for hours, and no answer looks so.
_UNBOUNDED = re.compile(r"!|\^\s?\{?\s?\(?-?\d{4}|\^[^+\-=,]{0,30}\^|\*\*[^+\-=,]{0,30}\*\*|\d{60}|binom|prod|sum|int")
_LONGEST_EXPRESSION = 300
_TIMEOUT_S = 5


def _read_maths(words: str, how: How) -> str | None:
    text = without_lead(plain(words)).rstrip(". ")
    if how is How.OPENING:
        return None
    if _ALTERNATIVES.search(text):
        return SEVERAL
    if "boxed" in text or text.count("{") != text.count("}"):
        return None  # cut off
    if not _NOT_A_NUMBER.search(text.rpartition("=")[2]) and (number := read_number(words, how)) is not None:
        # Tuples and lists of numbers are several numbers but one expression.
        if number != SEVERAL:
            return number
        if how is How.LOOSE or not _is_expression(words):
            return SEVERAL
    segment = _MATHS_MODE.search(words) if how is How.LOOSE else _MATHS_MODE.match(without_lead(words.lstrip(" *:")))
    if segment and segment.group(1) != words:
        return _read_maths(segment.group(1), How.MARKED)
    if how is How.LOOSE or not _is_expression(words):
        return None
    if how is How.BARE and "$" not in words and "\\" not in words:
        return None
    # As it was written: math-verify knows units and text commands better than `plain` does.
    expression = re.sub(r"\*\*|\$|\\[\[\]()]", "", without_lead(words.strip())).replace("−", "-").strip(" .:")
    return re.split(r"(?<![<>!\\])=", expression)[-1].strip() or None


def _is_expression(words: str) -> bool:
    """Whether anything but prose is left once text (units, mostly) and commands are taken out."""
    left = _COMMANDS.sub(" ", _TEXT.sub(" ", without_lead(words.strip())))
    return bool(re.search(r"\w|\\", _TEXT.sub(" ", words))) and not _PROSE.search(left)


def _judge_expression(found: str, gold: str) -> Verdict:
    wanted, given = _parsed(gold), _parsed(found)
    if not given:
        return Verdict.UNPARSEABLE
    verify, limit_s, errors = _math_verify("verify")
    try:
        same = verify(wanted, given, timeout_seconds=limit_s, raise_on_error=True)
    except errors:  # whatever goes wrong in there is no fault of the model's
        return Verdict.UNKNOWN
    return Verdict.CORRECT if same else Verdict.INCORRECT


def _parsed(expression: str) -> list[Any]:
    parse, limit_s, errors = _math_verify("parse")
    try:
        return parse(rf"\boxed{{{expression}}}", fallback_mode="no_fallback", parsing_timeout=limit_s)
    except errors:
        return []


def _math_verify(name: str) -> tuple[Any, int | None, tuple[type[BaseException], ...]]:
    """A function of math-verify, the time limit that this thread can keep, and what it may raise."""
    try:
        import math_verify
        from math_verify.errors import TimeoutException
    except ImportError as error:
        raise OpdAlignError(
            "comparing mathematical expressions needs math-verify; install it with: pip install 'opd-align[tasks]'"
        ) from error
    # Its time limits are alarm signals, which only the main thread can set. Elsewhere, the bounds on length and form
    # of what the model wrote must do.
    limit_s = _TIMEOUT_S if threading.current_thread() is threading.main_thread() else None
    return getattr(math_verify, name), limit_s, (Exception, TimeoutException)
