"""The worker process of `math_pool`: compares expressions with math-verify, one request per line.

Run as a script, so that neither the user's script nor this package is imported: it needs math-verify only. Reads
requests as JSON from standard input and writes one word per request to standard output. It ends with its input, after
`IDLE_S` without a request, and when its parent has died; a request that exceeds its CPU time ends with "timeout", so
that no computation outlives the process that asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any

IDLE_S = 600
"""A worker without a request for this long ends; the next request starts another one."""

MAX_MEMORY = 4 << 30
"""Address space of a worker in bytes; more would be a number that does not fit into any answer."""


class _Timeout(BaseException):
    """The CPU time of a request is used up; a `BaseException`, so that sympy's own handlers do not catch it."""


def compare(gold: str, found: str) -> str:
    """Compares two expressions: "same", "different", "unparseable" (found), "unreadable" (gold) or "error"."""
    try:
        wanted = _parsed(gold)
        if not wanted:
            return "unreadable"
        if not found:
            return "readable"
        given = _parsed(found)
        if not given:
            return "unparseable"
        import math_verify

        same = math_verify.verify(wanted, given, timeout_seconds=None, raise_on_error=True)
    except Exception:  # an error in math-verify is not the model's error
        return "error"
    return "same" if same else "different"


def _parsed(expression: str) -> list[Any]:
    import math_verify

    return math_verify.parse(rf"\boxed{{{expression}}}", fallback_mode="no_fallback", parsing_timeout=None)


def _answer(line: str) -> str:
    gold, found, limit_s = json.loads(line)
    fired = 0

    def stop(*_: Any) -> None:
        nonlocal fired
        fired += 1
        if fired > 2:  # sympy has caught it, or a destructor was interrupted
            os._exit(1)
        raise _Timeout

    # CPU time, not wall time: a verdict must not depend on how busy the machine is.
    signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s, limit_s / 2)
        result = compare(gold, found)
    except _Timeout:
        result = "timeout"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return result


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like a reply
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    import logging

    logging.disable()
    compare(r"\frac{\sqrt{3}}{2}", r"x^2+1")  # loads what sympy loads on first use
    replies.write("ready\n")
    replies.flush()
    parent, idle_s, buffer = os.getppid(), 0, b""
    while True:
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            replies.write(_answer(line.decode("utf-8")) + "\n")
            replies.flush()
            idle_s = 0
        ready, _, _ = select.select([0], [], [], 5)
        if ready:
            received = os.read(0, 1 << 16)
            if not received:
                return
            buffer += received
        else:
            idle_s += 5
            if idle_s >= IDLE_S or os.getppid() != parent:
                return


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
    sys.stdout = sys.stderr = None  # nothing to flush to a parent that is gone
