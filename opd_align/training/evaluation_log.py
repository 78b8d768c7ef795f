"""What an evaluation leaves for people and programs: its line in `history.jsonl`, its numbers, its row for trackers.

The callback and `opd-align watch` write through this module, so that a reader cannot tell who evaluated a step, except
by the numbers about the evaluation itself. `report.history` reads what is written here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import evaluation_metric, for_trackers
from opd_align.report.trackers import files_are_due, tracker_media
from opd_align.training.demonstration_cache import is_waiting_for_demonstrations


@dataclass(frozen=True)
class TrainingStep:
    """The place of an evaluation in its training; what is not known is None.

    Args:
        step: The training step.
        max_steps: Length of the training in steps.
        epoch: The epoch at that step.
        trainer: Class name of the trainer; empty if it is not known.
    """

    step: int
    max_steps: int | None = None
    epoch: float | None = None
    trainer: str = ""


def evaluation_numbers(**values: float) -> dict[str, float]:
    """Numbers about an evaluation by their keys in the metric registry."""
    return {evaluation_metric(name).key(): float(value) for name, value in values.items()}


def history_line(
    at: TrainingStep, numbers: Mapping[str, float], run: str | None, error: Exception | None, **more: Any
) -> dict[str, Any]:
    """The line of an evaluation in `history.jsonl`.

    Args:
        at: The step that was evaluated.
        numbers: All metrics by key.
        run: Name of the run directory; `None` if the evaluation failed.
        error: Why it failed; `None` if it did not.
        more: Further entries; `report.history` reads `next_step`, where the next evaluation is due.
    """
    waiting = is_waiting_for_demonstrations(error)
    return {
        "step": at.step,
        "max_steps": at.max_steps,
        "epoch": at.epoch,
        "at": time.time(),
        "trainer": at.trainer,
        "run": run,
        "error": None if error is None or waiting else f"{type(error).__name__}: {error}",
        "waiting": str(error) if waiting else None,
        "metrics": {key: value if isfinite(value) else None for key, value in numbers.items()},
        **more,
    }


def append_line(file: Path, line: Mapping[str, Any], *, sync: bool = False) -> None:
    """Appends a line of JSON; an incomplete line that a crash has left stays a line of its own. Raises `OSError`.

    Args:
        file: The file, created if it does not exist.
        line: What is written.
        sync: Whether the line must outlive a crash of the machine.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as opened:
        content = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        if opened.seek(0, os.SEEK_END):
            opened.seek(-1, os.SEEK_END)
            if opened.read(1) != b"\n":
                content = b"\n" + content
        opened.write(content)
        if sync:
            opened.flush()
            os.fsync(opened.fileno())


def num_lines(file: Path) -> int:
    """Number of lines of a history; 0 if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return sum(1 for _ in opened)
    except OSError:
        return 0


def tracker_row(
    step: int, numbers: Mapping[str, Any], analysis: Analysis | None, tracker: Any, *, number: int = 1
) -> dict[str, Any]:
    """A row for `wandb.log` or `trackio.log`, with the keys and the step that the trainer's own rows have.

    Args:
        step: The training step, which the tracker's own step is not.
        numbers: Metrics by key; missing and infinite ones, and those that are only recorded, are left out.
        analysis: The analysis whose media are added; `None` for none.
        tracker: The imported module.
        number: The place of the evaluation in its training, from 1: later ones log fewer files.
    """
    finite = for_trackers(numbers)
    media = {} if analysis is None else tracker_media(analysis, tracker, files=files_are_due(max(number, 1)))
    return {**{f"train/{key}": value for key, value in {**finite, **media}.items()}, "train/global_step": step}


def why_no_alignment(analysis: Analysis | None, correct_from: float) -> str:
    """Why an analysis has no node, as far as it can be inferred from the pass rates."""
    questions = [] if analysis is None else analysis.questions.to_pylist()
    rates = [row["pass_rate"] for row in questions if row["pass_rate"] is not None and isfinite(row["pass_rate"])]
    if not rates:
        return "the verifier returned no outcome for any rollout"
    if max(rates) == 0:
        return f"no rollout is correct (values of a reward function of {correct_from} and more mean correct)"
    if min(rates) == 1:
        return "every rollout is correct"
    return "no token has enough rollouts; increase the budget: budget=Budget(initial=..., targeted=...)"
