"""What the token view opens: the words that occur, the questions, and their paths as packs.

The view is part of a page; which page, it does not know. Paths that a page has no room for stay out and are counted,
each question's first ones last. Nothing is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from opd_align.core.alignment import pairs_of, teachers_of
from opd_align.core.engine import Analysis
from opd_align.report.token_pack import VERDICTS, PackedPath, packed_paths


@dataclass(frozen=True)
class TokenView:
    """`told` is what the view knows before a path is opened; its paths name their packs by number."""

    told: dict[str, Any]
    packs: list[str]
    left_out: int


def token_view(analysis: Analysis, room: int) -> TokenView:
    """The view of an analysis whose packs take at most `room` bytes; one path is always there if there is any."""
    tokens = sorted(analysis.children["token"].unique().to_pylist())
    # A token that nobody can read is shown by its id.
    words = [analysis.texts.get(token, f"⟨{token}⟩") for token in tokens]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    paths, left_out = _fitting(list(packed_paths(analysis.nodes, analysis.children, vocabulary)), room)
    told = {
        "teachers": teachers_of(analysis.children),
        "pairs": pairs_of(analysis.children),
        "verdicts": VERDICTS,
        "words": words,
        "questions": _questions(analysis.questions.to_pylist(), paths),
    }
    return TokenView(told, [path.data for path in paths], left_out)


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; unknown is None."""
    return None if value is None or not isfinite(value) else value


def _fitting(paths: Sequence[PackedPath], room: int) -> tuple[list[PackedPath], int]:
    """The paths that there is room for, in their order, and how many stay out; each question's first ones first."""
    turn, seen = {}, Counter[tuple[str, bool]]()
    for at, path in enumerate(paths):
        turn[at] = 2 * seen[path.question, path.correct] + (not path.correct)
        seen[path.question, path.correct] += 1
    kept = set[int]()
    for at in sorted(turn, key=lambda at: (turn[at], at)):
        room -= len(paths[at].data)
        if room >= 0 or not kept:
            kept.add(at)
    return [path for at, path in enumerate(paths) if at in kept], len(paths) - len(kept)


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
            "pass_rate": finite(row["pass_rate"]),
            "rollouts": row["initial"] + row["targeted"],
            "note": row["note"],
            "paths": own.get(row["question"], []),
        }
        for row in questions
    ]
