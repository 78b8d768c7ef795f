"""A pool of processes that compare expressions with math-verify, with a time limit that holds in every thread.

Sympy may compute for hours on a short expression. An alarm signal ends it in the main thread only, and no thread can
end another one; a process can be ended from anywhere. Workers are started at the first comparison, and never forked
from this process (which may hold CUDA and threads) nor do they import the user's script: they run `math_worker.py`.
Results are cached by (gold, found), since many completions give the same answer.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

from opd_align.types import OpdAlignError

CPU_LIMIT_S = 0.4
"""CPU time of one comparison; usual ones take a few milliseconds."""

WALL_LIMIT_S = 15.0
"""After this time a worker is killed, whatever it does: for code that does not react to signals."""

START_LIMIT_S = 120.0
"""Maximum time to import math-verify, which takes a second or two on an idle machine."""

MAX_WORKERS = 4
CACHE_SIZE = 20_000

_WORKER = Path(__file__).with_name("math_worker.py")


class MathPool:
    """Worker processes, started when needed and ended with the interpreter. Can be used from any thread.

    Args:
        max_workers: Maximum number of processes; further callers wait for a free one.
        cpu_limit_s: CPU time of one comparison in seconds.
        wall_limit_s: Time after which a worker is killed.
    """

    def __init__(
        self, *, max_workers: int = MAX_WORKERS, cpu_limit_s: float = CPU_LIMIT_S, wall_limit_s: float = WALL_LIMIT_S
    ) -> None:
        self.cpu_limit_s, self.wall_limit_s = cpu_limit_s, wall_limit_s
        self.max_workers = max_workers
        self._idle: list[_Worker] = []
        self._replies: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.forget()

    def compare(self, gold: str, found: str) -> str:
        """The worker's reply to one comparison, see `math_worker.compare`; "timeout" if there is none in time."""
        key = (gold, found)
        with self._lock:
            if key in self._replies:
                self._replies.move_to_end(key)
                return self._replies[key]
        if importlib.util.find_spec("math_verify") is None:
            raise OpdAlignError(
                "comparing mathematical expressions needs math-verify; install it with: pip install 'opd-align[tasks]'"
            )
        with self._free_slots:
            reply = self._ask(json.dumps([gold, found, self.cpu_limit_s]) + "\n")
        with self._lock:
            self._replies[key] = reply
            while len(self._replies) > CACHE_SIZE:
                self._replies.popitem(last=False)
        return reply

    def close(self) -> None:
        """Ends the idle workers; a later comparison starts new ones."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.kill()

    def clear_cache(self) -> None:
        """Forgets the replies, for measurements."""
        with self._lock:
            self._replies.clear()

    def forget(self) -> None:
        """Starts afresh without ending the workers: they belong to another process (the parent of a fork)."""
        self._lock = threading.Lock()
        self._free_slots = threading.BoundedSemaphore(self.max_workers)
        self._idle, self._replies = [], OrderedDict()

    def after_fork(self) -> None:
        """Called in a forked child, which must not talk to its parent's workers."""
        for worker in self._idle:
            worker.disconnect()
        self.forget()

    def _ask(self, request: str) -> str:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is not None and not worker.is_alive():  # it was idle for long, or somebody ended it
            worker.kill()
            worker = None
        worker = worker or _Worker()
        reply = None
        try:
            reply = worker.ask(request, self.wall_limit_s)
        finally:  # also on KeyboardInterrupt: a reply that nobody waits for would answer the next request
            if reply is None:
                worker.kill()
            else:
                with self._lock:
                    self._idle.append(worker)
        return reply or "timeout"


class _Worker:
    def __init__(self) -> None:
        # -P: its own folder is not on the path, where `numbers.py` would hide the standard library's.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # Ctrl-C is for this process; the worker ends when its input does
        )
        if self._line(START_LIMIT_S) != "ready":
            self.kill()
            raise OpdAlignError(
                "the process that compares mathematical expressions did not start; check that this works: "
                f"{sys.executable} -c 'import math_verify'"
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: str, limit_s: float) -> str | None:
        """The reply, or `None` if the worker has died or does not reply in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode("utf-8"))
            self._process.stdin.flush()
        except OSError:
            return None
        return self._line(limit_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.disconnect()

    def disconnect(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # data for a worker that has died
                    pipe.close()

    def _line(self, limit_s: float) -> str | None:
        assert self._process.stdout is not None
        descriptor, received, end = self._process.stdout.fileno(), b"", time.monotonic() + limit_s
        poll = select.poll()  # select.select fails for descriptors from 1024 on
        poll.register(descriptor, select.POLLIN)
        while not received.endswith(b"\n"):
            left_s = end - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return None
            part = os.read(descriptor, 4096)
            if not part:
                return None
            received += part
        return received.decode("utf-8").strip()


POOL = MathPool()
"""The pool that all verifiers of this process share."""

atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.after_fork)
