"""How often the 95 % intervals of aggregates contain the truth, with few rollouts per question.

    python benchmarks/aggregates.py [--quick] [--json FILE] [--workers 2] [--families real stakes heavy]
        [--budget quick]

Questions are exact worlds of several families (`_worlds.py`), analyzed with the budget of `opd-align analyze --quick`,
or with the default one. The truth uses exact success probabilities of all tokens above τ at all nodes of the paths,
whether the analysis has a row for them or not. A node where nothing is at stake has an advantage of 0 and no alignment.
Samples of 6 and of 40 questions are drawn from each family, without replacement; an interval covers if it contains the
mean of the true values of all questions of the family. "Before" is the same interval without the correction for
attenuation (`core.attenuation`), on the same rows. The family must be several times as large as a sample: with few
worlds all samples are nearly the same.

The cross-fitted oracle is measured on worlds in which tokens come in pairs that lead to the same state. The teacher
raises one log-probability of a pair as much as it lowers the other, so its true signal is 0 at every node.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _worlds import FAMILIES, OTHER_FAMILIES, TEST_SEED, teachers_of, world_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.core import attenuation, metrics
from opd_align.core.alignment import EstimatedPath, node_table
from opd_align.core.attenuation import MOMENTS
from opd_align.core.collect import Evidence, collect
from opd_align.core.engine import align
from opd_align.core.intervals import COSINE, NORMAL, interval
from opd_align.core.node_rows import select_rows
from opd_align.core.oracle import SHARED_SD
from opd_align.core.path_estimate import exact_estimate
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Question

SETTINGS = Settings(
    budget=Budget(initial=60, targeted=400, allocation="adaptive", correct_paths=1, incorrect_paths=1),
    rules=Rules(draws=100),
)
BUDGETS = {"quick": SETTINGS, "default": replace(SETTINGS, budget=Budget())}
SIZES = (6, 40)
NULL = "null"
"""The family in which the teacher's true signal is 0."""

SMALLEST = 1e-12
"""SR range of nodes where nothing is at stake, in the truth of the advantage: rows without a range do not count."""

QUANTITIES = {
    "mean_cosine": attenuation.alignment_values,
    "weighted_cosine": attenuation.weighted_values,
    "advantage": attenuation.advantage_values,
}


@dataclass(frozen=True)
class Interval:
    """One interval of one quantity of one teacher."""

    quantity: str
    teacher: str
    mean: float
    low: float
    high: float


def questions_of(job: tuple[str, int, int, str]) -> tuple[pa.Table, pa.Table]:
    """One world: the node table of its analysis, and that of the truth."""
    family, seed, length, budget = job
    settings = BUDGETS[budget]
    if family == NULL:
        world, teachers = null_world(seed, length)
    else:
        world = world_of(family, seed, length)
        mild = world.tilted_teacher("mild", strength=1.0, noise=1.0, seed=seed + 4)
        teachers = [*teachers_of(world, seed, family), mild]
    evidence = collect(world, teachers, Question(f"world-{seed}"), world, settings=settings)
    return align(evidence, settings), true_table(world, evidence)


def true_table(world: ExactWorld, evidence: Evidence) -> pa.Table:
    """The node table with exact success probabilities, at every node with two tokens above τ."""
    paths = [
        EstimatedPath(
            evidence.question.id, index, correct, scores, exact_estimate(scores, world.exact_q_along(scores)),
            evidence.tree.counts_along(scores.completion_T), evidence.pass_rate,
        )
        for index, (scores, correct) in enumerate(zip(evidence.paths, evidence.correct, strict=True))
    ]  # fmt: skip
    return node_table(paths, SETTINGS.objectives, replace(SETTINGS.rules, draws=1)).drop_columns(list(MOMENTS))


def at_all_forks(truth: pa.Table) -> pa.Table:
    """The same rows, but those count, too, where nothing is at stake: they have no alignment, but an advantage of 0."""
    at = truth.column_names.index
    alignment = pc.fill_null(pc.if_else(pc.is_finite(truth["alignment"]), truth["alignment"], 0.0), 0.0)
    sr_range = pc.max_element_wise(truth["sr_range"], pa.scalar(SMALLEST))
    return truth.set_column(at("alignment"), "alignment", alignment).set_column(at("sr_range"), "sr_range", sr_range)


def null_world(seed: int, length: int) -> tuple[ExactWorld, list[ExactTeacher]]:
    """A world of paired tokens with equal probability and next state, and a teacher that tells them apart."""
    world = ExactWorld.random(seed, length=length, vocabulary=23, stakes=2.0)
    log_p_LSV, next_LSV = world.log_p_LSV.copy(), world.next_LSV.copy()
    shift_LSV = np.zeros_like(log_p_LSV)
    rng = np.random.default_rng(seed)
    for token in range(1, world.vocabulary - 1, 2):
        log_p_LSV[..., token : token + 2] = np.logaddexp.reduce(log_p_LSV[..., token : token + 2], axis=-1)[..., None]
        log_p_LSV[..., token : token + 2] -= np.log(2)
        next_LSV[..., token + 1] = next_LSV[..., token]
        shift_LSV[..., token] = rng.normal(0.0, 1.0, log_p_LSV.shape[:2])
        shift_LSV[..., token + 1] = -shift_LSV[..., token]
    # Not below τ, where the teacher could lift one of two tokens above it without the other.
    shift_LSV[log_p_LSV <= np.log(SETTINGS.rules.tau)] = 0.0
    world = ExactWorld(log_p_LSV, next_LSV, world.success_S, world.start)
    log_t_LSV = log_p_LSV + shift_LSV
    log_t_LSV -= np.logaddexp.reduce(log_t_LSV, axis=-1, keepdims=True)
    return world, [ExactTeacher("within pairs", log_t_LSV)]


def intervals(nodes: pa.Table, teacher: str) -> Iterator[Interval]:
    """The intervals of one teacher: means, then correct minus incorrect."""
    rows = select_rows(nodes, None, teacher)
    for quantity, values in QUANTITIES.items():
        found = interval(values(rows), bounds=COSINE)
        yield Interval(quantity, teacher, found.mean, found.low, found.high)
    for row in metrics.correct_vs_incorrect(nodes, teacher=teacher):
        yield Interval(f"Δ {row.metric}", teacher, row.delta, row.delta - row.half_width, row.delta + row.half_width)


def sampled(tables: Sequence[pa.Table], index: np.ndarray) -> pa.Table:
    """The rows of some questions."""
    return pa.concat_tables([tables[at] for at in index.tolist()]).unify_dictionaries()


def coverage(
    pool: Sequence[tuple[pa.Table, pa.Table]], replicates: int, seed: int, *, before: bool = True
) -> list[dict[str, object]]:
    """Coverage and width of every interval, with and (if `before`) without the correction."""
    rows: list[dict[str, object]] = []
    for teacher in pool[0][1]["teacher"].unique().to_pylist():
        estimated, exact = (
            [tables[side].filter(pc.equal(tables[side]["teacher"], teacher)) for tables in pool] for side in (0, 1)
        )
        everything = sampled(exact, np.arange(len(pool)))
        truth = {one.quantity: one.mean for one in intervals(everything, teacher)}
        truth |= {
            one.quantity: one.mean
            for one in intervals(at_all_forks(everything), teacher)
            if "advantage" in one.quantity
        }
        rng = np.random.default_rng(seed)
        for size in SIZES:
            found: dict[tuple[str, bool], list[Interval]] = {}
            for _ in range(replicates):
                table = sampled(estimated, rng.permutation(len(pool))[:size])
                for corrected in (True, False) if before else (True,):
                    for one in intervals(table if corrected else table.drop_columns(list(MOMENTS)), teacher):
                        found.setdefault((one.quantity, corrected), []).append(one)
            for (quantity, corrected), made in found.items():
                known = [one for one in made if np.isfinite(one.high - one.low)]
                inside = [one.low <= truth[quantity] <= one.high for one in known]
                rows.append(
                    {"questions": size, "quantity": quantity, "teacher": teacher, "corrected": corrected,
                     "true": truth[quantity], "mean": float(np.mean([one.mean for one in known])) if known else nan,
                     "coverage": float(np.mean(inside)) if known else nan,
                     "width": float(np.mean([one.high - one.low for one in known])) if known else nan}
                )  # fmt: skip
    return rows


def null_oracle(tables: Sequence[pa.Table]) -> tuple[float, float]:
    """The cross-fitted oracle's signal where there is none, and its standard error over worlds.

    Without the error that the oracle's interval includes for what both halves share.
    """
    nodes = sampled(tables, np.arange(len(tables)))
    found = metrics.selective_oracle(nodes)[1].cross_fitted_signal
    return found.mean, max((found.half_width / NORMAL) ** 2 - SHARED_SD**2, 0.0) ** 0.5


def measure(
    worlds: int, seed: int, workers: int, families: Sequence[str], budget: str = "quick"
) -> dict[str, list[tuple[pa.Table, pa.Table]]]:
    """The analyzed and the true tables of every family's questions; without those that have no row."""
    lengths = np.random.default_rng(seed).integers(40, 121, worlds)
    jobs = [(family, seed + 10 * at, int(length), budget) for family in families for at, length in enumerate(lengths)]
    with ProcessPoolExecutor(workers) as executor:
        done = list(track(executor.map(questions_of, jobs), "questions", len(jobs)))
    return {
        family: [result for job, result in zip(jobs, done, strict=True) if job[0] == family and result[0].num_rows]
        for family in families
    }


def summary(rows: Sequence[dict[str, object]]) -> dict[str, float]:
    """Coverage and width over all families and teachers, and the coverage of the worst family."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    figures: dict[str, float] = {}
    for quantity in (*QUANTITIES, *(f"Δ {name}" for name in QUANTITIES)):
        for size in SIZES:
            for corrected in (True, False):
                key = f"{quantity}/{size}_questions{'' if corrected else '/uncorrected'}"
                same = [
                    r for r in rows if (r["quantity"], r["questions"], r["corrected"]) == (quantity, size, corrected)
                ]
                if not same:
                    continue
                figures[f"coverage/{key}"] = float(np.nanmean([row["coverage"] for row in same]))
                figures[f"width/{key}"] = float(np.nanmean([row["width"] for row in same]))
                # The worst family, each the mean over its teachers.
                by_family = [[r["coverage"] for r in same if r["family"] == name] for name in families]
                figures[f"coverage_worst_family/{key}"] = float(min(map(np.nanmean, by_family)))
    means = [f"coverage_worst_family/{quantity}/{size}_questions" for quantity in QUANTITIES for size in SIZES]
    figures["aggregate_coverage_95"] = min(figures[key] for key in means)
    return figures


def headline(
    worlds: int, replicates: int, seed: int, workers: int, families: Sequence[str] = FAMILIES
) -> dict[str, float]:
    """What `estimators.py` reports of aggregates: coverage, and the cross-fitted oracle under a true null."""
    pools = measure(worlds, seed, workers, [*families, NULL])
    rows = [
        row | {"family": name} for name in families for row in coverage(pools[name], replicates, seed, before=False)
    ]
    figures = {
        key: value for key, value in summary(rows).items() if key.startswith(("coverage_worst_family", "aggregate"))
    }
    signal, error = null_oracle([nodes for nodes, _ in pools[NULL]])
    return figures | {
        "oracle_null_signal": signal, "oracle_null_standard_error": error, "aggregate_worlds": float(worlds),
        "aggregate_replicates": float(replicates),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 worlds per family and 3 samples: figures mean nothing")
    parser.add_argument(
        "--families", nargs="+", choices=FAMILIES + OTHER_FAMILIES, default=FAMILIES, help="families of worlds"
    )
    parser.add_argument("--seed", type=int, default=TEST_SEED, help="first seed of the worlds")
    parser.add_argument("--worlds", type=int, help="worlds per family")
    parser.add_argument("--replicates", type=int, help="samples of questions per family and size")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--null-only", action="store_true", help="only the cross-fitted oracle under a true null")
    parser.add_argument("--budget", choices=BUDGETS, default="quick", help="rollouts per question")
    args = parser.parse_args()
    worlds = args.worlds or (6 if args.quick else 200)
    if args.null_only:
        signal, error = null_oracle(
            [nodes for nodes, _ in measure(worlds, args.seed, args.workers, [NULL], args.budget)[NULL]]
        )
        print(f"oracle_null_signal: {signal:.4f}\noracle_null_standard_error: {error:.4f}")
        return
    replicates = args.replicates or (3 if args.quick else 100)
    families = list(dict.fromkeys(args.families))
    pools = measure(worlds, args.seed, args.workers, [*families, NULL], args.budget)
    shown = Table("family", "questions", "quantity", "teacher", "true", "mean", "coverage", "width", "before", "width")
    rows = []
    for family in families:
        of_family = coverage(pools[family], replicates, args.seed)
        rows += [row | {"family": family} for row in of_family]
        before = {(row["questions"], row["quantity"], row["teacher"]): row for row in of_family if not row["corrected"]}
        for row in of_family:
            if row["corrected"]:
                old = before[row["questions"], row["quantity"], row["teacher"]]
                cells = family, str(row["questions"]), str(row["quantity"]), str(row["teacher"])
                values = row["true"], row["mean"], row["coverage"], row["width"], old["coverage"], old["width"]
                shown.add_row(*cells, *(f"{value:.3f}" for value in values))
    signal, error = null_oracle([nodes for nodes, _ in pools[NULL]])
    figures: dict[str, object] = {"worlds": worlds, "replicates": replicates, **summary(rows)}
    figures |= {"oracle_null_signal": signal, "oracle_null_standard_error": error, "intervals": rows}
    Console(width=150).print(shown)
    for key, value in figures.items():
        if isinstance(value, float):
            print(f"{key}: {value:.4f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
