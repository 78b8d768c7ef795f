"""The report: one HTML file that shows an analysis to people, from the verdict down to single tokens.

The page is complete in itself: it asks no network for anything, and its content-security policy would not let it.
Everything that came from outside (names, questions, tokens) enters as escaped text or escaped JSON and is shown as text
only. Paths lie in the file as packs and are opened when somebody looks at them. Numbers are those of `metrics`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.report.page import in_script, made_by, page_html, part
from opd_align.report.prose import side, unbroken, verdict
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Table, shown
from opd_align.report.tables import objectives_of, tables
from opd_align.report.token_view import TokenView, finite, token_view
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.types import OpdAlignError

THRESHOLDS = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
FILTERS = ("kl", "js")
ROOM = 57 * 2**19
"""Bytes that paths may take; with all else, a report stays below 30 MiB."""


def write_report(analysis: Analysis, path: PathLike, *, title: str = "Alignment report") -> AnyPath:
    """Writes the report to a file and returns its path; paths that would make it too large for a browser stay out."""
    file = as_path(path)
    try:
        file.write_text(report_html(analysis, title=title), encoding="utf-8")
    except OSError as error:
        raise OpdAlignError(
            f"cannot write the report to {str(file)!r}: {error_reason(error)}; choose another place"
        ) from error
    return file


def report_html(analysis: Analysis, *, title: str = "Alignment report") -> str:
    """The page as text; the same analysis gives the same page."""
    slices, view = Slices(analysis.nodes), token_view(analysis, ROOM)
    overview = _overview(analysis, slices, view, title)
    first: dict[str, Any] = overview["objectives"][0]["verdict"]
    values = {
        "title": html.escape(title),
        "headline": html.escape(first["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first["points"]),
        "about": html.escape(overview["about"]),
        "reader": part("reader.html"),
        "tables": "\n".join(_drawn(table) for table in tables(analysis, every=True, slices=slices)),
        "overview": in_script(overview),
        "blocks": "\n".join(
            f'<script type="text/plain" id="pack-{at}">{data}</script>' for at, data in enumerate(view.packs)
        ),
    }
    scripts = ("drawing.js", "charts.js", "reader.js", "desk.js", "page.js")
    return page_html("page.html", values, styles=("page.css",), scripts=scripts)


def _overview(analysis: Analysis, slices: Slices, view: TokenView, title: str) -> dict[str, Any]:
    """All that the page knows before a path is opened."""
    guided, rewarded = objectives_of(analysis)
    settings, questions = analysis.settings, view.told["questions"]
    about = [
        f"{len(questions):,} question{'s' if len(questions) != 1 else ''}", f"{len(view.packs):,} paths",
        f"{sum(row['rollouts'] for row in questions):,} rollouts", f"estimator {settings.estimator}",
        f"allocation {settings.budget.allocation}",
    ]  # fmt: skip
    if view.left_out:
        about.append(
            f"{view.left_out:,} more paths count in all figures, but would have made this file too large to read"
        )
    return {
        "title": title,
        "about": " · ".join(about),
        "version": made_by(),
        "objectives": [_objective(slices, name, name in guided) for name in (*guided, *rewarded)],
        **view.told,
    }


def _objective(slices: Slices, objective: str, guided: bool) -> dict[str, Any]:
    ranks, told = slices.ranks(objective), verdict(slices, objective)
    return {
        "name": objective,
        "guided": guided,
        "verdict": {"headline": told.headline, "points": [unbroken(point) for point in told.points]},
        "teachers": [_teacher(slices, rank) for rank in ranks],
        "correlations": [
            {
                "feature": row.feature.replace("_", " "), "teacher": row.teacher, "rho": _number(row.rho),
                "paths": row.n_paths,
            }
            for row in (slices.correlations(objective) if guided and ranks else [])
        ],
    }  # fmt: skip


def _teacher(slices: Slices, rank: metrics.TeacherRank) -> dict[str, Any]:
    mine = slices.rows(rank.objective, rank.teacher)
    contrast = slices.contrasts(rank.objective, rank.teacher)[0]
    histogram = metrics.alignment_histogram(mine, objective=rank.objective, teacher=rank.teacher)
    oracle = metrics.selective_oracle(mine, THRESHOLDS, objective=rank.objective, teacher=rank.teacher)
    known = [name for name in FILTERS if pc.any(pc.is_finite(mine[name])).as_py()]
    return {
        "name": rank.teacher,
        "alignment": _number(rank.alignment),
        "side": side(rank.alignment),
        "helpful": finite(rank.helpful),
        "harmful": finite(rank.harmful),
        "undecided": finite(rank.undecided),
        "two_children": finite(rank.two_children),
        "ceiling": finite(rank.noise_ceiling.ceiling),
        "nodes": rank.n_nodes,
        "contrast": {
            "correct": finite(contrast.correct),
            "incorrect": finite(contrast.incorrect),
            "delta": _number(metrics.Estimate(contrast.delta, contrast.half_width, contrast.n_pairs)),
            "p": shown(Cell(contrast.p_value), "p"),
        },
        "histogram": {
            "counts": histogram.counts,
            "plus_one": finite(histogram.share_at_plus_one),
            "minus_one": finite(histogram.share_at_minus_one),
        },
        "oracle": [
            {
                "threshold": row.threshold, "kept": finite(row.share_kept), "signal": _number(row.signal),
                "fitted": _number(row.cross_fitted_signal),
            }
            for row in oracle
        ],
        "filters": {
            name: [
                {"kept": finite(row.share_kept), "signal": _number(row.signal), "threshold": finite(row.threshold)}
                for row in metrics.divergence_filter(
                    mine, name, QUANTILES, objective=rank.objective, teacher=rank.teacher
                )
            ]
            for name in known
        },
    }  # fmt: skip


def _number(estimate: metrics.Estimate) -> dict[str, Any]:
    text = shown(Cell(estimate.mean, estimate.half_width), "signed")
    return {"mean": finite(estimate.mean), "half": finite(estimate.half_width), "text": text}


def _drawn(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if column.kind == "text" else ' class="n"' for column in table.columns]
        return "<tr>" + "".join(
            f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    head = line([column.name for column in table.columns], "th")
    body = "".join(line(cells, "td") for cells in table.shown())
    caption = f"<p class=quiet>{html.escape(table.caption)}</p>" if table.caption else ""
    title = html.escape(table.title)
    return f"<h3>{title}</h3><div class=wide><table><thead>{head}</thead><tbody>{body}</tbody></table></div>{caption}"
