"""TRL's DistillationTrainer on the embedded models with the callback; takes a few minutes on a CPU.

    python examples/distillation_with_alignment.py --output_dir runs/distillation --max_steps 60
    opd-align dashboard runs/distillation

Compares the trainer's teacher with the student that has one of its own correct solutions in its prompt (Self-1C).
"""

import os

from datasets import Dataset
from transformers import HfArgumentParser
from trl import DistillationConfig, DistillationTrainer

from opd_align import AlignmentCallback
from opd_align.backends.loading import load_model
from opd_align.tasks import task

os.environ.setdefault("WANDB_MODE", "offline")
parser = HfArgumentParser(DistillationConfig)
parser.set_defaults(
    output_dir="runs/distillation_with_alignment", max_steps=60, per_device_train_batch_size=16, learning_rate=3e-4,
    beta=1.0, max_completion_length=96, logging_steps=5, report_to=["wandb"], use_cpu=True, bf16=False,
    save_strategy="no",
)  # fmt: skip
(args,) = parser.parse_args_into_dataclasses()

arithmetic = task("arithmetic")
student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
rows = [{"prompt": arithmetic.messages(question)} for question in arithmetic.load(split="train", limit=1000)]
trainer = DistillationTrainer(
    model=student.model,
    teacher_model=teacher.model,
    args=args,
    train_dataset=Dataset.from_list(rows),
    processing_class=student.tokenizer,
)
held_out = arithmetic.load(split="test", limit=8)
callback = AlignmentCallback(
    trainer, held_out, arithmetic, every_n_steps=20, teachers=["Self-1C"], max_overhead=0.4
)  # fmt: skip
trainer.add_callback(callback)
trainer.train()
