"""Trainings as the callback leaves them, without a trainer: the real engine on exact worlds, step by step.

The student is that of the worlds at every step; what changes is how far the teachers lean toward success, so that the
course of the alignment is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.backends.exact import ExactFamily
from opd_align.core.engine import Analysis
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.report.trackers import scalars
from opd_align.runs.execute import analyze_into
from opd_align.settings import Budget, Settings

SETTINGS = Settings(budget=Budget(initial=40, targeted=400, allocation="adaptive"))


def evaluated(
    folder: Path, step: int, strengths: Mapping[str, float], *, seed: int = 0, settings: Settings = SETTINGS
) -> tuple[Analysis, dict[str, float | None]]:
    """The run directory of one step, and what the callback would log of it; a teacher leans by its strength."""
    worlds = ExactFamily.random(7, 6, length=30, stakes=3.0)
    teachers = [
        worlds.teacher(
            name, lambda world, strength=strength: world.tilted_teacher(strength=strength, noise=0.3, seed=seed)
        )
        for name, strength in strengths.items()
    ]
    run = folder / f"step-{step:06d}"
    analysis = analyze_into(run, worlds, teachers, worlds.questions, worlds, settings=settings)
    return analysis, {key: value if isfinite(value) else None for key, value in scalars(analysis).items()}


def line(step: int, numbers: Mapping[str, Any] | None = None, **other: Any) -> str:
    """A line of history.jsonl; without numbers, that of an evaluation that failed."""
    told: dict[str, Any] = {
        "step": step, "max_steps": 400, "epoch": step / 200, "at": 1_790_000_000.0 + 60 * step, "trainer": "GKDTrainer",
        "run": None if numbers is None else f"step-{step:06d}",
        "error": "the judge was away" if numbers is None else None, "metrics": dict(numbers or {}),
    }  # fmt: skip
    return json.dumps({**told, **other}) + "\n"


def made_training(
    output_dir: Path, courses: Mapping[str, Sequence[float]], *, objectives: Sequence[Objective] = (ReverseKL(),)
) -> Path:
    """A training whose teachers lean by `courses`, an evaluation every 100 steps; returns its folder `opd_align`."""
    folder = output_dir / "opd_align"
    folder.mkdir(parents=True)
    lines = []
    for at, strengths in enumerate(zip(*courses.values(), strict=True)):
        step, settings = 100 * at, Settings(objectives, SETTINGS.budget)
        numbers = evaluated(folder, step, dict(zip(courses, strengths, strict=True)), settings=settings)[1]
        cost = {"seconds": 4.0, "overhead_share": 0.08, "failures": 0, "governor/scale": 0.5, "governor/interval": 100}
        lines.append(line(step, numbers | {f"opd_align/{key}": value for key, value in cost.items()}))
    rows = [{"step": step, "loss": 2 / (1 + step / 100), "learning_rate": 1e-5} for step in range(10, step + 1, 10)]
    (folder / "history.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
