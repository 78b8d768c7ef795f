"""The trainer's log by scalar, in a form that stays small: long curves are reduced to bins of steps.

A bin has the mean and the smallest and largest value of its rows, so a spike of a single row stays visible however
long the training is. After a training was resumed from an earlier checkpoint, a row replaces all rows of later steps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import numpy as np

MAX_BINS = 600
"""Curves with more points than this have as many bins."""
RECENT_ROWS = 50
"""The speed of a training is that of its newest rows."""


class LogCurve(NamedTuple):
    """One scalar of the log; `low` and `high` are None where each point is a single row."""

    steps: list[int]
    values: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


class TrainingLog:
    """The rows of a trainer's log, sorted by step, one column per scalar."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self._times: deque[tuple[int, float]] = deque(maxlen=RECENT_ROWS)
        self.last_step: int | None = None

    def append(self, step: int, row: Mapping[str, float | None], at: float | None = None) -> None:
        """Adds a row; one with an earlier step than the last replaces what is later.

        Args:
            step: Training step.
            row: Scalars by name; unknown ones are skipped. Two rows of one step are merged.
            at: Time of the row in seconds since 1970.
        """
        if self.last_step is not None and step < self.last_step:
            self._cut(step + 1)
        self.last_step = step
        if at is not None:
            self._times.append((step, at))
        for name, value in row.items():
            if value is None:
                continue
            steps, values = self._columns.setdefault(name, (array("q"), array("d")))
            if steps and steps[-1] == step:
                values[-1] = value
            else:
                steps.append(step)
                values.append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    @property
    def last_time(self) -> float | None:
        """Time of the newest row in seconds since 1970."""
        return self._times[-1][1] if self._times else None

    @property
    def seconds_per_step(self) -> float | None:
        """From the newest rows; None if there are too few."""
        if len(self._times) < 2:
            return None
        (first, start), (last, end) = self._times[0], self._times[-1]
        return (end - start) / (last - first) if last > first and end > start else None

    def newest(self, name: str) -> float:
        """The last value of a scalar."""
        return self._columns[name][1][-1]

    def curve(self, name: str, *, low: float = -inf, high: float = inf, bins: int = MAX_BINS) -> LogCurve:
        """A scalar from step `low` to step `high`, and one point to either side, where a line enters the range."""
        steps, values = self._columns[name]
        start, end = max(bisect_left(steps, low) - 1, 0), bisect_left(steps, high + 1) + 1
        step_T, value_T = np.array(steps[start:end], np.int64), np.array(values[start:end], np.float64)
        if len(step_T) <= bins:
            return LogCurve(step_T.tolist(), _short(value_T))
        edge_B = np.arange(bins + 1) * len(step_T) // bins
        first_B, size_B = edge_B[:-1], np.diff(edge_B)
        mean_B = np.add.reduceat(value_T, first_B) / size_B
        # The steps of the first and the last row stay, so that the axis ends where the log ends.
        middle_B = step_T[first_B + size_B // 2]
        middle_B[0], middle_B[-1] = step_T[0], step_T[-1]
        extremes = (reduce.reduceat(value_T, first_B) for reduce in (np.minimum, np.maximum))
        return LogCurve(middle_B.tolist(), _short(mean_B), *map(_short, extremes))

    def _cut(self, step: int) -> None:
        """Removes the rows from `step` on."""
        for name, (steps, values) in [*self._columns.items()]:
            kept = bisect_left(steps, step)
            del steps[kept:], values[kept:]
            if not kept:
                del self._columns[name]
        while self._times and self._times[-1][0] >= step:
            self._times.pop()


def _short(value_T: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """Six digits: more cannot be seen, and the page is half as large."""
    return [float(f"{value:.6g}") for value in value_T.tolist()]
