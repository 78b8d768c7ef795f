"""Reads what `AlignmentCallback` wrote during a training: evaluations, the trainer's log, run directories.

    OUTPUT_DIR/opd_align/
      history.jsonl     one line per evaluation
      training.jsonl    one line per row of the trainer's log
      step-000100/      run directory of an evaluation

The files may still be written to while they are read: an incomplete last line is ignored. After a training was resumed
from an earlier checkpoint, a line replaces all lines before it with the same or a larger step. Lines that cannot be
parsed (left by a crash) are skipped and counted. Keys that `core.metric_registry` does not know are ignored. Nothing is
computed or written here. A `TrainingReader` that is asked again reads only what was appended since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.core.metric_registry import parse_key
from opd_align.core.metric_schema import ROOT
from opd_align.report.training_log import TrainingLog
from opd_align.runs.run_directory import SUMMARY
from opd_align.types import REWARD, OpdAlignError

FOLDER, HISTORY, TRAINING = "opd_align", "history.jsonl", "training.jsonl"
FINISHED = "training_finished"
"""A file in the folder: no further checkpoint will be written."""
PREFIX = f"{ROOT}/"
RUN = re.compile(r"step-[0-9]{1,15}(?:-[0-9]{1,9})?")
"""Names of run directories; a resumed training that repeats a step appends a number. No other name is ever opened."""

KEPT_BYTES = 256
"""What a file must still have where the last reading ended, to be a continuation."""

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
        next_step: Step at which the next evaluation was planned then.
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
    next_step: int | None
    common: Numbers
    variants: Mapping[str, Numbers]


@dataclass(frozen=True)
class Training:
    """A training as its files describe it.

    Args:
        folder: The folder `opd_align` in the trainer's `output_dir`.
        evaluations: Evaluations, sorted by step.
        log: The trainer's own log.
        unreadable: Number of lines that could not be parsed.
        finished: Whether the training has said that it is over.
    """

    folder: Path
    evaluations: tuple[Evaluation, ...]
    log: TrainingLog
    unreadable: int
    finished: bool = False

    @property
    def step(self) -> int:
        """Last known training step."""
        newest = self.evaluations[-1].step if self.evaluations else 0
        return max(newest, self.log.last_step or 0)

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


def named_trainings(given: Sequence[str]) -> dict[str, Path]:
    """The folders of several trainings by name.

    Args:
        given: Each `OUTPUT_DIR`, named after its folder, or `NAME=OUTPUT_DIR`.
    """
    explicit, folders = [], []
    for text in given:
        name, equals, path = text.partition("=")
        is_named = bool(equals and name.strip()) and not Path(text).exists()
        explicit.append(name.strip() if is_named else None)
        folders.append(training_folder(Path(path if is_named else text)))
    outputs = [folder.resolve().parent for folder in folders]
    # As many parent folders as it takes to tell the trainings apart.
    depth = next((n for n in range(1, 9) if len({one.parts[-n:] for one in outputs}) == len(outputs)), 1)
    names = [
        name or str(Path(*output.parts[-depth:])) for name, output in zip(explicit, outputs, strict=True)
    ]  # fmt: skip
    for name in names:
        if names.count(name) > 1:
            raise OpdAlignError(f"two trainings are called {name!r}; name them with NAME=OUTPUT_DIR")
    return dict(zip(names, folders, strict=True))


def read_training(folder: Path) -> Training:
    """Reads the current state of a training; `folder` is the result of `training_folder`."""
    return TrainingReader(folder).read()


class TrainingReader:
    """Reads a training again and again, each time only what is new.

    Args:
        folder: Result of `training_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._history, self._training = _AppendedLines(folder / HISTORY), _AppendedLines(folder / TRAINING)
        self._evaluations: list[Evaluation] = []
        self._log = TrainingLog()

    def read(self) -> Training:
        """The training as its files are now. The log is shared with later results."""
        lines, restarted = self._history.read()
        if restarted:
            self._evaluations = []
        for step, line in lines:
            while self._evaluations and self._evaluations[-1].step >= step:
                self._evaluations.pop()
            self._evaluations.append(_evaluation(step, line))
        rows, restarted = self._training.read()
        if restarted:
            self._log = TrainingLog()
        for step, line in rows:
            row = {name: _number(value) for name, value in line.items() if name not in ("step", "at")}
            self._log.append(step, row, _number(line.get("at")))
        complete = self.complete_runs()
        evaluations = tuple(one if one.run in complete else replace(one, run=None) for one in self._evaluations)
        unreadable = self._history.unreadable + self._training.unreadable
        return Training(self.folder, evaluations, self._log, unreadable, (self.folder / FINISHED).is_file())

    def complete_runs(self) -> set[str]:
        """Names of the run directories that are complete."""
        return {file.parent.name for file in self.folder.glob(f"step-*/{SUMMARY}")}


class _AppendedLines:
    """The lines of a file that were appended since the last time.

    A file that is not a continuation of what was read before is read again from its beginning.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._end, self._before, self._unfinished = file, 0, b"", False
        self.unreadable = 0

    def read(self) -> tuple[list[tuple[int, Mapping[str, Any]]], bool]:
        """Step and content of every new line, and whether the file was read from its beginning."""
        try:
            with self._file.open("rb") as opened:
                opened.seek(self._end - len(self._before))
                restarted = self._end == 0 or opened.read(len(self._before)) != self._before
                if restarted:
                    self._end, self._before, self._unfinished, self.unreadable = 0, b"", False, 0
                    opened.seek(0)
                content = opened.read()
        except FileNotFoundError:  # nothing has been written yet
            self._end, self._before, self.unreadable = 0, b"", 0
            return [], True
        except OSError as error:
            raise OpdAlignError(f"cannot read {str(self._file)!r}: {error.strerror}") from error
        # Without its end, the last line was complete all the same.
        parsed, unreadable = _parse_lines(content.removeprefix(b"\n") if self._unfinished else content)
        complete = content.rfind(b"\n") + 1
        if content:
            self._unfinished = complete < len(content) and len(_parse_lines(content[complete:])[0]) == 1
        if self._unfinished:
            complete = len(content)
        self.unreadable += unreadable
        self._end, self._before = self._end + complete, (self._before + content[:complete])[-KEPT_BYTES:]
        return parsed, restarted


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
    return _parse_lines(content)


def _parse_lines(content: bytes) -> tuple[list[tuple[int, Mapping[str, Any]]], int]:
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


def _evaluation(step: int, line: Mapping[str, Any]) -> Evaluation:
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
    max_steps, next_step = line.get("max_steps"), line.get("next_step")
    return Evaluation(
        step=step,
        max_steps=max_steps if isinstance(max_steps, int) and max_steps > 0 else None,
        epoch=_number(line.get("epoch")),
        at=_number(line.get("at")),
        trainer=trainer if isinstance(trainer, str) else "",
        run=run if isinstance(run, str) and RUN.fullmatch(run) else None,
        error=None if error is None else str(error),
        waiting=None if waiting is None else str(waiting),
        next_step=next_step if isinstance(next_step, int) and next_step > step else None,
        common=common,
        variants=variants,
    )


def _number(value: Any) -> float | None:
    """A finite number; None for anything else, including booleans."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and isfinite(value) else None
