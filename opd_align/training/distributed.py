"""The processes of a training, as one: what each of them did is known to all before any goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from opd_align.types import OpdAlignError

T = TypeVar("T")


class EvaluationFailed(OpdAlignError):
    """An evaluation could not be made; training is not concerned."""


def on_all_ranks(work: Callable[[], T]) -> list[T]:
    """What the work gave on every process, in their order; if it failed on any, it fails on all."""
    from accelerate.utils import gather_object

    failure: Exception | None = None
    told: tuple[Any, str | None]
    try:
        told = (work(), None)
    except Exception as error:
        failure, told = error, (None, f"{type(error).__name__}: {error}")
    outcomes = gather_object([told])
    reasons = [reason for _, reason in outcomes if reason is not None]
    if reasons:
        raise EvaluationFailed(reasons[0]) from failure
    return [result for result, _ in outcomes]
