"""Evaluations under bf16 mixed precision: scored as the trainer's loss is computed, at any learning rate."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support.trainings import add_alignment, fresh, held_out, make

from opd_align.backends import scoring
from opd_align.runs.manifest import read_manifest
from opd_align.settings import Budget

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FEW = Budget(initial=6, targeted=4, rounds=1, correct_paths=1, incorrect_paths=1)
TOKENS = 16
EVALUATIONS = 10

FLOAT32, BF16 = "float32 weights, no autocast", "float32 weights, bfloat16 autocast"
LOSS_PRECISION = {"gkd": BF16, "grpo": BF16, "iw_opd": BF16, "distillation": FLOAT32}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def short(kind: str, folder: Any, **given: Any) -> Any:
    """A training with short completions in bf16 mixed precision."""
    length = "max_new_tokens" if kind == "gkd" else "max_completion_length"
    return make(kind, folder, bf16=True, per_device_train_batch_size=2, **({length: TOKENS} | given))


def autocast_state() -> tuple[bool, torch.dtype | None]:
    enabled = torch.is_autocast_enabled("cpu")
    return enabled, torch.get_autocast_dtype("cpu") if enabled else None


@pytest.mark.parametrize("kind", LOSS_PRECISION)
def test_models_are_scored_in_the_precision_of_the_loss(kind, tmp_path, monkeypatch, caplog):
    trainer = short(kind, tmp_path, max_steps=1)
    in_loss, in_scoring = set(), set()
    original = scoring.hidden_states

    def hidden_states(*args: Any) -> Any:
        in_scoring.add(autocast_state())
        return original(*args)

    def before_body(*_: Any) -> None:
        if torch.is_grad_enabled():
            in_loss.add(autocast_state())

    monkeypatch.setattr(scoring, "hidden_states", hidden_states)
    trainer.model.base_model.register_forward_pre_hook(before_body)
    callback = add_alignment(trainer, questions=held_out(1), budget=FEW, on_error="raise")
    with caplog.at_level(logging.INFO, "opd_align"):
        trainer.train()
    assert in_loss == in_scoring == {(True, torch.bfloat16) if LOSS_PRECISION[kind] == BF16 else (False, None)}
    logged = [record.message for record in caplog.records if "precision of the trainer's loss" in record.message]
    assert logged == [f"Scoring in the precision of the trainer's loss: {LOSS_PRECISION[kind]}"]
    manifest = read_manifest(callback.folder / "step-000001" / "manifest.json")
    assert manifest["precision"] == LOSS_PRECISION[kind]


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(fresh("student"), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [("gkd", False), ("gkd", True), ("distillation", False), ("distillation", True), ("grpo", False)],
)
def test_no_evaluation_fails_at_high_learning_rates(kind, adapter, tmp_path, monkeypatch):
    """Ten evaluations of each; where the weights have grown, bfloat16 and float32 logits differ by several percent."""
    trainer = short(
        kind, tmp_path, student=adapted() if adapter else None, max_steps=EVALUATIONS - 1, learning_rate=2e-2,
        max_grad_norm=0.0,
    )  # fmt: skip
    checked = []
    original = scoring.output_layer
    monkeypatch.setattr(scoring, "output_layer", lambda prompted: checked.append(prompted.name) or original(prompted))
    teachers = {"teacher": fresh("teacher")} if kind == "grpo" else []
    callback = add_alignment(trainer, questions=held_out(1), budget=FEW, teachers=teachers)
    trainer.train()
    assert callback.schedule.num_evaluations == EVALUATIONS
    assert callback.failures == 0
    assert len(checked) >= 2 * EVALUATIONS, "student and teacher in every evaluation"
