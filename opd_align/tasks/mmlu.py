"""MMLU: multiple choice from 57 subjects, in the paper's words (its figure "Baseline prompt")."""

from __future__ import annotations

from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import Choice

CHOICE_INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the following "
    "format: 'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by step before answering."
)

MMLU = Task(
    name="mmlu",
    verifier=Choice(),
    ask=Form(CHOICE_INSTRUCTION),
    source=Source(
        hub="cais/mmlu",
        config="all",
        split="test",
        fields={"question": "question", "answer": "answer", "choices": "choices", "subject": "subject"},
    ),
)
