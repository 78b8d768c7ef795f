"""Ray on this machine, and a small run without Ray as the reference.

The folder is not called `ray`: `import ray` would then find it where Ray is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from opd_align.cli.main import main

# The same number of threads everywhere: the order of summation affects the last digits.
os.environ["OMP_NUM_THREADS"] = "1"
# Ray starts its workers with low priority (nice 15): beside another suite they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

SMALL = [
    "analyze", "--limit", "2", "--initial", "16", "--targeted", "96", "--n-sig", "3", "--batch", "8",
    "--objectives", "reverse_kl,minillm", "--teachers", "Self-1C,embedded:teacher",
]  # fmt: skip


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run in one process."""
    import torch

    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray instance that several tests share, since starting one takes seconds."""
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
