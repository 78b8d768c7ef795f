"""Numbers written in words, English ("one hundred and five", "two and a half") and Chinese ("十八")."""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
_UNITS = {word: number for number, word in enumerate([*_ONES.split(), "eighteen", "nineteen"])}
_TENS = {
    word: 10 * number
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2
    )
}
_TENS["fourty"] = 40
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "quadrillion": 10**15, "dozen": 12, "lakh": 10**5, "lakhs": 10**5, "lac": 10**5, "crore": 10**7, "crores": 10**7,
    "dozens": 12, "millions": 10**6, "billions": 10**9, "thousands": 10**3, "mn": 10**6, "bn": 10**9, "mil": 10**6,
    "gross": 144, "score": 20, "万": 10**4, "亿": 10**8, "千": 10**3, "百": 10**2,
}  # fmt: skip
"""Multipliers that are words."""

_PARTS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4,
    "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "eighth": 8, "eighths": 8, "tenth": 10, "tenths": 10,
    "seventh": 7, "sevenths": 7, "ninth": 9, "ninths": 9, "twelfth": 12, "twelfths": 12, "twentieth": 20,
    "twentieths": 20, "sixteenth": 16, "sixteenths": 16, "fifteenth": 15, "fifteenths": 15, "eleventh": 11,
    "elevenths": 11, "thirteenths": 13, "fourteenths": 14, "eighteenths": 18,
    "hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000,
}  # fmt: skip
_WORD = re.compile(r"[a-z]+|\S")
NUMBER_WORD = re.compile(
    rf"(?:a |an )?(?:{'|'.join([*_UNITS, *_TENS, 'half', 'dozen', 'hundred', 'thousand', 'minus', 'negative'])})\b",
    re.IGNORECASE,
)
_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_CHINESE = re.compile(r"[零〇一二两三四五六七八九十百千万亿]{1,20}")
_CHINESE_SCALES = {"十": 10, "百": 100, "千": 1000}


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """The number in words at the start of a text, and what follows it; `None` if there is none."""
    chinese = _CHINESE.match(text)
    if chinese:
        return Fraction(_chinese(chinese.group())), text[chinese.end() :]
    if NUMBER_WORD.match(text) is None:
        return None
    tokens = [(match.group(), match.end()) for match in _WORD.finditer(text[:200].lower())]
    negative = tokens[0][0] in ("minus", "negative")
    tokens = tokens[negative:]
    # The longest run of words that is a number: "two and a half hours" ends before "hours".
    for length in range(min(len(tokens), 20), 0, -1):
        value = _english([word for word, _ in tokens[:length]])
        if value is not None:
            return (-value if negative else value), text[tokens[length - 1][1] :]
    return None


def _english(words: list[str]) -> Fraction | None:
    """The value if all words together are one number."""
    words = [word for word in words if word != "-"]
    if not words or words[-1] in ("and", "a", "an", ","):
        return None
    if words == ["half", "a", "dozen"]:
        return Fraction(6)
    if words[-1] in _PARTS:
        return _english_fraction(words)
    total = group = 0
    seen = False
    last = 10**18
    for index, word in enumerate(words):
        if word in ("and", ","):
            if not seen:
                return None
            continue
        if word in ("a", "an"):
            if index or len(words) < 2 or words[1] not in SCALES:
                return None
            group, seen, last = 1, True, 1
        elif word in _UNITS:
            if (last in (1, 10) and group % 10) or (last == 10 and _UNITS[word] > 9) or last == 1:
                return None
            group, seen, last = group + _UNITS[word], True, 1
        elif word in _TENS:
            if last in (1, 10):
                return None
            group, seen, last = group + _TENS[word], True, 10
        elif word in SCALES and word.isascii():
            if word in ("hundred", "dozen"):
                group, last = max(group, 1) * SCALES[word], 100
            else:
                total, group, last = total + max(group, 1) * SCALES[word], 0, 1000
            seen = True
        else:
            return None
    return Fraction(total + group) if seen else None


def _english_fraction(words: list[str]) -> Fraction | None:
    bottom = _PARTS[words[-1]]
    if "and" in words:  # two and a half, three and three quarters
        place = len(words) - 1 - words[::-1].index("and")
        whole, part = _english(words[:place]), _english_fraction(words[place + 1 :])
        return None if whole is None or part is None else whole + part
    if words[:-1] in ([], ["a"], ["an"], ["one"]):
        return Fraction(1, bottom)
    top = _english(words[:-1])
    return None if top is None or top <= 0 or (top > bottom and not words[-1].endswith("s")) else top / bottom


def _chinese(characters: str) -> int:
    total = section = digit = 0
    for character in characters:
        if character in _DIGITS:
            digit = _DIGITS[character] if section or not digit else digit * 10 + _DIGITS[character]
        elif character in _CHINESE_SCALES:
            section += max(digit, 1) * _CHINESE_SCALES[character]
            digit = 0
        else:
            total = (total + section + digit) * SCALES[character]
            section = digit = 0
    return total + section + digit
