"""What the dashboard shows of a training, as JSON: its evaluations, its log, and the charts that draw them.

Only what a chart or a column shows is included, and long trainings are reduced: of the evaluations, those with the
lowest and the highest headline alignment of each bin stay, with all their numbers; the log is reduced by
`report.training_log`. So the size does not grow with the length of the training.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

from opd_align.core.metric_registry import METRICS
from opd_align.core.metric_schema import CHARTS, Metric
from opd_align.report.history import PREFIX, Evaluation, Numbers, Training
from opd_align.report.prose import without_breaks
from opd_align.report.training_log import MAX_BINS
from opd_align.report.training_prose import best_variant, trend

MAX_EVALUATIONS = 2000
"""More evaluations than this are reduced to about as many."""
SELECTED_BY = "alignment/weighted"
"""Stem of the metric whose extremes are kept then."""
TILE_KEYS = ("alarm/level",)
"""What the first screen shows in addition to charts."""
FORMATS = {
    "share": "share", "ratio": "share", "nats": "number", "seconds": "seconds",
    **dict.fromkeys(("nodes", "questions", "rollouts", "tokens", "steps", "evaluations", "calls"), "count"),
}  # fmt: skip
"""How values of a unit are written (see `curves.js`); other units as signed numbers."""


def state(training: Training) -> dict[str, Any]:
    """All data of a training except its log and its tokens; the teacher with the highest alignment comes first."""
    best = best_variant(training)
    variants = sorted(training.variants, key=lambda name: name != best)
    shown_variants: list[str | None] = [*variants] or [None]
    labels = training.labels
    evaluations = shown_evaluations(training.evaluations, best)
    return {
        "findings": [_findings(training, name) for name in shown_variants],
        "about": " · ".join(_about(training)),
        "notes": _notes(training, len(evaluations)),
        "max_steps": training.max_steps,
        "next_step": _next_step(training),
        "command": _command(training.folder),
        "evaluations": [
            {"step": one.step, "at": one.at, "run": one.run, "error": one.error} for one in evaluations
        ],
        "variants": [
            {
                "name": name,
                "label": labels[name],
                "curves": _curves([one.variants.get(name, {}) for one in evaluations]),
            }
            for name in variants
        ],
        "common": _curves([one.common for one in evaluations]),
    }  # fmt: skip


def log_state(training: Training, *, low: float = -inf, high: float = inf, bins: int = MAX_BINS) -> dict[str, Any]:
    """The trainer's own scalars, without the metrics of the evaluations, and how far the training is.

    Args:
        training: The training.
        low: First step of the curves.
        high: Last step of the curves.
        bins: Maximum number of points per curve.
    """
    log = training.log
    return {
        "step": training.step,
        "at": log.last_time,
        "seconds_per_step": log.seconds_per_step,
        "finished": training.finished or (training.max_steps is not None and training.step >= training.max_steps),
        "curves": {
            name: {**log.curve(name, low=low, high=high, bins=bins)._asdict(), "newest": log.newest(name)}
            for name in log.names
            if not name.startswith(PREFIX)
        },
    }


def charts() -> list[dict[str, Any]]:
    """The charts of the metric registry, as the page draws them."""
    specs = []
    for chart in CHARTS:
        shown = [metric for metric in METRICS if chart.title in metric.charts]
        lines = [
            {
                "key": _curve_key(metric),
                "label": metric.charts[chart.title],
                "half_width": _half_width_key(metric),
                "ends": metric.ends,
            }
            for metric in shown
        ]
        specs.append(
            {
                "title": chart.title,
                "section": chart.section,
                "lines": lines,
                "source": "log" if shown[0].level == "gate" else "teacher" if shown[0].level == "teacher" else "common",
                "format": _format(shown[0]),
                "include": chart.include,
                "range": [end if isfinite(end) else None for end in shown[0].range],
                "neutral": chart.neutral,
                "requires": next((metric.stem for metric in shown if metric.needs_gate), None),
            }
        )
    return specs


def columns() -> list[dict[str, Any]]:
    """The columns of the list of evaluations that show a metric."""
    return [
        {
            "title": metric.column,
            "key": _curve_key(metric),
            "half_width": _half_width_key(metric),
            "source": "teacher" if metric.level == "teacher" else "common",
            "format": _format(metric),
        }
        for metric in METRICS
        if metric.column
    ]


def shown_evaluations(evaluations: Sequence[Evaluation], variant: str | None) -> list[Evaluation]:
    """All evaluations, or of each bin those with the lowest and the highest headline alignment, and failed ones.

    Args:
        evaluations: Sorted by step.
        variant: The `<teacher>/<objective>` whose alignment counts.
    """
    total, bins = len(evaluations), MAX_EVALUATIONS // 2
    if total <= MAX_EVALUATIONS:
        return list(evaluations)

    def alignment(at: int) -> float:
        value = evaluations[at].variants.get(variant or "", {}).get(SELECTED_BY)
        return 0.0 if value is None else value

    kept = {0, total - 1}
    for number in range(bins):
        places = range(number * total // bins, (number + 1) * total // bins)
        kept |= {min(places, key=alignment), max(places, key=alignment)}
        # One failure of a bin is enough to see that there are failures.
        kept |= {*[at for at in places if evaluations[at].error is not None][:1]}
    return [evaluations[at] for at in sorted(kept)]


def _curve_key(metric: Metric) -> str:
    return metric.stem if metric.level == "teacher" else f"{metric.level}/{metric.stem}"


def _format(metric: Metric) -> str:
    if metric.unit == "probability" and metric.range[0] >= 0:  # not a difference of probabilities
        return "chance"
    return FORMATS.get(metric.unit, "signed")


def _half_width_key(metric: Metric) -> str | None:
    if metric.half_width is None or metric.level == "teacher":
        return metric.half_width
    return f"{metric.level}/{metric.half_width}"


def _shown_keys() -> set[str]:
    lines = [line for chart in charts() for line in chart["lines"]] + columns()
    found = {key for line in lines for key in (line["key"], line["half_width"], *(line.get("ends") or ())) if key}
    return found | {*TILE_KEYS}


def _curves(rows: Sequence[Numbers]) -> dict[str, list[float | None]]:
    """One list per metric that is shown, with one entry per evaluation."""
    known = dict.fromkeys(name for row in rows for name in row)
    shown = _shown_keys()
    return {name: [_short(row.get(name)) for row in rows] for name in known if name in shown}


def _short(value: float | None) -> float | None:
    """Six digits: more cannot be seen, and the page is half as large."""
    return None if value is None else float(f"{value:.6g}")


def _findings(training: Training, variant: str | None) -> dict[str, Any]:
    verdict = trend(training, variant)
    return {"headline": verdict.headline, "points": [without_breaks(point) for point in verdict.points]}


def _notes(training: Training, shown: int) -> list[str]:
    notes = [f"Skipped {_counted(training.unreadable, 'line')} that could not be parsed."] * (training.unreadable > 0)
    notes += [f"No result at step {one.step:,}: {one.waiting}." for one in training.evaluations[-1:] if one.waiting]
    total = len(training.evaluations)
    if shown < total:
        notes.append(
            f"Showing {shown:,} of {total:,} evaluations: of every few, the ones with the lowest and highest alignment."
        )
    return notes


def _about(training: Training) -> Iterable[str]:
    if not training.evaluations:
        return
    newest, failed = training.evaluations[-1], sum(one.error is not None for one in training.evaluations)
    if newest.epoch is not None:
        yield f"epoch {newest.epoch:.2f} at the newest evaluation"
    if newest.trainer:
        yield newest.trainer
    yield f"{_counted(len(training.evaluations), 'evaluation')}{f', {failed} failed' if failed else ''}"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' if count != 1 else ''}"


def _next_step(training: Training) -> int | None:
    """Where the next evaluation is planned; if that is not known, as far from the last one as that was from its own."""
    if not training.evaluations:
        return None
    *earlier, newest = training.evaluations
    if newest.next_step is not None:
        return newest.next_step
    interval = newest.common.get("evaluation/interval") or (newest.step - earlier[-1].step if earlier else None)
    return None if interval is None else newest.step + round(interval)


def _command(folder: Path) -> list[str]:
    """The command for the report of a run directory, in two parts: the name of the run is between them and after."""
    placeholder = "step-0"
    before, _, after = shlex.quote(str(folder / placeholder)).rpartition(placeholder)
    return [f"opd-align report {before}", f"{after} --html "]
