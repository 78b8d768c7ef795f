"""Failures of an evaluation that say nothing about its checkpoint: a full disk, no memory, a server that is down.

Such an evaluation is tried again, and is not counted as done: with a machine that works, the checkpoint has a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import ENOENT, ENOTDIR

from opd_align.backends.http_pool import ServerUnavailable
from opd_align.backends.loading import HubUnreachable
from opd_align.types import OpdAlignError

RETRY_AFTER_S = (60.0, 240.0, 960.0)
"""Seconds until such an evaluation is tried again, after each attempt; after the last one the watcher ends."""


class CannotWatch(OpdAlignError):
    """What is wrong for every checkpoint of a training."""


class CannotEvaluateNow(OpdAlignError):
    """What is wrong with this machine at present, not with a checkpoint."""


def is_of_this_machine(error: BaseException) -> bool:
    """Whether an evaluation failed for a reason that has nothing to do with its checkpoint."""
    return any(_is_of_this_machine(each) for each in _causes(error))


def _is_of_this_machine(error: BaseException) -> bool:
    if isinstance(error, OSError):
        # Libraries raise it without a number for what they do not find in a folder.
        return error.errno not in (None, ENOENT, ENOTDIR)
    if isinstance(error, RuntimeError):
        # After an error of its driver, nothing works in this process any more.
        return "out of memory" in str(error) or "CUDA error" in str(error)
    return isinstance(error, MemoryError | ServerUnavailable | HubUnreachable)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
