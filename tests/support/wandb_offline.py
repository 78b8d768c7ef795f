"""Reads what W&B wrote offline: records of its protocol in the log format of LevelDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def records(file: Path) -> Iterator[Any]:
    """The protocol's records, one after the other."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
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
