"""What a training that acts on alignment keeps of the callback's evaluations: readings by teacher and kind of question.

`TeacherMix` and `AlignmentSchedule` keep one `ReadingLog` each. It is filled from the callback's latest analysis, which
is the same on all processes, so that what is computed from it is too. It is stored in checkpoints: a resumed training
continues with the readings that the training had at that step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from opd_align.core.attenuation import weighted_values
from opd_align.core.engine import Analysis
from opd_align.core.intervals import COSINE, NORMAL, interval
from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.core.node_rows import select_rows
from opd_align.core.random_walk import Reading
from opd_align.settings import Settings
from opd_align.training.checkpoint import resumed_from
from opd_align.training.distributed import max_wait, on_all_ranks
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

MIN_READINGS = 2
"""How many evaluations it takes before something is concluded for good: one is often wrong."""

ALL = "all"
"""The kind of every question where kinds are not distinguished."""


class Evaluations(Protocol):
    """The part of the callback that is read; the latest analysis and its step are the same on all processes."""

    @property
    def latest(self) -> Analysis | None: ...

    @property
    def latest_step(self) -> int | None: ...

    @property
    def settings(self) -> Settings: ...


class ReadingLog:
    """The readings of a training, in the order of their steps, by teacher and kind of question.

    Args:
        teachers: Names of the teachers.
        kind_of: Question id → kind; `None`: all questions are of one kind.
        turns: After how many evaluations each teacher has been measured once.
    """

    def __init__(self, teachers: Sequence[str], kind_of: Mapping[str, str] | None = None, *, turns: int = 1) -> None:
        self.teachers, self.kind_of, self.turns = tuple(teachers), kind_of, turns
        self.kinds = tuple(dict.fromkeys(kind_of.values())) if kind_of else (ALL,)
        self.step: int | None = None
        self.evaluations = 0
        self.readings: dict[tuple[str, str], list[Reading]] = {}

    def take(self, evaluations: Evaluations) -> bool:
        """Adds the latest evaluation; returns false if there is none since the previous call."""
        analysis, step = evaluations.latest, evaluations.latest_step
        if analysis is None or step is None or (self.step is not None and step <= self.step):
            return False
        self.step = step
        self.evaluations += 1
        objective = distillation_objective(evaluations.settings)
        for (teacher, kind), (mean, error) in self._measure(analysis, objective).items():
            self.readings.setdefault((teacher, kind), []).append(Reading(step, mean, error))
        return True

    def _measure(self, analysis: Analysis, objective: str) -> dict[tuple[str, str], tuple[float, float]]:
        found = {}
        for kind in self.kinds:
            nodes = analysis.nodes
            if self.kind_of is not None:
                own = pa.array([name for name, of in self.kind_of.items() if of == kind], pa.string())
                nodes = nodes.filter(pc.is_in(nodes["question"].cast(pa.string()), own))
            measured = set(nodes["teacher"].cast(pa.string()).to_pylist())
            for teacher in self.teachers:
                if teacher in measured:
                    found[teacher, kind] = _reading(nodes, objective, teacher)
        return found

    def of(self, teacher: str, kind: str = ALL) -> list[Reading]:
        return self.readings.get((teacher, kind), [])

    def unmeasured(self, kind: str = ALL) -> list[bool]:
        """Which teachers evaluations tell nothing about, while they do of another one.

        For example a context whose demonstrations are never found. It may still be measured later.
        """
        known = [any(each.known for each in self.of(teacher, kind)) for teacher in self.teachers]
        enough = self.evaluations >= MIN_READINGS * self.turns and any(known)
        return [enough and not each for each in known]

    def state_dict(self) -> dict[str, Any]:
        """As JSON, which has no NaN."""
        rows = [
            [
                teacher,
                kind,
                each.step,
                *(value if isfinite(value) else None for value in (each.mean, each.standard_error)),
            ]
            for (teacher, kind), readings in self.readings.items()
            for each in readings
        ]
        return {"step": self.step, "evaluations": self.evaluations, "readings": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the readings of a checkpoint; those of teachers and kinds that are gone are left out."""
        self.step, self.readings = state.get("step"), {}
        for teacher, kind, step, mean, error in state.get("readings", []):
            if teacher in self.teachers and kind in self.kinds:
                reading = Reading(step, nan if mean is None else mean, nan if error is None else error)
                self.readings.setdefault((teacher, kind), []).append(reading)
        steps = {each.step for readings in self.readings.values() for each in readings}
        self.evaluations = state.get("evaluations", len(steps))


def _reading(nodes: Any, objective: str, teacher: str) -> tuple[float, float]:
    """SR-weighted alignment and its standard error, as `alarm_log` reads them; few questions have no error."""
    rows = select_rows(nodes, objective, teacher)
    estimate = interval(weighted_values(rows), bounds=COSINE)
    if estimate.n < MIN_QUESTIONS:
        return estimate.mean, nan
    inside = max(estimate.mean - estimate.low, estimate.high - estimate.mean)  # the interval ends where a cosine does
    return estimate.mean, min(estimate.half_width, inside) / NORMAL


def distillation_objective(settings: Settings) -> str:
    """The name of the first objective that has a teacher; refuses settings without one."""
    names = [objective.name for objective in settings.objectives if objective.signal != "reward"]
    if not names:
        raise OpdAlignError(
            "the callback evaluates no distillation objective; pass objectives=[opd_align.ReverseKL(), ...] to it"
        )
    return names[0]


# -- checkpoints


def save_json(trainer: Any, state: Any, name: str, content: Mapping[str, Any]) -> None:
    """Writes a state into the checkpoint of this step; for `on_save`."""
    checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{state.global_step}"
    if state.is_world_process_zero and checkpoint.is_dir():
        with suppress(OSError):  # a full disk must not end the training
            (checkpoint / name).write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def load_json(trainer: Any, state: Any, name: str, what: str) -> dict[str, Any]:
    """The state in the checkpoint that a training is resumed from, as rank 0 reads it; empty for a new training."""
    if not state.global_step:
        return {}
    checkpoint = resumed_from(trainer) or Path(trainer.args.output_dir) / f"checkpoint-{state.global_step}"

    def read() -> dict[str, Any]:
        if trainer.accelerator.process_index:
            return {}
        try:
            stored = json.loads((checkpoint / name).read_text(encoding="utf-8"))
            return stored if isinstance(stored, dict) else {}
        except (OSError, ValueError) as error:
            logger.warning("Cannot read %s, %s starts anew: %r", checkpoint / name, what, error)
            return {}

    with max_wait(trainer.args.ddp_timeout):
        return on_all_ranks(read, f"reading {name}")[0]
