"""Writes the files that `AlignmentCallback` leaves, without a trainer: the real engine on exact worlds, step by step.

The student is the same at every step; only the strength of the teachers' tilt toward success changes, so the expected
change of the alignment is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, nan, sin
from pathlib import Path
from typing import Any

from opd_align.backends.exact import ExactFamily
from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import (
    EVALUATION_METRICS,
    GATE_METRICS,
    LOGGED_BY_TRAINERS,
    METRICS,
    recorded_metrics,
)
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.runs.execute import analyze_into
from opd_align.settings import Budget, Settings
from opd_align.training.alarm_log import alarm_after

SETTINGS = Settings(budget=Budget(initial=40, targeted=400, allocation="adaptive"))


TEACHER = "teacher/reverse_kl"
"""The variant of `numbers`."""


def numbers(mean: float | None, half: float | None = 0.1, *, variant: str = TEACHER) -> dict[str, float | None]:
    """A few numbers of an evaluation: an alignment with its half-width, and the number of questions."""
    own = {"alignment/mean": mean, "alignment/half_width": half}
    return {**{f"opd_align/{variant}/{stem}": value for stem, value in own.items()}, "opd_align/student/questions": 8}


def evaluated(
    folder: Path, step: int, strengths: Mapping[str, float], *, seed: int = 0, settings: Settings = SETTINGS
) -> tuple[Analysis, dict[str, float | None]]:
    """Writes the run directory of one step; returns the analysis and what the callback would log."""
    worlds = ExactFamily.random(7, 6, length=30, stakes=3.0)
    teachers = [
        worlds.teacher(
            name, lambda world, strength=strength: world.tilted_teacher(strength=strength, noise=0.3, seed=seed)
        )
        for name, strength in strengths.items()
    ]
    run = folder / f"step-{step:06d}"
    analysis = analyze_into(run, worlds, teachers, worlds.questions, worlds, settings=settings)
    return analysis, {key: value if isfinite(value) else None for key, value in recorded_metrics(analysis).items()}


def line(step: int, numbers: Mapping[str, Any] | None = None, **other: Any) -> str:
    """A line of history.jsonl; without numbers, the line of a failed evaluation."""
    entry: dict[str, Any] = {
        "step": step, "max_steps": 400, "epoch": step / 200, "at": 1_790_000_000.0 + 60 * step, "trainer": "GKDTrainer",
        "run": None if numbers is None else f"step-{step:06d}",
        "error": "the verifier failed" if numbers is None else None, "metrics": dict(numbers or {}),
    }  # fmt: skip
    return json.dumps({**entry, **other}) + "\n"


def made_training(
    output_dir: Path,
    strengths_by_teacher: Mapping[str, Sequence[float]],
    *,
    objectives: Sequence[Objective] = (ReverseKL(),),
) -> Path:
    """A training with one evaluation every 100 steps, given the teachers' strengths; returns its folder `opd_align`."""
    folder = output_dir / "opd_align"
    folder.mkdir(parents=True)
    for at, strengths in enumerate(zip(*strengths_by_teacher.values(), strict=True)):
        step, settings = 100 * at, Settings(objectives, SETTINGS.budget)
        numbers = evaluated(folder, step, dict(zip(strengths_by_teacher, strengths, strict=True)), settings=settings)[1]
        cost = {"seconds": 4.0, "overhead_share": 0.08, "failures": 0, "scale": 0.5, "interval": 100}
        cost |= {"verifier_failures": 0, "without_demonstration": 0, "loss_recognised": 1, "delay": 9.0, "staleness": 2}
        alarm, _ = alarm_after(folder, step, {key: nan if value is None else value for key, value in numbers.items()})
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(line(step, numbers | alarm | {metric.key(): cost[metric.stem] for metric in EVALUATION_METRICS}))
    rows = [{"step": step, "loss": 2 / (1 + step / 100), "learning_rate": 1e-5} for step in range(10, step + 1, 10)]
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def synthetic_training(
    output_dir: Path,
    evaluations: int,
    *,
    rows: int = 0,
    teachers: Sequence[str] = ("Self-1C",),
    every: int = 10,
    gated: bool = False,
    drift: float = 0.0,
) -> Path:
    """A training of any length in no time: its numbers are made up, and it has no run directories.

    Args:
        output_dir: The trainer's `output_dir`.
        evaluations: Number of evaluations.
        rows: Number of rows of the trainer's log, one per step.
        teachers: Names of the teachers.
        every: Steps between evaluations.
        gated: Whether the log is that of a gated trainer.
        drift: By how much cosines fall from the first to the last evaluation; they start at 0.4.
    """
    folder = output_dir / "opd_align"
    folder.mkdir(parents=True)
    half_widths = {metric.half_width for metric in METRICS}
    recorded = [one for one in METRICS if (one.logged or one.stem in half_widths) and one not in LOGGED_BY_TRAINERS]
    recorded = [one for one in recorded if one.unit not in ("histogram", "table", "HTML", "level")]
    with (folder / "history.jsonl").open("w", encoding="utf-8") as file:
        for at in range(evaluations):
            wave = 0.05 * sin(at / 3) - drift * at / max(evaluations - 1, 1)
            numbers = {}
            for metric in recorded:
                low, high = metric.range
                value = 0.1 if metric.stem in half_widths else 0.4 + wave if high == 1 else 4.0 + wave
                for teacher in teachers if metric.level == "teacher" else ("",):
                    numbers[metric.key(teacher, "reverse_kl")] = min(max(value, low), high)
            file.write(line(at * every, numbers, run=None, next_step=(at + 1) * every, max_steps=max(rows, 1) * 2))
    with (folder / "training.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, rows + 1):
            row = {"step": step, "loss": 1 + 1 / step + (step % 10) / 100, "grad_norm": 0.5, "learning_rate": 1e-5}
            row["at"] = 1_790_000_000.0 + 2 * step
            if gated:
                row |= {metric.key(): 0.5 for metric in GATE_METRICS}
            file.write(json.dumps(row) + "\n")
    return folder
