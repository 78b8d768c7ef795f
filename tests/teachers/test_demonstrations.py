"""Demonstrations: the earliest usable trials, no more sampling than needed, the same result after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.scripted import (
    FAILED,
    GOLD,
    NO_ANSWER,
    RIGHT,
    TRUNCATED,
    WRONG,
    Interrupted,
    Reply,
    demonstration_writers,
    question,
    source,
    summariser,
)

from opd_align.runs.manifest import FORMAT
from opd_align.runs.run_directory import RunDirectory
from opd_align.teachers.contexts import CONTEXTS, SELF, Context, Demonstration
from opd_align.teachers.demonstrations import (
    DemonstrationWriters,
    TrialBudget,
    add_summaries,
    collect_demonstrations,
    collect_from_source,
    required_responses,
    summary_question,
)
from opd_align.teachers.screening import recorded_writers
from opd_align.types import OpdAlignError, Question

Q = question("q")


def replies_in_order(*replies: Reply) -> Any:
    """The given replies in order; the last one repeats."""
    return lambda question, prompt, trial: replies[min(trial, len(replies) - 1)]


def trials_of(found: Sequence[Demonstration]) -> list[tuple[int, bool]]:
    return [(demo.trial, demo.correct) for demo in found]


def test_rounds_cover_every_trial_once_and_double_in_size():
    assert TrialBudget().rounds() == [(0, 4), (4, 8), (12, 16), (28, 32)]
    for most in range(1, 70):
        for first in (1, 3, 4, 100):
            rounds = TrialBudget(max_trials=most, first_round=first).rounds()
            assert [trial for start, n in rounds for trial in range(start, start + n)] == list(range(most))


@pytest.mark.parametrize("wrong", [{"max_trials": 0}, {"first_round": 0}, {"summary_trials": 0}, {"max_trials": -3}])
def test_a_budget_without_trials_is_refused(wrong):
    with pytest.raises(OpdAlignError, match="at least one trial"):
        TrialBudget(**wrong)


def test_the_earliest_usable_trials_are_taken_correct_ones_first():
    writer = source(SELF, replies_in_order(WRONG, NO_ANSWER, RIGHT, RIGHT, WRONG, RIGHT))
    assert trials_of(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(2, True), (0, False)]
    assert trials_of(collect_from_source(writer, [Q], correct=3, wrong=2)["q"]) == [
        (2, True),
        (3, True),
        (5, True),
        (0, False),
        (1, False),
    ]
    first = collect_from_source(writer, [Q], correct=1, wrong=0)["q"][0]
    assert first == Demonstration("q", SELF, 2, True, f"so: Answer: {GOLD}")  # without its end token


def test_sampling_stops_after_the_round_that_suffices():
    writer = source(
        SELF, lambda question, prompt, trial: RIGHT if trial == {"a": 0, "b": 4, "c": 59}[question.id] else WRONG
    )
    found = collect_from_source(writer, [question("a"), question("b"), question("c")], correct=1, wrong=0)
    assert {name: trials_of(responses) for name, responses in found.items()} == {
        "a": [(0, True)], "b": [(4, True)], "c": [(59, True)],
    }  # fmt: skip
    count = {name: sum(sample[0] == name for sample in writer.sampler.sampled) for name in "abc"}
    assert count == {"a": 4, "b": 12, "c": 60}


def test_sampling_stops_after_max_trials():
    writer = source(SELF, lambda question, prompt, trial: RIGHT if trial == 60 else WRONG)
    assert trials_of(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(0, False)]
    assert [sample[2] for sample in writer.sampler.sampled] == list(range(60))


def test_nothing_is_sampled_if_nothing_is_needed():
    writer = source(SELF, replies_in_order(RIGHT))
    assert collect_from_source(writer, [Q], correct=0, wrong=0) == {"q": []}
    assert writer.sampler.sampled == []


def test_truncated_responses_are_never_demonstrations():
    writer = source(SELF, replies_in_order(TRUNCATED, Reply("Answer: 13", truncated=True), WRONG, RIGHT))
    assert trials_of(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(3, True), (2, False)]
    assert collect_from_source(source(SELF, replies_in_order(TRUNCATED)), [Q], correct=1, wrong=1) == {"q": []}


def test_failed_samples_are_skipped_and_the_others_keep_their_trial_index():
    writer = source(SELF, replies_in_order(FAILED, RIGHT, FAILED, WRONG, FAILED, RIGHT))
    assert trials_of(collect_from_source(writer, [Q], correct=2, wrong=1)["q"]) == [(1, True), (5, True), (3, False)]
    assert collect_from_source(source(SELF, replies_in_order(FAILED)), [Q, question("r")], correct=1, wrong=0) == {
        "q": [],
        "r": [],
    }


def test_without_a_readable_answer_no_response_is_wrong():
    for gold in (None, "no number at all"):
        writer = source(SELF, replies_in_order(WRONG, RIGHT, NO_ANSWER))
        assert collect_from_source(writer, [question("q", gold)], correct=1, wrong=1) == {"q": []}


def test_a_question_that_does_not_fit_the_source_is_not_sampled():
    writer = replace(source(SELF, replies_in_order(RIGHT)), skip_reason=lambda q: "too long" if q.id == "r" else None)
    found = collect_from_source(writer, [Q, question("r")], correct=1, wrong=0)
    assert trials_of(found["q"]) == [(0, True)]
    assert found["r"] == []
    assert {sample[0] for sample in writer.sampler.sampled} == {"q"}


def mixed(question: Question, prompt: str, trial: int) -> Reply:
    """A pseudo-random reply that depends on question and trial only."""
    index = hash((int(question.id[1:]), trial)) % 11
    return (RIGHT, WRONG, WRONG, TRUNCATED, FAILED, NO_ANSWER, WRONG, WRONG, WRONG, WRONG, WRONG)[index]


MANY = [question(f"q{number}") for number in range(6)]


@pytest.mark.parametrize("batch", [1, 3, 4, 17, 60, 10_000])
def test_the_result_does_not_depend_on_the_batch(batch):
    expected = collect_from_source(source(SELF, mixed), MANY, correct=3, wrong=2, batch=512)
    writer = source(SELF, mixed)
    assert collect_from_source(writer, MANY, correct=3, wrong=2, batch=batch) == expected
    assert any(found != [] for found in expected.values())
    # A round of one question is never split, so a smaller batch contains one question.
    assert max(writer.sampler.batches) <= max(batch, 32)
    assert len(writer.sampler.sampled) == len(set(writer.sampler.sampled))


def test_progress_counts_questions_and_ends_with_all():
    calls: list[tuple[int, int]] = []
    collect_from_source(
        source(SELF, mixed), MANY, correct=1, wrong=1, on_progress=lambda done, total: calls.append((done, total))
    )
    assert calls[0] == (0, 6)
    assert calls[-1] == (6, 6)
    assert calls == sorted(calls)


ALL = [context for context in CONTEXTS.values() if context.source == SELF]


def short(question: Question, prompt: str, trial: int) -> Reply:
    return Reply(f"<think>\nlet me see\n</think>\n\nIn short {trial} of {question.id}.")


def test_required_responses_are_the_maximum_over_contexts():
    assert required_responses(list(CONTEXTS.values()), SELF) == (3, 1)
    assert required_responses(list(CONTEXTS.values()), "source") == (1, 0)
    assert required_responses([], SELF) == (0, 0)


def test_only_responses_shown_summarised_are_summarised_and_thinking_is_removed():
    writers = demonstration_writers(replies_in_order(WRONG, RIGHT, RIGHT, RIGHT), short)
    found = collect_demonstrations(writers, ALL, [Q])["q"]
    assert trials_of(found) == [(1, True), (2, True), (3, True), (0, False)]
    assert [demo.summary for demo in found] == ["In short 0 of q#self/1.", None, None, "In short 0 of q#self/0."]
    assert all(context.missing(found) is None for context in ALL)
    assert writers.summariser is not None
    sampled = writers.summariser.sampler.sampled
    assert sorted({name for name, _, _ in sampled}) == ["q#self/0", "q#self/1"]


def test_the_summariser_prompt_contains_question_and_response_without_thinking():
    response = Demonstration("q", SELF, 7, True, "<think>\nsecret {x}\n</think>\n\n12 {pens} are 3·4.")
    requested = summary_question(Q, response)
    assert requested.id == "q#self/7"
    assert requested.text.endswith("Question:\nPens of q?\n\nResponse:\n12 {pens} are 3·4.")
    assert "secret" not in requested.text


@pytest.mark.parametrize(
    ("replies", "summary"),
    [
        ([TRUNCATED, FAILED, Reply(""), Reply(" fine \n")], "fine"),
        ([Reply("<think>only thoughts</think>"), Reply("<think>a</think> b </think> c")], "c"),
        ([TRUNCATED], None),
        ([FAILED], None),
        ([Reply("  ")], None),
    ],
)
def test_the_first_complete_summary_with_text_is_used(replies, summary):
    response = Demonstration("q", SELF, 0, True, "x")
    found = add_summaries(summariser(replies_in_order(*replies)), {"q": Q}, {"q": [response]})
    assert [demo.summary for demo in found["q"]] == [summary]
    assert found["q"][0].text == "x"


def test_a_response_too_long_to_summarise_has_no_summary():
    condenser = replace(summariser(short), skip_reason=lambda q: "too long" if "long" in q.text else None)
    responses = [Demonstration("q", SELF, 0, True, "a long one"), Demonstration("q", SELF, 1, True, "a brief one")]
    found = add_summaries(condenser, {"q": Q}, {"q": responses})
    assert [demo.summary for demo in found["q"]] == [None, "In short 0 of q#self/1."]


@pytest.mark.parametrize("batch", [1, 4, 5, 1000])
def test_summaries_do_not_depend_on_the_batch(batch):
    expected = collect_demonstrations(demonstration_writers(mixed, short), ALL, MANY)
    assert collect_demonstrations(demonstration_writers(mixed, short), ALL, MANY, batch=batch) == expected


def test_each_source_writes_its_own_demonstrations():
    writers = DemonstrationWriters(
        {SELF: source(SELF, replies_in_order(WRONG)), "source": source("source", replies_in_order(RIGHT))}
    )
    contexts = [CONTEXTS["Self-1C"], CONTEXTS["Self-1C (source)"]]
    found = collect_demonstrations(writers, contexts, [Q])["q"]
    assert [(demo.source, demo.correct) for demo in found] == [("source", True)]
    assert contexts[0].missing(found) == "0 of 1 correct responses by 'self'"
    assert contexts[1].missing(found) is None


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (CONTEXTS["Self-1C (source)"], "responses by 'source', but no such source was given; available sources: self"),
        (CONTEXTS["Self-Sum-1C"], "no summariser was given"),
    ],
)
def test_a_context_without_its_source_is_refused_before_sampling(context, reason):
    writers = demonstration_writers(replies_in_order(RIGHT))
    with pytest.raises(OpdAlignError, match=reason) as caught:
        collect_demonstrations(writers, [context], [Q])
    assert repr(context.name) in str(caught.value)
    assert writers.sources[SELF].sampler.sampled == []


def test_a_context_that_needs_no_demonstrations_needs_no_source():
    assert collect_demonstrations(
        demonstration_writers(replies_in_order(RIGHT)), [Context("hint", source="nobody")], [Q]
    ) == {"q": []}


def test_the_key_of_a_source_must_be_its_name():
    with pytest.raises(OpdAlignError, match="'big' has the key 'source'"):
        DemonstrationWriters({"source": source("big", replies_in_order(RIGHT))})


def open_run(path: Path) -> RunDirectory:
    return RunDirectory(path, {"format": FORMAT, "kind": "demonstrations", "settings": {}, "questions": {}})


def test_with_a_run_directory_an_interruption_does_not_change_the_result(tmp_path):
    whole = demonstration_writers(mixed, short)
    expected = collect_demonstrations(whole, ALL, MANY, batch=12)
    samplers = [whole.sources[SELF].sampler, whole.summariser.sampler]
    batches = sum(len(sampler.batches) for sampler in samplers)
    assert batches > 12
    own = len(samplers[0].batches)
    for moment in (1, own // 2, own, own + 1, batches):  # the last two during summarisation
        killed, again = demonstration_writers(mixed, short), demonstration_writers(mixed, short)
        if moment <= own:
            killed.sources[SELF].sampler.interrupt_at.append(moment)
        else:
            killed.summariser.sampler.interrupt_at.append(moment - own)
        folder = tmp_path / str(moment)
        with pytest.raises(Interrupted), open_run(folder) as run:
            collect_demonstrations(recorded_writers(run, killed), ALL, MANY, batch=12)
        with open_run(folder) as run:
            assert collect_demonstrations(recorded_writers(run, again), ALL, MANY, batch=12) == expected
        for before, after, once in zip(
            (killed.sources[SELF].sampler, killed.summariser.sampler),
            (again.sources[SELF].sampler, again.summariser.sampler),
            samplers,
            strict=True,
        ):
            assert before.sampled + after.sampled == once.sampled  # no sample repeated or missing, same order


def test_with_a_run_directory_a_finished_collection_samples_and_grades_nothing(tmp_path):
    with open_run(tmp_path) as run:
        expected = collect_demonstrations(recorded_writers(run, demonstration_writers(mixed, short)), ALL, MANY)
    again = demonstration_writers(mixed, short)

    class Refusing:
        def grade(self, question: Question, rollouts: Any) -> Any:
            raise AssertionError("graded again")

    strict = replace(again, sources={SELF: replace(again.sources[SELF], grader=Refusing())})
    with open_run(tmp_path) as run:
        assert collect_demonstrations(recorded_writers(run, strict), ALL, MANY) == expected
    assert again.sources[SELF].sampler.sampled == again.summariser.sampler.sampled == []


def test_shorter_responses_of_the_same_rounds_follow_the_first_ones():
    long, short = Reply(f"at length: Answer: {GOLD}"), RIGHT
    writer = source(SELF, replies_in_order(long, long, short, WRONG))
    assert trials_of(collect_from_source(writer, [Q], correct=1, wrong=0)["q"]) == [(0, True), (2, True)]
    assert trials_of(collect_from_source(writer, [Q], correct=2, wrong=0)["q"]) == [(0, True), (1, True), (2, True)]
