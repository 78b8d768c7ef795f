"""Falls of the pass rate, question by question."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from opd_align.core.decline import LEVEL, PassRates, adjusted_means, decline


def evaluation(step, rates):
    return PassRates(step, {f"q{i}": float(rate) for i, rate in enumerate(rates)})


def test_two_evaluations_are_compared_by_a_paired_test():
    rng = np.random.default_rng(0)
    before, now = rng.uniform(0.2, 0.9, 20), rng.uniform(0.0, 0.7, 20)
    found = decline([evaluation(0, before), evaluation(10, now)])
    assert (found.since, found.before, found.now) == (0, pytest.approx(before.mean()), pytest.approx(now.mean()))
    assert found.p_value == pytest.approx(stats.ttest_rel(now, before, alternative="less").pvalue)


def test_how_hard_questions_are_cancels_out():
    easy_and_hard = np.linspace(0, 1, 12)
    noise = np.tile([0.01, -0.01, 0.02], 4)
    found = decline([evaluation(0, easy_and_hard), evaluation(1, np.clip(easy_and_hard - 0.1 + noise, 0, 1))])
    assert found.sure
    unpaired = stats.ttest_ind(easy_and_hard - 0.1 + noise, easy_and_hard, alternative="less").pvalue
    assert unpaired > 0.1


def test_any_earlier_evaluation_may_have_been_the_best_and_their_number_is_corrected_for():
    rng = np.random.default_rng(1)
    rates = [rng.uniform(0.3, 0.5, 10), rng.uniform(0.6, 0.9, 10), rng.uniform(0.3, 0.5, 10), rng.uniform(0.3, 0.5, 10)]
    found = decline([evaluation(10 * i, each) for i, each in enumerate(rates)])
    assert found.since == 10
    assert found.p_value == pytest.approx(3 * stats.ttest_rel(rates[3], rates[1], alternative="less").pvalue)


def test_a_rise_is_no_fall():
    found = decline([evaluation(0, [0.1] * 8), evaluation(1, [0.9] * 8)])
    assert not found.sure
    assert found.p_value > 0.99


def test_too_few_common_questions_say_nothing():
    assert decline([]) is None
    assert decline([evaluation(0, [0.5] * 8)]) is None
    assert decline([evaluation(0, [0.9] * 3), evaluation(1, [0.0] * 8)]) is None
    assert decline([PassRates(0, {"a": 1.0, "b": 1.0}), PassRates(1, {"c": 0.0, "d": 0.0})]) is None
    found = decline([evaluation(0, [0.9] * 3), evaluation(1, [0.9] * 8), evaluation(2, [0.1] * 8)])
    assert (found.since, found.sure) == (1, True), "an evaluation of few questions is left out"


def test_questions_that_agree_by_chance_are_not_exact():
    assert not decline([evaluation(0, [0.5] * 4), evaluation(1, [0.49] * 4)]).sure


def test_a_small_fall_is_none_however_exact_it_is():
    many = np.linspace(0.1, 0.9, 400)
    small, large = (decline([evaluation(0, many), evaluation(1, many - fall)]) for fall in (0.02, 0.03))
    assert (small.sure, large.sure) == (False, True)


def ended(course, rng, *, questions=32, rollouts=32):
    """The evaluation at which a training with these logits of success would end; `None`: it does not."""
    hard_Q = rng.normal(0, 1.2, questions)
    seen = []
    for step, logit in enumerate(course):
        seen.append(evaluation(step, rng.binomial(rollouts, 1 / (1 + np.exp(-hard_Q - logit))) / rollouts))
        found = decline(seen)
        if found is not None and found.sure:
            return step
    return None


def test_a_student_that_does_not_change_is_rarely_said_to_be_worse():
    rng = np.random.default_rng(2)
    trainings, evaluations = 200, 11
    wrong = sum(ended([0.0] * evaluations, rng) is not None for _ in range(trainings))
    # Each of ten comparisons may be wrong with probability LEVEL; three standard errors on top.
    expected = LEVEL * (evaluations - 1)
    assert wrong / trainings <= expected + 3 * np.sqrt(expected / trainings)


def test_a_student_that_becomes_worse_is_noticed_soon():
    rng = np.random.default_rng(3)
    found = [ended([0.0, 0.3, 0.6, 0.6, 0.2, -0.2, -0.8, -1.5], rng) for _ in range(100)]
    assert None not in found
    assert np.mean([4 <= each <= 5 for each in found]) > 0.95


def test_means_are_adjusted_for_the_questions_that_were_asked():
    rng = np.random.default_rng(4)
    hard_Q, level = rng.uniform(0.2, 0.6, 30), {0: 0.0, 10: 0.2, 20: 0.1}
    asked = {0: range(30), 10: range(30), 20: range(30)}
    every = adjusted_means([PassRates(s, {str(q): hard_Q[q] + level[s] for q in asked[s]}) for s in level])
    assert every == pytest.approx({step: value - 0.1 for step, value in level.items()})
    hardest = np.argsort(hard_Q)[:8]
    some = {0: range(30), 10: [int(q) for q in hardest], 20: range(30)}
    found = adjusted_means([PassRates(s, {str(q): hard_Q[q] + level[s] for q in some[s]}) for s in level])
    assert max(found, key=found.get) == 10, "though its questions were the hardest"
    assert adjusted_means([PassRates(0, {})]) == {}
