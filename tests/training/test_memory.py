"""The memory of gathered weights: estimated before they are gathered, and refused if they do not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from opd_align.training import memory
from opd_align.training.distributed import EvaluationFailed
from opd_align.training.memory import check_host_memory, check_memory, free_bytes, free_host_bytes, gathered_bytes

GPU = torch.device("cuda", 1)


def sharded(numel: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Parameter:
    """A weight as ZeRO-3 keeps it: empty, with the number of elements beside it."""
    weight = torch.nn.Parameter(torch.empty(0, dtype=dtype))
    weight.ds_numel = numel
    return weight


def model(*weights: torch.nn.Parameter) -> SimpleNamespace:
    return SimpleNamespace(parameters=lambda: iter(weights))


def test_sharded_weights_count_in_full_and_shared_ones_once():
    shared = sharded(2**30)
    student, teacher = model(shared, sharded(1000, torch.float32)), model(shared, sharded(2**20))
    assert gathered_bytes([student, teacher]) == 2 * 2**30 + 4 * 1000 + 2 * 2**20
    assert gathered_bytes([torch.nn.Linear(10, 10)]) == 0, "not sharded: nothing is gathered"


def test_weights_of_fsdp2_count_in_the_dtype_that_they_are_gathered_in(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        weights = fully_shard(torch.nn.Sequential(torch.nn.Linear(10, 30), torch.nn.Linear(30, 10)))
        numel, largest = 300 + 30 + 300 + 10, 300
        assert gathered_bytes([weights]) == 4 * numel
        assert gathered_bytes([weights], torch.float32) == 4 * numel
        assert gathered_bytes([weights], torch.bfloat16) == 2 * numel + 4 * largest, "each is gathered in float32 first"
        assert gathered_bytes([model(sharded(1000, torch.float32))], torch.bfloat16) == 4000, (
            "ZeRO-3 has no such policy"
        )
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("free_gib", "beside_vllm", "message"),
    [
        (30.0, False, None),
        (17.7, True, None),
        (17.0, False, r"student and teachers need 17\.6 GiB on cuda:1, and 17\.0 GiB are free; .*use ZeRO-2"),
        (6.0, True, r"and 6\.0 GiB are free beside vLLM; evaluation refused \(use vllm_mode='server'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_the_figures(free_gib, beside_vllm, message, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: round(free_gib * 2**30))
    models = [model(sharded(6 * 2**30)), model(sharded(2 * 2**30))]
    if message is None:
        check_memory(GPU, models, beside_vllm=beside_vllm)
    else:
        with pytest.raises(EvaluationFailed, match=message):
            check_memory(GPU, models, beside_vllm=beside_vllm)


def test_what_is_free_includes_pytorchs_own_cache(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 40)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert free_bytes(GPU) == 15


def test_a_device_that_does_not_say_is_not_refused():
    assert free_bytes(torch.device("cpu")) is None
    check_memory(torch.device("cpu"), [model(sharded(2**60))], beside_vllm=False)


def test_copies_that_the_machine_has_no_memory_for_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 100 * 2**30)
    check_host_memory(11 * 2**30)
    with pytest.raises(EvaluationFailed, match=r"need 105\.6 GiB .* for 8 ranks, and 100\.0 GiB are free"):
        check_host_memory(12 * 2**30)
    monkeypatch.setattr(memory, "free_host_bytes", lambda: None)
    check_host_memory(2**60)


def test_free_memory_of_this_machine_is_known():
    free = free_host_bytes()
    assert free is not None
    assert 2**20 < free < 2**50
