"""Test a custom training objective on exact worlds, before any training.

The objective is reverse KL with the log-ratio clipped at zero: it only lowers tokens that the teacher finds less likely
than the student does. Does dropping the positive log-ratios reduce the alignment?

    python examples/own_objective.py
"""

from dataclasses import dataclass

import numpy as np
from rich.console import Console

from opd_align import Budget, ExactFamily, ReverseKL, Settings, analyze
from opd_align.core.objectives import Nodes, unified_update
from opd_align.report.slices import Slices
from opd_align.report.tables import ranking_table


@dataclass(frozen=True)
class NegativeOnly:
    name: str = "negative_only"
    signal: str = "teacher"

    def update(self, nodes: Nodes) -> np.ndarray:
        return unified_update(nodes.p, np.minimum(nodes.log_t - nodes.log_p, 0.0))


def main() -> None:
    worlds = ExactFamily.random(seed=0, n=4, length=80)
    teacher = worlds.teacher("noisy", lambda world: world.tilted_teacher(strength=6.0, noise=1.0))
    settings = Settings([ReverseKL(), NegativeOnly()], Budget(n_min=40))
    analysis = analyze(worlds, [teacher], worlds.questions, worlds, settings=settings)
    slices = Slices(analysis.nodes)
    for objective in settings.objectives:
        Console().print(ranking_table(slices, objective.name), "")


if __name__ == "__main__":
    main()
