"""A study on real Ray actors: the same files as from one process, whichever process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")

from conftest import SMALL

import opd_align
from opd_align.cli.main import main
from opd_align.runs.run_directory import Usage

# Ray and its dependencies emit warnings; warnings of our own code are errors in the other suites.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

INVALID_DEVICE = ["--set", "teachers=[{name: T, model: {model: embedded:teacher, device: mps}}]"]
RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")


def assert_same_result(run: Path, alone: Path) -> None:
    for name in RESULT:
        assert (run / name).read_bytes() == (alone / name).read_bytes(), name
    assert {file.name for file in shards(run)} == {file.name for file in shards(alone)}


def shards(run: Path) -> list[Path]:
    return sorted((run / "rollouts").glob("*.parquet"))


def stored_files(run: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each finished batch; a batch written again would have others."""
    found = {file.name: file.stat() for file in shards(run)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def actor_processes(parent: int, call: str = "Worker.analyze") -> list[psutil.Process]:
    """The actor processes that are executing a call, among the descendants of a process."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{call}"]:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def wait_until(condition: Callable[[], Any], running: Callable[[], bool], timeout_s: float = 300.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert running()
        if found := condition():
            return found
        time.sleep(0.005)
    raise TimeoutError


def test_killing_an_actor_does_not_change_the_result(cluster: None, alone: Path, tmp_path: Path) -> None:
    run, codes = tmp_path / "run", []
    driver = threading.Thread(
        target=lambda: codes.append(main([*SMALL, "--engine", "ray", "--workers", "2", "--out", str(run)]))
    )
    driver.start()
    wait_until(lambda: len(shards(run)) >= 6, driver.is_alive)
    victim, survivor = wait_until(
        lambda: (both := actor_processes(os.getpid())) and len(both) == 2 and both, driver.is_alive
    )
    victim.kill()
    [events] = wait_until(lambda: actor_processes(os.getpid(), "EventQueue"), driver.is_alive)
    events.kill()  # only events are lost
    before = stored_files(run)
    assert len(before) < len(shards(alone)) - 2  # the run was not finished
    driver.join(timeout=300)
    assert codes == [0]
    assert not victim.is_running()
    assert survivor.pid != victim.pid
    after = stored_files(run)
    assert {name: after[name] for name in before} == before  # finished batches were not sampled again
    assert_same_result(run, alone)
    # The usage of the killed worker is lost.
    assert 0 < Usage.load(run).tokens < Usage.load(alone).tokens


def test_a_killed_driver_is_resumed(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "opd_align.cli", *SMALL, "--engine", "ray", "--workers", "2", "--out", str(run)]
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as driver:
        wait_until(lambda: len(shards(run)) >= 6, lambda: driver.poll() is None)
        started = psutil.Process(driver.pid).children(recursive=True)
        at_work = actor_processes(driver.pid)
        driver.send_signal(signal.SIGKILL)
    assert at_work
    assert not psutil.wait_procs(at_work, timeout=60)[1]  # they end with their driver
    for process in psutil.wait_procs(started, timeout=0)[1]:
        process.kill()  # Ray's own processes end later
    before = stored_files(run)
    assert not (run / "nodes.parquet").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "constructor arguments in the object store" not in done.stderr  # Ray's warning about handles
    after = stored_files(run)
    assert {name: after[name] for name in before} == before
    assert_same_result(run, alone)


def test_a_run_stops_if_its_actors_die_repeatedly(cluster: None, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("opd_align.study.ray.MAX_ACTOR_DEATHS", 1)
    codes: list[int] = []
    driver = threading.Thread(
        target=lambda: codes.append(main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run")]))
    )
    driver.start()
    deadline = time.monotonic() + 300
    while driver.is_alive() and time.monotonic() < deadline:
        at_work = actor_processes(os.getpid(), "Worker.prepare")
        time.sleep(0.5)  # enough time to send WorkStarted
        for process in at_work:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    driver.join(timeout=1)
    assert codes == [2]
    error = capsys.readouterr().err
    assert "the actor for the demonstrations died 1 times" in error
    assert "run the same command again to resume" in error


def test_pending_actors_are_reported(cluster: None, tmp_path: Path, monkeypatch: Any) -> None:
    """Another program uses all CPUs."""
    import ray

    from opd_align.study.ray import PendingActorWarning
    from opd_align.study.ray_actors import EventQueue

    monkeypatch.setattr("opd_align.study.ray.PENDING_WARNING_S", 1.0)
    other = ray.remote(EventQueue).options(num_cpus=3).remote()
    ray.get(other.take.remote())
    timeout = threading.Timer(60.0, lambda: ray.kill(other))
    timeout.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PendingActorWarning)
        with pytest.raises(
            PendingActorWarning, match=r"worker 1 has been pending for 1 s; .* with 1 CPU and 0 GPUs .* 0 of 3 CPUs"
        ):
            main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run")])
    timeout.cancel()
    ray.kill(other)


def test_usage_does_not_include_loading_models(tmp_path: Path, monkeypatch: Any) -> None:
    """Otherwise an estimate calibrated from a small run would include it for every question."""
    from opd_align.backends import loading
    from opd_align.study import build
    from opd_align.study.config import read_config
    from opd_align.study.ray_actors import ActorContext
    from opd_align.study.worker import Worker

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(1.0)
        return loading.load_model(*args, **options)

    monkeypatch.setattr(build, "load_model", slow)
    monkeypatch.setattr(ActorContext, "send", lambda context, event: None)
    config = read_config(
        "demo", ["questions.limit=1", "teachers=embedded:teacher", "budget.initial=8", "budget.targeted=0"]
    )
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    worker = Worker(ActorContext("worker", str(tmp_path), "events"), config, str(tmp_path / "run"), None, {})
    begin = time.monotonic()
    usage = worker.analyze(0, worker.study.questions, {}).done.usage
    assert time.monotonic() - begin - usage.seconds >= 2.0  # student and teacher
    assert usage.tokens > 0


def test_teachers_that_share_a_model_share_its_actor() -> None:
    from types import SimpleNamespace

    from opd_align.study.build import Study
    from opd_align.study.config import read_config
    from opd_align.study.ray import RayCluster, _allocate

    own = "model: {model: embedded:teacher}"
    study = Study(read_config("demo", [f"teachers=[{{{own}, name: plain}}, {{{own}, context: Self-1C, name: led}}]"]))
    two_gpus = SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": 2.0})
    allocation = _allocate(two_gpus, RayCluster(teacher_actors={"plain": 1.0, "led": None}), study)
    assert [(spec.names, spec.gpus) for spec in allocation.model_actors] == [(["plain", "led"], 1.0)]
    assert (allocation.workers, allocation.gpus_per_worker) == (1, 1.0)


def test_ctrl_c_tells_how_to_resume(cluster: None, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The signal arrives while the driver waits for results."""
    from opd_align.study.ray import RayExecutor

    interrupted_executors = []

    def interrupt(executor: Any) -> None:
        interrupted_executors.append(executor)
        raise KeyboardInterrupt

    monkeypatch.setattr(RayExecutor, "_process_events", interrupt)
    assert main([*SMALL, "--engine", "ray", "--workers", "1", "--out", str(tmp_path / "run")]) == 130
    assert "the same command" in capsys.readouterr().err
    assert interrupted_executors
    wait_until(lambda: not actor_processes(os.getpid()), lambda: True)


def test_a_teacher_in_its_own_actor_gives_identical_scores(cluster: None, alone: Path, tmp_path: Path) -> None:
    """Hidden states and the output layer give the same logits; the manifest has the same fingerprint."""
    run = tmp_path / "run"
    # The rollouts are reused: only scores (of paths, and for MiniLLM of all rollouts) are computed.
    command = [*SMALL, "--engine", "ray", "--workers", "1", "--teacher-actors", "teacher", "--reuse", str(alone)]
    assert main([*command, "--out", str(run)]) == 0
    assert_same_result(run, alone)
    assert Usage.load(run).tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--teacher-actors", "Techer"], "there is no such teacher; available: Self-1C, teacher"),
        (["--teacher-actors", "Self-1C"], "is the student with a context"),
        (["--teacher-actors", "teacher=many"], "NAME or NAME=GPUS"),
        (["--gpus-per-worker", "1"], "not enough for a worker with 1 CPU and 1 GPUs"),
        (["--gpus-per-worker", "1", "--workers", "1"], "not enough for a worker with 1 CPU and 1 GPUs"),
        (["--gpus-per-worker", "1.5"], "a fraction of one GPU or a whole number, not 1.5"),
        (["--teacher-actors", "teacher=1"], "in addition to 1 teacher actors with 1 GPUs"),
        (["--teacher-actors", "teacher=2"], "teacher 'teacher' is loaded on one GPU"),
        (["--set", "student.device=cuda:1"], "has device cuda:1, but a worker sees GPUs 0 to 0 only"),
        (["--out", "memory://run"], "the memory of one process"),
        (["--student", "exact"], "--student exact runs locally only"),
        (["--objectives", "reverse_kl,reverse_kl"], "'reverse_kl' appears more than once"),
        (["--set", "teachers=[{name: reward, model: embedded:teacher}]"], "'reward' is reserved"),
        (["--set", "teachers=[]"], "needs a teacher, and none was given"),
        # Raised in a teacher's actor, with the same message as without actors.
        ([*INVALID_DEVICE, "--teacher-actors", "T"], "cannot move 'embedded:teacher' to the device 'mps'"),
        (["--set", "sampling.max_tokens=100000"], "do not fit the context"),  # raised in a worker
    ],
)
def test_invalid_options_are_reported(
    cluster: None, tmp_path: Path, capsys: Any, options: list[str], message: str
) -> None:
    assert main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_an_unreachable_cluster_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opd_align.cli", *SMALL, "--engine", "ray", "--ray-address", "127.0.0.1:1"]
    command += ["--set", "source={model: embedded:teacher, backend: server, url: 'http://localhost:8000'}"]
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "cannot connect to a Ray cluster at '127.0.0.1:1'" in done.stderr
    assert "opd-align: http://localhost:8000 refers to a different server on every machine" in done.stderr
