"""Twenty steps with the callback and without are the same training, bit for bit: also resumed, and beside trackers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.trainings import TIMES, TOKENS, add_alignment, fresh, held_out, make, same_weights, trainer_rows
from support.wandb_offline import history
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from opd_align.settings import Budget, Sampling

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STEPS, SAVED, EVERY = 20, 10, 5
FEW = Budget(initial=6, targeted=8, allocation="adaptive", rounds=1, correct_paths=1, incorrect_paths=1)


class Recorder(TrainerCallback):
    """What a training is about to use at the start of every step: random numbers, weights, mode of every module."""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def on_step_begin(self, *args: Any, model: Any, **kwargs: Any) -> None:
        digest = blake2b(repr((random.getstate(), np.random.get_state())).encode())  # noqa: NPY002
        digest.update(torch.get_rng_state().numpy())
        digest.update(repr([module.training for module in model.modules()]).encode())
        for weight in model.parameters():
            digest.update(weight.detach().numpy())
        self.digests.append(digest.hexdigest())


@dataclass(frozen=True)
class Training:
    trainer: Any
    digests: list[str]
    evaluations: int
    failures: int


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)  # of the adapter's initial weights
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(fresh("student", attention_dropout=0.1), lora)


def parity(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A reward that differs between completions, however short they are."""
    return [float(sum(tokens) % 2) for tokens in completion_ids]


def train(
    kind: str, folder: Path, *, watched: bool, adapter: bool = False, resume: bool = False, **given: Any
) -> Training:
    """Dropout, gradient checkpointing, gradient accumulation, evaluation on a dataset, and checkpoints.

    With an adapter also bf16 mixed precision.
    """
    torch.set_num_threads(1)
    length = {"max_new_tokens" if kind == "gkd" else "max_completion_length": 12}
    trainer = make(
        kind, folder, student=adapted() if adapter else None, max_steps=STEPS, per_device_train_batch_size=2,
        per_device_eval_batch_size=2, gradient_accumulation_steps=2, save_strategy="steps", save_steps=SAVED,
        bf16=adapter,
        **(length | given),
    )  # fmt: skip
    trainer.eval_dataset = trainer.train_dataset.select(range(2))
    trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, 8
    if kind == "grpo":
        trainer.reward_funcs[0] = parity
    evaluations = failures = 0
    if watched:
        teachers = {"another": fresh("teacher")} if kind == "grpo" else []
        callback = add_alignment(
            trainer, questions=held_out(1), every_n_steps=EVERY, budget=FEW, teachers=teachers, on_error="raise",
            sampling=Sampling(temperature=0.9, max_tokens=TOKENS, seed=5),
        )  # fmt: skip
    recorder = Recorder()
    trainer.add_callback(recorder)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resume else None)
    if watched:
        evaluations, failures = callback.schedule.num_evaluations, callback.failures
    return Training(trainer, recorder.digests, evaluations, failures)


def assert_identical(watched: Training, alone: Training) -> None:
    assert watched.digests == alone.digests
    assert trainer_rows(watched.trainer) == trainer_rows(alone.trainer)
    assert any("eval_loss" in row for row in trainer_rows(alone.trainer))
    assert same_weights(watched.trainer.model, alone.trainer.model)
    ours, theirs = (each.trainer.optimizer.state_dict()["state"] for each in (watched, alone))
    assert ours.keys() == theirs.keys()
    for number, state in ours.items():
        assert all(torch.equal(value, theirs[number][name]) for name, value in state.items())


def assert_same_checkpoints(one: Path, other: Path) -> None:
    """Weights and random number generators by their bytes; our own file is beside them."""
    names = [path.name for path in one.iterdir() if path.suffix == ".safetensors" or path.name == "rng_state.pth"]
    assert len(names) == 2
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert not (other / "opd_align.json").exists()
    assert (one / "opd_align.json").exists()


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["gkd", "distillation", "grpo"])
def test_a_training_and_its_continuation_from_a_checkpoint_are_bit_identical(kind, adapter, tmp_path):
    watched, alone = (
        train(kind, tmp_path / name, watched=name == "watched", adapter=adapter) for name in ("watched", "alone")
    )
    assert (watched.evaluations, watched.failures) == (1 + STEPS // EVERY, 0)
    assert len(alone.digests) == STEPS
    assert_identical(watched, alone)
    assert not same_weights(alone.trainer.model, adapted() if adapter else fresh("student")), "they are trained"
    for number in (SAVED, STEPS):
        assert_same_checkpoints(*(tmp_path / name / f"checkpoint-{number}" for name in ("watched", "alone")))
    if adapter and kind != "gkd":  # one resumed training of each kind is enough, and one with an adapter
        return
    watched, alone = (
        train(kind, tmp_path / name, watched=name == "watched", adapter=adapter, resume=True)
        for name in ("watched", "alone")
    )
    assert watched.evaluations == 1 + STEPS // EVERY, "those before the checkpoint included"
    assert len(alone.digests) == STEPS - SAVED
    assert_identical(watched, alone)


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_trackers_beside_it_get_the_same_rows(tracker, tmp_path, monkeypatch):
    if find_spec(tracker) is None:
        pytest.skip(f"{tracker} is missing: pip install {tracker}")
    rows = {}
    for name in ("watched", "alone"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")
        monkeypatch.setenv("WANDB_DIR", str(folder))
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
        trained = train("distillation", folder, watched=name == "watched", report_to=[tracker])
        rows[name] = _wandb_rows(folder) if tracker == "wandb" else _tensorboard_rows(folder)
        if name == "watched":
            watched = trained
    assert_identical(watched, trained)
    own = [row for row in rows["watched"] if not any("opd_align/" in key for key in row)]
    assert own == rows["alone"]
    assert len(rows["watched"]) > len(own) >= STEPS, "ours are beside the trainer's"


def _wandb_rows(folder: Path) -> list[dict[str, Any]]:
    import wandb

    wandb.finish()
    wandb.teardown()  # the next run reads its folder from the environment again
    skipped = (*TIMES, "profiling/", "_step", "_timestamp", "_runtime")
    rows = [
        {key: value for key, value in row.items() if not any(part in key for part in skipped)}
        for row in history(folder)
    ]
    return [row for row in rows if row]


def _tensorboard_rows(folder: Path) -> list[dict[str, Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    # Every row has the epoch, ours too.
    return [
        {tag: (event.step, event.value)}
        for tag in sorted(events.Tags()["scalars"])
        if not any(part in tag for part in (*TIMES, "train/epoch"))
        for event in events.Scalars(tag)
    ]
