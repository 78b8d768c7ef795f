"""TRL's GKDTrainer on the embedded models with the callback; takes a few minutes on a CPU.

    python examples/gkd_with_alignment.py --output_dir runs/gkd --max_steps 60
    opd-align dashboard runs/gkd

With --teacher embedded:careless the teacher is one that harms: it was trained on the student's own wrong solutions.
Metrics are logged to W&B (offline unless WANDB_MODE is set) and to OUTPUT_DIR/opd_align.
"""

import os
from dataclasses import dataclass, field

from datasets import Dataset
from transformers import HfArgumentParser
from trl.experimental.gkd import GKDConfig, GKDTrainer

from opd_align import AlignmentCallback
from opd_align.backends.loading import load_model
from opd_align.tasks import task


@dataclass
class Measurement:
    """What the callback measures, and how often."""

    teacher: str = field(default="embedded:teacher", metadata={"help": "a model with the student's tokenizer"})
    questions: int = field(default=8, metadata={"help": "number of held-out questions"})
    every_n_steps: int = field(default=20, metadata={"help": "steps between evaluations"})
    # With the callback's default of 5 % a training this short would have only one or two evaluations.
    max_overhead: float = field(default=0.4, metadata={"help": "share of the time that evaluations may take"})


os.environ.setdefault("WANDB_MODE", "offline")
parser = HfArgumentParser((GKDConfig, Measurement))
parser.set_defaults(
    output_dir="runs/gkd_with_alignment", max_steps=60, per_device_train_batch_size=16, learning_rate=3e-4,
    lmbda=1.0, beta=1.0, temperature=1.0, max_new_tokens=96, max_length=256, logging_steps=5, report_to=["wandb"],
    use_cpu=True, bf16=False, save_strategy="no",
)  # fmt: skip
args, measure = parser.parse_args_into_dataclasses()

arithmetic = task("arithmetic")
student, teacher = load_model("embedded:student"), load_model(measure.teacher)
# GKD requires a reply in each row; on-policy (lmbda=1) it is not used.
rows = [
    {"messages": [*arithmetic.messages(question), {"role": "assistant", "content": f"Answer: {question.answer}"}]}
    for question in arithmetic.load(split="train", limit=1000)
]
trainer = GKDTrainer(
    student.model,
    teacher.model,
    args,
    train_dataset=Dataset.from_list(rows),
    processing_class=student.tokenizer,
)
held_out = arithmetic.load(split="test", limit=measure.questions)
callback = AlignmentCallback(
    trainer, held_out, arithmetic, every_n_steps=measure.every_n_steps, max_overhead=measure.max_overhead
)
trainer.add_callback(callback)
trainer.train()
