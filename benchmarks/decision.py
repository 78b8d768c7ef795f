"""How often the recommended teacher is the best one, on made values of questions whose truth is known.

    python benchmarks/decision.py [--quick] [--json FILE]

Questions have normal, skewed or two-valued (+1 or −1) headline values, whose means differ between teachers by a normal
amount or not at all. "Named" is a winner at 0.95 among equal teachers; "right" is the share of winners announced at 0.9
that are best, with its 95 % Wilson interval; "limits hold" are the shares of analyses whose true effects, and those
whose true differences, are all within the limits at 0.95: with differing teachers, and in brackets with equal ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from opd_align.core.decision import LEVEL, Posterior, largest_sizes, within_limit
from opd_align.types import Floats

SIZES = ((2, 4), (2, 12), (2, 40), (4, 12), (4, 40), (8, 20))
"""Teachers and questions."""
SPREAD = 0.25
NOISE = 0.4
SHARED = 0.35


def values(family: str, mean_K: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Values of `n` questions with these means; questions have a part that all teachers share."""
    size = (n, len(mean_K))
    if family == "two-valued":
        return np.where(rng.random(size) < (1 + np.clip(mean_K, -0.95, 0.95)) / 2, 1.0, -1.0)
    shared_Q1 = SHARED * rng.standard_normal((n, 1))
    noise_QK = rng.standard_normal(size) if family == "normal" else rng.exponential(size=size) - 1
    return np.asarray(mean_K + shared_Q1 + NOISE * noise_QK)


def winners(family: str, n_teachers: int, n: int, tables: int, spread: float, seed: int) -> tuple[Floats, ...]:
    """For each table, the probability of the teacher with the highest mean to be best, whether it is, and whether the
    limits of effects and of differences hold (NaN: too few questions for limits)."""
    rng = np.random.default_rng(seed)
    probability, right, held_2 = np.zeros(tables), np.zeros(tables), np.zeros((tables, 2))
    for index in range(tables):
        truth_K = 0.2 * rng.standard_normal() + spread * rng.standard_normal(n_teachers)
        value_QK = values(family, truth_K, n, rng)
        best = int(value_QK.mean(0).argmax())
        posterior = Posterior(value_QK)
        draws_DK = posterior.draws(n, n_draws=1000)
        probability[index] = within_limit((draws_DK.argmax(1) == best).mean(), n)
        right[index] = truth_K[best] == truth_K.max()
        true_K = np.clip(truth_K, -0.95, 0.95) if family == "two-valued" else truth_K
        limits = np.array(largest_sizes(posterior.draws(n, n_draws=1000, shrink=False), n, LEVEL))
        held_2[index] = np.where(np.isnan(limits), np.nan, [np.abs(true_K).max(), np.ptp(true_K)] <= limits)
    return probability, right, held_2[:, 0], held_2[:, 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the tables")
    parser.add_argument("--seed", type=int, default=9021, help="seed of the made values")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    tables = 60 if arguments.quick else 600
    shown = Table(
        "values", "teachers", "questions", "named, equal teachers", "announced at 0.9", "right", "95 %", "limits hold"
    )
    figures = []
    for family in ("normal", "skewed", "two-valued"):
        for number, (n_teachers, n) in enumerate(SIZES):
            seed = arguments.seed + number
            equal, _, *held_equal = winners(family, n_teachers, n, tables, 0.0, seed)
            named = (equal >= 0.95).mean()
            probability, right, *held = winners(family, n_teachers, n, tables, SPREAD, seed + 100)
            (effect, difference), (effect_equal, difference_equal) = (
                [float(each.mean()) for each in pair] for pair in (held, held_equal)
            )
            announced = probability >= 0.9
            count, hits = int(announced.sum()), int(right[announced].sum())
            low, high = binomtest(hits, count).proportion_ci(method="wilson") if count else (0.0, 1.0)
            figures.append(
                {"values": family, "teachers": n_teachers, "questions": n, "tables": tables, "named": float(named),
                 "announced": count, "right": hits / count if count else None, "low": float(low), "high": float(high),
                 "limits_hold": [effect, difference] if n > 4 else None,
                 "limits_hold_equal": [effect_equal, difference_equal] if n > 4 else None}
            )  # fmt: skip
            share = f"{hits / count:.1%}" if count else "–"
            holds = f"{effect:.0%}, {difference:.0%} ({effect_equal:.0%}, {difference_equal:.0%})" if n > 4 else "–"
            shown.add_row(
                family, str(n_teachers), str(n), f"{named:.1%}", f"{count / tables:.0%}", share,
                f"{low:.0%}–{high:.0%}", holds,
            )  # fmt: skip
    Console().print(shown)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
