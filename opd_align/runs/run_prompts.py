"""The student's prompts of a run as chat messages, and the tokenizer that they and the rollouts were made with.

A study saves them next to its result (`prompts.json`), so that rollouts can be turned back into conversations without
the task and its data. Not part of the result: a run without the file is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from opd_align.runs.filesystem import PathLike, as_path, error_reason, read_file, write_atomic
from opd_align.types import OpdAlignError

FILE = "prompts.json"


@dataclass(frozen=True)
class RunPrompts:
    """What the student was asked.

    Args:
        tokenizer: Model or folder whose tokenizer was used.
        messages: Question ID → chat messages (`role` and `content`).
    """

    tokenizer: str
    messages: Mapping[str, Sequence[Mapping[str, str]]]

    def save(self, folder: PathLike) -> None:
        """Writes the file into a run directory."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"
        write_atomic(as_path(folder) / FILE, text.encode(errors="backslashreplace"))

    @staticmethod
    def load(folder: PathLike) -> RunPrompts | None:
        """What a run directory says; `None` if it has no such file."""
        file = as_path(folder) / FILE
        try:
            data = read_file(file)
            if data is None:
                return None
            content = json.loads(data)
            messages = {
                str(question): [{"role": str(each["role"]), "content": str(each["content"])} for each in listed]
                for question, listed in content["messages"].items()
            }
            return RunPrompts(str(content["tokenizer"]), messages)
        except OSError as error:
            raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise OpdAlignError(
                f"{str(file)!r} is damaged ({type(error).__name__}); delete it and run the same opd-align analyze "
                "command again, which samples nothing"
            ) from error

    @staticmethod
    def merged(parts: Sequence[RunPrompts | None]) -> RunPrompts | None:
        """The prompts of several runs together; `None` if a run has none, or another tokenizer."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.tokenizer for part in known}) != 1:
            return None
        return RunPrompts(known[0].tokenizer, {name: each for part in known for name, each in part.messages.items()})
