"""Where a watcher logs on W&B, and that a tracker that fails does no harm; the rows are tested in `test_watch`."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.made_trainings import made_training

from opd_align.study.watch_tracking import WandbRows, wandb_rows
from opd_align.training.outside import _wandb_run
from opd_align.types import OpdAlignError

RUN = {"id": "training1", "project": "distillation", "entity": None}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training with two evaluations."""
    return made_training(tmp_path_factory.mktemp("run"), {"tilted": [0.5, 1.0]})


@pytest.fixture
def folder(training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    copy = tmp_path / "run" / "opd_align"
    shutil.copytree(training, copy)
    (copy / "watch").mkdir()
    return copy


def test_a_tracker_that_fails_is_mentioned_once_and_its_rows_wait(folder, monkeypatch, caplog):
    rows = WandbRows(folder, None)
    monkeypatch.setattr(WandbRows, "_started", lambda self: (_ for _ in ()).throw(ConnectionError("no route")))
    rows()
    rows()
    assert caplog.text.count("Cannot log to W&B") == 1
    assert not (folder / "watch" / "tracked").exists()


def test_which_run_is_logged_to(folder):
    assert wandb_rows(folder, "auto", None) is None
    assert wandb_rows(folder, "off", RUN) is None
    joined: Any = wandb_rows(folder, "training", RUN)
    assert joined.run == RUN
    for which in ("auto", "own"):
        own: Any = wandb_rows(folder, which, RUN)
        assert own.run is None
    with pytest.raises(OpdAlignError, match="--wandb own"):
        wandb_rows(folder, "training", None)


def test_the_run_of_a_training_is_known_while_it_reports(folder):
    import wandb

    adapter: Any = SimpleNamespace(trainer=SimpleNamespace(args=SimpleNamespace(report_to=["wandb"])))
    assert _wandb_run(adapter) is None
    wandb.init(id="abc", project="p")
    try:
        assert _wandb_run(adapter) == {"id": "abc", "project": "p", "entity": None}
        adapter.trainer.args.report_to = ["tensorboard"]
        assert _wandb_run(adapter) is None
    finally:
        wandb.finish()
