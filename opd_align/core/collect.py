"""The search: all evidence on a question, from its first rollouts to an enriched tree around scored paths.

A search asks for rollouts and is sent them; who samples them, alone or together with those of other questions, is not
its business. What it gathers depends on its own question only. Estimating and comparing comes later, in `engine`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opd_align.core.allocation import Target, plan_adaptive, plan_paper, representative_paths
from opd_align.core.estimate import common_prefix, estimate
from opd_align.core.reward_to_go import log_ratio, reward_to_go
from opd_align.core.tree import GenerationTree
from opd_align.settings import Settings
from opd_align.types import (
    Finish,
    Floats,
    Grader,
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

DONE = "done"
"""The phase of a question's last progress."""


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


Steps = Generator[list[SampleRequest], Rollouts, "Evidence"]
"""Work on one question that asks for rollouts, is sent them, and ends with the evidence."""


def collect(
    student: Student,
    teachers: Sequence[Teacher],
    question: Question,
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evidence:
    """All evidence on one question: sample, choose paths, score them with all teachers, enrich the shared tree."""
    (evidence,) = collect_group(student, teachers, [question], grader, settings=settings, on_progress=on_progress)
    return evidence


def collect_group(
    student: Student,
    teachers: Sequence[Teacher],
    questions: Sequence[Question],
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Evidence]:
    """The same on several questions side by side: what all of them ask for next is sampled in one go."""
    heard = on_progress or (lambda progress: None)
    searches = [
        _Search(student, teachers, question, grader, settings, heard).steps(len(questions)) for question in questions
    ]
    found: dict[int, Evidence] = {}
    asked: dict[int, list[SampleRequest]] = {}

    def go_on(number: int, rollouts: Rollouts | None) -> None:
        try:
            asked[number] = searches[number].send(rollouts)  # type: ignore[arg-type]  # `None` starts a generator
        except StopIteration as end:
            found[number] = end.value
            asked.pop(number, None)

    for number in range(len(questions)):
        go_on(number, None)
    while asked:
        for number, rollouts in _answered(student, asked).items():
            go_on(number, rollouts)
    return [found[number] for number in range(len(questions))]


def _answered(student: Student, asked: Mapping[int, list[SampleRequest]]) -> dict[int, Rollouts]:
    """Each one's rollouts, sampled together; which are whose, the keys say."""
    if len(asked) == 1:
        return {number: student.sample(requests) for number, requests in asked.items()}
    everything = [request for requests in asked.values() for request in requests]
    rollouts = student.sample(everything)
    keys = iter(student.keys(everything))
    answers = {}
    for number, requests in asked.items():
        own = np.concatenate([np.empty(0, np.uint64), *(next(keys) for _ in requests)])
        failed = {int(key) for key in own}
        answers[number] = replace(
            rollouts.take(np.isin(rollouts.key_R, own)),
            failures=tuple(failure for failure in rollouts.failures if failure.key in failed),
        )
    return answers


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
        self.deadline: float | None = None
        self.targeted = 0
        self.stopped = False

    def steps(self, abreast: int) -> Steps:
        """The work from beginning to end; `abreast` questions share the time."""
        budget = self.budget
        if budget.seconds is not None:
            self.deadline = time.monotonic() + abreast * budget.seconds
        yield from self.roll([Target(np.empty(0, np.uint32), budget.initial)], "sampling", budget.initial)
        chosen = representative_paths(self.tree, budget)
        paths = self.score([completion for completion, _ in chosen])
        certain = self.grade_certain_ends(paths)
        if paths:
            yield from self.enrich(paths)
        correct = [right for _, right in chosen]
        note = self.note(correct)
        return Evidence(self.question, self.tree, paths, correct, self.futures(paths), self.targeted, certain, note)

    def roll(
        self, targets: Sequence[Target], phase: str, planned: int, done: int = 0
    ) -> Generator[list[SampleRequest], Rollouts, int]:
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
            self.tree = self.tree.extended(self._graded((yield requests)))
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

    def enrich(self, paths: Sequence[PathScores]) -> Generator[list[SampleRequest], Rollouts, None]:
        plan = plan_paper(self.tree, paths, self.budget, self.ends)
        planned = sum(target.n for target in plan)
        if self.budget.allocation == "paper":
            self.targeted = yield from self.roll(plan, "enriching", planned)
            return
        limit = planned // 2 if self.budget.targeted is None else self.budget.targeted
        for turn in range(self.budget.rounds):
            spend = -(-(limit - self.targeted) // (self.budget.rounds - turn))  # rounded up: one rollout is a round
            estimates = estimate(self.tree, paths)
            targets = plan_adaptive(paths, estimates, self.budget, self.ends, spend=spend)
            made = yield from self.roll(targets, "enriching", limit, self.targeted)
            self.targeted += made
            if made == 0:
                break

    def _out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

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
