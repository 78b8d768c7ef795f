"""The weights of a colocated engine of vLLM's CPU build."""

from __future__ import annotations

import types
from typing import Any


def patch_sync_weights(generation: Any) -> None:
    """Loads weights into vLLM's CPU build its own way: TRL's `sync_weights` needs a `weight_loader`, which it lacks."""

    def sync_weights(self: Any) -> None:
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        runner.reload_weights(weights_iterator=((name, weight) for name, weight in self.model.named_parameters()))
        self.llm.reset_prefix_cache()
        self.synced = getattr(self, "synced", 0) + 1

    generation.sync_weights = types.MethodType(sync_weights, generation)


def is_loaded(engine: Any, model: Any) -> bool:
    """Whether the engine has the weights of a model; those that vLLM fuses are left out."""
    theirs = dict(engine.llm_engine.model_executor.driver_worker.model_runner.model.named_parameters())
    ours = dict(model.named_parameters())
    common = [name for name in ours if name in theirs and theirs[name].shape == ours[name].shape]
    assert len(common) > 5
    return all(theirs[name].equal(ours[name]) for name in common)
