"""Running a function on all processes of a training: each process knows all results before any of them continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from opd_align.training import trl_compat
from opd_align.types import OpdAlignError

T = TypeVar("T")


class EvaluationFailed(OpdAlignError):
    """An evaluation failed; the training itself is not affected."""


def on_all_ranks(work: Callable[[], T]) -> list[T]:
    """The results of `work` on every process, by rank; if it raises on any process, this raises on all."""
    failure: Exception | None = None
    outcome: tuple[Any, str | None]
    try:
        outcome = (work(), None)
    except Exception as error:
        failure, outcome = error, (None, f"{type(error).__name__}: {error}")
    outcomes = trl_compat.gather_object([outcome])
    messages = [message for _, message in outcomes if message is not None]
    if messages:
        raise EvaluationFailed(messages[0]) from failure
    return [result for result, _ in outcomes]
