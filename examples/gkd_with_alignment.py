"""TRL's GKDTrainer on the embedded models with the callback; takes a few minutes on a CPU.

    python examples/gkd_with_alignment.py --output_dir runs/gkd --max_steps 60
    opd-align dashboard runs/gkd

Metrics are logged to W&B (offline unless WANDB_MODE is set) and to OUTPUT_DIR/opd_align.
"""

import os

from datasets import Dataset
from transformers import HfArgumentParser
from trl.experimental.gkd import GKDConfig, GKDTrainer

from opd_align import AlignmentCallback
from opd_align.backends.loading import load_model
from opd_align.tasks import task

os.environ.setdefault("WANDB_MODE", "offline")
parser = HfArgumentParser(GKDConfig)
parser.set_defaults(
    output_dir="runs/gkd_with_alignment", max_steps=60, per_device_train_batch_size=16, learning_rate=3e-4,
    lmbda=1.0, beta=1.0, temperature=1.0, max_new_tokens=96, max_length=256, logging_steps=5, report_to=["wandb"],
    use_cpu=True, bf16=False, save_strategy="no",
)  # fmt: skip
(args,) = parser.parse_args_into_dataclasses()

arithmetic = task("arithmetic")
student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
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
held_out = arithmetic.load(split="test", limit=8)
# With the default of 5 % a training this short would have only one or two evaluations.
callback = AlignmentCallback(trainer, held_out, arithmetic, every_n_steps=20, max_overhead=0.4)
trainer.add_callback(callback)
trainer.train()
