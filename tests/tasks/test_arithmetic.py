"""The arithmetic task: problems that a reader of their text solves as we do, splits that never meet."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from opd_align.tasks.arithmetic import ARITHMETIC, LARGEST, STORIES, problems, questions, summarise
from opd_align.tasks.verify import Verdict
from opd_align.types import OpdAlignError, Question

COMES = {"added", "brought back", "delivered", "put in", "found", "won", "bought", "born", "baked", "planted"}
GOES = {
    "removed", "lent out", "sold", "thrown away", "taken out", "lost", "given away", "sent away", "eaten", "picked",
}  # fmt: skip


def solved(text: str) -> int:
    """The answer as a reader finds it, who knows what the verbs mean."""
    first, *then, ask = re.split(r"(?<=[.?]) ", text)
    assert re.fullmatch(r"How many \w+ are there now\?", ask)
    one, other = (int(number) for number in re.findall(r"\d+", first))
    there = one * other
    for sentence in then:
        amount, verb = re.fullmatch(r"(?:Then )?(\d+) \w+ are ([\w ]+)\.", sentence).groups()
        assert (verb in COMES) != (verb in GOES)
        there += int(amount) if verb in COMES else -int(amount)
    return there


@pytest.mark.parametrize("split", ["train", "test"])
def test_whoever_reads_the_text_finds_the_answer(split):
    asked = questions(3, 400, split=split)
    assert len({question.id for question in asked}) == len({question.text for question in asked}) == 400
    assert all(str(solved(question.text)) == question.answer for question in asked)


def test_training_and_testing_never_meet():
    train = {question.text for seed in range(3) for question in questions(seed, 1500, split="train")}
    test = {question.text for seed in range(3) for question in questions(seed, 1500, split="test")}
    assert not train & test
    assert len(train) > 3000
    assert len(test) > 3000


def test_the_same_seed_asks_the_same_and_more_begins_with_less():
    assert questions(5, 20) == questions(5, 40)[:20]
    assert questions(5, 20) != questions(6, 20)
    assert questions(5, 0) == []


def test_every_story_is_told_and_no_number_is_large():
    found = list(islice(problems(0), 2000))
    assert {problem.story for problem in found} == set(STORIES)
    assert {len(problem.changes) for problem in found} == {1, 2}
    results = [result for problem in found for result in problem.results]
    assert min(results) >= 1
    assert LARGEST - 20 < max(results) <= LARGEST


def test_what_a_question_carries_is_what_its_text_says():
    for question in questions(1, 50):
        start = question.fields["groups"] * question.fields["each"]
        assert str(start + sum(question.fields["changes"])) == question.answer


def test_a_split_with_another_name_is_refused():
    with pytest.raises(OpdAlignError, match="'train' and 'test', not 'dev'"):
        questions(0, 1, split="dev")


def test_the_question_is_put_in_few_words():
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
def test_the_last_line_decides(reply, verdict):
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
def test_a_summary_keeps_what_the_response_stands_by(response, short):
    assert summarise(response) == short
