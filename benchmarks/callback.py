"""The cost of the callback: its share of the wall time, and the time of an evaluation relative to the same one offline.

    python benchmarks/callback.py [--quick] [--json FILE]

TRL's DistillationTrainer on the embedded models, with `max_overhead=0.05`. `overhead_share` is measured
around the callback's events, not read from its own logs. `evaluation_seconds_over_offline` is the median of several
rounds, in which both sides analyse the same questions with the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("WANDB_MODE", "disabled")
warnings.filterwarnings("ignore")

from datasets import Dataset  # noqa: E402
from trl import DistillationConfig, DistillationTrainer  # noqa: E402

from opd_align import AlignmentCallback  # noqa: E402
from opd_align.backends.hf import HFStudent, HFTeacher  # noqa: E402
from opd_align.backends.loading import load_model  # noqa: E402
from opd_align.runs.execute import analyze_into  # noqa: E402
from opd_align.runs.rollout_store import table_bytes  # noqa: E402
from opd_align.tasks import task  # noqa: E402

ARITHMETIC = task("arithmetic")


class Timed(AlignmentCallback):
    """Measures the time spent in the callback's events."""

    inside_s = 0.0

    def _timed(self, event: Any, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        event(*args, **kwargs)
        self.inside_s += time.perf_counter() - began

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._timed(super().on_train_begin, *args, **kwargs)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._timed(super().on_step_end, *args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self._timed(super().on_log, *args, **kwargs)


def trainer_of(folder: Path, steps: int) -> Any:
    student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
    rows = [{"prompt": ARITHMETIC.messages(question)} for question in ARITHMETIC.load(split="train", limit=500)]
    args = DistillationConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=32, learning_rate=1e-4,
        max_completion_length=96, logging_steps=10, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    return DistillationTrainer(
        model=student.model, teacher_model=teacher.model, args=args, train_dataset=Dataset.from_list(rows),
        processing_class=student.tokenizer,
    )  # fmt: skip


def overhead(folder: Path, steps: int, every: int) -> dict[str, float]:
    trainer = trainer_of(folder, steps)
    callback = Timed(trainer, ARITHMETIC.load(split="test", limit=8), ARITHMETIC, every_n_steps=every)
    trainer.add_callback(callback)
    began = time.perf_counter()
    trainer.train()
    wall_s = time.perf_counter() - began
    lines = [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
    return {
        "steps": steps,
        "training_seconds": wall_s,
        "evaluations": sum(line["error"] is None for line in lines),
        "overhead_share": callback.inside_s / wall_s,
        "overhead_share_as_logged": callback.schedule.overhead_share,
    }


def beside_offline(folder: Path, rounds: int, questions: int) -> dict[str, float]:
    """Alternates between an evaluation in the callback and the same analysis offline."""
    trainer = trainer_of(folder / "trainer", 1)
    held_out = ARITHMETIC.load(split="test", limit=questions)
    callback = AlignmentCallback(trainer, held_out, ARITHMETIC, max_overhead=None)
    model = trainer.model.eval()
    chat = callback.evaluator.chat
    prompt = callback.evaluator.held_out.prompting(chat)
    ends = chat.end_tokens(model.config, model.generation_config)
    student = HFStudent("student", model, prompt, ends, callback.adapter.sampling)
    teacher = HFTeacher("teacher", trainer.teacher_model, prompt)
    grader = callback.evaluator.held_out.grader(chat, ends)
    inside, offline = [], []
    for number in range(rounds + 1):
        trainer.state.global_step = number
        began = time.perf_counter()
        analysis, _ = callback.evaluate()
        middle = time.perf_counter()
        other = analyze_into(
            folder / f"offline-{number}", student, [teacher], held_out, grader, settings=callback.settings
        )
        end = time.perf_counter()
        # As bytes: missing values are NaN, which equals nothing.
        assert table_bytes(analysis.nodes) == table_bytes(other.nodes), "both must give the same result"
        if number:  # the first round warms up
            inside.append(middle - began)
            offline.append(end - middle)
    return {
        "evaluation_seconds": median(inside),
        "offline_seconds": median(offline),
        "evaluation_seconds_over_offline": median(a / b for a, b in zip(inside, offline, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and questions: a smoke test, not a measurement")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps, every, rounds, questions = (3, 3, 1, 1) if args.quick else (200, 50, 5, 8)
        figures = beside_offline(Path(folder), rounds, questions) | overhead(Path(folder) / "run", steps, every)
    for name, value in figures.items():
        print(f"{name:34} {value:.3f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
