"""Tasks: where questions come from, how they are formatted as messages, and which verifier grades the responses.

A loaded question has a unique id, a text, and its answer in the verifier's canonical form, or `None` where the dataset
has none. Files and the Hub use the same mapping of fields, so a local copy of a dataset gives the same questions.
Messages are roles and text; chat templates are applied in `backends.chat`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from opd_align.tasks.rows import Row, file_rows, hub_rows
from opd_align.tasks.verify import Choice, Verifier
from opd_align.types import OpdAlignError, Question, is_valid_text, shortened

Message = dict[str, str]
"""A chat message: `role` and `content`."""

PLAIN_FIELDS: Mapping[str, str | tuple[str, ...]] = {"question": "question", "answer": "answer"}


INVALID_TEXT = "contains characters that are not valid in text (lone surrogates or NUL)"

DEFAULT_GENERATED = 200
"""Number of generated questions when no limit is given."""
MAX_GENERATED = 20_000
"""Largest number of questions that are generated: more would take minutes, and finally there are no new ones."""


@dataclass(frozen=True)
class Source:
    """A dataset and its column names.

    Args:
        hub: Dataset name on the Hub, or a folder that `datasets` can load; `None` for data in files only.
        config: Configuration (subset) of the dataset; `None` for the default.
        split: Split to load by default.
        fields: Maps field names (`question`, `answer`, `choices`, `passage`, ...) to column names, or to several
            column names of which a row has one. Every row needs `question`, and `choices` and `passage` if they are
            mapped; `answer` and others may be missing.
    """

    hub: str | None = None
    config: str | None = None
    split: str = "test"
    fields: Mapping[str, str | tuple[str, ...]] = field(default_factory=lambda: dict(PLAIN_FIELDS))


@dataclass(frozen=True)
class Form:
    """Formats the user message: instruction, then passage, question and choices where present.

    Args:
        instruction: First paragraph of the message. `{letters}` is replaced by the letters of the question's choices.
    """

    instruction: str

    def __call__(self, question: Question) -> str:
        choices = question.fields.get("choices") or ()
        passage = question.fields.get("passage")
        letters = [chr(ord("A") + number) for number in range(len(choices))]
        parts = [self.instruction.replace("{letters}", "".join(letters))]
        parts += [f"Passage: {passage}", f"Question: {question.text}"] if passage else [question.text]
        if choices:
            parts.append("\n".join(f"{letter}) {choice}" for letter, choice in zip(letters, choices, strict=True)))
        return "\n\n".join(parts)


@dataclass(frozen=True)
class Task:
    """A benchmark: its questions, their prompt, and the verifier of the responses.

    Args:
        name: Name of the task, as used in configurations.
        verifier: Grades responses; also usable as a TRL reward function.
        user_message: Function from a question to the user message, usually a `Form`.
        source: Dataset to load questions from; `None` for field names `question` and `answer` in files.
        system: System message; `None` for no system message.
        generate: Function `(seed, n, split)` that generates `n` questions, for a task without a dataset. A larger `n`
            must begin with the same questions.
    """

    name: str
    verifier: Verifier
    user_message: Callable[[Question], str]
    source: Source | None = None
    system: str | None = "You are a helpful assistant."
    generate: Callable[[int, int, str], list[Question]] | None = None

    def messages(self, question: Question) -> list[Message]:
        """The chat messages of a question: the system message, if any, and the user message."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.user_message(question)}]

    def load(
        self,
        file: str | Path | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        seed: int = 0,
    ) -> list[Question]:
        """Loads questions from a file, from the Hub, or generates them.

        Args:
            file: JSON Lines, JSON, CSV or Parquet file; `None` to generate questions, or load them from the Hub.
            split: Split of the dataset; `None` for the task's default.
            limit: Maximum number of questions; `None` for all (200 where questions are generated).
            offset: Number of rows to skip.
            seed: Seed of generated questions.

        Returns:
            Questions whose id is the row's `id`, or task, split and row number where a row has none.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise OpdAlignError(f"offset ({offset}) and limit ({limit}) count rows and cannot be negative")
        if file is None and self.generate is not None:
            last = offset + (DEFAULT_GENERATED if limit is None else limit)
            if last > MAX_GENERATED:
                raise OpdAlignError(
                    f"task {self.name!r} generates at most {MAX_GENERATED:,} questions, but offset and limit request "
                    f"{last:,}"
                )
            return self.generate(seed, last, split or "test")[offset:]
        source = self.source or Source()
        split = split or source.split
        if file is not None:
            rows: Iterable[Row] = file_rows(Path(file))
        elif source.hub is not None:
            rows = hub_rows(source.hub, source.config, split, self.name)
        else:
            raise OpdAlignError(
                f"task {self.name!r} has no dataset on the Hub; name a file: --data questions.jsonl (in Python: "
                "load('questions.jsonl'))"
            )
        wanted = islice(rows, min(offset, sys.maxsize), None if limit is None else min(offset + limit, sys.maxsize))
        questions = list(self._questions(wanted, source, split))
        if not questions and not offset and limit != 0:
            raise OpdAlignError(f"{file or source.hub}: contains no questions")
        return questions

    def _questions(self, rows: Iterable[Row], source: Source, split: str) -> Iterator[Question]:
        seen: dict[str, str] = {}
        for row in rows:
            question = self._question(row, source, f"{self.name}-{split}-{row.number}")
            if question.id in seen:
                raise OpdAlignError(
                    f"{row.location}: id {question.id!r} is already used by {seen[question.id]}; "
                    "ids must be unique, since rollouts are stored by them"
                )
            seen[question.id] = row.location
            yield question

    def _question(self, row: Row, source: Source, default_id: str) -> Question:
        values = {field_name: _pick(row, columns) for field_name, columns in source.fields.items()}
        text = _text(row, source, "question", values.pop("question", None))
        extra = {name: value for name, value in values.items() if name != "answer" and value is not None}
        if "choices" in source.fields:
            extra["choices"] = _choices(row, source, values.get("choices"))
        if "passage" in source.fields:
            extra["passage"] = _text(row, source, "passage", values.get("passage"))
        return Question(
            id=_row_id(row) or default_id,
            text=text,
            answer=self._answer(row, values.get("answer"), extra.get("choices")),
            fields=extra,
        )

    def _answer(self, row: Row, answer: Any, choices: Sequence[str] | None) -> str | None:
        if isinstance(answer, Decimal):
            answer = str(answer)
        if isinstance(answer, float) and isinstance(self.verifier, Choice) and answer.is_integer():
            answer = int(answer)  # an index, in a column of floats
        # In a column of numbers, pandas writes NaN where there is none.
        if answer is None or answer != answer or (isinstance(answer, str) and not answer.strip()):
            return None
        if isinstance(answer, str) and not is_valid_text(answer):
            raise OpdAlignError(f"{row.location}: the answer {shortened(answer)} {INVALID_TEXT}")
        canonical = self.verifier.canonical(answer, choices)
        if canonical is not None:
            return canonical
        if not isinstance(answer, str):
            expected = (
                f"a letter or an index from 0 to {len(choices or ()) - 1}"
                if isinstance(self.verifier, Choice)
                else f"an answer that the verifier of {self.name!r} can read"
            )
            raise OpdAlignError(f"{row.location}: the answer is {shortened(answer)}; expected {expected}")
        # Kept as it is: a study reports it and skips the question, since every verdict would be unknown.
        return answer.strip()


def _pick(row: Row, columns: str | tuple[str, ...]) -> Any:
    names = (columns,) if isinstance(columns, str) else columns
    return next((row.values[name] for name in names if row.values.get(name) is not None), None)


def _row_id(row: Row) -> str:
    """The row's own ID; empty if it has none."""
    value = row.values.get("id")
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise OpdAlignError(f"{row.location}: the id must be text or a number, not {shortened(value)}")
    if isinstance(value, str) and not is_valid_text(value):
        raise OpdAlignError(f"{row.location}: the id {shortened(value)} {INVALID_TEXT}")
    return str(value).strip()


def _column_names(source: Source, field_name: str) -> str:
    columns = source.fields.get(field_name, field_name)
    return " or ".join(repr(name) for name in ((columns,) if isinstance(columns, str) else columns))


def _text(row: Row, source: Source, field_name: str, value: Any) -> str:
    if value is None:
        present = shortened(", ".join(sorted(map(str, row.values))) or "nothing", 300)[1:-1]
        raise OpdAlignError(
            f"{row.location}: no {field_name} (looked for {_column_names(source, field_name)}, the row has {present})"
        )
    if not isinstance(value, str):
        raise OpdAlignError(
            f"{row.location}: the {field_name} must be text, not {type(value).__name__} ({shortened(value)})"
        )
    if not value.strip():
        raise OpdAlignError(f"{row.location}: the {field_name} is empty")
    if not is_valid_text(value):
        raise OpdAlignError(f"{row.location}: the {field_name} {shortened(value)} {INVALID_TEXT}")
    return value.strip()


def _choices(row: Row, source: Source, value: Any) -> tuple[str, ...]:
    if value is None:
        raise OpdAlignError(f"{row.location}: no choices (looked for {_column_names(source, 'choices')})")
    if isinstance(value, str):
        value = _json_list(value)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise OpdAlignError(
            f"{row.location}: the choices must be a list, not {type(value).__name__} ({shortened(value)})"
        )
    if not 2 <= len(value) <= 26:
        raise OpdAlignError(f"{row.location}: {len(value)} choices; expected from 2 to 26, one letter each")
    for choice in value:
        if not isinstance(choice, str | int | float | Decimal) or choice != choice or not str(choice).strip():
            raise OpdAlignError(f"{row.location}: a choice is {shortened(choice)}; expected text or a number")
        if not is_valid_text(str(choice)):
            raise OpdAlignError(f"{row.location}: the choice {shortened(choice)} {INVALID_TEXT}")
    return tuple(str(choice).strip() for choice in value)


def _json_list(text: str) -> Any:
    """The list that a text contains as JSON, which is how a CSV file stores choices; otherwise the text itself."""
    try:
        return json.loads(text) if text.lstrip().startswith("[") else text
    except (ValueError, RecursionError):
        return text
