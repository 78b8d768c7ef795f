"""Two processes that agree or fail together; each writes what it saw as JSON. Arguments: folder, time-out in s."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ending import leave

from opd_align.training import distributed as agreement
from opd_align.training.distributed import (
    EvaluationFailed,
    RankNotResponding,
    max_wait,
    on_all_ranks,
    wait_for_all_ranks,
)
from opd_align.types import OpdAlignError

folder, timeout_s = Path(sys.argv[1]), float(sys.argv[2])
distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
rank = distributed.get_rank()
seen: dict[str, Any] = {}


def caught(work: Any, stage: str) -> list[str]:
    try:
        return [str(each) for each in on_all_ranks(work, stage)]
    except OpdAlignError as error:
        return [type(error).__name__, str(error), *getattr(error, "__notes__", [])]


def fail_on(failing: int) -> str:
    if rank == failing:
        raise MemoryError("no memory left")
    return f"rank {rank}"


def refuse(reason: str) -> None:
    raise OpdAlignError(reason)


seen["results"] = caught(lambda: f"rank {rank}", "names")
seen["failure"] = caught(lambda: fail_on(1), "loading")
seen["alike on all ranks"] = caught(lambda: refuse("no questions"), "questions")
seen["not picklable"] = caught(lambda: (lambda: None) if rank == 1 else None, "sending")

# Rank 1 fails between two stages, rank 0 is at a stage, and then waits at a higher level first.
try:
    if rank == 1:
        raise ValueError("a local failure")
    on_all_ranks(lambda: None, "sampling")
    seen["between stages"] = "no failure"
except EvaluationFailed as error:
    _, error = wait_for_all_ranks("inner", 1, None, error)
    results, error = wait_for_all_ranks("outer", 0, rank, error)
    seen["between stages"] = [results, str(error)]
except ValueError as error:
    results, agreed = wait_for_all_ranks("outer", 0, rank, error)
    seen["between stages"] = [results, str(agreed)]

# An evaluation that takes longer than the trainer's process group waits.
start = time.monotonic()
if rank == 1:
    time.sleep(timeout_s + 3)
seen["after the time-out"] = caught(lambda: f"rank {rank}", "sampling")
seen["waited"] = time.monotonic() - start > timeout_s
seen["at the end"] = wait_for_all_ranks("outer", 0, rank)[1]

# A rank that hangs: the other one ends after the limit, once, however often it still waits for all ranks.
agreement.WAIT_MARGIN_S = 1.0
if rank == 0:
    start, failures = time.monotonic(), list[RankNotResponding]()
    for _ in range(3):
        try:
            with max_wait(1.0, 2.0):
                on_all_ranks(lambda: None, "grading")
        except RankNotResponding as error:
            failures.append(error)
    seen["hangs"] = [str(failures[0]), len(failures), len({id(error) for error in failures})]
    seen["waited for the one that hangs"] = time.monotonic() - start >= 4
    (folder / "0.json").write_text(json.dumps(seen))
else:
    while not (folder / "0.json").is_file():
        time.sleep(0.1)
    (folder / "1.json").write_text(json.dumps(seen))
leave()
