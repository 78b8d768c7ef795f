"""A run killed at random moments and resumed ends byte by byte like one that was never killed.

A nursery process loads the package once and forks a child for every attempt, so that a kill with SIGKILL hits work
and not the loading of libraries. The children run the command line as it is; only the student's sampling notes, in a
log, each batch that it is asked for.
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

NURSERY = '''
import json, os, random, signal, sys, time
from pathlib import Path

import opd_align.runs.run_directory, opd_align.report.tables, rich.console, rich.progress
from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main

command, folder, kills, workers, seed = json.loads(sys.argv[1])
folder, rng = Path(folder), random.Random(seed)
sample, fsync = ExactFamily.sample, os.fsync


def begin(run, workers, syncs=None):
    """Starts an attempt in a process of its own; it kills itself just before its `syncs`-th call of fsync."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def noted(self, requests):
            keys = [int(key) for key_R in self.keys(requests) for key in key_R]
            os.write(log, f"{hash(tuple(keys))}\\n".encode())  # of numbers only, so the same in every child
            return sample(self, requests)

        def deadly(handle):
            nonlocal syncs
            syncs -= 1
            if syncs == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(handle)

        ExactFamily.sample = noted
        if syncs:
            os.fsync = deadly
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        code = main([*command, "--out", str(run), "--workers", str(workers)])
        os._exit(code)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(70)


def ended(child, ripe):
    """The exit code, or None as soon as the time is ripe to kill."""
    while not ripe():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def moment(run):
    """A random moment: some new batches later and a little more, or, if none are left, some time later."""
    log = Path(f"{run}.log")

    def lines():
        return log.read_bytes().count(b"\\n") if log.exists() else 0

    now, more, pause = time.monotonic(), lines() + rng.randint(0, 5), rng.uniform(0, 0.03)
    latest = now + rng.uniform(0, took)
    begun = []

    def ripe():
        if not begun and lines() > more:
            begun.append(time.monotonic())
        return time.monotonic() > latest or bool(begun) and time.monotonic() > begun[0] + pause

    return ripe


started = time.monotonic()
assert ended(begin(folder / "whole", 1), lambda: False) == 0
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
        ripe = (lambda: False) if enough else moment(path)
        child = begin(path, workers[run["kills"] % len(workers)])
        code = ended(child, ripe)
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

IN_WRITING = """
# A file is synced (its temporary name is complete), renamed, then its folder is synced. Killed at an odd sync, an
# attempt leaves a temporary file, at an even one a new name. The five files of the result take ten, and what was spent
# (written once, unless something is sampled) two.
path, codes = folder / "killed", []
while not codes or codes[-1] != 0:
    assert len(codes) < 60
    codes.append(ended(begin(path, 1, 1 + len(codes) % 11), lambda: False))
    assert codes[-1] in (0, -signal.SIGKILL), codes
print(json.dumps({"runs": [{"path": str(path), "kills": len(codes) - 1}]}))
"""


def batches(run: Path) -> list[str]:
    return run.with_name(f"{run.name}.log").read_text().splitlines()


def nursed(script: str, *order: object) -> Any:
    """What the nursery tells after its children have run."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    command = [sys.executable, "-c", NURSERY + script, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def assert_like_the_whole(path: Path, whole: Path, kills: int, workers: int) -> None:
    for name in (
        "nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json",
    ):  # fmt: skip
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name
    assert sorted(file.name for file in path.rglob("*")) == sorted(file.name for file in whole.rglob("*"))
    made, expected = batches(path), batches(whole)
    assert len(expected) == len(set(expected))
    assert set(made) == set(expected)
    # Sampled again: at most what was in flight, one batch a worker.
    assert len(made) <= len(expected) + kills * workers


@pytest.mark.parametrize("workers", [[1], [2, 3, 1]], ids=["one", "changing"])
def test_runs_killed_at_random_end_like_one_that_was_never_killed(tmp_path: Path, workers: list[int]) -> None:
    told = nursed(AT_RANDOM, [*COMMAND, "--batch", "16"], str(tmp_path), KILLS, workers, len(workers))
    assert sum(run["kills"] for run in told["runs"]) == KILLS
    assert len(batches(tmp_path / "whole")) > 40
    # The kills came at all stages.
    stages = [count for run in told["runs"] for count in run["batches_at_kill"]]
    assert len(set(stages)) >= KILLS // 3
    for run in told["runs"]:
        assert_like_the_whole(Path(run["path"]), tmp_path / "whole", run["kills"], max(workers))


def test_a_run_killed_while_writing_ends_like_one_that_was_never_killed(tmp_path: Path) -> None:
    told = nursed(IN_WRITING, [*COMMAND, "--batch", "100"], str(tmp_path), 0, [1], 0)
    (run,) = told["runs"]
    assert run["kills"] >= 8
    assert_like_the_whole(Path(run["path"]), tmp_path / "whole", run["kills"], 1)
