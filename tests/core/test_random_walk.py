"""The random walk behind alarm, mix and schedule, against a Gaussian posterior that is written out in full."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from opd_align.core.alarm import alarms
from opd_align.core.random_walk import (
    DRIFTS,
    MIN_ERROR,
    PRIOR_SD,
    Reading,
    cumulative_gain,
    expected_alignment,
    filtered,
    smoothed,
)
from opd_align.types import OpdAlignError

FLOATS = st.floats(-1, 1, allow_nan=False)


def slow(readings, drifts=DRIFTS):
    """The joint posterior of all steps from the known readings, for each speed, with its probability."""
    start = next(n for n, reading in enumerate(readings) if reading.known)
    kept = readings[start:]
    seen = [n for n, reading in enumerate(kept) if reading.known]
    time = np.array([reading.step - kept[0].step for reading in kept], float)
    mean = np.array([kept[n].mean for n in seen])
    noise = np.diag([max(kept[n].standard_error, MIN_ERROR) ** 2 for n in seen])
    found, evidence = [], []
    for drift in drifts:
        prior = PRIOR_SD**2 + drift**2 * np.minimum.outer(time, time)
        observed = prior[np.ix_(seen, seen)] + noise
        gain = prior[:, seen] @ np.linalg.inv(observed)
        found.append((gain @ mean, np.diag(prior - gain @ prior[seen])))
        evidence.append(multivariate_normal.logpdf(mean, np.zeros(len(seen)), observed))
    weight = np.exp(np.array(evidence) - max(evidence))
    return start, weight / weight.sum(), np.array([m for m, _ in found]), np.array([v for _, v in found])


@given(
    st.lists(st.tuples(st.integers(1, 200), st.none() | FLOATS, st.floats(0, 0.6)), min_size=1, max_size=9).filter(
        lambda rows: any(mean is not None for _, mean, _ in rows)
    )
)
def test_the_smoother_is_the_joint_posterior(rows):
    steps = np.cumsum([gap for gap, _, _ in rows])
    readings = [
        Reading(int(step), nan if mean is None else mean, error)
        for step, (_, mean, error) in zip(steps, rows, strict=True)
    ]
    start, weight, mean, variance = slow(readings)
    ours = smoothed(readings)
    assert ours[:start] == [None] * start
    for n, each in enumerate(ours[start:]):
        assert each.weight_D == pytest.approx(weight, abs=1e-9)
        assert each.mean_D == pytest.approx(mean[:, n], abs=1e-9)
        assert each.variance_D == pytest.approx(variance[:, n], abs=1e-9)
    last = filtered(readings)[-1]
    assert (last.mean, last.sd, last.p_positive) == (ours[-1].mean, ours[-1].sd, ours[-1].p_positive)


def test_the_alarm_reads_the_filter():
    readings = [Reading(20 * n, mean, 0.2) for n, mean in enumerate([nan, 0.4, 0.1, -0.3])]
    states, posteriors = alarms(readings), filtered(readings)
    assert isnan(states[0].mean)
    assert posteriors[0] is None
    for state, posterior in zip(states[1:], posteriors[1:], strict=True):
        assert (state.mean, state.p_helps) == (posterior.mean, posterior.p_positive)


def test_smoothing_dates_a_change_earlier_than_the_filter():
    truth = [0.3] * 5 + [-0.3] * 5
    readings = [Reading(20 * n, mean, 0.25) for n, mean in enumerate(truth)]
    turned = [next(n for n, each in enumerate(rule(readings)) if each.mean < 0) for rule in (smoothed, filtered)]
    assert turned[0] == 5
    assert turned[1] > turned[0]


def test_the_gain_is_largest_where_alignment_changes_its_sign():
    readings = [Reading(10 * n, mean, 0.05) for n, mean in enumerate([0.4, 0.4, 0.2, -0.2, -0.4, -0.4])]
    gain = cumulative_gain(readings, [0, 10, 20, 25, 30, 50, 80])
    assert gain[0] == 0
    assert int(np.argmax(gain)) == 3
    assert gain[-1] == gain[-2], "nothing is known after the last reading"
    assert gain[1] == pytest.approx(4, abs=0.3)
    mean = expected_alignment(readings, [-5, 0, 20, 25, 30, 60])
    assert mean[1:5] == pytest.approx([0.4, 0.2, 0, -0.2], abs=0.06)
    assert isnan(mean[0])
    assert isnan(mean[5])


def test_before_the_first_known_reading_nothing_is_known():
    readings = [Reading(0, nan, nan), Reading(10, 0.2, 0.1)]
    assert smoothed(readings)[0] is None
    assert isnan(cumulative_gain(readings, [0])[0])
    assert isnan(cumulative_gain(readings[:1], [0])[0])
    assert smoothed([]) == filtered([]) == []
    with pytest.raises(OpdAlignError, match="steps must increase"):
        smoothed([Reading(5, 0.1, 0.1), Reading(5, 0.1, 0.1)])
