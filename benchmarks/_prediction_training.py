"""One training of the prediction study: the embedded student, one teacher, one loss, one seed.

The trainers are TRL's: `DistillationTrainer` for KL(student ‖ teacher) and KL(teacher ‖ student), `GKDTrainer` for the
generalised Jensen-Shannon divergence, `GRPOTrainer` for MiniLLM (TRL has no trainer of that name: its gradient is that
of a policy gradient whose reward is Σ log t − log p), and `GatedGRPOTrainer` for rewards with distillation on incorrect
completions. All train on the same questions, for the same steps, with the same number of completions per step.
"""

from __future__ import annotations

import copy
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _prediction_models import LinearTeacher
from _prediction_teachers import Entry, World

from opd_align.backends.hf import HFStudent
from opd_align.types import Outcome, Question, SampleRequest

COMPLETIONS = 16
GENERATIONS = 4
"""Completions per question in losses that compare completions of one question."""
MAX_LENGTH = 96


def train(
    world: World, entry: Entry, teacher: LinearTeacher, *, seed: int, steps: int, folder: Path, **options: Any
) -> Any:
    """The trained student; `options` replace training arguments."""
    student = copy.deepcopy(world.student_model).requires_grad_(True)
    grouped = entry.loss in ("minillm", "grpo+distillation")
    common = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": COMPLETIONS,
        "learning_rate": 3e-4,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "seed": seed,
        **({"num_generations": GENERATIONS} if grouped else {}),
        **options,
    }
    trainer = _trainer(world, entry.loss, student, teacher, common)
    trainer.train()
    return trainer.model.eval()


def _trainer(world: World, loss: str, student: Any, teacher: LinearTeacher, common: dict[str, Any]) -> Any:
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer, GRPOConfig, GRPOTrainer
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    from opd_align.training import GatedGRPOTrainer, IncorrectOnly

    questions = world.training_questions
    prompts = Dataset.from_list([{"prompt": world.task.messages(each), "answer": each.answer} for each in questions])
    models = {"model": student, "processing_class": world.tokenizer}
    jsd = re.fullmatch(r"jsd\((.*)\)", loss)
    if jsd:
        replies = [
            {"messages": [*world.task.messages(each), {"role": "assistant", "content": f"Answer: {each.answer}"}]}
            for each in questions
        ]
        config = GKDConfig(beta=float(jsd[1]), lmbda=1.0, temperature=1.0, max_new_tokens=MAX_LENGTH, **common)
        return GKDTrainer(args=config, teacher_model=teacher, train_dataset=Dataset.from_list(replies), **models)
    generation = {"temperature": 1.0, "max_completion_length": MAX_LENGTH, **common}
    if loss in ("reverse_kl", "forward_kl"):
        config = DistillationConfig(beta=1.0 if loss == "reverse_kl" else 0.0, **generation)
        return DistillationTrainer(args=config, teacher_model=teacher, train_dataset=prompts, **models)
    if loss == "grpo+distillation":
        gate = IncorrectOnly(world.task.verifier, unknown="drop")
        return GatedGRPOTrainer(
            args=GRPOConfig(beta=0.0, **generation), teacher_model=teacher, train_dataset=prompts,
            reward_funcs=[world.task.verifier], gate=gate, denominator="keep", **models,
        )  # fmt: skip
    if loss == "minillm":
        reward = _LogRatio(world, teacher)
        config = GRPOConfig(beta=0.0, scale_rewards="none", **generation)
        trainer = GRPOTrainer(args=config, train_dataset=prompts, reward_funcs=[reward], **models)
        reward.student = trainer.model
        return trainer
    raise SystemExit(f"unknown loss: {loss!r}")


class _LogRatio:
    """The reward of MiniLLM: Σ log t − log p of a completion."""

    __name__ = "log_ratio"

    def __init__(self, world: World, teacher: LinearTeacher) -> None:
        self.world, self.teacher, self.student = world, teacher, None

    def __call__(self, prompts: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
        rewards = []
        with torch.no_grad():
            for messages, completion in zip(prompts, completion_ids, strict=True):
                prompt = list(self.world.chat.prompt(messages))
                ids = torch.tensor([[*prompt, *completion]])
                log = [
                    model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                    for model in (self.teacher, self.student)
                ]
                token = ids[0, len(prompt) :, None]
                rewards.append(float((log[0].gather(1, token) - log[1].gather(1, token)).sum()))
        return rewards


def correct_counts(world: World, model: Any, questions: list[Question], *, samples: int, seed: int) -> list[int]:
    """For each question, how many of the samples of a model (or a sampler) at temperature 1 are correct."""
    sampler = model if isinstance(model, HFStudent) else world.sampler(model, seed=seed)
    requests = [SampleRequest(question, np.empty(0, np.uint32), samples) for question in questions]
    counts = []
    for at in range(0, len(requests), 128):
        block = requests[at : at + 128]
        rollouts = sampler.sample(block)
        for request, keys in zip(block, sampler.keys(block), strict=True):
            own = rollouts.take(np.isin(rollouts.key_R, keys))
            counts.append(int((world.grader.grade(request.question, own) == Outcome.CORRECT).sum()))
    return counts


def measure_before(world: World, held_out: list[Question], samples: int, file: Path) -> None:
    """Writes the student's held-out accuracy before training, unless the file exists."""
    if file.exists():
        return
    counts = correct_counts(world, world.student_model, held_out, samples=samples, seed=0)
    two_step = [world.is_two_step(world.prompt(question)) for question in held_out]
    file.write_text(json.dumps({"correct": counts, "samples": samples, "two_step": two_step}), encoding="utf-8")


def run(
    world: World,
    entry: Entry,
    *,
    seed: int,
    steps: int,
    held_out: list[Question],
    samples: int,
    folder: Path,
    **options: Any,
) -> dict[str, Any]:
    """One training and the student's held-out accuracy after it."""
    start, cpu = time.monotonic(), time.process_time()
    student = train(world, entry, world.build(entry), seed=seed, steps=steps, folder=folder, **options)
    counts = correct_counts(world, student, held_out, samples=samples, seed=seed)
    return {
        "teacher": entry.name,
        "seed": seed,
        "correct": counts,
        "samples": samples,
        "accuracy": sum(counts) / (samples * len(counts)),
        "seconds": time.monotonic() - start,
        "cpu_seconds": time.process_time() - cpu,
    }
