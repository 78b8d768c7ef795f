"""A short training with the callback, in one or several processes; writes its logs to seen.json, and the model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.trainings import ARITHMETIC, TINY, fresh, held_out, make

from opd_align import AlignmentCallback

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("folder", type=Path)
parser.add_argument("--backend", default=None)
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--unwatched", action="store_true")
parser.add_argument("--extra", action="store_true", help="also a teacher that the user loads, as ZeRO-3 loads models")
parser.add_argument("--own-folders", action="store_true", help="no shared disk: each rank has an output_dir of its own")
parser.add_argument("--outside", action="store_true", help="leave snapshots for a watcher")
parser.add_argument("--student", default=None, help="evaluate this model once instead of training")
given = parser.parse_args()

torch.set_num_threads(1)
options = {"ddp_backend": given.backend} if given.backend else {}
if given.deepspeed:
    options["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled
output = given.folder / f"rank{os.environ['RANK']}" if given.own_folders else given.folder
student = fresh("student")
if given.student:
    student = type(student).from_pretrained(given.student, dtype=torch.float32)
trainer = make(
    given.kind, output, student=student, max_steps=2, per_device_train_batch_size=2, seed=3, temperature=1.0,
    gradient_checkpointing=False, **options,
)  # fmt: skip
callback = None
if not given.unwatched:
    teachers = {"Self-1C": "Self-1C"}
    if given.extra:
        teachers["another"] = fresh("teacher")
        assert all(weight.numel() == 0 < weight.ds_numel for weight in teachers["another"].parameters())
    callback = AlignmentCallback(
        trainer, held_out(3), ARITHMETIC, every_n_steps=2, max_overhead=None, budget=TINY, teachers=teachers,
        on_error="raise", where="outside" if given.outside else "inside",
    )  # fmt: skip
    # Three groups for two processes: unequal work.
    callback.settings = replace(callback.settings, questions_per_group=1)
    trainer.add_callback(callback)
if given.student:
    callback.evaluator.demonstrations.load(0)  # as a resumed training does
    callback.evaluate()
else:
    trainer.train()
    trainer.save_model(str(given.folder / "model"))
accelerator = trainer.accelerator
if accelerator.is_main_process:
    seen = {
        "type": str(accelerator.distributed_type),
        "world": accelerator.num_processes,
        "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
        "log": [*trainer.state.log_history, *([] if callback is None else callback.log_history)],
    }
    (given.folder / "seen.json").write_text(json.dumps(seen))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
