"""Short gated runs one after the other, listed in a JSON file; each process of a launch executes this script.

Writes the results of the main process to results.json beside it, by name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support.ending import leave
from support.gated_runs import distillation, gkd, grpo, models, verifier
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from opd_align.training import (
    DivergenceAbove,
    FunctionGate,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    IncorrectOnly,
    SignAgrees,
    trl_compat,
)
from opd_align.training.gate_runtime import GateRuntime
from opd_align.types import OpdAlignError

parser = argparse.ArgumentParser()
parser.add_argument("cases", type=Path)
parser.add_argument("--backend", default=None)
parser.add_argument("--deepspeed", action="store_true")
given = parser.parse_args()

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
COMMON: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 8 // WORLD}
if given.backend:
    COMMON["ddp_backend"] = given.backend
if given.deepspeed:
    COMMON["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled


def beginning(batch: Any) -> torch.Tensor:
    return (torch.arange(batch.mask_BT.shape[1]) < 5).expand_as(batch.mask_BT)


def overflowing(teacher: Any) -> Any:
    """On the main process only, the teacher's hidden states overflow at the end of the first completion."""

    def overflow(module: Any, args: Any, output: Any) -> None:
        output.last_hidden_state = output.last_hidden_state.clone()
        output.last_hidden_state[0, -30:] = torch.inf

    if RANK == 0:
        teacher.base_model.register_forward_hook(overflow)
    return teacher


def without_its_gate(folder: Path, own: dict[str, Any]) -> dict[str, Any]:
    """A DeepSpeed training whose loss does not use the kernel that is replaced: its error and its optimizer steps."""
    from deepspeed import DeepSpeedEngine

    steps, step = list[int](), DeepSpeedEngine.step
    error = None
    with (
        patch.object(DeepSpeedEngine, "step", lambda self, *args, **kw: steps.append(1) or step(self, *args, **kw)),
        patch.object(trl_compat, "replaced_kernel", lambda apply: nullcontext()),
        patch.object(GateRuntime, "log_step", lambda self, *args: None),
    ):
        try:
            distillation(GatedDistillationTrainer, folder, **own)
        except OpdAlignError as raised:
            error = str(raised)
    return {"error": error, "steps": len(steps)}


GATES = {
    "beginning": lambda: FunctionGate(beginning, measures=()),
    "incorrect": lambda: IncorrectOnly(verifier, unknown="drop"),
    "quantile": lambda: IncorrectOnly(verifier, correct_weight=0.5, unknown="drop") * DivergenceAbove(quantile=0.6),
    "threshold": lambda: DivergenceAbove(threshold=0.02) * SignAgrees(verifier, unknown="keep"),
}


def result_of(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    unset_hf_deepspeed_config()  # of the run before: models that are loaded ahead would be sharded
    # Greedy decoding: however the batch is split, the completions are the same.
    options = COMMON if case["trainer"] == "gkd" or case.get("ungated") else {"top_k": 1, **COMMON}
    own = {"gate": GATES[case["gate"]](), "denominator": case["denominator"], "options": options}
    if case.get("overflow"):
        own["teacher_model"] = overflowing(models()["teacher_model"])
    if case.get("ungated"):
        return without_its_gate(folder, own)
    if case["trainer"] == "gkd":
        run = gkd(GatedGKDTrainer, folder, **own)
    elif case["trainer"] == "distillation":
        run = distillation(GatedDistillationTrainer, folder, **own)
    else:
        run = grpo(GatedGRPOTrainer, folder, teacher_model=models()["teacher_model"], **own)
    accelerator = run.trainer.accelerator
    return {
        "kind": str(accelerator.distributed_type),
        "processes": accelerator.num_processes,
        "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
        "logs": run.logs,
    }


cases = json.loads(given.cases.read_text())
results = {name: result_of(case, given.cases.parent / name) for name, case in cases.items()}
if RANK == 0:
    (given.cases.parent / "results.json").write_text(json.dumps(results))
leave()
