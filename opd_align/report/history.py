"""What a training with the callback left behind: its evaluations, its own log, its run directories.

    OUTPUT_DIR/opd_align/
      history.jsonl     a line an evaluation
      training.jsonl    a line a row of the trainer's log
      step-000100/      the run directory of an evaluation

The files are read while they are written. A last line without its end is not there yet. A training that was resumed
went back: a line supersedes those before it whose step is not smaller. A line that a crash has spoilt is left out and
counted. Nothing is computed here, and nothing written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.report.trackers import ROOT
from opd_align.runs.run_directory import SUMMARY
from opd_align.types import OpdAlignError

FOLDER, HISTORY, TRAINING = "opd_align", "history.jsonl", "training.jsonl"
PREFIX = f"{ROOT}/"
RUN = re.compile(r"step-[0-9]{1,15}(?:-[0-9]{1,9})?")
"""What a run directory is called; a training that went back numbers a second one. No other name is ever opened."""

PER_TEACHER = (
    "alignment/mean", "alignment/half_width", "alignment/weighted", "alignment/fraction_positive", "alignment/correct",
    "alignment/incorrect", "alignment/delta", "alignment/decided", "alignment/noise_ceiling", "advantage",
    "oracle/full_signal", "oracle/selective_signal", "oracle/cross_fitted_signal", "oracle/kept", "oracle/gain",
    "filter/threshold", "filter/kept", "filter/signal", "filter/oracle_share",
    "spearman/depth", "spearman/kl", "spearman/js", "spearman/l2", "spearman/cosine",
)  # fmt: skip
"""Metrics that each variant (a teacher, or a teacher and an objective) has of its own; the others are the student's."""

Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Evaluation:
    """One line of the history; `run` only if its run directory is finished. Unknown is None."""

    step: int
    max_steps: int | None
    epoch: float | None
    at: float | None
    trainer: str
    run: str | None
    error: str | None
    common: Numbers
    variants: Mapping[str, Numbers]


@dataclass(frozen=True)
class Training:
    """The evaluations and the trainer's own rows, by step; `spoilt` counts lines that nobody can read."""

    folder: Path
    evaluations: tuple[Evaluation, ...]
    log: tuple[tuple[int, Numbers], ...]
    spoilt: int

    @property
    def step(self) -> int:
        """How far the training is known to have come."""
        newest = [*(evaluation.step for evaluation in self.evaluations[-1:]), *(step for step, _ in self.log[-1:])]
        return max(newest, default=0)

    @property
    def max_steps(self) -> int | None:
        """How far it is meant to go, as the newest evaluation has it."""
        return self.evaluations[-1].max_steps if self.evaluations else None

    @property
    def variants(self) -> list[str]:
        """Those of the newest evaluation that has any, then those that only older ones have."""
        return list(dict.fromkeys(name for evaluation in reversed(self.evaluations) for name in evaluation.variants))

    @property
    def runs(self) -> list[str]:
        """Finished run directories, oldest first."""
        return [evaluation.run for evaluation in self.evaluations if evaluation.run]


def training_folder(output_dir: Path) -> Path:
    """Where the callback of a training wrote; refuses a place without."""
    folder = output_dir / FOLDER
    if folder.is_dir():
        return folder
    if not output_dir.is_dir():
        raise OpdAlignError(f"{str(output_dir)!r} is no folder; give the output_dir of a training")
    if (output_dir / HISTORY).is_file():
        raise OpdAlignError(f"{str(output_dir)!r} is the folder within an output_dir; give {str(output_dir.parent)!r}")
    raise OpdAlignError(
        f"{str(output_dir)!r} has no folder {FOLDER!r}, so no training with the callback wrote there; give the "
        "trainer's output_dir, and before training: trainer.add_callback(AlignmentCallback(trainer, ...))"
    )


def read_training(folder: Path) -> Training:
    """The training as its files tell it now."""
    lines, spoilt_lines = _lines(folder / HISTORY)
    rows, spoilt_rows = _lines(folder / TRAINING)
    evaluations: list[Evaluation] = []
    for step, line in lines:
        while evaluations and evaluations[-1].step >= step:
            evaluations.pop()
        evaluations.append(_evaluation(folder, step, line))
    log: list[tuple[int, dict[str, float | None]]] = []
    for step, line in rows:
        row = {name: _number(value) for name, value in line.items() if name not in ("step", "at")}
        while log and log[-1][0] > step:
            log.pop()
        # A trainer may log twice at a step, the loss and then a summary: the rows complete each other.
        if log and log[-1][0] == step:
            row = log.pop()[1] | row
        log.append((step, row))
    return Training(folder, tuple(evaluations), tuple(log), spoilt_lines + spoilt_rows)


def _lines(file: Path) -> tuple[list[tuple[int, Mapping[str, Any]]], int]:
    """Step and content of every whole line, and how many cannot be read."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:  # nothing was written yet
        content = b""
    except OSError as error:
        raise OpdAlignError(f"cannot read {str(file)!r}: {error.strerror}") from error
    whole, spoilt = [], 0
    for line in content.splitlines(keepends=True):
        try:
            found = json.loads(line)
            step = found["step"]
            if not (isinstance(step, int) and step >= 0):
                raise ValueError(step)
        except (ValueError, TypeError, KeyError, RecursionError):
            spoilt += line.endswith(b"\n")  # else it is still being written
        else:
            whole.append((step, found))
    return whole, spoilt


def _evaluation(folder: Path, step: int, line: Mapping[str, Any]) -> Evaluation:
    common: dict[str, float | None] = {}
    variants: dict[str, dict[str, float | None]] = {}
    metrics = line.get("metrics")
    for key, value in (metrics if isinstance(metrics, dict) else {}).items():
        name = key.removeprefix(PREFIX)
        stem = next((stem for stem in PER_TEACHER if name == stem or name.startswith(f"{stem}/")), None)
        if stem is None:
            common[name] = _number(value)
        else:
            variants.setdefault(name[len(stem) + 1 :], {})[stem] = _number(value)
    run, trainer, error = (line.get(name) for name in ("run", "trainer", "error"))
    finished = isinstance(run, str) and RUN.fullmatch(run) and (folder / run / SUMMARY).is_file()
    most = line.get("max_steps")
    return Evaluation(
        step=step,
        max_steps=most if isinstance(most, int) and most > 0 else None,
        epoch=_number(line.get("epoch")),
        at=_number(line.get("at")),
        trainer=trainer if isinstance(trainer, str) else "",
        run=str(run) if finished else None,
        error=None if error is None else str(error),
        common=common,
        variants=variants,
    )


def _number(value: Any) -> float | None:
    """A number that can be drawn; True is none, and neither is infinity."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and isfinite(value) else None
