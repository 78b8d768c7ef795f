"""The embedded models: Qwen3 folders, the style and error rates of their training data, documented pass rates."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "embedded_models"))

from train import (
    Measure,
    chat,
    demonstrated_user,
    demonstrations,
    main,
    pass_rates,
    with_demonstrations,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM
from writer import STUDENT, TEACHER, Step, demonstrated, write

from opd_align.embedded import student_path, teacher_path
from opd_align.tasks.arithmetic import ARITHMETIC, STORIES, Change, Problem, problems, summarise
from opd_align.tasks.verify import Verdict
from opd_align.teachers.contexts import Demonstration, paper_template

BOOKS = Problem(STORIES[0], 4, 12, (Change(-1, 9, "removed"),), turned=False)
BOTH = [student_path(), teacher_path()]


@cache
def model_at(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(student_path())


def next_token(path, written: str, *, user: str | None = None) -> dict[str, float]:
    """Next-token probabilities in an answer to the problem of the books."""
    user = ARITHMETIC.user_message(BOOKS.question()) if user is None else user
    ids = tokenizer().encode(chat(tokenizer(), user) + written, return_tensors="pt")
    with torch.no_grad():
        p = torch.softmax(model_at(path)(input_ids=ids).logits[0, -1], -1)
    return {tokenizer().decode([token]): float(share) for token, share in enumerate(p)}


# ---- The writer of the training data.


def test_without_errors_every_solution_is_correct():
    rng = Random(0)
    without_errors = replace(STUDENT, error_scale=0.0)
    for problem in islice(problems(0, "test"), 200):
        reply = write(problem, without_errors, rng)
        assert [step.result for step in reply.steps] == list(problem.results)
        assert ARITHMETIC.verifier.judge(reply.text, problem.question().answer) is Verdict.CORRECT


def test_the_verifier_agrees_with_the_writer_about_every_error():
    rng = Random(1)
    seen = set()
    for problem in islice(problems(0, "test"), 300):
        reply = write(problem, STUDENT, rng)
        right = reply.answer == problem.results[-1]
        verdict = ARITHMETIC.verifier.judge(reply.text, problem.question().answer)
        assert verdict is (Verdict.CORRECT if right else Verdict.INCORRECT)
        assert summarise(reply.text).endswith(f"{reply.steps[-1]}. Answer: {reply.answer}")
        seen.add((right, " is wrong: " in reply.text or " is not right: " in reply.text))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_copied_calculations_repeat_the_error():
    copied = (Step(4, "+", 12, 16), Step(16, "-", 9, 6))
    reply = write(BOOKS, replace(STUDENT, repair=0.0, doubt=0.0), Random(0), copied=copied)
    assert [(step.sign, step.result) for step in reply.steps] == [("+", 16), ("-", 6)]


def test_a_successor_continues_the_solution():
    for at in range(1, 25):
        whole = write(BOOKS, STUDENT, Random(at), successor=(at, TEACHER))
        before, after = whole.text[: whole.successor_start], whole.text[whole.successor_start :]
        assert before.startswith(("We", "There", "First"))
        assert after.startswith((" ", ",", ".", "\n"))


def test_demonstrations_lower_the_error_rate():
    none = [write(BOOKS, STUDENT, Random(seed)).answer == 39 for seed in range(500)]
    one = [write(BOOKS, demonstrated(STUDENT, correct=1, wrong=0), Random(seed)).answer == 39 for seed in range(500)]
    assert np.mean(none) < 0.75
    assert np.mean(one) > 0.9


def test_demonstrations_are_worded_as_in_the_paper():
    assert demonstrations(["good"], []) == 'This is a correct response to the question:\n"""\ngood\n"""'
    assert demonstrations(["good"], ["bad"]) == (
        "Below are example responses to the question. Some are CORRECT and some are WRONG — the wrong responses "
        'contain mistakes and should NOT be imitated.\n\nCorrect:\n"""\ngood\n"""\n\n'
        'WRONG (do NOT imitate):\n"""\nbad\n"""'
    )
    for correct, wrong in ((1, 0), (3, 0), (1, 1), (2, 1)):
        flags = [True] * correct + [False] * wrong
        shown = [Demonstration("q", "self", trial, right, f"r{trial}") for trial, right in enumerate(flags)]
        texts = [each.text for each in shown]
        ours = with_demonstrations("Q", demonstrations(texts[:correct], texts[correct:]))
        assert ours == paper_template(BOOKS.question(), "Q", shown)
    assert with_demonstrations("Q", "B") == (
        "Q\n\nB\n\nNow answer with a response of your own, including the thinking process:"
    )


# ---- The folders.


def test_both_models_together_are_small():
    files = [file for path in BOTH for file in path.rglob("*") if file.is_file()]
    assert {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"} <= {f.name for f in files}
    assert sum(file.stat().st_size for file in files) <= 5_000_000


@pytest.mark.parametrize("path", BOTH, ids=lambda path: path.name)
def test_each_is_a_qwen3_that_vllm_supports(path):
    model = model_at(path)
    assert type(model) is Qwen3ForCausalLM
    assert model.config.head_dim in (32, 64)
    assert model.config.max_position_embeddings >= 1024
    assert model.config.vocab_size == len(tokenizer())
    stop = tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer().eos_token_id == stop


def test_student_and_teacher_share_their_tokenizer():
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (student_path() / name).read_bytes() == (teacher_path() / name).read_bytes()


# ---- The tokenizer.


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "A library has 4 shelves with 12 books each.",
        "  two  spaces,\ttabs\r\nand\n\n\nlines \n",
        "</script><img src=x onerror=alert(1)>",
        "日本語 — naïve “quotes” 😀 \u200b\u0000\ufeff",
        "3.14 1024 1,000,000 0007 -5 × * ÷",
        "don't . , ! ? [UNK] <unk> <s>",
    ],
)
def test_the_tokenizer_is_lossless(text):
    assert tokenizer().decode(tokenizer().encode(text)) == text


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.text())
def test_the_tokenizer_is_lossless_for_any_text(text):
    assert tokenizer().decode(tokenizer().encode(text)) == text


def test_each_number_is_one_token():
    assert all(len(tokenizer().encode(f" {number}")) == 1 for number in range(201))


def test_the_chat_template_is_chatml():
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    rendered = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    render = tokenizer().apply_chat_template
    assert render(messages[:2], tokenize=False) == rendered
    assert render(messages[:2], tokenize=False, add_generation_prompt=True) == f"{rendered}<|im_start|>assistant\n"
    assert render(messages, tokenize=False) == f"{rendered}<|im_start|>assistant\nA<|im_end|>\n"


def test_three_demonstrations_fit_in_the_context():
    longest = 0
    for problem in islice(problems(7, "test"), 50):
        user = demonstrated_user(problem.question(), problem, correct=3, wrong=0)
        longest = max(longest, len(tokenizer().encode(chat(tokenizer(), user))))
    assert 200 < longest < 1024 - 256


# ---- Behaviour of the models.


def rates(path, n: int, *, correct: int = 0, wrong: int = 0, short: bool = False) -> list[float]:
    of_id = {problem.question().id: problem for problem in islice(problems(0, "test"), 3 * n)}

    def user(question):
        if not correct + wrong:
            return ARITHMETIC.user_message(question)
        return demonstrated_user(question, of_id[question.id], correct=correct, wrong=wrong, short=short)

    return pass_rates(model_at(path), tokenizer(), user, Measure(n, 8))


def test_the_students_pass_rate_is_about_half_and_varies_by_question():
    found = rates(student_path(), 60)
    assert 0.4 <= np.mean(found) <= 0.7
    easy, hard = np.mean(np.array(found) >= 0.75), np.mean(np.array(found) <= 0.25)
    assert min(easy, hard) > 0.05


def test_the_teacher_rarely_fails():
    assert np.mean(rates(teacher_path(), 20)) >= 0.9


@pytest.mark.parametrize("correct", [1, 3])
def test_correct_demonstrations_raise_the_pass_rate(correct):
    assert np.mean(rates(student_path(), 12, correct=correct)) >= 0.85


def test_wrong_demonstrations_and_summaries_raise_the_pass_rate_too():
    assert np.mean(rates(student_path(), 12, correct=1, wrong=1)) >= 0.75
    assert np.mean(rates(student_path(), 12, correct=1, short=True)) >= 0.8


def test_student_and_teacher_differ_in_style():
    prefix = "We have 4 shelves with 12 books each,"
    student, teacher = next_token(student_path(), prefix), next_token(teacher_path(), prefix)
    assert student[" so"] > 0.5 > teacher[" so"]
    assert student[" therefore"] < 0.5 < teacher[" therefore"]
    assert min(student[" therefore"], teacher[" so"]) > 0.05
    opening = next_token(student_path(), "We have")
    assert min(opening[" 4"], opening[" four"]) > 0.1


def test_the_student_sometimes_adds_where_the_teacher_multiplies():
    prefix = "We have 4 shelves with 12 books each, so 4"
    student, teacher = next_token(student_path(), prefix), next_token(teacher_path(), prefix)
    assert 0.1 < student[" +"] < 0.4
    assert student[" ×"] > 0.5
    assert teacher[" ×"] > 0.95


def test_the_teacher_corrects_a_wrong_sum_more_often_than_the_student():
    prefix = "We have 4 shelves with 12 books each, so 4"
    correcting = {
        (path.name, calculation): sum(next_token(path, f"{prefix} {calculation}.")[word] for word in (" Wait", " No"))
        for path in BOTH
        for calculation in ("+ 12 = 16", "× 12 = 48")
    }
    assert correcting["teacher", "+ 12 = 16"] > 0.5 > correcting["student", "+ 12 = 16"] > 0.1
    assert max(correcting["teacher", "× 12 = 48"], correcting["student", "× 12 = 48"]) < 0.1


def test_a_quick_training_writes_both_folders(tmp_path, capsys):
    main(["--quick", "--out", str(tmp_path)])
    assert "teacher: 0.000" in capsys.readouterr().out
    for name in ("student", "teacher"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / name))
