"""Progress bars on the terminal, for phases of a run and for the questions being analyzed, locally or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich.progress
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from opd_align.core.collect import DONE, Progress
from opd_align.types import printable


@contextmanager
def progress(n_questions: int) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Progress], None]]]:
    """Yields two callbacks: `on_phase(label, done, total)` and `on_progress(step)` for steps of the engine."""
    with _progress_bars() as bars:
        bar_of: dict[str, Any] = {}
        active: dict[str, Progress] = {}
        finished = 0

        def on_phase(label: str, done: int, total: int) -> None:
            if label not in bar_of:
                bar_of[label] = bars.add_task(printable(label), total=total)
            bars.update(bar_of[label], completed=done, total=max(total, 1))

        def on_progress(step: Progress) -> None:
            nonlocal finished
            active[step.question] = step
            if step.phase == DONE:
                finished += 1
                del active[step.question]
            on_phase("questions", finished, n_questions)
            if "current" not in bar_of:
                bar_of["current"] = bars.add_task("", total=1)
            # Questions processed concurrently share one bar.
            label = f"{step.question}: {step.phase}" if len(active) < 2 else f"{len(active)} questions in progress"
            done = sum(question.done for question in active.values())
            planned = sum(question.planned for question in active.values())
            bars.update(bar_of["current"], description=printable(label), completed=done, total=max(planned, 1))

        yield on_phase, on_progress


def _progress_bars() -> rich.progress.Progress:
    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="dim")

    label = TextColumn("{task.description:36}", markup=False)
    remaining = TimeRemainingColumn(elapsed_when_finished=True)
    return rich.progress.Progress(
        SpinnerColumn(), label, BarColumn(), MofNCompleteColumn(), Rate(), remaining, transient=True
    )
