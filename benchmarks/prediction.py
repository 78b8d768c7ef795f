"""Does a measurement before any training predict what distilling from a teacher gains?

    make prediction                                # the whole study, an hour or two; continues after an interruption
    python benchmarks/prediction.py --report       # tables and picture from the finished runs
    python benchmarks/prediction.py [--quick] [--json FILE]
    python benchmarks/prediction.py --stage long   # long trainings with the callback and its alarm
    python benchmarks/prediction.py --stage sgd    # some of the teachers with SGD

Teachers (`prediction_teachers.json`, written before any of them was built) are measured on the same rollouts of the
embedded student. Then the student is trained with each of them by TRL's trainers, with the same steps and questions,
with several seeds. The gain is held-out accuracy after minus before.

Fixed before the first training: the list of teachers, the predictors (`PREDICTORS`, the first is the headline), and the
analysis: Spearman and Pearson correlation of each predictor with the gain over teachers, with 95 % bootstrap intervals
over teachers, the same with each family left out. Teachers in `DEVELOPMENT` do not enter.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _prediction_long as long
import _prediction_sgd as sgd
import torch
from _prediction_analysis import Study, plain, show, write_outputs
from _prediction_measurement import collect_evidence, own_accuracy, predictors, rare_tokens
from _prediction_teachers import Entry, World, entries
from _prediction_training import measure_before, run

from opd_align.settings import Budget

QUICK = ("interp-1.0", "anti-0.8", "op-S-plus-2.5")
"""Teachers of `--quick`."""
ACCURACY_QUESTIONS = 128
"""Held-out questions on which a teacher's own accuracy is measured, with one sample each."""


@dataclass(frozen=True)
class Size:
    """How large the study is.

    Args:
        train: Training questions; a run of 16 steps uses most of them.
        measured: Questions of the analysis.
        initial: Initial rollouts per question of the analysis.
        targeted: Targeted rollouts per question of the analysis.
        held_out: Held-out questions.
        samples: Samples per held-out question after a training; four times as many before.
        steps: Training steps.
        seeds: Trainings per teacher.
        sgd_seeds: Trainings per teacher with SGD.
        long: The long trainings.
    """

    train: int = 288
    measured: int = 22
    initial: int = 128
    targeted: int = 1800
    held_out: int = 256
    samples: int = 2
    steps: int = 16
    seeds: int = 3
    sgd_seeds: int = 1
    long: long.LongSize = long.FULL


SMALL = Size(
    train=16, measured=3, initial=32, targeted=100, held_out=16, samples=1, steps=2, seeds=1,
    long=long.LongSize(steps=2, every=1, questions=4, samples=1, budget=Budget(initial=16, targeted=20)),
)  # fmt: skip


def write(file: Path, content: Any) -> None:
    """Writes a result under its final name only when it is complete."""
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.rename(file)


def measure(world: World, size: Size, listed: list[Entry], folder: Path) -> None:
    """Writes `measured.json`: every predictor of every teacher."""
    evidence = collect_evidence(world, listed, folder / "measurement", initial=size.initial, targeted=size.targeted)
    held_out = world.task.load(split="test", limit=size.held_out, seed=31)
    accuracies = _accuracies(world, listed, held_out[:ACCURACY_QUESTIONS], folder / "accuracies.json")
    found = {
        entry.name: predictors(evidence, entry) | {"teacher_accuracy": (accuracies[entry.model_key], None)}
        for entry in listed
    }
    write(folder / "measured.json", found)
    write(folder / "rare_tokens.json", rare_tokens(evidence))


def _accuracies(world: World, listed: list[Entry], held_out: list[Any], file: Path) -> dict[str, float]:
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for entry in listed:
        if entry.model_key not in known:
            known[entry.model_key] = own_accuracy(world, entry, held_out)
            write(file, known)
    return known


def train_all(world: World, size: Size, listed: list[Entry], folder: Path) -> None:
    """Trains what has no file yet. Seeds in the outer loop: after an interruption all teachers have about as many."""
    held_out = world.task.load(split="test", limit=size.held_out, seed=31)
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    measure_before(world, held_out, 4 * size.samples, folder / "before.json")
    for seed in range(size.seeds):
        for entry in listed:
            file = runs / f"{entry.name}-{seed}.json"
            if file.exists():
                continue
            result = run(
                world, entry, seed=seed, steps=size.steps, held_out=held_out, samples=size.samples,
                folder=folder / "trainer",
            )  # fmt: skip
            write(file, result)
            print(f"{entry.name}, seed {seed}: {result['accuracy']:.3f} ({result['cpu_seconds']:.0f} s)", flush=True)


def train_sgd(world: World, size: Size, folder: Path) -> None:
    """Trains with SGD what has no file yet."""
    held_out = world.task.load(split="test", limit=size.held_out, seed=31)
    measure_before(world, held_out, 4 * size.samples, folder / "before.json")

    def train(entry: Entry, seed: int, rate: float) -> dict[str, Any]:
        return run(
            world, entry, seed=seed, steps=size.steps, held_out=held_out, samples=size.samples,
            folder=folder / "trainer", learning_rate=rate, **sgd.OPTIONS,
        )  # fmt: skip

    sgd.run_sgd(train, folder, seeds=size.sgd_seeds)


def train_long(world: World, size: Size, folder: Path) -> None:
    """Continues or begins the long trainings that are not finished."""
    held_out = world.task.load(split="test", limit=size.held_out, seed=31)
    for entry in long.teachers():
        long.run_long(world, entry, held_out, folder, size.long, seed=0)


OTHER_STAGES = {"long": (train_long, long.show), "sgd": (train_sgd, sgd.show)}
"""Stages with trainings and figures of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three teachers, two steps: numbers mean nothing")
    parser.add_argument("--folder", type=Path, default=Path("build/prediction"), help="where results are kept")
    parser.add_argument("--stage", choices=("all", "measure", "train", *OTHER_STAGES), default="all", help="what to do")
    parser.add_argument("--report", action="store_true", help="only tables and picture, from the finished runs")
    parser.add_argument("--development", action="store_true", help="the teachers of the development, in any figure")
    parser.add_argument("--picture", type=Path, help="write the scatter plot to this file (SVG)")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("trl", "transformers", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    size, listed = (
        (SMALL, [each for each in entries() if each.name in QUICK]) if arguments.quick else (Size(), entries())
    )
    if arguments.development:
        listed = entries(development=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if arguments.quick else arguments.folder
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.stage in OTHER_STAGES:
            begin, show_stage = OTHER_STAGES[arguments.stage]
            if not arguments.report:
                begin(World(folder, size.train, max(size.measured, size.long.questions)), size, folder)
            found = plain(show_stage(folder))
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            return
        if not arguments.report:
            world = World(folder, size.train, size.measured)
            if arguments.stage in ("all", "measure"):
                measure(world, size, listed, folder)
            if arguments.stage in ("all", "train"):
                train_all(world, size, listed, folder)
        study = Study.load(folder, listed, seeds=size.seeds)
        rare = json.loads((folder / "rare_tokens.json").read_text(encoding="utf-8"))
    show(study)
    write_outputs(study, rare, json_file=arguments.json, picture=arguments.picture, markdown_file=arguments.markdown)


if __name__ == "__main__":
    main()
