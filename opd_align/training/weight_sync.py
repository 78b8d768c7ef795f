"""The trainer's weights in its vLLM, for an evaluation: the model is the same afterwards, and all ranks stay in step.

TRL sends the weights one by one while it iterates over the model (`_iter_named_params`). Two things need care. With
adapters, it merges them into the base weights first and unmerges them at the end: this rounds the base weights, and
does not happen at all if sending fails in between. So the base weights are copied first and restored in any case. And
with ZeRO-3 or FSDP2 every step of the iteration is a collective operation: a rank that fails finishes its iteration
before it reports the failure, otherwise the others would wait for it.

The private names of TRL and PEFT that this module uses are in the tables of `trl_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from opd_align.training import trl_compat
from opd_align.training.memory import MARGIN, check_host_memory, free_bytes

Agree = Callable[[Callable[[], Any], str], Any]


@contextmanager
def vllm_ready(trainer: Any, agree: Agree) -> Iterator[None]:
    """Within the block the trainer's vLLM, if it has one, is awake and has the weights of this step.

    Args:
        trainer: The trainer.
        agree: Executes a function, a named stage, on all ranks; raises on all of them if it raises on one.
    """
    vllm = trl_compat.vllm_generation(trainer)
    if vllm is None:
        yield
        return
    sleeps = vllm.mode == "colocate" and vllm.enable_sleep_mode
    adapted = trl_compat.resolve("is_peft_model")(vllm.model)
    loaded_step = getattr(trainer, "_last_loaded_step", -1)
    # Whether the trainer syncs before its next generation must be the same on all ranks: syncing is collective. Until
    # all ranks have synced, the weights in vLLM may be a mixture, and the trainer must sync.
    trainer._last_loaded_step = -1
    try:
        with ExitStack() as stack:
            if adapted:
                saved = preserve_base_weights(vllm.model, on_cpu=sleeps)  # a waking vLLM needs the memory
                agree(lambda: stack.enter_context(saved), "saving the base weights")
            _sync(vllm, agree)
        if sleeps:
            agree(lambda: vllm.llm.wake_up(tags=["kv_cache"]), "waking vLLM")
        # The trainer's next generation uses these very weights, so it need not sync again. With adapters it must do
        # what it does without us: its own merging rounds the base weights.
        trainer._last_loaded_step = loaded_step if adapted else trainer.state.global_step
        yield
    finally:
        if sleeps:
            vllm._llm_weights_sleeping = True
            vllm.llm.sleep(level=2)


def _sync(vllm: Any, agree: Agree) -> None:
    """Sends the weights to vLLM; if that fails on one rank, the next sync starts alike on all."""
    metadata = getattr(vllm, "_weight_metadata", None)  # of a server; collected by the first sync on all ranks
    try:
        agree(lambda: sync_weights(vllm), "syncing weights to vLLM")
    except Exception:
        if hasattr(vllm, "_weight_metadata"):
            vllm._weight_metadata = metadata
        raise


def sync_weights(vllm: Any) -> None:
    """TRL's `sync_weights`; after a failure, this rank first takes part in the rest of the collective operations."""
    iterate, started = vllm._iter_named_params, list[Iterator[Any]]()
    # The first sync to a server iterates twice: once for names and shapes.
    passes = 2 if vllm.mode == "server" and vllm._weight_metadata is None else 1

    def recorded() -> Iterator[Any]:
        started.append(iterate())
        return started[-1]

    with _replaced(vllm, "_iter_named_params", recorded):
        try:
            vllm.sync_weights()
        except Exception:
            for iterator in [*started, *(iterate() for _ in range(passes - len(started)))]:
                with suppress(Exception):  # the first failure is the one to report
                    for _ in iterator:
                        pass
            raise


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of an object within the block."""
    own = vars(owner).copy()
    setattr(owner, name, value)
    try:
        yield
    finally:
        if name in own:
            setattr(owner, name, own[name])
        else:
            delattr(owner, name)


# -- adapters -------------------------------------------------------------------------------------------------------


@contextmanager
def preserve_base_weights(model: Any, *, on_cpu: bool = False) -> Iterator[None]:
    """Restores a PEFT model after its adapters were merged, completely or in part, and unmerged or not.

    The base weights are restored bit for bit, and those adapters are merged that were merged before.

    Args:
        model: A model with adapters.
        on_cpu: Keep the copies on the CPU. They are there in any case if the device has too little free memory.
    """
    layer_class = trl_compat.resolve("BaseTunerLayer")
    layers = [module for module in model.modules() if isinstance(module, layer_class)]
    merged = [(layer, [*layer.merged_adapters], dict(getattr(layer, "_caches", {}))) for layer in layers]
    # Some kinds of adapters replace parameters or modules when they are merged.
    modules = {id(module): module for layer in layers for module in layer.modules()}.values()
    members = [(members, [*members.items()]) for each in modules for members in (each._parameters, each._modules)]
    base = {id(weight): weight for layer in layers for weight in layer.get_base_layer().parameters()}
    # What ZeRO-3 gathers is discarded after the merge; its shards are not touched.
    weights = [weight for weight in base.values() if not hasattr(weight, "ds_id")]
    copies = _copies(weights, on_cpu=on_cpu)
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, entries in members:
                if _identities(owner.items()) != _identities(entries):
                    owner.clear()
                    owner.update(entries)
            for weight, (local, copy) in zip(weights, copies, strict=True):
                local.copy_(copy)
                if not isinstance(weight, DTensor) and weight.data_ptr() != local.data_ptr():
                    weight.data = local
        for layer, names, caches in merged:
            layer.merged_adapters[:] = names
            if hasattr(layer, "_caches"):
                layer._caches.clear()
                layer._caches.update(caches)


def _identities(entries: Iterable[tuple[str, Any]]) -> list[tuple[str, int]]:
    return [(name, id(entry)) for name, entry in entries]


def _copies(weights: Iterable[Any], *, on_cpu: bool) -> list[tuple[Any, Any]]:
    """For each weight the tensor on this rank, with its own memory, and a copy of it."""
    locals_ = [weight.to_local().detach() if isinstance(weight, DTensor) else weight.data for weight in weights]
    needed: dict[torch.device, int] = {}
    for tensor in locals_:
        needed[tensor.device] = needed.get(tensor.device, 0) + tensor.nbytes
    places = {device: copy_device(device, size, on_cpu=on_cpu) for device, size in needed.items()}
    check_host_memory(sum(size for device, size in needed.items() if places[device].type == "cpu"))
    return [(tensor, tensor.to(places[tensor.device], copy=True)) for tensor in locals_]


def copy_device(device: torch.device, num_bytes: int, *, on_cpu: bool) -> torch.device:
    """Where copies of so many bytes on a device are kept: there if they fit, otherwise on the CPU."""
    free = free_bytes(device)
    fits = free is not None and (1 + MARGIN) * num_bytes <= free
    return device if fits and not on_cpu else torch.device("cpu")
