"""A training in a few sentences: what the newest evaluation says, and how that differs from the first.

Like `verdicts`, it says only what an interval bears out: that something has changed, where the two intervals do not
overlap, and else that this is open.
"""

from __future__ import annotations

from math import isfinite, nan
from typing import NamedTuple

from opd_align.core import metrics
from opd_align.report.history import Evaluation, Training
from opd_align.report.prose import ALIGNMENT_SCALE, DIRECTION, Verdict, format_estimate, interval_sign, is_above
from opd_align.report.table_format import Cell, Kind, format_cell


class _Seen(NamedTuple):
    """One variant in one evaluation."""

    evaluation: Evaluation
    variant: str

    def number(self, name: str) -> float:
        value = self.evaluation.variants[self.variant].get(name)
        return nan if value is None else value

    @property
    def alignment(self) -> metrics.Estimate:
        questions = self.evaluation.common.get("questions")
        return metrics.Estimate(self.number("alignment/mean"), self.number("alignment/half_width"), int(questions or 0))

    @property
    def when(self) -> str:
        return f"step {self.evaluation.step:,}"


def trend(training: Training, variant: str | None) -> Verdict:
    """What a training says about one teacher; `variant` None: no evaluation knows any."""
    known = [] if variant is None else _known(training, variant)
    if not known or variant is None:
        return Verdict(_why_nothing(training), tuple(_failures(training)), False)
    first, last = known[0], known[-1]
    points = [_strength(last), *_change(first, last), *_order(last), *_places(last), *_solved(training)]
    points += [*_choosing(last), *_decided(last), *_failures(training)]
    where = interval_sign(last.alignment)
    return Verdict(f"At {last.when}, {_who(last)} {DIRECTION[where]}{_unlike(first, last)}.", tuple(points), where != 0)


def best_variant(training: Training) -> str | None:
    """The variant with the highest alignment when it was last known; None where it never was."""
    newest = {name: known[-1] for name in training.variants if (known := _known(training, name))}
    return max(newest, key=lambda name: newest[name].alignment.mean, default=None)


def _known(training: Training, variant: str) -> list[_Seen]:
    return [
        _Seen(evaluation, variant)
        for evaluation in training.evaluations
        if evaluation.variants.get(variant, {}).get("alignment/mean") is not None
    ]


def _who(last: _Seen) -> str:
    # Only a teacher has an advantage over the student; an update without one is the reward's.
    if "advantage" not in last.evaluation.variants[last.variant]:
        return f"the reward's own update{f' ({last.variant})' if last.variant else ''}"
    return f"following {'the teacher' if last.variant in ('', 'teacher') else last.variant}"


def _why_nothing(training: Training) -> str:
    if not training.evaluations:
        return "No evaluation has been made yet."
    if all(evaluation.error is not None for evaluation in training.evaluations):
        return "No evaluation has succeeded yet."
    return "Nothing could be decided yet."


def _unlike(first: _Seen, last: _Seen) -> str:
    """How the headline differs from that of the first evaluation, if it surely does."""
    rises, falls = is_above(last.alignment, first.alignment), is_above(first.alignment, last.alignment)
    if first is last or not (rises or falls):
        return ""
    where = interval_sign(last.alignment)
    if where != interval_sign(first.alignment):
        return f", unlike at {first.when}"
    return f", {'more' if (where > 0) == rises else 'less'} than at {first.when}" if where else ""


def _strength(last: _Seen) -> str:
    estimate = last.alignment
    if not isfinite(estimate.half_width):
        why = "too few questions have decisions for an interval"
        return f"Its alignment is {format_estimate(estimate)}, {why} ({ALIGNMENT_SCALE})."
    asked = f" from {estimate.n:,} held-out questions" if estimate.n > 1 else ""
    holds = "" if interval_sign(estimate) else " The interval holds zero."
    return f"Its alignment is {format_estimate(estimate)}, a 95 % interval{asked} ({ALIGNMENT_SCALE}).{holds}"


def _change(first: _Seen, last: _Seen) -> list[str]:
    if first is last:
        return ["It is the first evaluation, so nothing can be said of a change."]
    rises, falls = is_above(last.alignment, first.alignment), is_above(first.alignment, last.alignment)
    told = "it has risen" if rises else "it has fallen" if falls else "whether it has changed is open"
    overlap = "do not overlap" if rises or falls else "overlap"
    return [f"At {first.when} it was {format_estimate(first.alignment)}: the intervals {overlap}, {told}."]


def _order(last: _Seen) -> list[str]:
    """Where it stands among the others of the same evaluation."""
    others = [_Seen(last.evaluation, name) for name in last.evaluation.variants if name != last.variant]
    others = [other for other in others if isfinite(other.alignment.mean)]
    if not others:
        return []
    rival = max(others, key=lambda other: other.alignment.mean)
    if last.alignment.mean >= rival.alignment.mean:
        told = "do not overlap" if is_above(last.alignment, rival.alignment) else "overlap, so which is better is open"
        return [f"Next comes {rival.variant} with {format_estimate(rival.alignment)}; the intervals {told}."]
    return [f"The highest is {rival.variant} with {format_estimate(rival.alignment)}."]


def _places(last: _Seen) -> list[str]:
    correct, incorrect, delta = (last.number(f"alignment/{name}") for name in ("correct", "incorrect", "delta"))
    if not (isfinite(correct) and isfinite(incorrect)):
        return ["There are not both correct and incorrect rollouts to compare."]
    return [
        f"Mean alignment is {_number(incorrect)} on incorrect rollouts, {_number(correct)} on correct ones (difference "
        f"{_number(delta)})."
    ]


def _solved(training: Training) -> list[str]:
    rates = [
        (evaluation.step, rate)
        for evaluation in training.evaluations
        if (rate := evaluation.common.get("pass_rate")) is not None
    ]
    if not rates:
        return []
    (first, before), (last, now) = rates[0], rates[-1]
    since = f"; at step {first:,} it was {_number(before, 'share')}" if first != last else ""
    return [f"The student succeeds in {_number(now, 'share')} of its rollouts{since}."]


def _choosing(last: _Seen) -> list[str]:
    full, kept = last.number("oracle/full_signal"), last.number("oracle/cross_fitted_signal")
    if not (isfinite(full) and isfinite(kept)):
        return []
    filtered, share = last.number("filter/signal"), last.number("filter/kept")
    also = f"; only at the {_number(share, 'share')} most divergent decisions, to {_number(filtered)}"
    return [
        f"Training only where alignment is positive would change the mean signal from {_number(full)} to "
        f"{_number(kept)} (chosen on one half of the rollouts, valued on the other)"
        f"{also if isfinite(filtered) and isfinite(share) else ''}."
    ]


def _decided(last: _Seen) -> list[str]:
    decided, nodes = last.number("alignment/decided"), last.evaluation.common.get("nodes")
    if not isfinite(decided):
        return []
    of = f"{int(nodes):,} decisions" if nodes is not None else "decisions"
    return [f"Whether the update helps or harms, the rollouts tell at {_number(decided, 'share')} of the {of}."]


def _failures(training: Training) -> list[str]:
    failed = [evaluation for evaluation in training.evaluations if evaluation.error is not None]
    if not failed:
        return []
    # The rest of a long message is in the list of evaluations.
    reason = ((failed[-1].error or "").strip().splitlines() or ["no reason was given"])[0][:200]
    of = f"{len(failed)} of {len(training.evaluations)} evaluations failed"
    return [f"{of}, the last at step {failed[-1].step:,}: {reason}"]


def _number(value: float, kind: Kind = "signed") -> str:
    return format_cell(Cell(value), kind)
