"""A divergence gate whose threshold is measured, not guessed.

The callback has rolled out what each token was worth; `metrics.divergence_filter` says what distillation would gain if
it kept only the tokens beyond a quantile of the divergence. The gate takes the threshold of the best such filter, and
takes it only if the filter shows a benefit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.settings import Settings
from opd_align.training.gates import DivergenceAbove, Gate, GateBatch, check_measure
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

QUANTILES = (0.25, 0.5, 0.75, 0.9)

FEWEST = 4
"""Questions that it takes to move the threshold: the spread of two may be small by chance."""


class Evaluated(Protocol):
    """What is needed of the callback; its `latest` is the same on all processes."""

    @property
    def latest(self) -> Analysis | None: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def teachers(self) -> Sequence[str]: ...


@dataclass(eq=False)
class CalibratedDivergence(Gate):
    """`DivergenceAbove` with the threshold of the callback's latest evaluation.

    The rule: among the quantiles, those count whose gain in signal (SR range × alignment of what is kept, over that of
    all tokens) is above zero with its whole 95 % interval across questions; of these, the one with the largest signal.
    If none counts, or nothing has been evaluated yet, the gate is open. The interval does not make up for the choice
    among the quantiles, so few of them are tried; and an evaluation on fewer than four questions, such as the one at
    the start of a training, leaves the threshold as it was.

    The evaluation may be of several teachers and objectives. The gate looks at what the trainer distils: its own
    teacher and its own objective, unless told others by name.

    A trainer wants its gate before there is a callback: leave `callback` out, and say `gate.follow(callback)` later.
    Until then the gate is open, and says so once.
    """

    callback: Evaluated | None = None
    measure: str = "kl"
    quantiles: Sequence[float] = QUANTILES
    objective: str | None = field(default=None, kw_only=True)
    teacher: str | None = field(default=None, kw_only=True)
    _latest: tuple[Analysis | None, float] = field(default=(None, -math.inf), init=False, repr=False)
    _of: tuple[str, str] | None = field(default=None, init=False, repr=False)
    _said: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if not self.quantiles or not all(0 < quantile < 1 for quantile in self.quantiles):
            raise OpdAlignError(f"quantiles to choose from lie between 0 and 1, not {tuple(self.quantiles)}")
        if self.callback is not None:
            self.follow(self.callback)

    def follow(self, callback: Evaluated) -> None:
        """From now on, the threshold is this callback's; refuses one that does not evaluate what is asked for."""
        distils = [each.name for each in callback.settings.objectives if each.signal != "reward"]
        self._of = _one_of("objective", self.objective, distils), _one_of("teacher", self.teacher, callback.teachers)
        self.callback = callback
        self._latest = None, -math.inf

    @property
    def name(self) -> str:
        return f"calibrated_{self.measure}"

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    @property
    def threshold(self) -> float:
        """In nats, as of the latest evaluation; minus infinity while the gate is open."""
        if self.callback is None and not self._said:
            self._said = True
            logger.warning("the gate %s follows no callback and stays open; say gate.follow(callback)", self.name)
        analysis = None if self.callback is None else self.callback.latest
        if analysis is None:
            return -math.inf
        seen, threshold = self._latest
        if analysis is not seen:
            if len(set(analysis.nodes["question"].to_pylist())) >= FEWEST:
                threshold = self._chosen(analysis)
            self._latest = analysis, threshold
        return threshold

    def _chosen(self, analysis: Analysis) -> float:
        objective, teacher = self._of or (None, None)
        rows = metrics.divergence_filter(
            analysis.nodes, self.measure, self.quantiles, objective=objective, teacher=teacher
        )
        gaining = [row for row in rows if row.gain.mean - row.gain.half_width > 0]
        return max(gaining, key=lambda row: row.signal.mean).threshold if gaining else -math.inf

    def figures(self) -> Mapping[str, float]:
        threshold = self.threshold
        opened = threshold == -math.inf
        return {"calibrated_open": float(opened), **({} if opened else {"threshold": threshold})}

    def __call__(self, batch: GateBatch) -> Tensor:
        return DivergenceAbove(threshold=self.threshold, measure=self.measure)(batch)


def _one_of(what: str, wanted: str | None, there: Sequence[str]) -> str:
    if wanted is None and there:
        return there[0]
    if wanted is None or wanted not in there:
        given = "none is evaluated" if wanted is None else f"{wanted!r} is not evaluated"
        raise OpdAlignError(
            f"calibration needs a {what} that pulls on tokens, and {given}; the callback evaluates "
            f"{', '.join(there) or 'none'}"
        )
    return wanted
