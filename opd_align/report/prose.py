"""The verdict on an analysis in a few sentences: which teacher points toward success, where, and how certain that is.

Every number in a sentence is a record of `core.metrics`, formatted as in the tables. A teacher is called helpful or
harmful only if its whole 95% interval is on one side of zero; otherwise the sentence says "inconclusive".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from opd_align.core import metrics
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Kind, format_cell
from opd_align.types import REWARD

SIGNIFICANCE_LEVEL = 0.05
"""Differences with a larger p-value are called not significant."""
DELTA_CAUTION = (
    "With few rollouts the difference correct − incorrect tends to be too large: in simulations with 460 rollouts per "
    "question by up to 0.2, so a smaller positive one is not a finding"
)
"""Shown wherever a user reads Δ; the figures are in docs/benchmarks.md, "Known errors"."""
ALIGNMENT_SCALE = "1: directly toward success, 0: unrelated, −1: directly away from it"
DIRECTION = {
    1: "points toward success",
    -1: "points away from success",
    0: "shows no significant alignment with success",
}
"""Phrase by `interval_sign`."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one objective.

    Args:
        headline: One sentence.
        points: The evidence, one sentence or two per point.
        decided: Whether the headline makes a claim; False if it says that the result is inconclusive.
    """

    headline: str
    points: tuple[str, ...]
    decided: bool


def interval_sign(estimate: metrics.Estimate) -> int:
    """1 or -1 if the whole interval is above or below zero; 0 if the interval includes zero or is unknown."""
    half_width = half_width_shown(estimate)
    if half_width is None or not isfinite(estimate.mean) or abs(estimate.mean) <= half_width:
        return 0
    return 1 if estimate.mean > 0 else -1


def half_width_shown(estimate: metrics.Estimate) -> float | None:
    """Half-width of an interval that may be shown; None if it is unknown or from fewer than four questions."""
    return estimate.half_width if isfinite(estimate.half_width) and estimate.n >= metrics.MIN_QUESTIONS else None


def delta_cell(contrast: metrics.Contrast) -> Cell:
    """The difference between correct and incorrect paths; no interval for fewer than four questions with both."""
    delta = metrics.Estimate(contrast.delta, contrast.half_width, contrast.n_pairs)
    return Cell(contrast.delta, half_width_shown(delta))


def is_above(higher: metrics.Estimate, lower: metrics.Estimate) -> bool:
    """Whether the whole interval of `higher` is above that of `lower`."""
    widths = half_width_shown(higher), half_width_shown(lower)
    return None not in widths and higher.mean - lower.mean > higher.half_width + lower.half_width


def format_estimate(estimate: metrics.Estimate) -> str:
    """A mean with the half-width of its interval, as in the tables."""
    return format_cell(Cell(estimate.mean, half_width_shown(estimate)), "signed")


def without_breaks(text: str) -> str:
    """`text` with non-breaking spaces around ± and in `p = `: a number and its interval stay on one line."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace("p = ", "p\u00a0=\u00a0")


def verdict(slices: Slices, objective: str) -> Verdict:
    """The verdict on one objective.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    ranks = [rank for rank in slices.ranks(objective) if rank.n_nodes]
    if not ranks:
        reason = (
            "At no position do at least two continuations have a success rate that is known well enough. Use more "
            "rollouts, or questions that the student solves only some of the time."
        )
        return Verdict("Inconclusive: there was nothing to compare.", (reason,), False)
    best, others = ranks[0], ranks[1:]
    points = [
        _alignment(best),
        *_weighted_alignment(ranks),
        *_runners_up(slices, best, others),
        *_by_outcome(slices, best),
        _node_shares(best),
        *_selective_gain(slices, best),
    ]
    if best.teacher != REWARD and all(rank.undecided == 1 for rank in ranks):
        return Verdict(
            f"Inconclusive: no token of any path has a verdict for {_counted_teachers(ranks)}.", tuple(points), False
        )
    top = max(ranks, key=lambda rank: rank.weighted_cosine.mean if isfinite(rank.weighted_cosine.mean) else -2.0)
    if interval_sign(best.alignment) == 0 and interval_sign(top.weighted_cosine) > 0 and best.teacher != REWARD:
        headline = (
            f"Weighted by SR range, distillation from {top.teacher} points toward success; the unweighted mean is "
            "inconclusive."
        )
        return Verdict(headline, tuple(points), True)
    headline = _headline(slices, best, others)
    if top.teacher != best.teacher and headline.endswith("success."):
        # Otherwise it would contradict a recommendation, which is by SR-weighted alignment.
        headline = f"{headline[:-1]} (by unweighted mean alignment, as in the paper)."
    return Verdict(headline, tuple(points), interval_sign(best.alignment) != 0)


def _is_better(slices: Slices, best: metrics.TeacherRank, other: metrics.TeacherRank) -> bool:
    """Whether a teacher's alignment is clearly above another's; on common questions, if theirs are different."""
    if slices.questions(best.objective, best.teacher) == slices.questions(best.objective, other.teacher):
        return is_above(best.alignment, other.alignment)
    rows = slices.rows(best.objective)
    return interval_sign(metrics.teacher_difference(rows, best.teacher, other.teacher, best.objective)) > 0


def _headline(slices: Slices, best: metrics.TeacherRank, others: Sequence[metrics.TeacherRank]) -> str:
    sign = interval_sign(best.alignment)
    if best.teacher == REWARD:
        return f"The reward update ({best.objective}) {DIRECTION[sign]}."
    if sign > 0:
        is_first = others and all(_is_better(slices, best, other) for other in others)
        comparison = ", more than from any other teacher" if is_first else ""
        return f"Distillation from {best.teacher} points toward success{comparison}."
    highest = ", the highest-ranked teacher," if others else ""
    if sign < 0:
        if others and all(interval_sign(other.alignment) < 0 for other in others):
            return "Distillation from every teacher points away from success."
        return f"Distillation from {best.teacher}{highest} points away from success."
    if best.alignment.n < metrics.MIN_QUESTIONS:
        n = best.alignment.n
        return f"Inconclusive: {'one question is' if n == 1 else f'{n} questions are'} not enough."
    return f"Inconclusive: the alignment of {best.teacher}{highest} is not significantly different from zero."


def _counted_teachers(ranks: Sequence[metrics.TeacherRank]) -> str:
    return ranks[0].teacher if len(ranks) == 1 else f"any of the {len(ranks)} teachers"


def _name(rank: metrics.TeacherRank) -> str:
    return "the reward update" if rank.teacher == REWARD else rank.teacher


def _alignment(best: metrics.TeacherRank) -> str:
    estimate = best.alignment
    value = f"The alignment of {_name(best)} is {format_estimate(estimate)}"
    if estimate.n < metrics.MIN_QUESTIONS:
        questions = "a single question" if estimate.n == 1 else f"{estimate.n} questions"
        return f"{value} on {questions}, too few for an interval ({ALIGNMENT_SCALE})."
    includes_zero = "" if interval_sign(estimate) else " The interval includes zero."
    return f"{value}, mean and 95% interval over {estimate.n} questions ({ALIGNMENT_SCALE}).{includes_zero}"


def _weighted_alignment(ranks: Sequence[metrics.TeacherRank]) -> list[str]:
    """At most nodes the choice hardly affects success and the sign is random; weighting by SR range discounts them."""
    known = [rank for rank in ranks if isfinite(rank.weighted_cosine.mean)]
    if not known:
        return []
    top = max(known, key=lambda rank: rank.weighted_cosine.mean)
    direction = {1: "toward success", -1: "away from success", 0: "inconclusive"}[interval_sign(top.weighted_cosine)]
    highest = "highest of all teachers, " if len(known) > 1 else ""
    return [
        f"Weighted by SR range (how much the next token affects success), the alignment of {_name(top)} is "
        f"{format_estimate(top.weighted_cosine)} ({highest}{direction})."
    ]


def _runners_up(slices: Slices, best: metrics.TeacherRank, others: Sequence[metrics.TeacherRank]) -> list[str]:
    if not others:
        return []
    second, last = others[0], others[-1]
    overlap = (
        "the intervals do not overlap"
        if is_above(best.alignment, second.alignment)
        else "the intervals overlap, so the order of the two is inconclusive"
    )
    if min(best.alignment.n, second.alignment.n) < metrics.MIN_QUESTIONS:
        overlap = "there are too few questions to compare the two"
    if slices.questions(best.objective, best.teacher) != slices.questions(best.objective, second.teacher):
        difference = metrics.teacher_difference(
            slices.rows(best.objective), best.teacher, second.teacher, best.objective
        )
        overlap = (
            f"on the {difference.n} questions that both were used on, the difference is {format_estimate(difference)}"
        )
    points = [f"Second is {second.teacher} with {format_estimate(second.alignment)}; {overlap}."]
    if interval_sign(last.alignment) < 0 <= interval_sign(best.alignment):
        points.append(f"{last.teacher} points away from success: {format_estimate(last.alignment)}.")
    return points


def _by_outcome(slices: Slices, best: metrics.TeacherRank) -> list[str]:
    contrast = slices.contrasts(best.objective, best.teacher)[0]
    if not (isfinite(contrast.correct) and isfinite(contrast.incorrect)):
        return ["Correct and incorrect rollouts cannot be compared: only one kind was analyzed."]
    values = f"{_number(contrast.incorrect)} on incorrect rollouts, {_number(contrast.correct)} on correct ones"
    if contrast.test == metrics.NO_TEST:
        return [f"The alignment of {_name(best)} is {values}; there are too few questions for a test."]
    test = f"difference {format_cell(delta_cell(contrast), 'signed')}, p = {_number(contrast.p_value, 'p')}"
    if contrast.p_value < SIGNIFICANCE_LEVEL:
        higher = "correct" if contrast.delta > 0 else "incorrect"
        return [f"The alignment of {_name(best)} is higher on {higher} rollouts: {values} ({test}). {DELTA_CAUTION}."]
    return [
        f"The alignment of {_name(best)} does not differ significantly between correct and incorrect rollouts: "
        f"{values} ({test}). {DELTA_CAUTION}."
    ]


def _node_shares(best: metrics.TeacherRank) -> str:
    helpful, harmful, undecided = (_number(share, "share") for share in (best.helpful, best.harmful, best.undecided))
    if best.n_nodes == 1:
        verdict = "helpful" if best.helpful else "harmful" if best.harmful else "undecided"
        return f"There is one decision, where {_name(best)} is {verdict}."
    return (
        f"Of {best.n_nodes:,} decisions, {_name(best)} is helpful at {helpful}, harmful at {harmful} and undecided "
        f"(inconclusive with this number of rollouts) at {undecided}."
    )


def _selective_gain(slices: Slices, best: metrics.TeacherRank) -> list[str]:
    rows = slices.rows(best.objective, best.teacher)
    full, kept = metrics.selective_oracle(rows, (0.0,), objective=best.objective, teacher=best.teacher)
    if not (isfinite(full.cross_fitted_signal.mean) and isfinite(kept.cross_fitted_signal.mean)):
        return []
    return [
        "Training only where alignment is positive would change the mean signal from "
        f"{format_estimate(full.cross_fitted_signal)} to {format_estimate(kept.cross_fitted_signal)} (cross-fitted: "
        "selected on one half of the rollouts, evaluated on the other, not shrunk)."
    ]


def _number(value: float, kind: Kind = "signed") -> str:
    return format_cell(Cell(value), kind)
