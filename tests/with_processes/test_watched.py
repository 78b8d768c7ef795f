"""The callback in two processes: the same numbers as in one, and the same training as without it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "watched.py"
TIMES = ("runtime", "per_second", "step_time", "total_flos", "seconds", "overhead")

LAUNCH = {
    "ddp": ["--multi_gpu"],
    "zero2": ["--use_deepspeed", "--zero_stage", "2"],
    "zero3": ["--use_deepspeed", "--zero_stage", "3", "--zero3_save_16bit_model", "true"],
}
EXPECTED = {
    "ddp": ("DistributedType.MULTI_CPU", None),
    "zero2": ("DistributedType.DEEPSPEED", 2),
    "zero3": ("DistributedType.DEEPSPEED", 3),
}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run(kind: str, folder: Path, launcher: str | None = None, *more: str) -> dict[str, Any]:
    """One training in a subprocess, or in two with accelerate."""
    command = [sys.executable]
    if launcher is not None:
        command += ["-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
        command += LAUNCH[launcher]
        more = ("--backend", "gloo", *(["--deepspeed"] if launcher != "ddp" else []), *more)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), kind, str(folder), *more],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
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
    kind = "gkd" if launcher == "zero3" else "distillation"
    watched = run(kind, tmp_path / "watched", launcher)
    unwatched = run(kind, tmp_path / "unwatched", launcher, "--unwatched")
    own = [numbers(row) for row in watched["log"] if "opd_align/evaluation/failures" not in row]
    assert own == [numbers(row) for row in unwatched["log"]]
    assert any("loss" in row for row in own)
    for file in (tmp_path / "watched" / "model").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "unwatched" / "model" / file.name).read_bytes()
        break
    else:
        pytest.fail("no weights were saved")
