"""Progress on the terminal: of phases, and of the engine's steps, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich.progress
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from opd_align.core.collect import DONE, Progress


@contextmanager
def progress(questions: int) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Progress], None]]]:
    """Bars for phases (what, done, of how many) and for the engine's steps."""
    with _bars() as bars:
        phases: dict[str, Any] = {}
        live: dict[str, Progress] = {}
        done = 0

        def phase(what: str, done: int, of: int) -> None:
            if what not in phases:
                phases[what] = bars.add_task(what, total=of)
            bars.update(phases[what], completed=done, total=max(of, 1))

        def step(at: Progress) -> None:
            nonlocal done
            live[at.question] = at
            if at.phase == DONE:
                done += 1
                del live[at.question]
            phase("questions", done, questions)
            if "now" not in phases:
                phases["now"] = bars.add_task("", total=1)
            # Several questions at work, here or on a cluster, are shown as one.
            what = f"{at.question}: {at.phase}" if len(live) < 2 else f"{len(live)} questions at work"
            made, planned = (sum(getattr(each, name) for each in live.values()) for name in ("done", "planned"))
            bars.update(phases["now"], description=what, completed=made, total=max(planned, 1))

        yield phase, step


def _bars() -> rich.progress.Progress:
    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="dim")

    what = TextColumn("{task.description:36}")
    left = TimeRemainingColumn(elapsed_when_finished=True)
    return rich.progress.Progress(
        SpinnerColumn(), what, BarColumn(), MofNCompleteColumn(), Rate(), left, transient=True
    )
