"""`opd-align doctor`: each check fires on a setup that is wrong in that respect, and not on one that is right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.served_model import serving
from support.small_chat import CHATML, OTHER_SWITCH, SWITCHED, byte_tokenizer, save_model

from opd_align import embedded
from opd_align.backends.chat import Chat
from opd_align.backends.loading import load_model, load_tokenizer
from opd_align.backends.probes import Gap, Sampled, TopKBias
from opd_align.cli.main import main
from opd_align.settings import Sampling
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.study.doctor import check_study
from opd_align.tasks import TextGrader, task
from opd_align.teachers.findings import Finding, SetupReport, guarded
from opd_align.teachers.setup_checks import (
    ChatSetup,
    check_chats_agree,
    check_padding,
    check_pass_rate,
    check_precision,
    check_sampling_gap,
    check_server_gap,
    check_student_chat,
    check_temperature,
    check_top_k,
    check_truncation,
    check_verifier,
    sample_questions,
)
from opd_align.types import OpdAlignError, Outcome, Question, Rollouts

SMALL = ("questions.limit=3", "sampling.max_tokens=96", "demonstrations.trials=16")


def findings(*overrides: str, teachers: Any = (), n_questions: int = 2, n_rollouts: int = 6) -> Iterator[Finding]:
    """Of a study of the embedded student; only as much is computed as is read."""
    config = read_config(None, [*SMALL, f"teachers={json.dumps(list(teachers))}", *overrides])
    return check_study(Study(config), n_questions=n_questions, n_rollouts=n_rollouts)


def named(check: str, found: Iterator[Finding] | list[Finding], about: str = "") -> Finding:
    """The first finding of a check whose text contains `about`."""
    return next(each for each in found if each.check == check and about in each.found)


def edited_copy(folder: Path, name: str, **weights: Any) -> str:
    """A copy of an embedded model; `template` replaces its chat template, `edit` changes its model."""
    source = {"student": embedded.student_path, "teacher": embedded.teacher_path}[name]()
    shutil.copytree(source, folder)
    if "template" in weights:
        tokenizer = load_tokenizer(str(folder))
        tokenizer.chat_template = weights["template"]
        tokenizer.save_pretrained(folder)
    if "edit" in weights:
        model = load_model(str(folder)).model
        with torch.no_grad():
            model = weights["edit"](model) or model
        model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def clean() -> list[Finding]:
    """All findings of a study without mistakes."""
    return list(findings(teachers=["Self-1C", {"model": "embedded:teacher", "name": "Teacher"}]))


@pytest.fixture(scope="module")
def student() -> Any:
    return load_model("embedded:student").model


def setup(template: str | None, *, thinking: bool | None = None, name: str = "model", **options: Any) -> ChatSetup:
    chat = Chat(byte_tokenizer(template, plain=("<think>", "</think>"), **options), thinking)
    return ChatSetup(name, chat, chat.end_tokens())


# -- a study without mistakes --------------------------------------------------------------------------------------


def test_a_study_without_mistakes_passes_every_check(clean):
    assert {each.level for each in clean} == {"OK"}, "\n".join(map(str, clean))
    assert {each.check for each in clean} == {
        "configuration", "temperature", "chat template", "verifier", "truncation", "pass rate", "determinism",
        "sampling", "vocabulary", "demonstrations", "context length", "teacher", "precision",
    }  # fmt: skip
    assert SetupReport(clean).exit_code(strict=True) == 0


def test_cheap_checks_come_before_models_are_loaded(monkeypatch):
    import opd_align.study.build

    monkeypatch.setattr(opd_align.study.build, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    found = findings(teachers=[{"model": "embedded:teacher"}])
    assert [next(found).check for _ in range(5)] == [
        "configuration", "temperature", "chat template", "chat template", "verifier",
    ]  # fmt: skip


# -- findings and reports ------------------------------------------------------------------------------------------


def test_a_finding_is_one_printable_line():
    finding = Finding("WARN", "teacher", "name \x1b[31mred\n\ttwo  lines", "do this")
    assert str(finding) == "WARN  teacher           name [31mred two lines. Do this"


def test_exit_codes_and_summary():
    ok, warning, failure = (Finding(level, "x", "y") for level in ("OK", "WARN", "FAIL"))
    assert [SetupReport([ok, warning]).exit_code(strict=strict) for strict in (False, True)] == [0, 1]
    assert SetupReport([ok, Finding("SKIP", "x", "y")]).exit_code(strict=True) == 0
    report = SetupReport([ok, ok, warning, failure])
    assert report.exit_code() == 1
    assert str(report).endswith("\n1 failed, 1 warning, 2 passed")
    with pytest.raises(OpdAlignError, match=r"^FAIL  x +y$"):
        report.raise_for_failures()
    SetupReport([ok, warning]).raise_for_failures()
    with pytest.raises(OpdAlignError, match=r"^WARN"):
        SetupReport([ok, warning]).raise_for_failures(strict=True)


def test_an_error_in_a_check_is_a_finding():
    def fail() -> Finding:
        raise ZeroDivisionError("first\nsecond")

    assert guarded("x", fail) == [Finding("FAIL", "x", "ZeroDivisionError: first")]


@pytest.mark.parametrize(("key", "text"), [("questions.limit=0", "no questions"), ("student=./missing", "not exist")])
def test_a_configuration_with_a_mistake_fails(key, text):
    (finding,) = findings(key)
    assert finding.level == "FAIL"
    assert finding.check == "configuration"
    assert text in finding.found


def test_a_student_that_cannot_sample_is_a_finding():
    *_, last = findings("sampling.max_tokens=100000")
    assert (last.level, last.check) == ("FAIL", "student")
    assert "do not fit the context" in last.found


# -- temperature ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "options", "levels", "text"),
    [
        (Sampling(1.0), {}, ["OK"], "1, no tokens"),
        (Sampling(0.7), {"loss_temperature": 0.7}, ["OK"], "0.7 for samples and loss"),
        (Sampling(0.7), {}, ["WARN"], "compared at temperature 0.7"),
        (Sampling(0.7), {"loss_temperature": 1.0}, ["WARN"], "sampled at 0.7, but the loss is computed at 1"),
        (Sampling(1.0, 0.9, 20), {}, ["WARN"], "top_p=0.9 and top_k=20"),
        (Sampling(1.0), {"top_k_teachers": ["far"]}, ["OK"], "1, no tokens"),
        (Sampling(0.5), {"top_k_teachers": ["far"]}, ["FAIL", "WARN"], "'far' is behind a server"),
    ],
)
def test_temperature(sampling, options, levels, text):
    found = check_temperature(sampling, **options)
    assert [each.level for each in found] == levels
    assert text in found[0].found


def test_the_temperature_of_a_study_is_checked_with_its_servers():
    far = {"name": "far", "model": {"model": "embedded:teacher", "backend": "server", "url": "http://127.0.0.1:1"}}
    assert named("temperature", findings("sampling.temperature=0.5", teachers=[far])).level == "FAIL"


# -- chat templates ------------------------------------------------------------------------------------------------


def test_a_template_whose_end_of_turn_does_not_end_generation_fails():
    right = setup(CHATML)
    assert check_student_chat(right).level == "OK"
    wrong = ChatSetup("student", right.chat, [right.chat.tokenizer.eos_token_id])
    finding = check_student_chat(wrong)
    assert finding.level == "FAIL"
    assert "ends a turn with '<|im_end|>', but generation stops only at '<|endoftext|>'" in finding.found


@pytest.mark.parametrize(
    ("template", "thinking", "expected", "text"),
    [
        (SWITCHED, None, True, "thinking on by default of the template"),
        (SWITCHED, False, False, "thinking off"),
        (OTHER_SWITCH, None, False, "thinking off by default of the template"),
        (OTHER_SWITCH, True, True, "thinking on"),
        (CHATML, None, False, "responses end with"),
    ],
)
def test_thinking_is_seen_in_the_prompt(template, thinking, expected, text):
    model = setup(template, thinking=thinking)
    assert model.thinks == expected
    assert text in check_student_chat(model).found


def test_models_that_think_differently_are_warned_about():
    thinking, silent = setup(SWITCHED, name="loud"), setup(SWITCHED, thinking=False, name="silent")
    for one, other in ((thinking, silent), (silent, thinking)):
        finding = check_chats_agree(one, other)
        assert finding.level == "WARN"
        assert "thinking is on for loud and off for silent" in finding.found
    assert check_chats_agree(silent, silent).level == "OK"


def test_other_generation_prompts_are_warned_about():
    finding = check_chats_agree(setup(CHATML), setup(CHATML.replace("assistant", "model")))
    assert finding.level == "WARN"
    assert "'<|im_end|>\\n<|im_start|>model\\n'" in finding.found


def test_models_without_a_shared_end_token_fail():
    other = CHATML.replace("<|im_end|>", "<|done|>")
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|done|>")
    one, two = setup(CHATML, eos="<|im_end|>", special=special), setup(other, eos="<|done|>", special=special)
    assert check_chats_agree(one, two).level == "FAIL"
    assert check_chats_agree(one, one).level == "OK"


def test_the_template_of_a_teacher_is_read_from_its_folder(tmp_path):
    teacher = edited_copy(tmp_path / "teacher", "teacher", template=CHATML.replace("assistant\n", "assistant:\n"))
    found = named("chat template", findings(teachers=[{"model": teacher, "name": "other"}]), "'other'")
    assert found.level == "WARN"


# -- verifier ------------------------------------------------------------------------------------------------------


def grader_of(name: str, model: ChatSetup) -> TextGrader:
    return TextGrader(task(name), model.chat.decode, model.end_tokens)


@pytest.mark.parametrize(
    ("template", "thinking"), [(CHATML, None), (SWITCHED, True), (SWITCHED, False), (OTHER_SWITCH, True)]
)
@pytest.mark.parametrize(
    ("name", "answer", "fields"),
    [
        ("gsm8k", "18", {}),
        ("aime2024", "204", {}),
        ("boolq", "True", {}),
        ("mmlu", "B", {"choices": ("red", "blue")}),
    ],
)
def test_verifiers_accept_reference_answers(template, thinking, name, answer, fields):
    model = setup(template, thinking=thinking)
    finding = check_verifier(grader_of(name, model), model, [Question("q", "?", answer, fields)])
    assert finding.level == "OK", finding


def test_answers_that_a_verifier_cannot_read_fail():
    model = setup(CHATML)
    questions = [Question("good", "?", "3"), Question("bad", "?", "blue")]
    grader = grader_of("gsm8k", model)
    assert check_verifier(grader, model, questions[1:]).level == "FAIL"
    finding = check_verifier(grader, model, questions)
    assert finding.level == "WARN"
    assert "1 of 2 reference answers are not accepted" in finding.found
    assert "'bad'" in finding.found


def test_questions_without_answers_are_reported():
    model = setup(CHATML)
    unanswered, answered = Question("u", "?"), Question("a", "?", "3")
    assert check_verifier(grader_of("gsm8k", model), model, [unanswered]).level == "FAIL"
    finding = check_verifier(grader_of("gsm8k", model), model, [unanswered, answered])
    assert finding.level == "WARN"
    assert "1 questions without an answer" in finding.found


class Always:
    """A verifier that accepts everything."""

    def grade(self, question: Question, rollouts: Rollouts) -> Any:
        return np.full(len(rollouts), Outcome.CORRECT, np.int8)


def test_a_verifier_that_accepts_no_answer_fails():
    finding = check_verifier(Always(), setup(CHATML), [Question("q", "?", "3")])
    assert finding.level == "FAIL"
    assert "'I do not know.' counts as correct" in finding.found


# -- completions ---------------------------------------------------------------------------------------------------


def test_a_completion_length_that_is_too_short_fails_truncation_pass_rate_and_demonstrations():
    found = list(findings("sampling.max_tokens=8", "demonstrations.trials=4", teachers=["Self-1C"]))
    assert named("truncation", found).level == "FAIL"
    assert "12 of 12 completions are truncated at 8 tokens" in named("truncation", found).found
    assert named("pass rate", found).level == "FAIL"
    assert "easier questions" in named("pass rate", found).remedy
    assert named("demonstrations", found).level == "FAIL"
    assert named("teacher", found).level == "SKIP"


def sampled(*outcomes: list[int], truncated: int = 0) -> list[Sampled]:
    samples = []
    for number, outcome in enumerate(outcomes):
        cut = [row < truncated for row in range(len(outcome))]
        rollouts = Rollouts.of([[1]] * len(outcome), outcome=outcome, truncated=cut)
        samples.append(Sampled(Question(str(number)), rollouts))
    return samples


@pytest.mark.parametrize(("truncated", "level"), [(0, "OK"), (1, "OK"), (2, "WARN"), (10, "WARN"), (11, "FAIL")])
def test_truncation(truncated, level):
    assert check_truncation(sampled([0] * 20, truncated=truncated), 50).level == level


@pytest.mark.parametrize(
    ("outcomes", "level", "text"),
    [
        ([[1, 0], [0, 0]], "OK", "1 of 4 completions are correct, 1 of 2 questions have both outcomes"),
        ([[0, 0], [0, 0]], "FAIL", "without correct ones"),
        ([[1, 1], [1, 1]], "FAIL", "without incorrect ones"),
        ([[1, 1], [0, 0]], "WARN", "0 of 2 questions have both outcomes"),
        ([[1, 0], [-1, 0]], "WARN", "1 more have no verdict"),
        ([[-1, -1]], "FAIL", "no verdict on any of 2"),
    ],
)
def test_pass_rate(outcomes, level, text):
    finding = check_pass_rate(sampled(*outcomes))
    assert finding.level == level
    assert text in finding.found


# -- servers -------------------------------------------------------------------------------------------------------


def served_student(url: str) -> str:
    return (
        f"student={json.dumps({'model': 'embedded:student', 'backend': 'server', 'url': url, 'served_as': 'served'})}"
    )


def served_teacher(url: str, model: str = "embedded:teacher") -> dict[str, Any]:
    return {"name": "far", "model": {"model": model, "backend": "server", "url": url, "served_as": "served"}}


def test_an_honest_server_passes(student):
    teacher = load_model("embedded:teacher").model
    with serving(student) as url, serving(teacher) as far:
        found = list(findings(served_student(url), teachers=[served_teacher(far)]))
    assert {each.level for each in found} == {"OK"}, "\n".join(map(str, found))
    assert sum(each.check == "server log-probs" for each in found) == 2
    assert {"determinism", "sampling", "top-k mass"} <= {each.check for each in found}


def test_a_server_with_another_temperature_fails(student):
    with serving(student, heat=1.6) as url:
        finding = named("sampling", findings(served_student(url), n_rollouts=16))
    assert finding.level == "FAIL"
    assert "more surprising" in finding.found


def test_a_server_that_ignores_seeds_is_warned_about(student):
    with serving(student, forget_seeds=True) as url:
        finding = named("determinism", findings(served_student(url)))
    assert finding.level == "WARN"
    assert "6 of 6 completions differ" in finding.found


def test_a_server_with_other_weights_fails():
    with serving(load_model("embedded:teacher").model) as url:
        finding = named("server log-probs", findings(served_student(url)))
    assert finding.level == "FAIL"
    assert "check that the server serves the same weights" in finding.remedy


def test_a_flat_teacher_has_little_mass_in_its_top_tokens():
    teacher = load_model("embedded:teacher").model
    with torch.no_grad():
        teacher.get_output_embeddings().weight.mul_(0.05)
    with serving(teacher) as far:
        finding = named("top-k mass", findings(teachers=[served_teacher(far)]))
    assert finding.level == "WARN"
    assert "--max-logprobs" in finding.remedy


def test_a_teacher_on_a_server_alone_is_not_compared():
    from opd_align.study.doctor import _is_small

    config = read_config(None, ["teachers=[org/large, embedded:teacher]"])
    assert [_is_small(teacher.model) for teacher in config.teachers if teacher.model] == [False, True]


@pytest.mark.parametrize(("mean", "level"), [(0.001, "OK"), (0.1, "WARN"), (0.5, "FAIL")])
def test_server_gap(mean, level):
    assert check_server_gap("far", Gap(mean, 1.0, float("nan"), 100)).level == level


@pytest.mark.parametrize(("mean", "z", "level"), [(0.2, 1.0, "OK"), (0.01, 9.0, "WARN"), (-0.2, -9.0, "FAIL")])
def test_sampling_gap(mean, z, level):
    assert check_sampling_gap(Gap(mean, 1.0, z, 100)).level == level


@pytest.mark.parametrize(
    ("mass", "kl", "half", "level"), [(0.99, 1.0, 0.95, "OK"), (0.9, 1.0, 0.95, "WARN"), (0.99, 1.0, 0.8, "WARN")]
)
def test_top_k(mass, kl, half, level):
    assert check_top_k("far", TopKBias(20, mass, kl, half)).level == level


# -- teachers ------------------------------------------------------------------------------------------------------


def test_a_teacher_with_another_vocabulary_fails(tmp_path):
    other = save_model(tmp_path / "bytes", tokenizer=byte_tokenizer())
    finding = named("vocabulary", findings(teachers=[{"model": other, "name": "bytes"}]))
    assert finding.level == "FAIL"
    assert "does not share the student's vocabulary" in finding.found


def test_a_teacher_that_does_not_understand_the_student_is_warned_about(tmp_path):
    def scramble(model: Any) -> None:
        torch.manual_seed(0)
        for weight in model.parameters():
            weight.normal_(std=0.3)

    teacher = edited_copy(tmp_path / "scrambled", "teacher", edit=scramble)
    finding = named("teacher", findings(teachers=[{"model": teacher, "name": "scrambled"}]))
    assert finding.level == "WARN"


def test_a_teacher_that_equals_the_student_is_warned_about():
    finding = named("teacher", findings(teachers=[{"model": "embedded:student", "name": "twin"}]))
    assert finding.level == "WARN"
    assert "exactly the student's probabilities" in finding.found


@pytest.mark.parametrize(("limit", "level"), [(20, "FAIL"), (150, "WARN")])  # prompts have 40 to 140 tokens
def test_a_teacher_with_a_short_context_is_reported(tmp_path, limit, level):
    def shorten(model: Any) -> None:
        model.config.max_position_embeddings = limit

    teacher = edited_copy(tmp_path / "short", "teacher", edit=shorten)
    finding = named("context length", findings(teachers=[{"model": teacher, "name": "short"}]))
    assert finding.level == level
    assert f"do not fit the context of 'short' ({limit})" in finding.found


def test_unused_rows_with_probability_are_warned_about(tmp_path):
    def pad(model: Any) -> Any:
        head = model.get_output_embeddings().weight.clone()
        model.resize_token_embeddings(900, mean_resizing=False)
        model.get_output_embeddings().weight[853:] = head[:47]
        return model

    padded = edited_copy(tmp_path / "padded", "student", edit=pad)
    finding = named("vocabulary", findings(f"student={padded}"), "student")
    assert finding.level == "WARN"
    assert "853 tokens, 47 unused rows" in finding.found


@pytest.mark.parametrize(("rows", "mass", "level"), [(900, 0.0, "OK"), (900, 0.01, "WARN"), (800, 0.0, "FAIL")])
def test_padding(rows, mass, level):
    assert check_padding("student", rows, 853, mass).level == level


def test_bfloat16_is_enough_for_a_teacher_that_differs():
    half = {"model": "embedded:teacher", "dtype": "bfloat16"}
    teachers = [{"name": "Teacher", "model": half}]
    finding = named("precision", findings("student.dtype=bfloat16", "scoring.precision=native", teachers=teachers))
    assert finding.level == "OK"
    assert "the update in bfloat16 has a cosine of" in finding.found


def test_bfloat16_is_not_enough_for_a_teacher_close_to_the_student(tmp_path):
    def nudge(model: Any) -> None:
        torch.manual_seed(0)
        for weight in model.parameters():
            weight.mul_(1 + 5e-3 * torch.randn_like(weight))

    close = {"model": edited_copy(tmp_path / "close", "student", edit=nudge), "dtype": "bfloat16"}
    teachers = [{"name": "close", "model": close}]
    finding = named("precision", findings("student.dtype=bfloat16", "scoring.precision=native", teachers=teachers))
    assert finding.level == "FAIL"
    assert "float32" in finding.remedy
    default = named("precision", findings("student.dtype=bfloat16", teachers=teachers))
    assert default.level == "OK"
    assert "student and teacher are in float32" in default.found


@pytest.mark.parametrize(("cosine", "level"), [(None, "OK"), (0.995, "OK"), (0.95, "WARN"), (0.5, "FAIL")])
def test_precision(cosine, level):
    assert check_precision("T", "bfloat16", cosine).level == level


def test_completions_of_several_questions_are_told_apart():
    study = Study(read_config(None, [*SMALL]))
    samples = sample_questions(study.student, study.questions, 3, study.grader)
    assert [each.question for each in samples] == study.questions
    alone = sample_questions(study.student, study.questions[1:2], 3, study.grader)
    assert samples[1].rollouts.tokens.tolist() == alone[0].rollouts.tokens.tolist()


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_findings_and_exits_with_0_or_1(capsys, tmp_path):
    few = ["--sample-questions", "1", "--sample-rollouts", "12", "--limit", "2", "--student", "embedded:student"]
    few += ["--set", "sampling.max_tokens=96"]
    assert main(["doctor", *few]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("OK ", "WARN ", "SKIP ")) for line in lines[:-1])
    assert lines[-1].endswith("passed")
    assert not list(tmp_path.iterdir())
    hot = [*few, "--set", "sampling.temperature=0.9"]
    assert [main(["doctor", *hot]), main(["doctor", *hot, "--strict"])] == [0, 1]
    assert main(["doctor", "--limit", "0"]) == 1
    assert "FAIL  configuration" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--student", "exact"], "needs no check"),
        (["--sample-rollouts", "0"], "at least one question and one rollout"),
        (["--set", "nonsense"], "key=value"),
    ],
)
def test_bad_flags_are_reported_in_one_line(flags, message, capsys):
    assert main(["doctor", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
