"""Snapshots of a training to return to: trainable weights and optimizer state at a few steps.

Each process keeps what it holds itself: a full copy, or its shard under FSDP2. Snapshots on disk outlive the process
and are found again by a resumed training; those in memory are faster and are lost. Which ones are kept when there are
too many is decided by the caller's values. A snapshot names its training: those of another one are never returned to.
What an optimizer keeps outside of its state (learning rates), a gradient scaler, random numbers and a reference model
are not part of a snapshot. DeepSpeed keeps its weights elsewhere and is not supported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
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
        self.run = ""
        self._steps: list[int] = []
        self._in_memory: dict[int, dict[str, Any]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that can be returned to, ascending."""
        return tuple(self._steps)

    def begin(self, step: int, run: str = "") -> None:
        """Starts at a step; all processes must call this, and none of them takes a snapshot before all are ready.

        Snapshots of later steps and of other trainings are removed, the rest is found again.

        Args:
            step: The step; 0 for a training from its beginning.
            run: Names the training; a resumed one has the name of the one that it continues.
        """
        self.run = run
        on_all_ranks(lambda: self._find(step), "looking for snapshots")

    def _find(self, step: int) -> None:
        found = {*self._in_memory}
        if self.place == "disk":
            for path in self.folder.glob(f"step-*/{self._file_name}"):
                if match := re.fullmatch(r"step-(\d+)", path.parent.name):
                    found.add(int(match[1]))
            for path in self.folder.glob(f"step-*/{Path(self._file_name).stem}.new"):
                path.unlink(missing_ok=True)  # half written when a training was killed
        for at in sorted(found):
            # A training from its beginning shares nothing with what is in the folder, not even its first weights.
            if at > step or step == 0 or not self._is_own(at):
                self._remove(at)
                found.discard(at)
        self._steps = sorted(found)

    def _is_own(self, step: int) -> bool:
        try:
            return bool(self._load(step, mapped=True)["run"] == self.run)
        except (OpdAlignError, KeyError) as error:
            logger.warning("Removing a snapshot that cannot be read, of step %d: %s", step, error)
            return False

    def common_steps(self) -> list[int]:
        """The steps that every process can return to; all of them must call this."""
        everywhere = on_all_ranks(lambda: self._steps, "snapshots")
        return sorted(set.intersection(*map(set, everywhere)))

    def take(self, step: int) -> None:
        """Keeps the present state; a snapshot of the same step is replaced."""
        weights = [_to_host(weight) for weight in self._weights()]
        content = {"run": self.run, "weights": weights, "optimizer": self._optimizer_state()}
        if self.place == "memory":
            self._in_memory[step] = content
        else:
            path = self._path(step)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".new")
            try:
                torch.save(content, temporary)
                temporary.rename(path)
            except (OSError, RuntimeError) as error:  # a full disk is a RuntimeError of torch.save
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise OSError(str(error)) from error
        self._steps = sorted({*self._steps, step})

    def keep(self, value_of: Mapping[int, float], *, latest: int = 1) -> None:
        """Removes snapshots above the limit, those of the smallest values first; the latest ones stay."""
        latest = min(latest, self.limit - 1)  # one to return to
        while len(self._steps) > self.limit:
            worst = min(self._steps[:-latest], key=lambda step: (value_of.get(step, -float("inf")), step))
            self._remove(worst)
            self._steps.remove(worst)

    def clear(self) -> None:
        """Removes all snapshots of this process."""
        for step in self._steps:
            self._remove(step)
        self._steps = []
        for folder in (*self.folder.glob("step-*"), self.folder):
            with suppress(OSError):
                folder.rmdir()  # unless another process still has its own there

    @torch.no_grad()
    def restore(self, step: int) -> None:
        """Returns to a snapshot, on all processes or, if one of them cannot read or use its own, on none."""
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

    def _load(self, step: int, *, mapped: bool = False) -> dict[str, Any]:
        """The content of a snapshot; mapped: what is not looked at is not read."""
        if step in self._in_memory:
            return self._in_memory[step]
        path = self._path(step)
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # of many kinds; some advise to load what may be harmful
            raise OpdAlignError(f"{path} is missing or damaged ({type(error).__name__})") from error
        return content

    def _read(self, step: int) -> dict[str, Any]:
        """A snapshot that fits this training; raises before anything is changed if it does not."""
        content = self._load(step)
        if content["run"] != self.run:
            raise OpdAlignError(f"the snapshot of step {step} is of another training")
        shapes = [tuple(each.shape) for each in content["weights"]]
        expected = [tuple(_local(each).shape) for each in self._weights()]
        optimized = self._optimized()
        fits = shapes == expected and len(content["optimizer"]) == len(optimized)
        for weight, values in zip(optimized, content["optimizer"], strict=False):
            present = self.trainer.optimizer.state.get(weight, {})
            for name, value in values.items():
                before = present.get(name)
                if isinstance(value, Tensor) and isinstance(before, Tensor):
                    fits &= value.shape == _local(before).shape
        if not fits:
            raise OpdAlignError(f"the snapshot of step {step} has weights or optimizer states of other shapes")
        return content

    def _remove(self, step: int) -> None:
        self._in_memory.pop(step, None)
        if self.place == "disk":
            self._path(step).unlink(missing_ok=True)
            with suppress(OSError):
                self._path(step).parent.rmdir()  # unless another process still has its own there


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
