"""The student's pass rates at the callback's evaluations, kept for decisions that follow them.

Filled from the callback's latest analysis, which is the same on all processes, and stored in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from opd_align.core.decline import Decline, PassRates, adjusted_means, decline
from opd_align.training.alignment_readings import Evaluations


class PassRateLog:
    """The pass rates of a training by question, in the order of their steps."""

    def __init__(self) -> None:
        self.evaluations: list[PassRates] = []

    @property
    def step(self) -> int | None:
        """The step of the latest evaluation."""
        return self.evaluations[-1].step if self.evaluations else None

    def take(self, evaluations: Evaluations) -> bool:
        """Adds the latest evaluation; returns false if there is none since the previous call."""
        analysis, step = evaluations.latest, evaluations.latest_step
        if analysis is None or step is None or (self.step is not None and step <= self.step):
            return False
        names, rates = (analysis.questions[column].to_pylist() for column in ("question", "pass_rate"))
        known = {name: rate for name, rate in zip(names, rates, strict=True) if rate is not None and isfinite(rate)}
        self.evaluations.append(PassRates(step, known))
        return True

    def decline(self) -> Decline | None:
        """How the latest evaluation compares with earlier ones; `None` if that is not known."""
        return decline(self.evaluations)

    def means(self, steps: Sequence[int]) -> dict[int, float]:
        """Mean pass rate at these steps, relative to that of the same questions in the whole training."""
        return {step: mean for step, mean in adjusted_means(self.evaluations).items() if step in steps}

    def best_step(self, steps: Sequence[int]) -> int | None:
        """Of these steps, that of the largest pass rate, the earlier one if two are equal; `None` if none is known."""
        mean_of = self.means(steps)
        return max(mean_of, key=lambda step: (mean_of[step], -step)) if mean_of else None

    def state_dict(self) -> list[Any]:
        return [[each.step, dict(each.by_question)] for each in self.evaluations]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        self.evaluations = [PassRates(step, dict(by_question)) for step, by_question in state]
