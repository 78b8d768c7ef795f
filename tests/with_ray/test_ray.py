"""A study on real Ray actors: the same bytes as one process makes, whoever is killed on the way."""

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

# Ray and what it loads warn about themselves; our own code is held to `error` in the other suites.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

NOWHERE = ["--set", "teachers=[{name: T, model: {model: embedded:teacher, device: nowhere}}]"]
RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")


def assert_like_the_one_alone(run: Path, alone: Path) -> None:
    for name in RESULT:
        assert (run / name).read_bytes() == (alone / name).read_bytes(), name
    assert {file.name for file in shards(run)} == {file.name for file in shards(alone)}


def shards(run: Path) -> list[Path]:
    return sorted((run / "rollouts").glob("*.parquet"))


def kept(run: Path) -> dict[str, tuple[int, int]]:
    """Which file each finished batch is; made again, it would be another."""
    found = {file.name: file.stat() for file in shards(run)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def workers(of: int, at: str = "Worker.analyze") -> list[psutil.Process]:
    """The processes of actors that are at some work, among the descendants of a process."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if process.cmdline()[:1] == [f"ray::{at}"]:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def until(ripe: Callable[[], Any], at_work: Callable[[], bool], timeout_s: float = 300.0) -> Any:
    latest = time.monotonic() + timeout_s
    while time.monotonic() < latest:
        assert at_work()
        if found := ripe():
            return found
        time.sleep(0.005)
    raise TimeoutError


def test_an_actor_killed_in_mid_run_changes_nothing(cluster: None, alone: Path, tmp_path: Path) -> None:
    run, codes = tmp_path / "run", []
    driver = threading.Thread(
        target=lambda: codes.append(main([*SMALL, "--engine", "ray", "--workers", "2", "--out", str(run)]))
    )
    driver.start()
    until(lambda: len(shards(run)) >= 6, driver.is_alive)
    victim, survivor = until(lambda: (both := workers(os.getpid())) and len(both) == 2 and both, driver.is_alive)
    victim.kill()
    [mail] = until(lambda: workers(os.getpid(), "Mail"), driver.is_alive)
    mail.kill()  # news are lost, nothing else
    before = kept(run)
    assert len(before) < len(shards(alone)) - 2  # there was work left
    driver.join(timeout=120)
    assert codes == [0]
    assert not victim.is_running()
    assert survivor.pid != victim.pid
    after = kept(run)
    assert {name: after[name] for name in before} == before  # nothing that was finished was made again
    assert_like_the_one_alone(run, alone)
    # The dead worker's account is lost with it; whatever was told is less than all, and not nothing.
    assert 0 < Usage.load(run).tokens < Usage.load(alone).tokens


def test_a_driver_killed_in_mid_run_is_resumed(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "opd_align.cli", *SMALL, "--engine", "ray", "--workers", "2", "--out", str(run)]
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as driver:
        until(lambda: len(shards(run)) >= 6, lambda: driver.poll() is None)
        started = psutil.Process(driver.pid).children(recursive=True)
        at_work = workers(driver.pid)
        driver.send_signal(signal.SIGKILL)
    assert at_work
    assert not psutil.wait_procs(at_work, timeout=60)[1]  # they go with their driver
    for process in psutil.wait_procs(started, timeout=0)[1]:
        process.kill()  # Ray's own housekeepers take their time
    before = kept(run)
    assert not (run / "nodes.parquet").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "constructor arguments in the object store" not in done.stderr  # Ray's complaint of handles
    after = kept(run)
    assert {name: after[name] for name in before} == before
    assert_like_the_one_alone(run, alone)


def test_work_that_kills_its_actors_is_given_up(cluster: None, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("opd_align.study.ray.DEATHS", 1)
    codes: list[int] = []
    driver = threading.Thread(
        target=lambda: codes.append(main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run")]))
    )
    driver.start()
    latest = time.monotonic() + 120
    while driver.is_alive() and time.monotonic() < latest:
        at_work = workers(os.getpid(), "Worker.prepare")
        time.sleep(0.5)  # time enough to say that it has begun
        for process in at_work:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    driver.join(timeout=1)
    assert codes == [2]
    told = capsys.readouterr().err
    assert "the work on the demonstrations lost its actor 1 times" in told
    assert "the same command goes on from there" in told


def test_who_waits_for_a_place_is_said(cluster: None, tmp_path: Path, monkeypatch: Any) -> None:
    """Somebody else has taken all the room."""
    import ray

    from opd_align.study.ray import PendingActorWarning
    from opd_align.study.ray_actors import EventQueue

    monkeypatch.setattr("opd_align.study.ray.PATIENCE_S", 1.0)
    other = ray.remote(EventQueue).options(num_cpus=3).remote()
    ray.get(other.take.remote())
    at_last = threading.Timer(60.0, lambda: ray.kill(other))
    at_last.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PendingActorWarning)
        with pytest.raises(
            PendingActorWarning, match=r"worker 1 has been waiting 1 s .* has 1 CPU and 0 GPUs .* 0 of 3 CPUs"
        ):
            main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run")])
    at_last.cancel()
    ray.kill(other)


def test_loading_a_model_is_no_work(tmp_path: Path, monkeypatch: Any) -> None:
    """Otherwise a plan that is made from a small run would pay for it with every question."""
    from opd_align.backends import loading
    from opd_align.study import build
    from opd_align.study.config import read_config
    from opd_align.study.ray_actors import ActorContext, Worker

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(1.0)
        return loading.load_model(*args, **options)

    monkeypatch.setattr(build, "load_model", slow)
    monkeypatch.setattr(ActorContext, "tell", lambda desk, message: None)
    config = read_config(
        "demo", ["questions.limit=1", "teachers=embedded:teacher", "budget.initial=8", "budget.targeted=0"]
    )
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    worker = Worker(ActorContext("worker", str(tmp_path), "mail"), config, str(tmp_path / "run"), None, {})
    begin = time.monotonic()
    done = worker.analyze(0, worker.study.questions, {})
    assert time.monotonic() - begin - done.spent.seconds >= 2.0  # student and teacher
    assert done.spent.tokens > 0


def test_teachers_that_share_a_model_share_its_room() -> None:
    from types import SimpleNamespace

    from opd_align.study.build import Study
    from opd_align.study.config import read_config
    from opd_align.study.ray import RayCluster, _room

    own = "model: {model: embedded:teacher}"
    study = Study(read_config("demo", [f"teachers=[{{{own}, name: plain}}, {{{own}, context: Self-1C, name: led}}]"]))
    two_gpus = SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": 2.0})
    room = _room(two_gpus, RayCluster(apart={"plain": 1.0, "led": None}), study)
    assert [(body.names, body.gpus) for body in room.bodies] == [(["plain", "led"], 1.0)]
    assert (room.workers, room.gpus) == (1, 1.0)


def test_ctrl_c_says_how_to_go_on(cluster: None, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The signal arrives in the driver's loop."""
    from opd_align.study.ray import _Team

    heard = []

    def interrupted(team: Any) -> None:
        heard.append(team)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Team, "_listen", interrupted)
    assert main([*SMALL, "--engine", "ray", "--workers", "1", "--out", str(tmp_path / "run")]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    assert heard
    until(lambda: not workers(os.getpid()), lambda: True)


def test_a_teacher_apart_scores_to_the_bit(cluster: None, alone: Path, tmp_path: Path) -> None:
    """Hidden states and the output layer give the very logits; the manifest names the same weights."""
    run = tmp_path / "run"
    # The rollouts are there already: only the scores, of paths and for MiniLLM of all rollouts, are made anew.
    command = [*SMALL, "--engine", "ray", "--workers", "1", "--apart", "teacher", "--reuse", str(alone)]
    assert main([*command, "--out", str(run)]) == 0
    assert_like_the_one_alone(run, alone)
    assert Usage.load(run).tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--apart", "Techer"], "no teacher 'Techer' to set apart; there are: Self-1C, teacher"),
        (["--apart", "Self-1C"], "is the student with a context"),
        (["--apart", "teacher=many"], "NAME or NAME=GPUS"),
        (["--gpus-per-worker", "1"], "no room for a worker on 1 CPU and 1 GPUs"),
        (["--gpus-per-worker", "1", "--workers", "1"], "no room for a worker on 1 CPU and 1 GPUs"),
        (["--gpus-per-worker", "1.5"], "a share of one GPU, or whole ones; not 1.5"),
        (["--apart", "teacher=1"], "beside 1 models apart on 1 GPUs"),
        (["--apart", "teacher=2"], "teacher 'teacher' is loaded on one GPU"),
        (["--out", "memory://run"], "the memory of one process"),
        (["--student", "exact"], "exact worlds need no cluster"),
        (["--objectives", "reverse_kl,reverse_kl"], "'reverse_kl' appears more than once"),
        (["--set", "teachers=[{name: reward, model: embedded:teacher}]"], "'reward' is reserved"),
        (["--set", "teachers=[]"], "needs a teacher, and none was given"),
        # Found by a teacher apart, in the words of a run without.
        ([*NOWHERE, "--apart", "T"], "cannot put 'embedded:teacher' on the device 'nowhere'"),
        (["--set", "sampling.max_tokens=100000"], "do not fit the context"),  # found by a worker
    ],
)
def test_what_cannot_be_is_said(cluster: None, tmp_path: Path, capsys: Any, options: list[str], message: str) -> None:
    assert main([*SMALL, "--engine", "ray", "--out", str(tmp_path / "run"), *options]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opd_align.cli", *SMALL, "--engine", "ray", "--ray-address", "127.0.0.1:1"]
    command += ["--set", "source={model: embedded:teacher, backend: server, url: 'http://localhost:8000'}"]
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "cannot reach a Ray cluster at '127.0.0.1:1'" in done.stderr
    assert "opd-align: http://localhost:8000 is another server on every machine" in done.stderr
