"""Long trainings with the callback: does alignment fade before accuracy falls?

At every evaluation, the callback's SR-weighted alignment and the held-out accuracy are recorded; `report` adds what
`core.alarm` makes of the evaluations until then.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from _prediction_teachers import Entry, World
from _prediction_training import COMPLETIONS, MAX_LENGTH, correct_counts

from opd_align.core import metrics
from opd_align.core.alarm import Reading, alarms
from opd_align.core.intervals import NORMAL
from opd_align.settings import Budget
from opd_align.types import Question

STEPS, EVERY, QUESTIONS = 160, 20, 16
TEACHERS = ("noise-0.3-s2", "interp-1.0")


def run_long(world: World, entry: Entry, held_out: list[Question], folder: Path, *, steps: int = STEPS) -> None:
    """One long training with KL(student ‖ teacher); the file has a row for every evaluation."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DistillationConfig, DistillationTrainer

    from opd_align.training import AlignmentCallback

    (teacher, _), *_ = world.build(entry).parts  # the callback hashes and scores a transformers model
    questions = world.training_questions
    prompts = [{"prompt": world.task.messages(each), "answer": each.answer} for each in questions]
    output = folder / f"long-{entry.name}"
    trainer = DistillationTrainer(
        model=copy.deepcopy(world.student_model).requires_grad_(True),
        teacher_model=teacher,
        processing_class=world.tokenizer,
        train_dataset=Dataset.from_list(prompts),
        args=DistillationConfig(
            output_dir=str(output), max_steps=steps, per_device_train_batch_size=COMPLETIONS, learning_rate=3e-4,
            lr_scheduler_type="constant", beta=1.0, temperature=1.0, max_completion_length=MAX_LENGTH, seed=0,
            gradient_checkpointing=False, logging_steps=1000, save_strategy="no", report_to="none", disable_tqdm=True,
            use_cpu=True, bf16=False,
        ),
    )  # fmt: skip
    alignment = AlignmentCallback(
        trainer,
        world.measured_questions[:QUESTIONS],
        world.task,
        every_n_steps=EVERY,
        budget=Budget(initial=32, targeted=160, allocation="adaptive", rounds=3),
        max_overhead=None,
        on_error="raise",
    )
    rows: list[dict[str, Any]] = []

    class Record(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self._record(0, model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step % EVERY == 0:
                self._record(state.global_step, model)

        def _record(self, step: int, model: Any) -> None:
            (rank,) = metrics.teacher_ranking(alignment.latest.nodes)
            model.eval()
            counts = correct_counts(world, model, held_out, samples=1, seed=step)
            model.train()
            weighted = rank.weighted_cosine
            row = {"step": step, "accuracy": sum(counts) / len(counts), "alignment": weighted.mean}
            rows.append(row | {"half_width": weighted.half_width, "questions": weighted.n})
            print(entry.name, rows[-1], flush=True)
            (folder / f"long-{entry.name}.json").write_text(json.dumps(rows), encoding="utf-8")

    trainer.add_callback(alignment)
    trainer.add_callback(Record())
    trainer.train()


def report(folder: Path) -> dict[str, Any]:
    """For each long training: its rows with the state of the alarm, and the step at which it is first raised."""
    found = {}
    for file in sorted(folder.glob("long-*.json")):
        rows = json.loads(file.read_text(encoding="utf-8"))
        readings = [Reading(row["step"], row["alignment"], row["half_width"] / NORMAL) for row in rows]
        states = alarms(readings)
        for row, state in zip(rows, states, strict=True):
            row |= {"p_helps": state.p_helps, "level": state.level}
        best = max(rows, key=lambda row: row["accuracy"])["step"]
        first = next((state.step for state in states if state.raised), None)
        found[file.stem.removeprefix("long-")] = {"rows": rows, "alarm": first, "best": best}
    return found
