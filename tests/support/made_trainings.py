"""Writes the files that `AlignmentCallback` leaves, without a trainer: the real engine on exact worlds, step by step.

The student is the same at every step; only the strength of the teachers' tilt toward success changes, so the expected
change of the alignment is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.backends.exact import ExactFamily
from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import EVALUATION_METRICS, logged_metrics
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.runs.execute import analyze_into
from opd_align.settings import Budget, Settings

SETTINGS = Settings(budget=Budget(initial=40, targeted=400, allocation="adaptive"))


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
    return analysis, {key: value if isfinite(value) else None for key, value in logged_metrics(analysis).items()}


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
    lines = []
    for at, strengths in enumerate(zip(*strengths_by_teacher.values(), strict=True)):
        step, settings = 100 * at, Settings(objectives, SETTINGS.budget)
        numbers = evaluated(folder, step, dict(zip(strengths_by_teacher, strengths, strict=True)), settings=settings)[1]
        cost = {"seconds": 4.0, "overhead_share": 0.08, "failures": 0, "scale": 0.5, "interval": 100}
        cost |= {"verifier_failures": 0, "without_demonstration": 0, "loss_recognised": 1, "delay": 9.0, "staleness": 2}
        lines.append(line(step, numbers | {metric.key(): cost[metric.stem] for metric in EVALUATION_METRICS}))
    rows = [{"step": step, "loss": 2 / (1 + step / 100), "learning_rate": 1e-5} for step in range(10, step + 1, 10)]
    (folder / "history.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
