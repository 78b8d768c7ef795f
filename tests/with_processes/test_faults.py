"""Evaluations that fail at every stage and on every rank: the training is that without the callback, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.faults import FAULTS, ON_ANY_RANK
from support.processes import EXPECTED, LAUNCH, run_script

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "faulty.py"
TIMES = ("runtime", "per_second", "step_time", "total_flos")


def run(folder: Path, launcher: str, *more: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    run_script(SCRIPT, launcher, str(folder), *more)
    return dict(json.loads((folder / "seen.json").read_text()))


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(part in key for part in TIMES)}


@pytest.mark.parametrize("launcher", LAUNCH)
def test_failed_evaluations_do_not_change_the_training_and_are_logged_once(launcher, tmp_path):
    if launcher != "ddp":
        pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")
    assert {rank for _, rank in FAULTS} == {0, 1}
    assert len(FAULTS) > 2 * len(ON_ANY_RANK)
    watched = run(tmp_path / "watched", launcher)
    unwatched = run(tmp_path / "unwatched", launcher, "--unwatched")
    for seen in (watched, unwatched):
        assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)

    own = [numbers(row) for row in watched["log"] if not any(key.startswith("opd_align/") for key in row)]
    assert own == [numbers(row) for row in unwatched["log"]]
    assert sum("loss" in row for row in own) == len(FAULTS)
    weights = list((tmp_path / "watched" / "model").glob("*.safetensors"))
    assert weights
    for file in weights:
        assert file.read_bytes() == (tmp_path / "unwatched" / "model" / file.name).read_bytes()

    first, second = (json.loads((tmp_path / "watched" / f"messages-{rank}.json").read_text()) for rank in (0, 1))
    assert "injected" not in str(second), "rank 0 logs for all"
    logged = [re.search(r"step (\d+)\D.*injected: ([a-z ]+)", message) for message in first if "injected" in message]
    assert [match and (int(match[1]), match[2].strip()) for match in logged] == [
        (step, stage) for step, (stage, _) in enumerate(FAULTS)
    ]
    history = [
        json.loads(line) for line in (tmp_path / "watched" / "opd_align" / "history.jsonl").read_text().splitlines()
    ]
    last = history[-1]
    assert (last["step"], last["error"], last["run"]) == (len(FAULTS), None, f"step-{len(FAULTS):06d}"), (
        "the evaluation after all failures succeeds"
    )
    assert last["metrics"]["opd_align/evaluation/failures"] == len(FAULTS)
