"""Choices by less than their wording: a last name, the word that only one choice has; and what only looks alike.

"Shelley" and "Mary W. Shelley" are Mary Shelley; "Percy Shelley", "Shelley Winters" and "the husband of Mary
Shelley" are not. "Hypotonic" is the choice "It is hypotonic to the cell"; "nitrogen dioxide" is not the choice
"Nitrogen".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

RELATED_TO = re.compile(
    r"\b(?:husband|wife|widow|friend|father|mother|parent|son|daughter|child|brother|sister|cousin|uncle|aunt|"
    r"rival|contemporary|"
    r"student|teacher|pupil|disciple|follower|colleague|neighbou?r|admirer|critic|biographer|suburb|outskirts|"
    r"opposite|author|title|plot|fan|reader|review|critique) of (?:the )?$|"
    r"(?<!named )\b(?:after|before|prior to|next to) (?:the )?$|"
    r"\b(?:sequel|prequel|similar|alternative|comparable) to (?:the )?$|"
    r"(?<!looks )(?<!look )(?<!seems )(?<!sounds )\blike (?:the |an? )?$|\b(?:resembles?|resembling|"
    r"errors? in|problems? (?:in|with)|think of|love|hate|enjoy(?:ed)?|(?:have|never) read|no) $",
    re.IGNORECASE,
)
"""Before the wording of a choice, what makes it somebody or something else."""

COMPOUND = re.compile(
    r"\s(?!(?:gas|it|then|indeed|here|only|again|too|obviously|definitely|certainly|wrote|invented|discovered|wins|"
    r"is|are|was|were|has|have|"
    r"can|will|did|does|and|or|but|because|since|as|in|at|on|for|of|to|by|with|from|not|which|that|who|would|"
    r"should|must|may|might|"
    r"could|makes?|does|rather|instead|seems|looks|fits|works)\b)[a-z]+(?: (?:is|are|was|were|has|have|can|will)\b|"
    r"\W{0,3}$)",
    re.IGNORECASE,
)
"""After the wording of a choice, what makes it part of another name: "nitrogen dioxide", "nitrogen fixation is"."""

_NAMES_BEFORE = re.compile(r"(?:\b[A-Z](?:\.|[\w'-]*\.?)\s){1,4}$")
_NAME_AFTER = re.compile(r"\s[A-Z][a-z]+")
_NOT_INFLECTED = frozenset(("false", "none", "never", "always", "neither"))
_SHORTEST_PART = 5
_MAX_PART_WORDS = 4
_NO_NAMES = frozenset(
    re.findall(
        r"\S+",
        "The By Author Writer Novelist It Answer Was Is Then So Thus Hence Therefore Option Choice Mrs. Mrs Ms. Ms "
        "Yes No",
    )
)


def last_names(letters: str, choices: Sequence[str]) -> dict[str, str]:
    """Last words of choices that are names, by letter, where no other choice contains them: Shelley, Dickens."""
    words = [str(choice).split() for choice in choices]
    names = {
        letter: row[-1].casefold()
        for letter, row in zip(letters, words, strict=False)
        if len(row) > 1 and len(row[-1]) > 3 and all(word[:1].isupper() and word.isalpha() for word in row)
    }
    every = [word.casefold() for row in words for word in row]
    return {letter: name for letter, name in names.items() if every.count(name) == 1}


def is_name_of(choice: str, text: str, start: int, end: int) -> bool:
    """Whether the last name found here stands for this person: alone, or after one of the person's first names."""
    if _NAME_AFTER.match(text, end):
        return False
    before = _NAMES_BEFORE.search(text[max(0, start - 60) : start])
    names = [name for name in before.group().split() if name not in _NO_NAMES] if before else []
    own = choice.split()[:-1]
    return not names or any(name == first or (name.rstrip(".") == first[0]) for name in names[:1] for first in own)


def none_of_them(letters: str, choices: Sequence[str], text: str) -> list[str]:
    """The choice "None of the above", for a text such as "none of them"."""
    if not re.fullmatch(
        r"(?:none|neither)(?: of (?:them|these|those|the (?:above|options|choices|others|given))\b[\w ]{0,20})?", text
    ):
        return []
    return [
        letter
        for letter, choice in zip(letters, choices, strict=False)
        if re.match(r"\W*(?:none|neither) of (?:the|these|those)\b", str(choice), re.IGNORECASE)
    ]


def part_of_one(letters: str, choices: Sequence[str], text: str) -> list[str]:
    """The only choice that contains a short text as words, not denied: "hypotonic"; names are not cut in this way."""
    if len(text) < _SHORTEST_PART or len(text.split()) > _MAX_PART_WORDS or not re.fullmatch(r"[a-z][a-z -]+", text):
        return []
    found = []
    for letter, choice in zip(letters, choices, strict=False):
        folded = str(choice).casefold()
        place = re.search(rf"(?<![\w-]){re.escape(text)}(?![\w-])", folded)
        if place is None:
            continue
        is_name = all(word[:1].isupper() for word in str(choice).split())
        if is_name or re.search(r"\b(?:not|no|never|neither|nor|without)\b|n't\b", folded):
            return []
        found.append(letter)
    return found if len(found) == 1 else []


@functools.lru_cache(maxsize=4096)
def inflected(wording: str) -> str | None:
    """A pattern for a choice of one word in its other forms: "decreases", "decrease", "decreasing"; "kidneys"."""
    if not re.fullmatch(r"[a-z]{5,}(?<!ss|us|is)", wording) or wording in _NOT_INFLECTED:
        return None
    if latin := re.fullmatch(r"([a-z]{5,})(?:a|on|um)", wording):
        return rf"{latin[1]}(?:a|on|um)"  # mitochondria, mitochondrion
    stem = re.sub(r"(?:es|s|e)$", "", wording)
    return rf"{stem}(?:e|es|s|ed|d|ing)?"


def listed(wording: str) -> str:
    """A wording with "and" written as a comma: "11 protons and 12 neutrons" is "11 protons, 12 neutrons"."""
    return re.sub(r",? (?:and|&) ", ", ", wording)
