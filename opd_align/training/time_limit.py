"""The time limit of one evaluation: checked while it samples, not only between batches.

When it is reached, targeted rollouts end and the questions sampled so far are analyzed with what they have; a question
whose initial rollouts are not complete has no result. Rollouts are dropped by whole batches: keeping those that happen
to be finished would favour short ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pyarrow as pa

from opd_align.types import Failure, OpdAlignError, Rollouts, SampleRequest

ENGINE_ROLLOUTS = 256
"""Rollouts that an engine is asked for between two checks: an engine's call cannot be stopped."""


SMALLEST_SHARE = 1e-3


class TimeLimitExceeded(OpdAlignError):
    """The time limit of an evaluation was reached."""


class TimeLimit:
    """A time limit that starts when it is constructed.

    Args:
        seconds: The limit in seconds; `None`: no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.end = inf if seconds is None else time.monotonic() + seconds

    @property
    def exceeded(self) -> bool:
        return time.monotonic() > self.end

    def check(self) -> None:
        """Raises `TimeLimitExceeded` after the limit."""
        if self.exceeded:
            raise TimeLimitExceeded(
                f"the evaluation reached its time limit of {self.seconds:.3g} s while sampling; use a smaller budget, "
                "sampling with fewer max_tokens, vLLM, or max_overhead=None for no limit"
            )


class TimedStudent:
    """A student that stops sampling at a time limit; all else is that of the student itself.

    Args:
        student: The student. If it has a field `before_step` (`HFStudent`), that is expected to be `limit.check`.
        limit: The time limit.
        raises: Whether initial rollouts after the limit raise `TimeLimitExceeded`; otherwise they are failures, as
            targeted ones are in any case.
    """

    def __init__(self, student: Any, limit: TimeLimit, *, raises: bool = True) -> None:
        self._student, self.limit, self._raises = student, limit, raises

    def __getattr__(self, name: str) -> Any:
        return getattr(self._student, name)

    def without_errors(self) -> TimedStudent:
        """The same student, with failures in place of all rollouts after the limit: what it has sampled is kept."""
        return TimedStudent(self._student, self.limit, raises=False)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """The rollouts; after the limit, failures in place of targeted ones, and `TimeLimitExceeded` for others."""
        try:
            if hasattr(self._student, "before_step") or self.limit.seconds is None:
                return self._sample_part(requests)
            return Rollouts.join([self._sample_part(part) for part in _parts(requests)])
        except TimeLimitExceeded:
            if self._raises and any(not len(request.prefix) and request.first == 0 for request in requests):
                raise
            keys = [int(key) for keys in self._student.keys(requests) for key in keys]
            failures = tuple(Failure(key, "time limit of the evaluation") for key in keys)
            return replace(Rollouts.of([]), failures=failures)

    def _sample_part(self, requests: Sequence[SampleRequest]) -> Rollouts:
        self.limit.check()
        rollouts: Rollouts = self._student.sample(requests)
        return rollouts


def completed_share(questions: pa.Table, num_selected: int) -> float:
    """The share of an evaluation that was completed before its time limit, above 0.

    Args:
        questions: `Analysis.questions`: the questions with a result, with the rollouts that they have and lack.
        num_selected: Number of questions of the evaluation.
    """
    done = 0.0
    for row in questions.to_pylist():
        sampled = row["initial"] + row["targeted"] + row["unknown"]
        done += sampled / max(sampled + row["failed"], 1)
    return max(done / num_selected, SMALLEST_SHARE)


def _parts(requests: Sequence[SampleRequest]) -> list[list[SampleRequest]]:
    """The requests in parts of about `ENGINE_ROLLOUTS` rollouts."""
    parts: list[list[SampleRequest]] = [[]]
    for request in requests:
        if sum(each.n for each in parts[-1]) >= ENGINE_ROLLOUTS:
            parts.append([])
        parts[-1].append(request)
    return parts
