"""The run driver: opens a run directory, analyzes groups of questions, writes the result.

Where the groups are analyzed is up to an `Executor`: in this process (`LocalExecutor`, below), on the ranks of a
training (`training.distributed.RankExecutor`), in several processes of this machine
(`study.processes.ProcessExecutor`) or on Ray actors (`study.ray.RayExecutor`). The result is the same, to the byte,
since no group depends on another one and results are combined in the order of the questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from opd_align.core.collect import Progress
from opd_align.core.engine import (
    Analysis,
    QuestionResult,
    analyze_groups,
    check_inputs,
    combine_results,
    question_groups,
)
from opd_align.runs.filesystem import AnyPath, PathLike
from opd_align.runs.manifest import describe
from opd_align.runs.rollout_store import CachedStudent, RolloutStore
from opd_align.runs.run_directory import RunDirectory, Usage
from opd_align.settings import Settings
from opd_align.types import Grader, OpdAlignError, Question, Student, Teacher

T = TypeVar("T")

Group = Sequence[Question]
"""Questions that are analyzed together: the unit of work."""
GroupCache = dict[tuple[str, ...], Sequence[QuestionResult]]
"""Results of groups by the ids of their questions."""


@dataclass(frozen=True)
class GroupResults:
    """The results of several groups of questions.

    Args:
        results: For each group, the results of its questions.
        usage: Tokens and time that the groups took together.
    """

    results: Sequence[Sequence[QuestionResult]]
    usage: Usage


class Executor(Protocol):
    """Where the work of a run is done."""

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls a function on the process that opens the run directory; all processes get its result or its error."""
        ...

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes all groups, with rollouts stored in the run directory `path`; results in the order of `groups`."""
        ...


def execute_run(
    executor: Executor, open_directory: Callable[[], RunDirectory], questions: Sequence[Question], settings: Settings
) -> tuple[Analysis, AnyPath]:
    """Executes one run; returns the analysis and the path of the run directory.

    With several processes, all of them call this function; only the main process opens the run directory, keeps it
    locked and writes the result.
    """
    with ExitStack() as stack:
        opened: list[RunDirectory] = []

        def begin() -> AnyPath:
            opened.append(stack.enter_context(open_directory()))
            return opened[0].path

        path = executor.on_main_process(begin)
        done = executor.analyze_groups(path, question_groups(questions, settings))
        analysis = combine_results([result for group in done.results for result in group], settings)
        executor.on_main_process(lambda: opened[0].finish(analysis, done.usage))
    return analysis, path


@dataclass(frozen=True)
class LocalExecutor:
    """Analyzes groups in this process.

    Args:
        student: Samples and scores.
        teachers: The teachers to compare.
        grader: Grades the student's completions.
        settings: Settings of the analysis.
        reuse: Another run directory, whose rollouts are reused where the same batch is needed. `None`: no reuse.
        workers: How many groups are analyzed at the same time, in threads.
        on_progress: Called with every step.
    """

    student: Student
    teachers: Sequence[Teacher]
    grader: Grader
    settings: Settings
    reuse: PathLike | None = None
    workers: int = 1
    on_progress: Callable[[Progress], None] | None = None

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function: there is only this process."""
        return function()

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes the groups with rollouts from the run directory; what is missing there is sampled and stored."""
        cached = CachedStudent(RolloutStore(path, reuse=self.reuse), self.student, self.grader)
        # Threads share one student, and so one GPU or server: usage is wall time, for any number of threads.
        start = time.monotonic()
        results = analyze_groups(
            cached,
            self.teachers,
            groups,
            cached,
            settings=self.settings,
            on_progress=self.on_progress,
            workers=self.workers,
        )
        return GroupResults(results, Usage(cached.tokens, time.monotonic() - start))


@dataclass(frozen=True)
class CachingExecutor:
    """Analyzes only the groups that it has not analyzed before.

    Args:
        inner: Where the work is done.
        done: Results by group, used and added to.
    """

    inner: Executor
    done: GroupCache

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function where `inner` does."""
        return self.inner.on_main_process(function)

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes the groups that are new, and returns the results of all."""
        keys = [tuple(question.id for question in group) for group in groups]
        new = [(key, group) for key, group in zip(keys, groups, strict=True) if key not in self.done]
        found = self.inner.analyze_groups(path, [group for _, group in new])
        self.done.update(zip([key for key, _ in new], found.results, strict=True))
        return GroupResults([self.done[key] for key in keys], found.usage)


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
    extend: bool = False,
    done: GroupCache | None = None,
) -> Analysis:
    """Like `analyze`, in a run directory, which is new or resumed. Rollouts that are on disk are not sampled again.

    Args:
        path: The run directory: local, or a URL such as s3://bucket/run.
        student: Samples and scores.
        teachers: The teachers to compare.
        questions: The questions to analyze.
        grader: Grades the student's completions.
        settings: Settings of the analysis. `None`: the defaults.
        on_progress: Called with every step.
        workers: How many groups of questions are analyzed at the same time, in threads.
        reuse: Another run directory, whose rollouts are reused where the same batch is needed: another estimator or
            objective needs no sampling. `None`: no reuse.
        extend: Whether the directory may contain the same run on fewer questions, the first of these; it is extended.
        done: Results of earlier calls with the same models and settings, which are used and added to: their groups of
            questions are not analyzed again. `None`: all are analyzed.

    `Budget.seconds` counts from the start of each session: a resumed run gets the full time again.
    """
    settings, questions = settings or Settings(), list(questions)
    if workers > 1 and not getattr(student, "concurrent", True):
        raise OpdAlignError(
            f"workers={workers}, but {getattr(student, 'name', 'the student')!r} has one model in this process, which "
            "one thread at a time can use; to sample several questions in one call, set questions_per_group"
        )
    check_inputs(teachers, questions, settings)
    manifest = describe(student, teachers, questions, grader, settings)
    executor: Executor = LocalExecutor(student, teachers, grader, settings, reuse, workers, on_progress)
    if done is not None:
        executor = CachingExecutor(executor, done)

    def of_first(n: int) -> dict[str, Any]:
        return describe(student, teachers, questions[:n], grader, settings)

    def open_directory() -> RunDirectory:
        return RunDirectory(path, manifest, reuse=reuse, shorter=of_first if extend else None)

    return execute_run(executor, open_directory, questions, settings)[0]
