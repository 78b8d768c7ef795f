"""The precision in which models are scored.

Weights stay in memory as they were loaded, usually in bfloat16, which is what they are sampled with. Where student and
teacher are close, the difference of two bfloat16 log-probabilities is mostly rounding; so scoring computes in float32:
each layer's weights are converted when the layer is called and released when it returns. That takes the memory of one
layer, not of a second copy of the model. How many digits a loss needs is up to its trainer: in training, models are
scored in the precision of the loss (`native`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from opd_align.settings import Precision

MAX_FLOAT32_PARAMETERS = 5_000_000_000
"""On a GPU, matrix products in float32 take about 15 times as long as in bfloat16."""

ATTENTION = "opd_align_float32"
"""Name under which transformers knows the attention that scores in float32 on a GPU."""

_HALF = (torch.bfloat16, torch.float16)


def scoring_precision(model: Any, precision: Precision) -> Precision:
    """What a setting means for a model: `float32`, `head` or `native`.

    A model in float32 is scored as it is. Of a quantised model only the output layer is converted: its other weights
    are integers that only their own kernels can read. So are weights that are not in memory between calls.
    """
    weights = list(model.parameters())
    if precision == "native" or not any(weight.dtype in _HALF for weight in weights):
        return "native"
    head = list(model.get_output_embeddings().parameters())
    if any(weight.device.type == "meta" or not _is_plain(weight) for weight in head):
        return "native"
    if any(weight.device.type == "meta" or not _is_plain(weight) for weight in weights):
        return "head"
    if precision == "auto":
        small = sum(weight.numel() for weight in weights) <= MAX_FLOAT32_PARAMETERS
        return "float32" if small else "head"
    return precision


def _is_plain(weight: Any) -> bool:
    return weight.dtype in (*_HALF, torch.float32, torch.float64)


def stored_dtype(model: Any) -> str:
    """The dtype of most weights, such as `bfloat16`."""
    counts: dict[Any, int] = {}
    for weight in model.parameters():
        counts[weight.dtype] = counts.get(weight.dtype, 0) + weight.numel()
    return str(max(counts, key=lambda dtype: counts[dtype])).removeprefix("torch.") if counts else "none"


@contextmanager
def float32_weights(*modules: Any) -> Iterator[None]:
    """Inside this context the modules' half-precision weights and buffers are in float32."""
    originals = _convert(*modules)
    try:
        with _exact_products():
            yield
    finally:
        _restore(originals)


@contextmanager
def float32_layers(model: Any, body: Any) -> Iterator[None]:
    """Inside this context the model's body computes in float32, one layer's weights at a time, outside of autocast."""
    converted: dict[Any, list[tuple[Any, Any]]] = {}

    def before(module: Any, *_: Any) -> None:
        converted[module] = _convert(module)

    def after(module: Any, *_: Any) -> None:
        _restore(converted.pop(module, []))

    handles = []
    try:
        for layer in _layers(body):
            handles += [
                layer.register_forward_pre_hook(before),
                layer.register_forward_hook(after, always_call=True),
            ]
        with float32_attention(model), _exact_products(), torch.autocast(model.device.type, enabled=False):
            yield
    finally:
        for handle in handles:
            handle.remove()
        for originals in converted.values():
            _restore(originals)


@contextmanager
def _exact_products() -> Iterator[None]:
    """Inside this context matrix products of float32 have its digits: TF32, which some images switch on, has fewer."""
    try:
        previous = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    except RuntimeError:  # set through torch's newer interface, which cannot be mixed with this one
        yield
        return
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextmanager
def float32_attention(model: Any) -> Iterator[None]:
    """Inside this context the model's attention is one that has a kernel in float32 on its device."""
    config = model.config.get_text_config(decoder=True)
    previous = config._attn_implementation
    config._attn_implementation = attention_in_float32(str(previous), model.device.type)
    try:
        yield
    finally:
        config._attn_implementation = previous


def attention_in_float32(name: str, device_type: str) -> str:
    """Which attention of transformers to use in float32 instead of another one."""
    if name != "sdpa" and "flash" not in name:  # flash attention would round to half precision
        return name
    return ATTENTION if device_type == "cuda" else "sdpa"


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """torch's attention with as many heads of keys and values as of queries.

    With fewer, torch has no kernel in float32 on a GPU but the one that makes the matrix of all pairs of positions: 60
    GB for 30,000 tokens and 16 heads.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    ungrouped = SimpleNamespace(num_key_value_groups=1, is_causal=getattr(module, "is_causal", True))
    output: Tensor = sdpa_attention_forward(ungrouped, query, key, value, attention_mask, **options)[0]  # type: ignore[arg-type]
    return output, None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _layers(body: Any) -> Iterator[Any]:
    """The parts of a body that are called one after the other: its layers, and what stands before and after them."""
    for part in body.children():
        yield from part if isinstance(part, torch.nn.ModuleList) else (part,)


def _convert(*modules: Any) -> list[tuple[Any, Any]]:
    """Converts half-precision tensors to float32 in place; returns them with their original contents."""
    originals = []
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype in _HALF:
                originals.append((tensor, tensor.data))
                tensor.data = tensor.data.float()
    return originals


def _restore(originals: list[tuple[Any, Any]]) -> None:
    for tensor, data in originals:
        tensor.data = data
