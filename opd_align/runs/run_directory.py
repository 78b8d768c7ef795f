"""The run directory: every finished batch of rollouts is on disk before it is used.

    manifest.json       what the run is: student, teachers, questions, grader, settings; and what made it
    rollouts/*.parquet  one shard a batch, named by the content keys of its rollouts
    nodes.parquet, children.parquet, questions.parquet, tokens.parquet      the analysis
    summary.json        its main numbers; comes last and means finished
    spent.json          what the work took; no part of the result

The directory may lie on a shared disk or in an object store (`as_path`). Where nothing can be locked, as in a store, a
second run of the same settings makes the same files again, and one of other settings is refused when it begins, or at
the latest before it writes a result.

The engine knows nothing of this. It is given a student and a grader that look on the disk first, asks the same
batches in the same order after a resume, and gets the same rollouts: so a run that was killed ends like one that was
not, whatever the number of workers. The unit is the engine's batch, because floating-point models may give other
tokens in other company. Nothing here deletes a rollout.
"""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from opd_align.core import alignment, metric_registry
from opd_align.core.collect import Progress
from opd_align.core.engine import Analysis, analyze, check_inputs, dictionary_encoded
from opd_align.runs.filesystem import AnyPath, PathLike, RemotePath, as_path, error_reason
from opd_align.runs.manifest import describe, read_manifest, refuse_other, settings_of, versions
from opd_align.runs.rollout_store import ROLLOUTS, CachedStudent, RolloutStore, stored_rollouts_note
from opd_align.runs.shards import (
    TEMPORARY,
    DamagedFileError,
    read_file,
    read_table,
    remove_temporaries,
    sync_folder,
    table_bytes,
    write_atomic,
)
from opd_align.settings import Settings
from opd_align.types import Grader, OpdAlignError, Question, Student, Teacher

MANIFEST, NODES, CHILDREN, QUESTIONS, TOKENS, SUMMARY, SPENT, LOCK = (
    "manifest.json", "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json",
    "spent.json", "lock",
)  # fmt: skip
TEXTS = pa.schema([("token", pa.uint32()), ("text", pa.string())])

DEMONSTRATIONS = "demonstrations"
"""A run directory within one: what the teachers are shown."""


class RunBusy(OpdAlignError):
    """Another process is at work in the directory."""


def analyze_into(
    path: PathLike,
    student: Student,
    teachers: Sequence[Teacher],
    questions: Iterable[Question],
    grader: Grader,
    *,
    settings: Settings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
    reuse: PathLike | None = None,
) -> Analysis:
    """Like `analyze`, in a run directory: new, or continued where it was left. What is on disk is not sampled again.

    `reuse` names another run whose rollouts serve here too, as far as the same are asked for: another estimator or
    objective costs no sampling. A limit of `Budget.seconds` starts anew with every resume.
    """
    settings, questions = settings or Settings(), list(questions)
    check_inputs(teachers, questions, settings)
    manifest = describe(student, teachers, questions, grader, settings)
    with RunDirectory(path, manifest, reuse=reuse) as run:
        recorded, begin = run.recorded(student, grader), time.monotonic()
        # Threads share one student, and so one GPU or server: its time is that of the clock, however many ask.
        analysis = analyze(
            recorded, teachers, questions, recorded, settings=settings, on_progress=on_progress, workers=workers
        )
        run.finish(analysis, Usage(recorded.tokens, time.monotonic() - begin))
    return analysis


@dataclass(frozen=True)
class Usage:
    """What work took: tokens sampled, and seconds, scoring and estimates included, of all samplers together.

    Sessions that were killed are not in it: their rollouts are on the shelf, the time they took is not known.
    """

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.tokens + other.tokens, self.seconds + other.seconds)

    @staticmethod
    def of(folder: AnyPath) -> Usage:
        """As a run tells it; nothing, where it does not."""
        try:
            told = json.loads((folder / SPENT).read_bytes())
            return Usage(int(told["tokens"]), float(told["seconds"]))
        except (OSError, ValueError, LookupError, TypeError):
            return Usage()


class RunDirectory:
    """A run directory opened for work; one process at a time. Use it as a context manager."""

    def __init__(self, path: PathLike, manifest: Mapping[str, Any], *, reuse: PathLike | None = None) -> None:
        self.path, self.manifest = as_path(path), manifest
        self.shelf = RolloutStore(self.path, reuse=reuse)
        try:
            fresh = _is_fresh(self.path)
            self.shelf.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path / LOCK)
        except OSError as error:
            raise OpdAlignError(
                f"cannot work in {str(self.path)!r}: {error_reason(error)}; choose another directory or make this one "
                f"writable (a finished run can be read without writing: opd-align report {self.path})"
            ) from error
        try:
            self._begin(manifest, fresh)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def recorded(self, student: Any, grader: Grader) -> CachedStudent:
        """Student (or sampler) and grader in one, both of which look on the disk before they ask the real ones."""
        return CachedStudent(self.shelf, student, grader)

    def finish(self, analysis: Analysis, spent: Usage) -> None:
        """Writes the result; the summary last, since it says that the others are complete."""
        stored = read_manifest(self.path / MANIFEST)
        if stored is not None:  # by another run, where nothing could be locked
            refuse_other(self.path, stored, self.manifest)
        # A run that only read what was there has nothing to tell about speed.
        if spent.tokens or not (self.path / SPENT).exists():
            self.keep(SPENT, f"{json.dumps(asdict(Usage.of(self.path) + spent))}\n".encode())
        texts = pa.table([list(analysis.texts), list(analysis.texts.values())], schema=TEXTS)
        summary = json.dumps(metric_registry.summary(analysis), indent=1, sort_keys=True) + "\n"

        def write() -> None:
            (self.path / SUMMARY).unlink(missing_ok=True)
            write_atomic(self.path / QUESTIONS, table_bytes(analysis.questions))
            write_atomic(self.path / TOKENS, table_bytes(texts))
            write_atomic(self.path / CHILDREN, table_bytes(analysis.children))
            write_atomic(self.path / NODES, table_bytes(analysis.nodes))
            write_atomic(self.path / SUMMARY, summary.encode())

        self.shelf.guarded(write)

    def keep(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file of the result, whole or not at all."""
        self.shelf.guarded(lambda: write_atomic(self.path / name, content))

    @staticmethod
    def load(path: PathLike) -> Analysis:
        """The analysis of a finished run; needs no permission to write, no student and no lock."""
        folder = as_path(path)
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None:
            what = "is not a run directory: it has no manifest.json" if folder.is_dir() else "does not exist"
            raise OpdAlignError(f"{str(folder)!r} {what}; one is made by: opd-align analyze --out {folder}")
        if manifest.get("kind") != "analysis":
            raise OpdAlignError(f"{str(folder)!r} holds a {manifest.get('kind')}, not an analysis")
        missing = [name for name in (SUMMARY, NODES, CHILDREN, QUESTIONS, TOKENS) if not (folder / name).is_file()]
        if missing:
            raise OpdAlignError(
                f"the run in {str(folder)!r} is not finished: {missing[0]} is missing, "
                f"{stored_rollouts_note(folder / ROLLOUTS)}; run the same opd-align analyze command with --out "
                f"{folder} again, it continues where it left off"
            )
        tables = {}
        try:
            for name, schema in (
                (NODES, alignment.SCHEMA), (CHILDREN, alignment.CHILDREN), (TOKENS, TEXTS), (QUESTIONS, None),
            ):  # fmt: skip
                table = read_table(read_file(folder / name) or b"")
                tables[name] = dictionary_encoded(table) if name in (NODES, CHILDREN) else table
                if schema is not None and not tables[name].schema.equals(schema):
                    raise DamagedFileError("its columns are not those of such a table")
        except OSError as error:
            raise OpdAlignError(f"could not read {str(folder / name)!r}: {error_reason(error)}") from error
        except DamagedFileError as error:
            raise OpdAlignError(
                f"{str(folder / name)!r} cannot be read ({error}); run the same opd-align analyze command with "
                f"--out {folder} again: it is made anew from the rollouts, none of which is sampled again"
            ) from error
        texts = dict(zip(*(tables[TOKENS][column].to_pylist() for column in TEXTS.names), strict=True))
        return Analysis(tables[NODES], tables[QUESTIONS], settings_of(manifest), tables[CHILDREN], texts)

    def _begin(self, manifest: Mapping[str, Any], fresh: bool) -> None:
        def begin() -> None:
            for folder in (self.path, self.shelf.folder):
                if not isinstance(folder, RemotePath):
                    remove_temporaries(folder)
            stored = read_manifest(self.path / MANIFEST)
            if stored is not None and not has_results(self.path):
                stored = None  # nothing was finished yet, so nothing can be mixed up
            if stored is not None:
                refuse_other(self.path, stored, manifest)
            makers = (stored or manifest).get("made_with", [])
            if stored is None or versions() not in makers:
                makers = [*makers, *([] if versions() in makers else [versions()])]
                text = json.dumps({**manifest, "made_with": makers}, indent=1, ensure_ascii=False)
                write_atomic(self.path / MANIFEST, f"{text}\n".encode())
            if fresh and not isinstance(self.path, RemotePath):
                sync_folder(self.path.absolute().parent)

        self.shelf.guarded(begin)


def has_results(folder: AnyPath) -> bool:
    """Whether something was finished in a run directory, so that it can be mixed up with another run's."""
    rollouts = folder / ROLLOUTS
    return (rollouts.is_dir() and any(rollouts.iterdir())) or (folder / NODES).exists()


def _is_fresh(folder: AnyPath) -> bool:
    """Whether a run begins here; refuses a folder that holds something else."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise OpdAlignError(f"{str(folder)!r} is a file; a run needs a directory of its own")
    if (folder / MANIFEST).exists():
        return False
    # A run that was killed in its first moments has a lock and an empty folder, but no manifest yet.
    others = [
        entry.name
        for entry in folder.iterdir()
        if entry.name not in (LOCK, ROLLOUTS, DEMONSTRATIONS) and not entry.name.endswith(TEMPORARY)
    ]
    if others or any((folder / ROLLOUTS).glob("*.parquet")):
        raise OpdAlignError(
            f"{str(folder)!r} is not empty and not a run directory (it holds {min(others, default=ROLLOUTS)!r} but no "
            f"{MANIFEST}); choose a new or an empty one"
        )
    return True


def check_directory(path: PathLike, kind: str) -> None:
    """Refuses, before anything is loaded or written, a place where a run of this kind cannot be."""
    folder = as_path(path)
    try:
        fresh = _is_fresh(folder)
    except OSError as error:
        raise OpdAlignError(f"cannot look into {str(folder)!r}: {error_reason(error)}") from error
    if not fresh:
        stored = read_manifest(folder / MANIFEST) or {}
        if stored.get("kind") != kind:
            raise OpdAlignError(
                f"{str(folder)!r} holds a run of another kind ({stored.get('kind')}); choose another one"
            )


def _locked(file: AnyPath) -> int | None:
    """A handle that keeps other processes out until it is closed or the process dies, however it dies."""
    if isinstance(file, RemotePath):
        return None
    import fcntl  # absent on Windows, where finished runs can still be read

    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown process"
        os.close(handle)
        raise RunBusy(
            f"{str(file.parent)!r} is in use by another run ({holder}); wait for it or stop it, or choose another one"
        ) from None
    except OSError as error:
        os.close(handle)
        warnings.warn(
            f"{file.parent} cannot be locked ({error.strerror}); do not start a second run in it", stacklevel=3
        )
        return None
    with suppress(OSError):  # on a full disk the run may still have something to read
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle
