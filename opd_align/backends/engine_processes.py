"""Engine processes that do not outlive the process that started them.

A vLLM engine runs in processes of its own. They end with the process that uses them, unless that is killed (SIGKILL,
out of memory): then they stay, hold their memory, and the run cannot be resumed. So a small watcher process notes
which processes an engine started, by number and start time, and ends those once its parent is gone. It ends nothing
else, and nothing while the parent lives. PR_SET_PDEATHSIG would need code in the engine's processes, and would end an
engine together with the *thread* that created it. Linux only; elsewhere nothing is watched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROC = Path("/proc")
_watchers: list[subprocess.Popen[bytes]] = []  # Python warns about a process that is forgotten while it runs

# Started without site-packages: it takes 10 MB and no time.
_WATCHER = """
import os, select, signal, sys, time

parent, before = int(sys.argv[1]), set()


def stat(pid):
    # (parent, start time); None if there is no such process, or it has ended and was not waited for.
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def descendants():
    found = {int(name): entry for name in os.listdir("/proc") if name.isdigit() and (entry := stat(name))}
    family = {parent}
    for _ in range(16):
        family |= {pid for pid, entry in found.items() if entry[0] in family}
    return {pid: found[pid][1] for pid in family - before - {parent, os.getpid()} if pid in found}


def alive():
    return [pid for pid, start in watched.items() if (entry := stat(pid)) and entry[1] == start]


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # as long as the parent lives, so does the watcher
before, watched, complete = set(descendants()), {}, False
print("ready", flush=True)
while os.getppid() == parent:
    if not complete:
        complete = bool(select.select([sys.stdin], [], [], 0.25)[0])  # a line: the engine is running
        watched = {**watched, **descendants()}
        if complete:
            try:
                print("noted", flush=True)
            except OSError:
                break  # the parent died while the engine was starting: its end of the pipe is closed
    elif not alive():
        sys.exit()
    else:
        time.sleep(0.5)
# After a regular exit the engine is already stopping.
for signal_number, patience_s in ((0, 2.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
    until = time.monotonic() + patience_s
    for pid in alive():
        try:
            os.kill(pid, signal_number)
        except OSError:
            pass
    while alive() and time.monotonic() < until:
        time.sleep(0.1)
"""


@contextmanager
def watched_engine() -> Iterator[None]:
    """Processes that are started inside this context end when this process does, however it ends."""
    if not (PROC / "self" / "stat").exists():
        yield
        return
    # A session of its own: a signal to the terminal's or the job's process group does not end it.
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHER, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    _watchers.append(watcher)
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdout.readline()  # it is watching; nothing is read if it could not start
    try:
        yield
    finally:
        with suppress(OSError):
            watcher.stdin.write(b"running\n")
            watcher.stdin.close()
            watcher.stdout.readline()  # it knows all processes
        watcher.stdout.close()
