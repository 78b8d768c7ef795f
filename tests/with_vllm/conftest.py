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
def colocated_engine() -> Iterator[None]:
    """TRL's engine in this process, set up for CPUs; started for the first trainer, and used by all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL, about the version of vLLM
        from trl.generation import vllm_generation

    real, started = vllm_generation.LLM, list[Any]()

    def cpu_engine(**options: Any) -> Any:
        options.pop("distributed_executor_backend")
        options |= {"enable_chunked_prefill": False, "generation_config": "vllm"}
        if not started:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
                started.append(real(**options, dtype="float32", enforce_eager=True))
        return started[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_generation, "LLM", cpu_engine)
        yield
    for engine in started:
        engine.llm_engine.engine_core.shutdown()
