"""`DistillationTrainer` with a gate on the distillation loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opd_align.training import trl_compat
from opd_align.training.gate_runtime import GateRuntime, safe_denominator
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.training.trainers.gated_generation import DENOMINATOR, prepare_generation, weighted_divergence
from opd_align.training.trainers.mixed_loss import (
    TEACHER,
    draw_teachers,
    sum_over_teachers,
    take_mix,
    take_student_states,
    use_first_teacher,
)
from opd_align.training.trl_compat import DistillationTrainer


class GatedDistillationTrainer(DistillationTrainer):  # type: ignore[misc]
    """`DistillationTrainer` with a gate on the distillation loss, which stays chunked: no full logits.

    Truncated completions (those in `completions/clipped_ratio`) are incorrect for the gate, as in an analysis.

    Args:
        gate: A `Gate`, or a function from a `GateBatch` to weights.
        denominator: "keep" divides the loss by the number of completion tokens, "renormalise" by the sum of the gate's
            weights.
        correct_from: Smallest value of the gate's verifier that means correct.
        verifier_timeout_s: Time limit of one call of the gate's verifier, in seconds.
        *args, **kwargs: Arguments of `DistillationTrainer`; `teacher_model` may be a `TeacherMix`.
    """

    def __init__(
        self,
        *args: Any,
        gate: Any,
        denominator: str,
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        runtime = GateRuntime(gate, denominator, correct_from=correct_from, verifier_timeout_s=verifier_timeout_s)
        overridden = ("_generate_and_score_completions", "_compute_loss", "compute_loss", "_get_last_hidden_state")
        trl_compat.check_trainer(DistillationTrainer, overridden)
        trl_compat.resolve("distillation_kernel")
        bound, self._teacher_mix = take_mix(DistillationTrainer, args, kwargs)
        super().__init__(*bound.args, **bound.kwargs)
        trl_compat.check_attributes(self)
        self._student_states: Tensor | None = None
        if self._teacher_mix is not None:
            self._teacher_mix.attach(self, runtime.gate, measuring_pass=runtime.needs_measuring_pass)
        # The loss takes the place of the model's forward, and with it of accelerate's autocast.
        self._gate_runtime = runtime.attach(self, autocast=False)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generated = super()._generate_and_score_completions(inputs)
        if self.model.training:
            draw_teachers(self._teacher_mix, inputs, generated)
            prepare_generation(self, inputs, generated, self.args.gradient_accumulation_steps)
        return generated

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
        if DENOMINATOR not in inputs:
            self._gate_runtime.check_evaluation(self.model)
            use_first_teacher(self._teacher_mix)
            return super()._compute_loss(unwrapped_student, inputs, num_items_in_batch)
        count = safe_denominator(inputs[DENOMINATOR])
        share = count / self.accelerator.num_processes

        def loss_of(part: dict[str, Any]) -> Any:
            with weighted_divergence(self._gate_runtime, part, count):
                return super(GatedDistillationTrainer, self)._compute_loss(unwrapped_student, part, share)

        if TEACHER not in inputs or self._teacher_mix is None:
            return loss_of(inputs)
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        completion_length = inputs["completion_ids"].size(1)
        states = self._get_last_hidden_state(unwrapped_student, input_ids, attention_mask, completion_length)
        return sum_over_teachers(self, self._teacher_mix, inputs, states, loss_of)

    def _get_last_hidden_state(self, unwrapped_model: Any, *args: Any, **kwargs: Any) -> Tensor:
        known = take_student_states(self, unwrapped_model)
        if known is not None:
            return known
        found: Tensor = super()._get_last_hidden_state(unwrapped_model, *args, **kwargs)
        return found

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if DENOMINATOR in inputs and self.accelerator.sync_gradients:
            self._gate_runtime.log_step(trl_compat.train_metrics(self), inputs[DENOMINATOR])
        return loss
