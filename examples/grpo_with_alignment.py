"""TRL's GRPOTrainer on the embedded student with the callback; takes a few minutes on a CPU.

    python examples/grpo_with_alignment.py --output_dir runs/grpo --max_steps 40
    opd-align dashboard runs/grpo

GRPO has no teacher. The callback compares GRPO's update with two: a model, and the student with one of its own correct
solutions in its prompt (Self-1C). The verifier of the held-out questions is the reward that GRPO trains with.
"""

import os

from datasets import Dataset
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

from opd_align import AlignmentCallback
from opd_align.backends.loading import load_model
from opd_align.tasks import task

os.environ.setdefault("WANDB_MODE", "offline")
parser = HfArgumentParser(GRPOConfig)
parser.set_defaults(
    output_dir="runs/grpo_with_alignment", max_steps=40, per_device_train_batch_size=32, num_generations=8,
    learning_rate=3e-4, max_completion_length=96, logging_steps=5, report_to=["wandb"], use_cpu=True, bf16=False,
    save_strategy="no",
)  # fmt: skip
(args,) = parser.parse_args_into_dataclasses()

arithmetic = task("arithmetic")
student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
rows = [
    {"prompt": arithmetic.messages(question), "answer": question.answer}
    for question in arithmetic.load(split="train", limit=1000)
]
trainer = GRPOTrainer(
    model=student.model,
    reward_funcs=arithmetic.verifier,
    args=args,
    train_dataset=Dataset.from_list(rows),
    processing_class=student.tokenizer,
)
held_out = arithmetic.load(split="test", limit=8)
teachers = {"teacher": teacher.model, "Self-1C": "Self-1C"}
callback = AlignmentCallback(trainer, held_out, arithmetic, every_n_steps=20, teachers=teachers, max_overhead=0.4)
trainer.add_callback(callback)
trainer.train()
