"""How much memory a language model takes, from its config alone: weights, KV cache, activations.

Weights are counted on the meta device, where a model has shapes but no values. If neither the Hub nor a cached config
can be reached, the published shapes of the models in the shipped configurations are used, and the result says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from opd_align.backends.load_options import LoadOptions
from opd_align.backends.loading import HubUnreachable, load_config
from opd_align.types import OpdAlignError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "tie_word_embeddings": tied,
    }  # fmt: skip


PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3(5120, 17408, 40, 40, tied=False),
    "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64, tied=False),
}
"""Configs of the models that the shipped configurations name, for planning without a connection."""


@dataclass(frozen=True)
class ModelSize:
    """The numbers that memory depends on.

    Args:
        parameters: Number of weights; tied embeddings count once.
        outer_parameters: Those of embeddings and output layer, which quantisation leaves alone.
        layers: Number of layers.
        hidden: Width of the hidden states.
        intermediate: Width of the feed-forward layers.
        kv_width: Numbers per token and layer in the KV cache: keys and values of all KV heads.
        vocabulary: Number of token ids.
        context_length: Longest context; `None`: not limited.
        saved_dtype: The dtype of the checkpoint.
        quantised_bits: Bits per inner weight of a quantised checkpoint; `None`: not quantised.
        from_table: Whether the numbers are from `PUBLISHED`.
    """

    parameters: int
    outer_parameters: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int
    context_length: int | None
    saved_dtype: str
    quantised_bits: int | None = None
    from_table: bool = False

    def dtype_bytes(self, dtype: str) -> int:
        """Bytes per number; "auto" is the dtype of the checkpoint, as on a GPU."""
        return DTYPE_BYTES.get(self.saved_dtype if dtype == "auto" else dtype, 4)

    def weight_bytes(self, dtype: str = "auto") -> int:
        """Memory of the weights."""
        if self.quantised_bits is None:
            return self.parameters * self.dtype_bytes(dtype)
        # Scales and zero points are about a tenth of 4-bit weights, and less of wider ones.
        inner = (self.parameters - self.outer_parameters) * self.quantised_bits / 8
        return round(inner + 0.1 * inner * 4 / self.quantised_bits) + self.outer_parameters * self.dtype_bytes(dtype)

    def kv_bytes_per_token(self, dtype: str = "auto") -> int:
        """Memory of one token in the KV cache."""
        return self.layers * self.kv_width * self.dtype_bytes(dtype)

    def forward_bytes(self, tokens: int, dtype: str = "auto") -> int:
        """Largest memory of a forward pass of the body without a cache, which is in the feed-forward layers."""
        # Residual stream and its normalised copy; activated gate, up-projection and their product.
        return tokens * (2 * self.hidden + 3 * self.intermediate) * self.dtype_bytes(dtype)

    def layer_bytes(self, dtype: str = "auto") -> int:
        """Memory of the weights of one layer."""
        return (self.parameters - self.outer_parameters) // self.layers * self.dtype_bytes(dtype)

    def head_bytes(self, dtype: str = "auto") -> int:
        """Memory of the output layer."""
        return self.vocabulary * self.hidden * self.dtype_bytes(dtype)

    def hidden_bytes(self, tokens: int, dtype: str = "auto") -> int:
        """Memory of the last hidden states."""
        return tokens * self.hidden * self.dtype_bytes(dtype)


def model_size(reference: str, load: LoadOptions | None = None) -> ModelSize:
    """The size of a model, from its config; from `PUBLISHED` if the config cannot be reached.

    Args:
        reference: The model's name.
        load: How it is loaded. `None`: the defaults.
    """
    load = load or LoadOptions()
    size = _model_size(reference, tuple(load.source.items()))
    bits = {"4bit": 4, "8bit": 8, None: size.quantised_bits}[load.quantization]
    context, scaling = size.context_length, load.rope_scaling
    if scaling is not None:
        context = round(scaling["factor"] * scaling["original_max_position_embeddings"])
    return replace(size, quantised_bits=bits, context_length=context)


@lru_cache(maxsize=64)
def _model_size(reference: str, source: tuple[tuple[str, Any], ...]) -> ModelSize:
    import transformers

    try:
        config = load_config(reference, **dict(source))
    except HubUnreachable:
        if reference not in PUBLISHED:
            raise
        config = transformers.Qwen3Config(**PUBLISHED[reference], dtype="bfloat16")
        return _size(config, from_table=True)
    try:
        return _size(config)
    except Exception as error:  # not a language model, or numbers that no model can have
        kind, reason = getattr(config, "model_type", "unknown"), (str(error).strip() or repr(error)).splitlines()[0]
        raise OpdAlignError(
            f"cannot tell the size of {reference!r} (model type {kind!r}): {reason}; it must be a decoder with "
            "attention that transformers can load as a causal language model"
        ) from error


def _size(config: Any, *, from_table: bool = False) -> ModelSize:
    import torch
    import transformers

    bits = _quantised_bits(config)
    if bits is not None:
        config.quantization_config = None  # shapes are counted before quantisation
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    outer = {id(weight): weight.numel() for end in ends if end is not None for weight in end.parameters()}
    text = config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    if not text.num_hidden_layers:
        raise ValueError("it has no layers")
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    limit, saved = getattr(text, "max_position_embeddings", None), getattr(config, "dtype", None) or torch.float32
    return ModelSize(
        parameters=sum(weight.numel() for weight in model.parameters()),
        outer_parameters=sum(outer.values()),
        layers=int(text.num_hidden_layers),
        hidden=int(text.hidden_size),
        intermediate=_feed_forward_width(text),
        kv_width=2 * int(kv_heads) * int(head_dim),
        vocabulary=int(text.vocab_size),
        context_length=None if limit is None else int(limit),
        saved_dtype=str(saved).removeprefix("torch."),
        quantised_bits=bits,
        from_table=from_table,
    )


def _feed_forward_width(text: Any) -> int:
    """Width of the feed-forward layers; with experts, of all that one token uses."""
    dense = int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size)
    expert, used = getattr(text, "moe_intermediate_size", None) or dense, getattr(text, "num_experts_per_tok", None)
    return max(dense, int(expert) * int(used or 1))


def _quantised_bits(config: Any) -> int | None:
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    found = stored if isinstance(stored, dict) else stored.to_dict()
    if found.get("load_in_4bit"):
        return 4
    # compressed-tensors has groups of layers; what no group names stays as it is.
    groups = [(group.get("weights") or {}).get("num_bits") for group in (found.get("config_groups") or {}).values()]
    default = 4 if found.get("quant_method") == "mxfp4" else 8
    return int(found.get("bits") or found.get("w_bit") or max(filter(None, groups), default=default))
