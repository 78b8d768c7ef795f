"""Several teachers on two processes whose rollouts have different numbers of them: they neither wait nor differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import free_port

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "mixed_run.py"


def run(folder, world):
    common = {
        "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "PYTHONPATH": os.pathsep.join(sys.path)
    }  # fmt: skip
    if world > 1:
        common |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        common["ACCELERATE_USE_CPU"] = "true"
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **common, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {})},
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)[-4000:]
    found = json.loads((folder / f"{world}.json").read_text())
    assert found["processes"] == world
    return found["logs"]


def test_processes_with_different_numbers_of_teachers_make_the_steps_of_one(tmp_path):
    one, two = run(tmp_path, 1), run(tmp_path, 2)
    assert len(one) == len(two) == 2
    keys = {key for key in one[0] if key.startswith("gate/")} | {"loss", "grad_norm"}
    assert len(keys) > 8
    for of_one, of_two in zip(one, two, strict=True):
        assert {key: of_two[key] for key in keys} == pytest.approx(
            {key: of_one[key] for key in keys}, rel=2e-4, abs=1e-7
        )
