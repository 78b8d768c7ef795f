"""The dashboard: one page that shows a training with `AlignmentCallback`, from its curves down to single tokens.

It is generated from the files of the training only, and shows the numbers that were logged; its charts are those of
`core.metric_registry`. Written to a file, the page is self-contained and static. Served by `report.server` it is
`live`: it polls its own server for updates and can open the tokens of every evaluated step. Names, error messages and
tokens are untrusted and only inserted as text.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import METRICS
from opd_align.core.metric_schema import CHARTS, Metric
from opd_align.report.history import PREFIX, Numbers, Training, read_training
from opd_align.report.html import report_html
from opd_align.report.page import package_version, page_html, script_json, static_file
from opd_align.report.prose import without_breaks
from opd_align.report.token_view import TOKEN_VIEW_SCRIPTS, token_view
from opd_align.report.training_prose import best_variant, trend
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import OpdAlignError

MAX_TOKEN_BYTES = 2**22
"""Maximum size of the paths of one step in the page."""
MAX_BINS = 600
"""Curves of the trainer's log are reduced to this many bins of steps, each with its smallest and largest value."""
FORMATS = {
    "share": "share", "ratio": "share", "nats": "number", "seconds": "seconds",
    **dict.fromkeys(("nodes", "questions", "rollouts", "tokens", "steps", "evaluations", "calls"), "count"),
}  # fmt: skip
"""How values of a unit are written (see `curves.js`); other units as signed numbers."""

Curve = list[tuple[int, float]]


def dashboard_html(folder: Path, *, title: str, live: bool = False) -> str:
    """The page as HTML.

    Args:
        folder: Result of `training_folder`.
        title: Title of the page.
        live: Whether the page is served and polls for updates.
    """
    training = read_training(folder)
    current, view, errors = state(training), None, []
    # Show the newest run; if it cannot be read, list it under notes and show the previous one.
    for run in reversed(training.runs):
        try:
            view = tokens(folder, run)
            break
        except OpdAlignError as error:
            errors.append(str(error))
    current["notes"] += errors
    first = current["findings"][0]
    values = {
        "title": html.escape(title),
        "headline": html.escape(first["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first["points"]),
        "about": html.escape(current["about"]),
        "reader": static_file("token_view.html"),
        "page": script_json(
            {"title": title, "live": live, "version": package_version(), "charts": charts(), "columns": columns()}
        ),
        "state": script_json(current),
        "view": script_json(view),
    }
    scripts = ("dom.js", *TOKEN_VIEW_SCRIPTS, "curves.js", "dashboard.js")
    return page_html("dashboard.html", values, styles=("page.css", "dashboard.css"), scripts=scripts, live=live)


def state(training: Training) -> dict[str, Any]:
    """All data of the page except tokens; the teacher with the highest alignment comes first."""
    best = best_variant(training)
    variants = sorted(training.variants, key=lambda name: name != best)
    shown_variants: list[str | None] = [*variants] or [None]
    labels = training.labels
    return {
        "findings": [_findings(training, name) for name in shown_variants],
        "about": " · ".join(_about(training)),
        "notes": _notes(training),
        "step": training.step,
        "max_steps": training.max_steps,
        "evaluations": [
            {
                "step": evaluation.step,
                "epoch": evaluation.epoch,
                "at": evaluation.at,
                "run": evaluation.run,
                "error": evaluation.error,
                "command": _command(training.folder / evaluation.run) if evaluation.run else None,
            }
            for evaluation in training.evaluations
        ],
        "variants": [
            {
                "name": name,
                "label": labels[name],
                "curves": _curves([evaluation.variants.get(name, {}) for evaluation in training.evaluations]),
            }
            for name in variants
        ],
        "common": _curves([evaluation.common for evaluation in training.evaluations]),
        "log": _log(training),
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
                "half_width": metric.half_width,
            }
            for metric in shown
        ]
        specs.append(
            {
                "title": chart.title,
                "section": chart.section,
                "lines": lines,
                "per_teacher": shown[0].level == "teacher",
                "format": FORMATS.get(shown[0].unit, "signed"),
                "include": chart.include,
                "clip": chart.clip,
                "tall": chart.tall,
            }
        )
    return specs


def columns() -> list[dict[str, Any]]:
    """The columns of the list of evaluations that show a metric."""
    return [
        {
            "title": metric.column,
            "key": _curve_key(metric),
            "half_width": metric.half_width,
            "per_teacher": metric.level == "teacher",
            "format": FORMATS.get(metric.unit, "signed"),
        }
        for metric in METRICS
        if metric.column
    ]


def tokens(folder: Path, run: str) -> dict[str, Any]:
    """The data of the token view for one step."""
    view = token_view(_load(folder / run), MAX_TOKEN_BYTES)
    return {**view.metadata, "run": run, "packs": view.packs}


def step_report(folder: Path, run: str) -> str:
    """The full report of one step."""
    return report_html(_load(folder / run), title=run)


def _load(run: Path) -> Analysis:
    try:
        return RunDirectory.load(run)
    except OSError as error:  # a resumed training may be rewriting this step
        raise OpdAlignError(f"cannot read {str(run)!r}: {error.strerror}") from error


def _curve_key(metric: Metric) -> str:
    return metric.stem if metric.level == "teacher" else f"{metric.level}/{metric.stem}"


def _findings(training: Training, variant: str | None) -> dict[str, Any]:
    verdict = trend(training, variant)
    return {"headline": verdict.headline, "points": [without_breaks(point) for point in verdict.points]}


def _notes(training: Training) -> list[str]:
    count = training.unreadable
    notes = [f"Skipped {count} line{'s' if count != 1 else ''} that could not be parsed."] if count else []
    waiting = [f"No result at step {one.step:,}: {one.waiting}." for one in training.evaluations[-1:] if one.waiting]
    return notes + waiting


def _about(training: Training) -> list[str]:
    if not training.evaluations:
        return []
    newest, failed = training.evaluations[-1], sum(one.error is not None for one in training.evaluations)
    total = "" if training.max_steps is None else f" of {training.max_steps:,}"
    parts = [f"step {training.step:,}{total}"]
    if newest.epoch is not None:
        parts.append(f"epoch {newest.epoch:.2f} at the newest evaluation")
    if newest.trainer:
        parts.append(newest.trainer)
    count = len(training.evaluations)
    parts.append(f"{count} evaluation{'s' if count != 1 else ''}{f', {failed} failed' if failed else ''}")
    return parts


def _command(run: Path) -> str:
    return f"opd-align report {shlex.quote(str(run))} --html {run.name}.html"


def _curves(rows: Sequence[Numbers]) -> dict[str, list[float | None]]:
    """One list per metric with one entry per evaluation."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def _log(training: Training) -> dict[str, Curve]:
    """The curves of the trainer's own scalars, without the metrics of the evaluations."""
    curves: dict[str, Curve] = {}
    for step, row in training.log:
        for name, value in row.items():
            if value is not None and not name.startswith(PREFIX):
                curves.setdefault(name, []).append((step, value))
    return {name: _downsample(curve) for name, curve in curves.items()}


def _downsample(curve: Curve) -> Curve:
    if len(curve) <= 2 * MAX_BINS:
        return curve
    bins = [curve[at * len(curve) // MAX_BINS : (at + 1) * len(curve) // MAX_BINS] for at in range(MAX_BINS)]
    kept = {point for points in bins for point in (min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1]))}
    return sorted({curve[0], *kept, curve[-1]})
