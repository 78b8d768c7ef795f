"""Gates on two real processes: a step is the step of one process on the same batch, whoever holds the weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("gated_run.py")
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "no", "--num_processes", "2"]
# On a CPU, what looks like several GPUs is what starts several processes; DeepSpeed must not be told `use_cpu`.
WAYS = {
    "ddp": ([*LAUNCH, "--multi_gpu"], {}),
    "zero2": ([*LAUNCH, "--use_deepspeed", "--zero_stage", "2"], {"use_cpu": False}),
    "zero3": ([*LAUNCH, "--use_deepspeed", "--zero_stage", "3"], {"use_cpu": False}),
}
KIND = {"ddp": ("DistributedType.MULTI_CPU", None), "zero2": ("DistributedType.DEEPSPEED", 2)}
KIND["zero3"] = ("DistributedType.DEEPSPEED", 3)

CASES = {
    "gkd-quantile": {"trainer": "gkd", "gate": "quantile", "denominator": "renormalise"},
    "gkd-threshold": {"trainer": "gkd", "gate": "threshold", "denominator": "keep"},
    "distillation": {"trainer": "distillation", "gate": "quantile", "denominator": "renormalise"},
    "overflow": {"trainer": "distillation", "gate": "beginning", "denominator": "keep", "overflow": True},
    "grpo": {"trainer": "grpo", "gate": "incorrect", "denominator": "keep"},
}


def run(folder, launch, **told):
    """Executes the script and returns what its main process wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"folder": str(folder), "result": str(folder / "result.json"), **told}
    (folder / "told.json").write_text(json.dumps(told))
    place = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    if "--use_deepspeed" in launch:
        place["DS_ACCELERATOR"] = "cpu"
    command = [*launch, str(SCRIPT), str(folder / "told.json")]
    done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A case on one process, run once."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def result(case):
        return run(folder / case, [sys.executable], **CASES[case], options={"per_device_train_batch_size": 8})

    return result


@pytest.mark.parametrize(
    ("way", "case"),
    [
        *(("ddp", case) for case in CASES),
        *(("zero2", case) for case in ("gkd-quantile", "distillation")),
        *(("zero3", case) for case in ("gkd-threshold", "distillation", "overflow", "grpo")),
    ],
)
def test_two_processes_make_the_steps_of_one(tmp_path, alone, case, way):
    one = alone(case)
    launch, options = WAYS[way]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        launch = [*launch, "--main_process_port", str(free.getsockname()[1])]
    options = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", **options}
    two = run(tmp_path, launch, **CASES[case], options=options)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (two["kind"], two["stage"]) == KIND[way]
    assert len(one["logs"]) == len(two["logs"]) == 2
    for mine, theirs in zip(one["logs"], two["logs"], strict=True):
        keys = {key for key in mine if key.startswith("gate/")} | {"loss", "grad_norm"}
        assert len(keys) > 8
        for row in (mine, theirs) if "overflow" in CASES[case] else ():
            assert row["gate/loss_open"] is None  # without the gate it would not be a number
            keys -= {"gate/loss_open"}
        assert {key: mine[key] for key in keys} == pytest.approx({key: theirs[key] for key in keys}, rel=2e-4, abs=1e-7)
