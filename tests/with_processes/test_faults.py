"""Evaluations that fail at every stage and on every rank: the training is that without the callback, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.faults import FAULTS, ON_ANY_RANK, SYNC
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


def assert_same_training(folder: Path, launcher: str, steps: int, *options: str) -> None:
    watched = run(folder / "watched", launcher, *options)
    unwatched = run(folder / "unwatched", launcher, *options, "--unwatched")
    for seen in (watched, unwatched):
        assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    own = [numbers(row) for row in watched["log"] if not any(key.startswith("opd_align/") for key in row)]
    assert own == [numbers(row) for row in unwatched["log"]]
    assert sum("loss" in row for row in own) == steps
    weights = [*(folder / "watched" / "model").glob("*.safetensors"), *(folder / "watched").glob("weights-*.txt")]
    assert len(weights) >= 3
    for file in weights:
        other = folder / "unwatched" / file.relative_to(folder / "watched")
        assert file.read_bytes() == other.read_bytes()


def injected(folder: Path, rank: int) -> list[tuple[int, str]]:
    """Step and stage of the failures that a rank logged."""
    messages = json.loads((folder / "watched" / f"messages-{rank}.json").read_text())
    found = [re.search(r"step (\d+)\D.*injected: ([a-z ]+)", message) for message in messages if "injected" in message]
    return [(int(match[1]), match[2].strip()) if match else (-1, "") for match in found]


@pytest.mark.parametrize("launcher", LAUNCH)
def test_failed_evaluations_do_not_change_the_training_and_are_logged_once(launcher, tmp_path):
    if launcher != "ddp":
        pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")
    assert {rank for _, rank in FAULTS} == {0, 1}
    assert len(FAULTS) > 2 * len(ON_ANY_RANK)
    assert_same_training(tmp_path, launcher, len(FAULTS))
    assert injected(tmp_path, 0) == [(step, stage) for step, (stage, _) in enumerate(FAULTS)]
    assert injected(tmp_path, 1) == [], "rank 0 logs for all"
    history = [
        json.loads(line) for line in (tmp_path / "watched" / "opd_align" / "history.jsonl").read_text().splitlines()
    ]
    last = history[-1]
    assert (last["step"], last["error"], last["run"]) == (len(FAULTS), None, f"step-{len(FAULTS):06d}"), (
        "the evaluation after all failures succeeds"
    )
    assert last["metrics"]["opd_align/evaluation/failures"] == len(FAULTS)


def test_adapters_that_are_merged_when_a_sync_fails(tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is missing: pip install 'opd-align[deepspeed]'")
    pytest.importorskip("peft", reason="PEFT is missing: pip install 'opd-align[train]'")
    stages = [(stage, rank) for stage, rank in FAULTS if stage in SYNC]
    assert len(stages) == 6
    assert_same_training(tmp_path, "zero3", len(stages), "--lora", "--only", "sync")
    assert injected(tmp_path, 0) == [(step, stage) for step, (stage, _) in enumerate(stages)]
