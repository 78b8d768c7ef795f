"""Every knob a user turns: how rollouts are sampled, how many, what counts as a node, how an analysis is made.

Plain frozen records that check themselves when they are made; no torch, no files, no computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from opd_align.core.objectives import Objective, ReverseKL
from opd_align.types import OpdAlignError

Allocation = Literal["paper", "adaptive"]
Method = Literal["backup", "direct", "pooled"]
Restrict = Literal["renormalise", "full"]

BATCH = 8192
"""Rollouts requested at a time, unless the settings say otherwise."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn; the same settings define the student's probabilities. `top_k` 0: no limit.

    Another `seed` gives other completions of the same distribution.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise OpdAlignError(f"sampling: temperature must be above 0, not {self.temperature}; greedy has no forks")
        if not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise OpdAlignError(
                "sampling: top_p must lie in (0, 1], top_k be 0 or more, max_tokens at least 1; "
                f"got top_p={self.top_p}, top_k={self.top_k}, max_tokens={self.max_tokens}"
            )


@dataclass(frozen=True)
class Budget:
    """How much may be spent on a question, and on what.

    `targeted` is a hard limit of targeted rollouts a question (`None`: as many as the paper's plan asks for, and
    half of that for `adaptive`), `seconds` one of time. `adaptive` works in `rounds` and stops early where the
    standard deviation left is below `settled`. The other defaults are the paper's.
    """

    initial: int = 200
    targeted: int | None = None
    seconds: float | None = None
    allocation: Allocation = "paper"
    correct_paths: int = 2
    incorrect_paths: int = 2
    tau: float = 0.02
    n_min: int = 100
    by_update: int = 20
    by_gap: int = 20
    first_window: int = 50
    rounds: int = 8

    def __post_init__(self) -> None:
        if self.allocation not in ("paper", "adaptive"):
            raise OpdAlignError(f"unknown allocation {self.allocation!r}; choose 'paper' or 'adaptive'")
        for name in ("initial", "n_min", "first_window", "rounds"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"budget: {name} must be at least 1, not {getattr(self, name)}")
        if self.correct_paths + self.incorrect_paths < 1 or min(self.correct_paths, self.incorrect_paths) < 0:
            raise OpdAlignError("budget: at least one path is needed (correct_paths, incorrect_paths)")
        if not 0 < self.tau < 1:
            raise OpdAlignError(f"budget: tau must lie between 0 and 1, not {self.tau}")
        if (self.targeted or 0) < 0 or not (self.seconds or 0) >= 0:
            raise OpdAlignError("budget: targeted and seconds cannot be negative")
        if min(self.by_update, self.by_gap) < 0:
            raise OpdAlignError("budget: by_update and by_gap cannot be negative")


@dataclass(frozen=True)
class Rules:
    """What counts as a node, and how sure a verdict must be.

    An SR range up to `resolution` counts as none: shrunk estimates are never quite equal, and where nothing is at stake
    the sign of what is left is noise.
    """

    n_sig: float = 20.0
    tau: float = 0.02
    resolution: float = 0.001
    restrict: Restrict = "renormalise"
    draws: int = 200
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.n_sig < inf or not 0 <= self.tau < 1 or not 0 <= self.resolution < 1:
            raise OpdAlignError(
                "rules: n_sig must be above 0, tau and resolution lie in [0, 1); "
                f"got {self.n_sig}, {self.tau} and {self.resolution}"
            )
        if self.draws < 1 or not 0.5 < self.confidence < 1:
            raise OpdAlignError(
                f"rules: draws must be at least 1, confidence between 0.5 and 1; got {self.draws}, {self.confidence}"
            )


@dataclass(frozen=True)
class Settings:
    """How an analysis is made; everything but the models and the questions.

    `batch` is how many rollouts of a question are asked for at a time: the clock and the progress are looked at in
    between, and what a killed run loses is one batch. `abreast` questions are worked on side by side, and asked for in
    one go: worth it where the batches of one question do not fill the machine.
    """

    objectives: Sequence[Objective] = (ReverseKL(),)
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    estimator: Method = "backup"
    shrink: bool = True
    batch: int = BATCH
    abreast: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", tuple(self.objectives))
        for name in ("batch", "abreast"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")
