"""The alarm in a training: its numbers follow the history, and an alert is sent once, whatever the trackers do."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from support import wandb_offline
from support.made_trainings import evaluated
from support.trainings import add_alignment, held_out, make

from opd_align.core.alarm import Reading, alarms
from opd_align.training.alarm_log import Alert, alarm_after

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = "opd_align/teacher/reverse_kl"
GOOD, BAD = (0.4, 0.3), (-0.6, 0.3)


def numbers(mean: float | None, half_width: float | None, variant: str = "teacher/reverse_kl") -> dict[str, Any]:
    return {
        f"opd_align/{variant}/alignment/weighted": mean,
        f"opd_align/{variant}/alignment/weighted_half_width": half_width,
    }


def write(folder: Path, *lines: tuple[int, tuple[float | None, float | None]]) -> None:
    text = [json.dumps({"step": step, "metrics": numbers(*values)}) + "\n" for step, values in lines]
    (folder / "history.jsonl").write_text("".join(text), encoding="utf-8")


def expected(*readings: tuple[int, tuple[float, float]]) -> list[float]:
    latest = alarms([Reading(step, mean, half_width / 1.959963984540054) for step, (mean, half_width) in readings])[-1]
    level = {"helps": 1, "unsure": 0, "fades": -1, "harms": -2}[latest.level]
    return [latest.p_helps, level, latest.mean, latest.low, latest.high]


def test_the_numbers_are_the_alarm_of_the_history_and_this_evaluation(tmp_path):
    write(tmp_path, (0, GOOD), (100, (0.1, 0.4)))
    found, alerts = alarm_after(tmp_path, 150, numbers(0.2, 0.5))
    assert list(found) == [f"{ROOT}/alarm/{stem}" for stem in ("p_helps", "level", "alignment", "low", "high")]
    assert list(found.values()) == pytest.approx(expected((0, GOOD), (100, (0.1, 0.4)), (150, (0.2, 0.5))))
    assert alerts == []


def test_a_resumed_training_replaces_the_steps_that_it_repeats(tmp_path):
    write(tmp_path, (0, GOOD), (100, GOOD), (200, BAD), (300, BAD))
    found, alerts = alarm_after(tmp_path, 200, numbers(*GOOD))
    assert list(found.values()) == pytest.approx(expected((0, GOOD), (100, GOOD), (200, GOOD)))
    assert alerts == []
    # And so it stays in what is read later.
    write(tmp_path, (0, GOOD), (100, GOOD), (200, BAD), (300, BAD), (200, GOOD))
    found, _ = alarm_after(tmp_path, 300, numbers(*GOOD))
    assert list(found.values()) == pytest.approx(expected(*((step, GOOD) for step in (0, 100, 200, 300))))


def test_evaluations_that_failed_or_are_damaged_change_nothing(tmp_path):
    write(tmp_path, (0, GOOD))
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 50, "metrics": {}, "error": "the verifier failed"}\n{"step": 60, "metr\n')
        file.write('{"step": 70, "metrics": {"opd_align/teacher/reverse_kl/alignment/weighted": "high"}}\n')
    found, _ = alarm_after(tmp_path, 100, numbers(0.1, 0.2))
    assert list(found.values()) == pytest.approx(expected((0, GOOD), (70, (nan, nan)), (100, (0.1, 0.2))))
    assert alarm_after(tmp_path, 100, {}) == ({}, [])
    (tmp_path / "history.jsonl").unlink()
    (tmp_path / "history.jsonl").mkdir()  # cannot be read
    found, _ = alarm_after(tmp_path, 100, numbers(0.1, 0.2))
    assert list(found.values()) == pytest.approx(expected((100, (0.1, 0.2))))


def test_an_alert_is_raised_when_the_level_gets_worse_and_only_then(tmp_path):
    history = [(0, GOOD), (100, GOOD), (200, (-0.3, 0.3)), (300, BAD), (400, BAD), (500, GOOD), (600, GOOD)]
    told = []
    for at, (step, values) in enumerate(history):
        write(tmp_path, *history[:at])
        told += [(step, alert) for alert in alarm_after(tmp_path, step, numbers(*values))[1]]
    assert [(step, alert.level) for step, alert in told] == [(200, "fades"), (300, "harms")]
    (_, fades), (_, harms) = told
    assert fades.title == "teacher/reverse_kl no longer helps"
    assert fades.text.startswith("At step 200 its update helps with probability 0.")
    assert "with that at step 100, then stop" in fades.text
    assert "Go back to a checkpoint of about step 100" in harms.text


def test_only_teachers_that_are_distilled_cause_alerts_and_rewards_have_no_alarm(tmp_path):
    both = numbers(*BAD) | numbers(*BAD, variant="Self-1C/reverse_kl") | numbers(*BAD, variant="reward/grpo")
    found, alerts = alarm_after(tmp_path, 0, both, distilled=["teacher"])
    assert {key.split("/")[1] for key in found} == {"teacher", "Self-1C"}
    assert [alert.variant for alert in alerts] == ["teacher/reverse_kl"]
    assert "Do not distill from this teacher" in alerts[0].text
    assert len(alarm_after(tmp_path, 0, both)[1]) == 2
    assert alarm_after(tmp_path, 0, both, distilled=[])[1] == []


# -- in a callback ----------------------------------------------------------------------------------------------------

STRENGTHS = (1.0, 1.0, -3.0, -3.0)
"""Tilt of the teacher toward success in exact worlds, by evaluation."""


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("analyses")
    return [evaluated(folder, step, {"teacher": strength})[0] for step, strength in enumerate(STRENGTHS)]


def evaluate_at(callback: Any, steps: range, analyses: list[Any]) -> None:
    """Evaluations of a callback whose analyses are made; everything else is real."""
    trainer = callback.adapter.trainer
    for step in steps:
        callback.evaluate = lambda *args, step=step, **kwargs: (analyses[step], f"step-{step:06d}")
        trainer.state.global_step = step
        callback.on_step_end(trainer.args, trainer.state, trainer.control)


def made_callback(folder: Path, **options: Any) -> Any:
    torch.set_num_threads(1)
    tracking = {name: options.pop(name) for name in ("report_to", "project", "run_name") if name in options}
    trainer = make("distillation", folder, **tracking)
    return add_alignment(trainer, questions=held_out(1), on_error="raise", **options)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "opd_align" / "history.jsonl").read_text().splitlines()]


def test_a_resumed_callback_continues_the_alarm_and_warns_once(tmp_path, analyses, caplog):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    with caplog.at_level(logging.WARNING, "opd_align"):
        evaluate_at(made_callback(whole), range(4), analyses)
    levels = [line["metrics"][f"{ROOT}/alarm/level"] for line in lines(whole)]
    assert levels[:2] == [1, 1]
    assert levels[-1] == -2
    told = [alert for line in lines(whole) for alert in line["alerts"]]
    assert len(told) == sum(after < min(before, 0) for before, after in pairwise(levels))
    assert caplog.text.count("teacher/reverse_kl harms. At step") == 1
    # A new process, with the history of the first three evaluations, the last of which it repeats.
    evaluate_at(made_callback(resumed), range(3), analyses)
    evaluate_at(made_callback(resumed), range(2, 4), analyses)
    assert [line["step"] for line in lines(resumed)] == [0, 1, 2, 2, 3]
    for key in ("p_helps", "alignment", "low", "high", "level"):
        of = [[line["metrics"][f"{ROOT}/alarm/{key}"] for line in lines(folder)] for folder in (whole, resumed)]
        assert of[1][-2:] == of[0][-2:], key


def test_alerts_can_be_switched_off(tmp_path, analyses, caplog):
    with caplog.at_level(logging.WARNING, "opd_align"):
        evaluate_at(made_callback(tmp_path, alerts=False), range(4), analyses)
    assert "harms" not in caplog.text
    assert [line["alerts"] for line in lines(tmp_path)] == [[]] * 4
    assert lines(tmp_path)[-1]["metrics"][f"{ROOT}/alarm/level"] == -2


def test_wandb_gets_one_alert_per_change(tmp_path, analyses, monkeypatch):
    import wandb

    wandb_offline.use(tmp_path, monkeypatch)
    wandb.init(project="p")
    try:
        evaluate_at(made_callback(tmp_path / "run", report_to=["wandb"]), range(4), analyses)
    finally:
        wandb.finish()
    (file,) = tmp_path.rglob("run-*.wandb")
    sent = [record.alert for record in wandb_offline.records(file) if record.WhichOneof("record_type") == "alert"]
    told = [Alert(**alert) for line in lines(tmp_path / "run") for alert in line["alerts"]]
    assert [(each.title, each.text) for each in sent] == [(each.title, each.text) for each in told]
    assert told[-1].level == "harms"
    assert sent[-1].level == "ERROR"
    rows = wandb_offline.history(tmp_path)
    logged = [row[f"train/{ROOT}/alarm/level"] for row in rows if f"train/{ROOT}/alarm/level" in row]
    assert logged == [line["metrics"][f"{ROOT}/alarm/level"] for line in lines(tmp_path / "run")]


def test_a_tracker_that_fails_does_not_reach_the_training(tmp_path, analyses, monkeypatch, caplog):
    import wandb

    def fails(**kwargs: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(wandb, "run", object())
    monkeypatch.setattr(wandb, "log", lambda row, **_: None)
    monkeypatch.setattr(wandb, "alert", fails)
    callback = made_callback(tmp_path)
    callback.adapter.trainer.args.report_to = ["wandb"]
    with caplog.at_level(logging.WARNING, "opd_align"):
        evaluate_at(callback, range(4), analyses)
    assert callback.failures == 0
    assert "Could not send an alert to wandb: ConnectionError('no route')" in caplog.text
    assert asdict(Alert("a/b", "harms", "t", "x")) == {"variant": "a/b", "level": "harms", "title": "t", "text": "x"}


@pytest.fixture
def trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """trackio with its files in `tmp_path`: TRL may have imported it, and it reads TRACKIO_DIR when it is imported."""
    module = pytest.importorskip("trackio")
    used = [loaded for name, loaded in list(sys.modules.items()) if name.partition(".")[0] == "trackio"]
    for loaded in used:
        for name, folder in {"TRACKIO_DIR": "", "MEDIA_DIR": "media", "ARTIFACTS_DIR": "artifacts"}.items():
            if hasattr(loaded, name):
                monkeypatch.setattr(loaded, name, tmp_path / "trackio" / folder)
    return module


def test_trackio_gets_rows_media_and_alerts(tmp_path, analyses, trackio):
    callback = made_callback(tmp_path / "run", report_to=["trackio"], project="distillation", run_name="first")
    evaluate_at(callback, range(4), analyses)
    trackio.finish()
    rows = trackio.sqlite_storage.SQLiteStorage.get_logs("distillation", "first")
    key = f"train/{ROOT}/alarm/level"
    assert [(row["train/global_step"], row[key]) for row in rows if key in row] == [
        (line["step"], line["metrics"][f"{ROOT}/alarm/level"]) for line in lines(tmp_path / "run")
    ]
    media = [row for row in rows if "train/opd_align/student/top_nodes" in row]
    assert [row["train/global_step"] for row in media] == [0, 1, 2, 3]
    assert media[0]["train/opd_align/student/top_nodes"]["_type"] == "trackio.table"
    assert media[0][f"train/{ROOT}/alignment/histogram"]["_type"] == "trackio.histogram"
    told = [alert["title"] for line in lines(tmp_path / "run") for alert in line["alerts"]]
    assert sorted(alert["title"] for alert in trackio.Api().alerts("distillation")) == sorted(told)
    assert told
    assert list((tmp_path / "trackio").glob("*.db"))
