"""Short trainings with the callback, one after the other, in one or several processes: watched.py FOLDER RUN...

Each run has a folder of its own, with its logs in seen.json and its model.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ending import leave
from support.trainings import ARITHMETIC, TINY, fresh, held_out, make
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from opd_align import AlignmentCallback


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        kind: The trainer.
        watched: With the callback.
        extra: Also a teacher that the user loads, as ZeRO-3 loads models.
        own_folders: No shared disk: each rank has an output folder of its own.
        outside: Leaves snapshots for a watcher.
        again: Evaluates the final model of another run once, instead of training.
    """

    kind: str = "distillation"
    watched: bool = True
    extra: bool = False
    own_folders: bool = False
    outside: bool = False
    again: bool = False


RUNS = {
    "distillation": Run(),
    "distillation-unwatched": Run(watched=False),
    "distillation-again": Run(again=True),
    "gkd": Run("gkd"),
    "gkd-extra": Run("gkd", extra=True),
    "gkd-unwatched": Run("gkd", watched=False),
    "gkd-again": Run("gkd", again=True),
    "own-folders": Run(own_folders=True),
    "outside": Run(outside=True),
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


def train(run: Run, folder: Path) -> None:
    unset_hf_deepspeed_config()  # of the run before: the student would be sharded while it is loaded
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"rank{os.environ['RANK']}" if run.own_folders else folder
    student = fresh("student")
    if run.again:
        student = type(student).from_pretrained(given.folder / run.kind / "model", dtype=torch.float32)
    trainer = make(
        run.kind, output, student=student, max_steps=2, per_device_train_batch_size=2, seed=3, temperature=1.0,
        gradient_checkpointing=False, **options,
    )  # fmt: skip
    callback = None
    if run.watched:
        teachers: dict[str, Any] = {"Self-1C": "Self-1C"}
        if run.extra:
            teachers["another"] = fresh("teacher")
            assert all(weight.numel() == 0 < weight.ds_numel for weight in teachers["another"].parameters())
        callback = AlignmentCallback(
            trainer, held_out(3), ARITHMETIC, every_n_steps=2, max_overhead=None, budget=TINY, teachers=teachers,
            on_error="raise", where="outside" if run.outside else "inside",
        )  # fmt: skip
        # Three groups for two processes: unequal work.
        callback.settings = replace(callback.settings, questions_per_group=1)
        trainer.add_callback(callback)
    if callback is not None and run.again:
        callback.evaluator.demonstrations.load(0)  # as a resumed training does
        callback.evaluate()
    else:
        trainer.train()
        trainer.save_model(str(folder / "model"))
    accelerator = trainer.accelerator
    if accelerator.is_main_process:
        seen = {
            "type": str(accelerator.distributed_type),
            "world": accelerator.num_processes,
            "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
            "log": [*trainer.state.log_history, *([] if callback is None else callback.log_history)],
        }
        (folder / "seen.json").write_text(json.dumps(seen))


for name in given.runs:
    train(RUNS[name], given.folder / name)
leave()
