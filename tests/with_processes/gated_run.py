"""One short gated run, told by a JSON file; each process of a launch executes this."""

import json
import os
import sys
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
)


def beginning(batch):
    return (torch.arange(batch.mask_BT.shape[1]) < 5).expand_as(batch.mask_BT)


def overflowing(teacher):
    """On the main process alone, the end of its first completion is beyond the teacher."""

    def spoil(module, args, output):
        output.last_hidden_state = output.last_hidden_state.clone()
        output.last_hidden_state[0, -30:] = torch.inf

    if int(os.environ.get("RANK", 0)) == 0:
        teacher.base_model.register_forward_hook(spoil)
    return teacher


GATES = {
    "beginning": FunctionGate(beginning, measures=()),
    "incorrect": IncorrectOnly(verifier, unknown="drop"),
    "quantile": IncorrectOnly(verifier, correct_weight=0.5, unknown="drop") * DivergenceAbove(quantile=0.6),
    "threshold": DivergenceAbove(threshold=0.02) * SignAgrees(verifier, unknown="keep"),
}

told = json.loads(Path(sys.argv[1]).read_text())

options = {"max_steps": 2, **told["options"]}
own = {"gate": GATES[told["gate"]], "denominator": told["denominator"], "options": options}
if told.get("overflow"):
    own["teacher_model"] = overflowing(models()["teacher_model"])
if told["trainer"] == "gkd":
    run = gkd(GatedGKDTrainer, told["folder"], **own)
elif told["trainer"] == "distillation":
    # The likeliest token each time: every division of the batch generates the same completions.
    run = distillation(GatedDistillationTrainer, told["folder"], **own | {"options": {"top_k": 1, **options}})
else:
    own["options"] = {"top_k": 1, **options}
    run = grpo(GatedGRPOTrainer, told["folder"], teacher_model=models()["teacher_model"], **own)

accelerator = run.trainer.accelerator
if accelerator.is_main_process:
    stage = accelerator.state.deepspeed_plugin.zero_stage if accelerator.state.deepspeed_plugin else None
    result = {
        "kind": str(accelerator.distributed_type),
        "processes": accelerator.num_processes,
        "stage": stage,
        "logs": run.logs,
    }
    Path(told["result"]).write_text(json.dumps(result))
