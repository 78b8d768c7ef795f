"""One gate at work in one trainer: outcomes, weights, the denominator, and what is logged of them.

A *window* is what makes one optimiser step: all micro-batches on all processes. Its denominator must be known before
the first backward pass, and so must everything that a weight depends on. A gate that looks at outcomes alone is
settled when the window has been generated. One that measures tokens by a threshold is settled within the loss's own
forward pass, at no cost. Only a quantile, or the sum of weights of a gate that measures, needs a look at the whole
window first: one more forward pass of student and teacher without gradients (`beforehand`).

What is logged under `gate/`, of one window on all processes:

    denominator       what the loss was divided by; `renormalised` is 1 if that is the sum of weights, else 0
    loss              the distillation loss through the gate; `loss_open`, a mean over tokens: without the gate
    kept_divergence   mean divergence of what is kept, by weight; `tokens_distilled`: the sum of weights
    tokens_kept       share of the tokens with a weight; `sequences_kept`: of the completions with such a token
    correct, unknown  shares of all completions, truncated and masked ones included
    verifier_failures calls of the verifier that raised or did not return in time

A completion that does not end is incorrect, whatever the verifier says of it: so an analysis counts it too.

This room knows accelerate's processes, but neither TRL nor how a measure is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from opd_align.training.gates import (
    DENOMINATORS,
    GateBatch,
    Measure,
    as_gate,
    check_denominator,
    together,
    unmeasured,
    weigh,
)
from opd_align.training.rewards import Verifying
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
    "tokens_kept",
    "weight",
    "divergence",
    "weighted",
    "loss",
)


class GateRuntime:
    """Applies a gate; the trainer says when."""

    def __init__(
        self, gate: Any, denominator: str, *, timeout_s: float, denominators: Sequence[str] = DENOMINATORS
    ) -> None:
        check_denominator(denominator, denominators)
        self.gate, self.denominator = as_gate(gate), denominator
        verifier = self.gate.verifier
        self.verifying = None if verifier is None else Verifying(verifier, timeout_s=timeout_s)
        self.beforehand = bool(self.gate.measures) and (self.gate.of_the_window or denominator == "renormalise")
        self.rewarding = False
        self._noted, self._failures_seen = False, 0

    def on(self, accelerator: Any) -> GateRuntime:
        """At work from here on: a gate that cannot work is refused before there are models and processes."""
        self.accelerator = accelerator
        self._sums = torch.zeros(len(SUMS), device=accelerator.device)
        if accelerator.is_main_process:
            logger.info("distillation through the gate %s, denominator: %s", self.gate.name, self.denominator)
        return self

    def among(self, rewards: Any) -> Any:
        """A trainer's reward functions, the gate's verifier among them called in time, and once for both."""
        several = isinstance(rewards, list | tuple)
        given = list(rewards) if several else [rewards]
        mine = [self.verifying is not None and each == self.verifying.verifier for each in given]
        self.rewarding = any(mine)
        if self.verifying is not None and self.rewarding:
            reward = self.verifying.as_reward()
            given = [reward if own else each for each, own in zip(given, mine, strict=True)]
        return given if several else given[0]

    def judged(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        truncated_B: Tensor,
        **extras: Any,
    ) -> Tensor | None:
        """Outcomes of this process's completions; `None` if the gate does not ask for them.

        Where the verifier is a reward of the trainer too, it has just been asked, and is not asked again.
        """
        if self.verifying is None:
            return None
        heard = self.verifying.latest if self.rewarding else None
        outcomes = self.verifying.outcomes(prompts, completions, columns, **extras) if heard is None else heard
        outcome_B = torch.tensor([int(outcome) for outcome in outcomes], device=self.accelerator.device)
        return outcome_B.masked_fill(truncated_B.to(outcome_B.device), int(Outcome.INCORRECT))

    def batch(
        self, token_ids_BT: Tensor, mask_BT: Tensor, outcome_B: Tensor | None, measure: Measure = unmeasured
    ) -> GateBatch:
        return GateBatch(token_ids_BT, mask_BT.bool(), outcome_B, measure, self._everywhere)

    def settled(
        self, batches: Sequence[GateBatch], measured: Sequence[Mapping[str, Tensor]] = ()
    ) -> tuple[list[Tensor] | None, Tensor]:
        """Each micro-batch's weights, if they can be known yet, and the window's denominator."""
        tokens = self._total(torch.stack([batch.mask_BT.sum() for batch in batches]).sum())
        if self.gate.measures and not measured:
            return None, tokens
        weights = weigh(self.gate, together(batches, measured))
        rows = torch.split(weights, [len(batch.mask_BT) for batch in batches])
        cut = [mine[:, : batch.mask_BT.shape[1]] for mine, batch in zip(rows, batches, strict=True)]
        return cut, self._total(weights.sum()) if self.denominator == "renormalise" else tokens

    def note(self, batch: GateBatch, weights_BT: Tensor, divergence_BT: Tensor, divided_by: Tensor) -> None:
        """Adds a micro-batch to what is logged of the window, whose loss is divided by so much."""
        none = torch.zeros((), device=weights_BT.device)
        outcome_B = batch.outcome_B
        # Where the gate is closed the divergence may be infinite, and zero times infinity is not zero.
        weighted = torch.where(weights_BT > 0, weights_BT * divergence_BT, 0.0).sum()
        found = {
            "rollouts": none + len(batch.mask_BT),
            "sequences": batch.mask_BT.any(1).sum(),
            "sequences_kept": (weights_BT > 0).any(1).sum(),
            "correct": none if outcome_B is None else (outcome_B == Outcome.CORRECT).sum(),
            "unknown": none if outcome_B is None else (outcome_B == Outcome.UNKNOWN).sum(),
            "tokens": batch.mask_BT.sum(),
            "tokens_kept": (weights_BT > 0).sum(),
            "weight": weights_BT.sum(),
            "divergence": torch.where(batch.mask_BT, divergence_BT, 0.0).sum(),
            "weighted": weighted,
            "loss": weighted / divided_by,
        }
        self._noted = True
        self._sums = self._sums + torch.stack([found.get(name, none).float() for name in SUMS])

    def flush(self, metrics: dict[str, list[float]], denominator: Tensor) -> None:
        """Appends the window's figures to a trainer's metrics; all processes must come here together."""
        if not self._noted:
            raise OpdAlignError("the loss did not pass through the gate: this version of TRL is not supported")
        self._noted = False
        if self.verifying is not None:
            self._sums[SUMS.index("failures")] += self.verifying.failures - self._failures_seen
            self._failures_seen = self.verifying.failures
        total = dict(zip(SUMS, self._total(self._sums).tolist(), strict=True))
        self._sums = torch.zeros_like(self._sums)
        tokens, sequences = max(total["tokens"], 1.0), max(total["sequences"], 1.0)
        figures = {
            "sequences_kept": total["sequences_kept"] / sequences,
            "tokens_kept": total["tokens_kept"] / tokens,
            "tokens_distilled": total["weight"],
            "denominator": safe(denominator).item(),
            "renormalised": float(self.denominator == "renormalise"),
            "loss": total["loss"],
            "loss_open": total["divergence"] / tokens,
        }
        if total["weight"] > 0:  # else there is no such mean, and no row for it
            figures["kept_divergence"] = total["weighted"] / total["weight"]
        if self.verifying is not None:
            figures["correct"] = total["correct"] / max(total["rollouts"], 1.0)
            figures["unknown"] = total["unknown"] / max(total["rollouts"], 1.0)
            figures["verifier_failures"] = total["failures"]
        for name, value in {**figures, **self.gate.figures()}.items():
            metrics[f"gate/{name}"].append(value)

    def _total(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values.float(), reduction="sum")

    def _everywhere(self, values: Tensor) -> Tensor:
        # Processes hold different numbers of tokens: fill up to the largest, and take the filling out again.
        values = self.accelerator.pad_across_processes(values, dim=0, pad_index=float("nan"))
        values = self.accelerator.gather(values)
        return values[~values.isnan()]


def safe(denominator: Tensor) -> Tensor:
    """Nothing to divide by means nothing to divide: zero stays zero."""
    return torch.where(denominator > 0, denominator, torch.ones_like(denominator))


@contextmanager
def looking(model: torch.nn.Module) -> Iterator[None]:
    """A look without gradients and without dropout; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def side_by_side(mask_BT: Tensor) -> Tensor:
    """The mask with each row moved to its first token, cut to the longest; gaps within a row stay.

    Tokens keep their order, so what is picked by the one mask fits into the other.
    """
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    from_BT = mask_BT.int().argmax(1, keepdim=True) + columns_T
    moved_BT = mask_BT.gather(1, from_BT.clamp(max=len(columns_T) - 1)) & (from_BT < len(columns_T))
    return moved_BT[:, : int((columns_T + 1)[moved_BT.any(0)].amax()) if bool(moved_BT.any()) else 1]


def spread(values_N: Tensor, mask_BT: Tensor, *, fill: float = 0) -> Tensor:
    """Values of the tokens within a mask, in its shape."""
    return torch.full_like(mask_BT, fill, dtype=values_N.dtype).masked_scatter(mask_BT, values_N)


def truncated(token_ids_BT: Tensor, mask_BT: Tensor, ends: int | Sequence[int]) -> Tensor:
    """Which completions do not end in one of these tokens; one without any token has no end either."""
    mask_BT = mask_BT.bool()
    last_B = mask_BT.shape[1] - 1 - mask_BT.int().flip(1).argmax(1)
    ended_B = torch.isin(token_ids_BT.gather(1, last_B.unsqueeze(1)).squeeze(1), token_ids_BT.new_tensor(ends))
    return ~(ended_B & mask_BT.any(1))


def rows_of(token_ids_BT: Tensor, mask_BT: Tensor) -> list[list[int]]:
    """Each completion's own tokens."""
    return [ids[mask.bool()].tolist() for ids, mask in zip(token_ids_BT.cpu(), mask_BT.cpu(), strict=True)]


def texts(tokenizer: Any, rows: Sequence[Sequence[int]], *, conversational: bool) -> list[Any]:
    """Completions as TRL hands them to reward functions: an assistant's message, or plain text."""
    plain = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [[{"role": "assistant", "content": text}] for text in plain] if conversational else list(plain)
