"""Snapshots of a training to return to: trainable weights and optimizer state at a few steps.

Each process keeps what it holds itself: a full copy, or its shard under FSDP2. Snapshots on disk outlive the process
and are found again by a resumed training; those in memory are faster and are lost. Which ones are kept when there are
too many is decided by the caller's values. DeepSpeed keeps its weights elsewhere and is not supported.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from opd_align.training.distributed import on_all_ranks
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

Place = Literal["disk", "memory"]
PLACES = ("disk", "memory")


class WeightSnapshots:
    """Snapshots by step.

    Args:
        trainer: The trainer.
        folder: Where snapshots on disk are written.
        place: "disk" or "memory" (of the host).
        limit: Largest number of snapshots, at least 2.
    """

    def __init__(self, trainer: Any, folder: Path, *, place: Place = "disk", limit: int = 6) -> None:
        if place not in PLACES:
            raise OpdAlignError(f"snapshots must be 'disk' or 'memory', not {place!r}")
        if limit < 2:
            raise OpdAlignError(f"max_snapshots must be at least 2, not {limit}: one to return to and the latest one")
        self.trainer, self.folder, self.place, self.limit = trainer, folder, place, limit
        self._steps: list[int] = []
        self._in_memory: dict[int, dict[str, Any]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that can be returned to, ascending."""
        return tuple(self._steps)

    def begin(self, step: int) -> None:
        """Starts at a step: what an earlier training has left for later steps is removed, the rest is found again."""
        self._in_memory = {at: each for at, each in self._in_memory.items() if at <= step}
        found = {*self._in_memory}
        if self.place == "disk":
            for path in self.folder.glob(f"step-*/{self._file_name}"):
                at = int(match[1]) if (match := re.fullmatch(r"step-(\d+)", path.parent.name)) else step + 1
                found.add(at)
        # A training from its beginning shares nothing with what is in the folder, not even its first weights.
        for at in sorted(found):
            if at > step or step == 0:
                self._remove(at)
                found.discard(at)
        self._steps = sorted(found)

    def common_steps(self) -> list[int]:
        """The steps that every process can return to; all of them must call this."""
        everywhere = on_all_ranks(lambda: self._steps, "snapshots")
        return sorted(set.intersection(*map(set, everywhere)))

    def take(self, step: int) -> None:
        """Keeps the present state; a snapshot of the same step is replaced."""
        content = {"weights": [_to_host(weight) for weight in self._weights()], "optimizer": self._optimizer_state()}
        if self.place == "memory":
            self._in_memory[step] = content
        else:
            path = self._path(step)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".new")
            torch.save(content, temporary)
            temporary.rename(path)
        self._steps = sorted({*self._steps, step})

    def keep(self, value_of: Mapping[int, float]) -> None:
        """Removes snapshots above the limit, those of the smallest values first; the latest one stays."""
        while len(self._steps) > self.limit:
            worst = min(self._steps[:-1], key=lambda step: (value_of.get(step, -float("inf")), step))
            self._remove(worst)
            self._steps.remove(worst)

    @torch.no_grad()
    def restore(self, step: int) -> None:
        """Returns to a snapshot, on all processes or, if one of them cannot read its own, on none."""
        (content,) = on_all_ranks_locally(lambda: self._read(step), "reading a snapshot")
        for weight, stored in zip(self._weights(), content["weights"], strict=True):
            _local(weight).copy_(stored)
        self._restore_optimizer(content["optimizer"])

    # -- parts

    def _weights(self) -> list[Tensor]:
        return [weight for weight in self.trainer.model.parameters() if weight.requires_grad]

    def _optimized(self) -> list[Tensor]:
        return [weight for group in self.trainer.optimizer.param_groups for weight in group["params"]]

    def _optimizer_state(self) -> list[dict[str, Any]]:
        state = self.trainer.optimizer.state
        return [
            {
                name: _to_host(value) if isinstance(value, Tensor) else value
                for name, value in state.get(each, {}).items()
            }
            for each in self._optimized()
        ]

    def _restore_optimizer(self, stored: list[dict[str, Any]]) -> None:
        state = self.trainer.optimizer.state
        for weight, values in zip(self._optimized(), stored, strict=True):
            if not values:
                state.pop(weight, None)  # before the first step, an optimizer has no state
                continue
            for name, value in values.items():
                present = state[weight].get(name)
                if isinstance(value, Tensor) and isinstance(present, Tensor):
                    _local(present).copy_(value)
                else:
                    state[weight][name] = value.clone() if isinstance(value, Tensor) else value

    # -- files

    @property
    def _file_name(self) -> str:
        return f"rank-{self.trainer.accelerator.process_index}.pt"

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}" / self._file_name

    def _read(self, step: int) -> dict[str, Any]:
        if step in self._in_memory:
            return self._in_memory[step]
        content: dict[str, Any] = torch.load(self._path(step), map_location="cpu", weights_only=True)
        return content

    def _remove(self, step: int) -> None:
        self._in_memory.pop(step, None)
        if self.place == "disk":
            self._path(step).unlink(missing_ok=True)
            if not any(self._path(step).parent.glob("*.pt")):
                shutil.rmtree(self._path(step).parent, ignore_errors=True)


def on_all_ranks_locally(work: Any, stage: str) -> list[Any]:
    """The result of `work` on this process, in a list, once all processes have theirs; nothing large is exchanged."""
    result: list[Any] = []
    on_all_ranks(lambda: result.append(work()), stage)
    return result


def _local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return value.to_local() if isinstance(value, DTensor) else value.data


def _to_host(value: Tensor) -> Tensor:
    return _local(value).detach().to("cpu", copy=True)
