"""Some teachers of the prediction study trained with SGD: does the scale of an update matter there?

AdamW normalises the scale of a gradient, SGD does not. Gradients are not clipped, since clipping would remove the scale
too. The predictors are those of `prediction_results.json`; nothing is measured again.

Fixed before the first training: every third teacher with KL(student ‖ teacher) in the order of the list; the learning
rate is the one with which a teacher of the development gains most.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from _prediction_analysis import PREDICTORS, SAME_LOSS, Gain, Study, gain_of, pearson, spearman
from _prediction_teachers import Entry, entries
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("prediction_results.json")
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
RATE_TEACHER = "dev-interp-0.6"
EVERY_NTH = 3
OPTIONS = {"optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0}

Train = Callable[[Entry, int, float], dict[str, Any]]
"""From a teacher, a seed and a learning rate to the result of a training with `OPTIONS`."""


def chosen() -> list[Entry]:
    """The teachers that are trained with SGD."""
    return [entry for entry in entries() if entry.loss == SAME_LOSS][::EVERY_NTH]


def run_sgd(train: Train, folder: Path, *, seeds: int, only: list[Entry] | None = None) -> None:
    """Finds the learning rate, then trains what has no file yet."""
    (entry,) = (each for each in entries(development=True) if each.name == RATE_TEACHER)
    runs = folder / "sgd"
    runs.mkdir(exist_ok=True)

    def once(entry: Entry, seed: int, rate: float) -> dict[str, Any]:
        file = runs / f"{entry.name}-{rate}-{seed}.json"
        if not file.exists():
            result = train(entry, seed, rate)
            temporary = file.with_suffix(".new")
            temporary.write_text(json.dumps(result | {"learning_rate": rate}), encoding="utf-8")
            temporary.rename(file)
            print(f"SGD {rate}: {entry.name}, seed {seed}: {result['accuracy']:.3f}", flush=True)
        return dict(json.loads(file.read_text(encoding="utf-8")))

    found = {rate: once(entry, 0, rate)["accuracy"] for rate in RATES}
    rate = max(found, key=lambda each: found[each])
    (folder / "sgd_rate.json").write_text(json.dumps({"rate": rate, "accuracy": found}), encoding="utf-8")
    for seed in range(seeds):
        for entry in only or chosen():
            once(entry, seed, rate)


def _study(listed: list[Entry], stored: dict[str, Any], gains: list[Gain], before: float) -> Study:
    values = {
        name: np.array([nan if stored[entry.name][name] is None else stored[entry.name][name] for entry in listed])
        for name in PREDICTORS
    }
    return Study(listed, values, {name: np.full(len(listed), nan) for name in PREDICTORS}, gains, before, 0.0)


def figures(folder: Path) -> dict[str, Any]:
    """Correlations of each predictor with the gain by SGD, and with the stored gain by AdamW of the same teachers."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))["teachers"]
    before = json.loads((folder / "before.json").read_text(encoding="utf-8"))
    before_Q, two_step_Q = np.array(before["correct"]) / before["samples"], np.array(before["two_step"])
    rates = json.loads((folder / "sgd_rate.json").read_text(encoding="utf-8"))
    runs = {
        entry.name: [
            json.loads(file.read_text(encoding="utf-8"))
            for file in sorted((folder / "sgd").glob(f"{entry.name}-{rates['rate']}-*.json"))
        ]
        for entry in chosen()
    }
    listed = [entry for entry in chosen() if runs[entry.name]]
    gains = {
        "sgd": [gain_of(runs[entry.name], before_Q, two_step_Q) for entry in listed],
        "adamw": [
            Gain(row["gain"], row["low"], row["high"], tuple(row["seeds"]), (nan, nan))
            for row in (stored[entry.name] for entry in listed)
        ],
    }
    correlations: dict[str, Any] = {}
    for optimizer, own in gains.items():
        study = _study(listed, stored, own, float(before_Q.mean()))
        for name in PREDICTORS:
            for label, method in (("spearman", spearman), ("pearson", pearson)):
                found = study.correlation(name, method)
                correlations[f"{label}_{name}_{optimizer}"] = [found.value, found.low, found.high]
    between = [np.array([gain.mean for gain in own]) for own in gains.values()]
    return {
        "rates": rates,
        "n_teachers": len(listed),
        "n_seeds": min((len(runs[entry.name]) for entry in listed), default=0),
        "spearman_sgd_adamw": float(spearman(*between)),
        **correlations,
        "teachers": {
            entry.name: {
                "sgd": vars(gains["sgd"][at]), "adamw": gains["adamw"][at].mean,
                **{name: stored[entry.name][name] for name in PREDICTORS},
            }
            for at, entry in enumerate(listed)
        },
    }  # fmt: skip


def show(folder: Path) -> dict[str, Any]:
    """Prints the tables, and returns the figures."""
    found = figures(folder)
    console = Console(width=150)
    table = Table("teacher", "gain, SGD [95 %]", "gain, AdamW", "SR-weighted", "whole update", "first-order")
    for name, row in sorted(found["teachers"].items(), key=lambda item: -item[1]["sgd"]["mean"]):
        gain = row["sgd"]
        table.add_row(
            name, f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]", f"{row['adamw']:+.3f}",
            *(f"{row[each]:+.3f}" for each in ("weighted_alignment", "whole_update_cosine", "first_order_gain")),
        )  # fmt: skip
    console.print(table)
    table = Table("predictor", *(f"{m}, {o}" for m in ("Spearman", "Pearson") for o in ("SGD", "AdamW")))
    for name, label in PREDICTORS.items():
        cells = [found[f"{m}_{name}_{o}"] for m in ("spearman", "pearson") for o in ("sgd", "adamw")]
        table.add_row(label, *(f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in cells))
    console.print(table)
    return found
