"""A cluster of several machines, simulated on one machine: each has its own processes and can be removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")

from conftest import SMALL
from test_ray import assert_same_result, wait_until

import opd_align

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture
def machines() -> Iterator[Any]:
    """A head node without CPUs and two machines with one CPU each; a machine that is silent for 5 s counts as dead."""
    from ray.cluster_utils import Cluster

    watch = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": watch}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def is_running(machine: Any, call: str) -> bool:
    """Whether an actor on that machine is executing a call."""
    [raylet] = machine.all_processes["raylet"]
    try:
        return any(process.cmdline()[:1] == [call] for process in psutil.Process(raylet.process.pid).children())
    except psutil.Error:
        return False


def test_a_lost_machine_is_replaced(machines: Any, alone: Path, tmp_path: Path) -> None:
    """The only worker so far is lost with its machine; the other machine then runs one worker at a time."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "opd_align.cli", *SMALL, "--engine", "ray", "--ray-address", machines.address]
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    with subprocess.Popen(
        [*command, "--workers", "2", "--out", str(run)], env=environment, stderr=subprocess.PIPE, text=True
    ) as driver:
        victim = wait_until(
            lambda: [node for node in machines.worker_nodes if is_running(node, "ray::Worker.prepare")],
            lambda: driver.poll() is None,
        )
        machines.remove_node(victim[0], allow_graceful=False)
        try:
            _, error = driver.communicate(timeout=400)
        finally:
            driver.kill()
    assert driver.returncode == 0, error[-2000:]
    assert_same_result(run, alone)
