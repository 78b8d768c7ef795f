"""Pivotal decisions: positions where one next token succeeds more often than another, and how certain that is.

A decision is a prefix of an analyzed path with at least two tokens whose success is known well enough. It compares the
token with the highest success probability and the one with the lowest. Paths with a common beginning share its
decisions; each is listed once. Computes from the tables of an analysis; no text, no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from opd_align.core.alignment import teachers_of
from opd_align.types import Floats, OpdAlignError

MIN_DIFFERENCE = 0.1
"""Smallest difference in success that is listed by default; one fork in ten of an 8B model is larger."""
CONFIDENCE = 0.95
"""Probability that the difference is positive from which on a decision is listed by default."""
_STEPS = 400
"""Points of the numerical integral."""


@dataclass(frozen=True)
class Option:
    """One next token of a decision.

    Args:
        token: Token id.
        p: The student's probability.
        success: Probability that the student succeeds after this token.
        low: Lower end of its 90% interval.
        high: Upper end of its 90% interval.
        visits: Rollouts that count as evidence.
        effective: Effective visits.
        teachers: Each teacher's probability; teachers that were not available on this question are not included.
    """

    token: int
    p: float
    success: float
    low: float
    high: float
    visits: int
    effective: float
    teachers: Mapping[str, float]


@dataclass(frozen=True)
class PivotalDecision:
    """A position where the choice of the next token matters.

    Args:
        question: Id of the question.
        path: Index of the first path that passes it.
        path_correct: Whether that path is correct.
        depth: Number of completion tokens before the decision.
        prefix: These tokens.
        options: All tokens whose success is known well enough, highest success first.
        probability: Probability that the first option succeeds more often than the last.
        verdicts: Objective → teacher → `helpful`, `harmful` or `undecided`.
    """

    question: str
    path: int
    path_correct: bool
    depth: int
    prefix: tuple[int, ...]
    options: tuple[Option, ...]
    probability: float
    verdicts: Mapping[str, Mapping[str, str]]

    @property
    def chosen(self) -> Option:
        return self.options[0]

    @property
    def rejected(self) -> Option:
        return self.options[-1]

    @property
    def difference(self) -> float:
        """Success after the chosen token minus success after the rejected one."""
        return self.chosen.success - self.rejected.success


def pivotal_decisions(
    nodes: pa.Table,
    children: pa.Table,
    *,
    min_difference: float = MIN_DIFFERENCE,
    confidence: float = CONFIDENCE,
) -> list[PivotalDecision]:
    """The decisions whose difference in success is large and certain enough, in the order of questions, paths, depths.

    Args:
        nodes: `Analysis.nodes`.
        children: `Analysis.children`.
        min_difference: Smallest difference in success between the best and the worst token.
        confidence: Smallest probability that this difference is positive.
    """
    if not 0 <= min_difference < 1:
        raise OpdAlignError(f"min_difference must be from 0 to below 1, not {min_difference:g}")
    if not 0.5 <= confidence < 1:
        raise OpdAlignError(f"confidence must be from 0.5 to below 1, not {confidence:g}")
    # Tokens that no rollout took have a success probability too, from their siblings: no evidence for a preference.
    visited = pc.and_(children["significant"], pc.greater(children["visits"], 0))
    known = children.filter(pc.and_(visited, pc.is_finite(children["q"])))
    if known.num_rows == 0:
        return []
    place_C, place_first = _places(known)
    order = np.lexsort((-_numbers(known, "q"), place_C))
    first_N = np.searchsorted(place_C[order], np.arange(len(place_first)))
    last_N = np.append(first_N[1:], len(order)) - 1
    q_C, effective_C = _numbers(known, "q"), _numbers(known, "effective")
    best_N, worst_N = order[first_N], order[last_N]
    difference_N = q_C[best_N] - q_C[worst_N]
    large = np.flatnonzero((last_N > first_N) & (difference_N >= max(min_difference, np.finfo(np.float32).tiny)))
    shapes = (q_C[best_N[large]], effective_C[best_N[large]], q_C[worst_N[large]], effective_C[worst_N[large]])
    probability_N = probability_greater(*shapes)
    listed = [(int(at), float(chance)) for at, chance in zip(large, probability_N, strict=True) if chance >= confidence]
    if not listed:
        return []
    completions, verdicts, teachers = _completions(children), _verdicts(nodes), teachers_of(children)
    found: list[PivotalDecision] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for at, chance in listed:
        rows = known.take(pa.array(order[first_N[at] : last_N[at] + 1])).to_pylist()
        question, path, depth = rows[0]["question"], rows[0]["path"], rows[0]["depth"]
        prefix = completions[question, path][:depth]
        if (question, prefix) in seen:
            continue
        seen.add((question, prefix))
        options = tuple(_option(row, teachers) for row in rows)
        of_node = verdicts.get((question, path, depth), {})
        found.append(PivotalDecision(question, path, rows[0]["path_correct"], depth, prefix, options, chance, of_node))
    return found


def probability_greater(mean_a: Floats, visits_a: Floats, mean_b: Floats, visits_b: Floats) -> Floats:
    """The probability that one success rate is above another, each from its mean and its effective visits.

    The posteriors are Beta distributions with half a success and half a failure added, and independent: the error that
    siblings share is not subtracted, so a decision needs somewhat more evidence than without this simplification.
    """
    from scipy.special import betainc, betaincinv

    # P(A > B) = E[F_B(A)], with A at evenly spaced quantiles: no density, which is infinite at 0 or 1 for rare events.
    quantiles = (np.arange(_STEPS) + 0.5) / _STEPS
    a, b = (
        (mean * visits + 0.5, (1 - mean) * visits + 0.5) for mean, visits in ((mean_a, visits_a), (mean_b, visits_b))
    )
    value_NS = betaincinv(a[0][:, None], a[1][:, None], quantiles)
    return np.asarray(betainc(b[0][:, None], b[1][:, None], value_NS).mean(1))


def _option(row: Mapping[str, Any], teachers: Sequence[str]) -> Option:
    t = {name: value for name, value in zip(teachers, row["t"], strict=True) if value is not None and value == value}
    return Option(
        row["token"], row["p"], row["q"], row["q_low"], row["q_high"], row["visits"], row["effective"], t
    )  # fmt: skip


def _numbers(table: pa.Table, name: str) -> Floats:
    return np.asarray(table[name].to_numpy(), np.float64)


def _places(children: pa.Table) -> tuple[NDArray[np.int64], list[int]]:
    """For each row the index of its (question, path, depth), in order of appearance, and the first row of each."""
    question = children["question"].cast(pa.string()).combine_chunks().dictionary_encode().indices.to_numpy()
    keys = np.stack([question, children["path"].to_numpy(), children["depth"].to_numpy()]).astype(np.int64)
    _, first, index = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return index.reshape(-1), first.tolist()


def _completions(children: pa.Table) -> dict[tuple[str, int], tuple[int, ...]]:
    """The tokens of each path: its own token at every depth."""
    own = children.filter(children["own"]).select(["question", "path", "depth", "token"])
    tokens: dict[tuple[str, int], list[int]] = {}
    for row in own.sort_by([("path", "ascending"), ("depth", "ascending")]).to_pylist():
        tokens.setdefault((row["question"], row["path"]), []).append(row["token"])
    return {path: tuple(completion) for path, completion in tokens.items()}


def _verdicts(nodes: pa.Table) -> dict[tuple[str, int, int], dict[str, dict[str, str]]]:
    columns = ["question", "path", "depth", "objective", "teacher", "verdict"]
    found: dict[tuple[str, int, int], dict[str, dict[str, str]]] = {}
    for row in nodes.select(columns).to_pylist():
        place = found.setdefault((row["question"], row["path"], row["depth"]), {})
        place.setdefault(row["objective"], {})[row["teacher"]] = row["verdict"]
    return found
