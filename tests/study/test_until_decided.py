"""Adding questions until the recommendation is decided: the same result as a run with as many questions at once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from opd_align.backends.exact import ExactFamily, ExactFamilyTeacher
from opd_align.cli.main import DECIDED, main
from opd_align.core import decision as decisions
from opd_align.core.decision import Candidate, Decision, Open, decide
from opd_align.core.engine import Analysis
from opd_align.runs.execute import GroupCache, analyze_into
from opd_align.runs.manifest import RunMismatch
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Rules, Settings
from opd_align.study.until_decided import analyze_until_decided, next_size
from opd_align.types import OpdAlignError, Question

RESULT = ("manifest.json", "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json")
SETTINGS = Settings(budget=Budget(initial=40, targeted=60, allocation="adaptive", rounds=2), rules=Rules(n_sig=5))


@cache
def worlds() -> tuple[ExactFamily, list[ExactFamilyTeacher]]:
    family = ExactFamily.random(3, 10, length=20)
    return family, [
        family.teacher("tilted", lambda world: world.tilted_teacher(seed=0)),
        family.teacher("adversarial", lambda world: world.adversarial_teacher(seed=0)),
    ]


class ExactStudy:
    """What `analyze_until_decided` needs of a study, on exact worlds; `analyzed` counts the questions that were."""

    def __init__(self) -> None:
        self.family, self.teachers = worlds()
        self.questions: list[Question] = self.family.questions
        self.unusable_questions: dict[str, str] = {self.questions[2].id: "no answer"}
        self.analyzed: list[str] = []

    @property
    def usable_questions(self) -> list[Question]:
        return [question for question in self.questions if question.id not in self.unusable_questions]

    def limited(self, n: int) -> ExactStudy:
        stage = object.__new__(ExactStudy)
        stage.__dict__.update(self.__dict__)
        stage.questions = self.questions[:n]
        return stage

    def analyze(self, path: Path, **options: Any) -> Analysis:
        def on_progress(step: Any) -> None:
            if step.phase == "done":
                self.analyzed.append(step.question)

        return analyze_into(
            path, self.family, self.teachers, self.usable_questions, self.family, settings=SETTINGS,
            on_progress=on_progress, **options,
        )  # fmt: skip


def grown(study: ExactStudy, path: Path, *, level: float, start: int = 4, stop_after: int = 0) -> tuple[Any, list[int]]:
    done: GroupCache = {}
    sizes: list[int] = []

    def on_stage(n: int, decision: Decision) -> None:
        sizes.append(n)
        if len(sizes) == stop_after:
            raise KeyboardInterrupt

    def analyze(stage: Any, n_new: int) -> Analysis:
        return stage.analyze(path, extend=True, done=done)

    try:
        return analyze_until_decided(study, path, analyze, level=level, start=start, on_stage=on_stage), sizes  # type: ignore[arg-type]
    except KeyboardInterrupt:
        return None, sizes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    path = tmp_path_factory.mktemp("until") / "run"
    study = ExactStudy()
    analysis, sizes = grown(study, path, level=0.97)
    assert len(sizes) > 1
    assert sorted(study.analyzed) == sorted(set(study.analyzed))  # no question is analyzed twice
    decision = decide(analysis.nodes, n_analyzed=analysis.questions.num_rows, level=0.97)
    assert decision.decided or sizes[-1] == 9
    return path, sizes


def test_the_result_is_that_of_as_many_questions_at_once(whole, tmp_path):
    path, sizes = whole
    study = ExactStudy()
    used = study.usable_questions[: sizes[-1]]
    study.limited(study.questions.index(used[-1]) + 1).analyze(tmp_path / "once")
    for name in RESULT:
        assert (path / name).read_bytes() == (tmp_path / "once" / name).read_bytes(), name
    stored = {file.name for file in (path / "rollouts").glob("*.parquet")}
    assert stored == {file.name for file in (tmp_path / "once" / "rollouts").glob("*.parquet")}
    assert len(stored) >= sizes[-1]


def test_an_interrupted_run_goes_on_where_it_was(whole, tmp_path):
    path, sizes = whole
    _, first = grown(ExactStudy(), tmp_path / "run", level=0.97, stop_after=1)
    assert first == sizes[:1]
    _, rest = grown(ExactStudy(), tmp_path / "run", level=0.97)
    assert rest == sizes  # the stage that was finished is rebuilt from its rollouts
    for name in RESULT:
        assert (path / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name


def test_a_run_that_was_killed_while_it_grew_is_unfinished_and_goes_on(whole, tmp_path):
    study = ExactStudy()
    shutil.copytree(whole[0], tmp_path / "run")
    longer = study.limited(8)
    longer.family = replace(study.family)
    object.__setattr__(longer.family, "score", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        longer.analyze(tmp_path / "run", extend=True)
    with pytest.raises(OpdAlignError, match="not finished"):
        RunDirectory.load(tmp_path / "run")
    _, rest = grown(ExactStudy(), tmp_path / "run", level=0.97)
    assert rest == [7]
    assert RunDirectory.load(tmp_path / "run").questions.num_rows == 7


def test_a_directory_is_only_extended_by_the_same_run(tmp_path):
    study = ExactStudy()
    study.limited(4).analyze(tmp_path / "run")
    with pytest.raises(RunMismatch):
        study.limited(6).analyze(tmp_path / "run")  # not asked to extend
    other = study.limited(6)
    other.teachers = other.teachers[:1]
    with pytest.raises(RunMismatch, match="teachers"):
        other.analyze(tmp_path / "run", extend=True)
    swapped = study.limited(6)
    swapped.questions = [study.questions[1], study.questions[0], *study.questions[2:6]]
    with pytest.raises(RunMismatch):
        swapped.analyze(tmp_path / "run", extend=True)
    assert RunDirectory.load(tmp_path / "run").questions.num_rows == 3


@pytest.mark.parametrize(
    ("more", "expected"), [([3.0], 13), ([5.0, 7.0], 17), ([90.0], 20), ([inf], 20), ([nan, 6.0], 16), ([], 20)]
)
def test_stages_grow_by_what_is_needed_but_at_most_double(more, expected):
    open_now = tuple(Open(1, 0.7, value) for value in more)
    decision = Decision("undecided", 0.95, 10, (Candidate("A", "x", 0.1, 10),), still_open=open_now)
    assert next_size(10, decision, 100) == expected
    assert next_size(10, decision, 12) == min(expected, 12)


def test_the_default_probability_is_that_of_the_report():
    assert DECIDED == decisions.LEVEL


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-questions", "9"], "--max-questions has no effect without --until-decided"),
        (["--until-decided", "95"], "--until-decided takes a probability between 0.5 and 1"),
        (["--until-decided", "--limit", "20", "--max-questions", "9"], "at least the 20 questions to start with"),
        (["--until-decided", "--student", "exact"], "--until-decided does not support --student exact"),
        (["--until-decided", "--engine", "ray"], "--until-decided does not support --engine ray"),
        (["--until-decided", "--rollouts", "x.jsonl"], "--until-decided does not support --rollouts"),
    ],
)
def test_flags_that_make_no_sense_are_refused_at_once(flags, message, capsys, tmp_path):
    assert main(["analyze", *flags, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_quick_sets_a_small_budget_that_other_options_override(tmp_path, capsys, monkeypatch):
    from opd_align.cli import commands

    seen: list[Any] = []
    monkeypatch.setattr(commands, "_with_room_to_grow", lambda args, config: seen.append(config) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["analyze", "--quick", "--initial", "77", "--set", "budget.correct_paths=2"])
    config = seen[0]
    assert (config.questions.limit, config.budget.initial, config.budget.targeted) == (8, 77, 400)
    assert (config.budget.correct_paths, config.budget.incorrect_paths, config.budget.allocation) == (2, 1, "adaptive")
