"""Screening: known pass rates give the right bins and paired differences, also after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from support.scripted import (
    CHAT,
    FAILED,
    NO_ANSWER,
    RIGHT,
    TASK,
    TRUNCATED,
    WRONG,
    Interrupted,
    Reply,
    ScriptedSampler,
    question,
    source,
)

from opd_align.report.screening import screening_tables
from opd_align.report.tables import console_group
from opd_align.runs.manifest import RunMismatch
from opd_align.tasks import Form
from opd_align.teachers.contexts import CONTEXTS, SELF, Context, ContextPrompt
from opd_align.teachers.demonstrations import DemonstrationWriters, TrialBudget
from opd_align.teachers.eligibility import availability
from opd_align.teachers.screening import (
    DEMONSTRATIONS,
    MISSING,
    PASSES,
    SCREENED,
    Screener,
    Screening,
    difficulty_of,
    load_screening,
    variant_rows,
)
from opd_align.types import OpdAlignError, Question

ONE, MIXED = CONTEXTS["Self-1C"], CONTEXTS["Self-1C1W"]
TWENTY = 20


def variant_of(prompt: str) -> str:
    return "Self-1C1W" if "NOT be imitated" in prompt else "Self-1C" if "correct response" in prompt else "Baseline"


def student(wins: Callable[[str, str], int], **options: Any) -> ScriptedSampler:
    """Correct in the first `wins(question, variant)` samples, wrong after that."""

    def script(q: Question, prompt: str, number: int) -> Reply:
        return RIGHT if number < wins(q.id, variant_of(prompt)) else WRONG

    return ScriptedSampler("student", script, ContextPrompt(CHAT, TASK), **options)


def writer(q: Question, prompt: str, trial: int) -> Reply:
    """Alternates correct and wrong responses; always correct on `sure`, always wrong on `never`."""
    return {"sure": RIGHT, "never": WRONG}.get(q.id, RIGHT if trial % 2 == 0 else WRONG)


def screen(
    sampler: ScriptedSampler,
    contexts: Sequence[Context] = (),
    *,
    sources: Any = None,
    rollouts: int = TWENTY,
    **options: Any,
) -> Screener:
    sources = sources or {SELF: source(SELF, writer)}
    trials = options.pop("trials", TrialBudget(max_trials=8))
    return Screener(
        sampler, sampler.prompt, contexts, DemonstrationWriters(sources, trials=trials), rollouts=rollouts, **options
    )


def questions(*names: str) -> list[Question]:
    return [question(name) for name in names]


def exclusions(screening: Screening) -> list[tuple[str, str, str]]:
    return [(row["question"], row["variant"], row["reason"]) for row in screening.missing.to_pylist()]


def text_of(screening: Screening, found: Any) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(console_group(screening_tables(screening, found)))
    return capture.get()


@pytest.mark.parametrize(
    ("rate", "name"),
    [
        (1.0, "easy"), (0.8, "easy"), (0.7999, "medium"), (0.25, "medium"), (0.2499, "hard"), (1 / 32, "hard"),
        (0.0, "extremely hard"), (float("nan"), "unknown"),
    ],
)  # fmt: skip
def test_bin_boundaries_are_the_papers(rate, name):
    assert difficulty_of(rate) == name


def test_questions_are_binned_by_pass_rate(tmp_path):
    wins = {"a": 16, "b": 15, "c": 5, "d": 4, "e": 1, "f": 0, "g": 20}
    screening = screen(student(lambda name, variant: wins[name])).run(tmp_path, questions(*wins))
    assert screening.pass_rate("Baseline") == {name: count / TWENTY for name, count in wins.items()}
    assert screening.difficulty() == {
        "a": "easy", "b": "medium", "c": "medium", "d": "hard", "e": "hard", "f": "extremely hard", "g": "easy",
    }  # fmt: skip
    assert screening.selected(["medium", "hard"]) == ["b", "c", "d", "e"]
    assert screening.selected(["extremely hard"]) == ["f"]
    assert screening.selected([]) == []
    with pytest.raises(OpdAlignError, match="no bin 'mediun'; choose from: easy, medium, hard, extremely hard"):
        screening.selected(["hard", "mediun"])


def test_every_kind_of_outcome_is_counted(tmp_path):
    replies = [RIGHT] * 4 + [WRONG] * 3 + [NO_ANSWER] * 2 + [TRUNCATED] * 2 + [FAILED] * 4
    sampler = ScriptedSampler("student", lambda q, prompt, number: replies[number], ContextPrompt(CHAT, TASK))
    screening = screen(sampler, rollouts=15).run(tmp_path, questions("a"))
    (row,) = screening.passes.to_pylist()
    prompt = row.pop("prompt_tokens")
    assert row == {
        "question": "a", "variant": "Baseline", "rollouts": 11, "correct": 4, "incorrect": 3, "unparseable": 2,
        "unknown": 0, "truncated": 2, "failed": 4,
    }  # fmt: skip
    assert prompt == len(sampler.prompt(question("a")))
    # A truncated reply counts as not correct even if it contains the answer; a failed sample does not count.
    assert screening.pass_rate("Baseline") == {"a": 4 / 11}


def test_the_paired_difference_and_its_interval_match_values_computed_by_hand(tmp_path):
    wins = {"a": (10, 15), "b": (5, 5), "c": (16, 18), "zero": (0, 20)}
    sampler = student(lambda name, variant: wins[name][variant == "Self-1C"])
    screening = screen(sampler, [ONE]).run(tmp_path, questions(*wins))
    base, shown = variant_rows(screening)
    assert (base.variant, shown.variant, base.delta) == ("Baseline", "Self-1C", None)
    # 0.5, 0.25, 0.8 and 0.75, 0.25, 0.9; `zero` is extremely hard and excluded. t(0.975, 2) = 4.302653.
    assert base.accuracy.n == shown.accuracy.n == shown.delta.n == 3
    assert base.accuracy.mean == pytest.approx(1.55 / 3)
    assert shown.accuracy.mean == pytest.approx(1.9 / 3)
    assert shown.delta.mean == pytest.approx(0.35 / 3)
    # Differences 0.25, 0, 0.1: variance (0.0177778 + 0.0136111 + 0.0002778) / 2 = 0.0158333.
    assert shown.delta.half_width == pytest.approx(4.302653 * (0.0158333 / 3) ** 0.5, rel=1e-5)
    assert {name: estimate.n for name, estimate in shown.by_bin.items()} == {"easy": 1, "medium": 2, "hard": 0}
    assert [shown.by_bin[name].mean for name in ("easy", "medium")] == pytest.approx([0.9, 0.5])
    assert isnan(shown.by_bin["hard"].mean)


def test_a_question_that_lacks_one_context_is_excluded_for_all(tmp_path):
    sampler = student(lambda name, variant: 10)
    screening = screen(sampler, [ONE, MIXED]).run(tmp_path, questions("a", "sure", "never", "b"))
    assert screening.questions == ["a", "sure", "never", "b"]
    assert screening.compared == ["a", "b"]
    assert exclusions(screening) == [
        ("sure", "Self-1C1W", "0 of 1 wrong responses by 'self'"),
        ("never", "Self-1C", "0 of 1 correct responses by 'self'"),
        ("never", "Self-1C1W", "0 of 1 correct responses by 'self'"),
    ]
    assert {row.accuracy.n for row in variant_rows(screening)} == {2}
    assert screening.pass_rate("Self-1C").keys() == {"a", "sure", "b"}  # sampled wherever possible
    assert screening.selected(["medium"]) == ["a", "b"]


def test_each_variant_is_sampled_with_its_own_prompt(tmp_path):
    sampler = student(lambda name, variant: {"Baseline": 4, "Self-1C": 8, "Self-1C1W": 12}[variant])
    screening = screen(sampler, [ONE, MIXED], rollouts=16).run(tmp_path, questions("a"))
    assert {row["variant"]: row["correct"] for row in screening.passes.to_pylist()} == {
        "Baseline": 4, "Self-1C": 8, "Self-1C1W": 12,
    }  # fmt: skip
    shown = next(prompt for _, prompt, _ in sampler.sampled if variant_of(prompt) == "Self-1C1W")
    assert RIGHT.text in shown
    assert WRONG.text in shown


def test_a_prompt_that_does_not_fit_is_reported_and_others_are_sampled(tmp_path):
    plain = len(ContextPrompt(CHAT, TASK)(question("a")))
    sampler = student(lambda name, variant: 10, context_length=plain + 64 + 20)
    long = Question("long", "Pens? " * 50, "12")
    screening = screen(sampler, [ONE]).run(tmp_path, [question("a"), long, question("b")])
    (first, variant, why), *others = exclusions(screening)
    assert (first, variant) == ("long", "Baseline")
    assert f"and up to 64 new ones do not fit the context of 'student' ({plain + 84})" in why
    assert [(name, of) for name, of, _ in others] == [("a", "Self-1C"), ("b", "Self-1C")]
    assert screening.questions == ["a", "b"]
    assert screening.compared == []
    assert {name for name, _, _ in sampler.sampled} == {"a", "b"}


def test_a_question_that_does_not_fit_its_source_is_excluded_with_that_reason(tmp_path):
    small = replace(source(SELF, writer), skip_reason=lambda q: "too long for self" if q.id == "a" else None)
    screening = screen(student(lambda *_: 10), [ONE], sources={SELF: small}).run(tmp_path, questions("a", "b"))
    assert exclusions(screening) == [("a", "Self-1C", "too long for self")]
    assert screening.compared == ["b"]


@pytest.mark.parametrize("gold", [None, "nothing to read"])
def test_a_question_without_a_readable_answer_is_listed_and_not_sampled(tmp_path, gold):
    sampler = student(lambda name, variant: 10)
    screening = screen(sampler).run(tmp_path, [question("a"), question("b", gold)])
    reason = f"the answer {gold!r} cannot be read as a number" if gold else "no answer to compare with"
    assert exclusions(screening) == [("b", "Baseline", reason)]
    assert {name for name, _, _ in sampler.sampled} == {"a"}


def test_a_variant_without_a_known_outcome_excludes_the_question(tmp_path):
    def script(q: Question, prompt: str, number: int) -> Reply:
        return FAILED if q.id == "b" and variant_of(prompt) == "Self-1C" else RIGHT if number < 10 else WRONG

    sampler = ScriptedSampler("student", script, ContextPrompt(CHAT, TASK))
    screening = screen(sampler, [ONE]).run(tmp_path, questions("a", "b"))
    assert isnan(screening.pass_rate("Self-1C")["b"])
    assert exclusions(screening) == [("b", "Self-1C", "none of 20 rollouts has a known outcome")]
    assert [(row.variant, row.accuracy.n) for row in variant_rows(screening)] == [("Baseline", 1), ("Self-1C", 1)]


def test_a_source_that_is_never_correct_counts_as_zero(tmp_path):
    sources = {SELF: source(SELF, writer), "source": source("source", lambda *_: WRONG)}
    contexts = [ONE, CONTEXTS["Self-1C (source)"]]
    screening = screen(student(lambda *_: 10), contexts, sources=sources).run(tmp_path, questions("a", "b", "never"))
    found = availability(screening.sources, len(screening.questions), load_screening(tmp_path)[1])
    assert (found.questions, dict(found.by_source), found.all) == (3, {SELF: 2, "source": 0}, 0)
    assert screening.compared == []
    assert "source" in text_of(*load_screening(tmp_path))


def test_a_loaded_screening_equals_the_saved_one(tmp_path):
    work = screen(student(lambda name, variant: 10), [ONE, MIXED])
    made = work.run(tmp_path, questions("a", "sure", "never"))
    read, found = load_screening(tmp_path)
    assert read.passes.equals(made.passes)
    assert read.missing.equals(made.missing)
    assert list(read.variants) == list(made.variants) == ["Baseline", "Self-1C", "Self-1C1W"]
    assert list(read.sources) == list(made.sources) == [SELF]
    assert [(demo.trial, demo.correct, demo.text) for demo in found["a"]] == [
        (0, True, RIGHT.text),
        (1, False, WRONG.text),
    ]
    assert [(demo.trial, demo.correct) for demo in found["never"]] == [(0, False)]
    assert json.loads((tmp_path / SCREENED).read_text())["compared"] == 1


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (PASSES, MISSING, DEMONSTRATIONS, SCREENED)}


@pytest.mark.parametrize("moment", [1, 2, 5, 9])
def test_an_interrupted_screening_resumes_to_identical_bytes(tmp_path, moment):
    all_questions = questions("a", "b", "c", "sure", "never")

    def new_screener() -> Screener:
        return screen(student(lambda name, variant: 7 + len(variant)), [ONE, MIXED], rollouts=12, batch=24)

    samplers = [lambda work: work.writers.sources[SELF].sampler, lambda work: work.student]
    whole = new_screener()
    whole.run(tmp_path / "whole", all_questions)
    batches = [len(of(whole).batches) for of in samplers]
    assert batches == [2, 7]
    killed = new_screener()
    victim, at = (0, moment) if moment <= 2 else (1, moment - 2)
    samplers[victim](killed).interrupt_at.append(at)
    with pytest.raises(Interrupted):
        killed.run(tmp_path / "killed", all_questions)
    with pytest.raises(OpdAlignError, match="is not finished; run the same command to resume"):
        load_screening(tmp_path / "killed")
    again = new_screener()
    again.run(tmp_path / "killed", all_questions)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    for of in samplers:
        assert of(killed).sampled + of(again).sampled == of(whole).sampled
    third = new_screener()
    third.run(tmp_path / "killed", all_questions)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert [of(third).sampled for of in samplers] == [[], []]


def upper_case(q: Question, message: str, shown: Any) -> str:
    return message.upper()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda work: replace(work, rollouts=3), "settings.rollouts: 2 in the directory, 3 now"),
        (lambda work: replace(work, batch=7), "settings.batch"),
        (
            lambda work: replace(work, writers=replace(work.writers, trials=TrialBudget(max_trials=9))),
            "settings.trials.max_trials: 8",
        ),
        (lambda work: replace(work, contexts=[ONE]), "contexts.Self-1C1W"),
        (lambda work: replace(work, contexts=[MIXED, ONE]), "contexts: different order now"),
        (lambda work: replace(work, contexts=[replace(ONE, write=upper_case), MIXED]), "contexts.Self-1C.write"),
        (lambda work: replace(work, student=replace(work.student, name="other")), "student: "),
        (
            lambda work: replace(
                work,
                student=replace(
                    work.student, prompt=replace(work.prompting, task=replace(TASK, user_message=Form("Say it.")))
                ),
            ),
            "prompts.Baseline",
        ),
    ],
)
def test_a_directory_with_other_settings_is_refused_and_the_difference_named(tmp_path, changed, named):
    work = screen(student(lambda *_: 1), [ONE, MIXED], rollouts=2)
    work.run(tmp_path, questions("a"))
    before = files(tmp_path)
    with pytest.raises(RunMismatch) as caught:
        changed(work).run(tmp_path, questions("a"))
    assert f"\n  {named}" in str(caught.value)
    assert files(tmp_path) == before


def test_a_directory_with_other_questions_is_refused(tmp_path):
    work = screen(student(lambda *_: 1), rollouts=2)
    work.run(tmp_path, questions("a"))
    for other, named in (([question("a", "13")], "questions.a"), (questions("a", "b"), "questions.b: absent")):
        with pytest.raises(RunMismatch, match=named):
            work.run(tmp_path, other)


@pytest.mark.parametrize(
    ("changed", "names", "reason"),
    [
        ({}, [], "no questions to screen"),
        ({"rollouts": 0}, ["a"], r"rollouts \(0\)"),
        ({"batch": 0}, ["a"], r"batch \(0\)"),
        ({"contexts": [ONE, replace(ONE, correct=2)]}, ["a"], "several variants have the name 'Self-1C'"),
        ({"contexts": [Context("Baseline")]}, ["a"], "several variants have the name 'Baseline'"),
        ({"contexts": [CONTEXTS["Self-Sum-1C"]]}, ["a"], "no summariser was given"),
        ({"contexts": [CONTEXTS["Self-1C (source)"]]}, ["a"], "no such source was given"),
    ],
)
def test_invalid_screenings_are_refused_before_a_directory_is_created(tmp_path, changed, names, reason):
    work = replace(screen(student(lambda *_: 1)), **changed)
    with pytest.raises(OpdAlignError, match=reason):
        work.run(tmp_path / "new", questions(*names))
    assert not (tmp_path / "new").exists()


def test_a_context_template_may_be_any_callable(tmp_path):
    def hint(word: str, q: Question, message: str, shown: Any) -> str:
        return f"{message} {word}"

    work = screen(student(lambda *_: 1), [Context("hint", write=partial(hint, "Psst."))], rollouts=2)
    assert work.run(tmp_path, questions("a")).compared == ["a"]
    assert json.loads((tmp_path / "manifest.json").read_text())["contexts"]["hint"]["write"] == "functools.partial"


def test_progress_reports_demonstrations_and_every_variant(tmp_path):
    calls: list[tuple[str, int, int]] = []
    work = screen(student(lambda *_: 1), [ONE], rollouts=2, batch=2, on_progress=lambda *call: calls.append(call))
    work.run(tmp_path, questions("a", "never"))
    assert list(dict.fromkeys(label for label, _, _ in calls)) == ["demonstrations by self", "Baseline", "Self-1C"]
    assert ("Baseline", 1, 2) in calls
    assert {label: (done, total) for label, done, total in calls} == {
        "demonstrations by self": (2, 2), "Baseline": (2, 2), "Self-1C": (1, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / PASSES).write_bytes(b"PAR1 broken"), "cannot be read"),
        (lambda folder: (folder / MISSING).unlink(), "cannot be read"),
        (lambda folder: (folder / SCREENED).write_text("{"), "cannot be read"),
        (lambda folder: (folder / SCREENED).unlink(), "is not finished"),
        (
            lambda folder: (folder / "manifest.json").unlink(),
            "is not a screening; create one with: opd-align screen --out",
        ),
    ],
)
def test_the_error_for_an_unreadable_screening_says_what_to_do(tmp_path, spoil, reason):
    screen(student(lambda *_: 1), rollouts=2).run(tmp_path, questions("a"))
    assert load_screening(tmp_path)[0].questions == ["a"]
    spoil(tmp_path)
    with pytest.raises(OpdAlignError, match=reason):
        load_screening(tmp_path)


def test_a_damaged_result_is_rebuilt_without_sampling(tmp_path):
    screen(student(lambda *_: 1), [ONE], rollouts=2).run(tmp_path, questions("a"))
    before = files(tmp_path)
    (tmp_path / PASSES).write_bytes(b"broken")
    again = screen(student(lambda *_: 1), [ONE], rollouts=2)
    again.run(tmp_path, questions("a"))
    assert files(tmp_path) == before
    assert again.student.sampled == []


def test_a_folder_that_is_not_a_screening_is_refused(tmp_path):
    with pytest.raises(OpdAlignError, match="does not exist"):
        load_screening(tmp_path / "nowhere")
    with pytest.raises(OpdAlignError, match="is not a screening"):
        load_screening(tmp_path)


def test_the_tables_show_results_and_exclusions(tmp_path):
    wins = {"a": (10, 15), "b": (5, 5), "c": (16, 18), "zero": (0, 20), "never": (9, 0)}
    sampler = student(lambda name, variant: wins[name][variant == "Self-1C"])
    screen(sampler, [ONE]).run(tmp_path, questions(*wins))
    tables = {table.name: table for table in screening_tables(*load_screening(tmp_path))}
    assert list(tables) == ["bins", "availability", "screening", "difficulty", "left-out"]
    assert tables["bins"].formatted_rows() == [["1", "3", "0", "1"]]
    assert tables["availability"].formatted_rows() == [["5", "4", "4", "4"]]
    assert tables["screening"].formatted_rows() == [
        ["Baseline", "0.517 ± 0.684", "–", "3"],
        ["Self-1C", "0.633 ± 0.845", "+0.117 ± 0.313", "3"],
    ]
    assert tables["difficulty"].formatted_rows()[1] == ["Self-1C", "–", "0", "0.500 ± 3.177", "2", "0.900", "1"]
    assert tables["left-out"].formatted_rows() == [["never", "Self-1C", "0 of 1 correct responses by 'self'"]]
    text = text_of(*load_screening(tmp_path))
    for word in ("Screening results", "+0.117 ± 0.313", "extremely hard", "Excluded from the comparison", "never"):
        assert word in text


def test_a_screening_of_the_baseline_alone_has_tables(tmp_path):
    screen(student(lambda *_: 10)).run(tmp_path, questions("a", "b"))
    tables = screening_tables(*load_screening(tmp_path))
    assert [table.name for table in tables] == ["bins", "difficulty"]
    assert "0.500" in text_of(*load_screening(tmp_path))


def test_a_screening_without_usable_questions_has_tables(tmp_path):
    work = screen(student(lambda *_: 10, context_length=3), [ONE])
    screening = work.run(tmp_path, questions("a", "b"))
    assert screening.questions == screening.compared == screening.selected(["easy"]) == []
    assert screening.passes.schema.field("correct").type == pa.int32()
    assert "do not fit" in text_of(*load_screening(tmp_path))
