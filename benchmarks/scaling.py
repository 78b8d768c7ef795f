"""What a study costs, and how the cost grows with tokens, questions and teachers.

Lengths, questions and rollouts are measured in exact worlds, where sampling costs almost nothing, so that the rest of
the cost is visible; teachers and the cost estimate on the embedded models. Teachers share one tree: eight teachers in
one run are compared with eight runs of one teacher each. The cost estimate is calibrated on a run with few questions
and compared with a run on many others; `planner_relative_error` is the largest error of its rollouts, tokens and
seconds, calibrated with the same budget. Errors of a calibration with a third of the visits are also reported, but not
part of that number: see LOG.md.

    python benchmarks/scaling.py [--quick] [--json FILE]

Seconds are CPU time on one thread, so that other processes do not matter; `clock` errors use wall time, as the estimate
itself does. `--quick` uses fewer worlds and questions, and lengths up to 3,000.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from opd_align.backends.exact import ExactFamily
from opd_align.backends.hf import HFTeacher
from opd_align.backends.loading import load_model
from opd_align.core.engine import Analysis, analyze
from opd_align.runs.execute import analyze_into
from opd_align.runs.run_directory import Usage
from opd_align.settings import Budget, Settings
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.study.plan import calibrated, planned

SMALL = Budget(initial=40, allocation="paper", n_min=10, by_update=4, by_gap=4)
TEACHERS = 8


class Metered:
    """A student that counts the tokens it samples."""

    def __init__(self, student: Any) -> None:
        self.student, self.tokens = student, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.student, name)

    def sample(self, requests: Any) -> Any:
        rollouts = self.student.sample(requests)
        self.tokens += int((rollouts.length_R - rollouts.launch_R).sum())
        return rollouts


def rollouts(analysis: Analysis) -> int:
    return sum(sum(analysis.questions[name].to_pylist()) for name in ("initial", "targeted"))


def make_teacher(family: ExactFamily, number: int) -> Any:
    """Teachers of three kinds: better than the student, different in style only, and worse."""
    kinds = ("tilted_teacher", "style_teacher", "adversarial_teacher")
    return family.teacher(f"{number}", lambda world: getattr(world, kinds[number % 3])(seed=number))


def by_length(lengths: Sequence[int]) -> dict[str, float]:
    results: dict[str, float] = {}
    for length in lengths:
        family = ExactFamily.random(11, 1, length=length)
        student, teacher = Metered(family), make_teacher(family, 0)
        start = time.process_time()
        analysis = analyze(student, [teacher], family.questions, family, settings=Settings(budget=SMALL))
        results[f"length_{length}_seconds"] = time.process_time() - start
        results[f"length_{length}_rollouts"] = rollouts(analysis)
        results[f"length_{length}_tokens"] = student.tokens
    first, last = lengths[0], lengths[-1]
    for name in ("rollouts", "tokens", "seconds"):
        growth = results[f"length_{last}_{name}"] / results[f"length_{first}_{name}"]
        results[f"{name}_growth_per_length_growth"] = growth / (last / first)
    return results


def by_questions(few: int, many: int) -> dict[str, float]:
    family = ExactFamily.random(21, many, length=200)
    teacher, seconds = make_teacher(family, 0), {}
    for count in (1, few, many):  # the first is a warm-up
        start = time.process_time()
        analyze(family, [teacher], family.questions[:count], family, settings=Settings(budget=SMALL))
        seconds[count] = time.process_time() - start
    return {"seconds_per_question_many_over_few": seconds[many] / many / (seconds[few] / few)}


def shared_tree(worlds: int) -> dict[str, float]:
    """Rollouts of the paper's allocation with a tenth of its visits: one tree for all teachers, or one tree each."""
    family = ExactFamily.random(31, worlds, length=200)
    settings = Settings(budget=Budget(initial=40, allocation="paper", n_min=10))
    teachers = [make_teacher(family, number) for number in range(TEACHERS)]
    shared = rollouts(analyze(family, teachers, family.questions, family, settings=settings))
    separate = [
        rollouts(analyze(family, [teacher], family.questions, family, settings=settings)) for teacher in teachers
    ]
    return {
        "shared_rollouts": shared,
        "independent_rollouts": sum(separate),
        "independent_over_shared_rollouts": sum(separate) / shared,
    }


def make_study(questions: int, offset: int, **budget: Any) -> Study:
    config = read_config("demo", [f"questions.limit={questions}", f"questions.offset={offset}", "teachers=[]"])
    paper = Budget(allocation="paper", n_min=20, by_update=10, by_gap=10)
    return Study(replace(config, budget=replace(paper, **budget)))


def eight_teachers(questions: int) -> dict[str, float]:
    """The same study with one teacher and with eight: copies of the embedded one, each with different noise."""
    study = make_study(questions, 0, initial=60)
    loaded = load_model("embedded:teacher").model
    teachers = []
    for number in range(TEACHERS):
        model, noise = deepcopy(loaded), torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * weight.std() * torch.randn(weight.shape, generator=noise))
        teachers.append(HFTeacher(f"teacher {number}", model, study.student_prompt))
    results: dict[str, float] = {}
    for subset in (teachers[:1], teachers[:1], teachers):  # the first is a warm-up
        student = Metered(study.student)
        start = time.process_time()
        analysis = analyze(student, subset, study.questions, study.grader, settings=study.config.settings())
        results[f"teachers_{len(subset)}_seconds"] = time.process_time() - start
        results[f"teachers_{len(subset)}_rollouts"] = rollouts(analysis)
        results[f"teachers_{len(subset)}_tokens"] = student.tokens
    for name in ("seconds", "rollouts"):
        results[f"teachers_8_over_1_{name}"] = results[f"teachers_8_{name}"] / results[f"teachers_1_{name}"]
    return results


def planner(few: int, many: int) -> dict[str, float]:
    """The estimate from few questions for many others: with the same budget, and with a third of its visits."""
    large = {"initial": 120, "n_min": 30}
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, float] = {}
        for name, study in (
            ("same", make_study(few, 0, **large)),
            ("third", make_study(few, 0, initial=40, n_min=10)),
            ("large", make_study(many, few, **large)),
        ):
            teacher = HFTeacher("teacher", load_model("embedded:teacher").model, study.student_prompt)
            student, settings = study.student, study.config.settings()
            start = time.process_time()
            analysis = analyze_into(
                Path(folder) / name, student, [teacher], study.questions, study.grader, settings=settings
            )
            seconds[name] = time.process_time() - start
        usage = {name: Usage.load(Path(folder) / name) for name in seconds}
        results: dict[str, float] = {}
        for name in ("same", "third"):
            run = Path(folder) / name
            estimate = planned(study.config.budget, many, 1, calibrated(run, usage[name].tokens / seconds[name]))
            by_clock = planned(study.config.budget, many, 1, calibrated(run)).seconds
            results[f"planner_{name}_budget_rollouts_error"] = (estimate.initial + estimate.targeted) / rollouts(
                analysis
            ) - 1
            results[f"planner_{name}_budget_tokens_error"] = estimate.tokens / usage["large"].tokens - 1
            results[f"planner_{name}_budget_seconds_error"] = estimate.seconds / seconds["large"] - 1
            results[f"planner_{name}_budget_clock_error"] = by_clock / usage["large"].seconds - 1
    measures = ("rollouts", "tokens", "seconds")
    results["planner_relative_error"] = max(abs(results[f"planner_same_budget_{name}_error"]) for name in measures)
    return results


def measure(*, quick: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    results = by_length([200, 1000, 3000] if quick else [200, 1000, 5000, 30_000])
    results |= by_questions(2, 8) if quick else by_questions(4, 32)
    results |= shared_tree(2 if quick else 8)
    results |= eight_teachers(1 if quick else 3)
    results |= planner(1, 2) if quick else planner(3, 9)
    return results


TARGETS = {
    "teachers_8_over_1_seconds": "≤ 2", "independent_over_shared_rollouts": "≥ 5", "planner_relative_error": "≤ 0.3",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as one flat object")
    arguments = parser.parse_args()
    results = measure(quick=arguments.quick)
    table = Table("measure", "value", "target", title="Cost of a study")
    for name, value in results.items():
        table.add_row(name, f"{value:,.2f}", TARGETS.get(name, ""))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
