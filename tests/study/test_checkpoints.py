"""Which folders are checkpoints, of which step, and whether they are complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from opd_align.study.checkpoints import check_pattern, find_checkpoints, missing_part, name_patterns, step_of
from opd_align.types import OpdAlignError


def checkpoint(folder: Path, *, rows: int = 4) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(rows, 3)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-100", 100),
        ("global_step_20/actor/huggingface", 20),
        ("weights/step_0000300", 300),
        ("v2-qwen3/iter_40/hf", 40),
        ("qwen3-0.6b/checkpoint-8", 8),
        ("checkpoint-100/fp16", 100),
        ("run2/global_step_7/hf_v3", 7),
        ("run2/300/hf", 300),
        ("best", None),
    ],
)
def test_the_step_follows_its_word_or_is_the_last_number_of_the_deepest_folder_that_has_one(name, step):
    assert step_of(name) == step


def test_checkpoints_of_all_frameworks_are_found_in_the_order_of_their_steps(tmp_path):
    names = ["checkpoint-200", "global_step_30/actor/huggingface", "weights/step_4"]
    for name in [*names, "opd_align/watch/tokenizer-1", ".hidden-5", "final"]:
        checkpoint(tmp_path / name)
    assert [(each.name, each.step) for each in find_checkpoints(tmp_path)] == [
        ("weights/step_4", 4), ("global_step_30/actor/huggingface", 30), ("checkpoint-200", 200),
    ]  # fmt: skip
    assert [each.step for each in find_checkpoints(tmp_path, "checkpoint-*")] == [200]
    assert [each.step for each in find_checkpoints(tmp_path, "**/*")] == [4, 5, 30, 200]
    assert find_checkpoints(tmp_path, "*/model.safetensors") == []
    assert find_checkpoints(tmp_path / "nothing") == []


def test_checkpoints_of_two_trainings_have_two_patterns(tmp_path):
    for name in ("a/checkpoint-1", "a/checkpoint-20", "b2/checkpoint-20", "final"):
        checkpoint(tmp_path / name)
    assert name_patterns(tmp_path) == ["a/checkpoint-*", "b2/checkpoint-*"]
    assert name_patterns(tmp_path, "a/*") == ["a/checkpoint-*"]


def test_an_adapter_beside_the_config_of_its_model_is_an_adapter(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / "adapter_config.json").write_text("{}")
    assert not find_checkpoints(tmp_path)[0].is_adapter
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert find_checkpoints(tmp_path)[0].is_adapter
    assert missing_part(folder) is None


def test_a_checkpoint_that_is_overwritten_is_another_one(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    before = find_checkpoints(tmp_path)[0].id
    found = find_checkpoints(tmp_path)[0]
    assert found.id == before
    assert found.is_unchanged
    (folder / "optimizer.bin").write_bytes(b"state")
    assert found.is_unchanged
    save_file({"weight": torch.zeros(5, 3)}, folder / "model.safetensors")
    assert find_checkpoints(tmp_path)[0].id != before
    assert not found.is_unchanged


def test_the_trainers_state_says_how_long_the_training_is(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    (folder / "trainer_state.json").write_text(json.dumps({"max_steps": 40, "epoch": 0.5, "global_step": 1}))
    meta = find_checkpoints(tmp_path)[0].meta
    assert (meta["max_steps"], meta["epoch"]) == (40, 0.5)
    assert meta["at"] == (folder / "model.safetensors").stat().st_mtime_ns / 1e9


def test_every_cut_of_the_weights_is_noticed(tmp_path):
    file = checkpoint(tmp_path / "checkpoint-1") / "model.safetensors"
    whole = file.read_bytes()
    assert missing_part(file.parent) is None
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert missing_part(file.parent) is not None, length
    file.write_bytes(whole + b"\0")
    assert missing_part(file.parent) == "model.safetensors is not complete"


def test_what_is_missing_is_named(tmp_path):
    folder = checkpoint(tmp_path / "checkpoint-1")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert missing_part(folder) == "there are no weights"
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_part(folder) == "model-00002-of-00002.safetensors is missing"
    (folder / "model-00002-of-00002.safetensors").write_bytes(weights)
    assert missing_part(folder) is None
    (folder / "config.json").write_text('{"model_type": ')
    assert "cannot be read" in (missing_part(folder) or "")
    (folder / "config.json").unlink()
    assert missing_part(folder) == "config.json is missing"


def test_weights_of_torch_are_complete_with_their_directory(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    torch.save({"weight": torch.zeros(3)}, folder / "pytorch_model.bin")
    assert missing_part(folder) is None
    content = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    assert missing_part(folder) == "pytorch_model.bin is not complete"


@pytest.mark.parametrize("pattern", ["", "/tmp/*", "../*"])
def test_patterns_stay_within_the_output_directory(pattern):
    with pytest.raises(OpdAlignError, match="pattern within OUTPUT_DIR"):
        check_pattern(pattern)
