"""From the command line to GPUs: the plan of memory, the processes that share the work, where models are placed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from opd_align.types import OpdAlignError

if TYPE_CHECKING:
    from opd_align.study.build import Study
    from opd_align.study.config import StudyConfig
    from opd_align.study.hardware import Gpu
    from opd_align.study.processes import Slot

EXAMPLES = ("1x80", "8x80", "8x40")
"""Hardware that the plan is printed for where there is no GPU."""


def planned_gpus(args: argparse.Namespace) -> list[Gpu]:
    """The GPUs that a plan is for: those that are described, chosen, or visible; empty without GPUs."""
    from opd_align.study.hardware import parse_gpu_numbers, parse_hardware, visible_gpus

    if args.hardware is not None:
        return parse_hardware(args.hardware)
    return visible_gpus(None if args.gpus is None else parse_gpu_numbers(args.gpus))


def print_memory(args: argparse.Namespace, config: StudyConfig) -> None:
    """Prints what each GPU would hold, from configs alone: before questions are read or a model is loaded."""
    from rich.console import Console

    from opd_align.study.hardware import parse_hardware
    from opd_align.study.memory_plan import plan_memory
    from opd_align.study.plan import memory_table

    gpus = planned_gpus(args)
    described = {_name(gpus): gpus} if gpus else {_name(found): found for found in map(parse_hardware, EXAMPLES)}
    Console().print(memory_table({name: plan_memory(config, found) for name, found in described.items()}))


def other_processes(args: argparse.Namespace, config: StudyConfig) -> list[Slot] | None:
    """The processes of --gpus and --processes; `None`: this process does the work.

    Raises `OpdAlignError` if the study does not fit the GPUs.
    """
    from opd_align.study.hardware import parse_gpu_numbers, visible_devices, visible_gpus
    from opd_align.study.memory_plan import check_memory, plan_memory
    from opd_align.study.processes import Slot, cpu_slots

    if args.gpus is None and args.processes is None:
        return None
    if args.gpus is None and not visible_gpus():
        return cpu_slots(args.processes)
    numbers = list(range(len(visible_gpus()))) if args.gpus is None else parse_gpu_numbers(args.gpus)
    gpus = visible_gpus(numbers)
    plan = plan_memory(config, gpus)
    check_memory(plan)
    if args.processes is not None and args.processes > plan.processes:
        raise OpdAlignError(
            f"--processes {args.processes} needs more than {len(numbers)} GPUs: each process has {len(plan.gpus)}"
        )
    count = len(plan.gpus)
    slots = []
    for at in range(args.processes or plan.processes):
        team = slice(at * count, (at + 1) * count)
        # Measured before any process is started: one that is started again finds the memory of the dead one in use.
        share = min(gpu.free_bytes / gpu.total_bytes for gpu in gpus[team])
        name = f"GPU {', '.join(map(str, numbers[team]))}"
        slots.append(Slot(name, visible_devices(numbers[team]), gpu_share=share))
    return slots


def placed_study(study: Study) -> Study:
    """The study with its models on the GPUs of this process; raises `OpdAlignError` if they do not fit."""
    from opd_align.study.memory_plan import placed_on_visible_gpus

    return replace(study, config=placed_on_visible_gpus(study.config))


def _name(gpus: list[Gpu]) -> str:
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    return f"{len(gpus)} × {', '.join(names)}"
