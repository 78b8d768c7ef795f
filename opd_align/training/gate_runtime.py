"""One gate in one trainer: outcomes, weights, the denominator, and what is logged about them.

A *global batch* is what makes one optimizer step: all micro-batches on all processes. Its denominator must be known
before the first backward pass, and so must everything that a weight depends on. The weights of a gate that uses
outcomes only are computed once the global batch has been generated. Those of a gate with a fixed threshold are computed
in the loss's own forward pass, at no extra cost. Only a quantile, or the sum of weights of a gate that uses measures,
needs the measures of the whole global batch first: one more forward pass of student and teacher, without gradients
(`needs_measuring_pass`).

The metrics under `gate/` are those of one global batch; `core.metric_registry` explains them. `correct` and `unknown`
are shares of all completions, including truncated and masked ones. A truncated completion is incorrect, whatever the
verifier returns for it, as in an analysis.

This module knows accelerate's processes and transformers' callbacks, but no trainer and not how a measure is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

from opd_align.tasks import Task
from opd_align.training import trl_compat
from opd_align.training.gates import (
    DENOMINATORS,
    GateBatch,
    Measure,
    as_gate,
    check_denominator,
    compute_weights,
    concatenate_batches,
    no_measures,
)
from opd_align.training.model_state import check_teacher_is_loaded
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S, RewardVerifier
from opd_align.training.trl_compat import TrainerCallback
from opd_align.types import OpdAlignError, Outcome

logger = logging.getLogger(__name__)

SUMS = (
    "rollouts",
    "sequences",
    "sequences_kept",
    "correct",
    "unknown",
    "failures",
    "tokens",
    "tokens_measured",
    "tokens_kept",
    "weight",
    "divergence",
    "weighted",
    "loss",
)


class GateRuntime:
    """Applies a gate; the trainer decides when.

    Args:
        gate: A `Gate`, or a function from a `GateBatch` to weights.
        denominator: "keep" or "renormalise".
        correct_from: Smallest value of the verifier that means correct.
        verifier_timeout_s: Time limit of one call of the verifier, in seconds.
        denominators: The values of `denominator` that the trainer supports.
    """

    def __init__(
        self,
        gate: Any,
        denominator: str,
        *,
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
        denominators: Sequence[str] = DENOMINATORS,
    ) -> None:
        check_denominator(denominator, denominators)
        self.gate, self.denominator = as_gate(gate), denominator
        self.verifier: RewardVerifier | None = None
        if self.gate.verifier is not None:
            limits = {"correct_from": correct_from, "timeout_s": verifier_timeout_s}
            self.verifier = RewardVerifier(self.gate.verifier, **limits)
        self.needs_measuring_pass = bool(self.gate.measures) and (
            self.gate.needs_global_batch or denominator == "renormalise"
        )
        self.verifier_is_reward = False
        self.gated_micro_batches, self._failures_logged = 0, 0

    def attach(self, trainer: Any, *, autocast: bool = True) -> GateRuntime:
        """Sets the trainer; separate from `__init__`, which checks the gate before models are loaded.

        Args:
            trainer: The trainer.
            autocast: Whether student and teacher run under accelerate's autocast in the trainer's loss. DeepSpeed and
                FSDP cast the weights themselves, in any loss.
        """
        check_teacher_is_loaded(trainer)
        self.accelerator = accelerator = trainer.accelerator
        self._trainer, self._autocast = trainer, autocast
        trainer.add_callback(GateCheck(self))
        accelerator.backward = self._checked(accelerator.backward)
        casts = autocast or accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)
        mixed = accelerator.mixed_precision if casts else "no"
        mix = getattr(trainer, "_teacher_mix", None)
        teachers = [trainer.teacher_model] if mix is None else mix.pool.loaded
        self.eps = coarsest_eps(mixed, trainer.model, *teachers)
        self._sums = torch.zeros(len(SUMS), device=accelerator.device)
        if accelerator.is_main_process:
            logger.info(
                "Distillation gate: %s, denominator: %s, precision of measures: %s weights, %s mixed precision",
                self.gate.name, self.denominator, _weights_name(trainer.model), mixed,
            )  # fmt: skip
            plugin = getattr(accelerator.state, "fsdp_plugin", None)
            if plugin is not None and plugin.fsdp_version == 1:
                logger.warning("Gates were not tested with FSDP1; use FSDP2, ZeRO-2 or ZeRO-3")
        return self

    @contextmanager
    def loss_precision(self) -> Iterator[None]:
        """Within this context, forward passes outside of the wrapped model have the precision of those in the loss."""
        with self.accelerator.autocast() if self._autocast else nullcontext():
            yield

    def wrap_reward_funcs(self, reward_funcs: Any) -> Any:
        """A trainer's reward functions; the gate's verifier among them is called once for both, with its time limit."""
        several = isinstance(reward_funcs, list | tuple)
        functions = list(reward_funcs) if several else [reward_funcs]
        functions = [function.verifier if isinstance(function, Task) else function for function in functions]
        if self.verifier is not None:
            verifier, reward = self.verifier.function, self.verifier.as_reward()
            self.verifier_is_reward = any(function == verifier for function in functions)
            functions = [reward if function == verifier else function for function in functions]
        return functions if several else functions[0]

    def outcomes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        truncated_B: Tensor,
        **extras: Any,
    ) -> Tensor | None:
        """Outcomes of this process's completions; `None` if the gate does not use them.

        A verifier that is also a reward of the trainer has just been called, and is not called again.
        """
        if self.verifier is None:
            return None
        if self.verifier_is_reward:
            outcomes = self.verifier.latest
        else:
            outcomes = self.verifier.outcomes(prompts, completions, columns, **extras)
        outcome_B = torch.tensor([int(outcome) for outcome in outcomes], device=self.accelerator.device)
        return outcome_B.masked_fill(truncated_B.to(outcome_B.device), int(Outcome.INCORRECT))

    @property
    def reads_columns(self) -> bool:
        """Whether the gate needs the data set's columns: its verifier or its scorer reads them."""
        return self.verifier is not None or self.gate.scorer is not None

    def scores(
        self,
        prompts: Sequence[Any],
        token_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
        mask_BT: Tensor,
    ) -> Tensor | None:
        """What the gate's scorer returns for this process's completions, in the mask's shape; `None` without one."""
        if self.gate.scorer is None:
            return None
        scored = self.gate.scorer(self._trainer, prompts, token_ids, columns)
        if [len(row) for row in scored] != [len(row) for row in token_ids]:
            raise OpdAlignError(f"the scorer of the gate {self.gate.name!r} must return one number per token")
        values_N = torch.tensor([value for row in scored for value in row], dtype=torch.float32, device=mask_BT.device)
        return scatter(values_N, mask_BT.bool())

    def make_batch(
        self,
        token_ids_BT: Tensor,
        mask_BT: Tensor,
        outcome_B: Tensor | None,
        score_BT: Tensor | None = None,
        measure: Measure = no_measures,
    ) -> GateBatch:
        return GateBatch(token_ids_BT, mask_BT.bool(), outcome_B, measure, self._gather, self.eps, score_BT)

    def weights_and_denominator(
        self,
        batches: Sequence[GateBatch],
        measured: Sequence[Mapping[str, Tensor]] = (),
        distilled: Sequence[Tensor | None] = (),
    ) -> tuple[list[Tensor] | None, Tensor]:
        """The weights of each micro-batch, `None` if they depend on the loss's forward pass, and the denominator.

        Args:
            batches: The micro-batches.
            measured: The measures of each; empty if the gate needs none, or reads them in the loss.
            distilled: Which completions of each have a teacher; `None`, or an empty list: all of them. The others
                count as tokens, but are neither weighted nor compared with.
        """
        tokens = self.count_tokens([batch.mask_BT for batch in batches])
        if self.gate.measures and not measured:
            return None, tokens
        if distilled:
            batches = [only_distilled(*each) for each in zip(batches, distilled, strict=True)]
        weights = compute_weights(self.gate, concatenate_batches(batches, measured))
        rows = torch.split(weights, [len(batch.mask_BT) for batch in batches])
        weights_of = [part[:, : batch.mask_BT.shape[1]] for part, batch in zip(rows, batches, strict=True)]
        return weights_of, self._sum(weights.sum()) if self.denominator == "renormalise" else tokens

    def count_tokens(self, masks: Sequence[Tensor]) -> Tensor:
        """The number of tokens in these masks, on all processes together."""
        return self._sum(torch.stack([mask_BT.sum() for mask_BT in masks]).sum())

    def record(self, batch: GateBatch, weights_BT: Tensor, divergence_BT: Tensor | None, divided_by: Tensor) -> None:
        """Adds a micro-batch, whose loss is divided by `divided_by`, to what is logged of the global batch.

        A divergence of `None` is not known: the teacher was not asked.
        """
        zero = torch.zeros((), device=weights_BT.device)
        outcome_B, measured = batch.outcome_B, divergence_BT is not None
        if divergence_BT is None:
            divergence_BT = torch.zeros_like(weights_BT)
        # The divergence of a dropped token may be infinite, and zero times infinity is not zero.
        weighted = torch.where(weights_BT > 0, weights_BT * divergence_BT, 0.0).sum()
        sums = {
            "rollouts": zero + len(batch.mask_BT),
            "sequences": batch.mask_BT.any(1).sum(),
            "sequences_kept": (weights_BT > 0).any(1).sum(),
            "correct": zero if outcome_B is None else (outcome_B == Outcome.CORRECT).sum(),
            "unknown": zero if outcome_B is None else (outcome_B == Outcome.UNKNOWN).sum(),
            "tokens": batch.mask_BT.sum(),
            "tokens_measured": batch.mask_BT.sum() * measured,
            "tokens_kept": (weights_BT > 0).sum(),
            "weight": weights_BT.sum(),
            "divergence": torch.where(batch.mask_BT, divergence_BT, 0.0).sum(),
            "weighted": weighted,
            "loss": weighted / divided_by,
        }
        self.gated_micro_batches += 1
        self._sums = self._sums + torch.stack([sums.get(name, zero).float() for name in SUMS])

    @contextmanager
    def without_recording(self) -> Iterator[None]:
        """What is recorded within the block is in no metric."""
        sums, gated = self._sums, self.gated_micro_batches
        try:
            yield
        finally:
            self._sums, self.gated_micro_batches = sums, gated

    def log_step(self, metrics: MutableMapping[str, list[float]], denominator: Tensor) -> None:
        """Appends the global batch's metrics to those of a trainer; all processes must call this together."""
        self.check_applied()
        if self.verifier is not None:
            self._sums[SUMS.index("failures")] += self.verifier.failures - self._failures_logged
            self._failures_logged = self.verifier.failures
        total = dict(zip(SUMS, self._sum(self._sums).tolist(), strict=True))
        self._sums = torch.zeros_like(self._sums)
        tokens, sequences = max(total["tokens"], 1.0), max(total["sequences"], 1.0)
        values = {
            "sequences_kept": total["sequences_kept"] / sequences,
            "tokens_kept": total["tokens_kept"] / tokens,
            "tokens_distilled": total["weight"],
            "denominator": safe_denominator(denominator).item(),
            "renormalised": float(self.denominator == "renormalise"),
            "loss": total["loss"],
        }
        if total["tokens_measured"] == total["tokens"] > 0:
            values["loss_open"] = total["divergence"] / tokens
        if total["weight"] > 0:  # otherwise the mean does not exist and is not logged
            values["kept_divergence"] = total["weighted"] / total["weight"]
        if self.verifier is not None:
            if total["rollouts"]:  # none if no rollout of the step has a teacher
                values["correct"] = total["correct"] / total["rollouts"]
                values["unknown"] = total["unknown"] / total["rollouts"]
            values["verifier_failures"] = total["failures"]
        for name, value in {**values, **self.gate.extra_metrics()}.items():
            metrics[f"gate/{name}"].append(value)

    def check_applied(self) -> None:
        """Raises an error if one of the optimizer step's losses has not been weighted by the gate."""
        # The trainer knows how many there are once `train` has begun. More are no error: it may compute a loss twice.
        expected = getattr(self._trainer, "current_gradient_accumulation_steps", 1)
        gated = self.gated_micro_batches
        if gated < expected:
            raise OpdAlignError(
                f"the loss of {expected - gated} of {expected} micro-batches was computed without the gate "
                f"{self.gate.name!r}: {trl_compat.untested()}"
            )

    def check_evaluation(self, model: Any) -> None:
        """Raises an error if a batch without the gate's weights is trained on; those of an evaluation have none."""
        if model.training:
            raise OpdAlignError(f"a training batch came without the gate {self.gate.name!r}: {trl_compat.untested()}")

    def _checked(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Accelerate's `backward`, which also makes the optimizer step under DeepSpeed: checked before the last one."""

        def checked(*args: Any, **kwargs: Any) -> None:
            if self.accelerator.sync_gradients:
                self.check_applied()
            backward(*args, **kwargs)

        return checked

    def _sum(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values.float(), reduction="sum")

    def _gather(self, values: Tensor) -> Tensor:
        # Processes hold different numbers of tokens: pad to the largest number, and remove the padding afterwards.
        values = self.accelerator.pad_across_processes(values, dim=0, pad_index=float("nan"))
        values = self.accelerator.gather(values)
        return values[~values.isnan()]


class GateCheck(TrainerCallback):  # type: ignore[misc]
    """Stops a training before an optimizer step if the gate was not applied to all of its micro-batches.

    A trainer that calls its methods by other names than the overridden ones would train without a gate. Callbacks are
    a public interface, so this check does not depend on those names; nor does that before accelerate's `backward`.

    Args:
        runtime: The gate of the trainer.
    """

    def __init__(self, runtime: GateRuntime) -> None:
        self.runtime = runtime

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.runtime.gated_micro_batches = 0  # a training that was interrupted within a step

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.runtime.check_applied()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.runtime.check_applied()
        self.runtime.gated_micro_batches = 0


def coarsest_eps(mixed_precision: str, *models: Any) -> float:
    """`torch.finfo(dtype).eps` of the coarsest precision in which one of the models is evaluated."""
    dtypes = {parameter.dtype for model in models for parameter in model.parameters() if parameter.is_floating_point()}
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision)
    return max(torch.finfo(dtype).eps for dtype in (dtypes if autocast is None else {*dtypes, autocast}))


def _weights_name(model: Any) -> str:
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    return " and ".join(sorted(dtypes))


def only_distilled(batch: GateBatch, distilled_B: Tensor | None) -> GateBatch:
    """The batch with a mask of the completions that have a teacher; `None`: all of them."""
    if distilled_B is None:
        return batch
    return replace(batch, mask_BT=batch.mask_BT & distilled_B.to(batch.mask_BT.device).unsqueeze(1))


def safe_denominator(denominator: Tensor) -> Tensor:
    """One instead of zero: a loss without any token is zero, not NaN."""
    return torch.where(denominator > 0, denominator, torch.ones_like(denominator))


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Without gradients and dropout; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def left_align(mask_BT: Tensor) -> Tensor:
    """The mask with each row shifted to start at its first token, cut to the longest; gaps within a row stay.

    Tokens keep their order, so what is selected by one mask can be scattered into the other.
    """
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    from_BT = mask_BT.int().argmax(1, keepdim=True) + columns_T
    shifted_BT = mask_BT.gather(1, from_BT.clamp(max=len(columns_T) - 1)) & (from_BT < len(columns_T))
    return shifted_BT[:, : int((columns_T + 1)[shifted_BT.any(0)].amax()) if bool(shifted_BT.any()) else 1]


def scatter(values_N: Tensor, mask_BT: Tensor, *, fill: float = 0) -> Tensor:
    """The values of the tokens in a mask, in the mask's shape."""
    return torch.full_like(mask_BT, fill, dtype=values_N.dtype).masked_scatter(mask_BT, values_N)


def is_truncated(token_ids_BT: Tensor, mask_BT: Tensor, end_tokens: int | Sequence[int]) -> Tensor:
    """Which completions do not end in one of these tokens; an empty one is truncated too."""
    mask_BT = mask_BT.bool()
    last_B = mask_BT.shape[1] - 1 - mask_BT.int().flip(1).argmax(1)
    ended_B = torch.isin(token_ids_BT.gather(1, last_B.unsqueeze(1)).squeeze(1), token_ids_BT.new_tensor(end_tokens))
    return ~(ended_B & mask_BT.any(1))


def token_lists(token_ids_BT: Tensor, mask_BT: Tensor) -> list[list[int]]:
    """The tokens of each completion, without padding."""
    return [ids[mask.bool()].tolist() for ids, mask in zip(token_ids_BT.cpu(), mask_BT.cpu(), strict=True)]


def decode_completions(tokenizer: Any, token_ids: Sequence[Sequence[int]], *, conversational: bool) -> list[Any]:
    """Completions as TRL passes them to reward functions: an assistant message each, or plain text."""
    texts = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    return [[{"role": "assistant", "content": text}] for text in texts] if conversational else list(texts)
