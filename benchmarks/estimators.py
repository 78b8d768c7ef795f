"""Errors of the estimators on random exact worlds, with the paper's budget and the same rollouts for all estimators.

Two families of worlds, reported separately: `real` imitates measured traces (a third of the positions fork, unlikely
tokens have 2 % of the mass, most forks hardly change the outcome); in `stakes` most forks change it. The table starts
with statistics of the worlds. All numbers are averages over worlds; lengths are 60 to 300 tokens.

    python benchmarks/estimators.py [--quick] [--json FILE] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.core.alignment import EstimatedPath, node_table, significant
from opd_align.core.collect import Evidence, collect
from opd_align.core.engine import align
from opd_align.core.estimate import PathEstimate, estimate, exact_estimate
from opd_align.settings import Budget, Method, Rules, Settings
from opd_align.types import Question

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
FAMILIES = {"real": 1.0, "stakes": 4.0}
# No resolution limit: a node with a small estimated SR range must count, not be left out.
RULES = Rules(draws=200, resolution=0.0)


def measure(job: tuple[str, int, int, Sequence[float]]) -> dict[str, float]:
    """One world: means over its nodes (or children), named `quantity/estimator`."""
    family, seed, length, fractions = job
    world = ExactWorld.random(seed, length=length, stakes=FAMILIES[family])
    teachers = [
        world.tilted_teacher(strength=4.0, noise=1.0, seed=seed + 1),
        world.style_teacher(seed=seed + 2),
        world.adversarial_teacher(strength=4.0, noise=1.0, seed=seed + 3),
    ]
    paper = explore(world, teachers, Budget())
    tenth = explore(world, teachers, Budget(n_min=10))
    result = world_statistics(world, paper) | q_errors(world, paper)

    # Compare estimators: the same nodes and children, only `Q` differs.
    pooled, backup, truth = on_common_children(world, (paper, "pooled"), (paper, "backup"))
    for name, grid in (("pooled", pooled), ("backup", backup)):
        result[f"corr/{name}"] = weighted_correlation(grid["alignment"], truth["alignment"], truth["sr_range"])
        result[f"signal_same_nodes/{name}"] = mean_gap(grid["signal"], truth["signal"])
    own, truth = on_common_children(world, (paper, "backup"))
    decided = np.abs(own["p_positive"] - 0.5) >= RULES.confidence - 0.5
    right = np.sign(own["p_positive"] - 0.5) == np.sign(truth["alignment"])
    result["verdict/decided"] = float(decided.mean())
    result["verdict/right"] = float(right[decided].mean())
    direct, few, truth = on_common_children(world, (paper, "direct"), (tenth, "backup"))
    result["signal_same_nodes/direct_n100"] = mean_gap(direct["signal"], truth["signal"])
    result["signal_same_nodes/backup_n10"] = mean_gap(few["signal"], truth["signal"])

    # Compare allocations: all nodes with a nonzero exact SR range; a node without a row counts as 0.
    whole = on_grid(rows_of(paper, [exact_estimate(s, world.exact_q_along(s)) for s in paper.paths]), paper)
    known = whole["sr_range"] > 0

    def signal_error(grid: dict[str, np.ndarray]) -> float:
        return mean_gap(np.nan_to_num(grid["signal"])[known], whole["signal"][known])

    result["signal/paper"] = signal_error(on_grid(align(paper, settings()), paper))
    result["rollouts/paper"] = paper.targeted
    for fraction in fractions:
        budget = Budget(allocation="adaptive", targeted=int(fraction * paper.targeted))
        adaptive = explore(world, teachers, budget)
        result[f"adaptive/{fraction}"] = signal_error(on_grid(align(adaptive, settings()), paper))
    return result


def settings(budget: Budget | None = None) -> Settings:
    return Settings(budget=budget or Budget(), rules=RULES)


def explore(world: ExactWorld, teachers: Sequence[ExactTeacher], budget: Budget) -> Evidence:
    return collect(world, teachers, Question("world"), world, settings=settings(budget))


def on_common_children(world: ExactWorld, *sides: tuple[Evidence, Method]) -> list[dict[str, np.ndarray]]:
    """All sides and the exact values on the children significant for all sides; only nodes present in all of them."""
    found = [estimate(evidence.tree, evidence.paths, method=method) for evidence, method in sides]
    common = sides[0][0]
    masks = []
    for index, scores in enumerate(common.paths):
        masks.append(np.logical_and.reduce([significant(scores, side[index], RULES) for side in found]))
    found.append([exact_estimate(scores, world.exact_q_along(scores)) for scores in common.paths])
    grids = []
    for side in found:
        masked = [
            replace(path, effective_C=np.where(mask, path.effective_C, 0.0))
            for path, mask in zip(side, masks, strict=True)
        ]
        grids.append(on_grid(rows_of(common, masked), common))
    everywhere = np.logical_and.reduce([grid["sr_range"] > 0 for grid in grids])
    return [{name: column[everywhere] for name, column in grid.items()} for grid in grids]


def rows_of(evidence: Evidence, estimates: Sequence[PathEstimate]) -> pa.Table:
    """The node table of given estimates along the evidence's paths."""
    paths = [
        EstimatedPath(
            "world", index, correct, scores, found,
            evidence.tree.counts_along(scores.completion_T), evidence.pass_rate,
        )
        for index, (scores, correct, found) in enumerate(
            zip(evidence.paths, evidence.correct, estimates, strict=True)
        )
    ]  # fmt: skip
    return node_table(paths, settings().objectives, RULES)


def on_grid(rows: pa.Table, evidence: Evidence) -> dict[str, np.ndarray]:
    """Columns of the table on a fixed grid (teacher, path, depth), NaN where there is no row."""
    names = sorted(evidence.paths[0].teachers)
    shape = (len(names), len(evidence.paths), max(len(scores) for scores in evidence.paths))
    teacher = np.searchsorted(names, rows["teacher"].to_numpy().astype(str))
    index = (teacher, rows["path"].to_numpy(), rows["depth"].to_numpy())
    grid = {}
    for column in ("alignment", "sr_range", "p_positive"):
        grid[column] = np.full(shape, np.nan)
        grid[column][index] = rows[column].to_numpy()
    grid["signal"] = grid["alignment"] * grid["sr_range"]
    return grid


def mean_gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())


def q_errors(world: ExactWorld, evidence: Evidence) -> dict[str, float]:
    methods: tuple[Method, ...] = ("pooled", "direct", "backup")
    estimates = {method: estimate(evidence.tree, evidence.paths, method=method) for method in methods}
    error: dict[str, list[np.ndarray]] = {f"{m}{w}": [] for m in estimates for w in ("", "/on_path", "/off_path")}
    inside = []
    for index, scores in enumerate(evidence.paths):
        exact_C = world.exact_q_along(scores)
        common_C = np.logical_and.reduce([significant(scores, e[index], RULES) for e in estimates.values()])
        on_path_C = scores.token_C == np.repeat(scores.completion_T, np.diff(scores.offsets))
        for method, found in estimates.items():
            miss_C = np.abs(found[index].q_C - exact_C)
            error[method].append(miss_C[common_C])
            error[f"{method}/on_path"].append(miss_C[common_C & on_path_C])
            error[f"{method}/off_path"].append(miss_C[common_C & ~on_path_C])
        low_C, high_C = estimates["backup"][index].interval_C()
        # A certain outcome has an interval of zero width, so coverage does not apply.
        open_C = significant(scores, estimates["backup"][index], RULES) & (estimates["backup"][index].se_C > 1e-6)
        inside.append(((low_C <= exact_C) & (exact_C <= high_C))[open_C])
    result = {f"q_error/{name}": float(np.concatenate(parts).mean()) for name, parts in error.items()}
    return result | {"coverage_90": float(np.concatenate(inside).mean())}


def world_statistics(world: ExactWorld, evidence: Evidence) -> dict[str, float]:
    fork, tail, sr_range = [], [], []
    for scores in evidence.paths:
        depth_T, state_T = np.arange(len(scores)), world.states_along(scores.completion_T)[:-1]
        p_TV = np.exp(world.log_p_LSV[depth_T, state_T])
        q_TV = np.stack([world.exact_q(scores.completion_T[:depth]) for depth in depth_T])
        likely_TV = p_TV > 0.05
        forked_T = likely_TV.sum(-1) >= 2
        fork.append(forked_T.mean())
        tail.append(np.where(likely_TV, 0.0, p_TV).sum(-1).mean())
        high_T = np.where(likely_TV, q_TV, -np.inf).max(-1)
        low_T = np.where(likely_TV, q_TV, np.inf).min(-1)
        sr_range.append((high_T - low_T)[forked_T])
    ranges = np.concatenate(sr_range)
    return {
        "world/forks": float(np.mean(fork)),
        "world/tail_mass": float(np.mean(tail)),
        "world/median_sr_range": float(np.median(ranges)),
        "world/share_above_0.1": float((ranges > 0.1).mean()),
        "world/pass_rate": float(world.value_LS[0, world.start]),
    }


def weighted_correlation(one: np.ndarray, other: np.ndarray, weight: np.ndarray) -> float:
    weight = weight / weight.sum()
    one, other = one - weight @ one, other - weight @ other
    return float(weight @ (one * other) / np.sqrt((weight @ one**2) * (weight @ other**2)))


def headline(mean: dict[str, float], fractions: Sequence[float]) -> dict[str, float]:
    """The main ratios."""
    target = mean["signal/paper"]
    errors = [mean[f"adaptive/{fraction}"] for fraction in fractions]
    reached = next((i for i, error in enumerate(errors) if error <= target), None)
    needed = float("inf")
    if reached is not None:
        needed = fractions[reached]
        if reached > 0:
            step = (errors[reached - 1] - target) / max(errors[reached - 1] - errors[reached], 1e-12)
            needed = fractions[reached - 1] + step * (fractions[reached] - fractions[reached - 1])
    return {
        "q_error_backup_over_pooled": mean["q_error/backup"] / mean["q_error/pooled"],
        "node_corr_gain": mean["corr/backup"] - mean["corr/pooled"],
        "coverage_90": mean["coverage_90"],
        "signal_error_backup_n10_over_direct_n100": mean["signal_same_nodes/backup_n10"]
        / mean["signal_same_nodes/direct_n100"],
        "adaptive_rollouts_over_paper": needed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer worlds and budgets, under 45 s on two cores")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    worlds = 5 if args.quick else 24
    fractions = (0.35, 0.5) if args.quick else FRACTIONS
    lengths = np.linspace(60, 300, worlds).astype(int)
    families = ["real", "stakes"]
    # Seeds from 20,000 on: worlds not used for tuning.
    jobs = [
        (family, 20_000 + 10 * index, int(length), fractions)
        for family in families
        for index, length in enumerate(lengths)
    ]
    with ProcessPoolExecutor(args.workers) as pool:
        measured = list(track(pool.map(measure, jobs), "worlds", len(jobs)))
    figures: dict[str, float] = {"worlds": worlds}
    table = Table("figure", *[f"{family} worlds" for family in families], title=f"{worlds} worlds per family")
    means = {}
    for family in families:
        rows = [row for job, row in zip(jobs, measured, strict=True) if job[0] == family]
        means[family] = {key: float(np.nanmean([row[key] for row in rows])) for key in rows[0]}
        suffix = "" if family == "real" else f"_{family}"
        figures |= {f"{key}{suffix}": value for key, value in headline(means[family], fractions).items()}
        figures |= {f"{key.replace('/', '_')}{suffix}": value for key, value in means[family].items()}
    for key in means["real"]:
        table.add_row(key, *[f"{means[family][key]:.4g}" for family in families])
    table.add_section()
    for key in headline(means["real"], fractions):
        table.add_row(f"[bold]{key}", *[f"[bold]{figures[key + s]:.3f}" for s in ("", "_stakes")])
    Console().print(table)
    if args.json:
        # Infinite or undefined values become null: JSON has no infinity.
        args.json.write_text(json.dumps({key: v if np.isfinite(v) else None for key, v in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
