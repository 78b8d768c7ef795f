"""The checkpoint that a training is resumed from, and the callback's own state in it."""

from __future__ import annotations

import inspect
import json
import logging
import os
from pathlib import Path
from types import NoneType
from typing import Any

from opd_align.core.engine import Analysis
from opd_align.report.history import FOLDER
from opd_align.runs.run_directory import RunDirectory
from opd_align.training.overhead import OverheadLimit, invalid_fields
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

STATE = "opd_align.json"
"""File in a checkpoint with the state of the evaluation schedule."""


def resumed_from(trainer: Any) -> Path | None:
    """The folder that `trainer.train(resume_from_checkpoint=...)`, which is running, reads; `None` if it is not known.

    It need not be in `output_dir`. A callback learns the step of the checkpoint but not its folder, and the trainer
    does not keep it: it is an argument of the methods that call the callback.
    """
    frame = inspect.currentframe()
    try:
        while frame is not None:
            if frame.f_locals.get("self") is trainer:
                folder = frame.f_locals.get("resume_from_checkpoint")
                if isinstance(folder, str | os.PathLike):
                    return Path(folder)
            frame = frame.f_back
        return None
    finally:
        del frame


def read_state(file: Path, new: OverheadLimit, opened: str) -> tuple[OverheadLimit, int, dict[str, Any]]:
    """The schedule, the number of failures and the valid values of the callback's state in a checkpoint.

    Args:
        file: The file.
        new: The schedule to start with; what the checkpoint has, and still applies, replaces it.
        opened: What else starts anew if the file cannot be read, for the log.
    """
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise TypeError(f"expected an object, found {stored!r:.40}")
    except (OSError, ValueError, TypeError) as error:  # half written when the training was killed
        logger.warning("Cannot read %s, starting a new evaluation schedule%s: %r", file, opened, error)
        return new, 0, {}
    invalid = invalid_fields(stored)
    for name, kinds in (("failures", [int]), ("latest", [str, NoneType]), ("latest_step", [int, NoneType])):
        if type(stored.get(name)) not in kinds:  # a bool is no number here
            invalid.append(name)
    if invalid:
        found = ", ".join(f"{name}={stored.get(name, 'missing')!r:.40}" for name in invalid)
        logger.warning("Ignoring invalid values in %s: %s", file, found)
    kept = {name: value for name, value in stored.items() if name not in invalid}
    return new.load_state_dict(stored), max(kept.get("failures", 0), 0), kept


def read_latest(checkpoint: Path, run: str | None) -> Analysis | None:
    """The latest analysis before a checkpoint, in whose output directory it is: gates may depend on it.

    Args:
        checkpoint: The checkpoint.
        run: The name of the analysis' run directory. `None`: there was none.
    """
    if run is None:
        return None
    try:
        return RunDirectory.load(checkpoint.parent / FOLDER / run)
    except OpdAlignError as error:
        logger.warning("Cannot read the latest evaluation before the checkpoint: %s", error)
        return None
