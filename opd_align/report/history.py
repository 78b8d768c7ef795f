"""Reads what `AlignmentCallback` wrote during a training: evaluations, the trainer's log, run directories.

    OUTPUT_DIR/opd_align/
      history.jsonl     one line per evaluation
      training.jsonl    one line per row of the trainer's log
      step-000100/      run directory of an evaluation

The files may still be written to while they are read: an incomplete last line is ignored. After a training was resumed
from an earlier checkpoint, a line replaces all lines before it with the same or a larger step. Lines that cannot be
parsed (left by a crash) are skipped and counted. Keys that `core.metric_registry` does not know are ignored. Nothing is
computed or written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.core.metric_registry import parse_key
from opd_align.core.metric_schema import ROOT
from opd_align.runs.run_directory import SUMMARY
from opd_align.types import REWARD, OpdAlignError

FOLDER, HISTORY, TRAINING = "opd_align", "history.jsonl", "training.jsonl"
PREFIX = f"{ROOT}/"
RUN = re.compile(r"step-[0-9]{1,15}(?:-[0-9]{1,9})?")
"""Names of run directories; a resumed training that repeats a step appends a number. No other name is ever opened."""

Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Evaluation:
    """One line of `history.jsonl`; unknown values are None.

    Args:
        step: Training step.
        max_steps: Length of the training in steps.
        epoch: Epoch at that step.
        at: Time of the evaluation in seconds since 1970.
        trainer: Class name of the trainer.
        run: Name of the run directory; None if it is not complete.
        error: Error message if the evaluation failed, else None.
        waiting: Why there is no result yet, such as no demonstration; None otherwise. This is not a failure.
        common: Metrics that do not belong to a teacher, by key without the prefix: `student/pass_rate`.
        variants: Metrics of each `<teacher>/<objective>`, by stem.
    """

    step: int
    max_steps: int | None
    epoch: float | None
    at: float | None
    trainer: str
    run: str | None
    error: str | None
    waiting: str | None
    common: Numbers
    variants: Mapping[str, Numbers]


@dataclass(frozen=True)
class Training:
    """A training as its files describe it.

    Args:
        folder: The folder `opd_align` in the trainer's `output_dir`.
        evaluations: Evaluations, sorted by step.
        log: Steps and rows of the trainer's own log, sorted by step.
        unreadable: Number of lines that could not be parsed.
    """

    folder: Path
    evaluations: tuple[Evaluation, ...]
    log: tuple[tuple[int, Numbers], ...]
    unreadable: int

    @property
    def step(self) -> int:
        """Last known training step."""
        newest = [*(evaluation.step for evaluation in self.evaluations[-1:]), *(step for step, _ in self.log[-1:])]
        return max(newest, default=0)

    @property
    def max_steps(self) -> int | None:
        """Length of the training in steps, from the newest evaluation."""
        return self.evaluations[-1].max_steps if self.evaluations else None

    @property
    def variants(self) -> list[str]:
        """Every `<teacher>/<objective>`: those of the newest evaluation first, then those of older evaluations only."""
        return list(dict.fromkeys(name for evaluation in reversed(self.evaluations) for name in evaluation.variants))

    @property
    def labels(self) -> dict[str, str]:
        """The name of each variant for display: the teacher, followed by the objective if there are several."""
        names = {variant: variant.rpartition("/") for variant in self.variants}
        several = len({objective for _, _, objective in names.values()}) > 1
        return {
            variant: f"{teacher} · {objective}" if several else objective if teacher == REWARD else teacher
            for variant, (teacher, _, objective) in names.items()
        }

    @property
    def runs(self) -> list[str]:
        """Names of the complete run directories, oldest first."""
        return [evaluation.run for evaluation in self.evaluations if evaluation.run]


def training_folder(output_dir: Path) -> Path:
    """The folder that the callback wrote in a trainer's `output_dir`; raises OpdAlignError if there is none."""
    folder = output_dir / FOLDER
    if folder.is_dir():
        return folder
    if not output_dir.is_dir():
        raise OpdAlignError(f"{str(output_dir)!r} is not a directory; pass the output_dir of a training")
    if (output_dir / HISTORY).is_file():
        raise OpdAlignError(
            f"{str(output_dir)!r} is the {FOLDER!r} folder inside an output_dir; pass {str(output_dir.parent)!r}"
        )
    raise OpdAlignError(
        f"{str(output_dir)!r} has no folder {FOLDER!r}: no training with AlignmentCallback wrote there. Pass the "
        "trainer's output_dir, and before training call trainer.add_callback(AlignmentCallback(trainer, ...))"
    )


def read_training(folder: Path) -> Training:
    """Reads the current state of a training; `folder` is the result of `training_folder`."""
    lines, unreadable_lines = read_lines(folder / HISTORY)
    rows, unreadable_rows = read_lines(folder / TRAINING)
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
        # A trainer may log twice at one step, e.g. the loss and then a summary: the rows are merged.
        if log and log[-1][0] == step:
            row = log.pop()[1] | row
        log.append((step, row))
    return Training(folder, tuple(evaluations), tuple(log), unreadable_lines + unreadable_rows)


def read_lines(file: Path, *, tail: int | None = None) -> tuple[list[tuple[int, Mapping[str, Any]]], int]:
    """Step and content of every complete line, and the number of lines that cannot be parsed.

    Args:
        file: `history.jsonl` or `training.jsonl`.
        tail: Number of bytes at the end to read. `None`: the whole file.
    """
    try:
        with file.open("rb") as opened:
            if tail is not None:
                opened.seek(max(file.stat().st_size - tail, 0))
            content = opened.read()
    except FileNotFoundError:  # nothing has been written yet
        content = b""
    except OSError as error:
        raise OpdAlignError(f"cannot read {str(file)!r}: {error.strerror}") from error
    parsed, unreadable = [], 0
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
            step = entry["step"]
            if not (isinstance(step, int) and step >= 0):
                raise ValueError(step)
        except (ValueError, TypeError, KeyError, RecursionError):
            unreadable += line.endswith(b"\n")  # otherwise it is still being written
        else:
            parsed.append((step, entry))
    return parsed, unreadable


def _evaluation(folder: Path, step: int, line: Mapping[str, Any]) -> Evaluation:
    common: dict[str, float | None] = {}
    variants: dict[str, dict[str, float | None]] = {}
    metrics = line.get("metrics")
    for key, value in (metrics if isinstance(metrics, dict) else {}).items():
        parsed = parse_key(key)
        if parsed is None:
            continue
        if parsed.variant is None:
            common[key.removeprefix(PREFIX)] = _number(value)
        else:
            variants.setdefault(parsed.variant, {})[parsed.metric.stem] = _number(value)
    run, trainer, error, waiting = (line.get(name) for name in ("run", "trainer", "error", "waiting"))
    finished = isinstance(run, str) and RUN.fullmatch(run) and (folder / run / SUMMARY).is_file()
    max_steps = line.get("max_steps")
    return Evaluation(
        step=step,
        max_steps=max_steps if isinstance(max_steps, int) and max_steps > 0 else None,
        epoch=_number(line.get("epoch")),
        at=_number(line.get("at")),
        trainer=trainer if isinstance(trainer, str) else "",
        run=str(run) if finished else None,
        error=None if error is None else str(error),
        waiting=None if waiting is None else str(waiting),
        common=common,
        variants=variants,
    )


def _number(value: Any) -> float | None:
    """A finite number; None for anything else, including booleans."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and isfinite(value) else None
