"""What a reported metric is: key, meaning, unit, range, direction, and the charts of the dashboard that show it.

The metrics themselves are in `core.metric_registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

ROOT = "opd_align"
"""First part of the keys of all metrics except those that a trainer logs: of gates, schedules and mixes."""

Level = Literal["teacher", "student", "evaluation", "gate", "schedule", "mix"]
Direction = Literal["higher", "lower", "neither"]
Section = Literal["overview", "alignment", "selection", "gate", "cost"]
Unit = Literal[
    "cosine", "SR range × cosine", "probability", "correlation", "share", "ratio", "nats", "0 or 1",
    "nodes", "questions", "rollouts", "tokens", "steps", "evaluations", "calls", "seconds", "level",
    "histogram", "table", "HTML",
]  # fmt: skip

RANGES: Mapping[str, tuple[float, float]] = {
    "cosine": (-1, 1), "SR range × cosine": (-1, 1), "correlation": (-1, 1), "ratio": (-inf, inf),
    "probability": (0, 1), "share": (0, 1), "0 or 1": (0, 1),
}  # fmt: skip
"""Range of each unit, unless a metric has its own; other units start at zero."""


class Chart(NamedTuple):
    """A chart of the dashboard.

    A chart of one metric per teacher has one line per teacher; a chart of several metrics has one line per metric, for
    the selected teacher.

    Args:
        title: Heading; metrics refer to the chart by it.
        section: Section of the dashboard.
        include: Values that the y axis always includes.
        neutral: The value that means no effect, where there is one: lines are grey until an interval excludes it.
    """

    title: str
    section: Section
    include: tuple[float, ...] = (0.0,)
    neutral: float | None = None


CHARTS = (
    Chart("Student pass rate", "overview"),
    Chart("SR-weighted alignment", "overview", neutral=0),
    Chart("Probability that the teacher helps", "alignment", include=(0, 1)),
    Chart("Alignment over all evaluations", "alignment", neutral=0),
    Chart("Alignment", "alignment", neutral=0),
    Chart("Alignment by rollout outcome", "alignment", neutral=0),
    Chart("Alignment by position", "alignment", neutral=0),
    Chart("Cosine of the whole update", "alignment", neutral=0),
    Chart("First-order gain", "alignment", neutral=0),
    Chart("Decisions with positive alignment", "alignment", include=(0.5,), neutral=0.5),
    Chart("Teacher advantage", "alignment", neutral=0),
    Chart("Overlap of the most likely tokens", "alignment", include=(0, 1)),
    Chart("Advantage of the overlapping tokens", "alignment"),
    Chart("Student entropy", "alignment"),
    Chart("Teacher entropy", "alignment"),
    Chart("Reliability of the measurement", "alignment", include=(0, 1)),
    Chart("Spearman ρ of alignment with", "alignment", neutral=0),
    Chart("Signal of the selective oracle", "selection", neutral=0),
    Chart("Signal of the divergence filter", "selection", neutral=0),
    Chart("Oracle gain over all decisions", "selection", neutral=0),
    Chart("Decisions kept", "selection", include=(0, 1)),
    Chart("Oracle gain recovered by the filter", "selection"),
    Chart("Filter threshold (KL)", "selection"),
    Chart("Alignment with the gate", "gate", neutral=0),
    Chart("Signal with the gate", "gate", neutral=0),
    Chart("What the gate distills", "gate", include=(0, 1)),
    Chart("Distillation loss with the gate", "gate"),
    Chart("Divergence of distilled tokens", "gate"),
    Chart("Verdicts of the verifier", "gate", include=(0, 1)),
    Chart("Seconds per evaluation", "cost"),
    Chart("Share of wall time", "cost"),
    Chart("Evaluation size", "cost"),
    Chart("Steps since last evaluation", "cost"),
    Chart("Failed evaluations", "cost", include=(0, 1)),
    Chart("Rollouts", "cost"),
    Chart("Decisions", "cost"),
    Chart("Questions", "cost"),
)
"""The charts of the dashboard, in their order within each section."""


@dataclass(frozen=True)
class Metric:
    """One reported metric.

    Args:
        level: What it belongs to, which determines its key.
        stem: Last part of its key.
        meaning: One sentence for the documentation.
        unit: Unit of its values.
        direction: Whether higher or lower values are better.
        compute: Function from `TeacherRecords` (level `teacher`) or an `Analysis` (level `student`) to its value; None
            if it is computed by the code that logs it.
        bounds: Smallest and largest possible value; None uses the range of the unit.
        needs_teacher: Whether it is undefined, and so not reported, for objectives without a teacher.
        needs_gate: Whether it is only known in a training with a gated trainer.
        logged: Whether it is logged during training; computed metrics are always in `summary.json`.
        half_width: Stem of the metric with the half-width of its 95 % interval, drawn as a band.
        ends: Stems of the metrics with the ends of its 95 % interval, where it is not symmetric.
        charts: Charts of the dashboard that show it, with its label in the legend (empty if it is alone).
        column: Heading of its column in the dashboard's list of evaluations; empty for no column.
    """

    level: Level
    stem: str
    meaning: str
    unit: Unit
    direction: Direction = "neither"
    compute: Callable[[Any], float] | None = None
    bounds: tuple[float, float] | None = None
    needs_teacher: bool = False
    needs_gate: bool = False
    logged: bool = True
    half_width: str | None = None
    ends: tuple[str, str] | None = None
    charts: Mapping[str, str] = field(default_factory=dict)
    column: str = ""

    def key(self, teacher: str = "<teacher>", objective: str = "<objective>") -> str:
        """Its full key; `teacher` and `objective` only matter at level `teacher`, and at `mix`, where it is a kind."""
        if self.level in ("gate", "schedule"):
            return f"{self.level}/{self.stem}"
        if self.level == "mix":
            return f"mix/{teacher}/{'<kind>' if objective == '<objective>' else objective}/{self.stem}"
        if self.level == "teacher":
            return f"{ROOT}/{teacher}/{objective}/{self.stem}"
        return f"{ROOT}/{self.level}/{self.stem}"

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest possible value."""
        return self.bounds or RANGES.get(self.unit, (0, inf))

    @property
    def shown_in(self) -> tuple[str, ...]:
        """Where users find it."""
        if self.unit in ("histogram", "table", "HTML"):
            return ("W&B",)
        places = {"summary.json": self.compute is not None and not self.needs_gate, "log": self.logged}
        return (*(name for name, shown in places.items() if shown), *(f"dashboard: {title}" for title in self.charts))
