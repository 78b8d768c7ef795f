"""Custom tasks: your own data, described by its column names and the kind of answer.

For example SVAMP, whose stories are in a separate column:

    svamp = custom_task("svamp", kind="number", passage="passage")
    questions = svamp.load("svamp.jsonl")
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from opd_align.tasks.builtin import BOOLQ, CHOICE_INSTRUCTION, NUMBER_INSTRUCTION
from opd_align.tasks.task import Form, Source, Task
from opd_align.tasks.verify import Choice, Maths, Number, TrueFalse, Verifier
from opd_align.types import OpdAlignError

Kind = Literal["choice", "true_false", "number", "maths"]

_KINDS: dict[str, tuple[Verifier, str]] = {
    "choice": (Choice(), CHOICE_INSTRUCTION),
    "true_false": (
        TrueFalse(),
        "Answer the following true or false question. The last line of your response should be of the following "
        "format: 'Answer: $ANSWER' (without quotes) where ANSWER is True or False. Think step by step before "
        "answering.",
    ),
    "number": (Number(), NUMBER_INSTRUCTION),
    "maths": (
        Maths(),
        "Solve the following math problem. The last line of your response should be of the following format: "
        "'Answer: $ANSWER' (without quotes) where ANSWER is the final result, which may stand in \\boxed{}. Think "
        "step "
        "by step before answering.",
    ),
}


def custom_task(
    name: str,
    *,
    kind: Kind,
    question: str = "question",
    answer: str = "answer",
    choices: str | None = None,
    passage: str | None = None,
    instruction: str | None = None,
    hub: str | None = None,
    config: str | None = None,
    split: str = "test",
) -> Task:
    """A task for your own data.

    Args:
        name: Name of the task.
        kind: Kind of answer: "choice", "true_false", "number" or "maths".
        question: Column with the question.
        answer: Column with the gold answer.
        choices: Column with the list of choices, for kind "choice"; `None` means "choices".
        passage: Column with a passage to show before the question; `None` if there is none.
        instruction: Replaces the default instruction of the kind; `{letters}` becomes the letters of the choices.
        hub: Dataset name on the Hub; `None` for data in files.
        config: Configuration (subset) of the dataset.
        split: Split to load by default.
    """
    if kind not in _KINDS:
        near = get_close_matches(kind, _KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OpdAlignError(f"task {name!r}: there is no kind {kind!r}, only {', '.join(_KINDS)}{hint}")
    if choices is not None and kind != "choice":
        raise OpdAlignError(f"task {name!r}: choices ({choices!r}) are only used with the kind 'choice', not {kind!r}")
    verifier, default = _KINDS[kind]
    if passage is not None and kind == "true_false":
        default = BOOLQ.user_message.instruction if isinstance(BOOLQ.user_message, Form) else default
    fields: dict[str, str | tuple[str, ...]] = {"question": question, "answer": answer}
    if kind == "choice":
        fields["choices"] = choices or "choices"
    if passage is not None:
        fields["passage"] = passage
    return Task(
        name=name,
        verifier=verifier,
        user_message=Form(default if instruction is None else instruction),
        source=Source(hub=hub, config=config, split=split, fields=fields),
    )
