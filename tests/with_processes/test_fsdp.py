"""FSDP2 in two processes: evaluations and gates give the numbers of one process, and training is as without them.

Accelerate falls back to DDP on a CPU, so `with_fsdp.py` applies accelerate's `fully_shard` itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.distributed

FOLDER = Path(__file__).parent
TIMES = ("runtime", "per_second", "step_time", "total_flos", "seconds", "overhead")


def run(script: str, *arguments: str, sharded: bool) -> None:
    """One script in a process of its own, or sharded over two."""
    command = [sys.executable]
    if sharded:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        # On a CPU, `--multi_gpu` is what starts several processes.
        command += ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", port]
        command += [str(FOLDER / "with_fsdp.py")]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, str(FOLDER / script), *arguments],
        env=os.environ | environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def watched(kind: str, folder: Path, *more: str, sharded: bool) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    run("watched.py", kind, str(folder), *(["--backend", "gloo"] if sharded else []), *more, sharded=sharded)
    return dict(json.loads((folder / "seen.json").read_text()))


def own_rows(seen: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [row for row in seen["log"] if not any(key.startswith("opd_align/") for key in row)]
    return [{key: value for key, value in row.items() if not any(part in key for part in TIMES)} for row in rows]


@pytest.mark.parametrize("kind", ["distillation", "gkd"])
def test_two_processes_find_what_one_finds_and_train_as_without_the_callback(kind, tmp_path):
    two = watched(kind, tmp_path / "two", sharded=True)
    assert two["world"] == 2
    ours = tmp_path / "two" / "opd_align"
    # One process computes the same at step 0, and at step 2 from the saved model.
    for step, student in ((0, ()), (2, ("--student", str(tmp_path / "two" / "model")))):
        one = tmp_path / f"one-{step}"
        if step:
            (one / "opd_align").mkdir(parents=True)
            (one / "opd_align" / "demonstrations.json").write_bytes((ours / "demonstrations.json").read_bytes())
        watched(kind, one, *student, sharded=False)
        names = ("nodes.parquet", "questions.parquet") if step else ("nodes.parquet", "children.parquet")
        for name in names:
            theirs = one / "opd_align" / "step-000000" / name
            assert (ours / f"step-{step:06d}" / name).read_bytes() == theirs.read_bytes()
    alone = watched(kind, tmp_path / "alone", "--unwatched", sharded=True)
    assert own_rows(two) == own_rows(alone)
    assert any("loss" in row for row in own_rows(alone))
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("two", "alone")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "case",
    [
        {"trainer": "distillation", "gate": "quantile", "denominator": "renormalise"},
        {"trainer": "gkd", "gate": "threshold", "denominator": "keep"},
        {"trainer": "grpo", "gate": "incorrect", "denominator": "keep"},
    ],
    ids=lambda case: case["trainer"],
)
def test_gates_in_two_processes_equal_one(case, tmp_path):
    logs = []
    for sharded, options in ((False, {"per_device_train_batch_size": 8}),
                             (True, {"per_device_train_batch_size": 4, "ddp_backend": "gloo"})):  # fmt: skip
        folder = tmp_path / str(sharded)
        folder.mkdir()
        config = {"folder": str(folder), "result": str(folder / "result.json"), "options": options, **case}
        (folder / "config.json").write_text(json.dumps(config))
        run("gated_run.py", str(folder / "config.json"), sharded=sharded)
        result = json.loads((folder / "result.json").read_text())
        assert result["processes"] == 1 + sharded
        logs.append(result["logs"])
    assert len(logs[0]) == len(logs[1]) == 2
    for row_of_one, row_of_two in zip(*logs, strict=True):
        keys = {key for key in row_of_one if key.startswith("gate/")} | {"loss", "grad_norm"}
        assert len(keys) > 8
        expected = {key: row_of_one[key] for key in keys}
        assert {key: row_of_two[key] for key in keys} == pytest.approx(expected, rel=2e-4, abs=1e-7)
