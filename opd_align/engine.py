"""The engine: student, teachers, questions and a budget in, an `Analysis` out.

Per question: sample, choose representative paths, score them, enrich the tree, estimate, align. Both doors, the
command line and the training callback, come through here; the engine receives objects, never names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TypeVar

import numpy as np
import pyarrow as pa

from opd_align.alignment import CHILDREN, EstimatedPath, Rules, child_table, node_table
from opd_align.enrich import Budget, Target, plan_adaptive, plan_paper, representative_paths
from opd_align.estimate import Method, PathEstimate, common_prefix, estimate
from opd_align.future import log_ratio, reward_to_go
from opd_align.objectives import Objective, ReverseKL
from opd_align.tree import GenerationTree
from opd_align.types import (
    REWARD,
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
    Student,
    Teacher,
    Tokens,
)

_T = TypeVar("_T")

BATCH = 8192
"""Rollouts asked for at a time, unless the settings say otherwise."""


@dataclass(frozen=True)
class Settings:
    """How an analysis is made; everything but the models and the questions.

    `batch` is how many rollouts are asked for at a time: the clock and the progress are looked at in between, and
    what a killed run loses is one batch.
    """

    objectives: Sequence[Objective] = (ReverseKL(),)
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    estimator: Method = "backup"
    shrink: bool = True
    batch: int = BATCH

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", tuple(self.objectives))
        if self.batch < 1:
            raise OpdAlignError(f"batch must be at least 1, not {self.batch}")


@dataclass(frozen=True)
class Progress:
    """A step of the work: which question, in which phase, how many rollouts done of how many planned."""

    question: str
    phase: str
    done: int
    planned: int


@dataclass(frozen=True)
class Evidence:
    """All that was gathered on one question; rows follow from it without any model, under any estimator."""

    question: Question
    tree: GenerationTree
    paths: Sequence[PathScores]
    correct: Sequence[bool]
    to_go: Sequence[Mapping[str, Floats]]
    targeted: int
    certain: int
    note: str

    @property
    def pass_rate(self) -> float:
        """Share of the natural rollouts that are correct; NaN when none was graded."""
        outcome_R = self.tree.outcome_R[self.tree.launch_R == 0]
        return float((outcome_R > 0).mean()) if len(outcome_R) else float("nan")


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
class Part:
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

    `workers` questions are worked on at a time, in threads: worth it where sampling waits for a server, and only for
    students and graders that may be called from several threads. The result is the same for any number.
    """
    settings = settings or Settings()
    questions = list(questions)
    check(teachers, questions, settings)
    if workers < 1:
        raise OpdAlignError(f"at least one worker is needed, not {workers}")
    stop = Event()

    def watched(progress: Progress) -> None:
        if stop.is_set():
            raise _StoppedError
        if on_progress:
            on_progress(progress)

    def analysed(question: Question) -> Part:
        return analyze_question(student, teachers, question, grader, settings=settings, on_progress=watched)

    return joined(_each(analysed, questions, workers, stop), settings)


def analyze_question(
    student: Student,
    teachers: Sequence[Teacher],
    question: Question,
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> Part:
    """The work on one question; it depends on no other one, wherever it is done."""
    evidence = gather(student, teachers, question, grader, settings=settings, on_progress=on_progress)
    paths = estimated_paths(evidence, settings)
    nodes = node_table(paths, settings.objectives, settings.rules)
    children = child_table(paths, [teacher.name for teacher in teachers], settings.objectives, settings.rules)
    # What tokens read is a courtesy of students that can tell, not part of the protocol.
    tell = getattr(student, "token_text", None)
    texts = {token: tell(token) for token in children["token"].unique().to_pylist()} if tell else {}
    return Part(nodes, children, QuestionRecord.of(evidence, nodes.num_rows), texts)


def joined(parts: Sequence[Part], settings: Settings) -> Analysis:
    """The analysis that parts make, in the order in which they are given."""
    records = [part.record for part in parts]
    columns = {name: [getattr(record, name) for record in records] for name in QuestionRecord.__dataclass_fields__}
    answers = pa.array(columns.pop("answer"), pa.string())  # typed, also where nobody has one
    return Analysis(
        encoded(pa.concat_tables([part.nodes for part in parts])),
        pa.table(columns).add_column(2, "answer", answers),
        settings,
        encoded(pa.concat_tables([part.children for part in parts])),
        dict(sorted({token: text for part in parts for token, text in part.texts.items()}.items())),
    )


def encoded(nodes: pa.Table) -> pa.Table:
    """Text columns numbered by first appearance: equal rows make equal tables, however they were pieced together."""
    for index, column in enumerate(nodes.schema):
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            text = nodes[column.name].cast(pa.string()).combine_chunks().dictionary_encode()
            nodes = nodes.set_column(index, column.name, text)
    return nodes


class _StoppedError(Exception):
    """Ends the work on one question because that on another one failed."""


def _each(work: Callable[[Question], _T], questions: Sequence[Question], workers: int, stop: Event) -> list[_T]:
    """The work on every question, in their order; the first failure stops the others at their next step."""
    if workers == 1:
        return [work(question) for question in questions]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, question) for question in questions]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def check(teachers: Sequence[Teacher], questions: Sequence[Question], settings: Settings) -> None:
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


def gather(
    student: Student,
    teachers: Sequence[Teacher],
    question: Question,
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evidence:
    """Phase 1 on one question: sample, choose paths, score them with all teachers, enrich the shared tree."""
    search = _Search(student, teachers, question, grader, settings, on_progress or (lambda progress: None))
    budget = settings.budget
    search.roll([Target(np.empty(0, np.uint32), budget.initial)], "sampling", budget.initial)
    chosen = representative_paths(search.tree, budget)
    paths = search.score([completion for completion, _ in chosen])
    certain = search.grade_certain_ends(paths)
    if paths:
        search.enrich(paths)
    correct = [right for _, right in chosen]
    note = search.note(correct)
    return Evidence(question, search.tree, paths, correct, search.futures(paths), search.targeted, certain, note)


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


class _Search:
    """The growing tree of one question."""

    def __init__(
        self,
        student: Student,
        teachers: Sequence[Teacher],
        question: Question,
        grader: Grader,
        settings: Settings,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.student, self.teachers, self.question, self.grader = student, teachers, question, grader
        self.settings, self.budget, self.on_progress = settings, settings.budget, on_progress
        self.ends = np.array(sorted(student.end_tokens), np.uint32)
        self.tree = GenerationTree.build()
        self.asked: Counter[bytes] = Counter()
        self.started = time.monotonic()
        self.targeted = 0
        self.stopped = False

    def roll(self, targets: Sequence[Target], phase: str, planned: int, done: int = 0) -> int:
        """Samples and grades all targets, batch by batch, until done or out of time; returns how many were made."""
        made = 0
        for batch in _batches(targets, self.settings.batch):
            if phase != "sampling" and self._out_of_time():
                self.stopped = True
                break
            requests = []
            for target in batch:
                key = target.prefix.tobytes()
                requests.append(SampleRequest(self.question, target.prefix, target.n, self.asked[key]))
                self.asked[key] += target.n
            self.tree = self.tree.extended(self._graded(self.student.sample(requests)))
            made += sum(target.n for target in batch)
            self.on_progress(Progress(self.question.id, phase, done + made, planned))
        return made

    def _graded(self, rollouts: Rollouts) -> Rollouts:
        outcome_R = self.grader.grade(self.question, rollouts)
        outcome_R = np.where(rollouts.finish_R == Finish.TRUNCATED, Outcome.INCORRECT, outcome_R)
        return replace(rollouts, outcome_R=outcome_R.astype(np.int8))

    def score(self, completions: Sequence[Tokens]) -> list[PathScores]:
        """Scores the paths, keeping every token that the tree has seen at their nodes."""
        scored: list[PathScores] = []
        for completion in completions:
            counts = self.tree.counts_along(completion)
            depth_C = np.repeat(np.arange(len(counts)), np.diff(counts.offsets))
            request = ScoreRequest(self.question, completion, depth_C, counts.token_C, self.budget.tau)
            scores = self.student.score(request, self.teachers)
            # Nodes that paths share are scored once: two forward passes may disagree in the last digit, and about which
            # tokens lie above the floor.
            shared = [common_prefix(scores, other) for other in scored]
            if shared:
                nearest = int(np.argmax(shared))
                scores = scores.with_head(scored[nearest], shared[nearest] + 1)
            scored.append(scores)
            self.on_progress(Progress(self.question.id, "scoring", len(scored), len(completions)))
        return scored

    def grade_certain_ends(self, paths: Sequence[PathScores]) -> int:
        """Ending the completion here has a certain outcome: it costs a verification, not a rollout."""
        ends: dict[bytes, Tokens] = {}
        for scores in paths:
            depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
            for child in np.flatnonzero(np.isin(scores.token_C, self.ends)):
                ended = np.append(scores.completion_T[: depth_C[child]], scores.token_C[child]).astype(np.uint32)
                ends[ended.tobytes()] = ended
        keys = self.student.keys([SampleRequest(self.question, ended, 1) for ended in ends.values()])
        launch = [len(ended) for ended in ends.values()]
        rollouts = Rollouts.of(list(ends.values()), launch=launch, key=[int(key) for (key,) in keys])
        self.tree = self.tree.extended(self._graded(rollouts))
        return len(ends)

    def enrich(self, paths: Sequence[PathScores]) -> None:
        plan = plan_paper(self.tree, paths, self.budget, self.ends)
        planned = sum(target.n for target in plan)
        if self.budget.allocation == "paper":
            self.targeted = self.roll(plan, "enriching", planned)
            return
        limit = planned // 2 if self.budget.targeted is None else self.budget.targeted
        for turn in range(self.budget.rounds):
            spend = -(-(limit - self.targeted) // (self.budget.rounds - turn))  # rounded up: one rollout is a round
            estimates = estimate(self.tree, paths)
            targets = plan_adaptive(paths, estimates, self.budget, self.ends, spend=spend)
            made = self.roll(targets, "enriching", limit, self.targeted)
            self.targeted += made
            if made == 0:
                break

    def _out_of_time(self) -> bool:
        return self.budget.seconds is not None and time.monotonic() - self.started > self.budget.seconds

    def futures(self, paths: Sequence[PathScores]) -> list[dict[str, Floats]]:
        futures: list[dict[str, Floats]] = [{} for _ in paths]
        if not paths or all(objective.signal != "future" for objective in self.settings.objectives):
            return futures
        rollouts = self.tree.rollouts()
        log_p = self.student.token_log_probs(self.question, rollouts, None)
        for teacher in self.teachers:
            ratio = log_ratio(self.student.token_log_probs(self.question, rollouts, teacher), log_p)
            for future, scores in zip(futures, paths, strict=True):
                future[teacher.name] = reward_to_go(self.tree, scores, teacher.name, ratio, ends=self.ends)
        return futures

    def note(self, correct: Sequence[bool]) -> str:
        budget, outcome_R = self.budget, self.tree.outcome_R[self.tree.launch_R == 0]
        right, wrong = sum(correct), len(correct) - sum(correct)
        notes = []
        if not len(outcome_R):
            notes.append("no initial rollout could be graded")
        elif right < budget.correct_paths or wrong < budget.incorrect_paths:
            notes.append(
                f"{int((outcome_R > 0).sum())} of {len(outcome_R)} initial rollouts correct: {right} of "
                f"{budget.correct_paths} correct and {wrong} of {budget.incorrect_paths} incorrect paths found"
            )
        if self.stopped:
            notes.append(f"stopped after {budget.seconds:g} s")
        return "; ".join(notes)


def _halves(tree: GenerationTree, paths: Sequence[PathScores]) -> list[GenerationTree]:
    """Two disjoint halves of the rollouts, by key; certain outcomes and the paths themselves belong to both."""
    odd_R = (tree.key_R & np.uint64(1)).astype(bool)
    both_R = tree.launch_R == tree.length_R
    for scores in paths:
        lo, hi = tree.range(scores.completion_T)
        both_R[lo:hi] = True
    return [tree.subset(half_R | both_R) for half_R in (odd_R, ~odd_R)]


def _batches(targets: Sequence[Target], size: int) -> Iterable[list[Target]]:
    batch: list[Target] = []
    left = size
    for target in targets:
        n = target.n
        while n > 0:
            take = min(n, left)
            batch.append(Target(target.prefix, take))
            n, left = n - take, left - take
            if left == 0:
                yield batch
                batch, left = [], size
    if batch:
        yield batch
