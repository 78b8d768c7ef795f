"""Files that are whole or absent: atomic writing, and batches of rollouts as Parquet.

A file appears under its final name only when all of it is there: on a disk by a temporary name, fsync, rename and
fsync of the folder, in an object store by one put. A shard is one batch: a row per rollout, then a row per failure, and
a digest of all of it in the schema's metadata, so that a shard either gives back exactly the batch that was written or
is known to be damaged. This room knows rollouts and files; it does not know which batches a run needs.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from opd_align.runs.filesystem import AnyPath, RemotePath, error_reason
from opd_align.types import Failure, Finish, Outcome, Rollouts

READ_AGAIN_S = (0.2, 1.0, 4.0)
"""Pauses before a file is tried again that could not be read: stores throttle, shared disks stall."""

TEMPORARY = ".tmp"
DAMAGED = ".damaged"

SCHEMA = pa.schema(
    [
        ("batch", pa.string()),
        ("question", pa.string()),
        ("key", pa.uint64()),
        ("launch", pa.int32()),
        ("outcome", pa.int8()),
        ("finish", pa.uint8()),
        ("tokens", pa.large_list(pa.uint32())),
        ("reason", pa.string()),
    ]
)
"""Columns of a shard. A failure has a reason and no launch, outcome or tokens; a rollout has no reason."""


class DamagedFileError(Exception):
    """A file that exists but does not hold what was once written to it."""


@dataclass(frozen=True)
class Batch:
    """Rollouts that were made together; `question_R` names the question of each row, then that of each failure."""

    rollouts: Rollouts
    question_R: Sequence[str]


def batch_id(keys: Sequence[NDArray[np.uint64]], kind: str) -> str:
    """Names a batch by the content keys of its rollouts, in the order in which they are asked for."""
    digest = blake2b(f"{kind}\0".encode(), digest_size=16)
    for key_R in keys:
        digest.update(np.ascontiguousarray(key_R, "<u8").tobytes())
    return digest.hexdigest()


def write_atomic(path: AnyPath, data: bytes | memoryview) -> None:
    """Puts a file in its place at once; raises `OSError`, and leaves nothing behind, when that is impossible."""
    if isinstance(path, RemotePath):
        return path.write_bytes(data)
    # A number of the process would not do: on a shared disk two machines may have the same one.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}{TEMPORARY}")
    try:
        with temporary.open("xb", buffering=0) as file:
            rest = memoryview(data)
            while len(rest):
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Deletes what a killed process had begun to write; no other process may be at work in the folder."""
    for file in folder.glob(f".*{TEMPORARY}"):
        file.unlink(missing_ok=True)


def quarantine(path: AnyPath) -> str:
    """Renames a damaged file out of the way and returns its new name; it is never deleted."""
    names = (f"{path.name}{DAMAGED}{'' if n == 1 else f'-{n}'}" for n in count(1))
    aside = next(name for name in names if not path.with_name(name).exists())
    path.rename(path.with_name(aside))  # type: ignore[arg-type]  # both are of one kind
    return aside


def table_bytes(table: pa.Table) -> memoryview:
    """A table as Parquet; the same rows give the same bytes, however the table was pieced together."""
    plain = [
        pa.field(column.name, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.schema
    ]
    table = table.cast(pa.schema(plain, table.schema.metadata)).combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 20)
    return memoryview(sink.getvalue())


def read_table(data: bytes) -> pa.Table:
    """A table from Parquet bytes; raises `DamagedFileError` when they are not."""
    try:
        # Threads would not change the result, only take cores away from the sampler.
        return pq.read_table(io.BytesIO(data), use_threads=False)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise DamagedFileError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def write_shard(path: AnyPath, batch: Batch) -> None:
    """Writes one batch; its id is the file's stem. Writing the same batch again changes nothing."""
    rollouts, failures = batch.rollouts, batch.rollouts.failures
    rows, failed = len(rollouts), len(rollouts.failures)
    unknown = np.full(failed, Outcome.UNKNOWN, np.int8)
    offsets = np.concatenate([rollouts.offsets, np.full(failed, rollouts.offsets[-1])])
    is_failure = np.arange(rows + failed) >= rows
    columns = [
        pa.array([path.stem]).take(pa.array(np.zeros(rows + failed, np.int64))),
        pa.array(batch.question_R, pa.string()),
        pa.array(np.concatenate([rollouts.key_R, np.array([failure.key for failure in failures], np.uint64)])),
        pa.array(np.concatenate([rollouts.launch_R, np.zeros(failed, np.int64)]), pa.int32(), mask=is_failure),
        pa.array(np.concatenate([rollouts.outcome_R, unknown])),
        pa.array(np.concatenate([rollouts.finish_R, np.full(failed, Finish.FAILED, np.uint8)])),
        pa.LargeListArray.from_arrays(offsets, rollouts.tokens, mask=pa.array(is_failure)),
        pa.array([None] * rows + [failure.reason for failure in failures], pa.string()),
    ]
    schema = SCHEMA.with_metadata({"opd_align.digest": _digest(path.stem, batch)})
    write_atomic(path, table_bytes(pa.Table.from_arrays(columns, schema=schema)))


def read_file(path: AnyPath) -> bytes | None:
    """A file's content, `None` where there is none; one that cannot be read just now is tried a few times."""
    pauses = iter(READ_AGAIN_S)
    while True:
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (PermissionError, IsADirectoryError):
            raise
        except OSError:
            pause = next(pauses, None)
            if pause is None:
                raise
            time.sleep(pause)


def read_shard(path: AnyPath) -> Batch | None:
    """The batch of a shard, or `None` where there is no such file.

    Raises `DamagedFileError` where its content is not what was written, and `OSError` where that cannot be told.
    """
    try:
        data = read_file(path)
    except IsADirectoryError as error:
        raise DamagedFileError(error_reason(error)) from error
    if data is None:
        return None
    table = read_table(data)
    if not table.schema.equals(SCHEMA):
        raise DamagedFileError("its columns are not those of a shard")
    try:
        batch = _batch(table)
        digest = (table.schema.metadata or {}).get(b"opd_align.digest", b"")
        intact = _digest(path.stem, batch).encode() == digest and set(table["batch"].to_pylist()) <= {path.stem}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DamagedFileError(f"its rows make no sense ({error})") from error
    if not intact:
        raise DamagedFileError("its content is not what was written under this name")
    return batch


def _batch(table: pa.Table) -> Batch:
    table = table.combine_chunks()
    reasons = table["reason"]
    rows = reasons.null_count
    made, failed = table.slice(0, rows), table.slice(rows)
    tokens = made["tokens"].combine_chunks()
    offsets = tokens.offsets.to_numpy().astype(np.int64)
    rollouts = Rollouts(
        tokens.flatten().to_numpy(),
        offsets - offsets[0],
        made["launch"].to_numpy().astype(np.int64),
        made["outcome"].to_numpy(),
        made["finish"].to_numpy(),
        made["key"].to_numpy(),
        tuple(
            Failure(key, reason)
            for key, reason in zip(failed["key"].to_pylist(), failed["reason"].to_pylist(), strict=True)
        ),
    )
    return Batch(rollouts, table["question"].to_pylist())


def _digest(name: str, batch: Batch) -> str:
    rollouts = batch.rollouts
    digest = blake2b(name.encode(), digest_size=16)
    for column, kind in (
        (rollouts.tokens, "<u4"),
        (rollouts.offsets, "<i8"),
        (rollouts.launch_R, "<i8"),
        (rollouts.outcome_R, "i1"),
        (rollouts.finish_R, "u1"),
        (rollouts.key_R, "<u8"),
    ):
        digest.update(np.ascontiguousarray(column, kind).tobytes())
    digest.update(repr([(failure.key, failure.reason) for failure in rollouts.failures]).encode())
    digest.update("\0".join(batch.question_R).encode())
    return digest.hexdigest()
