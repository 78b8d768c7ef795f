"""Which questions can be used with which teachers, and why not.

A question is usable if it has a gold answer and its prompt fits the student's context; a teacher can be used on it if
its own prompt fits and the demonstrations of its context exist. Every function maps question ids to the reason against
them, so that exclusions can be reported. Nothing is sampled here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opd_align.tasks import Choice, Maths, Number, Task, TrueFalse
from opd_align.teachers.contexts import SELF, Context, Demonstration
from opd_align.teachers.demonstrations import DemonstrationWriters
from opd_align.types import Question, shortened

_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")


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


def unusable_questions(task: Task, questions: Sequence[Question]) -> dict[str, str]:
    """Question id → why it is of no use with any teacher: no usable answer, or the same question as another one."""
    unanswered = without_gold_answer(task, questions)
    return unanswered | repeated_questions(task, [each for each in questions if each.id not in unanswered])


def without_gold_answer(task: Task, questions: Sequence[Question]) -> dict[str, str]:
    """Question id → reason, for questions whose answer is missing or cannot be read by the task's verifier."""
    reasons = {}
    for question in questions:
        if question.answer is None:
            reasons[question.id] = "no answer to compare with"
        elif task.verifier.canonical(question.answer, question.fields.get("choices")) is None:
            reasons[question.id] = _unreadable(task, question.answer)
    return reasons


def _unreadable(task: Task, answer: str) -> str:
    meant: dict[type, str] = {
        Number: "a number", Maths: "a mathematical expression", TrueFalse: "true or false", Choice: "a choice",
    }  # fmt: skip
    expected = meant.get(type(task.verifier), "an answer")
    hint = ""
    if isinstance(task.verifier, Number | Maths) and _DECIMAL_COMMA.fullmatch(answer):
        hint = f"; write {answer.strip().replace(',', '.')} if the comma is a decimal point"
    return f"the answer {shortened(answer)} cannot be read as {expected}{hint}"


def repeated_questions(task: Task, questions: Sequence[Question]) -> dict[str, str]:
    """Question id → reason, for questions whose messages are the same as those of another one.

    Of several with the same answer the first is kept, since questions count as independent; of several with different
    answers none, since it is unknown which one is right.
    """
    same: dict[str, list[Question]] = {}
    for question in questions:
        same.setdefault(repr(task.messages(question)), []).append(question)
    reasons = {}
    for group in same.values():
        for question in group:
            other = next((each for each in group if each.answer != question.answer), None)
            if other is not None:
                reasons[question.id] = f"same question as {other.id!r}, with another answer ({other.answer!r})"
            elif question is not group[0]:
                reasons[question.id] = f"same question and answer as {group[0].id!r}"
    return reasons


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
