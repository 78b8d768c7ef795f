"""The run directory: every finished batch of rollouts is on disk before it is used.

    manifest.json       what the run is: student, teachers, questions, grader, settings; and what made it
    rollouts/*.parquet  one shard a batch, named by the content keys of its rollouts
    nodes.parquet, children.parquet, questions.parquet, tokens.parquet      the analysis
    summary.json        its main numbers; comes last and means finished

The engine knows nothing of this. It is given a student and a grader that look on the disk first, asks the same
batches in the same order after a resume, and gets the same rollouts: so a run that was killed ends like one that was
not, whatever the number of workers. The unit is the engine's batch, because floating-point models may give other
tokens in other company. Nothing here deletes a rollout.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opd_align import alignment, metrics
from opd_align.engine import Analysis, Progress, Settings, analyze, check, encoded
from opd_align.manifest import describe, read_manifest, refuse_other, settings_of, versions
from opd_align.shards import (
    DAMAGED,
    TEMPORARY,
    Batch,
    DamagedFileError,
    batch_id,
    read_shard,
    read_table,
    remove_temporaries,
    set_aside,
    sync_folder,
    table_bytes,
    write_file,
    write_shard,
)
from opd_align.types import (
    Floats,
    Grader,
    OpdAlignError,
    Outcome,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    Student,
    Teacher,
)

MANIFEST, ROLLOUTS, NODES, CHILDREN, QUESTIONS, TOKENS, SUMMARY, LOCK = (
    "manifest.json", "rollouts", "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet",
    "summary.json", "lock",
)  # fmt: skip
TEXTS = pa.schema([("token", pa.uint32()), ("text", pa.string())])


DEMONSTRATIONS = "demonstrations"
"""A run directory within one: what the teachers are shown."""


class RunBusy(OpdAlignError):
    """Another process is at work in the directory."""


class DamagedFile(UserWarning):
    """A file of the run could not be read back; it was set aside, and what it held is made again."""


def analyze_into(
    path: str | os.PathLike[str],
    student: Student,
    teachers: Sequence[Teacher],
    questions: Iterable[Question],
    grader: Grader,
    *,
    settings: Settings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
    reuse: str | os.PathLike[str] | None = None,
) -> Analysis:
    """Like `analyze`, in a run directory: new, or continued where it was left. What is on disk is not sampled again.

    `reuse` names another run whose rollouts serve here too, as far as the same are asked for: another estimator or
    objective costs no sampling. A limit of `Budget.seconds` starts anew with every resume.
    """
    settings, questions = settings or Settings(), list(questions)
    check(teachers, questions, settings)
    manifest = describe(student, teachers, questions, grader, settings)
    with RunDirectory(path, manifest, reuse=reuse) as run:
        recorded = run.recorded(student, grader)
        analysis = analyze(
            recorded, teachers, questions, recorded, settings=settings, on_progress=on_progress, workers=workers
        )
        run.finish(analysis)
    return analysis


class RunDirectory:
    """A run directory opened for work; one process at a time. Use it as a context manager."""

    def __init__(
        self, path: str | os.PathLike[str], manifest: Mapping[str, Any], *, reuse: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(path)
        self.reuse = None if reuse is None else Path(reuse) / ROLLOUTS
        if self.reuse is not None and not self.reuse.is_dir():
            raise OpdAlignError(f"{str(reuse)!r} is no run directory: it has no rollouts to reuse")
        self.rollouts = self.path / ROLLOUTS
        try:
            fresh = _is_fresh(self.path)
            self.rollouts.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path / LOCK)
        except OSError as error:
            raise OpdAlignError(
                f"cannot work in {str(self.path)!r}: {error.strerror}; choose another directory or make this one "
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

    def recorded(self, student: Any, grader: Grader) -> Recorded:
        """Student (or sampler) and grader in one, both of which look on the disk before they ask the real ones."""
        return Recorded(self, student, grader)

    def finish(self, analysis: Analysis) -> None:
        """Writes the result; the summary last, since it says that the others are complete."""
        texts = pa.table([list(analysis.texts), list(analysis.texts.values())], schema=TEXTS)
        summary = json.dumps(metrics.summary(analysis.nodes), indent=1, sort_keys=True) + "\n"

        def write() -> None:
            (self.path / SUMMARY).unlink(missing_ok=True)
            write_file(self.path / QUESTIONS, table_bytes(analysis.questions))
            write_file(self.path / TOKENS, table_bytes(texts))
            write_file(self.path / CHILDREN, table_bytes(analysis.children))
            write_file(self.path / NODES, table_bytes(analysis.nodes))
            write_file(self.path / SUMMARY, summary.encode())

        self._guarded(write)

    def keep(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file of the result, whole or not at all."""
        self._guarded(lambda: write_file(self.path / name, content))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Analysis:
        """The analysis of a finished run; needs no permission to write, no student and no lock."""
        folder = Path(path)
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None:
            what = "is not a run directory: it has no manifest.json" if folder.is_dir() else "does not exist"
            raise OpdAlignError(f"{str(folder)!r} {what}; one is made by: opd-align analyze --out {folder}")
        if manifest.get("kind") != "analysis":
            raise OpdAlignError(f"{str(folder)!r} holds a {manifest.get('kind')}, not an analysis")
        missing = [name for name in (SUMMARY, NODES, CHILDREN, QUESTIONS, TOKENS) if not (folder / name).is_file()]
        if missing:
            raise OpdAlignError(
                f"the run in {str(folder)!r} is not finished: {missing[0]} is missing, {_kept(folder / ROLLOUTS)}; run "
                f"the same opd-align analyze command with --out {folder} again, it goes on where it was left"
            )
        tables = {}
        try:
            for name, schema in (
                (NODES, alignment.SCHEMA), (CHILDREN, alignment.CHILDREN), (TOKENS, TEXTS), (QUESTIONS, None),
            ):  # fmt: skip
                table = read_table((folder / name).read_bytes())
                tables[name] = encoded(table) if name in (NODES, CHILDREN) else table
                if schema is not None and not tables[name].schema.equals(schema):
                    raise DamagedFileError("its columns are not those of such a table")
        except DamagedFileError as error:
            raise OpdAlignError(
                f"{str(folder / name)!r} cannot be read ({error}); run the same opd-align analyze command with "
                f"--out {folder} again: it is made anew from the rollouts, none of which is sampled again"
            ) from error
        texts = dict(zip(*(tables[TOKENS][column].to_pylist() for column in TEXTS.names), strict=True))
        return Analysis(tables[NODES], tables[QUESTIONS], settings_of(manifest), tables[CHILDREN], texts)

    # -- what `Recorded` needs -------------------------------------------------------------------------------

    def read(self, batch: str) -> Batch | None:
        """A batch from disk; a damaged shard is set aside with a warning, and its batch counts as not there."""
        file = self.rollouts / f"{batch}.parquet"
        if self.reuse is not None and not file.exists() and (self.reuse / file.name).is_file():
            with suppress(OSError, DamagedFileError):  # the other run's trouble, not ours
                content = read_shard(self.reuse / file.name)
                if content is not None:
                    self.write(batch, content)
        try:
            return read_shard(file)
        except DamagedFileError as error:
            aside = set_aside(file)
            warnings.warn(
                f"{file} is damaged ({error}); set aside as {aside.name}, its batch is sampled again",
                DamagedFile,
                stacklevel=2,
            )
            return None
        except PermissionError as error:
            raise OpdAlignError(f"may not read {str(file)!r}; its permissions have changed") from error

    def write(self, batch: str, content: Batch) -> None:
        """Puts a batch on disk; on return it is there for good."""
        self._guarded(lambda: write_shard(self.rollouts / f"{batch}.parquet", content))

    def _begin(self, manifest: Mapping[str, Any], fresh: bool) -> None:
        def begin() -> None:
            for folder in (self.path, self.rollouts):
                remove_temporaries(folder)
            stored = read_manifest(self.path / MANIFEST)
            if stored is not None and not (any(self.rollouts.iterdir()) or (self.path / NODES).exists()):
                stored = None  # nothing was finished yet, so nothing can be mixed up
            if stored is not None:
                refuse_other(self.path, stored, manifest)
            makers = (stored or {}).get("made_with", [])
            if versions() not in makers:
                text = json.dumps({**manifest, "made_with": [*makers, versions()]}, indent=1, ensure_ascii=False)
                write_file(self.path / MANIFEST, f"{text}\n".encode())
            if fresh:
                sync_folder(self.path.absolute().parent)

        self._guarded(begin)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise OpdAlignError(
                f"could not write to {str(self.path)!r}: {error.strerror}; {_kept(self.rollouts)}. Put that right and "
                "run the same again: it goes on from there, only the batch in flight is lost"
            ) from error


class Recorded:
    """A student and its grader behind a run directory; gives what is on disk, and puts there what is not."""

    def __init__(self, run: RunDirectory, student: Any, grader: Grader) -> None:
        self._run, self._student, self._grader = run, student, grader
        self.fingerprint = student.fingerprint  # asked for once: it may be a digest of all weights
        # Rows that the grader has seen and could not decide: they stay unknown and are not graded again.
        self._undecided = np.empty(0, np.uint64)
        self._mutex = threading.Lock()
        self.sampled = self.reused = 0

    @property
    def end_tokens(self) -> Collection[int]:
        return self._student.end_tokens

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """What a token reads, where the student can tell."""
        return getattr(self._student, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        return self._student.keys(requests)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """The rollouts with their outcomes; when they are returned they are on disk."""
        keys = self._student.keys(requests)
        name = batch_id(keys, "sample")
        batch = self._run.read(name)
        if batch is None:
            batch = self._graded(requests, keys, self._student.sample(requests))
            self._run.write(name, batch)
            with self._mutex:
                self.sampled += 1
        else:
            with self._mutex:
                self.reused += 1
        return self._remember(batch.rollouts)

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """The stored outcomes; what was never sampled here (an ending that the engine adds) is graded, and stored."""
        outcome_R = rollouts.outcome_R.copy()
        open_R = (outcome_R == Outcome.UNKNOWN) & ~np.isin(rollouts.key_R, self._undecided)
        if not open_R.any():
            return outcome_R
        added = rollouts.take(open_R)
        name = batch_id([added.key_R], "grade")
        batch = self._run.read(name)
        if batch is None:
            graded = replace(added, outcome_R=np.asarray(self._grader.grade(question, added), np.int8))
            batch = Batch(graded, [question.id] * len(graded))
            self._run.write(name, batch)
        outcome_R[open_R] = self._remember(batch.rollouts).outcome_R
        return outcome_R

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        return self._student.score(request, teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        return self._student.token_log_probs(question, rollouts, teacher)

    def _graded(
        self, requests: Sequence[SampleRequest], keys: Sequence[NDArray[np.uint64]], rollouts: Rollouts
    ) -> Batch:
        """Grades each question's rows; which these are, the keys say."""
        asked = {request.question.id: request.question for request in requests}
        owner = {
            key: request.question.id for request, key_R in zip(requests, keys, strict=True) for key in key_R.tolist()
        }
        delivered = [*rollouts.key_R.tolist(), *(failure.key for failure in rollouts.failures)]
        if not owner.keys() >= set(delivered):
            raise ValueError("the student delivered rollouts that were not asked for: their keys are not the request's")
        names = [owner[key] for key in delivered]
        question_R = np.array(names[: len(rollouts)], object)
        outcome_R = rollouts.outcome_R.copy()
        for name, question in asked.items():
            own_R = question_R == name
            if own_R.any():
                own = rollouts if own_R.all() else rollouts.take(own_R)
                outcome_R[own_R] = self._grader.grade(question, own)
        return Batch(replace(rollouts, outcome_R=outcome_R), names)

    def _remember(self, rollouts: Rollouts) -> Rollouts:
        unknown = rollouts.key_R[rollouts.outcome_R == Outcome.UNKNOWN]
        if len(unknown):
            with self._mutex:
                self._undecided = np.union1d(self._undecided, unknown)
        return rollouts


def _is_fresh(folder: Path) -> bool:
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
        for entry in sorted(folder.iterdir())
        if entry.name not in (LOCK, ROLLOUTS, DEMONSTRATIONS) and not entry.name.endswith(TEMPORARY)
    ]
    if others or any((folder / ROLLOUTS).glob("*.parquet")):
        raise OpdAlignError(
            f"{str(folder)!r} is not empty and not a run directory (it holds {(others or [ROLLOUTS])[0]!r} but no "
            f"{MANIFEST}); choose a new or an empty one"
        )
    return True


def check_directory(path: str | os.PathLike[str], kind: str) -> None:
    """Refuses, before anything is loaded or written, a place where a run of this kind cannot be."""
    folder = Path(path)
    if not _is_fresh(folder):
        stored = read_manifest(folder / MANIFEST) or {}
        if stored.get("kind") != kind:
            raise OpdAlignError(
                f"{str(folder)!r} holds a run of another kind ({stored.get('kind')}); choose another one"
            )


def _locked(file: Path) -> int | None:
    """A handle that keeps other processes out until it is closed or the process dies, however it dies."""
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


def _kept(rollouts: Path) -> str:
    shards = sum(1 for _ in rollouts.glob("*.parquet"))
    damaged = sum(1 for _ in rollouts.glob(f"*{DAMAGED}*"))
    return f"{shards} finished batches are safe in {rollouts}" + (f", {damaged} were set aside" if damaged else "")
