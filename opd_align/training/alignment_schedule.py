"""`AlignmentSchedule`: distill while the teacher helps, and undo the harm that was done until it was noticed.

The strength of the distillation loss follows `core.alarm`: full while the teacher helps or nothing is known, less while
it fades, none while it harms, with the alarm's hysteresis. The alarm is late by its nature (docs/alarm.md), so stopping
alone ends below the best student. But once the decline is known, the readings on both sides of it date it: the
schedule keeps snapshots at evaluations and returns to the one at which the smoothed alignment, summed along the
training, was largest and had not crossed zero. Held-out accuracy is not looked at, unless the schedule is asked to
follow the pass rate instead: then it ends when that has surely fallen, and returns to where it was highest.

For a trainer with the distillation loss alone the strength is applied to the gradients: any TRL trainer of that kind
works, and at strength 1 nothing is touched. `GatedGRPOTrainer` reads the strength in its loss instead, where the reward
takes over what the teacher gives up. All decisions are made from the callback's analyses, which all processes share.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opd_align.core.alarm import LEVELS, Alarm, Level, alarms
from opd_align.core.random_walk import Reading, cumulative_gain, expected_alignment
from opd_align.report.history import FOLDER
from opd_align.training import trl_compat
from opd_align.training.alignment_readings import (
    MIN_READINGS,
    ReadingLog,
    distillation_objective,
    load_json,
    save_json,
)
from opd_align.training.distributed import RankNotResponding, max_wait, on_all_ranks
from opd_align.training.model_state import preserve_rng_state
from opd_align.training.pass_rates import PassRateLog
from opd_align.training.teacher_mix import mix_of
from opd_align.training.weight_snapshots import Place, WeightSnapshots
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

OnHarm = Literal["rollback", "stop", "zero"]
ON_HARM = ("rollback", "stop", "zero")
WHEN = ("fades", "harms")
FOLLOW = ("alignment", "pass_rate")

STATE = "opd_align_schedule.json"
"""File in a checkpoint with the state of the schedule."""

PURE = ("DistillationTrainer", "GKDTrainer")
"""Trainers whose loss is the distillation loss alone."""


@dataclass(frozen=True)
class Strength:
    """What the readings of all teachers say together.

    Args:
        level: The level of the teacher that helps most.
        p_helps: Its probability of helping; NaN before the first known reading.
        value: Strength of the distillation loss, in [0, 1].
    """

    level: Level = "unsure"
    p_helps: float = nan
    value: float = 1.0


def strength_of(states: Sequence[Alarm]) -> Strength:
    """The strength given the alarm's latest state of each teacher: distilling helps if one of them does."""
    if not states:
        return Strength()
    best = max(states, key=lambda state: (LEVELS[state.level], state.p_helps if isfinite(state.p_helps) else 0.5))
    value = {"helps": 1.0, "unsure": 1.0, "harms": 0.0}.get(best.level)
    # It fades from probability 0.5 on, and harms from 0.1 on: in between it gives way step by step.
    return Strength(best.level, best.p_helps, min(1.0, 2 * best.p_helps) if value is None else value)


def judge(readings_of: Sequence[Sequence[Reading]], *, min_readings: int = MIN_READINGS) -> Strength:
    """What the readings of all teachers say together; one with fewer known readings than that counts as unsure."""
    unsure = Alarm(0, nan, nan, nan, nan, "unsure")
    return strength_of(
        [
            alarms(readings)[-1] if sum(each.known for each in readings) >= min_readings else unsure
            for readings in readings_of
        ]
    )


def best_step(readings_of: Sequence[Sequence[Reading]], steps: Sequence[int]) -> int | None:
    """The step at which the training was best as far as alignment can tell; `None` if nothing is known.

    The largest summed alignment, at a step at which it is still above zero: where it crosses zero between two
    evaluations, the sums of both are about equal, and the student of the earlier one has not been harmed yet.

    Args:
        readings_of: The readings of each teacher.
        steps: The steps to choose from.
    """
    gain_of = gains(readings_of, steps)
    means = [expected_alignment(readings, steps) for readings in readings_of]
    helps = {step for mean_S in means for step, mean in zip(steps, mean_S, strict=True) if mean > 0}
    candidates = [step for step in gain_of if step in helps] or list(gain_of)
    return max(candidates, key=lambda step: (gain_of[step], step)) if candidates else None


def gains(readings_of: Sequence[Sequence[Reading]], steps: Sequence[int]) -> dict[int, float]:
    """The summed smoothed alignment until each step, of the teacher that gained most; unknown ones are absent."""
    known = [cumulative_gain(readings, steps) for readings in readings_of if any(each.known for each in readings)]
    if not known:
        return {}
    best_S = np.nanmax(np.array([np.where(np.isnan(each), -np.inf, each) for each in known]), axis=0)
    return {step: float(value) for step, value in zip(steps, best_S, strict=True) if isfinite(value)}


class AlignmentSchedule(TrainerCallback):
    """Distills while the teacher helps; stops, or returns to the best weights, when it no longer does.

    Add it to the trainer after the `AlignmentCallback` that it follows.

    Example:
        ```python
        callback = AlignmentCallback(trainer, held_out_rows, reward_function, every_n_steps=20)
        trainer.add_callback(callback)
        trainer.add_callback(AlignmentSchedule(callback, on_harm="rollback"))
        trainer.train()
        ```

    Args:
        callback: The `AlignmentCallback`, of a `DistillationTrainer`, a `GKDTrainer`, their gated forms, or a
            `GatedGRPOTrainer`.
        on_harm: What to do when the teacher no longer helps. `"rollback"`: return weights and optimizer to the
            evaluation at which the student was best as far as alignment can tell, then stop; a `GatedGRPOTrainer`
            continues from there with rewards alone. `"stop"`: stop, with the present weights (`GatedGRPOTrainer`:
            continue with rewards alone). `"zero"`: neither, the strength alone changes; without rewards, weights stay
            as they are at strength 0. `"rollback"` and `"stop"` do nothing before each teacher has two known readings;
            `"zero"`, which can be taken back, follows the first. A teacher that two evaluations could not measure is
            left out if there are readings of another one.
        follow: What decides. `"alignment"`: whether the teacher's update still helps. `"pass_rate"`: whether the
            student has surely become worse on the callback's questions (a paired test over questions against each
            earlier evaluation); a rollback returns to the evaluation with the largest pass rate. The strength is 1
            until then.
        when: Only with `follow="alignment"`. `"fades"`: as soon as the teacher is more likely to harm than to help,
            after it has helped, or harms. `"harms"`: when it harms with probability 0.9.
        max_snapshots: How many snapshots are kept for a rollback.
        snapshots: `"disk"`: in `<output_dir>/opd_align/rollback`, found again by a resumed training, and removed at
            the end of the training. `"memory"`: in host memory.

    Attributes:
        strength: The present strength of the distillation loss, in [0, 1].
        ended_at: The step at which distillation was ended; `None` before.
        returned_to: The step whose weights were restored; `None` if none were.
    """

    def __init__(
        self,
        callback: Any,
        *,
        on_harm: OnHarm = "rollback",
        follow: Literal["alignment", "pass_rate"] = "alignment",
        when: Literal["fades", "harms"] = "fades",
        max_snapshots: int = 6,
        snapshots: Place = "disk",
    ) -> None:
        if on_harm not in ON_HARM:
            raise OpdAlignError(f"on_harm must be 'rollback', 'stop' or 'zero', not {on_harm!r}")
        if when not in WHEN:
            raise OpdAlignError(f"when must be 'fades' or 'harms', not {when!r}")
        if follow not in FOLLOW:
            raise OpdAlignError(f"follow must be 'alignment' or 'pass_rate', not {follow!r}")
        if follow == "pass_rate" and on_harm == "zero":
            raise OpdAlignError(
                "on_harm='zero' needs follow='alignment': a pass rate that has fallen does not tell when the teacher "
                "helps again; use on_harm='rollback' or 'stop'"
            )
        if follow == "pass_rate" and when != "fades":
            raise OpdAlignError("when='harms' needs follow='alignment': it is a level of the alarm")
        if not hasattr(callback, "adapter") or not hasattr(callback, "latest_step"):
            raise OpdAlignError(f"a schedule follows an AlignmentCallback, not a {type(callback).__name__}")
        self.callback, self.on_harm, self.follow, self.when = callback, on_harm, follow, when
        self.trainer = trainer = callback.adapter.trainer
        self.rewarded = hasattr(trainer, "distillation_weight") and callback.adapter.kind == "GRPOTrainer"
        _check(trainer, callback, on_harm, when, rewarded=self.rewarded)
        # Under DeepSpeed gradients cannot be reached: the strength is 1 until the training ends.
        self._scales = self.rewarded or not trainer.is_deepspeed_enabled
        self.log = ReadingLog(callback.evaluator.distilled, turns=getattr(mix_of(trainer), "turns", 1))
        self.pass_rates = PassRateLog()
        folder = Path(trainer.args.output_dir) / FOLDER / "rollback"
        self.snapshots = WeightSnapshots(trainer, folder, place=snapshots, limit=max_snapshots)
        self._state = Strength()
        self.ended_at: int | None = None
        self.returned_to: int | None = None
        self.run = ""
        self._warned = self._failed = False
        self._left_out: set[str] = set()

    @property
    def strength(self) -> float:
        if self.ended_at is not None:
            return 0.0
        return self._state.value if self._scales and self.follow == "alignment" else 1.0

    @property
    def level(self) -> Level:
        """The level of the alarm, of the teacher that helps most."""
        return self._state.level

    # -- the trainer's events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        callbacks = self.trainer.callback_handler.callbacks
        if not any(each is self for each in callbacks):
            raise OpdAlignError("this AlignmentSchedule follows the callback of another trainer than the one it is in")
        if not any(each is self.callback for each in callbacks):
            raise OpdAlignError(
                "the AlignmentCallback that this AlignmentSchedule follows was not added to the trainer; call "
                "trainer.add_callback(callback) before you add the schedule"
            )
        stored = load_json(self.trainer, state, STATE, "the schedule")
        self.log.load_state_dict(stored)
        self.pass_rates.load_state_dict(stored.get("pass_rates", []))
        self.ended_at, self.returned_to = stored.get("ended_at"), stored.get("returned_to")
        if self.ended_at is not None and not self._scales:
            raise OpdAlignError(
                f"this training was ended by its AlignmentSchedule at step {self.ended_at}, so there is nothing to "
                "resume. To train on, resume without the schedule, or from an earlier checkpoint"
            )
        self._state = self._judge()
        with max_wait(args.ddp_timeout):
            self.run = stored.get("run") or on_all_ranks(lambda: uuid4().hex, "naming the training")[0]
            if self.on_harm == "rollback":
                self.snapshots.begin(state.global_step, self.run)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The evaluation before the first step, or of a callback that was added later. Where gradients are out of reach,
        # the step that follows cannot be held back: the training ends after it.
        self._act(state, control, may_end=self._scales)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._act(state, control)
        metrics = trl_compat.train_metrics(self.trainer)
        metrics["schedule/strength"].append(self.strength)
        if isfinite(self._state.p_helps):
            metrics["schedule/p_helps"].append(self._state.p_helps)
        if self.ended_at is not None and not self.rewarded and self.on_harm != "zero":
            control.should_training_stop = True

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.rewarded or not self._scales or self.strength == 1:
            return
        for weight in self.trainer.model.parameters():
            if weight.grad is not None and self.strength > 0:
                weight.grad.mul_(self.strength)
            elif weight.grad is not None:
                weight.grad = None  # an optimizer skips it: neither momentum nor weight decay moves the weight

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        own: dict[str, Any] = {"ended_at": self.ended_at, "returned_to": self.returned_to, "run": self.run}
        if self.follow == "pass_rate":
            own["pass_rates"] = self.pass_rates.state_dict()
        save_json(self.trainer, state, STATE, {**self.log.state_dict(), **own})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Removes the snapshots, unless the training may go on from its last checkpoint or a return to one failed."""
        finished = self.ended_at is not None or state.global_step >= state.max_steps
        if self.on_harm == "rollback" and finished and not self._failed:
            self.snapshots.clear()

    # -- one evaluation

    def _judge(self) -> Strength:
        unmeasured = self.log.unmeasured()
        left_out = [name for name, out in zip(self.log.teachers, unmeasured, strict=True) if out]
        for name in sorted({*left_out} - self._left_out):
            self._say(
                "%d evaluations could not measure teacher %r: the schedule follows the others until one does",
                self.log.evaluations, name,
            )  # fmt: skip
        self._left_out |= {*left_out}
        followed = [self.log.of(name) for name in self.log.teachers if name not in left_out]
        return judge(followed, min_readings=1 if self.on_harm == "zero" else MIN_READINGS)

    def _act(self, state: TrainerState, control: TrainerControl, *, may_end: bool = True) -> None:
        step = state.global_step
        if self.ended_at is not None:
            return
        rollback = self.on_harm == "rollback"
        evaluated = self.callback.schedule.last_step == step
        if rollback and evaluated and step not in self.snapshots.steps:
            self._snapshot(step)
        if self.log.take(self.callback):
            self._state = self._judge()
        if self.follow == "pass_rate":
            self.pass_rates.take(self.callback)
        if rollback and evaluated:  # also while evaluations fail
            self._keep_snapshots()
        reason = self._reason()
        if reason and not self._warned:
            self._warned = True
            self._say(reason)
        if reason and self.on_harm != "zero" and may_end:
            self._end(step, control)

    def _reason(self) -> str:
        """Why distillation should end now; empty if it should not."""
        if self.follow == "alignment":
            if LEVELS[self.level] > LEVELS[self.when]:
                return ""
            teachers = ", ".join(self.log.teachers)
            return f"{teachers}: the teacher {self.level} (it helps with probability {self._state.p_helps:.2f})"
        fall = self.pass_rates.decline()
        if fall is None or not fall.sure:
            return ""
        return (
            f"The student has become worse: its pass rate is {fall.now:.2f}, and was {fall.before:.2f} at step "
            f"{fall.since} on the same questions (p = {fall.p_value:.1g})"
        )

    def _snapshot(self, step: int) -> None:
        try:
            with preserve_rng_state():
                self.snapshots.take(step)
        except OSError as error:  # a full disk: the training goes on, with one snapshot less to return to
            logger.warning("No snapshot at step %d to return to: %s", step, error)

    def _keep_snapshots(self) -> None:
        # An evaluation outside of the training comes later: the snapshot before the latest one waits for it too.
        latest = 1 if getattr(self.callback, "outside", None) is None else 2
        steps = self.snapshots.steps
        by_rate = self.follow == "pass_rate"
        gain_of = self.pass_rates.means(steps) if by_rate else gains(self._readings(), steps)
        known = {step: gain for step, gain in gain_of.items() if self.log.step is not None and step <= self.log.step}
        self.snapshots.keep(known, latest=latest)

    def _end(self, step: int, control: TrainerControl) -> None:
        self.ended_at = step
        if self.on_harm == "rollback":
            self._return(step)
        then = "continuing with rewards alone" if self.rewarded else "ending the training"
        if self.returned_to is None:
            self._say("Distillation ends at step %d, %s", step, then)
        else:
            self._say(
                "Distillation ends at step %d; weights and optimizer are those of step %d again, where %s says that "
                "the student was best; %s",
                step, self.returned_to, "the pass rate" if self.follow == "pass_rate" else "alignment", then,
            )  # fmt: skip
        if not self.rewarded:
            control.should_training_stop = True
            # So that the last checkpoint has the weights that the training ends with.
            control.should_save = control.should_save or self.trainer.args.save_strategy != "no"

    def _return(self, step: int) -> None:
        """Returns to the best snapshot; if that fails, on all processes alike, the present weights stay."""
        with max_wait(self.trainer.args.ddp_timeout):
            steps = self.snapshots.common_steps()
            by_rate = self.follow == "pass_rate"
            target = self.pass_rates.best_step(steps) if by_rate else best_step(self._readings(), steps)
            if target is None or target >= step:
                return
            try:
                self.snapshots.restore(target)
            except RankNotResponding:
                raise
            except OpdAlignError as error:
                self._failed = True
                self._say("Cannot return to the weights of step %d, the present ones stay: %s", target, error)
                return
        self.returned_to = target
        trl_compat.discard_generated(self.trainer)

    def _readings(self) -> list[list[Reading]]:
        return [self.log.of(teacher) for teacher in self.log.teachers]

    def _say(self, message: str, *args: Any) -> None:
        if self.trainer.is_world_process_zero():
            logger.warning(message, *args)


def schedule_strength(trainer: Any) -> float:
    """The strength of the distillation loss that a trainer's schedule asks for; 1 without a schedule."""
    own = [each.strength for each in trainer.callback_handler.callbacks if isinstance(each, AlignmentSchedule)]
    return own[0] if own else 1.0


def _check(trainer: Any, callback: Any, on_harm: OnHarm, when: str, *, rewarded: bool) -> None:
    """Refuses what a schedule cannot act on, before anything is trained."""
    kind = callback.adapter.kind
    if not rewarded and kind not in PURE:
        raise OpdAlignError(
            f"AlignmentSchedule does not support {type(trainer).__name__}: it needs a trainer whose loss is the "
            "distillation loss (DistillationTrainer, GKDTrainer), or GatedGRPOTrainer"
        )
    if not callback.evaluator.distilled:
        raise OpdAlignError("a schedule needs a teacher that the trainer distills from, and this trainer has none")
    distillation_objective(callback.settings)
    if any(isinstance(each, AlignmentSchedule) for each in trainer.callback_handler.callbacks):
        raise OpdAlignError("this trainer already has an AlignmentSchedule; remove it first")
    if trainer.is_deepspeed_enabled and (on_harm == "rollback" or (on_harm == "zero" and not rewarded)):
        raise OpdAlignError(
            f"on_harm={on_harm!r} is not supported under DeepSpeed, which keeps weights and gradients elsewhere; use "
            "on_harm='stop' and keep checkpoints (save_steps), or DDP or FSDP2"
        )
    if trainer.is_deepspeed_enabled and when == "harms" and not rewarded:
        raise OpdAlignError(
            "when='harms' is not supported under DeepSpeed: the strength of a teacher that fades cannot be applied to "
            "its gradients; use when='fades', or DDP or FSDP2"
        )
    if on_harm == "rollback" and trainer.args.load_best_model_at_end:
        raise OpdAlignError(
            "load_best_model_at_end=True would replace the weights that a rollback returns to; set it to False, or use "
            "on_harm='stop'"
        )
    trl_compat.check_trainer(type(trainer))
    trl_compat.check_attributes(trainer)
