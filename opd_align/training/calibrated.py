"""A divergence gate whose threshold is measured, not guessed.

The callback has rolled out what each token was worth; `metrics.divergence_filter` says what distillation would gain if
it kept only the tokens beyond a quantile of the divergence. The gate takes the threshold of the best such filter, and
takes it only if the filter shows a benefit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from opd_align import metrics
from opd_align.engine import Analysis
from opd_align.training.gates import DivergenceAbove, Gate, GateBatch, check_measure
from opd_align.types import OpdAlignError

QUANTILES = (0.25, 0.5, 0.75, 0.9)


class Evaluated(Protocol):
    """What is needed of the callback; its `latest` is the same on all processes."""

    @property
    def latest(self) -> Analysis | None: ...


@dataclass(eq=False)
class CalibratedDivergence(Gate):
    """`DivergenceAbove` with the threshold of the callback's latest evaluation.

    The rule: among the quantiles, those count whose gain in signal (SR range × alignment of what is kept, over that of
    all tokens) is above zero with its whole 95 % interval across questions; of these, the one with the largest signal.
    If none counts, or nothing has been evaluated yet, the gate is open. The interval does not make up for the choice
    among the quantiles, so few of them are tried.

    A trainer wants its gate before there is a callback: leave `callback` out, and say `gate.follow(callback)` later.
    """

    callback: Evaluated | None = None
    measure: str = "kl"
    quantiles: Sequence[float] = QUANTILES
    objective: str | None = field(default=None, kw_only=True)
    teacher: str | None = field(default=None, kw_only=True)
    _known: dict[int, tuple[Analysis, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if not self.quantiles or not all(0 < quantile < 1 for quantile in self.quantiles):
            raise OpdAlignError(f"quantiles to choose from lie between 0 and 1, not {tuple(self.quantiles)}")

    def follow(self, callback: Evaluated) -> None:
        """From now on, the threshold is this callback's."""
        self.callback = callback

    @property
    def name(self) -> str:
        return f"calibrated_{self.measure}"

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    @property
    def threshold(self) -> float:
        """In nats, as of the latest evaluation; minus infinity while the gate is open."""
        analysis = None if self.callback is None else self.callback.latest
        if analysis is None:
            return -math.inf
        if id(analysis) not in self._known:
            self._known.clear()
            # The analysis is kept beside its threshold: another one could otherwise get its address.
            self._known[id(analysis)] = analysis, self._chosen(analysis)
        return self._known[id(analysis)][1]

    def _chosen(self, analysis: Analysis) -> float:
        rows = metrics.divergence_filter(
            analysis.nodes, self.measure, self.quantiles, objective=self.objective, teacher=self.teacher
        )
        gaining = [row for row in rows if row.gain.mean - row.gain.half_width > 0]
        return max(gaining, key=lambda row: row.signal.mean).threshold if gaining else -math.inf

    def figures(self) -> Mapping[str, float]:
        threshold = self.threshold
        opened = threshold == -math.inf
        return {"calibrated_open": float(opened), **({} if opened else {"threshold": threshold})}

    def __call__(self, batch: GateBatch) -> Tensor:
        return DivergenceAbove(threshold=self.threshold, measure=self.measure)(batch)
