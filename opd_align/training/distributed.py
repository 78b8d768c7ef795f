"""Running a function on all processes of a training: each process knows all results before any of them continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opd_align.runs.execute import Group, GroupResults, LocalExecutor
from opd_align.runs.filesystem import AnyPath
from opd_align.runs.run_directory import Usage
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


@dataclass(frozen=True)
class RankExecutor:
    """Executes a run on all ranks of a training; rank 0 holds the run directory, groups are assigned in turn.

    Args:
        local: Analyzes the groups of this rank.
        rank: This process's rank.
        world_size: The number of ranks.
    """

    local: LocalExecutor
    rank: int
    world_size: int

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function on rank 0; its result, which must be picklable, or its failure is seen on all ranks."""
        results: list[Any] = on_all_ranks(lambda: function() if self.rank == 0 else None)
        first: T = results[0]
        return first

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes this rank's share of the groups and gathers the results of all ranks."""
        shares = on_all_ranks(lambda: self.local.analyze_groups(path, groups[self.rank :: self.world_size]))
        results = [shares[n % self.world_size].results[n // self.world_size] for n in range(len(groups))]
        return GroupResults(results, sum((share.usage for share in shares), Usage()))
