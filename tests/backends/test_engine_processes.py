"""Processes of an engine end with the process that started them, also when that is killed; no others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

ENGINE = """
import subprocess, sys, time
from opd_align.backends.engine_processes import watched_engine

child = [sys.executable, "-I", "-S", "-c", "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-I', "
         "'-S', '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True); time.sleep(600)"]
other = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
with watched_engine():
    engine = subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
    worker = int(engine.stdout.readline())
    time.sleep({starting})
print(other.pid, engine.pid, worker, flush=True)
{then}
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, timeout_s: float = 60.0) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and not condition():
        time.sleep(0.05)
    return condition()


def watchers_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(pid).encode() in command and any(b"descendants" in part for part in command):
                found.append(int(entry.name))
    return found


@pytest.fixture
def started():
    """Starts the script above; kills what is left of it."""
    pids: list[int] = []
    processes: list[subprocess.Popen[str]] = []

    def start(then: str, starting: float = 0.0) -> tuple[subprocess.Popen[str], list[int]]:
        script = ENGINE.replace("{then}", then).replace("{starting}", str(starting))
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline() if not starting else ""
        pids.extend(map(int, line.split()))
        return process, pids

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_process_leaves_no_engine_behind(started):
    process, (other, engine, worker) = started("time.sleep(600)")
    assert alive(engine)
    assert alive(worker)
    assert len(watchers_of(process.pid)) == 1
    process.kill()
    process.wait()
    assert wait_until(lambda: not alive(engine) and not alive(worker))
    assert alive(other)  # not the engine's
    assert wait_until(lambda: not watchers_of(process.pid))


def test_a_watcher_ends_with_the_engine_while_its_parent_lives(started):
    process, (other, _, worker) = started("engine.kill(); engine.wait(); time.sleep(600)")
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: not watchers_of(process.pid))
    assert process.poll() is None
    assert alive(other)


def test_an_engine_that_is_still_starting_is_ended_too(started):
    process, pids = started("", starting=600.0)

    def children() -> list[int]:
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and alive(int(entry.name)) and parent_of(int(entry.name)) == process.pid
        ]

    def parent_of(pid: int) -> int | None:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return None

    assert wait_until(lambda: len(children()) == 3)  # another process, the watcher, the engine
    time.sleep(1.0)  # the watcher looks every quarter of a second
    pids.extend(children())
    (watcher,) = watchers_of(process.pid)
    other, engine = sorted(set(pids) - {watcher})
    process.kill()
    process.wait()
    assert wait_until(lambda: not alive(engine))
    assert alive(other)
