"""Test a training signal of your own, before any training, on a world whose truth is known.

The signal here trusts the teacher only where it is surer than the student: reverse KL, with the log-ratio clipped
from above at zero. Does dropping the praise and keeping the blame cost alignment?

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
class BlameOnly:
    name: str = "blame_only"
    signal: str = "teacher"

    def update(self, nodes: Nodes) -> np.ndarray:
        return unified_update(nodes.p, np.minimum(nodes.log_t - nodes.log_p, 0.0))


def main() -> None:
    worlds = ExactFamily.random(seed=0, n=4, length=80)
    teacher = worlds.teacher("noisy", lambda world: world.tilted_teacher(strength=6.0, noise=1.0))
    settings = Settings([ReverseKL(), BlameOnly()], Budget(n_min=40, allocation="adaptive"))
    analysis = analyze(worlds, [teacher], worlds.questions, worlds, settings=settings)
    slices = Slices(analysis.nodes)
    for objective in settings.objectives:
        Console().print(ranking_table(slices, objective.name), "")


if __name__ == "__main__":
    main()
