"""A tiny random language model in a real vLLM: as an engine of this process, and behind a real HTTP server.

The folder is not called `vllm`, since `import vllm` would then find it wherever vLLM is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent))  # for the contract that all backends share

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

    # Log-probabilities after temperature and cut-offs, as our scores are.
    engine = vllm_engine(
        folder, dtype="float32", enforce_eager=True, max_model_len=CONTEXT, logprobs_mode="processed_logprobs"
    )
    yield engine
    engine.llm_engine.engine_core.shutdown()


@pytest.fixture
def second_and_third(tmp_path) -> Iterator[list[RealServer]]:
    """Two servers of the student that ships with the package."""
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
