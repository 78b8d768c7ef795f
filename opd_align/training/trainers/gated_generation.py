"""Gating of generation batches, shared by the gated `DistillationTrainer` and `GRPOTrainer`.

A generation batch is verified, weighted and counted right after it has been generated; what its loss needs travels in
the batch under the keys below, so that TRL splits and shuffles it with everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opd_align.training import trl_compat
from opd_align.training.chunked_divergence import KernelCall, replaced_kernel
from opd_align.training.gate_runtime import (
    GateRuntime,
    decode_completions,
    evaluation_mode,
    is_truncated,
    only_distilled,
    token_lists,
)
from opd_align.training.gates import compute_weights
from opd_align.training.model_state import is_zero3
from opd_align.training.trainers.mixed_loss import TEACHER, is_distilled
from opd_align.training.trl_compat import (
    DistillationTrainer,
    is_conversational,
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)
from opd_align.types import OpdAlignError

OUTCOME, SCORES, WEIGHTS, DENOMINATOR = "gate_outcome", "gate_scores", "gate_weights", "gate_denominator"
UNDISTILLED = "gate_undistilled"
"""Key of a batch that was generated at strength 0: no teacher has been drawn or asked for it."""


def prepare_generation(
    trainer: Any, inputs: list[dict[str, Any]], generated: dict[str, Any], micro_batches: int, *, distills: bool = True
) -> None:
    """Verifies a generation batch and adds outcomes, weights and denominator to it; teachers have been drawn.

    Args:
        trainer: The gated trainer.
        inputs: The rows of the data set.
        generated: The generation batch.
        micro_batches: How many micro-batches it is split into.
        distills: Whether the batch is distilled; if not, it has outcomes and a count of tokens, but no weights.
    """
    runtime: GateRuntime = trainer._gate_runtime
    trl_compat.check_generated(trainer, generated)
    outcome_B = score_BT = None
    if runtime.reads_columns:
        prompts = [example["prompt"] for example in inputs]
        columns = {name: [example[name] for example in inputs] for name in inputs[0] if name != "prompt"}
        conversational = is_conversational({"prompt": prompts[0]})
        token_ids = token_lists(generated["completion_ids"], generated["completion_mask"])
        completions = decode_completions(trainer.processing_class, token_ids, conversational=conversational)
        # TRL's rule for `completions/clipped_ratio`. Completions that it masks for that have no tokens here.
        end_tokens = trl_compat.completion_ends(trainer)
        truncated_B = is_truncated(generated["completion_ids"], generated["completion_mask"], end_tokens)
        extras = {"completion_ids": token_ids, "trainer_state": trainer.state}
        outcome_B = runtime.outcomes(prompts, completions, columns, truncated_B, **extras)
        if distills:
            score_BT = runtime.scores(prompts, token_ids, columns, generated["completion_mask"])
        known = {OUTCOME: outcome_B, SCORES: score_BT}
        generated.update({key: value for key, value in known.items() if value is not None})
    if not distills:
        generated[UNDISTILLED] = torch.tensor(True)
        generated[DENOMINATOR] = runtime.count_tokens([_loss_mask(generated)])
        return
    measured = [_measure(trainer, generated, micro_batches)] if runtime.needs_measuring_pass else []
    batch = runtime.make_batch(generated["completion_ids"], _loss_mask(generated), outcome_B, score_BT)
    weights, generated[DENOMINATOR] = runtime.weights_and_denominator([batch], measured, [is_distilled(generated)])
    if weights is not None:
        generated[WEIGHTS] = weights[0]


def _measure(trainer: Any, generated: dict[str, Any], micro_batches: int) -> dict[str, Tensor]:
    """The gate's measures on a whole generation batch, one micro-batch at a time."""
    parts: list[dict[str, Tensor]] = []
    runtime: GateRuntime = trainer._gate_runtime
    student = trainer.accelerator.unwrap_model(trainer.model_wrapped)

    def read_measures(call: KernelCall) -> tuple[Tensor, Tensor]:
        parts.append({name: call.measure(name) for name in runtime.gate.measures})
        return call.divergence_N, call.entropy_N

    with evaluation_mode(trainer.model_wrapped), trainer.compute_loss_context_manager(), runtime.loss_precision():
        for part in split_tensor_dict(split_pixel_values_by_grid(generated), micro_batches):
            inputs = unsplit_pixel_values_by_grid(part)
            batch = runtime.make_batch(inputs["completion_ids"], _loss_mask(inputs), None)
            with replaced_kernel(batch, read_measures, beta=1.0):
                trainer._forward_redirection(
                    trainer.model_wrapped,
                    student,
                    DistillationTrainer._compute_loss.__get__(trainer),
                    student,
                    inputs,
                    None,
                )
    if not parts:
        raise OpdAlignError(f"DistillationTrainer's loss does not use the chunked kernel: {trl_compat.untested()}")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def weighted_divergence(
    runtime: GateRuntime, inputs: dict[str, Any], divided_by: Tensor, *, beta: float | None = None
) -> Iterator[None]:
    """Within this context, TRL's chunked loss gets divergences that are weighted by the gate."""
    batch = runtime.make_batch(inputs["completion_ids"], _loss_mask(inputs), inputs.get(OUTCOME), inputs.get(SCORES))
    mixed, sharded = TEACHER in inputs, is_zero3(runtime.accelerator)
    if mixed:
        # A process comes here once per teacher in its own micro-batch, so not as often as the others: nothing here may
        # wait for them. Weights that are spread over processes, which would need it, are refused with several teachers.
        # Where teachers are sharded all processes come here for each, and a second call of the kernel is collective.
        batch = batch if sharded else replace(batch, gather=_own_process)
    gated = only_distilled(batch, is_distilled(inputs))

    def weighted(call: KernelCall) -> tuple[Tensor, Tensor]:
        if WEIGHTS in inputs:
            weights_BT = torch.where(gated.mask_BT, inputs[WEIGHTS], 0.0) if mixed else inputs[WEIGHTS]
        else:
            gather = partial(_refuse_gather, runtime) if mixed else batch.gather
            weights_BT = compute_weights(runtime.gate, replace(gated, measure=call.measure, gather=gather))
        runtime.record(gated, weights_BT, call.scatter(call.divergence_N.detach()), divided_by)
        return call.weighted(weights_BT), call.entropy_N

    with replaced_kernel(batch, weighted, beta=beta, teacher_leaves=mixed and not sharded):
        yield


def record_undistilled(runtime: GateRuntime, inputs: dict[str, Any], divided_by: Tensor) -> None:
    """Counts a micro-batch whose loss has no teacher: nothing of it is kept, and its divergence is not known."""
    batch = runtime.make_batch(inputs["completion_ids"], _loss_mask(inputs), inputs.get(OUTCOME))
    runtime.record(batch, torch.zeros_like(batch.mask_BT, dtype=torch.float32), None, divided_by)


def _own_process(values: Tensor) -> Tensor:
    return values


def _refuse_gather(runtime: GateRuntime, values: Tensor) -> Tensor:
    raise OpdAlignError(
        f"gate {runtime.gate.name!r} compares tokens of all processes within the loss, which is not possible with "
        "several teachers; use a gate that looks at each token by itself, or GatedGKDTrainer"
    )


def _loss_mask(inputs: dict[str, Any]) -> Tensor:
    mask_BT: Tensor = inputs["completion_mask"]
    return (mask_BT * inputs["tool_mask"] if "tool_mask" in inputs else mask_BT).bool()
