"""FSDP2 in two processes: evaluations give the numbers of one process, and training is as without them.

Accelerate falls back to DDP on a CPU, so `with_fsdp.py` applies accelerate's `fully_shard` itself. The gates are in
`test_gated.py`, mixes of teachers and schedules in `test_acting.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.distributed

TIMES = ("runtime", "per_second", "step_time", "total_flos", "seconds", "overhead")


def own_rows(folder: Path) -> list[dict[str, Any]]:
    log = json.loads((folder / "seen.json").read_text())["log"]
    rows = [row for row in log if not any(key.startswith("opd_align/") for key in row)]
    return [{key: value for key, value in row.items() if not any(part in key for part in TIMES)} for row in rows]


@pytest.mark.parametrize("kind", ["distillation", "gkd"])
def test_two_processes_find_what_one_finds(kind, watched, evaluated_again):
    two = evaluated_again("fsdp2")
    assert json.loads((two / kind / "seen.json").read_text())["world"] == 2
    # One process computes the same at step 0, and at step 2 from the saved model.
    for step, one, names in (
        (0, watched(None) / kind, ("nodes.parquet", "children.parquet")),
        (2, two / f"{kind}-again", ("nodes.parquet", "questions.parquet")),
    ):
        assert json.loads((one / "seen.json").read_text())["world"] == 1
        for name in names:
            ours = two / kind / "opd_align" / f"step-{step:06d}" / name
            assert ours.read_bytes() == (one / "opd_align" / "step-000000" / name).read_bytes()


@pytest.mark.parametrize("kind", ["distillation", "gkd"])
def test_two_processes_train_as_without_the_callback(kind, watched):
    two = watched("fsdp2")
    rows, alone = own_rows(two / kind), own_rows(two / f"{kind}-unwatched")
    assert rows == alone
    assert any("loss" in row for row in alone)
    weights = [(two / name / "model" / "model.safetensors").read_bytes() for name in (kind, f"{kind}-unwatched")]
    assert weights[0] == weights[1]
