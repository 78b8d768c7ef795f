"""Choices that are names of people: the last name alone, and names that only look alike.

"Shelley" and "Mary W. Shelley" are Mary Shelley; "Percy Shelley", "Shelley Winters" and "the husband of Mary Shelley" are
not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

RELATED_TO = re.compile(
    r"\b(?:husband|wife|widow|friend|father|mother|parent|son|daughter|child|brother|sister|cousin|uncle|aunt|rival|contemporary|"
    r"student|teacher|pupil|disciple|follower|colleague|neighbou?r|admirer|critic|biographer|suburb|outskirts|opposite) of (?:the )?$",
    re.IGNORECASE,
)
"""Before the wording of a choice, what makes it somebody or something else."""

_NAMES_BEFORE = re.compile(r"(?:\b[A-Z](?:\.|[\w'-]*\.?)\s){1,4}$")
_NAME_AFTER = re.compile(r"\s[A-Z][a-z]+")
_NO_NAMES = frozenset("The By Author Writer Novelist It Answer Was Is Then So Thus Hence Therefore Option Choice Mrs. Mrs Ms. Ms Yes No".split())


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
