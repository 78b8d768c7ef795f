"""Trainings that act on alignment, one after the other in each process of a launch: mixes of teachers, and schedules.

What every rank has seen is written to seen-RANK.json, part by part.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import DeepSpeedPlugin

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import gated_runs
from support.gated_runs import dialogues, distillation, gkd, models, prompts
from support.scripted_schedule import Scripted, ScriptedSchedule
from support.trainings import ARITHMETIC, TINY, held_out
from trl import DistillationTrainer

from opd_align.backends.loading import load_model
from opd_align.training import (
    AlignmentCallback,
    AlignmentSchedule,
    DivergenceAbove,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    Open,
    TeacherMix,
)
from opd_align.training.contrast import CORRECT_HINT
from opd_align.types import OpdAlignError

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("parts", nargs="+")
parser.add_argument("--backend", default=None)
parser.add_argument("--deepspeed", action="store_true")
given = parser.parse_args()

torch.set_num_threads(1)
faulthandler.dump_traceback_later(400, exit=True)  # a deadlock shows where it is
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SHORT: dict[str, Any] = {"max_completion_length": 16, "top_k": 1, "per_device_train_batch_size": 4 // WORLD}
if given.backend:
    SHORT |= {"ddp_backend": given.backend, "ddp_timeout": 60}
if given.deepspeed:
    SHORT["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled
    finish = DeepSpeedPlugin.__post_init__

    def shard_all(plugin: Any) -> None:
        """ZeRO-3 would keep the weights of such small models on all processes, and gather nothing."""
        finish(plugin)
        plugin.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0

    DeepSpeedPlugin.__post_init__ = shard_all


def digest(trainer: Any) -> str:
    """Of the weights that this rank holds."""
    found = blake2b(digest_size=8)
    for weight in trainer.model.parameters():
        local = weight.to_local() if hasattr(weight, "to_local") else getattr(weight, "ds_tensor", weight)
        found.update(local.detach().numpy())
    return found.hexdigest()


def seen_of(run: Any, **more: Any) -> dict[str, Any]:
    assert not any(getattr(weight, "ds_persist", False) for weight in run.trainer.model.parameters())
    keys = ("loss", "grad_norm", "mix/", "gate/", "schedule/")
    rows = [{key: value for key, value in row.items() if key.startswith(keys)} for row in run.logs]
    return {"logs": rows, "weights": digest(run.trainer), "step": run.trainer.state.global_step, **more}


def hinted(rows: Any) -> Any:
    return rows.add_column(CORRECT_HINT, [f"There are {row['answer']}.\nAnswer: {row['answer']}" for row in rows])


def three_members(kind: type = TeacherMix, **options: Any) -> TeacherMix:
    careless = load_model("embedded:careless").model
    return kind({"good": models()["teacher_model"], "careless": careless, "Self-1C": "Self-1C"}, **options)


# -- parts


def neutral() -> dict[str, Any]:
    """One teacher and a schedule that never acts, beside TRL's own training."""
    options = SHORT | {"max_steps": 2}
    plain = distillation(DistillationTrainer, given.folder / "plain", options=options)

    def scheduled(**arguments: Any) -> Any:
        trainer = GatedDistillationTrainer(**arguments)
        callback = Scripted(trainer, {0: 0.5, 1: 0.5})
        trainer.add_callback(callback)
        trainer.add_callback(ScriptedSchedule(callback, on_harm="stop"))
        return trainer

    mix = TeacherMix({"only": models()["teacher_model"]})
    own = {"teacher_model": mix, "gate": Open(), "denominator": "keep", "options": options}
    ours = distillation(scheduled, given.folder / "ours", **own)
    accelerator = ours.trainer.accelerator
    return {
        "kind": str(accelerator.distributed_type), "world": accelerator.num_processes,
        "stage": getattr(accelerator.state.deepspeed_plugin, "zero_stage", None),
        "plain": seen_of(plain), "ours": seen_of(ours),
    }  # fmt: skip


class Fixed(TeacherMix):
    """Of the four rollouts of a step process 0 has the first two, of one teacher, and process 1 those of two others."""

    drawn = np.array([0, 0, 1, 2])

    def draw(self, rows: Any) -> Any:
        return self.drawn[RANK * len(rows) :][: len(rows)]


class Harmful(Fixed):
    """Process 0 has no teacher."""

    drawn = np.array([-1, -1, 0, 2])


def fixed() -> dict[str, Any]:
    """Micro-batches of different teachers on the processes, and a gate that looks at each token."""
    found = {}
    original = gated_runs.prompts
    gated_runs.prompts = lambda: hinted(original())
    try:
        for kind in (Fixed, Harmful):
            own = {"teacher_model": three_members(kind), "gate": DivergenceAbove(threshold=0.02), "denominator": "keep"}
            run = distillation(GatedDistillationTrainer, given.folder, **own, options=SHORT | {"max_steps": 2})
            found[f"distillation {kind.__name__}"] = seen_of(run)
    finally:
        gated_runs.prompts = original
    options = {key: value for key, value in SHORT.items() if key not in ("max_completion_length", "top_k")}
    own = {"teacher_model": three_members(Fixed), "gate": DivergenceAbove(quantile=0.5), "denominator": "renormalise"}
    data = hinted(dialogues())
    found["gkd Fixed"] = seen_of(gkd(GatedGKDTrainer, given.folder, data=data, **own, options=options | {"max_steps": 2}))
    return found


def followed() -> dict[str, Any]:
    """Two models and a context, weighted by evaluations; a resumed training ends as the one that was not interrupted."""
    found = {}
    for name, resume in (("whole", None), ("resumed", str(given.folder / "followed" / "checkpoint-2"))):
        mix, made = three_members(), {}

        def trainer_of(mix: TeacherMix = mix, made: dict[str, Any] = made, **arguments: Any) -> Any:
            arguments["train_dataset"] = hinted(prompts())
            trainer = GatedDistillationTrainer(**arguments)
            callback = AlignmentCallback(
                trainer, held_out(5), ARITHMETIC, every_n_steps=2, budget=TINY, max_overhead=None, on_error="raise"
            )
            trainer.add_callback(callback)
            mix.follow(callback)
            train = trainer.train
            trainer.train = lambda: train(resume_from_checkpoint=resume)
            return trainer

        options = SHORT | {"max_steps": 3, "max_completion_length": 72, "save_strategy": "steps", "save_steps": 2}
        own = {"teacher_model": mix, "gate": Open(), "denominator": "keep", "options": options}
        run = distillation(trainer_of, given.folder / "followed", **own)
        weights = {kind: weight_K.tolist() for kind, weight_K in mix.weights.items()}
        readings = {name: [each.step for each in mix.log.of(name) if each.known] for name in mix.names}
        found[name] = seen_of(run, mix=weights, readings=readings)
        if given.deepspeed:
            break
    return found


PARTS = {"neutral": neutral, "fixed": fixed, "followed": followed}
seen = {part: PARTS[part]() for part in given.parts}
(given.folder / f"seen-{RANK}.json").write_text(json.dumps(seen))
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
