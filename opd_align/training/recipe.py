"""What the recipes share: the questions they train on, those they hold out, and the models by name.

Recipes are scripts that people read and change; what is the same in all of them and teaches nothing is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opd_align.models import load_tokenizer, place_of
from opd_align.tasks import Task, task
from opd_align.types import OpdAlignError, Question


@dataclass
class Questions:
    """Questions to train on and to hold out; fields as TRL's parser takes them."""

    task: str = field(default="arithmetic", metadata={"help": "boolq, mmlu, gsm8k, aime2024, aime2025, arithmetic"})
    train_file: str | None = field(default=None, metadata={"help": "JSON lines, CSV or Parquet instead of the Hub"})
    held_out_file: str | None = field(default=None, metadata={"help": "the same for the held-out questions"})
    train_split: str = field(default="train", metadata={"help": "split to train on"})
    train_questions: int = field(default=2000, metadata={"help": "at most so many"})
    held_out_questions: int = field(default=8, metadata={"help": "of the task's test split, for the callback"})
    every_n_steps: int = field(default=50, metadata={"help": "steps between the callback's evaluations"})
    max_overhead: float = field(default=0.05, metadata={"help": "share of the wall time that evaluations may take"})
    dry_run: bool = field(default=False, metadata={"help": "say what would be done, and stop before any model"})

    @property
    def asked(self) -> Task:
        return task(self.task)

    def held_out(self) -> list[Question]:
        return _answered(self.asked.load(self.held_out_file, limit=self.held_out_questions))

    def prompts(self) -> Any:
        """A data set for trainers whose student writes: the conversation so far, the gold answer."""
        from datasets import Dataset

        rows = [{"prompt": self.asked.messages(question), **_columns(question)} for question in self._trained_on()]
        return Dataset.from_list(rows)

    def dialogues(self) -> Any:
        """A data set for GKD, which wants a reply in each row; with `lmbda: 1` it is never read."""
        from datasets import Dataset

        rows = []
        for question in self._trained_on():
            reply = {"role": "assistant", "content": f"Answer: {question.answer}"}
            rows.append({"messages": [*self.asked.messages(question), reply], **_columns(question)})
        return Dataset.from_list(rows)

    def _trained_on(self) -> list[Question]:
        return _answered(self.asked.load(self.train_file, split=self.train_split, limit=self.train_questions))


def _columns(question: Question) -> dict[str, Any]:
    choices = question.fields.get("choices")
    return {"answer": question.answer, **({"choices": list(choices)} if choices else {})}


def _answered(questions: list[Question]) -> list[Question]:
    answered = [question for question in questions if question.answer is not None]
    if not answered:
        raise OpdAlignError("none of the questions has an answer, so nothing can be verified")
    return answered


def place(reference: str | None) -> str:
    """A model's folder or Hub name; `embedded:student` and `embedded:teacher` ship with the package."""
    if not reference:
        raise OpdAlignError(
            "the configuration names no model; give model_name_or_path (and a teacher, where one is due)"
        )
    return place_of(reference)[0]


def tokenizer(reference: str) -> Any:
    """The model's tokenizer."""
    return load_tokenizer(reference)
