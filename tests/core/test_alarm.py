"""The alarm: its filter against closed forms, its levels against simulated trainings whose truth is known."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from opd_align.core.alarm import DRIFTS, LEVELS, MIN_ERROR, PRIOR_SD, Alarm, Reading, alarms
from opd_align.types import OpdAlignError

STEPS = (0, 20, 60, 70, 170)
MEANS = (0.31, 0.12, -0.25, 0.04, -0.11)
ERRORS = (0.2, 0.15, 0.3, 0.1, 0.25)
READINGS = [Reading(*each) for each in zip(STEPS, MEANS, ERRORS, strict=True)]


def joint(drift: float) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of the alignments at `STEPS`, and of their readings: a random walk from a normal start."""
    walk = PRIOR_SD**2 + drift**2 * np.minimum.outer(STEPS, STEPS)
    return walk, walk + np.diag(np.square(ERRORS))


def posterior(drift: float) -> tuple[float, float]:
    """Mean and variance of the last alignment given all readings, by conditioning the joint distribution."""
    walk, observed = joint(drift)
    weights = np.linalg.solve(observed, walk[-1])
    return float(weights @ MEANS), float(walk[-1, -1] - weights @ walk[-1])


def simulated(truth: list[float], error: float, *, every: int, rng: np.random.Generator) -> list[Alarm]:
    noise = rng.normal(0, error, len(truth))
    return alarms([Reading(every * n, each + noise[n], error) for n, each in enumerate(truth)])


def test_the_filter_is_the_exact_posterior_of_a_random_walk():
    for drift in (0.0, 0.004, 0.05):
        mean, variance = posterior(drift)
        last = alarms(READINGS, drifts=[drift])[-1]
        assert last.mean == pytest.approx(mean, abs=1e-12)
        assert (last.high - last.low) / 2 == pytest.approx(1.959964 * variance**0.5, abs=1e-6)
        assert last.p_helps == pytest.approx(norm.cdf(mean / variance**0.5), abs=1e-12)


def test_drifts_are_averaged_with_the_probability_of_all_readings_under_each():
    drifts = [0.002, 0.03]
    likelihood = np.array([multivariate_normal.pdf(MEANS, cov=joint(drift)[1]) for drift in drifts])
    weight = likelihood / likelihood.sum()
    (mean_D, variance_D) = np.array([posterior(drift) for drift in drifts]).T
    last = alarms(READINGS, drifts=drifts)[-1]
    assert last.mean == pytest.approx(weight @ mean_D, abs=1e-12)
    assert last.p_helps == pytest.approx(weight @ norm.cdf(mean_D / np.sqrt(variance_D)), abs=1e-12)


def test_an_alarm_depends_on_earlier_readings_only_so_that_a_resumed_training_continues_it():
    whole = alarms(READINGS)
    assert [alarms(READINGS[: n + 1])[-1] for n in range(len(READINGS))] == whole
    assert alarms([]) == []


def test_readings_count_for_less_the_more_steps_have_passed_since():
    def after(steps: int) -> Alarm:
        return alarms([Reading(0, 0.5, 0.1), Reading(steps, nan, nan)])[-1]

    near, far = after(10), after(1000)
    assert near.mean == pytest.approx(far.mean)  # nothing was measured
    assert near.p_helps > far.p_helps > 0.5
    assert near.high - near.low < far.high - far.low


def test_missing_readings_are_unknown_before_the_first_and_never_an_alarm():
    first, second, third, fourth = alarms(
        [Reading(0, nan, nan), Reading(10, 0.4, nan), Reading(20, 0.4, 0.1), Reading(30, nan, 0.1)]
    )
    for unknown in (first, second):
        assert isnan(unknown.p_helps)
        assert isnan(unknown.mean)
        assert unknown.level == "unsure"
    assert third.level == fourth.level == "helps"
    # The prior belongs to the first known reading: nothing drifts before it.
    assert third == alarms([Reading(20, 0.4, 0.1)])[0]


def test_questions_that_agree_by_chance_do_not_make_a_reading_exact():
    (exact,) = alarms([Reading(0, -1.0, 0.0)])
    assert exact == alarms([Reading(0, -1.0, MIN_ERROR)])[0]
    assert exact.level == "harms"
    assert exact.low == -1


@pytest.mark.parametrize(
    ("means", "levels"),
    [
        ([0.02], ["unsure"]),
        ([0.4, 0.4], ["helps", "helps"]),
        # Below 0.9 again, but not below 0.5: the level stays.
        ([0.4, 0.02, 0.02], ["helps"] * 3),
        # Never helped: zero is not a fading.
        ([-0.02, -0.02], ["unsure"] * 2),
        ([-0.4, -0.4], ["harms"] * 2),
        ([-0.4, 0.3, 0.05], ["harms", "unsure", "unsure"]),
        ([0.4, -0.2, 0.1], ["helps", "fades", "fades"]),
        ([0.4, -0.6, -0.6], ["helps", "harms", "harms"]),
    ],
)
def test_levels_are_entered_at_one_probability_and_left_at_another(means, levels):
    found = alarms([Reading(100 * n, mean, 0.2) for n, mean in enumerate(means)], drifts=[0.02])
    assert [alarm.level for alarm in found] == levels, [alarm.p_helps for alarm in found]
    assert [alarm.raised for alarm in found] == [level in ("fades", "harms") for level in levels]
    assert [LEVELS[alarm.level] < 0 for alarm in found] == [alarm.raised for alarm in found]


def test_steps_must_increase():
    with pytest.raises(OpdAlignError, match="steps must increase, but 10 follows 10"):
        alarms([Reading(10, 0.1, 0.1), Reading(10, 0.2, 0.1)])


@pytest.mark.parametrize("every", [20, 100, 500])
def test_false_alarms_are_rare_while_alignment_stays_positive(every):
    rng = np.random.default_rng(every)
    trainings = [simulated([0.3] * 20, 0.2, every=every, rng=rng) for _ in range(200)]
    false = np.mean([any(alarm.raised for alarm in training) for training in trainings])
    assert false < 0.06
    # Single evaluations below zero are frequent: that is what pooling is for.
    assert norm.cdf(-0.3 / 0.2) * 20 > 1
    assert np.mean([training[-1].level == "helps" for training in trainings]) > 0.95


@pytest.mark.parametrize("every", [20, 100])
def test_a_decline_is_noticed_within_a_few_evaluations_of_zero(every):
    rng = np.random.default_rng(every)
    truth = np.linspace(0.3, -0.3, 25)  # zero at the thirteenth
    late = []
    for _ in range(200):
        raised = [n for n, alarm in enumerate(simulated(list(truth), 0.1, every=every, rng=rng)) if alarm.raised]
        late.append(raised[0] - 12)
    assert np.median(late) <= 2
    assert np.quantile(late, 0.9) <= 5
    assert np.mean(np.array(late) < -4) < 0.03  # while alignment is still above 0.1


def test_a_constant_is_pooled_more_as_readings_confirm_it():
    rng = np.random.default_rng(0)
    found = simulated([0.1] * 60, 0.2, every=100, rng=rng)
    width = [alarm.high - alarm.low for alarm in found]
    assert width[-1] < 0.4 * width[0]
    assert (DRIFTS[0], DRIFTS[-1]) == (0.001, 0.064)
