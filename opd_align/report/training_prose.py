"""A training in a few sentences: what the newest evaluation shows, and how it differs from the first one.

Like `report.prose`, it only claims what the confidence intervals support: a change is reported if the two intervals do
not overlap, and is called inconclusive otherwise. Below `MIN_QUESTIONS` questions there is no interval and no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from typing import NamedTuple

from opd_align.core import metrics
from opd_align.core.metric_registry import evaluation_metric, parse_key, student_metric, teacher_metric
from opd_align.report.history import PREFIX, Evaluation, Training
from opd_align.report.prose import (
    ALIGNMENT_SCALE,
    DELTA_CAUTION,
    DIRECTION,
    Verdict,
    format_estimate,
    interval_sign,
    is_above,
)
from opd_align.report.table_format import Cell, Kind, format_cell
from opd_align.types import REWARD


class _Result(NamedTuple):
    """One teacher and objective in one evaluation."""

    evaluation: Evaluation
    variant: str
    label: str

    def number(self, stem: str) -> float:
        value = self.evaluation.variants[self.variant].get(teacher_metric(stem).stem)
        return nan if value is None else value

    @property
    def alignment(self) -> metrics.Estimate:
        half_width = nan if self.too_few else self.number("alignment/half_width")
        return metrics.Estimate(self.number("alignment/mean"), half_width, self.questions)

    @property
    def questions(self) -> int:
        """Number of questions with a decision, or of all questions if that is not known; 0 if neither is."""
        known = self.number("nodes/questions")
        return int(known) if isfinite(known) else int(_student(self.evaluation, "questions") or 0)

    @property
    def too_few(self) -> bool:
        """Whether there are too few questions to claim anything."""
        return 0 < self.questions < metrics.MIN_QUESTIONS

    @property
    def when(self) -> str:
        return f"step {self.evaluation.step:,}"


def trend(training: Training, variant: str | None) -> Verdict:
    """What a training shows about one teacher.

    Args:
        training: The training.
        variant: `<teacher>/<objective>`; None if no evaluation has any.
    """
    results = [] if variant is None else _results(training, variant)
    if not results:
        return Verdict(_no_result(training), tuple(_failures(training)), False)
    first, last = results[0], results[-1]
    points = [
        _strength(last),
        *_change(first, last),
        *_ranking(training, last),
        *_outcomes(last),
        *_pass_rate(training),
    ]
    points += [*_selection(last), *_decided(last), *_failures(training)]
    sign = interval_sign(last.alignment)
    headline = f"At {last.when}, {_subject(last)} {DIRECTION[sign]}{_difference(first, last)}."
    if last.too_few:
        headline = (
            f"At {last.when}, there are too few questions ({last.alignment.n}) to tell where {_subject(last)} leads."
        )
    return Verdict(headline, tuple(points), sign != 0)


def evaluation_line(step: int, numbers: Mapping[str, float], *, waiting: str | None = None) -> str:
    """One evaluation in one line, for the console.

    Args:
        step: Training step.
        numbers: The metrics that are logged, by key.
        waiting: Why there is no result yet; None if there is one.
    """
    if waiting is not None:
        return f"opd-align at step {step:,}: no result yet, {waiting}"
    variants: dict[str, dict[str, float]] = {}
    for key, value in numbers.items():
        parsed = parse_key(key)
        if parsed is not None and parsed.variant is not None:
            variants.setdefault(parsed.variant, {})[parsed.metric.stem] = value
    questions = int(numbers.get(student_metric("questions").key(), 0))
    known = {name: value for name, value in variants.items() if isfinite(value.get("alignment/mean", nan))}
    parts = [f"{name} alignment {_alignment_with_interval(value)}" for name, value in known.items()]
    pass_rate, seconds = (
        numbers.get(metric.key(), nan) for metric in (student_metric("pass_rate"), evaluation_metric("seconds"))
    )
    parts += ["no alignment"] if not known else []
    parts += [f"pass rate {_number(pass_rate, 'share')}"] if isfinite(pass_rate) else []
    parts += [f"{questions} question{'s' if questions != 1 else ''}"]
    parts += [f"{seconds:.1f} s"] if isfinite(seconds) else []
    return f"opd-align at step {step:,}: {', '.join(parts)}"


def _alignment_with_interval(values: Mapping[str, float]) -> str:
    estimate = metrics.Estimate(
        values["alignment/mean"], values.get("alignment/half_width", nan), int(values.get("nodes/questions", 0))
    )
    weighted, gated = values.get("alignment/weighted", nan), values.get("gated/alignment", nan)
    notes = [_interval(estimate) if isfinite(estimate.half_width) else f"too few questions: {estimate.n}"]
    notes += [f"SR-weighted {_number(weighted)}"] if isfinite(weighted) else []
    notes += [f"with the gate {_number(gated)}"] if isfinite(gated) else []
    return f"{_number(estimate.mean)} ({'; '.join(notes)})"


def _estimate(estimate: metrics.Estimate) -> str:
    """An alignment with its interval, as in the tables unless the interval reaches beyond the scale."""
    if not abs(estimate.mean) + estimate.half_width > 1:
        return format_estimate(estimate)
    return f"{_number(estimate.mean)} ({_interval(estimate)})"


def _interval(estimate: metrics.Estimate) -> str:
    """The 95 % interval of a cosine, which ends where its scale ends."""
    low, high = max(estimate.mean - estimate.half_width, -1.0), min(estimate.mean + estimate.half_width, 1.0)
    return f"{_number(low)} to {_number(high)}"


def best_variant(training: Training) -> str | None:
    """The `<teacher>/<objective>` with the highest alignment at its newest evaluation; None if none is known."""
    newest = {name: results[-1] for name in training.variants if (results := _results(training, name))}
    return max(newest, key=lambda name: newest[name].alignment.mean, default=None)


def _results(training: Training, variant: str) -> list[_Result]:
    """The evaluations in which the alignment is known, oldest first."""
    label = training.labels[variant]
    results = [
        _Result(evaluation, variant, label) for evaluation in training.evaluations if variant in evaluation.variants
    ]
    return [result for result in results if isfinite(result.alignment.mean)]


def _student(evaluation: Evaluation, stem: str) -> float | None:
    return evaluation.common.get(student_metric(stem).key().removeprefix(PREFIX))


def _subject(last: _Result) -> str:
    teacher, _, objective = last.variant.rpartition("/")
    if teacher == REWARD:
        return f"the reward's own update ({objective})"
    return f"following {'the teacher' if last.label == 'teacher' else last.label}"


def _no_result(training: Training) -> str:
    if not training.evaluations:
        return "No evaluation yet."
    if training.evaluations[-1].waiting is not None:
        return f"No result yet: {training.evaluations[-1].waiting}."
    if all(evaluation.error is not None for evaluation in training.evaluations):
        return "No evaluation has succeeded yet."
    return "No evaluation has found a decision to compare yet."


def _difference(first: _Result, last: _Result) -> str:
    """How the headline differs from that of the first evaluation, if the intervals do not overlap."""
    rises, falls = is_above(last.alignment, first.alignment), is_above(first.alignment, last.alignment)
    if first is last or not (rises or falls):
        return ""
    sign = interval_sign(last.alignment)
    if sign != interval_sign(first.alignment):
        return f", unlike at {first.when}"
    return f", {'more' if (sign > 0) == rises else 'less'} than at {first.when}" if sign else ""


def _strength(last: _Result) -> str:
    estimate = last.alignment
    if not isfinite(estimate.half_width):
        least = f"at least {metrics.MIN_QUESTIONS} are needed"
        reason = f"there are too few questions for a confidence interval ({estimate.n}, {least})"
        return f"Its alignment is {_estimate(estimate)}; {reason} ({ALIGNMENT_SCALE})."
    questions = f" over {estimate.n:,} held-out questions" if estimate.n > 1 else ""
    zero = "" if interval_sign(estimate) else " The interval includes zero."
    return f"Its alignment is {_estimate(estimate)}, a 95 % interval{questions} ({ALIGNMENT_SCALE}).{zero}"


def _change(first: _Result, last: _Result) -> list[str]:
    if first is last:
        return ["This is the first evaluation, so there is no earlier one to compare with."]
    rises, falls = is_above(last.alignment, first.alignment), is_above(first.alignment, last.alignment)
    if first.too_few or last.too_few:
        return [f"At {first.when} it was {_estimate(first.alignment)}; too few questions to compare the two."]
    change = "it has risen" if rises else "it has fallen" if falls else "the change is inconclusive"
    overlap = "do not overlap" if rises or falls else "overlap"
    return [f"At {first.when} it was {_estimate(first.alignment)}: the intervals {overlap}, {change}."]


def _ranking(training: Training, last: _Result) -> list[str]:
    """How it compares with the others in the same evaluation."""
    labels, variants = training.labels, last.evaluation.variants
    others = [_Result(last.evaluation, name, labels[name]) for name in variants if name != last.variant]
    others = [other for other in others if isfinite(other.alignment.mean)]
    if not others:
        return []
    best = max(others, key=lambda other: other.alignment.mean)
    if last.alignment.mean < best.alignment.mean:
        return [f"The highest alignment is that of {best.label}: {_estimate(best.alignment)}."]
    overlap = "do not overlap" if is_above(last.alignment, best.alignment) else "overlap, so the order is inconclusive"
    return [f"The second highest is {best.label} with {_estimate(best.alignment)}; the intervals {overlap}."]


def _outcomes(last: _Result) -> list[str]:
    correct, incorrect, delta = (last.number(f"alignment/{name}") for name in ("correct", "incorrect", "delta"))
    if not (isfinite(correct) and isfinite(incorrect)):
        return ["There are no correct or no incorrect rollouts, so the two cannot be compared."]
    return [
        f"Mean alignment is {_number(incorrect)} on incorrect rollouts and {_number(correct)} on correct ones "
        f"(difference {_number(delta)}). {DELTA_CAUTION}."
    ]


def _pass_rate(training: Training) -> list[str]:
    rates = [
        (evaluation.step, rate)
        for evaluation in training.evaluations
        if (rate := _student(evaluation, "pass_rate")) is not None
    ]
    if not rates:
        return []
    (first, before), (last, now) = rates[0], rates[-1]
    change = f" (at step {first:,}: {_number(before, 'share')})" if first != last else ""
    return [f"The student's pass rate is {_number(now, 'share')}{change}."]


def _selection(last: _Result) -> list[str]:
    full, kept = last.number("oracle/full_signal"), last.number("oracle/cross_fitted_signal")
    if not (isfinite(full) and isfinite(kept)):
        return []
    filtered, share = last.number("filter/signal"), last.number("filter/kept")
    by_divergence = (
        f"; distilling only the {_number(share, 'share')} with the largest divergence, to {_number(filtered)}"
    )
    return [
        f"Distilling only the decisions with positive alignment would change the mean signal from {_number(full)} to "
        f"{_number(kept)} (selected on one half of the rollouts, measured on the other)"
        f"{by_divergence if isfinite(filtered) and isfinite(share) else ''}."
    ]


def _decided(last: _Result) -> list[str]:
    decided, count = last.number("alignment/decided"), _student(last.evaluation, "nodes")
    if not isfinite(decided):
        return []
    decisions = f"{int(count):,} decisions" if count is not None else "decisions"
    share = _number(decided, "share")
    return [f"At {share} of the {decisions} the update is clearly helpful or harmful; the others are undecided."]


def _failures(training: Training) -> list[str]:
    failed = [evaluation for evaluation in training.evaluations if evaluation.error is not None]
    if not failed:
        return []
    # The list of evaluations has the whole message.
    reason = ((failed[-1].error or "").strip().splitlines() or ["no error message"])[0][:200]
    count = f"{len(failed)} of {len(training.evaluations)} evaluations failed"
    return [f"{count}, most recently at step {failed[-1].step:,}: {reason}"]


def _number(value: float, kind: Kind = "signed") -> str:
    return format_cell(Cell(value), kind)
