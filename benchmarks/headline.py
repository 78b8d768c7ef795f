"""The paper's main claim on the embedded models: is alignment higher on incorrect paths than on correct ones?

The same rollouts with the paper's counting (`pooled`) and with `backup`, for each teacher, with 95 % intervals over
questions. Uses the demo's configuration with up to 3,000 targeted rollouts per question by `paper`, on other questions
than the demo.

    python benchmarks/headline.py [--quick] [--json FILE] [--questions N]

`--quick` uses 4 questions; its numbers are too noisy to interpret.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from opd_align import metrics
from opd_align.core.collect import collect
from opd_align.core.engine import align, dictionary_encoded
from opd_align.study.build import Study
from opd_align.study.config import read_config

ESTIMATORS = ("pooled", "backup")


def measured(questions: int) -> dict[str, pa.Table]:
    """Node tables of all questions by estimator, without questions that lack the teachers' demonstrations."""
    budget = "budget={initial: 100, targeted: 3000, allocation: paper, n_min: 60}"
    study = Study(read_config("demo", [f"questions.limit={questions}", "questions.seed=1000", budget]))
    with tempfile.TemporaryDirectory() as folder:
        demonstrations = study.collect_demonstrations(Path(folder))
    skipped = study.unavailable_teachers(demonstrations)
    teachers, settings, grader = study.teachers(demonstrations), study.config.settings(), study.grader
    tables: dict[str, list[pa.Table]] = {estimator: [] for estimator in ESTIMATORS}
    for question in track([each for each in study.usable_questions if each.id not in skipped], "questions"):
        evidence = collect(study.student, teachers, question, grader, settings=settings)
        for estimator in ESTIMATORS:
            tables[estimator].append(align(evidence, replace(settings, estimator=estimator)))
    return {estimator: dictionary_encoded(pa.concat_tables(parts)) for estimator, parts in tables.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use 4 questions")
    parser.add_argument("--questions", type=int, default=44, help="number of questions (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    nodes = measured(4 if arguments.quick else arguments.questions)
    figures: dict[str, Any] = {}
    table = Table("estimator", "teacher", "metric", "correct", "incorrect", "Δ (correct − incorrect)", "p", "questions")
    for estimator, rows in nodes.items():
        for teacher in [None, *sorted(set(rows["teacher"].to_pylist()))]:
            for contrast in metrics.correct_vs_incorrect(rows, "reverse_kl", teacher=teacher):
                if contrast.metric == "advantage":
                    continue
                name = teacher or "all"
                table.add_row(
                    estimator, name, contrast.metric, f"{contrast.correct:+.3f}", f"{contrast.incorrect:+.3f}",
                    f"{contrast.delta:+.3f} ± {contrast.half_width:.3f}", f"{contrast.p_value:.3g}",
                    str(contrast.n_pairs),
                )  # fmt: skip
                key = f"{estimator}/{name}/{contrast.metric}"
                values = {"delta": contrast.delta, "half_width": contrast.half_width, "p": contrast.p_value}
                figures |= {f"{key}/{part}": _plain(value) for part, value in values.items()}
                figures[f"{key}/questions"] = contrast.n_pairs
    Console().print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


if __name__ == "__main__":
    main()
