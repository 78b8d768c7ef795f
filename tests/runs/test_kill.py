"""A run that is killed at random moments and resumed gives the same files as one that was never killed.

A parent process loads the package once and forks a child for every attempt, so that SIGKILL hits the run and not the
loading of libraries. The children run the unchanged command line; only the student's sampling is patched to log each
requested batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opd_align

KILLS = 25
COMMAND = [
    "analyze", "--student", "exact", "--worlds", "2", "--length", "12", "--stakes", "3", "--initial", "48",
    "--targeted", "400",
]  # fmt: skip

PARENT = '''
import json, os, random, signal, sys, time
from pathlib import Path

import opd_align.runs.run_directory, opd_align.report.tables, rich.console, rich.progress
from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main

command, folder, kills, workers, seed = json.loads(sys.argv[1])
folder, rng = Path(folder), random.Random(seed)
sample, fsync = ExactFamily.sample, os.fsync


def begin(run, workers, syncs=None):
    """Starts an attempt in a child process, which kills itself just before its `syncs`-th call of fsync."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def logged_sample(self, requests):
            keys = [int(key) for key_R in self.keys(requests) for key in key_R]
            os.write(log, f"{hash(tuple(keys))}\\n".encode())  # a hash of integers is the same in every child
            return sample(self, requests)

        def killing_fsync(handle):
            nonlocal syncs
            syncs -= 1
            if syncs == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(handle)

        ExactFamily.sample = logged_sample
        if syncs:
            os.fsync = killing_fsync
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        code = main([*command, "--out", str(run), "--workers", str(workers)])
        os._exit(code)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(70)


def wait(child, should_kill):
    """The exit code, or None as soon as the child should be killed."""
    while not should_kill():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def random_moment(run):
    """A condition that becomes true at random: a few batches from now, or after a random time if none are left."""
    log = Path(f"{run}.log")

    def lines():
        return log.read_bytes().count(b"\\n") if log.exists() else 0

    now, more, pause = time.monotonic(), lines() + rng.randint(0, 5), rng.uniform(0, 0.03)
    latest = now + rng.uniform(0, took)
    begun = []

    def should_kill():
        if not begun and lines() > more:
            begun.append(time.monotonic())
        return time.monotonic() > latest or bool(begun) and time.monotonic() > begun[0] + pause

    return should_kill


started = time.monotonic()
assert wait(begin(folder / "whole", 1), lambda: False) == 0
took = time.monotonic() - started

'''

AT_RANDOM = """
runs = []
while sum(run["kills"] for run in runs) < kills:
    path = folder / f"killed-{len(runs)}"
    run = {"path": str(path), "kills": 0, "batches_at_kill": []}
    runs.append(run)
    while True:
        enough = sum(other["kills"] for other in runs) >= kills
        should_kill = (lambda: False) if enough else random_moment(path)
        child = begin(path, workers[run["kills"] % len(workers)])
        code = wait(child, should_kill)
        if code is None:
            os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGKILL:
            run["kills"] += 1
            run["batches_at_kill"].append(len(list(path.glob("rollouts/*.parquet"))))
        else:
            assert code == 0, code
            break
print(json.dumps({"took_s": took, "runs": runs}))
"""

WHILE_WRITING = """
# A file is synced under its temporary name, renamed, then its folder is synced. An attempt killed at an odd sync leaves
# a temporary file, at an even one a renamed file. The five files of the result take ten syncs, the usage (written once,
# unless something is sampled) two.
path, codes = folder / "killed", []
while not codes or codes[-1] != 0:
    assert len(codes) < 60
    codes.append(wait(begin(path, 1, 1 + len(codes) % 11), lambda: False))
    assert codes[-1] in (0, -signal.SIGKILL), codes
print(json.dumps({"runs": [{"path": str(path), "kills": len(codes) - 1}]}))
"""


def batches(run: Path) -> list[str]:
    return run.with_name(f"{run.name}.log").read_text().splitlines()


def run_children(script: str, *arguments: object) -> Any:
    """The output of the parent process after its children have run."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    command = [sys.executable, "-c", PARENT + script, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def assert_same_result(path: Path, whole: Path, kills: int, workers: int) -> None:
    for name in (
        "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json",
    ):  # fmt: skip
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name
    assert sorted(file.name for file in path.rglob("*")) == sorted(file.name for file in whole.rglob("*"))
    sampled, expected = batches(path), batches(whole)
    assert len(expected) == len(set(expected))
    assert set(sampled) == set(expected)
    # At most the batches in flight, one per worker, are sampled again.
    assert len(sampled) <= len(expected) + kills * workers


@pytest.mark.parametrize("workers", [[1], [2, 3, 1]], ids=["one", "changing"])
def test_runs_killed_at_random_give_the_same_result(tmp_path: Path, workers: list[int]) -> None:
    output = run_children(AT_RANDOM, [*COMMAND, "--batch", "16"], str(tmp_path), KILLS, workers, len(workers))
    assert sum(run["kills"] for run in output["runs"]) == KILLS
    assert len(batches(tmp_path / "whole")) > 40
    # The kills hit all stages.
    stages = [count for run in output["runs"] for count in run["batches_at_kill"]]
    assert len(set(stages)) >= KILLS // 3
    for run in output["runs"]:
        assert_same_result(Path(run["path"]), tmp_path / "whole", run["kills"], max(workers))


def test_a_run_killed_while_writing_gives_the_same_result(tmp_path: Path) -> None:
    output = run_children(WHILE_WRITING, [*COMMAND, "--batch", "100"], str(tmp_path), 0, [1], 0)
    (run,) = output["runs"]
    assert run["kills"] >= 8
    assert_same_result(Path(run["path"]), tmp_path / "whole", run["kills"], 1)
