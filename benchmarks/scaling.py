"""What a study costs, and what one more token, question or teacher adds to it.

Lengths, questions and rollouts in exact worlds, where a token costs next to nothing, so that all the rest shows;
teachers and the planner on the models that ship with the package. Teachers share one tree: eight of them together
stand beside eight runs of one teacher each. The planner sees a run on few questions and predicts one on many others,
which is then made; `planner_relative_error` is the worst of its rollouts, tokens and seconds, calibrated with the same
budget. Calibrated with a third of the visits it is told beside that, and is not what we promise: see LOG.md.

    python benchmarks/scaling.py [--quick] [--json FILE]

Seconds are those of the processor, on one thread, so that other work on the machine does not show; `clock` errors are
those of the clock, which the planner itself goes by. `--quick` takes fewer worlds and questions, and lengths up to
3,000.
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

SMALL = Budget(initial=40, n_min=10, by_update=4, by_gap=4)
TEACHERS = 8


class Metered:
    """A student that counts the tokens it samples."""

    def __init__(self, student: Any) -> None:
        self.student, self.tokens = student, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.student, name)

    def sample(self, requests: Any) -> Any:
        made = self.student.sample(requests)
        self.tokens += int((made.length_R - made.launch_R).sum())
        return made


def rollouts(analysis: Analysis) -> int:
    return sum(sum(analysis.questions[name].to_pylist()) for name in ("initial", "targeted"))


def tilted(family: ExactFamily, number: int) -> Any:
    """Teachers of all kinds: some lean toward success, some only have style, some lean away."""
    kinds = ("tilted_teacher", "style_teacher", "adversarial_teacher")
    return family.teacher(f"{number}", lambda world: getattr(world, kinds[number % 3])(seed=number))


def by_length(lengths: Sequence[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for length in lengths:
        family = ExactFamily.random(11, 1, length=length)
        student, teacher = Metered(family), tilted(family, 0)
        begin = time.process_time()
        made = analyze(student, [teacher], family.questions, family, settings=Settings(budget=SMALL))
        found[f"length_{length}_seconds"] = time.process_time() - begin
        found[f"length_{length}_rollouts"] = rollouts(made)
        found[f"length_{length}_tokens"] = student.tokens
    first, last = lengths[0], lengths[-1]
    for name in ("rollouts", "tokens", "seconds"):
        grown = found[f"length_{last}_{name}"] / found[f"length_{first}_{name}"]
        found[f"{name}_growth_per_length_growth"] = grown / (last / first)
    return found


def by_questions(few: int, many: int) -> dict[str, float]:
    family = ExactFamily.random(21, many, length=200)
    teacher, seconds = tilted(family, 0), {}
    for count in (1, few, many):  # the first warms up
        begin = time.process_time()
        analyze(family, [teacher], family.questions[:count], family, settings=Settings(budget=SMALL))
        seconds[count] = time.process_time() - begin
    return {"seconds_a_question_many_over_few": seconds[many] / many / (seconds[few] / few)}


def shared_tree(worlds: int) -> dict[str, float]:
    """Rollouts of the paper's plan, a tenth of its visits: one tree for all teachers, and a tree for each."""
    family = ExactFamily.random(31, worlds, length=200)
    settings = Settings(budget=Budget(initial=40, n_min=10))
    teachers = [tilted(family, number) for number in range(TEACHERS)]
    together = rollouts(analyze(family, teachers, family.questions, family, settings=settings))
    alone = [rollouts(analyze(family, [each], family.questions, family, settings=settings)) for each in teachers]
    return {
        "shared_rollouts": together,
        "independent_rollouts": sum(alone),
        "independent_over_shared_rollouts": sum(alone) / together,
    }


def study(questions: int, offset: int, **budget: Any) -> Study:
    config = read_config("demo", [f"questions.limit={questions}", f"questions.offset={offset}", "teachers=[]"])
    return Study(replace(config, budget=replace(Budget(n_min=20, by_update=10, by_gap=10), **budget)))


def eight_teachers(questions: int) -> dict[str, float]:
    """The same study with one teacher and with eight, which are the embedded one, each with noise of its own."""
    asked = study(questions, 0, initial=60)
    loaded = load_model("embedded:teacher").model
    teachers = []
    for number in range(TEACHERS):
        model, noise = deepcopy(loaded), torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * weight.std() * torch.randn(weight.shape, generator=noise))
        teachers.append(HFTeacher(f"teacher {number}", model, asked.student_prompt))
    found: dict[str, float] = {}
    for some in (teachers[:1], teachers[:1], teachers):  # the first warms up
        student = Metered(asked.student)
        begin = time.process_time()
        made = analyze(student, some, asked.questions, asked.grader, settings=asked.config.settings())
        found[f"teachers_{len(some)}_seconds"] = time.process_time() - begin
        found[f"teachers_{len(some)}_rollouts"] = rollouts(made)
        found[f"teachers_{len(some)}_tokens"] = student.tokens
    for name in ("seconds", "rollouts"):
        found[f"teachers_8_over_1_{name}"] = found[f"teachers_8_{name}"] / found[f"teachers_1_{name}"]
    return found


def planner(few: int, many: int) -> dict[str, float]:
    """Few questions predict many others: calibrated with the same budget, and with a third of its visits."""
    large = {"initial": 120, "n_min": 30}
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, float] = {}
        for name, asked in (
            ("same", study(few, 0, **large)),
            ("third", study(few, 0, initial=40, n_min=10)),
            ("large", study(many, few, **large)),
        ):
            teacher = HFTeacher("teacher", load_model("embedded:teacher").model, asked.student_prompt)
            student, settings = asked.student, asked.config.settings()
            begin = time.process_time()
            made = analyze_into(
                Path(folder) / name, student, [teacher], asked.questions, asked.grader, settings=settings
            )
            seconds[name] = time.process_time() - begin
        spent = {name: Usage.load(Path(folder) / name) for name in seconds}
        found: dict[str, float] = {}
        for name in ("same", "third"):
            run = Path(folder) / name
            told = planned(asked.config.budget, many, 1, calibrated(run, spent[name].tokens / seconds[name]))
            by_clock = planned(asked.config.budget, many, 1, calibrated(run)).seconds
            found[f"planner_{name}_budget_rollouts_error"] = (told.initial + told.targeted) / rollouts(made) - 1
            found[f"planner_{name}_budget_tokens_error"] = told.tokens / spent["large"].tokens - 1
            found[f"planner_{name}_budget_seconds_error"] = told.seconds / seconds["large"] - 1
            found[f"planner_{name}_budget_clock_error"] = by_clock / spent["large"].seconds - 1
    measures = ("rollouts", "tokens", "seconds")
    found["planner_relative_error"] = max(abs(found[f"planner_same_budget_{name}_error"]) for name in measures)
    return found


def measure(*, quick: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    results = by_length([200, 1000, 3000] if quick else [200, 1000, 5000, 30_000])
    results |= by_questions(2, 8) if quick else by_questions(4, 32)
    results |= shared_tree(2 if quick else 8)
    results |= eight_teachers(1 if quick else 3)
    results |= planner(1, 2) if quick else planner(3, 9)
    return results


WANTED = {
    "teachers_8_over_1_seconds": "≤ 2", "independent_over_shared_rollouts": "≥ 5", "planner_relative_error": "≤ 0.3",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as one flat object")
    arguments = parser.parse_args()
    results = measure(quick=arguments.quick)
    table = Table("measure", "value", "wanted", title="what a study costs")
    for name, value in results.items():
        table.add_row(name, f"{value:,.2f}", WANTED.get(name, ""))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
