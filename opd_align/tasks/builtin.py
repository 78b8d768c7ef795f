r"""The built-in tasks: BoolQ, MMLU, GSM8K, AIME 2024 and 2025, and arithmetic.

The paper shows its prompt for MMLU only (its figure "Baseline prompt"); the others use the same sentences. For AIME, an
answer in a box counts as well as one on the last line: models trained on mathematics write `\boxed{}` regardless of the
instruction.

A new task is defined here and added to `BUILTIN`; nothing else in the package lists tasks.
"""

from __future__ import annotations

from opd_align.tasks.arithmetic import ARITHMETIC
from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import Choice, Maths, Number, TrueFalse

BOOLQ = Task(
    name="boolq",
    verifier=TrueFalse(),
    user_message=Form(
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

CHOICE_INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the following "
    "format: 'Answer: $LETTER' (without quotes) where LETTER is one of {letters}. Think step by step before answering."
)

MMLU = Task(
    name="mmlu",
    verifier=Choice(),
    user_message=Form(CHOICE_INSTRUCTION),
    source=Source(
        hub="cais/mmlu",
        config="all",
        split="test",
        fields={"question": "question", "answer": "answer", "choices": "choices", "subject": "subject"},
    ),
)

NUMBER_INSTRUCTION = (
    "Solve the following math problem. The last line of your response should be of the following format: "
    "'Answer: $NUMBER' (without quotes) where NUMBER is the final result, without units. Think step by step before "
    "answering."
)

GSM8K = Task(
    name="gsm8k",
    verifier=Number(),
    user_message=Form(NUMBER_INSTRUCTION),
    source=Source(hub="openai/gsm8k", config="main", split="test"),
)

_AIME_FORM = Form(
    "Solve the following math problem, whose answer is an integer from 0 to 999. The last line of your response "
    "should "
    "be of the following format: 'Answer: $ANSWER' (without quotes) where ANSWER is that integer, which may stand in "
    "\\boxed{}. Think step by step before answering."
)
# The column is "problem" on the Hub, and "question" in other copies.
_AIME_FIELDS: dict[str, str | tuple[str, ...]] = {"question": ("problem", "question"), "answer": "answer"}

AIME2024 = Task(
    name="aime2024",
    verifier=Maths(),
    user_message=_AIME_FORM,
    source=Source(hub="HuggingFaceH4/aime_2024", split="train", fields=_AIME_FIELDS),
)
AIME2025 = Task(
    name="aime2025",
    verifier=Maths(),
    user_message=_AIME_FORM,
    source=Source(hub="MathArena/aime_2025", split="train", fields=_AIME_FIELDS),
)

BUILTIN: dict[str, Task] = {task.name: task for task in (BOOLQ, MMLU, AIME2024, AIME2025, GSM8K, ARITHMETIC)}
"""The built-in tasks by name."""
