"""The callback on trainers that generate with vLLM: colocated, and behind a server."""

from __future__ import annotations

import types
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
pytest.importorskip("trl")

from support.trainings import ARITHMETIC, TINY, fresh, held_out, make, same_weights, trainer_rows
from tiny import RealServer
from weights import patch_sync_weights

from opd_align import AlignmentCallback
from opd_align.backends.server import ServerStudent
from opd_align.backends.vllm import VLLMStudent
from opd_align.embedded import student_path
from opd_align.training.evaluator import Engine
from opd_align.training.time_limit import TimeLimit

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def with_callback(trainer: Any, **options: Any) -> AlignmentCallback:
    defaults = {"every_n_steps": 1, "max_overhead": None, "budget": TINY, "on_error": "raise"}
    return AlignmentCallback(trainer, held_out(2), ARITHMETIC, **(defaults | options))


def test_rollouts_come_from_the_trainers_engine_with_current_weights(colocated_engine, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        colocated = make(
            "distillation", tmp_path, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=512,
            gradient_checkpointing=False, student=fresh("student"),
        )  # fmt: skip
    patch_sync_weights(colocated.vllm_generation)
    callback = with_callback(colocated)
    colocated.add_callback(callback)
    kinds = []
    student_of = callback.evaluator._student

    def recorded(*args: Any) -> Any:
        kinds.append(type(student_of(*args)))
        return student_of(*args)

    callback.evaluator._student = recorded
    colocated.train()
    assert kinds == [VLLMStudent] * 4
    assert callback.failures == 0
    assert not same_weights(colocated.model, fresh("student"))
    # Once per evaluation and never for the three generations: they use the same weights.
    assert colocated.vllm_generation.synced == 4
    assert [row["loss"] for row in trainer_rows(colocated) if "loss" in row]
    assert callback.latest.questions["pass_rate"].to_numpy().mean() > 0


def test_rollouts_come_from_the_trainers_server(tmp_path):
    from trl.generation.vllm_client import VLLMClient

    server = RealServer(Path(student_path()), tmp_path / "log.txt")
    server.start()
    try:
        server.wait()
        trainer = make("distillation", tmp_path / "run", student=fresh("student"))
        # Weights are sent to a server over NCCL, which needs GPUs; at step 0 the server has them already.
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = types.SimpleNamespace(
            mode="server", enable_sleep_mode=False, sync_weights=lambda: None, vllm_client=VLLMClient(server.url),
            model=trainer.model, _iter_named_params=trainer.model.named_parameters, _weight_metadata=None,
        )  # fmt: skip
        callback = with_callback(trainer)
        evaluator = callback.evaluator
        prompt = evaluator.held_out.prompting(evaluator.chat)
        engine = Engine(evaluator._server(), TimeLimit())
        assert type(evaluator._student(trainer.model, prompt, engine)) is ServerStudent
        before = server.finished()
        analysis, _ = callback.evaluate()
        assert server.finished() - before >= TINY.initial * 2
        assert analysis.questions["initial"].to_pylist() == [TINY.initial] * 2
    finally:
        server.kill()
