"""Losses of a batch whose rollouts have different teachers, shared by the gated trainers.

The chunked loss of `DistillationTrainer` reads one teacher's hidden states and output layer, so it is computed for the
rollouts of each teacher in turn, and summed; all parts have the same denominator. The student's forward pass is made
once, and each rollout is seen by its own teacher only. GKD's loss reads logits, so there the teacher itself is replaced
by one that sends each rollout to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from opd_align.training import trl_compat
from opd_align.training.mix_contexts import Tokens, context_logits, pad_left, student_as_teacher
from opd_align.training.model_state import unwrapped
from opd_align.training.teacher_mix import NONE, TeacherMix
from opd_align.types import OpdAlignError

TEACHER = "mix_teacher"
"""Key of a batch with the index of each rollout's teacher."""
CONTEXT, CONTEXT_MASK = "mix_context", "mix_context_mask"
"""Keys of a batch with the prompts of rollouts whose teacher is a context, and their mask; empty for the others."""

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
        drawn_B, device = mix.draw(rows), generated["completion_ids"].device
        generated[TEACHER] = torch.from_numpy(drawn_B).to(device)
        if mix.pool.contexts:
            prompts = mix.context_prompts(rows, drawn_B)
            generated[CONTEXT], generated[CONTEXT_MASK] = pad_left(prompts, 0, device)


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
        for number, rows, own in _parts(trainer, mix, teacher_B):
            part, name = _rows_of(inputs, rows, len(teacher_B)), mix.names[number]
            if not own:
                part[TEACHER] = torch.full_like(part[TEACHER], NONE)
            trainer._student_states = states_BTH[rows]
            with nullcontext() if own else runtime.without_recording():
                if name in mix.pool.contexts:
                    # The student's own states are known: only the teacher reads what the loss calls the prompt.
                    trainer.teacher_model = student = unwrapped(trainer.accelerator, trainer.model)
                    with student_as_teacher(student):
                        sums = loss_of({**part, **_context_prompt(part)} if own else part)
                else:
                    trainer.teacher_model = mix.pool[name]
                    sums = loss_of(part)
            if not own:  # a loss of zero, with a gradient for every weight
                sums = tuple(each * 0 for each in sums)
            total = sums if total is None else tuple(a + b for a, b in zip(total, sums, strict=True))
    finally:
        trainer.teacher_model, trainer._student_states = primary, None
    runtime.gated_micro_batches = gated + 1  # one micro-batch, in several parts
    assert total is not None
    return total


def take_student_states(trainer: Any, model: Any) -> Tensor | None:
    """The student's hidden states if they are known and not used yet; refuses another model before they are.

    The loss asks for the student's states first, then for the teacher's. In the other order the states of both would be
    swapped where the teacher is the student itself. The loss's student may be the compiled one.
    """
    states: Tensor | None = trainer._student_states
    if states is None:
        return None
    if unwrapped(trainer.accelerator, model) is not unwrapped(trainer.accelerator, trainer.model):
        raise OpdAlignError(
            "DistillationTrainer's loss asked for a teacher's hidden states before the student's: "
            f"{trl_compat.untested()}"
        )
    trainer._student_states = None
    return states


def _parts(trainer: Any, mix: TeacherMix, teacher_B: Tensor) -> Iterator[tuple[int, Tensor, bool]]:
    """The teachers of a micro-batch, their rows, and whether these are their own.

    If no rollout has a teacher, the first row stands in, so that there is a loss. With sharded teachers it stands in
    for each teacher that another process needs: forward and backward passes are collective operations.
    """
    used_K = torch.stack([(teacher_B == number).any() for number in range(len(mix.names))]).float()
    if mix.pool.sharded:
        used_K = trainer.accelerator.reduce(used_K, reduction="sum")
    for number in used_K.nonzero().squeeze(1).tolist() or [0]:
        rows = (teacher_B == number).nonzero().squeeze(1)
        yield number, rows if len(rows) else rows.new_zeros(1), len(rows) > 0


def _rows_of(inputs: dict[str, Any], rows: Tensor, size: int) -> dict[str, Any]:
    def part(value: Any) -> Any:
        return value[rows] if isinstance(value, Tensor) and value.ndim and len(value) == size else value

    return {name: part(value) for name, value in inputs.items()}


def _context_prompt(part: dict[str, Any]) -> dict[str, Tensor]:
    first = int(part[CONTEXT_MASK].any(0).int().argmax())  # prompts of other rows may be longer
    return {"prompt_ids": part[CONTEXT][:, first:], "prompt_mask": part[CONTEXT_MASK][:, first:]}


@dataclass(frozen=True)
class DrawnTeachers:
    """The teachers of a micro-batch.

    Args:
        teacher_B: The index of each rollout's teacher.
        prompts: The prompts of rollouts whose teacher is a context; empty for the others.
    """

    teacher_B: Tensor
    prompts: Sequence[Tokens] = ()

    @property
    def is_distilled_B(self) -> Tensor:
        return self.teacher_B != NONE


class RoutedTeacher:
    """Sends each row to its own teacher; called by GKD's loss in the place of a model.

    Args:
        trainer: The trainer, whose precision is that of the loss.
        mix: The teachers.
        drawn: The teacher of each row.
        labels_BT: The labels of the batch.
    """

    def __init__(self, trainer: Any, mix: TeacherMix, drawn: DrawnTeachers, labels_BT: Tensor) -> None:
        self.trainer, self.mix, self.drawn, self.labels_BT = trainer, mix, drawn, labels_BT

    def eval(self) -> RoutedTeacher:
        return self

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        logits_BTV: Tensor | None = None
        for number, rows, own in _parts(self.trainer, self.mix, self.drawn.teacher_B):
            with self.trainer.accelerator.autocast():
                part = self._logits(self.mix.names[number], rows, input_ids[rows], attention_mask[rows], own=own)
            if logits_BTV is None:  # rows without a teacher have a weight of zero
                logits_BTV = part.new_zeros(len(input_ids), *part.shape[1:])
            if own:
                logits_BTV[rows] = part.to(logits_BTV.dtype)
        return SimpleNamespace(logits=logits_BTV)

    def _logits(self, name: str, rows: Tensor, input_ids: Tensor, attention_mask: Tensor, *, own: bool) -> Tensor:
        found: Tensor
        if name not in self.mix.pool.contexts:
            teacher = self.mix.pool[name]
            teacher.eval()  # that of a DeepSpeed engine returns nothing
            found = teacher(input_ids=input_ids, attention_mask=attention_mask).logits
            return found
        student = unwrapped(self.trainer.accelerator, self.trainer.model)
        with student_as_teacher(student):
            if not own:
                found = student(input_ids=input_ids, attention_mask=attention_mask).logits
                return found
            prompts = [self.drawn.prompts[row] for row in rows.tolist()]
            return context_logits(student, input_ids, self.labels_BT[rows], prompts, 0)


@contextmanager
def routed_teacher(
    trainer: Any, mix: TeacherMix | None, drawn: DrawnTeachers | None, labels_BT: Tensor
) -> Iterator[None]:
    """Within this context, the trainer's teacher is each row's own; without several teachers, nothing changes."""
    if mix is None or drawn is None:
        yield
        return
    primary = trainer.teacher_model
    trainer.teacher_model = RoutedTeacher(trainer, mix, drawn, labels_BT)
    try:
        yield
    finally:
        trainer.teacher_model = primary
