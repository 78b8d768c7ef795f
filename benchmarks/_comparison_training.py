"""One training of `comparison.py`: a regime, an arm, a seed.

All arms of a regime train the same student (`GatedDistillationTrainer`, or GRPO's trainers in `_comparison_reward`;
KL(student ‖ teacher), on-policy) on the same questions in the same order. Held-out accuracy is that of single samples
at temperature 1, on questions that are neither trained on nor seen by `AlignmentCallback`.
"""

from __future__ import annotations

import json
import time
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _comparison_oracle import OracleGate
from _comparison_regimes import (
    ARITHMETIC,
    COMMON,
    CONTROL,
    ORACLE_ROLLOUTS,
    REWARDED,
    kind_of,
    of_both_kinds,
    row_of,
    teachers_of,
)
from _comparison_reward import reward_trainer
from _comparison_store import settings_of
from _comparison_versions import made_with
from datasets import Dataset
from transformers import TrainerCallback
from trl import DistillationConfig

from opd_align.backends.loading import load_model
from opd_align.settings import Budget
from opd_align.training import AlignmentCallback, AlignmentSchedule, GatedDistillationTrainer, TeacherMix
from opd_align.training.contrast import sample_hints
from opd_align.training.gates import FunctionGate, Gate, GateBatch
from opd_align.training.published_gates import named_gate
from opd_align.types import Outcome

NAMES = {
    "ungated": "open",
    "incorrect": "incorrect_only",
    "divergence": "divergence",
    "both": "incorrect_only*divergence",
    "sign_agrees": "sign_agrees",
    "teachable": "teachable",
    "entropy_divergence": "entropy_divergence",
    "first_part": "first_part",
    "contrastive": "contrastive_contexts",
}
"""Gates of the recipe `distillation_gates` by arm."""


def gate_of(arm: str, seed: int, verifier: Any) -> Gate:
    """The gate of an arm, or its control: the same weights, at random tokens or at random rollouts."""
    if not arm.startswith(CONTROL):
        return named_gate(NAMES.get(arm, "open"), verifier, unknown="drop")
    gate = gate_of(arm.removeprefix(CONTROL), seed, verifier)
    # A separate generator, so that the training draws the same random numbers as in the other arms.
    generator = torch.Generator().manual_seed(seed)

    def random_rollouts(batch: GateBatch) -> torch.Tensor:
        assert batch.outcome_B is not None
        shuffled = torch.randperm(len(batch.outcome_B), generator=generator)
        return (batch.outcome_B[shuffled] == Outcome.INCORRECT).float().unsqueeze(1) * batch.mask_BT

    def random_tokens(batch: GateBatch) -> torch.Tensor:
        weights_BT = gate(batch)
        values = weights_BT[batch.mask_BT]
        weights_BT[batch.mask_BT] = values[torch.randperm(len(values), generator=generator)]
        return weights_BT

    function = random_rollouts if arm == f"{CONTROL}incorrect" else random_tokens
    return FunctionGate(function, arm, gate.measures, gate.needs_global_batch, gate.verifier)


class HeldOutAccuracy:
    """Accuracy of single samples on held-out questions, of all and by kind."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.questions = ARITHMETIC.load(split="test", limit=COMMON["accuracy_questions"])
        self.kind_N = np.array([kind_of(question) for question in self.questions])
        conversations = [ARITHMETIC.messages(question) for question in self.questions]
        texts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
        self.inputs = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")

    def __call__(self, model: Any) -> dict[str, float]:
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self.seed)
            generated = model.generate(
                **self.inputs, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                max_new_tokens=COMMON["max_completion_length"], pad_token_id=self.tokenizer.pad_token_id,
            )  # fmt: skip
        model.train()
        new = generated[:, self.inputs["input_ids"].shape[1] :]
        replies = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        verdicts = ARITHMETIC.verifier(completions=replies, answer=[each.answer for each in self.questions])
        right_N = np.array(verdicts) == 1
        by_kind = {kind: float(right_N[self.kind_N == kind].mean()) for kind in ("two", "three")}
        return {"all": float(right_N.mean()), **by_kind}


class Measure(TrainerCallback):  # type: ignore[misc]
    """Held-out accuracy along a training, by step, and the strength of its schedule in each step.

    Also the callback's pass rates, by step and question: they are not in its history.
    """

    def __init__(self, accuracy: HeldOutAccuracy, every: int, *, before: bool) -> None:
        self.accuracy, self.every, self.before = accuracy, every, before
        self.callback: AlignmentCallback | None = None
        self.pass_rates: dict[int, dict[str, float]] = {}
        self.found: dict[int, dict[str, float]] = {}
        self.schedule: AlignmentSchedule | None = None
        self.strength: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.before:
            self.found[0] = self.accuracy(model)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.schedule is not None:
            self.strength.append(self.schedule.strength)
        self._take_pass_rates()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._take_pass_rates()
        if state.global_step % self.every == 0:
            self.found[state.global_step] = self.accuracy(model)
            print(state.global_step, self.found[state.global_step], self.strength[-1:], flush=True)

    def _take_pass_rates(self) -> None:
        if self.callback is not None and self.callback.latest is not None:
            questions = self.callback.latest.questions
            rates = zip(questions["question"].to_pylist(), questions["pass_rate"].to_pylist(), strict=True)
            found = {name: round(rate, 4) for name, rate in rates if isfinite(rate)}
            self.pass_rates.setdefault(self.callback.latest_step, found)


def options_of(settings: dict[str, Any], output: Path, seed: int) -> dict[str, Any]:
    """Options that the configurations of all trainers share."""
    return {
        "output_dir": str(output), "max_steps": settings["steps"], "per_device_train_batch_size": settings["batch"],
        "learning_rate": settings["learning_rate"], "lr_scheduler_type": "constant", "temperature": 1.0,
        "max_completion_length": settings["max_completion_length"], "gradient_checkpointing": False,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "bf16": False, "seed": seed,
    }  # fmt: skip


def rows_of(arm: str, seed: int, settings: dict[str, Any], student: Any) -> list[dict[str, Any]]:
    """The questions of a training; with rewards it uses a part of them."""
    trained = ARITHMETIC.load(split="train", limit=settings["steps"] * settings["batch"], seed=seed)
    rows = [row_of(question) for question in trained]
    if arm != "contrastive":
        return rows
    longest = settings["max_completion_length"]
    hints = sample_hints(student.model, student.tokenizer, ARITHMETIC, trained, max_tokens=longest)
    return [{**row, **hints[question.id]} for row, question in zip(rows, trained, strict=True)]


def distillation_trainer(
    arm: str, seed: int, teachers: dict[str, Any], mix: TeacherMix, options: dict[str, Any], **given: Any
) -> GatedDistillationTrainer:
    """The trainer of an arm without rewards."""
    gate = gate_of(arm, seed, ARITHMETIC.verifier)
    if arm.startswith("oracle_"):
        (teacher,) = teachers.values()
        mode: Any = arm.removeprefix("oracle_")
        tokenizer = given["processing_class"]
        gate = OracleGate(ARITHMETIC, teacher, tokenizer, mode, rollouts=ORACLE_ROLLOUTS, seed=seed)
    return GatedDistillationTrainer(
        # A single teacher as it is: some gates need all tokens of a step first, which a mix does not support.
        teacher_model=mix if len(teachers) > 1 else next(iter(teachers.values())),
        gate=gate,
        denominator="keep",
        args=DistillationConfig(**options, beta=1.0),
        **given,
    )


def evaluate_along(trainer: Any, settings: dict[str, Any]) -> AlignmentCallback:
    """Adds the evaluations that mixes and schedules follow."""
    held_out = of_both_kinds(settings["questions"], offset=settings["accuracy_questions"])
    callback = AlignmentCallback(
        trainer, [row_of(question) for question in held_out], ARITHMETIC, every_n_steps=settings["every"],
        budget=Budget(settings["initial"], settings["targeted"], allocation="adaptive", rounds=2),
        max_overhead=None, on_error="raise",
    )  # fmt: skip
    trainer.add_callback(callback)
    return callback


def train(regime: str, arm: str, seed: int, file: Path) -> None:
    """Trains one arm with one seed; writes what it measured to the file."""
    settings, output, made = settings_of(regime, arm), file.with_suffix(""), made_with()
    student = load_model("embedded:student")
    teachers = teachers_of(regime, seed, student.tokenizer)
    weights = {"mix": None, "equal": dict.fromkeys(teachers, 1.0), "A": {"A": 1.0}, "B": {"B": 1.0}}
    by_kind = "kind" if arm == "mix" else None
    mix = TeacherMix(teachers, weights=weights.get(arm, dict.fromkeys(teachers, 1.0)), kind=by_kind, seed=seed)
    options = options_of(settings, output, seed)
    rows = Dataset.from_list(rows_of(arm, seed, settings, student))
    given = {"model": student.model, "processing_class": student.tokenizer, "train_dataset": rows}
    if arm in REWARDED:
        (teacher,) = teachers.values()
        trainer = reward_trainer(arm, teacher, settings["generations"], options, **given)
    else:
        trainer = distillation_trainer(arm, seed, teachers, mix, options, **given)
    aligned = arm in ("ungated", "mix", "handover")
    # Half as often in the many arms with gates; before training all arms have the same student.
    every = settings["every"] * (1 if aligned or regime in ("mixture", "reward") else 2)
    measure = Measure(HeldOutAccuracy(student.tokenizer, seed), every, before=aligned)
    if aligned:
        measure.callback = callback = evaluate_along(trainer, settings)
        if arm == "mix":
            mix.follow(callback)
        if arm == "handover":
            measure.schedule = AlignmentSchedule(callback, on_harm="zero")
            trainer.add_callback(measure.schedule)
    trainer.add_callback(measure)
    start = time.monotonic()
    trainer.train()

    history = output / "opd_align" / "history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()] if aligned else []
    steps = [row for row in trainer.state.log_history if "loss" in row]
    found = {
        "regime": regime,
        "arm": arm,
        "seed": seed,
        "settings": settings,
        "made_with": made,
        "seconds": time.monotonic() - start,
        "accuracy": measure.found,
        "tokens": [completion_tokens(row, settings["batch"]) for row in steps],
        "distilled": [row.get("gate/tokens_distilled", 0.0) for row in steps],
        "history": [{"step": line["step"], "metrics": line["metrics"]} for line in lines],
        "pass_rates": measure.pass_rates,
        "weights": {kind: list(each) for kind, each in mix.weights.items()} if arm == "mix" else {},
        **({"strength": measure.strength} if measure.strength else {}),
    }
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(found, indent=1))
    temporary.rename(file)


def completion_tokens(row: dict[str, Any], batch: int) -> float:
    """Completion tokens of a step: with denominator="keep" what the gate divides by; GRPO alone logs their mean."""
    found: float = row["gate/denominator"] if "gate/denominator" in row else row["completions/mean_length"] * batch
    return found
