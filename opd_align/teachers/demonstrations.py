"""Demonstrations: verified responses of a source model, and their summaries.

Responses are sampled in rounds until each question has as many correct and wrong ones as its contexts need, or its
trials are used up. With a run directory (`rollout_store.CachedStudent`) every round is on disk before it is used, and a
resumed collection requests the same rounds again: the result does not depend on interruptions and needs no file of its
own. A truncated response is never used as a demonstration, but counts as a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from opd_align.teachers.contexts import Context, Demonstration
from opd_align.types import Finish, Grader, Ints, OpdAlignError, Outcome, Question, Rollouts, Sampler, SampleRequest

EMPTY_PREFIX = np.empty(0, np.uint32)

SUMMARY = """\
Below is a response to a question. Condense it to its key reasoning steps and its final answer, in a few sentences. \
Keep its reasoning as it is, also where it is wrong: do not correct it, do not comment on it, and end with the same \
final answer in the same form.

Question:
{question}

Response:
{response}"""
"""Prompt of the summariser."""


@dataclass(frozen=True)
class TrialBudget:
    """How many responses to sample when searching for demonstrations. Each round samples twice as many as the last.

    Args:
        max_trials: Maximum number of responses per question and source, at least 1.
        first_round: Responses per question in the first round, at least 1.
        summary_trials: Summaries sampled per response, at least 1; the first usable one is kept.
    """

    max_trials: int = 60
    first_round: int = 4
    summary_trials: int = 4

    def __post_init__(self) -> None:
        if self.max_trials < 1 or self.first_round < 1 or self.summary_trials < 1:
            raise OpdAlignError(f"at least one trial is needed; got {self}")

    def rounds(self) -> list[tuple[int, int]]:
        """(first trial, number of trials) of each round."""
        rounds, start, size = [], 0, self.first_round
        while start < self.max_trials:
            rounds.append((start, min(size, self.max_trials - start)))
            start, size = start + size, 2 * size
        return rounds


def _never_skip(question: Question) -> str | None:
    return None


@dataclass(frozen=True)
class DemonstrationSource:
    """A model that writes demonstrations or summaries.

    Args:
        name: Name that contexts refer to; "self" is the student.
        sampler: Samples responses, with its own prompt and temperature.
        decode: Function from completion token ids to text.
        grader: Decides which responses are correct.
        skip_reason: Function from a question to the reason why it cannot be used with this model (such as a prompt
            that is too long), or `None` if it can.
    """

    name: str
    sampler: Sampler
    decode: Callable[[Sequence[int]], str]
    grader: Grader
    skip_reason: Callable[[Question], str | None] = _never_skip


@dataclass(frozen=True)
class NoGrading:
    """Grader for texts that are neither correct nor wrong, such as summaries: every outcome is unknown."""

    fingerprint: str = "ungraded"

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        return np.full(len(rollouts), Outcome.UNKNOWN, np.int8)


@dataclass(frozen=True)
class DemonstrationWriters:
    """The models that write demonstrations and summarise them.

    Args:
        sources: Source by name; each key must equal the source's own name.
        summariser: Model that writes summaries; `None` if no context shows summaries.
        trials: How many responses to sample.
    """

    sources: Mapping[str, DemonstrationSource]
    summariser: DemonstrationSource | None = None
    trials: TrialBudget = field(default_factory=TrialBudget)

    def __post_init__(self) -> None:
        for name, source in self.sources.items():
            if name != source.name:  # contexts refer to the key, demonstrations carry the source's name
                raise OpdAlignError(f"source {source.name!r} has the key {name!r}; key and name must be equal")

    def check(self, contexts: Sequence[Context]) -> None:
        """Refuses contexts whose source or summariser was not given."""
        for context in contexts:
            if context.source not in self.sources and context.correct + context.wrong:
                raise OpdAlignError(
                    f"context {context.name!r} needs responses by {context.source!r}, but no such source was given; "
                    f"available sources: {', '.join(self.sources)}"
                )
            if context.summarised and self.summariser is None:
                raise OpdAlignError(f"context {context.name!r} needs summaries, but no summariser was given")


def collect_demonstrations(
    writers: DemonstrationWriters,
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    batch: int = 512,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, list[Demonstration]]:
    """Question id → all demonstrations that the contexts need, from all sources, with summaries where needed.

    Args:
        writers: Models that write demonstrations and summaries.
        contexts: Contexts to collect for.
        questions: Questions to collect for.
        batch: Maximum number of responses per sampling request.
        on_progress: Called with a label, the number of finished questions, and the number of questions.
    """
    writers.check(contexts)
    collected: dict[str, list[Demonstration]] = {question.id: [] for question in questions}
    for name, source in writers.sources.items():
        correct, wrong = required_responses(contexts, name)

        def report(done: int, total: int, name: str = name) -> None:
            if on_progress:
                on_progress(f"demonstrations by {name}", done, total)

        by_question = collect_from_source(
            source, questions, correct=correct, wrong=wrong, trials=writers.trials, batch=batch, on_progress=report
        )
        summarised = [context for context in contexts if context.source == name and context.summarised]
        if summarised and writers.summariser:
            correct, wrong = required_responses(summarised, name)
            wanted = {question: _first(responses, correct, wrong) for question, responses in by_question.items()}
            by_id = {question.id: question for question in questions}
            summaries = add_summaries(writers.summariser, by_id, wanted, trials=writers.trials, batch=batch)
            with_summary = {(demo.question, demo.trial): demo for responses in summaries.values() for demo in responses}
            by_question = {
                question: [with_summary.get((demo.question, demo.trial), demo) for demo in responses]
                for question, responses in by_question.items()
            }
        for question, responses in by_question.items():
            collected[question] += responses
    return collected


def required_responses(contexts: Sequence[Context], source: str) -> tuple[int, int]:
    """The largest numbers of correct and of wrong responses by one source that any of the contexts needs."""
    relevant = [context for context in contexts if context.source == source]
    correct = max((context.correct for context in relevant), default=0)
    return correct, max((context.wrong for context in relevant), default=0)


def collect_from_source(
    source: DemonstrationSource,
    questions: Sequence[Question],
    *,
    correct: int,
    wrong: int,
    trials: TrialBudget | None = None,
    batch: int = 512,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[Demonstration]]:
    """Question id → up to `correct` correct and `wrong` wrong responses, earliest trials first, then shorter ones.

    Where shorter responses than these were sampled, as many of them follow, for prompts that would be too long.

    `on_progress` is called with the number of finished questions and the number of questions. At most `batch`
    responses are requested at a time.
    """
    collected: dict[str, list[Demonstration]] = {question.id: [] for question in questions}
    if not correct and not wrong:
        return collected
    usable = [question for question in questions if source.skip_reason(question) is None]

    def unfinished() -> list[Question]:
        return [
            question
            for question in usable
            if sum(demo.correct for demo in collected[question.id]) < correct
            or sum(not demo.correct for demo in collected[question.id]) < wrong
        ]

    for start, size in (trials or TrialBudget()).rounds():
        remaining = unfinished()
        if on_progress:
            on_progress(len(questions) - len(remaining), len(questions))
        per_call = max(1, batch // size)
        for at in range(0, len(remaining), per_call):
            requests = [
                SampleRequest(question, EMPTY_PREFIX, size, start) for question in remaining[at : at + per_call]
            ]
            for question, rollouts, trial_R in _by_request(source.sampler, requests):
                collected[question.id] += _demonstrations(source, question, rollouts, trial_R)
    if on_progress:
        on_progress(len(questions), len(questions))
    return {name: _first_and_shortest(responses, correct, wrong) for name, responses in collected.items()}


def add_summaries(
    summariser: DemonstrationSource,
    questions: Mapping[str, Question],
    demonstrations: Mapping[str, Sequence[Demonstration]],
    *,
    trials: TrialBudget | None = None,
    batch: int = 512,
) -> dict[str, list[Demonstration]]:
    """The same demonstrations with summaries; `None` stays where no trial ended with an end token and some text.

    The prompt of the summariser's sampler receives the questions that `summary_question` makes.
    """
    summary_questions = [
        (demo, summary_question(questions[name], demo))
        for name, responses in demonstrations.items()
        for demo in responses
    ]
    usable = [question for _, question in summary_questions if summariser.skip_reason(question) is None]
    size = (trials or TrialBudget()).summary_trials
    summary: dict[str, str] = {}
    per_call = max(1, batch // size)
    for at in range(0, len(usable), per_call):
        requests = [SampleRequest(question, EMPTY_PREFIX, size) for question in usable[at : at + per_call]]
        for question, rollouts, _ in _by_request(summariser.sampler, requests):
            for row in np.flatnonzero(rollouts.finish_R == Finish.STOPPED):
                text = summariser.decode(rollouts.completion(int(row)).tolist()).rpartition("</think>")[2].strip()
                if text:
                    summary.setdefault(question.id, text)
    id_of = {(demo.question, demo.source, demo.trial): question.id for demo, question in summary_questions}
    return {
        name: [replace(demo, summary=summary.get(id_of[demo.question, demo.source, demo.trial])) for demo in responses]
        for name, responses in demonstrations.items()
    }


def summary_question(question: Question, demonstration: Demonstration) -> Question:
    """The request to summarise one demonstration, as a question with its own id."""
    parts = [question.fields.get("passage"), question.text, *(question.fields.get("choices") or ())]
    response = demonstration.text.rpartition("</think>")[2].strip()
    text = SUMMARY.format(question="\n".join(part for part in parts if part), response=response)
    return Question(f"{question.id}#{demonstration.source}/{demonstration.trial}", text)


def _by_request(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[tuple[Question, Rollouts, Ints]]:
    """Rollouts of each request in order of trial, and their trial indices; failed trials are absent."""
    rollouts = sampler.sample(requests)
    row_of = {int(key): row for row, key in enumerate(rollouts.key_R)}
    result = []
    for request, key_R in zip(requests, sampler.keys(requests), strict=True):
        row_and_trial = [(row_of[int(key)], request.first + nth) for nth, key in enumerate(key_R) if int(key) in row_of]
        row_R, trial_R = np.array(row_and_trial, np.int64).reshape(-1, 2).T
        result.append((request.question, rollouts.take(row_R), trial_R))
    return result


def _demonstrations(
    source: DemonstrationSource, question: Question, rollouts: Rollouts, trial_R: Ints
) -> list[Demonstration]:
    outcome_R = source.grader.grade(question, rollouts)
    known_R = (rollouts.finish_R == Finish.STOPPED) & (outcome_R != Outcome.UNKNOWN)
    return [
        Demonstration(
            question.id,
            source.name,
            int(trial_R[row]),
            bool(outcome_R[row] == Outcome.CORRECT),
            source.decode(rollouts.completion(int(row)).tolist()).strip(),
        )
        for row in np.flatnonzero(known_R)
    ]


def _first(responses: Sequence[Demonstration], correct: int, wrong: int) -> list[Demonstration]:
    first_correct = [demo for demo in responses if demo.correct][:correct]
    return [*first_correct, *[demo for demo in responses if not demo.correct][:wrong]]


def _first_and_shortest(responses: Sequence[Demonstration], correct: int, wrong: int) -> list[Demonstration]:
    """The first responses of each kind, followed by those of the shortest ones that are not among them."""
    first = _first(responses, correct, wrong)
    shortest = _first(sorted(responses, key=lambda demo: len(demo.text)), correct, wrong)
    return [*first, *sorted((demo for demo in shortest if demo not in first), key=lambda demo: demo.trial)]
