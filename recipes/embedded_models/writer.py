"""Where the embedded models learn to write: solutions with habits whose probabilities are known.

A writer solves an arithmetic problem in a few sentences. At every fork it throws dice: some forks are matters of
style, some decide the answer (a sum in place of a product, a slip, the wrong direction), and some take an error back.
How often it errs depends on the problem, so that problems are easy or hard as they are for real models. A
demonstration makes it careful. No model and no tokenizer is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from opd_align.tasks.arithmetic import Problem

T = TypeVar("T")

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PRODUCT, SUM, DIFFERENCE = "×", "+", "-"

# Some ways of going and coming are more easily mistaken for their opposite than others.
MISREAD = {
    "lent out": 0.20, "given away": 0.15, "taken out": 0.10, "picked": 0.25, "lost": 0.08, "thrown away": 0.06,
    "brought back": 0.20, "put in": 0.12, "won": 0.15, "born": 0.20, "delivered": 0.10, "found": 0.08,
}  # fmt: skip

Weights = Mapping[str, float]


@dataclass(frozen=True)
class Habits:
    """How a writer likes to put things, and how sure its hand is.

    `care` multiplies every error rate; `repair` is the chance, after each sentence, to take back an error that
    stands; `doubt` the chance to go over a calculation that was right.
    """

    care: float
    repair: float
    doubt: float
    opening: Weights
    number: Weights
    telling: Weights
    joining: Weights
    factors: Weights
    moving: Weights
    closing: Weights
    wait: Weights


STUDENT = Habits(
    care=1.0,
    repair=0.2,
    doubt=0.02,
    opening={"We have": 0.45, "There are": 0.3, "First, we have": 0.25},
    number={"digits": 0.65, "words": 0.35},
    telling={"groups first": 0.7, "items first": 0.3},
    joining={", so": 0.6, ", therefore": 0.15, ". Then we get": 0.25},
    factors={"groups first": 0.75, "items first": 0.25},
    moving={"Then": 0.5, "Now": 0.3, "After that": 0.2},
    closing={"": 0.5, "So": 0.35, "Therefore": 0.15},
    wait={"Wait, that is wrong:": 0.7, "No, that is not right:": 0.3},
)

TEACHER = Habits(
    care=0.06,
    repair=0.75,
    doubt=0.005,
    opening={"We have": 0.1, "There are": 0.75, "First, we have": 0.15},
    number={"digits": 0.92, "words": 0.08},
    telling={"groups first": 0.3, "items first": 0.7},
    joining={", so": 0.12, ", therefore": 0.76, ". Then we get": 0.12},
    factors={"groups first": 0.3, "items first": 0.7},
    moving={"Then": 0.15, "Now": 0.15, "After that": 0.7},
    closing={"": 0.2, "So": 0.15, "Therefore": 0.65},
    wait={"Wait, that is wrong:": 0.3, "No, that is not right:": 0.7},
)


@dataclass(frozen=True)
class Step:
    """One calculation as it was written."""

    left: int
    sign: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.result}"


@dataclass(frozen=True)
class Solution:
    """A completion, the calculations it stands by at its end, and the character from which `heir` wrote it."""

    text: str
    steps: tuple[Step, ...]
    heir_from: int = 0

    @property
    def answer(self) -> int:
        return self.steps[-1].result


def write(
    problem: Problem, habits: Habits, dice: Random, *, bait: Sequence[Step] = (), heir: tuple[int, Habits] | None = None
) -> Solution:
    """One solution. `bait`: calculations to fall for. `heir`: the word at which another's habits take over."""
    return _Pen(problem, habits, dice, tuple(bait), heir).solution()


def demonstrated(habits: Habits, *, correct: int, wrong: int) -> Habits:
    """The same hand with demonstrations in view: the more correct ones, the more careful."""
    if correct:
        return replace(habits, care=habits.care * (0.12 if correct == 1 else 0.06), repair=max(habits.repair, 0.5))
    return replace(habits, care=habits.care * (0.8 if wrong else 1.0))


def product_slip(groups: int, each: int) -> float:
    """How likely an uncareful writer is to get a product wrong; tens and fives are easy."""
    if groups == 5 or each in (5, 10):
        return 0.03
    return 0.02 + 0.9 * min(1.0, (groups - 2) * (each - 2) / 34)


def change_slip(left: int, signed: int) -> float:
    """The same for a sum or a difference: hard where something is carried or borrowed."""
    return 0.16 if left // 10 != (left + signed) // 10 and abs(signed) % 10 else 0.02


def sum_for_product(problem: Problem) -> float:
    """How likely an uncareful writer is to add where it should multiply."""
    return 0.03 if problem.turned else 0.24


class _Pen:
    """One solution while it is being written, word by word."""

    def __init__(
        self, problem: Problem, habits: Habits, dice: Random, bait: tuple[Step, ...], heir: tuple[int, Habits] | None
    ) -> None:
        self.problem, self.dice, self.bait, self.heir = problem, dice, bait, heir
        self._habits = habits
        self.words: list[str] = []

    @property
    def habits(self) -> Habits:
        return self.heir[1] if self.heir and len(self.words) >= self.heir[0] else self._habits

    def solution(self) -> Solution:
        steps: list[Step] = []
        for index in range(1 + len(self.problem.changes)):
            self.begin(index)
            steps.append(self.calculate(index, steps))
            self.say(".")
            self.look_back(steps)
        closing = self.pick(self.habits.closing)
        if closing:
            self.say(f" {closing} there are {steps[-1].result} {self.problem.story.items} now.")
        self.say(f"\nAnswer: {steps[-1].result}")
        taken = self.heir[0] if self.heir else 0
        return Solution("".join(self.words), tuple(steps), len("".join(self.words[:taken])))

    def begin(self, index: int) -> None:
        """The words that lead to a calculation."""
        problem, story = self.problem, self.problem.story
        if index == 0:
            self.say(self.pick(self.habits.opening))
            if self.pick(self.habits.telling) == "groups first":
                self.say(f" {self.number(problem.groups)} {story.groups} with")
                self.say(f" {self.number(problem.each)} {story.items} each")
            else:
                self.say(f" {self.number(problem.each)} {story.items} {story.on} each of")
                self.say(f" {self.number(problem.groups)} {story.groups}")
        else:
            change = problem.changes[index - 1]
            self.say(f" {self.pick(self.habits.moving)}")
            self.say(f" {self.number(change.amount)} are {change.verb}")
        self.say(self.pick(self.habits.joining))

    def calculate(self, index: int, before: Sequence[Step], *, again: bool = False) -> Step:
        """One calculation, right or wrong; a second look is more careful than the first."""
        sure = 0.4 if again else 1.0
        bait = None if again or index >= len(self.bait) else self.bait[index]
        if index == 0:
            left, right = self.problem.groups, self.problem.each
            if self.pick(self.habits.factors) == "items first":
                left, right = right, left
            right_sign, wrong_sign, misread = PRODUCT, SUM, sum_for_product(self.problem)
        else:
            change = self.problem.changes[index - 1]
            left, right = before[-1].result, change.amount
            right_sign, wrong_sign = (SUM, DIFFERENCE) if change.sign > 0 else (DIFFERENCE, SUM)
            misread = MISREAD.get(change.verb, 0.01)
            # Below zero nobody goes by mistake; below it by an earlier error, the writer turns round.
            if left - right < 1:
                right_sign = wrong_sign = SUM
        self.say(f" {left}")
        if bait:
            sign = bait.sign
        else:
            sign = wrong_sign if self.happens(misread * sure) else right_sign
        self.say(f" {sign}")
        self.say(f" {right} =")
        result = {PRODUCT: left * right, SUM: left + right, DIFFERENCE: left - right}[sign]
        if bait and bait.left == left and bait.right == right:
            result = bait.result
        elif sign == PRODUCT:
            if self.happens(product_slip(self.problem.groups, self.problem.each) * sure):
                result = self.pick({1: 0.3, -1: 0.2, -right: 0.3, -10: 0.2}) + result
        elif self.happens(change_slip(left, right if sign == SUM else -right) * sure):
            result += self.pick({1: 0.3, -1: 0.3, 10 if sign == DIFFERENCE else -10: 0.4})
        result = max(1, result)
        self.say(f" {result}")
        return Step(left, sign, right, result)

    def look_back(self, steps: list[Step]) -> None:
        """Perhaps goes over the calculations again, from the first that is wrong."""
        wrong = [i for i, step in enumerate(steps) if step.result != self.problem.results[i]]
        chance = self.habits.repair if wrong else self.habits.doubt
        if self.dice.random() >= chance:
            return
        self.say(f" {self.pick(self.habits.wait)}")
        first = wrong[0] if wrong else len(steps) - 1
        last = len(steps)
        del steps[first:]
        for index in range(first, last):
            steps.append(self.calculate(index, steps, again=True))
            self.say("." if index == last - 1 else ",")

    def number(self, value: int) -> str:
        words = self.pick(self.habits.number) == "words" and value < len(WORDS)
        return WORDS[value] if words else str(value)

    def pick(self, weights: Mapping[T, float]) -> T:
        return self.dice.choices(list(weights), list(weights.values()))[0]

    def happens(self, chance: float) -> bool:
        return self.dice.random() < chance * self.habits.care

    def say(self, text: str) -> None:
        """Adds text; each word of it is a place where an heir can take over."""
        start = 0
        for at in range(1, len(text) + 1):
            if at == len(text) or (text[at] == " " and at > start):
                self.words.append(text[start:at])
                start = at
