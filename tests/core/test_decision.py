"""The recommendation: pairing, calibration, the null of equal teachers, what few questions can say."""

from __future__ import annotations

import json
from math import inf, isnan

import numpy as np
import pyarrow as pa
import pytest

from opd_align.core.alignment import SCHEMA
from opd_align.core.decision import MAX_MORE_QUESTIONS, Posterior, better_probabilities, decide, question_values
from opd_align.core.metrics import teacher_ranking
from opd_align.types import OpdAlignError


def table(values: dict, *, width: float = 0.0) -> pa.Table:
    """Nodes whose SR-weighted alignment per question is as given: (teacher, objective) → values, None is missing."""
    rows = []
    for (teacher, objective), value_Q in values.items():
        for question, value in enumerate(value_Q):
            if value is None:
                continue
            for depth, (sr, shift) in enumerate(((0.3, 0.1), (0.1, -0.3))):  # weighted mean of the shifts: zero
                row = dict.fromkeys(SCHEMA.names)
                row |= {
                    "question": f"q{question}", "path": 0, "path_correct": True, "path_length": 9, "depth": depth,
                    "token": 1, "teacher": teacher, "objective": objective, "alignment": value + shift,
                    "alignment_low": value + shift - width, "alignment_high": value + shift + width,
                    "sr_range": sr, "children": 2, "verdict": "undecided", "advantage": 0.0,
                }  # fmt: skip
                rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def pairs(**values: list) -> dict:
    return {(teacher, "reverse_kl"): value_Q for teacher, value_Q in values.items()}


GOOD = [0.5, 0.6, 0.4, 0.7, 0.5, 0.3, 0.6, 0.5, 0.4, 0.6]


def test_the_values_per_question_have_the_mean_of_the_ranking():
    nodes = table(pairs(A=GOOD, B=[-value for value in GOOD]))
    found, value_QP, _ = question_values(nodes)
    rank_of = {rank.teacher: rank for rank in teacher_ranking(nodes)}
    assert found == [("A", "reverse_kl"), ("B", "reverse_kl")]
    for (teacher, _), value_Q in zip(found, value_QP.T, strict=True):
        assert value_Q.mean() == pytest.approx(rank_of[teacher].weighted_cosine.mean)


def test_a_clear_winner_is_recommended_and_a_clear_loser_is_harmful():
    decision = decide(table(pairs(bad=[-value for value in GOOD], good=GOOD, none=[0.1, -0.1] * 5)))
    assert decision.outcome == "recommended"
    assert decision.decided
    assert [one.teacher for one in decision.candidates] == ["good", "none", "bad"]
    assert [one.teacher for one in decision.harmful] == ["bad"]
    assert decision.best is not None
    assert decision.best.p_helps > 0.99
    assert decision.still_open == ()
    assert decision.better[0][2] > 0.99
    assert decision.better[2][0] == pytest.approx(1 - decision.better[0][2])


def test_comparisons_are_paired_over_questions():
    # The questions differ far more than the teachers do, but each question says the same about the two.
    base = np.array([-0.8, 0.8, -0.5, 0.6, 0.0, 0.3, -0.3, 0.7, -0.6, 0.1])
    jitter = np.array([0.01, -0.01] * 5)
    paired = decide(table(pairs(A=list(base + 0.1 + jitter), B=list(base))))
    mixed = decide(table(pairs(A=list(base + 0.1 + jitter), B=list(base[::-1]))))
    assert paired.better[0][1] > 0.99
    assert mixed.better[0][1] < 0.9


def test_losses_are_compared_too_and_rewards_are_not_candidates():
    values = {("T", "reverse_kl"): GOOD, ("T", "forward_kl"): [value - 0.4 for value in GOOD], ("reward", "grpo"): GOOD}
    decision = decide(table(values))
    assert [(one.teacher, one.objective) for one in decision.candidates] == [("T", "reverse_kl"), ("T", "forward_kl")]
    assert decision.outcome == "recommended"


def test_two_losses_that_are_as_good_do_not_keep_a_teacher_undecided():
    jitter = [0.001, -0.001] * 5
    values = {("T", "reverse_kl"): GOOD, ("T", "forward_kl"): [a + b for a, b in zip(GOOD, jitter, strict=True)]}
    values |= {("S", name): [value - 0.4 for value in of_t] for (_, name), of_t in values.items()}
    decision = decide(table(values))
    assert decision.outcome == "recommended"
    assert [decision.candidates[at].teacher for at in decision.as_good] == ["T"]
    # Equal losses say nothing about how much teachers differ.
    alone = decide(table({pair: value_Q for pair, value_Q in values.items() if pair[1] == "reverse_kl"}))
    assert decision.better[0][2] == pytest.approx(alone.better[0][1], abs=0.02)


def test_no_teacher_helps_is_an_outcome_of_its_own():
    decision = decide(table(pairs(A=[-value for value in GOOD], B=[-value - 0.05 for value in GOOD])))
    assert decision.outcome == "no_teacher_helps"
    assert decision.decided
    assert decision.p_none_helps >= 0.95


def test_fewer_than_four_shared_questions_give_no_probability():
    decision = decide(table(pairs(A=[0.9, 0.8, 0.9], B=[-0.9, -0.8, -0.9])))
    assert decision.outcome == "too_few_questions"
    assert decision.better == ()
    assert decision.best is None
    assert all(isnan(one.p_helps) for one in decision.candidates)
    assert decision.n_questions == 3
    disjoint = decide(table(pairs(A=[*GOOD[:3], *[None] * 3], B=[*[None] * 3, *GOOD[:3]])))
    assert disjoint.outcome == "too_few_questions"
    assert decide(SCHEMA.empty_table()).outcome == "too_few_questions"


def test_a_teacher_with_few_questions_does_not_take_the_others_out():
    decision = decide(table(pairs(A=GOOD, B=[-value for value in GOOD], rare=[0.9, *[None] * 8, 0.9])))
    assert decision.n_questions == 10
    assert [one.teacher for one in decision.compared] == ["A", "B"]
    assert decision.candidates[2].teacher == "rare"
    assert isnan(decision.candidates[2].p_best)


@pytest.mark.parametrize("n", [4, 5, 8])
def test_n_questions_never_say_more_than_n_coins(n):
    decision = decide(table(pairs(A=[1.0] * n, B=[-1.0] * n)))
    assert decision.better[0][1] <= 1 - 2.0**-n
    assert decision.decided == (n >= 5)


def test_limits_hold_for_all_pairs_at_once_and_shrink_with_more_questions():
    rng = np.random.default_rng(5)
    effect, difference = [], []
    for n in (20, 80, 320):
        value_QK = 0.4 * rng.standard_normal((n, 3))
        value_QK -= value_QK.mean(0)  # equal teachers without an effect
        decision = decide(table(pairs(**{name: list(value_QK[:, at]) for at, name in enumerate("ABC")})))
        assert decision.outcome == "undecided"
        effect.append(decision.effect_limit)
        difference.append(decision.difference_limit)
    assert effect[0] > 1.5 * effect[1] > 2.2 * effect[2] > 0
    assert difference[0] > 1.5 * difference[1] > 2.2 * difference[2] > 0
    large = decide(table(pairs(A=GOOD, B=[-value for value in GOOD])))
    assert large.effect_limit > 0.5
    assert large.difference_limit > 1.0
    stored = json.loads(json.dumps(large.as_json()))
    assert stored["effect_limit"] == pytest.approx(large.effect_limit, abs=1e-4)


def test_no_limit_that_so_few_questions_cannot_give():
    four, alone = decide(table(pairs(A=GOOD[:4], B=GOOD[4:8]))), decide(table(pairs(A=GOOD)))
    assert isnan(four.effect_limit)  # four questions say nothing beyond 1 - 2**-4
    assert isnan(four.difference_limit)
    assert alone.effect_limit > 0.5
    assert isnan(alone.difference_limit)


def test_uncertain_values_that_agree_by_chance_are_not_certain():
    agreeing = pairs(A=[0.2, 0.21, 0.2, 0.19, 0.2, 0.2, 0.21, 0.19])
    sure, unsure = decide(table(agreeing)), decide(table(agreeing, width=1.6))
    assert sure.best is not None
    assert unsure.best is not None
    assert sure.best.p_helps > 0.99 > 0.95 > unsure.best.p_helps


def test_more_questions_decide_what_they_were_said_to_decide():
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((2, 8)) * 0.3
    noise -= noise.mean(1, keepdims=True)
    values = pairs(A=list(0.3 + noise[0]), B=list(0.15 + noise[1]))
    decision = decide(table(values))
    first = decision.still_open[0]
    assert first.other == 1
    assert first.more_questions is not None
    assert 8 <= first.more_questions <= 200
    # The same questions again, as often as needed, have the same means and spread.
    times = -(-(first.more_questions * 1.3 + 8) // 8)
    again = decide(table({pair: value_Q * int(times) for pair, value_Q in values.items()}))
    assert again.better[0][1] >= 0.94
    half = decide(table(values), n_analyzed=16).still_open[0]  # every second question had a value
    assert half.more_questions == pytest.approx(2 * first.more_questions, rel=0.35)


def test_more_questions_may_also_show_that_no_teacher_helps():
    slightly_bad = [-0.3, 0.2, -0.4, 0.1, -0.2, 0.05]
    first = decide(table(pairs(A=slightly_bad))).still_open[0]
    assert first.other is None
    assert first.probability < 0.5
    assert first.more_questions < 300


def test_equal_teachers_would_need_too_many_questions():
    equal = [0.3, -0.2, 0.4, 0.1, 0.2, 0.0]
    decision = decide(table(pairs(A=equal, B=equal[::-1])))
    assert decision.still_open[0].more_questions == inf
    assert MAX_MORE_QUESTIONS == 1000
    assert decision.better[0][1] == pytest.approx(0.5, abs=0.05)


def test_the_decision_is_json_and_always_the_same():
    nodes = table(pairs(A=GOOD, B=GOOD[::-1], C=[None] * 10))
    data = decide(nodes).as_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data == decide(nodes).as_json()
    assert data["headline"] == "alignment/weighted"
    assert data["open"][0]["against"] is not None


@pytest.mark.parametrize("level", [0.5, 1.0, 95.0])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(OpdAlignError, match="must lie between"):
        decide(table(pairs(A=GOOD)), level=level)


def simulated(n_tables: int, n_teachers: int, n: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For each made table, the probability that the teacher with the highest mean is best, and whether it is."""
    rng = np.random.default_rng(seed)
    probability, right = [], []
    for _ in range(n_tables):
        truth_K = 0.2 * rng.standard_normal() + spread * rng.standard_normal(n_teachers)
        question_Q1 = 0.35 * rng.standard_normal((n, 1))
        value_QK = truth_K + question_Q1 + 0.4 * rng.standard_normal((n, n_teachers))
        draws_DK = Posterior(value_QK).draws(n, n_draws=600)
        best = int(value_QK.mean(0).argmax())
        probability.append((draws_DK.argmax(1) == best).mean())
        right.append(truth_K[best] == truth_K.max())
    return np.array(probability), np.array(right)


@pytest.mark.parametrize(("n_teachers", "n"), [(2, 6), (2, 30), (6, 12)])
def test_equal_teachers_have_a_winner_in_at_most_one_of_twenty_tables(n_teachers, n):
    probability, _ = simulated(150, n_teachers, n, spread=0.0, seed=n)
    assert (probability >= 0.95).mean() <= 0.06


def test_of_the_winners_announced_at_nine_tenths_nine_tenths_are_right():
    parts = [simulated(120, k, n, spread=0.25, seed=k * n) for k, n in ((2, 6), (3, 10), (5, 20), (2, 40))]
    probability, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    announced = probability >= 0.9
    assert announced.sum() >= 60
    assert right[announced].mean() >= 0.9
    assert right[(probability > 0.5) & ~announced].mean() < 0.97  # probabilities are not far too low either


def test_probabilities_of_two_pairs_add_up():
    draws_DK = Posterior(np.random.default_rng(0).standard_normal((12, 4))).draws(12)
    better_KK = better_probabilities(draws_DK, 12)
    assert np.allclose(better_KK + better_KK.T, 1)


def test_more_pairs_than_questions_are_not_certain():
    rng = np.random.default_rng(1)
    draws_DK = Posterior(rng.standard_normal((5, 20))).draws(5)
    assert np.bincount(draws_DK.argmax(1), minlength=20).max() / len(draws_DK) < 0.9
