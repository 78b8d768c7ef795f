"""A study on several processes of this machine, each with GPUs of its own, without a cluster.

The parent loads no model. It starts one process per group of GPUs, gives each a group of questions at a time, and
combines the results in the order of the questions, so the result is that of a single process, to the byte where
hardware and number of threads are the same. A process that dies is started again and finds finished rollouts in the run
directory. However the parent ends, its processes end too, with the engines that they started. `process_worker` is what
they run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any, TypeVar

from opd_align.core.collect import Progress
from opd_align.core.engine import Analysis, check_inputs
from opd_align.runs.execute import Group, GroupResults, execute_run
from opd_align.runs.filesystem import AnyPath, PathLike, RemotePath, as_path
from opd_align.runs.rollout_store import DamagedFileWarning
from opd_align.runs.run_directory import RunDirectory, Usage
from opd_align.study.build import Study
from opd_align.study.prepared import PreparedStudy
from opd_align.study.worker import WorkerResult, WorkStarted
from opd_align.types import OpdAlignError

T = TypeVar("T")

MAX_DEATHS = 3
"""How often the same work may lose its process before the run is stopped, and how often in a row a process may die."""
LOG_LINES = 12
"""Lines of a dead process's output that an error message shows."""
END_S = 10.0
"""How long processes have to end after SIGTERM."""
MODULE = "opd_align.study.process_worker"


class LostGpuWarning(UserWarning):
    """A GPU is not used any more, since its processes die."""


@dataclass(frozen=True)
class Slot:
    """Where one process runs.

    Args:
        name: Its name in messages.
        devices: Its `CUDA_VISIBLE_DEVICES`. `None`: as that of the parent.
        threads: CPU threads of its libraries, unless `OMP_NUM_THREADS` is set. `None`: their default.
        gpu_share: Share of the memory of its GPUs that is not used by others.
    """

    name: str
    devices: str | None = None
    threads: int | None = None
    gpu_share: float = 1.0

    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        changed = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        if self.devices is not None:
            changed["CUDA_VISIBLE_DEVICES"] = self.devices
        if self.threads is not None and "OMP_NUM_THREADS" not in os.environ:
            changed["OMP_NUM_THREADS"] = str(self.threads)
        return {**os.environ, **changed}


def cpu_slots(count: int) -> list[Slot]:
    """Processes without a GPU, which share the cores."""
    threads = max((os.cpu_count() or 1) // count, 1)
    return [Slot(f"process {number + 1}", threads=threads) for number in range(count)]


def analyze_with_processes(
    slots: Sequence[Slot],
    study: Study,
    path: PathLike,
    *,
    reuse: PathLike | None = None,
    on_phase: Callable[[str, int, int], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_prepared: Callable[[PreparedStudy], None] | None = None,
) -> Analysis:
    """Like `study.analyze`, in one process per slot."""
    study.check()
    settings = study.config.settings()
    check_inputs(study.teacher_specs, study.usable_questions, settings)
    addresses = (_address(path), None if reuse is None else _address(reuse))
    executor = ProcessExecutor(slots, study, addresses, (on_phase, on_progress))
    try:
        prepared, manifest = executor.prepare()
        prepared.warn()
        if on_prepared:
            on_prepared(prepared)
        return execute_run(
            executor, lambda: RunDirectory(addresses[0], manifest, reuse=addresses[1]), prepared.questions, settings
        )[0]
    finally:
        executor.shutdown()


@dataclass
class _Work:
    """Something for a process to do.

    Args:
        name: Its name in messages.
        request: The method of `Worker` and its arguments.
        died_on: The slots whose process died doing it, once per death.
    """

    name: str
    request: tuple[Any, ...]
    died_on: list[Slot] = field(default_factory=list)


@dataclass
class _Process:
    """A running process, its connection, whether it has started, and what it is doing."""

    slot: Slot
    popen: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    output: IO[bytes]
    handle: int | None
    ready: bool = False
    work: _Work | None = None

    @property
    def channels(self) -> list[Any]:
        """What there is to read from when it has said something, or has ended."""
        return [self.connection, *([] if self.handle is None else [self.handle])]

    def last_lines(self) -> str:
        """The end of what it printed."""
        self.output.seek(0)
        lines = [line for line in self.output.read().decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-LOG_LINES:])


class ProcessExecutor:
    """Analyzes groups of questions in processes of this machine.

    Args:
        slots: Where the processes run.
        study: The study; its models are only loaded by the processes.
        paths: The run directory and the one to reuse.
        callbacks: `on_phase` and `on_progress` of the caller; each may be `None`.
    """

    def __init__(
        self, slots: Sequence[Slot], study: Study, paths: tuple[str, str | None], callbacks: tuple[Any, Any]
    ) -> None:
        self.slots, self.study, self.paths = list(slots), study, paths
        self.on_phase, self.on_progress = callbacks
        self.processes: list[_Process] = []
        self.deaths_in_a_row: Counter[Slot] = Counter()
        self.demonstrations: Any = None

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function in the parent."""
        return function()

    def prepare(self) -> tuple[PreparedStudy, dict[str, Any]]:
        """Prepares the study in one process; returns it with the manifest of the run."""
        # Demonstrations are sampled for many questions at a time, so a single process does it.
        [(prepared, manifest)] = self._do([_Work("the demonstrations", ("prepare",))])
        self.demonstrations = prepared.demonstrations
        return prepared, manifest

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes the groups in the processes."""
        named = [", ".join(repr(question.id) for question in group) for group in groups]
        works = [
            _Work(f"question {name}", ("analyze", index, group, self.demonstrations))
            for index, (name, group) in enumerate(zip(named, groups, strict=True))
        ]
        finished: list[WorkerResult] = self._do(works)
        for message in (message for result in finished for message in result.damaged_files):
            warnings.warn(message, DamagedFileWarning, stacklevel=2)
        results = [group for result in finished for group in result.done.results]
        return GroupResults(results, sum((result.done.usage for result in finished), Usage()))

    def shutdown(self) -> None:
        """Ends all processes, also busy ones: what they have finished is on disk."""
        for process in self.processes:
            _signal_group(process.popen, signal.SIGTERM)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(END_S)
            self._bury(process)
        self.processes.clear()

    def _do(self, works: Sequence[_Work]) -> list[Any]:
        """The results of all works, in their order."""
        waiting, results = list(works), dict[int, Any]()
        while len(results) < len(works):
            self._assign(waiting)
            ready = wait([channel for process in self.processes for channel in process.channels])
            for process in [each for each in self.processes if any(channel in ready for channel in each.channels)]:
                try:
                    if not process.connection.poll():
                        raise EOFError  # it has ended, and a process that it started holds its end of the pipe
                    kind, value = process.connection.recv()
                except (EOFError, OSError):
                    self._process_death(process)
                    if process.work is not None:
                        waiting.insert(0, process.work)
                    continue
                if kind == "ready":
                    process.ready = True
                elif kind == "event":
                    self._process_event(value)
                elif kind == "error":
                    raise _error(value)
                else:
                    self.deaths_in_a_row[process.slot] = 0
                    results[next(index for index, work in enumerate(works) if work is process.work)] = value
                    process.work = None
        return [results[index] for index in range(len(works))]

    def _assign(self, waiting: list[_Work]) -> None:
        """Gives work to idle processes, and starts processes while there is more work than idle ones."""
        for process in [process for process in self.processes if process.ready and process.work is None]:
            # Work that killed its process is tried elsewhere, if there is anywhere else.
            slots = set(self.slots)
            fit = [work for work in waiting if process.slot not in work.died_on or slots <= set(work.died_on)]
            if fit:
                process.work = fit[0]
                waiting.remove(fit[0])
                with suppress(OSError):  # it has just died; its connection says so at the next wait
                    process.connection.send(fit[0].request)
        idle = sum(process.work is None for process in self.processes)
        free = [slot for slot in self.slots if all(process.slot != slot for process in self.processes)]
        for slot in free[: max(len(waiting) - idle, 0)]:
            self._start(slot)

    def _start(self, slot: Slot) -> None:
        ours, theirs = Pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115, closed when the process is buried
        # A session of its own: Ctrl-C reaches the parent only, which ends the processes with the engines they started.
        popen = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
            env=slot.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.processes.append(_Process(slot, popen, ours, output, _process_handle(popen.pid)))
        with suppress(OSError):
            ours.send((self.study.config, *self.paths, slot.gpu_share))

    def _process_death(self, process: _Process) -> None:
        """Counts the death of a process; raises `OpdAlignError` if its work was tried too often."""
        self.processes.remove(process)
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(END_S)
        code, lines = process.popen.poll(), process.last_lines()
        self._bury(process)
        slot, work = process.slot, process.work
        self.deaths_in_a_row[slot] += 1
        end = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        if work is not None:
            work.died_on.append(slot)
        deaths = self.deaths_in_a_row[slot] if work is None else len(work.died_on)
        if deaths >= MAX_DEATHS and (work is not None or len(self.slots) == 1):
            raise OpdAlignError(
                f"the process for {work.name if work else 'the next question'} died {deaths} times ({end}), the run is "
                "stopped; is there enough memory? Finished work is stored: run the same command again to resume. Its "
                f"last lines:\n{lines or '(none)'}"
            )
        if self.deaths_in_a_row[slot] >= MAX_DEATHS and len(self.slots) > 1:
            self.slots.remove(slot)
            warnings.warn(
                f"{slot.name} is not used any more: its process died {MAX_DEATHS} times in a row ({end})",
                LostGpuWarning,
                stacklevel=2,
            )

    def _bury(self, process: _Process) -> None:
        """Ends what is left of a process, the engines that it started included."""
        _signal_group(process.popen, signal.SIGKILL)
        process.popen.wait()
        process.connection.close()
        process.output.close()
        if process.handle is not None:
            os.close(process.handle)

    def _process_event(self, event: Any) -> None:
        if isinstance(event, Progress):
            if self.on_progress:
                self.on_progress(event)
        elif not isinstance(event, WorkStarted) and self.on_phase:
            self.on_phase(*event)


def _error(value: tuple[bool, str, str]) -> Exception:
    """The error of a worker, as if it had occurred in this process."""
    for_users, message, details = value
    if for_users:
        return OpdAlignError(message)
    error = RuntimeError(message)
    error.add_note(details)
    return error


def _process_handle(pid: int) -> int | None:
    """A file that becomes readable when the process ends; `None` where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _signal_group(popen: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, number)


def _address(path: PathLike) -> str:
    location = as_path(path)
    if isinstance(location, RemotePath) and location.address.startswith("memory:"):
        raise OpdAlignError(f"{location} is in the memory of one process; use a disk or an object store")
    return str(location if isinstance(location, RemotePath) else Path(location).absolute())
