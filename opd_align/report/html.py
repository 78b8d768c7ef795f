"""The report: one HTML file that shows an analysis to people, from the verdict down to single tokens.

The page is complete in itself: it asks no network for anything, and its content-security policy would not let it.
Everything that came from outside (names, questions, tokens) enters as escaped text or escaped JSON and is shown as text
only. Paths lie in the file as packs and are opened when somebody looks at them. Numbers are those of `metrics`.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from math import isfinite
from typing import Any

import pyarrow.compute as pc

from opd_align import metrics
from opd_align.alignment import pairs_of, teachers_of
from opd_align.engine import Analysis
from opd_align.place import Address, Place, place, why
from opd_align.report.model import Cell, Table, shown
from opd_align.report.pack import VERDICTS, PackedPath, packed_paths
from opd_align.report.slices import Slices
from opd_align.report.tables import objectives_of, tables
from opd_align.report.verdicts import side, verdict
from opd_align.types import OpdAlignError

THRESHOLDS = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
FILTERS = ("kl", "js")
ROOM = 57 * 2**19
"""Bytes that paths may take; with all else, a report stays below 30 MiB."""


def write_report(analysis: Analysis, path: Address, *, title: str = "Alignment report") -> Place:
    """Writes the report to a file and returns its path; paths that would make it too large for a browser stay out."""
    file = place(path)
    try:
        file.write_text(report_html(analysis, title=title), encoding="utf-8")
    except OSError as error:
        raise OpdAlignError(f"cannot write the report to {str(file)!r}: {why(error)}; choose another place") from error
    return file


def report_html(analysis: Analysis, *, title: str = "Alignment report") -> str:
    """The page as text; the same analysis gives the same page."""
    words, vocabulary = _vocabulary(analysis)
    paths, left_out = _fitting(list(packed_paths(analysis.nodes, analysis.children, vocabulary)))
    slices = Slices(analysis.nodes)
    overview = _overview(analysis, slices, paths, left_out, words, title)
    style, script = _part("page.css"), "\n".join(_part(name) for name in ("charts.js", "reader.js", "page.js"))
    first: dict[str, Any] = overview["objectives"][0]["verdict"]
    values = {
        "policy": html.escape(_policy(style, script), quote=True),
        "title": html.escape(title),
        "style": style,
        "script": script,
        "headline": html.escape(first["headline"]),
        "points": "".join(f"<li>{html.escape(point)}</li>" for point in first["points"]),
        "about": html.escape(overview["about"]),
        "tables": "\n".join(_drawn(table) for table in tables(analysis, every=True, slices=slices)),
        "overview": in_script(overview),
        "blocks": "\n".join(
            f'<script type="text/plain" id="pack-{at}">{path.data}</script>' for at, path in enumerate(paths)
        ),
    }
    # One pass: what is put in is not looked at again, whatever it contains.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _part("page.html"))


def _fitting(paths: Sequence[PackedPath]) -> tuple[list[PackedPath], int]:
    """The paths that the file has room for, in their order, and how many stay out; each question's first ones first."""
    turn, seen = {}, Counter[tuple[str, bool]]()
    for at, path in enumerate(paths):
        turn[at] = 2 * seen[path.question, path.correct] + (not path.correct)
        seen[path.question, path.correct] += 1
    room, kept = ROOM, set[int]()
    for at in sorted(turn, key=lambda at: (turn[at], at)):
        room -= len(paths[at].data)
        if room >= 0 or not kept:
            kept.add(at)
    return [path for at, path in enumerate(paths) if at in kept], len(paths) - len(kept)


def in_script(value: Any) -> str:
    """JSON that can stand between script tags: no character in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    # A lone surrogate, half of a broken token, cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode()


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    rules = (
        "default-src 'none'", f"script-src {digest(script)}", f"style-src {digest(style)}", "img-src data:",
        "base-uri 'none'", "form-action 'none'",
    )  # fmt: skip
    return "; ".join(rules)


def _part(name: str) -> str:
    return (files("opd_align.report") / name).read_text(encoding="utf-8")


def _vocabulary(analysis: Analysis) -> tuple[list[str], dict[int, int]]:
    """The tokens that occur, as text and numbered; one that nobody can read is shown by its id."""
    tokens = sorted(analysis.children["token"].unique().to_pylist())
    words = [analysis.texts.get(token, f"⟨{token}⟩") for token in tokens]
    return words, {token: at for at, token in enumerate(tokens)}


def _overview(
    analysis: Analysis, slices: Slices, paths: Sequence[PackedPath], left_out: int, words: list[str], title: str
) -> dict[str, Any]:
    """All that the page knows before a path is opened."""
    guided, rewarded = objectives_of(analysis)
    settings, questions = analysis.settings, analysis.questions.to_pylist()
    rollouts = sum(row["initial"] + row["targeted"] for row in questions)
    about = [
        f"{len(questions):,} question{'s' if len(questions) != 1 else ''}", f"{len(paths):,} paths",
        f"{rollouts:,} rollouts", f"estimator {settings.estimator}", f"allocation {settings.budget.allocation}",
    ]  # fmt: skip
    if left_out:
        about.append(f"{left_out:,} more paths count in all figures, but would have made this file too large to read")
    return {
        "title": title,
        "about": " · ".join(about),
        "version": _version(),
        "teachers": teachers_of(analysis.children),
        "pairs": pairs_of(analysis.children),
        "verdicts": VERDICTS,
        "words": words,
        "objectives": [_objective(slices, name, name in guided) for name in (*guided, *rewarded)],
        "questions": _questions(questions, paths),
    }


def _version() -> str:
    try:
        return version("opd-align")
    except PackageNotFoundError:
        return ""


def _questions(questions: Sequence[Mapping[str, Any]], paths: Sequence[PackedPath]) -> list[dict[str, Any]]:
    own: dict[str, list[dict[str, Any]]] = {}
    for at, path in enumerate(paths):
        told = {"pack": at, "path": path.path, "correct": path.correct, "length": path.length, "nodes": path.nodes}
        own.setdefault(path.question, []).append(told)
    return [
        {
            "id": row["question"],
            "text": row.get("text") or "",
            "answer": row.get("answer"),
            "pass_rate": _finite(row["pass_rate"]),
            "rollouts": row["initial"] + row["targeted"],
            "note": row["note"],
            "paths": own.get(row["question"], []),
        }
        for row in questions
    ]


def _objective(slices: Slices, objective: str, guided: bool) -> dict[str, Any]:
    ranks, told = slices.ranks(objective), verdict(slices, objective)
    return {
        "name": objective,
        "guided": guided,
        "verdict": {"headline": told.headline, "points": [_unbroken(point) for point in told.points]},
        "teachers": [_teacher(slices, rank) for rank in ranks],
        "correlations": [
            {
                "feature": row.feature.replace("_", " "), "teacher": row.teacher, "rho": _number(row.rho),
                "paths": row.n_paths,
            }
            for row in (slices.correlations(objective) if guided and ranks else [])
        ],
    }  # fmt: skip


def _unbroken(text: str) -> str:
    """A number and its interval stay on one line."""
    return text.replace(" ± ", "\u00a0±\u00a0")


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
        "helpful": _finite(rank.helpful),
        "harmful": _finite(rank.harmful),
        "undecided": _finite(rank.undecided),
        "two_children": _finite(rank.two_children),
        "ceiling": _finite(rank.noise_ceiling.ceiling),
        "nodes": rank.n_nodes,
        "contrast": {
            "correct": _finite(contrast.correct),
            "incorrect": _finite(contrast.incorrect),
            "delta": _number(metrics.Estimate(contrast.delta, contrast.half_width, contrast.n_pairs)),
            "p": shown(Cell(contrast.p_value), "p"),
        },
        "histogram": {
            "counts": histogram.counts,
            "plus_one": _finite(histogram.share_at_plus_one),
            "minus_one": _finite(histogram.share_at_minus_one),
        },
        "oracle": [
            {
                "threshold": row.threshold, "kept": _finite(row.share_kept), "signal": _number(row.signal),
                "fitted": _number(row.cross_fitted_signal),
            }
            for row in oracle
        ],
        "filters": {
            name: [
                {"kept": _finite(row.share_kept), "signal": _number(row.signal), "threshold": _finite(row.threshold)}
                for row in metrics.divergence_filter(
                    mine, name, QUANTILES, objective=rank.objective, teacher=rank.teacher
                )
            ]
            for name in known
        },
    }  # fmt: skip


def _number(estimate: metrics.Estimate) -> dict[str, Any]:
    text = shown(Cell(estimate.mean, estimate.half_width), "signed")
    return {"mean": _finite(estimate.mean), "half": _finite(estimate.half_width), "text": text}


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else value


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
