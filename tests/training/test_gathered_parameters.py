"""Gathering sharded weights: full weights without FSDP's hooks within the block, everything as before afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.small_models import qwen3
from support.trainings import make
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from opd_align.backends.scoring import PromptedModel, hidden_states, output_layer
from opd_align.training import Open
from opd_align.training.adapters import adapt_trainer
from opd_align.training.gate_runtime import GateRuntime
from opd_align.training.model_state import check_teacher_is_loaded, gathered_parameters, is_fsdp2, precision_name
from opd_align.types import OpdAlignError

IDS = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def sharded(dtype: torch.dtype | None = None) -> Any:
    """A model with tied weights, sharded in the groups that accelerate makes."""
    model = qwen3(seed=1, tie_word_embeddings=True)
    options = {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype)}
    for layer in model.model.layers:
        fully_shard(layer, **options)
    fully_shard([model.model.norm, model.model.embed_tokens, model.lm_head], reshard_after_forward=False, **options)
    return fully_shard(model, **options)


def accelerator(dtype: torch.dtype | None = None) -> Any:
    plugin = SimpleNamespace(mixed_precision_policy=MixedPrecisionPolicy(param_dtype=dtype))
    return SimpleNamespace(
        device=torch.device("cpu"),
        state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=plugin),
        unwrap_model=lambda model, **_: model,
    )


def step(model: Any) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return loss.item(), [weight.grad.full_tensor().clone() for weight in model.parameters()]


@torch.no_grad()
def evaluate(model: Any, plain: Any, with_accelerator: Any) -> None:
    """Compares the gathered model with one that was never sharded, and then fails."""
    with gathered_parameters(with_accelerator, model) as (gathered,):
        assert gathered.lm_head.weight is gathered.model.embed_tokens.weight
        assert precision_name(gathered) == precision_name(plain)
        for ours, theirs in zip(gathered.parameters(), plain.parameters(), strict=True):
            assert type(ours) is torch.nn.Parameter
            assert torch.equal(ours, theirs)
        prompted, reference = (PromptedModel("student", each.eval(), [1, 2]) for each in (gathered, plain))
        for _ in range(2):  # body and output layer alone, in any number and order
            assert torch.equal(
                output_layer(prompted)(hidden_states(prompted, [IDS[0].numpy()])),
                output_layer(reference)(hidden_states(reference, [IDS[0].numpy()])),
            )
        raise RuntimeError("an evaluation that fails")


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("when", ["before the first forward pass", "between steps", "after a forward pass"])
def test_evaluations_between_steps_leave_no_trace(when, dtype):
    model, untouched = sharded(dtype), sharded(dtype)
    before = dict(model.named_parameters())
    assert is_fsdp2(model)
    plain = qwen3(seed=1, tie_word_embeddings=True).to(dtype or torch.float32)
    assert not is_fsdp2(plain)
    if when != "before the first forward pass":
        step(model), step(untouched)
    if when == "after a forward pass":
        with torch.no_grad():
            model(input_ids=IDS)
    hooks = [(module._forward_pre_hooks, module._forward_hooks) for module in model.modules()]
    with pytest.raises(RuntimeError, match="an evaluation that fails"):
        evaluate(model, plain, accelerator(dtype))
    model.train()
    after = dict(model.named_parameters())
    assert all(isinstance(weight, DTensor) for weight in after.values())
    assert [id(weight) for weight in after.values()] == [id(before[name]) for name in after]
    for module, (pre_hooks, forward_hooks) in zip(model.modules(), hooks, strict=True):
        assert module._forward_pre_hooks is pre_hooks
        assert module._forward_hooks is forward_hooks
    untouched.train()
    for _ in range(2):
        (loss, gradients), (expected, expected_gradients) = step(model), step(untouched)
        assert loss == expected
        assert all(torch.equal(*pair) for pair in zip(gradients, expected_gradients, strict=True))


@pytest.mark.usefixtures("process_group")
def test_hooks_of_others_stay():
    model, calls = sharded(), []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad(), gathered_parameters(accelerator(), model) as (gathered,):
        gathered(input_ids=IDS)
    assert calls == [1]


def test_fsdp1_is_refused_before_training_and_fsdp2_is_not(tmp_path):
    trainer = make("distillation", tmp_path)
    trainer.is_fsdp_enabled = True
    for version in (1, 2):
        trainer.accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version)))
        if version == 1:
            with pytest.raises(OpdAlignError, match="FSDP1 is not supported; use FSDP2"):
                adapt_trainer(trainer)
        else:
            assert adapt_trainer(trainer).kind == "DistillationTrainer"


def test_a_teacher_that_only_one_process_has_is_refused_before_training(tmp_path):
    """Callback and gates alike; a self-distillation trainer has no teacher of its own."""
    trainer = make("distillation", tmp_path)
    trainer.is_fsdp_enabled = True
    plugin = SimpleNamespace(fsdp_version=2, cpu_ram_efficient_loading=True)
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    for refused in (lambda: adapt_trainer(trainer), lambda: GateRuntime(Open(), "keep").attach(trainer)):
        with pytest.raises(OpdAlignError, match="those of teachers, which are not sharded, stay zero on the others"):
            refused()
    trainer.teacher_model = trainer.model
    check_teacher_is_loaded(trainer)
    trainer.teacher_model, plugin.cpu_ram_efficient_loading = object(), False
    check_teacher_is_loaded(trainer)
