"""An analysis as experiment trackers take it: numbers under keys, and for W&B a histogram, a table, a token view.

Keys are paths under `opd_align/`. With one teacher and one objective they have no more parts; with several, each key
of a teacher ends in its name (and that of the objective, where there are several). The numbers are those of
`metrics`, so a run directory gives them again. Nothing here grows with the number of evaluations.
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
from opd_align.report.slices import Slices
from opd_align.types import REWARD

ROOT = "opd_align"
FILTER, QUANTILE = "kl", 0.5
"""The divergence filter that is logged, as in a report's table: the half of the nodes that differ most."""

CORRELATED = {"depth_normalised": "depth", "kl": "kl", "js": "js", "l2": "l2", "cosine": "cosine"}
SHOWN_PATHS, SHOWN_ROWS = 4, 40


def variants(analysis: Analysis) -> dict[tuple[str, str], str]:
    """(teacher, objective) → what its keys end in."""
    pairs = pairs_of(analysis.children)
    objectives = {objective for _, objective in pairs}
    if len(pairs) == 1:
        return {pairs[0]: ""}

    def ending(teacher: str, objective: str) -> str:
        parts = [teacher] if teacher != REWARD else []
        return "/".join([*parts, *([objective] if len(objectives) > 1 or not parts else [])])

    return {pair: f"/{ending(*pair)}" for pair in pairs}


def scalars(analysis: Analysis) -> dict[str, float]:
    """The numbers of an analysis under their keys; NaN is unknown."""
    slices = Slices(analysis.nodes)
    questions = analysis.questions
    numbers: dict[str, float] = {
        "pass_rate": _mean(questions["pass_rate"]),
        "questions": questions.num_rows,
        "nodes": len(analysis.nodes.group_by(["question", "path", "depth"]).aggregate([])),
        "rollouts": sum(questions[name].to_numpy().sum() for name in ("initial", "targeted")),
        "truncated": questions["truncated"].to_numpy().sum(),
        "unknown": questions["unknown"].to_numpy().sum(),
    }
    for (teacher, objective), ending in variants(analysis).items():
        numbers |= {f"{key}{ending}": value for key, value in _of_teacher(slices, teacher, objective).items()}
    return {f"{ROOT}/{key}": float(value) for key, value in numbers.items()}


def _of_teacher(slices: Slices, teacher: str, objective: str) -> dict[str, float]:
    rank = next((rank for rank in slices.ranks(objective) if rank.teacher == teacher), None)
    if rank is None:  # not one node
        return {}
    rows = slices.rows(objective, teacher)
    cosine = slices.contrasts(objective, teacher)[0]
    full, oracle = metrics.selective_oracle(rows, (0.0,), objective=objective, teacher=teacher)
    numbers = {
        "alignment/mean": rank.alignment.mean,
        "alignment/half_width": rank.alignment.half_width,
        "alignment/weighted": rank.weighted_cosine.mean,
        "alignment/fraction_positive": rank.fraction_positive.mean,
        "alignment/correct": cosine.correct,
        "alignment/incorrect": cosine.incorrect,
        "alignment/delta": cosine.delta,
        "alignment/decided": rank.helpful + rank.harmful,
        "alignment/noise_ceiling": rank.noise_ceiling.ceiling,
        "oracle/full_signal": full.signal.mean,
        "oracle/selective_signal": oracle.signal.mean,
        "oracle/cross_fitted_signal": oracle.cross_fitted_signal.mean,
        "oracle/kept": oracle.share_kept,
        "oracle/gain": oracle.gain.mean,
    }
    if teacher == REWARD:
        return numbers
    (chosen,) = metrics.divergence_filter(rows, FILTER, (QUANTILE,), objective=objective, teacher=teacher)
    along = [row for row in metrics.within_path_correlations(rows, objective) if row.teacher == teacher]
    return {
        **numbers,
        "advantage": rank.advantage.mean,
        "filter/threshold": chosen.threshold,
        "filter/kept": chosen.share_kept,
        "filter/signal": chosen.signal.mean,
        "filter/oracle_share": chosen.share_of_oracle_gain,
        **{f"spearman/{CORRELATED[row.feature]}": row.rho.mean for row in along},
    }


def _mean(column: Any) -> float:
    values = column.to_numpy()
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def wandb_media(analysis: Analysis, wandb: Any) -> dict[str, Any]:
    """What W&B shows beside the curves: how alignment is spread, the nodes with most at stake, a few paths to read."""
    media: dict[str, Any] = {}
    for (teacher, objective), ending in variants(analysis).items():
        spread = metrics.alignment_histogram(analysis.nodes, objective=objective, teacher=teacher)
        if sum(spread.counts):
            media[f"{ROOT}/alignment/histogram{ending}"] = wandb.Histogram(
                np_histogram=(np.array(spread.counts), np.array(spread.edges))
            )
    columns = ["question", "path", "depth", "token", "teacher", "objective", "alignment", "sr_range", "verdict"]
    rows = top_nodes(analysis)
    if rows:
        media[f"{ROOT}/nodes_at_stake"] = wandb.Table(
            columns=columns, data=[[row[name] for name in columns] for row in rows]
        )
        media[f"{ROOT}/paths"] = wandb.Html(paths_html(analysis), inject=False)
    return media


def top_nodes(analysis: Analysis, limit: int = SHOWN_ROWS) -> list[dict[str, Any]]:
    """The nodes with the largest SR range, tokens as text."""
    nodes = analysis.nodes.filter(pc.is_finite(analysis.nodes["alignment"]))
    rows = nodes.sort_by([("sr_range", "descending")]).slice(0, limit).to_pylist()
    return [{**row, "token": _text(analysis.texts, row["token"])} for row in rows]


def paths_html(analysis: Analysis, limit: int = SHOWN_PATHS) -> str:
    """A few paths token by token, shaded by alignment: blue helps, orange harms; no script, no network."""
    (teacher, objective), *_ = variants(analysis)
    own = analysis.children.filter(analysis.children["own"])
    mine = pc.and_(pc.equal(analysis.nodes["teacher"], teacher), pc.equal(analysis.nodes["objective"], objective))
    at = {
        (row["question"], row["path"], row["depth"]): row
        for row in analysis.nodes.filter(mine).select(
            ["question", "path", "depth", "alignment", "sr_range", "verdict"]
        ).to_pylist()
    }  # fmt: skip
    paths: dict[tuple[str, int, bool], list[str]] = {}
    for row in own.select(["question", "path", "path_correct", "depth", "token"]).to_pylist():
        key = (row["question"], row["path"], row["path_correct"])
        if key not in paths and len(paths) == limit:
            continue
        node = at.get((row["question"], row["path"], row["depth"]))
        paths.setdefault(key, []).append(_token(_text(analysis.texts, row["token"]), node))
    blocks = [
        f"<p><b>{html.escape(question)}</b> · {'correct' if correct else 'incorrect'}</p><pre>{''.join(tokens)}</pre>"
        for (question, _, correct), tokens in paths.items()
    ]
    head = f"<p>{html.escape(teacher)} · {html.escape(objective)}: blue helps, orange harms, pale is undecided</p>"
    style = "body{font:14px sans-serif;margin:12px}pre{white-space:pre-wrap;font:14px/1.7 monospace}"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{head}{''.join(blocks)}"


def _token(text: str, node: Mapping[str, Any] | None) -> str:
    shown = html.escape(text)
    if node is None or node["alignment"] is None or not np.isfinite(node["alignment"]):
        return shown
    colour = "31,111,181" if node["alignment"] > 0 else "200,102,10"
    strength = (0.75 if node["verdict"] != "undecided" else 0.25) * abs(node["alignment"])
    told = f"alignment {node['alignment']:+.2f}, SR range {node['sr_range']:.2f}, {node['verdict']}"
    return f'<span title="{told}" style="background:rgba({colour},{strength:.2f})">{shown}</span>'


def _text(texts: Mapping[int, str], token: int) -> str:
    return texts.get(token, f"⟨{token}⟩")
