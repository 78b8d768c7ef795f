"""One short training with two teachers; the processes draw different numbers of teachers in each micro-batch."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from support.gated_runs import distillation, models

from opd_align.backends.loading import load_model
from opd_align.training import DivergenceAbove, GatedDistillationTrainer, TeacherMix

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
# Of the four rollouts of a step: process 0 has the first two, all of one teacher, and process 1 has both teachers.
DRAWN = np.array([0, 0, 0, 1])


class Fixed(TeacherMix):
    def draw(self, rows):
        return DRAWN[RANK * len(rows) :][: len(rows)]


folder = Path(sys.argv[1])
mix = Fixed({"good": models()["teacher_model"], "careless": load_model("embedded:careless").model})
options = {"max_steps": 2, "top_k": 1, "max_completion_length": 16, "per_device_train_batch_size": 4 // WORLD}
if WORLD > 1:
    options |= {"ddp_backend": "gloo", "ddp_timeout": 60}
own = {"teacher_model": mix, "gate": DivergenceAbove(threshold=0.02), "denominator": "keep", "options": options}
run = distillation(GatedDistillationTrainer, folder, **own)
if RANK == 0:
    (folder / f"{WORLD}.json").write_text(
        json.dumps({"processes": run.trainer.accelerator.num_processes, "logs": run.logs})
    )
