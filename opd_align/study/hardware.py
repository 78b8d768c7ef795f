"""GPUs as the plan of a study sees them: how many, and how much memory each has.

What is there is asked of the driver (`nvidia-smi`), not of torch: a process that only plans must not create a CUDA
context, which takes half a gigabyte of the first GPU. GPUs are numbered as a process sees them, from 0, whatever their
numbers in the machine are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from opd_align.types import OpdAlignError, shortened

GIB = 2**30
USABLE = 0.985
"""Share of a GPU's nominal memory that programs can use; driver and page tables take the rest."""
MAX_GPUS = 4096
QUERY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        total_bytes: Its memory as programs see it; vLLM's `gpu_memory_utilization` is a share of this.
        free_bytes: What of it is free.
        name: What it is called in tables.
    """

    total_bytes: int
    free_bytes: int
    name: str


def parse_hardware(text: str) -> list[Gpu]:
    """GPUs that are described as `8x80`: eight GPUs with 80 GB each."""
    match = re.fullmatch(r"(\d{1,4})\s*[x×]\s*(\d{1,4})(?:\s*GB)?", text.strip(), re.IGNORECASE)
    count, memory = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= count <= MAX_GPUS or not memory:
        raise OpdAlignError(f"hardware is described as COUNTxGB, such as 1x80 or 8x40, not {shortened(text)}")
    size = round(USABLE * memory * GIB)
    return [Gpu(size, size, f"{memory} GB")] * count


def parse_gpu_numbers(text: str) -> list[int]:
    """The numbers of GPUs, from a list such as `0-7` or `0,2,5`."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise OpdAlignError(f"--gpus takes numbers of GPUs, such as 0-7 or 0,2,5, not {shortened(text)}")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(numbers)) < len(numbers):
        raise OpdAlignError(f"--gpus {shortened(text)} names a GPU twice")
    return numbers


def visible_gpus(numbers: Sequence[int] | None = None) -> list[Gpu]:
    """The GPUs that a process started now would see; empty without GPUs, or where the driver cannot be asked.

    Args:
        numbers: Only these, numbered as this process sees them. `None`: all that `CUDA_VISIBLE_DEVICES` allows.
    """
    found = _visible(_installed(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if numbers is None:
        return list(found.values())
    missing = [number for number in numbers if number >= len(found)]
    if missing:
        count = f"{_count(len(found))} visible, numbered from 0" if found else "no GPU is visible"
        raise OpdAlignError(f"there is no GPU {missing[0]}; {count}")
    return [list(found.values())[number] for number in numbers]


def visible_devices(numbers: Sequence[int]) -> str:
    """`CUDA_VISIBLE_DEVICES` of a process that sees only these GPUs of those that this process sees."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(MAX_GPUS)] if allowed is None else _names(allowed)
    missing = [number for number in numbers if number >= len(names)]
    if missing:
        raise OpdAlignError(f"there is no GPU {missing[0]}: CUDA_VISIBLE_DEVICES is {allowed!r}")
    return ",".join(names[number] for number in numbers)


def _count(n: int) -> str:
    return f"{n} GPU{'' if n == 1 else 's'} {'is' if n == 1 else 'are'}"


def _names(allowed: str) -> list[str]:
    # CUDA ignores what comes after the first entry that is not valid.
    names = [name.strip() for name in allowed.split(",")]
    invalid = [number for number, name in enumerate(names) if not name or name.startswith("-")]
    return names[: invalid[0]] if invalid else names


def _visible(installed: dict[str, Gpu], allowed: str | None) -> dict[str, Gpu]:
    if allowed is None:
        return {key: gpu for key, gpu in installed.items() if key.isdecimal()}
    chosen: dict[str, Gpu] = {}
    for name in _names(allowed):
        match = next((key for key in installed if key == name or (not key.isdecimal() and key.startswith(name))), None)
        if match is None:
            break
        chosen[name] = installed[match]
    return chosen


def _installed() -> dict[str, Gpu]:
    """Every GPU of the machine, by number and by UUID."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = ["--query-gpu=index,uuid,memory.total,memory.free,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([command, *query], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, Gpu] = {}
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5 or not (cells[2].isdecimal() and cells[3].isdecimal()):
            continue  # a GPU that does not report its memory, such as one split into MIG instances
        gpu = Gpu(int(cells[2]) << 20, int(cells[3]) << 20, cells[4])
        found |= {cells[0]: gpu, cells[1]: gpu}
    return found
