"""TRL's chunked divergence per token: weighted by a gate, and measured, without materializing full logits.

TRL's kernel returns one divergence per token; `DistillationTrainer._compute_loss` sums them in the next line. There is
no hook between the two, so the name under which the trainer finds its kernel is replaced for the duration of one call.
The alternative is a copy of that method: a hundred lines that would keep today's bugs. The kernel's arguments (hidden
states, heads, scales, temperature) are also all that a measure needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from opd_align.training import trl_compat
from opd_align.training.gates import GateBatch
from opd_align.training.measures import (
    LOG_RATIO,
    READABLE,
    STUDENT_LOG_PROB,
    TEACHER_LOG_PROB,
    TEACHER_MASS,
    mass_on_top,
)
from opd_align.training.trl_compat import ChunkedDivergenceFunction, ChunkedLogProbFunction, maybe_gather_lm_head_ctx
from opd_align.types import OpdAlignError

VOCABULARY_CHUNK = 32768
TOKEN_CHUNK = 256
"""Tokens whose logits are in memory at once, for a measure that needs the student's most likely tokens."""
BETA_OF = {"kl": 1.0, "js": 0.5}


class KernelCall:
    """One call of the kernel: its result, and the measures that can be computed from its arguments.

    The kernel receives all positions, or on a GPU only those in the mask; arrays here are (B, T) in both cases.

    Args:
        arguments: What TRL called the kernel with.
        batch: The completions.
        beta: Replaces the trainer's beta; `None` keeps it.
        teacher_leaves: Whether the teacher may be moved to host memory before the backward pass.
    """

    def __init__(
        self,
        arguments: tuple[Any, ...],
        batch: GateBatch,
        beta: float | None = None,
        *,
        teacher_leaves: bool = False,
    ) -> None:
        self.student, self.teacher = arguments[0:3], arguments[3:6]
        if teacher_leaves:
            # The backward pass reads the teacher's head again. `Module.to` exchanges the data of a parameter, and what
            # autograd has saved is the parameter; a detached one keeps the data that it had.
            self.teacher = tuple(None if each is None else each.detach() for each in self.teacher)
        own_beta, self.temperature, *scales = arguments[6:]
        self.student_scale, self.teacher_scale = tuple(scales[0:2]), tuple(scales[2:4])
        self.beta = own_beta if beta is None else beta
        self.batch = batch
        self.divergence_N, self.entropy_N = self._apply(self.beta)
        self._compact = len(self.divergence_N) != batch.mask_BT.numel()

    def _apply(self, beta: float, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        sides = (self.student[0][rows], *self.student[1:], self.teacher[0][rows], *self.teacher[1:])
        return ChunkedDivergenceFunction.apply(*sides, beta, self.temperature, *self.student_scale, *self.teacher_scale)

    def weighted(self, weights_BT: Tensor) -> Tensor:
        """The weighted divergences; a dropped token adds zero to loss and gradient, whatever its divergence."""
        weights_N = self.select(weights_BT)
        excluded_N = (weights_N == 0) & ~self.divergence_N.isfinite()
        # Zero times infinity is not zero, and the kernel's backward pass mixes rows: it must not see such tokens. A
        # call gathers the heads under ZeRO-3, so all processes make it or none.
        if not bool(self.batch.gather(excluded_N.any().float().unsqueeze(0)).any()):
            return self.divergence_N * weights_N
        kept_N = ~excluded_N
        divergence_M, _ = self._apply(self.beta, kept_N)
        return torch.zeros_like(weights_N).masked_scatter(kept_N, divergence_M * weights_N[kept_N])

    @torch.no_grad()
    def measure(self, name: str) -> Tensor:
        if BETA_OF.get(name) == self.beta:
            return self.scatter(self.divergence_N.detach())
        if name in BETA_OF:
            return self.scatter(self._apply(BETA_OF[name])[0])
        if name == "student_entropy":
            return self.scatter(self.entropy_N)
        if name == "teacher_entropy":
            sides = (*self.teacher, *self.student)
            scales = (*self.teacher_scale, *self.student_scale)
            return self.scatter(ChunkedDivergenceFunction.apply(*sides, 1.0, self.temperature, *scales)[1])
        if name == LOG_RATIO:
            return self.measure(TEACHER_LOG_PROB) - self.measure(STUDENT_LOG_PROB)
        if name == STUDENT_LOG_PROB:
            return self.scatter(self._log_prob(self.student, self.student_scale))
        if name == TEACHER_LOG_PROB:
            return self.scatter(self._log_prob(self.teacher, self.teacher_scale))
        if name == TEACHER_MASS:
            return self.scatter(self._teacher_mass())
        raise OpdAlignError(f"there is no measure {name!r}; choose from {', '.join(READABLE)}")

    def _log_prob(self, side: tuple[Any, ...], scale: tuple[Any, ...]) -> Tensor:
        tokens_N = self.select(self.batch.token_ids_BT)
        logit_scale, softcapping = scale
        with maybe_gather_lm_head_ctx(*side[1:]):
            outputs = ChunkedLogProbFunction.apply(
                *side, tokens_N, self.temperature, VOCABULARY_CHUNK, softcapping, logit_scale, ()
            )
        return outputs[0]

    def _teacher_mass(self) -> Tensor:
        parts = [self.divergence_N.new_zeros(0)]
        with maybe_gather_lm_head_ctx(*self.student[1:], *self.teacher[1:]):
            for start in range(0, len(self.divergence_N), TOKEN_CHUNK):
                rows = slice(start, start + TOKEN_CHUNK)
                student_NV = self._logits(self.student, self.student_scale, rows)
                parts.append(mass_on_top(student_NV, self._logits(self.teacher, self.teacher_scale, rows).softmax(-1)))
        return torch.cat(parts)

    def _logits(self, side: tuple[Any, ...], scale: tuple[Any, ...], rows: slice) -> Tensor:
        hidden_NH, weight_VH, bias_V = side
        logit_scale, softcapping = scale
        logits_NV = (hidden_NH[rows] @ weight_VH.to(hidden_NH.dtype).t()).float()
        logits_NV = (logits_NV if bias_V is None else logits_NV + bias_V.float()) * logit_scale
        if softcapping is not None:
            logits_NV = softcapping * torch.tanh(logits_NV / softcapping)
        return logits_NV / self.temperature

    def select(self, values_BT: Tensor) -> Tensor:
        return values_BT[self.batch.mask_BT] if self._compact else values_BT.reshape(-1)

    def scatter(self, values_N: Tensor) -> Tensor:
        if not self._compact:
            return values_N.view(self.batch.mask_BT.shape)
        return values_N.new_zeros(self.batch.mask_BT.shape).masked_scatter(self.batch.mask_BT, values_N)


KernelReplacement = Callable[[KernelCall], tuple[Tensor, Tensor]]
"""From a call of the kernel to what the trainer gets: divergence and student entropy per token."""


@contextmanager
def replaced_kernel(
    batch: GateBatch, replacement: KernelReplacement, *, beta: float | None = None, teacher_leaves: bool = False
) -> Iterator[None]:
    """Within this context TRL's loss gets what `replacement` returns; see `KernelCall` for the options."""

    def apply(*arguments: Any) -> tuple[Tensor, Tensor]:
        return replacement(KernelCall(arguments, batch, beta, teacher_leaves=teacher_leaves))

    with trl_compat.replaced_kernel(apply):
        yield
