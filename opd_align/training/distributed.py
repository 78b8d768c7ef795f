"""The processes of a training, as one: what each of them did is known to all before any goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opd_align.runs.execute import Group, GroupResults, LocalExecutor
from opd_align.runs.filesystem import AnyPath
from opd_align.runs.run_directory import Usage
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
