"""Long trainings with the callback: does alignment predict the next steps, and does the alarm come in time?

At every evaluation, the callback's SR-weighted alignment and the held-out accuracy are recorded, with the CPU time of
training and of the callback. Trainings continue from their last checkpoint. `report` adds what `core.alarm` makes of
the evaluations until then.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _prediction_analysis import DRAWS, TAILS, pearson, spearman
from _prediction_teachers import Entry, World, entries
from _prediction_training import COMPLETIONS, MAX_LENGTH, correct_counts
from rich.console import Console
from rich.table import Table

from opd_align.core import metrics
from opd_align.core.alarm import Reading, alarms
from opd_align.core.intervals import NORMAL
from opd_align.settings import Budget
from opd_align.types import Question

TEACHERS = ("noise-0.3-s2", "interp-1.0")
"""Of the study: a noisy teacher that helps at first, and the plain teacher."""
NOISIER = Entry("noise-0.4-s2", "teacher_noise", "teacher_noise", {"sigma": 0.4, "seed": 2}, "reverse_kl")
"""Added when the first one had not ruined the student after 80 steps."""
BUDGET = Budget(initial=32, targeted=160, allocation="adaptive", rounds=3)


@dataclass(frozen=True)
class LongSize:
    """How long the trainings are, and what an evaluation costs.

    Args:
        steps: Training steps.
        every: Steps between evaluations.
        questions: Questions of the callback.
        samples: Samples per held-out question.
        budget: Budget of the callback.
    """

    steps: int = 160
    every: int = 20
    questions: int = 24
    samples: int = 1
    budget: Budget = BUDGET


FULL = LongSize()


def teachers() -> list[Entry]:
    """The teachers of the long trainings."""
    return [*(next(entry for entry in entries() if entry.name == name) for name in TEACHERS), NOISIER]


def run_long(world: World, entry: Entry, held_out: list[Question], folder: Path, size: LongSize, *, seed: int) -> None:
    """One long training with KL(student ‖ teacher); the file has a row for every evaluation."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
    from trl import DistillationConfig, DistillationTrainer

    from opd_align.training import AlignmentCallback

    file = folder / f"long-{entry.name}-{seed}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if rows and rows[-1]["step"] >= size.steps:
        return
    (teacher, _), *_ = world.build(entry).parts  # the callback hashes and scores a transformers model
    prompts = [{"prompt": world.task.messages(each), "answer": each.answer} for each in world.training_questions]
    output = folder / f"long-{entry.name}-{seed}"
    trainer = DistillationTrainer(
        model=copy.deepcopy(world.student_model).requires_grad_(True),
        teacher_model=teacher,
        processing_class=world.tokenizer,
        train_dataset=Dataset.from_list(prompts),
        args=DistillationConfig(
            output_dir=str(output), max_steps=size.steps, per_device_train_batch_size=COMPLETIONS, learning_rate=3e-4,
            lr_scheduler_type="constant", beta=1.0, temperature=1.0, max_completion_length=MAX_LENGTH, seed=seed,
            gradient_checkpointing=False, logging_steps=1000, save_strategy="steps", save_steps=size.every,
            save_total_limit=1, report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
        ),
    )  # fmt: skip
    alignment = AlignmentCallback(
        trainer,
        world.measured_questions[: size.questions],
        world.task,
        every_n_steps=size.every,
        budget=size.budget,
        max_overhead=None,
        on_error="raise",
        alerts=False,
    )
    checkpoint = get_last_checkpoint(str(output)) if output.exists() else None
    start = int(checkpoint.rpartition("-")[2]) if checkpoint else -1
    rows = [row for row in rows if row["step"] <= start]
    clock = {"trained_until": time.process_time(), "training": 0.0}

    class Before(TrainerCallback):
        """Runs before the callback: what ends here was training."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock["training"], clock["evaluation_from"] = 0.0, time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock["evaluation_from"] = time.process_time()
            clock["training"] += clock["evaluation_from"] - clock["trained_until"]
            clock["trained_until"] = clock["evaluation_from"]

    class Record(TrainerCallback):
        """Runs after the callback."""

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if start < 0:
                self._record(0, model)
            clock["trained_until"] = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step % size.every == 0:
                self._record(state.global_step, model)
                clock["training"] = 0.0
            clock["trained_until"] = time.process_time()

        def _record(self, step: int, model: Any) -> None:
            alignment_s = time.process_time() - clock["evaluation_from"]
            (rank,) = metrics.teacher_ranking(alignment.latest.nodes)
            model.eval()
            counts = correct_counts(world, model, held_out, samples=size.samples, seed=step)
            model.train()
            weighted = rank.weighted_cosine
            rows.append({
                "step": step, "accuracy": sum(counts) / (size.samples * len(counts)), "correct": counts,
                "samples": size.samples, "alignment": weighted.mean, "half_width": weighted.half_width,
                "questions": weighted.n, "training_cpu_s": clock["training"], "alignment_cpu_s": alignment_s,
            })  # fmt: skip
            print(entry.name, seed, {name: value for name, value in rows[-1].items() if name != "correct"}, flush=True)
            file.write_text(json.dumps(rows), encoding="utf-8")

    trainer.add_callback(Before())
    trainer.add_callback(alignment)
    trainer.add_callback(Record())
    trainer.train(resume_from_checkpoint=checkpoint)


# -- what they show


def report(folder: Path) -> dict[str, Any]:
    """For each long training: its rows with the state of the alarm, and when the alarm is first raised."""
    found = {}
    for file in sorted(folder.glob("long-*.json")):
        rows = json.loads(file.read_text(encoding="utf-8"))
        readings = [Reading(row["step"], row["alignment"], row["half_width"] / NORMAL) for row in rows]
        states = alarms(readings)
        for row, state, after in zip(rows, states, [*rows[1:], None], strict=True):
            row |= {"p_helps": state.p_helps, "level": state.level, "filtered": state.mean}
            row["next_gain"] = None if after is None else after["accuracy"] - row["accuracy"]
        best = max(rows, key=lambda row: row["accuracy"])
        first = next((state.step for state in states if state.raised), None)
        training, alignment = (sum(row.get(f"{part}_cpu_s", 0.0) for row in rows) for part in ("training", "alignment"))
        found[file.stem.removeprefix("long-")] = {
            "rows": [{name: value for name, value in row.items() if name != "correct"} for row in rows],
            "alarm": first,
            "below_zero": next((row["step"] for row in rows if row["alignment"] < 0), None),
            "best": best["step"],
            "lost": best["accuracy"] - rows[-1]["accuracy"],
            "lost_interval": _difference(best, rows[-1]),
            "training_cpu_s": training,
            "alignment_cpu_s": alignment,
        }
    return found


def _difference(first: dict[str, Any], second: dict[str, Any]) -> list[float] | None:
    """95 % interval of the difference of two accuracies on the same questions, by bootstrap over them."""
    if "correct" not in first:
        return None
    change_Q = (np.array(first["correct"]) - np.array(second["correct"])) / first["samples"]
    at_DQ = np.random.default_rng(0).integers(0, len(change_Q), (2000, len(change_Q)))
    return [float(end) for end in np.quantile(change_Q[at_DQ].mean(1), TAILS)]


def next_gain_correlations(found: dict[str, Any]) -> dict[str, Any]:
    """Correlation of what is known at an evaluation with the gain until the next one, over all evaluations.

    The interval is a bootstrap over evaluations. Those of one training are not independent, so it is too narrow.
    """
    groups = {"all": list(found), **{name: [name] for name in found}}
    correlations: dict[str, Any] = {}
    for group, names in groups.items():
        rows = [row for name in names for row in found[name]["rows"] if row["next_gain"] is not None]
        for predictor in ("alignment", "filtered"):
            pairs = [(row[predictor], row["next_gain"]) for row in rows]
            correlations[f"{group}/{predictor}"] = _correlation(pairs)
    return correlations


def _correlation(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    x_N, y_N = np.array(pairs, float).reshape(-1, 2).T
    at_DN = np.random.default_rng(0).integers(0, len(x_N), (DRAWS, len(x_N)))
    values: dict[str, Any] = {"n": len(x_N)}
    for label, method in (("spearman", spearman), ("pearson", pearson)):
        values[label] = float(method(x_N, y_N))
        values[f"{label}_interval"] = [float(end) for end in np.nanquantile(method(x_N[at_DN], y_N[at_DN]), TAILS)]
    return values


def figures(folder: Path) -> dict[str, Any]:
    found = report(folder)
    training, alignment = (sum(each[f"{part}_cpu_s"] for each in found.values()) for part in ("training", "alignment"))
    rows = [row for each in found.values() for row in each["rows"]]
    steps = sum(each["rows"][-1]["step"] for each in found.values())
    return {
        "trainings": found,
        "next_gain": next_gain_correlations(found),
        "share_of_time": alignment / (alignment + training),
        "steps_per_question": alignment / sum(row["questions"] for row in rows) / (training / steps),
    }


def show(folder: Path) -> dict[str, Any]:
    """Prints one table per training, and returns the figures."""
    found = figures(folder)
    console = Console(width=130)
    for name, training in found["trainings"].items():
        table = Table("step", "accuracy", "alignment ± 95 %", "filtered", "P(helps)", "level", title=name)
        for row in training["rows"]:
            table.add_row(
                str(row["step"]), f"{row['accuracy']:.3f}", f"{row['alignment']:+.2f} ± {row['half_width']:.2f}",
                f"{row['filtered']:+.2f}", f"{row['p_helps']:.2f}", row["level"],
            )  # fmt: skip
        console.print(table)
        print(f"{name}: best accuracy at step {training['best']}, lost by the end {training['lost']:.3f}, "
              f"alarm at {training['alarm']}, first reading below zero at {training['below_zero']}")  # fmt: skip
    for name, c in found["next_gain"].items():
        low, high = c["spearman_interval"]
        print(f"{name} and the gain until the next evaluation: "
              f"Spearman {c['spearman']:.2f} [{low:.2f}, {high:.2f}], n = {c['n']}")  # fmt: skip
    print(f"share of CPU time spent on alignment: {found['share_of_time']:.0%}; "
          f"one question costs as much as {found['steps_per_question']:.1f} training steps")  # fmt: skip
    return found
