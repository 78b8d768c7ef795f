"""The engine: student, teachers, questions and a budget in, an `Analysis` out.

Per question: sample, choose representative paths, score them, enrich the tree, estimate, align. Both doors, the
command line and the training callback, come through here; the engine receives objects, never names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from threading import Event
from typing import TypeVar

import numpy as np
import pyarrow as pa

from opd_align.core.alignment import CHILDREN, EstimatedPath, child_table, node_table
from opd_align.core.collect import DONE, Evidence, Progress, collect_group
from opd_align.core.estimate import PathEstimate, estimate
from opd_align.core.tree import GenerationTree
from opd_align.settings import Settings
from opd_align.types import REWARD, Finish, Grader, OpdAlignError, PathScores, Question, Student, Teacher

_T = TypeVar("_T")
_W = TypeVar("_W")


@dataclass(frozen=True)
class QuestionRecord:
    """What became of one question. `note` says why it has fewer paths than asked for, or none; empty otherwise."""

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

    @staticmethod
    def of(evidence: Evidence, nodes: int) -> QuestionRecord:
        tree = evidence.tree
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
        )


@dataclass(frozen=True)
class QuestionResult:
    """One question's share of an analysis."""

    nodes: pa.Table
    children: pa.Table
    record: QuestionRecord
    texts: Mapping[int, str]


@dataclass(frozen=True)
class Analysis:
    """The result: one row per node, teacher and objective in `nodes`, one row per question in `questions`.

    `children` has every token that was looked at along the paths, `texts` what these tokens read, as far as the student
    could tell: enough to show any node without a model.
    """

    nodes: pa.Table
    questions: pa.Table
    settings: Settings
    children: pa.Table = field(default_factory=CHILDREN.empty_table)
    texts: Mapping[int, str] = field(default_factory=dict)


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
    """Measures, token by token, how each teacher's update aligns with success on the given questions.

    `workers` groups of questions are worked on at a time, in threads: worth it where sampling waits for a server, and
    only for students and graders that may be called from several threads. The result is the same for any number.
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
        raise OpdAlignError(f"at least one worker is needed, not {workers}")
    stop = Event()

    def watched(progress: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        if on_progress:
            on_progress(progress)

    def analysed(group: Sequence[Question]) -> list[QuestionResult]:
        parts = analyze_group(student, teachers, group, grader, settings=settings, on_progress=watched)
        for question in group:
            watched(Progress(question.id, DONE, 1, 1))
        return parts

    return _each(analysed, groups, workers, stop)


def question_groups(questions: Sequence[Question], settings: Settings) -> list[Sequence[Question]]:
    """The questions that are worked on side by side: the units of work, the same however many share it."""
    return [questions[at : at + settings.abreast] for at in range(0, len(questions), settings.abreast)]


def analyze_group(
    student: Student,
    teachers: Sequence[Teacher],
    questions: Sequence[Question],
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[QuestionResult]:
    """The work on one group of questions; it depends on no other one, wherever it is done."""
    found = collect_group(student, teachers, questions, grader, settings=settings, on_progress=on_progress)
    return [_part(student, teachers, evidence, settings) for evidence in found]


def _part(student: Student, teachers: Sequence[Teacher], evidence: Evidence, settings: Settings) -> QuestionResult:
    paths = estimated_paths(evidence, settings)
    nodes = node_table(paths, settings.objectives, settings.rules)
    children = child_table(paths, [teacher.name for teacher in teachers], settings.objectives, settings.rules)
    # What tokens read is a courtesy of students that can tell, not part of the protocol.
    tell = getattr(student, "token_text", None)
    texts = {token: tell(token) for token in children["token"].unique().to_pylist()} if tell else {}
    return QuestionResult(nodes, children, QuestionRecord.of(evidence, nodes.num_rows), texts)


def combine_results(parts: Sequence[QuestionResult], settings: Settings) -> Analysis:
    """The analysis that parts make, in the order in which they are given."""
    records = [part.record for part in parts]
    columns = {name: [getattr(record, name) for record in records] for name in QuestionRecord.__dataclass_fields__}
    answers = pa.array(columns.pop("answer"), pa.string())  # typed, also where nobody has one
    return Analysis(
        dictionary_encoded(pa.concat_tables([part.nodes for part in parts])),
        pa.table(columns).add_column(2, "answer", answers),
        settings,
        dictionary_encoded(pa.concat_tables([part.children for part in parts])),
        dict(sorted({token: text for part in parts for token, text in part.texts.items()}.items())),
    )


def dictionary_encoded(nodes: pa.Table) -> pa.Table:
    """Text columns numbered by first appearance: equal rows make equal tables, however they were pieced together."""
    for index, column in enumerate(nodes.schema):
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            text = nodes[column.name].cast(pa.string()).combine_chunks().dictionary_encode()
            nodes = nodes.set_column(index, column.name, text)
    return nodes


class _StoppedError(Exception):
    """Ends the work on one question because that on another one failed."""


def _each(work: Callable[[_W], _T], units: Sequence[_W], workers: int, stop: Event) -> list[_T]:
    """The work on every unit, in their order; the first failure stops the others at their next step."""
    if workers == 1:
        return [work(unit) for unit in units]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, unit) for unit in units]
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
    """Refuses what cannot be analysed, before any model is touched."""
    if not questions:
        raise OpdAlignError("there is no question to analyse")
    for what, names in (
        ("question", [question.id for question in questions]),
        ("teacher", [teacher.name for teacher in teachers]),
        ("objective", [objective.name for objective in settings.objectives]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise OpdAlignError(f"{what} {twice[0]!r} appears more than once; give each its own name")
    if any(teacher.name == REWARD for teacher in teachers):
        raise OpdAlignError(f"{REWARD!r} is reserved for objectives without a teacher; rename that teacher")
    if not settings.objectives:
        raise OpdAlignError("there is no objective to compare with the ideal update")
    needy = [objective.name for objective in settings.objectives if objective.signal != "reward"]
    if needy and not teachers:
        raise OpdAlignError(f"objective {needy[0]!r} needs a teacher, and none was given")


def align(evidence: Evidence, settings: Settings) -> pa.Table:
    """Phase 2 on one question: estimate success along the paths, compare every teacher's update with the ideal."""
    return node_table(estimated_paths(evidence, settings), settings.objectives, settings.rules)


def estimated_paths(evidence: Evidence, settings: Settings) -> list[EstimatedPath]:
    """The paths of one question with the estimates that the settings ask for."""

    def estimated(tree: GenerationTree) -> list[PathEstimate]:
        return estimate(tree, evidence.paths, method=settings.estimator, shrink=settings.shrink)

    halves = [estimated(half) for half in _halves(evidence.tree, evidence.paths)]
    return [
        EstimatedPath(
            question=evidence.question.id,
            index=index,
            correct=correct,
            scores=scores,
            estimate=whole,
            counts=evidence.tree.counts_along(scores.completion_T),
            pass_rate=evidence.pass_rate,
            halves=(half_a, half_b),
            to_go=to_go,
        )
        for index, (scores, correct, to_go, whole, half_a, half_b) in enumerate(
            zip(evidence.paths, evidence.correct, evidence.to_go, estimated(evidence.tree), *halves, strict=True)
        )
    ]


def _halves(tree: GenerationTree, paths: Sequence[PathScores]) -> list[GenerationTree]:
    """Two disjoint halves of the rollouts, by key; certain outcomes and the paths themselves belong to both."""
    odd_R = (tree.key_R & np.uint64(1)).astype(bool)
    both_R = tree.launch_R == tree.length_R
    for scores in paths:
        lo, hi = tree.range(scores.completion_T)
        both_R[lo:hi] = True
    return [tree.subset(half_R | both_R) for half_R in (odd_R, ~odd_R)]
