"""Rows of a dataset, read from a file or from the Hub.

A row is a mapping from column to value, plus its location for error messages. Rows are read one by one, so that an
invalid line after the last row that is needed does not matter.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_align.hub import cached_if_unreachable
from opd_align.types import OpdAlignError


@dataclass(frozen=True)
class Row:
    """One row: its index from 0, its location (such as "data.jsonl, line 3"), and its columns."""

    number: int
    location: str
    values: Mapping[str, Any]


def file_rows(file: Path) -> Iterator[Row]:
    """Rows of a file; the format follows from the file extension."""
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
        ".json": _json,
        ".csv": _csv,
        ".parquet": _parquet,
    }
    if file.suffix.lower() not in readers:
        raise OpdAlignError(
            f"{file}: cannot read {file.suffix or 'a file without extension'}; use {', '.join(readers)}"
        )
    if not file.is_file():
        raise OpdAlignError(f"{file}: no such file")
    return readers[file.suffix.lower()](file)


def hub_rows(hub: str, config: str | None, split: str, task: str) -> Iterator[Row]:
    """Rows of a dataset on the Hub (or of a folder that `datasets` can load)."""
    try:
        import datasets
    except ImportError as error:
        raise OpdAlignError(
            f"loading {hub} from the Hub needs the package datasets; install it with: pip install "
            "'opd-align[tasks]', or pass load() a file with the same fields"
        ) from error
    local = Path(hub).exists()
    with nullcontext(True) if local else cached_if_unreachable() as reachable:
        try:
            table = datasets.load_dataset(hub, config, split=split)
        except Exception as error:  # connection, name, configuration, split, disk: errors of different libraries
            reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            if not reachable and re.search("connect|reach|cache|offline", reason):
                reason = "no connection to the Hub, and no cached copy"
            raise OpdAlignError(
                f"task {task!r}: {hub} (configuration {config or 'default'}, split {split}) could not be loaded from "
                f"the Hub: {reason}. To read questions from a file with the same fields: --data questions.jsonl (in "
                "Python: load('questions.jsonl'))"
            ) from error
    for number, values in enumerate(table):
        yield Row(number, f"{hub}, {split}, row {number}", values)


def _row(number: int, location: str, values: Any) -> Row:
    if not isinstance(values, Mapping):
        raise OpdAlignError(f"{location}: expected an object with named fields, found {type(values).__name__}")
    return Row(number, location, values)


def _text(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise OpdAlignError(f"{file}, line {line}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error


def _jsonl(file: Path) -> Iterator[Row]:
    number = 0
    with io.StringIO(_text(file)) as lines:
        for line_number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            location = f"{file}, line {line_number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                raise OpdAlignError(f"{location}: not JSON: {error}") from error
            yield _row(number, location, values)
            number += 1


def _json(file: Path) -> Iterator[Row]:
    try:
        rows = json.loads(_text(file))
    except ValueError as error:
        raise OpdAlignError(f"{file}: not JSON: {error}; for one object per line, name the file .jsonl") from error
    if not isinstance(rows, list):
        raise OpdAlignError(f"{file}: expected a list of objects, found {type(rows).__name__}")
    for number, values in enumerate(rows):
        yield _row(number, f"{file}, entry {number}", values)


def _csv(file: Path) -> Iterator[Row]:
    with io.StringIO(_text(file), newline="") as lines:
        reader = csv.DictReader(lines)
        for number, values in enumerate(reader):
            location = f"{file}, line {reader.line_num}"
            if None in values or None in values.values():
                raise OpdAlignError(f"{location}: expected {len(reader.fieldnames or ())} cells, as in the first line")
            yield Row(number, location, {name: _cell(value) for name, value in values.items() if value != ""})


def _cell(value: str) -> Any:
    """Parses a cell that contains a JSON list, which is how a CSV file stores choices."""
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(1024):
                for values in batch.to_pylist():
                    yield Row(number, f"{file}, row {number}", values)
                    number += 1
    except pa.ArrowInvalid as error:
        raise OpdAlignError(f"{file}: not Parquet: {error}") from error
