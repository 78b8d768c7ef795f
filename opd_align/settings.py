"""All user settings: `Sampling`, `Scoring`, `Budget`, `Rules` and `Settings`.

Frozen dataclasses that validate their values on construction. No torch, no files, no computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, get_args

from opd_align.core.objectives import Objective, ReverseKL
from opd_align.types import OpdAlignError

Allocation = Literal["adaptive", "paper"]
Method = Literal["backup", "direct", "pooled"]
Restrict = Literal["renormalise", "full"]
Precision = Literal["auto", "float32", "head", "native"]

BATCH = 8192
"""Default number of rollouts requested at a time."""
MIN_SAMPLING = 1e-6
"""Smallest temperature and `top_p`; `1 / MIN_SAMPLING` is the largest temperature."""
MAX_MEMORY_GIB = 1e6
"""Largest memory for scoring: more than any machine has."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled. The same values define the student's probabilities when paths are scored.

    Args:
        temperature: Sampling temperature, above 0. Greedy decoding is not supported.
        top_p: Nucleus sampling threshold, in (0, 1]. 1 disables it.
        top_k: Number of most likely tokens to sample from. 0 disables the limit.
        max_tokens: Maximum completion length in tokens. Longer completions are truncated and count as incorrect.
        seed: Random seed. Another seed gives other completions from the same distribution.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise OpdAlignError(
                f"sampling: temperature must be above 0, not {self.temperature}; greedy decoding never branches"
            )
        if not MIN_SAMPLING <= self.temperature <= 1 / MIN_SAMPLING or 0 < self.top_p < MIN_SAMPLING:
            raise OpdAlignError(
                f"sampling: temperature must lie in [{MIN_SAMPLING:g}, {1 / MIN_SAMPLING:g}] and top_p be at least "
                f"{MIN_SAMPLING:g}, or probabilities are not finite in float32; got {self.temperature} and {self.top_p}"
            )
        if not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise OpdAlignError(
                "sampling: top_p must lie in (0, 1], top_k at least 0, max_tokens at least 1; "
                f"got top_p={self.top_p}, top_k={self.top_k}, max_tokens={self.max_tokens}"
            )


@dataclass(frozen=True)
class Scoring:
    """How the probabilities along a path are computed.

    Args:
        precision: `"float32"` computes with float32 copies of a layer at a time, whatever the weights are stored in;
            `"head"` only the output layer; `"native"` nothing. `"auto"`: `"float32"` for models of up to 5 billion
            parameters, `"head"` for larger ones.
        memory_gib: Memory for the logits of a chunk of positions, in GiB. `None`: half of a GPU's free memory, or
            1 GiB on a CPU.
    """

    precision: Precision = "auto"
    # Does not change results: not part of a study's name.
    memory_gib: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise OpdAlignError(f"precision must be one of {', '.join(get_args(Precision))}, not {self.precision!r}")
        if self.memory_gib is not None and not 0 < self.memory_gib <= MAX_MEMORY_GIB:
            raise OpdAlignError(f"memory_gib must be above 0 and at most {MAX_MEMORY_GIB:,.0f}, not {self.memory_gib}")


@dataclass(frozen=True)
class Budget:
    """How many rollouts to sample per question, and where.

    The paper's budget is `Budget(allocation="paper")`: all other defaults are the paper's.

    Args:
        initial: Number of initial rollouts per question, sampled from the prompt.
        targeted: Maximum number of targeted rollouts per question (rollouts forced through a chosen token). `None`: as
            many as the paper's plan needs with `allocation="paper"`, half of that with `"adaptive"`.
        seconds: Time limit per question in seconds, checked between batches. `None`: no limit.
        allocation: `"adaptive"` begins with one rollout through every token that has none (at most half of its
            rollouts), then plans in rounds and samples where the estimates are most uncertain; a quarter of those
            follow the paths. `"paper"` plans all of them once, by depth window and rank.
        correct_paths: Number of correct rollouts to analyze per question.
        incorrect_paths: Number of incorrect rollouts to analyze per question.
        tau: Tokens above this probability, for the student or any teacher, are candidates for targeted rollouts. In
            (0, 1).
        n_min: Number of visits to which the paper's plan brings each chosen token. This and the next three define that
            plan; with `"adaptive"` they only set how many rollouts `targeted=None` means.
        by_update: Tokens chosen per path and window by the size of the GKD update.
        by_gap: Tokens chosen per path and window by |teacher probability - student probability|.
        first_window: Width of the first depth window in tokens. Each later window is twice as wide.
        rounds: Number of planning rounds (`"adaptive"`).
    """

    initial: int = 200
    targeted: int | None = None
    seconds: float | None = None
    allocation: Allocation = "adaptive"
    correct_paths: int = 2
    incorrect_paths: int = 2
    tau: float = 0.02
    n_min: int = 100
    by_update: int = 20
    by_gap: int = 20
    first_window: int = 50
    rounds: int = 8

    def __post_init__(self) -> None:
        if self.allocation not in get_args(Allocation):
            raise OpdAlignError(f"unknown allocation {self.allocation!r}; choose 'adaptive' or 'paper'")
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
    """Which nodes and children count, and how certain a verdict must be.

    Args:
        n_sig: Minimum visits for a child to be part of the node's set `S_u` with the estimators `"direct"` and
            `"pooled"`. `"backup"` keeps every child above `tau`: its posterior knows how uncertain it is. Above 0.
        tau: A child below this probability for the student and the teacher of the row is left out of `S_u`, unless it
            is on the path. In [0, 1).
        resolution: A success-rate (SR) range up to this value counts as zero. Shrunk estimates are never exactly equal,
            and without a real difference the sign of the alignment is noise. In [0, 1).
        restrict: `"renormalise"` renormalises student and teacher on `S_u` before computing the update. `"full"`
            computes the update on the full vocabulary and then restricts it to `S_u`.
        draws: Number of posterior draws per node, from 1 to 100,000.
        confidence: Posterior probability required for the verdicts `helpful` and `harmful`. In (0.5, 1).
        seed: Random seed of the posterior draws.
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
                "rules: n_sig must be above 0, tau and resolution in [0, 1); "
                f"got {self.n_sig}, {self.tau} and {self.resolution}"
            )
        # The draws of 2,000 nodes are in memory at once: 100,000 of them need gigabytes.
        if not 1 <= self.draws <= 100_000 or not 0.5 < self.confidence < 1:
            raise OpdAlignError(
                "rules: draws must lie in [1, 100000], confidence between 0.5 and 1; "
                f"got {self.draws}, {self.confidence}"
            )


@dataclass(frozen=True)
class Settings:
    """Settings of an analysis: everything except the models and the questions.

    Args:
        objectives: Training objectives to compare with the ideal update.
        budget: How many rollouts to sample per question, and where.
        rules: Which nodes count, and how certain a verdict must be.
        estimator: Estimator of success probabilities: `"backup"`, `"direct"` or `"pooled"` (see `core.estimate`).
        shrink: Whether `"backup"` shrinks estimates toward sibling tokens (empirical Bayes).
        batch: Number of rollouts per question requested at a time. The time limit is checked and progress reported
            between batches; an interrupted run loses at most one batch.
        questions_per_group: Number of questions that are analyzed together. Their rollouts are sampled in one call,
            which helps when the batches of a single question do not fill the device.
    """

    objectives: Sequence[Objective] = (ReverseKL(),)
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    estimator: Method = "backup"
    shrink: bool = True
    batch: int = BATCH
    questions_per_group: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", tuple(self.objectives))
        for name in ("batch", "questions_per_group"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")
