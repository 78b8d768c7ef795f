"""`GRPOTrainer` with a gated distillation loss: rewards on correct completions, a teacher on incorrect ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from opd_align.training import trl_compat
from opd_align.training.alignment_schedule import schedule_strength
from opd_align.training.gate_runtime import GateRuntime, safe_denominator
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.training.teacher_mix import TeacherMix
from opd_align.training.trainers.gated_generation import (
    DENOMINATOR,
    OUTCOME,
    UNDISTILLED,
    prepare_generation,
    record_undistilled,
    weighted_divergence,
)
from opd_align.training.trainers.mixed_loss import (
    TEACHER,
    draw_teachers,
    is_distilled,
    sum_over_teachers,
    take_student_states,
)
from opd_align.training.trl_compat import (
    DistillationTrainer,
    ForwardRedirection,
    GRPOTrainer,
    is_peft_model,
    prepare_deepspeed,
)
from opd_align.types import OpdAlignError, Outcome


class GatedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` that learns from rewards where the student succeeds and from a teacher where it fails.

    The loss is `GRPO(A') + distillation_weight · Σ w_t D_β(t) / denominator`. `A'` is GRPO's advantage (group mean as
    the baseline, over all completions), set to zero on completions that the gate's verifier calls incorrect: their
    probability is not lowered, they are distilled. `w` are the gate's weights, usually `IncorrectOnly`; `D_β` is the
    divergence of `DistillationTrainer` at the sampling temperature. Completions of unknown outcome keep their
    advantage, zero if they have no reward. A gate without a verifier does not change the advantages. A truncated
    completion is incorrect for the gate, as in an analysis, even where its reward is not zero. If the gate's verifier
    is also a reward function, it is called once for both, with the time limit.

    A generation batch may be used for several optimizer steps: quantiles and counts are then over that batch, and each
    step divides by its share. It may not be used for less than one.

    Student and teacher each run one forward pass: the divergence uses the hidden states of GRPO's own forward pass.

    With an `AlignmentSchedule` of strength s, the distillation loss has s times its weight, and incorrect completions
    keep 1 − s of their advantage: what the teacher gives up, the reward takes over. At strength 0 the loss is GRPO's
    own to the bit: the teacher makes no forward pass, and an infinite divergence cannot enter. A batch that was
    generated at strength 0 is not distilled later, when the strength has risen.

    Args:
        teacher_model: The teacher, its name or path, or a `TeacherMix`; it must share the student's vocabulary.
        gate: A `Gate`, or a function from a `GateBatch` to weights.
        denominator: "keep" divides the distillation loss by the number of completion tokens, "renormalise" by the sum
            of the gate's weights.
        distillation_weight: Weight of the distillation loss.
        distillation_beta: Divergence in TRL's convention, in [0, 1]: 0 is KL(teacher ‖ student), 1 is KL(student ‖
            teacher). GRPO's own `beta` is not affected.
        correct_from: Smallest value of the gate's verifier that means correct.
        verifier_timeout_s: Time limit of one call of the gate's verifier, in seconds.
        *args, **kwargs: Arguments of `GRPOTrainer`. A `Task` may be given as a reward function.
    """

    def __init__(
        self,
        *args: Any,
        teacher_model: Any,
        gate: Any,
        denominator: str,
        distillation_weight: float = 1.0,
        distillation_beta: float = 1.0,
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        runtime = GateRuntime(gate, denominator, correct_from=correct_from, verifier_timeout_s=verifier_timeout_s)
        if not 0 <= distillation_beta <= 1:
            raise OpdAlignError(
                f"distillation_beta must be in [0, 1], from KL(teacher ‖ student) to KL(student ‖ teacher), "
                f"not {distillation_beta}"
            )
        bound = signature(GRPOTrainer).bind_partial(*args, **kwargs)
        _check_generation(bound.arguments.get("args"))
        if "reward_funcs" in bound.arguments:
            bound.arguments["reward_funcs"] = runtime.wrap_reward_funcs(bound.arguments["reward_funcs"])
        trl_compat.check_trainer(GRPOTrainer, ("_generate_and_score_completions", "_compute_loss"))
        trl_compat.check_trainer(DistillationTrainer, ("_compute_loss", "_get_last_hidden_state"))
        trl_compat.resolve("distillation_kernel")
        super().__init__(*bound.args, **bound.kwargs)
        trl_compat.check_attributes(self)
        self.distillation_weight, self.distillation_beta = distillation_weight, distillation_beta
        self._teacher_mix = teacher_model if isinstance(teacher_model, TeacherMix) else None
        if self._teacher_mix is not None:
            if self._teacher_mix.pool.contexts:
                raise OpdAlignError(
                    "contexts in a TeacherMix are not supported by GatedGRPOTrainer; use GatedDistillationTrainer or "
                    "GatedGKDTrainer, or SDPO for self-distillation with rewards"
                )
            teacher_model = self._teacher_mix.pool.first_model()
        if isinstance(teacher_model, str):
            teacher_model = AutoModelForCausalLM.from_pretrained(teacher_model, dtype="auto")
        sizes = [model.config.get_text_config().vocab_size for model in (self.model, teacher_model)]
        if sizes[0] != sizes[1]:
            raise OpdAlignError(
                f"student and teacher must share a vocabulary; theirs have {sizes[0]} and {sizes[1]} tokens"
            )
        if self.is_deepspeed_enabled:
            self.teacher_model = prepare_deepspeed(teacher_model, self.accelerator)
        else:
            # Under FSDP, accelerate would leave it on the CPU.
            self.teacher_model = self.accelerator.prepare_model(
                teacher_model, device_placement=True, evaluation_mode=True
            )
        # Attributes that DistillationTrainer's methods, called below on this trainer, read.
        self._forward_redirection, self.model_kwarg_keys = ForwardRedirection(), ()
        self._student_states: Tensor | None = None
        if self._teacher_mix is not None:
            self._teacher_mix.attach(self, runtime.gate, measuring_pass=runtime.needs_measuring_pass)
        self._gate_runtime = runtime.attach(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generated = super()._generate_and_score_completions(inputs)
        if self.model.training:
            distills = schedule_strength(self) > 0
            if distills:
                draw_teachers(self._teacher_mix, inputs, generated)
            prepare_generation(self, inputs, generated, self.args.steps_per_generation, distills=distills)
        return generated

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if DENOMINATOR not in inputs:
            self._gate_runtime.check_evaluation(self.model)
            return super()._compute_loss(model, inputs)
        # The strength is the same on all processes, and so is whether the teacher makes a forward pass.
        strength = 0.0 if UNDISTILLED in inputs else schedule_strength(self)
        # Not once per generation batch: the strength may change between the optimizer steps that use it.
        inputs = {**inputs, "advantages": _advantages(inputs, strength)}
        # The generation batch's count is rescaled to one optimizer step, as GRPO's is.
        steps = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        denominator = inputs[DENOMINATOR] * steps
        if strength == 0:  # zero times an infinite divergence is not zero
            loss: Tensor = super()._compute_loss(model, inputs)
            record_undistilled(self._gate_runtime, inputs, safe_denominator(denominator))
        else:
            # Both losses in one forward of the wrapped model: ZeRO-3 reduces the head's gradients only from there.
            student = self.accelerator.unwrap_model(model)
            both = (student, inputs, denominator, strength)
            loss = self._forward_redirection(model, student, self._both_losses, *both)
        if self.accelerator.sync_gradients:
            self._gate_runtime.log_step(trl_compat.train_metrics(self), denominator)
        return loss

    def _both_losses(self, student: Any, inputs: dict[str, Any], denominator: Tensor, strength: float) -> Tensor:
        count = safe_denominator(denominator)
        share, beta = count / self.accelerator.num_processes, self.distillation_beta
        with self._keep_student_states(student):
            grpo_loss: Tensor = super()._compute_loss(student, inputs)

            def loss_of(part: dict[str, Any]) -> tuple[Tensor, ...]:
                with (
                    weighted_divergence(self._gate_runtime, part, count, beta=beta),
                    self._gate_runtime.loss_precision(),
                ):
                    found: tuple[Tensor, ...] = DistillationTrainer._compute_loss(self, student, part, share)
                    return found

            if TEACHER in inputs and self._teacher_mix is not None:
                states = self._student_states
                if states is None:
                    raise OpdAlignError(
                        f"GRPOTrainer's loss made no forward pass of the student's backbone, whose hidden states the "
                        f"loss of several teachers needs: {trl_compat.untested()}"
                    )
                distillation_loss, *_ = sum_over_teachers(self, self._teacher_mix, inputs, states, loss_of)
            else:
                distillation_loss, *_ = loss_of(inputs)
        if self.distillation_weight == 0:  # measured and logged, but not trained with
            return grpo_loss
        return grpo_loss + self.distillation_weight * strength * distillation_loss

    @contextmanager
    def _keep_student_states(self, student: Any) -> Iterator[None]:
        """Keeps the output of the student's backbone in GRPO's forward pass."""
        without_adapter = student.base_model.model if is_peft_model(student) else student

        def keep(module: Any, arguments: Any, output: Any) -> None:
            self._student_states = output.last_hidden_state

        handle = without_adapter.base_model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            self._student_states = None

    def _get_last_hidden_state(self, model: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Called by DistillationTrainer's loss, for the student and for the teacher."""
        states = take_student_states(self, model)
        if states is None:
            return DistillationTrainer._get_last_hidden_state(self, model, *args, **kwargs)
        logits_to_keep = args[-1]
        return states[:, :-1][:, -logits_to_keep:]


def _advantages(inputs: dict[str, Any], strength: float) -> Tensor:
    """GRPO's advantages; incorrect completions that have a teacher keep what it gives up."""
    advantages: Tensor = inputs["advantages"]
    if OUTCOME not in inputs or strength == 0:
        return advantages
    distilled_B, with_teacher_B = inputs[OUTCOME] == Outcome.INCORRECT, is_distilled(inputs)
    if with_teacher_B is not None:
        distilled_B = distilled_B & with_teacher_B
    return torch.where(distilled_B, 0.0 if strength == 1 else (1 - strength) * advantages, advantages)


def _check_generation(args: Any) -> None:
    """The counts of an optimizer step must be known before its first backward pass."""
    if args is not None and args.steps_per_generation % args.gradient_accumulation_steps:
        raise OpdAlignError(
            f"steps_per_generation={args.steps_per_generation} must be a multiple of gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps}: the gate counts over a whole optimizer step, so all of its "
            "completions must be generated at once"
        )
