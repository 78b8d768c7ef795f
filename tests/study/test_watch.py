"""`opd-align watch` on checkpoints of a plain loop: no TRL, only folders that appear, change and vanish."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import wandb_offline

import opd_align
from opd_align.backends.loading import load_model, load_tokenizer
from opd_align.cli.main import main
from opd_align.report.dashboard import dashboard_html
from opd_align.report.history import read_training, training_folder
from opd_align.training.snapshots import list_snapshots, write_snapshot
from opd_align.types import OpdAlignError

SMALL = [
    "--task", "arithmetic", "--limit", "1", "--initial", "12", "--targeted", "12",
    "--set", "sampling.max_tokens=48", "--set", "budget.correct_paths=1", "--set", "budget.incorrect_paths=1",
    "--poll", "0.02", "--settle", "0",
]  # fmt: skip
WITH_TEACHER = [*SMALL, "--teachers", "embedded:teacher"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Path:
    """Two checkpoints of a loop that knows nothing of us, and the marker of its end."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("loop")
    loaded = load_model("embedded:student")
    for step in (10, 20):
        with torch.no_grad():
            next(loaded.model.parameters()).mul_(1.001)
        loaded.model.save_pretrained(folder / f"step_{step}")
        loaded.tokenizer.save_pretrained(folder / f"step_{step}")
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "opd_align" / "history.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in lines(run)]


def test_a_plain_loop_is_watched_to_its_end(saved, tmp_path, capsys, monkeypatch):
    """Checkpoints appear while the watcher runs, one of them in two parts; the loop says when it is over."""
    wandb_offline.use(tmp_path, monkeypatch)
    run = tmp_path / "run"
    run.mkdir()

    def loop() -> None:
        shutil.copytree(saved / "step_10", run / "step_10")
        weights = (saved / "step_20" / "model.safetensors").read_bytes()
        shutil.copytree(saved / "step_20", run / "step_20", ignore=shutil.ignore_patterns("*.safetensors"))
        (run / "step_20" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        deadline = time.monotonic() + 120
        while not (run / "opd_align" / "history.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        (run / "step_20" / "model.safetensors").write_bytes(weights)
        (run / "opd_align" / "training_finished").touch()

    thread = threading.Thread(target=loop)
    thread.start()
    enough = ["--initial", "24", "--targeted", "64", "--n-sig", "8"]
    assert main(["watch", str(run), *WITH_TEACHER, *enough, "--wandb", "own"]) == 0
    thread.join()
    assert steps(run) == [10, 20]
    assert [line["run"] for line in lines(run)] == ["step-000010", "step-000020"]
    assert [line["error"] for line in lines(run)] == [None, None]
    alarm = {f"opd_align/teacher/reverse_kl/alarm/{name}" for name in ("p_helps", "level", "alignment", "low", "high")}
    assert all(alarm <= line["metrics"].keys() and line["alerts"] == [] for line in lines(run))
    said = capsys.readouterr().out
    assert "2 checkpoints evaluated" in said
    assert "skipping" not in said
    # The dashboard reads it like any other training.
    training = read_training(training_folder(run))
    assert [each.run for each in training.evaluations] == ["step-000010", "step-000020"]
    assert training.variants == ["teacher/reverse_kl"]
    assert "step-000020" in dashboard_html({"loop": training})
    # W&B has the rows at their steps, with the numbers of the history.
    rows = wandb_offline.history(tmp_path / "wandb")
    assert [row["train/global_step"] for row in rows] == [10, 20]
    for row, line in zip(rows, lines(run), strict=True):
        known = {f"train/{key}": value for key, value in line["metrics"].items() if value is not None}
        assert known.items() <= row.items()
    assert (run / "opd_align" / "watch" / "tracked").read_text() == "2\n"


def test_a_watcher_needs_nothing_of_trl(run):
    (run / "opd_align").mkdir()
    (run / "opd_align" / "training_finished").touch()
    shutil.rmtree(run / "step_20")
    script = (
        "import sys; sys.modules['trl'] = None\n"
        "from opd_align.cli.main import main\n"
        f"sys.exit(main({['watch', str(run), *SMALL, '--objectives', 'dr_grpo']!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(opd_align.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert steps(run) == [10]


def test_a_restarted_watcher_repeats_nothing_and_an_overwritten_checkpoint_is_new(run, capsys):
    assert main(["watch", str(run), *SMALL, "--objectives", "dr_grpo", "--until-step", "20"]) == 0
    first = lines(run)
    assert main(["watch", str(run), *SMALL, "--objectives", "dr_grpo", "--idle-timeout", "0.1"]) == 0
    assert lines(run) == first
    # A training that goes back to step 10 and continues with other weights.
    time.sleep(0.01)
    shutil.rmtree(run / "step_20")
    shutil.copytree(run / "step_10", run / "step_20", copy_function=shutil.copyfile)
    assert main(["watch", str(run), *SMALL, "--objectives", "dr_grpo", "--once"]) == 0
    assert steps(run) == [10, 20, 20]
    assert lines(run)[2]["run"] == "step-000020-2"
    assert [each.run for each in read_training(training_folder(run)).evaluations] == ["step-000010", "step-000020-2"]


def test_incomplete_and_vanished_checkpoints_are_skipped_with_a_word(run, capsys, monkeypatch):
    weights = (run / "step_10" / "model.safetensors").read_bytes()
    (run / "step_10" / "model.safetensors").write_bytes(weights[:-1])
    from opd_align.study import watched_models

    load = watched_models.load_model

    def load_too_late(reference: str, **options: Any) -> Any:
        shutil.rmtree(reference)
        return load(reference, **options)

    monkeypatch.setattr(watched_models, "load_model", load_too_late)
    assert main(["watch", str(run), *SMALL, "--objectives", "dr_grpo", "--once"]) == 0
    said = capsys.readouterr().out
    assert "skipping step_10: it is not complete: model.safetensors is not complete" in said
    assert "skipping step_20: it was removed before it was read" in said
    assert not (run / "opd_align" / "history.jsonl").exists()


def test_a_checkpoint_that_cannot_be_evaluated_is_a_line_with_the_reason(run, capsys):
    (run / "step_10" / "config.json").write_text('{"model_type": "unknown"}')
    assert main(["watch", str(run), *SMALL, "--objectives", "dr_grpo", "--once"]) == 0
    assert steps(run) == [10, 20]
    failed, fine = lines(run)
    assert "cannot load" in failed["error"]
    assert failed["run"] is None
    assert fine["error"] is None
    assert fine["metrics"]["opd_align/evaluation/failures"] == 1
    assert "step 10: the evaluation failed" in capsys.readouterr().out


def wrong_tokenizer(run: Path) -> None:
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.add_tokens([f"<extra{number}>" for number in range(10_000)])
    for step in (10, 20):
        tokenizer.save_pretrained(run / f"step_{step}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "does not say what to evaluate"),
        (["--teachers", "Self-1C"], "there are no held-out questions; name them with --task or --config"),
        (["--task", "arithmetics"], "arithmetic"),
        (["--task", "arithmetic", "--limit", "0"], "no questions are selected"),
        (["--task", "arithmetic"], "teacher"),
        (["--task", "arithmetic", "--teachers", "Ext-1C"], ""),
        (["--task", "arithmetic", "--backend", "vllm"], "watch samples with transformers"),
        ([*WITH_TEACHER, "--checkpoints", "/abs"], "pattern within OUTPUT_DIR"),
        ([*WITH_TEACHER, "--idle-timeout", "-1"], "--idle-timeout must be a number of seconds"),
        ([*WITH_TEACHER, "--until-step", "-1"], "--until-step must be 0 or more"),
        ([*WITH_TEACHER, "--verifier", "no_module"], "expected module:name"),
        ([*WITH_TEACHER, "--verifier", "no_module:f"], "cannot import 'no_module'"),
        ([*WITH_TEACHER, "--wandb", "training"], "the W&B run of the training is not known"),
    ],
)
def test_mistakes_are_one_line(run, flags, message, capsys):
    assert main(["watch", str(run), *flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in error if line.startswith("opd-align:")]) == 1
    assert message in error[-1]
    assert not (run / "opd_align" / "history.jsonl").exists()


def test_an_output_directory_must_exist(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "no"), *WITH_TEACHER]) == 2
    assert "does not exist; pass the directory that a training writes its checkpoints to" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_wrong_tokenizer_is_refused_before_sampling(run, capsys):
    wrong_tokenizer(run)
    assert main(["watch", str(run), *WITH_TEACHER, "--once"]) == 2
    assert "step_10 has a vocabulary of" in capsys.readouterr().err
    assert not (run / "opd_align" / "history.jsonl").exists()


def test_two_watchers_of_one_training_are_refused(run, capsys):
    import fcntl

    (run / "opd_align" / "watch").mkdir(parents=True)
    with (run / "opd_align" / "watch" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["watch", str(run), *WITH_TEACHER, "--once"]) == 2
    assert "is watched by another process" in capsys.readouterr().err


# -- snapshots ----------------------------------------------------------------------------------------------------


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def test_at_most_so_many_snapshots_wait_and_those_of_an_abandoned_branch_go(tmp_path, caplog):
    for step in (1, 2, 3, 4):
        write_snapshot(tmp_path, step, save, {"epoch": 0.5}, size=7, keep=3)
    assert [each.step for each in list_snapshots(tmp_path)] == [2, 3, 4]
    assert "No watcher has evaluated the snapshot of step 1" in caplog.text
    assert list_snapshots(tmp_path)[0].meta["epoch"] == 0.5
    write_snapshot(tmp_path, 3, save, {}, size=7, keep=3)
    assert [each.step for each in list_snapshots(tmp_path)] == [2, 3]
    assert "step 4" not in caplog.text.replace("that of step 4", "")


def test_a_snapshot_that_cannot_be_written_leaves_nothing(tmp_path):
    def fails(folder: Path) -> None:
        save(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_snapshot(tmp_path, 1, fails, {}, size=7, keep=2)
    with pytest.raises(OpdAlignError, match="GiB are free on the disk"):
        write_snapshot(tmp_path, 1, save, {}, size=2**60, keep=2)
    assert list((tmp_path / "snapshots").iterdir()) == []
