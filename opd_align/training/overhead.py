"""The governor: how often and how much the callback may evaluate, so that training hardly notices.

Time spent on evaluations is paid from an allowance that grows with the time spent on training. The first evaluation,
before any step, is an advance at the smallest size. Later ones are as large as the allowance pays for, in a few fixed
sizes, so that evaluations can be compared; where it does not pay even for the smallest, the evaluation waits. The
governor decides from the times it is told; it owns no clock and no model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from typing import Any

FEWEST = 2
"""Questions of the smallest evaluation: one alone has no interval."""

MEMORY = 0.7
"""How much of the last estimate a cheap evaluation leaves: two questions may be quick by chance."""


@dataclass(frozen=True)
class OverheadLimit:
    """What is known of the cost so far; `max_overhead` is a share of all wall time, `None` sets no limit.

    `full_s` is what an evaluation of full size is thought to cost: the newest one's time over its size, and not much
    less than was thought before. It errs on the careful side: part of the time does not shrink with the size. `since`
    is the step at which its clock began, `last` that of the latest evaluation.
    """

    every: int
    max_overhead: float | None
    questions: int = 8
    due: int = 0
    spent_s: float = 0.0
    trained_s: float = 0.0
    full_s: float | None = None
    made: int = 0
    since: int = 0
    last: int | None = None

    @property
    def sizes(self) -> tuple[float, ...]:
        """What an evaluation may be, as shares of the questions: all, half of them, and so on down to the fewest."""
        halves = [1.0]
        while ceil(halves[-1] / 2 * self.questions) >= FEWEST:
            halves.append(halves[-1] / 2)
        return tuple(halves)

    @property
    def allowance_s(self) -> float:
        """What may be spent now."""
        if self.max_overhead is None or self.max_overhead >= 1:
            return inf
        return self.max_overhead / (1 - self.max_overhead) * self.trained_s - self.spent_s

    @property
    def share(self) -> float:
        """Share of the wall time that evaluations took."""
        return self.spent_s / max(self.spent_s + self.trained_s, 1e-9)

    def scale(self) -> float | None:
        """The size of an evaluation now, or `None`: wait."""
        if self.max_overhead is None or self.max_overhead >= 1:
            return self.sizes[0]
        if self.full_s is None:  # an advance, but none on top of one that failed
            return self.sizes[-1] if self.allowance_s >= 0 else None
        return next((size for size in self.sizes if size * self.full_s <= self.allowance_s), None)

    def trained(self, seconds: float) -> OverheadLimit:
        """Training went on for some time."""
        return replace(self, trained_s=self.trained_s + seconds)

    def evaluated(self, step: int, scale: float, seconds: float) -> OverheadLimit:
        """An evaluation of some size was made at a step."""
        due = (step // self.every + 1) * self.every
        full_s = max(seconds / scale, MEMORY * (self.full_s or 0.0))
        return replace(self, spent_s=self.spent_s + seconds, full_s=full_s, made=self.made + 1, due=due, last=step)

    def failed(self, step: int, scale: float, seconds: float) -> OverheadLimit:
        """One failed: its time is spent, but what a whole one costs may be more than that."""
        full_s = None if self.full_s is None else max(self.full_s, seconds / scale)
        return replace(self.evaluated(step, scale, seconds), full_s=full_s)

    def waiting(self, step: int) -> OverheadLimit:
        """Nothing can be paid for now: the step at which the smallest evaluation can, at the present speed."""
        pace_s = self.trained_s / max(step - self.since, 1)
        rate = 1.0 if self.max_overhead is None else self.max_overhead / (1 - self.max_overhead)
        missing_s = self.sizes[-1] * (self.full_s or 0.0) - self.allowance_s
        steps = ceil(missing_s / max(pace_s * rate, 1e-9))
        return replace(self, due=step + max(1, min(steps, 10**9)))

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    def resumed(self, state: dict[str, Any]) -> OverheadLimit:
        """What an earlier part of the training knew; its due step and its costs only if they are still the same."""
        known = {name: state[name] for name in ("spent_s", "trained_s", "full_s", "made", "due", "since", "last")}
        if state.get("every") != self.every:
            known.pop("due")
        if state.get("questions") != self.questions:
            known.pop("full_s")
        return replace(self, **known)
