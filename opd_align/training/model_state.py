"""Context managers that make a trainer's live models usable for an evaluation and restore their state afterwards.

Whatever happens within the block, afterwards every module is in its previous mode, buffers and settings have their
previous values, and all random number generators continue where they stopped: training is bit-identical to training
without the evaluation. Weights that are sharded over processes are gathered for the duration of the block.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from opd_align.training import trl_compat
from opd_align.types import OpdAlignError


@contextmanager
def preserve_model_state(*models: Any, tokenizer: Any = None) -> Iterator[None]:
    """Evaluation mode without gradients within the block; restores models, tokenizer and random number generators."""
    modules = {id(module): module for model in models for module in model.modules()}.values()
    training = [(module, module.training) for module in modules]
    use_cache = [(config, config.use_cache) for config in _configs(models)]
    # Buffers may change in a forward pass: dynamic rotary embeddings grow with the longest sequence they have seen.
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    cached_lengths = [
        (module, module.max_seq_len_cached) for module in modules if hasattr(module, "max_seq_len_cached")
    ]
    padding_side = getattr(tokenizer, "padding_side", None)
    with preserve_rng_state(), torch.no_grad():
        for module, _ in training:
            module.training = False
        try:
            yield
        finally:
            for module, mode in training:
                module.training = mode
            for config, value in use_cache:
                config.use_cache = value
            for module, name, buffer, content in buffers:
                buffer.copy_(content)
                module._buffers[name] = buffer
            for module, length in cached_lengths:
                module.max_seq_len_cached = length
            if padding_side is not None and tokenizer.padding_side != padding_side:
                tokenizer.padding_side = padding_side


def _configs(models: tuple[Any, ...]) -> list[Any]:
    configs = {id(model.config): model.config for model in models if hasattr(model, "config")}
    return [config for config in configs.values() if hasattr(config, "use_cache")]


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restores the states of all random number generators that a trainer draws from."""
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    devices = [
        (backend, backend.get_rng_state(index), index)
        for backend in (torch.cuda, torch.xpu)
        if backend.is_available() and getattr(backend, "is_initialized", lambda: True)()
        for index in range(backend.device_count())
    ]
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)
        for backend, state, index in devices:
            backend.set_rng_state(state, index)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)


def autocast_dtype(model: Any) -> str | None:
    """The name of the dtype that autocast uses for the model at this point; `None` without autocast."""
    kind = model.device.type
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if torch.is_autocast_enabled(kind) else None


def precision_name(model: Any) -> str:
    """The precision of a forward pass at this point, such as "float32 weights, bfloat16 autocast"."""
    return f"{str(model.dtype).removeprefix('torch.')} weights, {autocast_dtype(model) or 'no'} autocast"


@contextmanager
def gathered_parameters(accelerator: Any, *models: Any) -> Iterator[list[Any]]:
    """The unwrapped models with all weights on this process; all processes must enter and leave together.

    Under ZeRO-3 and FSDP2 a forward pass is a collective operation, and ranks with unequal work would deadlock. So the
    weights are gathered first, and each process may run any number of forward passes.
    """
    seen: set[int] = set()
    with ExitStack() as stack:
        for model in {id(model): model for model in models}.values():
            if is_zero3(accelerator):
                stack.enter_context(_gathered_zero3(model, seen))
            elif is_fsdp2(model):
                stack.enter_context(_gathered_fsdp2(model, accelerator))
        yield [unwrapped(accelerator, model) for model in models]


def unwrapped(accelerator: Any, model: Any) -> Any:
    """The model itself. Not the compiled one: shapes that training never sees would use up its recompile limit."""
    return accelerator.unwrap_model(model, keep_torch_compile=False)


def is_zero3(accelerator: Any) -> bool:
    """Whether DeepSpeed shards the weights over the processes."""
    plugin = accelerator.state.deepspeed_plugin
    return plugin is not None and plugin.zero_stage == 3


def is_fsdp2(model: Any) -> bool:
    """Whether `fully_shard` was applied to the model or to a part of it."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def check_teacher_is_loaded(trainer: Any) -> None:
    """Refuses a teacher that only the first process has the weights of: the others would learn from a model of zeros.

    With accelerate's `cpu_ram_efficient_loading` only the first process reads weights. FSDP then sends the student's to
    the others, but teachers are not sharded, and nobody sends theirs.
    """
    teacher = getattr(trainer, "teacher_model", None)
    if not getattr(trainer, "is_fsdp_enabled", False) or teacher is None or teacher is trainer.model:
        return
    if getattr(trainer.accelerator.state.fsdp_plugin, "cpu_ram_efficient_loading", False):
        raise OpdAlignError(
            "with fsdp_cpu_ram_efficient_loading only the first process loads weights, and those of teachers, "
            "which are not sharded, stay zero on the others; set it to false in accelerate's configuration"
        )


@contextmanager
def _gathered_zero3(model: Any, seen: set[int]) -> Iterator[None]:
    """Gathers the weights that are not in `seen`, and adds them: no weight can be gathered twice."""
    import deepspeed

    weights = [weight for weight in model.parameters() if id(weight) not in seen]
    seen.update(map(id, weights))
    with deepspeed.zero.GatheredParameters(weights, enabled=bool(weights)), trl_compat.without_hooks(model):
        yield


def fsdp2_dtype(accelerator: Any) -> torch.dtype | None:
    """The dtype that FSDP2 computes in, and that weights are gathered in; `None`: that of the weights."""
    policy = getattr(getattr(accelerator.state, "fsdp_plugin", None), "mixed_precision_policy", None)
    dtype: torch.dtype | None = getattr(policy, "param_dtype", None)
    return dtype


@contextmanager
def _gathered_fsdp2(model: Any, accelerator: Any) -> Iterator[None]:
    """Full weights in the place of the sharded ones, in the dtype that FSDP computes in, and none of FSDP's hooks.

    The sharded weights, which the optimizer holds, are not touched, and come back as the same objects. FSDP's own
    `unshard` would not do: body and output layer are called alone, in an order that its hooks do not expect.
    """
    dtype = fsdp2_dtype(accelerator)
    modules = list(model.modules())
    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()  # after a forward pass without a backward pass some weights are still gathered
    sharded = [
        (module, name, weight)
        for module in modules
        for name, weight in module._parameters.items()
        if isinstance(weight, DTensor)
    ]
    full: dict[int, torch.nn.Parameter] = {}  # tied weights stay tied
    with ExitStack() as stack:
        for module, name, weight in sharded:
            if id(weight) not in full:
                gathered = weight.full_tensor().detach()
                # With offloading, the weights are gathered on the CPU.
                gathered = gathered.to(accelerator.device, dtype if gathered.is_floating_point() else None)
                full[id(weight)] = torch.nn.Parameter(gathered, requires_grad=False)
            stack.callback(module._parameters.__setitem__, name, weight)
            module._parameters[name] = full[id(weight)]
        for module in modules:
            for attribute in ("_forward_pre_hooks", "_forward_hooks"):
                hooks = getattr(module, attribute)
                others = {number: hook for number, hook in hooks.items() if not _is_fsdp_hook(hook)}
                if len(others) < len(hooks):
                    stack.callback(setattr, module, attribute, hooks)
                    setattr(module, attribute, OrderedDict(others))
        yield


def _is_fsdp_hook(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
