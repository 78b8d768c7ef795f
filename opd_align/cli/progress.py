"""Progress of a run on the standard error: bars on a terminal, a line every 30 seconds in a log file.

Both show what is being done now, not what was done last, and the time left once it can be estimated. The standard
output is left to results.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn
from rich.text import Text

from opd_align.core.collect import DONE, Progress
from opd_align.types import printable

LINE_EVERY_S = 30.0
"""Time between two lines where the standard error is not a terminal."""
DOING = {
    "sampling": "initial rollouts", "scoring": "scoring paths", "enriching": "targeted rollouts",
    "estimating": "estimating",
}  # fmt: skip
"""Phase of `core.collect.Progress` → what is shown."""
Callbacks = tuple[Callable[[str, int, int], None], Callable[[Progress], None]]


@dataclass
class RunState:
    """What a run is doing.

    Args:
        n_questions: Number of questions that are analyzed.
        clock: Seconds, from any start.
    """

    n_questions: int
    clock: Callable[[], float] = time.monotonic
    phase: tuple[str, int, int] | None = None
    active: dict[str, Progress] = field(default_factory=dict)
    finished: int = 0
    begin_s: float | None = None
    # The plan of the targeted rollouts is known when they begin; until then, that of the previous question counts.
    planned: dict[str, int] = field(default_factory=dict)

    def on_phase(self, label: str, done: int, total: int) -> None:
        """A step of the preparation."""
        self.phase = None if done >= total else (label, done, total)

    def on_progress(self, step: Progress) -> None:
        """A step of the analysis of a question."""
        self.phase = None
        self.begin_s = self.clock() if self.begin_s is None else self.begin_s
        self.planned[step.phase] = step.planned
        self.active[step.question] = step
        if step.phase == DONE:
            self.finished += 1
            del self.active[step.question]

    @property
    def share(self) -> float | None:
        """The share of the analysis that is done, by rollouts; `None` while it is unknown."""
        if not self.n_questions or not (self.finished or "enriching" in self.planned):
            return None
        sampling, enriching = (self.planned.get(name, 0) for name in ("sampling", "enriching"))
        total = max(sampling + enriching, 1)
        done = float(self.finished)
        for step in self.active.values():
            before = {"sampling": 0, "scoring": sampling, "enriching": sampling, "estimating": total}[step.phase]
            own = step.done if step.phase in ("sampling", "enriching") else 0
            done += min(before + own, total) / total
        return min(done / self.n_questions, 1.0)

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the time that the finished share took; `None` while it is unknown."""
        share = self.share
        if not share or self.begin_s is None or share >= 1:
            return None
        return (self.clock() - self.begin_s) * (1 - share) / share

    @property
    def now(self) -> tuple[str, int, int]:
        """What is being done, how much of it is done, and how much there is."""
        if self.phase is not None or not self.active:
            return self.phase or ("preparing", 0, 0)
        if len(self.active) == 1:
            (step,) = self.active.values()
            return f"{step.question}: {DOING.get(step.phase, step.phase)}", step.done, step.planned
        # Questions that are processed together share one line.
        phases = {DOING.get(step.phase, step.phase) for step in self.active.values()}
        doing = phases.pop() if len(phases) == 1 else "in progress"
        done, planned = (sum(getattr(step, name) for step in self.active.values()) for name in ("done", "planned"))
        return f"{len(self.active)} questions: {doing}", done, planned

    @property
    def line(self) -> str:
        """The state as a line of a log."""
        label, done, total = self.now
        parts = [f"{label}, {done:,} of {total:,}" if total > 1 else label]
        if self.n_questions and self.phase is None and self.begin_s is not None:
            parts.insert(0, f"{self.finished} of {self.n_questions} questions done")
        left = self.seconds_left
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return printable("; ".join(parts))


def duration(seconds: float) -> str:
    """A duration in words: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress(n_questions: int, *, quiet: bool = False, line_every_s: float = LINE_EVERY_S) -> Iterator[Callbacks]:
    """Yields two callbacks: `on_phase(label, done, total)` and `on_progress(step)` for steps of the engine.

    Args:
        n_questions: Number of questions that are analyzed; 0 if there are only phases.
        quiet: Show nothing.
        line_every_s: Time between two lines where the standard error is not a terminal.
    """
    state = RunState(n_questions)
    if quiet:
        yield state.on_phase, state.on_progress
        return
    shown = _bars(state) if sys.stderr.isatty() else _lines(state, line_every_s)
    with shown as callbacks:
        yield callbacks


@contextmanager
def _lines(state: RunState, every_s: float) -> Iterator[Callbacks]:
    """A line at regular intervals, also while a single step takes long."""
    over = threading.Event()
    stream = sys.stderr

    def write() -> None:
        while not over.wait(every_s):
            print(f"opd-align: {state.line}", file=stream, flush=True)

    writer = threading.Thread(target=write, daemon=True, name="progress")
    writer.start()
    try:
        yield state.on_phase, state.on_progress
    finally:
        over.set()
        writer.join()


@contextmanager
def _bars(state: RunState) -> Iterator[Callbacks]:
    with _progress_bars(state) as bars:
        bar_of: dict[str, Any] = {}

        def show(name: str, label: str, done: int, total: int) -> None:
            if name not in bar_of:
                bar_of[name] = bars.add_task(printable(label), total=total)
            bars.update(bar_of[name], description=printable(label), completed=done, total=max(total, 1))

        def on_phase(label: str, done: int, total: int) -> None:
            state.on_phase(label, done, total)
            show(f"phase {label}", label, done, total)

        def on_progress(step: Progress) -> None:
            state.on_progress(step)
            show("questions", "questions", state.finished, state.n_questions)
            if state.active:
                show("current", *state.now)

        yield on_phase, on_progress


def _progress_bars(state: RunState) -> rich.progress.Progress:
    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="dim")

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:
            left = state.seconds_left
            return Text(f"{duration(left)} left" if left is not None and task.description == "questions" else "")

    label = TextColumn("{task.description:36}", markup=False)
    return rich.progress.Progress(
        SpinnerColumn(), label, BarColumn(), MofNCompleteColumn(), Rate(), Left(),
        transient=True, console=Console(stderr=True),
    )  # fmt: skip
