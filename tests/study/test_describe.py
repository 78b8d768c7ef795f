"""A study in words: reports are shared, so they name no folder of a machine."""

from __future__ import annotations

from opd_align.study.config import ModelConfig
from opd_align.study.describe import _model, _shared


def test_absolute_paths_are_named_by_their_last_part():
    assert (
        _model(ModelConfig("/home/me/weights/Smol.gguf", adapter="/home/me/lora")) == "Smol.gguf with adapter lora (hf)"
    )
    assert _model(ModelConfig("Qwen/Qwen3-0.6B")) == "Qwen/Qwen3-0.6B (hf)"
    assert [_shared(name) for name in ("data/mine.csv", "/data/mine.csv")] == ["data/mine.csv", "mine.csv"]
