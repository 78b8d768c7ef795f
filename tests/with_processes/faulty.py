"""A training whose evaluations fail, each at another stage and on another rank; every process executes this script.

Writes the trainer's logs to seen.json, what each rank logged to messages-RANK.json, and the model.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import sys
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.engineless_vllm import Engine, engineless_vllm
from support.faults import FAULTS
from support.trainings import ARITHMETIC, TOKENS, fresh, held_out, make

from opd_align import AlignmentCallback
from opd_align.backends.hf import HFStudent
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Sampling
from opd_align.training import callback as callback_module
from opd_align.training import demonstration_cache, evaluation, evaluator, trl_compat
from opd_align.training.held_out import RewardGrader

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--backend", default=None)
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--unwatched", action="store_true")
parser.add_argument("--only", default=None, help="stages whose names start like this")
parser.add_argument("--lora", action="store_true", help="adapters, which TRL merges while it sends weights to vLLM")
given = parser.parse_args()
faults = [fault for fault in FAULTS if fault[0].startswith(given.only or "")]

torch.set_num_threads(1)
faulthandler.dump_traceback_later(500, exit=True)  # a deadlock shows where it is
options = {"ddp_backend": given.backend} if given.backend else {}
if given.deepspeed:
    options["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled
student = fresh("student")
if given.lora:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    student = get_peft_model(student, lora)
trainer = make(
    "distillation", given.folder, student=student, max_steps=len(faults), per_device_train_batch_size=2,
    seed=3, temperature=1.0, learning_rate=1e-4, max_completion_length=8, gradient_checkpointing=False, **options,
)  # fmt: skip
rank = trainer.accelerator.process_index


def fail_at(stage: str) -> None:
    """Raises if the evaluation at this step is to fail at this stage on this rank."""
    step = trainer.state.global_step
    if step < len(faults) and faults[step] == (stage, rank):
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


messages = Messages()
logging.getLogger("opd_align").addHandler(messages)
if not given.unwatched:
    alignment = AlignmentCallback(
        trainer, held_out(2), ARITHMETIC, every_n_steps=1, max_overhead=None, teachers=["Self-1C"],
        budget=Budget(initial=12, targeted=12, allocation="adaptive", rounds=1, correct_paths=1, incorrect_paths=1),
        sampling=Sampling(max_tokens=TOKENS),
    )  # fmt: skip
    trainer.add_callback(alignment)

    def on_weight(number: int, count: int) -> None:
        for stage, failing_number in (("first", 0), ("middle", count // 2), ("last", count - 1)):
            if number == failing_number:
                fail_at(f"sync {stage}")

    vllm: list[Any] = []

    def beside_the_training(trainer: Any) -> Any:
        if not vllm:  # once the model is sharded
            engine = Engine(on_weight, lambda: fail_at("wake"), lambda: fail_at("sleep"))
            vllm.append(engineless_vllm(trainer.model, trainer.accelerator, engine, sleeps=True))
        return vllm[0]

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
trainer.train()
trainer.save_model(str(given.folder / "model"))
(given.folder / f"messages-{rank}.json").write_text(json.dumps(messages.texts))
# What this rank holds, the weights under an adapter included.
digest = blake2b()
for weight in trainer.model.parameters():
    digest.update(getattr(weight, "ds_tensor", weight).detach().numpy())
(given.folder / f"weights-{rank}.txt").write_text(digest.hexdigest())
accelerator = trainer.accelerator
if accelerator.is_main_process:
    seen = {
        "type": str(accelerator.distributed_type),
        "world": accelerator.num_processes,
        "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
        "log": trainer.state.log_history,
    }
    (given.folder / "seen.json").write_text(json.dumps(seen))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
