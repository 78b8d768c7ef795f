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
_STATED_TRUTH = re.compile(r"\b(not |isn't |is not )?(true|false)\b", re.IGNORECASE)


def stated_choice(text: str, letters: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice that the statements of a text amount to; `None` if there is none."""
    wordings = [str(choice).strip(" .") for choice in choices]
    if all(map(_NUMERALS_ONLY.fullmatch, wordings)) and any("II" in wording for wording in wordings):
        wanted = _asserted_numerals(text)
        sets: list[tuple[str, ...] | None] = [_numerals(wording) for wording in wordings]
    elif all(map(_TRUTH_VALUES.fullmatch, wordings)):
        wanted = _truth_values(text)
        sets = [_truth_values(wording) for wording in wordings]
    else:
        return None
    same = [letter for letter, content in zip(letters, sets, strict=False) if wanted and content == wanted]
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
    for negation, word in _STATED_TRUTH.findall(text):
        value = word.lower() == "true"
        values.append(str(value != bool(negation)))
    return tuple(values) if len(values) > 1 else None
