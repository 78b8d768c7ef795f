"""The alarm beside looking at each evaluation alone: false alarms, and how late a decline is noticed.

A simulation: alignment along a training is given, readings of it have the standard error that evaluations on so many
questions have, and `core.alarm` sees them. The courses are a constant +0.2, and two trainings of the embedded student
in which accuracy rose and fell again (recorded every 20 steps on ten questions; smoothed, since those readings are
noisy themselves). A false alarm is one at a constant alignment, or before the best accuracy.

    python benchmarks/alarm.py [--quick] [--json FILE] [--trainings N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from opd_align.core.alarm import Reading, alarms

QUESTIONS = (8, 16, 32, 64, 128)
QUESTION_SD = 0.4
"""Standard deviation of the SR-weighted alignment between questions: the median of 27 evaluations on 24 questions in
three long trainings (`prediction.py --stage long`), of which 25 are between 0.3 and 0.6."""
STEPS = 20


@dataclass(frozen=True)
class Course:
    """A training: the true alignment at each evaluation, and the accuracy; `None` if it only rises."""

    name: str
    alignment: Sequence[float]
    accuracy: Sequence[float] | None = None

    @property
    def best(self) -> int:
        """The evaluation with the best accuracy, before which no alarm should be raised."""
        return len(self.alignment) if self.accuracy is None else int(np.argmax(self.accuracy))


def smoothed(readings: Sequence[float]) -> list[float]:
    at = np.arange(len(readings))
    weight = np.exp(-((at[:, None] - at) ** 2) / (2 * 1.5**2))
    return list(weight @ np.array(readings) / weight.sum(1))


COURSES = (
    Course("constant +0.2", [0.2] * 20),
    Course(
        "slow fading",
        smoothed([0.39, 0.24, -0.05, 0.31, 0.13, 0.13, 0.0, -0.03, 0.02, 0.02, -0.13, -0.12, 0.14]),
        [0.51, 0.67, 0.77, 0.79, 0.80, 0.81, 0.84, 0.84, 0.84, 0.83, 0.84, 0.81, 0.80],
    ),
    Course(
        "ruin",
        smoothed([0.14, 0.22, 0.24, 0.17, 0.11, -0.18, -0.23, -0.22, -0.02, 0.10, 0.11]),
        [0.51, 0.61, 0.70, 0.66, 0.63, 0.58, 0.52, 0.51, 0.45, 0.29, 0.29],
    ),
)

Rule = Callable[[list[Reading]], int | None]


def first(raised: Sequence[bool]) -> int | None:
    return raised.index(True) if True in raised else None


RULES: dict[str, Rule] = {
    "below zero": lambda readings: first([each.mean < 0 for each in readings]),
    "significantly below zero": lambda readings: first(
        [each.mean + 1.96 * each.standard_error < 0 for each in readings]
    ),
    "alarm": lambda readings: first([each.raised for each in alarms(readings)]),
}


def simulated(course: Course, questions: int, trainings: int) -> dict[str, dict[str, float | None]]:
    """Of each rule: the share of trainings with a false alarm, and what holds at the first alarm of the others."""
    rng = np.random.default_rng(questions)
    error = QUESTION_SD / questions**0.5
    noise = rng.normal(0, error, (trainings, len(course.alignment)))
    found: dict[str, dict[str, float | None]] = {}
    for name, rule in RULES.items():
        at = [rule([Reading(STEPS * n, mean, error) for n, mean in enumerate(course.alignment + row)]) for row in noise]
        false = [each is not None and each < course.best for each in at]
        right = [each for each, early in zip(at, false, strict=True) if each is not None and not early]
        found[name] = {"false": float(np.mean(false)), "missed": float(np.mean([each is None for each in at]))}
        if course.accuracy is not None:
            lost = [max(course.accuracy) - course.accuracy[each] for each in right]
            found[name] |= {
                "steps_after_best": STEPS * (float(np.median(right)) - course.best) if right else None,
                "accuracy_lost": float(np.median(lost)) if right else None,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 trainings per cell")
    parser.add_argument("--trainings", type=int, default=400, help="simulated trainings (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    trainings = 20 if arguments.quick else arguments.trainings
    cells = {
        course.name: {str(questions): simulated(course, questions, trainings) for questions in QUESTIONS}
        for course in COURSES
    }
    table = Table("course", "questions", "rule", "false alarms", "missed", "steps after best", "accuracy lost")
    for course, by_questions in cells.items():
        for questions, rules in by_questions.items():
            for rule, row in rules.items():
                late, lost = row.get("steps_after_best"), row.get("accuracy_lost")
                table.add_row(
                    course, questions, rule, f"{row['false']:.1%}", f"{row['missed']:.1%}",
                    "–" if late is None else f"{late:.0f}", "–" if lost is None else f"{lost:.2f}",
                )  # fmt: skip
    Console(width=130).print(table)
    constant = cells["constant +0.2"]["32"]
    alone, pooled = constant["below zero"]["false"] or 0.0, constant["alarm"]["false"] or 0.0
    ratio = alone / max(pooled, 1 / trainings)
    print(
        f"false alarms at a constant +0.2 on 32 questions: {alone:.1%} of trainings alone, {pooled:.1%} with the alarm"
    )
    print(f"ratio {ratio:.1f}")
    if arguments.json:
        figures = {"ratio": ratio, "trainings": trainings, "cells": cells}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
