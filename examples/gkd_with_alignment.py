"""GKD on the embedded models, watched by the callback: a few minutes on a CPU.

    python examples/gkd_with_alignment.py --output_dir runs/gkd

Numbers go to W&B (offline unless WANDB_MODE says otherwise) and to OUTPUT_DIR/opd_align; look at them with
`opd-align dashboard OUTPUT_DIR`.
"""

import argparse
import os

from datasets import Dataset
from trl.experimental.gkd import GKDConfig, GKDTrainer

from opd_align import AlignmentCallback
from opd_align.models import load_model
from opd_align.tasks import task

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output_dir", default="runs/gkd_with_alignment")
parser.add_argument("--max_steps", type=int, default=60)
parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
args = parser.parse_args()
os.environ.setdefault("WANDB_MODE", "offline")

arithmetic = task("arithmetic")
student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
questions = arithmetic.load(split="train", limit=500)
# GKD wants a reply in each row; on-policy (lmbda=1) it is not used.
rows = [
    {"messages": [*arithmetic.messages(question), {"role": "assistant", "content": f"Answer: {question.answer}"}]}
    for question in questions
]

trainer = GKDTrainer(
    model=student.model,
    teacher_model=teacher.model,
    args=GKDConfig(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=16,
        learning_rate=1e-4,
        lmbda=1.0,
        beta=1.0,
        temperature=1.0,
        max_new_tokens=96,
        max_length=256,
        logging_steps=5,
        report_to=["wandb"],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        seed=0,
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=student.tokenizer,
)
held_out = arithmetic.load(split="test", limit=8)
callback = AlignmentCallback(trainer, held_out, arithmetic, every_n_steps=args.every, teachers=["Self-1C"])
trainer.add_callback(callback)
trainer.train()
