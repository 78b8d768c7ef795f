"""Agreement between the processes of a training, and the executor that splits a run over them.

An evaluation is a sequence of stages. After each one all ranks exchange their results (`on_all_ranks`): if the stage
failed on any rank, it fails on all, so none of them starts a collective operation that another one will not join. A
rank that fails between two stages goes to the end of the evaluation (`wait_for_all_ranks`) and waits there; the others
see this at their next stage. All of this uses a process group of its own, on the CPU; the trainer's own group is not
used. Ranks that finish early wait for the others as long as an evaluation may take, and not much longer (`max_wait`).
"""

from __future__ import annotations

import logging
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from weakref import ref

from torch import distributed

from opd_align.runs.execute import Group, GroupResults, LocalExecutor
from opd_align.runs.filesystem import AnyPath, write_atomic
from opd_align.runs.rollout_store import ROLLOUTS
from opd_align.runs.run_directory import Usage
from opd_align.training.time_limit import TimeLimitExceeded
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

T = TypeVar("T")

DDP_TIMEOUT_S = 1800.0
"""The default of `ddp_timeout`: how long ranks of a training wait for each other outside of evaluations."""

WAIT_MARGIN_S = 300.0
"""Added to how long ranks wait for each other: for what is neither training nor sampling, such as files."""

UNLIMITED_S = 24 * 3600.0
"""How long ranks wait for each other in an evaluation without a time limit."""

STAGE = 1_000
"""The level of a stage: above that of any `wait_for_all_ranks`."""


class EvaluationFailed(OpdAlignError):
    """An evaluation failed; the training itself is not affected."""


@dataclass(frozen=True)
class Outcome:
    """What one rank reports when the ranks meet.

    Args:
        stage: The stage that it has finished, or in which it failed.
        level: `STAGE`, or the level of `wait_for_all_ranks`.
        result: The result; `None` after a failure.
        failure: The failure, in one line; `None` without one.
        place: Where it failed: rank and stage; `None` if the failure was agreed on before.
        details: The traceback of the failure; `None` if it needs none.
    """

    stage: str
    level: int = STAGE
    result: Any = None
    failure: str | None = None
    place: str | None = None
    details: str | None = None


def on_all_ranks(work: Callable[[], T], stage: str) -> list[T]:
    """The results of `work` on every rank, by rank; if it raises on any rank, this raises on all.

    Args:
        work: What each rank does. Its result must be picklable.
        stage: What it does, in a few words for error messages ("sampling").
    """
    cause: Exception | None = None
    try:
        outcome = Outcome(stage, result=work())
    except Exception as error:
        cause, outcome = error, _failed(stage, STAGE, error)
    outcomes = _exchange(outcome)
    if any(other.failure is not None for other in outcomes):
        raise _error(outcomes, cause)
    if any((other.stage, other.level) != (stage, STAGE) for other in outcomes):
        found = ", ".join(f"{rank}: {other.stage}" for rank, other in enumerate(outcomes))
        raise EvaluationFailed(f"the ranks are at different stages ({found})")
    return [other.result for other in outcomes]


def wait_for_all_ranks(
    stage: str, level: int, result: T, error: Exception | None = None
) -> tuple[list[T], OpdAlignError | None]:
    """Waits until every rank has arrived here, or at a lower level, whatever happened on it before.

    Returns the results of all ranks, and the failure that all ranks agree on, or `None`. Ranks that are still at a
    stage learn there of the failure, and come here.
    """
    outcome = Outcome(stage, level, result) if error is None else replace(_failed(stage, level, error), result=result)
    while True:
        outcomes = _exchange(outcome)
        if all(other.level <= level for other in outcomes):
            break
    failed = any(other.failure is not None for other in outcomes)
    return [other.result for other in outcomes], _error(outcomes, error) if failed else None


def _failed(stage: str, level: int, error: Exception) -> Outcome:
    if isinstance(error, EvaluationFailed):  # raised on purpose, or agreed on before
        return Outcome(stage, level, failure=str(error), details="\n".join(getattr(error, "__notes__", ())) or None)
    place = f"rank {_rank()}, {stage}" if level == STAGE else f"rank {_rank()}"
    if isinstance(error, OpdAlignError):  # in the user's words
        return Outcome(stage, level, failure=str(error), place=place)
    details = "".join(traceback.format_exception(error))
    return Outcome(stage, level, failure=f"{type(error).__name__}: {error}", place=place, details=details)


def _error(outcomes: Sequence[Outcome], cause: Exception | None) -> OpdAlignError:
    """The failure of the lowest rank that failed; the traceback of another rank is added as a note.

    An error that all ranks raise alike stays what it is.
    """
    rank, first = next((rank, each) for rank, each in enumerate(outcomes) if each.failure is not None)
    everywhere = all(each.failure == first.failure for each in outcomes)
    message = str(first.failure) if everywhere or first.place is None else f"{first.failure} ({first.place})"
    if isinstance(cause, OpdAlignError) and str(cause) == message:
        return cause
    error = EvaluationFailed(message)
    if first.details is not None and rank != _rank():
        error.add_note(first.details if first.details.startswith("On rank") else f"On rank {rank}:\n{first.details}")
    error.__cause__ = cause
    return error


# -- the process group ----------------------------------------------------------------------------------------------

_wait_s = DDP_TIMEOUT_S + WAIT_MARGIN_S
"""How long a rank waits for the others at present."""


@contextmanager
def max_wait(ddp_timeout_s: float, evaluation_s: float | None = 0.0) -> Iterator[None]:
    """Within the block, a rank that has waited so long for another one raises, which ends the training.

    Args:
        ddp_timeout_s: The trainer's own limit, for what an evaluation does beside sampling.
        evaluation_s: The time limit of the evaluation; 0 outside of one; `None`: it has no limit.
    """
    global _wait_s  # like the process group
    before = _wait_s
    _wait_s = ddp_timeout_s + WAIT_MARGIN_S + (UNLIMITED_S if evaluation_s is None else evaluation_s)
    try:
        yield
    finally:
        _wait_s = before


class RankNotResponding(OpdAlignError):
    """A rank did not arrive where the others wait for it: it hangs, or has ended."""


_groups: list[tuple[Any, Any]] = []
"""The trainer's process group, and the one for evaluations that belongs to it, or why that cannot be used any more.

Weak references: threads of a process group run until it is deleted. One that is still referenced after
`destroy_process_group` is deleted while the interpreter shuts down, where its threads can abort the process.
"""


def _process_group() -> Any:
    """The process group of evaluations; created when all ranks use it for the first time."""
    world = distributed.group.WORLD
    if not _groups or _groups[0][0]() is not world:
        # Gloo: objects on the CPU need no memory of a GPU, and no rank waits inside a kernel. The time-out is never
        # reached, since `_exchange` has one for each evaluation.
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=2 * UNLIMITED_S))
        _groups[:] = [(ref(world), ref(group))]
    if isinstance(_groups[0][1], RankNotResponding):
        raise _groups[0][1]
    return _groups[0][1]()


def _world_size() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _rank() -> int:
    return distributed.get_rank() if _world_size() > 1 else 0


def _exchange(outcome: Outcome) -> list[Outcome]:
    """The outcomes of all ranks."""
    if _world_size() == 1:
        return [outcome]
    try:
        data = pickle.dumps(outcome)
    except Exception as error:  # this rank must not be the only one that stays away
        data = pickle.dumps(_failed(outcome.stage, outcome.level, error))
    group = _process_group()
    try:
        distributed.monitored_barrier(group, timedelta(seconds=_wait_s), wait_all_ranks=True)
    except RuntimeError as error:
        failure = RankNotResponding(
            f"another rank hangs or has ended: rank {_rank()} waited for it after {outcome.stage!r}, for at most "
            f"{_wait_s:.0f} s ({error})"
        )
        _groups[0] = (_groups[0][0], failure)  # what still waits for all ranks now fails at once
        raise failure from error
    received: list[Any] = [None] * _world_size()
    distributed.all_gather_object(received, data, group=group)
    return [pickle.loads(each) for each in received]


# -- the executor ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankExecutor:
    """Executes a run on all ranks of a training; rank 0 holds the run directory, groups are assigned in turn.

    Ranks that see the run directory in their own output folder read and write rollouts there. The others (another node,
    without a shared disk) keep theirs in a temporary folder and send them to rank 0 at the end.

    Args:
        local: Analyzes the groups of this rank.
        rank: This process's rank.
        world_size: The number of ranks.
        folder: Where this rank looks for the run directory.
    """

    local: LocalExecutor
    rank: int
    world_size: int
    folder: Path

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function on rank 0; its result, which must be picklable, or its failure is seen on all ranks."""
        results: list[Any] = on_all_ranks(lambda: function() if self.rank == 0 else None, "files of the run")
        first: T = results[0]
        return first

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes this rank's share of the groups and gathers the results of all ranks.

        A group that the time limit of the evaluation does not leave time for has no results.
        """
        with tempfile.TemporaryDirectory(prefix="opd_align-") as temporary:
            shared = self._sees(path)
            own = path if self.rank == 0 else self.folder / path.name if shared[self.rank] else Path(temporary)
            shares = on_all_ranks(lambda: self._analyze(own, groups[self.rank :: self.world_size]), "analysis")
            if not all(shared):
                self._collect_rollouts(path, None if shared[self.rank] else Path(temporary))
        results = [shares[n % self.world_size].results[n // self.world_size] for n in range(len(groups))]
        if not any(results):
            raise EvaluationFailed("the time limit of the evaluation ended before any question was analyzed")
        if self.rank == 0 and not all(results):
            sizes = [len(group) for group in groups]
            done = sum(size for size, result in zip(sizes, results, strict=True) if result)
            logger.warning("Time limit of the evaluation: %d of %d questions were analyzed", done, sum(sizes))
        return GroupResults(results, sum((share.usage for share in shares), Usage()))

    def _analyze(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        (path / ROLLOUTS).mkdir(parents=True, exist_ok=True)
        results: list[Any] = []
        usage = Usage()
        with suppress(TimeLimitExceeded):
            for group in groups:
                done = self.local.analyze_groups(path, [group])
                results += done.results
                usage += done.usage
        return GroupResults([*results, *([] for _ in groups[len(results) :])], usage)

    def _sees(self, path: AnyPath) -> list[bool]:
        """For each rank, whether it sees the run directory of rank 0 in its own folder."""
        if self.world_size == 1:
            return [True]

        def leave_mark() -> str:
            name = f".shared-{uuid4().hex}"
            write_atomic(path / name, b"", sync=False)
            return name

        mark = self.on_main_process(leave_mark)
        seen = on_all_ranks(lambda: self.rank == 0 or (self.folder / path.name / mark).is_file(), "files of the run")
        if self.rank == 0:
            with suppress(OSError):
                (path / mark).unlink()
        return seen

    def _collect_rollouts(self, path: AnyPath, temporary: Path | None) -> None:
        """Copies the rollouts of ranks without access to the run directory into it."""

        def read() -> dict[str, bytes]:
            files = [] if temporary is None else sorted((temporary / ROLLOUTS).glob("*.parquet"))
            return {file.name: file.read_bytes() for file in files}

        def write(received: Sequence[dict[str, bytes]]) -> None:
            for files in received if self.rank == 0 else ():
                for name, data in files.items():
                    write_atomic(path / ROLLOUTS / name, data)

        received = on_all_ranks(read, "rollouts of other nodes")
        on_all_ranks(lambda: write(received), "rollouts of other nodes")
