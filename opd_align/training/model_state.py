"""A live model is borrowed: what an evaluation needs of a trainer in the middle of its work, and puts back.

Whatever happens inside, afterwards every module is in the mode it was in, buffers and settings are what they were,
and all random numbers go on where they stopped: a training that was looked at is the training that was not. Weights
that are spread over processes are brought together for the time of the block.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def preserve_model_state(*models: Any, tokenizer: Any = None) -> Iterator[None]:
    """Within, the models evaluate without gradients; afterwards they, the tokenizer and all dice are as they were."""
    modules = {id(module): module for model in models for module in model.modules()}.values()
    training = [(module, module.training) for module in modules]
    caching = [(config, config.use_cache) for config in _configs(models)]
    # Buffers may change in a forward pass: dynamic rotary embeddings grow with the longest text they have seen.
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    seen = [(module, module.max_seq_len_cached) for module in modules if hasattr(module, "max_seq_len_cached")]
    side = getattr(tokenizer, "padding_side", None)
    with preserve_rng_state(), torch.no_grad():
        for module, _ in training:
            module.training = False
        try:
            yield
        finally:
            for module, mode in training:
                module.training = mode
            for config, cached in caching:
                config.use_cache = cached
            for module, name, buffer, content in buffers:
                buffer.copy_(content)
                module._buffers[name] = buffer
            for module, longest in seen:
                module.max_seq_len_cached = longest
            if side is not None and tokenizer.padding_side != side:
                tokenizer.padding_side = side


def _configs(models: tuple[Any, ...]) -> list[Any]:
    configs = {id(model.config): model.config for model in models if hasattr(model, "config")}
    return [config for config in configs.values() if hasattr(config, "use_cache")]


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """The states of all generators that a trainer draws from, put back at the end."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    devices = [
        (backend, backend.get_rng_state(number), number)
        for backend in (torch.cuda, torch.xpu)
        if backend.is_available() and getattr(backend, "is_initialized", lambda: True)()
        for number in range(backend.device_count())
    ]
    apple = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
        torch.set_rng_state(tensors)
        for backend, state, number in devices:
            backend.set_rng_state(state, number)
        if apple is not None:
            torch.mps.set_rng_state(apple)


@contextmanager
def gathered_parameters(accelerator: Any, *models: Any) -> Iterator[list[Any]]:
    """The models beneath their wrappers, all weights on this process; entered and left by all processes together.

    Under ZeRO-3 a forward pass is collective, and ranks with unequal work would wait for each other for ever: so the
    weights are gathered first, and each process may do as much or as little as it likes.
    """
    with ExitStack() as stack:
        if is_zero3(accelerator):
            for model in models:
                stack.enter_context(_gathered(model))
        # Not as compiled: shapes that training never sees would use up the compiler's patience with this model.
        yield [accelerator.unwrap_model(model, keep_torch_compile=False) for model in models]


def is_zero3(accelerator: Any) -> bool:
    """Whether DeepSpeed spreads the weights over the processes."""
    plugin = accelerator.state.deepspeed_plugin
    return plugin is not None and plugin.zero_stage == 3


@contextmanager
def _gathered(model: Any) -> Iterator[None]:
    import deepspeed
    from trl.models.utils import add_hooks, remove_hooks

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        remove_hooks(model)
        try:
            yield
        finally:
            add_hooks(model)
