"""Trainings that act on alignment, one after the other in each process of a launch: mixes of teachers, and schedules.

What every rank has seen is written to seen-RANK.json, part by part.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import DeepSpeedPlugin

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ending import leave
from support.gated_runs import dialogues, distillation, gkd, grpo, models, verifier
from support.scripted_schedule import Scripted, ScriptedSchedule
from support.trainings import ARITHMETIC, TINY, held_out
from transformers import TrainerCallback
from trl import DistillationTrainer

from opd_align.backends.loading import load_model
from opd_align.training import (
    AlignmentCallback,
    AlignmentSchedule,
    DivergenceAbove,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    IncorrectOnly,
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
COMMON: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 4 // WORLD}
if given.backend:
    COMMON |= {"ddp_backend": given.backend, "ddp_timeout": 60}
if given.deepspeed:
    COMMON["use_cpu"] = False  # with use_cpu=True, DeepSpeed is silently disabled
    finish = DeepSpeedPlugin.__post_init__

    def shard_all(plugin: Any) -> None:
        """ZeRO-3 would keep the weights of such small models on all processes, and gather nothing."""
        finish(plugin)
        plugin.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0

    DeepSpeedPlugin.__post_init__ = shard_all
SHORT = COMMON | {"max_completion_length": 16, "top_k": 1}
OWN: dict[str, Any] = {"gate": Open(), "denominator": "keep"}


def digest(model: Any) -> str:
    """Of the weights that this rank holds."""
    found = blake2b(digest_size=8)
    for weight in model.parameters():
        local = weight.to_local() if hasattr(weight, "to_local") else getattr(weight, "ds_tensor", weight)
        found.update(local.detach().numpy())
    return found.hexdigest()


def seen_of(run: Any, **more: Any) -> dict[str, Any]:
    sharded = [weight for weight in run.trainer.model.parameters() if hasattr(weight, "ds_tensor")]
    assert not any(weight.ds_persist or weight.numel() for weight in sharded)
    keys = ("loss", "grad_norm", "mix/", "gate/", "schedule/")
    rows = [{key: value for key, value in row.items() if key.startswith(keys)} for row in run.logs]
    return {"logs": rows, "weights": digest(run.trainer.model), "step": run.trainer.state.global_step, **more}


def hinted(rows: Any) -> Any:
    return rows.add_column(CORRECT_HINT, [f"There are {row['answer']}.\nAnswer: {row['answer']}" for row in rows])


def hinted_trainer(**arguments: Any) -> GatedDistillationTrainer:
    return GatedDistillationTrainer(**(arguments | {"train_dataset": hinted(arguments["train_dataset"])}))


def three_members(kind: type[TeacherMix] = TeacherMix, **options: Any) -> TeacherMix:
    careless = load_model("embedded:careless").model
    return kind({"good": models()["teacher_model"], "careless": careless, "Self-1C": "Self-1C"}, **options)


# -- a mix


def neutral() -> dict[str, Any]:
    """One teacher and a schedule that never acts, beside TRL's own training."""
    plain = distillation(DistillationTrainer, given.folder / "plain", options=SHORT)
    mix = TeacherMix({"only": models()["teacher_model"]})
    kind = scheduled(GatedDistillationTrainer, {0: 0.5, 1: 0.5}, on_harm="stop")
    ours = distillation(kind, given.folder / "ours", teacher_model=mix, options=SHORT, **OWN)
    accelerator = ours.trainer.accelerator
    stage = getattr(accelerator.state.deepspeed_plugin, "zero_stage", None)
    launched = [str(accelerator.distributed_type), stage, accelerator.num_processes]
    return {"launched": launched, "plain": seen_of(plain), "ours": seen_of(ours)}


class Fixed(TeacherMix):
    """Of the four rollouts of a step process 0 has the first two, of one teacher, and process 1 those of two others."""

    drawn = np.array([0, 0, 1, 2])

    def draw(self, rows: Any) -> Any:
        return self.drawn[RANK * len(rows) :][: len(rows)]


class FixedModels(Fixed):
    drawn = np.array([0, 0, 1, 0])


class Harmful(Fixed):
    """Process 0 has no teacher."""

    drawn = np.array([-1, -1, 0, 2])


def overflowing(mix: TeacherMix) -> TeacherMix:
    """On process 0 of two, which distills from no teacher, the first one's hidden states are infinite."""

    def overflow(module: Any, args: Any, output: Any) -> None:
        output.last_hidden_state = torch.full_like(output.last_hidden_state, torch.inf)

    if WORLD > 1 and RANK == 0:
        mix.pool.sources["good"].base_model.register_forward_hook(overflow)
    return mix


def fixed() -> dict[str, Any]:
    """Processes whose micro-batches have different teachers, and different numbers of them."""
    own = {"gate": DivergenceAbove(threshold=0.02), "denominator": "keep"}
    checkpointing = {"gradient_checkpointing": True}
    rewarded = {"gate": IncorrectOnly(verifier, unknown="drop"), "denominator": "keep"}
    both = FixedModels({"good": models()["teacher_model"], "careless": load_model("embedded:careless").model})
    quantile = {"gate": DivergenceAbove(quantile=0.5), "denominator": "renormalise"}
    runs = {
        "distillation": distillation(
            hinted_trainer, given.folder, teacher_model=three_members(Fixed), options=SHORT, **own
        ),
        "harmful": distillation(
            hinted_trainer, given.folder, teacher_model=overflowing(three_members(Harmful)),
            options=SHORT | checkpointing, **own,
        ),
        "gkd": gkd(
            GatedGKDTrainer, given.folder, data=hinted(dialogues()), teacher_model=three_members(Fixed),
            options=COMMON, **quantile,
        ),
        "grpo": grpo(GatedGRPOTrainer, given.folder, teacher_model=both, options=SHORT, **rewarded),
    }  # fmt: skip
    return {name: seen_of(run) for name, run in runs.items()}


def followed() -> dict[str, Any]:
    """Two models and a context, weighted by evaluations; whole, and resumed from its checkpoint."""
    found = {}
    for name, resume in (("whole", None), ("resumed", str(given.folder / "followed" / "checkpoint-2"))):
        mix = three_members()

        def trainer_of(mix: TeacherMix = mix, resume: str | None = resume, **arguments: Any) -> Any:
            trainer = hinted_trainer(**arguments)
            callback = AlignmentCallback(
                trainer, held_out(6), ARITHMETIC, every_n_steps=2, budget=TINY, max_overhead=None, on_error="raise"
            )
            trainer.add_callback(callback)
            mix.follow(callback)
            train = trainer.train
            trainer.train = lambda: train(resume_from_checkpoint=resume)
            return trainer

        saved = {"max_steps": 1} if given.deepspeed else {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
        options = COMMON | {"max_completion_length": 72} | saved
        run = distillation(trainer_of, given.folder / "followed", teacher_model=mix, options=options, **OWN)
        weights = {kind: weight_K.tolist() for kind, weight_K in mix.weights.items()}
        known = {teacher: [each.step for each in mix.log.of(teacher) if each.known] for teacher in mix.names}
        found[name] = seen_of(run, mix=weights, known=known)
        if given.deepspeed:
            break
    return found


# -- schedules

RUIN = {0: 0.4, 1: 0.4, 2: 0.4, 3: -0.4, 4: -0.5, 5: -0.5}


class WeightsByStep(TrainerCallback):
    def __init__(self) -> None:
        self.found: dict[int, str] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found[state.global_step] = digest(model)


class Damage(TrainerCallback):
    """Damages the snapshots of process 1 before the schedule returns to one of them."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for file in Path(args.output_dir).rglob("rollback/*/rank-1.pt") if state.global_step == 3 and RANK else ():
            file.write_bytes(b"damaged")


def scheduled(
    kind: Callable[..., Any], script: dict[int, float], *more: TrainerCallback, pass_rates: Any = None, **options: Any
) -> Any:
    """Trainers of a kind, with a schedule that reads the script."""

    def make(**arguments: Any) -> Any:
        trainer = kind(**arguments)
        callback = Scripted(trainer, script, pass_rates=pass_rates)
        for each in (callback, *more, ScriptedSchedule(callback, **options), WeightsByStep()):
            trainer.add_callback(each)
        return trainer

    return make


def ended(run: Any, **more: Any) -> dict[str, Any]:
    callbacks = run.trainer.callback_handler.callbacks
    (schedule,) = [each for each in callbacks if isinstance(each, AlignmentSchedule)]
    (weights,) = [each for each in callbacks if isinstance(each, WeightsByStep)]
    left = sorted(str(each) for each in Path(run.trainer.args.output_dir).rglob("rollback/**/*.pt"))
    acted = {"ended_at": schedule.ended_at, "returned_to": schedule.returned_to, "left": len(left)}
    return seen_of(run, by_step=weights.found, **acted, **more)


HELPS = dict.fromkeys(range(9), 0.5)
FALLING = {
    step: {f"q{i}": mean + 0.05 * (i % 3) for i in range(12)} for step, mean in enumerate((0.5, 0.6, 0.58, 0.3, 0.3))
}
"""The student becomes worse, though the teacher seems to help."""


def schedules() -> dict[str, Any]:
    """What a schedule does with a teacher that ruins the student."""
    options = SHORT | {"max_steps": 6}
    mix = {"teacher_model": three_members(weights={"good": 1.0, "careless": 1.0, "Self-1C": 1.0})}
    if given.deepspeed:
        run = distillation(
            scheduled(hinted_trainer, RUIN, on_harm="stop"), given.folder / "stop", options=options, **mix, **OWN
        )
        found, refused = ended(run), {}
        run.trainer.remove_callback(ScriptedSchedule)
        for name, asked in (("rollback", {}), ("zero", {"on_harm": "zero"}), ("harms", {"when": "harms"})):
            try:
                AlignmentSchedule(Scripted(run.trainer, {}), **({"on_harm": "stop"} | asked if asked else {}))
            except OpdAlignError as error:
                refused[name] = str(error)
        return {"stop": found, "refused": refused}
    runs = {
        "rollback": distillation(
            scheduled(hinted_trainer, RUIN), given.folder / "rollback", options=options, **mix, **OWN
        ),
        "damaged": distillation(
            scheduled(DistillationTrainer, RUIN, Damage()), given.folder / "damaged", options=options
        ),
        "pass_rate": distillation(
            scheduled(DistillationTrainer, HELPS, pass_rates=FALLING, follow="pass_rate"), given.folder / "pass_rate",
            options=options,
        ),
        "zero": distillation(
            scheduled(DistillationTrainer, {0: 0.0, 1: -0.6, 2: -0.6}, on_harm="zero"), given.folder / "zero",
            options=options | {"max_steps": 4, "weight_decay": 0.1},
        ),
    }  # fmt: skip
    return {name: ended(run) for name, run in runs.items()}


PARTS = {"neutral": neutral, "fixed": fixed, "followed": followed, "schedules": schedules}
seen = {part: PARTS[part]() for part in given.parts}
(given.folder / f"seen-{RANK}.json").write_text(json.dumps(seen))
leave()
