"""Every key that is logged in a training is in the metric registry, and every registered metric is logged."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from support.gated_runs import QUIET, gkd, models, prompts, verifier
from support.trainings import ARITHMETIC, TINY, held_out, make
from transformers import TrainerCallback
from trl import DistillationConfig

from opd_align import AlignmentCallback, Budget, ExactFamily, ReverseKL, Settings, analyze
from opd_align.core.metric_registry import METRICS, parse_key
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.gates import IncorrectOnly
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]


WATCH_ONLY = {"opd_align/evaluation/delay", "opd_align/evaluation/staleness"}
"""Metrics of evaluations outside the training."""


def registered_keys(keys: Any) -> set[str]:
    """The keys with teacher and objective replaced by placeholders; fails on a key that is not registered."""
    unknown = [key for key in keys if parse_key(key) is None]
    assert not unknown, f"add these to core/metric_registry.py: {unknown}"
    return {parsed.metric.key() for key in keys if (parsed := parse_key(key)) is not None}


def expected_keys(*, gate: bool, place: str) -> set[str]:
    others = ("schedule", "mix")  # their keys are tested with them
    shown = [metric for metric in METRICS if place in metric.shown_in and not metric.needs_gate]
    shown = [metric for metric in shown if metric.level not in others]
    return {metric.key() for metric in shown if (metric.level == "gate") == gate}


def test_the_callback_logs_exactly_the_registered_metrics(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb_rows: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "run", object())
    monkeypatch.setattr(wandb, "log", lambda row, **_: wandb_rows.append(row))
    for name in ("Histogram", "Table", "Html"):
        monkeypatch.setattr(wandb, name, lambda *args, **kwargs: None)
    trainer = make("distillation", tmp_path, max_steps=1)
    trainer.args.report_to = ["wandb"]
    callback = AlignmentCallback(
        trainer, held_out(3), ARITHMETIC, every_n_steps=1, max_overhead=None, budget=TINY, on_error="raise"
    )
    trainer.add_callback(callback)
    trainer.train()
    assert not [key for row in trainer.state.log_history for key in row if key.startswith("opd_align/")]
    log = {key for row in callback.log_history for key in row if key.startswith("opd_align/")}
    lines = [json.loads(text) for text in (callback.folder / "history.jsonl").read_text().splitlines()]
    history = {key for line in lines for key in line["metrics"]}
    expected = expected_keys(gate=False, place="log") - WATCH_ONLY
    assert registered_keys(log) <= expected
    # The history also has the half-widths of what is logged, for the dashboard's intervals and the alarm.
    half_widths = {metric.half_width for metric in METRICS if metric.logged}
    recorded = {metric.key() for metric in METRICS if metric.stem in half_widths and not metric.needs_gate}
    assert registered_keys(history) == expected | recorded
    summary = json.loads((callback.folder / lines[0]["run"] / "summary.json").read_text())
    assert summary.pop("decision")["headline"] == "alignment/weighted"
    del summary["reliability"]  # of the estimates, not a metric
    assert registered_keys(summary) == expected_keys(gate=False, place="summary.json")
    media = {key.removeprefix("train/") for row in wandb_rows for key in row if key.startswith("train/opd_align/")}
    assert registered_keys(media) == expected_keys(gate=False, place="W&B")


def test_the_alignment_with_the_gate_is_logged_beside_that_without_it(tmp_path: Any) -> None:
    class Evaluate(TrainerCallback):
        """Adds the callback once there is a trainer."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            evaluated.on_train_begin(args, state, control)

    gate = IncorrectOnly(verifier, unknown="drop")
    args = DistillationConfig(str(tmp_path), **(QUIET | {"max_completion_length": 64, "max_steps": 1}))
    trainer = GatedDistillationTrainer(args=args, train_dataset=prompts(), gate=gate, denominator="keep", **models())
    evaluated = AlignmentCallback(trainer, held_out(4), ARITHMETIC, budget=TINY, max_overhead=None, on_error="raise")
    trainer.add_callback(Evaluate())
    trainer.train()
    assert evaluated.adapter.unevaluated == (), "the gate is not a loss of the user's own"
    (row,) = evaluated.log_history
    found = {parsed.metric.stem for key in row if (parsed := parse_key(key)) is not None and parsed.metric.needs_gate}
    expected = {metric.stem for metric in METRICS if metric.needs_gate and metric.logged}
    unknown = {"gated/alignment_half_width"}  # on few questions
    assert found | unknown == expected | unknown
    prefix = "opd_align/teacher/jsd_1/"
    assert row[f"{prefix}gated/alignment"] == pytest.approx(row[f"{prefix}alignment/incorrect"], abs=1e-6)


def test_a_gated_trainer_logs_exactly_the_registered_metrics(tmp_path: Any) -> None:
    worlds = ExactFamily.random(seed=0, n=10, length=40)
    teacher = worlds.teacher("teacher", lambda world: world.tilted_teacher())
    settings = Settings([ReverseKL()], Budget(initial=60, targeted=1500, allocation="adaptive"))
    latest = analyze(worlds, [teacher], worlds.questions, worlds, settings=settings)
    evaluated = SimpleNamespace(latest=latest, latest_step=0, teachers=("teacher",), settings=settings)
    calibrated = CalibratedDivergence(evaluated)
    gate = IncorrectOnly(verifier, unknown="drop") * calibrated
    run = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator="keep", options={"max_steps": 1})
    keys = {key for row in run.logs for key in row if key.startswith("gate/")}
    assert registered_keys(keys) == expected_keys(gate=True, place="log")
