"""Eligibility: which questions can be used with which teachers, and the reason where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.scripted import CHAT, RIGHT, TASK, ScriptedSampler, question, source

from opd_align.tasks import TASKS
from opd_align.teachers.contexts import CONTEXTS, SELF, ContextPrompt, Demonstration
from opd_align.teachers.demonstrations import DemonstrationWriters
from opd_align.teachers.eligibility import (
    Availability,
    availability,
    missing_demonstrations,
    prompts_too_long,
    repeated_questions,
    without_gold_answer,
)
from opd_align.types import Question

ONE = CONTEXTS["Self-1C"]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_prompt_and_new_tokens_may_fill_the_context_exactly(spare, fits):
    prompt = ContextPrompt(CHAT, TASK)
    tokens = len(prompt(question("a")))
    student = ScriptedSampler("student", lambda *_: RIGHT, prompt, context_length=tokens + 64 + spare)
    assert (prompts_too_long(student, [question("a")], 64) == {}) is fits
    assert prompts_too_long(replace(student, context_length=None), [question("a")], 10**9) == {}


def test_a_missing_or_unreadable_answer_is_reported():
    questions = [question("a"), question("b", None), question("c", "nothing to read")]
    assert without_gold_answer(TASK, questions) == {
        "b": "no answer to compare with",
        "c": "the answer 'nothing to read' cannot be read as a number",
    }
    assert without_gold_answer(TASK, [question("e", "12,0")]) == {}
    assert without_gold_answer(TASK, [question("d", "3,14159")]) == {
        "d": "the answer '3,14159' cannot be read as a number; write 3.14159 if the comma is a decimal point"
    }


def test_repeated_questions_are_reported_and_the_first_is_kept_unless_the_answers_differ():
    same = [replace(question(name), text="Pens?") for name in "abc"]
    assert repeated_questions(TASK, [*same, question("d")]) == {
        "b": "same question and answer as 'a'",
        "c": "same question and answer as 'a'",
    }
    other = replace(same[2], answer="7")
    assert repeated_questions(TASK, [*same[:2], other]) == {
        "a": "same question as 'c', with another answer ('7')",
        "b": "same question as 'c', with another answer ('7')",
        "c": "same question as 'a', with another answer ('12')",
    }
    # The message decides: the same words with another passage are another question.
    boolq = TASKS["boolq"]
    passages = [Question(name, "is it", "True", {"passage": name}) for name in "ab"]
    assert repeated_questions(boolq, passages) == {}


def test_the_reason_of_the_source_replaces_the_count_of_missing_responses():
    small = replace(source(SELF, lambda *_: RIGHT), skip_reason=lambda q: "too long for self" if q.id == "a" else None)
    questions = [question("a"), question("b")]
    count = "0 of 1 correct responses by 'self'"
    assert missing_demonstrations(questions, [ONE], {}) == {"a": {"Self-1C": count}, "b": {"Self-1C": count}}
    with_writers = missing_demonstrations(questions, [ONE], {}, DemonstrationWriters({SELF: small}))
    assert with_writers == {"a": {"Self-1C": "too long for self"}, "b": {"Self-1C": count}}


def test_availability_counts_questions_with_a_correct_response_by_each_and_by_all_sources():
    def demo(name: str, by: str, correct: bool = True) -> Demonstration:
        return Demonstration(name, by, 0, correct, "")

    found = {"a": [demo("a", SELF), demo("a", "big")], "b": [demo("b", SELF)], "c": [demo("c", SELF, correct=False)]}
    assert availability(["big", SELF], 4, found) == Availability(4, {SELF: 2, "big": 1}, 1)
    assert list(availability(["big", SELF], 4, found).by_source) == [SELF, "big"]
    assert availability(["none"], 4, found) == Availability(4, {"none": 0}, 0)
    assert availability([], 4, found) == Availability(4, {}, 0)
