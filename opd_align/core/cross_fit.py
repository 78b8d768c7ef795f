"""The signal of a node from one half of the rollouts, for nodes that were chosen on the other half.

Posterior means are no unbiased values: both halves shrink toward the same prior and start from the same paths, which
were chosen for their outcomes, so their errors have the same sign more often than not. Counted rollouts have no such
error in common. The signal (SR range × alignment) is the product of two factors. `Σ_k w_k Q_k` has the sign, is linear
in `Q`, and comes from the fractions of correct rollouts in the valuing half. SR range ÷ length of the ideal update is
only a scale and comes from the choosing half; with two children it does not depend on `Q` at all. So whatever chose the
node, the value of a node without any signal is zero on average.

Counts and probabilities only; which nodes to choose is decided in `oracle` and `selective`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opd_align.core.estimate import CERTAIN, PathEstimate
from opd_align.core.objectives import unified_update
from opd_align.core.reliability import MIN_UPDATE_NORM
from opd_align.types import Floats, Ints

SIGNALS = ("signal_a", "signal_b")
"""Columns of the node table: the signal from the counts of each half; NaN where a token has no rollouts in it."""
_ROUNDING = 1e-9


def known_values(counted: PathEstimate, half: PathEstimate) -> Floats:
    """The fraction of correct rollouts after each child, or its certain outcome; NaN without either."""
    return np.where(half.effective_C >= CERTAIN, half.q_C, counted.q_C)


def counted_signal(value_NK: Floats, chosen_q_NK: Floats, p_NK: Floats, update_NK: Floats) -> Floats:
    """The signal of N nodes with K children each; NaN where a child that matters has no value, or without a scale.

    Args:
        value_NK: Counted values of the valuing half; NaN is unknown.
        chosen_q_NK: Success probabilities from the choosing half.
        p_NK: The student's probabilities, with sum 1; 0 for children that do not count.
        update_NK: The objective's update.
    """
    norm_N = np.linalg.norm(update_NK, axis=-1)
    direction_NK = update_NK / np.where(norm_N > MIN_UPDATE_NORM, norm_N, np.inf)[:, None]
    weight_NK = np.where(p_NK > 0, unified_update(p_NK, direction_NK), 0.0)
    matters_NK = np.abs(weight_NK) > _ROUNDING
    product_N = np.where(matters_NK, weight_NK * value_NK, 0.0).sum(-1)
    # The scale of K >= 3 children is an estimate, so the product may leave the range of a signal.
    return np.clip(product_N * _scale(chosen_q_NK, p_NK), -1.0, 1.0)


def _scale(q_NK: Floats, p_NK: Floats) -> Floats:
    """SR range ÷ length of the ideal update; NaN where all children are equally good."""
    counts_NK: NDArray[np.bool_] = p_NK > 0
    # Between two children any difference gives the same scale, also one of zero.
    first_N: Ints = counts_NK.argmax(-1)
    two_N = counts_NK.sum(-1) == 2
    q_NK = np.where(two_N[:, None], np.arange(q_NK.shape[1]) == first_N[:, None], q_NK)
    high_N, low_N = np.where(counts_NK, q_NK, -np.inf).max(-1), np.where(counts_NK, q_NK, np.inf).min(-1)
    length_N = np.linalg.norm(unified_update(p_NK, q_NK), axis=-1)
    return np.asarray((high_N - low_N) / np.where(length_N > 0, length_N, np.nan))
