"""Language models small enough to enumerate: random weights, six tokens, two of which end a completion."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from opd_align.types import Question

END = (0, 1)
QUESTION = Question("q")

SHAPE: dict[str, Any] = {
    "vocab_size": 6,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _sharpened(model: Any, dtype: torch.dtype) -> Any:
    """Scales the weights: with random ones all logits are nearly equal, and tokens and contexts hardly matter."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.mul_(12 if "lm_head" in name else 3)
    return model.to(dtype).eval()


def qwen3(*, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: Any) -> Any:
    torch.manual_seed(seed)
    return _sharpened(Qwen3ForCausalLM(Qwen3Config(**(SHAPE | shape))), dtype)


def llama(*, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: Any) -> Any:
    torch.manual_seed(seed)
    return _sharpened(LlamaForCausalLM(LlamaConfig(**(SHAPE | shape))), dtype)
