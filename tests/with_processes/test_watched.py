"""The callback in two processes: the same numbers as in one, and the same training as without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.processes import EXPECTED, LAUNCH, run_script

from opd_align.backends.loading import load_model
from opd_align.training.snapshots import list_snapshots

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "watched.py"
TIMES = ("runtime", "per_second", "step_time", "total_flos", "seconds", "overhead")


def run(kind: str, folder: Path, launcher: str | None = None, *more: str) -> dict[str, Any]:
    """One training in a subprocess, or in two with accelerate."""
    folder.mkdir(parents=True, exist_ok=True)
    run_script(SCRIPT, launcher, kind, str(folder), *more)
    return dict(json.loads((folder / "seen.json").read_text()))


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(part in key for part in TIMES)}


def test_deepspeed_is_installed():
    pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert run("distillation", folder)["world"] == 1
    return folder


@pytest.mark.parametrize("launcher", LAUNCH)
def test_two_processes_find_what_one_finds(launcher, alone, tmp_path):
    seen = run("distillation", tmp_path / "two", launcher)
    assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    ours, theirs = tmp_path / "two" / "opd_align", alone / "opd_align"
    # The student of step 0 is the same in both runs.
    for name in ("nodes.parquet", "children.parquet", "questions.parquet"):
        assert (ours / "step-000000" / name).read_bytes() == (theirs / "step-000000" / name).read_bytes()
    rows = [numbers(row) for row in seen["log"] if "opd_align/student/pass_rate" in row]
    single = json.loads((alone / "seen.json").read_text())["log"]
    assert rows[0] == numbers(next(row for row in single if "opd_align/student/pass_rate" in row))
    assert [row["step"] for row in rows] == [0, 2]
    # The last student was trained in two processes; one process computes the same from the saved model.
    (tmp_path / "again" / "opd_align").mkdir(parents=True)
    shutil.copy(ours / "demonstrations.json", tmp_path / "again" / "opd_align")
    run("distillation", tmp_path / "again", None, "--student", str(tmp_path / "two" / "model"))
    for name in ("nodes.parquet", "questions.parquet"):
        again = tmp_path / "again" / "opd_align" / "step-000000" / name
        assert (ours / "step-000002" / name).read_bytes() == again.read_bytes()


@pytest.mark.parametrize("launcher", ["ddp", "zero3"])  # ZeRO-2 keeps whole weights everywhere, as DDP does
def test_two_processes_train_as_without_the_callback(launcher, tmp_path):
    kind, extra = ("gkd", ("--extra",)) if launcher == "zero3" else ("distillation", ())
    watched = run(kind, tmp_path / "watched", launcher, *extra)
    unwatched = run(kind, tmp_path / "unwatched", launcher, "--unwatched")
    own = [numbers(row) for row in watched["log"] if "opd_align/evaluation/failures" not in row]
    assert own == [numbers(row) for row in unwatched["log"]]
    assert any("loss" in row for row in own)
    for file in (tmp_path / "watched" / "model").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "unwatched" / "model" / file.name).read_bytes()
        break
    else:
        pytest.fail("no weights were saved")
    if not extra:
        return
    # The user's teacher, which is sharded too, is the same model as the trainer's own.
    rows = [row for row in watched["log"] if "opd_align/student/pass_rate" in row]
    own = {key: value for key, value in rows[0].items() if key.startswith("opd_align/teacher/")}
    assert len(own) > 5
    assert own == {key: rows[0][key.replace("/teacher/", "/another/", 1)] for key in own}


def test_nodes_without_a_shared_disk_leave_all_files_with_rank_0(alone, tmp_path):
    seen = run("distillation", tmp_path, "ddp", "--own-folders")
    assert seen["world"] == 2
    ours, theirs = tmp_path / "rank0" / "opd_align" / "step-000000", alone / "opd_align" / "step-000000"
    for name in ("nodes.parquet", "children.parquet", "questions.parquet"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    shards = {file.name for file in (theirs / "rollouts").iterdir()}
    assert len(shards) > 3
    assert {file.name for file in (ours / "rollouts").iterdir()} == shards, "those of rank 1 as well"
    assert not list(ours.rglob(".*")), "nothing is left of the look for a shared disk"
    assert not (tmp_path / "rank1" / "opd_align").exists()


@pytest.mark.parametrize("launcher", ["ddp", "zero3"])
def test_snapshots_of_two_processes_have_all_weights(launcher, tmp_path):
    """One snapshot per step whatever the number of processes; sharded weights are gathered for it."""
    seen = run("distillation", tmp_path / "two", launcher, "--outside")
    assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    first, last = list_snapshots(tmp_path / "two" / "opd_align")
    assert (first.step, last.step) == (0, 2)
    start, end = load_model("embedded:student").model, load_file(tmp_path / "two" / "model" / "model.safetensors")
    for folder, expected in ((first.folder, start.state_dict()), (last.folder, end)):
        found = load_file(folder / "model.safetensors")
        assert found
        assert all(torch.equal(found[name], expected[name].to(found[name].dtype)) for name in found)
    assert (tmp_path / "two" / "opd_align" / "training_finished").read_text() == "2\n"
