"""Which questions can be used with which teachers, and why not.

A question is usable if it has a gold answer, its prompts fit the context length of every model, and the demonstrations
of every context exist. Every function maps question ids to the reason against them, so that exclusions can be
reported. Nothing is sampled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opd_align.tasks import Task
from opd_align.teachers.contexts import SELF, Context, Demonstration
from opd_align.teachers.demonstrations import DemonstrationWriters
from opd_align.types import Question


class PromptedModel(Protocol):
    """What is needed of a student or teacher to know whether a prompt fits."""

    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> Callable[[Question], Sequence[int]]: ...
    @property
    def context_length(self) -> int | None: ...


def prompts_too_long(model: PromptedModel, questions: Sequence[Question], max_new_tokens: int) -> dict[str, str]:
    """Question id → why its prompt and `max_new_tokens` more do not fit the model's context length."""
    limit = model.context_length
    if limit is None:
        return {}
    length = {question.id: len(model.prompt(question)) for question in questions}
    return {
        name: f"{tokens} prompt tokens and up to {max_new_tokens} new ones do not fit the context of {model.name!r} "
        f"({limit})"
        for name, tokens in length.items()
        if tokens + max_new_tokens > limit
    }


def without_gold_answer(task: Task, questions: Sequence[Question]) -> dict[str, str]:
    """Question id → reason, for questions whose answer is missing or cannot be read by the task's verifier."""
    gold = {
        question.id: None
        if question.answer is None
        else task.verifier.canonical(question.answer, question.fields.get("choices"))
        for question in questions
    }
    return {name: "no answer to compare with" for name, answer in gold.items() if answer is None}


def missing_demonstrations(
    questions: Sequence[Question],
    contexts: Sequence[Context],
    demonstrations: Mapping[str, Sequence[Demonstration]],
    writers: DemonstrationWriters | None = None,
) -> dict[str, dict[str, str]]:
    """Question id → context → what is missing. A fair comparison excludes such a question for all contexts.

    With `writers`, the reason is the source's own where the source could not be given the question.
    """
    missing: dict[str, dict[str, str]] = {}
    for question in questions:
        for context in contexts:
            reason = context.missing(demonstrations.get(question.id, ()))
            if reason is None:
                continue
            source = writers.sources.get(context.source) if writers else None
            missing.setdefault(question.id, {})[context.name] = (source and source.skip_reason(question)) or reason
    return missing


@dataclass(frozen=True)
class Availability:
    """How many questions have a correct demonstration (the paper's first table).

    Args:
        questions: Number of questions screened.
        by_source: Source → number of questions with a correct demonstration by it.
        all: Number of questions with a correct demonstration by every source.
    """

    questions: int
    by_source: Mapping[str, int]
    all: int


def availability(
    sources: Sequence[str], n_questions: int, demonstrations: Mapping[str, Sequence[Demonstration]]
) -> Availability:
    """Counts per source, "self" first. `sources` lists all of them: one that was never correct counts as 0."""
    solved = {
        source: {
            question
            for question, responses in demonstrations.items()
            if any(demo.source == source and demo.correct for demo in responses)
        }
        for source in sorted(sources, key=lambda source: (source != SELF, source))
    }
    by_all = set.intersection(*solved.values()) if solved else set()
    return Availability(n_questions, {source: len(found) for source, found in solved.items()}, len(by_all))
