"""The callback in two processes: the same numbers as in one, and the same training as without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.processes import EXPECTED, LAUNCH

from opd_align.backends.loading import load_model
from opd_align.training.snapshots import list_snapshots

pytestmark = pytest.mark.distributed

TIMES = ("runtime", "per_second", "step_time", "total_flos", "seconds", "overhead")


def seen_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "seen.json").read_text()))


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(part in key for part in TIMES)}


def test_deepspeed_is_installed():
    pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")


@pytest.mark.parametrize("launcher", LAUNCH)
def test_two_processes_find_what_one_finds(launcher, watched, evaluated_again):
    two, one = evaluated_again(launcher), watched(None) / "distillation"
    seen, single = seen_of(two / "distillation"), seen_of(one)
    assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    assert single["world"] == 1
    ours, theirs = two / "distillation" / "opd_align", one / "opd_align"
    # The student of step 0 is the same in both runs.
    for name in ("nodes.parquet", "children.parquet", "questions.parquet"):
        assert (ours / "step-000000" / name).read_bytes() == (theirs / "step-000000" / name).read_bytes()
    rows = [numbers(row) for row in seen["log"] if "opd_align/student/pass_rate" in row]
    assert rows[0] == numbers(next(row for row in single["log"] if "opd_align/student/pass_rate" in row))
    assert [row["step"] for row in rows] == [0, 2]
    # The last student was trained in two processes; one process computes the same from the saved model.
    for name in ("nodes.parquet", "questions.parquet"):
        again = two / "distillation-again" / "opd_align" / "step-000000" / name
        assert (ours / "step-000002" / name).read_bytes() == again.read_bytes()


@pytest.mark.parametrize("launcher", ["ddp", "zero3"])  # ZeRO-2 keeps whole weights everywhere, as DDP does
def test_two_processes_train_as_without_the_callback(launcher, watched):
    kind, name = ("gkd", "gkd-extra") if launcher == "zero3" else ("distillation", "distillation")
    ours, theirs = watched(launcher) / name, watched(launcher) / f"{kind}-unwatched"
    own = [numbers(row) for row in seen_of(ours)["log"] if "opd_align/evaluation/failures" not in row]
    assert own == [numbers(row) for row in seen_of(theirs)["log"]]
    assert any("loss" in row for row in own)
    weights = [*(ours / "model").glob("*.safetensors")]
    assert weights, "no weights were saved"
    for file in weights:
        assert file.read_bytes() == (theirs / "model" / file.name).read_bytes()


def test_a_teacher_that_the_user_loads_under_zero_3_is_measured_as_the_own_one_of_the_trainer(watched):
    """It is sharded too, and the same model."""
    rows = [row for row in seen_of(watched("zero3") / "gkd-extra")["log"] if "opd_align/student/pass_rate" in row]
    own = {key: value for key, value in rows[0].items() if key.startswith("opd_align/teacher/")}
    assert len(own) > 5
    assert own == {key: rows[0][key.replace("/teacher/", "/another/", 1)] for key in own}


def test_nodes_without_a_shared_disk_leave_all_files_with_rank_0(watched):
    folder = watched("ddp") / "own-folders"
    assert seen_of(folder)["world"] == 2
    ours = folder / "rank0" / "opd_align" / "step-000000"
    theirs = watched(None) / "distillation" / "opd_align" / "step-000000"
    for name in ("nodes.parquet", "children.parquet", "questions.parquet"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    shards = {file.name for file in (theirs / "rollouts").iterdir()}
    assert len(shards) > 3
    assert {file.name for file in (ours / "rollouts").iterdir()} == shards, "those of rank 1 as well"
    assert not list(ours.rglob(".*")), "nothing is left of the look for a shared disk"
    assert not (folder / "rank1" / "opd_align").exists()


@pytest.mark.parametrize("launcher", ["ddp", "zero3"])
def test_snapshots_of_two_processes_have_all_weights(launcher, watched):
    """One snapshot per step whatever the number of processes; sharded weights are gathered for it."""
    folder = watched(launcher) / "outside"
    seen = seen_of(folder)
    assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    first, last = list_snapshots(folder / "opd_align")
    assert (first.step, last.step) == (0, 2)
    start, end = load_model("embedded:student").model, load_file(folder / "model" / "model.safetensors")
    for snapshot, expected in ((first.folder, start.state_dict()), (last.folder, end)):
        found = load_file(snapshot / "model.safetensors")
        assert found
        assert all(torch.equal(found[name], expected[name].to(found[name].dtype)) for name in found)
    assert (folder / "opd_align" / "training_finished").read_text() == "2\n"
