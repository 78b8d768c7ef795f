"""The W&B workspace of a training: what is in it, and in which order. Nothing is sent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.made_trainings import made_training

from opd_align.cli.main import main
from opd_align.core.metric_registry import parse_key
from opd_align.report.history import read_training
from opd_align.report.workspace import Section, build_workspace, workspace_sections
from opd_align.training.alarm_log import alarm_after

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb-workspaces


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with two teachers and two evaluations."""
    made = tmp_path_factory.mktemp("run")
    folder = made_training(made, {"teacher": [0.5, 1.0], "Self-1C": [0.2, 0.3]})
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"] |= alarm_after(folder, line["step"], line["metrics"])[0]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


@pytest.fixture(scope="module")
def sections(output_dir: Path) -> list[Section]:
    return workspace_sections(read_training(output_dir / "opd_align"))


def test_the_four_headline_charts_come_first_then_the_alarm(sections):
    first, alarm, *others = sections
    assert first.title == "What to watch"
    assert [panel.keys for panel in first.panels] == [
        tuple(f"train/opd_align/{teacher}/reverse_kl/{stem}" for teacher in ("teacher", "Self-1C"))
        for stem in ("alignment/mean", "alignment/weighted", "overlap_ratio")
    ] + [("train/opd_align/student/pass_rate",)]
    assert "train/opd_align/teacher/reverse_kl/alarm/p_helps" in alarm.panels[0].keys
    assert [section.is_open for section in sections] == [True, True] + [False] * len(others)
    assert {section.title for section in others} == {"Alignment", "Choosing tokens", "Cost of evaluations"}


def test_every_key_is_one_that_was_logged(sections):
    keys = [key for section in sections for panel in section.panels for key in panel.keys]
    assert len(keys) > 60
    assert all(key.startswith("train/") and parse_key(key.removeprefix("train/")) is not None for key in keys)
    assert not [key for key in keys if "/gated/" in key], "this training has no gate"


def test_a_gated_training_has_a_section_for_its_gate(output_dir, tmp_path):
    shutil.copytree(output_dir, tmp_path / "run")
    with (tmp_path / "run" / "opd_align" / "training.jsonl").open("a") as file:
        file.write('{"step": 200, "gate/tokens_kept": 0.4, "gate/loss": 0.1}\n')
    found = workspace_sections(read_training(tmp_path / "run" / "opd_align"))
    (gate,) = [section for section in found if section.title == "Gate"]
    assert {"train/gate/tokens_kept", "train/gate/loss"} <= {key for panel in gate.panels for key in panel.keys}


def test_the_workspace_has_the_sections_in_their_order(sections):
    pytest.importorskip("wandb_workspaces")
    spec = build_workspace(sections, entity="team", project="distillation", name="run")._spec
    assert (spec["entity"], spec["project"], spec["displayName"]) == ("team", "distillation", "run")
    made = spec["spec"]["section"]["panelBankConfig"]["sections"]
    assert [each["name"] for each in made][: len(sections)] == [section.title for section in sections]
    first = made[0]
    assert first["isOpen"]
    assert first["pinned"]
    assert [tuple(panel["config"]["metrics"]) for panel in first["panels"]] == [
        panel.keys for panel in sections[0].panels
    ]
    assert {panel["config"]["xAxis"] for panel in first["panels"]} == {"train/global_step"}


@pytest.mark.parametrize("project", ["distillation", "a/b/c", "/b", "a/"])
def test_a_project_without_an_entity_is_refused(output_dir, project, capsys):
    assert main(["workspace", str(output_dir), "--project", project]) == 2
    assert "--project must be ENTITY/PROJECT" in capsys.readouterr().err


def test_a_training_without_an_evaluation_is_refused(tmp_path, capsys):
    (tmp_path / "opd_align").mkdir()
    assert main(["workspace", str(tmp_path), "--project", "a/b"]) == 2
    assert "has no evaluation yet" in capsys.readouterr().err


def test_a_dry_run_prints_what_would_be_sent(output_dir, capsys):
    pytest.importorskip("wandb_workspaces")
    assert main(["workspace", str(output_dir), "--project", "a/b", "--dry-run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "What to watch"
    assert printed[1].startswith(
        "  Alignment: train/opd_align/teacher/reverse_kl/alignment/mean, train/opd_align/Self-1C"
    )
