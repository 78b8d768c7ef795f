"""Tasks: from a benchmark's question to a user message, and from a model's text to a verdict.

To add a built-in task, edit `builtin.py` only: everything else, the command line included, reads its table `BUILTIN`.
No torch and no tokenizer here; libraries for datasets and mathematics are imported when first needed.
"""

from __future__ import annotations

from difflib import get_close_matches

from opd_align.tasks.builtin import BUILTIN as TASKS
from opd_align.tasks.custom import custom_task
from opd_align.tasks.grading import TextGrader
from opd_align.tasks.task import Form, Message, Source, Task
from opd_align.tasks.verify import Choice, Maths, Number, TrueFalse, Verdict, Verifier
from opd_align.types import OpdAlignError

__all__ = [
    "TASKS",
    "Choice",
    "Form",
    "Maths",
    "Message",
    "Number",
    "Source",
    "Task",
    "TextGrader",
    "TrueFalse",
    "Verdict",
    "Verifier",
    "custom_task",
    "task",
]


def task(name: str) -> Task:
    """The built-in task with this name."""
    if name in TASKS:
        return TASKS[name]
    near = get_close_matches(name.lower().replace("_", "").replace("-", ""), TASKS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "for your own data, use custom_task"
    raise OpdAlignError(f"there is no task {name!r}, only {', '.join(TASKS)}; {hint}")
