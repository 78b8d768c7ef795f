"""Exact worlds that are written down state by state: likely tokens, a tail of unlikely ones, and a chosen pass rate.

What a token does in a world is up to the family (`_other_worlds.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opd_align.backends.exact import ExactWorld
from opd_align.backends.exact_random import EOS

LEAST_WEIGHT = 1e-7


@dataclass(frozen=True)
class Automaton:
    """An exact world whose pass rate is not set yet. All arrays are filled in position by position.

    Args:
        logit_LSV: Logits of the student by position, state and token.
        next_LSV: Next state by position, state and token.
        mistake_LSV: 1 where a likely token is a mistake. The pass rate is set by a shift of these logits.
        success_S: Whether a completion that ends in a state is correct.
        state: Number of each state, by what it consists of.
    """

    logit_LSV: np.ndarray
    next_LSV: np.ndarray
    mistake_LSV: np.ndarray
    success_S: np.ndarray
    state: np.ndarray

    @staticmethod
    def empty(limit: int, parts: tuple[int, ...], vocabulary: int) -> Automaton:
        """One state for each combination of parts."""
        state = np.arange(np.prod(parts)).reshape(parts)
        shape = (limit, state.size, vocabulary)
        return Automaton(
            np.zeros(shape), np.zeros(shape, np.uint8), np.zeros(shape), np.zeros(state.size, np.bool_), state
        )

    @property
    def vocabulary(self) -> int:
        return self.logit_LSV.shape[2]

    def fill(
        self,
        position: int,
        parts: tuple[int, ...],
        logit_V: np.ndarray,
        next_V: np.ndarray,
        *,
        end: float,
        mistake_V: np.ndarray | None = None,
    ) -> None:
        """Sets one state at one position; `end` is the logit of the end of the text."""
        here = position, self.state[parts]
        self.logit_LSV[here], self.next_LSV[here] = logit_V, next_V
        self.logit_LSV[here][EOS], self.next_LSV[here][EOS] = end, self.state[parts]
        if mistake_V is not None:
            self.mistake_LSV[here] = mistake_V

    def calibrated(self, pass_rate: float, start_parts: tuple[int, ...]) -> ExactWorld:
        """The world whose exact pass rate is closest to `pass_rate`: the more shift, the more mistakes."""
        start = int(self.state[start_parts])
        low, high = -7.0, 5.0
        best, best_gap = 0.0, np.inf
        for _ in range(16):
            shift = (low + high) / 2
            found = self._shifted(shift, start).value_LS[0, start]
            if abs(found - pass_rate) < best_gap:
                best, best_gap = shift, abs(found - pass_rate)
            if best_gap < 0.004:
                break
            low, high = (shift, high) if found > pass_rate else (low, shift)
        return self._shifted(best, start)

    def _shifted(self, shift: float, start: int) -> ExactWorld:
        log_p_LSV = normalised(self.logit_LSV + shift * self.mistake_LSV)
        return ExactWorld(log_p_LSV, self.next_LSV, self.success_S, start)


@dataclass(frozen=True)
class Likely:
    """How the likely tokens of a position are drawn. All pairs are ranges.

    Args:
        tokens: Number of likely tokens at a fork; elsewhere there is one.
        first: Share of the first of them at a fork.
        evenness: Concentration of the Dirichlet distribution of the others.
        fork_tail: Mass of all unlikely tokens at a fork.
        plain_tail: The same elsewhere, uniform in the logarithm.
    """

    tokens: tuple[int, int]
    first: tuple[float, float]
    evenness: float
    fork_tail: tuple[float, float]
    plain_tail: tuple[float, float]

    def draw(self, rng: np.random.Generator, vocabulary: int, *, fork: bool) -> tuple[np.ndarray, np.ndarray]:
        """The likely tokens of a position, and the logits of all."""
        n = int(rng.integers(self.tokens[0], self.tokens[1] + 1)) if fork else 1
        token_K = some_tokens(rng, vocabulary, n)
        if not fork:
            tail = np.exp(rng.uniform(*np.log(self.plain_tail)))
            return token_K, drawn_logits(rng, vocabulary, token_K, [1.0], tail)
        first = rng.uniform(*self.first)
        share_K = [first, *((1 - first) * rng.dirichlet(np.full(n - 1, self.evenness)))]
        tail = rng.uniform(*self.fork_tail)
        return token_K, drawn_logits(rng, vocabulary, token_K, share_K, tail)


def some_tokens(rng: np.random.Generator, vocabulary: int, n: int) -> np.ndarray:
    """Different tokens, without the end of the text."""
    return rng.permutation(np.arange(1, vocabulary))[:n]


def drawn_logits(
    rng: np.random.Generator,
    vocabulary: int,
    token_K: np.ndarray | Sequence[int],
    share_K: np.ndarray | Sequence[float],
    tail: float,
) -> np.ndarray:
    """Logits of a position: some tokens with their shares, and a log-normal tail with the mass `tail` on all others."""
    weight_V = np.full(vocabulary, LEAST_WEIGHT)
    other_K = np.setdiff1d(np.arange(1, vocabulary), token_K)
    # A few of them reach 1 %, most stay far below.
    size_K = np.exp(rng.normal(0.0, 2.0, len(other_K)))
    weight_V[other_K] += tail * size_K / size_K.sum()
    weight_V[token_K] += (1 - tail) * np.asarray(share_K)
    return np.log(weight_V)


def drawn_pass_rate(rng: np.random.Generator) -> float:
    """Low, high or anything between, so that the extremes are not rare."""
    kind = rng.random()
    if kind < 0.15:
        return rng.uniform(0.05, 0.13)
    return rng.uniform(0.87, 0.95) if kind < 0.30 else rng.uniform(0.12, 0.88)


def normalised(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
