"""The recommendation as a sentence: what it says for each outcome, and never more than the data."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from opd_align.core.decision import Candidate, Decision, Open
from opd_align.report.provenance import MAX_PROMPTS, Provenance, TeacherNote, kept_prompts, shown_facts
from opd_align.report.recommendation import decision_tables, pairwise_table, probability, recommendation
from opd_align.settings import Budget, Settings


def candidate(teacher: str, p_helps: float, objective: str = "reverse_kl") -> Candidate:
    return Candidate(teacher, objective, 2 * p_helps - 1, 12, p_helps, 0.25)


FOUR = Decision(
    "undecided",
    0.95,
    12,
    (candidate("Self-3C", 0.99), candidate("Self-1C", 0.98), candidate("Teacher", 0.8), candidate("S-wrong", 0.01)),
    ((0.5, 0.71, 0.93, 0.99), (0.29, 0.5, 0.9, 0.99), (0.07, 0.1, 0.5, 0.9), (0.01, 0.01, 0.1, 0.5)),
    0.001,
    (Open(1, 0.71, 40.0), Open(2, 0.93, 5.0)),
    0.7,
)


def test_the_best_its_rivals_the_harmful_and_what_is_open():
    assert recommendation(FOUR) == (
        "Use Self-3C: better than Teacher and S-wrong with probability at least 0.93. Harmful: S-wrong. "
        "To separate Self-3C from Self-1C (better with probability 0.71), about 40 more questions."
    )


def test_a_decided_winner():
    better = ((0.5, 0.97, 0.98, 0.99), *FOUR.better[1:])
    decided = replace(FOUR, outcome="recommended", better=better, still_open=(), p_first=0.96)
    assert recommendation(decided) == (
        "Use Self-3C: the best of 4 with probability 0.96; better than Self-1C, the next, with 0.97. Harmful: S-wrong."
    )
    as_good = replace(decided, as_good=(1,))
    assert recommendation(as_good).startswith("Use Self-3C or Self-1C: the best of 4 with probability 0.96;")


def test_losses_are_named_where_there_are_several():
    several = replace(FOUR, candidates=(candidate("Self-3C", 0.99, "forward_kl"), *FOUR.candidates[1:]))
    assert recommendation(several).startswith("Use Self-3C with forward_kl: better than Teacher with reverse_kl and ")
    assert [table.name for table in decision_tables(several)] == ["decision", "teacher-by-objective", "pairwise"]
    matrix = decision_tables(several)[1]
    assert matrix.formatted_rows()[0] == ["Self-3C", "+0.980 (0.99)", "–"]


@pytest.mark.parametrize(
    ("more", "text"),
    [(40.0, "about 40 more questions"), (1.0, "about 1 more question."), (inf, "more than 1,000 more questions")],
)
def test_whether_the_first_helps_comes_before_which_is_better(more, text):
    weak = replace(
        FOUR, candidates=(candidate("Self-3C", 0.74), *FOUR.candidates[1:]), still_open=(Open(None, 0.74, more),)
    )
    line = recommendation(weak)
    assert line.startswith(
        "Undecided: Self-3C ranks first, but helps with probability 0.74. To decide whether it helps, "
    )
    assert text in line
    assert "Use" not in line


def test_undecided_with_a_first_that_hardly_helps():
    first = candidate("Self-3C", 0.2)
    line = recommendation(replace(FOUR, candidates=(first, *FOUR.candidates[1:]), still_open=(Open(None, 0.2, 30.0),)))
    assert line.startswith("Undecided: no teacher seems to help; Self-3C, the first, helps with probability 0.20.")


def test_undecided_says_how_large_an_effect_is_still_possible():
    weak = replace(
        FOUR, candidates=(candidate("Self-3C", 0.7), *FOUR.candidates[1:]), still_open=(Open(None, 0.7, inf),)
    )
    line = recommendation(replace(weak, effect_limit=0.2101, difference_limit=0.08))
    assert (
        "With probability 0.95, no teacher's SR-weighted alignment is beyond ±0.22, and no two differ by more than "
        "0.08. To decide whether it helps, more than 1,000 more questions."
    ) in line
    one = replace(weak, candidates=weak.candidates[:1], better=((0.5,),), effect_limit=0.3)
    assert "With probability 0.95, its SR-weighted alignment is within ±0.30." in recommendation(one)
    assert "With probability" not in recommendation(weak)


def test_two_that_are_not_separated_say_how_far_apart_they_can_be():
    two = replace(FOUR, candidates=FOUR.candidates[:2], better=((0.5, 0.71), (0.29, 0.5)), difference_limit=0.05)
    assert recommendation(two) == (
        "Use Self-3C: it helps with probability 0.99. To separate Self-3C from Self-1C (better with probability 0.71; "
        "the difference is at most 0.05 with 0.95), about 40 more questions."
    )


def test_no_teacher_helps():
    none = replace(FOUR, outcome="no_teacher_helps", p_none_helps=0.97, still_open=())
    assert recommendation(none).startswith("No teacher helps: none of 4 points toward success (probability 0.97).")
    one = replace(none, candidates=FOUR.candidates[3:], better=((0.5,),))
    assert recommendation(one) == "Do not distill from S-wrong: it does not help (probability 0.97)."


@pytest.mark.parametrize(
    ("n", "found"), [(0, "no question on"), (1, "only one question on"), (3, "only 3 questions on")]
)
def test_few_questions_have_no_probability(n, found):
    few = Decision("too_few_questions", 0.95, n, FOUR.candidates)
    assert recommendation(few).startswith(f"No recommendation: {found} which all teachers can be compared")
    assert recommendation(replace(few, candidates=())) == "No recommendation: there was nothing to compare."
    assert [table.name for table in decision_tables(few)] == ["decision"]


def test_probabilities_are_never_certain():
    assert [probability(value) for value in (0.0, 0.004, 0.5, 0.994, 0.9961, 1.0, float("nan"))] == [
        "<0.01", "<0.01", "0.50", "0.99", ">0.99", ">0.99", "–",
    ]  # fmt: skip


def test_the_pairwise_table_has_rows_against_columns():
    rows = pairwise_table(FOUR).formatted_rows()
    assert rows[0] == ["1", "Self-3C", "", "0.71", "0.93", "0.99"]
    assert rows[3][2:] == ["0.01", "0.01", "0.10", ""]


def test_provenance_survives_its_file_and_a_damaged_one_is_empty(tmp_path):
    made = Provenance(
        {"student": "embedded:student"}, (TeacherNote("Self-1C", "the student"),), {"q1": {"": "Hi", "Self-1C": "Ho"}}
    )
    made.save(tmp_path)
    assert Provenance.load(tmp_path) == made
    assert Provenance.load(tmp_path / "nowhere") == Provenance()
    for text in ("[]", "{", '{"teachers": [1]}', '{"facts": 3}', "\x00"):
        (tmp_path / "provenance.json").write_text(text)
        assert Provenance.load(tmp_path) == Provenance()


def test_facts_name_the_budget_and_prompts_are_limited():
    facts = shown_facts(Provenance({"student": "x" * 1000}), Settings(budget=Budget(initial=60, targeted=400)))
    assert len(facts["student"]) == 301
    assert facts["budget per question"].startswith("60 initial rollouts, up to 400 targeted (adaptive allocation)")
    kept = kept_prompts({f"q{number}": {"": "y" * 9000, "A": "z"} for number in range(1000)})
    assert len(kept) < 1000
    assert sum(len(text) for texts in kept.values() for text in texts.values()) <= MAX_PROMPTS
