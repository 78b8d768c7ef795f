"""Generates the training texts of the embedded models: solutions whose style and error rates are known.

A solution of an arithmetic problem has a few sentences. Each choice is random with known probabilities: some concern
style only, some decide the answer (a sum instead of a product, a slip, the wrong sign), and some correct an error.
Error rates depend on the problem, so that problems are easy or hard as they are for real models, and are lower with
demonstrations. This module does not depend on a model or a tokenizer.
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

# Probability of mistaking a verb for its opposite (adding for removing).
MISREAD = {
    "lent out": 0.20, "given away": 0.15, "taken out": 0.10, "picked": 0.25, "lost": 0.08, "thrown away": 0.06,
    "brought back": 0.20, "put in": 0.12, "won": 0.15, "born": 0.20, "delivered": 0.10, "found": 0.08,
}  # fmt: skip

Weights = Mapping[str, float]


@dataclass(frozen=True)
class Style:
    """Style and error rates of a writer.

    Args:
        error_scale: Factor of all error rates.
        repair: Probability, after each sentence, of correcting an error.
        doubt: Probability of repeating a calculation that was correct.
        opening, number, telling, joining, factors, moving, closing, wait: Probabilities of phrases.
    """

    error_scale: float
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


STUDENT = Style(
    error_scale=1.0,
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

TEACHER = Style(
    error_scale=0.06,
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
    """A completion, its final calculations, and the character at which the successor takes over."""

    text: str
    steps: tuple[Step, ...]
    successor_start: int = 0

    @property
    def answer(self) -> int:
        return self.steps[-1].result


def write(
    problem: Problem,
    style: Style,
    rng: Random,
    *,
    copied: Sequence[Step] = (),
    successor: tuple[int, Style] | None = None,
) -> Solution:
    """One solution. `copied`: calculations to repeat. `successor`: the word at which another style takes over."""
    return _Writer(problem, style, rng, tuple(copied), successor).solution()


def demonstrated(style: Style, *, correct: int, wrong: int) -> Style:
    """The style with demonstrations in the prompt: correct ones lower the error rates."""
    if correct:
        return replace(
            style, error_scale=style.error_scale * (0.12 if correct == 1 else 0.06), repair=max(style.repair, 0.5)
        )
    return replace(style, error_scale=style.error_scale * (0.8 if wrong else 1.0))


def product_slip(groups: int, each: int) -> float:
    """Error rate of a product at `error_scale` 1; tens and fives are easy."""
    if groups == 5 or each in (5, 10):
        return 0.03
    return 0.02 + 0.9 * min(1.0, (groups - 2) * (each - 2) / 34)


def change_slip(left: int, signed: int) -> float:
    """Error rate of a sum or a difference at `error_scale` 1; higher with a carry or a borrow."""
    return 0.16 if left // 10 != (left + signed) // 10 and abs(signed) % 10 else 0.02


def sum_for_product(problem: Problem) -> float:
    """Probability at `error_scale` 1 of adding where a product is required."""
    return 0.03 if problem.turned else 0.24


class _Writer:
    """One solution while it is generated, word by word."""

    def __init__(
        self, problem: Problem, style: Style, rng: Random, copied: tuple[Step, ...], successor: tuple[int, Style] | None
    ) -> None:
        self.problem, self.rng, self.copied, self.successor = problem, rng, copied, successor
        self._style = style
        self.words: list[str] = []

    @property
    def style(self) -> Style:
        return self.successor[1] if self.successor and len(self.words) >= self.successor[0] else self._style

    def solution(self) -> Solution:
        steps: list[Step] = []
        for index in range(1 + len(self.problem.changes)):
            self.begin(index)
            steps.append(self.calculate(index, steps))
            self.append(".")
            self.maybe_repair(steps)
        closing = self.pick(self.style.closing)
        if closing:
            self.append(f" {closing} there are {steps[-1].result} {self.problem.story.items} now.")
        self.append(f"\nAnswer: {steps[-1].result}")
        taken = self.successor[0] if self.successor else 0
        return Solution("".join(self.words), tuple(steps), len("".join(self.words[:taken])))

    def begin(self, index: int) -> None:
        """The words before a calculation."""
        problem, story = self.problem, self.problem.story
        if index == 0:
            self.append(self.pick(self.style.opening))
            if self.pick(self.style.telling) == "groups first":
                self.append(f" {self.number(problem.groups)} {story.groups} with")
                self.append(f" {self.number(problem.each)} {story.items} each")
            else:
                self.append(f" {self.number(problem.each)} {story.items} {story.on} each of")
                self.append(f" {self.number(problem.groups)} {story.groups}")
        else:
            change = problem.changes[index - 1]
            self.append(f" {self.pick(self.style.moving)}")
            self.append(f" {self.number(change.amount)} are {change.verb}")
        self.append(self.pick(self.style.joining))

    def calculate(self, index: int, before: Sequence[Step], *, again: bool = False) -> Step:
        """One calculation, correct or not; a repeated one (`again`) has a lower error rate."""
        error_factor = 0.4 if again else 1.0
        copied = None if again or index >= len(self.copied) else self.copied[index]
        if index == 0:
            left, right = self.problem.groups, self.problem.each
            if self.pick(self.style.factors) == "items first":
                left, right = right, left
            right_sign, wrong_sign, misread = PRODUCT, SUM, sum_for_product(self.problem)
        else:
            change = self.problem.changes[index - 1]
            left, right = before[-1].result, change.amount
            right_sign, wrong_sign = (SUM, DIFFERENCE) if change.sign > 0 else (DIFFERENCE, SUM)
            misread = MISREAD.get(change.verb, 0.01)
            # A result below 1 never occurs; if an earlier error would lead to one, the sign changes.
            if left - right < 1:
                right_sign = wrong_sign = SUM
        self.append(f" {left}")
        if copied:
            sign = copied.sign
        else:
            sign = wrong_sign if self.happens(misread * error_factor) else right_sign
        self.append(f" {sign}")
        self.append(f" {right} =")
        result = {PRODUCT: left * right, SUM: left + right, DIFFERENCE: left - right}[sign]
        if copied and copied.left == left and copied.right == right:
            result = copied.result
        elif sign == PRODUCT:
            if self.happens(product_slip(self.problem.groups, self.problem.each) * error_factor):
                result = self.pick({1: 0.3, -1: 0.2, -right: 0.3, -10: 0.2}) + result
        elif self.happens(change_slip(left, right if sign == SUM else -right) * error_factor):
            result += self.pick({1: 0.3, -1: 0.3, 10 if sign == DIFFERENCE else -10: 0.4})
        result = max(1, result)
        self.append(f" {result}")
        return Step(left, sign, right, result)

    def maybe_repair(self, steps: list[Step]) -> None:
        """With some probability repeats the calculations from the first error on."""
        wrong = [i for i, step in enumerate(steps) if step.result != self.problem.results[i]]
        chance = self.style.repair if wrong else self.style.doubt
        if self.rng.random() >= chance:
            return
        self.append(f" {self.pick(self.style.wait)}")
        first = wrong[0] if wrong else len(steps) - 1
        last = len(steps)
        del steps[first:]
        for index in range(first, last):
            steps.append(self.calculate(index, steps, again=True))
            self.append("." if index == last - 1 else ",")

    def number(self, value: int) -> str:
        words = self.pick(self.style.number) == "words" and value < len(WORDS)
        return WORDS[value] if words else str(value)

    def pick(self, weights: Mapping[T, float]) -> T:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def happens(self, chance: float) -> bool:
        return self.rng.random() < chance * self.style.error_scale

    def append(self, text: str) -> None:
        """Appends text; the successor can take over at each word."""
        start = 0
        for at in range(1, len(text) + 1):
            if at == len(text) or (text[at] == " " and at > start):
                self.words.append(text[start:at])
                start = at
