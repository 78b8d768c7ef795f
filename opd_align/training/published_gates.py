"""Gates from the literature, a few lines each over the protocol of `gates`; one that differs from its paper says so.

`SignAgrees` (in `gates`) and `ContrastiveContexts` (in `contrast`: it makes forward passes of its own) are others.
`NAMED` lists all that a recipe can select by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from opd_align.training.contrast import ContrastiveContexts
from opd_align.training.gates import (
    DivergenceAbove,
    Gate,
    GateBatch,
    IncorrectOnly,
    Open,
    SignAgrees,
    Unknown,
    check_share,
    global_quantile,
)
from opd_align.training.measures import TEACHER_MASS
from opd_align.types import OpdAlignError


@dataclass(frozen=True)
class Teachable(Gate):
    """Keeps the tokens with the largest teachability: divergence that the student can follow.

    Teachability is KL(student ‖ teacher) × the teacher's probability of the student's 16 most likely tokens together: a
    teacher that prefers tokens which the student does not consider diverges strongly, but teaches little. After Wang et
    al., 2026, Not All Disagreement Is Learnable: Token Teachability in On-Policy Distillation (arXiv:2605.26844), who
    normalise both factors within a batch; here they are multiplied as they are.

    Args:
        quantile: Smallest teachability that is kept, as a quantile over the completion tokens of one optimizer step.
    """

    quantile: float = 0.8

    def __post_init__(self) -> None:
        check_share("quantile", self.quantile)

    @property
    def name(self) -> str:
        return f"teachable>=q{self.quantile:g}"

    @property
    def measures(self) -> tuple[str, ...]:
        return ("kl", TEACHER_MASS)

    @property
    def needs_global_batch(self) -> bool:
        return True

    def __call__(self, batch: GateBatch) -> Tensor:
        value_BT = batch.measure("kl") * batch.measure(TEACHER_MASS)
        return ((value_BT >= global_quantile(batch, value_BT, self.quantile)) & batch.mask_BT).float()


@dataclass(frozen=True)
class EntropyDivergence(Gate):
    """Keeps the tokens where the student is sure and the teacher disagrees: low entropy, large divergence.

    Quadrants of student entropy and KL(student ‖ teacher), after Xu et al., 2026, TIP: Token Importance in On-Policy
    Distillation (arXiv:2604.14084). Where the quadrants meet is a quantile, over the completion tokens of one optimizer
    step.

    Args:
        entropy_quantile: Up to this quantile, the student's entropy is low.
        divergence_quantile: From this quantile on, the divergence is large.
        high_entropy: Whether all tokens of high entropy are kept as well, whatever their divergence.
    """

    entropy_quantile: float = 0.5
    divergence_quantile: float = 0.5
    high_entropy: bool = False

    def __post_init__(self) -> None:
        check_share("entropy_quantile", self.entropy_quantile)
        check_share("divergence_quantile", self.divergence_quantile)

    @property
    def name(self) -> str:
        quadrant = f"entropy<=q{self.entropy_quantile:g}&kl>=q{self.divergence_quantile:g}"
        return f"{quadrant}|high_entropy" if self.high_entropy else quadrant

    @property
    def measures(self) -> tuple[str, ...]:
        return ("student_entropy", "kl")

    @property
    def needs_global_batch(self) -> bool:
        return True

    def __call__(self, batch: GateBatch) -> Tensor:
        entropy_BT, kl_BT = batch.measure("student_entropy"), batch.measure("kl")
        low_BT = entropy_BT <= global_quantile(batch, entropy_BT, self.entropy_quantile)
        kept_BT = low_BT & (kl_BT >= global_quantile(batch, kl_BT, self.divergence_quantile))
        return ((kept_BT | (~low_BT & self.high_entropy)) & batch.mask_BT).float()


@dataclass(frozen=True)
class FirstPart(Gate):
    """Keeps the first part of each completion.

    After Zhang et al., 2026, Fast and Effective On-policy Distillation from Reasoning Prefixes (arXiv:2602.15260), who
    sample no more than a prefix of fixed length. Here completions are sampled to their end, since their length is not
    known before, and other gates may need their outcome.

    Args:
        share: Share of a completion's tokens that is kept, rounded up, above 0 and at most 1. Tokens without a
            loss (of a tool) do not count.
    """

    share: float = 1 / 3

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise OpdAlignError(f"share must be above 0 and at most 1, not {self.share}")

    @property
    def name(self) -> str:
        return f"first_{self.share:.3g}"

    def __call__(self, batch: GateBatch) -> Tensor:
        number_BT = batch.mask_BT.cumsum(1)  # from 1
        # Less a rounding error of the share: a third of three tokens is one token.
        last_B1 = torch.ceil(batch.mask_BT.sum(1, keepdim=True).double() * self.share - 1e-9)
        return ((number_BT <= last_B1) & batch.mask_BT).float()


MakeGate = Callable[[Any, Unknown], Gate]
"""From a verifier (or a `Task`) and what to do with unknown outcomes to a gate."""

NAMED: Mapping[str, MakeGate] = {
    "open": lambda verifier, unknown: Open(),
    "incorrect_only": lambda verifier, unknown: IncorrectOnly(verifier, unknown=unknown),
    "divergence": lambda verifier, unknown: DivergenceAbove(quantile=0.8),
    "sign_agrees": lambda verifier, unknown: SignAgrees(verifier, unknown=unknown),
    "teachable": lambda verifier, unknown: Teachable(),
    "entropy_divergence": lambda verifier, unknown: EntropyDivergence(),
    "first_part": lambda verifier, unknown: FirstPart(),
    "contrastive_contexts": lambda verifier, unknown: ContrastiveContexts(unknown=unknown),
}
"""Gates by name, with their defaults; for `recipes/`."""


def named_gate(names: str, verifier: Any, *, unknown: Unknown) -> Gate:
    """A gate by name; `a*b` is the product of two."""
    product: Gate | None = None
    for name in names.split("*"):
        if name not in NAMED:
            similar = get_close_matches(name, NAMED, n=1)
            hint = f"did you mean {similar[0]!r}? " if similar else ""
            raise OpdAlignError(f"unknown gate {name!r}; {hint}Available gates: {', '.join(NAMED)}")
        gate = NAMED[name](verifier, unknown)
        product = gate if product is None else product * gate
    assert product is not None  # `split` returns at least one name
    return product
