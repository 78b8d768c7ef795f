"""Evaluation outside the training: the same bytes as inside, and nothing that a watcher does reaches the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import add_alignment, make, same_weights, trainer_rows

from opd_align.runs.run_directory import CHILDREN, NODES, QUESTIONS, SUMMARY, TOKENS
from opd_align.study.watch import Until, Watcher
from opd_align.study.watch_config import spec_of_training
from opd_align.training.snapshots import list_snapshots

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

RESULT = (NODES, CHILDREN, QUESTIONS, TOKENS, SUMMARY)
ABOUT_THE_EVALUATION = "opd_align/evaluation/"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def results(line: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a line, without those about the evaluation itself, such as its duration."""
    return {key: value for key, value in line["metrics"].items() if not key.startswith(ABOUT_THE_EVALUATION)}


def trained(kind: str, folder: Path, where: str, **options: Any) -> tuple[Any, Any]:
    trainer = make(kind, folder, max_steps=2)
    callback = add_alignment(trainer, where=where, on_error="raise", **options) if where else None
    trainer.train()
    return trainer, callback


def assert_same_results(ours: Path, theirs: Path) -> None:
    """The history rows and the result tables of two trainings are equal, to the byte."""
    assert [line["step"] for line in lines(ours)] == [line["step"] for line in lines(theirs)]
    for one, other in zip(lines(ours), lines(theirs), strict=True):
        assert one["error"] is None
        assert results(one) == results(other)
        same = ("max_steps", "epoch", "trainer", "run", "waiting")
        assert [one[name] for name in same] == [other[name] for name in same]
        for name in RESULT:
            assert (ours / one["run"] / name).read_bytes() == (theirs / other["run"] / name).read_bytes(), name


def watch(folder: Path, **options: Any) -> list[str]:
    said: list[str] = []
    Watcher(folder, spec_of_training(folder), snapshots=True, poll_s=0.05, say=said.append, **options).run(Until())
    return said


@pytest.fixture(scope="module", params=["gkd", "grpo"])
def three(request: Any, tmp_path_factory: Any) -> Any:
    """The same training without a callback, evaluated inside, and evaluated outside."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    options: dict[str, Any] = {"teachers": ["Self-1C"]} if request.param == "grpo" else {}
    alone = trained(request.param, folder / "alone", "")[0]
    trained(request.param, folder / "inside", "inside", **options)
    outside, callback = trained(request.param, folder / "outside", "outside", **options)
    return folder, alone, outside, callback


@pytest.mark.training
def test_a_watcher_gives_the_bytes_of_the_blocking_callback(three):
    folder, _, _, callback = three
    assert [each.step for each in list_snapshots(callback.folder)] == [0, 1, 2]
    assert not (callback.folder / "history.jsonl").exists(), "the training evaluates nothing"
    said = watch(folder / "outside")
    assert len(said) == 3
    assert_same_results(folder / "outside" / "opd_align", folder / "inside" / "opd_align")
    assert list_snapshots(callback.folder) == [], "snapshots are removed after they were evaluated"
    about = lines(callback.folder)[0]["metrics"]
    assert about[f"{ABOUT_THE_EVALUATION}staleness"] == 2
    assert about[f"{ABOUT_THE_EVALUATION}delay"] > 0
    assert watch(folder / "outside") == [], "nothing is left to do"


@pytest.mark.training
def test_training_with_snapshots_is_bit_identical(three):
    _, alone, outside, callback = three
    assert same_weights(alone.model, outside.model)
    assert trainer_rows(alone) == trainer_rows(outside)
    assert callback.schedule.num_evaluations == 3
    assert callback.failures == 0
