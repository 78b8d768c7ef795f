"""One short gated run, configured by a JSON file; each process of a launch executes this script."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from support.gated_runs import distillation, gkd, grpo, models, verifier

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


def beginning(batch):
    return (torch.arange(batch.mask_BT.shape[1]) < 5).expand_as(batch.mask_BT)


def overflowing(teacher):
    """On the main process only, the teacher's hidden states overflow at the end of the first completion."""

    def overflow(module, args, output):
        output.last_hidden_state = output.last_hidden_state.clone()
        output.last_hidden_state[0, -30:] = torch.inf

    if int(os.environ.get("RANK", 0)) == 0:
        teacher.base_model.register_forward_hook(overflow)
    return teacher


def without_its_gate(case, own):
    """A DeepSpeed training whose loss does not use the kernel that is replaced: its error and its optimizer steps."""
    from deepspeed import DeepSpeedEngine

    steps, step = [], DeepSpeedEngine.step
    DeepSpeedEngine.step = lambda self, *args, **kwargs: steps.append(1) or step(self, *args, **kwargs)
    trl_compat.replaced_kernel = lambda apply: nullcontext()
    GateRuntime.log_step = lambda self, *args: None
    try:
        distillation(GatedDistillationTrainer, case["folder"], **own)
    except OpdAlignError as error:
        return {"error": str(error), "steps": len(steps)}
    return {"error": None, "steps": len(steps)}


GATES = {
    "beginning": FunctionGate(beginning, measures=()),
    "incorrect": IncorrectOnly(verifier, unknown="drop"),
    "quantile": IncorrectOnly(verifier, correct_weight=0.5, unknown="drop") * DivergenceAbove(quantile=0.6),
    "threshold": DivergenceAbove(threshold=0.02) * SignAgrees(verifier, unknown="keep"),
}

case = json.loads(Path(sys.argv[1]).read_text())

options = {"max_steps": 2, **case["options"]}
own = {"gate": GATES[case["gate"]], "denominator": case["denominator"], "options": options}
if case.get("overflow"):
    own["teacher_model"] = overflowing(models()["teacher_model"])
if case.get("ungated"):
    result = without_its_gate(case, own)
    if int(os.environ["RANK"]) == 0:
        Path(case["result"]).write_text(json.dumps(result))
    sys.exit()
if case["trainer"] == "gkd":
    run = gkd(GatedGKDTrainer, case["folder"], **own)
elif case["trainer"] == "distillation":
    # Greedy decoding: however the batch is split, the completions are the same.
    run = distillation(GatedDistillationTrainer, case["folder"], **own | {"options": {"top_k": 1, **options}})
else:
    own["options"] = {"top_k": 1, **options}
    run = grpo(GatedGRPOTrainer, case["folder"], teacher_model=models()["teacher_model"], **own)

accelerator = run.trainer.accelerator
if accelerator.is_main_process:
    stage = accelerator.state.deepspeed_plugin.zero_stage if accelerator.state.deepspeed_plugin else None
    result = {
        "kind": str(accelerator.distributed_type),
        "processes": accelerator.num_processes,
        "stage": stage,
        "logs": run.logs,
    }
    Path(case["result"]).write_text(json.dumps(result))
