"""What a process of `processes` runs: a worker that takes its work from a pipe, and ends with its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from opd_align.types import OpdAlignError

WATCH_S = 0.5
"""How often a process looks whether its parent is still there."""


@dataclass(frozen=True)
class PipeContext:
    """Sends events to the parent through the pipe; threads of a worker may send at the same time."""

    connection: Connection[Any, Any]
    lock: threading.Lock

    def enter(self) -> PipeContext:
        """Nothing to do: a process starts in its parent's working directory."""
        return self

    def send(self, event: Any) -> None:
        """Sends an event to the parent."""
        self.answer("event", event)

    def answer(self, kind: str, value: Any) -> None:
        """Sends a message of any kind to the parent."""
        with self.lock:
            self.connection.send((kind, value))


def serve(make_worker: Callable[..., Any]) -> None:
    """Calls the methods of a worker that the parent asks for, until it closes the pipe, or ends.

    The command line has the handle of the pipe and the id of the parent.

    Args:
        make_worker: From a context and what the parent sends first to the worker.
    """
    handle, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(handle)
    context = PipeContext(connection, threading.Lock())
    try:
        worker = make_worker(context, *connection.recv())
        context.answer("ready", None)
        while True:
            method, *arguments = connection.recv()
            try:
                answer = ("result", getattr(worker, method)(*arguments))
            except Exception as error:
                for_users = isinstance(error, OpdAlignError)
                message = str(error) if for_users else f"{type(error).__name__}: {error}"
                answer = ("error", (for_users, message, traceback.format_exc()))
            context.answer(*answer)
    except (EOFError, BrokenPipeError):
        return


def _end_with(parent: int) -> None:
    """Waits until the parent is gone, then ends this process and the engines that it started."""
    # A busy worker does not read its pipe, whose end would go unnoticed; but without a parent it gets another one.
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    """Runs a worker of a study."""
    from opd_align.study.worker import Worker

    serve(lambda context, config, path, reuse, gpu_share: Worker(context, config, path, reuse, {}, gpu_share))


if __name__ == "__main__":
    main()
