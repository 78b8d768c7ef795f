"""`GKDTrainer` with a gate on the distillation loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from opd_align.training import trl_compat
from opd_align.training.gate_runtime import (
    GateRuntime,
    decode_completions,
    evaluation_mode,
    is_truncated,
    left_align,
    only_distilled,
    safe_denominator,
    scatter,
    token_lists,
)
from opd_align.training.gates import DENOMINATORS, GateBatch, Measure, compute_weights
from opd_align.training.held_out import PROMPT
from opd_align.training.measures import measure_logits
from opd_align.training.mix_contexts import COMPLETION_TOKENS
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.training.trainers.mixed_loss import DrawnTeachers, routed_teacher, take_mix, use_first_teacher
from opd_align.training.trl_compat import DataCollatorForChatML, GKDTrainer, unwrap_model_for_generation
from opd_align.types import OpdAlignError

COLUMNS, MICRO_BATCH = "columns", "gate_micro_batch"


class DataCollatorWithColumns(DataCollatorForChatML):  # type: ignore[misc]
    """GKD's collator, which also keeps the data set's columns: a verifier needs the reference answers."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().__call__(examples)
        batch[COLUMNS] = {name: [example.get(name) for example in examples] for name in examples[0]}
        return batch


@dataclass(frozen=True)
class GatedMicroBatch:
    """A micro-batch as the gate sees it, with what is known of its global batch.

    Neither a mapping nor a tuple: transformers casts tensors in those to DeepSpeed's half precision, which cannot hold
    a count.

    Args:
        batch: The completions.
        weights_BT: The gate's weights; `None` if they are computed in the loss's forward pass.
        denominator: What the loss of the global batch is divided by.
        drawn: The teacher of each completion; `None` without several teachers.
    """

    batch: GateBatch
    weights_BT: Tensor | None
    denominator: Tensor
    drawn: DrawnTeachers | None = None


def _check_dispatch(trainer: Any) -> None:
    """Columns of text cannot be sent from one process to another, as accelerate does with iterable data sets."""
    dispatched = trainer.args.accelerator_config.dispatch_batches is not False
    if dispatched and isinstance(trainer.train_dataset, IterableDataset) and trainer.accelerator.num_processes > 1:
        raise OpdAlignError(
            "the gate's verifier needs the data set's columns, which accelerate cannot send to other processes; use "
            'accelerator_config={"dispatch_batches": False}, or a data set that is not iterable'
        )


class GatedGKDTrainer(GKDTrainer):  # type: ignore[misc]
    """`GKDTrainer` with a gate on the distillation loss.

    TRL 1.16 divides GKD's loss by the number of tokens in the *data set's* completions, counted before the student
    generates its own, and does not account for the averaging over processes: two processes get half the loss of one.
    Here the denominator counts the tokens that the loss is computed on, on all processes. Where TRL's count is right
    (one process, no generation) the two are bit-identical.

    So that the count is known in time, all completions of an optimizer step are generated before its first backward
    pass instead of between them: the same ones, since the student does not change within a step (and has no dropout,
    unless `disable_dropout=False`). They are generated in the step's first `training_step`, where a resumed training
    has restored its RNG state.

    Truncated completions of the student or the teacher are incorrect for the gate, as in an analysis. For those of the
    data set, the verifier decides.

    Args:
        gate: A `Gate`, or a function from a `GateBatch` to weights.
        denominator: "keep" divides the loss by the number of completion tokens, "renormalise" by the sum of the gate's
            weights, "trl" by TRL's own count, for comparisons with an ungated run of TRL.
        correct_from: Smallest value of the gate's verifier that means correct.
        verifier_timeout_s: Time limit of one call of the gate's verifier, in seconds.
        *args, **kwargs: Arguments of `GKDTrainer`; `teacher_model` may be a `TeacherMix`.
    """

    data_collator: Any

    def __init__(
        self,
        *args: Any,
        gate: Any,
        denominator: str,
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        runtime = GateRuntime(
            gate,
            denominator,
            correct_from=correct_from,
            verifier_timeout_s=verifier_timeout_s,
            denominators=(*DENOMINATORS, "trl"),
        )
        overridden = ("get_batch_samples", "training_step", "compute_loss", "generalized_jsd_loss")
        trl_compat.check_trainer(GKDTrainer, (*overridden, "generate_on_policy_outputs"))
        if denominator != "trl":
            self.loss_is_scaled_for_ga = True  # read by TRL's __init__ with transformers before 5.19, later by training
        bound, mix = take_mix(GKDTrainer, args, kwargs)
        self._teacher_mix = mix
        super().__init__(*bound.args, **bound.kwargs)
        trl_compat.check_attributes(self)
        if mix is not None:
            if mix.several and self.seq_kd:
                raise OpdAlignError("seq_kd=True lets one teacher write completions; it has no meaning with several")
            mix.attach(self, runtime.gate, measuring_pass=False)
        self._gate_runtime = runtime.attach(self)
        collator = self.data_collator
        needs_columns = runtime.reads_columns or (mix is not None and mix.reads_rows)
        if needs_columns and type(collator) is DataCollatorForChatML:
            _check_dispatch(self)
            options = {option.name: getattr(collator, option.name) for option in fields(collator)}
            self.data_collator = DataCollatorWithColumns(**options)
        self._pending_batches: list[dict[str, Any]] = []

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        batches, num_items_in_batch = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._pending_batches = list(batches)
        return batches, num_items_in_batch

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        pending, self._pending_batches = self._pending_batches, []
        if pending:
            self._prepare_batches(pending)
        # GKD's own step would generate again (and draw λ again); its parent's trains on the given batch.
        return super(GKDTrainer, self).training_step(model, inputs, num_items_in_batch)

    def _prepare_batches(self, inputs_of: list[dict[str, Any]]) -> None:
        """Generates and verifies all completions of an optimizer step, and adds to its batches what the loss needs."""
        generated = [self._generate(inputs) for inputs in inputs_of]
        teachers = [self._draw_teachers(inputs) for inputs in inputs_of]
        batches = [self._gate_batch(*pair) for pair in zip(inputs_of, generated, strict=True)]
        measured = []
        if self._gate_runtime.needs_measuring_pass:
            measured = [self._measure(*each) for each in zip(inputs_of, batches, teachers, strict=True)]
        distilled = [None if drawn is None else drawn.is_distilled_B for drawn in teachers]
        weights, denominator = self._gate_runtime.weights_and_denominator(batches, measured, distilled)
        for number, inputs in enumerate(inputs_of):
            weights_BT = None if weights is None else weights[number]
            inputs[MICRO_BATCH] = GatedMicroBatch(batches[number], weights_BT, denominator, teachers[number])

    def _draw_teachers(self, inputs: dict[str, Any]) -> DrawnTeachers | None:
        mix = self._teacher_mix
        if mix is None or not mix.several:
            return None
        labels_BT, columns = inputs["labels"], inputs.get(COLUMNS)
        if mix.reads_rows and columns is None:
            read = mix.columns[0] if mix.columns else PROMPT
            raise OpdAlignError(
                f"the mix reads the column {read!r}, so batches must contain the data set's columns; leave out "
                "data_collator, or subclass opd_align.training.trainers.gkd.DataCollatorWithColumns"
            )
        rows: list[dict[str, Any]] = [{} for _ in labels_BT]
        if columns and mix.reads_rows:
            values_of = {name: columns[name] for name in mix.columns}
            values_of |= {PROMPT: self._prompts(columns), COMPLETION_TOKENS: (labels_BT != -100).sum(1).tolist()}
            rows = [{name: values[row] for name, values in values_of.items()} for row in range(len(labels_BT))]
        drawn_B = mix.draw(rows)
        return DrawnTeachers(torch.from_numpy(drawn_B).to(labels_BT.device), tuple(mix.context_prompts(rows, drawn_B)))

    def _prompts(self, columns: dict[str, list[Any]]) -> list[Any]:
        messages = getattr(self.data_collator, "messages_key", "messages")
        prompt = getattr(self.data_collator, "prompt_key", "prompt")
        return [dialogue[:-1] for dialogue in columns[messages]] if messages in columns else columns[prompt]

    def _generate(self, inputs: dict[str, Any]) -> bool:
        """Replaces completions by the student's (with probability λ, drawn as GKD draws it) or the teacher's.

        Returns false if the completions of the data set stay.
        """
        if random.random() <= self.lmbda:
            generator, checkpointing = self.model_wrapped, self.args.gradient_checkpointing_kwargs
        elif self.seq_kd:
            generator, checkpointing = self.teacher_model, None
        else:
            return False
        with unwrap_model_for_generation(
            generator,
            self.accelerator,
            generation_kwargs=self.generation_kwargs,
            gradient_checkpointing_kwargs=checkpointing,
        ) as unwrapped:
            outputs = self.generate_on_policy_outputs(unwrapped, inputs, self.generation_config)
        inputs["input_ids"], inputs["attention_mask"], inputs["labels"] = outputs
        return True

    def _gate_batch(self, inputs: dict[str, Any], generated: bool) -> GateBatch:
        labels_BT = inputs["labels"][:, 1:]
        mask_BT = left_align(labels_BT != -100)
        tokens_BT = scatter(labels_BT[labels_BT != -100], mask_BT, fill=self.processing_class.pad_token_id)
        outcome_B = score_BT = None
        if self._gate_runtime.reads_columns:
            columns = inputs.get(COLUMNS)
            if columns is None:
                raise OpdAlignError(
                    "the gate grades or scores completions, so batches must contain the data set's columns; leave out "
                    "data_collator, or subclass opd_align.training.trainers.gkd.DataCollatorWithColumns"
                )
            messages = getattr(self.data_collator, "messages_key", "messages")
            prompt = getattr(self.data_collator, "prompt_key", "prompt")
            prompts = self._prompts(columns)
            token_ids = token_lists(tokens_BT, mask_BT)
            conversational = not isinstance(prompts[0], str)
            completions = decode_completions(self.processing_class, token_ids, conversational=conversational)
            other_columns = {name: values for name, values in columns.items() if name not in (messages, prompt)}
            end_tokens = self.generation_config.eos_token_id
            truncated_B = is_truncated(tokens_BT, mask_BT, [] if end_tokens is None else end_tokens)
            extras = {"completion_ids": token_ids, "trainer_state": self.state}
            outcome_B = self._gate_runtime.outcomes(
                prompts, completions, other_columns, truncated_B & generated, **extras
            )
            score_BT = self._gate_runtime.scores(prompts, token_ids, other_columns, mask_BT)
        return self._gate_runtime.make_batch(tokens_BT, mask_BT, outcome_B, score_BT)

    def _measure(self, inputs: dict[str, Any], batch: GateBatch, drawn: DrawnTeachers | None) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}

        def read_measures(student_logits: Tensor, teacher_logits: Tensor, *, labels: Tensor, **_: Any) -> Tensor:
            measure = self._measure_of(batch, student_logits, teacher_logits, labels)
            measured.update({name: measure(name) for name in self._gate_runtime.gate.measures})
            return student_logits.new_zeros(())

        # As in the loss: the wrapped models apply autocast in their own forward, and `training_step` adds this context.
        with (
            evaluation_mode(self.model_wrapped),
            self.compute_loss_context_manager(),
            routed_teacher(self, self._teacher_mix, drawn, inputs["labels"]),
            self._replaced_divergence(read_measures),
        ):
            super().compute_loss(self.model_wrapped, inputs)
        if not measured:
            raise OpdAlignError(f"GKDTrainer.compute_loss does not call generalized_jsd_loss: {trl_compat.untested()}")
        return measured

    @contextmanager
    def _replaced_divergence(self, divergence: Callable[..., Tensor]) -> Iterator[None]:
        """Within this context `compute_loss` calls this function instead of the static `generalized_jsd_loss`.

        An attribute of the trainer hides the static method, which stays as it is for everyone else.
        """
        self.__dict__["generalized_jsd_loss"] = divergence
        try:
            yield
        finally:
            del self.__dict__["generalized_jsd_loss"]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        micro_batch = inputs.get(MICRO_BATCH)
        if micro_batch is None:
            self._gate_runtime.check_evaluation(model)
            use_first_teacher(self._teacher_mix)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with (
            routed_teacher(self, self._teacher_mix, micro_batch.drawn, inputs["labels"]),
            self._replaced_divergence(partial(self._gated_divergence, micro_batch)),
        ):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            counted_by_trl = self._gate_runtime.denominator == "trl" and num_items_in_batch is not None
            count = num_items_in_batch * self.accelerator.num_processes if counted_by_trl else micro_batch.denominator
            self._gate_runtime.log_step(trl_compat.train_metrics(self), count)
        return loss

    def _measure_of(
        self, batch: GateBatch, student_logits: Tensor, teacher_logits: Tensor, labels_BT: Tensor
    ) -> Measure:
        completion_BT = labels_BT != -100

        @torch.no_grad()
        def measure(name: str) -> Tensor:
            student_NV = student_logits[completion_BT] / self.temperature
            teacher_NV = teacher_logits[completion_BT] / self.temperature
            return scatter(measure_logits(name, student_NV, teacher_NV, labels_BT[completion_BT]), batch.mask_BT)

        return measure

    def _gated_divergence(
        self,
        micro_batch: GatedMicroBatch,
        student_logits: Tensor,
        teacher_logits: Tensor,
        *,
        labels: Tensor,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """What `compute_loss` gets instead of `generalized_jsd_loss`, which it calls with full logits."""
        labels_BT, num_items, runtime = labels, num_items_in_batch, self._gate_runtime
        completion_BT, mask_BT = labels_BT != -100, micro_batch.batch.mask_BT
        measure = self._measure_of(micro_batch.batch, student_logits, teacher_logits, labels_BT)
        batch = replace(micro_batch.batch, measure=measure)
        if micro_batch.drawn is not None:
            batch = only_distilled(batch, micro_batch.drawn.is_distilled_B)
        weights_BT = micro_batch.weights_BT
        if weights_BT is None:
            weights_BT = compute_weights(runtime.gate, batch)
        weights_N = weights_BT[mask_BT]

        def divergence(positions_BT: Tensor) -> Tensor:
            logits = (student_logits[positions_BT], teacher_logits[positions_BT])
            # Of this class, not of GKDTrainer: a subclass may have a divergence of its own.
            return type(self).generalized_jsd_loss(*logits, **{**kwargs, "reduction": "none"})

        # Dropped tokens stay out of the graph: where their divergence is infinite, a weight of zero would give NaN.
        kept_BT = scatter(weights_N > 0, completion_BT)
        per_token_NV = divergence(kept_BT)
        with torch.no_grad():
            dropped_BT = completion_BT & ~kept_BT
            logged_BT = scatter(per_token_NV.sum(-1, dtype=torch.float32), kept_BT)
            logged_BT = logged_BT.masked_scatter(dropped_BT, divergence(dropped_BT).sum(-1, dtype=torch.float32))
        # Gradients are averaged over processes, so each divides by its share of the count. TRL's count ignores this;
        # without a count, TRL averages within the micro-batch, and transformers over micro-batches.
        share, micro_batches = safe_denominator(micro_batch.denominator) / self.accelerator.num_processes, 1
        if runtime.denominator == "trl":
            share = completion_BT.sum().clamp_min(1) if num_items is None else num_items
            micro_batches = self.current_gradient_accumulation_steps if num_items is None else 1
        divided_by = share * self.accelerator.num_processes * micro_batches
        runtime.record(batch, weights_BT, scatter(logged_BT[completion_BT], mask_BT), divided_by)
        return (per_token_NV * weights_N[weights_N > 0].unsqueeze(-1)).sum() / share
