"""Progress: the phase that is running, the time left, lines in log files, bars on terminals, nothing when quiet."""

from __future__ import annotations

import io
import sys
import time

import pytest

from opd_align.cli.progress import RunState, duration, progress
from opd_align.core.collect import DONE, Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def steps(question: str) -> list[Progress]:
    """A question of 100 initial and 300 targeted rollouts, as the engine reports it."""
    counts = [("sampling", (0, 50, 100), 100), ("scoring", (0, 1, 2), 2), ("enriching", (0, 150, 300), 300)]
    found = [Progress(question, phase, done, total) for phase, each, total in counts for done in each]
    return [*found, Progress(question, "estimating", 0, 1), Progress(question, DONE, 1, 1)]


def test_the_phase_that_is_running_is_shown(clock):
    state = RunState(2, clock)
    state.on_phase("demonstrations by self", 1, 4)
    assert state.line == "demonstrations by self, 1 of 4"
    shown = []
    for step in steps("a"):
        state.on_progress(step)
        shown.append(state.now[0])
    assert list(dict.fromkeys(shown)) == [
        "a: initial rollouts", "a: scoring paths", "a: targeted rollouts", "a: estimating", "preparing",
    ]  # fmt: skip
    state.on_progress(Progress("b", "enriching", 0, 300))  # before the first batch of this phase is done
    assert "b: targeted rollouts, 0 of 300" in state.line
    assert state.line.startswith("1 of 2 questions done; ")


def test_time_left_follows_the_rollouts_that_are_done(clock):
    """One rollout per second: the estimate is exact as soon as the plan is known."""
    state, done = RunState(3, clock), 0
    for question in "abc":
        for step in steps(question):
            if step.phase in ("sampling", "enriching"):
                before = 0 if step.phase == "sampling" else 100
                done = "abc".index(question) * 400 + before + step.done
                clock.now = done
            state.on_progress(step)
            known = question != "a" or step.phase not in ("sampling", "scoring")
            if not known or done == 0:
                assert state.seconds_left is None
            elif done < 1200:
                assert state.seconds_left == pytest.approx(1200 - done)
    assert state.finished == 3
    assert state.seconds_left is None


def test_concurrent_questions_share_one_line(clock):
    state = RunState(4, clock)
    state.on_progress(Progress("a", "sampling", 10, 100))
    state.on_progress(Progress("b", "sampling", 30, 100))
    assert state.now == ("2 questions: initial rollouts", 40, 200)
    state.on_progress(Progress("b", "scoring", 0, 2))
    assert state.now[0] == "2 questions: in progress"


@pytest.mark.parametrize(("seconds", "text"), [(4, "4 s"), (89, "89 s"), (100, "2 min"), (12_000, "3 h 20 min")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def wait_for(condition) -> None:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_log_file_gets_lines_while_a_step_takes_long(capsys):
    seen = ""

    def has_lines() -> bool:
        nonlocal seen
        out, err = capsys.readouterr()
        assert out == ""
        seen += err
        return seen.count("\n") >= 2

    with progress(1, line_every_s=0.01) as (_, on_progress):
        on_progress(Progress("a", "enriching", 3, 10))
        wait_for(has_lines)  # no further step is reported
    assert "opd-align: 0 of 1 questions done; a: targeted rollouts, 3 of 10" in seen
    assert "\x1b" not in seen
    assert "\r" not in seen
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""  # it ends with the run


def test_a_short_run_prints_no_line(capsys):
    with progress(1) as (on_phase, on_progress):
        on_phase("preparing", 0, 1)
        for step in steps("a"):
            on_progress(step)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_bars_on_the_standard_error(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress(2) as (on_phase, on_progress):
        on_phase("demonstrations", 0, 4)
        for step in steps("a"):
            on_progress(step)
    assert "questions" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_quiet_shows_nothing(capsys):
    with progress(1, quiet=True, line_every_s=0.001) as (on_phase, on_progress):
        on_phase("x", 0, 1)
        on_progress(Progress("a", "sampling", 1, 2))
        time.sleep(0.02)
    assert capsys.readouterr() == ("", "")
