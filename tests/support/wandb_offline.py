"""Reads what W&B wrote offline: records of its protocol in the log format of LevelDB."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCK, HEADER, PATIENCE_S = 32768, 7, 60


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets W&B write to `folder`; it reads its environment once, so what an earlier test has set is torn down."""
    import wandb

    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(folder)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb.teardown()


def records(file: Path) -> list[Any]:
    """The protocol's records of a run that was finished: W&B's own process may write them a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = list(_parsed(file.read_bytes()))
        if any(record.WhichOneof("record_type") == "exit" for record in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _parsed(data: bytes) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    assert data[:4] == b":W&B", "not a W&B file"
    at, parts = 7, []
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # a block ends with zeros where no header fits
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            break
        parts.append(data[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows that were logged, in their order."""
    (file,) = folder.rglob("run-*.wandb")
    rows = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append(row)
    return rows
