"""Models by name: loading, and clear errors for what does not exist, before anything is loaded."""

from __future__ import annotations

import shutil
import time
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.small_chat import END, save_model, word_tokenizer
from support.small_models import qwen3

from opd_align.backends.hf import HFStudent
from opd_align.backends.load_options import LoadOptions
from opd_align.backends.loading import (
    check_model,
    context_length,
    generation_configs,
    load_model,
    load_tokenizer,
    short_name,
    update_with_weights,
)
from opd_align.types import OpdAlignError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_model(tmp_path_factory.mktemp("models") / "tiny-0.6B"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def fingerprint(model: object) -> str:
    return HFStudent("same", model, lambda question: [1], (2,)).fingerprint


def test_a_folder_loads_in_eval_mode_with_its_tokenizer(folder):
    loaded = load_model(str(folder), device="cpu")
    assert loaded.name == "tiny-0.6B"
    assert not loaded.model.training
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    assert fingerprint(loaded.model) == fingerprint(
        qwen3(vocab_size=len(loaded.tokenizer), max_position_embeddings=512)
    )
    text = "Ann \nAnswer: 2<|im_end|>"
    assert loaded.tokenizer(text)["input_ids"] == word_tokenizer()(text)["input_ids"] == [3, 10, 2]
    assert loaded.tokenizer.chat_template == word_tokenizer().chat_template
    assert load_tokenizer(str(folder)).get_vocab() == loaded.tokenizer.get_vocab()


def test_name_and_dtype_can_be_set(folder):
    loaded = load_model(f"{folder}/", name="mine", dtype="bfloat16", device="cpu")
    assert loaded.name == "mine"
    assert loaded.model.dtype == torch.bfloat16


def test_the_configs_name_the_end_tokens(copy):
    (copy / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert [config.eos_token_id for config in load_model(str(copy), device="cpu").configs][1] == [2, 5]
    assert [config.eos_token_id for config in generation_configs(str(copy))] == [[2, 5]]
    (copy / "generation_config.json").unlink()
    assert generation_configs(str(copy)) == ()


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2-1.7B-Instruct"),
        ("/a/b/model-Q4_0.gguf", "model-Q4_0"),
        ("runs/step.100/", "step.100"),
        ("embedded:student", "student"),
        ("gpt2", "gpt2"),
    ],
)
def test_a_short_name_keeps_dots_and_sizes(reference, name):
    assert short_name(reference) == name


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("./nowhere", "the folder './nowhere' does not exist"),
        ("/no/where", "the folder '/no/where' does not exist"),
        ("~/no-such-model-here", "the folder '~/no-such-model-here' does not exist"),
        ("a/b/c", "the folder 'a/b/c' does not exist"),
        ("nowhere.gguf", "'nowhere.gguf' does not exist"),
        ("embedded:studnet", "there are embedded:student, embedded:teacher, embedded:careless"),
        ("embedded:", "there are embedded:student, embedded:teacher, embedded:careless"),
    ],
)
def test_missing_models_are_reported_without_loading_anything(reference, reason):
    for function in (check_model, load_model, load_tokenizer):
        with pytest.raises(OpdAlignError, match=reason):
            function(reference)


def test_a_folder_without_a_model_is_reported(tmp_path):
    with pytest.raises(OpdAlignError, match=r"folder without a config\.json; save a model with save_pretrained"):
        load_model(str(tmp_path))


def test_a_hub_name_without_a_connection_fails_quickly_and_clearly(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(OpdAlignError) as caught:
        load_model("nobody/no-such-model")
    assert time.monotonic() - start < 5
    assert str(caught.value).startswith("cannot load 'nobody/no-such-model': ")
    assert "needs a connection or a cached copy" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert generation_configs("nobody/no-such-model") == ()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"not weights at all"),
        ("tokenizer.json", b'{"version": "1.0"}'),
        ("tokenizer.json", b"{"),
        ("config.json", b'{"model_type": "no-such-architecture"}'),
        ("config.json", b"{"),
    ],
)
def test_a_damaged_folder_is_reported(copy, file, content):
    assert (copy / file).is_file()
    (copy / file).write_bytes(content)
    with pytest.raises(OpdAlignError, match="cannot load"):
        load_model(str(copy), device="cpu")


def test_invalid_dtype_and_device_are_reported(folder):
    with pytest.raises(OpdAlignError, match="dtype must be one of auto, float32, bfloat16, float16, not 'float23'"):
        load_model(str(folder), dtype="float23")
    for device in ("gpu0", "meta", "", "cuda:x"):
        with pytest.raises(OpdAlignError, match="device must be auto, cpu, cuda"):
            load_model(str(folder), device=device)


def test_an_adapter_changes_logits_and_fingerprint(folder, tmp_path):
    torch.manual_seed(5)
    settings = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    base = load_model(str(folder), device="cpu")
    get_peft_model(load_model(str(folder), device="cpu").model, settings).save_pretrained(tmp_path / "lora")
    adapted = load_model(str(folder), adapter=str(tmp_path / "lora"), device="cpu")
    assert not adapted.model.training
    assert fingerprint(adapted.model) != fingerprint(base.model)
    tokens = torch.tensor([[1, 3, 4, 5]])
    with torch.no_grad():
        assert not torch.allclose(adapted.model(tokens).logits, base.model(tokens).logits)
        with adapted.model.disable_adapter():
            assert torch.allclose(adapted.model(tokens).logits, base.model(tokens).logits)
    assert adapted.configs[0].vocab_size == len(base.tokenizer)
    assert base.tokenizer.convert_tokens_to_ids(END) == 2


def test_a_missing_adapter_is_reported(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for missing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(OpdAlignError, match="cannot load the adapter") as caught:
            load_model(str(folder), adapter=str(missing), device="cpu")
        assert str(missing) in str(caught.value)


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}


def test_rope_scaling_extends_the_context_and_makes_another_student():
    plain = load_model("embedded:student")
    extended = load_model("embedded:student", load=LoadOptions(rope_scaling=YARN))
    assert (context_length(plain.model), context_length(extended.model)) == (1024, 2048)
    assert extended.model.config.rope_parameters == {"rope_theta": 10000.0, **YARN}
    digests = [update_with_weights(blake2b(), each.model).hexdigest() for each in (plain, extended)]
    assert digests[0] != digests[1]
    ids = torch.arange(2, 60)[None]
    with torch.no_grad():
        logits = [each.model(input_ids=ids).logits for each in (plain, extended)]
    assert not torch.allclose(*logits)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"factor": 2.0}, {**YARN, "factor": 0.5}, {**YARN, "factor": float("inf")}, {**YARN, "factor": True},
        {**YARN, "rope_type": None}, {**YARN, "rope_type": "yarm"}, {**YARN, "original_max_position_embeddings": 1.5},
    ],
)  # fmt: skip
def test_incomplete_rope_scaling_is_refused(wrong):
    with pytest.raises(OpdAlignError, match="rope_scaling needs rope_type"):
        LoadOptions(rope_scaling=wrong)
