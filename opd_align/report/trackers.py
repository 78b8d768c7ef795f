"""Media that are logged to W&B and trackio beside the scalars: histograms, a table of nodes, a few rollouts as HTML.

The keys are registered in `core.metric_registry`, which also computes the scalars. No medium grows with the length of
rollouts or of a training, and their number hardly does: a tracker keeps every table and every page as a file of its
own, so they are logged less and less often.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.core.alignment import pairs_of
from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import student_metric, teacher_metric

MAX_PATHS, MAX_TOKENS, MAX_ROWS = 4, 2000, 40

ALL_FILES = 16
"""So many evaluations log their table and page, then half as many in each doubling: 71 of 2,000."""


def files_are_due(number: int) -> bool:
    """Whether an evaluation logs its table and page; `number` is its place in the training, from 1."""
    return number % (1 << ((number - 1) // ALL_FILES).bit_length()) == 0


def tracker_media(analysis: Analysis, tracker: Any, *, files: bool = True) -> dict[str, Any]:
    """Media of an analysis by key.

    Args:
        analysis: The analysis.
        tracker: The imported module `wandb` or `trackio`, which have the same classes.
        files: Whether to include what is kept as a file.
    """
    media: dict[str, Any] = {}
    for teacher, objective in pairs_of(analysis.children):
        histogram = metrics.alignment_histogram(analysis.nodes, objective=objective, teacher=teacher)
        if sum(histogram.counts):
            media[teacher_metric("alignment/histogram").key(teacher, objective)] = tracker.Histogram(
                np_histogram=(np.array(histogram.counts), np.array(histogram.edges))
            )
    columns = ["question", "path", "depth", "token", "teacher", "objective", "alignment", "sr_range", "verdict"]
    rows = top_nodes(analysis) if files else []
    if rows:
        media[student_metric("top_nodes").key()] = tracker.Table(
            columns=columns, data=[[row[name] for name in columns] for row in rows]
        )
        media[student_metric("paths").key()] = tracker.Html(paths_html(analysis), inject=False)
    return media


def top_nodes(analysis: Analysis, limit: int = MAX_ROWS) -> list[dict[str, Any]]:
    """The nodes with the largest SR range, with tokens as text."""
    nodes = analysis.nodes.filter(pc.is_finite(analysis.nodes["alignment"]))
    rows = nodes.sort_by([("sr_range", "descending")]).slice(0, limit).to_pylist()
    return [{**row, "token": _text(analysis.texts, row["token"])} for row in rows]


def paths_html(analysis: Analysis, limit: int = MAX_PATHS) -> str:
    """A few rollouts as HTML, tokens coloured by alignment: blue helps, orange harms. No scripts, no network."""
    teacher, objective = pairs_of(analysis.children)[0]
    nodes, path_tokens = analysis.nodes, analysis.children.filter(analysis.children["own"])
    selected = pc.and_(pc.equal(nodes["teacher"], teacher), pc.equal(nodes["objective"], objective))
    node_at = {
        (row["question"], row["path"], row["depth"]): row
        for row in nodes.filter(selected).select(
            ["question", "path", "depth", "alignment", "sr_range", "verdict"]
        ).to_pylist()
    }  # fmt: skip
    paths: dict[tuple[str, int, bool], list[str]] = {}
    for row in path_tokens.select(["question", "path", "path_correct", "depth", "token"]).to_pylist():
        key = (row["question"], row["path"], row["path_correct"])
        if (key not in paths and len(paths) == limit) or len(paths.get(key, ())) > MAX_TOKENS:
            continue
        if len(paths.get(key, ())) == MAX_TOKENS:
            paths[key].append(" …")
            continue
        node = node_at.get((row["question"], row["path"], row["depth"]))
        paths.setdefault(key, []).append(_token(_text(analysis.texts, row["token"]), node))
    blocks = [
        f"<p><b>{html.escape(question)}</b> · {'correct' if correct else 'incorrect'}</p><pre>{''.join(tokens)}</pre>"
        for (question, _, correct), tokens in paths.items()
    ]
    names = f"{html.escape(teacher)} · {html.escape(objective)}"
    head = f"<p>{names}: blue helps, orange harms, pale colours are undecided</p>"
    style = "body{font:14px sans-serif;margin:12px}pre{white-space:pre-wrap;font:14px/1.7 monospace}"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{head}{''.join(blocks)}"


def _token(text: str, node: Mapping[str, Any] | None) -> str:
    escaped = html.escape(text)
    if node is None or node["alignment"] is None or not np.isfinite(node["alignment"]):
        return escaped
    colour = "31,111,181" if node["alignment"] > 0 else "200,102,10"
    strength = (0.75 if node["verdict"] != "undecided" else 0.25) * abs(node["alignment"])
    title = f"alignment {node['alignment']:+.2f}, SR range {node['sr_range']:.2f}, {node['verdict']}"
    return f'<span title="{title}" style="background:rgba({colour},{strength:.2f})">{escaped}</span>'


def _text(texts: Mapping[int, str], token: int) -> str:
    return texts.get(token, f"⟨{token}⟩")
