"""The plan of memory: against a table made by hand, on hardware that is not there, and as a refusal."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import opd_align.backends.loading
from opd_align.backends import precision
from opd_align.backends.loading import HubUnreachable
from opd_align.cli.hardware import other_processes
from opd_align.cli.main import main
from opd_align.study import hardware, memory_plan, model_sizes
from opd_align.study.config import builtin_configs, read_config
from opd_align.study.hardware import Gpu, parse_gpu_numbers, parse_hardware, visible_devices, visible_gpus
from opd_align.study.memory_plan import check_memory, placed, plan_memory
from opd_align.study.model_sizes import PUBLISHED, model_size
from opd_align.types import OpdAlignError

GIB = 2**30
VOCABULARY, HEAD, KV_HEADS = 151_936, 128, 8
# Qwen3's model cards: width, feed-forward width, layers, heads, whether embeddings are tied, parameters without
# embeddings in billions.
QWEN3 = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, True, 0.44),
    "Qwen3-1.7B": (2048, 6144, 28, 16, True, 1.4),
    "Qwen3-4B": (2560, 9728, 36, 32, True, 3.6),
    "Qwen3-8B": (4096, 12288, 36, 32, False, 6.95),
    "Qwen3-14B": (5120, 17408, 40, 40, False, 13.2),
}
TEACHERS = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B")
SHIPPED = sorted(set(builtin_configs()) - {"demo"})


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No Hub and no cache: the published sizes are used."""

    def unreachable(reference, **options):
        if reference.startswith("embedded:"):
            return original(reference, **options)
        raise HubUnreachable(f"cannot load {reference!r}")

    original = opd_align.backends.loading.load_config
    monkeypatch.setattr(model_sizes, "load_config", unreachable)
    model_sizes._model_size.cache_clear()
    yield
    model_sizes._model_size.cache_clear()


def parameters_by_hand(name):
    """Weights outside the embeddings, and all weights."""
    width, feed_forward, layers, heads, tied, _ = QWEN3[name]
    attention = 2 * width * heads * HEAD + 2 * width * KV_HEADS * HEAD + 2 * HEAD
    inner = layers * (attention + 3 * width * feed_forward + 2 * width) + width
    return inner, inner + (1 if tied else 2) * VOCABULARY * width


def forward_by_hand(name, tokens):
    """Two copies of the residual stream and three of the feed-forward width; up to 5B in float32, with one layer."""
    width, feed_forward, layers, *_ = QWEN3[name]
    inner, total = parameters_by_hand(name)
    numbers = tokens * (2 * width + 3 * feed_forward)
    return 4 * numbers + 4 * inner / layers if total < 5e9 else 2 * numbers


def table_by_hand(student, new_tokens):
    """GiB on a GPU that has everything, and of one completion in the KV cache."""
    prompt, context = 1024, 40_960
    table = {f"{name} weights": 2 * parameters_by_hand(name)[1] for name in (student, *TEACHERS)}
    # Six models on the student's weights: itself and five contexts; in float32 like the 4B model.
    widths = {name: QWEN3[name][0] for name in (student, *TEACHERS)}
    table["hidden states"] = new_tokens * (
        4 * 6 * widths[student] + 4 * widths["Qwen3-4B"] + 2 * widths["Qwen3-8B"] + 2 * widths["Qwen3-14B"]
    )
    heads = sum(4 * VOCABULARY * width for width in widths.values())
    # Self-1C1W reads two responses before the completion.
    longest = min(prompt + 3 * new_tokens, context)
    forward = [
        forward_by_hand(student, longest),
        *(forward_by_hand(name, prompt + new_tokens) for name in TEACHERS),
    ]
    table["scoring"] = max(heads + 2 * GIB, *forward)
    table["reserve"] = 2 * GIB
    width, feed_forward, layers, *_ = QWEN3[student]
    # 8,192 tokens of prefill, 1,024 rows of logits and their probabilities, CUDA graphs.
    engine = 2 * 8192 * (2 * width + 3 * feed_forward) + 2 * 4 * 1024 * VOCABULARY + GIB
    table[f"{student} in vLLM"] = 2 * parameters_by_hand(student)[1] + engine
    row = (prompt + new_tokens) * layers * 2 * KV_HEADS * HEAD * 2
    return {what: size / GIB for what, size in table.items()}, row / GIB


def student_and_length(name):
    return f"Qwen3-{name.rpartition('_')[2].upper()}", 30_000 if name.startswith("aime") else 4096


def test_the_count_by_hand_is_that_of_the_model_cards():
    for name, (*_, published) in QWEN3.items():
        inner, total = parameters_by_hand(name)
        assert inner / 1e9 == pytest.approx(published, rel=0.03), name
        assert total == model_size(f"Qwen/{name}").parameters, name
    assert {f"Qwen/{name}" for name in QWEN3} < set(PUBLISHED)


def test_there_is_a_table_for_every_shipped_configuration():
    assert len(SHIPPED) == 6
    for name in SHIPPED:
        student, new_tokens = student_and_length(name)
        config = read_config(name)
        assert config.student.model == f"Qwen/{student}"
        assert config.sampling.max_tokens == new_tokens


@pytest.mark.parametrize("name", SHIPPED)
def test_the_plan_agrees_with_a_table_made_by_hand(name):
    student, new_tokens = student_and_length(name)
    by_hand, row = table_by_hand(student, new_tokens)
    plan = plan_memory(read_config(name), parse_hardware("1x80"))
    [gpu] = plan.gpus
    planned = {use.what: use.bytes / GIB for use in gpu.uses}
    cache = planned.pop(f"{student} KV cache in vLLM")
    assert planned == pytest.approx(by_hand, rel=0.1)
    assert plan.fits
    assert plan.rollouts_at_once == int(cache // row) >= 1
    # vLLM gets what the others leave, to a hundredth of the GPU.
    assert cache == pytest.approx(0.985 * 80 - sum(by_hand.values()), abs=0.1 * sum(by_hand.values()))
    assert 0.985 * 80 * 0.99 - 0.01 < gpu.needed_bytes / GIB <= 0.985 * 80


def test_the_demonstration_of_the_package_fits_anywhere():
    assert plan_memory(read_config("demo"), parse_hardware("1x2")).fits
    plan = plan_memory(read_config("demo"), parse_hardware("8x8"))
    assert (plan.fits, plan.processes, len(plan.gpus)) == (True, 8, 1)
    weights = sum(use.bytes for use in plan.gpus[0].uses if use.what.endswith("weights"))
    assert weights == pytest.approx(3 * 0.7e6 * 2, rel=0.05)  # three models of 0.7 M parameters in half precision


@pytest.mark.parametrize("name", SHIPPED)
def test_teachers_are_apart_where_there_are_gpus_for_them(name):
    student, _ = student_and_length(name)
    eighty, forty = (plan_memory(read_config(name), parse_hardware(gpus)) for gpus in ("8x80", "8x40"))
    assert (eighty.fits, eighty.processes, len(eighty.gpus)) == (True, 4, 2)
    assert (forty.fits, forty.processes, len(forty.gpus)) == (True, 2, 3)
    for plan in (eighty, forty):
        devices = {key[0].removeprefix("Qwen/"): device for key, device in plan.devices.items()}
        assert devices.pop(student) == "cuda:0"
        assert set(devices) == set(TEACHERS)
        assert "cuda:0" not in devices.values()
        assert all(gpu.missing_bytes == 0 for gpu in plan.gpus)
    one = plan_memory(read_config(name), parse_hardware("1x80"))
    assert eighty.rollouts_at_once > 4 * one.rollouts_at_once


def test_the_plan_becomes_devices_and_engine_memory():
    config = read_config("aime2025_qwen3_1.7b")
    plan = plan_memory(config, parse_hardware("2x80"))
    done = placed(config, plan)
    assert done.student.device == "auto"
    [share] = plan.utilization.values()
    assert done.student.load.gpu_memory_utilization == share
    assert 0.8 < share <= 0.9
    assert [teacher.model.device for teacher in done.teachers if teacher.model] == ["cuda:1"] * 3
    assert done.source == config.source
    # What the configuration says is not changed.
    own = read_config("aime2025_qwen3_1.7b", ["student.load={gpu_memory_utilization: 0.3}"])
    assert placed(own, plan_memory(own, parse_hardware("2x80"))).student.load.gpu_memory_utilization == 0.3


def test_a_study_that_does_not_fit_is_refused_with_what_takes_the_memory():
    config = read_config("aime2025_qwen3_1.7b", ["student.load={gpu_memory_utilization: 0.4}"])
    plan = plan_memory(config, parse_hardware("1x80"))
    assert not plan.fits
    with pytest.raises(OpdAlignError, match=r"GPU 0 has 78\.8 GiB free, .* GiB are missing .*Qwen3-14B weights 27\.5"):
        check_memory(plan)
    small = read_config("aime2025_qwen3_1.7b", ["student.load={gpu_memory_utilization: 0.1}"])
    with pytest.raises(OpdAlignError, match=r"no room for one context: set student\.load\.max_model_len"):
        check_memory(plan_memory(small, parse_hardware("2x80")))
    fitting = ["student.load={gpu_memory_utilization: 0.12, max_model_len: 31024}"]
    assert plan_memory(read_config("aime2025_qwen3_1.7b", fitting), parse_hardware("1x80")).rollouts_at_once == 1


def test_devices_are_relative_to_what_a_process_sees():
    teacher = "teachers=[{name: T, model: {model: embedded:teacher, device: 'cuda:1'}}]"
    config = read_config("demo", [teacher])
    with pytest.raises(OpdAlignError, match="has device cuda:1, but 1 GPU is visible, numbered from 0"):
        plan_memory(config, parse_hardware("1x80"))
    plan = plan_memory(config, parse_hardware("4x80"))
    assert (plan.processes, len(plan.gpus)) == (2, 2)
    assert placed(config, plan).teachers[0].model.device == "cuda:1"
    # A teacher in a process of its own takes no memory here.
    assert plan_memory(config, parse_hardware("1x80"), apart=["T"]).fits


def test_a_large_teacher_needs_a_gpu_of_its_own():
    teachers = "teachers=[{model: {model: Qwen/Qwen3-32B, dtype: bfloat16}}, Self-1C]"
    plan = plan_memory(read_config("boolq_qwen3_0.6b", [teachers]), parse_hardware("4x80"))
    assert (plan.fits, plan.processes, len(plan.gpus)) == (True, 2, 2)
    assert plan.gpus[1].uses[0].what == "Qwen3-32B weights"
    assert plan.gpus[1].uses[0].bytes == pytest.approx(2 * 32.76e9, rel=0.001)
    assert not plan_memory(read_config("boolq_qwen3_0.6b", [teachers]), parse_hardware("8x40")).fits


def test_engines_and_teachers_can_be_divided_over_gpus():
    two = read_config("aime2025_qwen3_1.7b", ["student.load={tensor_parallel_size: 2}"])
    with pytest.raises(OpdAlignError, match="has tensor_parallel_size 2, but 1 GPU is visible"):
        plan_memory(two, parse_hardware("1x80"))
    plan = plan_memory(two, parse_hardware("3x80"), one_process=True)
    assert plan.fits
    assert [any("in vLLM" in use.what for use in gpu.uses) for gpu in plan.gpus] == [True, True, False]
    assert {device for key, device in plan.devices.items() if "1.7B" not in key[0]} == {"cuda:2"}
    one = plan_memory(read_config("aime2025_qwen3_1.7b"), parse_hardware("2x80"))
    assert plan.rollouts_at_once > 1.8 * one.rollouts_at_once
    teacher = "teachers=[{model: {model: Qwen/Qwen3-32B, dtype: bfloat16, load: {device_map: balanced}}, name: T}]"
    divided = read_config("boolq_qwen3_0.6b", [teacher])
    plan = plan_memory(divided, parse_hardware("2x80"))
    assert plan.fits
    halves = [use.bytes for gpu in plan.gpus for use in gpu.uses if use.what == "Qwen3-32B weights"]
    assert halves == pytest.approx([32.76e9, 32.76e9], rel=0.01)
    assert placed(divided, plan).teachers[0].model.device == "auto"
    longer = ["student.load={rope_scaling: {rope_type: yarn, factor: 2.0, original_max_position_embeddings: 32768}}"]
    config = read_config("boolq_qwen3_0.6b", longer)
    assert model_size(config.student.model, config.student.load).context_length == 65_536
    small = read_config("boolq_qwen3_0.6b", [teacher.replace("device_map: balanced", "quantization: 4bit")])
    assert plan_memory(small, parse_hardware("1x40")).fits


def test_scoring_settings_change_the_plan():
    def scoring(*overrides):
        plan = plan_memory(read_config("boolq_qwen3_1.7b", overrides), parse_hardware("1x80"))
        return next(use.bytes for use in plan.gpus[0].uses if use.what == "scoring") / GIB

    heads = sum(4 * VOCABULARY * QWEN3[name][0] for name in ("Qwen3-1.7B", *TEACHERS)) / GIB
    assert scoring() == pytest.approx(heads + 2)
    assert scoring("scoring.memory_gib=5") == pytest.approx(heads + 5)
    assert scoring("scoring.precision=native") == pytest.approx(2)
    assert scoring("student.dtype=float32") == pytest.approx(heads + 2 - 4 * VOCABULARY * 2048 / GIB)
    assert precision.MAX_FLOAT32_PARAMETERS == memory_plan.MAX_FLOAT32_PARAMETERS


def saved_config(folder, **changes):
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    config = {"model_type": "qwen3", "vocab_size": 100, "num_key_value_heads": 2, "dtype": "bfloat16", **shape}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("stored", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        ({"quant_method": "mxfp4"}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 4}}}}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": None}}}, 8),
    ],
)
def test_quantised_checkpoints_say_how_many_bits_a_weight_has(tmp_path, monkeypatch, stored, bits):
    monkeypatch.setattr(model_sizes, "load_config", opd_align.backends.loading.load_config)
    assert model_size(saved_config(tmp_path / "model", quantization_config=stored)).quantised_bits == bits


def test_experts_count_as_far_as_a_token_uses_them(tmp_path, monkeypatch):
    monkeypatch.setattr(model_sizes, "load_config", opd_align.backends.loading.load_config)
    experts = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 48}
    size = model_size(saved_config(tmp_path / "model", **experts))
    assert size.intermediate == 4 * 48
    attention = 2 * 64 * 4 * 16 + 2 * 64 * 2 * 16 + 2 * 16
    inner = 2 * (attention + 8 * 3 * 64 * 48 + 8 * 64 + 2 * 64) + 64  # experts and their router
    assert size.parameters == inner + 2 * 100 * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "t5"},
        {"num_hidden_layers": 0},
        {"num_attention_heads": 0},
        {"quantization_config": {"quant_method": "gptq", "bits": "four"}},
    ],
)
def test_a_model_whose_size_is_unknown_is_an_error_of_one_line(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(model_sizes, "load_config", opd_align.backends.loading.load_config)
    with pytest.raises(OpdAlignError, match="cannot tell the size of") as raised:
        model_size(saved_config(tmp_path / "model", **changes))
    assert "\n" not in str(raised.value)


def test_quantised_weights_are_smaller():
    plain = model_size("Qwen/Qwen3-14B")
    for bits, ratio in ((8, 0.55), (4, 0.36)):
        quantised = replace(plain, quantised_bits=bits)
        assert quantised.weight_bytes("bfloat16") / plain.weight_bytes("bfloat16") == pytest.approx(ratio, abs=0.03)


def test_the_benchmark_for_a_gpu_measures_what_was_planned():
    """On a CPU: weights and KV cache of a model that is loaded and run."""
    file = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    spec = spec_from_file_location("gpu_benchmark", file)
    benchmark = module_from_spec(spec)
    sys.modules["gpu_benchmark"] = benchmark  # dataclasses look their module up
    spec.loader.exec_module(benchmark)
    figures = benchmark.memory(benchmark.Sizes("embedded:student", "embedded:teacher", "cpu", 8, 8, 1, 1))
    assert figures == {"weights_over_plan": 1.0, "kv_over_plan": 1.0, "scoring_peak_over_plan": None}


def test_dry_run_prints_the_plan_without_a_gpu_a_connection_or_questions(capsys, monkeypatch):
    monkeypatch.setattr(hardware, "_installed", dict)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["analyze", "--config", "aime2025_qwen3_1.7b", "--dry-run", "--hardware", "8x40"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "8 × 40 GB" in shown
    assert "fits: 2 processes with 3 GPUs; 7 completions of 31,024 tokens at once in each; 2 GPUs are idle" in shown
    assert "cuda:1 34.7 / 39.4 Qwen3-14B weights 27.5" in shown
    assert "no connection to the Hub: published sizes were used for Qwen3-1.7B" in shown
    assert "Estimated cost" not in shown
    assert main(["analyze", "--dry-run", "--hardware", "8 of them"]) == 2
    assert "COUNTxGB, such as 1x80 or 8x40" in capsys.readouterr().err


def test_a_run_is_refused_before_anything_is_loaded_or_written(capsys, monkeypatch, tmp_path):
    gpu = Gpu(3 * GIB, GIB // 4, "full")
    monkeypatch.setattr(memory_plan, "_torch_sees_gpus", lambda: True)
    monkeypatch.setattr(hardware, "_installed", lambda: {"0": gpu, "1": gpu})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("opd_align.study.build.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for more in ([], ["--gpus", "0-1"], ["--processes", "2"]):
        assert main(["analyze", "--limit", "2", *more, "--out", str(tmp_path / "run")]) == 2
        assert "the study does not fit: GPU 0 has 0.2 GiB free" in capsys.readouterr().err
    assert main(["analyze", "--gpus", "0,2", "--out", str(tmp_path / "run")]) == 2
    assert "there is no GPU 2; 2 GPUs are visible" in capsys.readouterr().err
    assert main(["screen", "--limit", "2", "--teachers", "Self-1C", "--out", str(tmp_path / "run")]) == 2
    assert "the study does not fit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_processes_leave_the_memory_that_others_use(monkeypatch):
    used, free = Gpu(8 * GIB, 6 * GIB, "used"), Gpu(8 * GIB, 8 * GIB, "free")
    monkeypatch.setattr(hardware, "_installed", lambda: {"0": used, "1": free})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    args = argparse.Namespace(gpus="0-1", processes=None)
    slots = other_processes(args, read_config("demo"))
    assert [(slot.name, slot.devices, slot.gpu_share) for slot in slots] == [("GPU 0", "0", 0.75), ("GPU 1", "1", 1.0)]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3", [0, 1, 2, 3]), ("0,2,5", [0, 2, 5]), ("7", [7]), (" 0 - 1, 4 ", [0, 1, 4])]
)
def test_lists_of_gpus(text, numbers):
    assert parse_gpu_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "0,,1", "-1", "0-1-2", "0,0", "0-2,1"])
def test_other_lists_are_refused(text):
    with pytest.raises(OpdAlignError, match="--gpus"):
        parse_gpu_numbers(text)


def test_the_driver_is_asked_what_a_process_sees(monkeypatch, tmp_path):
    rows = [
        f"{index}, GPU-{index}f00-aa, {1000 * (index + 1)}, {900 * (index + 1)}, Made {index}" for index in range(3)
    ]
    command = tmp_path / "nvidia-smi"
    command.write_text(
        f"#!/bin/sh\nprintf '%s\\n' {' '.join(json.dumps(line) for line in rows)} '3, x, [N/A], 1, MIG'\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def seen(visible):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return [gpu.name for gpu in visible_gpus()]

    assert seen(None) == ["Made 0", "Made 1", "Made 2"]
    assert seen("2,0") == ["Made 2", "Made 0"]
    assert seen("GPU-1f,0") == ["Made 1", "Made 0"]
    assert seen("") == []
    assert seen("1,-1,0") == ["Made 1"]
    seen("2,0")
    assert visible_gpus([1]) == [Gpu(1000 << 20, 900 << 20, "Made 0")]
    assert visible_devices([1]) == "0"
    with pytest.raises(OpdAlignError, match=r"there is no GPU 2; 2 GPUs are visible"):
        visible_gpus([0, 2])
    monkeypatch.setenv("PATH", "/nowhere")
    assert visible_gpus() == []
