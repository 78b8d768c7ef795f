"""TRL's trainers with a gate before the distillation loss.

With the gate open, losses, gradients and weights are those of TRL to the bit (in float32: GKD's loss in half precision
is summed in half precision by TRL, in float32 here). Each trainer takes `gate`, and
`denominator`, which has no default because it decides how fast the open tokens learn: "keep" divides by all completion
tokens of the window, gated or not; "renormalise" by the sum of weights. Both counts run over all micro-batches and all
processes of one optimiser step, so the step does not depend on how it is cut into pieces. Evaluation is not gated: its
losses stay comparable. The keys under `gate/` are explained in `gating`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM
from trl import DistillationTrainer, GRPOTrainer
from trl.data_utils import is_conversational
from trl.experimental.gkd import GKDTrainer
from trl.experimental.utils import DataCollatorForChatML
from trl.models import prepare_deepspeed
from trl.models.utils import _ForwardRedirection, unwrap_model_for_generation
from trl.trainer.utils import split_pixel_values_by_grid, split_tensor_dict, unsplit_pixel_values_by_grid

from opd_align.training.chunked_divergence import KernelCall, between
from opd_align.training.gate_runtime import GateRuntime, looking, rows_of, safe, side_by_side, spread, texts, truncated
from opd_align.training.gates import DENOMINATORS, GateBatch, measure_logits, weigh
from opd_align.types import OpdAlignError, Outcome

COLUMNS, PIECE = "columns", "gate_piece"
OUTCOME, WEIGHTS, DENOMINATOR = "gate_outcome", "gate_weights", "gate_denominator"


class ColumnsKept(DataCollatorForChatML):  # type: ignore[misc]
    """GKD's collator, with the data set's columns beside the tensors: a verifier needs the gold answers."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().__call__(examples)
        batch[COLUMNS] = {name: [example.get(name) for example in examples] for name in examples[0]}
        return batch


@dataclass(frozen=True)
class Piece:
    """One of GKD's micro-batches as its gate sees it, and what was settled for its window.

    No mapping and no tuple: the tensors of such are cast to DeepSpeed's half precision, where a count is no count.
    """

    batch: GateBatch
    weights_BT: Tensor | None
    denominator: Tensor


class GatedGKDTrainer(GKDTrainer):  # type: ignore[misc]
    """GKD through a gate.

    TRL 1.16 divides GKD's loss by the number of tokens in the *data set's* completions, counted before the student
    wrote its own, and does not make up for the averaging over processes: two processes get half the loss of one. Here
    the denominator counts the tokens that the loss runs over, on all processes. Where TRL's count is right (one
    process, no generation) the two agree to the bit; `denominator="trl"` keeps TRL's count, for comparisons with an
    ungated run of TRL's own.

    So that the count is known in time, a window's completions are generated before its first backward pass instead of
    between them: the same ones, since the student does not change within a window (and has no dropout, unless
    `disable_dropout=False`). They are generated in the window's first `training_step`, where a resumed training has
    its dice back.

    Completions that the student or the teacher wrote without coming to an end are incorrect for the gate, as they are
    in an analysis. Those of the data set are what the verifier says.
    """

    data_collator: Any

    def __init__(
        self, *args: Any, gate: Any, denominator: str, verifier_timeout_s: float = 60.0, **kwargs: Any
    ) -> None:
        gating = GateRuntime(gate, denominator, timeout_s=verifier_timeout_s, denominators=(*DENOMINATORS, "trl"))
        super().__init__(*args, **kwargs)
        self._gating = gating.on(self.accelerator)
        if denominator != "trl":
            self.loss_is_scaled_for_ga = True
        collator = self.data_collator
        if type(collator) is DataCollatorForChatML:
            self.data_collator = ColumnsKept(**{each.name: getattr(collator, each.name) for each in fields(collator)})
        self._window: list[dict[str, Any]] = []
        self._piece: Piece | None = None
        self._measured: dict[str, Tensor] | None = None

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, num_items_in_batch = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = list(batches)
        return batches, num_items_in_batch

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        window, self._window = self._window, []
        if window:
            self._settle(window)
        # GKD's own step would generate once more (and draw λ); its parent's trains on what is there.
        return super(GKDTrainer, self).training_step(model, inputs, num_items_in_batch)

    def _settle(self, window: list[dict[str, Any]]) -> None:
        """Writes and judges a window's completions, and adds to its batches what their loss will need."""
        written = [self._write_completions(inputs) for inputs in window]
        batches = [self._judged(inputs, rolled) for inputs, rolled in zip(window, written, strict=True)]
        looked = zip(window, batches, strict=True) if self._gating.beforehand else ()
        weights, denominator = self._gating.settled(batches, [self._look(*each) for each in looked])
        for number, inputs in enumerate(window):
            inputs[PIECE] = Piece(batches[number], None if weights is None else weights[number], denominator)

    def _write_completions(self, inputs: dict[str, Any]) -> bool:
        """On-policy with probability λ, drawn as GKD draws it; else the teacher's, or (false) those of the data set."""
        if random.random() <= self.lmbda:
            writer, checkpointing = self.model_wrapped, self.args.gradient_checkpointing_kwargs
        elif self.seq_kd:
            writer, checkpointing = self.teacher_model, None
        else:
            return False
        with unwrap_model_for_generation(
            writer,
            self.accelerator,
            generation_kwargs=self.generation_kwargs,
            gradient_checkpointing_kwargs=checkpointing,
        ) as unwrapped:
            written = self.generate_on_policy_outputs(unwrapped, inputs, self.generation_config)
        inputs["input_ids"], inputs["attention_mask"], inputs["labels"] = written
        return True

    def _judged(self, inputs: dict[str, Any], rolled: bool) -> GateBatch:
        labels_BT = inputs["labels"][:, 1:]
        mask_BT = side_by_side(labels_BT != -100)
        tokens_BT = spread(labels_BT[labels_BT != -100], mask_BT, fill=self.processing_class.pad_token_id)
        outcome_B = None
        if self._gating.verifying is not None:
            columns = inputs.get(COLUMNS)
            if columns is None:
                raise OpdAlignError(
                    "the gate verifies completions, so batches must carry the data set's columns; leave data_collator "
                    "out, or use a subclass of opd_align.training.trainers.gated.ColumnsKept"
                )
            messages = getattr(self.data_collator, "messages_key", "messages")
            prompt = getattr(self.data_collator, "prompt_key", "prompt")
            prompts = [dialogue[:-1] for dialogue in columns[messages]] if messages in columns else columns[prompt]
            rows = rows_of(tokens_BT, mask_BT)
            completions = texts(self.processing_class, rows, conversational=not isinstance(prompts[0], str))
            rest = {name: values for name, values in columns.items() if name not in (messages, prompt)}
            ends = self.generation_config.eos_token_id
            endless_B = truncated(tokens_BT, mask_BT, [] if ends is None else ends)
            extras = {"completion_ids": rows, "trainer_state": self.state}
            outcome_B = self._gating.judged(prompts, completions, rest, endless_B & rolled, **extras)
        return self._gating.batch(tokens_BT, mask_BT, outcome_B)

    def _look(self, inputs: dict[str, Any], batch: GateBatch) -> dict[str, Tensor]:
        self._piece, self._measured = Piece(batch, None, batch.mask_BT.sum()), {}
        with looking(self.model_wrapped), self.compute_loss_context_manager():
            super().compute_loss(self.model_wrapped, inputs)
        measured, self._measured = self._measured, None
        return measured

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        self._piece = piece = inputs.get(PIECE)  # an evaluation's batches have none
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if piece is not None and self.accelerator.sync_gradients:
            counted_by_trl = self._gating.denominator == "trl" and num_items_in_batch is not None
            count = num_items_in_batch * self.accelerator.num_processes if counted_by_trl else piece.denominator
            self._gating.flush(self._metrics["train"], count)
        return loss

    def generalized_jsd_loss(self, student_logits: Tensor, teacher_logits: Tensor, **kwargs: Any) -> Tensor:
        """Replaces GKD's static method of this name, which `compute_loss` calls with whole logits."""
        piece = self._piece
        if piece is None:
            return GKDTrainer.generalized_jsd_loss(student_logits, teacher_logits, **kwargs)
        labels_BT, num_items = kwargs.pop("labels"), kwargs.pop("num_items_in_batch")
        within_BT, mask_BT = labels_BT != -100, piece.batch.mask_BT

        def measure(name: str) -> Tensor:
            with torch.no_grad():
                sides = (student_logits[within_BT] / self.temperature, teacher_logits[within_BT] / self.temperature)
                return spread(measure_logits(name, *sides, labels_BT[within_BT]), mask_BT)

        if self._measured is not None:
            self._measured.update({name: measure(name) for name in self._gating.gate.measures})
            return student_logits.new_zeros(())
        batch = replace(piece.batch, measure=measure)
        weights_BT = weigh(self._gating.gate, batch) if piece.weights_BT is None else piece.weights_BT
        weights_N = weights_BT[mask_BT]

        def divergence(rows_BT: Tensor) -> Tensor:
            sides = (student_logits[rows_BT], teacher_logits[rows_BT])
            return GKDTrainer.generalized_jsd_loss(*sides, **kwargs, reduction="none")

        # Closed tokens stay out of the graph: where their divergence is infinite, a weight of zero would make it NaN.
        open_BT = spread(weights_N > 0, within_BT)
        per_token_NV = divergence(open_BT)
        with torch.no_grad():
            closed_BT = within_BT & ~open_BT
            logged_BT = spread(per_token_NV.sum(-1, dtype=torch.float32), open_BT)
            logged_BT = logged_BT.masked_scatter(closed_BT, divergence(closed_BT).sum(-1, dtype=torch.float32))
        # Gradients are averaged over processes: each divides by its share of the count. TRL's count knows nothing of
        # that; without a count, TRL averages within the micro-batch, and transformers over micro-batches.
        share, pieces = safe(piece.denominator) / self.accelerator.num_processes, 1
        if self._gating.denominator == "trl":
            share = within_BT.sum().clamp_min(1) if num_items is None else num_items
            pieces = self.current_gradient_accumulation_steps if num_items is None else 1
        divided_by = share * self.accelerator.num_processes * pieces
        self._gating.note(batch, weights_BT, spread(logged_BT[within_BT], mask_BT), divided_by)
        return (per_token_NV * weights_N[weights_N > 0].unsqueeze(-1)).sum() / share


class GatedDistillationTrainer(DistillationTrainer):  # type: ignore[misc]
    """`DistillationTrainer` through a gate; the loss stays chunked, and no logits are ever whole.

    Completions without an end (those in `completions/clipped_ratio`) are incorrect for the gate, as in an analysis.
    """

    def __init__(
        self, *args: Any, gate: Any, denominator: str, verifier_timeout_s: float = 60.0, **kwargs: Any
    ) -> None:
        gating = GateRuntime(gate, denominator, timeout_s=verifier_timeout_s)
        super().__init__(*args, **kwargs)
        self._gating = gating.on(self.accelerator)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generated = super()._generate_and_score_completions(inputs)
        if self.model.training:
            _settle(self, inputs, generated, self.args.gradient_accumulation_steps)
        return generated

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
        if DENOMINATOR not in inputs:
            return super()._compute_loss(unwrapped_student, inputs, num_items_in_batch)
        count = safe(inputs[DENOMINATOR])
        with _weighed(self._gating, inputs, count):
            return super()._compute_loss(unwrapped_student, inputs, count / self.accelerator.num_processes)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if DENOMINATOR in inputs and self.accelerator.sync_gradients:
            self._gating.flush(self._metrics["train"], inputs[DENOMINATOR])
        return loss


class GatedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO that learns from the reward where it succeeded and from a teacher where it failed.

    The loss is `GRPO(A') + distillation_weight · Σ w_t D_β(t) / denominator`. `A'` is GRPO's advantage (group mean as
    the baseline, over all completions), set to zero on completions that the gate's verifier calls incorrect: they are
    not pushed down, they are taught. `w` are the gate's weights, usually `IncorrectOnly`; `D_β` is the divergence of
    `DistillationTrainer` at the sampling temperature, with `distillation_beta` in TRL's sense (1: KL(student ‖
    teacher); `beta` remains GRPO's own). Completions of unknown outcome keep their advantage, zero if unrewarded. A
    gate without a verifier leaves the advantages alone. A completion without an end is incorrect for the gate, as in
    an analysis, also where its reward is not zero. A verifier that is among the reward functions is asked once for
    both, within its time.

    A generation batch may feed several optimiser steps: quantiles and counts are then over that batch, and each step
    divides by its share. It may not feed less than one.

    Student and teacher pass once: the divergence is taken from the hidden states of GRPO's own forward pass.
    """

    def __init__(
        self,
        *args: Any,
        teacher_model: Any,
        gate: Any,
        denominator: str,
        distillation_weight: float = 1.0,
        distillation_beta: float = 1.0,
        verifier_timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        gating = GateRuntime(gate, denominator, timeout_s=verifier_timeout_s)
        if not 0 <= distillation_beta <= 1:
            raise OpdAlignError(
                f"distillation_beta lies in [0, 1], from KL(teacher ‖ student) to KL(student ‖ teacher), "
                f"not {distillation_beta}"
            )
        given = signature(GRPOTrainer).bind_partial(*args, **kwargs)
        _check_generation(given.arguments.get("args"))
        if "reward_funcs" in given.arguments:
            given.arguments["reward_funcs"] = gating.among(given.arguments["reward_funcs"])
        super().__init__(*given.args, **given.kwargs)
        self._gating = gating.on(self.accelerator)
        self.distillation_weight, self.distillation_beta = distillation_weight, distillation_beta
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
            self.teacher_model = self.accelerator.prepare_model(teacher_model, evaluation_mode=True)
        # What DistillationTrainer's methods, borrowed below, look for.
        self._forward_redirection, self.model_kwarg_keys = _ForwardRedirection(), ()
        self._student_states: Tensor | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        generated = super()._generate_and_score_completions(inputs)
        if self.model.training:
            _settle(self, inputs, generated, self.args.steps_per_generation)
            if OUTCOME in generated:
                failed_B = generated[OUTCOME] == Outcome.INCORRECT
                generated["advantages"] = generated["advantages"].masked_fill(failed_B, 0.0)
        return generated

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if DENOMINATOR not in inputs:
            return super()._compute_loss(model, inputs)
        # Both losses within one forward of the wrapped model: ZeRO-3 reduces the head's gradients only from there.
        student = self.accelerator.unwrap_model(model)
        # The generation batch's count is rescaled to one optimiser step, as GRPO's is.
        steps = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        denominator = inputs[DENOMINATOR] * steps
        loss: Tensor = self._forward_redirection(model, student, self._both_losses, student, inputs, denominator)
        if self.accelerator.sync_gradients:
            self._gating.flush(self._metrics["train"], denominator)
        return loss

    def _both_losses(self, student: Any, inputs: dict[str, Any], denominator: Tensor) -> Tensor:
        count = safe(denominator)
        share, beta = count / self.accelerator.num_processes, self.distillation_beta
        with self._states_kept(student):
            rewarded: Tensor = super()._compute_loss(student, inputs)
            with _weighed(self._gating, inputs, count, beta=beta), self.accelerator.autocast():
                distilled, _, _ = DistillationTrainer._compute_loss(self, student, inputs, share)
        return rewarded + self.distillation_weight * distilled

    @contextmanager
    def _states_kept(self, student: Any) -> Iterator[None]:
        """Keeps what the student's backbone gives during GRPO's forward pass."""
        plain = student.base_model.model if is_peft_model(student) else student

        def keep(module: Any, arguments: Any, output: Any) -> None:
            self._student_states = output.last_hidden_state

        handle = plain.base_model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            self._student_states = None

    def _get_last_hidden_state(self, model: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Called by DistillationTrainer's loss, for the student and for the teacher."""
        if self._student_states is None or model is not self.accelerator.unwrap_model(self.model):
            return DistillationTrainer._get_last_hidden_state(self, model, *args, **kwargs)
        logits_to_keep = args[-1]
        states, self._student_states = self._student_states, None
        return states[:, :-1][:, -logits_to_keep:]


def _settle(trainer: Any, inputs: list[dict[str, Any]], generated: dict[str, Any], micro_batches: int) -> None:
    """Verifies a generation batch and adds to it what its loss will need."""
    gating: GateRuntime = trainer._gating
    mask_BT = _mask(generated)
    outcome_B = None
    if gating.verifying is not None:
        prompts = [example["prompt"] for example in inputs]
        columns = {name: [example[name] for example in inputs] for name in inputs[0] if name != "prompt"}
        conversational = is_conversational({"prompt": prompts[0]})
        rows = rows_of(generated["completion_ids"], generated["completion_mask"])
        completions = texts(trainer.processing_class, rows, conversational=conversational)
        # TRL's own rule, by which it counts completions as clipped. Those it has masked for that have no tokens here.
        ends = [*trainer.eos_token_ids, trainer._tokenizer.pad_token_id]
        endless_B = truncated(generated["completion_ids"], generated["completion_mask"], ends)
        extras = {"completion_ids": rows, "trainer_state": trainer.state}
        outcome_B = gating.judged(prompts, completions, columns, endless_B, **extras)
        generated[OUTCOME] = outcome_B
    measured = [_look(trainer, generated, micro_batches)] if gating.beforehand else []
    weights, denominator = gating.settled([gating.batch(generated["completion_ids"], mask_BT, outcome_B)], measured)
    generated[DENOMINATOR] = denominator
    if weights is not None:
        generated[WEIGHTS] = weights[0]


def _look(trainer: Any, generated: dict[str, Any], micro_batches: int) -> dict[str, Tensor]:
    """The gate's measures on a whole generation batch, a micro-batch at a time."""
    parts: list[dict[str, Tensor]] = []
    student = trainer.accelerator.unwrap_model(trainer.model_wrapped)

    def read(call: KernelCall) -> tuple[Tensor, Tensor]:
        parts.append({name: call.measure(name) for name in trainer._gating.gate.measures})
        return call.divergence_N, call.entropy_N

    with looking(trainer.model_wrapped), trainer.compute_loss_context_manager():
        for piece in split_tensor_dict(split_pixel_values_by_grid(generated), micro_batches):
            inputs = unsplit_pixel_values_by_grid(piece)
            with between(trainer._gating.batch(inputs["completion_ids"], _mask(inputs), None), read, beta=1.0):
                trainer._forward_redirection(
                    trainer.model_wrapped,
                    student,
                    DistillationTrainer._compute_loss.__get__(trainer),
                    student,
                    inputs,
                    None,
                )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def _weighed(
    gating: GateRuntime, inputs: dict[str, Any], divided_by: Tensor, *, beta: float | None = None
) -> Iterator[None]:
    """While open, TRL's chunked loss gets its tokens weighed by the gate."""
    batch = gating.batch(inputs["completion_ids"], _mask(inputs), inputs.get(OUTCOME))

    def weighed(call: KernelCall) -> tuple[Tensor, Tensor]:
        if WEIGHTS in inputs:
            weights_BT = inputs[WEIGHTS]
        else:
            weights_BT = weigh(gating.gate, replace(batch, measure=call.measure))
        gating.note(batch, weights_BT, call.spread(call.divergence_N.detach()), divided_by)
        return call.weighed(weights_BT), call.entropy_N

    with between(batch, weighed, beta=beta):
        yield


def _check_generation(args: Any) -> None:
    """The window's counts must be known before its first backward pass: it is generated whole, or not at all."""
    if args is not None and args.steps_per_generation % args.gradient_accumulation_steps:
        raise OpdAlignError(
            f"steps_per_generation={args.steps_per_generation} must be a multiple of gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps}: the gate counts over a whole optimiser step, so all of its "
            "completions must be generated at once"
        )


def _mask(inputs: dict[str, Any]) -> Tensor:
    mask_BT: Tensor = inputs["completion_mask"]
    return (mask_BT * inputs["tool_mask"] if "tool_mask" in inputs else mask_BT).bool()
