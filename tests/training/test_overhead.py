"""The overhead limit on a simulated clock: evaluations never take more time than permitted."""

from __future__ import annotations

from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.training.overhead import OverheadLimit

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
        limit = limit.add_evaluation(step, scale, fixed_s + scale * full_s)
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
    rare, few = simulate(OverheadLimit(100, 0.05), 2000, 1.0, 180.0)
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
    limit = OverheadLimit(10, 0.5, full_evaluation_s=40.0, evaluation_s=10.0).add_training(10.0)
    assert limit.scale() is None
    skipped = limit.skip(10)
    assert skipped.next_step == 20, "10 s short of the smallest, at 1 s per step and max_overhead=0.5"
    assert skipped.add_training(10.0).scale() == SMALLEST


def test_a_quick_failure_does_not_lower_the_estimated_cost():
    limit = OverheadLimit(10, 0.1).add_failure(0, SMALLEST, 0.01).add_training(100)
    assert limit.scale() == SMALLEST, "the cost is not known yet: the smallest"
    known = OverheadLimit(10, 0.1).add_evaluation(0, SMALLEST, 10).add_training(1000).add_failure(10, 1.0, 0.01)
    assert known.full_evaluation_s == 40
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
    late = OverheadLimit(10, 0.5, full_evaluation_s=40.0, evaluation_s=10.0, start_step=5000).add_training(10.0)
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


@pytest.mark.parametrize(
    ("questions", "expected"),
    [(1, [1]), (2, [2]), (3, [3, 2]), (5, [5, 3, 2]), (8, [8, 4, 2]), (500, [500, 250, 125, 63, 32, 16, 8, 4, 2])],
)
def test_scales_go_down_to_two_questions(questions, expected):
    assert [ceil(size * questions) for size in OverheadLimit(1, 0.1, questions).scales] == expected


def test_the_overhead_is_a_share_of_the_total_wall_time():
    assert OverheadLimit(1, 0.1).add_training(30).add_evaluation(0, 1.0, 10).overhead_share == pytest.approx(0.25)
