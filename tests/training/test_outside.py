"""Evaluation outside the training: the same bytes as inside, and nothing that a watcher does reaches the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.trainings import ARITHMETIC, add_alignment, fresh, held_out, make, same_weights, trainer_rows

import opd_align
from opd_align import OpdAlignError
from opd_align.runs.run_directory import CHILDREN, NODES, QUESTIONS, SUMMARY, TOKENS, RunDirectory
from opd_align.study.watch import Until, Watcher
from opd_align.study.watch_config import spec_of_training
from opd_align.training import snapshots as snapshots_module
from opd_align.training.gates import DivergenceAbove
from opd_align.training.snapshots import list_snapshots, write_snapshot

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


KILLED = """
import os, random, signal, sys, time

import opd_align.study.watch, opd_align.study.watch_tracking
from opd_align.cli.main import main

folder, kills, rng = sys.argv[1], int(sys.argv[2]), random.Random(3)
while not os.path.exists(f"{folder}/opd_align/watch/spec.json"):
    time.sleep(0.05)
for number in range(kills + 1):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(["watch", folder, "--poll", "0.05"]))
    if number < kills:
        time.sleep(rng.uniform(0.1, 3.0))
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # The last one ends with the training; an earlier one may have been done before it was killed.
    assert code == 0 or (number < kills and code == -signal.SIGKILL), code
"""


@pytest.mark.training
def test_killed_watchers_leave_the_training_alone_and_lose_no_evaluation(three, tmp_path):
    """Two processes at the same time: the training, and watchers that are killed at random and started again."""
    folder, alone, _, _ = three
    if type(alone).__name__ != "GKDTrainer":
        pytest.skip("once is enough")
    kills = "20" if os.environ.get("FUZZ") == "long" else "3"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    watchers = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), kills], env=environment)
    try:
        trainer, callback = trained("gkd", tmp_path, "outside")
        assert watchers.wait(timeout=1200) == 0
    finally:
        watchers.kill()
    assert same_weights(alone.model, trainer.model)
    assert trainer_rows(alone) == trainer_rows(trainer)
    assert callback.failures == 0
    assert [line["step"] for line in lines(callback.folder)] == [0, 1, 2]
    assert_same_results(callback.folder, folder / "inside" / "opd_align")


# -- failures and refusals -------------------------------------------------------------------------------------------


@pytest.mark.training
def test_snapshots_that_cannot_be_written_do_not_end_a_training(tmp_path, monkeypatch, caplog):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots_module.shutil, "disk_usage", full)
    trainer = make("distillation", tmp_path, max_steps=1)
    callback = add_alignment(trainer, where="outside")
    trainer.train()
    assert trainer.state.global_step == 1
    assert callback.failures == 2
    assert "No snapshot at step 0, training continues: " in caplog.text
    assert list_snapshots(callback.folder) == []


def test_nothing_that_is_found_in_the_directory_ends_a_training(tmp_path, monkeypatch, caplog):
    """Snapshots of an earlier training go, and what cannot be read or written is logged."""
    trainer = make("distillation", tmp_path)
    callback = add_alignment(trainer, where="outside", every_n_steps=100)
    (callback.folder / "snapshots").mkdir(parents=True)
    write_snapshot(callback.folder, 50, lambda folder: None, {}, size=1, keep=4)
    callback.outside.begin(0)
    assert list_snapshots(callback.folder) == []
    assert "Removing snapshots of an earlier training" in caplog.text
    assert "cannot be watched" not in caplog.text

    run = callback.folder / "step-000001"
    run.mkdir()
    for name in ("summary.json", *RESULT):
        (run / name).touch()
    (run / "manifest.json").write_text('{"kind": "analysis"}')
    (callback.folder / "history.jsonl").write_text('{"step": 1, "run": "step-000001"}\n')
    assert callback.outside.newest_result(1) is None
    assert "Cannot read a result of the watcher" in caplog.text

    def no_memory(*args: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("opd_align.training.outside.update_with_weights", no_memory)
    callback.outside.begin(0)
    assert "so this training cannot be watched: CUDA out of memory" in caplog.text


def test_what_a_watcher_could_not_load_is_refused_at_once(tmp_path):
    trainer = make("distillation", tmp_path)
    for options, message in (
        ({"where": "elsewhere"}, "where must be 'inside' or 'outside'"),
        ({"where": "outside", "max_snapshots": 0}, "max_snapshots must be at least 1"),
        ({"where": "outside", "verifier": lambda completions, **columns: []}, "verifier: .* another process cannot"),
        (
            {"where": "outside", "questions": [{"prompt": "?", "answer": "4", "image": object()}]},
            "questions: a object cannot be described",
        ),
    ):
        given = {"verifier": ARITHMETIC, "questions": held_out(1), **options}
        with pytest.raises(OpdAlignError, match=message):
            add_alignment(trainer, **given)
    trainer.teacher_model.name_or_path = trainer.teacher_model.config._name_or_path = ""
    with pytest.raises(OpdAlignError, match="teacher 'teacher' was not loaded from a folder or the Hub"):
        add_alignment(trainer, where="outside")


@pytest.mark.training
def test_results_of_a_watcher_reach_the_gate_when_they_arrive(tmp_path):
    """A gate reads `callback.latest`: it is the watcher's newest result, of a step that is past."""
    trainer = make("distillation", tmp_path, max_steps=1)
    callback = add_alignment(trainer, where="outside", questions=held_out(1), every_n_steps=5)
    trainer.train()
    assert callback.latest is None
    watch(tmp_path)
    trainer.state.global_step = 4
    callback.on_step_end(trainer.args, trainer.state, trainer.control)
    assert callback.latest_step == 0
    (line,) = lines(callback.folder)
    stored = RunDirectory.load(callback.folder / line["run"])
    assert callback.latest is not None
    # As pandas: for Arrow, tables with unknown values (NaN) differ from themselves.
    assert callback.latest.nodes.to_pandas().equals(stored.nodes.to_pandas())
    found = callback.latest
    callback.on_step_end(trainer.args, trainer.state, trainer.control)
    assert callback.latest is found, "read once"


@pytest.mark.training
def test_adapters_and_the_gate_are_those_of_the_training(tmp_path):
    """Only the adapters are saved, on a base that is loaded by name; the gate's weights are those at the snapshot."""
    from peft import LoraConfig, get_peft_model

    folders = []
    for where in ("inside", "outside"):
        torch.manual_seed(0)
        lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        trainer = make("distillation", tmp_path / where, student=get_peft_model(fresh("student"), lora))
        trainer._gate_runtime = SimpleNamespace(gate=DivergenceAbove(quantile=0.5), verifier=None, eps=1e-7)
        callback = add_alignment(trainer, where=where, on_error="raise", questions=held_out(2))
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        callback.on_train_end(trainer.args, trainer.state, trainer.control)
        folders.append(callback.folder)
    (snapshot,) = list_snapshots(folders[1])
    assert (snapshot.folder / "adapter_model.safetensors").is_file()
    assert not (snapshot.folder / "model.safetensors").exists()
    watch(tmp_path / "outside")
    assert_same_results(folders[1], folders[0])
    assert any("gated" in key or "gate" in key for key in lines(folders[0])[0]["metrics"])
