"""The choice whose wording a sentence sets off in quotation marks or bold: 'so "Its price is inelastic" fits best'.

A wording that is set off is meant as a choice, even if it contains letters ("A and B are independent") or what
otherwise denies ("It does not change").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from opd_align.tasks.choice_sentences import NOT_BEFORE, WRONG_AFTER
from opd_align.tasks.choice_wording import letters_of, normalised
from opd_align.tasks.statements import DENIAL_AFTER, HEDGE, NEGATION, is_aside

_SET_OFF = re.compile(r"\"(?P<quoted>[^\"\n]{2,160})\"|\*\*(?P<bold>[^*\n]{2,160})\*\*")
_HOLDS = re.compile(
    r"[\s*\"]{0,3}(?:holds?|fits|applies|matches|works|(?:best |accurately |correctly )?describes|"
    r"is (?:the |what )?(?:best|right|correct|true|most|answer|only|one))\b",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"(?<![\w'])\(?([B-HJ-Z])\)?(?![\w'])|\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer) \(?([A-Z])\b|\(([A-Z])\)"
)
_OTHERS_SAY = re.compile(
    r"\b(?:says?|said|claims?|question|asks?|passage|consider|between|either|or)\W{0,3}$", re.IGNORECASE
)


def highlighted(sentence: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the only choice that a sentence sets off and does not deny; `None` if there is none."""
    if (
        choices is None
        or ('"' not in sentence and "**" not in sentence)
        or HEDGE.search(sentence)
        or is_aside(sentence)
    ):
        return None
    wordings = {normalised(choice): letter for letter, choice in zip(letters_of(choices), choices, strict=False)}
    stated: dict[str, bool] = {}
    for match in _SET_OFF.finditer(sentence):
        letter = wordings.get(normalised(match["quoted"] or match["bold"]))
        if letter is None:
            continue
        before, after = sentence[: match.start()], sentence[match.end() :]
        clause = re.split(r"[,;:]", before)[-1]
        if _OTHERS_SAY.search(before) or re.match(r"\W{0,3}(?:or|and/or)\b", after):
            return None
        if NOT_BEFORE.search(before[-40:]) or NEGATION.search(clause):
            continue
        if DENIAL_AFTER.match(after) or WRONG_AFTER.match(after):
            continue
        stated[letter] = bool(_HOLDS.match(after))
    if len(stated) != 1:
        return None
    letter, holds = next(iter(stated.items()))
    rest = _SET_OFF.sub(" ", sentence)
    named = {found for groups in _LETTER.findall(rest) for found in groups if found and found in letters}
    return letter if holds or not named - {letter} else None
