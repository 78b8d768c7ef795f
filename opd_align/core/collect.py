"""Evidence collection for one question: initial rollouts, representative paths, scores, targeted rollouts.

Each question is a generator that yields sample requests and receives rollouts, so that the requests of several
questions can be sampled in one call. The evidence depends only on the question itself. Estimation is in `engine`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from opd_align.core.allocation import (
    Sampleable,
    Target,
    plan_adaptive,
    plan_on_path,
    plan_paper,
    plan_unvisited,
    representative_paths,
)
from opd_align.core.chosen_paths import halves_of
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

UNVISITED_SHARE = 0.5
"""Largest share of the adaptive rollouts for the first visit of tokens that have none."""
ON_PATH_SHARE = 0.25
"""Share of the other adaptive rollouts that follow the path and leave it where the student would."""

DONE = "done"
"""Phase of the last progress report of a question."""


@dataclass(frozen=True)
class Progress:
    """A progress report: one when a phase begins, and one after every step of it.

    Args:
        question: Id of the question.
        phase: `"sampling"`, `"scoring"`, `"enriching"`, `"estimating"` or `"done"`.
        done: Rollouts (or paths, while scoring) finished in this phase.
        planned: Rollouts (or paths) planned for this phase.
    """

    question: str
    phase: str
    done: int
    planned: int


@dataclass(frozen=True)
class Evidence:
    """Everything collected for one question. Results follow from it without any model, with any estimator.

    Args:
        question: The question.
        tree: All graded rollouts.
        paths: Scores of the representative paths.
        correct: Whether each path is correct.
        to_go: Reward-to-go of each path by teacher name; empty unless an objective needs it.
        targeted: Number of targeted rollouts.
        certain: Number of ends graded without sampling.
        note: Why there are fewer paths than requested; empty otherwise.
    """

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
        """Fraction of natural rollouts that are correct; NaN if none was graded."""
        outcome_R = self.tree.outcome_R[self.tree.launch_R == 0]
        return float((outcome_R > 0).mean()) if len(outcome_R) else float("nan")


def collect(
    student: Student,
    teachers: Sequence[Teacher],
    question: Question,
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evidence:
    """Samples, scores and enriches one question."""
    (evidence,) = collect_group(student, teachers, [question], grader, settings=settings, on_progress=on_progress)
    return evidence


def unavailable_teachers(teachers: Sequence[Teacher], question: Question, completion_tokens: int = 1) -> dict[str, str]:
    """Teacher → why it cannot read completions of this length to a question. The other teachers are not affected.

    Optional: the `prompt` of a teacher may have a method `unavailable`, which returns the reason (no demonstration,
    prompt and completion do not fit), or `None`.
    """
    checks = {each.name: getattr(getattr(each, "prompt", None), "unavailable", None) for each in teachers}
    reasons = {name: check(question, completion_tokens) for name, check in checks.items() if check is not None}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def collect_group(
    student: Student,
    teachers: Sequence[Teacher],
    questions: Sequence[Question],
    grader: Grader,
    *,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
    completions: Sequence[Tokens] | None = None,
) -> list[Evidence]:
    """`collect` for several questions concurrently: their pending requests are sampled in one call.

    With `completions`, one per question, the path of each question is given instead of chosen among its rollouts. A
    given path is graded, but no sample: it is no evidence about the nodes that it passes. Without tokens or without a
    grade there is no path.
    """
    report = on_progress or (lambda progress: None)
    given: Sequence[Tokens | None] = [None] * len(questions) if completions is None else completions
    collectors = [
        _Collector(student, teachers, question, grader, settings, report, path).run(len(questions))
        for question, path in zip(questions, given, strict=True)
    ]
    evidence: dict[int, Evidence] = {}
    pending: dict[int, list[SampleRequest]] = {}

    def advance(index: int, rollouts: Rollouts | None) -> None:
        try:
            pending[index] = collectors[index].send(rollouts)  # type: ignore[arg-type]  # `None` starts a generator
        except StopIteration as end:
            evidence[index] = end.value
            pending.pop(index, None)

    for index in range(len(questions)):
        advance(index, None)
    while pending:
        for index, rollouts in _sample_together(student, pending).items():
            advance(index, rollouts)
    return [evidence[index] for index in range(len(questions))]


def _sample_together(student: Student, pending: Mapping[int, list[SampleRequest]]) -> dict[int, Rollouts]:
    """Samples the requests of all questions in one call and splits the rollouts by key."""
    if len(pending) == 1:
        return {index: student.sample(requests) for index, requests in pending.items()}
    all_requests = [request for requests in pending.values() for request in requests]
    rollouts = student.sample(all_requests)
    keys = iter(student.keys(all_requests))
    by_question = {}
    for index, requests in pending.items():
        own_keys = np.concatenate([np.empty(0, np.uint64), *(next(keys) for _ in requests)])
        key_set = {int(key) for key in own_keys}
        by_question[index] = replace(
            rollouts.take(np.isin(rollouts.key_R, own_keys)),
            failures=tuple(failure for failure in rollouts.failures if failure.key in key_set),
        )
    return by_question


class _Collector:
    """Collects the evidence of one question."""

    def __init__(
        self,
        student: Student,
        teachers: Sequence[Teacher],
        question: Question,
        grader: Grader,
        settings: Settings,
        on_progress: Callable[[Progress], None],
        given: Tokens | None = None,
    ) -> None:
        self.student, self.question, self.grader, self.given = student, question, grader, given
        unavailable = unavailable_teachers(teachers, question)
        self.teachers = [teacher for teacher in teachers if teacher.name not in unavailable]
        self.too_long: dict[str, str] = {}
        self.settings, self.budget, self.on_progress = settings, settings.budget, on_progress
        self.ends = np.array(sorted(student.end_tokens), np.uint32)
        self.tree = GenerationTree.build()
        self.requested: Counter[bytes] = Counter()
        self.deadline: float | None = None
        self.targeted = 0
        self.timed_out = False

    def run(self, concurrent: int) -> Generator[list[SampleRequest], Rollouts, Evidence]:
        """Yields sample requests, receives their rollouts and returns the evidence.

        The time limit is multiplied by the number of concurrent questions, which share the sampler.
        """
        budget = self.budget
        if budget.seconds is not None:
            self.deadline = time.monotonic() + concurrent * budget.seconds
        yield from self.sample([Target(np.empty(0, np.uint32), budget.initial)], "sampling", budget.initial)
        chosen = representative_paths(self.tree, budget) if self.given is None else self.add_given(self.given)
        self.drop_teachers(max((len(completion) for completion, _ in chosen), default=0))
        paths = self.score([completion for completion, _ in chosen])
        certain = self.grade_certain_ends(paths)
        if paths and self.has_signal:
            yield from self.enrich(paths)
        self.on_progress(Progress(self.question.id, "estimating", 0, 1))
        correct = [is_correct for _, is_correct in chosen]
        to_go, note = self.rewards_to_go(paths), self.note(correct)
        return Evidence(self.question, self.tree, paths, correct, to_go, self.targeted, certain, note)

    def sample(
        self, targets: Sequence[Target], phase: str, planned: int, done: int = 0
    ) -> Generator[list[SampleRequest], Rollouts, int]:
        """Samples and grades all targets in batches until done or out of time; returns the number of rollouts."""
        sampled = 0
        if not done:  # a later round continues the phase
            self.on_progress(Progress(self.question.id, phase, 0, planned))
        if (limit := self.length_limit) is not None:
            targets = [target for target in targets if len(target.prefix) < limit]
        for batch in _batches(targets, self.settings.batch):
            if phase != "sampling" and self.deadline is not None and time.monotonic() > self.deadline:
                self.timed_out = True
                break
            requests = []
            for target in batch:
                key = target.prefix.tobytes()
                requests.append(SampleRequest(self.question, target.prefix, target.n, self.requested[key]))
                self.requested[key] += target.n
            self.tree = self.tree.extended(self._graded((yield requests)))
            sampled += sum(target.n for target in batch)
            self.on_progress(Progress(self.question.id, phase, done + sampled, planned))
        return sampled

    @property
    def length_limit(self) -> int | None:
        """Length of truncated completions, where nothing is left to sample; `None`: none was truncated."""
        truncated_R = self.tree.length_R[self.tree.finish_R == Finish.TRUNCATED]
        return int(truncated_R.min()) if len(truncated_R) else None

    def _graded(self, rollouts: Rollouts) -> Rollouts:
        outcome_R = self.grader.grade(self.question, rollouts)
        outcome_R = np.where(rollouts.finish_R == Finish.TRUNCATED, Outcome.INCORRECT, outcome_R)
        return replace(rollouts, outcome_R=outcome_R.astype(np.int8))

    @property
    def has_signal(self) -> bool:
        """Whether anything is left to compare; nothing is if no teacher can read the paths."""
        return not self.too_long or bool(self.teachers) or any(o.signal == "reward" for o in self.settings.objectives)

    def drop_teachers(self, longest: int) -> None:
        """Drops the teachers that cannot read the longest path: known only now, and often less than the limit."""
        self.too_long = unavailable_teachers(self.teachers, self.question, longest)
        self.teachers = [teacher for teacher in self.teachers if teacher.name not in self.too_long]

    def add_given(self, completion: Tokens) -> list[tuple[Tokens, bool]]:
        """Adds a given path to the tree as an end that was graded without sampling: all of its tokens are forced."""
        completion = np.asarray(completion, np.uint32)
        if not len(completion):
            return []
        ((key,),) = self.student.keys([SampleRequest(self.question, completion, 1)])
        truncated = bool(completion[-1] not in self.ends)
        path = Rollouts.of([completion], launch=[len(completion)], key=[int(key)], truncated=[truncated])
        graded = self._graded(path)
        self.tree = self.tree.extended(graded)
        outcome = int(graded.outcome_R[0])
        return [] if outcome == Outcome.UNKNOWN else [(completion, outcome == Outcome.CORRECT)]

    def score(self, completions: Sequence[Tokens]) -> list[PathScores]:
        """Scores the paths, keeping every token that the tree contains at their nodes."""
        scored: list[PathScores] = []
        self.on_progress(Progress(self.question.id, "scoring", 0, len(completions)))
        for completion in completions:
            counts = self.tree.counts_along(completion)
            request = ScoreRequest(self.question, completion, counts.depth_C, counts.token_C, self.budget.tau)
            scores = self.student.score(request, self.teachers)
            # Shared nodes use the scores of the earlier path: two forward passes may differ in the last digit, and so
            # in which tokens are above the floor.
            shared = [common_prefix(scores, other) for other in scored]
            if shared:
                nearest = int(np.argmax(shared))
                scores = scores.with_shared_prefix(scored[nearest], shared[nearest] + 1)
            scored.append(scores)
            self.on_progress(Progress(self.question.id, "scoring", len(scored), len(completions)))
        return scored

    def grade_certain_ends(self, paths: Sequence[PathScores]) -> int:
        """Grades every completion that ends at a node of a path: the outcome is certain and needs no rollout."""
        ends: dict[bytes, Tokens] = {}
        for scores in paths:
            depth_C = scores.depth_C
            for child in np.flatnonzero(np.isin(scores.token_C, self.ends)):
                ended = np.append(scores.completion_T[: depth_C[child]], scores.token_C[child]).astype(np.uint32)
                ends[ended.tobytes()] = ended
        keys = self.student.keys([SampleRequest(self.question, ended, 1) for ended in ends.values()])
        launch = [len(ended) for ended in ends.values()]
        rollouts = Rollouts.of(list(ends.values()), launch=launch, key=[int(key) for (key,) in keys])
        self.tree = self.tree.extended(self._graded(rollouts))
        return len(ends)

    def enrich(self, paths: Sequence[PathScores]) -> Generator[list[SampleRequest], Rollouts, None]:
        """Samples the targeted rollouts."""
        plan = plan_paper(self.tree, paths, self.budget, self.ends)
        planned = sum(target.n for target in plan)
        if self.budget.allocation == "paper":
            self.targeted = yield from self.sample(plan, "enriching", planned)
            return
        limit = planned // 2 if self.budget.targeted is None else self.budget.targeted
        for round_index in range(self.budget.rounds):
            # From one half of the rollouts, in turn. Planned from all, tokens are sampled again where both halves err
            # in the same direction, and what is left of their errors has opposite signs, which biases cross-fitting.
            half = halves_of(self.tree, paths)[round_index % 2]
            tokens = Sampleable(self.budget.tau, self.ends, self.length_limit)
            estimates, first = estimate(half, paths, share=0.5, ties=False), []
            if round_index == 0:
                share, whole = int(UNVISITED_SHARE * limit), estimate(self.tree, paths, ties=False)
                first = plan_unvisited(paths, whole, tokens, rollouts=share)
            # Rounded up, so that a remainder of one rollout still gets a round.
            rollouts = -(-(limit - self.targeted - len(first)) // (self.budget.rounds - round_index))
            on_path = plan_on_path(paths, rollouts=int(ON_PATH_SHARE * rollouts))
            rollouts -= sum(target.n for target in on_path)
            targets = first + plan_adaptive(paths, estimates, tokens, rollouts=rollouts)
            if targets:
                targets += on_path
            sampled = yield from self.sample(targets, "enriching", limit, self.targeted)
            self.targeted += sampled
            if sampled == 0:
                break

    def rewards_to_go(self, paths: Sequence[PathScores]) -> list[dict[str, Floats]]:
        """The reward-to-go along each path, by teacher; empty unless an objective needs it."""
        to_go: list[dict[str, Floats]] = [{} for _ in paths]
        if not paths or all(objective.signal != "future" for objective in self.settings.objectives):
            return to_go
        rollouts = self.tree.rollouts()
        log_p = self.student.token_log_probs(self.question, rollouts, None)
        for teacher in self.teachers:
            ratio = log_ratio(self.student.token_log_probs(self.question, rollouts, teacher), log_p)
            for by_teacher, scores in zip(to_go, paths, strict=True):
                by_teacher[teacher.name] = reward_to_go(self.tree, scores, teacher.name, ratio, ends=self.ends)
        return to_go

    def note(self, correct: Sequence[bool]) -> str:
        """Why there are fewer paths or rollouts than requested."""
        budget, outcome_R = self.budget, self.tree.outcome_R[self.tree.launch_R == 0]
        n_correct, n_incorrect = sum(correct), len(correct) - sum(correct)
        notes = []
        if not len(outcome_R):
            notes.append("no initial rollout could be graded")
        elif self.given is None and (n_correct < budget.correct_paths or n_incorrect < budget.incorrect_paths):
            notes.append(
                f"{int((outcome_R > 0).sum())} of {len(outcome_R)} initial rollouts correct: {n_correct} of "
                f"{budget.correct_paths} correct and {n_incorrect} of {budget.incorrect_paths} incorrect paths found"
            )
        notes += [f"without {teacher}: {reason}" for teacher, reason in self.too_long.items()]
        if self.timed_out:
            notes.append(f"stopped after {budget.seconds:g} s")
        return "; ".join(notes)


def _batches(targets: Sequence[Target], size: int) -> Iterable[list[Target]]:
    """Splits the targets into batches of `size` rollouts."""
    batch: list[Target] = []
    free = size
    for target in targets:
        n = target.n
        while n > 0:
            take = min(n, free)
            batch.append(Target(target.prefix, take))
            n, free = n - take, free - take
            if free == 0:
                yield batch
                batch, free = [], size
    if batch:
        yield batch
