"""The run driver: the result does not depend on the executor, and only a finished run has a summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.runs.execute import Group, GroupResults, LocalExecutor, analyze_into, execute_run
from opd_align.runs.filesystem import AnyPath
from opd_align.runs.manifest import describe
from opd_align.runs.run_directory import RunBusy, RunDirectory, Usage
from opd_align.settings import Budget, Settings

SETTINGS = Settings(budget=Budget(initial=40, targeted=160), batch=40, questions_per_group=1)
RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")

FAMILY = ExactFamily.random(3, 3, length=16)
TEACHERS: list[Any] = [FAMILY.teacher("tilted", lambda world: world.tilted_teacher(seed=0))]
MANIFEST = describe(FAMILY, TEACHERS, FAMILY.questions, FAMILY, SETTINGS)


@dataclass
class BackwardsExecutor:
    """Analyzes the groups one by one, the last one first."""

    main_process_calls: int = 0

    def on_main_process(self, function: Callable[[], Any]) -> Any:
        self.main_process_calls += 1
        return function()

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        with pytest.raises(RunBusy):
            RunDirectory(path, MANIFEST)
        local = LocalExecutor(FAMILY, TEACHERS, FAMILY, SETTINGS)
        done = [local.analyze_groups(path, [group]) for group in reversed(groups)]
        results = [results for part in reversed(done) for results in part.results]
        return GroupResults(results, sum((part.usage for part in done), Usage()))


def test_the_result_does_not_depend_on_the_executor(tmp_path: Path) -> None:
    analyze_into(tmp_path / "local", FAMILY, TEACHERS, FAMILY.questions, FAMILY, settings=SETTINGS)
    executor, other = BackwardsExecutor(), tmp_path / "other"
    _, path = execute_run(executor, lambda: RunDirectory(other, MANIFEST), FAMILY.questions, SETTINGS)
    assert path == other
    assert executor.main_process_calls == 2  # open and finish
    for name in RESULT:
        assert (other / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
    assert Usage.load(other).tokens == Usage.load(tmp_path / "local").tokens > 0


def test_a_failed_run_has_no_summary_and_releases_its_directory(tmp_path: Path) -> None:
    class FailingExecutor(BackwardsExecutor):
        def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
            super().analyze_groups(path, groups)
            raise RuntimeError("failed on purpose")

    with pytest.raises(RuntimeError, match="failed on purpose"):
        execute_run(FailingExecutor(), lambda: RunDirectory(tmp_path / "run", MANIFEST), FAMILY.questions, SETTINGS)
    assert not (tmp_path / "run" / "summary.json").exists()
    RunDirectory(tmp_path / "run", MANIFEST).close()
