"""Runs another script of this folder with FSDP2 in the place of DDP: with_fsdp.py SCRIPT ARGUMENTS...

Accelerate falls back to DDP on a CPU. So the student is sharded here, by accelerate's own function and with all of its
groups, right before the training starts; the rest of the trainer runs as under DDP.
"""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Trainer

train, prepare_model = Trainer.train, Accelerator.prepare_model


def shard(accelerator: Any, model: Any) -> None:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    as_fsdp = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no", device=accelerator.device,
        is_main_process=accelerator.is_main_process,
    )  # fmt: skip
    fsdp2_prepare_model(as_fsdp, model)
    assert all(isinstance(weight, DTensor) for weight in model.parameters())
    assert sum(isinstance(module, FSDPModule) for module in model.modules()) > 2


def sharded_train(self: Any, *args: Any, **kwargs: Any) -> Any:
    assert torch.distributed.get_world_size() == 2
    shard(self.accelerator, self.model)
    return train(self, *args, **kwargs)


def without_ddp(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(model, FSDPModule):
        return prepare_model(self, model, *args, **kwargs)
    self._models.append(model)
    return model


def save_gathered(self: Any, output_dir: str) -> None:
    weights = {name: weight.full_tensor() for name, weight in self.model.named_parameters()}
    if self.accelerator.is_main_process:
        self.model.save_pretrained(output_dir, state_dict=weights)


Trainer.train, Trainer.save_model, Accelerator.prepare_model = sharded_train, save_gathered, without_ddp
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
