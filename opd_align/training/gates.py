"""Gates: how much of the distillation loss each sampled token keeps.

A gate is a name and a function from a batch of completions to weights of the same shape, zero where the loss is
closed. It sees token ids, what the verifier said of each completion, and how far student and teacher are apart at each
token; the measures are computed when they are asked for and not before. Gates multiply.

Everything here is plain torch: no trainer, no model, no verifier's call. All measures are in nats, between the whole
distributions at the sampling temperature, on both sides: a trainer's top-p, top-k or min-p cut what is sampled, not
what is measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opd_align.training.reward_call import refuse_model
from opd_align.types import OpdAlignError, Outcome

MEASURES = ("kl", "js", "student_entropy", "teacher_entropy")
"""What a token can be chosen by: KL(student ‖ teacher), Jensen-Shannon, and the two entropies."""

PUSH = "push"
"""log t − log p of the sampled token: positive where the teacher wants more of it."""

DENOMINATORS = ("keep", "renormalise")

Unknown = Literal["keep", "drop"]
Denominator = Literal["keep", "renormalise"]
Verifier = Callable[..., Sequence[float | None]]


Measure = Callable[[str], Tensor]
"""From the name of a measure to its value at every token."""


def unmeasured(name: str) -> Tensor:
    raise OpdAlignError(f"nothing was measured here, so there is no {name!r}; a gate that asks for it must say so")


def _itself(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class GateBatch:
    """Completions side by side, padded to one length: column 0 holds the first token of each, whoever the trainer.

    `mask_BT` is true on the tokens that the loss runs over; `outcome_B` holds `Outcome` values, or is `None` where
    nobody verified. `measure` gives one of `MEASURES` or "push" for every token (anything where the mask is false).
    `everywhere` brings together the values of all processes; all of them must call it, or none.
    """

    token_ids_BT: Tensor
    mask_BT: Tensor
    outcome_B: Tensor | None = None
    measure: Measure = unmeasured
    everywhere: Callable[[Tensor], Tensor] = _itself

    def is_BT(self, outcome: Outcome) -> Tensor:
        """Which tokens belong to completions with this outcome."""
        if self.outcome_B is None:
            raise OpdAlignError("this gate asks for outcomes, but nothing was verified; give it a verifier")
        return (self.outcome_B == outcome).unsqueeze(1) & self.mask_BT


class Gate(ABC):
    """What gates have in common.

    `measures` are those that the gate will ask for: with none, its weights are known before any forward pass.
    `of_the_window` says that a token's weight depends on other completions of the same optimiser step. `verifier`
    judges the completions, `None` if the gate does not look at outcomes.
    """

    verifier: Verifier | None = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def measures(self) -> tuple[str, ...]:
        return ()

    @property
    def of_the_window(self) -> bool:
        return False

    def figures(self) -> Mapping[str, float]:
        """What the gate would like to have logged beside its effect."""
        return {}

    @abstractmethod
    def __call__(self, batch: GateBatch) -> Tensor:
        """The weights, one a token."""

    def __mul__(self, other: Gate | Callable[[GateBatch], Tensor]) -> Gate:
        return Product((self, as_gate(other)))

    def __rmul__(self, other: Callable[[GateBatch], Tensor]) -> Gate:
        return Product((as_gate(other), self))


@dataclass(frozen=True)
class Open(Gate):
    """Closes nothing: distillation as it was."""

    @property
    def name(self) -> str:
        return "open"

    def __call__(self, batch: GateBatch) -> Tensor:
        return batch.mask_BT.float()


@dataclass(frozen=True)
class IncorrectOnly(Gate):
    """Full weight on incorrect completions, `correct_weight` on correct ones; `unknown` ones are kept or dropped."""

    verifier: Verifier = field()
    correct_weight: float = field(default=0.0, kw_only=True)
    unknown: Unknown = field(kw_only=True)

    def __post_init__(self) -> None:
        check_verifier(self.verifier)
        _check_unknown(self.unknown)
        if not 0 <= self.correct_weight < math.inf:
            raise OpdAlignError(f"correct_weight must be 0 or more, not {self.correct_weight}")

    @property
    def name(self) -> str:
        return "incorrect_only" if self.correct_weight == 0 else f"incorrect_only+{self.correct_weight:g}correct"

    def __call__(self, batch: GateBatch) -> Tensor:
        weights_BT = batch.is_BT(Outcome.INCORRECT).float()
        weights_BT += self.correct_weight * batch.is_BT(Outcome.CORRECT)
        return weights_BT + batch.is_BT(Outcome.UNKNOWN) * float(self.unknown == "keep")


@dataclass(frozen=True)
class DivergenceAbove(Gate):
    """Keeps the tokens whose measure reaches a threshold, in nats or as a quantile.

    The quantile is over all completion tokens of one optimiser step, on all processes: it keeps the same share however
    that step is cut into micro-batches and processes. It is a value that occurs, so `quantile=0.9` keeps at least a
    tenth.
    """

    threshold: float | None = None
    quantile: float | None = None
    measure: str = "kl"

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if (self.threshold is None) == (self.quantile is None):
            raise OpdAlignError("DivergenceAbove takes a threshold or a quantile, one of them")
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise OpdAlignError(f"a quantile lies in [0, 1], not {self.quantile}")
        if self.threshold is not None and math.isnan(self.threshold):
            raise OpdAlignError("the threshold is not a number")

    @property
    def name(self) -> str:
        return f"{self.measure}>={f'{self.threshold:g}' if self.quantile is None else f'q{self.quantile:g}'}"

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    @property
    def of_the_window(self) -> bool:
        return self.quantile is not None

    def __call__(self, batch: GateBatch) -> Tensor:
        values_BT = batch.measure(self.measure)
        return ((values_BT >= self._cut(batch, values_BT)) & batch.mask_BT).float()

    def _cut(self, batch: GateBatch, values_BT: Tensor) -> float:
        if self.quantile is None:
            return math.inf if self.threshold is None else self.threshold
        values = batch.everywhere(values_BT[batch.mask_BT])
        # numpy's "higher": torch.quantile has it too, but takes 16 million values at most.
        return values.sort().values[math.ceil(self.quantile * (len(values) - 1))].item() if len(values) else math.inf


@dataclass(frozen=True)
class SignAgrees(Gate):
    """Keeps tokens on which the teacher's push agrees with the outcome: up on correct completions, down on incorrect.

    Where the outcome is unknown there is nothing to agree with: all such tokens are kept, or all dropped.
    """

    verifier: Verifier = field()
    unknown: Unknown = field(kw_only=True)

    def __post_init__(self) -> None:
        check_verifier(self.verifier)
        _check_unknown(self.unknown)

    @property
    def name(self) -> str:
        return "sign_agrees"

    @property
    def measures(self) -> tuple[str, ...]:
        return (PUSH,)

    def __call__(self, batch: GateBatch) -> Tensor:
        push_BT = batch.measure(PUSH)
        agrees_BT = (batch.is_BT(Outcome.CORRECT) & (push_BT > 0)) | (batch.is_BT(Outcome.INCORRECT) & (push_BT < 0))
        return agrees_BT.float() + batch.is_BT(Outcome.UNKNOWN) * float(self.unknown == "keep")


@dataclass(frozen=True)
class OwnGate(Gate):
    """A gate of one's own: any function of a `GateBatch`. Unless told otherwise it may ask for every measure."""

    function: Callable[[GateBatch], Tensor]
    name: str = ""
    measures: tuple[str, ...] = (*MEASURES, PUSH)
    of_the_window: bool = False
    verifier: Verifier | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, batch: GateBatch) -> Tensor:
        return self.function(batch)


@dataclass(frozen=True)
class Product(Gate):
    """All gates at once: weights multiply, so what one of them closes stays closed."""

    gates: tuple[Gate, ...]
    verifier: Verifier | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        verifiers = [gate.verifier for gate in self.gates if gate.verifier is not None]
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
    def of_the_window(self) -> bool:
        return any(gate.of_the_window for gate in self.gates)

    def figures(self) -> Mapping[str, float]:
        return {name: value for gate in self.gates for name, value in gate.figures().items()}

    def __call__(self, batch: GateBatch) -> Tensor:
        weights_BT = batch.mask_BT.float()
        for gate in self.gates:
            weights_BT = weights_BT * gate(batch)
        return weights_BT


def as_gate(gate: Any) -> Gate:
    """A gate as it is; any other callable as a gate of one's own, known by its name."""
    if isinstance(gate, Gate):
        return gate
    if not callable(gate):
        raise OpdAlignError(f"a gate is a function from a GateBatch to weights, not {gate!r}")
    return OwnGate(gate)


def weigh(gate: Gate, batch: GateBatch) -> Tensor:
    """The gate's weights, checked, and zero outside the mask."""
    given = gate(batch)
    try:
        weights_BT = torch.as_tensor(given, device=batch.mask_BT.device).detach().float()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(given).__name__
        raise OpdAlignError(f"gate {gate.name!r} gave no weights but {kind}: one number a token is needed") from error
    if weights_BT.shape != batch.mask_BT.shape:
        shapes = f"{tuple(weights_BT.shape)}, expected {tuple(batch.mask_BT.shape)}"
        raise OpdAlignError(f"gate {gate.name!r} gave weights of shape {shapes}")
    weights_BT = torch.where(batch.mask_BT, weights_BT, 0.0)
    if not bool(((weights_BT >= 0) & torch.isfinite(weights_BT)).all()):
        raise OpdAlignError(f"gate {gate.name!r} gave a weight that is negative or not finite")
    return weights_BT


def together(batches: Sequence[GateBatch], measured: Sequence[Mapping[str, Tensor]]) -> GateBatch:
    """Micro-batches as one batch, shorter ones filled up on the right outside their mask."""
    length = max(batch.mask_BT.shape[1] for batch in batches)

    def rows(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(part, (0, length - part.shape[1])) for part in parts])

    outcomes = [batch.outcome_B for batch in batches if batch.outcome_B is not None]
    columns = {name: rows([part[name] for part in measured]) for name in (measured[0] if measured else ())}
    return GateBatch(
        rows([batch.token_ids_BT for batch in batches]),
        rows([batch.mask_BT for batch in batches]),
        torch.cat(outcomes) if outcomes else None,
        lambda name: columns[name] if name in columns else unmeasured(name),
        batches[0].everywhere,
    )


def measure_logits(name: str, student_NV: Tensor, teacher_NV: Tensor, token_N: Tensor) -> Tensor:
    """A measure from whole logits, already divided by the temperature."""
    log_p, log_t = F.log_softmax(student_NV.float(), -1), F.log_softmax(teacher_NV.float(), -1)
    if name == "kl":
        return (log_p.exp() * (log_p - log_t)).sum(-1)
    if name == "js":
        log_m = torch.logaddexp(log_p, log_t) - math.log(2)
        return ((log_p.exp() * (log_p - log_m)).sum(-1) + (log_t.exp() * (log_t - log_m)).sum(-1)) / 2
    if name == "student_entropy":
        return -(log_p.exp() * log_p).sum(-1)
    if name == "teacher_entropy":
        return -(log_t.exp() * log_t).sum(-1)
    if name == PUSH:
        return (log_t - log_p).gather(-1, token_N.unsqueeze(-1)).squeeze(-1)
    raise OpdAlignError(f"there is no measure {name!r}; choose from {', '.join((*MEASURES, PUSH))}")


def check_measure(measure: str) -> None:
    if measure not in MEASURES:
        raise OpdAlignError(f"no measure {measure!r} to gate by; choose from {', '.join(MEASURES)}")


def check_denominator(denominator: str, allowed: Sequence[str] = DENOMINATORS) -> None:
    if denominator not in allowed:
        raise OpdAlignError(
            f"denominator must be one of {', '.join(allowed)}, not {denominator!r}: 'keep' divides by all completion "
            "tokens, so that closing the gate lowers the loss; 'renormalise' by the sum of weights, so that what stays "
            "open learns faster"
        )


def _check_unknown(unknown: str) -> None:
    if unknown not in ("keep", "drop"):
        raise OpdAlignError(
            f"unknown says what happens to completions nobody could judge: keep or drop, not {unknown!r}"
        )


def check_verifier(verifier: Any) -> None:
    if hasattr(verifier, "verifier"):
        raise OpdAlignError(f"the verifier is a {type(verifier).__name__}; give its judge: task.verifier")
    if not callable(verifier):
        raise OpdAlignError(f"a verifier is a function with TRL's reward signature, not {verifier!r}")
    refuse_model(verifier)
    if iscoroutinefunction(verifier) or iscoroutinefunction(getattr(verifier, "__call__", None)):  # noqa: B004
        raise OpdAlignError("the verifier is asynchronous; give a plain function that waits for it")
