"""A run that is killed at random moments and resumed gives the same files as one that was never killed.

A parent process loads the package once and forks a child for every attempt, so that SIGKILL hits the run and not the
loading of libraries. The children run the unchanged command line; only the student's sampling is patched to log each
requested batch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opd_align
from opd_align.backends.exact import ExactFamily
from opd_align.runs.execute import analyze_into
from opd_align.settings import Budget, Settings

LONG = os.environ.get("FUZZ") == "long"
KILLS = 50 if LONG else 20
"""Kills of each test; `make fuzz` sets FUZZ=long."""

SIZE = ["--student", "exact", "--length", "12", "--stakes", "3", "--initial", "48", "--targeted", "400"]
ANALYZE = ["analyze", *SIZE, "--worlds", "2"]

PARENT = '''
import json, os, random, signal, sys, time
from pathlib import Path

import opd_align.runs.merge, opd_align.report.html, opd_align.report.screening, opd_align.study.build
import rich.console, rich.progress
from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main

command, folder, kills, workers, seed = json.loads(sys.argv[1])
folder, rng = Path(folder), random.Random(seed)
sample, fsync, replace = ExactFamily.sample, os.fsync, os.replace


def begin(run, workers=None, writes=None, syncs=None):
    """Starts an attempt in a child process, which kills itself just before its `writes`-th step of writing a file
    (flushing or renaming), or its `syncs`-th call of fsync."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        steps = os.open(f"{run}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def logged_sample(self, requests):
            keys = [int(key) for key_R in self.keys(requests) for key in key_R]
            os.write(log, f"{hash(tuple(keys))}\\n".encode())  # a hash of integers is the same in every child
            return sample(self, requests)

        def killing(real, is_sync):
            def wrapper(*args, **options):
                nonlocal writes, syncs
                os.write(steps, b".")
                writes, syncs = writes and writes - 1, syncs and syncs - is_sync
                if writes == 0 or syncs == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return wrapper

        ExactFamily.sample = logged_sample
        os.fsync, os.replace = killing(fsync, True), killing(replace, False)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        arguments = [argument.replace("OUT", str(run)) for argument in command]
        os._exit(main(arguments if workers is None else [*arguments, "--workers", str(workers)]))
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


def killed(child):
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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


if command[0] in ("screen", "watch"):  # loads the libraries that a model needs
    from opd_align.study.config import read_config

    opd_align.study.build.Study(read_config("demo", [])).student
if command[0] == "watch":
    import opd_align.study.watch, opd_align.study.watch_tracking

started = time.monotonic()
assert wait(begin(folder / "whole", workers[0]), lambda: False) == 0
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
            code = killed(child)
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
# a temporary file, at an even one a renamed file. The result and the manifest take twelve syncs, the usage (written
# once, unless something is sampled) two.
path, codes = folder / "killed", []
while not codes or codes[-1] != 0:
    assert len(codes) < 60
    codes.append(wait(begin(path, 1, syncs=1 + len(codes) % 13), lambda: False))
    assert codes[-1] in (0, -signal.SIGKILL), codes
print(json.dumps({"runs": [{"path": str(path), "kills": len(codes) - 1}]}))
"""

ANYWHERE = """
# Half of the kills at a random moment, half at a random step of writing.
steps, runs = Path(f"{folder}/whole.steps").stat().st_size, []
while sum(run["kills"] for run in runs) < kills:
    path = folder / f"killed-{len(runs)}"
    run = {"path": str(path), "kills": 0}
    runs.append(run)
    while True:
        at_step = rng.random() < 0.5
        enough = sum(other["kills"] for other in runs) >= kills
        child = begin(path, writes=rng.randint(1, steps) if at_step and not enough else None)
        latest = time.monotonic() + rng.uniform(0, took)
        code = wait(child, lambda: not (at_step or enough) and time.monotonic() > latest)
        code = killed(child) if code is None else code
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        run["kills"] += 1
print(json.dumps({"steps": steps, "runs": runs}))
"""


def batches(run: Path) -> list[str]:
    return run.with_name(f"{run.name}.log").read_text().splitlines()


def run_children(script: str, *arguments: object) -> Any:
    """The output of the parent process after its children have run."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    command = [sys.executable, "-c", PARENT + script, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000 if LONG else 300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def contents(path: Path) -> dict[str, bytes | None]:
    """All files and folders of a run, with the bytes of those that do not depend on the time."""
    timed = ("lock", "spent.json")
    return {
        str(file.relative_to(path)): file.read_bytes() if file.is_file() and file.name not in timed else None
        for file in path.rglob("*")
    }


def assert_same_files(path: Path, whole: Path) -> None:
    got, expected = contents(path), contents(whole)
    assert sorted(got) == sorted(expected)
    # The title of a report is the name of its directory.
    differing = [name for name in expected if got[name] != expected[name] and name != "report.html"]
    assert not differing
    if "report.html" in expected:
        page, whole_page = ((folder / "report.html").read_text() for folder in (path, whole))
        assert page.replace(path.name, whole.name) == whole_page


def assert_same_result(path: Path, whole: Path, kills: int, workers: int) -> None:
    assert {"nodes.parquet", "summary.json", "manifest.json", "report.html", "tables/tables.md"} <= contents(
        whole
    ).keys()
    assert_same_files(path, whole)
    sampled, expected = batches(path), batches(whole)
    assert len(expected) == len(set(expected))
    assert set(sampled) == set(expected)
    # At most the batches in flight, one per worker, are sampled again.
    assert len(sampled) <= len(expected) + kills * workers


@pytest.mark.parametrize("workers", [[1], [2, 3, 1]], ids=["one", "changing"])
def test_runs_killed_at_random_give_the_same_result(tmp_path: Path, workers: list[int]) -> None:
    command = [*ANALYZE, "--batch", "16", "--out", "OUT"]
    output = run_children(AT_RANDOM, command, str(tmp_path), KILLS, workers, len(workers))
    assert sum(run["kills"] for run in output["runs"]) == KILLS
    assert len(batches(tmp_path / "whole")) > 40
    # The kills hit all stages.
    stages = [count for run in output["runs"] for count in run["batches_at_kill"]]
    assert len(set(stages)) >= min(KILLS, 25) // 3
    for run in output["runs"]:
        assert_same_result(Path(run["path"]), tmp_path / "whole", run["kills"], max(workers))


def test_a_run_killed_while_writing_gives_the_same_result(tmp_path: Path) -> None:
    command = [*ANALYZE, "--batch", "100", "--out", "OUT"]
    output = run_children(WHILE_WRITING, command, str(tmp_path), 0, [1], 0)
    (run,) = output["runs"]
    assert run["kills"] >= 8
    assert_same_result(Path(run["path"]), tmp_path / "whole", run["kills"], 1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two finished runs that can be merged."""
    folder = tmp_path_factory.mktemp("parts")
    family = ExactFamily.random(0, 4, length=12, stakes=3.0)
    teachers = [family.teacher("tilted", lambda world: world.tilted_teacher())]
    settings = Settings(budget=Budget(initial=48, targeted=200), batch=50)
    for name, questions in (("a", family.questions[:2]), ("b", family.questions[2:])):
        analyze_into(folder / name, family, teachers, questions, family, settings=settings)
    return [str(folder / "a"), str(folder / "b")]


@pytest.mark.parametrize("name", ["screen", "merge", "report"])
def test_other_commands_killed_at_random_give_the_same_files(tmp_path: Path, parts: list[str], name: str) -> None:
    if name == "screen":
        options = ["--limit", "2", "--set", "rollouts=8", "--set", "batch=16", "--set", "demonstrations.trials=8"]
        command = ["screen", "--teachers", "Self-1C", *options, "--out", "OUT"]
    elif name == "merge":
        command = ["merge", *parts, "--out", "OUT"]
    else:
        command = ["report", parts[0], "--html", "OUT.html", "--tables", "OUT"]
    kills = KILLS if name != "screen" or LONG else KILLS // 3  # a model takes longer
    output = run_children(ANYWHERE, command, str(tmp_path), kills, [None], 7)
    assert output["steps"] > 8
    assert sum(run["kills"] for run in output["runs"]) == kills
    whole = tmp_path / "whole"
    assert len(contents(whole)) > 8
    for run in output["runs"]:
        path = Path(run["path"])
        if name == "report":
            # A folder of the user's is not searched for temporary files of killed processes.
            for file in path.glob(".*.tmp"):
                file.unlink()
            assert path.with_suffix(".html").read_bytes() == whole.with_suffix(".html").read_bytes()
        assert_same_files(path, whole)


RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training leaves: checkpoints, and the marker of its end."""
    import torch

    from opd_align.backends.loading import load_model

    folder, loaded = tmp_path_factory.mktemp("training"), load_model("embedded:student")
    for step in (1, 2):
        with torch.no_grad():
            next(loaded.model.parameters()).mul_(1.01)
        loaded.model.save_pretrained(folder / f"checkpoint-{step}")
        loaded.tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    (folder / "opd_align").mkdir()
    (folder / "opd_align" / "training_finished").touch()
    return folder


def evaluations(path: Path) -> list[dict[str, Any]]:
    """The lines of the history, without times and what is about the evaluation itself."""
    lines = [json.loads(line) for line in (path / "opd_align" / "history.jsonl").read_text().splitlines()]
    for line in lines:
        del line["at"], line["written"], line["checkpoint"]
        line["metrics"] = {key: value for key, value in line["metrics"].items() if "/evaluation/" not in key}
    return lines


def test_a_watcher_killed_at_random_loses_no_evaluation_and_repeats_none(tmp_path: Path, checkpoints: Path) -> None:
    kills = 20 if LONG else 3
    for name in ("whole", *(f"killed-{number}" for number in range(kills + 1))):
        shutil.copytree(checkpoints, tmp_path / name)
    before = contents(checkpoints)
    size = ["--limit", "1", "--initial", "12", "--targeted", "16", "--n-sig", "4", "--set", "sampling.max_tokens=40"]
    watch = ["--settle", "0", "--poll", "0.01"]
    command = ["watch", "OUT", "--task", "arithmetic", "--teachers", "Self-1C", *size, *watch]
    output = run_children(ANYWHERE, command, str(tmp_path), kills, [None], 11)
    assert output["steps"] > 20
    assert sum(run["kills"] for run in output["runs"]) == kills
    whole = tmp_path / "whole"
    assert [line["run"] for line in evaluations(whole)] == ["step-000001", "step-000002"]
    for run in output["runs"]:
        path = Path(run["path"])
        assert evaluations(path) == evaluations(whole), "each checkpoint once, with the same numbers"
        folders = [each / "opd_align" for each in (path, whole)]
        same = ["demonstrations.json", *(f"step-{step:06d}/{name}" for step in (1, 2) for name in RESULT)]
        assert [name for name in same if (folders[0] / name).read_bytes() != (folders[1] / name).read_bytes()] == []
        assert {name: data for name, data in contents(path).items() if not name.startswith("opd_align")} == {
            name: data for name, data in before.items() if not name.startswith("opd_align")
        }, "what the training wrote is not touched"
