"""Scripts in one or two processes, with gloo as backend: started by accelerate, or directly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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

WITH_FSDP = Path(__file__).parents[1] / "with_processes" / "with_fsdp.py"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers results by arguments, and failures too: tests that share a launch do not repeat one that fails."""
    done: dict[Any, tuple[Any, BaseException | None]] = {}

    def remembered(*arguments: Any) -> Any:
        if arguments not in done:
            try:
                done[arguments] = (function(*arguments), None)
            except (Exception, pytest.skip.Exception) as error:
                done[arguments] = (None, error)
        result, error = done[arguments]
        if error is not None:
            raise error
        return result

    return remembered


def run_script(script: Path, launcher: str | None, *arguments: str) -> None:
    """Runs a script in one process, or in two with a launcher; it gets `--backend` and `--deepspeed` then.

    Args:
        script: The script.
        launcher: A key of `LAUNCH`, or "fsdp2"; `None`: one process.
        *arguments: Its arguments.
    """
    if launcher in ("zero2", "zero3"):
        pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")
    command = [sys.executable]
    if launcher is not None:
        command += ["-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port())]
        command += LAUNCH["ddp" if launcher == "fsdp2" else launcher]
        command += [str(WITH_FSDP)] if launcher == "fsdp2" else []
        arguments = ("--backend", "gloo", *(["--deepspeed"] if launcher.startswith("zero") else []), *arguments)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, str(script), *arguments],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def run_two_ranks(script: Path, *arguments: str) -> None:
    """Runs a script in two processes that start their process group themselves."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**os.environ, **common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)[-4000:]
