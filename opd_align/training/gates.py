"""Gates: how much of the distillation loss each sampled token keeps.

A gate is a name and a function from a batch of completions to weights of the same shape, zero where the loss is
dropped. It sees token ids, the outcome of each completion, and how far student and teacher diverge at each token;
measures are computed only when a gate reads them. Gates can be multiplied.

This module is plain torch: it knows no trainer and no model, and calls no verifier. Measures (`measures.READABLE`) are
between the full distributions of student and teacher at the sampling temperature: a trainer's top-p, top-k or min-p
restrict what is sampled, not what is measured.

A *global batch* is what makes one optimizer step: all micro-batches on all processes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opd_align.tasks import Task
from opd_align.training.measures import (
    FLOAT32_EPS,
    LOG_RATIO,
    MEASURES,
    STUDENT_LOG_PROB,
    TEACHER_LOG_PROB,
    check_measure,
    log_ratio_rounding,
)
from opd_align.training.rewards import Verifier, reward_function
from opd_align.types import OpdAlignError, Outcome

DENOMINATORS = ("keep", "renormalise")

Unknown = Literal["keep", "drop"]

Measure = Callable[[str], Tensor]
"""From the name of a measure to its value at every token."""

Scorer = Callable[[Any, Sequence[Any], Sequence[Sequence[int]], Mapping[str, Sequence[Any]]], Sequence[Sequence[float]]]
"""From a trainer, prompts, completions as token ids and the data set's columns to a number per token (NaN: unknown)."""


def no_measures(name: str) -> Tensor:
    raise OpdAlignError(f"measure {name!r} is not available in this batch; list it in the gate's `measures`")


def _identity(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class GateBatch:
    """Completions of a batch, right-padded to the same length; column 0 holds the first token, for every trainer.

    Args:
        token_ids_BT: Token ids of the completions.
        mask_BT: True on the tokens that the loss is computed on.
        outcome_B: `Outcome` values, one per completion; `None` if the completions were not verified.
        measure: Returns one of `READABLE` for every token (arbitrary values outside the mask).
        gather: Concatenates a tensor's values from all processes; all of them must call it, or none.
        eps: `torch.finfo(dtype).eps` of the precision in which student and teacher were evaluated, the coarser one if
            they differ: measures are rounded to a multiple of it, whatever dtype they have.
        score_BT: What the gate's scorer returned; `None` without a scorer. NaN where it is unknown.
    """

    token_ids_BT: Tensor
    mask_BT: Tensor
    outcome_B: Tensor | None = None
    measure: Measure = no_measures
    gather: Callable[[Tensor], Tensor] = _identity
    eps: float = FLOAT32_EPS
    score_BT: Tensor | None = None

    def outcome_mask_BT(self, outcome: Outcome) -> Tensor:
        """True on the tokens of completions with this outcome."""
        if self.outcome_B is None:
            raise OpdAlignError("this gate needs outcomes, but the completions were not verified; give it a verifier")
        return (self.outcome_B == outcome).unsqueeze(1) & self.mask_BT


class Gate(ABC):
    """Base class of all gates.

    Attributes:
        name: Shown in logs.
        measures: The measures that the gate reads; without any, weights are known before the forward pass.
        needs_global_batch: Whether a token's weight depends on other completions of the same optimizer step.
        verifier: Decides which completions are correct; `None` if the gate does not use outcomes.
        scorer: Scores completions once they have been generated, with passes of its own; `None` if there are none.
    """

    verifier: Verifier | Task | None = None
    scorer: Scorer | None = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def measures(self) -> tuple[str, ...]:
        return ()

    @property
    def needs_global_batch(self) -> bool:
        return False

    def extra_metrics(self) -> Mapping[str, float]:
        """Further metrics to log under `gate/`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs, as JSON; `AlignmentCallback` stores it in checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most gates have no state)
        """Continues with the state of a checkpoint; an empty one is that of a new training."""

    @abstractmethod
    def __call__(self, batch: GateBatch) -> Tensor:
        """The weights, one per token."""

    def __mul__(self, other: Gate | Callable[[GateBatch], Tensor]) -> Gate:
        return Product((self, as_gate(other)))

    def __rmul__(self, other: Callable[[GateBatch], Tensor]) -> Gate:
        return Product((as_gate(other), self))


@dataclass(frozen=True)
class Open(Gate):
    """Keeps every token: distillation without a gate."""

    @property
    def name(self) -> str:
        return "open"

    def __call__(self, batch: GateBatch) -> Tensor:
        return batch.mask_BT.float()


@dataclass(frozen=True)
class IncorrectOnly(Gate):
    """Distills on incorrect completions.

    Args:
        verifier: A reward function with TRL's signature, synchronous or asynchronous, or a `Task`.
        correct_weight: Weight of the tokens of correct completions, 0 or more; incorrect ones have weight 1.
        unknown: Whether to "keep" or "drop" completions whose outcome is unknown.
    """

    verifier: Verifier | Task = field()
    correct_weight: float = field(default=0.0, kw_only=True)
    unknown: Unknown = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", reward_function(self.verifier))
        _check_unknown(self.unknown)
        if not 0 <= self.correct_weight < math.inf:
            raise OpdAlignError(f"correct_weight must be 0 or more, not {self.correct_weight}")

    @property
    def name(self) -> str:
        return "incorrect_only" if self.correct_weight == 0 else f"incorrect_only+{self.correct_weight:g}correct"

    def __call__(self, batch: GateBatch) -> Tensor:
        weights_BT = batch.outcome_mask_BT(Outcome.INCORRECT).float()
        weights_BT += self.correct_weight * batch.outcome_mask_BT(Outcome.CORRECT)
        return weights_BT + batch.outcome_mask_BT(Outcome.UNKNOWN) * float(self.unknown == "keep")


@dataclass(frozen=True)
class DivergenceAbove(Gate):
    """Keeps the tokens whose measure reaches a threshold, given in nats or as a quantile.

    The quantile is over all completion tokens of one optimizer step, on all processes: the share of tokens kept does
    not depend on how the step is split into micro-batches and processes. It is an observed value, so `quantile=0.9`
    keeps at least a tenth of the tokens.

    Args:
        threshold: Smallest value that is kept, in nats. Exactly one of `threshold` and `quantile` must be given.
        quantile: The threshold as a quantile of the measure, in [0, 1].
        measure: One of "kl" (KL(student ‖ teacher)), "js", "student_entropy", "teacher_entropy".
    """

    threshold: float | None = None
    quantile: float | None = None
    measure: str = "kl"

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if (self.threshold is None) == (self.quantile is None):
            raise OpdAlignError("DivergenceAbove takes either a threshold or a quantile")
        if self.quantile is not None:
            check_share("quantile", self.quantile)
        if self.threshold is not None and math.isnan(self.threshold):
            raise OpdAlignError("threshold is not a number (NaN)")

    @property
    def name(self) -> str:
        return f"{self.measure}>={f'{self.threshold:g}' if self.quantile is None else f'q{self.quantile:g}'}"

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    @property
    def needs_global_batch(self) -> bool:
        return self.quantile is not None

    def __call__(self, batch: GateBatch) -> Tensor:
        values_BT = batch.measure(self.measure)
        return ((values_BT >= self._threshold(batch, values_BT)) & batch.mask_BT).float()

    def _threshold(self, batch: GateBatch, values_BT: Tensor) -> float:
        if self.quantile is None:
            return math.inf if self.threshold is None else self.threshold
        return global_quantile(batch, values_BT, self.quantile)


def global_quantile(batch: GateBatch, values_BT: Tensor, quantile: float) -> float:
    """A quantile over the tokens of an optimizer step, on all processes: an observed value, infinite without tokens."""
    values = batch.gather(values_BT[batch.mask_BT])
    # numpy's "higher": torch.quantile has it too, but accepts at most 16 million values.
    return values.sort().values[math.ceil(quantile * (len(values) - 1))].item() if len(values) else math.inf


@dataclass(frozen=True)
class SignAgrees(Gate):
    """Keeps the tokens on which teacher and outcome agree.

    After the sign-consistency gate of Xu et al., 2026, SG-OPD (arXiv:2606.09304), which gives the tokens on which they
    disagree a lower weight instead of dropping them: `disagree_weight`.

    On correct completions these are the tokens to which the teacher gives more probability than the student, on
    incorrect ones those to which it gives less. Where the two probabilities are equal up to rounding, the sign of
    their difference has no meaning and the token is kept: it adds next to nothing to the loss, but dropping it would
    make the steps of the denominator "renormalise" larger.

    Args:
        verifier: A reward function with TRL's signature, synchronous or asynchronous, or a `Task`.
        unknown: Whether to "keep" or "drop" all tokens of completions whose outcome is unknown.
        disagree_weight: Weight of tokens on which teacher and outcome disagree, 0 or more; the others have weight 1.
        dead_zone: Largest |log t − log p|, in nats, that counts as equal. By default what rounding can do in the
            precision of the forward passes (`log_ratio_rounding`): for p = t = 0.5 this is 0.063 in bfloat16, 0.008 in
            float16 and 1e-5 in float32, and a hundredth of that (at least 2e-6) for p = t = 0.995.
    """

    verifier: Verifier | Task = field()
    unknown: Unknown = field(kw_only=True)
    disagree_weight: float = field(default=0.0, kw_only=True)
    dead_zone: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", reward_function(self.verifier))
        _check_unknown(self.unknown)
        if self.dead_zone is not None and not 0 <= self.dead_zone < math.inf:
            raise OpdAlignError(f"dead_zone must be 0 or more nats, not {self.dead_zone}")
        if not 0 <= self.disagree_weight < math.inf:
            raise OpdAlignError(f"disagree_weight must be 0 or more, not {self.disagree_weight}")

    @property
    def name(self) -> str:
        return "sign_agrees" if self.disagree_weight == 0 else f"sign_agrees+{self.disagree_weight:g}disagree"

    @property
    def measures(self) -> tuple[str, ...]:
        return (STUDENT_LOG_PROB, TEACHER_LOG_PROB)

    def __call__(self, batch: GateBatch) -> Tensor:
        log_p_BT, log_t_BT = batch.measure(STUDENT_LOG_PROB), batch.measure(TEACHER_LOG_PROB)
        dead_zone_BT = log_ratio_rounding(log_p_BT, log_t_BT, batch.eps)
        if self.dead_zone is not None:
            dead_zone_BT = torch.full_like(dead_zone_BT, self.dead_zone)
        # At least -dead_zone, not above zero: what is equal up to rounding agrees with either outcome.
        raised_BT = batch.outcome_mask_BT(Outcome.CORRECT) & (log_t_BT - log_p_BT >= -dead_zone_BT)
        lowered_BT = batch.outcome_mask_BT(Outcome.INCORRECT) & (log_t_BT - log_p_BT <= dead_zone_BT)
        unknown_BT, agrees_BT = batch.outcome_mask_BT(Outcome.UNKNOWN), raised_BT | lowered_BT
        disagrees_BT = batch.mask_BT & ~agrees_BT & ~unknown_BT
        return agrees_BT.float() + self.disagree_weight * disagrees_BT + unknown_BT * float(self.unknown == "keep")


@dataclass(frozen=True)
class FunctionGate(Gate):
    """A gate from any function of a `GateBatch`.

    Args:
        function: Returns the weights, one per token, finite and not negative.
        name: Shown in logs; by default the function's name.
        measures: The measures that the function reads; by default `MEASURES` and "log_ratio".
        needs_global_batch: Whether a weight depends on other completions of the same optimizer step. The function is
            then called once per step with all completions of its process, before the loss.
        verifier: A reward function or a `Task`, for functions that use outcomes; `None` for none.
    """

    function: Callable[[GateBatch], Tensor]
    name: str = ""
    measures: tuple[str, ...] = (*MEASURES, LOG_RATIO)
    needs_global_batch: bool = False
    verifier: Verifier | Task | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))
        if self.verifier is not None:
            object.__setattr__(self, "verifier", reward_function(self.verifier))

    def __call__(self, batch: GateBatch) -> Tensor:
        return self.function(batch)


@dataclass(frozen=True)
class Product(Gate):
    """The product of several gates' weights: a token that one of them drops is dropped.

    Args:
        gates: The gates; those with a verifier must share the same one.
    """

    gates: tuple[Gate, ...]
    verifier: Verifier | Task | None = field(default=None, init=False)
    scorer: Scorer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        scorers = [gate.scorer for gate in self.gates if gate.scorer is not None]
        if len(scorers) > 1:
            raise OpdAlignError("only one gate of a product can have a scorer")
        object.__setattr__(self, "scorer", scorers[0] if scorers else None)
        verifiers = [reward_function(gate.verifier) for gate in self.gates if gate.verifier is not None]
        if any(verifier != verifiers[0] for verifier in verifiers):
            raise OpdAlignError("the gates of a product must share one verifier: a completion has one outcome")
        object.__setattr__(self, "verifier", verifiers[0] if verifiers else None)

    @property
    def name(self) -> str:
        return "*".join(gate.name for gate in self.gates)

    @property
    def measures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(measure for gate in self.gates for measure in gate.measures))

    @property
    def needs_global_batch(self) -> bool:
        return any(gate.needs_global_batch for gate in self.gates)

    def extra_metrics(self) -> Mapping[str, float]:
        return {name: value for gate in self.gates for name, value in gate.extra_metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        states = {str(number): gate.state_dict() for number, gate in enumerate(self.gates)}
        return {number: state for number, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for number, gate in enumerate(self.gates):
            own = state.get(str(number))
            gate.load_state_dict(own if isinstance(own, dict) else {})

    def __call__(self, batch: GateBatch) -> Tensor:
        weights_BT = batch.mask_BT.float()
        for gate in self.gates:
            weights_BT = weights_BT * gate(batch)
        return weights_BT


def as_gate(gate: Any) -> Gate:
    """A gate unchanged; any other callable as a `FunctionGate`."""
    if isinstance(gate, Gate):
        return gate
    if not callable(gate):
        raise OpdAlignError(f"a gate is a function from a GateBatch to weights, not {gate!r}")
    return FunctionGate(gate)


def compute_weights(gate: Gate, batch: GateBatch) -> Tensor:
    """The gate's weights, checked, and zero outside the mask."""
    returned = gate(batch)
    try:
        weights_BT = torch.as_tensor(returned, device=batch.mask_BT.device).detach().float()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(returned).__name__
        raise OpdAlignError(f"gate {gate.name!r} returned a {kind}; expected one number per token") from error
    if weights_BT.shape != batch.mask_BT.shape:
        shapes = f"{tuple(weights_BT.shape)}, expected {tuple(batch.mask_BT.shape)}"
        raise OpdAlignError(f"gate {gate.name!r} returned weights of shape {shapes}")
    weights_BT = torch.where(batch.mask_BT, weights_BT, 0.0)
    if not bool(((weights_BT >= 0) & torch.isfinite(weights_BT)).all()):
        raise OpdAlignError(f"gate {gate.name!r} returned a weight that is negative or not finite")
    return weights_BT


def concatenate_batches(batches: Sequence[GateBatch], measured: Sequence[Mapping[str, Tensor]]) -> GateBatch:
    """Micro-batches as one batch, shorter ones padded on the right outside their mask."""
    length = max(batch.mask_BT.shape[1] for batch in batches)

    def rows(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(part, (0, length - part.shape[1])) for part in parts])

    outcomes = [batch.outcome_B for batch in batches if batch.outcome_B is not None]
    scores = [batch.score_BT for batch in batches if batch.score_BT is not None]
    columns = {name: rows([part[name] for part in measured]) for name in (measured[0] if measured else ())}
    return GateBatch(
        rows([batch.token_ids_BT for batch in batches]),
        rows([batch.mask_BT for batch in batches]),
        torch.cat(outcomes) if outcomes else None,
        lambda name: columns[name] if name in columns else no_measures(name),
        batches[0].gather,
        batches[0].eps,
        rows(scores) if scores else None,
    )


def check_denominator(denominator: str, allowed: Sequence[str] = DENOMINATORS) -> None:
    if denominator not in allowed:
        raise OpdAlignError(
            f"denominator must be one of {', '.join(allowed)}, not {denominator!r}: 'keep' divides by the number of "
            "completion tokens, so that dropping tokens lowers the loss; 'renormalise' divides by the sum of the "
            "weights, so that the tokens that are kept get larger gradients"
        )


def check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise OpdAlignError(f"{name} must be in [0, 1], not {value}")


def _check_unknown(unknown: str) -> None:
    if unknown not in ("keep", "drop"):
        raise OpdAlignError(f"unknown must be 'keep' or 'drop' (completions whose outcome is unknown), not {unknown!r}")
