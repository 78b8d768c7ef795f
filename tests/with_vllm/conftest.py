"""A tiny random language model in vLLM: as an engine in this process, and behind an HTTP server.

The folder is not called `vllm`, since `import vllm` would then find it if vLLM is not installed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent))  # for tests/support

from tiny import CONTEXT, RealServer, make_model
from weights import patch_sync_weights


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def model(folder) -> Any:
    return make_model(folder)


@pytest.fixture(scope="session")
def llm(model, folder) -> Iterator[Any]:
    from opd_align.backends.vllm import vllm_engine

    # Log-probabilities after temperature and cut-offs, like our scores.
    engine = vllm_engine(
        folder, dtype="float32", enforce_eager=True, max_model_len=CONTEXT, logprobs_mode="processed_logprobs"
    )
    yield engine
    engine.llm_engine.engine_core.shutdown()


@pytest.fixture
def embedded_servers(tmp_path) -> Iterator[list[RealServer]]:
    """Two servers of the embedded student."""
    from opd_align.embedded import student_path

    servers = [RealServer(student_path(), tmp_path / f"log-{number}.txt") for number in range(2)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def running(model, folder, tmp_path_factory) -> Iterator[RealServer]:
    server = RealServer(folder, tmp_path_factory.mktemp("server") / "log.txt")
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def colocated(tmp_path_factory: Any) -> Any:
    """TRL's own engine in this process, set up for CPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL, about the version of vLLM
        from support.trainings import fresh, make
        from trl.generation import vllm_generation

    real = vllm_generation.LLM

    def cpu_engine(**options: Any) -> Any:
        options.pop("distributed_executor_backend")
        return real(
            **options, dtype="float32", enforce_eager=True, enable_chunked_prefill=False, generation_config="vllm"
        )

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setattr(vllm_generation, "LLM", cpu_engine)
        trainer = make(
            "distillation", tmp_path_factory.mktemp("colocated"), use_vllm=True, vllm_mode="colocate",
            vllm_max_model_length=512, gradient_checkpointing=False, student=fresh("student"),
        )  # fmt: skip
    patch_sync_weights(trainer.vllm_generation)
    yield trainer
    trainer.vllm_generation.llm.llm_engine.engine_core.shutdown()
