"""Gates on two processes: a step equals that of one process on the same batch, for DDP, ZeRO-2 and ZeRO-3."""

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
# On a CPU, `--multi_gpu` is what starts several processes; DeepSpeed does not work with `use_cpu`.
LAUNCHES = {
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


def run(folder, launch, **config):
    """Runs the script and returns the result of its main process."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"folder": str(folder), "result": str(folder / "result.json"), **config}
    (folder / "config.json").write_text(json.dumps(config))
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    if "--use_deepspeed" in launch:
        environment["DS_ACCELERATOR"] = "cpu"
    command = [*launch, str(SCRIPT), str(folder / "config.json")]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads((folder / "result.json").read_text())


def run_on_two(folder, launcher, **config):
    launch, options = LAUNCHES[launcher]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        launch = [*launch, "--main_process_port", str(free.getsockname()[1])]
    options = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", **options}
    return run(folder, launch, **config, options=options)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Results on one process, each computed once."""
    folder = tmp_path_factory.mktemp("one_process")

    @cache
    def result(case):
        return run(folder / case, [sys.executable], **CASES[case], options={"per_device_train_batch_size": 8})

    return result


@pytest.mark.parametrize(
    ("launcher", "case"),
    [
        *(("ddp", case) for case in CASES),
        *(("zero2", case) for case in ("gkd-quantile", "distillation")),
        *(("zero3", case) for case in ("gkd-threshold", "distillation", "overflow", "grpo")),
    ],
)
def test_two_processes_equal_one(tmp_path, one_process, case, launcher):
    one = one_process(case)
    two = run_on_two(tmp_path, launcher, **CASES[case])
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (two["kind"], two["stage"]) == KIND[launcher]
    assert len(one["logs"]) == len(two["logs"]) == 2
    for row_of_one, row_of_two in zip(one["logs"], two["logs"], strict=True):
        keys = {key for key in row_of_one if key.startswith("gate/")} | {"loss", "grad_norm"}
        assert len(keys) > 8
        for row in (row_of_one, row_of_two) if "overflow" in CASES[case] else ():
            assert row["gate/loss_open"] is None  # without the gate, the loss is not finite
            keys -= {"gate/loss_open"}
        assert {key: row_of_one[key] for key in keys} == pytest.approx(
            {key: row_of_two[key] for key in keys}, rel=2e-4, abs=1e-7
        )


def test_deepspeed_makes_no_step_without_the_gate(tmp_path):
    """Its engine makes the step within `backward`, before transformers asks callbacks."""
    case = {"trainer": "distillation", "gate": "beginning", "denominator": "keep"}
    result = run_on_two(tmp_path, "zero2", **case, ungated=True)
    assert result["steps"] == 0
    assert "loss of 1 of 1 micro-batches was computed without the gate" in result["error"]
