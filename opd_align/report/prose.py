"""Verdicts in plain words: which teacher points to success, on which rollouts, and how sure that is.

Every number in a sentence is a record of `metrics`, written as in the tables. A teacher is said to help or to harm
only if its whole 95 % interval lies on one side of zero, and that nothing is decided is said as plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from opd_align.core import metrics
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Kind, shown
from opd_align.types import REWARD

SURE = 0.05
"""Differences with a larger p-value are called open."""
MEANING = "1 is straight toward success, 0 unrelated, −1 straight away from it"
POINTS = {1: "points toward success", -1: "points away from success", 0: "is not shown to point anywhere"}
"""By the side of zero on which the interval lies."""


@dataclass(frozen=True)
class Verdict:
    """A headline, and what it rests on; `decided` is whether the headline claims anything."""

    headline: str
    points: tuple[str, ...]
    decided: bool


def side(estimate: metrics.Estimate) -> int:
    """On which side of zero the whole interval lies: 1, -1, or 0 where it holds zero or is unknown."""
    if not (isfinite(estimate.mean) and isfinite(estimate.half_width)) or abs(estimate.mean) <= estimate.half_width:
        return 0
    return 1 if estimate.mean > 0 else -1


def apart(one: metrics.Estimate, other: metrics.Estimate) -> bool:
    """Whether the first lies above the second with its whole interval."""
    return one.mean - other.mean > one.half_width + other.half_width  # False where either is unknown


def said(estimate: metrics.Estimate) -> str:
    """A mean with its interval."""
    return shown(Cell(estimate.mean, estimate.half_width), "signed")


def unbroken(text: str) -> str:
    """A number and its interval stay on one line."""
    return text.replace(" ± ", "\u00a0±\u00a0")


def verdict(slices: Slices, objective: str) -> Verdict:
    """What an analysis says about one objective."""
    ranks = [rank for rank in slices.ranks(objective) if rank.n_nodes]
    if not ranks:
        why = (
            "No token had two continuations whose success is known well enough, so there was nothing to compare. More "
            "rollouts, or questions that are solved only sometimes, would help."
        )
        return Verdict("Nothing could be decided.", (why,), False)
    best, others = ranks[0], ranks[1:]
    points = [
        _strength(best),
        *_stakes(ranks),
        *_order(best, others),
        *_places(slices, best),
        _decisions(best),
        *_choosing(slices, best),
    ]
    top = max(ranks, key=lambda rank: rank.weighted_cosine.mean if isfinite(rank.weighted_cosine.mean) else -2.0)
    if side(best.alignment) == 0 and side(top.weighted_cosine) > 0 and best.teacher != REWARD:
        where = (
            f"Where something is at stake, {top.teacher} points toward success; over all decisions nothing is shown."
        )
        return Verdict(where, tuple(points), True)
    return Verdict(_headline(best, others), tuple(points), side(best.alignment) != 0)


def _headline(best: metrics.TeacherRank, others: Sequence[metrics.TeacherRank]) -> str:
    where = side(best.alignment)
    if best.teacher == REWARD:
        return f"The reward's own update ({best.objective}) {POINTS[where]}."
    if where > 0:
        clear = all(apart(best.alignment, other.alignment) for other in others)
        lead = ", more than any other teacher" if clear and others else ""
        return f"Following {best.teacher} points toward success{lead}."
    if where < 0:
        return "Every teacher points away from success." if others else f"{best.teacher} points away from success."
    if best.alignment.n < 2:
        return "One question is too little to decide anything."
    return f"{'No teacher' if others else best.teacher} is {'' if others else 'not '}shown to point toward success."


def _strength(best: metrics.TeacherRank) -> str:
    estimate = best.alignment
    name = "Its" if side(estimate) > 0 or best.teacher == REWARD else f"The highest is {best.teacher}: its"
    if estimate.n < 2:
        return f"{name} alignment is {said(estimate)} on a single question, so there is no interval ({MEANING})."
    sure = "" if side(estimate) else " The interval holds zero."
    return f"{name} alignment is {said(estimate)}, a 95 % interval over {estimate.n} questions ({MEANING}).{sure}"


def _stakes(ranks: Sequence[metrics.TeacherRank]) -> list[str]:
    """Most forks are matters of style, where the sign is a coin's; weighing by stakes leaves them out."""
    known = [rank for rank in ranks if isfinite(rank.weighted_cosine.mean)]
    if not known:
        return []
    top = max(known, key=lambda rank: rank.weighted_cosine.mean)
    where = {1: "toward success", -1: "away from success", 0: "nowhere for sure"}[side(top.weighted_cosine)]
    who = "it" if top.teacher == ranks[0].teacher else top.teacher
    return [
        f"Weighed by what is at stake at each decision, {who} points {where}: {said(top.weighted_cosine)}"
        f"{', the highest of all' if len(known) > 1 else ''}."
    ]


def _order(best: metrics.TeacherRank, others: Sequence[metrics.TeacherRank]) -> list[str]:
    if not others:
        return []
    second, last = others[0], others[-1]
    clear = apart(best.alignment, second.alignment)
    told = "the intervals do not overlap" if clear else "the intervals overlap, so which of the two is better is open"
    points = [f"Next comes {second.teacher} with {said(second.alignment)}; {told}."]
    if side(last.alignment) < 0 <= side(best.alignment):
        points.append(f"{last.teacher} points away from success: {said(last.alignment)}.")
    return points


def _places(slices: Slices, best: metrics.TeacherRank) -> list[str]:
    contrast = slices.contrasts(best.objective, best.teacher)[0]
    if not (isfinite(contrast.correct) and isfinite(contrast.incorrect)):
        return ["There are not both correct and incorrect rollouts to compare."]
    both = f"{_number(contrast.incorrect)} on incorrect rollouts, {_number(contrast.correct)} on correct ones"
    if contrast.test == metrics.NO_TEST:
        return [f"Mean alignment is {both}: too few to test."]
    delta = Cell(contrast.delta, contrast.half_width)
    tested = f"difference {shown(delta, 'signed')}, p = {_number(contrast.p_value, 'p')}"
    if contrast.p_value < SURE:
        where = "correct" if contrast.delta > 0 else "incorrect"
        return [f"It points more to success on {where} rollouts: {both} ({tested})."]
    return [f"Whether it helps more on correct or on incorrect rollouts is open: {both} ({tested})."]


def _decisions(best: metrics.TeacherRank) -> str:
    shares = [_number(share, "share") for share in (best.helpful, best.harmful, best.undecided)]
    return (
        f"Of the {best.n_nodes:,} decisions that were looked at, it helps at {shares[0]} and harms at {shares[1]}; "
        f"for {shares[2]} the rollouts do not tell."
    )


def _choosing(slices: Slices, best: metrics.TeacherRank) -> list[str]:
    rows = slices.rows(best.objective, best.teacher)
    full, kept = metrics.selective_oracle(rows, (0.0,), objective=best.objective, teacher=best.teacher)
    if not (isfinite(full.signal.mean) and isfinite(kept.cross_fitted_signal.mean)):
        return []
    return [
        f"Training only where alignment is positive would change the mean signal from {said(full.signal)} to "
        f"{said(kept.cross_fitted_signal)} (chosen on one half of the rollouts, valued on the other)."
    ]


def _number(value: float, kind: Kind = "signed") -> str:
    return shown(Cell(value), kind)
