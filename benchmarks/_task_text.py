"""Text of exact worlds: positions in words, and places whose tokens are the same wherever they stand.

Used by the families of `_task_worlds.py`, whose author has not seen the estimators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _automaton import Automaton, Likely

Generator = np.random.Generator
NO_END = float(np.log(1e-6))
"""Logit of the end of the text where nobody would end it."""
WORDS = Likely(tokens=(2, 4), first=(0.4, 0.93), evenness=1.2, fork_tail=(0.002, 0.05), plain_tail=(1e-4, 8e-3))
LIKELY_END = 0.93
"""Probability of the end of the text where nearly everybody ends it."""


@dataclass(frozen=True)
class Words:
    """A position where the text is in words.

    Args:
        token_K: The likely tokens, the likeliest first in most cases.
        role_V: Name of what each token does, whatever the state.
        moves_V: Whether the text moves on to the next place after the token.
        logit_V: Logits.
    """

    token_K: np.ndarray
    role_V: np.ndarray
    moves_V: np.ndarray
    logit_V: np.ndarray

    def likely(self, *roles: str) -> np.ndarray:
        """1 for the likely tokens that have one of the roles."""
        likely_V = np.isin(np.arange(len(self.role_V)), self.token_K)
        return (likely_V & np.isin(self.role_V, roles)).astype(float)


def words(
    rng: Generator, vocabulary: int, forks: float, fork: dict[str, float], tail: dict[str, float], *, moves: bool
) -> Words:
    """Draws a position in words.

    Args:
        forks: Probability that there are several likely tokens.
        fork: Probability of each role for likely tokens of forks but the first; the others do nothing.
        tail: The same for unlikely tokens.
        moves: Whether the text moves on here, which a few tokens do not follow.
    """
    forked = rng.random() < forks
    token_K, logit_V = WORDS.draw(rng, vocabulary, fork=forked)
    role_V = drawn_roles(rng, tail, vocabulary)
    role_V[token_K] = "none"
    if forked:
        role_V[token_K[1:]] = drawn_roles(rng, fork, len(token_K) - 1)
    moves_V = np.where(rng.random(vocabulary) < 0.15, not moves, moves)
    # Most alternatives are other words for the same: they move on together.
    moves_V[token_K[:1] if rng.random() < 0.3 else token_K] = moves
    return Words(token_K, role_V, moves_V, logit_V)


def pauses(rng: Generator, limit: int, mean_wait: float, start: float | None = None) -> np.ndarray:
    """Positions where the text moves on.

    Args:
        mean_wait: Number of tokens until the next of them.
        start: Position from which one of them is about that far away; None: they can be anywhere.
    """
    gap_K = 1 + rng.poisson(max(0.0, 1.6 * mean_wait - 1), limit)
    if start is None:
        first = int(rng.integers(0, gap_K[0]))
    else:
        first = int(start + mean_wait * rng.uniform(0.7, 1.3))
    late_K = first + np.cumsum(gap_K) - gap_K[0]
    return np.isin(np.arange(limit), [*late_K, *(first - np.cumsum(gap_K))])


def drawn_roles(rng: Generator, share: dict[str, float], n: int) -> np.ndarray:
    return rng.choice([*share, "none"], n, p=[*share.values(), 1 - sum(share.values())]).astype(object)


def everywhere(
    world: Automaton,
    parts: tuple[int, ...],
    logit_V: np.ndarray,
    next_V: np.ndarray,
    *,
    end: float = NO_END,
    mistake_V: np.ndarray | None = None,
) -> None:
    """Sets a state whose tokens are the same at all positions."""
    for position in range(len(world.logit_LSV)):
        world.fill(position, parts, logit_V, next_V, end=end, mistake_V=mistake_V)


def end_logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def rising(position: int, middle: float, width: float) -> float:
    return float(1 / (1 + np.exp(-(position - middle) / width)))


def log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
