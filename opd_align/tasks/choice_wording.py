"""The wording of choices, and which choice a wording is."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

from opd_align.tasks.characters import plain_characters, strip_markup
from opd_align.tasks.choice_names import inflected, last_names, listed, none_of_them, part_of_one
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.number_words import leading_number

_ARTICLE = re.compile(r"^(?:it|this|that|the|an?|they|there) (?=\w{2})")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SUBSCRIPT = re.compile(r"_\{?(\w)\}?")  # CO_2
_SHORTEST_START = 3
"""Number of words at the start of a wording that stand for it: "Brown v. Board"."""
_NAMES = "log|ln|sin|cos|tan|exp|pi|theta|infty|alpha|beta|gamma|lambda|mu|sigma|Delta|Omega|Theta"
_MATHS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\\(?:mathcal|mathrm|text|operatorname)\s?\{(\w{1,12})\}"), r"\1"),
    (re.compile(r"\\sqrt\s?(?:\{([^{}]{1,30})\}|(\w))"), lambda m: f"sqrt({m[1] or m[2]})"),
    (re.compile(r"√\s?(\w)"), r"sqrt(\1)"),
    (re.compile(r"\\[dt]?frac\s?\{([^{}]{1,30})\}\s?\{([^{}]{1,30})\}"), r"\1/\2"),
    (re.compile(rf"\\({_NAMES})(?![A-Za-z])"), r"\1"),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[·×]"), "*"),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=\d) (?=(?:pi|sqrt\()(?![a-z]))"), ""),
    (re.compile(r"\b(log|ln)\((\w)\)"), r"\1 \2"),
    (re.compile(r"\^\{(\w{1,6})\}"), r"^\1"),
]  # fmt: skip
_HAS_MATHS = re.compile(r"\\|√|[·×]|\d (?:pi|sqrt)\b|\b(?:log|ln)\(|\^\{")
_TURNED = re.compile(r"(?P<first>[a-z]+) (?:of|in|from) (?:the )?(?P<second>[a-z]+)")
AROUND_OPERATOR = re.compile(r"\s?([-+*/=^<>])\s?(?=[\w(\\-])")


def letters_of(choices: Sequence[str] | None) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 10 if choices is None else len(choices)]


@functools.lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern made from a choice, compiled once for all completions of its question; `re` keeps only 512."""
    return re.compile(pattern)


def choice_by_text(words: str, choices: Sequence[str] | None) -> str | None:
    """Letter of the only choice with this text; `None` if there is none, or several."""
    if choices is None or not (text := normalised(words)):
        return None
    same = [letter for letter, choice in zip(letters_of(choices), choices, strict=False) if normalised(choice) == text]
    same = same or [
        letter
        for letter, choice in zip(letters_of(choices), map(normalised, choices), strict=False)
        if listed(choice) == listed(text) or ((pattern := inflected(choice)) and compiled(pattern).fullmatch(text))
    ]
    if not same and (turned := _TURNED.fullmatch(text)):  # "war in Vietnam" is "Vietnam War"
        same = [
            letter
            for letter, choice in zip(letters_of(choices), map(normalised, choices), strict=False)
            if choice == f"{turned['second']} {turned['first']}"
        ]
    if not same and re.search(r"\d", text):  # "20m/s" is "20 m/s"
        compact = text.replace(" ", "")
        same = [
            letter
            for letter, choice in zip(letters_of(choices), map(normalised, choices), strict=False)
            if choice.replace(" ", "") == compact
        ]
    same = same or none_of_them(letters_of(choices), choices, text) or part_of_one(letters_of(choices), choices, text)
    same = same or [letter for letter, name in last_names(letters_of(choices), choices).items() if name == text]
    same = same or [
        letter
        for letter, choice in zip(letters_of(choices), map(normalised, choices), strict=False)
        if len(text.split()) >= _SHORTEST_START and choice.startswith(f"{text} ")
    ]
    return same[0] if len(same) == 1 else None


def plain_maths(words: str) -> str:
    r"""Formulas as they are written without LaTeX: `\sqrt{2}` as `sqrt(2)`, `$O(\log n)$` as `O(log n)`."""
    if _HAS_MATHS.search(words):
        words = plain_characters(words)
        for pattern, plain in _MATHS:
            words = pattern.sub(plain, words)
    return words


def normalised(words: object) -> str:
    """Wording without case, markup, subscripts and spaces around operators; a number in words as digits."""
    return _normalised(str(words))


@functools.lru_cache(maxsize=4096)
def _normalised(words: str) -> str:
    text = strip_markup(plain_maths(words)).strip(" .,;:!{}")
    text = (text if re.search(r"\w\(", text) else text.strip("() ")).casefold()
    text = _ARTICLE.sub("", text.replace("can't", "can not").replace("cannot", "can not").replace("n't", " not"))
    text = AROUND_OPERATOR.sub(r"\1", _SUBSCRIPT.sub(r"\1", text))
    if _THOUSANDS.fullmatch(text):
        return text.replace(",", "")
    number = leading_number(text)
    return canonical_number(number[0]) if number and not number[1].strip() else text
