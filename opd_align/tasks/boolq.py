"""BoolQ: yes-or-no questions about a passage of Wikipedia.

The paper shows its prompt for MMLU only; this one has the same frame, sentence by sentence.
"""

from __future__ import annotations

from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import TrueFalse

BOOLQ = Task(
    name="boolq",
    verifier=TrueFalse(),
    ask=Form(
        "Answer the following true or false question about the passage. The last line of your response should be of "
        "the following format: 'Answer: $ANSWER' (without quotes) where ANSWER is True or False. Think step by step "
        "before answering."
    ),
    source=Source(
        hub="google/boolq",
        split="validation",
        fields={"question": "question", "answer": "answer", "passage": "passage"},
    ),
)
