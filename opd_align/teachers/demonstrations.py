"""Demonstrations: responses of a source model, verified, and their summaries.

Responses are sampled in rounds until each question has as many correct and wrong ones as its contexts need, or its
trials are used up. Behind a run directory (`store.Recorded`) every round is on disk before it is looked at, and a
resumed collection asks for the same rounds again: so what is collected does not depend on interruptions, and needs no
file of its own. A response that was cut off demonstrates nothing and is passed over, but counts as a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from opd_align.teachers.contexts import Context, Demonstration
from opd_align.types import Finish, Grader, Ints, OpdAlignError, Outcome, Question, Rollouts, Sampler, SampleRequest

NOTHING = np.empty(0, np.uint32)

SUMMARY = """\
Below is a response to a question. Condense it to its key reasoning steps and its final answer, in a few sentences. \
Keep its reasoning as it is, also where it is wrong: do not correct it, do not comment on it, and end with the same \
final answer in the same form.

Question:
{question}

Response:
{response}"""
"""What a summariser is asked."""


@dataclass(frozen=True)
class TrialBudget:
    """How hard to look: `most` responses a question, of which the first round samples `first`, then twice as many."""

    most: int = 60
    first: int = 4
    summaries: int = 4

    def __post_init__(self) -> None:
        if self.most < 1 or self.first < 1 or self.summaries < 1:
            raise OpdAlignError(f"at least one trial is needed; got {self}")

    def rounds(self) -> list[tuple[int, int]]:
        """(first trial, number of trials) of each round."""
        rounds, start, size = [], 0, self.first
        while start < self.most:
            rounds.append((start, min(size, self.most - start)))
            start, size = start + size, 2 * size
        return rounds


def _fits(question: Question) -> str | None:
    return None


@dataclass(frozen=True)
class DemonstrationSource:
    """A model that writes: its sampler (with its own prompt and temperature), its tokens as text, and its judge.

    `unfit` says why a question cannot be put to it, such as a prompt that is too long; `None`: it can.
    """

    name: str
    sampler: Sampler
    said: Callable[[Sequence[int]], str]
    grader: Grader
    unfit: Callable[[Question], str | None] = _fits


@dataclass(frozen=True)
class NoGrading:
    """The judge of texts that are neither right nor wrong, such as summaries."""

    fingerprint: str = "ungraded"

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        return np.full(len(rollouts), Outcome.UNKNOWN, np.int8)


@dataclass(frozen=True)
class DemonstrationWriters:
    """Who writes demonstrations ("self" and others, by name), and who summarises them."""

    sources: Mapping[str, DemonstrationSource]
    summariser: DemonstrationSource | None = None
    trials: TrialBudget = field(default_factory=TrialBudget)

    def __post_init__(self) -> None:
        for name, source in self.sources.items():
            if name != source.name:  # contexts ask by the one, demonstrations carry the other
                raise OpdAlignError(f"the source {source.name!r} is filed under {name!r}; both must be the same")

    def check(self, contexts: Sequence[Context]) -> None:
        """Refuses contexts that nobody here can serve."""
        for context in contexts:
            if context.source not in self.sources and context.correct + context.wrong:
                raise OpdAlignError(
                    f"context {context.name!r} shows responses by {context.source!r}, and no such model was given; "
                    f"there are: {', '.join(self.sources)}"
                )
            if context.summarised and self.summariser is None:
                raise OpdAlignError(f"context {context.name!r} shows summaries, and no summariser was given")


def demonstrate(
    cast: DemonstrationWriters,
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    batch: int = 512,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, list[Demonstration]]:
    """All that the contexts need, of all sources; question → demonstrations. Summaries are made where asked for.

    `on_progress` hears what is going on, and how many questions are done, of how many.
    """
    cast.check(contexts)
    found: dict[str, list[Demonstration]] = {question.id: [] for question in questions}
    for name, source in cast.sources.items():
        correct, wrong = needs(contexts, name)

        def tell(done: int, of: int, name: str = name) -> None:
            if on_progress:
                on_progress(f"demonstrations by {name}", done, of)

        theirs = collect(
            source, questions, correct=correct, wrong=wrong, trials=cast.trials, batch=batch, on_progress=tell
        )
        condensed = [context for context in contexts if context.source == name and context.summarised]
        if condensed and cast.summariser:
            correct, wrong = needs(condensed, name)
            wanted = {question: _first(responses, correct, wrong) for question, responses in theirs.items()}
            by_id = {question.id: question for question in questions}
            summaries = summarise(cast.summariser, by_id, wanted, trials=cast.trials, batch=batch)
            short = {(each.question, each.trial): each for responses in summaries.values() for each in responses}
            theirs = {
                question: [short.get((each.question, each.trial), each) for each in responses]
                for question, responses in theirs.items()
            }
        for question, responses in theirs.items():
            found[question] += responses
    return found


def needs(contexts: Sequence[Context], source: str) -> tuple[int, int]:
    """How many correct and wrong responses by one source the contexts need at most."""
    own = [context for context in contexts if context.source == source]
    return max((context.correct for context in own), default=0), max((context.wrong for context in own), default=0)


def collect(
    source: DemonstrationSource,
    questions: Sequence[Question],
    *,
    correct: int,
    wrong: int,
    trials: TrialBudget | None = None,
    batch: int = 512,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[Demonstration]]:
    """Up to `correct` right and `wrong` wrong responses to each question, the earliest trials first.

    `on_progress` hears how many questions are done, of how many. At most `batch` responses are asked for at a time.
    """
    found: dict[str, list[Demonstration]] = {question.id: [] for question in questions}
    if not correct and not wrong:
        return found
    able = [question for question in questions if source.unfit(question) is None]

    def open_ones() -> list[Question]:
        return [
            question
            for question in able
            if sum(each.correct for each in found[question.id]) < correct
            or sum(not each.correct for each in found[question.id]) < wrong
        ]

    for start, size in (trials or TrialBudget()).rounds():
        waiting = open_ones()
        if on_progress:
            on_progress(len(questions) - len(waiting), len(questions))
        per_call = max(1, batch // size)
        for at in range(0, len(waiting), per_call):
            asked = waiting[at : at + per_call]
            requests = [SampleRequest(question, NOTHING, size, start) for question in asked]
            for question, rollouts, trial_R in _by_request(source.sampler, requests):
                found[question.id] += _demonstrations(source, question, rollouts, trial_R)
    if on_progress:
        on_progress(len(questions), len(questions))
    return {name: _first(responses, correct, wrong) for name, responses in found.items()}


def summarise(
    summariser: DemonstrationSource,
    questions: Mapping[str, Question],
    demonstrations: Mapping[str, Sequence[Demonstration]],
    *,
    trials: TrialBudget | None = None,
    batch: int = 512,
) -> dict[str, list[Demonstration]]:
    """The same demonstrations with summaries; one stays without if none of a few trials ended by itself with text.

    The summariser's sampler reads what `summary_question` makes: its prompt is given that question.
    """
    asked_about = [
        (each, summary_question(questions[name], each))
        for name, responses in demonstrations.items()
        for each in responses
    ]
    waiting = [asked for _, asked in asked_about if summariser.unfit(asked) is None]
    size = (trials or TrialBudget()).summaries
    summary: dict[str, str] = {}
    per_call = max(1, batch // size)
    for at in range(0, len(waiting), per_call):
        requests = [SampleRequest(asked, NOTHING, size) for asked in waiting[at : at + per_call]]
        for asked, rollouts, _ in _by_request(summariser.sampler, requests):
            for row in np.flatnonzero(rollouts.finish_R == Finish.STOPPED):
                text = summariser.said(rollouts.completion(int(row)).tolist()).rpartition("</think>")[2].strip()
                if text:
                    summary.setdefault(asked.id, text)
    named = {(each.question, each.source, each.trial): asked.id for each, asked in asked_about}
    return {
        name: [replace(each, summary=summary.get(named[each.question, each.source, each.trial])) for each in responses]
        for name, responses in demonstrations.items()
    }


def summary_question(question: Question, demonstration: Demonstration) -> Question:
    """What a summariser is asked about one demonstration, as a question of its own."""
    stated = [question.fields.get("passage"), question.text, *(question.fields.get("choices") or ())]
    response = demonstration.text.rpartition("</think>")[2].strip()
    text = SUMMARY.format(question="\n".join(part for part in stated if part), response=response)
    return Question(f"{question.id}#{demonstration.source}/{demonstration.trial}", text)


def _by_request(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[tuple[Question, Rollouts, Ints]]:
    """Each request's rollouts, in order of trial, and the trials' numbers; failed ones are missing."""
    rollouts = sampler.sample(requests)
    row_of = {int(key): row for row, key in enumerate(rollouts.key_R)}
    result = []
    for request, key_R in zip(requests, sampler.keys(requests), strict=True):
        made = [(row_of[int(key)], request.first + nth) for nth, key in enumerate(key_R) if int(key) in row_of]
        row_R, trial_R = np.array(made, np.int64).reshape(-1, 2).T
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
            source.said(rollouts.completion(int(row)).tolist()).strip(),
        )
        for row in np.flatnonzero(known_R)
    ]


def _first(responses: Sequence[Demonstration], correct: int, wrong: int) -> list[Demonstration]:
    right = [each for each in responses if each.correct][:correct]
    return [*right, *[each for each in responses if not each.correct][:wrong]]
