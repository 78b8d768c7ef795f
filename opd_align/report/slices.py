"""The nodes of an analysis by objective and teacher, with the metrics that several tables need, computed once.

Every function of `core.metrics` filters the whole node table; a report calls them about a hundred times, mostly for a
single teacher. `Slices` caches both the filtered rows and the results.
"""

from __future__ import annotations

from functools import cache, cached_property

import pyarrow as pa
import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.core.decision import Decision, decide
from opd_align.types import REWARD


class Slices:
    """Cached subsets and metrics of a node table.

    Methods (all cached): `rows(objective, teacher=None)`, `ranks(objective)`, `contrasts(objective, teacher=None)`,
    `correlations(objective)`; and `decision`, the recommendation.

    Args:
        nodes: `Analysis.nodes`, one row per question, path, depth, teacher and objective.
        n_analyzed: Number of questions that were analyzed, see `core.decision.decide`.
    """

    def __init__(self, nodes: pa.Table, *, n_analyzed: int | None = None) -> None:
        self.nodes, self._n_analyzed = nodes, n_analyzed
        pairs = nodes.unify_dictionaries().group_by(["objective", "teacher"]).aggregate([]).to_pylist()
        self._pairs = sorted((pair["objective"], pair["teacher"]) for pair in pairs)
        self.objectives = {objective for objective, _ in self._pairs}
        self.rows = cache(self._rows)
        self.ranks = cache(self._ranks)
        self.contrasts = cache(self._contrasts)
        self.correlations = cache(self._correlations)

    @cached_property
    def decision(self) -> Decision:
        """Which teacher and objective to use."""
        return decide(self.nodes, n_analyzed=self._n_analyzed)

    def teachers(self, objective: str) -> list[str]:
        """The teachers of an objective, sorted by name; teachers without any node are not included."""
        return [teacher for name, teacher in self._pairs if name == objective and teacher != REWARD]

    def questions(self, objective: str, teacher: str) -> frozenset[str]:
        """The questions with nodes of a teacher."""
        return frozenset(self.rows(objective, teacher)["question"].unique().to_pylist())

    def _rows(self, objective: str, teacher: str | None = None) -> pa.Table:
        if teacher is not None:
            rows = self.rows(objective)
            return rows.filter(pc.equal(rows["teacher"], teacher))
        if all(name == objective for name, _ in self._pairs):
            return self.nodes
        return self.nodes.filter(pc.equal(self.nodes["objective"], objective))

    def _ranks(self, objective: str) -> list[metrics.TeacherRank]:
        return metrics.teacher_ranking(self.rows(objective), objective)

    def _contrasts(self, objective: str, teacher: str | None = None) -> list[metrics.Contrast]:
        return metrics.correct_vs_incorrect(self.rows(objective, teacher), objective, teacher=teacher)

    def _correlations(self, objective: str) -> list[metrics.Correlation]:
        return metrics.within_path_correlations(self.rows(objective), objective)
