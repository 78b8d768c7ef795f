"""Models by name: what is there is loaded, and what is not is called by its name, soon."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.small_chat import END, save_model, word_tokenizer
from support.small_models import qwen3

from opd_align.backends.hf import HFStudent
from opd_align.backends.loading import check_model, generation_configs, load_model, load_tokenizer, short_name
from opd_align.types import OpdAlignError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_model(tmp_path_factory.mktemp("models") / "tiny-0.6B"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def fingerprint(model: object) -> str:
    return HFStudent("same", model, lambda question: [1], (2,)).fingerprint


def test_a_folder_is_loaded_ready_to_sample(folder):
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


def test_name_and_precision_can_be_chosen(folder):
    loaded = load_model(f"{folder}/", name="mine", dtype="bfloat16", device="cpu")
    assert loaded.name == "mine"
    assert loaded.model.dtype == torch.bfloat16


def test_the_configs_name_what_ends_a_reply(copy):
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
def test_a_short_name_keeps_what_tells_models_apart(reference, name):
    assert short_name(reference) == name


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("./nowhere", "there is no folder './nowhere'"),
        ("/no/where", "there is no folder"),
        ("~/no-such-model-here", "there is no folder"),
        ("a/b/c", "there is no folder 'a/b/c'"),
        ("nowhere.gguf", "'nowhere.gguf' does not exist"),
        ("embedded:studnet", "there are embedded:student and embedded:teacher"),
        ("embedded:", "there are embedded:student and embedded:teacher"),
    ],
)
def test_what_is_not_there_is_called_so_without_loading_anything(reference, reason):
    for look in (check_model, load_model, load_tokenizer):
        with pytest.raises(OpdAlignError, match=reason):
            look(reference)


def test_a_folder_without_a_model_is_called_so(tmp_path):
    with pytest.raises(OpdAlignError, match=r"folder without a config\.json; a model is saved by save_pretrained"):
        load_model(str(tmp_path))


def test_a_hub_name_without_a_connection_gets_a_clear_answer_quickly(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(OpdAlignError) as caught:
        load_model("nobody/no-such-model")
    assert time.monotonic() - begun < 5
    assert str(caught.value).startswith("cannot load 'nobody/no-such-model': ")
    assert "needs a connection, or a copy in its cache" in str(caught.value)
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
def test_a_damaged_folder_is_no_traceback(copy, file, content):
    assert (copy / file).is_file()
    (copy / file).write_bytes(content)
    with pytest.raises(OpdAlignError, match="cannot load"):
        load_model(str(copy), device="cpu")


def test_precision_and_device_that_do_not_exist_are_named(folder):
    with pytest.raises(OpdAlignError, match="dtype must be one of auto, float32, bfloat16, float16, not 'float23'"):
        load_model(str(folder), dtype="float23")
    with pytest.raises(OpdAlignError, match="on the device 'gpu0'"):
        load_model(str(folder), device="gpu0")


def test_an_adapter_changes_what_the_model_says_and_its_fingerprint(folder, tmp_path):
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


def test_an_adapter_that_is_not_there_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(OpdAlignError, match="cannot load the adapter") as caught:
            load_model(str(folder), adapter=str(place), device="cpu")
        assert str(place) in str(caught.value)
