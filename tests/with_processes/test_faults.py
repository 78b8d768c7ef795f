"""Evaluations that fail at every stage and on every rank: the training is that without the callback, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.faults import FAULTS, ON_ANY_RANK, SYNC
from support.processes import EXPECTED, LAUNCH, once, run_script

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "faulty.py"
TIMES = ("runtime", "per_second", "step_time", "total_flos")
RUNS = dict.fromkeys(LAUNCH, ("unwatched", "watched"))
RUNS["zero3"] += ("lora-unwatched", "lora-watched")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder with the runs of a launch, by name."""

    @once
    def folder_of(launcher: str) -> Path:
        if launcher == "zero3":
            pytest.importorskip("peft", reason="PEFT is missing: pip install 'opd-align[train]'")
        folder = tmp_path_factory.mktemp(launcher)
        run_script(SCRIPT, launcher, str(folder), *RUNS[launcher])
        return folder

    return folder_of


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(part in key for part in TIMES)}


def assert_same_training(one: Path, other: Path, launcher: str, steps: int) -> None:
    watched, unwatched = (json.loads((folder / "seen.json").read_text()) for folder in (one, other))
    for seen in (watched, unwatched):
        assert (seen["type"], seen["stage"], seen["world"]) == (*EXPECTED[launcher], 2)
    own = [numbers(row) for row in watched["log"] if not any(key.startswith("opd_align/") for key in row)]
    assert own == [numbers(row) for row in unwatched["log"]]
    assert sum("loss" in row for row in own) == steps
    weights = [*(one / "model").glob("*.safetensors"), *one.glob("weights-*.txt")]
    assert len(weights) >= 3
    for file in weights:
        assert file.read_bytes() == (other / file.relative_to(one)).read_bytes()


def injected(folder: Path, rank: int) -> list[tuple[int, str]]:
    """Step and stage of the failures that a rank logged."""
    messages = json.loads((folder / f"messages-{rank}.json").read_text())
    found = [re.search(r"step (\d+)\D.*injected: ([a-z ]+)", message) for message in messages if "injected" in message]
    return [(int(match[1]), match[2].strip()) if match else (-1, "") for match in found]


@pytest.mark.parametrize("launcher", LAUNCH)
def test_failed_evaluations_do_not_change_the_training(launcher, faulty):
    assert {rank for _, rank in FAULTS} == {0, 1}
    assert len(FAULTS) > 2 * len(ON_ANY_RANK)
    assert_same_training(faulty(launcher) / "watched", faulty(launcher) / "unwatched", launcher, len(FAULTS))


@pytest.mark.parametrize("launcher", LAUNCH)
def test_failed_evaluations_are_logged_once_and_the_next_one_succeeds(launcher, faulty):
    folder = faulty(launcher) / "watched"
    assert injected(folder, 0) == [(step, stage) for step, (stage, _) in enumerate(FAULTS)]
    assert injected(folder, 1) == [], "rank 0 logs for all"
    history = [json.loads(line) for line in (folder / "opd_align" / "history.jsonl").read_text().splitlines()]
    last = history[-1]
    assert (last["step"], last["error"], last["run"]) == (len(FAULTS), None, f"step-{len(FAULTS):06d}"), (
        "the evaluation after all failures succeeds"
    )
    assert last["metrics"]["opd_align/evaluation/failures"] == len(FAULTS)


def test_adapters_that_are_merged_when_a_sync_fails(faulty):
    stages = [(stage, rank) for stage, rank in FAULTS if stage in SYNC]
    assert len(stages) == 6
    folder = faulty("zero3")
    assert_same_training(folder / "lora-watched", folder / "lora-unwatched", "zero3", len(stages))
    assert injected(folder / "lora-watched", 0) == [(step, stage) for step, (stage, _) in enumerate(stages)]
