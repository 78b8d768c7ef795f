"""What a watcher does on a machine that fails, and with a training that overwrites, removes and starts again."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opd_align.backends.http_pool import ServerUnavailable
from opd_align.backends.loading import HubUnreachable, load_model
from opd_align.backends.server_api import SGLANG
from opd_align.core.objectives import DrGRPO
from opd_align.runs import rollout_store
from opd_align.settings import Budget, Sampling, Settings
from opd_align.study import watch as watching
from opd_align.study import watch_config, watched_models
from opd_align.study.checkpoints import find_checkpoints
from opd_align.study.config import read_config
from opd_align.study.teacher_specs import teacher_spec
from opd_align.study.watch import TrainingRestarted, Until, Watcher
from opd_align.study.watch_failures import CannotWatch, is_of_this_machine
from opd_align.study.watched_models import WatchedModels, on_device
from opd_align.tasks.arithmetic import ARITHMETIC, questions
from opd_align.training.snapshots import list_snapshots, write_snapshot
from opd_align.training.watch_spec import WatchSpec, spec_digest, write_spec
from opd_align.types import OpdAlignError

FULL = OSError(28, "No space left on device")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("saved") / "step_10"
    loaded = load_model("embedded:student")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run" / "step_10")
    return tmp_path / "run"


@pytest.fixture
def said() -> list[str]:
    return []


def spec() -> WatchSpec:
    settings = Settings([DrGRPO()], Budget(initial=6, targeted=0, correct_paths=1, incorrect_paths=1))
    return WatchSpec(tuple(questions(0, 1)), ARITHMETIC, Sampling(max_tokens=24), settings, ())


def watcher(run: Path, said: list[str], **options: Any) -> Watcher:
    return Watcher(run, spec(), **{"poll_s": 0.0, "settle_s": 0.0, "say": said.append, **options})


def history(run: Path) -> list[dict[str, Any]]:
    file = run / "opd_align" / "history.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, True),
        (caused(OpdAlignError("could not write"), FULL), True),
        (PermissionError(13, "Permission denied"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (MemoryError(), True),
        (ServerUnavailable("no answer"), True),
        (HubUnreachable("no connection"), True),
        (OSError("no file named model.safetensors"), False),
        (FileNotFoundError(2, "No such file"), False),
        (ValueError("unknown model type"), False),
        (OpdAlignError("the probabilities are NaN"), False),
    ],
)
def test_failures_of_the_machine_are_told_from_those_of_a_checkpoint(error, expected):
    assert is_of_this_machine(error) is expected


def test_an_evaluation_on_a_full_disk_is_made_when_there_is_room(run, said, monkeypatch):
    monkeypatch.setattr(watching, "RETRY_AFTER_S", (0.0, 0.0))
    write, calls = rollout_store.write_atomic, []

    def full(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) <= 2:
            raise OSError(28, "No space left on device")
        return write(*args, **options)

    monkeypatch.setattr(rollout_store, "write_atomic", full)
    assert watcher(run, said).run(Until(once=True)) == 1
    assert [(line["step"], line["run"], line["error"]) for line in history(run)] == [(10, "step-000010", None)]
    assert sum("cannot be evaluated now, trying again" in line for line in said) == 2


def test_a_disk_that_stays_full_ends_the_watcher_and_loses_nothing(run, said, monkeypatch):
    monkeypatch.setattr(watching, "RETRY_AFTER_S", (0.0,))

    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(watching, "append_line", full)
        with pytest.raises(OpdAlignError, match=r"No space left on device. It is not lost: start the watcher again"):
            watcher(run, said).run(Until(once=True))
    assert history(run) == []
    assert watcher(run, said).run(Until(once=True)) == 1
    assert history(run)[0]["run"] == "step-000010"


def test_a_loaded_checkpoint_does_not_change_with_its_file(run):
    [checkpoint] = find_checkpoints(run)
    with WatchedModels(spec()).student(checkpoint) as loaded:
        before = [weight.clone() for weight in loaded.model.parameters()]
        file = checkpoint.folder / "model.safetensors"
        with file.open("r+b") as opened:  # as a training does that saves to the same folder
            opened.seek(file.stat().st_size // 2)
            opened.write(bytes(file.stat().st_size // 2))
        assert all(map(torch.equal, before, loaded.model.parameters()))


def test_a_checkpoint_that_changes_while_it_is_read_is_read_again(run, said, monkeypatch):
    load, file, calls = watched_models.load_model, run / "step_10" / "model.safetensors", []

    def overwritten(*args: Any, **options: Any) -> Any:
        loaded = load(*args, **options)
        calls.append(args)
        if len(calls) == 1:
            os.utime(file, ns=(1, 1))
        return loaded

    monkeypatch.setattr(watched_models, "load_model", overwritten)
    assert watcher(run, said).run(Until(once=True)) == 1
    assert said[0] == "skipping step_10: it was removed or overwritten while it was read"
    [line] = history(run)
    assert line["checkpoint"] == find_checkpoints(run)[0].id
    assert line["error"] is None


def test_a_checkpoint_that_is_being_removed_is_skipped_and_not_a_failure(run, said, monkeypatch):
    load = watched_models.load_model

    def half_removed(*args: Any, **options: Any) -> Any:
        (run / "step_10" / "model.safetensors").unlink(missing_ok=True)
        return load(*args, **options)

    monkeypatch.setattr(watched_models, "load_model", half_removed)
    assert watcher(run, said).run(Until(once=True)) == 0
    assert said[0] == "skipping step_10: it was removed or overwritten before it was read"
    assert history(run) == []


def test_a_step_that_is_written_again_has_to_settle_though_later_ones_are_there(run, said):
    shutil.copytree(run / "step_10", run / "step_20")
    for step, at in ((10, 100), (20, 200)):
        for file in (run / f"step_{step}").iterdir():
            os.utime(file, (at, at))
    watched = watcher(run, said, settle_s=1e6)
    assert [each.step for each in watched.pending()[0]] == [10]
    os.utime(run / "step_10" / "model.safetensors", (300, 300))  # a training that went back to step 0
    ready, waiting = watched.pending()
    assert ready == []
    assert [each.step for each in waiting] == [10, 20]


def test_two_trainings_in_one_directory_are_named(run, said):
    shutil.copytree(run / "step_10", run / "other" / "checkpoint-10")
    watcher(run, said).pending()
    assert said == [
        "there are checkpoints of 2 kinds, of each step only the first is evaluated; to select some: --checkpoints "
        "'other/checkpoint-*' (or: step_*)"
    ]
    watcher(run, said, pattern="step_*").pending()
    assert len(said) == 1


def test_a_history_that_somebody_edited_is_read_as_far_as_it_can_be(run, said):
    (run / "opd_align").mkdir()
    strange = ['{"step": 99, "written": "yesterday", "checkpoint": 3}', "[]", "null", '{"step": 5']
    (run / "opd_align" / "history.jsonl").write_text("\n".join(strange))
    assert [each.step for each in watcher(run, said).pending()[0]] == [10]


def test_a_pattern_without_a_checkpoint_is_named(run, said):
    watched = watcher(run, said, pattern="step_*/model.safetensors")
    assert watched.run(Until(once=True)) == 0
    assert said == ["there is no checkpoint that matches 'step_*/model.safetensors' yet"]


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_does_not_exist_ends_the_watcher_at_once(run, said, device):
    with pytest.raises(OpdAlignError, match=device):
        Watcher(run, on_device(spec(), device), say=said.append).run(Until(once=True))
    assert history(run) == []


def test_an_adapter_without_a_model_ends_the_watcher_at_once(run, said):
    for name in ("config.json", "model.safetensors"):
        (run / "step_10" / name).unlink()
    config = {"peft_type": "LORA", "base_model_name_or_path": None}
    (run / "step_10" / "adapter_config.json").write_text(json.dumps(config))
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, run / "step_10" / "adapter_model.safetensors")
    with pytest.raises(CannotWatch, match=r"does not name the model of its adapter; .*: --student"):
        watcher(run, said).run(Until(once=True))
    gone = {**config, "base_model_name_or_path": str(run / "gone")}
    (run / "step_10" / "adapter_config.json").write_text(json.dumps(gone))
    with pytest.raises(CannotWatch, match=r"the model of its adapter: the folder .* does not exist"):
        watcher(run, said).run(Until(once=True))
    assert history(run) == []


def test_a_teacher_behind_a_server_is_asked_as_its_configuration_says():
    served = (
        "{model: org/T, backend: sglang, url: ['http://one:1', 'http://two:2'], http: {api_key: k, timeout_s: 5.0}}"
    )
    config = read_config("demo", [f"teachers=[{{name: T, model: {served}}}]"])
    study: Any = SimpleNamespace(teacher_specs=[teacher_spec(teacher) for teacher in config.teachers])
    [ref] = watch_config._teachers(study)
    evaluation: Any = SimpleNamespace(prompting=lambda context: None)
    teacher = WatchedModels(spec())._teacher(ref, evaluation, None)
    assert (teacher.name, teacher.model, tuple(teacher.url)) == ("T", "org/T", ("http://one:1", "http://two:2"))
    assert (teacher.api, teacher.http.api_key, teacher.http.timeout_s) == (SGLANG, "k", 5.0)


def test_until_step_means_the_training_that_is_here_now(run, said):
    (run / "opd_align").mkdir()
    lines = [{"step": 400, "checkpoint": "old"}, {"step": 5, "checkpoint": "new"}]
    (run / "opd_align" / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    watched = watcher(run, said)
    assert not watched._has_evaluated(400)
    assert watched._has_evaluated(5)


# -- snapshots ----------------------------------------------------------------------------------------------------


@pytest.fixture
def training(saved: Path, tmp_path: Path) -> Path:
    """The output directory of a training that describes itself and has left a snapshot."""
    folder = tmp_path / "training" / "opd_align"
    write_spec(folder, spec())
    write_snapshot(folder, 10, lambda to: shutil.copytree(saved, to, dirs_exist_ok=True), {}, size=1, keep=2)
    return tmp_path / "training"


def test_a_snapshot_that_cannot_be_loaded_here_is_kept(training, said, monkeypatch):
    def missing(*args: Any, **options: Any) -> None:
        raise OpdAlignError("this version of transformers does not know the model")

    monkeypatch.setattr(watched_models, "load_model", missing)
    with pytest.raises(CannotWatch, match="cannot load the snapshot of step 10: this version of transformers"):
        watcher(training, said, snapshots=True).run(Until(once=True))
    assert history(training) == []
    assert [each.step for each in list_snapshots(training / "opd_align")] == [10]


def test_a_training_that_starts_again_with_other_settings_is_read_again(training, said):
    watched, folder = watcher(training, said, snapshots=True), training / "opd_align"
    before = spec_digest(folder)
    write_spec(folder, replace(spec(), wandb={"id": "another"}))
    assert spec_digest(folder) == before
    write_spec(folder, replace(spec(), sampling=Sampling(max_tokens=32)))
    with pytest.raises(TrainingRestarted):
        watched.run(Until(once=True))
    assert history(training) == []


def test_a_snapshot_that_may_not_be_removed_is_evaluated_once(training, said, monkeypatch):
    def forbidden(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", forbidden)
    assert watcher(training, said, snapshots=True).run(Until(once=True)) == 1
    assert watcher(training, said, snapshots=True).run(Until(once=True)) == 0
    assert len(history(training)) == 1
    assert "cannot remove the snapshot of step 10: Permission denied" in said
