"""Merged runs: byte for byte the files of one run on all questions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.runs.execute import analyze_into
from opd_align.runs.filesystem import as_path
from opd_align.runs.manifest import RunMismatch, manifest_bytes, read_manifest
from opd_align.runs.merge import merge
from opd_align.runs.rollout_store import DamagedFileWarning
from opd_align.runs.run_directory import Usage
from opd_align.settings import Budget, Settings
from opd_align.types import OpdAlignError

SETTINGS = Settings([ReverseKL(), DrGRPO()], Budget(initial=40, targeted=160), batch=40)


class Prompted(ExactFamily):
    """Worlds with prompts, which are part of a run's manifest."""

    name = "prompted"

    def prompt(self, question: Any) -> list[int]:
        return [7, len(question.id), ord(question.id[-1])]


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return Prompted(ExactFamily.random(5, 5, length=16).worlds)


@pytest.fixture(scope="module")
def teachers(family: ExactFamily) -> list[Any]:
    return [
        family.teacher("tilted", lambda world: world.tilted_teacher(seed=0)),
        family.teacher("style", lambda world: world.style_teacher(seed=0)),
    ]


@pytest.fixture(scope="module")
def runs(family: ExactFamily, teachers: list[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on all questions, and the same questions as three runs."""
    folder, everything = tmp_path_factory.mktemp("merge"), family.questions
    parts = {"whole": everything, "a": everything[:2], "b": everything[2:3], "c": everything[3:]}
    for name, questions in parts.items():
        analyze_into(folder / name, family, teachers, questions, family, settings=SETTINGS)
    return {name: folder / name for name in parts}


def contents(run: Path) -> dict[str, bytes]:
    ignored = ("lock", "spent.json")  # differ between runs
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name not in ignored
    }


def test_merged_parts_equal_the_whole_run(runs: dict[str, Path], tmp_path: Path) -> None:
    merge([runs["a"], runs["b"], runs["c"]], tmp_path / "run")
    assert contents(tmp_path / "run") == contents(runs["whole"])
    assert len(contents(tmp_path / "run")) > 15
    assert Usage.load(tmp_path / "run").tokens == Usage.load(runs["whole"]).tokens
    merge([runs["a"], runs["b"], runs["c"]], tmp_path / "run")  # merging again changes nothing
    assert contents(tmp_path / "run") == contents(runs["whole"])
    assert Usage.load(tmp_path / "run").tokens == Usage.load(runs["whole"]).tokens


def test_merged_runs_can_be_merged_again(runs: dict[str, Path], tmp_path: Path) -> None:
    merge([runs["a"], runs["b"]], tmp_path / "ab")
    merge([tmp_path / "ab", runs["c"]], "memory://merged/abc")
    for name in ("nodes.parquet", "manifest.json"):
        assert (as_path("memory://merged/abc") / name).read_bytes() == (runs["whole"] / name).read_bytes()


def test_resuming_a_merged_run_samples_nothing(
    family: ExactFamily, teachers: list[Any], runs: dict[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    merge([runs["a"], runs["b"], runs["c"]], tmp_path / "run")
    monkeypatch.setattr(ExactFamily, "sample", lambda *_: pytest.fail("sampled again"))
    analyze_into(tmp_path / "run", family, teachers, family.questions, family, settings=SETTINGS)
    assert contents(tmp_path / "run") == contents(runs["whole"])


def test_runs_that_differ_are_rejected_with_the_difference(
    family: ExactFamily, teachers: list[Any], runs: dict[str, Path], tmp_path: Path
) -> None:
    questions = family.questions[2:]
    others = {
        "batch": (teachers, replace(SETTINGS, batch=41), r"settings.batch: 40 in .*a, 41 in .*batch"),
        "teacher": (teachers[:1], SETTINGS, r"teachers.style: .* in .*a, absent in .*teacher"),
        "order": (teachers[::-1], SETTINGS, r"teachers: different order in .*order"),
    }
    for name, (compared_teachers, settings, message) in others.items():
        analyze_into(tmp_path / name, family, compared_teachers, questions, family, settings=settings)
        with pytest.raises(RunMismatch, match=rf"(?s)cannot be merged, their settings differ.*{message}"):
            merge([runs["a"], tmp_path / name], tmp_path / "out")
    with pytest.raises(RunMismatch, match=r"question 'world-5' of .*whole' is also in an earlier run"):
        merge([runs["a"], runs["whole"]], tmp_path / "out")
    with pytest.raises(OpdAlignError, match="the same run is given twice"):
        merge([runs["a"], runs["a"]], tmp_path / "out")
    with pytest.raises(OpdAlignError, match="at least two runs"):
        merge([runs["a"]], tmp_path / "out")
    with pytest.raises(OpdAlignError, match="does not exist"):
        merge([runs["a"], tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(RunMismatch, match="contains another run"):
        merge([runs["a"], runs["b"]], runs["c"])
    assert not (tmp_path / "out").exists()


def test_a_damaged_shard_is_skipped_with_a_warning(runs: dict[str, Path], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(runs["b"], tmp_path / "b"))
    shard = min((damaged / "rollouts").glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.warns(DamagedFileWarning, match=rf"{shard.name} is damaged .* its batch is missing in"):
        merge([runs["a"], damaged, runs["c"]], tmp_path / "run")
    merged, whole = contents(tmp_path / "run"), contents(runs["whole"])
    assert whole.keys() - merged.keys() == {f"rollouts/{shard.name}"}
    assert all(whole[name] == content for name, content in merged.items())
    assert shard.exists()  # the source run is not changed


def test_a_run_without_rollouts_is_rejected_before_anything_is_written(runs: dict[str, Path], tmp_path: Path) -> None:
    bare = Path(shutil.copytree(runs["b"], tmp_path / "b", ignore=shutil.ignore_patterns("rollouts")))
    with pytest.raises(OpdAlignError, match=r"b' has no rollouts"):
        merge([runs["a"], bare], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_versions_of_all_machines_are_listed(runs: dict[str, Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs["b"], tmp_path / "b"))
    manifest = read_manifest(other / "manifest.json")
    assert manifest is not None
    (other / "manifest.json").write_bytes(manifest_bytes(manifest, [{"numpy": "0.1"}], manifest["results"]))
    merge([runs["a"], other], tmp_path / "run")
    made_with = json.loads((tmp_path / "run" / "manifest.json").read_text())["made_with"]
    assert [entry.get("numpy") for entry in made_with][1:] == ["0.1"]


def test_merging_with_demonstrations_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of the embedded models on parts of a list of questions."""
    small = ["analyze", "--teachers", "Self-1C", "--initial", "16", "--targeted", "40", "--n-sig", "3"]
    assert main([*small, "--limit", "1", "--out", str(tmp_path / "a")]) == 0
    assert main([*small, "--limit", "1", "--set", "questions.offset=1", "--out", str(tmp_path / "b")]) == 0
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "ab")]) == 0
    assert f"run directory  {tmp_path / 'ab'}" in capsys.readouterr().out
    assert main([*small, "--limit", "2", "--out", str(tmp_path / "whole")]) == 0
    for name in ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "manifest.json"):
        assert (tmp_path / "ab" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    manifest = json.loads((tmp_path / "ab" / "demonstrations" / "manifest.json").read_text())
    assert len(manifest["questions"]) == 2
