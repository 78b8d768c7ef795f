"""A divergence gate whose threshold is measured by the callback.

The callback estimates the value of each token from rollouts; `metrics.divergence_filter` computes what distillation
would gain if it kept only the tokens above a quantile of the divergence. The gate uses the threshold of the best such
filter, provided that the filter shows a benefit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.settings import Settings
from opd_align.training.gates import DivergenceAbove, Gate, GateBatch
from opd_align.training.measures import check_measure
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

QUANTILES = (0.25, 0.5, 0.75, 0.9)

MIN_QUESTIONS = 4
"""Smallest evaluation that changes the threshold: across two questions, the spread may be small by chance."""


class AlignmentSource(Protocol):
    """The part of the callback that the gate uses; `latest` and its step are the same on all processes."""

    @property
    def latest(self) -> Analysis | None: ...

    @property
    def latest_step(self) -> int | None: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def teachers(self) -> Sequence[str]: ...


@dataclass(eq=False)
class CalibratedDivergence(Gate):
    """`DivergenceAbove` with the threshold of the callback's latest evaluation.

    A quantile qualifies if its gain in signal (SR range × alignment of the tokens kept, minus that of all tokens) is
    above zero with its whole 95 % interval across questions; of those that qualify, the one with the largest signal is
    used. If none qualifies, or nothing has been evaluated yet, the gate is open. The interval is not corrected for the
    choice among quantiles, so few of them are tried; and an evaluation on fewer than four questions, such as the one
    at the start of a training, does not change the threshold. A resumed training continues with the threshold of its
    checkpoint.

    A trainer needs its gate before there is a callback: leave `callback` out, and call `gate.follow(callback)` later.
    Until then the gate is open, and logs a warning once.

    Args:
        callback: The `AlignmentCallback` to follow; `None` to set it later with `follow`.
        measure: One of "kl" (KL(student ‖ teacher)), "js", "student_entropy", "teacher_entropy".
        quantiles: The quantiles to choose from, each between 0 and 1.
        objective: Name of the objective to calibrate for; `None` for the trainer's own.
        teacher: Name of the teacher to calibrate for; `None` for the trainer's own.
    """

    callback: AlignmentSource | None = None
    measure: str = "kl"
    quantiles: Sequence[float] = QUANTILES
    objective: str | None = field(default=None, kw_only=True)
    teacher: str | None = field(default=None, kw_only=True)
    _threshold: float = field(default=-math.inf, init=False, repr=False)
    _step: int | None = field(default=None, init=False, repr=False)
    _seen: Analysis | None = field(default=None, init=False, repr=False)
    _objective_and_teacher: tuple[str, str] | None = field(default=None, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_measure(self.measure)
        if not self.quantiles or not all(0 < quantile < 1 for quantile in self.quantiles):
            raise OpdAlignError(f"quantiles must be between 0 and 1, at least one of them, not {tuple(self.quantiles)}")
        if self.callback is not None:
            self.follow(self.callback)

    def follow(self, callback: AlignmentSource) -> None:
        """Uses this callback's evaluations from now on; it must evaluate the gate's objective and teacher."""
        objectives = [objective.name for objective in callback.settings.objectives if objective.signal != "reward"]
        self._objective_and_teacher = (
            _choose("objective", self.objective, objectives),
            _choose("teacher", self.teacher, callback.teachers),
        )
        self.callback = callback
        self._threshold, self._step, self._seen = -math.inf, None, None

    @property
    def name(self) -> str:
        return f"calibrated_{self.measure}"

    @property
    def measures(self) -> tuple[str, ...]:
        return (self.measure,)

    @property
    def threshold(self) -> float:
        """In nats, from the latest evaluation; minus infinity while the gate is open."""
        if self.callback is None and not self._warned:
            self._warned = True
            logger.warning("Gate %s follows no callback and stays open; call gate.follow(callback)", self.name)
        if self.callback is not None and self.callback.latest is not self._seen:
            self._seen = analysis = self.callback.latest
            if analysis is not None and len(set(analysis.nodes["question"].to_pylist())) >= MIN_QUESTIONS:
                self._threshold, self._step = self._choose_threshold(analysis), self.callback.latest_step
        return self._threshold

    def _choose_threshold(self, analysis: Analysis) -> float:
        objective, teacher = self._objective_and_teacher or (None, None)
        rows = metrics.divergence_filter(
            analysis.nodes, self.measure, self.quantiles, objective=objective, teacher=teacher
        )
        gaining = [row for row in rows if row.gain.mean - row.gain.half_width > 0]
        return max(gaining, key=lambda row: row.signal.mean).threshold if gaining else -math.inf

    def state_dict(self) -> dict[str, Any]:
        threshold = self.threshold
        return {"threshold": threshold if math.isfinite(threshold) else None, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._threshold, self._step, self._seen = -math.inf, None, None
        threshold = state.get("threshold")
        if isinstance(threshold, int | float) and math.isfinite(threshold):
            self._threshold, self._step = float(threshold), state.get("step")
            logger.info("Gate %s continues with threshold %.3g, measured at step %s", self.name, threshold, self._step)

    def extra_metrics(self) -> Mapping[str, float]:
        threshold = self.threshold
        is_open = threshold == -math.inf
        return {"calibrated_open": float(is_open), **({} if is_open else {"threshold": threshold})}

    def __call__(self, batch: GateBatch) -> Tensor:
        return DivergenceAbove(threshold=self.threshold, measure=self.measure)(batch)


def _choose(what: str, name: str | None, evaluated: Sequence[str]) -> str:
    if name is None and evaluated:
        return evaluated[0]
    if name is None or name not in evaluated:
        problem = "none is evaluated" if name is None else f"{name!r} is not evaluated"
        needed = "a distillation objective" if what == "objective" else "a teacher"
        raise OpdAlignError(
            f"calibration needs {needed}, and {problem}; the callback evaluates {', '.join(evaluated) or 'none'}"
        )
    return name
