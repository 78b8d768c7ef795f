"""A worker for `study.processes` that does what it is told: `python -m tests.support.scripted_worker HANDLE PARENT`.

What it is told is the run directory's name: a folder with files that say when to die.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opd_align.study.process_worker import serve
from opd_align.types import OpdAlignError

MAX_DEATHS = 3


class ScriptedWorker:
    """Finishes its work after noting where it was done, unless the folder says otherwise."""

    def __init__(self, context: Any, config: Any, path: str, reuse: str | None, gpu_share: float) -> None:
        self.context, self.folder = context, Path(path)

    def analyze(self, index: int, group: Any, demonstrations: Any) -> Any:
        where = os.environ.get("CUDA_VISIBLE_DEVICES", "cpu")
        with (self.folder / "log").open("a") as log:
            log.write(f"{index} {where} {os.getpid()}\n")
        self.context.send(("sampling", index, 9))
        if (self.folder / f"die-{where}").exists() or (self.folder / f"die-{index}").exists():
            print("out of memory, says the scripted worker", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        forking = self.folder / f"die-with-child-{index}"
        if forking.exists():
            forking.unlink()
            if not os.fork():  # as an engine that is forked, it has the pipe open too
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        once = self.folder / f"die-once-{index}"
        if once.exists():
            once.unlink()
            os._exit(7)
        if (self.folder / f"fail-{index}").exists():
            raise OpdAlignError("in the user's words")
        if (self.folder / f"crash-{index}").exists():
            raise ValueError("a bug")
        if (self.folder / f"hang-{index}").exists():
            # An engine of its own, as vLLM has one.
            engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (self.folder / "hanging").write_text(f"{os.getpid()} {engine.pid}")
            while True:
                time.sleep(1)
        if (self.folder / "wait-for-nine").exists():  # until another slot was tried often enough to be given up
            end = time.monotonic() + 120
            while (self.folder / "log").read_text().count(" nine ") < MAX_DEATHS and time.monotonic() < end:
                time.sleep(0.05)
        # Shaped like a `WorkerResult`, whose imports would take longer than everything else here.
        done = SimpleNamespace(results=[(where, index)], usage=SimpleNamespace(tokens=1, seconds=1.0))
        return SimpleNamespace(index=index, done=done, damaged_files=[])


if __name__ == "__main__":
    serve(ScriptedWorker)
