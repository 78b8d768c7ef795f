"""Snapshots: the student's weights at one step, which a training leaves for a watcher.

    OUTPUT_DIR/opd_align/snapshots/step-000100-4f1c2a9b/     save_pretrained, and snapshot.json

A snapshot is written under a temporary name and renamed, so what has its name is complete. At most a given number wait
to be evaluated: the oldest make room. The watcher removes a snapshot after its result is in `history.jsonl`.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

SNAPSHOTS, META = "snapshots", "snapshot.json"
TEMPORARY, REMOVED = ".tmp", ".removed"

SPARE = 2.0
"""Free disk space that a snapshot needs, as a multiple of its size: the trainer's own checkpoints come first."""


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot.

    Args:
        folder: Where it is.
        step: Its training step.
        meta: What the callback noted with it: `max_steps`, `epoch`, `at`, `gate`.
    """

    folder: Path
    step: int
    meta: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Identifies it among all snapshots of all trainings in this directory."""
        return self.folder.name

    def remove(self) -> None:
        """Removes it; under another name first, so that nobody sees a part of it."""
        hidden = self.folder.with_name(f".{self.folder.name}{REMOVED}")
        try:
            self.folder.rename(hidden)
        except FileNotFoundError:
            return
        shutil.rmtree(hidden, ignore_errors=True)


def write_snapshot(
    folder: Path, step: int, save: Callable[[Path], None], meta: Mapping[str, Any], *, size: int, keep: int
) -> Path:
    """Writes a snapshot and removes those that it replaces; on errors nothing is left behind.

    Args:
        folder: The folder `opd_align` of the training.
        step: The training step.
        save: Saves the model into a folder.
        meta: JSON values to store with it.
        size: Bytes that it takes on disk, at most.
        keep: How many snapshots may wait, this one included.
    """
    root = folder / SNAPSHOTS
    root.mkdir(parents=True, exist_ok=True)
    waiting = list_snapshots(folder)
    # A training that was resumed from an earlier step: these are of a branch that it has left.
    left = [each for each in waiting if each.step >= step]
    surplus = [each for each in waiting if each.step < step][: max(len(waiting) - len(left) - keep + 1, 0)]
    for each in left + surplus:
        each.remove()
    if surplus:
        logger.warning(
            "No watcher has evaluated the snapshot of step %s; it makes room for that of step %d (max_snapshots=%d). "
            "Start one: opd-align watch %s", ", ".join(str(each.step) for each in surplus), step, keep, folder.parent,
        )  # fmt: skip
    free = shutil.disk_usage(root).free
    if free < SPARE * size:
        raise OpdAlignError(
            f"no snapshot of step {step}: {free / 2**30:.1f} GiB are free on the disk, and it needs {size / 2**30:.1f} "
            f"GiB and as much again"
        )
    name = f"step-{step:06d}-{uuid4().hex[:8]}"
    temporary = root / f".{name}{TEMPORARY}"
    try:
        temporary.mkdir()
        save(temporary)
        (temporary / META).write_text(json.dumps({"step": step, **meta}), encoding="utf-8")
        temporary.rename(root / name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return root / name


def list_snapshots(folder: Path) -> list[Snapshot]:
    """The complete snapshots, by step."""
    found = []
    for each in sorted((folder / SNAPSHOTS).glob("step-*")):
        try:
            meta = json.loads((each / META).read_text(encoding="utf-8"))
            found.append(Snapshot(each, int(meta["step"]), meta))
        except (OSError, ValueError, LookupError, TypeError):  # removed at this moment, or not a snapshot
            continue
    return sorted(found, key=lambda each: each.step)


def remove_remains(folder: Path, suffix: str) -> None:
    """Removes what a killed process has left: `TEMPORARY` of a training, `REMOVED` of a watcher."""
    for each in (folder / SNAPSHOTS).glob(f".*{suffix}"):
        shutil.rmtree(each, ignore_errors=True)
