"""The probability that an alignment is positive, and how often that comes true.

`p_positive` follows from the posterior of `Q`. The reliability table compares the probability that one half of the
rollouts gives with what the other half and all rollouts find at the same nodes, so it needs no known truth:

- Evidence that is still to come does not change a probability on average. So if the probabilities are right, their mean
  from all rollouts equals their mean from one half. Closer to 1/2: too sure; further away: too cautious.
- The other half's sign has noise of its own, which pulls its share toward 1/2, but certain outcomes and the paths are
  in both halves. So this is a coarser check: a share on the other side of 1/2 is an error.

Works on estimates, updates and node tables; no sampling, no files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite

import numpy as np
import pyarrow as pa

from opd_align.core.intervals import Estimate, interval
from opd_align.core.node_rows import select_rows
from opd_align.core.path_estimate import PathEstimate
from opd_align.types import Floats, Ints

MIN_UPDATE_NORM = 1e-7
"""Updates with a smaller norm count as zero: student and teacher agree up to rounding, and the alignment is 0."""
HALVES = ("p_positive_a", "p_positive_b")
"""Columns of the node table: `p_positive` from each half of the rollouts."""
EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
"""Bins of the reliability table; the first and the last have a verdict at the default confidence."""


def p_positive(estimate: PathEstimate, child_NK: Ints, depth_N: Ints, p_NK: Floats, update_NK: Floats) -> Floats:
    """Posterior probability that the cosine of ideal and update is positive at N nodes, plus half of that of zero.

    Args:
        estimate: The success probabilities along a path.
        child_NK: The children of each node.
        depth_N: Depth of each node.
        p_NK: The student's probabilities, with sum 1; 0 for children that do not count.
        update_NK: The objective's update.
    """
    # The ideal update is p (Q - mean Q), so its product with the update is a sum over Q with these weights.
    weight_NK = p_NK * (update_NK - (p_NK * update_NK).sum(-1, keepdims=True))
    zero_N = np.linalg.norm(update_NK, axis=-1) <= MIN_UPDATE_NORM
    return np.where(zero_N, 0.5, estimate.p_positive(child_NK, depth_N, np.where(p_NK > 0, weight_NK, 0.0)))


@dataclass(frozen=True)
class ReliabilityRow:
    """Nodes whose probability of a positive alignment, from one half of the rollouts, is in the same bin.

    Args:
        low: Lower edge of the bin.
        high: Upper edge.
        said: Mean probability from one half.
        other_half: Share of positive alignments in the other half, with its 95 % interval over questions.
        all_rollouts: Mean probability from all rollouts, with its 95 % interval over questions.
        nodes: Number of nodes, each counted once for each half that is in the bin.
    """

    low: float
    high: float
    said: float
    other_half: Estimate
    all_rollouts: Estimate
    nodes: int

    def as_json(self) -> dict[str, float | int | None]:
        """Plain numbers; unknown is None, since JSON has no NaN."""
        values: dict[str, float | int] = {name: asdict(self)[name] for name in ("low", "high", "said", "nodes")}
        for name, estimate in (("other_half", self.other_half), ("all_rollouts", self.all_rollouts)):
            values |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return {name: value if isfinite(value) else None for name, value in values.items()}


def reliability(nodes: pa.Table, objective: str | None = None, *, teacher: str | None = None) -> list[ReliabilityRow]:
    """The reliability table of `p_positive`, without empty bins; empty if there are no halves."""
    if not set(HALVES) <= set(nodes.column_names):
        return []
    rows = select_rows(nodes, objective, teacher)
    # Both directions: either half may be the one that says, and the other the one that is asked.
    said_M, seen_M, all_M, question_M = (
        np.concatenate(pair)
        for pair in (
            [rows[name] for name in HALVES],
            [rows[name] for name in ("alignment_b", "alignment_a")],
            [rows["p_positive"]] * 2,
            [rows.question_N] * 2,
        )
    )
    known_M = np.isfinite(said_M) & np.isfinite(seen_M)
    said_M, seen_M, all_M, question_M = (each_M[known_M] for each_M in (said_M, seen_M, all_M, question_M))
    positive_M = (np.sign(seen_M) + 1) / 2
    bin_M = np.clip(np.searchsorted(EDGES, said_M, "right") - 1, 0, len(EDGES) - 2)
    table = []
    for index in np.unique(bin_M).tolist():
        here_M = bin_M == index
        other_half, all_rollouts = (_share(value_M[here_M], question_M[here_M]) for value_M in (positive_M, all_M))
        low, high, said = EDGES[index], EDGES[index + 1], float(said_M[here_M].mean())
        table.append(ReliabilityRow(low, high, said, other_half, all_rollouts, int(here_M.sum())))
    return table


def _share(value_M: Floats, question_M: Ints) -> Estimate:
    """Mean over nodes with an interval over questions: a ratio of sums, linearised."""
    _, index_M = np.unique(question_M, return_inverse=True)
    n_Q, mean = np.bincount(index_M), float(value_M.mean())
    return interval(mean + np.bincount(index_M, value_M - mean) / n_Q.mean(), bounds=(0.0, 1.0))
