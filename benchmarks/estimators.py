"""Errors of the estimators on random exact worlds: with the paper's rollouts, and with half as many by `adaptive`.

Figures with the suffix `_adaptive` are of `Budget(allocation="adaptive")`, which samples half as many targeted rollouts
as the paper's plan; all others are of `Budget()`, the paper's. Three families of worlds (`_worlds.py`), reported
separately, and the worst of the three for the headline figures. The truth is over all tokens above τ at all nodes of
the paths, whatever an estimator keeps (`_fixed_truth.py`). Correlations and errors are averages over worlds; shares,
coverages and calibration are pooled over nodes. Intervals of aggregates and the oracle under a true null come from
`aggregates.py`, at a small budget.

    python benchmarks/estimators.py [--quick] [--development] [--seed 300000] [--nodes-only] [--json FILE]
        [--resume FILE] [--workers 2]

Worlds that are in the file of `--resume` are not measured again; finished ones are appended to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import aggregates
import numpy as np
import pyarrow as pa
from _fixed_truth import Grid, counts, coverage_counts, node_correlation, on_grid, ratios, signal_error, true_grid
from _worlds import DEVELOPMENT_SEED, FAMILIES, LONGEST, TEST_SEED, explore, settings, teachers_of, world_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opd_align.backends.exact import ExactWorld
from opd_align.core.alignment import node_table
from opd_align.core.collect import Evidence
from opd_align.core.engine import align, estimated_paths
from opd_align.core.estimate import estimate
from opd_align.settings import Budget, Method

FRACTIONS = (0.2, 0.35, 0.5, 0.7, 1.0)
DEFAULT = 0.5
"""The fraction of the paper's rollouts that `adaptive` samples by default."""
METHODS: tuple[Method, ...] = ("pooled", "direct", "backup")
# (figure, whether the worst family is the one with the largest value); of both allocations: also as `…_adaptive`
BY_ALLOCATION = (
    ("verdict_precision_fixed_truth", False), ("verdict_share_fixed_truth", False),
    ("verdict_precision_3plus_children", False), ("node_corr_fixed_truth", False),
    ("coverage_90_on_path", False), ("coverage_90_off_path", False), ("coverage_90_low_pass", False),
    ("p_positive_calibration_error", True),
)  # fmt: skip
HEADLINE = dict(BY_ALLOCATION) | {f"{name}_adaptive": largest for name, largest in BY_ALLOCATION} | {
    "adaptive_rollouts_over_paper": True, "q_error_backup_over_pooled": True, "node_corr_gain": False,
    "signal_error_backup_n10_over_direct_n100": True,
}  # fmt: skip
KNOWN_VISITS = 20
"""The upper bound `node_corr_bound` knows Q exactly at every token with this many rollouts."""

# (worlds per family, samples of questions) of the aggregates
AGGREGATES, QUICK_AGGREGATES = (200, 100), (6, 10)

Job = tuple[str, int, int, Sequence[float]]


def measure(job: Job) -> tuple[dict[str, float], dict[str, float]]:
    """One world: its means, named `quantity/estimator`, and its counts."""
    family, seed, length, fractions = job
    world = world_of(family, seed, length)
    teachers = teachers_of(world, seed)
    paper = explore(world, teachers, Budget())
    truth = true_grid(world, paper)
    result = world_statistics(world, paper) | q_errors(world, paper)
    for method in METHODS:
        grid = on_grid(align(paper, replace(settings(), estimator=method)), paper)
        result[f"corr/{method}"] = node_correlation(grid, truth)
        result[f"signal/{method}"] = signal_error(grid, truth)
    result["corr/bound"] = node_correlation(on_grid(known_exits(world, paper), paper), truth)
    total = counts_of(world, paper, grid, truth)

    tenth = explore(world, teachers, Budget(n_min=10))
    result["signal/backup_n10"] = signal_error(on_grid(align(tenth, settings()), tenth), truth)
    result["rollouts/paper"] = paper.targeted
    for fraction in fractions:
        limit = None if fraction == DEFAULT else int(fraction * paper.targeted)
        adaptive = explore(world, teachers, Budget(allocation="adaptive", targeted=limit))
        grid = on_grid(align(adaptive, settings()), adaptive)
        result[f"adaptive/{fraction}"] = signal_error(grid, truth)
        result[f"adaptive_corr/{fraction}"] = node_correlation(grid, truth)
        if fraction == DEFAULT:
            result["rollouts/adaptive"] = adaptive.targeted
            result["adaptive_corr/bound"] = node_correlation(on_grid(known_exits(world, adaptive), adaptive), truth)
            found = counts_of(world, adaptive, grid, truth)
            total |= {f"adaptive {name}": value for name, value in found.items()}
    return result, total


def counts_of(world: ExactWorld, evidence: Evidence, grid: Grid, truth: Grid) -> dict[str, float]:
    """All counts of one allocation: verdicts, calibration and coverage."""
    return counts(grid, truth) | coverage_counts(world, evidence, estimate(evidence.tree, evidence.paths))


def known_exits(world: ExactWorld, evidence: Evidence) -> pa.Table:
    """The node table if Q were known exactly at every token with `KNOWN_VISITS` rollouts: what more cannot improve."""
    paths = []
    for path in estimated_paths(evidence, settings()):
        known_C = path.estimate.visits_C >= KNOWN_VISITS
        exact_C = world.exact_q_along(path.scores)
        found = replace(
            path.estimate,
            q_C=np.where(known_C, exact_C, path.estimate.q_C),
            **{
                name: np.where(known_C, 0.0, getattr(path.estimate, name))
                for name in ("own_var_C", "load_C", "sibling_sd_C")
            },
        )
        paths.append(replace(path, estimate=found))
    return node_table(paths, settings().objectives, settings().rules)


def q_errors(world: ExactWorld, evidence: Evidence) -> dict[str, float]:
    """Mean error of Q at the tokens above τ that every estimator has rollouts for."""
    estimates = {method: estimate(evidence.tree, evidence.paths, method=method) for method in METHODS}
    error: dict[str, list[np.ndarray]] = {f"{m}{w}": [] for m in estimates for w in ("", "/on_path", "/off_path")}
    for index, scores in enumerate(evidence.paths):
        exact_C, on_path_C = world.exact_q_along(scores), scores.on_path_C
        common_C = scores.above(settings().rules.tau) | on_path_C
        for method in ("pooled", "direct"):
            common_C &= estimates[method][index].visits_C >= settings().rules.n_sig
        for method, found in estimates.items():
            miss_C = np.abs(found[index].q_C - exact_C)
            error[method].append(miss_C[common_C])
            error[f"{method}/on_path"].append(miss_C[common_C & on_path_C])
            error[f"{method}/off_path"].append(miss_C[common_C & ~on_path_C])
    return {f"q_error/{name}": float(np.concatenate(parts).mean()) for name, parts in error.items()}


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


def headline(mean: dict[str, float], total: dict[str, float], fractions: Sequence[float]) -> dict[str, float]:
    """The main figures of one family."""
    target = mean["signal/backup"]
    errors = [mean[f"adaptive/{fraction}"] for fraction in fractions]
    reached = next((i for i, error in enumerate(errors) if error <= target), None)
    needed = float("inf")
    if reached is not None:
        needed = fractions[reached]
        if reached > 0:
            step = (errors[reached - 1] - target) / max(errors[reached - 1] - errors[reached], 1e-12)
            needed = fractions[reached - 1] + step * (fractions[reached] - fractions[reached - 1])
    prefix = "adaptive "
    adaptive = ratios({name.removeprefix(prefix): v for name, v in total.items() if name.startswith(prefix)}) | {
        "node_corr_fixed_truth": mean[f"adaptive_corr/{DEFAULT}"],
        "node_corr_bound": mean["adaptive_corr/bound"],
    }
    return (
        ratios(total)
        | {"node_corr_fixed_truth": mean["corr/backup"], "node_corr_bound": mean["corr/bound"]}
        | {f"{name}_adaptive": value for name, value in adaptive.items()}
        | {
            "adaptive_rollouts_over_paper": needed,
            "node_corr_gain": mean["corr/backup"] - mean["corr/pooled"],
            "q_error_backup_over_pooled": mean["q_error/backup"] / mean["q_error/pooled"],
            "signal_error_backup_n10_over_direct_n100": mean["signal/backup_n10"] / mean["signal/direct"],
        }
    )


class Finished:
    """Results by name, in memory and as lines of a JSON file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        self.results: dict[str, Any] = dict(json.loads(line) for line in lines)

    def __contains__(self, name: str) -> bool:
        return name in self.results

    def __getitem__(self, name: str) -> Any:
        return self.results[name]

    def add(self, name: str, result: Any) -> None:
        self.results[name] = result
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, result]) + "\n")

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self:
            self.add(name, make())
        return self[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter worlds, under 60 s of CPU time")
    parser.add_argument("--development", action="store_true", help="the worlds that estimators were developed on")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--resume", type=Path, help="file of finished worlds, read and extended")
    parser.add_argument("--seed", type=int, help="seed of the first world, for worlds that no other run has seen")
    parser.add_argument("--worlds", type=int, help="worlds per family")
    parser.add_argument("--nodes-only", action="store_true", help="leave out the figures of aggregates.py")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    worlds = args.worlds or (3 if args.quick else 24)
    fractions = (0.35, 0.5) if args.quick else FRACTIONS
    first = (DEVELOPMENT_SEED if args.development else TEST_SEED) if args.seed is None else args.seed
    jobs: list[Job] = []
    for family in FAMILIES:
        longest = min(LONGEST[family], 120) if args.quick else LONGEST[family]
        lengths = np.geomspace(60, longest, worlds).astype(int).tolist()
        # The longest world must not be the last to start.
        jobs += [(family, first + 10 * i, length, fractions) for i, length in reversed(list(enumerate(lengths)))]
    finished = Finished(args.resume)
    todo = [job for job in jobs if str(job) not in finished]
    with ProcessPoolExecutor(args.workers) as pool:
        for job, result in zip(todo, track(pool.map(measure, todo), "worlds", len(todo)), strict=True):
            finished.add(str(job), result)
    measured = [finished[str(job)] for job in jobs]
    figures: dict[str, float] = {"worlds": worlds}
    table = Table("figure", *FAMILIES, "worst", title=f"{worlds} worlds per family")
    means, heads = {}, {}
    for family in FAMILIES:
        rows = [row for job, row in zip(jobs, measured, strict=True) if job[0] == family]
        means[family] = {key: float(np.nanmean([mean[key] for mean, _ in rows])) for key in rows[0][0]}
        total = {key: float(sum(counted[key] for _, counted in rows)) for key in rows[0][1]}
        heads[family] = headline(means[family], total, fractions)
        figures |= {f"{key.replace('/', '_')}_{family}": v for key, v in (means[family] | heads[family]).items()}
    for key in means["real"]:
        table.add_row(key, *[f"{means[family][key]:.4g}" for family in FAMILIES])
    table.add_section()
    for key in heads["real"]:
        worst = ""
        if key in HEADLINE:
            figures[key] = float((np.nanmax if HEADLINE[key] else np.nanmin)([heads[f][key] for f in FAMILIES]))
            worst = f"{figures[key]:.3f}"
        table.add_row(f"[bold]{key}", *[f"[bold]{heads[family][key]:.3f}" for family in FAMILIES], f"[bold]{worst}")
    if not args.nodes_only:
        sizes = QUICK_AGGREGATES if args.quick else AGGREGATES
        of_aggregates = finished.get(
            f"aggregates {first} {sizes}", lambda: aggregates.headline(*sizes, first, args.workers)
        )
        table.add_section()
        for key, value in of_aggregates.items():
            figures[key] = value
            table.add_row(f"[bold]{key}", *[""] * len(FAMILIES), f"[bold]{value:.4g}")
    Console().print(table)
    if args.json:
        # Infinite or undefined values become null: JSON has no infinity.
        args.json.write_text(json.dumps({key: v if np.isfinite(v) else None for key, v in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
