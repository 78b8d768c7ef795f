"""The shelf: a run's rollouts on disk, and a student that looks there first.

A shard is named by the content keys of its rollouts and appears whole or not at all, so any number of processes may
read and write one shelf: what two of them make twice is the same. Nothing here deletes a rollout. Whose run it is, and
who may work on it, is the business of `store`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.runs.shards import DAMAGED, Batch, DamagedFileError, batch_id, quarantine, read_shard, write_shard
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
)

ROLLOUTS = "rollouts"
"""The shelf's folder within a run directory."""


class DamagedFileWarning(UserWarning):
    """A file of the run could not be read back; it was set aside, and what it held is made again."""


class RolloutStore:
    """The rollouts of the run directory `path`; those of the run `reuse` serve too, where they are the same."""

    def __init__(self, path: PathLike, *, reuse: PathLike | None = None) -> None:
        self.path = as_path(path)
        self.folder = self.path / ROLLOUTS
        self.reuse = None if reuse is None else as_path(reuse) / ROLLOUTS
        if reuse is not None:
            check_reuse(as_path(reuse))

    def read(self, batch: str) -> Batch | None:
        """A batch from disk; a damaged shard is set aside with a warning, and its batch counts as not there."""
        file = self.folder / f"{batch}.parquet"
        try:
            if self.reuse is not None and not file.exists() and (self.reuse / file.name).is_file():
                with suppress(OSError, DamagedFileError):  # the other run's trouble, not ours
                    content = read_shard(self.reuse / file.name)
                    if content is not None:
                        self.write(batch, content)
            return read_shard(file)
        except DamagedFileError as error:
            aside = quarantine(file)
            warnings.warn(
                f"{file} is damaged ({error}); set aside as {aside}, its batch is sampled again",
                DamagedFileWarning,
                stacklevel=2,
            )
            return None
        except PermissionError as error:
            raise OpdAlignError(f"may not read {str(file)!r}; its permissions have changed") from error
        except OSError as error:  # whatever it holds may be whole, so it stays where it is
            raise OpdAlignError(
                f"could not read {str(file)!r}: {error_reason(error)}; nothing was changed. Run the same command "
                "again once it can be read: it continues from there"
            ) from error

    def write(self, batch: str, content: Batch) -> None:
        """Puts a batch on disk; on return it is there for good."""
        self.guarded(lambda: write_shard(self.folder / f"{batch}.parquet", content))

    def guarded(self, write: Callable[[], None]) -> None:
        """Writes, and says in the user's words why that failed."""
        try:
            write()
        except OSError as error:
            raise OpdAlignError(
                f"could not write to {str(self.path)!r}: {error_reason(error)}; "
                f"{stored_rollouts_note(self.folder)}. Fix that and run the same command again: it continues "
                "from there, only the batch in flight is lost"
            ) from error


class CachedStudent:
    """A student and its grader behind a shelf; gives what is on disk, and puts there what is not."""

    def __init__(self, shelf: RolloutStore, student: Any, grader: Grader) -> None:
        self._shelf, self._student, self._grader = shelf, student, grader
        self.fingerprint = student.fingerprint  # asked for once: it may be a digest of all weights
        # Rows that the grader has seen and could not decide: they stay unknown and are not graded again.
        self._undecided = np.empty(0, np.uint64)
        self._mutex = threading.Lock()
        self.sampled = self.reused = self.tokens = 0

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
        batch = self._shelf.read(name)
        if batch is None or _all_failed(batch):
            batch = self._graded(requests, keys, self._student.sample(requests))
            if not _all_failed(batch):
                self._shelf.write(name, batch)
            with self._mutex:
                self.sampled += 1
                self.tokens += int((batch.rollouts.length_R - batch.rollouts.launch_R).sum())
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
        batch = self._shelf.read(name)
        if batch is None:
            graded = replace(added, outcome_R=np.asarray(self._grader.grade(question, added), np.int8))
            batch = Batch(graded, [question.id] * len(graded))
            self._shelf.write(name, batch)
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


def _all_failed(batch: Batch) -> bool:
    """Nothing worth keeping: a resume had better try again."""
    return len(batch.rollouts) == 0 and len(batch.rollouts.failures) > 0


def check_reuse(run: AnyPath) -> None:
    """Refuses a run that has nothing to reuse."""
    try:
        found = (run / ROLLOUTS).is_dir()
    except OSError as error:
        raise OpdAlignError(f"cannot look into {str(run)!r}: {error_reason(error)}") from error
    if not found:
        raise OpdAlignError(f"{str(run)!r} is no run directory: it has no rollouts to reuse")


def stored_rollouts_note(rollouts: AnyPath) -> str:
    """How much is safe, for messages about what is not."""
    shards = sum(1 for _ in rollouts.glob("*.parquet"))
    damaged = sum(1 for _ in rollouts.glob(f"*{DAMAGED}*"))
    return f"{shards} finished batches are safe in {rollouts}" + (f", {damaged} were set aside" if damaged else "")
