"""Choices that are sets of numbered statements ("I and II only") or series of truth values ("True, False").

Answers to them are rarely the wording of a choice: "I and II are true, III is false", "the first is true, the second is
false".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMERAL = re.compile(r"\b(?:I{1,3}|IV|V|VI)\b(?!')")
_NUMERALS_ONLY = re.compile(
    r"(?:(?:only|both|and|none|neither|nor|of|the|above|statements?|,|I{1,3}|IV|V|VI)(?:\W+|$))+",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"\b(?:not|isn't|aren't|doesn't|don't|false|fails?|wrong|incorrect|untrue|neither|nor)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[;.]|,? \bbut\b|, (?=I{1,3}\b[^,;.]{0,20}\b(?:is|does|fails|isn't))|\band (?=I{1,3} (?:is|does|fails))",
)
_ASSERTED = re.compile(
    r"\W{0,3}(?i:only |both |all of |all |statements? |so |thus |hence )*(?:I{1,3}|IV|V|VI)\b[\s,andIV]*(?:only)?"
    r"(?:\W{0,3}$| ?(?:is|are|hold|holds|must be)\b[\w ]{0,20}\W{0,3}$)"
)
_TRUTH_VALUES = re.compile(r"(?:true|false)(?:\s?[,/]\s?(?:true|false))+", re.IGNORECASE)
_STATED_TRUTH = re.compile(
    r"\b(?P<not>not |isn't |is not |does not |doesn't )?(?:(?P<yes>true|holds?|right|correct|valid)|(?P<no>false|"
    r"fails?|wrong|incorrect|invalid))\b"
    r"|\b(?P<short>isn't|doesn't|does not|is not)(?=\W*(?:$|[:;.,]))",
    re.IGNORECASE,
)
_PLACES = {"first": 1, "1": 1, "i": 1, "second": 2, "2": 2, "ii": 2, "third": 3, "3": 3, "iii": 3}
_PLACE = re.compile(
    r"\b(?:the (?P<ordinal>first|second|third)\b|(?:statement|claim|assertion|sentence) (?P<number>[123]|I{1,3})\b)",
    re.IGNORECASE,
)
_WHICH = re.compile(
    r"(?:only (?:the )?(?:(?:statement|claim|assertion|sentence) )?(?P<one>first|second|third|[123]|I{1,3})|"
    r"(?P<all>both|all)|"
    r"(?P<none>neither|none))\b[\w ]{0,20}\b(?:is|are|statements?|claims?|true)\b(?: (?:true|correct|valid|right))?",
    re.IGNORECASE,
)
_WHICH_TRUE = re.compile(_WHICH.pattern + r"\W{0,3}", re.IGNORECASE)


def stated_choice(text: str, letters: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice that the statements of a text amount to; `None` if there is none."""
    wordings = [str(choice).strip(" .") for choice in choices]
    if all(map(_NUMERALS_ONLY.fullmatch, wordings)) and any("II" in wording for wording in wordings):
        wanted = _asserted_numerals(text)
        sets: list[tuple[str, ...] | None] = [_numerals(wording) for wording in wordings]
    elif all(map(_TRUTH_VALUES.fullmatch, wordings)):
        wanted = _truth_values(text)
        sets = [_truth_values(wording) for wording in wordings]
    elif all(
        _WHICH_TRUE.fullmatch(wording) and re.search(r"true|correct|valid|right", wording) for wording in wordings
    ):
        wanted = _true_places(text)
        sets = [_which(wording) for wording in wordings]
    else:
        return None
    same = [letter for letter, content in zip(letters, sets, strict=False) if wanted is not None and content == wanted]
    return same[0] if len(same) == 1 else None


def _numerals(wording: str) -> tuple[str, ...]:
    negative = re.match(r"\s*(?:neither|none)\b", wording, re.IGNORECASE)
    return () if negative else tuple(sorted(set(_NUMERAL.findall(wording))))


def _asserted_numerals(text: str) -> tuple[str, ...] | None:
    """The statements that a text calls true; `None` if it says something else than that."""
    found: set[str] = set()
    for clause in _CLAUSE.split(text):
        if not _NUMERAL.search(clause or ""):
            continue
        if _NEGATIVE.search(clause):
            continue
        if not _ASSERTED.match(clause):
            return None
        found.update(_NUMERAL.findall(clause))
    # A single I is a pronoun, unless other statements are named too.
    return tuple(sorted(found)) if len(found) > 1 or (found and "II" in text) else None


def _truth_values(text: str) -> tuple[str, ...] | None:
    values = []
    for stated in _STATED_TRUTH.finditer(text):
        values.append(str(bool(stated["yes"]) != bool(stated["not"]) and not stated["short"]))
    return tuple(values) if len(values) > 1 else None


def _which(wording: str) -> tuple[str, ...]:
    """The places of the statements that a wording such as "Only statement 2 is true" calls true."""
    which = _WHICH_TRUE.fullmatch(wording)
    if which is None or which["none"]:
        return ()
    return (str(_PLACES[which["one"].lower()]),) if which["one"] else ("1", "2")


def _true_places(text: str) -> tuple[str, ...] | None:
    """The places of the statements called true, if both are judged ("the first is false, the second true")."""
    stated = _WHICH_TRUE.fullmatch(text.strip())
    if stated and re.search(r"true|correct|valid|right", text):
        return _which(text.strip())
    places = [_PLACES[(place["ordinal"] or place["number"]).lower()] for place in _PLACE.finditer(text)]
    values = _truth_values(text)
    if sorted(places) != [1, 2] or values is None or len(values) != len(places):
        return None
    return tuple(sorted(str(place) for place, value in zip(places, values, strict=True) if value == "True"))
