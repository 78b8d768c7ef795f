"""The run directory: what a run is, its rollouts and its results.

    manifest.json       what the run is (student, teachers, questions, grader, settings), which versions made it, and
                        the digests of the files of its result
    rollouts/*.parquet  one shard per batch, named after the content keys of its rollouts
    nodes.parquet, children.parquet, questions.parquet, tokens.parquet      the analysis
    summary.json        its main numbers and the recommendation; written last, so it marks the run as finished
    provenance.json     student, task and teachers in words, for the report; not part of the result
    prompts.json        the student's prompts as chat messages, for exports; not part of the result
    spent.json          tokens and time used; not part of the result

The directory may be on a local disk, a shared disk or in an object store (`as_path`). An object store has no locks:
a second run with the same settings writes the same files again, and one with other settings is rejected when it
starts, or at the latest before it writes a result.

Every finished batch of rollouts is on disk before it is used. The engine does not know about this: it is given a
student and a grader that read from disk first (`CachedStudent`), requests the same batches in the same order after a
resume, and gets the same rollouts. A run that was killed and resumed therefore gives the same result as one that was
not, for any number of workers. The unit is the engine's batch, because floating-point models may produce other tokens
when batched differently. Rollouts are never deleted.

A file of the result that is not what was written is reported by name when it is loaded. The same command rebuilds it
from the rollouts.
"""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from opd_align.core import alignment, metric_registry
from opd_align.core.decision import decide
from opd_align.core.engine import Analysis, dictionary_encoded
from opd_align.core.reliability import reliability
from opd_align.runs.filesystem import (
    TEMPORARY_SUFFIX,
    AnyPath,
    PathLike,
    RemotePath,
    as_path,
    error_reason,
    read_file,
    remove_temporaries,
    sync_folder,
    write_atomic,
)
from opd_align.runs.manifest import (
    RunMismatch,
    check_same_run,
    manifest_bytes,
    read_manifest,
    settings_from_manifest,
    versions,
)
from opd_align.runs.manifest_check import content_digest
from opd_align.runs.rollout_store import (
    ROLLOUTS,
    CachedStudent,
    DamagedFileError,
    RolloutStore,
    read_table,
    stored_rollouts_note,
    table_bytes,
)
from opd_align.types import Grader, OpdAlignError

MANIFEST, NODES, CHILDREN, QUESTIONS, TOKENS, SUMMARY, SPENT, LOCK = (
    "manifest.json", "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json",
    "spent.json", "lock",
)  # fmt: skip
TOKENS_SCHEMA = pa.schema([("token", pa.uint32()), ("text", pa.string())])

DEMONSTRATIONS = "demonstrations"
"""A run directory within the run directory, for the demonstrations in the teachers' prompts."""


class RunBusy(OpdAlignError):
    """Another process is using the run directory."""


@dataclass(frozen=True)
class Usage:
    """What a run used. Sessions that were killed are not included: their rollouts are on disk, their time is unknown.

    Args:
        tokens: Number of sampled tokens.
        seconds: Time of all samplers together, including scoring and estimation.
    """

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.tokens + other.tokens, self.seconds + other.seconds)

    @staticmethod
    def load(folder: AnyPath) -> Usage:
        """The usage recorded in a run directory; zero if none is recorded."""
        try:
            recorded = json.loads((folder / SPENT).read_bytes())
            return Usage(int(recorded["tokens"]), float(recorded["seconds"]))
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return Usage()


class RunDirectory:
    """A run directory opened for writing, by one process at a time. Use it as a context manager.

    Args:
        path: The directory: local, or a URL such as s3://bucket/run. It is created if it does not exist. An existing
            run is resumed; one with another manifest is rejected with `RunMismatch`.
        manifest: What the run is, as returned by `describe`.
        reuse: Another run directory, whose rollouts are reused where the same batch is needed. `None`: no reuse.
        shorter: The manifest of the same run on its first n questions. A stored run that is one of these is extended:
            its rollouts stay, its result is replaced. `None`: such a run is rejected like any other.
    """

    def __init__(
        self,
        path: PathLike,
        manifest: Mapping[str, Any],
        *,
        reuse: PathLike | None = None,
        shorter: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.path, self.manifest, self._shorter = as_path(path), manifest, shorter
        self.store = RolloutStore(self.path, reuse=reuse)
        try:
            fresh = _is_fresh(self.path)
            self.store.folder.mkdir(parents=True, exist_ok=True)
            self._lock = acquire_lock(self.path / LOCK)
        except OSError as error:
            raise OpdAlignError(
                f"cannot write to {str(self.path)!r}: {error_reason(error)}; choose another directory or make this one "
                f"writable (a finished run can be read without write permission: opd-align report {self.path})"
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
        """Releases the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def cached(self, student: Any, grader: Grader) -> CachedStudent:
        """Wraps a student (or sampler) and its grader so that both read from this run's rollouts first."""
        return CachedStudent(self.store, student, grader)

    def finish(self, analysis: Analysis, usage: Usage) -> None:
        """Writes the result of an analysis; the summary last, since its presence means that it is complete."""
        self._made_with()
        # A run that only read existing rollouts has no timing to record.
        if usage.tokens or not (self.path / SPENT).exists():
            with self.store.describe_write_errors():
                spent = json.dumps(asdict(Usage.load(self.path) + usage))
                write_atomic(self.path / SPENT, f"{spent}\n".encode())
        texts = pa.table([list(analysis.texts), list(analysis.texts.values())], schema=TOKENS_SCHEMA)
        decision = decide(analysis.nodes, n_analyzed=analysis.questions.num_rows).as_json()
        reliable = {
            name: [row.as_json() for row in reliability(analysis.nodes, name)]
            for name in sorted(set(analysis.nodes["objective"].unique().to_pylist()))
        }
        values = {**metric_registry.summary(analysis), "decision": decision, "reliability": reliable}
        summary = json.dumps(values, indent=1, sort_keys=True) + "\n"
        self.write_results(
            {
                QUESTIONS: table_bytes(analysis.questions),
                TOKENS: table_bytes(texts),
                CHILDREN: table_bytes(analysis.children),
                NODES: table_bytes(analysis.nodes),
                SUMMARY: summary.encode(),
            }
        )

    def write_results(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Writes the files of the result, with their digests in the manifest.

        The last file marks the run as finished: while it exists, the other files and the manifest belong together.
        """
        *others, marker = files
        made_with = self._made_with()
        with self.store.describe_write_errors():
            (self.path / marker).unlink(missing_ok=True)
            for name in others:
                write_atomic(self.path / name, files[name])
            self._write_manifest(made_with, {name: content_digest(data) for name, data in files.items()})
            write_atomic(self.path / marker, files[marker])

    @staticmethod
    def load(path: PathLike) -> Analysis:
        """Loads the analysis of a finished run; needs no write permission, no student and no lock."""
        folder = as_path(path)
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None:
            problem = "is not a run directory: it has no manifest.json" if folder.is_dir() else "does not exist"
            raise OpdAlignError(f"{str(folder)!r} {problem}; create one with: opd-align analyze --out {folder}")
        if manifest.get("kind") != "analysis":
            raise OpdAlignError(f"{str(folder)!r} contains a {manifest.get('kind')}, not an analysis")
        missing = [name for name in (SUMMARY, NODES, CHILDREN, QUESTIONS, TOKENS) if not (folder / name).is_file()]
        if missing:
            raise OpdAlignError(
                f"the run in {str(folder)!r} is not finished: {missing[0]} is missing, "
                f"{stored_rollouts_note(folder / ROLLOUTS)}; run the same opd-align analyze command with --out "
                f"{folder} again to resume it, or with --reuse {folder}, another --out and a smaller --limit to "
                "see the questions that are done"
            )
        tables = {}
        try:
            name = SUMMARY
            read_result(folder, manifest, name)
            for name, schema in (
                (NODES, alignment.SCHEMA), (CHILDREN, alignment.CHILDREN), (TOKENS, TOKENS_SCHEMA), (QUESTIONS, None),
            ):  # fmt: skip
                table = read_table(read_result(folder, manifest, name))
                tables[name] = dictionary_encoded(table) if name in (NODES, CHILDREN) else table
                if schema is not None and not tables[name].schema.equals(schema):
                    raise DamagedFileError("unexpected columns")
        except OSError as error:
            raise OpdAlignError(f"could not read {str(folder / name)!r}: {error_reason(error)}") from error
        except DamagedFileError as error:
            raise OpdAlignError(
                f"{str(folder / name)!r} is damaged ({error}); run the same opd-align analyze command with "
                f"--out {folder} again: the file is rebuilt from the stored rollouts, nothing is sampled again"
            ) from error
        texts = dict(zip(*(tables[TOKENS][column].to_pylist() for column in TOKENS_SCHEMA.names), strict=True))
        return Analysis(tables[NODES], tables[QUESTIONS], settings_from_manifest(manifest), tables[CHILDREN], texts)

    def _begin(self, manifest: Mapping[str, Any], fresh: bool) -> None:
        with self.store.describe_write_errors():
            for folder in (self.path, self.store.folder, self.path / "tables"):
                if not isinstance(folder, RemotePath):
                    remove_temporaries(folder)
            stored = read_manifest(self.path / MANIFEST)
            if stored is not None and not has_results(self.path):
                stored = None  # nothing is finished yet, so the manifest may be replaced
            if stored is not None and self._extends(stored):
                (self.path / SUMMARY).unlink(missing_ok=True)  # the result is that of fewer questions
                self._write_manifest(stored["made_with"], {})
                stored = read_manifest(self.path / MANIFEST)
            if stored is not None:
                check_same_run(self.path, stored, manifest)
            made_with = (stored or manifest).get("made_with", [])
            if stored is None or versions() not in made_with:
                made_with = [*made_with, *([] if versions() in made_with else [versions()])]
                self._write_manifest(made_with, (stored or {}).get("results", {}))
            if fresh and not isinstance(self.path, RemotePath):
                sync_folder(self.path.absolute().parent)

    def _extends(self, stored: Mapping[str, Any]) -> bool:
        """Whether this run is the stored one with more questions after its last."""
        n = len(stored.get("questions", ()))
        if self._shorter is None or not 0 < n < len(self.manifest["questions"]):
            return False
        try:
            check_same_run(self.path, stored, self._shorter(n))
        except RunMismatch:
            return False
        return True

    def _made_with(self) -> Sequence[Mapping[str, str]]:
        """The versions that made this run; raises `RunMismatch` if the directory contains another run by now."""
        stored = read_manifest(self.path / MANIFEST)
        if stored is None:
            return [versions()]
        check_same_run(self.path, stored, self.manifest)  # another run's if the directory could not be locked
        return stored["made_with"]

    def _write_manifest(self, made_with: Sequence[Mapping[str, str]], results: Mapping[str, str]) -> None:
        write_atomic(self.path / MANIFEST, manifest_bytes(self.manifest, made_with, results))


def load_run(path: PathLike) -> Analysis:
    """The analysis of a finished run directory, checked against its digests; needs no model.

    Args:
        path: The directory: local, or a URL such as s3://bucket/run.
    """
    return RunDirectory.load(path)


def read_result(folder: AnyPath, manifest: Mapping[str, Any], name: str) -> bytes:
    """The content of a file of the result; raises `DamagedFileError` if it is not what the run wrote."""
    data = read_file(folder / name)
    if data is None:
        raise DamagedFileError(f"{name} is missing")
    if content_digest(data) != manifest["results"].get(name):
        raise DamagedFileError(f"the digest of {name} is not the one in {MANIFEST}")
    return data


def has_results(folder: AnyPath) -> bool:
    """Whether a run directory contains any rollouts or results, which must not be mixed with another run's."""
    rollouts = folder / ROLLOUTS
    return (rollouts.is_dir() and any(rollouts.iterdir())) or (folder / NODES).exists()


def _is_fresh(folder: AnyPath) -> bool:
    """Whether a folder is new or empty rather than an existing run; rejects a folder with other content."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise OpdAlignError(f"{str(folder)!r} is a file; a run needs its own directory")
    if (folder / MANIFEST).exists():
        return False
    # A run that was killed while starting has a lock and an empty folder, but no manifest yet.
    others = [
        entry.name
        for entry in folder.iterdir()
        if entry.name not in (LOCK, ROLLOUTS, DEMONSTRATIONS) and not entry.name.endswith(TEMPORARY_SUFFIX)
    ]
    if others or any((folder / ROLLOUTS).glob("*.parquet")):
        raise OpdAlignError(
            f"{str(folder)!r} is not empty and not a run directory (it contains {min(others, default=ROLLOUTS)!r} but "
            f"no {MANIFEST}); choose a new or empty directory"
        )
    return True


def check_directory(path: PathLike, kind: str) -> None:
    """Raises `OpdAlignError`, before anything is loaded or written, if a run of this kind cannot use the directory."""
    folder = as_path(path)
    _check_can_be_created(folder)
    try:
        fresh = _is_fresh(folder)
    except OSError as error:
        raise OpdAlignError(f"cannot read {str(folder)!r}: {error_reason(error)}") from error
    if not fresh:
        stored = read_manifest(folder / MANIFEST) or {}
        if stored.get("kind") != kind:
            raise OpdAlignError(
                f"{str(folder)!r} contains a run of another kind ({stored.get('kind')}); choose another directory"
            )


def _check_can_be_created(folder: AnyPath) -> None:
    """A folder that cannot be created would be found only after the models are loaded."""
    if isinstance(folder, RemotePath):
        return
    for each in (folder, *folder.absolute().parents):
        # Not `Path.exists`, which raises an error for a link to itself.
        if os.path.exists(each):
            if each != folder and not os.path.isdir(each):
                raise OpdAlignError(f"{str(folder)!r} cannot be created: {str(each)!r} is a file")
            return
        if os.path.islink(each):
            raise OpdAlignError(f"{str(each)!r} is a link to something that does not exist; choose another directory")


def acquire_lock(file: AnyPath) -> int | None:
    """Locks a file until the returned handle is closed or the process ends; `None` where locks are not supported."""
    if isinstance(file, RemotePath):
        return None
    import fcntl  # not available on Windows, where finished runs can still be read

    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown process"
        os.close(handle)
        raise RunBusy(
            f"{str(file.parent)!r} is in use by another run ({holder}); wait for it or choose another directory"
        ) from None
    except OSError as error:
        os.close(handle)
        warnings.warn(
            f"{file.parent} cannot be locked ({error.strerror}); do not start a second run in this directory",
            stacklevel=3,
        )
        return None
    with suppress(OSError):  # a run on a full disk may still be able to read its results
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle
