"""The analysis: from a student, teachers, questions and settings to an `Analysis`.

Per question: sample, choose representative paths, score them, enrich the tree, estimate, compare updates. The command
line and the training callback both use it. It takes objects, never names to look up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib import import_module
from math import nan
from threading import Event
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from opd_align.core.alignment import CHILDREN, EstimatedPath, child_table, node_table
from opd_align.core.chosen_paths import halves_of
from opd_align.core.collect import DONE, Evidence, Progress, collect_group
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.tree import GenerationTree
from opd_align.settings import Settings
from opd_align.types import (
    REWARD,
    Finish,
    Floats,
    Grader,
    OpdAlignError,
    Question,
    Student,
    Teacher,
    counted,
)

LISTS = pa.list_(pa.field("element", pa.float64()))  # the field name Parquet uses
TableName = Literal["nodes", "children", "questions"]
_A = TypeVar("_A")
_R = TypeVar("_R")


@dataclass(frozen=True)
class QuestionRecord:
    """One row of `Analysis.questions`.

    Args:
        question: Id of the question.
        text: Text of the question.
        answer: Reference answer, or `None`.
        pass_rate: Fraction of natural rollouts that are correct; NaN if none was graded.
        initial: Number of graded initial rollouts.
        targeted: Number of targeted rollouts.
        certain: Number of ends graded without sampling.
        truncated: Number of truncated rollouts.
        unknown: Number of rollouts without a grade.
        failed: Number of rollouts that could not be generated.
        correct_paths: Number of correct paths analyzed.
        incorrect_paths: Number of incorrect paths analyzed.
        nodes: Number of rows in the node table.
        note: Why there are fewer paths than requested; empty otherwise.
        student_entropy: Entropy of the student at the tokens of the paths, in nats: the mean of the paths' means.
        teacher_entropy: The same for each teacher, in the order of `core.alignment.teachers_of`.
        overlap_ratio: Mean of `TeacherScores.overlap_T` for each teacher.
        overlap_token_advantage: Mean of `TeacherScores.overlap_advantage_T` for each teacher.
    """

    question: str
    text: str
    answer: str | None
    pass_rate: float
    initial: int
    targeted: int
    certain: int
    truncated: int
    unknown: int
    failed: int
    correct_paths: int
    incorrect_paths: int
    nodes: int
    note: str
    student_entropy: float
    teacher_entropy: list[float]
    overlap_ratio: list[float]
    overlap_token_advantage: list[float]

    @staticmethod
    def of(evidence: Evidence, nodes: int, teachers: Sequence[str]) -> QuestionRecord:
        tree = evidence.tree

        def teacher_means(column: str) -> list[float]:
            scores = [[path.teachers[name] for path in evidence.paths if name in path.teachers] for name in teachers]
            return [_mean_of_means([getattr(one, column) for one in of_teacher]) for of_teacher in scores]

        return QuestionRecord(
            question=evidence.question.id,
            text=evidence.question.text,
            answer=evidence.question.answer,
            pass_rate=evidence.pass_rate,
            initial=int((tree.launch_R == 0).sum()),
            targeted=evidence.targeted,
            certain=evidence.certain,
            truncated=int((tree.finish_R == Finish.TRUNCATED).sum()),
            unknown=tree.unknown,
            failed=len(tree.failures),
            correct_paths=sum(evidence.correct),
            incorrect_paths=len(evidence.correct) - sum(evidence.correct),
            nodes=nodes,
            note=evidence.note,
            student_entropy=_mean_of_means([path.entropy_T for path in evidence.paths]),
            teacher_entropy=teacher_means("entropy_T"),
            overlap_ratio=teacher_means("overlap_T"),
            overlap_token_advantage=teacher_means("overlap_advantage_T"),
        )


@dataclass(frozen=True)
class QuestionResult:
    """The result for one question.

    Args:
        nodes: Its rows of `Analysis.nodes`.
        children: Its rows of `Analysis.children`.
        record: Its row of `Analysis.questions`.
        texts: Text of each token in `children`; empty if the student has no tokenizer.
    """

    nodes: pa.Table
    children: pa.Table
    record: QuestionRecord
    texts: Mapping[int, str]


@dataclass(frozen=True, repr=False)
class Analysis:
    """The result of `analyze`. In a notebook it shows its recommendation and its main tables.

    Args:
        nodes: One row per node, teacher and objective (columns: `core.alignment.SCHEMA`).
        questions: One row per question (columns: `QuestionRecord`).
        settings: The settings that were used.
        children: One row per kept token along the paths (columns: `core.alignment.CHILDREN`).
        texts: Text of each token in `children`; empty if the student has no tokenizer.
    """

    nodes: pa.Table
    questions: pa.Table
    settings: Settings
    children: pa.Table = field(default_factory=CHILDREN.empty_table)
    texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def plot(self) -> Any:
        """Charts as matplotlib axes: `plot.ranking()`, `plot.correct_vs_incorrect()`, `plot.path()`,
        `plot.histogram()`; see `report.plots.AnalysisPlots`.
        """
        return _report("plots").AnalysisPlots(self)

    def to_pandas(self, table: TableName = "nodes") -> Any:
        """One of the tables as a pandas data frame.

        Args:
            table: Which table. In `nodes` and `children`, the column `token_text` has the text of `token`.
        """
        return _report("data_frame").data_frame(self, table)

    def __repr__(self) -> str:
        teachers = len(set(self.nodes["teacher"].unique().to_pylist()) - {REWARD})
        counts = [(self.questions.num_rows, "question"), (teachers, "teacher"), (self.nodes.num_rows, "node row")]
        return f"Analysis({', '.join(counted(n, name) for n, name in counts)})"

    def _repr_html_(self) -> str:
        return str(_report("notebook").analysis_html(self))


def _report(module: str) -> Any:
    """A module of the report, by name and when it is asked for: the report knows the analysis, not the reverse."""
    return import_module(f"opd_align.report.{module}")


def analyze(
    student: Student,
    teachers: Sequence[Teacher],
    questions: Iterable[Question],
    grader: Grader,
    *,
    settings: Settings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
) -> Analysis:
    """Measures, token by token, how each teacher's update aligns with the ideal update on the given questions.

    Args:
        student: The student model, which samples and scores.
        teachers: Teachers that the student's `score` accepts. May be empty if all objectives have `signal="reward"`.
        questions: Questions to analyze.
        grader: Decides which completions are correct.
        settings: Settings of the analysis. `None`: `Settings()`.
        on_progress: Called with a `Progress` after every step, from the thread that did it.
        workers: Number of threads, each processing one group of questions. Useful when sampling waits for a server;
            student and grader must be thread-safe. The result does not depend on it.
    """
    settings = settings or Settings()
    questions = list(questions)
    check_inputs(teachers, questions, settings)
    groups = question_groups(questions, settings)
    results = analyze_groups(
        student, teachers, groups, grader, settings=settings, on_progress=on_progress, workers=workers
    )
    return combine_results([result for group in results for result in group], settings)


def analyze_groups(
    student: Student,
    teachers: Sequence[Teacher],
    groups: Sequence[Sequence[Question]],
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int = 1,
) -> list[list[QuestionResult]]:
    """Analyzes groups of questions, `workers` at a time in threads; for each group, the results of its questions."""
    if workers < 1:
        raise OpdAlignError(f"workers must be at least 1, not {workers}")
    stop = Event()

    def report(progress: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        if on_progress:
            on_progress(progress)

    def run(group: Sequence[Question]) -> list[QuestionResult]:
        results = analyze_group(student, teachers, group, grader, settings=settings, on_progress=report)
        for question in group:
            report(Progress(question.id, DONE, 1, 1))
        return results

    return _map_in_threads(run, groups, workers, stop)


def question_groups(questions: Sequence[Question], settings: Settings) -> list[Sequence[Question]]:
    """Groups of questions that are analyzed together; the same for any number of workers."""
    size = settings.questions_per_group
    return [questions[at : at + size] for at in range(0, len(questions), size)]


def analyze_group(
    student: Student,
    teachers: Sequence[Teacher],
    questions: Sequence[Question],
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[QuestionResult]:
    """The results of one group of questions; independent of all other groups, in any process."""
    group = collect_group(student, teachers, questions, grader, settings=settings, on_progress=on_progress)
    return [_question_result(student, teachers, evidence, settings) for evidence in group]


def _question_result(
    student: Student, teachers: Sequence[Teacher], evidence: Evidence, settings: Settings
) -> QuestionResult:
    paths = estimated_paths(evidence, settings)
    nodes, names = node_table(paths, settings.objectives, settings.rules), [teacher.name for teacher in teachers]
    children = child_table(paths, names, settings.objectives, settings.rules)
    # Optional: `token_text` is not part of the `Student` protocol.
    token_text = getattr(student, "token_text", None)
    texts = {token: token_text(token) for token in children["token"].unique().to_pylist()} if token_text else {}
    return QuestionResult(nodes, children, QuestionRecord.of(evidence, nodes.num_rows, names), texts)


def _mean_of_means(value_T_of: Sequence[Floats]) -> float:
    """The mean over paths of the means of their known values; NaN if there are none."""
    known = [value_T[np.isfinite(value_T)] for value_T in value_T_of]
    means = [float(value_T.mean()) for value_T in known if len(value_T)]
    return float(np.mean(means)) if means else nan


def combine_results(results: Sequence[QuestionResult], settings: Settings) -> Analysis:
    """Combines the results of all questions, in the given order."""
    records = [result.record for result in results]
    columns = {name: [getattr(record, name) for record in records] for name in QuestionRecord.__dataclass_fields__}
    answers = pa.array(columns.pop("answer"), pa.string())  # typed even if all are None
    for name in ("teacher_entropy", "overlap_ratio", "overlap_token_advantage"):
        columns[name] = pa.array(columns[name], LISTS)  # typed even if there is no teacher
    return Analysis(
        dictionary_encoded(pa.concat_tables([result.nodes for result in results])),
        pa.table(columns).add_column(2, "answer", answers),
        settings,
        dictionary_encoded(pa.concat_tables([result.children for result in results])),
        dict(sorted({token: text for result in results for token, text in result.texts.items()}.items())),
    )


def dictionary_encoded(table: pa.Table) -> pa.Table:
    """Encodes text columns by first appearance, so that equal rows give equal tables however they were combined.

    Columns become contiguous: thousands of small chunks make every later step slow.
    """
    table = table.combine_chunks()
    for index, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            text = table[column.name].cast(pa.string()).combine_chunks().dictionary_encode()
            table = table.set_column(index, column.name, text)
    return table


class _StoppedError(Exception):
    """Stops a worker because another one failed."""


def _map_in_threads(function: Callable[[_A], _R], arguments: Sequence[_A], workers: int, stop: Event) -> list[_R]:
    """The results in order of the arguments; the first failure stops the other workers at their next step."""
    if workers == 1:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(function, argument) for argument in arguments]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def check_inputs(teachers: Sequence[Teacher], questions: Sequence[Question], settings: Settings) -> None:
    """Raises an error for inputs that cannot be analyzed, before any model is used."""
    if not questions:
        raise OpdAlignError("there are no questions to analyze")
    _check_unique("question", [question.id for question in questions])
    check_settings([teacher.name for teacher in teachers], settings)


def check_settings(teachers: Sequence[str], settings: Settings) -> None:
    """Raises an error for settings that cannot be used with teachers of these names; no teacher needs to be loaded."""
    _check_unique("teacher", teachers)
    _check_unique("objective", [objective.name for objective in settings.objectives])
    if REWARD in teachers:
        raise OpdAlignError(f"{REWARD!r} is reserved for objectives without a teacher; rename that teacher")
    if not settings.objectives:
        raise OpdAlignError("settings.objectives is empty; pass at least one objective")
    with_teacher = [objective.name for objective in settings.objectives if objective.signal != "reward"]
    if with_teacher and not teachers:
        raise OpdAlignError(f"objective {with_teacher[0]!r} needs a teacher, and none was given")


def _check_unique(kind: str, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise OpdAlignError(f"{kind} {repeated[0]!r} appears more than once; names must be unique")


def align(evidence: Evidence, settings: Settings) -> pa.Table:
    """The node table of collected evidence: re-estimates it, for example with another estimator, without sampling."""
    return node_table(estimated_paths(evidence, settings), settings.objectives, settings.rules)


def estimated_paths(evidence: Evidence, settings: Settings) -> list[EstimatedPath]:
    """The paths of one question with estimates from all rollouts and from two disjoint halves."""

    def estimated(tree: GenerationTree, *, shrink: bool = settings.shrink, share: float = 1.0) -> list[PathEstimate]:
        return estimate(tree, evidence.paths, method=settings.estimator, shrink=shrink, share=share)

    trees = halves_of(evidence.tree, evidence.paths)
    halves = [estimated(half, share=0.5) for half in trees]
    unshrunk = [estimated(half, shrink=False, share=0.5) for half in trees]
    return [
        EstimatedPath(
            question=evidence.question.id,
            index=index,
            correct=evidence.correct[index],
            scores=scores,
            estimate=whole,
            counts=evidence.tree.counts_along(scores.completion_T),
            pass_rate=evidence.pass_rate,
            halves=(halves[0][index], halves[1][index]),
            unshrunk=(unshrunk[0][index], unshrunk[1][index]),
            to_go=evidence.to_go[index],
        )
        for index, (scores, whole) in enumerate(zip(evidence.paths, estimated(evidence.tree), strict=True))
    ]
