"""Where a watcher logs on W&B, and that a tracker that fails does no harm; the rows are tested in `test_watch`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import wandb_offline
from support.made_trainings import made_training

from opd_align.cli import watching
from opd_align.cli.main import _parser
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
    wandb_offline.use(tmp_path, monkeypatch)
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


def test_the_alerts_of_a_line_are_sent_once(folder, tmp_path):
    history = folder / "history.jsonl"
    first, *others = [json.loads(line) for line in history.read_text().splitlines()]
    first["alerts"] = [{"variant": "tilted/reverse_kl", "level": "fades", "title": "no longer helps", "text": "At 0"}]
    history.write_text("".join(json.dumps(line) + "\n" for line in (first, *others)))
    rows = WandbRows(folder, None)
    rows()
    rows()
    rows.finish()
    (file,) = tmp_path.rglob("run-*.wandb")
    sent = [record.alert for record in wandb_offline.records(file) if record.WhichOneof("record_type") == "alert"]
    assert [(each.title, each.text, each.level) for each in sent] == [("no longer helps", "At 0", "WARN")]


def test_a_watcher_can_be_told_not_to_send_alerts(training):
    study = ["--task", "arithmetic", "--limit", "1", "--teachers", "Self-1C"]
    for flags, expected in (([], None), (["--no-alerts"], ())):
        args = _parser().parse_args(["watch", str(training.parent), *study, *flags])
        assert watching._spec(args)[0].alerts_on == expected
