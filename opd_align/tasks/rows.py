"""Rows of a dataset, read from a file or from the Hub.

A row is a mapping from column to value, plus its location for error messages. Rows are read one by one, so that an
invalid line after the last row that is needed does not matter.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_align.hub import cached_if_unreachable
from opd_align.types import OpdAlignError, shortened


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
    if not os.path.isfile(file):
        raise OpdAlignError(f"{file}: {_missing(file)}")
    return readers[file.suffix.lower()](file)


def _missing(file: Path) -> str:
    if os.path.isdir(file):
        return "a folder, not a file"
    if os.path.exists(file):
        return "a pipe or a device; save its content in a file first"
    return "no such file" if not os.path.islink(file) else "a link to a file that does not exist"


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
    try:
        content = file.read_bytes()
    except OSError as error:
        raise OpdAlignError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise OpdAlignError(f"{file}, line {line}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error


def _parse_json(text: str, location: str, hint: str = "") -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise OpdAlignError(f"{location}: lists or objects are nested too deeply") from None
    except ValueError as error:
        raise OpdAlignError(f"{location}: not JSON: {error}{hint}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {shortened(repeated)} appears more than once")
    return values


def _jsonl(file: Path) -> Iterator[Row]:
    number = 0
    with io.StringIO(_text(file)) as lines:
        for line_number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            location = f"{file}, line {line_number}"
            yield _row(number, location, _parse_json(line, location))
            number += 1


def _json(file: Path) -> Iterator[Row]:
    text = _text(file)
    rows = _parse_json(text, str(file), "; for one object per line, name the file .jsonl") if text.strip() else []
    if not isinstance(rows, list):
        raise OpdAlignError(f"{file}: expected a list of objects, found {type(rows).__name__}")
    for number, values in enumerate(rows):
        yield _row(number, f"{file}, entry {number}", values)


def _csv(file: Path) -> Iterator[Row]:
    with io.StringIO(_text(file), newline="") as lines:
        # Strict: an unclosed quotation mark is an error; it would swallow the rest of the file otherwise.
        reader = csv.reader(lines, strict=True)
        header = [name.strip() for name in _next_cells(reader, file) or []]
        separator = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
        if separator is not None:
            raise OpdAlignError(f"{file}: cells are separated by {separator!r}; save the file with commas")
        _check_columns(file, header)
        number = 0
        while (cells := _next_cells(reader, file)) is not None:
            if not cells:
                continue
            location = f"{file}, line {reader.line_num}"
            if len(cells) != len(header):
                raise OpdAlignError(f"{location}: expected {len(header)} cells, as in the first line")
            yield Row(number, location, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""})
            number += 1


def _next_cells(reader: Any, file: Path) -> list[str] | None:
    """The cells of the next line; `None` at the end of the file."""
    # The default limit of 131,072 characters per cell is too small for long passages. It belongs to the whole process.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    except csv.Error as error:
        raise OpdAlignError(f"{file}, line {reader.line_num}: not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _check_columns(file: Path, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise OpdAlignError(f"{file}: the column {shortened(repeated[0])} appears more than once")


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        # Checksums are verified where the file has them.
        with pq.ParquetFile(file, page_checksum_verification=True) as table:
            _check_columns(file, table.schema_arrow.names)
            for batch in table.iter_batches(1024):
                for values in batch.to_pylist():
                    yield Row(number, f"{file}, row {number}", values)
                    number += 1
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:  # of a damaged file, in any of its parts
        if not number and isinstance(error, pa.ArrowInvalid) and "magic bytes" in str(error):
            raise OpdAlignError(f"{file}: not Parquet: {_reason(error)}") from error
        raise OpdAlignError(f"{file}: not Parquet, or damaged after row {number}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
