"""The time limit of an evaluation: inside sampling, and without favouring short rollouts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.trainings import add_alignment, held_out, make

from opd_align import OpdAlignError
from opd_align.backends.exact import ExactWorld
from opd_align.training import time_limit
from opd_align.training.time_limit import ENGINE_ROLLOUTS, TimedStudent, TimeLimit, TimeLimitExceeded
from opd_align.types import Question, SampleRequest

QUESTION = Question("one", "How many?", "3")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    made = SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr(time_limit, "time", made)
    return made


def request(n, prefix=(), first=0):
    return SampleRequest(QUESTION, np.array(prefix, np.uint32), n, first)


def test_a_limit_counts_from_its_construction(clock):
    clock.now = 100.0
    limit, none = TimeLimit(5.0), TimeLimit()
    clock.now = 105.0
    limit.check()
    clock.now = 105.1
    with pytest.raises(TimeLimitExceeded, match="its time limit of 5 s while sampling; use a smaller budget"):
        limit.check()
    clock.now = 1e12
    none.check()


def test_before_the_limit_the_rollouts_are_those_of_the_student(clock):
    world = ExactWorld.random(seed=3)
    requests = [request(ENGINE_ROLLOUTS), request(40, first=ENGINE_ROLLOUTS), request(7, first=1000)]
    timed, plain = TimedStudent(world, TimeLimit(5.0)).sample(requests), world.sample(requests)
    assert timed.key_R.tolist() == plain.key_R.tolist()
    assert timed.tokens.tolist() == plain.tokens.tolist()
    assert TimedStudent(world, TimeLimit()).fingerprint == world.fingerprint


def test_after_the_limit_targeted_rollouts_are_failures_and_initial_ones_an_error(clock):
    world = ExactWorld.random(seed=3)
    timed = TimedStudent(world, TimeLimit(5.0))
    token = int(world.sample([request(1)]).tokens[0])
    clock.now = 6.0
    rollouts = timed.sample([request(3, (token,)), request(2, first=50)])
    assert (len(rollouts), len(rollouts.failures)) == (0, 5)
    keys = np.concatenate(world.keys([request(3, (token,)), request(2, first=50)]))
    assert [failure.key for failure in rollouts.failures] == keys.tolist()
    with pytest.raises(TimeLimitExceeded):
        timed.sample([request(3)])


def test_an_engine_is_asked_in_parts_and_a_batch_is_dropped_as_a_whole(clock):
    world, calls = ExactWorld.random(seed=3), []

    def sample(requests):
        calls.append(sum(each.n for each in requests))
        clock.now += 3.0
        return world.sample(requests)

    engine = SimpleNamespace(sample=sample, keys=world.keys)
    requests = [request(100, first=100 * (number + 1)) for number in range(10)]
    rollouts = TimedStudent(engine, TimeLimit(5.0)).sample(requests)
    assert calls == [300, 300], "the third part would have started after the limit"
    assert (len(rollouts), len(rollouts.failures)) == (0, 1000), "finished ones alone would favour short rollouts"


def test_an_evaluation_that_reaches_its_limit_keeps_the_questions_that_it_has_sampled(tmp_path, clock, caplog):
    callback = add_alignment(make("distillation", tmp_path), questions=held_out(3))
    callback.settings = replace(callback.settings, questions_per_group=1)
    with pytest.raises(OpdAlignError, match="time limit"):
        callback.evaluate(time_limit_s=-1.0)
    full, _ = callback.evaluate(time_limit_s=5.0)
    assert full.questions["failed"].to_pylist() == [0, 0, 0]
    graded = callback.evaluator.held_out.verifier
    outcomes = graded.outcomes

    def stop_the_clock(*args, **kwargs):
        clock.now = 1e6  # the first question's initial rollouts are sampled and graded
        return outcomes(*args, **kwargs)

    object.__setattr__(graded, "outcomes", stop_the_clock)
    callback.adapter.trainer.state.global_step = 1  # nothing of the evaluation above is reused
    part, _ = callback.evaluate(time_limit_s=5.0)
    assert part.questions["question"].to_pylist() == full.questions["question"].to_pylist()[:1]
    (row,) = part.questions.to_pylist()
    assert row["initial"] == callback.settings.budget.initial
    assert row["failed"] > 0
    assert "Time limit of the evaluation: 1 of 3 questions were analyzed" in caplog.text


def test_the_seconds_of_a_budget_limit_an_evaluation_too(tmp_path):
    callback = add_alignment(make("distillation", tmp_path), questions=held_out(3))
    limited = replace(callback.settings, budget=replace(callback.settings.budget, seconds=10.0))
    limit = callback.evaluator._time_limit
    assert limit(callback.settings, 1.0, None).seconds is None
    assert limit(limited, 1.0, None).seconds == 60.0, "three questions, and as much again for all else"
    assert limit(limited, 1.0, 7.0).seconds == 7.0
