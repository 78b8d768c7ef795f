"""Verifiers that misbehave, and training that goes on."""

from __future__ import annotations

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
from opd_align.training import IncorrectOnly
from opd_align.training.rewards import MAX_HANGING_CALLS, RewardVerifier
from opd_align.types import OpdAlignError, Outcome

UNKNOWN, INCORRECT, CORRECT = Outcome.UNKNOWN, Outcome.INCORRECT, Outcome.CORRECT


def verifier(prompts, completions, **columns):
    return [1.0] * len(completions)


def judge(function, n=2, **settings):
    verifier_call = RewardVerifier(function, **settings)
    return verifier_call, verifier_call.outcomes(["q"] * n, ["Answer: 1"] * n, {"answer": ["1"] * n})


@pytest.fixture(params=["alarm", "thread"])
def wherever(request):
    """Calls a function in the main thread, where an alarm ends what hangs, or in another one."""
    if request.param == "alarm":
        yield lambda work: work()
    else:
        with ThreadPoolExecutor(1) as pool:
            yield lambda work: pool.submit(work).result()


def test_verdicts_are_read(wherever):
    given = [1, 0.0, None, float("nan"), True, np.float32(1), torch.tensor(0.0)]
    _, outcomes = wherever(lambda: judge(lambda **_: given, n=7))
    assert outcomes == [CORRECT, INCORRECT, UNKNOWN, UNKNOWN, CORRECT, CORRECT, INCORRECT]
    _, outcomes = wherever(lambda: judge(lambda **_: torch.tensor([1.0, 0.0])))
    assert outcomes == [CORRECT, INCORRECT]
    _, outcomes = wherever(lambda: judge(task("arithmetic").verifier))
    assert outcomes == [CORRECT, CORRECT]


def test_a_verifier_that_raises_leaves_outcomes_unknown_and_is_reported_once(wherever, caplog):
    def broken(**_):
        raise ZeroDivisionError("oh")

    def later(completions, **_):
        yield 1.0
        raise ZeroDivisionError("in the middle")

    with caplog.at_level(logging.WARNING):
        verifier_call, outcomes = wherever(lambda: judge(broken))
        assert outcomes == [UNKNOWN, UNKNOWN]
        assert wherever(lambda: verifier_call.outcomes(["q"], ["a"], {})) == [UNKNOWN]
    assert verifier_call.failures == 2
    assert [record.getMessage() for record in caplog.records if "ZeroDivisionError: oh" in record.getMessage()]
    assert len(caplog.records) == 1
    assert wherever(lambda: judge(later))[1] == [UNKNOWN, UNKNOWN]
    assert wherever(lambda: judge(lambda **_: sys.exit(1)))[1] == [UNKNOWN, UNKNOWN]


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
        lambda **_: re.match(r"(a+)+$", "a" * 60 + "b"),  # never lets go of the interpreter
        swallows,
        sleeps_between,
    ],
    ids=["sleeps", "waits", "backtracks", "swallows", "generates"],
)
def test_an_alarm_ends_what_hangs(function, caplog):
    before = signal.getsignal(signal.SIGALRM)
    with caplog.at_level(logging.WARNING):
        verifier_call, outcomes = judge(function, timeout_s=0.2)
    assert outcomes == [UNKNOWN, UNKNOWN]
    assert "within 0.2 s" in caplog.text
    assert verifier_call.failures == 1
    assert verifier_call._hanging == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_somebody_elses_alarm_is_left_alone():
    def theirs(*_):
        raise AssertionError("it is set for much later")

    before = signal.signal(signal.SIGALRM, theirs)
    try:
        signal.setitimer(signal.ITIMER_REAL, 600)
        verifier_call, outcomes = judge(lambda **_: time.sleep(5), timeout_s=0.1)
        assert outcomes == [UNKNOWN, UNKNOWN]
        assert len(verifier_call._hanging) == 1, "a thread it was"
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        assert signal.getsignal(signal.SIGALRM) is theirs
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_during_a_verdict_is_still_ctrl_c():
    def interrupted(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(interrupted)


def test_in_a_thread_a_verifier_that_hangs_costs_its_time_limit_and_is_given_up(caplog):
    release, calls = threading.Event(), []

    def hangs(**_):
        calls.append(True)
        release.wait()

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):

        def ask(*given):
            return pool.submit(verifier_call.outcomes, *given).result()

        verifier_call = RewardVerifier(hangs, timeout_s=0.1)
        for _ in range(MAX_HANGING_CALLS):
            assert ask(["q"], ["a"], {}) == [UNKNOWN]
        assert ask(["q"], ["a"], {}) == [UNKNOWN]
        assert len(calls) == MAX_HANGING_CALLS, "it is not asked again while so many hang"
        assert verifier_call.failures == MAX_HANGING_CALLS + 1
        assert len(caplog.records) == 1
        assert "within 0.1 s" in caplog.text
        release.set()
        for thread in verifier_call._hanging:
            thread.join()
        verifier_call.verifier = verifier  # once they have come back, it is asked again
        assert ask(["q"], ["a"], {}) == [CORRECT]


def test_a_thread_that_hangs_does_not_hold_up_the_exit():
    script = (
        "import signal, time\n"
        "from opd_align.training.rewards import RewardVerifier\n"
        "signal.signal(signal.SIGALRM, lambda *_: None)  # taken: a thread it is\n"
        "print(RewardVerifier(lambda **_: time.sleep(600), timeout_s=0.1).outcomes(['q'], ['a'], {}))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "UNKNOWN" in run.stdout


def needs_more(prompts, completions, weather, **columns):
    return [1.0] * len(completions)


def takes_little(prompts, completions):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda **_: [1.0], "1 verdicts for 2"),
        (lambda **_: [0.4, 1.0], "0.4; a verdict is 1"),
        (lambda **_: ["yes", "no"], "'yes'; a verdict is 1"),
        (lambda **_: None, "gave None; expected one verdict"),
        (lambda **_: "11", "gave '11'; expected one verdict"),
        (needs_more, "'weather'"),
        (takes_little, r"'source'.*end its parameters with \*\*columns"),
        (task("arithmetic").verifier, "column 'answer'"),
    ],
)
def test_a_verifier_that_does_not_fit_stops_the_run(function, complaint, wherever):
    with pytest.raises(OpdAlignError, match=complaint):
        wherever(lambda: RewardVerifier(function).outcomes(["q", "q"], ["a", "a"], {"source": ["x", "y"]}))


def test_a_verifier_is_called_as_trl_calls_rewards():
    seen = {}

    def asks(prompts, completions, completion_ids, **columns):
        seen.update(columns, ids=completion_ids)
        return [1.0] * len(completions)

    def plain(prompts, completions, answer):
        return [1.0] * len(completions)

    columns = {"answer": ["1"], "prompt": ["never"], "completion_ids": ["of the data"]}
    extras = {"completion_ids": [[3]], "trainer_state": None}
    assert RewardVerifier(asks).outcomes(["q"], ["a"], columns, **extras) == [CORRECT]
    assert seen == {"answer": ["1"], "trainer_state": None, "ids": [[3]]}
    assert RewardVerifier(plain).outcomes(["q"], ["a"], columns, **extras) == [CORRECT]


def test_a_verifier_as_a_reward_is_called_once_and_remembered():
    calls = []

    def plain(prompts, completions, answer):
        calls.append(answer)
        return [1.0, 0.0, None]

    verifier_call = RewardVerifier(plain)
    reward = verifier_call.as_reward()
    assert reward.__name__ == "plain"
    given = {"answer": ["1"] * 3, "completion_ids": [[1]] * 3, "trainer_state": None, "log_metric": print}
    assert reward(prompts=["q"] * 3, completions=["a"] * 3, **given) == [1.0, 0.0, None]
    assert verifier_call.latest == [CORRECT, INCORRECT, UNKNOWN]
    assert calls == [["1"] * 3]


def test_what_can_be_no_verifier_is_refused():
    async def later(**_):
        return []

    class Later:
        async def __call__(self, **_):
            return []

    refused = [(later, "asynchronous"), (Later(), "asynchronous"), (torch.nn.Linear(1, 1), "a model")]
    for given, complaint in [*refused, (task("arithmetic"), r"give its judge: task\.verifier")]:
        with pytest.raises(OpdAlignError, match=complaint):
            RewardVerifier(given)
        with pytest.raises(OpdAlignError, match=complaint):
            IncorrectOnly(given, unknown="keep")
    with pytest.raises(OpdAlignError, match="positive number"):
        RewardVerifier(verifier, timeout_s=0)
