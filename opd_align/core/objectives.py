"""Update directions: what each training objective would do to the student's logits at a node.

Every update has the form `g_k = p_k (f_k − f̄)` with `f̄ = Σ p_k f_k`, oriented so that following it improves the
objective; it sums to zero. An objective is a small object with a name and a function from the arrays of many
nodes at once (`Nodes`, shape (N, K)) to their updates (N, K). Users add their own by writing such an object.

This room knows no rollouts and no estimator, only a node's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from opd_align.types import Floats

LOG_FLOOR = -50.0
"""Log-probabilities below this count as this: a zero probability must push hard, not infinitely."""


@dataclass(frozen=True)
class Nodes:
    """N nodes with K children each; every array is (N, K) unless it says otherwise.

    `log_p` and `log_t` are normalised on the children shown. `natural*` are the rollouts that chose the child by
    themselves, the winners among them, and sums of 1/length; `mean_reward` is the question's pass rate;
    `to_go` the expected future `Σ log t − log p`, only for objectives whose signal is "future".
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
    """A token-level training signal.

    `signal` says what it needs: "teacher" the teacher's distribution, "future" also the teacher's view of whole
    continuations, "reward" no teacher at all (one row per node instead of one per teacher).
    """

    @property
    def name(self) -> str: ...

    @property
    def signal(self) -> Literal["teacher", "future", "reward"]: ...

    def update(self, nodes: Nodes) -> Floats:
        """The update (N, K), pointing where the objective improves."""
        ...


def unified_update(p: Floats, f: Floats) -> Floats:
    """`p_k (f_k − Σ p f)`: the gradient of `Σ p_k f_k` with respect to the logits, for constant f."""
    return p * (f - (p * f).sum(-1, keepdims=True))


def sampled_update(p: Floats, count: Floats, weight: Floats) -> Floats:
    """Mean over sampled tokens of `weight · (1[token = k] − p_k)`; `weight` is the sum over a child's samples."""
    total = np.maximum(count.sum(-1, keepdims=True), 1.0)
    return (weight - p * weight.sum(-1, keepdims=True)) / total


@dataclass(frozen=True)
class Ideal:
    """Raises the probability of success itself; the reference that all others are compared with."""

    name: str = "ideal"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        return unified_update(nodes.p, nodes.q)


@dataclass(frozen=True)
class ReverseKL:
    """GKD on-policy: minimises KL(student ‖ teacher)."""

    name: str = "reverse_kl"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return unified_update(nodes.p, nodes.log_t - nodes.log_p)


@dataclass(frozen=True)
class ForwardKL:
    """Minimises KL(teacher ‖ student)."""

    name: str = "forward_kl"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return nodes.t - nodes.p


@dataclass(frozen=True)
class GeneralisedJSD:
    """TRL's interpolation: β=0 is KL(teacher ‖ student), β=1 KL(student ‖ teacher), between them m = β·t + (1−β)·p.

    Loss β·KL(t‖m) + (1−β)·KL(p‖m). Its derivative by p_k is (1−β)·log(p_k/m_k): the terms from m cancel.
    """

    beta: float = 0.5
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1], not {self.beta}")

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
    """Reverse KL estimated from the sampled tokens alone, weight `log t − log p − 1` each; noisy by design."""

    name: str = "single_sample"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return sampled_update(nodes.p, nodes.natural, nodes.natural * (nodes.log_t - nodes.log_p - 1.0))


@dataclass(frozen=True)
class MiniLLM:
    """Reverse KL of whole sequences: each token carries the log-ratio of everything that follows it.

    That future is estimated from rollouts and noisy; its verdicts know the uncertainty of success, not that of the
    future, and are surer than they should be.
    """

    name: str = "minillm"
    signal: Literal["teacher", "future", "reward"] = "future"

    def update(self, nodes: Nodes) -> Floats:
        if nodes.to_go is None:
            raise ValueError("MiniLLM needs the reward-to-go of the continuations")
        return unified_update(nodes.p, nodes.to_go)


@dataclass(frozen=True)
class DrGRPO:
    """Policy gradient from sampled outcomes, advantage `R − mean`, no length normalisation."""

    name: str = "dr_grpo"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        # Dividing by the standard deviation of the rewards would change the length of the update, not its direction.
        advantage = nodes.natural_wins - nodes.mean_reward * nodes.natural
        return sampled_update(nodes.p, nodes.natural, advantage)


@dataclass(frozen=True)
class GRPO:
    """Like Dr. GRPO, but each rollout's advantage is divided by its length."""

    name: str = "grpo"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        advantage = nodes.natural_wins_inverse_length - nodes.mean_reward * nodes.natural_inverse_length
        return sampled_update(nodes.p, nodes.natural, advantage)


@dataclass(frozen=True)
class AtTemperature:
    """An objective whose loss reads student and teacher at another temperature than rollouts are sampled at.

    `ratio` is the sampling temperature over that of the loss. At the latter, log-probabilities are `ratio` times those
    at the former, up to a constant that normalising on the children removes: nothing has to be scored again.
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
        return self.inner.update(replace(nodes, log_p=self._heated(nodes.log_p), log_t=self._heated(nodes.log_t)))

    def _heated(self, log_K: Floats) -> Floats:
        # Where probabilities are zero, so they stay: the floor keeps −inf out of the difference.
        heated = self.ratio * np.maximum(log_K, LOG_FLOOR)
        return heated - np.logaddexp.reduce(heated, axis=-1, keepdims=True)


OBJECTIVES: Sequence[Objective] = (
    ReverseKL(),
    ForwardKL(),
    GeneralisedJSD(),
    SingleSample(),
    MiniLLM(),
    DrGRPO(),
    GRPO(),
)
"""The built-in objectives other than the ideal, each with its defaults."""
