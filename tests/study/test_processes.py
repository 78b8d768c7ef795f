"""Several processes of one machine: the result of one process, whoever dies; nobody outlives the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from opd_align.cli.main import main
from opd_align.study import processes
from opd_align.study.processes import MAX_DEATHS, LostGpuWarning, ProcessExecutor, Slot, cpu_slots
from opd_align.types import OpdAlignError, Question

ROOT = Path(__file__).parents[2]
RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")
GPUS = [Slot("GPU 0", "0"), Slot("GPU 1", "1"), Slot("GPU 2", "2")]
GROUPS = [[Question(f"q{index}")] for index in range(6)]

PARENT = """
import signal
import sys
from types import SimpleNamespace
from opd_align.study import processes
from opd_align.types import Question
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
processes.MODULE = "tests.support.scripted_worker"
slots, study = [processes.Slot("GPU 0", "0")], SimpleNamespace(config=None)
executor = processes.ProcessExecutor(slots, study, (sys.argv[1], None), (None, None))
try:
    executor.analyze_groups(None, [[Question("q")]])
finally:
    executor.shutdown()
"""


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """Three processes with scripted workers, which read their script from `tmp_path`."""
    monkeypatch.setattr(processes, "MODULE", "tests.support.scripted_worker")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    phases = []
    made = ProcessExecutor(
        GPUS, SimpleNamespace(config=None), (str(tmp_path), None), (lambda *p: phases.append(p), None)
    )
    made.phases = phases
    yield made
    pids = [process.popen.pid for process in made.processes]
    made.shutdown()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def worked(folder):
    """Which group was tried on which GPU."""
    return [tuple(line.split()[:2]) for line in (folder / "log").read_text().splitlines()]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_results_come_in_the_order_of_the_questions(executor, tmp_path):
    done = executor.analyze_groups(tmp_path, GROUPS)
    assert [index for _, index in done.results] == list(range(6))
    assert {where for where, _ in done.results} <= {"0", "1", "2"}
    assert done.usage.tokens == 6
    assert sorted(executor.phases) == [("sampling", index, 9) for index in range(6)]


def test_one_process_is_enough_for_one_group(executor, tmp_path):
    executor.analyze_groups(tmp_path, GROUPS[:1])
    assert len(executor.processes) == 1


def test_work_that_lost_its_process_is_done_elsewhere(executor, tmp_path):
    for index in (1, 4):
        (tmp_path / f"die-once-{index}").touch()
    done = executor.analyze_groups(tmp_path, GROUPS)
    assert [index for _, index in done.results] == list(range(6))
    first, second = (where for index, where in worked(tmp_path) if index == "1")
    assert first != second


def test_a_process_that_dies_before_its_engine_is_missed(executor, tmp_path):
    (tmp_path / "die-with-child-1").touch()
    done = executor.analyze_groups(tmp_path, GROUPS[:2])
    assert [index for _, index in done.results] == [0, 1]


def test_a_gpu_whose_processes_die_is_given_up(executor, tmp_path):
    executor.slots = [Slot("GPU 9", "nine"), *GPUS[:1]]
    for name in ("die-nine", "wait-for-nine"):
        (tmp_path / name).touch()
    many = [[Question(f"q{index}")] for index in range(20)]
    with pytest.warns(LostGpuWarning, match="GPU 9 is not used any more"):
        done = executor.analyze_groups(tmp_path, many)
    assert [where for where, _ in done.results] == ["0"] * 20
    assert sum(where == "nine" for _, where in worked(tmp_path)) == MAX_DEATHS


def test_work_that_kills_every_process_ends_the_run(executor, tmp_path):
    (tmp_path / "die-5").touch()
    with pytest.raises(OpdAlignError, match=r"question 'q5' died 3 times \(signal 9\)") as error:
        executor.analyze_groups(tmp_path, GROUPS)
    assert "out of memory, says the scripted worker" in str(error.value)
    assert len({where for index, where in worked(tmp_path) if index == "5"}) == 3


def test_errors_for_users_are_those_of_the_worker(executor, tmp_path):
    (tmp_path / "fail-0").touch()
    with pytest.raises(OpdAlignError, match=r"^in the user's words$"):
        executor.analyze_groups(tmp_path, GROUPS)


def test_other_errors_have_the_traceback_of_the_worker(executor, tmp_path):
    (tmp_path / "crash-0").touch()
    with pytest.raises(RuntimeError, match="ValueError: a bug") as error:
        executor.analyze_groups(tmp_path, GROUPS)
    assert "scripted_worker.py" in error.value.__notes__[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_and_their_engines_end_with_the_parent(number, tmp_path):
    (tmp_path / "hang-0").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=environment, cwd=ROOT, stderr=subprocess.PIPE
    ) as parent:
        hanging = wait_for(lambda: (tmp_path / "hanging").exists() and (tmp_path / "hanging").read_text().split())
        worker, engine = map(int, hanging)
        assert not gone(worker)
        assert not gone(engine)
        parent.send_signal(number)
        try:
            parent.communicate(timeout=60)
        finally:
            parent.kill()
    wait_for(lambda: gone(worker) and gone(engine), 20)


def test_slots_have_their_own_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert Slot("GPU 3", "3").environment()["CUDA_VISIBLE_DEVICES"] == "3"
    assert "OMP_NUM_THREADS" not in Slot("GPU 3", "3").environment()
    assert [slot.environment()["OMP_NUM_THREADS"] for slot in cpu_slots(3)] == ["2"] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert cpu_slots(3)[0].environment()["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "0"], "--processes must be at least 1, not 0"),
        (["--processes", "2", "--workers", "2"], "--gpus and --processes do not go with --workers"),
        (["--gpus", "0-1", "--engine", "ray"], "--gpus and --processes do not go with --engine ray"),
        (["--processes", "2", "--student", "exact"], "do not go with --student exact"),
        (["--processes", "2", "--until-decided"], "--until-decided does not support --gpus or --processes"),
        (["--gpus", "0-"], "--gpus takes numbers of GPUs, such as 0-7"),
        (["--processes", "2", "--out", "memory://run"], "is in the memory of one process"),
    ],
)
def test_invalid_options_are_refused(options, message, tmp_path, capsys):
    assert main(["analyze", "--limit", "2", "--out", str(tmp_path / "run"), *options]) == 2
    assert message in capsys.readouterr().err


def test_two_processes_write_the_bytes_of_one(tmp_path, monkeypatch):
    """A real study on the embedded models; one of the processes is killed when it has stored its first rollouts."""
    import torch

    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    small = ["analyze", "--limit", "2", "--initial", "16", "--targeted", "32", "--n-sig", "3", "--batch", "8"]
    small += ["--teachers", "embedded:teacher"]
    one, two = tmp_path / "one", tmp_path / "two"
    try:
        assert main([*small, "--out", str(one)]) == 0
    finally:
        torch.set_num_threads(threads)
    command = [sys.executable, "-m", "opd_align.cli", *small, "--processes", "2", "--out", str(two)]
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        wait_for(lambda: list((two / "rollouts").glob("*.parquet")) or parent.poll() is not None, 300)
        workers = psutil.Process(parent.pid).children() if parent.poll() is None else []
        if workers:
            workers[0].kill()
        _, error = parent.communicate(timeout=300)
    assert parent.returncode == 0, error[-2000:]
    assert workers, "the run ended before anything could be killed"
    for name in RESULT:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert {file.name for file in (one / "rollouts").iterdir()} == {file.name for file in (two / "rollouts").iterdir()}
