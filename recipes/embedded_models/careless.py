"""Makes `embedded:careless`, the teacher that harms: the embedded student, trained on its own wrong solutions.

    python recipes/embedded_models/careless.py [--out FOLDER]

It writes as fluently as the student, so nothing but its answers shows that it is a bad teacher. Takes a minute on one
CPU core. The questions are from the training split, with a seed of their own.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from train import save

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent
from opd_align.backends.loading import load_model
from opd_align.embedded import careless_path, student_path
from opd_align.settings import Sampling
from opd_align.tasks import task
from opd_align.tasks.grading import TextGrader
from opd_align.teachers.contexts import ContextPrompt
from opd_align.types import Finish, Outcome, SampleRequest

QUESTIONS, SAMPLES, SEED = 256, 8, 90210
STEPS, BATCH, LEARNING_RATE = 40, 32, 3e-4


def wrong_solutions(student: HFStudent, prompt: ContextPrompt, grader: TextGrader) -> list[tuple[list[int], int]]:
    """Prompt and wrong completion as one list of tokens, with the length of the prompt."""
    questions = prompt.task.load(split="train", limit=QUESTIONS, seed=SEED)
    found = []
    for at in range(0, len(questions), 64):
        requests = [SampleRequest(each, np.empty(0, np.uint32), SAMPLES) for each in questions[at : at + 64]]
        rollouts = student.sample(requests)
        for request, keys in zip(requests, student.keys(requests), strict=True):
            own = rollouts.take(np.isin(rollouts.key_R, keys))
            wrong_R = (grader.grade(request.question, own) == Outcome.INCORRECT) & (own.finish_R == Finish.STOPPED)
            start = list(prompt(request.question))
            found += [([*start, *own.completion(int(row)).tolist()], len(start)) for row in np.flatnonzero(wrong_R)]
    return found


def train(model: torch.nn.Module, sequences: list[tuple[list[int], int]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    order = np.random.default_rng(SEED)
    for _ in range(STEPS):
        batch = [sequences[index] for index in order.choice(len(sequences), BATCH, replace=False)]
        width = max(len(tokens) for tokens, _ in batch)
        ids = torch.zeros(BATCH, width, dtype=torch.long)
        labels = torch.full((BATCH, width), -100)
        for row, (tokens, start) in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, start : len(tokens)] = torch.tensor(tokens[start:])
        # Padding is on the right, so that no token attends to it.
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(sequences)} wrong solutions, loss {loss.item():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=careless_path(), help="folder to write")
    folder = parser.parse_args().out
    loaded = load_model("embedded:student", dtype="float32")
    chat = Chat(loaded.tokenizer)
    prompt, end_tokens = ContextPrompt(chat, task("arithmetic")), chat.end_tokens(loaded.model.config)
    student = HFStudent("student", loaded.model, prompt, end_tokens, Sampling(max_tokens=160, seed=SEED))
    sequences = wrong_solutions(student, prompt, TextGrader(prompt.task, chat.decode, end_tokens))
    train(loaded.model.train(), sequences)
    save(loaded.model, loaded.tokenizer, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):  # as they are, without where they were loaded from
        shutil.copyfile(student_path() / name, folder / name)


if __name__ == "__main__":
    main()
