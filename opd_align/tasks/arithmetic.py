"""Arithmetic: word problems of two or three steps, generated from a seed.

Every story starts with groups of items; then items are removed or added, once or twice. All intermediate results are in
1..120. The split of a problem (train or test) follows from its text, so the splits are disjoint for all seeds.
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
"""Largest intermediate result."""

ARITHMETIC = Task(
    name="arithmetic",
    verifier=Number(),
    user_message=Form("Solve the problem step by step. The last line should be 'Answer: $NUMBER'."),
    generate=lambda seed, n, split: questions(seed, n, split=split),
)
"""Generated questions with a short instruction, since the embedded models are small."""


@dataclass(frozen=True)
class Story:
    """The words of a story: owner, groups, items, preposition, verbs for removing (`going`) and adding (`coming`)."""

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
    """Items are removed (`sign` -1) or added (+1)."""

    sign: int
    amount: int
    verb: str


@dataclass(frozen=True)
class Problem:
    """One problem: `groups` groups with `each` items, then the changes.

    `turned` selects the other wording of the first sentence, with the items before the groups.
    """

    story: Story
    groups: int
    each: int
    changes: tuple[Change, ...]
    turned: bool

    @property
    def results(self) -> tuple[int, ...]:
        """The number of items at first, and after each change."""
        counts = [self.groups * self.each]
        for change in self.changes:
            counts.append(counts[-1] + change.sign * change.amount)
        return tuple(counts)

    @property
    def text(self) -> str:
        story = self.story
        if self.turned:
            first = f"{story.place} has {self.each} {story.items} {story.on} each of {self.groups} {story.groups}."
        else:
            first = f"{story.place} has {self.groups} {story.groups} with {self.each} {story.items} each."
        sentences = [f"{change.amount} {story.items} are {change.verb}." for change in self.changes]
        if len(sentences) == 2:
            sentences[1] = f"Then {sentences[1]}"
        return " ".join([first, *sentences, f"How many {story.items} are there now?"])

    def question(self) -> Question:
        changes = [change.sign * change.amount for change in self.changes]
        fields: dict[str, Any] = {"groups": self.groups, "each": self.each, "changes": changes}
        name = blake2b(self.text.encode(), digest_size=5).hexdigest()
        return Question(f"arithmetic-{name}", self.text, str(self.results[-1]), fields)


def split_of(problem: Problem) -> Split:
    """One problem in five belongs to the test split."""
    return "test" if int.from_bytes(blake2b(problem.text.encode(), digest_size=4).digest()) % 5 == 0 else "train"


def problems(seed: int | str, split: str = "train") -> Iterator[Problem]:
    """An endless sequence of problems of one split, determined by the seed. Problems may repeat."""
    if split not in ("train", "test"):
        raise OpdAlignError(f"arithmetic has the splits 'train' and 'test', not {split!r}")
    rng = Random(f"arithmetic {split} {seed}")
    while True:
        problem = _draw(rng)
        if max(problem.results) <= LARGEST and min(problem.results) >= 1 and split_of(problem) == split:
            yield problem


def questions(seed: int, n: int, *, split: str = "test") -> list[Question]:
    """`n` distinct questions of one split."""
    found: dict[str, Question] = {}
    for problem in problems(seed, split):
        if len(found) >= n:
            break
        question = problem.question()
        found.setdefault(question.id, question)
    return list(found.values())


_EQUATION = re.compile(r"(\d+) ([×*+-]) (\d+) = (\d+)")


def summarise(response: str) -> str:
    """The final calculation of a response and its last line, without steps that it corrected later."""
    chain: list[re.Match[str]] = []
    for equation in reversed(list(_EQUATION.finditer(response))):
        if not chain or equation[4] == chain[0][1]:
            chain.insert(0, equation)
    last = response.rstrip().rpartition("\n")[2]
    return f"{', '.join(equation[0] for equation in chain)}. {last}" if chain else last


def _draw(rng: Random) -> Problem:
    story = rng.choice(STORIES)
    changes = []
    for _ in range(rng.choice((1, 1, 2))):
        sign = rng.choice((-1, 1))
        verb = rng.choice(story.going if sign < 0 else story.coming)
        changes.append(Change(sign, rng.randint(2, 19), verb))
    return Problem(story, rng.randint(2, 9), rng.randint(2, 12), tuple(changes), rng.random() < 0.5)
