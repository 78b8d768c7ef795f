"""The overhead limit: how often and how large the callback may evaluate.

Evaluation time is paid from an allowance that grows with training time. The first evaluation, before any step, is an
advance at the smallest size. Later ones are as large as the allowance permits, in a few fixed sizes, so that
evaluations can be compared; where it does not permit even the smallest, the evaluation is skipped. Ranks work at the
same time, so what an evaluation takes is the time of the questions of one rank. Decisions depend only on the times that
are reported: this module has no clock and no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, isfinite
from types import NoneType
from typing import Any

MIN_QUESTIONS = 4
"""Questions of the smallest evaluation: fewer have no useful interval, and `CalibratedDivergence` needs as many."""

COST_DECAY = 0.7
"""The cost estimate falls to no less than this share of the previous one: few questions may be quick by chance."""

FIRST_LIMIT_S = 1800.0
"""Time limit of an evaluation while the cost of one is not known."""

OVERRUN = 4.0
"""Time limit of later evaluations, as a multiple of their estimated time."""


def questions_per_rank(questions: int, ranks: int) -> int:
    """Questions of the rank that has the most: the time of an evaluation is that of this rank."""
    return ceil(questions / ranks)


def num_questions(available: int, scale: float) -> int:
    """The number of questions that a share of the available ones is."""
    return ceil(scale * available - 1e-9)  # a share such as 3/5 is not exact


def group_size(questions: int, ranks: int, largest: int) -> int:
    """Questions per group, at most `largest`, such that all ranks have groups, and about equally many questions."""
    share = questions_per_rank(questions, ranks)
    return ceil(share / ceil(share / largest))


@dataclass(frozen=True)
class OverheadLimit:
    """The evaluation schedule and the costs measured so far. Immutable: each update returns a new one.

    Args:
        every_n_steps: Steps between evaluations if the allowance permits.
        max_overhead: Share of the wall time that evaluations may take; `None`: no limit.
        num_questions: Number of held-out questions.
        ranks: Number of processes that share the questions of an evaluation.
        next_step: Step from which on the next evaluation is due.
        evaluation_s: Seconds spent on evaluations.
        training_s: Seconds spent on training.
        full_evaluation_s: Estimated seconds of an evaluation on all questions: the latest one's time divided by its
            share of the questions per rank, and not much less than the estimate before. Conservative, since part of the
            time does not shrink with the number of questions. `None` before the first evaluation.
        num_evaluations: Number of evaluations so far, failed ones included.
        start_step: Step at which `training_s` started to count.
        last_step: Step of the latest evaluation; `None` before the first.
    """

    every_n_steps: int
    max_overhead: float | None
    num_questions: int = 8
    ranks: int = 1
    next_step: int = 0
    evaluation_s: float = 0.0
    training_s: float = 0.0
    full_evaluation_s: float | None = None
    num_evaluations: int = 0
    start_step: int = 0
    last_step: int | None = None

    @property
    def scales(self) -> tuple[float, ...]:
        """The possible sizes as shares of the questions.

        All of them, then half as many per rank, and so on down to `MIN_QUESTIONS`. Every rank has as many questions:
        fewer in total would leave ranks idle and take as long.
        """
        smallest = questions_per_rank(min(MIN_QUESTIONS, self.num_questions), self.ranks)
        per_rank = [questions_per_rank(self.num_questions, self.ranks)]
        while per_rank[-1] > smallest:
            per_rank.append(max(ceil(per_rank[-1] / 2), smallest))
        return tuple(min(1.0, each * self.ranks / self.num_questions) for each in per_rank)

    def time_share(self, scale: float) -> float:
        """The time of an evaluation at this scale, as a share of that on all questions."""
        questions = num_questions(self.num_questions, scale)
        return questions_per_rank(questions, self.ranks) / questions_per_rank(self.num_questions, self.ranks)

    def time_limit_s(self, scale: float) -> float | None:
        """Seconds after which an evaluation at this scale must stop sampling; `None`: no limit."""
        if self.max_overhead is None or self.max_overhead >= 1:
            return None
        if self.full_evaluation_s is None:
            return FIRST_LIMIT_S
        return max(OVERRUN * self.time_share(scale) * self.full_evaluation_s, self.allowance_s)

    @property
    def allowance_s(self) -> float:
        """Seconds that may be spent on evaluations now."""
        if self.max_overhead is None or self.max_overhead >= 1:
            return inf
        return self.max_overhead / (1 - self.max_overhead) * self.training_s - self.evaluation_s

    @property
    def overhead_share(self) -> float:
        """Share of the wall time that evaluations took."""
        return self.evaluation_s / max(self.evaluation_s + self.training_s, 1e-9)

    def scale(self) -> float | None:
        """The size of an evaluation now, as a share of the questions; `None`: skip it."""
        if self.max_overhead is None or self.max_overhead >= 1:
            return self.scales[0]
        if self.full_evaluation_s is None:  # an advance, but none on top of one that failed
            return self.scales[-1] if self.allowance_s >= 0 else None
        return next(
            (each for each in self.scales if self.time_share(each) * self.full_evaluation_s <= self.allowance_s), None
        )

    def add_training(self, seconds: float) -> OverheadLimit:
        return replace(self, training_s=self.training_s + seconds)

    def add_evaluation(self, step: int, scale: float, seconds: float) -> OverheadLimit:
        return replace(
            self,
            evaluation_s=self.evaluation_s + seconds,
            full_evaluation_s=max(seconds / self.time_share(scale), COST_DECAY * (self.full_evaluation_s or 0.0)),
            num_evaluations=self.num_evaluations + 1,
            next_step=(step // self.every_n_steps + 1) * self.every_n_steps,
            last_step=step,
        )

    def add_failure(self, step: int, scale: float, seconds: float) -> OverheadLimit:
        """A failed evaluation counts its time, but a complete one may cost more than that."""
        known_s = self.full_evaluation_s
        full_s = None if known_s is None else max(known_s, seconds / self.time_share(scale))
        return replace(self.add_evaluation(step, scale, seconds), full_evaluation_s=full_s)

    def skip(self, step: int) -> OverheadLimit:
        """Moves the next evaluation to the step at which the smallest one is affordable at the present speed."""
        step_s = self.training_s / max(step - self.start_step, 1)
        rate = 1.0 if self.max_overhead is None else self.max_overhead / (1 - self.max_overhead)
        missing_s = self.time_share(self.scales[-1]) * (self.full_evaluation_s or 0.0) - self.allowance_s
        steps = ceil(missing_s / max(step_s * rate, 1e-9))
        return replace(self, next_step=step + max(1, min(steps, 10**9)))

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> OverheadLimit:
        """With the state of a checkpoint; its schedule and its cost estimate only if they still apply.

        Fields that are missing or invalid (`invalid_fields`) keep their values.
        """
        unusable = set(invalid_fields(state))
        if unusable & {*TIMES}:  # times count from the same step, so they are not mixed
            unusable |= {*TIMES}
        if state.get("every_n_steps") != self.every_n_steps:
            unusable.add("next_step")
        if (state.get("num_questions"), state.get("ranks")) != (self.num_questions, self.ranks):
            unusable.add("full_evaluation_s")
        return replace(self, **{name: state[name] for name in STORED if name not in unusable})


TIMES = ("evaluation_s", "training_s", "start_step")

STORED: dict[str, tuple[type, ...]] = {
    "evaluation_s": (int, float), "training_s": (int, float), "start_step": (int,), "next_step": (int,),
    "num_evaluations": (int,), "full_evaluation_s": (int, float, NoneType), "last_step": (int, NoneType),
}  # fmt: skip
"""The fields that a checkpoint restores, and their types in JSON."""


def invalid_fields(state: Mapping[str, Any]) -> list[str]:
    """The fields of a checkpoint's state that are missing, of a wrong type, negative or not finite."""
    return [name for name, types in STORED.items() if name not in state or not _is_valid(state[name], types)]


def _is_valid(value: Any, types: tuple[type, ...]) -> bool:
    if type(value) not in types:  # a bool is no number here
        return False
    return value is None or (isfinite(value) and value >= 0)
