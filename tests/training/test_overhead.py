"""The governor on a clock of paper: what it allows never costs more than it was given."""

from __future__ import annotations

from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd_align.training.overhead import OverheadLimit

SMALLEST = OverheadLimit(1, 0.1).sizes[-1]


def lived(
    governor: OverheadLimit, steps: int, step_s: float, full_s: float, fixed_s: float = 0.0
) -> tuple[OverheadLimit, list]:
    """A training of so many steps; an evaluation costs a fixed part and one that goes with its size."""
    made = []
    for step in range(steps + 1):
        if step:
            governor = governor.trained(step_s)
        if governor.due > step:
            continue
        scale = governor.scale()
        if scale is None:
            governor = governor.waiting(step)
            continue
        made.append((step, scale))
        governor = governor.evaluated(step, scale, fixed_s + scale * full_s)
    return governor, made


def test_without_a_limit_it_evaluates_at_the_start_and_at_every_nth_step_in_full():
    _, made = lived(OverheadLimit(100, None), 300, 1.0, 50.0)
    assert made == [(0, 1.0), (100, 1.0), (200, 1.0), (300, 1.0)]


def test_the_first_evaluation_is_an_advance_of_the_smallest_size():
    _, made = lived(OverheadLimit(10, 0.05), 0, 1.0, 1.0)
    assert made == [(0, SMALLEST)]


def test_where_evaluations_are_cheap_all_are_made_in_full():
    _, made = lived(OverheadLimit(100, 0.05), 300, 10.0, 5.0)
    assert made == [(0, SMALLEST), (100, 1.0), (200, 1.0), (300, 1.0)]


def test_a_shortage_makes_evaluations_smaller_and_then_rarer():
    governor, made = lived(OverheadLimit(100, 0.05), 2000, 1.0, 18.0)
    assert {scale for _, scale in made[1:]} < set(governor.sizes)
    assert governor.share <= 0.05
    rare, few = lived(OverheadLimit(100, 0.05), 2000, 1.0, 180.0)
    assert 1 < len(few) < len(made)
    assert all(scale == SMALLEST for _, scale in few)
    assert rare.share <= 0.05


@settings(max_examples=200, deadline=None)
@given(
    every=st.integers(1, 200),
    overhead=st.floats(0.01, 0.6),
    step_s=st.floats(0.01, 20),
    full_s=st.floats(0.01, 500),
    fixed=st.floats(0, 0.5),
)
def test_the_share_stays_within_the_limit_once_the_advance_is_paid_back(every, overhead, step_s, full_s, fixed):
    fixed_s = fixed * full_s
    governor, made = lived(OverheadLimit(every, overhead), 1500, step_s, full_s - fixed_s, fixed_s)
    advance = fixed_s + SMALLEST * (full_s - fixed_s)
    affordable = overhead / (1 - overhead) * governor.trained_s
    # A first guess from the smallest size errs on the careful side, so nothing beyond the advance is overdrawn.
    assert governor.spent_s <= max(advance, affordable) + 1e-6
    assert made[0] == (0, SMALLEST)


def test_waiting_ends_when_the_smallest_evaluation_can_be_paid():
    governor = OverheadLimit(10, 0.5, full_s=40.0, spent_s=10.0).trained(10.0)
    assert governor.scale() is None
    waiting = governor.waiting(10)
    assert waiting.due == 20, "10 s short of the smallest at 1 s a step and an even share"
    assert waiting.trained(10.0).scale() == SMALLEST


def test_a_quick_failure_says_nothing_of_what_an_evaluation_costs():
    governor = OverheadLimit(10, 0.1).failed(0, SMALLEST, 0.01).trained(100)
    assert governor.scale() == SMALLEST, "nothing is known yet: the smallest"
    known = OverheadLimit(10, 0.1).evaluated(0, SMALLEST, 10).trained(1000).failed(10, 1.0, 0.01)
    assert known.full_s == 40
    assert known.failed(20, 1.0, 80).full_s == 80


def test_failures_one_after_the_other_stay_within_the_limit():
    governor, made = OverheadLimit(1, 0.1), 0
    for step in range(500):
        governor = governor.trained(1.0) if step else governor
        if governor.due <= step:
            governor = governor.waiting(step) if governor.scale() is None else governor.failed(step, SMALLEST, 5.0)
            made = governor.made
    assert 2 < made < 13
    assert governor.spent_s <= 500 / 9 + 5


def test_the_pace_is_that_of_the_steps_on_its_clock():
    late = OverheadLimit(10, 0.5, full_s=40.0, spent_s=10.0, since=5000).trained(10.0)
    assert late.waiting(5010).due == 5020, "a callback that came to a training at step 5000"


def test_a_checkpoint_keeps_the_schedule_but_not_that_of_another_rhythm():
    before = OverheadLimit(10, 0.1).trained(100).evaluated(20, 0.5, 3.0)
    assert OverheadLimit(10, 0.1).resumed(before.state()) == before
    other = OverheadLimit(7, 0.2).resumed(before.state())
    assert (other.every, other.max_overhead, other.due) == (7, 0.2, 0)
    assert other.spent_s == before.spent_s
    assert OverheadLimit(10, None).allowance_s == inf
    more = OverheadLimit(10, 0.1, questions=80).resumed(before.state())
    assert (more.due, more.full_s) == (before.due, None), "ten times the questions cost something else"


@pytest.mark.parametrize(
    ("questions", "asked"),
    [(1, [1]), (2, [2]), (3, [3, 2]), (5, [5, 3, 2]), (8, [8, 4, 2]), (500, [500, 250, 125, 63, 32, 16, 8, 4, 2])],
)
def test_sizes_go_down_to_two_questions_however_many_there_are(questions, asked):
    assert [ceil(size * questions) for size in OverheadLimit(1, 0.1, questions).sizes] == asked


def test_the_share_is_of_all_wall_time():
    assert OverheadLimit(1, 0.1).trained(30).evaluated(0, 1.0, 10).share == pytest.approx(0.25)
