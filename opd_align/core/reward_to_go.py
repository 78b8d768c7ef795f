"""The future as a teacher sees it: expected `Σ log t − log p` of the student's continuations.

MiniLLM weighs a token by everything that follows it. The value obeys the same recursion as success does,
`W(u) = Σ p_k (r_k + W(u·k))` with `r = log t − log p`, so exits off the path are averaged over the rollouts that
continue there by themselves and the path is valued from its end backwards.
"""

from __future__ import annotations

import numpy as np

from opd_align.core.objectives import LOG_FLOOR
from opd_align.core.tree import GenerationTree
from opd_align.types import Floats, PathScores, Tokens


def log_ratio(log_t: Floats, log_p: Floats) -> Floats:
    """`log t − log p`, both floored so that a zero probability stays finite."""
    return np.maximum(log_t, LOG_FLOOR) - np.maximum(log_p, LOG_FLOOR)


def reward_to_go(tree: GenerationTree, scores: PathScores, teacher: str, ratio: Floats, *, ends: Tokens) -> Floats:
    """Expected reward-to-go of every child of a path, its own term included, laid out like the path's children.

    `ratio` is `log t − log p` of every token of `tree.rollouts()`, laid end to end. Nothing follows one of `ends`.
    """
    nodes = len(scores)
    leave = tree.exits(scores.completion_T)
    begin_R = np.concatenate([[0], np.cumsum(tree.length_R)[:-1]]) if len(tree) else np.empty(0, np.int64)
    total = np.concatenate([[0.0], np.cumsum(ratio)])
    rows = np.flatnonzero((leave.depth_R < nodes) & (leave.token_R >= 0) & (tree.launch_R <= leave.depth_R + 1))
    depth = leave.depth_R[rows]
    after = total[begin_R[rows] + tree.length_R[rows]] - total[begin_R[rows] + depth + 1]

    child_depth_C = np.repeat(np.arange(nodes), np.diff(scores.offsets))
    key_C = (child_depth_C.astype(np.uint64) << np.uint64(32)) | scores.token_C
    key = (depth.astype(np.uint64) << np.uint64(32)) | leave.token_R[rows].astype(np.uint64)
    at = np.minimum(np.searchsorted(key_C, key), len(key_C) - 1)
    kept = key_C[at] == key
    n_C = np.bincount(at[kept], minlength=len(key_C))
    mean_C = np.bincount(at[kept], after[kept], len(key_C)) / np.maximum(n_C, 1)

    step_C = log_ratio(scores.teachers[teacher].log_t_C, scores.log_p_C)
    p_C = np.exp(scores.log_p_C)
    on_path_C = scores.token_C == scores.completion_T[child_depth_C]
    seen_C = ((n_C > 0) | np.isin(scores.token_C, ends)) & ~on_path_C
    known_T = np.bincount(child_depth_C, np.where(seen_C, p_C * (step_C + mean_C), 0.0), nodes).tolist()
    mass_T = np.bincount(child_depth_C, np.where(seen_C, p_C, 0.0), nodes).tolist()
    path_p_T, path_step_T = p_C[on_path_C].tolist(), step_C[on_path_C].tolist()
    after_T = np.zeros(nodes + 1)
    value = 0.0
    for m in range(nodes - 1, -1, -1):
        # What no rollout took is valued like the rest of the node, not dropped.
        value = (known_T[m] + path_p_T[m] * (path_step_T[m] + value)) / (mass_T[m] + path_p_T[m])
        after_T[m] = value
    return step_C + np.where(seen_C, mean_C, after_T[child_depth_C + 1])
