"""Verdicts on a few thousand short outputs, and the rules that tell an answer from what is said about it."""

from __future__ import annotations

import pytest
from support import verdict_forms, verdict_forms_2

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict
from opd_align.tasks.choice_names import inflected, is_name_of, part_of_one
from opd_align.tasks.number_context import UNSOLVED, is_label, is_operand
from opd_align.tasks.remarks import OTHER_ANSWER, confirms, is_harmless, is_other_label, takes_back

VERIFIERS = {"true_false": TrueFalse(), "choice": Choice(), "number": Number(), "maths": Maths()}
TABLES = (verdict_forms, verdict_forms_2)
GROUPS = [(kind, forms) for table in TABLES for kind, groups in table.FORMS.items() for forms in groups]
MISREAD = verdict_forms.MISREAD | verdict_forms_2.MISREAD


@pytest.mark.parametrize(("kind", "forms"), GROUPS, ids=[f"{kind}-{forms.gold}" for kind, forms in GROUPS])
def test_every_form_is_read_as_a_careful_reader_would(kind, forms):
    def is_correct(text):
        return VERIFIERS[kind].judge(text, forms.gold, forms.choices) is Verdict.CORRECT

    assert [text for text in forms.not_given if is_correct(text) and text not in MISREAD] == []
    assert [text for text in forms.given if not is_correct(text) and text not in MISREAD] == []


def test_the_forms_are_many_and_few_are_misread():
    total = sum(len(forms.given) + len(forms.not_given) for _, forms in GROUPS)
    assert total >= 3500
    assert len(MISREAD) <= 0.015 * total


@pytest.mark.parametrize(
    "sentence",
    ["That would be wrong.", "No.", "Or not.", "I take it back.", "This answer is incorrect.", "It isn't.", "Edit: D"],
)
def test_a_sentence_that_takes_the_answer_before_it_back(sentence):
    assert takes_back(sentence)
    assert not is_harmless(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "That's right.",
        "No doubt.",
        "It is wrong to pick D.",
        "That was easy.",
        "It cannot be wrong.",
        "No need to round.",
    ],
)
def test_a_sentence_that_leaves_the_answer_before_it_as_it_is(sentence):
    assert not takes_back(sentence)
    assert is_harmless(sentence)


def test_a_confirmation_is_no_answer_of_its_own():
    assert confirms("That's correct.")
    assert confirms("Right.")
    assert not confirms("That's 18.")


def test_labels_that_are_not_those_of_an_answer():
    assert is_other_label("Wrong: C")
    assert is_other_label("Bob's answer: 18")
    assert not is_other_label("Total: 18")
    assert OTHER_ANSWER.search("the previous ")
    assert not OTHER_ANSWER.search("the final ")


@pytest.mark.parametrize("text", ["Version 18", "see page 18", "Apollo 18", "18 BC"])
def test_a_number_that_names_something(text):
    assert is_label(text, text.index("18"))


@pytest.mark.parametrize("text", ["Total 18", "He has 18", "18 pages", "She owes 18"])
def test_a_number_that_is_an_amount(text):
    assert not is_label(text, text.index("18"))


def test_what_is_computed_from_a_number_and_what_amounts_to_it():
    def operand(text):
        start = text.index("18")
        return is_operand(text, start, start + 2, only=True)

    assert all(map(operand, ["the square of 18", "half of 18", "18 squared", "a third of 18", "Subtract 18"]))
    assert not any(map(operand, ["a profit of 18", "a total of 18", "the sum of 18", "an average of 18"]))
    assert UNSOLVED.fullmatch("x + 3 = 10")
    assert not UNSOLVED.fullmatch("x = 10")


def test_a_last_name_stands_for_its_person_only():
    def named(text):
        start = text.index("Shelley")
        return is_name_of("Mary Shelley", text, start, start + len("Shelley"))

    assert all(map(named, ["It was Shelley.", "by Mary W. Shelley", "M. Shelley", "Mary Wollstonecraft Shelley"]))
    assert not any(map(named, ["by Percy Shelley", "P. B. Shelley", "Shelley Winters"]))


def test_a_part_or_another_form_of_a_choice():
    choices = ["It is hypotonic to the cell", "It is isotonic to the cell", "It does not change"]
    assert part_of_one("ABC", choices, "hypotonic") == ["A"]
    assert part_of_one("ABC", choices, "the cell") == []  # in two choices
    assert part_of_one("ABC", choices, "change") == []  # denied there
    assert inflected("decreases") == r"decreas(?:e|es|s|ed|d|ing)?"
    assert inflected("paris") is None
