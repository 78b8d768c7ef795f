"""The HTML report: one self-contained file that shows an analysis, from the verdict down to single tokens.

The page loads nothing from the network, and its Content-Security-Policy forbids it. Text from outside (names,
questions, tokens) is inserted as escaped text or escaped JSON and displayed as text only. Paths are stored as packs
and decoded when they are opened. All numbers are those of `core.metrics`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.core.highlights import Highlight, Highlights, highlights
from opd_align.core.selective import CurvePoint, selective_curves
from opd_align.report.page import package_version, page_html, script_json, static_file
from opd_align.report.prose import (
    DELTA_CAUTION,
    format_estimate,
    half_width_shown,
    interval_sign,
    verdict,
    without_breaks,
)
from opd_align.report.provenance import Provenance, shown_facts
from opd_align.report.recommendation import decision_tables, recommendation
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Column, Table, format_cell
from opd_align.report.tables import FILTER_DIVERGENCES, objective_names, report_tables
from opd_align.report.token_view import TOKEN_VIEW_SCRIPTS, TokenView, finite, token_view
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason, write_output
from opd_align.types import OpdAlignError, counted

PROBABILITY = re.compile(r"^(?:[+−]\d\.\d{3} \()?([<>]?)([01]\.\d\d)\)?$")
"""A cell of a decision table that is a probability, or ends with one in brackets."""
UNSHADED = ("harms", "best")
"""Columns of the decision tables without colours: a low probability is not bad there."""
MAX_PATH_BYTES = 57 * 2**19
"""Limit for the packed paths; with everything else, a report stays below 30 MiB."""


def write_report(
    analysis: Analysis, path: PathLike, *, title: str = "Alignment report", provenance: Provenance | None = None
) -> AnyPath:
    """Writes the report of an analysis to a file, which is complete as soon as it exists.

    Args:
        analysis: The analysis to show.
        path: The HTML file to write. Paths of questions that would make it larger than 30 MiB are left out.
        title: Title of the page.
        provenance: Where the analysis comes from. `None`: unknown, except for its settings.

    Returns:
        The file written.
    """
    file = as_path(path)
    try:
        write_output(file, report_html(analysis, title=title, provenance=provenance))
    except OSError as error:
        raise OpdAlignError(
            f"cannot write the report to {str(file)!r}: {error_reason(error)}; choose another path"
        ) from error
    return file


def report_html(analysis: Analysis, *, title: str = "Alignment report", provenance: Provenance | None = None) -> str:
    """The report as text; the same analysis gives the same page.

    Args:
        analysis: The analysis to show.
        title: Title of the page.
        provenance: Where the analysis comes from. `None`: unknown, except for its settings.
    """
    provenance = provenance or Provenance()
    slices = Slices(analysis.nodes, n_analyzed=analysis.questions.num_rows)
    view = token_view(analysis, MAX_PATH_BYTES)
    overview = _overview(analysis, slices, view, title) | {"prompts": provenance.prompts}
    first_verdict: dict[str, Any] = overview["objectives"][0]["verdict"]
    tables, decided = report_tables(analysis, every_objective=True, slices=slices), decision_tables(slices.decision)
    values = {
        "title": html.escape(title),
        "recommendation": html.escape(recommendation(slices.decision)),
        "decision": "\n".join(f"<div>{_table_html(table, shaded=True)}</div>" for table in decided),
        "headline": html.escape(first_verdict["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first_verdict["points"]),
        "about": html.escape(overview["about"]),
        "provenance": _facts_html(shown_facts(provenance, analysis.settings)),
        "teacher_notes": _facts_html({note.name: note.meaning for note in provenance.teachers}),
        "token_view": static_file("token_view.html"),
        "delta_caution": f"{DELTA_CAUTION}.",
        "tables": "\n".join(_table_html(table) for table in tables if table not in decided),
        "overview": script_json(overview),
        "packs": "\n".join(
            f'<script type="text/plain" id="pack-{index}">{data}</script>' for index, data in enumerate(view.packs)
        ),
    }
    scripts = ("dom.js", "charts.js", "highlights.js", *TOKEN_VIEW_SCRIPTS, "report.js")
    return page_html("report.html", values, styles=("page.css",), scripts=scripts)


def _overview(analysis: Analysis, slices: Slices, view: TokenView, title: str) -> dict[str, Any]:
    """All data that the page uses before a path is opened."""
    from_teacher, from_reward = objective_names(analysis)
    settings, questions = analysis.settings, view.metadata["questions"]
    about = [
        counted(len(questions), "question"), counted(len(view.packs), "path"),
        counted(sum(row["rollouts"] for row in questions), "rollout"), f"estimator: {settings.estimator}",
        f"allocation: {settings.budget.allocation}",
    ]  # fmt: skip
    if view.left_out:
        verb = "is" if view.left_out == 1 else "are"
        about.append(
            f"{counted(view.left_out, 'more path')} {verb} included in all statistics, but not in the token view (file "
            "size limit)"
        )
    return {
        "title": title,
        "about": " · ".join(about),
        "version": package_version(),
        "objectives": [_objective(slices, name, name in from_teacher, view) for name in (*from_teacher, *from_reward)],
        **view.metadata,
    }


def _objective(slices: Slices, objective: str, follows_teacher: bool, view: TokenView) -> dict[str, Any]:
    ranks, result = slices.ranks(objective), verdict(slices, objective)
    return {
        "name": objective,
        "verdict": {"headline": result.headline, "points": [without_breaks(point) for point in result.points]},
        "teachers": [_teacher(slices, rank, view) for rank in ranks],
        "correlations": [
            {
                "feature": row.feature.replace("_", " "), "teacher": row.teacher, "rho": _estimate(row.rho),
                "paths": row.n_paths,
            }
            for row in (slices.correlations(objective) if follows_teacher and ranks else [])
        ],
    }  # fmt: skip


def _teacher(slices: Slices, rank: metrics.TeacherRank, view: TokenView) -> dict[str, Any]:
    rows = slices.rows(rank.objective, rank.teacher)
    contrast = slices.contrasts(rank.objective, rank.teacher)[0]
    histogram = metrics.alignment_histogram(rows, objective=rank.objective, teacher=rank.teacher)
    found = highlights(rows, view.texts, objective=rank.objective, teacher=rank.teacher)
    return {
        "name": rank.teacher,
        "alignment": _estimate(rank.alignment),
        "sign": interval_sign(rank.alignment),
        "helpful": finite(rank.helpful),
        "harmful": finite(rank.harmful),
        "undecided": finite(rank.undecided),
        "two_children": finite(rank.two_children),
        "nodes": rank.n_nodes,
        "contrast": {
            "correct": finite(contrast.correct),
            "incorrect": finite(contrast.incorrect),
            "delta": _estimate(metrics.Estimate(contrast.delta, contrast.half_width, contrast.n_pairs)),
            "p": format_cell(Cell(contrast.p_value), "p"),
        },
        "histogram": {
            "counts": histogram.counts,
            "plus_one": finite(histogram.share_at_plus_one),
            "minus_one": finite(histogram.share_at_minus_one),
        },
        "curves": [
            {"name": name, "points": [_point(point) for point in points if isfinite(point.signal)]}
            for name, points in selective_curves(
                rows, FILTER_DIVERGENCES, objective=rank.objective, teacher=rank.teacher
            ).items()
        ],
        "highlights": _highlights(found, view),
    }  # fmt: skip


def _point(point: CurvePoint) -> dict[str, Any]:
    return {"kept": point.share, "signal": point.signal, "low": finite(point.low), "high": finite(point.high)}


def _highlights(found: Highlights, view: TokenView) -> dict[str, Any]:
    """Where a teacher helps and hurts; decisions on paths that the page has not are left out."""
    place_of = {
        (question["id"], path["path"]): (number, index)
        for number, question in enumerate(view.metadata["questions"])
        for index, path in enumerate(question["paths"])
    }

    def entry(one: Highlight) -> dict[str, Any]:
        question, path = place_of[one.question, one.path]
        return {
            "question": question, "path": path, "depth": one.depth, "kind": one.kind,
            "token": view.texts.get(one.token, f"⟨{one.token}⟩"),
            "signal": one.signal, "verdict": one.verdict, "correct": one.correct,
        }  # fmt: skip

    def entries(listed: Sequence[Highlight]) -> list[dict[str, Any]]:
        return [entry(one) for one in listed if (one.question, one.path) in place_of]

    parts = {"kinds": found.kinds, "positions": found.positions}
    return {"worst": entries(found.worst), "best": entries(found.best)} | {
        name: [asdict(part) for part in listed] for name, listed in parts.items()
    }


def _estimate(estimate: metrics.Estimate) -> dict[str, Any]:
    mean, half_width = finite(estimate.mean), half_width_shown(estimate)
    return {"mean": mean, "half_width": half_width, "text": format_estimate(estimate)}


def _facts_html(facts: Mapping[str, str]) -> str:
    return "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd>" for label, value in facts.items())


def _table_html(table: Table, *, shaded: bool = False) -> str:
    """A table as HTML; `shaded` colours the cells that are probabilities."""

    def row_html(texts: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(
            f"<{tag}{_cell_class(column, text, shaded)}>{html.escape(text)}</{tag}>"
            for column, text in zip(table.columns, texts, strict=True)
        )

    head = row_html([column.name for column in table.columns], "th")
    body = "".join(row_html(texts, "td") for texts in table.formatted_rows())
    caption = f"<p class=quiet>{html.escape(table.caption)}</p>" if table.caption else ""
    title = html.escape(table.title)
    return f"<h3>{title}</h3><div class=wide><table><thead>{head}</thead><tbody>{body}</tbody></table></div>{caption}"


def _cell_class(column: Column, text: str, shaded: bool) -> str:
    """Numbers are right-aligned; a probability far from one half has the colour of its side."""
    is_probability = shaded and column.kind == "text" and column.name not in UNSHADED
    found = PROBABILITY.search(text) if is_probability else None
    if found is None:
        return "" if column.kind == "text" else ' class="n"'
    value = float(found[2])
    step = 0 if 0.2 < value < 0.8 else 1 if 0.1 < value < 0.9 else 2 if 0.05 < value < 0.95 else 3
    return f' class="n {"p" if value > 0.5 else "n"}{step}"' if step else ' class="n"'
