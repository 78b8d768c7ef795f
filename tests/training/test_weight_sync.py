"""Weights to vLLM: with adapters the model is bit-identical afterwards, and a failing rank ends its iteration."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engineless_vllm import Engine, FailingClient, engineless_vllm
from support.small_models import qwen3
from torch import nn

from opd_align.training import weight_sync
from opd_align.training.weight_sync import copy_device, preserve_base_weights, sync_weights, vllm_ready

peft = pytest.importorskip("peft", reason="PEFT is missing: pip install 'opd-align[train]'")

pytestmark = pytest.mark.filterwarnings("ignore")

ACCELERATOR = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None), is_main_process=True)
IDS = torch.tensor([[1, 2, 3, 4, 5]])
CONFIGS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False),
    "dora": lambda: peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, use_dora=True),
    "modules to save": lambda: peft.LoraConfig(
        r=2, target_modules=["q_proj"], init_lora_weights=False, modules_to_save=["norm"]
    ),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[], init_ia3_weights=False),
    "layer norm": lambda: peft.LNTuningConfig(target_modules=["norm"]),
}


def adapted(kind: str) -> Any:
    torch.manual_seed(3)
    return peft.get_peft_model(qwen3(seed=1), CONFIGS[kind]())


def agree(work: Callable[[], Any], stage: str) -> list[Any]:
    return [work()]


def trainer(model: Any, engine: Engine, *, sleeps: bool = False, loaded_step: int = 4) -> Any:
    vllm = engineless_vllm(model, ACCELERATOR, engine, sleeps=sleeps)
    state = SimpleNamespace(global_step=5)
    return SimpleNamespace(use_vllm=True, vllm_generation=vllm, state=state, _last_loaded_step=loaded_step)


def snapshot(model: Any) -> tuple[Any, ...]:
    """Names, objects, memory and content of all weights, and which adapters are merged."""
    weights = [(name, id(weight), weight.data_ptr(), weight.detach().clone()) for name, weight in weights_of(model)]
    layers = [module for module in model.modules() if hasattr(module, "merged_adapters")]
    assert layers
    return (
        weights,
        [[*layer.merged_adapters] for layer in layers],
        [dict(getattr(each, "_caches", {})) for each in layers],
    )


def weights_of(model: Any) -> list[tuple[str, Any]]:
    return list(model.named_parameters(remove_duplicate=False))


def assert_unchanged(model: Any, before: tuple[Any, ...]) -> None:
    after = snapshot(model)
    assert after[1:] == before[1:]
    for ours, theirs in zip(after[0], before[0], strict=True):
        assert ours[:3] == theirs[:3]
        assert torch.equal(ours[3], theirs[3]), ours[0]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def failing_at(position: str) -> Callable[[int, int], None]:
    def on_weight(number: int, count: int) -> None:
        if number == {"first": 0, "middle": count // 2, "last": count - 1}.get(position):
            raise ConnectionError("vLLM is gone")

    return on_weight


@pytest.mark.parametrize("position", ["first", "middle", "last", "none"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_with_adapters_is_bit_identical_after_a_sync(kind, position):
    model = adapted(kind)
    before, expected = snapshot(model), gradients(adapted(kind))
    engine = Engine(failing_at(position))
    watched = trainer(model, engine)
    if position == "none":
        with vllm_ready(watched, agree):
            assert_unchanged(model, before)
        assert watched._last_loaded_step == 4, "the trainer merges and rounds as it would have done"
        assert engine.syncs == 1
    else:
        with pytest.raises(ConnectionError), vllm_ready(watched, agree):
            pass
        assert watched._last_loaded_step == -1, "vLLM may have a mixture of weights"
    assert_unchanged(model, before)
    found = gradients(model)
    assert found.keys() == expected.keys()
    assert found
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_without_this_the_base_weights_are_rounded_and_adapters_stay_merged(kind):
    """What the other tests would not notice if TRL or PEFT did it themselves."""
    model = adapted(kind)
    before = snapshot(model)
    engineless_vllm(model, ACCELERATOR, Engine()).sync_weights()
    assert any(not torch.equal(now[3], then[3]) for now, then in zip(snapshot(model)[0], before[0], strict=True))
    with pytest.raises(ConnectionError):
        engineless_vllm(model, ACCELERATOR, Engine(failing_at("middle"))).sync_weights()
    assert any(names for names in snapshot(model)[1])


def test_vllm_receives_the_merged_weights():
    model = adapted("lora")
    engine = Engine()
    with vllm_ready(trainer(model, engine), agree):
        pass
    merged = model.merge_and_unload()
    assert engine.weights.keys() == dict(merged.named_parameters()).keys()
    assert all(torch.equal(engine.weights[name], weight) for name, weight in merged.named_parameters())


def test_a_merge_that_fails_half_way_is_undone(monkeypatch):
    model = adapted("lora")
    before = snapshot(model)
    layer = [module for module in model.modules() if hasattr(module, "merged_adapters")][3]

    def no_memory(adapter: str) -> Any:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(layer, "get_delta_weight", no_memory)
    with pytest.raises(torch.OutOfMemoryError), vllm_ready(trainer(model, Engine()), agree):
        pass
    assert_unchanged(model, before)


def test_adapters_that_were_merged_before_stay_merged():
    model = adapted("lora")
    model.merge_adapter()
    before = snapshot(model)
    with preserve_base_weights(model):
        model.unmerge_adapter()
    assert_unchanged(model, before)


def test_without_adapters_nothing_is_copied_and_the_trainer_need_not_sync_again(monkeypatch):
    monkeypatch.setattr(weight_sync, "preserve_base_weights", None)
    model, engine = qwen3(seed=1), Engine()
    watched = trainer(model, engine)
    with vllm_ready(watched, agree):
        assert engine.weights.keys() == dict(model.named_parameters()).keys()
    assert watched._last_loaded_step == 5


def test_copies_are_on_the_cpu_if_the_device_is_short_of_memory_or_vllm_is_about_to_wake(monkeypatch):
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(weight_sync, "free_bytes", lambda device: 111 if device == gpu else None)
    assert copy_device(gpu, 100, on_cpu=False) == gpu
    assert copy_device(gpu, 102, on_cpu=False) == cpu
    assert copy_device(gpu, 100, on_cpu=True) == cpu
    assert copy_device(cpu, 100, on_cpu=False) == cpu

    places = []
    monkeypatch.setattr(weight_sync, "preserve_base_weights", _recording(places))
    for sleeps in (False, True):
        with vllm_ready(trainer(adapted("lora"), Engine(), sleeps=sleeps), agree):
            pass
    assert places == [False, True]


def _recording(places: list[bool]) -> Any:
    original = weight_sync.preserve_base_weights

    def preserve(model: Any, *, on_cpu: bool) -> Any:
        places.append(on_cpu)
        return original(model, on_cpu=on_cpu)

    return preserve


def test_a_sleeping_vllm_sleeps_again_whatever_fails():
    asleep = []
    engine = Engine(failing_at("middle"), on_sleep=lambda: asleep.append(1))
    watched = trainer(adapted("lora"), engine, sleeps=True)
    with pytest.raises(ConnectionError), vllm_ready(watched, agree):
        pass
    assert asleep == [1]
    assert watched.vllm_generation._llm_weights_sleeping


# A server: the first rank sends, and iterates twice in the first sync.


@pytest.mark.parametrize("first", [True, False], ids=["first sync", "later sync"])
@pytest.mark.parametrize("fails_after", [0, 3, None])
def test_a_rank_that_fails_gathers_as_often_as_the_others(fails_after, first):
    """Gathering a weight is collective: both ranks must gather the same weights in the same order."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    order: dict[bool, list[Any]] = {}
    for is_main in (True, False):
        accelerator = SimpleNamespace(state=ACCELERATOR.state, is_main_process=is_main)
        vllm = engineless_vllm(model, accelerator, Engine())
        vllm.mode, vllm.vllm_client = "server", FailingClient(None)
        if not first:
            sync_weights(vllm)
        vllm.vllm_client = FailingClient(fails_after)
        order[is_main] = gathered = []
        gather = vllm._dist.gather_params
        vllm._dist = SimpleNamespace(
            is_fsdp=False, gather_params=lambda weights, gather=gather, gathered=gathered: (
                gathered.extend(map(id, weights)), gather(weights)
            )[1],
        )  # fmt: skip
        before = vllm._weight_metadata
        if is_main and fails_after is not None:
            with (
                pytest.raises(ConnectionError, match="the server does not answer"),
                vllm_ready(
                    SimpleNamespace(use_vllm=True, vllm_generation=vllm, state=SimpleNamespace(global_step=1)), agree
                ),
            ):
                pass
            assert vllm._weight_metadata is before, "the next sync starts alike on all ranks"
        else:
            sync_weights(vllm)
        assert "_iter_named_params" not in vars(vllm), "the method is TRL's again"
    assert order[True] == order[False]
    assert len(order[True]) == (2 if first else 1) * 6
