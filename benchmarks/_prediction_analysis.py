"""The analysis of the prediction study: correlations of predictors with realised gains, tables and picture.

Everything follows from the files of the runs and from `measured.json`. Only Spearman and Pearson correlations over
teachers are used, so no parameter is fitted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
from _prediction_teachers import Entry
from rich.console import Console
from rich.table import Table
from scipy import stats

from opd_align.types import Floats

PREDICTORS = {
    "weighted_alignment": "SR-weighted alignment (headline)",
    "whole_update_cosine": "cosine of the whole update",
    "mean_alignment": "mean alignment (the paper's)",
    "first_order_gain": "expected first-order gain",
    "advantage": "teacher advantage, mean per node",
    "teacher_accuracy": "the teacher's own accuracy",
}
"""Fixed before the first training. The first one is the headline."""

HEADLINE = next(iter(PREDICTORS))
SAME_LOSS = "reverse_kl"
REWARDS = "grpo+distillation"
GOOD = 0.15
"""Teachers with a larger gain are compared among themselves."""
DRAWS = 10_000
TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Gain:
    """Held-out accuracy after training minus before.

    Args:
        mean: Mean over seeds and questions.
        low: Lower end of the 95 % interval from a bootstrap over seeds and questions.
        high: Its upper end.
        seeds: Mean of each seed.
        kinds: Gain on questions of two steps, and on the others.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]
    kinds: tuple[float, float]


@dataclass(frozen=True)
class Correlation:
    """A correlation over teachers.

    Args:
        value: The correlation.
        low: Lower end of its 95 % bootstrap interval over teachers.
        high: Its upper end.
        n: Number of teachers with a known predictor.
    """

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Study:
    """Predictors and gains of the teachers that have both.

    Args:
        entries: The teachers.
        value_of: For each predictor, its value for each teacher; NaN is unknown.
        half_width_of: For each predictor, the half-width of its 95 % interval over questions.
        gains: For each teacher.
        before: The student's accuracy before training.
        cpu_seconds: CPU time of all trainings.
    """

    entries: list[Entry]
    value_of: dict[str, Floats]
    half_width_of: dict[str, Floats]
    gains: list[Gain]
    before: float
    cpu_seconds: float

    @staticmethod
    def load(folder: Path, listed: Sequence[Entry], *, seeds: int) -> Study:
        measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        before = json.loads((folder / "before.json").read_text(encoding="utf-8"))
        runs: dict[str, list[dict[str, Any]]] = {}
        for entry in listed:
            files = [folder / "runs" / f"{entry.name}-{seed}.json" for seed in range(seeds)]
            runs[entry.name] = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        kept = [entry for entry in listed if runs[entry.name] and entry.name in measured]
        pairs = {
            name: np.array([measured[entry.name].get(name) or (nan, nan) for entry in kept], float)
            for name in PREDICTORS
        }
        before_Q = np.array(before["correct"]) / before["samples"]
        return Study(
            kept,
            {name: pair[:, 0] for name, pair in pairs.items()},
            {name: pair[:, 1] for name, pair in pairs.items()},
            [gain_of(runs[entry.name], before_Q, np.array(before["two_step"])) for entry in kept],
            float(before_Q.mean()),
            sum(run["cpu_seconds"] for own in runs.values() for run in own),
        )

    @property
    def gain_E(self) -> Floats:
        return np.array([gain.mean for gain in self.gains])

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(entry.family for entry in self.entries))

    def correlation(self, predictor: str, method: Callable[[Floats, Floats], Floats], seed: int = 0) -> Correlation:
        value_E = self.value_of[predictor]
        known = np.isfinite(value_E)
        x_E, y_E = value_E[known], self.gain_E[known]
        at_DE = np.random.default_rng(seed).integers(0, len(x_E), (DRAWS, len(x_E)))
        found_D = method(x_E[at_DE], y_E[at_DE])
        found_D = found_D[np.isfinite(found_D)]
        low, high = np.quantile(found_D, TAILS) if len(found_D) else (nan, nan)
        return Correlation(float(method(x_E, y_E)), float(low), float(high), len(x_E))

    def where(self, kept_E: Sequence[bool]) -> Study:
        """Only some of the teachers. Used after the results were seen, to find what the figures depend on."""
        kept = np.flatnonzero(kept_E).tolist()
        columns = [{name: value[kept] for name, value in of.items()} for of in (self.value_of, self.half_width_of)]
        chosen = [self.entries[at] for at in kept], *columns, [self.gains[at] for at in kept]
        return Study(*chosen, self.before, self.cpu_seconds)

    def with_loss(self, *losses: str) -> Study:
        return self.where([entry.loss in losses for entry in self.entries])

    def without(self, family: str, predictor: str) -> float:
        """The Spearman correlation without the teachers of one family."""
        kept = np.array([entry.family != family for entry in self.entries]) & np.isfinite(self.value_of[predictor])
        return float(spearman(self.value_of[predictor][kept], self.gain_E[kept]))

    def reliability(self) -> float:
        """Mean Spearman correlation between the gains of two seeds: how well gains predict gains."""
        n_seeds = min((len(gain.seeds) for gain in self.gains), default=0)
        table = np.array([gain.seeds[:n_seeds] for gain in self.gains])
        pairs = [(i, j) for j in range(n_seeds) for i in range(j)]
        return float(np.mean([spearman(table[:, i], table[:, j]) for i, j in pairs])) if pairs else nan

    def signs(self, predictor: str) -> tuple[int, int]:
        """Of the teachers whose gain excludes zero, how many have a predictor of the same sign.

        A teacher's own accuracy is compared with the student's.
        """
        clear = [number for number, gain in enumerate(self.gains) if gain.low > 0 or gain.high < 0]
        value_E = self.value_of[predictor] - (self.before if predictor == "teacher_accuracy" else 0.0)
        return sum(np.sign(value_E[n]) == np.sign(self.gains[n].mean) for n in clear), len(clear)


def spearman(x: Floats, y: Floats) -> Floats:
    """Rank correlation along the last axis."""
    return pearson(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))


def pearson(x: Floats, y: Floats) -> Floats:
    """Correlation along the last axis; NaN where either side is constant, or with fewer than three values."""
    x, y = (side - side.mean(-1, keepdims=True) for side in (x, y))
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    known = (scale > 0) & (x.shape[-1] >= 3)
    return np.asarray(np.where(known, (x * y).sum(-1) / np.where(known, scale, 1.0), nan))


def gain_of(runs: list[dict[str, Any]], before_Q: Floats, two_step_Q: Any) -> Gain:
    """The gain of one teacher from the files of its trainings."""
    after_SQ = np.array([np.array(run["correct"]) / run["samples"] for run in runs])
    gain_SQ = after_SQ - before_Q
    rng = np.random.default_rng(0)
    n_seeds, n_questions = gain_SQ.shape
    draws = [
        gain_SQ[rng.integers(0, n_seeds, n_seeds)][:, rng.integers(0, n_questions, n_questions)].mean()
        for _ in range(1000)
    ]
    low, high = np.quantile(draws, TAILS)
    seeds = tuple(float(mean) for mean in gain_SQ.mean(1))
    kinds = tuple(float(gain_SQ[:, two_step_Q == kind].mean()) for kind in (True, False))
    return Gain(float(gain_SQ.mean()), float(low), float(high), seeds, kinds)


# -- what is shown


def figures(study: Study) -> dict[str, Any]:
    """The figures as plain numbers; NaN becomes None."""
    found: dict[str, Any] = {"n_teachers": len(study.entries), "accuracy_before": study.before}
    found["n_seeds"] = min((len(gain.seeds) for gain in study.gains), default=0)
    found["spearman_between_seeds"] = study.reliability()
    found["cpu_seconds"] = study.cpu_seconds
    for name in PREDICTORS:
        for label, method in (("spearman", spearman), ("pearson", pearson)):
            correlation = study.correlation(name, method)
            found |= {f"{label}_{name}": correlation.value, f"{label}_{name}_low": correlation.low}
            found[f"{label}_{name}_high"] = correlation.high
            alone = study.with_loss(SAME_LOSS).correlation(name, method)
            ends = {"": alone.value, "_low": alone.low, "_high": alone.high}
            found |= {f"{label}_{name}_{SAME_LOSS}{end}": value for end, value in ends.items()}
        found[f"n_{name}"] = correlation.n
        found[f"n_{name}_{SAME_LOSS}"] = alone.n
        found[f"without_family_{name}"] = {family: study.without(family, name) for family in study.families}
        right, clear = study.signs(name)
        found |= {f"sign_right_{name}": right, "clear_gains": clear}
    without_rewards = study.where([entry.loss != REWARDS for entry in study.entries]).correlation(HEADLINE, spearman)
    found |= {
        "spearman_headline_without_rewards": without_rewards.value,
        "spearman_headline_without_rewards_low": without_rewards.low,
        "spearman_headline_without_rewards_high": without_rewards.high,
    }
    for label, kept_E in (("good", study.gain_E > GOOD), ("other", study.gain_E <= GOOD)):
        found |= {f"n_{label}": int(kept_E.sum()), f"spearman_between_seeds_{label}": study.where(kept_E).reliability()}
    for end in ("", "_low", "_high"):
        found[f"spearman_headline{end}"] = found[f"spearman_{HEADLINE}{end}"]
        found[f"spearman_accuracy{end}"] = found[f"spearman_teacher_accuracy{end}"]
    found["teachers"] = {
        entry.name: {"family": entry.family, "loss": entry.loss, "gain": gain.mean, "low": gain.low, "high": gain.high,
                     "gain_two_step": gain.kinds[0], "gain_three_step": gain.kinds[1], "seeds": list(gain.seeds)}
        | {name: float(study.value_of[name][at]) for name in PREDICTORS}
        for at, (entry, gain) in enumerate(zip(study.entries, study.gains, strict=True))
    }  # fmt: skip
    return plain(found)


def plain(value: Any) -> Any:
    """Ready for JSON: NaN becomes None."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 4) if isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def correlation_rows(study: Study) -> list[list[str]]:
    """One row per predictor: correlations, the range with a family left out, signs."""
    rows = []
    for name, label in PREDICTORS.items():
        cells = [label]
        for method in (spearman, pearson):
            c = study.correlation(name, method)
            cells.append(f"{c.value:.2f} [{c.low:.2f}, {c.high:.2f}]")
        alone = study.with_loss(SAME_LOSS).correlation(name, spearman)
        cells.append(f"{alone.value:.2f} [{alone.low:.2f}, {alone.high:.2f}]")
        left = [study.without(family, name) for family in study.families]
        right, clear = study.signs(name)
        rows.append([*cells, f"{min(left):.2f} to {max(left):.2f}", f"{right} of {clear}"])
    return rows


def teacher_rows(study: Study) -> list[list[str]]:
    """One row per teacher, by gain."""
    rows = []
    for at in np.argsort(-study.gain_E, kind="stable"):
        entry, gain = study.entries[at], study.gains[at]
        values = [f"{study.value_of[name][at]:+.3f}" for name in list(PREDICTORS)[:-1]]
        values.append(f"{study.value_of['teacher_accuracy'][at]:.2f}")
        rows.append([entry.name, entry.loss, f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]", *values])
    return rows


CORRELATION_HEAD = [
    "predictor, before any training",
    "Spearman [95 %]",
    "Pearson [95 %]",
    "Spearman, KL(student ‖ teacher) only",
    "a family left out",
    "sign",
]
TEACHER_HEAD = ["teacher", "loss", "gain [95 %]", "SR-weighted", "whole update", "mean", "first-order", "advantage",
                "own accuracy"]  # fmt: skip


def show(study: Study) -> None:
    for head, rows in ((TEACHER_HEAD, teacher_rows(study)), (CORRELATION_HEAD, correlation_rows(study))):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        Console(width=170).print(table)


def markdown(study: Study) -> str:
    parts = []
    for head, rows in ((CORRELATION_HEAD, correlation_rows(study)), (TEACHER_HEAD, teacher_rows(study))):
        lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def write_outputs(
    study: Study, rare: dict[str, float], *, json_file: Path | None, picture: Path | None, markdown_file: Path | None
) -> None:
    found = figures(study) | {"rare_tokens": plain(rare)}
    for file, content in ((json_file, json.dumps(found, indent=2) + "\n"), (markdown_file, markdown(study))):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
    if picture is not None:
        from _prediction_picture import scatter

        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(scatter(study), encoding="utf-8")
