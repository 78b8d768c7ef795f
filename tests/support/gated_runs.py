"""Short training runs on the embedded models, with and without a gate, and what tests compare of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import DistillationConfig, GRPOConfig
from trl.experimental.gkd import GKDConfig

from opd_align.backends.loading import load_model
from opd_align.tasks import task

TASK = task("arithmetic")
verifier = TASK.verifier

QUIET: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "learning_rate": 1e-3,
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 4,
    "max_steps": 3,
}


def questions(n: int) -> list[Any]:
    return TASK.load(split="train", limit=n)


def dialogues(n: int = 24) -> Dataset:
    """A data set for GKD in which every other answer is wrong."""
    rows = []
    for number, question in enumerate(questions(n)):
        answer = question.answer if number % 2 else "7777"
        reply = {"role": "assistant", "content": f"I count.{' Again.' * (number % 3)}\nAnswer: {answer}"}
        rows.append({"messages": [*TASK.messages(question), reply], "answer": question.answer})
    return Dataset.from_list(rows)


def prompts(n: int = 24) -> Dataset:
    return Dataset.from_list(
        [{"prompt": TASK.messages(question), "answer": question.answer} for question in questions(n)]
    )


@dataclass
class Run:
    trainer: Any
    logs: list[dict[str, float]]
    weights: dict[str, torch.Tensor]
    gradients: list[dict[str, torch.Tensor]]

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.logs if name in row]


class RecordGradients(TrainerCallback):
    """Records the gradients of each optimizer step, before they are clipped."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.steps.append({name: w.grad.detach().clone() for name, w in named if w.grad is not None})


def trained(trainer: Any) -> Run:
    gradients = RecordGradients()
    trainer.add_callback(gradients)
    trainer.train()
    weights = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
    return Run(trainer, [row for row in trainer.state.log_history if "loss" in row], weights, gradients.steps)


def models() -> dict[str, Any]:
    student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
    return {"model": student.model, "teacher_model": teacher.model, "processing_class": student.tokenizer}


def gkd(
    kind: Any, folder: Any, *, data: Dataset | None = None, options: dict[str, Any] | None = None, **own: Any
) -> Run:
    set_seed(1)
    settings = {"lmbda": 0.0, "max_new_tokens": 24, "max_length": 256, "max_grad_norm": 0.0}
    args = GKDConfig(str(folder), **(QUIET | settings | (options or {})))
    return trained(kind(args=args, train_dataset=data or dialogues(), **(models() | own)))


def distillation(kind: Any, folder: Any, *, options: dict[str, Any] | None = None, **own: Any) -> Run:
    set_seed(1)
    settings = {"max_completion_length": 64, "max_grad_norm": 0.0}
    args = DistillationConfig(str(folder), **(QUIET | settings | (options or {})))
    return trained(kind(args=args, train_dataset=prompts(), **(models() | own)))


def grpo(kind: Any, folder: Any, *, options: dict[str, Any] | None = None, **own: Any) -> Run:
    set_seed(1)
    settings = {"max_completion_length": 64, "num_generations": 4, "max_grad_norm": 0.0}
    args = GRPOConfig(str(folder), **(QUIET | settings | (options or {})))
    made = models()
    if "teacher_model" not in own:
        made.pop("teacher_model")
    return trained(kind(args=args, train_dataset=prompts(), **({"reward_funcs": [verifier]} | made | own)))
