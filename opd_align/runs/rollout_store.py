"""The rollouts of a run on disk, and a student that reads them from there before it samples.

A shard is one batch of rollouts as Parquet: one row per rollout, then one row per failure, and a digest of the content
in the schema's metadata. Reading a shard therefore either returns exactly the batch that was written, or raises
`DamagedFileError`. A shard is named after the content keys of its rollouts and written atomically, so any number of
processes may read and write the same store: a batch sampled twice is the same batch. Rollouts are never deleted.
`run_directory` decides which run a store belongs to, and locks it.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from opd_align.runs.filesystem import (
    DAMAGED_SUFFIX,
    AnyPath,
    PathLike,
    as_path,
    error_reason,
    quarantine,
    read_file,
    write_atomic,
)
from opd_align.types import (
    Failure,
    Finish,
    Floats,
    Grader,
    OpdAlignError,
    Outcome,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
)

ROLLOUTS = "rollouts"
"""The folder of the rollouts within a run directory."""

SHARD_SCHEMA = pa.schema(
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
"""Columns of a shard. A failure has a reason but no launch, outcome or tokens; a rollout has no reason."""


class DamagedFileError(Exception):
    """A file exists, but does not contain what was written to it."""


class DamagedFileWarning(UserWarning):
    """A file of the run was damaged; it was renamed, and its content is computed again."""


@dataclass(frozen=True)
class Batch:
    """Rollouts that were sampled together.

    Args:
        rollouts: The rollouts and failures.
        question_R: The question ID of each rollout, followed by that of each failure.
    """

    rollouts: Rollouts
    question_R: Sequence[str]


class RolloutStore:
    """The rollouts of one run directory.

    Args:
        path: The run directory.
        reuse: Another run directory, whose rollouts are copied into this one where the same batch is needed. `None`:
            use only the rollouts of this run.
    """

    def __init__(self, path: PathLike, *, reuse: PathLike | None = None) -> None:
        self.path = as_path(path)
        self.folder = self.path / ROLLOUTS
        self.reuse = None if reuse is None else as_path(reuse) / ROLLOUTS
        if reuse is not None:
            check_reuse(as_path(reuse))

    def read(self, batch_id: str) -> Batch | None:
        """The batch from disk, or `None` if there is none; a damaged shard is renamed with a warning and ignored."""
        file = self.folder / f"{batch_id}.parquet"
        try:
            if self.reuse is not None and not file.exists() and (self.reuse / file.name).is_file():
                with suppress(OSError, DamagedFileError):  # an unreadable shard of the other run is simply not reused
                    batch = read_shard(self.reuse / file.name)
                    if batch is not None:
                        self.write(batch_id, batch)
            return read_shard(file)
        except DamagedFileError as error:
            new_name = quarantine(file)
            warnings.warn(
                f"{file} is damaged ({error}); renamed to {new_name}, its batch is sampled again",
                DamagedFileWarning,
                stacklevel=2,
            )
            return None
        except PermissionError as error:
            raise OpdAlignError(f"no permission to read {str(file)!r}") from error
        except OSError as error:  # the file may be intact, so it is not renamed
            raise OpdAlignError(
                f"could not read {str(file)!r}: {error_reason(error)}; nothing was changed. Run the same command again "
                "when the file is readable: it resumes from there"
            ) from error

    def write(self, batch_id: str, batch: Batch) -> None:
        """Writes a batch; it is on disk when this returns."""
        with self.describe_write_errors():
            write_shard(self.folder / f"{batch_id}.parquet", batch)

    @contextmanager
    def describe_write_errors(self) -> Iterator[None]:
        """Raises `OSError` of the block as `OpdAlignError` that says what is on disk and how to resume."""
        try:
            yield
        except OSError as error:
            raise OpdAlignError(
                f"could not write to {str(self.path)!r}: {error_reason(error)}; {stored_rollouts_note(self.folder)}. "
                "Fix the problem and run the same command again: it resumes, and only the current batch is lost"
            ) from error


class CachedStudent:
    """A student and its grader that read from a `RolloutStore` first, and write to it what was missing.

    Args:
        store: Where rollouts and their outcomes are kept.
        student: Samples and scores what is not in the store.
        grader: Grades what is not in the store.
    """

    def __init__(self, store: RolloutStore, student: Any, grader: Grader) -> None:
        self._store, self._student, self._grader = store, student, grader
        self.fingerprint = student.fingerprint  # read once: it may be a digest of all weights
        # Keys of rollouts that the grader could not decide: they stay unknown and are not graded again.
        self._undecided = np.empty(0, np.uint64)
        self._mutex = threading.Lock()
        self.sampled = self.reused = self.tokens = 0

    @property
    def end_tokens(self) -> Collection[int]:
        return self._student.end_tokens

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """Text of a token; `None` if the student does not provide it."""
        return getattr(self._student, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        return self._student.keys(requests)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """Rollouts with their outcomes; they are on disk when this returns."""
        keys = self._student.keys(requests)
        name = batch_id(keys, "sample")
        batch = self._store.read(name)
        if batch is None or _all_failed(batch):
            batch = self._graded(requests, keys, self._student.sample(requests))
            if not _all_failed(batch):
                self._store.write(name, batch)
            with self._mutex:
                self.sampled += 1
                self.tokens += int((batch.rollouts.length_R - batch.rollouts.launch_R).sum())
        else:
            with self._mutex:
                self.reused += 1
        return self._remember_undecided(batch.rollouts)

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """Stored outcomes; rollouts that were not sampled here (endings added by the engine) are graded and stored."""
        outcome_R = rollouts.outcome_R.copy()
        ungraded_R = (outcome_R == Outcome.UNKNOWN) & ~np.isin(rollouts.key_R, self._undecided)
        if not ungraded_R.any():
            return outcome_R
        ungraded = rollouts.take(ungraded_R)
        name = batch_id([ungraded.key_R], "grade")
        batch = self._store.read(name)
        if batch is None:
            graded = replace(ungraded, outcome_R=np.asarray(self._grader.grade(question, ungraded), np.int8))
            batch = Batch(graded, [question.id] * len(graded))
            self._store.write(name, batch)
        outcome_R[ungraded_R] = self._remember_undecided(batch.rollouts).outcome_R
        return outcome_R

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        return self._student.score(request, teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        return self._student.token_log_probs(question, rollouts, teacher)

    def _graded(
        self, requests: Sequence[SampleRequest], keys: Sequence[NDArray[np.uint64]], rollouts: Rollouts
    ) -> Batch:
        """Grades the rollouts of each question; the keys tell which question a rollout belongs to."""
        questions = {request.question.id: request.question for request in requests}
        question_of_key = {
            key: request.question.id for request, key_R in zip(requests, keys, strict=True) for key in key_R.tolist()
        }
        returned_keys = [*rollouts.key_R.tolist(), *(failure.key for failure in rollouts.failures)]
        if not question_of_key.keys() >= set(returned_keys):
            raise ValueError("the student returned rollouts that were not requested: their keys differ from `keys`")
        question_ids = [question_of_key[key] for key in returned_keys]
        question_R = np.array(question_ids[: len(rollouts)], object)
        outcome_R = rollouts.outcome_R.copy()
        for name, question in questions.items():
            own_R = question_R == name
            if own_R.any():
                own = rollouts if own_R.all() else rollouts.take(own_R)
                outcome_R[own_R] = self._grader.grade(question, own)
        return Batch(replace(rollouts, outcome_R=outcome_R), question_ids)

    def _remember_undecided(self, rollouts: Rollouts) -> Rollouts:
        unknown = rollouts.key_R[rollouts.outcome_R == Outcome.UNKNOWN]
        if len(unknown):
            with self._mutex:
                self._undecided = np.union1d(self._undecided, unknown)
        return rollouts


def _all_failed(batch: Batch) -> bool:
    """Such a batch is not stored: resuming the run should try it again."""
    return len(batch.rollouts) == 0 and len(batch.rollouts.failures) > 0


def check_reuse(run: AnyPath) -> None:
    """Raises `OpdAlignError` if a run directory has no rollouts to reuse."""
    try:
        found = (run / ROLLOUTS).is_dir()
    except OSError as error:
        raise OpdAlignError(f"cannot read {str(run)!r}: {error_reason(error)}") from error
    if not found:
        raise OpdAlignError(f"{str(run)!r} is not a run directory: it has no rollouts to reuse")


def stored_rollouts_note(rollouts: AnyPath) -> str:
    """How many batches are on disk, for error messages."""
    stored = sum(1 for _ in rollouts.glob("*.parquet"))
    damaged = sum(1 for _ in rollouts.glob(f"*{DAMAGED_SUFFIX}*"))
    return f"{stored} finished batches are stored in {rollouts}" + (f", {damaged} were damaged" if damaged else "")


def batch_id(keys: Sequence[NDArray[np.uint64]], kind: str) -> str:
    """ID of a batch, from the content keys of its rollouts in the order in which they are requested."""
    digest = blake2b(f"{kind}\0".encode(), digest_size=16)
    for key_R in keys:
        digest.update(np.ascontiguousarray(key_R, "<u8").tobytes())
    return digest.hexdigest()


def table_bytes(table: pa.Table) -> memoryview:
    """A table as Parquet; equal rows give equal bytes, however the table was assembled."""
    plain = [
        pa.field(column.name, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.schema
    ]
    table = table.cast(pa.schema(plain, table.schema.metadata)).combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 20)
    return memoryview(sink.getvalue())


def read_table(data: bytes) -> pa.Table:
    """A table from Parquet bytes; raises `DamagedFileError` if they are not valid Parquet."""
    try:
        # Threads would not change the result, only take cores away from the sampler.
        return pq.read_table(io.BytesIO(data), use_threads=False)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise DamagedFileError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def write_shard(path: AnyPath, batch: Batch) -> None:
    """Writes one batch; its ID is the file's stem. Writing the same batch again changes nothing."""
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
    schema = SHARD_SCHEMA.with_metadata({"opd_align.digest": _digest(path.stem, batch)})
    write_atomic(path, table_bytes(pa.Table.from_arrays(columns, schema=schema)))


def read_shard(path: AnyPath) -> Batch | None:
    """The batch of a shard, or `None` if the file does not exist.

    Raises `DamagedFileError` if the content is not what was written, and `OSError` if the file cannot be read.
    """
    try:
        data = read_file(path)
    except IsADirectoryError as error:
        raise DamagedFileError(error_reason(error)) from error
    if data is None:
        return None
    table = read_table(data)
    if not table.schema.equals(SHARD_SCHEMA):
        raise DamagedFileError("its columns are not those of a shard")
    try:
        batch = _batch(table)
        digest = (table.schema.metadata or {}).get(b"opd_align.digest", b"")
        intact = _digest(path.stem, batch).encode() == digest and set(table["batch"].to_pylist()) <= {path.stem}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DamagedFileError(f"its rows are invalid ({error})") from error
    if not intact:
        raise DamagedFileError("its content is not what was written under this name")
    return batch


def _batch(table: pa.Table) -> Batch:
    table = table.combine_chunks()
    rows = table["reason"].null_count
    succeeded, failed = table.slice(0, rows), table.slice(rows)
    tokens = succeeded["tokens"].combine_chunks()
    offsets = tokens.offsets.to_numpy().astype(np.int64)
    rollouts = Rollouts(
        tokens.flatten().to_numpy(),
        offsets - offsets[0],
        succeeded["launch"].to_numpy().astype(np.int64),
        succeeded["outcome"].to_numpy(),
        succeeded["finish"].to_numpy(),
        succeeded["key"].to_numpy(),
        tuple(
            Failure(key, reason)
            for key, reason in zip(failed["key"].to_pylist(), failed["reason"].to_pylist(), strict=True)
        ),
    )
    return Batch(rollouts, table["question"].to_pylist())


def _digest(name: str, batch: Batch) -> str:
    rollouts = batch.rollouts
    digest = blake2b(name.encode(), digest_size=16)
    for column, dtype in (
        (rollouts.tokens, "<u4"),
        (rollouts.offsets, "<i8"),
        (rollouts.launch_R, "<i8"),
        (rollouts.outcome_R, "i1"),
        (rollouts.finish_R, "u1"),
        (rollouts.key_R, "<u8"),
    ):
        digest.update(np.ascontiguousarray(column, dtype).tobytes())
    digest.update(repr([(failure.key, failure.reason) for failure in rollouts.failures]).encode())
    digest.update("\0".join(batch.question_R).encode())
    return digest.hexdigest()
