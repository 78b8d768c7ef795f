"""Data and scripts of the token view: token texts, questions, and their paths as packs.

The view is part of the report and of the dashboard and knows neither. Paths beyond the size limit are left out and
counted; the first paths of each question are kept longest. Nothing is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from opd_align.core.alignment import pairs_of, teachers_of
from opd_align.core.engine import Analysis
from opd_align.report.token_pack import VERDICTS, PackedPath, pack_paths

TOKEN_VIEW_SCRIPTS = (
    "path_data.js", "path_plot.js", "token_card.js", "token_tree.js", "token_view.js", "token_controls.js",
)  # fmt: skip
"""What a page with a token view loads, after `dom.js`."""


@dataclass(frozen=True)
class TokenView:
    """The data of a token view.

    Args:
        metadata: What the view needs before a path is opened; its paths refer to packs by index.
        packs: Packed paths, see `token_pack`.
        left_out: Number of paths that exceeded the size limit.
        texts: Text of each token.
    """

    metadata: dict[str, Any]
    packs: list[str]
    left_out: int
    texts: Mapping[int, str]


def token_view(analysis: Analysis, max_bytes: int) -> TokenView:
    """The token view of an analysis.

    Args:
        analysis: The analysis to show.
        max_bytes: Limit for the size of all packs; at least one path is kept if there is any.
    """
    tokens = sorted(analysis.children["token"].unique().to_pylist())
    # A token without text is shown by its id.
    token_texts = [analysis.texts.get(token, f"⟨{token}⟩") for token in tokens]
    token_index = {token: index for index, token in enumerate(tokens)}
    paths, left_out = _within_limit(list(pack_paths(analysis.nodes, analysis.children, token_index)), max_bytes)
    metadata = {
        "teachers": teachers_of(analysis.children),
        "pairs": pairs_of(analysis.children),
        "verdicts": VERDICTS,
        "token_texts": token_texts,
        "questions": _questions(analysis.questions.to_pylist(), paths),
    }
    return TokenView(metadata, [path.data for path in paths], left_out, analysis.texts)


def finite(value: float | None) -> float | None:
    """`value` as JSON can hold it: None for NaN and infinity."""
    return None if value is None or not isfinite(value) else value


def _within_limit(paths: Sequence[PackedPath], max_bytes: int) -> tuple[list[PackedPath], int]:
    """The paths that fit, in their order, and how many do not; the first correct and incorrect ones have priority."""
    priority, n_before = {}, Counter[tuple[str, bool]]()
    for index, path in enumerate(paths):
        priority[index] = 2 * n_before[path.question, path.correct] + (not path.correct)
        n_before[path.question, path.correct] += 1
    kept, left = set[int](), max_bytes
    for index in sorted(priority, key=lambda index: (priority[index], index)):
        left -= len(paths[index].data)
        if left >= 0 or not kept:
            kept.add(index)
    return [path for index, path in enumerate(paths) if index in kept], len(paths) - len(kept)


def _questions(questions: Sequence[Mapping[str, Any]], paths: Sequence[PackedPath]) -> list[dict[str, Any]]:
    paths_of: dict[str, list[dict[str, Any]]] = {}
    for index, path in enumerate(paths):
        entry = {"pack": index, "path": path.path, "correct": path.correct, "length": path.length, "nodes": path.nodes}
        paths_of.setdefault(path.question, []).append(entry)
    return [
        {
            "id": row["question"],
            "text": row.get("text") or "",
            "answer": row.get("answer"),
            "pass_rate": finite(row["pass_rate"]),
            "rollouts": row["initial"] + row["targeted"],
            "note": row["note"],
            "paths": paths_of.get(row["question"], []),
        }
        for row in questions
    ]
