"""The dashboard: one page that shows how a training with the callback goes, from its curves down to single tokens.

Made from what lies on the disk and nothing else; numbers are those that the evaluations logged. As a file the page is
complete in itself and stays as it is. Served (`report.server`) it is `live`: it asks its own server whether there is
news, and may open the tokens of every step. Names, errors and tokens come from outside and are shown as text only.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opd_align.core.engine import Analysis
from opd_align.report.history import PREFIX, Numbers, Training, read_training
from opd_align.report.html import report_html
from opd_align.report.page import package_version, page_html, script_json, static_file
from opd_align.report.prose import without_breaks
from opd_align.report.token_view import TOKEN_VIEW_SCRIPTS, token_view
from opd_align.report.training_prose import best_variant, trend
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import OpdAlignError

ROOM = 2**22
"""Bytes that the paths of one step may take."""
COLUMNS = 600
"""Places along a curve of the training log; where more rows share one, it keeps their lowest and their highest."""

Curve = list[tuple[int, float]]


def dashboard_html(folder: Path, *, title: str, live: bool = False) -> str:
    """The page as text; `folder` is what `training_folder` gives."""
    training = read_training(folder)
    told, view, spoilt = state(training), None, []
    # The newest run is shown; one that cannot be read is named, and the one before it is shown instead.
    for run in reversed(training.runs):
        try:
            view = tokens(folder, run)
            break
        except OpdAlignError as error:
            spoilt.append(str(error))
    told["notes"] += spoilt
    first = told["told"][0]
    values = {
        "title": html.escape(title),
        "headline": html.escape(first["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first["points"]),
        "about": html.escape(told["about"]),
        "reader": static_file("token_view.html"),
        "page": script_json({"title": title, "live": live, "version": package_version()}),
        "state": script_json(told),
        "view": script_json(view),
    }
    scripts = ("dom.js", *TOKEN_VIEW_SCRIPTS, "curves.js", "dashboard.js")
    return page_html("dashboard.html", values, styles=("page.css", "dashboard.css"), scripts=scripts, live=live)


def state(training: Training) -> dict[str, Any]:
    """All that the curves need; the variant with the highest alignment comes first."""
    best = best_variant(training)
    variants = sorted(training.variants, key=lambda name: name != best)
    about_whom: list[str | None] = [*variants] or [None]
    return {
        "told": [_told(training, name) for name in about_whom],
        "about": " · ".join(_about(training)),
        "notes": [f"{training.spoilt} lines of the log could not be read and are left out"] if training.spoilt else [],
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
                "curves": _curves([evaluation.variants.get(name, {}) for evaluation in training.evaluations]),
            }
            for name in variants
        ],
        "common": _curves([evaluation.common for evaluation in training.evaluations]),
        "log": _log(training),
    }


def tokens(folder: Path, run: str) -> dict[str, Any]:
    """What the token view opens of one step."""
    view = token_view(_load(folder / run), ROOM)
    return {**view.metadata, "run": run, "packs": view.packs}


def step_report(folder: Path, run: str) -> str:
    """The full report of one step."""
    return report_html(_load(folder / run), title=run)


def _load(run: Path) -> Analysis:
    try:
        return RunDirectory.load(run)
    except OSError as error:  # a resumed training writes a step anew
        raise OpdAlignError(f"cannot read {str(run)!r}: {error.strerror}") from error


def _told(training: Training, variant: str | None) -> dict[str, Any]:
    said = trend(training, variant)
    return {"headline": said.headline, "points": [without_breaks(point) for point in said.points]}


def _about(training: Training) -> list[str]:
    if not training.evaluations:
        return []
    newest, failed = training.evaluations[-1], sum(one.error is not None for one in training.evaluations)
    most = "" if training.max_steps is None else f" of {training.max_steps:,}"
    parts = [f"step {training.step:,}{most}"]
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
    """One list a metric, one entry an evaluation."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def _log(training: Training) -> dict[str, Curve]:
    """The curves of the trainer's own scalars, those of the evaluations aside."""
    curves: dict[str, Curve] = {}
    for step, row in training.log:
        for name, value in row.items():
            if value is not None and not name.startswith(PREFIX):
                curves.setdefault(name, []).append((step, value))
    return {name: _thinned(curve) for name, curve in curves.items()}


def _thinned(curve: Curve) -> Curve:
    if len(curve) <= 2 * COLUMNS:
        return curve
    places = [curve[at * len(curve) // COLUMNS : (at + 1) * len(curve) // COLUMNS] for at in range(COLUMNS)]
    kept = {point for place in places for point in (min(place, key=lambda p: p[1]), max(place, key=lambda p: p[1]))}
    return sorted({curve[0], *kept, curve[-1]})
