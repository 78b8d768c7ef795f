"""Arrays of the nodes of one path: nodes grouped by their number of children, restricted probabilities, cosines.

Pure functions of arrays; `_N` nodes, `_K` children of a node, `_C` all children of a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opd_align.core.objectives import LOG_FLOOR
from opd_align.core.reliability import MIN_UPDATE_NORM
from opd_align.types import Floats, Ints


@dataclass(frozen=True)
class NodeGroup:
    """All nodes of a path with the same number of selected children; `child_NK` indexes the path's children."""

    depth_N: Ints
    child_NK: Ints


def node_groups(selected_C: NDArray[np.bool_], offsets: Ints, least: int) -> Iterator[NodeGroup]:
    nodes = len(offsets) - 1
    depth_C = np.repeat(np.arange(nodes), np.diff(offsets))
    child = np.flatnonzero(selected_C)
    size_T = np.bincount(depth_C[child], minlength=nodes)
    begin_T = np.concatenate([[0], np.cumsum(size_T)[:-1]]) if nodes else np.empty(0, np.int64)
    for size in np.unique(size_T[size_T >= least]):
        depth_N = np.flatnonzero(size_T == size)
        yield NodeGroup(depth_N, child[begin_T[depth_N][:, None] + np.arange(size)])


def cosine(ideal: Floats, update: Floats) -> Floats:
    """Cosine along the last axis; 0 where either vector is zero."""
    ideal_norm, update_norm = np.linalg.norm(ideal, axis=-1), np.linalg.norm(update, axis=-1)
    nonzero = (ideal_norm > 0) & (update_norm > MIN_UPDATE_NORM)
    dot = (ideal * update).sum(-1)
    return np.clip(np.where(nonzero, dot / np.where(nonzero, ideal_norm * update_norm, 1.0), 0.0), -1.0, 1.0)


def restricted(log_NK: Floats, selected_NK: NDArray[np.bool_]) -> Floats:
    """Probabilities renormalised on the selected children, 0 for the others."""
    mass_NK = np.where(selected_NK, np.exp(np.maximum(log_NK, LOG_FLOOR)), 0.0)
    return np.asarray(mass_NK / mass_NK.sum(-1, keepdims=True))


def value_range(value: Floats, selected_NK: NDArray[np.bool_]) -> Floats:
    """Largest minus smallest value of the selected children."""
    high, low = np.where(selected_NK, value, -np.inf).max(-1), np.where(selected_NK, value, np.inf).min(-1)
    return np.asarray(high - low)


def normalised(log_NK: Floats) -> Floats:
    log_NK = np.maximum(log_NK, LOG_FLOOR)
    return np.maximum(log_NK - np.logaddexp.reduce(log_NK, axis=-1, keepdims=True), LOG_FLOOR)


def log_rest(log_NK: Floats) -> Floats:
    return np.log(np.maximum(1 - np.exp(log_NK).sum(-1), np.exp(LOG_FLOOR)))
