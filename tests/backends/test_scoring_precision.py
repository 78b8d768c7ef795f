"""Half-precision weights are scored in float32, exactly as a float32 copy of the model would be, and are left alone."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import small_models
from support.backend_contract import score_request
from support.small_models import QUESTION

from opd_align.backends import precision as precision_module
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.precision import float32_layers, float32_weights, scoring_precision, stored_dtype
from opd_align.backends.scoring import PromptedModel, rollout_log_probs, score_path
from opd_align.backends.scoring_report import ScoringReport
from opd_align.runs.manifest import describe
from opd_align.settings import Sampling, Scoring, Settings
from opd_align.types import OpdAlignError, Rollouts

qwen3, llama = (partial(family, vocab_size=30) for family in (small_models.qwen3, small_models.llama))
PATH = (np.arange(40) * 11 % 23).astype(np.uint32)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def in_half_precision(model: Any, dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    """The model with rounded weights, and a float32 model with the same rounded weights."""
    half = model.to(dtype)
    return half, copy.deepcopy(half).float()


def scores(student: Any, teacher: Any, precision: Any) -> Any:
    models = [
        PromptedModel(name, model, prompt, precision)
        for name, model, prompt in (("student", student, [1, 2, 3]), ("teacher", teacher, [4, 5, 6, 7]))
    ]
    return score_path(models[0], models[1:], score_request(QUESTION, PATH, floor=1e-30), Sampling())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [qwen3, llama], ids=["qwen3", "llama"])
def test_float32_scores_are_those_of_a_float32_copy(family, dtype):
    (student, student32), (teacher, teacher32) = (in_half_precision(family(seed=seed), dtype) for seed in (1, 2))
    before = [weight.clone() for weight in student.parameters()]
    actual, expected = scores(student, teacher, "float32"), scores(student32, teacher32, "native")
    np.testing.assert_array_equal(actual.log_p_C, expected.log_p_C)
    np.testing.assert_array_equal(actual.teachers["teacher"].kl_T, expected.teachers["teacher"].kl_T)
    rounded = scores(student, teacher, "native")
    assert np.abs(rounded.log_p_C - expected.log_p_C).max() > 1e-3
    for weight, original in zip(student.parameters(), before, strict=True):
        assert weight.dtype == dtype
        assert torch.equal(weight, original)


def test_a_float32_output_layer_is_between_both():
    (student, student32), (teacher, teacher32) = (in_half_precision(qwen3(seed=seed)) for seed in (1, 2))
    exact = scores(student32, teacher32, "native")
    error = {
        precision: np.abs(scores(student, teacher, precision).log_p_C - exact.log_p_C).mean()
        for precision in ("float32", "head", "native")
    }
    assert error["float32"] == 0 < error["head"] < error["native"]


def test_log_probs_of_rollouts_are_in_float32_too():
    half, exact = in_half_precision(qwen3())
    rollouts = Rollouts.of([PATH[:9], PATH[:0], PATH[3:20]])
    actual, expected = (
        rollout_log_probs(PromptedModel("student", model, [1, 2], precision), rollouts, Sampling(temperature=0.7))
        for model, precision in ((half, "float32"), (exact, "native"))
    )
    np.testing.assert_array_equal(actual, expected)


def test_an_adapter_is_part_of_the_float32_model():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(
        qwen3(), LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    ).eval()
    half, exact = in_half_precision(adapted)
    plain = scores(in_half_precision(qwen3())[1], exact, "native")
    actual, expected = scores(half, half, "float32"), scores(exact, exact, "native")
    np.testing.assert_array_equal(actual.log_p_C, expected.log_p_C)
    assert np.abs(actual.log_p_C - plain.log_p_C).max() > 1e-3


def test_attention_in_float32_on_a_gpu_has_a_kernel_that_saves_memory(monkeypatch):
    """torch's kernels in float32 need as many heads of keys as of queries, and no mask."""
    from transformers.integrations import sdpa_attention

    called = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, **options: Any) -> Any:
        same_heads = query.shape[1] == key.shape[1] == value.shape[1]
        called.append((same_heads, options.get("enable_gqa", False), options["attn_mask"], options["is_causal"]))
        return sdpa(query, key, value, **options)

    student, teacher = (in_half_precision(qwen3(seed=seed))[0] for seed in (1, 2))
    config = student.config
    assert config.num_key_value_heads < config.num_attention_heads
    expected = scores(student, teacher, "float32")
    for name in ("sdpa", "flash_attention_2"):
        assert precision_module.attention_in_float32(name, "cuda") == precision_module.ATTENTION
        assert precision_module.attention_in_float32(name, "cpu") == "sdpa"
    assert precision_module.attention_in_float32("eager", "cuda") == "eager"
    monkeypatch.setattr(precision_module, "attention_in_float32", lambda *_: precision_module.ATTENTION)
    monkeypatch.setattr(sdpa_attention.torch.nn.functional, "scaled_dot_product_attention", record)
    actual = scores(student, teacher, "float32")
    in_body = called[-2 * config.num_hidden_layers :]
    assert in_body == [(True, False, None, True)] * len(in_body)
    np.testing.assert_allclose(actual.log_p_C, expected.log_p_C, atol=1e-6)
    assert config._attn_implementation == "sdpa"


def test_products_in_float32_are_not_in_tf32():
    student, teacher = (in_half_precision(qwen3(seed=seed))[0] for seed in (1, 2))
    found = []
    for module in (student.lm_head, student.model.layers[-1]):
        module.register_forward_hook(
            lambda module, inputs, _: found.append((inputs[0].dtype, torch.get_float32_matmul_precision()))
        )
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as in images that switch TF32 on
    try:
        scores(student, teacher, "float32")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(previous)
    assert [precision for dtype, precision in found if dtype == torch.float32] == ["highest", "highest"]


def test_weights_are_restored_when_a_layer_fails():
    half, _ = in_half_precision(qwen3())
    body = half.base_model

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    handle = body.layers[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"), float32_layers(half, body), torch.no_grad():
        body(input_ids=torch.tensor([[1, 2]]))
    handle.remove()
    with pytest.raises(RuntimeError, match="later"), float32_weights(half):
        raise RuntimeError("later")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert not body.layers[0]._forward_pre_hooks


def test_at_most_one_layer_is_in_float32_at_a_time():
    half, _ = in_half_precision(qwen3())
    converted = []

    def count(*_: Any) -> None:
        converted.append([layer.mlp.down_proj.weight.dtype for layer in half.base_model.layers].count(torch.float32))

    for layer in half.base_model.layers:
        layer.mlp.register_forward_hook(count)
    scores(half, half, "float32")
    assert len(converted) > 2
    assert max(converted) == 1


def test_auto_is_float32_for_small_models_and_the_output_layer_for_large_ones(monkeypatch):
    half, exact = in_half_precision(qwen3())
    assert scoring_precision(half, "auto") == "float32"
    assert scoring_precision(half, "head") == "head"
    assert [scoring_precision(exact, each) for each in ("auto", "float32", "head", "native")] == ["native"] * 4
    monkeypatch.setattr(precision_module, "MAX_FLOAT32_PARAMETERS", 1000)
    assert scoring_precision(half, "auto") == "head"
    assert scoring_precision(half, "float32") == "float32"


def test_of_a_quantised_model_only_the_output_layer_is_converted():
    half, _ = in_half_precision(qwen3())
    layer = half.base_model.layers[0].mlp.down_proj
    layer.weight = torch.nn.Parameter(layer.weight.data.to(torch.float8_e4m3fn), requires_grad=False)
    assert scoring_precision(half, "float32") == "head"
    assert stored_dtype(half) == "bfloat16"


def test_manifests_name_the_precision_where_it_is_not_that_of_the_weights():
    half, exact = in_half_precision(qwen3())
    found = {}
    for model, precision in ((half, "auto"), (half, "native"), (exact, "auto")):
        student = HFStudent("student", model, lambda question: [1], (2,), precision=precision)
        teacher = HFTeacher("teacher", model, lambda question: [1], precision)
        manifest = describe(student, [teacher], [QUESTION], lambda question: None, Settings())
        found[stored_dtype(model), precision] = manifest.get("precision"), manifest["teachers"]["teacher"][-8:]
        assert student.fingerprint == HFStudent("student", model, lambda question: [1], (2,)).fingerprint
    assert found["bfloat16", "auto"] == ("float32", "-float32")
    assert found["bfloat16", "native"][0] is found["float32", "auto"][0] is None
    assert "float32" not in found["bfloat16", "native"][1] + found["float32", "auto"][1]


def test_scoring_settings_out_of_range_are_rejected():
    with pytest.raises(OpdAlignError, match="precision must be one of auto, float32, head, native"):
        Scoring("bfloat16")  # type: ignore[arg-type]
    with pytest.raises(OpdAlignError, match="memory_gib must be above 0"):
        Scoring(memory_gib=0.0)


def test_the_report_says_how_much_rounding_would_have_changed(caplog):
    (student, _), (teacher, _) = (in_half_precision(qwen3(seed=seed)) for seed in (1, 2))
    report = ScoringReport()
    prompted = HFStudent("student", student, lambda question: [1, 2], (2,), report=report)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            prompted.score(score_request(QUESTION, PATH), [HFTeacher("T", teacher, lambda question: [1, 2, 3])])
    assert report.noise is not None
    noise = report.noise["T"]
    assert (noise.stored, noise.used, noise.cosine_used) == ("bfloat16", "float32", 1.0)
    assert 0.9 < noise.cosine_stored < 1 - 1e-6
    assert len([record for record in caplog.records if "cosine" in record.message]) == 1
    assert "T: scored in float32" in report.facts()["scoring noise"]


def test_float32_weights_have_no_scoring_noise():
    report = ScoringReport()
    student = HFStudent("student", qwen3(), lambda question: [1, 2], (2,), report=report)
    student.score(score_request(QUESTION, PATH), [HFTeacher("T", qwen3(seed=5), lambda question: [1, 2, 3])])
    assert report.noise == {}
    assert report.facts() == {}


def test_the_gap_between_sampler_and_scorer_counts_sampled_tokens_only(caplog):
    student = HFStudent("student", qwen3(), lambda question: [1, 2], (2,), Sampling(temperature=0.5))
    rollouts = Rollouts.of([PATH[:6], PATH[:9]], launch=[2, 9])
    plain = rollout_log_probs(PromptedModel("student", student.model, [1, 2]), rollouts, Sampling())
    sampled = plain.copy()
    sampled[:2] += 5.0  # forced
    sampled[3] += 1.0
    report = ScoringReport()
    report.measure_sampler_gap(student, QUESTION, rollouts, sampled, "vLLM")
    assert report.sampler_gap == (pytest.approx(0.25), pytest.approx(1.0), 4)
    assert "do both have the same weights?" in caplog.text
    assert "0.2500 nats" in report.facts()["sampler and scorer"]
