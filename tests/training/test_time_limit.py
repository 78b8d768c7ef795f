"""The time limit of an evaluation: inside sampling, and without favouring short rollouts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.trainings import add_alignment, held_out, make

from opd_align import OpdAlignError
from opd_align.backends.exact import ExactWorld
from opd_align.training import time_limit
from opd_align.training.demonstration_cache import DemonstrationCache
from opd_align.training.time_limit import (
    ENGINE_ROLLOUTS,
    TimedStudent,
    TimeLimit,
    TimeLimitExceeded,
    completed_share,
)
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
    assert 0 < completed_share(part.questions, callback.evaluator.num_selected) < 1 / 3
    assert completed_share(full.questions, 3) == 1
    assert part.questions["question"].to_pylist() == full.questions["question"].to_pylist()[:1]
    (row,) = part.questions.to_pylist()
    assert row["initial"] == callback.settings.budget.initial
    assert row["failed"] > 0
    assert "Time limit of the evaluation: 1 of 3 questions were analyzed" in caplog.text


def row(initial, targeted, failed, unknown=0):
    return {"initial": initial, "targeted": targeted, "failed": failed, "unknown": unknown}


@pytest.mark.parametrize(
    ("rows", "selected", "share"),
    [
        ([row(8, 24, 0), row(6, 24, 0, unknown=2)], 2, 1.0),
        ([row(8, 24, 0)], 4, 0.25),
        ([row(8, 24, 0), row(8, 0, 24)], 4, (1 + 0.25) / 4),
        ([row(0, 0, 9)], 2, 1e-3),
    ],
)
def test_the_completed_share_counts_questions_and_their_rollouts(rows, selected, share):
    assert completed_share(pa.Table.from_pylist(rows), selected) == pytest.approx(share)


def test_an_evaluation_that_was_cut_is_booked_with_its_share(tmp_path, clock):
    """Four questions, one of which is sampled in a second before the limit: a full evaluation takes four seconds."""
    trainer = make("distillation", tmp_path)
    callback = add_alignment(trainer, questions=held_out(4), max_overhead=0.9)
    callback.settings = replace(callback.settings, questions_per_group=1)
    graded = callback.evaluator.held_out.verifier
    outcomes = graded.outcomes

    def stop_the_clock(*args, **kwargs):
        clock.now = 1e6
        return outcomes(*args, **kwargs)

    object.__setattr__(graded, "outcomes", stop_the_clock)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    (logged,) = callback.log_history
    assert logged["opd_align/student/questions"] == 1
    assert logged["opd_align/evaluation/scale"] == 0.25
    assert callback.schedule.full_evaluation_s == pytest.approx(4 * logged["opd_align/evaluation/seconds"])


def test_demonstrations_that_the_limit_interrupted_do_not_count_as_tried(tmp_path, clock, monkeypatch):
    questions = held_out(3)
    right = {questions[0].answer}

    def reward(completions, answer, **columns):
        return [float(answer[0] in right)] * len(completions)

    callback = add_alignment(make("distillation", tmp_path), questions=questions, verifier=reward, teachers=["Self-1C"])
    demonstrations, sample, calls = callback.evaluator.demonstrations, TimedStudent.sample, []

    def second_is_late(self, requests):
        calls.append(1)
        if len(calls) == 2:
            clock.now = 1e6
        return sample(self, requests)

    monkeypatch.setattr(TimedStudent, "sample", second_is_late)
    with pytest.raises(OpdAlignError, match="time limit of 5 s while sampling"):
        callback.evaluate(time_limit_s=5.0)
    assert list(demonstrations.by_question) == [questions[0].id], "what was complete is kept, nothing else is tried"
    stored = DemonstrationCache(demonstrations.contexts, questions, callback.folder)
    stored.load(0)
    assert stored.by_question == demonstrations.by_question
    monkeypatch.setattr(TimedStudent, "sample", sample)
    clock.now = 0.0
    right.update(question.answer for question in questions)
    analysis, _ = callback.evaluate(time_limit_s=5.0)
    assert analysis.questions["question"].to_pylist() == [question.id for question in questions]


def test_the_seconds_of_a_budget_limit_an_evaluation_too(tmp_path):
    callback = add_alignment(make("distillation", tmp_path), questions=held_out(3))
    limited = replace(callback.settings, budget=replace(callback.settings.budget, seconds=10.0))
    limit = callback.evaluator.evaluation.time_limit
    assert limit(callback.settings, 1.0, None).seconds is None
    assert limit(limited, 1.0, None).seconds == 60.0, "three questions, and as much again for all else"
    assert limit(limited, 1.0, 7.0).seconds == 7.0
