"""Scripts in one or two processes, with accelerate as launcher and gloo as backend."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LAUNCH = {
    # On a CPU, `--multi_gpu` is what starts several processes.
    "ddp": ["--multi_gpu"],
    "zero2": ["--use_deepspeed", "--zero_stage", "2"],
    "zero3": ["--use_deepspeed", "--zero_stage", "3", "--zero3_save_16bit_model", "true"],
}
EXPECTED = {
    "ddp": ("DistributedType.MULTI_CPU", None),
    "zero2": ("DistributedType.DEEPSPEED", 2),
    "zero3": ("DistributedType.DEEPSPEED", 3),
}
"""What accelerate must say of each launch: on a CPU it may silently start something else."""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run_script(script: Path, launcher: str | None, *arguments: str, before: Sequence[str] = ()) -> None:
    """Runs a script in one process, or in two with a launcher; it gets `--backend` and `--deepspeed` then.

    Args:
        script: The script.
        launcher: A key of `LAUNCH`; `None`: one process.
        *arguments: Its arguments.
        before: Those that come first.
    """
    command = [sys.executable]
    if launcher is not None:
        command += ["-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
        command += LAUNCH[launcher]
        arguments = ("--backend", "gloo", *(["--deepspeed"] if launcher != "ddp" else []), *arguments)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, str(script), *before, *arguments],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
