"""Measures: what gates read of student and teacher at a token, computed from logits, and how far rounding moves them.

All measures are in nats or probabilities, between the full distributions of student and teacher at the sampling
temperature. `chunked_divergence` computes the same from hidden states. This module is plain torch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opd_align.types import OVERLAP_TOP_K, OpdAlignError

MEASURES = ("kl", "js", "student_entropy", "teacher_entropy")
"""What tokens can be selected by: KL(student ‖ teacher), Jensen-Shannon divergence, and the two entropies."""

LOG_RATIO = "log_ratio"
"""log t − log p of the sampled token: positive where the teacher gives it more probability than the student."""

STUDENT_LOG_PROB, TEACHER_LOG_PROB = "student_log_prob", "teacher_log_prob"
"""log p and log t of the sampled token."""

TEACHER_MASS = "teacher_mass"
"""The teacher's probability of the student's `OVERLAP_TOP_K` most likely tokens together."""

READABLE = (*MEASURES, LOG_RATIO, STUDENT_LOG_PROB, TEACHER_LOG_PROB, TEACHER_MASS)
"""All that `GateBatch.measure` can be asked for."""

FLOAT32_EPS = torch.finfo(torch.float32).eps

LOGIT_EPS, FLOAT32_LOGIT_EPS, NORMALISER_EPS = 8, 64, 16
"""Rounding of logits below 32, in eps of the forward passes; of the sums behind them and of log-softmax, in float32's.

A number between 16 and 32 is rounded by up to 8 eps. Sums within a layer are kept in float32, even under bfloat16;
their error was measured. log Z is as large as the largest logit, and is rounded for the student and for the teacher.
"""


def log_ratio_rounding(log_p: Tensor, log_t: Tensor, eps: float) -> Tensor:
    """What rounding can add to log t − log p of a token, in nats.

    An error of a token's logit changes its log-probability by 1 − p of it, and errors of the other logits by at most as
    much: a token that is almost certain is known almost exactly, in any precision.

    Args:
        log_p: The student's log-probability of the token.
        log_t: The teacher's.
        eps: `torch.finfo(dtype).eps` of the precision of the forward passes.
    """
    logit = LOGIT_EPS * eps + FLOAT32_LOGIT_EPS * FLOAT32_EPS
    return NORMALISER_EPS * FLOAT32_EPS - logit * (torch.expm1(log_p) + torch.expm1(log_t))


def measure_logits(name: str, student_NV: Tensor, teacher_NV: Tensor, token_N: Tensor) -> Tensor:
    """A measure from full logits that are already divided by the temperature."""
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
    sampled = {STUDENT_LOG_PROB: log_p, TEACHER_LOG_PROB: log_t}
    if name == LOG_RATIO:
        return (log_t - log_p).gather(-1, token_N.unsqueeze(-1)).squeeze(-1)
    if name in sampled:
        return sampled[name].gather(-1, token_N.unsqueeze(-1)).squeeze(-1)
    if name == TEACHER_MASS:
        return mass_on_top(log_p, log_t.exp())
    raise OpdAlignError(f"there is no measure {name!r}; choose from {', '.join(READABLE)}")


def mass_on_top(student_NV: Tensor, t_NV: Tensor) -> Tensor:
    """The teacher's probability of the student's most likely tokens; of the student, logits are enough."""
    top_NK = student_NV.topk(min(OVERLAP_TOP_K, student_NV.shape[-1]), dim=-1).indices
    return t_NV.gather(-1, top_NK).sum(-1)


def check_measure(measure: str) -> None:
    if measure not in MEASURES:
        raise OpdAlignError(f"there is no measure {measure!r} to gate by; choose from {', '.join(MEASURES)}")
