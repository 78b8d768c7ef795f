"""The arithmetic task: answers follow from the text, and the splits are disjoint."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from opd_align.tasks.arithmetic import ARITHMETIC, LARGEST, STORIES, problems, questions, summarise
from opd_align.tasks.verify import Verdict
from opd_align.types import OpdAlignError, Question

ADDED = {"added", "brought back", "delivered", "put in", "found", "won", "bought", "born", "baked", "planted"}
REMOVED = {
    "removed", "lent out", "sold", "thrown away", "taken out", "lost", "given away", "sent away", "eaten", "picked",
}  # fmt: skip


def solve(text: str) -> int:
    """The answer computed from the text alone."""
    first, *changes, request = re.split(r"(?<=[.?]) ", text)
    assert re.fullmatch(r"How many \w+ are there now\?", request)
    one, other = (int(number) for number in re.findall(r"\d+", first))
    count = one * other
    for sentence in changes:
        amount, verb = re.fullmatch(r"(?:Then )?(\d+) \w+ are ([\w ]+)\.", sentence).groups()
        assert (verb in ADDED) != (verb in REMOVED)
        count += int(amount) if verb in ADDED else -int(amount)
    return count


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_answer_follows_from_the_text(split):
    generated = questions(3, 400, split=split)
    assert len({question.id for question in generated}) == len({question.text for question in generated}) == 400
    assert all(str(solve(question.text)) == question.answer for question in generated)


def test_train_and_test_splits_are_disjoint():
    train = {question.text for seed in range(3) for question in questions(seed, 1500, split="train")}
    test = {question.text for seed in range(3) for question in questions(seed, 1500, split="test")}
    assert not train & test
    assert len(train) > 3000
    assert len(test) > 3000


def test_questions_depend_on_the_seed_and_a_larger_n_begins_with_the_same_questions():
    assert questions(5, 20) == questions(5, 40)[:20]
    assert questions(5, 20) != questions(6, 20)
    assert questions(5, 0) == []


def test_every_story_occurs_and_results_stay_in_range():
    found = list(islice(problems(0), 2000))
    assert {problem.story for problem in found} == set(STORIES)
    assert {len(problem.changes) for problem in found} == {1, 2}
    results = [result for problem in found for result in problem.results]
    assert min(results) >= 1
    assert LARGEST - 20 < max(results) <= LARGEST


def test_fields_of_a_question_agree_with_its_answer():
    for question in questions(1, 50):
        start = question.fields["groups"] * question.fields["each"]
        assert str(start + sum(question.fields["changes"])) == question.answer


def test_an_unknown_split_is_refused():
    with pytest.raises(OpdAlignError, match="'train' and 'test', not 'dev'"):
        questions(0, 1, split="dev")


def test_the_prompt_is_pinned():
    question = Question("q", "A library has 4 shelves with 12 books each. How many books are there now?", "48")
    assert ARITHMETIC.messages(question) == [
        {"role": "system", "content": "You are a helpful assistant."},
        {
            "role": "user",
            "content": "Solve the problem step by step. The last line should be 'Answer: $NUMBER'.\n\n" + question.text,
        },
    ]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("We have 4 × 12 = 48. Then 48 - 9 = 39.\nAnswer: 39", Verdict.CORRECT),
        ("We have 4 × 12 = 47. Then 47 - 9 = 38.\nAnswer: 38", Verdict.INCORRECT),
        ("We have 4 × 12 = 48. Then 48 - 9 = 39.\nAnswer: 48", Verdict.INCORRECT),
    ],
)
def test_the_last_line_is_graded(reply, verdict):
    assert ARITHMETIC.verifier.judge(reply, "39") is verdict


@pytest.mark.parametrize(
    ("response", "short"),
    [
        ("So 4 × 12 = 48. Then 9 go, so 48 - 9 = 39.\nAnswer: 39", "4 × 12 = 48, 48 - 9 = 39. Answer: 39"),
        (
            "So 4 × 12 = 47. Wait, that is wrong: 4 × 12 = 48. Then 48 - 9 = 39.\nAnswer: 39",
            "4 × 12 = 48, 48 - 9 = 39. Answer: 39",
        ),
        (
            "So 4 + 12 = 16. Then 16 - 9 = 7. No, that is not right: 4 × 12 = 48, 48 - 9 = 39.\nAnswer: 39",
            "4 × 12 = 48, 48 - 9 = 39. Answer: 39",
        ),
        ("I do not know.\nAnswer: 39", "Answer: 39"),
        ("", ""),
    ],
)
def test_a_summary_keeps_the_final_calculation(response, short):
    assert summarise(response) == short
