"""Demonstrations: the earliest trials that serve, no more sampling than needed, and no trace of an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.scripted import (
    BROKEN,
    CUT,
    GOLD,
    MUTE,
    RIGHT,
    WRONG,
    Interrupted,
    Reply,
    cast,
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


def played(*replies: Reply) -> Any:
    """The given replies, then the last one for ever."""
    return lambda question, prompt, trial: replies[min(trial, len(replies) - 1)]


def told(found: Sequence[Demonstration]) -> list[tuple[int, bool]]:
    return [(each.trial, each.correct) for each in found]


def test_rounds_cover_every_trial_once_and_double():
    assert TrialBudget().rounds() == [(0, 4), (4, 8), (12, 16), (28, 32)]
    for most in range(1, 70):
        for first in (1, 3, 4, 100):
            rounds = TrialBudget(max_trials=most, first_round=first).rounds()
            assert [trial for start, n in rounds for trial in range(start, start + n)] == list(range(most))


@pytest.mark.parametrize("wrong", [{"max_trials": 0}, {"first_round": 0}, {"summary_trials": 0}, {"max_trials": -3}])
def test_no_trials_are_refused(wrong):
    with pytest.raises(OpdAlignError, match="at least one trial"):
        TrialBudget(**wrong)


def test_the_earliest_trials_that_serve_are_taken_right_ones_first():
    writer = source(SELF, played(WRONG, MUTE, RIGHT, RIGHT, WRONG, RIGHT))
    assert told(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(2, True), (0, False)]
    assert told(collect_from_source(writer, [Q], correct=3, wrong=2)["q"]) == [
        (2, True),
        (3, True),
        (5, True),
        (0, False),
        (1, False),
    ]
    first = collect_from_source(writer, [Q], correct=1, wrong=0)["q"][0]
    assert first == Demonstration("q", SELF, 2, True, f"so: Answer: {GOLD}")  # without its end token


def test_sampling_stops_with_the_round_that_was_enough():
    writer = source(
        SELF, lambda question, prompt, trial: RIGHT if trial == {"a": 0, "b": 4, "c": 59}[question.id] else WRONG
    )
    found = collect_from_source(writer, [question("a"), question("b"), question("c")], correct=1, wrong=0)
    assert {name: told(responses) for name, responses in found.items()} == {
        "a": [(0, True)], "b": [(4, True)], "c": [(59, True)],
    }  # fmt: skip
    count = {name: sum(each[0] == name for each in writer.sampler.asked) for name in "abc"}
    assert count == {"a": 4, "b": 12, "c": 60}


def test_after_sixty_trials_the_search_is_over():
    writer = source(SELF, lambda question, prompt, trial: RIGHT if trial == 60 else WRONG)
    assert told(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(0, False)]
    assert [each[2] for each in writer.sampler.asked] == list(range(60))


def test_nothing_is_sampled_where_nothing_is_needed():
    writer = source(SELF, played(RIGHT))
    assert collect_from_source(writer, [Q], correct=0, wrong=0) == {"q": []}
    assert writer.sampler.asked == []


def test_what_was_cut_off_demonstrates_nothing_right_or_wrong():
    writer = source(SELF, played(CUT, Reply("Answer: 13", cut=True), WRONG, RIGHT))
    assert told(collect_from_source(writer, [Q], correct=1, wrong=1)["q"]) == [(3, True), (2, False)]
    assert collect_from_source(source(SELF, played(CUT)), [Q], correct=1, wrong=1) == {"q": []}


def test_samples_that_failed_are_passed_over_and_the_others_keep_their_numbers():
    writer = source(SELF, played(BROKEN, RIGHT, BROKEN, WRONG, BROKEN, RIGHT))
    assert told(collect_from_source(writer, [Q], correct=2, wrong=1)["q"]) == [(1, True), (5, True), (3, False)]
    assert collect_from_source(source(SELF, played(BROKEN)), [Q, question("r")], correct=1, wrong=0) == {
        "q": [],
        "r": [],
    }


def test_without_a_readable_answer_nothing_is_wrong():
    for gold in (None, "no number at all"):
        writer = source(SELF, played(WRONG, RIGHT, MUTE))
        assert collect_from_source(writer, [question("q", gold)], correct=1, wrong=1) == {"q": []}


def test_a_question_that_does_not_fit_its_source_is_not_asked():
    writer = replace(source(SELF, played(RIGHT)), skip_reason=lambda asked: "too long" if asked.id == "r" else None)
    found = collect_from_source(writer, [Q, question("r")], correct=1, wrong=0)
    assert told(found["q"]) == [(0, True)]
    assert found["r"] == []
    assert {each[0] for each in writer.sampler.asked} == {"q"}


def mixed(question: Question, prompt: str, trial: int) -> Reply:
    """Anything may happen, by question and trial alone."""
    dice = hash((int(question.id[1:]), trial)) % 11
    return (RIGHT, WRONG, WRONG, CUT, BROKEN, MUTE, WRONG, WRONG, WRONG, WRONG, WRONG)[dice]


MANY = [question(f"q{number}") for number in range(6)]


@pytest.mark.parametrize("batch", [1, 3, 4, 17, 60, 10_000])
def test_what_is_found_does_not_depend_on_the_batch(batch):
    expected = collect_from_source(source(SELF, mixed), MANY, correct=3, wrong=2, batch=512)
    writer = source(SELF, mixed)
    assert collect_from_source(writer, MANY, correct=3, wrong=2, batch=batch) == expected
    assert any(found != [] for found in expected.values())
    # A question's round is never split, so a batch below its size holds just that one.
    assert max(writer.sampler.batches) <= max(batch, 32)
    assert len(writer.sampler.asked) == len(set(writer.sampler.asked))


def test_progress_counts_questions_and_ends_with_all():
    heard: list[tuple[int, int]] = []
    collect_from_source(
        source(SELF, mixed), MANY, correct=1, wrong=1, on_progress=lambda done, of: heard.append((done, of))
    )
    assert heard[0] == (0, 6)
    assert heard[-1] == (6, 6)
    assert heard == sorted(heard)


ALL = [context for context in CONTEXTS.values() if context.source == SELF]


def short(question: Question, prompt: str, trial: int) -> Reply:
    return Reply(f"<think>\nlet me see\n</think>\n\nIn short {trial} of {question.id}.")


def test_needs_are_the_most_that_a_context_wants():
    assert required_responses(list(CONTEXTS.values()), SELF) == (3, 1)
    assert required_responses(list(CONTEXTS.values()), "source") == (1, 0)
    assert required_responses([], SELF) == (0, 0)


def test_summaries_are_made_of_what_is_shown_summarised_and_carry_no_thoughts():
    writers = cast(played(WRONG, RIGHT, RIGHT, RIGHT), short)
    found = collect_demonstrations(writers, ALL, [Q])["q"]
    assert told(found) == [(1, True), (2, True), (3, True), (0, False)]
    assert [each.summary for each in found] == ["In short 0 of q#self/1.", None, None, "In short 0 of q#self/0."]
    assert all(context.missing(found) is None for context in ALL)
    assert writers.summariser is not None
    asked = writers.summariser.sampler.asked
    assert sorted({each[0] for each in asked}) == ["q#self/0", "q#self/1"]


def test_the_summariser_reads_question_and_response_but_not_the_thoughts():
    response = Demonstration("q", SELF, 7, True, "<think>\nsecret {x}\n</think>\n\n12 {pens} are 3·4.")
    asked = summary_question(Q, response)
    assert asked.id == "q#self/7"
    assert asked.text.endswith("Question:\nPens of q?\n\nResponse:\n12 {pens} are 3·4.")
    assert "secret" not in asked.text


@pytest.mark.parametrize(
    ("replies", "summary"),
    [
        ([CUT, BROKEN, Reply(""), Reply(" fine \n")], "fine"),
        ([Reply("<think>only thoughts</think>"), Reply("<think>a</think> b </think> c")], "c"),
        ([CUT], None),
        ([BROKEN], None),
        ([Reply("  ")], None),
    ],
)
def test_the_first_summary_that_ended_with_words_counts(replies, summary):
    response = Demonstration("q", SELF, 0, True, "x")
    found = add_summaries(summariser(played(*replies)), {"q": Q}, {"q": [response]})
    assert [each.summary for each in found["q"]] == [summary]
    assert found["q"][0].text == "x"


def test_a_response_too_long_to_summarise_stays_without_a_summary():
    condenser = replace(summariser(short), skip_reason=lambda asked: "too long" if "long" in asked.text else None)
    responses = [Demonstration("q", SELF, 0, True, "a long one"), Demonstration("q", SELF, 1, True, "a brief one")]
    found = add_summaries(condenser, {"q": Q}, {"q": responses})
    assert [each.summary for each in found["q"]] == [None, "In short 0 of q#self/1."]


@pytest.mark.parametrize("batch", [1, 4, 5, 1000])
def test_summaries_do_not_depend_on_the_batch(batch):
    expected = collect_demonstrations(cast(mixed, short), ALL, MANY)
    assert collect_demonstrations(cast(mixed, short), ALL, MANY, batch=batch) == expected


def test_each_source_writes_its_own():
    writers = DemonstrationWriters({SELF: source(SELF, played(WRONG)), "source": source("source", played(RIGHT))})
    contexts = [CONTEXTS["Self-1C"], CONTEXTS["Self-1C (source)"]]
    found = collect_demonstrations(writers, contexts, [Q])["q"]
    assert [(each.source, each.correct) for each in found] == [("source", True)]
    assert contexts[0].missing(found) == "0 of 1 correct responses by 'self'"
    assert contexts[1].missing(found) is None


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (CONTEXTS["Self-1C (source)"], "responses by 'source', but no such source was given; available sources: self"),
        (CONTEXTS["Self-Sum-1C"], "no summariser was given"),
    ],
)
def test_a_context_that_nobody_can_serve_is_refused_before_sampling(context, reason):
    writers = cast(played(RIGHT))
    with pytest.raises(OpdAlignError, match=reason) as caught:
        collect_demonstrations(writers, [context], [Q])
    assert repr(context.name) in str(caught.value)
    assert writers.sources[SELF].sampler.asked == []


def test_a_context_that_needs_no_demonstrations_needs_no_source():
    assert collect_demonstrations(cast(played(RIGHT)), [Context("hint", source="nobody")], [Q]) == {"q": []}


def test_a_source_is_filed_under_its_own_name():
    with pytest.raises(OpdAlignError, match="'big' has the key 'source'"):
        DemonstrationWriters({"source": source("big", played(RIGHT))})


def opened(path: Path) -> RunDirectory:
    return RunDirectory(path, {"format": FORMAT, "kind": "demonstrations", "settings": {}, "questions": {}})


def test_behind_a_run_directory_an_interruption_leaves_no_trace(tmp_path):
    whole = cast(mixed, short)
    expected = collect_demonstrations(whole, ALL, MANY, batch=12)
    samplers = [whole.sources[SELF].sampler, whole.summariser.sampler]
    batches = sum(len(sampler.batches) for sampler in samplers)
    assert batches > 12
    own = len(samplers[0].batches)
    for moment in (1, own // 2, own, own + 1, batches):  # the last two while summaries are made
        killed, again = cast(mixed, short), cast(mixed, short)
        if moment <= own:
            killed.sources[SELF].sampler.die_at.append(moment)
        else:
            killed.summariser.sampler.die_at.append(moment - own)
        folder = tmp_path / str(moment)
        with pytest.raises(Interrupted), opened(folder) as run:
            collect_demonstrations(recorded_writers(run, killed), ALL, MANY, batch=12)
        with opened(folder) as run:
            assert collect_demonstrations(recorded_writers(run, again), ALL, MANY, batch=12) == expected
        for before, after, once in zip(
            (killed.sources[SELF].sampler, killed.summariser.sampler),
            (again.sources[SELF].sampler, again.summariser.sampler),
            samplers,
            strict=True,
        ):
            assert before.asked + after.asked == once.asked  # nothing twice, nothing left out, in the same order


def test_behind_a_run_directory_a_finished_collection_samples_and_grades_nothing(tmp_path):
    with opened(tmp_path) as run:
        expected = collect_demonstrations(recorded_writers(run, cast(mixed, short)), ALL, MANY)
    again = cast(mixed, short)

    class Refusing:
        def grade(self, question: Question, rollouts: Any) -> Any:
            raise AssertionError("graded again")

    strict = replace(again, sources={SELF: replace(again.sources[SELF], grader=Refusing())})
    with opened(tmp_path) as run:
        assert collect_demonstrations(recorded_writers(run, strict), ALL, MANY) == expected
    assert again.sources[SELF].sampler.asked == again.summariser.sampler.asked == []
