"""Mixes of teachers and schedules in two processes: DDP, ZeRO-2, ZeRO-3 and FSDP2, against TRL and one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.processes import EXPECTED, once, run_script

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "acting.py"
PARTS = {"ddp": ("neutral", "fixed", "followed", "schedules"), "fsdp2": ("fixed", "schedules")}
PARTS |= {"zero2": PARTS["ddp"], "zero3": PARTS["ddp"]}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: Any) -> Any:
    """What each rank of a launch has seen; each launch is made once."""

    @once
    def ranks(launcher: str | None) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(launcher or "one")
        run_script(SCRIPT, launcher, str(folder), *PARTS.get(launcher, ("fixed",)))
        files = sorted(folder.glob("seen-*.json"))
        assert len(files) == (1 if launcher is None else 2)
        return [json.loads(file.read_text()) for file in files]

    return ranks


def rows(of: dict[str, Any], *keys: str) -> list[dict[str, float]]:
    return [{key: row[key] for key in keys or row} for row in of["logs"]]


@pytest.mark.parametrize("launcher", ["ddp", "zero2", "zero3"])
def test_one_teacher_is_trl_to_the_bit(launcher, seen):
    for rank in seen(launcher):
        found = rank["neutral"]
        assert found["launched"] == [*EXPECTED[launcher], 2]
        assert rows(found["ours"], "loss", "grad_norm") == rows(found["plain"])
        assert found["ours"]["weights"] == found["plain"]["weights"]
        assert [row["mix/only/all/weight"] for row in found["ours"]["logs"]] == [1.0, 1.0]


@pytest.mark.parametrize("launcher", PARTS)
def test_processes_with_different_teachers_make_the_steps_of_one(launcher, seen):
    """Models and a context; in one case a process has no teacher, and an infinite divergence must not reach it."""
    (one,), two = seen(None), seen(launcher)
    assert {*one["fixed"]} == {"distillation", "harmful", "gkd", "grpo"}
    for name, of_one in one["fixed"].items():
        of_two = [rank["fixed"][name] for rank in two]
        assert of_two[0]["logs"] == of_two[1]["logs"]
        assert (of_two[0]["weights"] == of_two[1]["weights"]) is (launcher in ("ddp", "zero2")), "else it is sharded"
        assert len(of_one["logs"]) == 2
        for ours, theirs in zip(of_two[0]["logs"], of_one["logs"], strict=True):
            assert len(theirs) > 10
            assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-6), name


@pytest.mark.parametrize("launcher", ["ddp", "zero2", "zero3"])
def test_all_processes_have_the_weights_of_the_evaluations(launcher, seen):
    first, second = [rank["followed"]["whole"] for rank in seen(launcher)]
    assert first["known"] == second["known"]
    assert all(steps[:1] == [0] for steps in first["known"].values()), "each member was measured"
    assert first["mix"] == second["mix"]
    assert len({*first["mix"]["all"]}) > 1, "they are no longer equal"
    assert first["logs"] == second["logs"]


def test_a_resumed_mix_ends_as_one_that_was_not_interrupted(seen):
    for rank in seen("ddp"):
        assert rank["followed"]["resumed"] == rank["followed"]["whole"]


@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
def test_all_processes_return_to_a_snapshot_or_none(launcher, seen):
    ranks = [rank["schedules"] for rank in seen(launcher)]
    for rank in ranks:
        back = rank["rollback"]
        assert (back["ended_at"], back["returned_to"], back["step"], back["left"]) == (3, 2, 3, 0)
        assert back["weights"] == back["by_step"]["2"] != back["by_step"]["1"]
        # One process cannot read its snapshots: the weights of the last step stay, on both.
        stayed = rank["damaged"]
        assert (stayed["ended_at"], stayed["returned_to"], stayed["step"]) == (3, None, 3)
        assert stayed["weights"] not in stayed["by_step"].values()
        fallen = rank["pass_rate"]
        assert (fallen["ended_at"], fallen["returned_to"], fallen["step"], fallen["left"]) == (3, 1, 3, 0)
        assert fallen["weights"] == fallen["by_step"]["1"] != fallen["by_step"]["2"]
        still = rank["zero"]
        assert still["step"] == 4
        assert still["weights"] == still["by_step"]["1"] != still["by_step"]["0"]
    assert ranks[0]["rollback"]["logs"] == ranks[1]["rollback"]["logs"]


@pytest.mark.parametrize("launcher", ["zero2", "zero3"])
def test_deepspeed_trainings_stop_together_and_what_is_out_of_reach_is_refused(launcher, seen):
    for rank in seen(launcher):
        found = rank["schedules"]
        assert (found["stop"]["ended_at"], found["stop"]["step"]) == (3, 3)
        refused = found["refused"]
        for on_harm in ("rollback", "zero"):
            assert refused[on_harm].startswith(f"on_harm='{on_harm}' is not supported under DeepSpeed")
        assert refused["harms"].startswith("when='harms' is not supported under DeepSpeed")
