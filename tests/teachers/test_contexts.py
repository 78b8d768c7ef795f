"""Contexts: the exact prompt of every teacher, and errors where demonstrations are missing.

`prompts.txt` contains the prompt of every built-in teacher for one question of each task. After an intended change,
`python tests/teachers/test_contexts.py` (with `tests` on the path) rewrites it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.small_chat import byte_tokenizer

from opd_align.backends.chat import Chat
from opd_align.tasks import TASKS, task
from opd_align.teachers.contexts import (
    CONTEXTS,
    SELF,
    Context,
    ContextPrompt,
    Demonstration,
    context,
    paper_template,
)
from opd_align.teachers.eligibility import missing_demonstrations
from opd_align.types import OpdAlignError, Question

PROMPTS = Path(__file__).parent / "prompts.txt"

QUESTIONS = {
    "boolq": Question("b", "is a whale a fish", "False", {"passage": "Whales are mammals that live in the sea."}),
    "mmlu": Question("m", "Which number is prime?", "C", {"choices": ("4", "6", "7", "9"), "subject": "arithmetic"}),
    "aime2024": Question("a", r"Find the remainder when $2^{10}$ is divided by $1000$.", "24"),
    "aime2025": Question("i", r"Find $\sum_{k=1}^{9} k$.", "45"),
    "gsm8k": Question("g", "Ann has 3 boxes of 4 pens. How many pens has she?", "12"),
}


def demonstrations(question: Question) -> list[Demonstration]:
    """Three correct and two wrong responses by the student and one by another model, in mixed order."""
    kinds = [(SELF, False), (SELF, True), ("source", True), (SELF, True), (SELF, False), (SELF, True)]
    return [
        Demonstration(
            question.id,
            source,
            trial,
            correct,
            f"<think>\nthought {trial}\n</think>\n\n{'right' if correct else 'wrong'} response {trial} by {source}",
            f"summary of response {trial}",
        )
        for trial, (source, correct) in enumerate(kinds)
    ]


def prompting(name: str, shown: Context | None) -> ContextPrompt:
    found = {question.id: demonstrations(question) for question in QUESTIONS.values()}
    return ContextPrompt(Chat(byte_tokenizer()), task(name), shown, found)


def all_prompts() -> str:
    """Every teacher's prompt for every task; an external teacher has the student's prompt."""
    parts = []
    for name, question in QUESTIONS.items():
        for teacher, shown in {"external": None, **CONTEXTS}.items():
            parts.append(f"=== {name} · {teacher}\n{prompting(name, shown).text(question)}")
    return "\n".join(parts) + "\n"


def test_every_prompt_of_every_teacher_and_task_is_pinned():
    pinned = PROMPTS.read_text(encoding="utf-8")
    assert pinned.count("=== ") == 5 * 8
    assert all_prompts() == pinned


def test_every_builtin_task_and_context_is_pinned():
    # `arithmetic` has its own tests.
    assert TASKS.keys() - {"arithmetic"} == QUESTIONS.keys()
    assert list(CONTEXTS) == [
        "Self-1C", "Self-3C", "Self-1C1W", "Self-1W", "Self-Sum-1C", "Self-Sum-1C1W", "Self-1C (source)",
    ]  # fmt: skip


MMLU_BASELINE = """\
<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
Answer the following multiple choice question. The last line of your response should be of the following format: \
'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by step before answering.

Which number is prime?

A) 4
B) 6
C) 7
D) 9<|im_end|>
<|im_start|>assistant
"""


def test_the_baseline_prompt_is_the_papers():
    assert prompting("mmlu", None).text(QUESTIONS["mmlu"]) == MMLU_BASELINE


def after_the_question(shown: str) -> str:
    head, tail = MMLU_BASELINE.split("D) 9")
    return f"{head}D) 9\n\n{shown}\n\nNow answer with a response of your own, including the thinking process:{tail}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "Self-1C",
            'This is a correct response to the question:\n"""\n<think>\nthought 1\n</think>\n\n'
            'right response 1 by self\n"""',
        ),
        (
            "Self-1C (source)",
            'This is a correct response to the question:\n"""\n<think>\nthought 2\n</think>\n\n'
            'right response 2 by source\n"""',
        ),
        ("Self-Sum-1C", 'This is a correct response to the question:\n"""\nsummary of response 1\n"""'),
        (
            "Self-1C1W",
            "Below are example responses to the question. Some are CORRECT and some are WRONG — the wrong responses "
            "contain mistakes and should NOT be imitated.\n\n"
            'Correct:\n"""\n<think>\nthought 1\n</think>\n\nright response 1 by self\n"""\n\n'
            'WRONG (do NOT imitate):\n"""\n<think>\nthought 0\n</think>\n\nwrong response 0 by self\n"""',
        ),
    ],
)
def test_the_context_prompts_are_the_papers(name, shown):
    assert prompting("mmlu", CONTEXTS[name]).text(QUESTIONS["mmlu"]) == after_the_question(shown)


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("of", QUESTIONS)
def test_a_context_changes_the_last_user_message_and_nothing_else(name, of):
    question, plain, shown = QUESTIONS[of], prompting(of, None), prompting(of, CONTEXTS[name])
    before, after = plain.messages(question), shown.messages(question)
    assert [message["role"] for message in after] == ["system", "user"]
    assert after[0] == before[0]
    assert after[1]["content"].startswith(before[1]["content"] + "\n\n")
    assert plain.messages(question) == before  # the task's own messages are not written into
    assert tuple(shown(question)) == shown.chat.prompt(after)
    assert shown.tokenizer_hash == plain.tokenizer_hash == plain.chat.fingerprint


def test_the_context_goes_into_the_last_user_message_of_a_longer_conversation():
    class Dialogue:
        def messages(self, question: Question) -> list[dict[str, str]]:
            roles = ["user", "assistant", "user", "assistant"]
            return [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]

    shown = replace(prompting("mmlu", context("Self-1C")), task=Dialogue())
    contents = [message["content"] for message in shown.messages(QUESTIONS["mmlu"])]
    assert contents[:2] == ["user 0", "assistant 1"]
    assert contents[2].startswith("user 2\n\nThis is a correct")
    assert contents[3] == "assistant 3"


def test_equal_demonstrations_are_not_merged():
    same = [Demonstration("q", SELF, 0, True, "x")] * 3
    assert paper_template(Question("q"), "?", same).count('"""\nx\n"""') == 3


def test_quotes_and_braces_in_a_response_are_kept():
    odd = 'f"{x}" """ %s {0} \\n'
    assert odd in paper_template(Question("q"), "?", [Demonstration("q", SELF, 0, True, odd)])


def test_a_single_wrong_response_is_labelled_wrong():
    text = paper_template(Question("q"), "?", [Demonstration("q", SELF, 0, False, "no")])
    assert "WRONG (do NOT imitate):" in text
    assert "Correct:" not in text
    assert "This is a correct response" not in text


def test_a_custom_context_is_one_function():
    def hint(question: Question, message: str, shown: list[Demonstration]) -> str:
        return f"{message} [{question.answer}; {'/'.join(demo.text for demo in shown)}]"

    custom = Context("hint", write=hint)
    question = QUESTIONS["gsm8k"]
    message = prompting("gsm8k", None).messages(question)[1]["content"]
    assert prompting("gsm8k", custom).messages(question)[1]["content"] == f"{message} [12; ]"
    assert (
        replace(prompting("gsm8k", custom), demonstrations={}).messages(question)[1]["content"] == f"{message} [12; ]"
    )
    summed = Context("hint2", correct=1, wrong=2, summarised=True, write=hint)
    expected = f"{message} [12; summary of response 1/summary of response 0/summary of response 4]"
    assert prompting("gsm8k", summed).messages(question)[1]["content"] == expected


def test_a_context_without_demonstrations_leaves_the_prompt_unchanged():
    assert prompting("gsm8k", Context("none")).text(QUESTIONS["gsm8k"]) == prompting("gsm8k", None).text(
        QUESTIONS["gsm8k"]
    )


def test_the_first_correct_and_then_the_first_wrong_ones_are_selected():
    found = demonstrations(QUESTIONS["mmlu"])
    trials = {name: [demo.trial for demo in CONTEXTS[name].select(found)] for name in CONTEXTS}
    assert trials == {
        "Self-1C": [1], "Self-3C": [1, 3, 5], "Self-1C1W": [1, 0], "Self-1W": [0], "Self-Sum-1C": [1],
        "Self-Sum-1C1W": [1, 0], "Self-1C (source)": [2],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kept", "reason"),
    [
        ("Self-1C", [], "0 of 1 correct responses by 'self'"),
        ("Self-1C", [0, 2], "0 of 1 correct responses by 'self'"),
        ("Self-3C", [0, 1, 2, 3, 4], "2 of 3 correct responses by 'self'"),
        ("Self-1C1W", [1, 3], "0 of 1 wrong responses by 'self'"),
        ("Self-1C (source)", [0, 1, 3], "0 of 1 correct responses by 'source'"),
    ],
)
def test_the_error_names_what_is_missing(name, kept, reason):
    question = QUESTIONS["mmlu"]
    found = [demonstrations(question)[trial] for trial in kept]
    assert CONTEXTS[name].missing(found) == reason
    assert (
        missing_demonstrations([question], list(CONTEXTS.values()), {question.id: found})[question.id][name] == reason
    )
    shown = replace(prompting("mmlu", CONTEXTS[name]), demonstrations={question.id: found})
    with pytest.raises(OpdAlignError) as caught:
        shown(question)
    assert str(caught.value) == f"question 'm' cannot be used with context {name!r}: {reason}"


def test_a_summary_is_only_required_where_it_is_shown():
    found = [replace(demo, summary=None) if demo.trial != 1 else demo for demo in demonstrations(QUESTIONS["mmlu"])]
    assert CONTEXTS["Self-Sum-1C"].missing(found) is None
    assert CONTEXTS["Self-Sum-1C1W"].missing(found) == "a wrong response by 'self' has no summary"
    assert CONTEXTS["Self-1C1W"].missing(found) is None


def test_with_all_demonstrations_nothing_is_missing():
    questions = list(QUESTIONS.values())
    found = {question.id: demonstrations(question) for question in questions}
    assert missing_demonstrations(questions, list(CONTEXTS.values()), found) == {}
    assert missing_demonstrations(questions, [], {}) == {}


@pytest.mark.parametrize("name", CONTEXTS)
def test_placeholders_satisfy_the_context(name):
    question, shown = QUESTIONS["mmlu"], CONTEXTS[name]
    stand_ins = shown.placeholders(question)
    assert shown.missing(stand_ins) is None
    assert len(stand_ins) == len(shown.select(stand_ins)) == shown.correct + shown.wrong


@pytest.mark.parametrize("name", ["Self-1C", "self-1c", "SELF-1C (Source)"])
def test_context_names_are_case_insensitive(name):
    assert context(name).name.lower() == name.lower()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("Self-3D", "Self-3C"), ("Slef-Sum-1C1W", "Self-Sum-1C1W"), ("self1c(source)", "Self-1C (source)")],
)
def test_a_typo_suggests_the_closest_context(typed, meant):
    with pytest.raises(OpdAlignError, match=typed.replace("(", r"\(").replace(")", r"\)")) as caught:
        context(typed)
    assert f"did you mean {meant!r}?" in str(caught.value)
    assert all(name in str(caught.value) for name in CONTEXTS)


def test_an_unknown_context_lists_all_contexts():
    with pytest.raises(OpdAlignError) as caught:
        context("qwertyuiop")
    assert "did you mean" not in str(caught.value)
    assert "Self-Sum-1C1W" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "x", "correct": -1}, {"name": "x", "wrong": -2}])
def test_a_context_without_name_or_with_negative_counts_is_refused(wrong):
    with pytest.raises(OpdAlignError, match="needs a name and counts of 0 or more"):
        Context(**wrong)


if __name__ == "__main__":
    PROMPTS.write_text(all_prompts(), encoding="utf-8")


def test_a_prompt_beyond_the_preferred_length_shows_the_shortest_demonstrations():
    question = QUESTIONS["boolq"]
    responses = [
        Demonstration(question.id, SELF, 0, True, "a long correct response " * 20),
        Demonstration(question.id, SELF, 1, False, "a long wrong response " * 20),
        Demonstration(question.id, SELF, 2, True, "short and correct"),
        Demonstration(question.id, SELF, 3, False, "short and wrong"),
    ]
    first = replace(prompting("boolq", context("Self-1C1W")), demonstrations={question.id: responses})
    length = len(first(question))
    fits, short = replace(first, preferred_length=length), replace(first, preferred_length=length - 1)
    assert fits(question) == first(question)
    assert "short and correct" in short.text(question)
    assert "short and wrong" in short.text(question)
    assert "long" not in short.text(question)


def test_a_context_is_available_if_prompt_and_completion_fit():
    question = QUESTIONS["boolq"]
    prompt = prompting("boolq", context("Self-1C"))
    length = len(prompt(question))
    limited = replace(prompt, max_length=length + 10)
    assert limited.unavailable(question, 10) is None
    reason = f"{length} prompt tokens and 11 of the completion do not fit the context ({length + 10})"
    assert limited.unavailable(question, 11) == reason
    assert prompt.unavailable(question, 10**9) is None
