"""Whether sharded weights fit into a device's memory once they are gathered, estimated before they are.

A rank that runs out of memory inside a collective operation leaves the others waiting in it for ever. So this is
checked first, with vLLM awake and on all ranks, and the evaluation is refused instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from opd_align.training.distributed import EvaluationFailed

MARGIN = 0.1
"""Share of the gathered weights that must be free beside them, for activations and fragments."""

GIB = 2**30

CGROUP = ("memory.max", "memory.current")
"""Files with the limit of a container's memory and with what it uses (cgroup v2)."""


def gathered_bytes(models: Iterable[Any], dtype: torch.dtype | None = None) -> int:
    """The memory for all sharded weights of some models in full; a weight that several of them use counts once.

    Args:
        models: The models.
        dtype: What FSDP2's weights are converted to. Each of them is gathered in its own dtype first, so the largest
            one is counted in both. `None`: they are not converted.
    """
    weights = {id(weight): weight for model in models for weight in model.parameters()}.values()
    converted = [each for each in weights if isinstance(each, DTensor) and each.is_floating_point() and dtype]
    before = max((each.numel() * each.element_size() for each in converted if each.dtype != dtype), default=0)
    return before + sum(_full_bytes(weight, dtype) for weight in weights)


def _full_bytes(weight: Any, dtype: torch.dtype | None) -> int:
    """The size of a weight if it is sharded, in full; 0 if it is not."""
    if hasattr(weight, "ds_numel"):  # ZeRO-3: the weight itself is empty
        return int(weight.ds_numel) * int(weight.element_size())
    if not isinstance(weight, DTensor):
        return 0
    size = dtype.itemsize if dtype is not None and weight.is_floating_point() else weight.element_size()
    return int(weight.numel()) * int(size)


def free_bytes(device: torch.device) -> int | None:
    """What PyTorch can still allocate on a device, its own cache included; `None` if the device does not say."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_host_bytes() -> int | None:
    """What this machine, or the container, can still allocate; `None` where Linux's files do not say."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" without a limit
        most, used = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in CGROUP)
        limits.append(max(int(most) - int(used), 0))
    return min(limits, default=None)


def check_host_memory(num_bytes: int) -> None:
    """Refuses an evaluation for whose copies, of so many bytes on each rank, the machine has no memory."""
    ranks, free = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), free_host_bytes()
    needed = round((1 + MARGIN) * num_bytes * ranks)
    if free is not None and needed > free:
        raise EvaluationFailed(
            f"copies of the base weights need {needed / GIB:.1f} GiB of the machine's memory for {ranks} ranks, and "
            f"{free / GIB:.1f} GiB are free; evaluation refused (use vllm_mode='server' or no sleep mode, or analyze "
            "checkpoints offline: opd-align analyze --student CHECKPOINT)"
        )


def check_memory(
    device: torch.device, models: Iterable[Any], *, dtype: torch.dtype | None = None, beside_vllm: bool
) -> None:
    """Refuses an evaluation whose gathered weights would not fit; for `dtype` see `gathered_bytes`."""
    free = free_bytes(device)
    needed = round((1 + MARGIN) * gathered_bytes(models, dtype))
    if free is not None and needed > free:
        advice = "vllm_mode='server' or a smaller vllm_gpu_memory_utilization" if beside_vllm else "ZeRO-2"
        raise EvaluationFailed(
            f"the gathered weights of student and teachers need {needed / GIB:.1f} GiB on {device}, and "
            f"{free / GIB:.1f} GiB are free{' beside vLLM' if beside_vllm else ''}; evaluation refused (use {advice}, "
            "or analyze checkpoints offline: opd-align analyze --student CHECKPOINT)"
        )
