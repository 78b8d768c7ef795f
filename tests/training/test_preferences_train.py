"""Exported preference pairs are what TRL's `DPOTrainer` trains on, and a step makes the chosen response likelier."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.trainings import fresh, tokenizer

from opd_align.cli.main import main

pytestmark = pytest.mark.training


@pytest.mark.parametrize("template", [True, False])
def test_a_dpo_step_on_exported_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: bool) -> None:
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    run, file, own = tmp_path / "run", tmp_path / "preferences.jsonl", tokenizer()
    options = ["--limit", "1", "--set", "questions.offset=2", "--initial", "60", "--targeted", "300", "--n-sig", "10"]
    assert main(["analyze", *options, "--out", str(run)]) == 0
    if not template:  # a base model
        own.chat_template = None
        monkeypatch.setattr("opd_align.backends.loading.load_tokenizer", lambda _: own)
    assert main(["export", str(run), "--preferences", str(file), "--pairs-per-decision", "4"]) == 0
    pairs = load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(pairs[0]["prompt"], list if template else str)
    args = DPOConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=4, report_to=[], use_cpu=True, bf16=False,
        learning_rate=1e-4, logging_steps=1, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = DPOTrainer(fresh("student"), args=args, train_dataset=pairs, processing_class=own)
    before = trainer.evaluate(pairs)
    trainer.train()
    after = trainer.evaluate(pairs)
    assert before["eval_rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert after["eval_rewards/margins"] > 0
