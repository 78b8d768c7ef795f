"""Agreement between two processes: results and failures are the same on both, however long one takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes import run_two_ranks

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "agreement.py"
TIMEOUT_S = 15


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agreement")
    run_two_ranks(SCRIPT, str(folder), str(TIMEOUT_S))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_every_rank_gets_the_results_of_all(seen):
    assert [each["results"] for each in seen] == [["rank 0", "rank 1"]] * 2


def test_a_failure_on_one_rank_is_raised_on_all_with_its_place(seen):
    messages = [each["failure"][:2] for each in seen]
    assert messages == [["EvaluationFailed", "MemoryError: no memory left (rank 1, loading)"]] * 2
    assert "On rank 1:" in seen[0]["failure"][2]
    assert "in fail_on" in seen[0]["failure"][2], "rank 0 can log the traceback of rank 1"
    assert len(seen[1]["failure"]) == 2


def test_an_error_that_all_ranks_raise_alike_stays_what_it_is(seen):
    assert [each["alike on all ranks"] for each in seen] == [["OpdAlignError", "no questions"]] * 2


def test_a_result_that_cannot_be_sent_is_a_failure_on_all_ranks(seen):
    for status, message, *_ in (each["not picklable"] for each in seen):
        assert status == "EvaluationFailed"
        assert "(rank 1, sending)" in message


def test_a_failure_between_stages_is_met_at_the_end(seen):
    assert [each["between stages"] for each in seen] == [[[0, 1], "ValueError: a local failure (rank 1)"]] * 2


def test_ranks_wait_longer_than_the_process_group_of_the_training(seen):
    assert [each["after the time-out"] for each in seen] == [["rank 0", "rank 1"]] * 2
    assert all(each["waited"] for each in seen)
    assert [each["at the end"] for each in seen] == [None, None]


def test_a_rank_that_hangs_is_waited_for_until_the_limit_and_only_once(seen):
    message, failures, different = seen[0]["hangs"]
    assert message.startswith(
        "another rank hangs or has ended: rank 0 waited for it after 'grading', for at most 4 s ("
    )
    assert seen[0]["waited for the one that hangs"]
    assert (failures, different) == (3, 1), "later ones fail at once, for the same reason"
