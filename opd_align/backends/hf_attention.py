"""Attention over shared prefixes, for sampling with transformers.

All targets of a path share its prefix, so the prefix is prefilled once, and every row of a batch attends to that one
copy of its keys and values, up to the row's own start, together with the few tokens that the row generated itself.
Nothing is prefilled twice, and nothing is copied per row. A batch may hold rows of many paths and questions.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from opd_align.types import Ints, OpdAlignError

MAX_BATCH_TOKENS = 1 << 19
KV_SHARE = 0.4
"""Share of the free memory for keys and values: a buffer that doubles is in memory twice for a moment."""
ATTENTION = "opd_align_shared_prefix"
"""Name under which transformers knows the attention used while sampling."""


@dataclass(frozen=True)
class PrefixCache:
    """Keys and values of a prefilled sequence, shared by many rows.

    Args:
        keys: One tensor (heads, tokens, size) per layer.
        values: The same for the values.
    """

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(frozen=True)
class RowGroup:
    """Adjacent rows of a batch and the cached prefix they share.

    Args:
        start: First row.
        stop: Row after the last one.
        prefix: The prefix, up to the longest part that one of the rows uses; `None` if they use none.
        bias_BT: Masks the part that a row does not use; `None` if all rows use all of it.
    """

    start: int
    stop: int
    prefix: PrefixCache | None
    bias_BT: Tensor | None

    @staticmethod
    def of(start: int, prefix: PrefixCache | None, cached_B: Ints, device: Any) -> RowGroup:
        """The group of the rows from `start` on that use `cached_B` tokens of a prefix, one number per row."""
        stop, longest = start + len(cached_B), int(cached_B.max())
        if prefix is None or not longest:
            return RowGroup(start, stop, None, None)
        used = PrefixCache(*([layer[:, :longest] for layer in layers] for layers in (prefix.keys, prefix.values)))
        bias = None
        if (cached_B != longest).any():
            unused_BT = torch.arange(longest, device=device) >= torch.as_tensor(cached_B, device=device)[:, None]
            bias = torch.where(unused_BT, -torch.inf, 0.0).to(used.keys[0].dtype)
        return RowGroup(start, stop, used, bias)


def shared_prefixes(contexts: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], Ints]:
    """The fewest sequences of which every context without its last token is a prefix, and which of them is whose."""
    heads = sorted({context[:-1] for context in contexts})
    # In lexicographic order a sequence comes right before its extensions.
    pairs = zip(heads, [*heads[1:], None], strict=True)
    longest = [head for head, following in pairs if following is None or following[: len(head)] != head]
    return longest, np.array([bisect_left(longest, context[:-1]) for context in contexts], np.int64)


def prefill(model: Any, tokens: tuple[int, ...], *, layers: int, name: str) -> PrefixCache | None:
    """Keys and values of a token sequence; `None` if it is empty."""
    if not tokens:
        return None
    ids = torch.as_tensor([tokens], device=model.device)
    cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    if len(cache.layers) != layers:
        raise OpdAlignError(f"{name!r} caches {len(cache.layers)} layers, {layers} were expected")
    return PrefixCache([layer.keys[0] for layer in cache.layers], [layer.values[0] for layer in cache.layers])


def kv_bytes_per_token(model: Any) -> int:
    """Memory of the keys and values of one token, in all layers."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * int(model.dtype.itemsize)


def free_bytes(device: Any) -> int:
    """Memory that is free on a device, including what torch holds without using it."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(held)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fitting_tokens(model: Any) -> int:
    """How many tokens a batch may have in memory: by the memory that is free, at most `MAX_BATCH_TOKENS`."""
    fitting = int(KV_SHARE * free_bytes(model.device)) // kv_bytes_per_token(model)
    return max(1, min(MAX_BATCH_TOKENS, fitting))


def generation_cache() -> Cache:
    """A cache for the tokens that the rows of a batch generate."""
    return Cache(layer_class_to_replicate=_GeneratedLayer)


class _GeneratedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of generated tokens, in a buffer that doubles: a step writes in place and copies nothing."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.is_initialized, self.length = True, 0
            self.buffer = key_states.new_empty(2, *key_states.shape[:2], 32, key_states.shape[-1])
        if self.length == self.buffer.shape[-2]:
            self.buffer = torch.cat([self.buffer, torch.empty_like(self.buffer)], dim=-2)
        self.buffer[0, :, :, self.length] = key_states[:, :, 0]
        self.buffer[1, :, :, self.length] = value_states[:, :, 0]
        self.length += 1
        self.keys, self.values = self.buffer[:, :, :, : self.length]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        self.buffer = self.buffer[:, indices]


@contextmanager
def shared_prefix_attention(model: Any) -> Iterator[None]:
    """Inside this context the model uses the attention of this module; its forward takes `opd_align_groups`."""
    config = model.config.get_text_config(decoder=True)
    previous = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = previous


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    opd_align_groups: Sequence[RowGroup],
    **options: Any,
) -> tuple[Tensor, None]:
    """One new token per row over the prefix that it shares and the row's own tokens, in one softmax."""
    unsupported = [name for name in ("sliding_window", "softcap", "s_aux") if options.get(name) is not None]
    if unsupported:
        raise OpdAlignError(
            f"sampling does not support attention with {unsupported[0]}; use the vLLM backend for this model"
        )
    rows, heads, _, size = query.shape
    kv_heads = key.shape[1]
    query = (query * scaling).view(rows, kv_heads, heads // kv_heads, size)
    own_logits = query @ key.transpose(-1, -2)
    outputs = [
        _group_attention(
            module.layer_idx, group, *(part[group.start : group.stop] for part in (query, own_logits, value))
        )
        for group in opd_align_groups
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output.reshape(rows, 1, heads, value.shape[-1]), None


def _group_attention(layer: int, group: RowGroup, query: Tensor, own_logits: Tensor, value: Tensor) -> Tensor:
    if group.prefix is None:
        return torch.softmax(own_logits, dim=-1, dtype=torch.float32).to(value.dtype) @ value
    prefix_key, prefix_value = group.prefix.keys[layer], group.prefix.values[layer]
    rows, kv_heads, queries_per_kv, size = query.shape
    # Grouped by key head, one matrix product covers the prefix for all rows and query heads.
    grouped_query = query.transpose(0, 1).reshape(kv_heads, -1, size)
    prefix_logits = (grouped_query @ prefix_key.transpose(-1, -2)).view(kv_heads, rows, queries_per_kv, -1)
    if group.bias_BT is not None:
        prefix_logits += group.bias_BT[:, None]
    weight = torch.softmax(torch.cat([prefix_logits.transpose(0, 1), own_logits], dim=-1), dim=-1, dtype=torch.float32)
    weight = weight.to(value.dtype)
    length = prefix_logits.shape[-1]
    prefix_output = weight[..., :length].transpose(0, 1).reshape(kv_heads, -1, length) @ prefix_value
    return prefix_output.view(kv_heads, rows, queries_per_kv, -1).transpose(0, 1) + weight[..., length:] @ value


# Registered without a mask function: transformers then builds no mask, and `_attention` needs none.
AttentionInterface.register(ATTENTION, _attention)


def full_attention_layers(model: Any, name: str) -> int:
    """Number of layers; models with a layer that does not attend to the whole context are rejected."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    layers = DynamicCache(config=model.config).layers
    unsupported = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if unsupported or not layers or not getattr(base, "_supports_attention_backend", False):
        raise OpdAlignError(
            f"{name!r} ({type(base).__name__}) cannot be sampled with the hf backend: every layer must attend to the "
            f"whole context, through transformers' attention interface"
            f"{f' (it has {unsupported[0]})' if unsupported else ''}; use the vLLM backend"
        )
    return len(layers)
