"""Arithmetic: word problems of two or three steps, made up from a seed.

Every story starts with some groups of so many things each, then things go or come, once or twice. Numbers stay small
enough that no result on the way leaves 1..120. Whether a problem belongs to training or to testing follows from its
text, so the two never meet, whatever the seeds. Nothing here is read from disk, and no model is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any, Literal

from opd_align.tasks.task import Form, Task
from opd_align.tasks.verify import Number
from opd_align.types import OpdAlignError, Question

Split = Literal["train", "test"]

LARGEST = 120
"""No result on the way to an answer is larger."""

ARITHMETIC = Task(
    name="arithmetic",
    verifier=Number(),
    ask=Form("Solve the problem step by step. The last line should be 'Answer: $NUMBER'."),
    made=lambda seed, n, split: questions(seed, n, split=split),
)
"""Short of words, since the embedded models read slowly; `questions` makes what there is to ask."""


@dataclass(frozen=True)
class Story:
    """Where things are kept, what they are called, and the ways in which they go and come."""

    place: str
    groups: str
    items: str
    on: str
    going: tuple[str, ...]
    coming: tuple[str, ...]


STORIES = (
    Story("A library", "shelves", "books", "on", ("removed", "lent out"), ("added", "brought back")),
    Story("A shop", "boxes", "apples", "in", ("sold", "thrown away"), ("added", "delivered")),
    Story("A theatre", "rows", "seats", "in", ("removed", "taken out"), ("added", "put in")),
    Story("A child", "bags", "marbles", "in", ("lost", "given away"), ("found", "won")),
    Story("A farm", "pens", "sheep", "in", ("sold", "sent away"), ("bought", "born")),
    Story("An album", "pages", "photos", "on", ("removed", "lost"), ("added", "found")),
    Story("A bakery", "trays", "cakes", "on", ("sold", "eaten"), ("baked", "brought back")),
    Story("A garden", "beds", "flowers", "in", ("picked", "eaten"), ("planted", "found")),
)


@dataclass(frozen=True)
class Change:
    """Some things go (`sign` -1) or come (+1)."""

    sign: int
    amount: int
    verb: str


@dataclass(frozen=True)
class Problem:
    """What happens in one problem; `turned` tells the first sentence the other way round."""

    story: Story
    groups: int
    each: int
    changes: tuple[Change, ...]
    turned: bool

    @property
    def results(self) -> tuple[int, ...]:
        """What is there at first, and after each change."""
        there = [self.groups * self.each]
        for change in self.changes:
            there.append(there[-1] + change.sign * change.amount)
        return tuple(there)

    @property
    def text(self) -> str:
        story = self.story
        if self.turned:
            first = f"{story.place} has {self.each} {story.items} {story.on} each of {self.groups} {story.groups}."
        else:
            first = f"{story.place} has {self.groups} {story.groups} with {self.each} {story.items} each."
        then = [f"{change.amount} {story.items} are {change.verb}." for change in self.changes]
        if len(then) == 2:
            then[1] = f"Then {then[1]}"
        return " ".join([first, *then, f"How many {story.items} are there now?"])

    def question(self) -> Question:
        changes = [change.sign * change.amount for change in self.changes]
        fields: dict[str, Any] = {"groups": self.groups, "each": self.each, "changes": changes}
        name = blake2b(self.text.encode(), digest_size=5).hexdigest()
        return Question(f"arithmetic-{name}", self.text, str(self.results[-1]), fields)


def split_of(problem: Problem) -> Split:
    """One problem in five is for testing."""
    return "test" if int.from_bytes(blake2b(problem.text.encode(), digest_size=4).digest()) % 5 == 0 else "train"


def problems(seed: int | str, split: str = "train") -> Iterator[Problem]:
    """Endless problems of one split; the same seed, the same problems. They may come again."""
    if split not in ("train", "test"):
        raise OpdAlignError(f"arithmetic has the splits 'train' and 'test', not {split!r}")
    dice = Random(f"arithmetic {split} {seed}")
    while True:
        problem = _draw(dice)
        if max(problem.results) <= LARGEST and min(problem.results) >= 1 and split_of(problem) == split:
            yield problem


def questions(seed: int, n: int, *, split: str = "test") -> list[Question]:
    """`n` different questions of one split."""
    found: dict[str, Question] = {}
    for problem in problems(seed, split):
        if len(found) >= n:
            break
        question = problem.question()
        found.setdefault(question.id, question)
    return list(found.values())


_EQUATION = re.compile(r"(\d+) ([×*+-]) (\d+) = (\d+)")


def summarise(response: str) -> str:
    """The calculation a response ended with, and its last line; what it took back on the way is left out."""
    chain: list[re.Match[str]] = []
    for equation in reversed(list(_EQUATION.finditer(response))):
        if not chain or equation[4] == chain[0][1]:
            chain.insert(0, equation)
    last = response.rstrip().rpartition("\n")[2]
    return f"{', '.join(equation[0] for equation in chain)}. {last}" if chain else last


def _draw(dice: Random) -> Problem:
    story = dice.choice(STORIES)
    changes = []
    for _ in range(dice.choice((1, 1, 2))):
        sign = dice.choice((-1, 1))
        verb = dice.choice(story.going if sign < 0 else story.coming)
        changes.append(Change(sign, dice.randint(2, 19), verb))
    return Problem(story, dice.randint(2, 9), dice.randint(2, 12), tuple(changes), dice.random() < 0.5)
