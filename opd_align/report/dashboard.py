"""The dashboard: one page that shows trainings with `AlignmentCallback`, from their curves down to single tokens.

It is generated from the files of the trainings only, and shows the numbers that were logged; its charts are those of
`core.metric_registry`. Several trainings share the charts. Written to a file, the page is self-contained and static.
Served by `report.server` it is `live`: it polls its own server for updates and can open the tokens of every evaluated
step. Names, error messages and tokens are untrusted and only inserted as text.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opd_align.core.engine import Analysis
from opd_align.report.dashboard_state import charts, columns, log_state, state
from opd_align.report.history import Training
from opd_align.report.html import report_html
from opd_align.report.page import package_version, page_html, script_json, static_file
from opd_align.report.token_view import TOKEN_VIEW_SCRIPTS, token_view
from opd_align.report.training_log import MAX_BINS
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import OpdAlignError

MAX_TOKEN_BYTES = 2**22
"""Maximum size of the paths of one step in the page."""
STATIC_BINS = 4 * MAX_BINS
"""A page without a server cannot ask for more points when a user zooms in."""
SCRIPTS = (
    "dom.js", *TOKEN_VIEW_SCRIPTS, "series.js", "curves.js", "panels.js", "overview.js", "tokens_of_run.js",
    "dashboard.js",
)  # fmt: skip


def dashboard_html(trainings: Mapping[str, Training], *, live: bool = False) -> str:
    """The page as HTML.

    Args:
        trainings: The trainings by name; the first is the one whose tokens and sentences are shown at first.
        live: Whether the page is served and polls for updates.
    """
    states = run_states(trainings)
    views: list[dict[str, Any] | None] = []
    for training, current in zip(trainings.values(), states, strict=True):
        view, errors = (None, []) if live and views else newest_tokens(training)
        views.append(view)
        current["notes"] += errors
    first, named = states[0]["findings"][0], f"{next(iter(trainings))}: " if len(trainings) > 1 else ""
    page = {"live": live, "version": package_version(), "charts": charts(), "columns": columns()}
    logs = run_logs(trainings, bins=MAX_BINS if live else STATIC_BINS)
    values = {
        "title": html.escape(" · ".join(trainings)),
        "headline": html.escape(named + first["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first["points"]),
        "about": html.escape(states[0]["about"]),
        "reader": static_file("token_view.html"),
        "page": script_json(page),
        "state": script_json(states),
        "log": script_json(logs),
        "views": script_json(views),
    }
    styles = ("page.css", "dashboard.css")
    return page_html("dashboard.html", values, styles=styles, scripts=SCRIPTS, live=live)


def run_states(trainings: Mapping[str, Training]) -> list[dict[str, Any]]:
    """`state` of every training, with its name."""
    return [{"name": name, **state(training)} for name, training in trainings.items()]


def run_logs(trainings: Mapping[str, Training], **options: Any) -> list[dict[str, Any]]:
    """`log_state` of every training."""
    return [log_state(training, **options) for training in trainings.values()]


def newest_tokens(training: Training) -> tuple[dict[str, Any] | None, list[str]]:
    """The data of the token view for the newest run that can be read, and why newer ones cannot."""
    errors: list[str] = []
    for run in reversed(training.runs):
        try:
            return tokens(training.folder, run), errors
        except OpdAlignError as error:
            errors.append(str(error))
    return None, errors


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
