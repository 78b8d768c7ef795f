"""`RewardVerifier`: values, time limits, failures, and how the function is called."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from opd_align.tasks import task
from opd_align.training.rewards import MAX_HANGING_CALLS, RewardVerifier
from opd_align.types import OpdAlignError, Outcome

UNKNOWN, INCORRECT, CORRECT = Outcome.UNKNOWN, Outcome.INCORRECT, Outcome.CORRECT


def verifier(prompts, completions, **columns):
    return [1.0] * len(completions)


def verify(function, n=2, **options):
    reward = RewardVerifier(function, **options)
    return reward, reward.outcomes(["q"] * n, ["Answer: 1"] * n, {"answer": ["1"] * n})


@pytest.fixture(params=["alarm", "thread"])
def run_in(request):
    """Calls a function in the main thread, where an alarm ends a hanging call, or in another thread."""
    if request.param == "alarm":
        yield lambda function: function()
    else:
        with ThreadPoolExecutor(1) as pool:
            yield lambda function: pool.submit(function).result()


def test_values_are_read_as_outcomes(run_in):
    values = [1, 0.0, None, float("nan"), True, np.float32(1), torch.tensor(0.0), np.float64("nan"), 0.5, 0.49]
    _, outcomes = run_in(lambda: verify(lambda **_: values, n=10))
    expected = [CORRECT, INCORRECT, UNKNOWN, UNKNOWN, CORRECT, CORRECT, INCORRECT, UNKNOWN, CORRECT, INCORRECT]
    assert outcomes == expected
    _, outcomes = run_in(lambda: verify(lambda **_: torch.tensor([1.0, 0.0])))
    assert outcomes == [CORRECT, INCORRECT]
    _, outcomes = run_in(lambda: verify(task("arithmetic").verifier))
    assert outcomes == [CORRECT, CORRECT]


def test_a_verifier_that_raises_leaves_outcomes_unknown_and_is_logged_once(run_in, caplog):
    def broken(**_):
        raise ZeroDivisionError("first")

    def later(completions, **_):
        yield 1.0
        raise ZeroDivisionError("after the first value")

    with caplog.at_level(logging.WARNING):
        reward, outcomes = run_in(lambda: verify(broken))
        assert outcomes == [UNKNOWN, UNKNOWN]
        assert run_in(lambda: reward.outcomes(["q"], ["a"], {})) == [UNKNOWN]
    assert reward.failures == 2
    assert [record.getMessage() for record in caplog.records if "ZeroDivisionError: first" in record.getMessage()]
    assert len(caplog.records) == 1
    assert run_in(lambda: verify(later))[1] == [UNKNOWN, UNKNOWN]
    assert run_in(lambda: verify(lambda **_: sys.exit(1)))[1] == [UNKNOWN, UNKNOWN]


def swallows(**_):
    while True:
        try:
            time.sleep(60)
        except Exception:
            return [1.0, 1.0]


def sleeps_between(**_):
    yield 1.0
    time.sleep(60)
    yield 1.0


@pytest.mark.parametrize(
    "function",
    [
        lambda **_: time.sleep(60),
        lambda **_: threading.Event().wait(),
        lambda **_: re.match(r"(a+)+$", "a" * 60 + "b"),  # never releases the GIL
        swallows,
        sleeps_between,
    ],
    ids=["sleeps", "waits", "backtracks", "swallows", "generates"],
)
def test_an_alarm_ends_a_hanging_call(function, caplog):
    before = signal.getsignal(signal.SIGALRM)
    with caplog.at_level(logging.WARNING):
        reward, outcomes = verify(function, timeout_s=0.2)
    assert outcomes == [UNKNOWN, UNKNOWN]
    assert "within 0.2 s" in caplog.text
    assert reward.failures == 1
    assert reward._hanging == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_that_is_in_use_is_left_alone():
    def handler(*_):
        raise AssertionError("this alarm is set for much later")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 600)
        reward, outcomes = verify(lambda **_: time.sleep(5), timeout_s=0.1)
        assert outcomes == [UNKNOWN, UNKNOWN]
        assert len(reward._hanging) == 1, "the call ran in a thread"
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_keyboard_interrupt_is_not_caught():
    def interrupted(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(interrupted)


def test_a_verifier_that_keeps_hanging_in_threads_is_no_longer_called(caplog):
    release, calls = threading.Event(), []

    def hangs(**_):
        calls.append(True)
        release.wait()

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):

        def call(*arguments):
            return pool.submit(reward.outcomes, *arguments).result()

        reward = RewardVerifier(hangs, timeout_s=0.1)
        for _ in range(MAX_HANGING_CALLS):
            assert call(["q"], ["a"], {}) == [UNKNOWN]
        assert call(["q"], ["a"], {}) == [UNKNOWN]
        assert len(calls) == MAX_HANGING_CALLS, "it is not called while so many calls hang"
        assert reward.failures == MAX_HANGING_CALLS + 1
        assert len(caplog.records) == 1
        assert "within 0.1 s" in caplog.text
        release.set()
        for thread in reward._hanging:
            thread.join()
        reward.function = verifier  # once they have returned, it is called again
        assert call(["q"], ["a"], {}) == [CORRECT]


def test_a_hanging_thread_does_not_delay_the_exit():
    script = (
        "import signal, time\n"
        "from opd_align.training.rewards import RewardVerifier\n"
        "signal.signal(signal.SIGALRM, lambda *_: None)  # in use: the call runs in a thread\n"
        "print(RewardVerifier(lambda **_: time.sleep(600), timeout_s=0.1).outcomes(['q'], ['a'], {}))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "UNKNOWN" in run.stdout


def needs_another_column(prompts, completions, weather, **columns):
    return [1.0] * len(completions)


def accepts_no_columns(prompts, completions):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda **_: [1.0], "1 values for 2"),
        (lambda **_: ["yes", "no"], "'yes'; expected a number"),
        (lambda **_: None, "returned None; expected one value"),
        (lambda **_: "11", "returned '11'; expected one value"),
        (needs_another_column, "'weather'"),
        (accepts_no_columns, r"'source'.*end its parameters with \*\*columns"),
        (task("arithmetic").verifier, "column 'answer'"),
    ],
)
def test_a_verifier_that_can_never_work_raises(function, complaint, run_in):
    with pytest.raises(OpdAlignError, match=complaint):
        run_in(lambda: RewardVerifier(function).outcomes(["q", "q"], ["a", "a"], {"source": ["x", "y"]}))


def test_a_verifier_is_called_as_trl_calls_rewards():
    seen = {}

    def named(prompts, completions, completion_ids, **columns):
        seen.update(columns, ids=completion_ids)
        return [1.0] * len(completions)

    def plain(prompts, completions, answer):
        return [1.0] * len(completions)

    columns = {"answer": ["1"], "prompt": ["withheld"], "completion_ids": ["withheld"]}
    extras = {"completion_ids": [[3]], "trainer_state": None}
    assert RewardVerifier(named).outcomes(["q"], ["a"], columns, **extras) == [CORRECT]
    assert seen == {"answer": ["1"], "trainer_state": None, "ids": [[3]]}
    assert RewardVerifier(plain).outcomes(["q"], ["a"], columns, **extras) == [CORRECT]


def test_a_reward_function_keeps_the_latest_outcomes():
    calls = []

    def plain(prompts, completions, answer):
        calls.append(answer)
        return [1.0, 0.0, None]

    verifier = RewardVerifier(plain)
    reward = verifier.as_reward()
    assert reward.__name__ == "plain"
    columns = {"answer": ["1"] * 3, "completion_ids": [[1]] * 3, "trainer_state": None, "log_metric": print}
    assert reward(prompts=["q"] * 3, completions=["a"] * 3, **columns) == [1.0, 0.0, None]
    assert verifier.latest == [CORRECT, INCORRECT, UNKNOWN]
    assert calls == [["1"] * 3]


def test_an_asynchronous_call_that_hangs_is_cancelled(run_in):
    cancelled = threading.Event()

    async def hangs(**_):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    reward, outcomes = run_in(lambda: verify(hangs, timeout_s=0.2))
    assert outcomes == [UNKNOWN, UNKNOWN]
    assert reward.last_failure == "no result within 0.2 s"
    assert cancelled.wait(10)


def test_a_timeout_of_the_verifiers_own_is_an_error_of_its_own():
    async def impatient(**_):
        raise TimeoutError("the server did not answer")

    reward, outcomes = verify(impatient)
    assert outcomes == [UNKNOWN, UNKNOWN]
    assert reward.last_failure == "TimeoutError: the server did not answer"


def test_failures_are_counted_until_a_call_returns():
    replies = iter([None, None, [1.0]])

    def flaky(**_):
        reply = next(replies)
        if reply is None:
            raise ConnectionError
        return reply

    reward, counts = RewardVerifier(flaky), []
    for _ in range(3):
        reward.outcomes(["q"], ["a"], {})
        counts.append((reward.calls, reward.failures, reward.consecutive_failures))
    assert counts == [(1, 1, 1), (2, 2, 2), (3, 2, 0)]
