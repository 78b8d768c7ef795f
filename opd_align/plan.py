"""The plan of a study: rollouts, tokens, memory and time, before they are spent.

Lengths and speed are measured on a few rollouts of the student; the rest is arithmetic on the budget, the same that
`enrich` does. So the plan is an estimate from above: a target that needs no more visits costs less than planned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opd_align.enrich import Budget
from opd_align.models import short_name, weight_bytes
from opd_align.report.model import Column, Table, row, to_rich
from opd_align.study import Study
from opd_align.types import SampleRequest

SAMPLED = 16
"""Rollouts that are sampled of each question looked at, to learn length and speed."""


@dataclass(frozen=True)
class Measured:
    """What a few rollouts told: tokens of a completion, and tokens a second."""

    length: float
    tokens_per_second: float


@dataclass(frozen=True)
class Plan:
    """Counts for all questions together."""

    questions: int
    initial: int
    targeted: int
    tokens: int
    scored_tokens: int
    seconds: float


def targeted_rollouts(budget: Budget, length: float) -> int:
    """Rollouts of the enrichment of one question at most, for paths of the given length."""
    if budget.targeted is not None:
        return budget.targeted
    paths = budget.correct_paths + budget.incorrect_paths
    windows, start, width = 0, 0.0, float(budget.first_window)
    while start < length:
        windows, start, width = windows + 1, start + width, 2 * width
    whole = paths * windows * (budget.by_update + budget.by_gap) * budget.n_min
    return whole // 2 if budget.allocation == "adaptive" else whole


def planned(budget: Budget, questions: int, teachers: int, measured: Measured) -> Plan:
    """What the budget comes to. A targeted rollout is launched half-way down a path on average."""
    targeted = targeted_rollouts(budget, measured.length)
    tokens = measured.length * (budget.initial + targeted / 2)
    paths = budget.correct_paths + budget.incorrect_paths
    scored = paths * measured.length * (1 + teachers)
    return Plan(
        questions,
        questions * budget.initial,
        questions * targeted,
        round(questions * tokens),
        round(questions * scored),
        questions * tokens / measured.tokens_per_second,
    )


def measure(study: Study, questions: int = 2) -> Measured:
    """Samples a little of the student: once to warm up, then against the clock."""
    nothing = np.empty(0, np.uint32)
    study.student.sample([SampleRequest(study.questions[0], nothing, 2)])
    requests = [SampleRequest(question, nothing, SAMPLED) for question in study.questions[:questions]]
    start = time.perf_counter()
    rollouts = study.student.sample(requests)
    seconds = time.perf_counter() - start
    return Measured(float(rollouts.length_R.mean()), len(rollouts.tokens) / seconds)


def plan(study: Study, out: Path) -> Any:
    """The plan as a table for the terminal."""
    measured = measure(study)
    budget = study.config.budget
    counts = planned(budget, len(study.questions), len(study.roles), measured)
    weights = {model.model: weight_bytes(model.model, dtype=model.dtype, device=model.device) for model in study.local}
    shown = " + ".join(f"{short_name(name)} {_size(size)}" for name, size in weights.items())
    rows = [
        ("student", study.config.student.model),
        ("teachers", ", ".join(role.name for role in study.roles) or "none"),
        ("questions", f"{counts.questions:,} of task {study.task.name}"),
        ("initial rollouts", f"{counts.initial:,}"),
        ("targeted rollouts", f"{counts.targeted:,} at most ({budget.allocation} allocation)"),
        ("tokens to sample", f"{counts.tokens:,} at {measured.length:.0f} tokens a completion (measured)"),
        ("tokens to score", f"{counts.scored_tokens:,}, student and {len(study.roles)} teachers"),
        ("weights in memory", f"{_size(sum(weights.values()))} ({shown})"),
        ("time to sample", f"about {_spoken(counts.seconds)} at {measured.tokens_per_second:,.0f} tokens/s (measured)"),
        ("run directory", str(out)),
    ]
    note = "without demonstrations and scoring; long batches are faster than the short one that was timed"
    table = Table(
        "plan", "The plan; nothing was kept", (Column("what"), Column("")), tuple(row(*each) for each in rows), note
    )
    return to_rich(table)


def _size(bytes_: int) -> str:
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.1f} MiB"


def _spoken(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
