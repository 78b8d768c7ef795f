"""Losses of a batch whose rollouts have different teachers, shared by the gated trainers.

The chunked loss of `DistillationTrainer` reads one teacher's hidden states and output layer, so it is computed for the
rollouts of each teacher in turn, and summed; all parts have the same denominator. The student's forward pass is made
once, and each rollout is seen by its own teacher only. GKD's loss reads logits, so there the teacher itself is replaced
by one that sends each rollout to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from opd_align.training.teacher_mix import NONE, TeacherMix
from opd_align.types import OpdAlignError

TEACHER = "mix_teacher"
"""Key of a batch with the index of each rollout's teacher."""

LossOf = Callable[[dict[str, Any]], tuple[Tensor, ...]]
"""From a batch to sums over its rollouts."""


def take_mix(trainer_class: type, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, TeacherMix | None]:
    """The arguments of a trainer, with the first teacher in the place of a mix, and the mix."""
    bound = signature(trainer_class).bind_partial(*args, **kwargs)
    mix = bound.arguments.get("teacher_model")
    if not isinstance(mix, TeacherMix):
        return bound, None
    bound.arguments["teacher_model"] = mix.pool.first_model()
    return bound, mix


def draw_teachers(mix: TeacherMix | None, rows: Sequence[dict[str, Any]], generated: dict[str, Any]) -> None:
    """Adds the teacher of each rollout to a generation batch."""
    if mix is not None and mix.several:
        if "pixel_values" in generated:
            raise OpdAlignError("several teachers are not supported with images")
        generated[TEACHER] = torch.from_numpy(mix.draw(rows)).to(generated["completion_ids"].device)


def use_first_teacher(mix: TeacherMix | None) -> None:
    """Brings the first teacher, which the trainer's own evaluations are made with, to the device if it was away."""
    if mix is not None and mix.several:
        mix.pool[mix.names[0]]


def is_distilled(batch: dict[str, Any]) -> Tensor | None:
    """Which rollouts have a teacher: not those on whose kind every teacher harms; `None` without several teachers."""
    return batch[TEACHER] != NONE if TEACHER in batch else None


def sum_over_teachers(
    trainer: Any, mix: TeacherMix, inputs: dict[str, Any], states_BTH: Tensor, loss_of: LossOf
) -> tuple[Tensor, ...]:
    """The sums of `loss_of` over the rollouts of each teacher, with `trainer.teacher_model` set to it.

    Args:
        trainer: The trainer, whose `_student_states` its `_get_last_hidden_state` returns for the student.
        mix: Its teachers.
        inputs: A micro-batch.
        states_BTH: The student's hidden states.
        loss_of: From the part of the batch to its sums.
    """
    teacher_B, runtime, primary = inputs[TEACHER], trainer._gate_runtime, trainer.teacher_model
    gated = runtime.gated_micro_batches
    total: tuple[Tensor, ...] | None = None
    try:
        for number, rows, factor in _parts(teacher_B):
            trainer.teacher_model = mix.pool[mix.names[number]]
            trainer._student_states = states_BTH[rows]
            sums = loss_of(_rows_of(inputs, rows, len(teacher_B)))
            if factor == 0:  # no rollout has a teacher: a loss of zero, with a gradient for every weight
                sums = tuple(each * 0 for each in sums)
            total = sums if total is None else tuple(a + b for a, b in zip(total, sums, strict=True))
    finally:
        trainer.teacher_model, trainer._student_states = primary, None
    runtime.gated_micro_batches = gated + 1  # one micro-batch, in several parts
    assert total is not None
    return total


def _parts(teacher_B: Tensor) -> Iterator[tuple[int, Tensor, int]]:
    used = [number for number in torch.unique(teacher_B).tolist() if number != NONE]
    for number in used:
        yield number, (teacher_B == number).nonzero().squeeze(1), 1
    if not used:
        yield 0, torch.zeros(1, dtype=torch.long, device=teacher_B.device), 0


def _rows_of(inputs: dict[str, Any], rows: Tensor, size: int) -> dict[str, Any]:
    def part(value: Any) -> Any:
        return value[rows] if isinstance(value, Tensor) and value.ndim and len(value) == size else value

    return {name: part(value) for name, value in inputs.items()}


class RoutedTeacher:
    """Sends each row to its own teacher; called by GKD's loss in the place of a model.

    Args:
        mix: The teachers.
        teacher_B: The teacher of each row.
        accelerator: Its precision is that of the loss.
    """

    def __init__(self, mix: TeacherMix, teacher_B: Tensor, accelerator: Any) -> None:
        self.mix, self.teacher_B, self.accelerator = mix, teacher_B, accelerator

    def eval(self) -> RoutedTeacher:
        return self

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        logits_BTV: Tensor | None = None
        for number, rows, _ in _parts(self.teacher_B):
            model = self.mix.pool[self.mix.names[number]].eval()
            with self.accelerator.autocast():
                part = model(input_ids=input_ids[rows], attention_mask=attention_mask[rows]).logits
            if logits_BTV is None:  # rows without a teacher have a weight of zero
                logits_BTV = part.new_zeros(len(input_ids), *part.shape[1:])
            logits_BTV[rows] = part.to(logits_BTV.dtype)
        return SimpleNamespace(logits=logits_BTV)


@contextmanager
def routed_teacher(trainer: Any, mix: TeacherMix | None, teacher_B: Tensor | None) -> Iterator[None]:
    """Within this context, the trainer's teacher is each row's own; without several teachers, nothing changes."""
    if mix is None or teacher_B is None:
        yield
        return
    primary = trainer.teacher_model
    trainer.teacher_model = RoutedTeacher(mix, teacher_B, trainer.accelerator)
    try:
        yield
    finally:
        trainer.teacher_model = primary
