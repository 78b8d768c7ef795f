"""Reward-to-go for MiniLLM: expected `Σ log t − log p` over the student's continuations.

The value obeys the same recursion as success does, `W(u) = Σ p_k (r_k + W(u·k))` with `r = log t − log p`. Exits off
the path are averaged over the rollouts that the student sampled there, and the path is valued from its end backwards.
"""

from __future__ import annotations

import numpy as np

from opd_align.core.objectives import LOG_FLOOR
from opd_align.core.tree import GenerationTree, child_keys, find_sorted
from opd_align.types import Floats, PathScores, Tokens


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
    nodes = len(scores)
    exits = tree.exits(scores.completion_T)
    begin_R = np.concatenate([[0], np.cumsum(tree.length_R)[:-1]]) if len(tree) else np.empty(0, np.int64)
    total = np.concatenate([[0.0], np.cumsum(ratio)])
    rows = np.flatnonzero((exits.depth_R < nodes) & (exits.token_R >= 0) & (tree.launch_R <= exits.depth_R + 1))
    depth = exits.depth_R[rows]
    after = total[begin_R[rows] + tree.length_R[rows]] - total[begin_R[rows] + depth + 1]

    depth_C, children = scores.depth_C, len(scores.token_C)
    kept, at = find_sorted(child_keys(depth, exits.token_R[rows]), child_keys(depth_C, scores.token_C))
    n_C = np.bincount(at[kept], minlength=children)
    mean_C = np.bincount(at[kept], after[kept], children) / np.maximum(n_C, 1)

    step_C = log_ratio(scores.teachers[teacher].log_t_C, scores.log_p_C)
    p_C = np.exp(scores.log_p_C)
    on_path_C = scores.on_path_C
    sampled_C = ((n_C > 0) | np.isin(scores.token_C, ends)) & ~on_path_C
    known_T = np.bincount(depth_C, np.where(sampled_C, p_C * (step_C + mean_C), 0.0), nodes).tolist()
    mass_T = np.bincount(depth_C, np.where(sampled_C, p_C, 0.0), nodes).tolist()
    path_p_T, path_step_T = p_C[on_path_C].tolist(), step_C[on_path_C].tolist()
    after_T = np.zeros(nodes + 1)
    value = 0.0
    for m in range(nodes - 1, -1, -1):
        # Children that no rollout took get the mean of the rest of the node; they are not dropped.
        value = (known_T[m] + path_p_T[m] * (path_step_T[m] + value)) / (mass_T[m] + path_p_T[m])
        after_T[m] = value
    return step_C + np.where(sampled_C, mean_C, after_T[depth_C + 1])
