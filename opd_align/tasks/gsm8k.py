"""GSM8K: word problems for primary school, whose solutions end in `#### N`."""

from __future__ import annotations

from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import Number

NUMBER_INSTRUCTION = (
    "Solve the following math problem. The last line of your response should be of the following format: "
    "'Answer: $NUMBER' (without quotes) where NUMBER is the final result, without units. Think step by step before "
    "answering."
)

GSM8K = Task(
    name="gsm8k",
    verifier=Number(),
    ask=Form(NUMBER_INSTRUCTION),
    source=Source(hub="openai/gsm8k", config="main", split="test"),
)
