"""Comparison of node tables with a truth that no estimator chooses.

The truth of a node and a teacher is computed over all tokens above τ for the student or for this teacher, and the
path's own token, with exact success probabilities, at every node of the paths with at least two such tokens. A node
without a row counts as alignment 0 and as undecided; it is never left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from _worlds import RULES

from opd_align.backends.exact import ExactWorld
from opd_align.core.collect import Evidence
from opd_align.core.path_estimate import PathEstimate
from opd_align.types import PathScores

Grid = Mapping[str, np.ndarray]
BINS = 10
LOW_PASS = 0.1
ROUNDING = 1e-12
"""Tokens whose exact success probabilities differ by less are equally good."""


def true_grid(world: ExactWorld, evidence: Evidence) -> dict[str, np.ndarray]:
    """Alignment, SR range and number of children of every node on a grid (teacher, path, depth); NaN: no truth."""
    names = sorted(evidence.paths[0].teachers)
    shape = (len(names), len(evidence.paths), max(map(len, evidence.paths)))
    grid = {name: np.full(shape, np.nan) for name in ("alignment", "sr_range", "children")}
    for at, scores in enumerate(evidence.paths):
        exact_C = world.exact_q_along(scores)
        for teacher, name in enumerate(names):
            kept_C = kept_children(scores, name)
            depth_C, q_C = scores.depth_C[kept_C], exact_C[kept_C]
            log_p_C = _normalised(scores.log_p_C[kept_C], depth_C)
            log_t_C = _normalised(scores.teachers[name].log_t_C[kept_C], depth_C)
            p_C = np.exp(log_p_C)
            ideal_C, update_C = _update(p_C, q_C, depth_C), _update(p_C, log_t_C - log_p_C, depth_C)
            dot_T, ideal_T, update_T = (
                np.bincount(depth_C, each, len(scores))
                for each in (ideal_C * update_C, ideal_C * ideal_C, update_C * update_C)
            )
            high_T, low_T = np.full(len(scores), -np.inf), np.full(len(scores), np.inf)
            np.maximum.at(high_T, depth_C, q_C)
            np.minimum.at(low_T, depth_C, q_C)
            children_T = np.bincount(depth_C, minlength=len(scores))
            known_T = (children_T >= 2) & (update_T > 0)
            sr_range_T = np.where(high_T - low_T < ROUNDING, 0.0, high_T - low_T)
            alignment_T = dot_T / np.sqrt(np.where(known_T & (ideal_T > 0), ideal_T * update_T, 1.0))
            columns = {
                # Where all tokens are equally good, the direction of the rounding errors means nothing.
                "alignment": np.where(sr_range_T > 0, alignment_T, 0.0),
                "sr_range": sr_range_T,
                "children": children_T.astype(float),
            }
            for column, value_T in columns.items():
                grid[column][teacher, at, : len(scores)] = np.where(known_T, value_T, np.nan)
    return grid


def kept_children(scores: PathScores, teacher: str) -> np.ndarray:
    """Tokens above τ for the student or the teacher, and the path's own."""
    floor = np.log(RULES.tau)
    return np.asarray((scores.log_p_C > floor) | (scores.teachers[teacher].log_t_C > floor) | scores.on_path_C)


def _normalised(log_C: np.ndarray, depth_C: np.ndarray) -> np.ndarray:
    return np.asarray(log_C - np.log(np.bincount(depth_C, np.exp(log_C)))[depth_C])


def _update(p_C: np.ndarray, f_C: np.ndarray, depth_C: np.ndarray) -> np.ndarray:
    return np.asarray(p_C * (f_C - np.bincount(depth_C, p_C * f_C)[depth_C]))


def on_grid(rows: pa.Table, evidence: Evidence) -> dict[str, np.ndarray]:
    """Columns of a node table on the same grid as `true_grid`, NaN where there is no row."""
    names = sorted(evidence.paths[0].teachers)
    shape = (len(names), len(evidence.paths), max(map(len, evidence.paths)))
    teacher = np.searchsorted(names, rows["teacher"].to_numpy().astype(str))
    index = (teacher, rows["path"].to_numpy(), rows["depth"].to_numpy())
    grid = {}
    for column in ("alignment", "sr_range", "p_positive"):
        grid[column] = np.full(shape, np.nan)
        grid[column][index] = rows[column].to_numpy()
    grid["verdict"] = np.zeros(shape)
    sign = {"helpful": 1.0, "harmful": -1.0, "undecided": 0.0}
    grid["verdict"][index] = [sign[verdict] for verdict in rows["verdict"].to_pylist()]
    grid["signal"] = grid["alignment"] * grid["sr_range"]
    return grid


def signal_error(grid: Grid, truth: Grid) -> float:
    """Mean error of SR range × alignment over all nodes with a truth."""
    known = np.isfinite(truth["alignment"])
    signal = truth["alignment"] * truth["sr_range"]
    return float(np.abs(np.nan_to_num(grid["signal"])[known] - signal[known]).mean())


def counts(grid: Grid, truth: Grid) -> dict[str, float]:
    """Counts of one world that `ratios` turns into shares; they add up over worlds."""
    known = truth["sr_range"] > 0
    # A verdict at a node where all tokens are equally good has no sign to agree with, and is wrong.
    decided = (grid["verdict"] != 0) & np.isfinite(truth["alignment"])
    right, several = grid["verdict"] * truth["alignment"] > 0, truth["children"] >= 3
    found = {
        "nodes": known.sum(), "rows": (known & np.isfinite(grid["alignment"])).sum(),
        "decided": decided.sum(), "decided_known": (known & decided).sum(), "right": (right & decided).sum(),
        "decided_3plus": (decided & several).sum(), "right_3plus": (right & decided & several).sum(),
    }  # fmt: skip
    rows = known & np.isfinite(grid["p_positive"])
    p, positive = grid["p_positive"][rows], truth["alignment"][rows] > 0
    cell = np.minimum((p * BINS).astype(int), BINS - 1)
    for name, value in (("cell", np.ones(len(p))), ("cell_p", p), ("cell_positive", positive.astype(float))):
        found |= {f"{name}_{i}": total for i, total in enumerate(np.bincount(cell, value, BINS))}
    return {name: float(value) for name, value in found.items()}


def coverage_counts(world: ExactWorld, evidence: Evidence, estimates: Sequence[PathEstimate]) -> dict[str, float]:
    """How many 90 % intervals of Q contain the exact value: on the path, off it, and in worlds with a low pass rate."""
    low_pass = world.value_LS[0, world.start] < LOW_PASS
    found = dict.fromkeys(("on", "on_inside", "off", "off_inside", "low_pass", "low_pass_inside"), 0.0)
    for scores, estimate in zip(evidence.paths, estimates, strict=True):
        exact_C = world.exact_q_along(scores)
        low_C, high_C = estimate.interval_C()
        inside_C = (low_C <= exact_C) & (exact_C <= high_C)
        # A certain outcome has an interval of zero width, so coverage does not apply.
        open_C = (scores.above(RULES.tau) | scores.on_path_C) & (estimate.se_C > 1e-6)
        cells = [("on", scores.on_path_C), ("off", ~scores.on_path_C)] + [("low_pass", open_C)] * bool(low_pass)
        for name, member_C in cells:
            found[name] += float((open_C & member_C).sum())
            found[f"{name}_inside"] += float((inside_C & open_C & member_C).sum())
    return found


def ratios(total: Mapping[str, float]) -> dict[str, float]:
    """Shares from counts that were summed over worlds; NaN where there is nothing to divide by."""

    def share(part: str, whole: str) -> float:
        return total[part] / total[whole] if total[whole] else float("nan")

    gap = sum(abs(total[f"cell_p_{i}"] - total[f"cell_positive_{i}"]) for i in range(BINS))
    return {
        "verdict_precision_fixed_truth": share("right", "decided"),
        "verdict_share_fixed_truth": share("decided_known", "nodes"),
        "verdict_precision_3plus_children": share("right_3plus", "decided_3plus"),
        "row_share_fixed_truth": share("rows", "nodes"),
        "coverage_90_on_path": share("on_inside", "on"),
        "coverage_90_off_path": share("off_inside", "off"),
        "coverage_90_low_pass": share("low_pass_inside", "low_pass"),
        "p_positive_calibration_error": gap / max(total["rows"], 1.0),
    }


def weighted_correlation(one: np.ndarray, other: np.ndarray, weight: np.ndarray) -> float:
    weight = weight / weight.sum()
    one, other = one - weight @ one, other - weight @ other
    return float(weight @ (one * other) / np.sqrt((weight @ one**2) * (weight @ other**2)))


def node_correlation(grid: Grid, truth: Grid) -> float:
    """SR-weighted correlation of a node's alignment with the true one; a node without a row counts as 0."""
    known = np.isfinite(truth["alignment"])
    return weighted_correlation(
        np.nan_to_num(grid["alignment"])[known], truth["alignment"][known], truth["sr_range"][known]
    )
