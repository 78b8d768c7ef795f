"""Gates on two processes: a step equals that of one process on the same batch, for DDP, ZeRO-2, ZeRO-3 and FSDP2."""

from __future__ import annotations

import pytest
from support.processes import EXPECTED

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("launcher", "case"),
    [
        *(("ddp", case) for case in ("gkd-quantile", "gkd-threshold", "distillation", "overflow", "grpo")),
        *(("zero2", case) for case in ("gkd-quantile", "distillation")),
        *(("zero3", case) for case in ("gkd-threshold", "distillation", "overflow", "grpo")),
        # Accelerate falls back to DDP on a CPU: `with_fsdp.py` shards the student, and asserts it.
        *(("fsdp2", case) for case in ("gkd-threshold", "distillation", "grpo")),
    ],
)
def test_two_processes_equal_one(gated, case, launcher):
    one, two = gated(None)[case], gated(launcher)[case]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (two["kind"], two["stage"]) == EXPECTED[launcher if launcher != "fsdp2" else "ddp"]
    assert len(one["logs"]) == len(two["logs"]) == 2
    for row_of_one, row_of_two in zip(one["logs"], two["logs"], strict=True):
        keys = {key for key in row_of_one if key.startswith("gate/")} | {"loss", "grad_norm"}
        assert len(keys) > 8
        for row in (row_of_one, row_of_two) if case == "overflow" else ():
            assert row["gate/loss_open"] is None  # without the gate, the loss is not finite
            keys -= {"gate/loss_open"}
        assert {key: row_of_one[key] for key in keys} == pytest.approx(
            {key: row_of_two[key] for key in keys}, rel=2e-4, abs=1e-7
        )


def test_deepspeed_makes_no_step_without_the_gate(gated):
    """Its engine makes the step within `backward`, before transformers asks callbacks."""
    result = gated("zero2")["ungated"]
    assert result["steps"] == 0
    assert "loss of 1 of 1 micro-batches was computed without the gate" in result["error"]
