"""Trainings whose evaluations fail, each at another stage and on another rank, and the same without evaluations.

Every process executes this script: faulty.py FOLDER RUN... Each run has a folder of its own, with the trainer's logs in
seen.json, what each rank logged in messages-RANK.json, and the model.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ending import leave
from support.engineless_vllm import Engine, engineless_vllm
from support.faults import FAULTS, SYNC
from support.trainings import ARITHMETIC, TOKENS, fresh, held_out, make
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from opd_align import AlignmentCallback
from opd_align.backends.hf import HFStudent
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Sampling
from opd_align.training import callback as callback_module
from opd_align.training import demonstration_cache, evaluation, evaluator, trl_compat
from opd_align.training.held_out import RewardGrader


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        faults: Stage and rank of the failure at each step.
        watched: With the callback, whose evaluations fail; else only as long as with it.
        lora: Adapters, which TRL merges while it sends weights to vLLM.
    """

    faults: list[tuple[str, int]]
    watched: bool = True
    lora: bool = False


OF_SYNC = [(stage, rank) for stage, rank in FAULTS if stage in SYNC]
RUNS = {
    "unwatched": Run(FAULTS, watched=False),
    "watched": Run(FAULTS),
    "lora-unwatched": Run(OF_SYNC, watched=False, lora=True),
    "lora-watched": Run(OF_SYNC, lora=True),
}

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("runs", nargs="+", choices=RUNS)
parser.add_argument("--backend", default=None)
parser.add_argument("--deepspeed", action="store_true")
given = parser.parse_args()

torch.set_num_threads(1)
faulthandler.dump_traceback_later(500, exit=True)  # a deadlock shows where it is
options: dict[str, Any] = {"ddp_backend": given.backend} if given.backend else {}
if given.deepspeed:
    options["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled


class Current:
    """The training that is running."""

    trainer: Any = None
    faults: list[tuple[str, int]]
    vllm: Any


def fail_at(stage: str) -> None:
    """Raises if the evaluation at this step is to fail at this stage on this rank."""
    step, rank = Current.trainer.state.global_step, Current.trainer.accelerator.process_index
    if step < len(Current.faults) and Current.faults[step] == (stage, rank):
        raise RuntimeError(f"injected: {stage}")


def failing(owner: Any, name: str, stage: str) -> None:
    """Lets a function fail at a stage."""
    original = getattr(owner, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        fail_at(stage)
        return original(*args, **kwargs)

    setattr(owner, name, function)


def failing_inside(owner: Any, name: str, stage: str) -> None:
    """Lets a context manager fail after the one that it stands for was entered."""
    original = getattr(owner, name)

    @contextmanager
    def manager(*args: Any, **kwargs: Any) -> Any:
        with original(*args, **kwargs) as value:
            fail_at(stage)
            yield value

    setattr(owner, name, manager)


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def on_weight(number: int, count: int) -> None:
    for stage, failing_number in (("first", 0), ("middle", count // 2), ("last", count - 1)):
        if number == failing_number:
            fail_at(f"sync {stage}")


real_vllm_generation = trl_compat.vllm_generation


def beside_the_training(trainer: Any) -> Any:
    if Current.trainer is not trainer:  # while the callback is made, which checks what a real engine has
        return real_vllm_generation(trainer)
    if Current.vllm is None:  # once the model is sharded
        engine = Engine(on_weight, lambda: fail_at("wake"), lambda: fail_at("sleep"))
        Current.vllm = engineless_vllm(trainer.model, trainer.accelerator, engine, sleeps=True)
    return Current.vllm


def inject_failures() -> None:
    trl_compat.vllm_generation = beside_the_training
    failing(evaluator.Evaluator, "_check_memory", "memory")
    failing_inside(evaluator, "gathered_parameters", "gather")
    failing_inside(evaluator, "preserve_model_state", "state")
    failing(evaluator.Evaluator, "_teachers", "loading")
    failing(evaluation, "prompts_too_long", "questions")
    failing(demonstration_cache, "collect_demonstrations", "demonstrations")
    failing(demonstration_cache.DemonstrationCache, "_save", "saving demonstrations")
    failing(evaluation, "group_size", "between stages")
    failing(evaluation.HeldOutEvaluation, "_directory", "directory")
    failing(HFStudent, "sample", "sampling")
    failing(HFStudent, "score", "scoring")
    failing(RewardGrader, "grade", "grading")
    failing(RunDirectory, "finish", "finishing")
    failing(callback_module, "check_verifier_calls", "verifier")
    failing(callback_module, "recorded_metrics", "metrics")
    failing(AlignmentCallback, "_report", "report")


def student_of(run: Run) -> Any:
    unset_hf_deepspeed_config()  # of the run before: the student would be sharded while it is loaded
    student = fresh("student")
    if not run.lora:
        return student
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(student, lora)


def train(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trainer = make(
        "distillation", folder, student=student_of(run), max_steps=len(run.faults), per_device_train_batch_size=2,
        seed=3, temperature=1.0, learning_rate=1e-4, max_completion_length=8, gradient_checkpointing=False, **options,
    )  # fmt: skip
    accelerator, messages = trainer.accelerator, Messages()
    if run.watched:
        alignment = AlignmentCallback(
            trainer, held_out(2), ARITHMETIC, every_n_steps=1, max_overhead=None, teachers=["Self-1C"],
            budget=Budget(initial=12, targeted=12, allocation="adaptive", rounds=1, correct_paths=1, incorrect_paths=1),
            sampling=Sampling(max_tokens=TOKENS),
        )  # fmt: skip
        trainer.add_callback(alignment)
    Current.trainer, Current.faults, Current.vllm = trainer, run.faults, None
    logging.getLogger("opd_align").addHandler(messages)
    trainer.train()
    logging.getLogger("opd_align").removeHandler(messages)
    trainer.save_model(str(folder / "model"))
    rank = accelerator.process_index
    (folder / f"messages-{rank}.json").write_text(json.dumps(messages.texts))
    # What this rank holds, the weights under an adapter included.
    digest = blake2b()
    for weight in trainer.model.parameters():
        digest.update(getattr(weight, "ds_tensor", weight).detach().numpy())
    (folder / f"weights-{rank}.txt").write_text(digest.hexdigest())
    if accelerator.is_main_process:
        seen = {
            "type": str(accelerator.distributed_type),
            "world": accelerator.num_processes,
            "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
            "log": trainer.state.log_history,
        }
        (folder / "seen.json").write_text(json.dumps(seen))


for name in sorted(given.runs, key=lambda name: RUNS[name].watched):  # those without evaluations first, unpatched
    if RUNS[name].watched and trl_compat.vllm_generation is not beside_the_training:
        inject_failures()
    train(RUNS[name], given.folder / name)
leave()
