"""Whether sharded weights fit into a device's memory once they are gathered, estimated before they are.

A rank that runs out of memory inside a collective operation leaves the others waiting in it for ever. So this is
checked first, with vLLM awake and on all ranks, and the evaluation is refused instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from opd_align.training.distributed import EvaluationFailed

MARGIN = 0.1
"""Share of the gathered weights that must be free beside them, for activations and fragments."""

GIB = 2**30


def gathered_bytes(models: Iterable[Any]) -> int:
    """The full size of all sharded weights of some models; a weight that several of them use counts once."""
    weights = {id(weight): weight for model in models for weight in model.parameters()}
    return sum(_numel_if_sharded(weight) * weight.element_size() for weight in weights.values())


def _numel_if_sharded(weight: Any) -> int:
    if hasattr(weight, "ds_numel"):  # ZeRO-3: the weight itself is empty
        return int(weight.ds_numel)
    return int(weight.numel()) if isinstance(weight, DTensor) else 0


def free_bytes(device: torch.device) -> int | None:
    """What PyTorch can still allocate on a device, its own cache included; `None` if the device does not say."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def check_memory(device: torch.device, models: Iterable[Any], *, beside_vllm: bool) -> None:
    """Refuses an evaluation whose gathered weights would not fit."""
    free = free_bytes(device)
    needed = round((1 + MARGIN) * gathered_bytes(models))
    if free is not None and needed > free:
        advice = "vllm_mode='server' or a smaller vllm_gpu_memory_utilization" if beside_vllm else "ZeRO-2"
        raise EvaluationFailed(
            f"the gathered weights of student and teacher need {needed / GIB:.1f} GiB on {device}, and "
            f"{free / GIB:.1f} GiB are free{' beside vLLM' if beside_vllm else ''}; evaluation refused (use {advice}, "
            "or analyze checkpoints offline: opd-align analyze --student CHECKPOINT)"
        )
