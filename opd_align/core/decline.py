"""Has the student become worse? Pass rates of a training's evaluations, compared question by question.

Evaluations ask the same questions, so how hard each of them is cancels out: what is left is far more exact than the
difference of two means. An evaluation is compared with all earlier ones, since any of them may have been the best, and
the test is corrected for their number. Pure functions of pass rates; who measures them is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy import stats

from opd_align.core.metrics import MIN_QUESTIONS

LEVEL = 0.01
"""Probability that an evaluation of an unchanged student is said to be worse than an earlier one."""

MIN_ERROR = 0.01
"""Smallest standard error of a mean difference: training steps move a pass rate up and down by as much, and where a few
questions agree by chance, their own error is zero."""


@dataclass(frozen=True)
class PassRates:
    """What one evaluation measured.

    Args:
        step: The training step.
        by_question: Pass rate by question id, of the questions that could be graded.
    """

    step: int
    by_question: Mapping[str, float]


@dataclass(frozen=True)
class Decline:
    """How the latest evaluation compares with the earlier one that it is most surely worse than.

    Args:
        since: Step of that evaluation.
        before: Its mean pass rate, over the questions that both have.
        now: That of the latest evaluation, over the same questions.
        p_value: Probability of a fall like this if the student had not changed, corrected for the number of earlier
            evaluations.
    """

    since: int
    before: float
    now: float
    p_value: float

    @property
    def sure(self) -> bool:
        return self.p_value <= LEVEL


def decline(evaluations: Sequence[PassRates]) -> Decline | None:
    """The latest evaluation beside the earlier ones; `None` if it has too few questions in common with any of them."""
    if not evaluations:
        return None
    latest = evaluations[-1]
    found = [fall for earlier in evaluations[:-1] if (fall := _fall(earlier, latest)) is not None]
    if not found:
        return None
    worst = min(found, key=lambda each: (each.p_value, each.since))
    return Decline(worst.since, worst.before, worst.now, min(1.0, worst.p_value * len(found)))


def adjusted_means(evaluations: Sequence[PassRates]) -> dict[int, float]:
    """Mean pass rate of each evaluation relative to that of the same questions over all evaluations, by step.

    So evaluations of different questions can be compared, as the first ones under a limited overhead are.
    """
    rates: dict[str, list[float]] = {}
    for each in evaluations:
        for question, rate in each.by_question.items():
            rates.setdefault(question, []).append(rate)
    mean_of = {question: float(np.mean(of)) for question, of in rates.items()}
    return {
        each.step: float(np.mean([rate - mean_of[question] for question, rate in each.by_question.items()]))
        for each in evaluations
        if each.by_question
    }


def _fall(earlier: PassRates, latest: PassRates) -> Decline | None:
    """A paired one-sided t test; `None` below four common questions."""
    common = sorted(earlier.by_question.keys() & latest.by_question.keys())
    if len(common) < MIN_QUESTIONS:
        return None
    before_Q, now_Q = (np.array([each.by_question[question] for question in common]) for each in (earlier, latest))
    difference_Q = now_Q - before_Q
    error = max(float(difference_Q.std(ddof=1)) / sqrt(len(common)), MIN_ERROR)
    p_value = float(stats.t.cdf(difference_Q.mean() / error, len(common) - 1))
    return Decline(earlier.step, float(before_Q.mean()), float(now_Q.mean()), p_value)
