"""What a TRL training with `log_completions=True` leaves in its output directory, made from the embedded student."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent
from opd_align.backends.loading import load_model
from opd_align.settings import Sampling
from opd_align.tasks import TextGrader, task
from opd_align.types import SampleRequest

COLUMNS = ["step", "prompt", "completion", "accuracy_reward", "advantage"]
"""Columns of the file, as GRPOTrainer writes them with one reward function of that name."""


def write_output_dir(folder: Path, *, questions: int = 2, num_generations: int = 40) -> Path:
    """`checkpoint-10` with model and tokenizer, and `completions/completions_00010.parquet`."""
    loaded, arithmetic = load_model("embedded:student"), task("arithmetic")
    chat = Chat(loaded.tokenizer)
    ends = chat.end_tokens(*loaded.configs)
    student = HFStudent(
        "student",
        loaded.model,
        lambda question: chat.prompt(arithmetic.messages(question)),
        ends,
        Sampling(max_tokens=64),
    )
    grader = TextGrader(arithmetic, chat.decode, ends)
    rows = []
    for question in arithmetic.load(split="train", limit=questions):
        rollouts = student.sample([SampleRequest(question, np.empty(0, np.uint32), num_generations)])
        reward_R = (grader.grade(question, rollouts) > 0).astype(float)
        for row, reward in enumerate(reward_R.tolist()):
            response = chat.decode(rollouts.completion(row).tolist())
            rows.append(
                (10, arithmetic.messages(question), [{"role": "assistant", "content": response}], reward,
                 reward - float(reward_R.mean()))
            )  # fmt: skip
    (folder / "completions").mkdir(parents=True)
    pd.DataFrame(rows, columns=COLUMNS).to_parquet(folder / "completions" / "completions_00010.parquet")
    loaded.model.save_pretrained(folder / "checkpoint-10")
    loaded.tokenizer.save_pretrained(folder / "checkpoint-10")
    return folder
