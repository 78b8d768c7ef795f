r"""AIME 2024 and 2025: competition problems whose answers are integers from 0 to 999.

The answer counts on the last line and in a box alike: models trained on mathematics write `\boxed{}` whatever they
are told.
"""

from __future__ import annotations

from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import Maths

_FORM = Form(
    "Solve the following math problem, whose answer is an integer from 0 to 999. The last line of your response should "
    "be of the following format: 'Answer: $ANSWER' (without quotes) where ANSWER is that integer, which may stand in "
    "\\boxed{}. Think step by step before answering."
)
# The Hub says "problem", other copies say "question".
_FIELDS: dict[str, str | tuple[str, ...]] = {"question": ("problem", "question"), "answer": "answer"}

AIME2024 = Task(
    name="aime2024",
    verifier=Maths(),
    ask=_FORM,
    source=Source(hub="HuggingFaceH4/aime_2024", split="train", fields=_FIELDS),
)
AIME2025 = Task(
    name="aime2025",
    verifier=Maths(),
    ask=_FORM,
    source=Source(hub="MathArena/aime_2025", split="train", fields=_FIELDS),
)
