"""The overhead limit on a simulated clock and simulated ranks: evaluations never take more time than permitted."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.core.engine import question_groups
from opd_align.settings import Settings
from opd_align.training import calibrated_gate
from opd_align.training.callback import QUESTIONS_PER_GROUP
from opd_align.training.overhead import (
    FIRST_LIMIT_S,
    MIN_QUESTIONS,
    OVERRUN,
    OverheadLimit,
    group_size,
    invalid_fields,
    num_questions,
)

SMALLEST = OverheadLimit(1, 0.1).scales[-1]


def simulate(
    limit: OverheadLimit, steps: int, step_s: float, full_s: float, fixed_s: float = 0.0
) -> tuple[OverheadLimit, list]:
    """Simulates a training; an evaluation costs a fixed time and a time proportional to its scale."""
    made = []
    for step in range(steps + 1):
        if step:
            limit = limit.add_training(step_s)
        if limit.next_step > step:
            continue
        scale = limit.scale()
        if scale is None:
            limit = limit.skip(step)
            continue
        made.append((step, scale))
        limit = limit.add_evaluation(step, scale, fixed_s + limit.time_share(scale) * full_s)
    return limit, made


def test_without_a_limit_it_evaluates_at_the_start_and_at_every_nth_step_in_full():
    _, made = simulate(OverheadLimit(100, None), 300, 1.0, 50.0)
    assert made == [(0, 1.0), (100, 1.0), (200, 1.0), (300, 1.0)]


def test_the_first_evaluation_is_an_advance_of_the_smallest_size():
    _, made = simulate(OverheadLimit(10, 0.05), 0, 1.0, 1.0)
    assert made == [(0, SMALLEST)]


def test_cheap_evaluations_are_all_made_in_full():
    _, made = simulate(OverheadLimit(100, 0.05), 300, 10.0, 5.0)
    assert made == [(0, SMALLEST), (100, 1.0), (200, 1.0), (300, 1.0)]


def test_a_tight_limit_makes_evaluations_smaller_and_then_rarer():
    limit, made = simulate(OverheadLimit(100, 0.05), 2000, 1.0, 18.0)
    assert {scale for _, scale in made[1:]} < set(limit.scales)
    assert limit.overhead_share <= 0.05
    rare, few = simulate(OverheadLimit(100, 0.05), 2000, 1.0, 90.0)
    assert 1 < len(few) < len(made)
    assert all(scale == SMALLEST for _, scale in few)
    assert rare.overhead_share <= 0.05


@settings(max_examples=200, deadline=None)
@given(
    every=st.integers(1, 200),
    overhead=st.floats(0.01, 0.6),
    step_s=st.floats(0.01, 20),
    full_s=st.floats(0.01, 500),
    fixed=st.floats(0, 0.5),
)
def test_the_overhead_stays_within_the_limit_after_the_first_evaluation(every, overhead, step_s, full_s, fixed):
    fixed_s = fixed * full_s
    limit, made = simulate(OverheadLimit(every, overhead), 1500, step_s, full_s - fixed_s, fixed_s)
    advance = fixed_s + SMALLEST * (full_s - fixed_s)
    affordable = overhead / (1 - overhead) * limit.training_s
    # The first estimate, from the smallest scale, is conservative: only the first evaluation exceeds the allowance.
    assert limit.evaluation_s <= max(advance, affordable) + 1e-6
    assert made[0] == (0, SMALLEST)


def test_skipping_ends_when_the_smallest_evaluation_is_affordable():
    limit = OverheadLimit(10, 0.5, full_evaluation_s=20.0, evaluation_s=10.0).add_training(10.0)
    assert limit.scale() is None
    skipped = limit.skip(10)
    assert skipped.next_step == 20, "10 s short of the smallest, at 1 s per step and max_overhead=0.5"
    assert skipped.add_training(10.0).scale() == SMALLEST


def test_a_quick_failure_does_not_lower_the_estimated_cost():
    limit = OverheadLimit(10, 0.1).add_failure(0, SMALLEST, 0.01).add_training(100)
    assert limit.scale() == SMALLEST, "the cost is not known yet: the smallest"
    known = OverheadLimit(10, 0.1).add_evaluation(0, SMALLEST, 10).add_training(1000).add_failure(10, 1.0, 0.01)
    assert known.full_evaluation_s == 20
    assert known.add_failure(20, 1.0, 80).full_evaluation_s == 80


def test_repeated_failures_stay_within_the_limit():
    limit, made = OverheadLimit(1, 0.1), 0
    for step in range(500):
        limit = limit.add_training(1.0) if step else limit
        if limit.next_step <= step:
            limit = limit.skip(step) if limit.scale() is None else limit.add_failure(step, SMALLEST, 5.0)
            made = limit.num_evaluations
    assert 2 < made < 13
    assert limit.evaluation_s <= 500 / 9 + 5


def test_the_time_per_step_is_that_of_the_steps_since_it_started():
    late = OverheadLimit(10, 0.5, full_evaluation_s=20.0, evaluation_s=10.0, start_step=5000).add_training(10.0)
    assert late.skip(5010).next_step == 5020, "a callback added at step 5000"


def test_a_checkpoint_restores_the_schedule_unless_the_interval_changed():
    before = OverheadLimit(10, 0.1).add_training(100).add_evaluation(20, 0.5, 3.0)
    assert OverheadLimit(10, 0.1).load_state_dict(before.state_dict()) == before
    other = OverheadLimit(7, 0.2).load_state_dict(before.state_dict())
    assert (other.every_n_steps, other.max_overhead, other.next_step) == (7, 0.2, 0)
    assert other.evaluation_s == before.evaluation_s
    assert OverheadLimit(10, None).allowance_s == inf
    more = OverheadLimit(10, 0.1, num_questions=80).load_state_dict(before.state_dict())
    assert (more.next_step, more.full_evaluation_s) == (before.next_step, None), (
        "the cost estimate is not valid for ten times the questions"
    )


@pytest.mark.parametrize("value", [None, "12", -1.0, float("nan"), float("inf"), True, [1]])
@pytest.mark.parametrize("name", ["training_s", "next_step", "num_evaluations", "full_evaluation_s", "last_step"])
def test_invalid_values_of_a_checkpoint_keep_the_new_ones(name, value):
    before = OverheadLimit(10, 0.1).add_training(100).add_evaluation(20, 0.5, 3.0)
    new = OverheadLimit(10, 0.1, start_step=20)
    state = {**before.state_dict(), name: value}
    if value is None and name in ("full_evaluation_s", "last_step"):
        assert invalid_fields(state) == []
        return
    assert invalid_fields(state) == [name]
    loaded = new.load_state_dict(state)
    kept = {"evaluation_s", "training_s", "start_step"} if name == "training_s" else {name}
    for field in before.state_dict():
        assert getattr(loaded, field) == getattr(new if field in kept else before, field), field
    del state[name]
    assert new.load_state_dict(state) == loaded


@pytest.mark.parametrize(
    ("questions", "expected"),
    [(1, [1]), (3, [3]), (5, [5, 4]), (8, [8, 4]), (12, [12, 6, 4]), (500, [500, 250, 125, 63, 32, 16, 8, 4])],
)
def test_scales_go_down_to_four_questions(questions, expected):
    assert [num_questions(questions, scale) for scale in OverheadLimit(1, 0.1, questions).scales] == expected


def test_the_overhead_is_a_share_of_the_total_wall_time():
    assert OverheadLimit(1, 0.1).add_training(30).add_evaluation(0, 1.0, 10).overhead_share == pytest.approx(0.25)


# -- several ranks ------------------------------------------------------------------------------------------------


def busiest(questions: int, ranks: int) -> int:
    """Questions of the busiest rank, when groups are assigned to the ranks in turn."""
    settings = Settings(questions_per_group=group_size(questions, ranks, QUESTIONS_PER_GROUP))
    groups = question_groups(range(questions), settings)  # type: ignore[arg-type]
    return max(sum(map(len, groups[rank::ranks])) for rank in range(ranks))


def simulate_ranks(limit: OverheadLimit, steps: int, step_s: float, question_s: float) -> tuple[OverheadLimit, list]:
    """Simulates a training in which each rank takes `question_s` for each of its questions."""
    made = []
    for step in range(steps + 1):
        limit = limit.add_training(step_s) if step else limit
        if limit.next_step > step:
            continue
        scale = limit.scale()
        if scale is None:
            limit = limit.skip(step)
            continue
        questions = num_questions(limit.num_questions, scale)
        made.append((step, questions))
        limit = limit.add_evaluation(step, scale, question_s * busiest(questions, limit.ranks))
    return limit, made


@pytest.mark.parametrize(
    ("questions", "ranks", "expected"),
    [
        (8, 8, [8]), (32, 8, [32, 16, 8]), (4, 8, [4]), (8, 2, [8, 4]), (6, 3, [6]), (40, 8, [40, 24, 16, 8]),
        (100, 64, [100, 64]), (1, 2, [1]),
    ],
)  # fmt: skip
def test_the_smallest_evaluation_leaves_no_rank_idle(questions, ranks, expected):
    limit = OverheadLimit(1, 0.1, questions, ranks)
    assert [num_questions(questions, scale) for scale in limit.scales] == expected
    assert limit.time_share(1.0) == 1


def test_the_time_of_an_evaluation_is_that_of_the_questions_of_one_rank():
    limit = OverheadLimit(1, 0.1, 32, ranks=8)
    smallest = limit.add_evaluation(0, limit.scales[-1], 10.0)
    assert smallest.full_evaluation_s == 40.0, "one question per rank, and four on all: not 16 times two questions"
    assert limit.add_evaluation(0, 2 / 32, 10.0).full_evaluation_s == 40.0, "two questions take as long as eight"


def test_with_eight_ranks_every_evaluation_can_move_a_calibrated_gate():
    assert MIN_QUESTIONS == calibrated_gate.MIN_QUESTIONS
    limit, made = simulate_ranks(OverheadLimit(100, 0.05, 8, ranks=8), 2000, 1.0, 20.0)
    assert {questions for _, questions in made} == {8}
    assert len(made) > 2, "eight questions take 20 s of the 105 s that 2,000 steps allow"
    assert limit.overhead_share <= 0.05
    alone, made_alone = simulate_ranks(OverheadLimit(100, 0.05, 8), 2000, 1.0, 20.0)
    assert {questions for _, questions in made_alone} == {4}
    assert len(made_alone) < len(made)
    assert alone.evaluation_s == 80.0, "the advance"


@settings(max_examples=200, deadline=None)
@given(
    questions=st.integers(1, 100),
    ranks=st.integers(1, 64),
    every=st.integers(1, 100),
    overhead=st.floats(0.01, 0.6),
    question_s=st.floats(0.01, 100),
)
def test_the_overhead_stays_within_the_limit_on_any_number_of_ranks(questions, ranks, every, overhead, question_s):
    limit, made = simulate_ranks(OverheadLimit(every, overhead, questions, ranks), 500, 1.0, question_s)
    assert made[0] == (0, num_questions(questions, limit.scales[-1]))
    affordable = overhead / (1 - overhead) * limit.training_s
    advance = question_s * busiest(made[0][1], ranks)
    # Groups of equal size are at most one question per group larger than the share of a rank.
    largest = question_s * max(busiest(number, ranks) for _, number in made)
    assert limit.evaluation_s <= max(advance, affordable + 0.5 * largest) + 1e-6
    assert all(number >= min(MIN_QUESTIONS, questions) for _, number in made)


@given(questions=st.integers(1, 300), ranks=st.integers(1, 64))
def test_groups_give_all_ranks_work(questions, ranks):
    size = group_size(questions, ranks, QUESTIONS_PER_GROUP)
    assert 1 <= size <= QUESTIONS_PER_GROUP
    fair = -(-questions // ranks)
    assert fair <= busiest(questions, ranks) < fair + -(-fair // QUESTIONS_PER_GROUP)
    if questions % ranks == 0 and fair <= QUESTIONS_PER_GROUP:
        assert size == fair, "one group per rank"


def test_a_cost_estimate_is_not_kept_for_another_number_of_ranks():
    before = OverheadLimit(10, 0.1, 32, ranks=8).add_training(100).add_evaluation(20, 0.25, 3.0)
    assert OverheadLimit(10, 0.1, 32, ranks=8).load_state_dict(before.state_dict()) == before
    assert OverheadLimit(10, 0.1, 32, ranks=1).load_state_dict(before.state_dict()).full_evaluation_s is None


def test_the_time_limit_of_an_evaluation_follows_its_estimated_time():
    limit = OverheadLimit(10, 0.1, 32, ranks=8)
    assert limit.time_limit_s(0.25) == FIRST_LIMIT_S
    known = limit.add_evaluation(0, 0.25, 5.0)
    assert known.time_limit_s(0.25) == OVERRUN * 5
    assert known.time_limit_s(1.0) == OVERRUN * 20
    assert known.add_training(9000).time_limit_s(0.25) == pytest.approx(995), "more is affordable"
    assert OverheadLimit(10, None).time_limit_s(1.0) is None
