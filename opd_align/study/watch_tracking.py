"""A watcher's rows on W&B: in the run of the training, or in a run of its own.

Rows are taken from `history.jsonl`, so nothing is lost between a result and its row: after a restart, lines that were
not logged are. How far it came is kept beside them. A tracker that cannot be reached never ends a watcher.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from opd_align.report.history import HISTORY, RUN, read_lines
from opd_align.runs.filesystem import write_atomic
from opd_align.runs.run_directory import RunDirectory
from opd_align.training.alarm_log import Alert, send_alert
from opd_align.training.evaluation_log import tracker_row
from opd_align.training.watch_spec import FOLDER
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

TRACKED = "tracked"
"""A file with the number of lines of the history that are on W&B."""

WhichRun = Literal["auto", "training", "own", "off"]
STEP = "train/global_step"


class WandbRows:
    """Logs each line of a history once.

    Args:
        folder: The folder `opd_align` of the training.
        run: The run of the training: id, project and entity. `None`: a run of its own.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any] | None) -> None:
        self.folder, self.run = folder, run
        self._wandb: Any = None
        self._failed = False

    def __call__(self) -> None:
        """Logs the lines that are not on W&B yet."""
        lines, _ = read_lines(self.folder / HISTORY)
        tracked = self._tracked()
        for number, (step, line) in enumerate(lines[tracked:], tracked + 1):
            try:
                self._log(step, line, number)
            except Exception as error:  # no connection, no key: the rows stay in the history
                if not self._failed:
                    logger.warning("Cannot log to W&B, rows stay in %s: %r", HISTORY, error)
                self._failed = True
                return
            with suppress(OSError):
                write_atomic(self.folder / FOLDER / TRACKED, f"{number}\n".encode(), sync=False)

    def finish(self) -> None:
        """Ends the run of the watcher; that of the training goes on."""
        if self._wandb is not None:
            self._wandb.finish()

    def _log(self, step: int, line: Mapping[str, Any], number: int) -> None:
        if self._wandb is None:
            self._wandb = self._started()
        analysis, name = None, line.get("run")
        if isinstance(name, str) and RUN.fullmatch(name):
            with suppress(OpdAlignError, OSError):  # removed by the user: its numbers are in the line
                analysis = RunDirectory.load(self.folder / name)
        self._wandb.log(tracker_row(step, line.get("metrics") or {}, analysis, self._wandb, number=number))
        for told in line.get("alerts") or []:
            with suppress(Exception):  # the row is logged, and would be again
                send_alert(self._wandb, Alert(**told))

    def _started(self) -> Any:
        import wandb

        if self.run is None:
            wandb.init(name=f"watch {self.folder.parent.resolve().name}", job_type="opd-align watch")
        else:
            # In shared mode several processes write to one run, and only the primary one ends it. Offline there is no
            # such mode: both write files of the same id, which `wandb sync` puts into one run.
            offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")
            shared = {"mode": "shared", "x_primary": False, "x_label": "watch", "x_update_finish_state": False}
            settings: dict[str, Any] = {} if offline else {"settings": shared}
            known: dict[str, Any] = {name: self.run.get(name) for name in ("id", "project", "entity")}
            wandb.init(**known, **settings)
        wandb.define_metric(STEP)
        wandb.define_metric("*", step_metric=STEP, step_sync=True)
        return wandb

    def _tracked(self) -> int:
        try:
            return int((self.folder / FOLDER / TRACKED).read_text())
        except (OSError, ValueError):
            return 0


def wandb_rows(folder: Path, which: WhichRun, training: Mapping[str, Any] | None) -> WandbRows | None:
    """What logs to W&B; `None` for nothing. Refuses what cannot be.

    Args:
        folder: The folder `opd_align` of the training.
        which: The run to log to; "auto": one of its own if the training reports to W&B, else none.
        training: The run of the training. `None`: it does not report there, or this is not known.
    """
    if which == "off" or (which == "auto" and training is None):
        return None
    if which == "training" and training is None:
        raise OpdAlignError("--wandb training: the W&B run of the training is not known; use --wandb own")
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise OpdAlignError("--wandb needs wandb: pip install 'opd-align[wandb]'") from error
    return WandbRows(folder, training if which == "training" else None)
