"""Reward-to-go for MiniLLM: expected `Σ log t − log p` over the student's continuations.

The value obeys the same recursion as success does, `W(u) = Σ p_k (r_k + W(u·k))` with `r = log t − log p`. The path is
valued from its end backwards. At each node `Σ p_k r_k` over the full vocabulary is known: it is minus the KL divergence
of the student from the teacher. What follows an exit is the mean over the rollouts that the student sampled there,
shrunk toward what follows the path's own token; the fewer rollouts, the more. Without that, the many exits with one or
two rollouts would dominate the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opd_align.core.objectives import LOG_FLOOR
from opd_align.core.tree import GenerationTree, child_keys, find_sorted
from opd_align.types import Floats, Ints, PathScores, Tokens

_ROUNDS = 3
_ALIKE_J = 2.0 ** np.arange(-4, 9)
"""How many rollouts of an exit the path's own continuation may be worth."""

_SAME_NATS2 = 1e-18
"""A variance below this is rounding error of running sums: the rollouts agree."""


def log_ratio(log_t: Floats, log_p: Floats) -> Floats:
    """`log t − log p`, both floored so that a zero probability stays finite."""
    return np.maximum(log_t, LOG_FLOOR) - np.maximum(log_p, LOG_FLOOR)


def reward_to_go(tree: GenerationTree, scores: PathScores, teacher: str, ratio: Floats, *, ends: Tokens) -> Floats:
    """Expected reward-to-go of every child of a path, the child's own term included; shape of `scores.token_C`.

    Args:
        tree: All rollouts of the question.
        scores: The scored path.
        teacher: Name of a teacher in `scores`.
        ratio: `log t − log p` of every token of `tree.rollouts()`, in that order.
        ends: Tokens that end a completion, so that nothing follows them.
    """
    nodes, children = len(scores), len(scores.token_C)
    samples = _exit_samples(tree, scores, ratio)
    step_C = log_ratio(scores.teachers[teacher].log_t_C, scores.log_p_C)
    p_C, on_path_C, depth_C = np.exp(scores.log_p_C), scores.on_path_C, scores.depth_C
    kept_T, mass_T = (np.bincount(depth_C, value_C, nodes) for value_C in (p_C * step_C, p_C))
    # A teacher that gives no probability to a token of the student has no finite divergence.
    kl_T = scores.teachers[teacher].kl_T
    step_T = np.where(np.isfinite(kl_T), -kl_T, kept_T / np.maximum(mass_T, 1e-300))

    p_S = np.concatenate([p_C, np.clip(1 - mass_T, 0.0, 1.0)])
    ended_S = samples.ended_S | np.concatenate([np.isin(scores.token_C, ends), np.zeros(nodes, bool)])
    ended_S[:children] &= ~on_path_C
    exit_S = ~np.concatenate([on_path_C, np.zeros(nodes, bool)]) & ~ended_S
    depth_S, own_end_p = samples.depth_S, float(p_C[on_path_C][-1]) if nodes else 0.0
    alike, after_T1 = 1.0, np.zeros(nodes + 1)
    for _ in range(_ROUNDS):
        # An exit is `a + b · (what follows the path's own token)`, so the path is one linear recursion.
        trust_S = np.where(exit_S, samples.n_S / np.maximum(samples.n_S + alike, 1e-12), 0.0)
        a_T = step_T + np.bincount(depth_S, p_S * trust_S * samples.mean_S, nodes)
        b_T = np.bincount(depth_S, p_S * (1 - trust_S) * ~ended_S, nodes)
        after_T1[nodes] = samples.beyond
        value = samples.beyond * (1 - own_end_p / b_T[-1]) if nodes and b_T[-1] else 0.0
        for m, (a, b) in reversed(list(enumerate(zip(a_T.tolist(), b_T.tolist(), strict=True)))):
            value = a + b * value
            after_T1[m] = value
        alike = _alike(samples, exit_S, after_T1)
    path_S = after_T1[depth_S + 1]
    after_S = np.where(ended_S, 0.0, path_S + trust_S * (samples.mean_S - path_S))
    after_S[np.flatnonzero(on_path_C)[-1:]] = 0.0
    return np.asarray(step_C + after_S[:children])


@dataclass(frozen=True)
class _ExitSamples:
    """What follows the exits of a path. Slots (`_S`): its children, then one per node for all tokens not kept.

    Args:
        depth_S: Depth of the node.
        n_S: Number of rollouts.
        mean_S: Mean of their rewards after the exit.
        squares_S: Sum of their squared deviations from that mean.
        ended_S: Whether a rollout ended with the exit itself, so that nothing follows it.
        beyond: Mean reward of natural rollouts after the path's length; 0 if none is longer. Nothing follows the path's
            last token, so other tokens in its place are shrunk toward this.
    """

    depth_S: Ints
    n_S: Ints
    mean_S: Floats
    squares_S: Floats
    ended_S: NDArray[np.bool_]
    beyond: float


def _exit_samples(tree: GenerationTree, scores: PathScores, ratio: Floats) -> _ExitSamples:
    nodes, children = len(scores), len(scores.token_C)
    exits = tree.exits(scores.completion_T)
    begin_R = np.concatenate([[0], np.cumsum(tree.length_R)[:-1]]) if len(tree) else np.empty(0, np.int64)
    total = np.concatenate([[0.0], np.cumsum(ratio)])
    rows = np.flatnonzero((exits.depth_R < nodes) & (exits.token_R >= 0) & (tree.launch_R <= exits.depth_R + 1))
    depth = exits.depth_R[rows]
    kept, at = find_sorted(child_keys(depth, exits.token_R[rows]), child_keys(scores.depth_C, scores.token_C))
    # A token that was not kept must have been sampled, not forced.
    counted = kept | (tree.launch_R[rows] <= depth)
    rows, depth, slot = rows[counted], depth[counted], np.where(kept, at, children + depth)[counted]
    after = total[begin_R[rows] + tree.length_R[rows]] - total[begin_R[rows] + depth + 1]
    n_S = np.bincount(slot, minlength=children + nodes)
    mean_S = np.bincount(slot, after, children + nodes) / np.maximum(n_S, 1)
    squares_S = np.bincount(slot, (after - mean_S[slot]) ** 2, children + nodes).astype(np.float64)
    ended_S = np.bincount(slot, tree.length_R[rows] == depth + 1, children + nodes) > 0
    ended_S[children:] = False
    longer = np.flatnonzero((tree.length_R > nodes) & (tree.launch_R == 0))
    beyond = total[begin_R[longer] + tree.length_R[longer]] - total[begin_R[longer] + nodes]
    depth_S = np.concatenate([scores.depth_C, np.arange(nodes)])
    return _ExitSamples(depth_S, n_S, mean_S, squares_S, ended_S, float(beyond.mean()) if len(beyond) else 0.0)


def _alike(samples: _ExitSamples, exit_S: NDArray[np.bool_], after_T1: Floats) -> float:
    """How many rollouts of an exit the path's own continuation is worth, by maximum likelihood.

    That is the variance of rollouts within an exit over the variance of exits around the path. Both grow in proportion
    to the number of tokens that follow, so squares are divided by that number.
    """
    seen_S = exit_S & (samples.n_S > 0)
    if not seen_S.any():
        return 1.0
    n, depth = samples.n_S[seen_S], samples.depth_S[seen_S]
    left = len(after_T1) - 1 - depth
    freedom = float((n - 1).sum())
    square = (samples.mean_S[seen_S] - after_T1[depth + 1]) ** 2 / left
    # One rollout per exit: the two variances cannot be told apart, and are taken as equal.
    within = float((samples.squares_S[seen_S] / left).sum()) / freedom if freedom else float(square.mean()) / 2
    if within <= _SAME_NATS2:
        return 0.0
    var_EJ = within * (1 / n[:, None] + 1 / _ALIKE_J)
    return float(_ALIKE_J[(np.log(var_EJ) + square[:, None] / var_EJ).sum(0).argmin()])
