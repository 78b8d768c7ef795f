"""Sending sharded weights to vLLM fails on one of two processes: neither waits for the other in a collective."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes import run_two_ranks

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "failing_sync.py"


def test_both_ranks_see_the_failure_and_later_syncs_succeed(tmp_path):
    run_two_ranks(SCRIPT, str(tmp_path))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    for rank in (0, 1):
        for place in ("first", "middle", "last"):
            message = f"ConnectionError: gone (rank {rank}, syncing weights to vLLM)"
            assert first[f"{place} on {rank}"] == message
    unanswered = "ConnectionError: the server does not answer (rank 0, syncing weights to vLLM)"
    assert [first[f"server, {place}"] for place in ("first sync", "first sync again", "at last", "later sync")] == [
        unanswered, unanswered, "synced", unanswered,
    ]  # fmt: skip
    assert first["without a failure"] == "synced"
    assert first["received"] == first["expected"]
