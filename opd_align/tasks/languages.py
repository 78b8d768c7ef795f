"""Answers in other languages: the words that decide how an answer is read, in English.

The readers know English (and the true/false words of `truth`). Here, what a sentence needs to be read by them is
translated word by word: "the answer is", "option", "not X but Y", "less than", "so", numbers in words. The rest stays
as it is. A language is translated only if one of its own words occurs, so that English text is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from opd_align.tasks.language_tables import ENGLISH_NUMBERS, ENGLISH_TOO, NUMBERS, RECOGNISED, TABLES

_MAX_CHARS = 6_000
"""Number of characters at the end of a response whose words are looked at."""

_WORD = re.compile(r"[^\W\d_]+")
_PHRASES = re.compile(
    r"\b(?:(?P<fr>(?:plus|moins) de|c'est (?:la|le|exact|vrai|faux))|(?P<pt>(?:mais|maior) (?:de|que)|é a [A-Z])|"
    r"(?P<it>(?:più|meno) di|è la [A-Z])|(?P<es>es la [A-Z]))\b",
    re.IGNORECASE,
)
_CJK = re.compile("[぀-ヿ㐀-鿿가-힣]")
_POINTS_FOR_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?![\d.]?\d)")
# A currency after the number is written where the point separates thousands.
_TRAILING_CURRENCY = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?= \$(?!\w)| ?(?:€|EUR|Euro))")
_JOINED_TENS = re.compile(
    r"\b((?:twen|thir|for|fif|six|seven|eigh|nine)ty) (?:y|e|et) (?=(?:two|three|four|five|six|seven|eight|nine)\b)"
)


def in_english(text: str) -> str:
    """The text with the words that decide how it is read translated; English text is returned as it is."""
    tail = text[-_MAX_CHARS:]
    if "." in tail and tail.count("$") < 2:
        tail = _TRAILING_CURRENCY.sub(_without_points, tail)
    languages = {_LANGUAGE_OF[word] for word in set(_WORD.findall(tail.lower())) & _LANGUAGE_OF.keys()}
    if phrase := _PHRASES.search(tail):
        languages.add(phrase.lastgroup or "es")
    if not tail.isascii() and _CJK.search(tail):
        languages.add("cjk")
    for language in sorted(languages):
        if language in NUMBERS:
            tail = _NUMBER_TRANSLATORS[language](tail)
            if language not in ("fr", "ru"):  # there, a space separates thousands
                tail = _POINTS_FOR_THOUSANDS.sub(_without_points, tail)
        for pattern, replacement in _TRANSLATIONS[language]:
            tail = pattern.sub(replacement, tail)
    return text[:-_MAX_CHARS] + tail


def _without_points(match: re.Match[str]) -> str:
    return match[1].replace(".", "")


def _number_words(language: str) -> dict[str, str]:
    """Numbers in words and what they are in English, compounds such as "fünfunddreißig" included."""
    english = ENGLISH_NUMBERS.split()
    own = NUMBERS[language].split()
    words = dict(zip(own, english, strict=True))
    if language == "de":
        units = dict(zip(["ein", *own[2:10]], english[1:10], strict=True))
        words |= {f"{one}und{own[ten]}": f"{english[ten]} {units[one]}" for one in units for ten in range(20, 28)}
    if language == "fr":  # quarante-deux, soixante-douze, quatre-vingt-trois
        for tens, value in {"vingt": 20, "trente": 21, "quarante": 22, "cinquante": 23, "soixante": 24}.items():
            words |= {f"{tens}-{own[one]}": f"{english[value]} {english[one]}" for one in range(1, 10)}
        for tens, value in {"soixante": 25, "quatre-vingt": 27}.items():
            words |= {f"{tens}-{own[10 + one]}": f"{english[value]} {english[one]}" for one in range(1, 10)}
        words |= {f"quatre-vingt-{own[one]}": f"eighty {english[one]}" for one in range(1, 10)}
    # One is an article in most of these languages.
    return {word: number for word, number in words.items() if number != "one" or language == "de"}


def _number_translator(language: str) -> Callable[[str], str]:
    words = _number_words(language)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(words, key=len, reverse=True))})(?!\w|-\w)", re.IGNORECASE)
    return lambda text: _JOINED_TENS.sub(r"\1 ", pattern.sub(lambda match: words[match.group().lower()], text))


def _compiled(language: str) -> list[tuple[re.Pattern[str], str]]:
    if language == "cjk":  # no spaces between words
        return [(re.compile(pattern), replacement) for pattern, replacement in TABLES[language]]
    return [
        (re.compile(rf"(?:(?<!\w)|(?=,))(?:{pattern})(?!\w)", re.IGNORECASE), replacement)
        for pattern, replacement in TABLES[language]
    ]


def _recognised() -> dict[str, str]:
    """The language of each word by which one is recognised."""
    found: dict[str, str] = {}
    for language, words in RECOGNISED.items():
        for word in words.split():
            found.setdefault(word, language)
    for language in NUMBERS:
        for word in _number_words(language):
            if len(word) > 3 and word not in ENGLISH_TOO.split() and word.isalpha():
                found.setdefault(word, language)
    return found


_LANGUAGE_OF = _recognised()
_TRANSLATIONS = {language: _compiled(language) for language in TABLES}
_NUMBER_TRANSLATORS = {language: _number_translator(language) for language in NUMBERS}
