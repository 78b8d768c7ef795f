"""Training objectives: the update that each one applies to the student's logits at a node.

Every update has the form `g_k = p_k (f_k − f̄)` with `f̄ = Σ p_k f_k`, oriented so that following it improves the
objective; it sums to zero. An objective is a small object with a name and a function from the arrays of many
nodes at once (`Nodes`, shape (N, K)) to their updates (N, K).

To add an objective, write such an object and add it to `OBJECTIVES` at the end of this file: configuration files, the
command line and run manifests read that list. No rollouts and no estimators here, only the arrays of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from opd_align.types import Floats

LOG_FLOOR = -50.0
"""Lower bound for log-probabilities: a zero probability gives a large update, not an infinite one."""


@dataclass(frozen=True)
class Nodes:
    """N nodes with K children each. Arrays have shape (N, K).

    Args:
        log_p: Student log-probabilities, normalized over the K children.
        log_t: Teacher log-probabilities, normalized over the K children. Equal to `log_p` for `signal="reward"`.
        q: Estimated success probability after each child.
        natural: Number of rollouts that sampled the child (the child was not forced).
        natural_wins: Number of correct rollouts among `natural`.
        natural_inverse_length: Sum of 1/length over `natural`.
        natural_wins_inverse_length: Sum of 1/length over `natural_wins`.
        mean_reward: Pass rate of the question.
        to_go: Expected sum of `log t − log p` from the child on. `None` unless the objective's signal is `"future"`.
    """

    log_p: Floats
    log_t: Floats
    q: Floats
    natural: Floats
    natural_wins: Floats
    natural_inverse_length: Floats
    natural_wins_inverse_length: Floats
    mean_reward: float
    to_go: Floats | None = None

    @property
    def p(self) -> Floats:
        return np.exp(self.log_p)

    @property
    def t(self) -> Floats:
        return np.exp(self.log_t)


class Objective(Protocol):
    """A token-level training objective.

    `signal` states which inputs it needs: `"teacher"` the teacher's next-token distribution, `"future"` also the
    teacher's log-probabilities of whole continuations, `"reward"` no teacher (one row per node instead of one per
    node and teacher).
    """

    @property
    def name(self) -> str: ...

    @property
    def signal(self) -> Literal["teacher", "future", "reward"]: ...

    def update(self, nodes: Nodes) -> Floats:
        """The update, shape (N, K); following it improves the objective."""
        ...


def unified_update(p: Floats, f: Floats) -> Floats:
    """`p_k (f_k − Σ p f)`: the gradient of `Σ p_k f_k` with respect to the logits, for constant f."""
    return p * (f - (p * f).sum(-1, keepdims=True))


def sampled_update(p: Floats, count: Floats, weight: Floats) -> Floats:
    """Mean over sampled tokens of `weight · (1[token = k] − p_k)`; `weight` is summed over each child's samples."""
    total = np.maximum(count.sum(-1, keepdims=True), 1.0)
    return (weight - p * weight.sum(-1, keepdims=True)) / total


@dataclass(frozen=True)
class Ideal:
    """Policy gradient of the success probability itself: the reference for all other objectives.

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "ideal"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        return unified_update(nodes.p, nodes.q)


@dataclass(frozen=True)
class ReverseKL:
    """On-policy GKD: minimizes KL(student ‖ teacher).

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "reverse_kl"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return unified_update(nodes.p, nodes.log_t - nodes.log_p)


@dataclass(frozen=True)
class ForwardKL:
    """Minimizes KL(teacher ‖ student).

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "forward_kl"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return nodes.t - nodes.p


@dataclass(frozen=True)
class GeneralisedJSD:
    """Generalised Jensen-Shannon divergence with TRL's convention for β. Named `jsd_<beta>` in the results.

    With the mixture m = β·t + (1−β)·p the loss is β·KL(t‖m) + (1−β)·KL(p‖m). Its derivative with respect to p_k is
    (1−β)·log(p_k/m_k): the terms from m cancel.

    Args:
        beta: Interpolation in [0, 1]. 0 is KL(teacher ‖ student), 1 is KL(student ‖ teacher).
        signal: Inputs the objective needs (see `Objective`).
    """

    beta: float = 0.5
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be in [0, 1], not {self.beta}")

    @property
    def name(self) -> str:
        return f"jsd_{self.beta:g}"

    def update(self, nodes: Nodes) -> Floats:
        if self.beta == 0:
            return ForwardKL().update(nodes)
        if self.beta == 1:
            return ReverseKL().update(nodes)
        log_m = np.logaddexp(np.log(self.beta) + nodes.log_t, np.log1p(-self.beta) + nodes.log_p)
        return unified_update(nodes.p, (1 - self.beta) * (log_m - nodes.log_p))


@dataclass(frozen=True)
class SingleSample:
    """Reverse KL estimated from sampled tokens only, each weighted by `log t − log p − 1`. A high-variance estimator.

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "single_sample"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return sampled_update(nodes.p, nodes.natural, nodes.natural * (nodes.log_t - nodes.log_p - 1.0))


@dataclass(frozen=True)
class MiniLLM:
    """Sequence-level reverse KL: each token is weighted by the log-ratio of everything that follows it.

    The reward-to-go is estimated from rollouts. Its noise is not part of the posterior, so verdicts for this objective
    are overconfident.

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "minillm"
    signal: Literal["teacher", "future", "reward"] = "future"

    def update(self, nodes: Nodes) -> Floats:
        if nodes.to_go is None:
            raise ValueError("MiniLLM requires the reward-to-go of the continuations (Nodes.to_go)")
        return unified_update(nodes.p, nodes.to_go)


@dataclass(frozen=True)
class DrGRPO:
    """Policy gradient from sampled outcomes with advantage `R − mean`, without length normalization.

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "dr_grpo"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        # Dividing by the standard deviation of the rewards would change the norm of the update, not its direction.
        advantage = nodes.natural_wins - nodes.mean_reward * nodes.natural
        return sampled_update(nodes.p, nodes.natural, advantage)


@dataclass(frozen=True)
class GRPO:
    """Like Dr. GRPO, but the advantage of each rollout is divided by its length.

    Args:
        name: Name in the results.
        signal: Inputs the objective needs (see `Objective`).
    """

    name: str = "grpo"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        advantage = nodes.natural_wins_inverse_length - nodes.mean_reward * nodes.natural_inverse_length
        return sampled_update(nodes.p, nodes.natural, advantage)


@dataclass(frozen=True)
class AtTemperature:
    """An objective whose loss uses another temperature than the sampler.

    At the loss temperature, log-probabilities are `ratio` times those at the sampling temperature, up to a constant
    that normalization over the children removes. So paths need not be scored again.

    Args:
        inner: The objective to evaluate at the loss temperature.
        ratio: Sampling temperature divided by loss temperature.
    """

    inner: Objective
    ratio: float

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def signal(self) -> Literal["teacher", "future", "reward"]:
        return self.inner.signal

    def update(self, nodes: Nodes) -> Floats:
        return self.inner.update(replace(nodes, log_p=self._rescaled(nodes.log_p), log_t=self._rescaled(nodes.log_t)))

    def _rescaled(self, log_K: Floats) -> Floats:
        # The floor avoids −inf − (−inf) for zero probabilities.
        rescaled = self.ratio * np.maximum(log_K, LOG_FLOOR)
        return rescaled - np.logaddexp.reduce(rescaled, axis=-1, keepdims=True)


OBJECTIVES: list[Objective] = [
    ReverseKL(),
    ForwardKL(),
    GeneralisedJSD(),
    SingleSample(),
    MiniLLM(),
    DrGRPO(),
    GRPO(),
]
"""Objectives that can be selected by name, each with its default arguments; the only such list.

Append an instance of your own class to use it by name in a configuration and to restore it from a run directory.
"""
