"""Where a teacher helps and where it hurts: the decisions with the largest signal, by kind of token and position.

A decision counts with its signal, SR range × alignment: how much success depends on the choice, and whether the update
points toward it. A path's own token at the decision gives its kind. Computes from the node table and token texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opd_align.core.node_rows import mean_by, select_rows
from opd_align.core.selective import node_weights
from opd_align.types import Floats

MAX_SHOWN = 8
"""Number of best and of worst decisions."""
MAX_PER_PATH = 2
"""At most this many of them are on the same path, so that one bad rollout does not fill the list."""
THIRDS = ("first third", "middle third", "last third")
_KINDS = (
    ("number", re.compile(r"\d")),
    ("word", re.compile(r"[^\W\d_]")),
    ("line break", re.compile(r"\n")),
    ("space", re.compile(r"^\s*$")),
)
KINDS = ("number", "word", "symbol", "line break", "space", "unknown")


@dataclass(frozen=True)
class Highlight:
    """One decision.

    Args:
        question: Id of the question.
        path: Index of the path within its question.
        correct: Whether the path is correct.
        depth: Position of the token.
        token: The path's own token there.
        kind: Kind of that token.
        signal: SR range × alignment.
        alignment: Alignment of the update.
        verdict: `helpful`, `harmful` or `undecided`.
    """

    question: str
    path: int
    correct: bool
    depth: int
    token: int
    kind: str
    signal: float
    alignment: float
    verdict: str


@dataclass(frozen=True)
class Part:
    """The decisions of one kind of token, or of one part of the completions.

    Args:
        name: The kind, or the part.
        n_nodes: Number of decisions.
        share: Their share of all decisions.
        signal: Their mean signal.
        helpful: Share of them with the verdict `helpful`.
        harmful: Share of them with the verdict `harmful`.
    """

    name: str
    n_nodes: int
    share: float
    signal: float
    helpful: float
    harmful: float


@dataclass(frozen=True)
class Highlights:
    """Where one teacher helps and hurts.

    Args:
        worst: The decisions with the most negative signal, worst first.
        best: The decisions with the largest signal, best first.
        kinds: All decisions by kind of token.
        positions: All decisions by third of the completion.
    """

    worst: tuple[Highlight, ...]
    best: tuple[Highlight, ...]
    kinds: tuple[Part, ...]
    positions: tuple[Part, ...]


def token_kind(text: str | None) -> str:
    """The kind of a token by its text; `unknown` without one."""
    if text is None:
        return "unknown"
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), "symbol")


def highlights(nodes: pa.Table, texts: Mapping[int, str], *, objective: str, teacher: str) -> Highlights:
    """Where a teacher helps and hurts.

    Args:
        nodes: `Analysis.nodes`.
        texts: `Analysis.texts`, the text of each token.
        objective: Name of the objective.
        teacher: Name of the teacher.
    """
    rows = select_rows(nodes, objective, teacher)
    alignment_N, depth_N = rows["alignment"], rows["depth"]
    signal_N = rows["sr_range"] * alignment_N
    kind_of = {token: token_kind(texts.get(token)) for token in rows.column("token").unique().to_pylist()}
    kind_N = np.array([kind_of[token] for token in rows.column("token").to_pylist()], object)
    third_N = np.minimum(3 * depth_N // np.maximum(rows["path_length"], 1), 2).astype(np.int64)
    position_N = np.array(THIRDS, object)[third_N] if len(third_N) else np.empty(0, object)
    verdict_N = np.array(rows.column("verdict").cast(pa.string()).to_pylist(), object)
    weight_N = node_weights(rows)

    def parts(name_N: np.ndarray, names: tuple[str, ...]) -> tuple[Part, ...]:
        made = []
        for name in names:
            own_N = name_N == name
            if own_N.any():
                helpful, harmful = (float((verdict_N[own_N] == verdict).mean()) for verdict in ("helpful", "harmful"))
                zeros = np.zeros(int(own_N.sum()), np.int64)
                signal = float(mean_by(zeros, signal_N[own_N], 1, weight_N[own_N])[0])
                made.append(Part(name, int(own_N.sum()), float(own_N.mean()), signal, helpful, harmful))
        return tuple(made)

    def listed(order_N: np.ndarray) -> tuple[Highlight, ...]:
        columns = ("question", "path", "path_correct", "depth", "token")
        found: list[Highlight] = []
        on_path: dict[int, int] = {}
        seen: set[tuple[int, float, float]] = set()
        for at in order_N.tolist():
            path, node = int(rows.path_N[at]), (int(rows.question_N[at]), float(depth_N[at]), round(signal_N[at], 9))
            # Paths with a common beginning share its decisions.
            if len(found) == MAX_SHOWN or on_path.get(path, 0) == MAX_PER_PATH or node in seen:
                continue
            on_path[path] = on_path.get(path, 0) + 1
            seen.add(node)
            question, index, correct, depth, token = (rows.table[column][at].as_py() for column in columns)
            numbers = float(signal_N[at]), float(alignment_N[at])
            found.append(Highlight(question, index, correct, depth, token, kind_N[at], *numbers, verdict_N[at]))
        return tuple(found)

    return Highlights(
        listed(_order(signal_N, verdict_N == "harmful")),
        listed(_order(-signal_N, verdict_N == "helpful")),
        parts(kind_N, KINDS),
        parts(position_N, THIRDS),
    )


def _order(value_N: Floats, decided_N: np.ndarray) -> np.ndarray:
    """Rows with a negative value, those with a verdict first, the most negative first."""
    order = np.lexsort((value_N, ~decided_N))
    return order[value_N[order] < 0][: MAX_SHOWN * 32]
