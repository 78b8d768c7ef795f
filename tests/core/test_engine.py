"""The engine on exact worlds: records, budgets, time limits, graders, invalid inputs, determinism, length."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opd_align import metrics
from opd_align.backends.exact import EOS, ExactTeacher, ExactWorld
from opd_align.core import collect as collect_module
from opd_align.core import engine
from opd_align.core.allocation import Sampleable, plan_adaptive, representative_paths
from opd_align.core.chosen_paths import halves_of
from opd_align.core.collect import Progress, collect
from opd_align.core.engine import Analysis, align, analyze
from opd_align.core.estimate import estimate
from opd_align.core.objectives import OBJECTIVES, DrGRPO, Ideal, MiniLLM, ReverseKL
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import (
    Failure,
    Finish,
    OpdAlignError,
    Outcome,
    Question,
    Rollouts,
    SampleRequest,
)

SMALL = Budget(initial=60, allocation="paper", n_min=25, by_update=8, by_gap=8)
A, B, C = (Question(name) for name in "abc")


@pytest.fixture(scope="module")
def world() -> ExactWorld:
    return ExactWorld.random(1, length=25, vocabulary=8, states=40, stakes=3.0)


@pytest.fixture(scope="module")
def teachers(world: ExactWorld) -> list[ExactTeacher]:
    return [world.tilted_teacher(noise=0.3, seed=1), world.adversarial_teacher(noise=0.3, seed=2)]


@pytest.fixture(scope="module")
def analysed(world: ExactWorld, teachers) -> Analysis:
    return analyze(world, teachers, [A, B, C], world, settings=Settings(budget=SMALL))


@dataclass
class RecordingWorld:
    """A world that records its requests and calls `before` on every one."""

    world: ExactWorld
    before: Callable[[], None] = lambda: None
    requests: list[SampleRequest] = field(default_factory=list)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        self.before()
        self.requests += requests
        return self.world.sample(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    @property
    def targeted(self) -> int:
        return sum(request.n for request in self.requests if len(request.prefix))


@dataclass(frozen=True)
class FunctionGrader:
    """A grader that calls a function."""

    function: Callable[[Rollouts], Any]

    def grade(self, question: Question, rollouts: Rollouts) -> np.ndarray:
        return np.asarray(self.function(rollouts), np.int8)


def one_sided(world: ExactWorld, correct: bool) -> ExactWorld:
    """The same world with every completion correct or every completion incorrect, and none truncated."""
    log_p_LSV = world.log_p_LSV.copy()
    log_p_LSV[-1] = -np.inf
    log_p_LSV[-1, :, EOS] = 0.0
    return replace(world, success_S=np.full_like(world.success_S, correct), log_p_LSV=log_p_LSV)


def records(analysis: Analysis) -> list[dict[str, Any]]:
    return analysis.questions.to_pylist()


# -- end to end -----------------------------------------------------------------------------------------------


def test_three_questions_from_end_to_end(world, analysed) -> None:
    rows = records(analysed)
    assert [row["question"] for row in rows] == ["a", "b", "c"]
    for row in rows:
        assert row["initial"] == SMALL.initial
        assert (row["correct_paths"], row["incorrect_paths"], row["note"]) == (2, 2, "")
        assert (row["unknown"], row["failed"]) == (0, 0)
        assert row["targeted"] > 500
        assert row["certain"] > 0
        assert abs(row["pass_rate"] - world.value_LS[0, world.start]) < 0.25
    assert len({row["pass_rate"] for row in rows}) > 1
    assert sum(row["nodes"] for row in rows) == analysed.nodes.num_rows > 50
    assert set(analysed.nodes["question"].to_pylist()) == {"a", "b", "c"}
    assert set(analysed.nodes["teacher"].to_pylist()) == {"tilted", "adversarial"}
    assert np.isfinite(analysed.nodes["alignment_a"].to_numpy()).all()


def test_good_and_bad_teachers_are_distinguished(analysed) -> None:
    good, bad = metrics.teacher_ranking(analysed.nodes)
    assert (good.teacher, bad.teacher) == ("tilted", "adversarial")
    assert good.weighted_cosine.mean > 0.6
    assert bad.weighted_cosine.mean < -0.6
    assert good.helpful > 3 * good.harmful
    assert good.noise_ceiling.ceiling > 0.5


def test_different_questions_have_different_rollouts(world, teachers) -> None:
    one, two = (collect(world, teachers, q, world, settings=Settings(budget=SMALL)) for q in (A, B))
    assert not np.intersect1d(one.tree.key_R, two.tree.key_R).size
    assert [p.completion_T.tolist() for p in one.paths] != [p.completion_T.tolist() for p in two.paths]


def test_records_match_the_evidence(world, teachers) -> None:
    student = RecordingWorld(world)
    evidence = collect(student, teachers, A, world, settings=Settings(budget=SMALL))
    tree = evidence.tree
    assert len(tree) == SMALL.initial + evidence.targeted + evidence.certain
    assert evidence.targeted == student.targeted
    assert evidence.pass_rate == (tree.outcome_R[tree.launch_R == 0] > 0).mean()
    for scores, right in zip(evidence.paths, evidence.correct, strict=True):
        lo, hi = tree.range(scores.completion_T)
        natural = np.flatnonzero(tree.launch_R[lo:hi] == 0) + lo
        assert len(natural) > 0
        assert (tree.outcome_R[natural] > 0).tolist() == [right] * len(natural)
    ended = tree.launch_R == tree.length_R
    assert ended.sum() >= evidence.certain > 0
    # No request continues after an end token.
    assert all(EOS not in request.prefix for request in student.requests)


def test_the_same_call_gives_the_same_tables(world, teachers, analysed) -> None:
    again = analyze(world, teachers, [A, B, C], world, settings=Settings(budget=SMALL))
    assert again.nodes.equals(analysed.nodes)
    assert again.questions.equals(analysed.questions)


def test_questions_do_not_depend_on_each_other(world, teachers, analysed) -> None:
    alone = analyze(world, teachers, [B], world, settings=Settings(budget=SMALL))
    own = [row for row in analysed.nodes.to_pylist() if row["question"] == "b"]
    assert len(own) > 10
    assert alone.nodes.to_pylist() == own
    assert records(alone) == [records(analysed)[1]]


def test_the_batch_size_does_not_change_the_result(world, teachers, analysed) -> None:
    settings = Settings(budget=SMALL, batch=37)
    assert analyze(world, teachers, [A, B, C], world, settings=settings).nodes.equals(analysed.nodes)


@pytest.mark.parametrize(("workers", "questions_per_group"), [(3, 1), (1, 2), (1, 3), (2, 2)])
def test_workers_and_groups_do_not_change_the_result(
    world, teachers, analysed, workers: int, questions_per_group: int
) -> None:
    settings = Settings(budget=SMALL, questions_per_group=questions_per_group)
    several = analyze(world, teachers, [A, B, C], world, settings=settings, workers=workers)
    assert several.nodes.equals(analysed.nodes)
    assert several.questions.equals(analysed.questions)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_exception_in_the_grader_is_raised(world, teachers, workers: int) -> None:
    def broken(rollouts: Rollouts) -> np.ndarray:
        raise ZeroDivisionError("in the grader")

    with pytest.raises(ZeroDivisionError, match="in the grader"):
        analyze(world, teachers, [A, B, C], FunctionGrader(broken), settings=Settings(budget=SMALL), workers=workers)


def test_adaptive_enrichment_is_deterministic_too(world, teachers) -> None:
    plan = Settings(budget=replace(SMALL, allocation="adaptive"))
    one, two = (analyze(world, teachers, [A], world, settings=plan) for _ in range(2))
    assert one.nodes.equals(two.nodes)
    assert one.nodes.num_rows > 20


def test_every_objective_has_rows(world, teachers) -> None:
    settings = Settings(objectives=[*OBJECTIVES, Ideal()], budget=SMALL)
    rows = analyze(world, teachers, [A], world, settings=settings).nodes.to_pylist()
    assert {row["objective"] for row in rows} == {objective.name for objective in settings.objectives}
    for row in rows:
        assert np.isfinite(row["update_norm"])
        assert (row["teacher"] == "reward") == (row["objective"] in ("ideal", "dr_grpo", "grpo"))
        if row["objective"] == "ideal" and row["sr_range"] > 1e-5:
            # Below 1 by as much as the ideal update itself is uncertain.
            assert 0 < row["alignment"] <= 1


def test_reward_objectives_need_no_teacher(world) -> None:
    found = analyze(world, [], [A], world, settings=Settings(objectives=[DrGRPO()], budget=SMALL))
    assert set(found.nodes["teacher"].to_pylist()) == {"reward"}


@pytest.mark.parametrize("estimator", ["pooled", "direct"])
def test_the_other_estimators_run(world, teachers, analysed, estimator) -> None:
    evidence = collect(world, teachers, A, world, settings=Settings(budget=SMALL))
    rows = align(evidence, Settings(budget=SMALL, estimator=estimator))
    assert rows.num_rows > 15
    own = analysed.nodes.slice(0, records(analysed)[0]["nodes"])
    assert own["question"].unique().to_pylist() == ["a"]
    assert rows["alignment"].to_pylist() != own["alignment"].to_pylist()


def test_a_teacher_that_is_the_student(world) -> None:
    same = ExactTeacher("same", world.log_p_LSV)
    found = analyze(world, [same], [A, B], world, settings=Settings(budget=SMALL))
    assert found.nodes.num_rows > 20
    alignment = found.nodes["alignment"].to_numpy()
    assert (alignment[np.isfinite(alignment)] == 0).all()
    assert set(found.nodes["verdict"].to_pylist()) == {"undecided"}
    assert found.nodes["kl"].to_numpy() == pytest.approx(np.zeros(found.nodes.num_rows), abs=1e-12)
    (rank,) = metrics.teacher_ranking(found.nodes)
    assert (rank.alignment.mean, rank.weighted_cosine.mean, rank.undecided) == (0, 0, 1)


# -- questions with one kind of rollout -----------------------------------------------------------------------


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
@pytest.mark.parametrize("correct", [True, False])
def test_questions_that_always_or_never_succeed_are_kept(world, correct: bool, allocation) -> None:
    sure = one_sided(world, correct)
    found = analyze(
        sure, [sure.tilted_teacher()], [A, B], sure, settings=Settings(budget=replace(SMALL, allocation=allocation))
    )
    for row in records(found):
        assert row["pass_rate"] == correct
        assert (row["correct_paths"], row["incorrect_paths"]) == ((2, 0) if correct else (0, 2))
        assert row["note"] == (
            "60 of 60 initial rollouts correct: 2 of 2 correct and 0 of 2 incorrect paths found"
            if correct
            else "0 of 60 initial rollouts correct: 0 of 2 correct and 2 of 2 incorrect paths found"
        )
    # All outcomes are equal, so hardly any verdict may be decided.
    decided = np.array(found.nodes["verdict"].to_pylist()) != "undecided"
    assert decided.mean() < 0.1
    assert found.nodes["sr_range"].to_numpy().max(initial=0) < 0.001
    assert np.abs(found.nodes["value"].to_numpy() - correct).max(initial=0) < 0.02


def test_a_question_without_any_grade_is_kept(world, teachers, analysed) -> None:
    blind = FunctionGrader(lambda rollouts: np.full(len(rollouts), Outcome.UNKNOWN))
    everywhere_stopped = one_sided(world, True)
    found = analyze(everywhere_stopped, teachers, [A], blind, settings=Settings(budget=SMALL))
    (row,) = records(found)
    assert found.nodes.num_rows == 0
    assert found.nodes.schema == analysed.nodes.schema
    assert isnan(row["pass_rate"])
    assert row["unknown"] == SMALL.initial
    assert (row["initial"], row["targeted"], row["correct_paths"], row["incorrect_paths"]) == (0, 0, 0, 0)
    assert row["note"] == "no initial rollout could be graded"


def test_one_ungraded_question_does_not_affect_the_others(world, teachers) -> None:
    class Picky:
        def grade(self, question: Question, rollouts: Rollouts) -> np.ndarray:
            return (
                world.grade(question, rollouts) if question == A else np.full(len(rollouts), Outcome.UNKNOWN, np.int8)
            )

    found = analyze(world, teachers, [B, A], Picky(), settings=Settings(budget=SMALL))
    # Truncated rollouts are incorrect whatever the grader says, so "b" may still have some.
    assert records(found)[1]["nodes"] > 10
    assert metrics.teacher_ranking(found.nodes)[0].teacher == "tilted"


def test_some_unknown_grades(world, teachers) -> None:
    def unsure(rollouts: Rollouts) -> np.ndarray:
        return np.where(rollouts.key_R % np.uint64(3) == 0, Outcome.UNKNOWN, world.grade(A, rollouts))

    evidence = collect(world, teachers, A, FunctionGrader(unsure), settings=Settings(budget=SMALL))
    row = engine.QuestionRecord.of(evidence, 0, [])
    natural = evidence.tree.launch_R == 0
    assert 20 < row.initial == natural.sum() < 55
    assert row.unknown > 100
    assert row.initial + row.targeted + row.certain == len(evidence.tree) + row.unknown - (SMALL.initial - row.initial)
    assert align(evidence, Settings(budget=SMALL)).num_rows > 10


def test_truncated_is_incorrect_whatever_the_grader_says(world, teachers) -> None:
    generous = FunctionGrader(lambda rollouts: np.full(len(rollouts), Outcome.CORRECT))
    evidence = collect(world, teachers, A, generous, settings=Settings(budget=replace(SMALL, initial=200)))
    tree = evidence.tree
    truncated = tree.finish_R == Finish.TRUNCATED
    assert truncated.any()
    assert np.array_equal(tree.outcome_R > 0, ~truncated)
    assert engine.QuestionRecord.of(evidence, 0, []).truncated == truncated.sum()
    unsure = FunctionGrader(lambda rollouts: np.full(len(rollouts), Outcome.UNKNOWN))
    only_truncated = collect(world, teachers, A, unsure, settings=Settings(budget=replace(SMALL, initial=200)))
    assert (only_truncated.tree.finish_R == Finish.TRUNCATED).all()
    assert (only_truncated.tree.outcome_R == Outcome.INCORRECT).all()


def test_failed_rollouts_are_counted(world, teachers) -> None:
    class Flaky(RecordingWorld):
        def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
            made = super().sample(requests)
            failed = made.key_R % np.uint64(10) == 0
            failures = tuple(Failure(int(key), "out of memory") for key in made.key_R[failed])
            return replace(made.take(~failed), failures=failures)

    found = analyze(Flaky(world), teachers, [A], world, settings=Settings(budget=SMALL))
    (row,) = records(found)
    assert row["failed"] > 50
    assert row["initial"] < SMALL.initial
    assert row["unknown"] == 0
    assert found.nodes.num_rows > 10


# -- budgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
@pytest.mark.parametrize("limit", [0, 1, 3, 50, 501])
def test_the_targeted_limit_is_reached_and_never_exceeded(world, teachers, allocation, limit: int) -> None:
    student = RecordingWorld(world)
    budget = replace(SMALL, targeted=limit, allocation=allocation)
    (row,) = records(analyze(student, teachers, [A], world, settings=Settings(budget=budget)))
    assert row["targeted"] == student.targeted == limit
    assert sum(request.n for request in student.requests) == limit + SMALL.initial


def test_without_a_limit_adaptive_uses_half_of_the_paper_plan(world, teachers) -> None:
    spent = {}
    for allocation in ("paper", "adaptive"):
        plan = Settings(budget=replace(SMALL, allocation=allocation))
        spent[allocation] = collect(world, teachers, A, world, settings=plan).targeted
    assert spent["adaptive"] == spent["paper"] // 2


def test_a_single_path_is_enough(world, teachers) -> None:
    for right in (True, False):
        budget = replace(SMALL, correct_paths=int(right), incorrect_paths=int(not right))
        found = analyze(world, teachers, [A], world, settings=Settings(budget=budget))
        (row,) = records(found)
        assert (row["correct_paths"], row["incorrect_paths"], row["note"]) == (int(right), int(not right), "")
        assert set(found.nodes["path"].to_pylist()) == {0}
        assert set(found.nodes["path_correct"].to_pylist()) == {right}


def test_a_single_rollout_is_enough(world, teachers) -> None:
    found = analyze(world, teachers, [A], world, settings=Settings(budget=replace(SMALL, initial=1, targeted=40)))
    (row,) = records(found)
    assert row["correct_paths"] + row["incorrect_paths"] == 1
    assert "of 1 initial rollouts correct" in row["note"]


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_a_time_limit_of_zero_skips_enrichment(world, teachers, allocation) -> None:
    student = RecordingWorld(world)
    budget = replace(SMALL, seconds=0, allocation=allocation)
    (row,) = records(analyze(student, teachers, [A], world, settings=Settings(budget=budget)))
    assert row["targeted"] == student.targeted == 0
    assert row["initial"] == SMALL.initial
    assert row["note"] == "stopped after 0 s"


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that advances only when the test changes it."""
    clock = SimpleNamespace(now=0.0)
    clock.tick = lambda: setattr(clock, "now", clock.now + 1)
    monkeypatch.setattr(collect_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_the_time_limit_is_checked_between_batches(world, teachers, clock, allocation) -> None:
    settings = Settings(budget=replace(SMALL, initial=20, seconds=3.5, allocation=allocation), batch=20)
    (row,) = records(analyze(RecordingWorld(world, clock.tick), teachers, [A], world, settings=settings))
    # One second for sampling; three batches started within the limit.
    assert clock.now == 4
    assert row["targeted"] == 3 * 20
    assert row["note"].endswith("stopped after 3.5 s")


def test_a_finished_question_is_not_marked_as_stopped(world, teachers, clock) -> None:
    budget = replace(SMALL, targeted=100, seconds=1.5)
    (row,) = records(analyze(RecordingWorld(world, clock.tick), teachers, [A], world, settings=Settings(budget=budget)))
    assert clock.now == 2  # over time, but with everything done
    assert row["targeted"] == 100
    assert row["note"] == ""


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_progress_is_reported(world, teachers, allocation) -> None:
    reports: list[Progress] = []
    budget = replace(SMALL, targeted=300, allocation=allocation)
    analyze(world, teachers, [A, B], world, settings=Settings(budget=budget), on_progress=reports.append)
    assert [step.question for step in reports] == sorted(step.question for step in reports)
    for question in "ab":
        own = [step for step in reports if step.question == question]
        assert list(dict.fromkeys(step.phase for step in own)) == [
            "sampling", "scoring", "enriching", "estimating", "done",
        ]  # fmt: skip
        for phase, total in (("sampling", SMALL.initial), ("scoring", 4), ("enriching", 300)):
            steps = [step for step in own if step.phase == phase]
            assert {step.planned for step in steps} == {total}
            done = [step.done for step in steps]
            assert done == sorted(set(done))
            assert done[0] == 0  # reported when the phase begins
            assert done[-1] == total


# -- invalid inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"questions": []}, "no question"),
        ({"questions": [A, B, Question("a", "another text")]}, "question 'a' appears more than once"),
        ({"teachers": ["T", "T"]}, "teacher 'T' appears more than once"),
        ({"teachers": ["reward"]}, "'reward' is reserved"),
        ({"objectives": []}, "objectives is empty"),
        ({"objectives": [ReverseKL(), ReverseKL()]}, "objective 'reverse_kl' appears more than once"),
        ({"teachers": []}, "'reverse_kl' needs a teacher"),
        ({"teachers": [], "objectives": [DrGRPO(), MiniLLM()]}, "'minillm' needs a teacher"),
    ],
)
def test_invalid_inputs_raise_before_sampling(world, wrong: dict[str, Any], message: str) -> None:
    student = RecordingWorld(world)
    names = wrong.get("teachers", ["T"])
    settings = Settings(objectives=wrong.get("objectives", [ReverseKL()]), budget=SMALL)
    with pytest.raises(OpdAlignError, match=message):
        analyze(
            student,
            [ExactTeacher(name, world.log_p_LSV) for name in names],
            wrong.get("questions", [A]),
            world,
            settings=settings,
        )
    assert student.requests == []


def test_zero_workers_and_empty_batches_raise(world, teachers) -> None:
    with pytest.raises(OpdAlignError, match="workers must be at least 1, not 0"):
        analyze(world, teachers, [A], world, workers=0)
    with pytest.raises(OpdAlignError, match="batch must be at least 1, not 0"):
        Settings(batch=0)


def test_questions_may_come_from_a_generator(world, teachers) -> None:
    found = analyze(world, teachers, (q for q in (A, B)), world, settings=Settings(budget=replace(SMALL, targeted=0)))
    assert [row["question"] for row in records(found)] == ["a", "b"]


# -- representative paths -------------------------------------------------------------------------------------


def paths_from(rollouts: Rollouts, **budget: int) -> list[tuple[list[int], bool]]:
    chosen = representative_paths(GenerationTree.build(rollouts), Budget(**budget))
    return [(completion.tolist(), right) for completion, right in chosen]


def test_paths_are_chosen_by_key_correct_ones_first() -> None:
    rollouts = Rollouts.of([[k, 0] for k in range(1, 7)], outcome=[0, 1, 0, 1, 0, 1], key=[60, 50, 40, 30, 20, 10])
    assert paths_from(rollouts) == [([6, 0], True), ([4, 0], True), ([5, 0], False), ([3, 0], False)]
    assert paths_from(rollouts, correct_paths=0, incorrect_paths=1) == [([5, 0], False)]
    assert len(paths_from(rollouts, correct_paths=9, incorrect_paths=9)) == 6


def test_paths_are_never_forced_rollouts() -> None:
    rollouts = Rollouts.of([[1, 0], [2, 0], [3, 0]], outcome=[0, 0, 0], launch=[1, 0, 0])
    assert paths_from(rollouts, incorrect_paths=3) == [([2, 0], False), ([3, 0], False)]


@pytest.mark.parametrize(("truncated", "expected"), [(0, 0), (2, 0), (3, 1), (5, 1), (8, 2), (10, 2)])
def test_incorrect_paths_are_truncated_as_often_as_the_rollouts_are(truncated: int, expected: int) -> None:
    rollouts = Rollouts.of(
        [[k, 5] for k in range(1, 11)], outcome=[0] * 10, truncated=[k < truncated for k in range(10)]
    )
    chosen = paths_from(rollouts, incorrect_paths=2)
    assert len(chosen) == 2
    assert sum(completion[0] <= truncated for completion, _ in chosen) == expected


def test_the_same_completion_is_chosen_once_with_inconsistent_grades() -> None:
    rollouts = Rollouts.of([[1, 0], [1, 0], [1, 0], [2, 0]], outcome=[1, 1, 0, 0])
    assert paths_from(rollouts) == [([1, 0], True), ([2, 0], False)]


def test_a_prefix_of_another_path_is_not_chosen() -> None:
    # With a stop string, a completion may be a prefix of another one.
    rollouts = Rollouts.of([[1, 2], [1, 2, 3], [1, 2, 3, 4], [5]], outcome=[1, 1, 0, 0])
    assert paths_from(rollouts) == [([1, 2], True), ([5], False)]


def test_inconsistent_grades_do_not_stop_the_analysis(world, teachers) -> None:
    coin = FunctionGrader(lambda rollouts: rollouts.key_R % np.uint64(2))
    short = ExactWorld.random(0, length=4, vocabulary=4, states=4, forks=0.1)  # few completions, many of them alike
    found = analyze(short, [short.tilted_teacher()], [A, B, C], coin, settings=Settings(budget=SMALL))
    assert len(records(found)) == 3


def test_halves_share_only_what_is_certain(world, teachers) -> None:
    evidence = collect(world, teachers, A, world, settings=Settings(budget=SMALL))
    one, two = halves_of(evidence.tree, evidence.paths)
    assert np.array_equal(np.union1d(one.key_R, two.key_R), np.sort(evidence.tree.key_R))
    both = np.isin(evidence.tree.key_R, np.intersect1d(one.key_R, two.key_R))
    completions = {scores.completion_T.tobytes() for scores in evidence.paths}
    for row in np.flatnonzero(both):
        certain = evidence.tree.launch_R[row] == evidence.tree.length_R[row]
        assert certain or evidence.tree.completion(row).tobytes() in completions
    assert abs(len(one) - len(two)) < 0.2 * len(evidence.tree)


# -- length ---------------------------------------------------------------------------------------------------


def test_thirty_thousand_tokens() -> None:
    world = ExactWorld.random(0, length=30_000, vocabulary=8)
    teachers = [world.tilted_teacher(strength=4.0, noise=1.0)]
    budget = Budget(initial=8, targeted=40, rounds=2, correct_paths=1, incorrect_paths=1)
    settings = Settings(budget=budget, rules=Rules(n_sig=1, draws=20))
    evidence = collect(world, teachers, A, world, settings=settings)
    rows = align(evidence, settings)
    assert min(len(scores) for scores in evidence.paths) > 20_000
    assert evidence.targeted == 40
    assert rows.num_rows > 10
    # Thousands of exits with prefixes of thousands of tokens: a plan creates only the prefixes it needs.
    estimates, tokens = estimate(evidence.tree, evidence.paths), Sampleable(budget.tau, np.array([EOS], np.uint32))
    tracemalloc.start()
    targets = plan_adaptive(evidence.paths, estimates, tokens, rollouts=40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(target.n for target in targets) == 40
    assert peak < 100e6


@dataclass(frozen=True)
class ShortSighted:
    """A teacher of an exact world that reads at most `limit` tokens of a completion."""

    teacher: ExactTeacher
    limit: int

    @property
    def prompt(self) -> SimpleNamespace:
        return SimpleNamespace(unavailable=lambda _, tokens: f"{tokens} tokens" if tokens > self.limit else None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.teacher, name)


def test_a_teacher_is_dropped_where_the_paths_are_too_long_for_it_and_the_others_are_not_affected(world, teachers):
    longest = max(len(path) for path, _ in representative_paths(first_tree(world), SMALL))
    for limit, kept in ((longest, True), (longest - 1, False)):
        both = [teachers[0], ShortSighted(teachers[1], limit)]
        result = analyze(world, both, [A], world, settings=Settings(budget=SMALL))
        assert (teachers[1].name in result.nodes["teacher"].unique().to_pylist()) == kept
        assert teachers[0].name in result.nodes["teacher"].unique().to_pylist()
        assert result.questions["note"].to_pylist() == ["" if kept else f"without {both[1].name}: {longest} tokens"]


def test_nothing_is_spent_on_paths_that_no_teacher_can_read(world, teachers):
    result = analyze(world, [ShortSighted(teachers[0], 1)], [A], world, settings=Settings(budget=SMALL))
    assert result.nodes.num_rows == 0
    assert result.questions["targeted"].to_pylist() == [0]


def first_tree(world: ExactWorld) -> GenerationTree:
    """The initial rollouts of question A."""
    rollouts = world.sample([SampleRequest(A, np.empty(0, np.uint32), SMALL.initial)])
    return GenerationTree.build(replace(rollouts, outcome_R=world.grade(A, rollouts)))
