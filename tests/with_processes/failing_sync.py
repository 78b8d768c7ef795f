"""Two processes that send weights of an FSDP2 model to vLLM, which fails on one of them; each writes what it saw."""

from __future__ import annotations

import faulthandler
import json
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.ending import leave
from support.engineless_vllm import Engine, FailingClient, engineless_vllm
from support.small_models import qwen3
from torch.distributed.fsdp import fully_shard

from opd_align.training.distributed import EvaluationFailed, on_all_ranks
from opd_align.training.weight_sync import vllm_ready

folder = Path(sys.argv[1])
faulthandler.dump_traceback_later(120, exit=True)  # a deadlock shows where it is
distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = distributed.get_rank()
model, plain = qwen3(seed=1), qwen3(seed=1)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
state = SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None)
accelerator = SimpleNamespace(state=state, device=torch.device("cpu"), is_main_process=rank == 0)


def sync(vllm: Any) -> str:
    trainer = SimpleNamespace(use_vllm=True, vllm_generation=vllm, state=SimpleNamespace(global_step=3))
    try:
        with vllm_ready(trainer, on_all_ranks):
            return "synced"
    except EvaluationFailed as error:
        return str(error)


seen = {}
for failing_rank in (0, 1):
    for place, number in (("first", 0), ("middle", 9), ("last", len(dict(plain.named_parameters())) - 1)):

        def on_weight(sent: int, count: int, number: int = number, failing_rank: int = failing_rank) -> None:
            if (sent, rank) == (number, failing_rank):
                raise ConnectionError("gone")

        seen[f"{place} on {failing_rank}"] = sync(engineless_vllm(model, accelerator, Engine(on_weight)))
server = engineless_vllm(model, accelerator, Engine())
server.mode = "server"
for place, fails_after in (("first sync", 4), ("first sync again", 0), ("at last", None), ("later sync", 4)):
    server.vllm_client = FailingClient(fails_after)
    seen[f"server, {place}"] = sync(server)
engine = Engine()
seen["without a failure"] = sync(engineless_vllm(model, accelerator, engine))
seen["received"] = [name for name, weight in plain.named_parameters() if torch.equal(engine.weights[name], weight)]
seen["expected"] = [name for name, _ in plain.named_parameters()]
(folder / f"{rank}.json").write_text(json.dumps(seen))
leave()
