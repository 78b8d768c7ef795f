"""One short gated run, told by a JSON file; each process of a launch executes this."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from training_runs import distillation, gkd, grpo, models, verifier

from opd_align.training import (
    DivergenceAbove,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    IncorrectOnly,
    SignAgrees,
)

GATES = {
    "incorrect": IncorrectOnly(verifier, unknown="drop"),
    "quantile": IncorrectOnly(verifier, correct_weight=0.5, unknown="drop") * DivergenceAbove(quantile=0.6),
    "threshold": DivergenceAbove(threshold=0.02) * SignAgrees(verifier, unknown="keep"),
}

told = json.loads(Path(sys.argv[1]).read_text())

options = {"max_steps": 2, **told["options"]}
own = {"gate": GATES[told["gate"]], "denominator": told["denominator"], "options": options}
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
