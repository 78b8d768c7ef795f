"""`check_trainer_setup`: each check fires on a trainer that is wrong in that respect, and not on one that is right."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_chat import byte_tokenizer
from support.trainings import ARITHMETIC, conversations, fresh, held_out, make, rows, same_weights, tokenizer

from opd_align.teachers.findings import Finding, SetupReport
from opd_align.training import GatedGKDTrainer, Open, check_trainer_setup
from opd_align.types import OpdAlignError

FEW = {"n_questions": 2, "n_rollouts": 6}


def named(check: str, report: SetupReport, about: str = "") -> Finding:
    return next(each for each in report if each.check == check and about in each.found)


def right_or_wrong(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    return [float(value or 0) for value in ARITHMETIC.verifier(completions=completions, answer=answer, **columns)]


def test_a_trainer_without_mistakes_passes_every_check(tmp_path):
    trainer = make("distillation", tmp_path, student=fresh("student"))
    report = check_trainer_setup(trainer, held_out(), ARITHMETIC, teachers=["Self-1C"], **FEW)
    assert {each.level for each in report} == {"OK"}, str(report)
    assert {each.check for each in report} == {
        "temperature", "chat template", "padding", "verifier", "dropout", "truncation", "pass rate", "denominator",
        "determinism", "sampling", "vocabulary", "demonstrations", "context length", "teacher", "precision",
    }  # fmt: skip
    report.raise_for_failures(strict=True)
    assert not list(tmp_path.rglob("opd_align*"))


def test_training_after_the_checks_is_bit_identical(tmp_path):
    trained = []
    for checked in (True, False):
        trainer = make("gkd", tmp_path / str(checked), max_steps=2)  # seeds all generators
        if checked:
            check_trainer_setup(trainer, held_out(), ARITHMETIC, teachers=["Self-1C"], **FEW)
        trainer.train()
        trained.append(trainer.model)
    assert same_weights(*trained)
    assert not same_weights(trained[0], fresh("student"))


@pytest.fixture(scope="module")
def gkd_report(tmp_path_factory: pytest.TempPathFactory) -> SetupReport:
    """GKD as in many scripts: other temperatures for samples and loss, dropout, short replies in the data."""
    return check_trainer_setup(make("gkd", tmp_path_factory.mktemp("gkd")), **FEW)


def test_gkd_samples_and_trains_at_different_temperatures(gkd_report):
    finding = named("temperature", gkd_report)
    assert finding.level == "WARN"
    assert "sampled at 0.9, but the loss is computed at 1" in finding.found


def test_gkd_counts_the_tokens_of_the_data_set(gkd_report):
    finding = named("denominator", gkd_report)
    assert finding.level == "WARN"
    assert "divides the loss by 5 tokens per completion of the data set" in finding.found
    assert "GatedGKDTrainer" in finding.remedy


def test_dropout_is_warned_about(gkd_report):
    assert named("dropout", gkd_report).level == "WARN"
    assert "self_attn 0.1" in named("dropout", gkd_report).found


def test_without_a_verifier_correctness_is_not_checked(gkd_report):
    assert {each.check for each in gkd_report if each.level == "SKIP"} == {"verifier", "pass rate"}
    assert gkd_report.exit_code() == 0
    assert gkd_report.exit_code(strict=True) == 1


def test_a_gated_trainer_has_the_right_denominator(tmp_path):
    plain = make("gkd", tmp_path, student=fresh("student"), temperature=1.0)
    gated = GatedGKDTrainer(
        plain.model, fresh("teacher"), plain.args, train_dataset=plain.train_dataset, processing_class=tokenizer(),
        gate=Open(), denominator="keep",
    )  # fmt: skip
    report = check_trainer_setup(gated, **FEW)
    assert named("denominator", report).level == "OK"
    assert named("temperature", report).level == "OK"


def test_gkd_off_policy_has_the_right_denominator(tmp_path):
    report = check_trainer_setup(make("gkd", tmp_path, lmbda=0.0), **FEW)
    assert named("denominator", report).level == "OK"


def test_generation_that_does_not_stop_at_the_end_of_turn_fails(tmp_path):
    student = fresh("student")
    student.generation_config.eos_token_id = 0
    finding = named("chat template", check_trainer_setup(make("gkd", tmp_path, student=student), **FEW))
    assert finding.level == "FAIL"
    assert "ends a turn with '<|im_end|>', but generation stops only at '<|endoftext|>'" in finding.found


def test_a_teacher_with_another_tokenizer_fails(tmp_path):
    trainer = make("distillation", tmp_path)
    report = check_trainer_setup(trainer, teacher_tokenizer=byte_tokenizer(), **FEW)
    assert named("chat template", report, "vocabulary").level == "FAIL"
    trainer.teacher_model.name_or_path = "org/unknown"
    assert named("chat template", check_trainer_setup(trainer, **FEW), "teacher_tokenizer").level == "SKIP"


def test_a_missing_padding_token_fails(tmp_path):
    trainer = make("distillation", tmp_path)
    trainer.processing_class.pad_token = None
    assert named("padding", check_trainer_setup(trainer, **FEW)).level == "FAIL"


def test_short_completions_fail(tmp_path):
    trainer = make("distillation", tmp_path, max_completion_length=8)
    report = check_trainer_setup(trainer, held_out(), ARITHMETIC, teachers=["Self-1C"], **FEW)
    assert {each.check for each in report if each.level == "FAIL"} == {"truncation", "pass rate"}
    assert named("demonstrations", report).level == "WARN"
    assert named("teacher", report, "Self-1C").level == "SKIP"
    with pytest.raises(OpdAlignError, match="truncated at 8 tokens"):
        report.raise_for_failures()


@pytest.mark.parametrize(
    ("reward", "level"),
    [
        (right_or_wrong, "OK"),
        (lambda completions, **columns: [1.0] * len(completions), "FAIL"),
        (lambda completions, **columns: [float("<answer>" in str(each)) for each in completions], "WARN"),
    ],
)
def test_reward_functions_are_checked(tmp_path, reward, level):
    trainer = make("grpo", tmp_path, student=fresh("student"))
    assert named("verifier", check_trainer_setup(trainer, rows(2), reward, **FEW)).level == level


def test_mixed_precision_is_measured(tmp_path):
    trainer = make("gkd", tmp_path, student=fresh("student"), bf16=True)
    finding = named("precision", check_trainer_setup(trainer, **FEW))
    assert finding.level == "OK"
    assert "float32 with bfloat16 autocast has a cosine of" in finding.found


def test_an_unsupported_trainer_is_one_finding(tmp_path):
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    trainer = SFTTrainer(fresh("student"), args, train_dataset=conversations(2), processing_class=tokenizer())
    (finding,) = check_trainer_setup(trainer)
    assert finding.level == "FAIL"
    assert "does not support SFTTrainer" in finding.found


def test_at_least_one_completion_is_needed(tmp_path):
    with pytest.raises(OpdAlignError, match="at least one question and one rollout"):
        check_trainer_setup(None, n_rollouts=0)
