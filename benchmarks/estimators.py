"""Errors of the estimators on random exact worlds: with the paper's rollouts, and with half as many by `adaptive`.

Of figures that both allocations have, those without a suffix are of the default, `Budget()`: `adaptive`, which samples
half as many targeted rollouts as the paper's plan. The suffix `_paper` is for `Budget(allocation="paper")`. Estimators
are compared on the paper's rollouts. Families of worlds are reported separately, and the worst of them for the headline
figures: by default the three of `_worlds.py`; `cot`, `search`, `late` (`_other_worlds.py`), `sums`, `plans` and `yesno`
(`_task_worlds.py`) are by other authors. The truth is over all tokens above τ at all nodes of the paths, whatever an
estimator keeps (`_fixed_truth.py`).
Correlations and errors are averages over worlds; shares, coverages and calibration are pooled over nodes. Intervals of
aggregates and the oracle under a true null are those of `aggregates.py`, at a small budget.

    python benchmarks/estimators.py [--quick] [--development] [--seed 300000] [--nodes-only] [--json FILE]
        [--resume FILE] [--workers 2] [--families real stakes heavy]

Worlds that are in the file of `--resume` are not measured again; finished ones are appended to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import aggregates
import numpy as np
from _fixed_truth import Grid, counts, coverage_counts, node_correlation, on_grid, ratios, signal_error, true_grid
from _worlds import (
    DEVELOPMENT_SEED,
    FAMILIES,
    OTHER_FAMILIES,
    TEST_SEED,
    explore,
    lengths_of,
    settings,
    teachers_of,
    world_of,
)
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opd_align.backends.exact import ExactWorld
from opd_align.core.alignment import EstimatedPath, node_table
from opd_align.core.collect import Evidence
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import PathEstimate
from opd_align.settings import Budget
from opd_align.types import PathScores

FRACTIONS = (0.2, 0.35, 0.5, 0.7, 1.0)
DEFAULT = 0.5
"""The fraction of the paper's rollouts that `adaptive` samples by default."""
# (figure, whether the worst family is the one with the largest value); of both allocations: also as `…_paper`
BY_ALLOCATION = (
    ("verdict_precision_fixed_truth", False), ("verdict_share_fixed_truth", False),
    ("verdict_precision_3plus_children", False), ("node_corr_fixed_truth", False),
    ("coverage_90_on_path", False), ("coverage_90_off_path", False), ("coverage_90_low_pass", False),
    ("p_positive_calibration_error", True),
)  # fmt: skip
HEADLINE = dict(BY_ALLOCATION) | {f"{name}_paper": largest for name, largest in BY_ALLOCATION} | {
    "adaptive_rollouts_over_paper": True, "q_error_backup_over_pooled": True, "node_corr_gain": False,
    "signal_error_backup_n10_over_direct_n100": True,
}  # fmt: skip
KNOWN_VISITS = 20
"""The upper bound `node_corr_bound` knows Q exactly at every token with this many rollouts."""

# (worlds per family, samples of questions) of the aggregates
AGGREGATES, QUICK_AGGREGATES = (200, 100), (6, 10)
# Worlds per family of the quick form, and those of them that are compared with the paper's plan.
QUICK_WORLDS, QUICK_COMPARED = 8, 3


@dataclass(frozen=True)
class Job:
    """One world to measure.

    Args:
        family: Family of the world.
        seed: Seed of the world.
        length: Typical length of its completions, in tokens.
        fractions: Fractions of the paper's rollouts to give to `adaptive`. Empty: nothing is compared with the paper's
            plan, only the figures of the default are measured.
    """

    family: str
    seed: int
    length: int
    fractions: tuple[float, ...]


class Estimated:
    """The rollouts of one allocation, with what the figures need of them: each estimator runs once."""

    def __init__(self, world: ExactWorld, evidence: Evidence) -> None:
        self.world, self.evidence = world, evidence
        self.counts = [evidence.tree.counts_along(scores.completion_T) for scores in evidence.paths]

    @cached_property
    def backup(self) -> list[PathEstimate]:
        return estimate(self.evidence.tree, self.evidence.paths)

    @cached_property
    def grid(self) -> Grid:
        return self.grid_of(self.backup)

    def grid_of(self, estimates: Sequence[PathEstimate]) -> Grid:
        evidence = self.evidence
        paths = [
            EstimatedPath(
                evidence.question.id, index, evidence.correct[index], scores, found, self.counts[index],
                evidence.pass_rate, to_go=evidence.to_go[index],
            )
            for index, (scores, found) in enumerate(zip(evidence.paths, estimates, strict=True))
        ]  # fmt: skip
        return on_grid(node_table(paths, settings().objectives, settings().rules), evidence)

    def bound(self, truth: Grid) -> float:
        """The correlation if Q were known exactly at every token with `KNOWN_VISITS` rollouts."""
        return node_correlation(self.grid_of([*map(self._known, self.evidence.paths, self.backup)]), truth)

    def _known(self, scores: PathScores, found: PathEstimate) -> PathEstimate:
        known_C = found.visits_C >= KNOWN_VISITS
        return replace(
            found,
            q_C=np.where(known_C, self.world.exact_q_along(scores), found.q_C),
            **{name: np.where(known_C, 0.0, getattr(found, name)) for name in ("own_var_C", "load_C", "sibling_sd_C")},
        )

    def totals(self, truth: Grid) -> dict[str, float]:
        """All counts of one allocation: verdicts, calibration and coverage."""
        return counts(self.grid, truth) | coverage_counts(self.world, self.evidence, self.backup)


def measure(job: Job) -> tuple[dict[str, float], dict[str, float]]:
    """One world: its means, named `quantity/estimator`, and its counts."""
    world = world_of(job.family, job.seed, job.length)
    teachers = teachers_of(world, job.seed, job.family)

    def explored(budget: Budget) -> Estimated:
        return Estimated(world, explore(world, teachers, budget))

    default = explored(Budget())
    truth = true_grid(world, default.evidence)
    total = {f"adaptive {name}": value for name, value in default.totals(truth).items()}
    result = {
        "adaptive_corr/bound": default.bound(truth),
        f"adaptive_corr/{DEFAULT}": node_correlation(default.grid, truth),
    }
    if not job.fractions:
        return result, total
    paper = explored(Budget(allocation="paper"))
    # The initial rollouts do not depend on the allocation, so neither do the paths and their truth.
    estimates = {
        method: estimate(paper.evidence.tree, paper.evidence.paths, method=method) for method in ("pooled", "direct")
    } | {"backup": paper.backup}
    result |= world_statistics(world, paper.evidence) | q_errors(world, paper.evidence, estimates)
    for method, found in estimates.items():
        grid = paper.grid if method == "backup" else paper.grid_of(found)
        result |= {f"corr/{method}": node_correlation(grid, truth), f"signal/{method}": signal_error(grid, truth)}
    result["corr/bound"] = paper.bound(truth)
    total |= paper.totals(truth)
    result["signal/backup_n10"] = signal_error(explored(Budget(allocation="paper", n_min=10)).grid, truth)
    result |= {"rollouts/paper": paper.evidence.targeted, "rollouts/adaptive": default.evidence.targeted}
    for fraction in job.fractions:
        limit = int(fraction * paper.evidence.targeted)
        adaptive = default if fraction == DEFAULT else explored(Budget(targeted=limit))
        result |= {
            f"adaptive/{fraction}": signal_error(adaptive.grid, truth),
            f"adaptive_corr/{fraction}": node_correlation(adaptive.grid, truth),
        }
    return result, total


def q_errors(
    world: ExactWorld, evidence: Evidence, estimates: Mapping[str, Sequence[PathEstimate]]
) -> dict[str, float]:
    """Mean error of Q at the tokens above τ that every estimator has rollouts for."""
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


Measured = tuple[Mapping[str, float], Mapping[str, float]]
"""Means and counts of one world."""


def pooled(rows: Sequence[Measured]) -> tuple[dict[str, float], dict[str, float]]:
    """Averages of the means and sums of the counts, each over the worlds that have them."""
    means, totals = ({key for row in rows for key in row[part]} for part in (0, 1))
    return (
        {key: float(np.nanmean([mean[key] for mean, _ in rows if key in mean])) for key in sorted(means)},
        {key: float(sum(total.get(key, 0.0) for _, total in rows)) for key in sorted(totals)},
    )


def of_default(rows: Sequence[Measured]) -> dict[str, float]:
    """The main figures of the default allocation in one family."""
    mean, total = pooled(rows)
    prefix = "adaptive "
    return ratios({name.removeprefix(prefix): v for name, v in total.items() if name.startswith(prefix)}) | {
        "node_corr_fixed_truth": mean[f"adaptive_corr/{DEFAULT}"],
        "node_corr_bound": mean["adaptive_corr/bound"],
    }


def of_comparison(rows: Sequence[Measured]) -> dict[str, float]:
    """The main figures of the paper's plan in one family, and those that compare the two."""
    mean, total = pooled(rows)
    prefix = "adaptive/"
    error = {float(key.removeprefix(prefix)): v for key, v in mean.items() if key.startswith(prefix)}
    paper = ratios(total) | {"node_corr_fixed_truth": mean["corr/backup"], "node_corr_bound": mean["corr/bound"]}
    return {f"{name}_paper": value for name, value in paper.items()} | {
        "adaptive_rollouts_over_paper": needed_fraction(error, mean["signal/backup"]),
        "node_corr_gain": mean["corr/backup"] - mean["corr/pooled"],
        "q_error_backup_over_pooled": mean["q_error/backup"] / mean["q_error/pooled"],
        "signal_error_backup_n10_over_direct_n100": mean["signal/backup_n10"] / mean["signal/direct"],
    }


def needed_fraction(error: Mapping[float, float], target: float) -> float:
    """The fraction of rollouts at which the error falls to the target, interpolated; infinite if it does not."""
    fractions = sorted(error)
    reached = next((i for i, fraction in enumerate(fractions) if error[fraction] <= target), None)
    if reached is None:
        return float("inf")
    here = fractions[reached]
    if reached == 0:
        return here
    before = fractions[reached - 1]
    return before + (error[before] - target) / max(error[before] - error[here], 1e-12) * (here - before)


def with_errors(
    figures_of: Callable[[Sequence[Measured]], dict[str, float]], rows: Sequence[Measured]
) -> dict[str, tuple[float, float]]:
    """Each figure with its standard error over worlds, by leaving out one world at a time (jackknife)."""
    figures, n = figures_of(rows), len(rows)
    without = [figures_of([*rows[:i], *rows[i + 1 :]]) for i in range(n)] if n > 1 else []
    errors = {}
    for key in figures:
        values = np.array([each[key] for each in without])
        known = n > 1 and bool(np.isfinite(values).all())
        errors[key] = float(np.sqrt((n - 1) * values.var())) if known else float("nan")
    return {key: (value, errors[key]) for key, value in figures.items()}


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
    parser.add_argument("--quick", action="store_true", help="fewer and shorter worlds, under 60 s on two cores")
    parser.add_argument("--development", action="store_true", help="the worlds that estimators were developed on")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--resume", type=Path, help="file of finished worlds, read and extended")
    parser.add_argument(
        "--families", nargs="+", choices=FAMILIES + OTHER_FAMILIES, default=FAMILIES, help="families of worlds"
    )
    parser.add_argument("--seed", type=int, help="seed of the first world, for worlds that no other run has seen")
    parser.add_argument("--worlds", type=int, help="worlds per family")
    parser.add_argument("--compared", type=int, help="worlds per family that are compared with the paper's plan")
    parser.add_argument("--nodes-only", action="store_true", help="leave out the figures of aggregates.py")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.compared is not None and args.compared < 1:
        parser.error("--compared must be at least 1")
    worlds = args.worlds or (QUICK_WORLDS if args.quick else 24)
    # Comparing with the paper's plan takes four times as long as the default alone.
    compared = min(worlds, QUICK_COMPARED) if args.quick and not args.worlds else worlds
    if args.compared is not None:
        compared = min(worlds, args.compared)
    fractions = (0.35, 0.5) if args.quick else FRACTIONS
    first = (DEVELOPMENT_SEED if args.development else TEST_SEED) if args.seed is None else args.seed
    jobs: list[Job] = []
    families = list(dict.fromkeys(args.families))
    seeds = [first + 10 * i for i in range(worlds)]
    for family in families:
        lengths = lengths_of(family, seeds, longest=120 if args.quick else None)
        chosen = set(np.linspace(0, worlds - 1, compared).round().astype(int).tolist())
        of_family = [
            Job(family, seed, length, fractions if i in chosen else ())
            for i, (seed, length) in enumerate(zip(seeds, lengths, strict=True))
        ]
        # The longest world must not be the last to start.
        jobs += sorted(of_family, key=lambda job: job.length, reverse=True)
    finished = Finished(args.resume)
    todo = [job for job in jobs if str(job) not in finished]
    with ProcessPoolExecutor(args.workers) as pool:
        for job, result in zip(todo, track(pool.map(measure, todo), "worlds", len(todo)), strict=True):
            finished.add(str(job), result)
    figures: dict[str, float] = {"worlds": worlds, "worlds_compared": compared}
    title = (
        f"{worlds} worlds per family, {compared} of them compared with the paper's plan; ± standard error over worlds"
    )
    table = Table("figure", *families, "worst", title=title)
    means: dict[str, dict[str, float]] = {}
    heads: dict[str, dict[str, tuple[float, float]]] = {}
    for family in families:
        rows = [(job, finished[str(job)]) for job in jobs if job.family == family]
        means[family], _ = pooled([row for _, row in rows])
        heads[family] = with_errors(of_default, [row for _, row in rows])
        heads[family] |= with_errors(of_comparison, [row for job, row in rows if job.fractions])
        figures |= {f"{key.replace('/', '_')}_{family}": value for key, value in means[family].items()}
        for key, (value, error) in heads[family].items():
            figures |= {f"{key}_{family}": value, f"{key}_{family}_se": error}
    for key in means[families[0]]:
        table.add_row(key, *[f"{means[family][key]:.4g}" for family in families])
    table.add_section()
    for key in heads[families[0]]:
        by_family = [heads[family][key] for family in families]
        worst = ""
        if key in HEADLINE:
            known = [pair for pair in by_family if not np.isnan(pair[0])]
            nothing = (float("nan"), float("nan"))
            figures[key], figures[f"{key}_se"] = (max if HEADLINE[key] else min)(known, default=nothing)
            worst = f"{figures[key]:.3f}"
        cells = [f"[bold]{value:.3f}[/] ± {error:.3f}" for value, error in by_family]
        table.add_row(f"[bold]{key}", *cells, f"[bold]{worst}")
    if not args.nodes_only:
        sizes = QUICK_AGGREGATES if args.quick else AGGREGATES
        of_aggregates = finished.get(
            f"aggregates {first} {sizes}" + (f" {families}" if families != list(FAMILIES) else ""),
            lambda: aggregates.headline(*sizes, first, args.workers, families),
        )
        table.add_section()
        for key, value in of_aggregates.items():
            figures[key] = value
            table.add_row(f"[bold]{key}", *[""] * len(families), f"[bold]{value:.4g}")
    Console(width=130).print(table)
    if args.json:
        # Infinite or undefined values become null: JSON has no infinity.
        args.json.write_text(json.dumps({key: v if np.isfinite(v) else None for key, v in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
