"""Trainings as the callback leaves them, without a trainer: the real engine on exact worlds, step by step.

The student is that of the worlds at every step; what changes is how far the teachers lean toward success, so that the
course of the alignment is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opd_align import metrics
from opd_align.backends.exact import ExactFamily
from opd_align.engine import Analysis, Settings
from opd_align.enrich import Budget
from opd_align.objectives import Objective, ReverseKL
from opd_align.store import analyze_into

SETTINGS = Settings(budget=Budget(initial=40, targeted=400, allocation="adaptive"))


def evaluated(
    folder: Path, step: int, strengths: Mapping[str, float], *, seed: int = 0, settings: Settings = SETTINGS
) -> tuple[Analysis, dict[str, float | None]]:
    """The run directory of one step, and what the callback would log of it; a teacher leans by its strength."""
    worlds = ExactFamily.random(7, 3, length=30, stakes=3.0)
    teachers = [
        worlds.teacher(name, lambda world, strength=strength: world.tilted_teacher(strength=strength, seed=seed))
        for name, strength in strengths.items()
    ]
    run = folder / f"step-{step:06d}"
    analysis = analyze_into(run, worlds, teachers, worlds.questions, worlds, settings=settings)
    return analysis, scalars(analysis)


def scalars(analysis: Analysis) -> dict[str, float | None]:
    """The keys of the callback, from `metrics`."""
    objectives: Sequence[Objective] = analysis.settings.objectives
    numbers: dict[str, float] = {}
    for objective in objectives:
        ranks = metrics.teacher_ranking(analysis.nodes, objective.name)
        for rank in ranks:
            several = len(ranks) > 1 or len(objectives) > 1
            parts = [rank.teacher, *([objective.name] if len(objectives) > 1 else [])]
            suffix = "/" + "/".join(parts) if several else ""
            own = {"objective": objective.name, "teacher": rank.teacher}
            contrast = metrics.correct_vs_incorrect(analysis.nodes, objective.name, teacher=rank.teacher)[0]
            full, kept = metrics.selective_oracle(analysis.nodes, (0.0,), **own)
            (filtered,) = metrics.divergence_filter(analysis.nodes, "kl", (0.5,), **own)
            correlations = metrics.within_path_correlations(analysis.nodes, objective.name)
            told = {
                "alignment/mean": rank.alignment.mean,
                "alignment/half_width": rank.alignment.half_width,
                "alignment/weighted": rank.weighted_cosine.mean,
                "alignment/fraction_positive": rank.fraction_positive.mean,
                "alignment/correct": contrast.correct,
                "alignment/incorrect": contrast.incorrect,
                "alignment/delta": contrast.delta,
                "alignment/decided": 1 - rank.undecided,
                "alignment/noise_ceiling": rank.noise_ceiling.ceiling,
                "advantage": rank.advantage.mean,
                "oracle/full_signal": full.signal.mean,
                "oracle/selective_signal": kept.signal.mean,
                "oracle/cross_fitted_signal": kept.cross_fitted_signal.mean,
                "oracle/kept": kept.share_kept,
                "oracle/gain": kept.gain.mean,
                "filter/threshold": filtered.threshold,
                "filter/kept": filtered.share_kept,
                "filter/signal": filtered.signal.mean,
                "filter/oracle_share": filtered.share_of_oracle_gain,
            }
            told |= {
                f"spearman/{row.feature.removesuffix('_normalised')}": row.rho.mean
                for row in correlations
                if row.teacher == rank.teacher
            }
            numbers |= {f"opd_align/{name}{suffix}": value for name, value in told.items()}
    questions = analysis.questions.to_pylist()
    numbers |= {
        "opd_align/pass_rate": sum(row["pass_rate"] for row in questions) / len(questions),
        "opd_align/nodes": analysis.nodes.num_rows,
        "opd_align/rollouts": sum(row["initial"] + row["targeted"] for row in questions),
        "opd_align/questions": len(questions),
    }
    return {key: value if value == value else None for key, value in numbers.items()}


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
