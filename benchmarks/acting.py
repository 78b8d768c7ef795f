"""A schedule by alignment, simulated: readings of recorded courses of alignment, with the noise of an evaluation.

    python benchmarks/acting.py                 # a minute

What real trainings end with is measured by `comparison.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from _comparison_schedule import acted
from alarm import COURSES, QUESTION_SD, QUESTIONS, STEPS
from scipy.special import expit

from opd_align.core.alarm import LEVELS, Reading
from opd_align.core.decline import PassRates, decline
from opd_align.training.alignment_schedule import judge


def simulate(trainings: int) -> dict[str, Any]:
    """Accuracy at the end of simulated trainings: mean over trainings, by course and number of questions."""
    found: dict[str, Any] = {}
    for course in COURSES:
        if course.accuracy is None:
            continue
        found[f"{course.name}: peak, ungated"] = f"{max(course.accuracy):.2f}, {course.accuracy[-1]:.2f}"
        for questions in QUESTIONS:
            rng, error = np.random.default_rng(questions), QUESTION_SD / questions**0.5
            ends: dict[str, list[float]] = {"stop": [], "rollback": []}
            for _ in range(trainings):
                noise = rng.normal(0, error, len(course.alignment))
                readings = [Reading(STEPS * n, mean, error) for n, mean in enumerate(course.alignment + noise)]
                schedule = acted(readings)
                for name, values in ends.items():
                    values.append(course.accuracy[getattr(schedule, name) // STEPS])
            text = ", ".join(f"{name} {np.mean(values):.3f} (sd {np.std(values):.2f})" for name, values in ends.items())
            found[f"{course.name}: {questions} questions"] = text
    return found


def ended_at_zero(trainings: int) -> dict[str, Any]:
    """Share of simulated trainings that a schedule ends by an evaluation, where the true alignment is always 0."""
    found: dict[str, Any] = {}
    for questions in (32, 128):
        error = QUESTION_SD / questions**0.5
        for required in (1, 2):
            rng, ends = np.random.default_rng(questions), []
            for _ in range(trainings):
                readings = [Reading(STEPS * n, mean, error) for n, mean in enumerate(rng.normal(0, error, 6))]
                judged = (judge([readings[: n + 1]], min_readings=required).level for n in range(6))
                ends.append(next((n + 1 for n, level in enumerate(judged) if LEVELS[level] < 0), 7))
            text = ", ".join(f"evaluation {n}: {np.mean(np.array(ends) <= n):.1%}" for n in (1, 2, 6))
            found[f"{questions} questions, {required} reading{'s' * (required > 1)}"] = text
    return found


LOGIT_SD = 1.2
"""Standard deviation of the logit of success between questions, of a student that solves half of them on average."""


def ended_unchanged(trainings: int, *, questions: int = 32, rollouts: int = 32) -> dict[str, Any]:
    """Share of simulated trainings that `follow="pass_rate"` ends by an evaluation, where the student never changes."""
    rng, ends = np.random.default_rng(questions), []
    for _ in range(trainings):
        success_Q = expit(rng.normal(0, LOGIT_SD, questions))
        evaluations: list[PassRates] = []
        while len(evaluations) < 20:
            rates = rng.binomial(rollouts, success_Q) / rollouts
            evaluations.append(PassRates(STEPS * len(evaluations), {f"q{i}": rate for i, rate in enumerate(rates)}))
            fall = decline(evaluations)
            if fall is not None and fall.sure:
                ends.append(len(evaluations))
                break
        else:
            ends.append(21)
    text = ", ".join(f"evaluation {n}: {np.mean(np.array(ends) <= n):.1%}" for n in (5, 10, 20))
    return {f"{questions} questions, {rollouts} rollouts": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few trainings: figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    trainings = (20, 20) if arguments.quick else (400, 2000)
    found = {
        "simulated": simulate(trainings[0]),
        "ended at 0": ended_at_zero(trainings[1]),
        "ended by the pass rate of an unchanged student": ended_unchanged(trainings[1]),
    }
    for name, table in found.items():
        print(f"\n{name}")
        for key, value in table.items():
            print(f"  {key:32s} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
