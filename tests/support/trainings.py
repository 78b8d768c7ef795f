"""Real TRL trainers on the embedded models, small enough for tests: a few steps with few short completions."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from opd_align import AlignmentCallback
from opd_align.backends.loading import load_model, load_tokenizer
from opd_align.settings import Budget
from opd_align.tasks import task
from opd_align.types import Question

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# Some machines announce AMX but cannot execute it: bfloat16 would end the process. Read by oneDNN at its first use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

ARITHMETIC = task("arithmetic")
TOKENS = 72
TINY = Budget(initial=24, targeted=64, allocation="adaptive", rounds=2, correct_paths=1, incorrect_paths=1)

KINDS = ("gkd", "distillation", "grpo")
OTHERS = ("sdpo", "sdft", "iw_opd", "gold")


def fresh(name: str, **config: Any) -> Any:
    """An embedded model; `config` sets attributes of its config and of all modules that have them."""
    model = load_model(f"embedded:{name}").model
    for key, value in config.items():
        setattr(model.config, key, value)
        for module in model.modules():
            if hasattr(module, key):
                setattr(module, key, value)
    return model


def tokenizer() -> Any:
    return load_tokenizer("embedded:student")


def held_out(n: int = 3) -> list[Question]:
    return ARITHMETIC.load(split="test", limit=n)


def rows(n: int = 32) -> Dataset:
    return Dataset.from_list(
        [
            {
                "prompt": ARITHMETIC.messages(question),
                "answer": question.answer,
            }
            for question in ARITHMETIC.load(split="train", limit=n)
        ]
    )


def conversations(n: int = 32) -> Dataset:
    return Dataset.from_list(
        [
            {"messages": [*row["prompt"], {"role": "assistant", "content": f"Answer: {row['answer']}"}]}
            for row in rows(n)
        ]
    )


def make(kind: str, folder: Path, *, student: Any = None, **given: Any) -> Any:
    """A trainer; dropout and gradient checkpointing are on, so that tests notice an evaluation that disturbs them."""
    shared: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
        "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no", "seed": 5,
        "disable_tqdm": True, "gradient_checkpointing": True, "dataloader_pin_memory": False, "temperature": 0.9,
    }  # fmt: skip
    model = fresh("student", attention_dropout=0.1) if student is None else student
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "gkd":
            from trl.experimental.gkd import GKDConfig, GKDTrainer

            args: Any = GKDConfig(
                **(
                    shared
                    | {"max_new_tokens": TOKENS, "max_length": 128, "disable_dropout": False, "lmbda": 0.5}
                    | given
                )
            )
            return GKDTrainer(
                model, fresh("teacher"), args, train_dataset=conversations(), processing_class=tokenizer()
            )
        if kind == "distillation":
            from trl import DistillationConfig, DistillationTrainer

            args = DistillationConfig(**(shared | {"max_completion_length": TOKENS} | given))
            return DistillationTrainer(
                model=model,
                teacher_model=fresh("teacher"),
                args=args,
                train_dataset=rows(),
                processing_class=tokenizer(),
            )
        if kind in OTHERS:
            return _other(kind, model, shared | {"max_completion_length": TOKENS} | given)
        from trl import GRPOConfig, GRPOTrainer

        args = GRPOConfig(**(shared | {"max_completion_length": TOKENS, "num_generations": 2} | given))
        return GRPOTrainer(
            model=model, reward_funcs=ARITHMETIC.verifier, args=args, train_dataset=rows(), processing_class=tokenizer()
        )


def _other(kind: str, model: Any, given: dict[str, Any]) -> Any:
    common = {"model": model, "processing_class": tokenizer()}
    if kind == "sdpo":
        from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

        config = SDPOConfig(**({"num_generations": 2, "teacher_model_kind": "live"} | given))
        return SDPOTrainer(**common, reward_funcs=ARITHMETIC.verifier, args=config, train_dataset=rows())
    if kind == "sdft":
        from trl.experimental.sdft import SDFTConfig, SDFTTrainer

        with_context = rows().map(lambda row: {"privileged_context": f"Answer: {row['answer']}"})
        config = SDFTConfig(**({"num_generations": 2, "teacher_model_kind": "live"} | given))
        return SDFTTrainer(**common, args=config, train_dataset=with_context)
    if kind == "iw_opd":
        from trl.experimental.iw_opd import IWOPDConfig, IWOPDTrainer

        return IWOPDTrainer(
            **common, teacher_model=fresh("teacher"), args=IWOPDConfig(**given), train_dataset=conversations()
        )
    from trl.experimental.gold import GOLDConfig, GOLDTrainer

    return GOLDTrainer(
        **common, teacher_model=fresh("teacher"), args=GOLDConfig(**given), train_dataset=conversations()
    )


def add_alignment(trainer: Any, **options: Any) -> AlignmentCallback:
    """Adds an `AlignmentCallback` that evaluates at every step with a small budget."""
    defaults: dict[str, Any] = {"every_n_steps": 1, "max_overhead": None, "budget": TINY}
    questions, verifier = options.pop("questions", held_out()), options.pop("verifier", ARITHMETIC)
    callback = AlignmentCallback(trainer, questions, verifier, **(defaults | options))
    trainer.add_callback(callback)
    return callback


TIMES = ("runtime", "per_second", "step_time", "total_flos")


def trainer_rows(trainer: Any) -> list[dict[str, Any]]:
    """The rows that the trainer itself logged, without durations."""
    own = [row for row in trainer.state.log_history if not any(key.startswith("opd_align/") for key in row)]
    return [{key: value for key, value in row.items() if not any(part in key for part in TIMES)} for row in own]


def same_weights(one: Any, other: Any) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
