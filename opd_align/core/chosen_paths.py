"""Rollouts that became paths: which ones they are, what is left to stand for them, and halves of the rest.

Paths are chosen for their outcome, so they are no samples of it, and the rollouts that are left have too little of it.
Estimators need both facts. Works on counts and outcomes only; `allocation` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opd_align.core.tree import GenerationTree
from opd_align.types import Floats, Ints, PathScores


def chosen_rows(tree: GenerationTree, paths: Sequence[PathScores]) -> Ints:
    """The natural rollouts that are the paths: chosen for their outcome, so no samples of it.

    One per path; other rollouts that happen to be the same completion were not chosen.
    """
    rows = []
    for scores in paths:
        lo, hi = tree.range(scores.completion_T)
        whole = lo + np.flatnonzero((tree.launch_R[lo:hi] == 0) & (tree.length_R[lo:hi] == len(scores)))
        rows.extend(whole[:1].tolist())
    return np.array(rows, np.int64)


def halves_of(tree: GenerationTree, paths: Sequence[PathScores]) -> tuple[GenerationTree, GenerationTree]:
    """Two disjoint halves of the rollouts, by key. Certain outcomes and the paths themselves are in both."""
    odd_R = (tree.key_R & np.uint64(1)).astype(bool)
    both_R = tree.launch_R == tree.length_R
    both_R[chosen_rows(tree, paths)] = True
    return tree.subset(odd_R | both_R), tree.subset(~odd_R | both_R)


def natural_weights(tree: GenerationTree, paths: Sequence[PathScores], share: float = 1.0) -> Floats:
    """How many rollouts each rollout stands for: the natural ones also for those that became paths.

    Paths are chosen for their outcome and are no samples, so their outcome is too rare among the natural rollouts that
    are left: by a third if two of six correct ones were chosen. Each rollout of that outcome is weighted
    by the inverse of the share that is left, as if paths were drawn at random. If none is left, nothing is corrected.

    Args:
        tree: Rollouts of the question.
        paths: Scores of the paths.
        share: Fraction of the question's rollouts in the tree, which contains all paths.
    """
    weight_R = np.ones(len(tree))
    natural_R = tree.launch_R == 0
    chosen_R = np.zeros(len(tree), bool)
    chosen_R[chosen_rows(tree, paths)] = True
    for correct in (True, False):
        same_R = natural_R & ((tree.outcome_R > 0) == correct)
        left_R = same_R & ~chosen_R
        left = int(left_R.sum())
        if left:
            weight_R[left_R] = (left + share * int((same_R & chosen_R).sum())) / left
    return weight_R
