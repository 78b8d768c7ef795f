"""The rows of an analysis by objective and teacher, cut once, with the records that several readers want.

`metrics` answers any question from the whole table, at the price of looking through all of it each time; a report asks
a hundred questions, most of them about one teacher.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.types import REWARD


class Slices:
    """What `metrics` is asked about, and its answers so far."""

    def __init__(self, nodes: pa.Table) -> None:
        self.nodes = nodes
        pairs = nodes.unify_dictionaries().group_by(["objective", "teacher"]).aggregate([]).to_pylist()
        self._pairs = sorted((pair["objective"], pair["teacher"]) for pair in pairs)
        self.objectives = {objective for objective, _ in self._pairs}
        self.rows = cache(self._rows)
        self.ranks = cache(self._ranks)
        self.contrasts = cache(self._contrasts)
        self.correlations = cache(self._correlations)

    def teachers(self, objective: str) -> list[str]:
        """The teachers of an objective, by name; those without a single node are absent."""
        return [teacher for own, teacher in self._pairs if own == objective and teacher != REWARD]

    def _rows(self, objective: str, teacher: str | None = None) -> pa.Table:
        """The rows of an objective, or of one of its teachers."""
        if teacher is not None:
            whole = self.rows(objective)
            return whole.filter(pc.equal(whole["teacher"], teacher))
        if all(own == objective for own, _ in self._pairs):
            return self.nodes
        return self.nodes.filter(pc.equal(self.nodes["objective"], objective))

    def _ranks(self, objective: str) -> list[metrics.TeacherRank]:
        return metrics.teacher_ranking(self.rows(objective), objective)

    def _contrasts(self, objective: str, teacher: str | None = None) -> list[metrics.Contrast]:
        return metrics.correct_vs_incorrect(self.rows(objective, teacher), objective, teacher=teacher)

    def _correlations(self, objective: str) -> list[metrics.Correlation]:
        return metrics.within_path_correlations(self.rows(objective), objective)
