"""TRL's own `VLLMGeneration` with an engine that only receives weights: what TRL does to the model is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration

from opd_align.training.model_state import is_fsdp2


class Engine:
    """Stands for vLLM's `LLM`; keeps the weights of the latest sync.

    Args:
        on_weight: Called with the number of each weight within a sync before it is received, and the number of weights.
        on_wake: Called when the engine is woken for generation.
        on_sleep: Called when it is put to sleep.
    """

    def __init__(
        self,
        on_weight: Callable[[int, int], None] = lambda number, count: None,
        on_wake: Callable[[], None] = lambda: None,
        on_sleep: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_weight, self.on_wake, self.on_sleep = on_weight, on_wake, on_sleep
        self.count = 0
        self.weights: dict[str, torch.Tensor] = {}
        self.syncs = 0
        self._number = 0
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=worker)

    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        ((name, weight),) = weights
        number, self._number = self._number, (self._number + 1) % self.count
        try:
            self.on_weight(number, self.count)
        except Exception:
            self._number = 0
            raise
        self.weights[name] = weight.detach().clone()

    def reset_prefix_cache(self) -> None:
        self.syncs += 1

    def wake_up(self, tags: list[str]) -> None:
        if tags == ["kv_cache"]:
            self.on_wake()

    def sleep(self, level: int) -> None:
        self.on_sleep()


class FailingClient:
    """Stands for the client of a vLLM server, which receives weights.

    Args:
        fails_after: Number of weights after which the server does not answer; `None`: it always does.
    """

    def __init__(self, fails_after: int | None = None) -> None:
        self.fails_after = fails_after

    def update_named_params(self, metadata: list[Any], named_params: Iterator[Any]) -> None:
        for number in range(len(metadata)):
            if number == self.fails_after:
                raise ConnectionError("the server does not answer")
            next(named_params)
        assert next(named_params, None) is None

    def reset_prefix_cache(self) -> None: ...


def engineless_vllm(model: Any, accelerator: Any, engine: Engine, *, sleeps: bool = False) -> VLLMGeneration:
    """A colocated vLLM with this engine; with tensor parallelism, evaluations sample with the model itself."""
    vllm = object.__new__(VLLMGeneration)
    vllm.model, vllm.accelerator, vllm._dist = model, accelerator, DistributedBackend(accelerator)
    if is_fsdp2(model):
        vllm._dist.fsdp_version = 2
    vllm.mode, vllm.enable_sleep_mode, vllm.tensor_parallel_size = "colocate", sleeps, 2
    vllm.llm, vllm._llm_weights_sleeping, vllm._weight_metadata = engine, sleeps, None
    # What PEFT adds is not sent.
    added = ("original_module", *([model.prefix] if hasattr(model, "peft_config") else []))
    engine.count = sum(not any(part in name for part in added) for name, _ in model.named_parameters())
    return vllm
