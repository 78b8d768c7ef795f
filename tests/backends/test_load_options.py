"""Settings of loading reach every loader, and contradictions are found before anything is loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.small_models import qwen3

from opd_align.backends import loading
from opd_align.backends.load_options import LoadOptions
from opd_align.cli.main import main
from opd_align.study.config import read_config
from opd_align.types import OpdAlignError


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("student.load.device_map=cuda", "device_map must be one of auto, balanced|unknown value 'cuda'"),
        ("student.load.quantization=3bit", "quantization must be one of 4bit, 8bit|unknown value '3bit'"),
        ("student.load.gpu_memory_utilization=1.5", r"gpu_memory_utilization must lie in \(0, 1\], not 1.5"),
        ("student.load.gpu_memory_utilization=much", "expected a number"),
        ("student.load.tensor_parallel_size=0", "tensor_parallel_size must be at least 1"),
        ("student.load.tensor_parallel_size=2", "tensor_parallel_size is a setting of a vLLM engine"),
        ("student.load.max_model_len=4.5", "expected a whole number"),
        ("student.load.trust_remote_code=maybe", "expected true or false"),
        ("student.load.revision=main", "revision 'main' has no effect on 'embedded:student'"),
        ("student.load.quantization=4bit", "quantization 4bit does not apply to 'embedded:student'"),
        ("student.load.attn_implementation='a b'", "which is not a name"),
        ("student.load.devicemap=auto", "did you mean 'student.load.device_map'"),
    ],
)
def test_wrong_values_are_named(override, message):
    with pytest.raises(OpdAlignError, match=message) as error:
        read_config("demo", [override])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["student.device=cuda:1", "student.load.device_map=auto"], "device .cuda:1. and device_map .auto. both place"),
        (["student.backend=vllm", "student.load.quantization=8bit"], "vLLM would sample other weights"),
        (["student.device=cpu", "student.load.quantization=8bit"], "needs a GPU, but device is cpu"),
        (
            ["student.backend=vllm", "student.load.max_model_len=512", "student.options={max_model_len: 600}"],
            "max_model_len is set twice",
        ),
    ],
)
def test_contradictions_are_named(overrides, message):
    with pytest.raises(OpdAlignError, match=message):
        read_config(None, ["student=org/model", *overrides])


def test_students_teachers_and_writers_have_the_same_settings():
    load = "load: {revision: v1, attn_implementation: sdpa, trust_remote_code: true, quantization: 8bit}"
    config = read_config(
        None,
        [
            f"student={{model: org/a, {load}}}",
            f"teachers=[{{name: T, model: {{model: org/b, {load}}}}}]",
            f"source={{model: org/c, {load}}}",
        ],
    )
    expected = LoadOptions(attn_implementation="sdpa", revision="v1", trust_remote_code=True, quantization="8bit")
    assert config.source is not None
    assert config.teachers[0].model is not None
    assert config.student.load == config.teachers[0].model.load == config.source.load == expected


class Recorded:
    """In place of an auto class of transformers: records the arguments, returns a small model."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def from_pretrained(self, source: str, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return qwen3()


@pytest.fixture
def recorded(monkeypatch):
    model, tokenizer = Recorded(), Recorded()
    libraries = SimpleNamespace(
        AutoModelForCausalLM=model,
        AutoTokenizer=tokenizer,
        BitsAndBytesConfig=lambda **arguments: arguments,
    )
    monkeypatch.setattr(loading, "_libraries", lambda: (torch, libraries))
    return model, tokenizer


def test_the_settings_are_those_of_from_pretrained(recorded, monkeypatch):
    model, tokenizer = recorded
    load = LoadOptions("auto", "flash_attention_2", "v1", True, "4bit")
    monkeypatch.setattr("opd_align.backends.load_options.find_spec", lambda name: name)
    loading.load_model("org/model", dtype="bfloat16", load=load)
    (arguments,) = model.calls
    assert arguments["quantization_config"]["load_in_4bit"]
    expected = {"device_map": "auto", "attn_implementation": "flash_attention_2", "revision": "v1"}
    assert arguments.items() >= {**expected, "trust_remote_code": True}.items()
    assert tokenizer.calls == [{"revision": "v1", "trust_remote_code": True}]


def test_remote_code_is_off_and_weights_go_straight_to_their_device(recorded, monkeypatch):
    model, tokenizer = recorded
    loading.load_model("org/model", device="cpu")
    off = {"trust_remote_code": False}
    assert model.calls == [{"dtype": torch.float32, **off}]
    assert tokenizer.calls == [off]
    monkeypatch.setattr(loading, "_check_device", lambda *_: None)
    loading.load_model("org/model", device="cuda:1")
    assert model.calls[1] == {"dtype": "auto", "device_map": {"": "cuda:1"}, **off}


def test_a_missing_device_is_reported_before_weights_are_read(recorded):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= to hide it")
    with pytest.raises(OpdAlignError, match="cannot move 'org/model' to the device 'cuda'"):
        loading.load_model("org/model", device="cuda")
    assert not recorded[0].calls


def test_bitsandbytes_is_named_where_it_is_missing(recorded, monkeypatch):
    monkeypatch.setattr("opd_align.backends.load_options.find_spec", lambda name: None)
    with pytest.raises(OpdAlignError, match="pip install bitsandbytes"):
        loading.load_model("org/model", load=LoadOptions(quantization="4bit"))


def test_engine_settings_are_arguments_of_vllm():
    load = LoadOptions(
        revision="v1", tensor_parallel_size=2, gpu_memory_utilization=0.4, max_model_len=512, attn_implementation="sdpa"
    )
    assert load.engine_arguments == {
        "revision": "v1", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.4, "max_model_len": 512,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tensor-parallel-size", "2"], "tensor_parallel_size is a setting of a vLLM engine"),
        (["--workers", "2"], "--workers 2 needs a student behind a server: backend hf"),
        (["--workers", "2", "--backend", "vllm"], "--set questions_per_group=8; to analyze them in several processes"),
    ],
)
def test_flags_are_checked_before_anything_is_loaded(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load_model", None)
    assert main(["analyze", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
