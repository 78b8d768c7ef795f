"""A task: where its questions come from, how they are put to a model, and who judges the replies.

A question that was loaded has a unique id, a text, and its answer in the verifier's canonical form, or `None` where
the data set gives none. Files and the Hub go through the same mapping of fields, so a local copy of a data set gives
the same questions. This module knows no tokenizer: messages are roles and words, and a chat template is applied
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from opd_align.tasks.rows import Row, file_rows, hub_rows
from opd_align.tasks.verify import Choice, Verifier
from opd_align.types import OpdAlignError, Question

Message = dict[str, str]
"""Role and content, as chat templates take them."""

PLAIN_FIELDS: Mapping[str, str | tuple[str, ...]] = {"question": "question", "answer": "answer"}


MADE = 200
"""Questions that are made up when no limit is given."""


@dataclass(frozen=True)
class Source:
    """Where the Hub has a data set, and what its columns are called.

    `fields` maps our names to theirs, or to several of which a row has one. `question` is needed in every row, and
    so are `choices` and `passage` where they are mapped; `answer` and all others may be missing. `hub` is `None` for
    data that only exists in files.
    """

    hub: str | None = None
    config: str | None = None
    split: str = "test"
    fields: Mapping[str, str | tuple[str, ...]] = field(default_factory=lambda: dict(PLAIN_FIELDS))


@dataclass(frozen=True)
class Form:
    """The user message: an instruction, then the passage, the question and the choices, each where there is one.

    `{letters}` in the instruction becomes the letters of the question's choices.
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
    """Questions, the form they are asked in, and the verifier of the replies.

    `made` makes questions up from a seed, a number and a split, for a task that has no data set; asked for more, it
    gives the same ones first.
    """

    name: str
    verifier: Verifier
    ask: Callable[[Question], str]
    source: Source | None = None
    system: str | None = "You are a helpful assistant."
    made: Callable[[int, int, str], list[Question]] | None = None

    def messages(self, question: Question) -> list[Message]:
        """The conversation that puts the question: the system message, if any, and the user's."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.ask(question)}]

    def load(
        self,
        file: str | Path | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        seed: int = 0,
    ) -> list[Question]:
        """Questions from a file (JSON lines, JSON, CSV, Parquet) or, without one, from the Hub, or made from the seed.

        `offset` rows are passed over and at most `limit` are taken. Ids are the rows' own, else numbered by row.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise OpdAlignError(f"offset ({offset}) and limit ({limit}) count rows and cannot be negative")
        if file is None and self.made is not None:
            return self.made(seed, offset + (MADE if limit is None else limit), split or "test")[offset:]
        source = self.source or Source()
        split = split or source.split
        if file is not None:
            rows: Iterable[Row] = file_rows(Path(file))
        elif source.hub is not None:
            rows = hub_rows(source.hub, source.config, split, self.name)
        else:
            raise OpdAlignError(f"task {self.name!r} has no data set on the Hub; give load() a file")
        wanted = islice(rows, offset, None if limit is None else offset + limit)
        return list(self._questions(wanted, source, split))

    def _questions(self, rows: Iterable[Row], source: Source, split: str) -> Iterator[Question]:
        seen: dict[str, str] = {}
        for row in rows:
            question = self._question(row, source, f"{self.name}-{split}-{row.number}")
            if question.id in seen:
                raise OpdAlignError(
                    f"{row.place}: id {question.id!r} was already taken by {seen[question.id]}; "
                    "ids must be unique, since rollouts are filed under them"
                )
            seen[question.id] = row.place
            yield question

    def _question(self, row: Row, source: Source, numbered: str) -> Question:
        values = {ours: _pick(row, theirs) for ours, theirs in source.fields.items()}
        text = _text(row, source, "question", values.pop("question", None))
        extra = {name: value for name, value in values.items() if name != "answer" and value is not None}
        if "choices" in source.fields:
            extra["choices"] = _choices(row, source, values.get("choices"))
        if "passage" in source.fields:
            extra["passage"] = _text(row, source, "passage", values.get("passage"))
        own = row.values.get("id")
        return Question(
            id=numbered if own is None or own == "" else str(own),
            text=text,
            answer=self._answer(row, values.get("answer"), extra.get("choices")),
            fields=extra,
        )

    def _answer(self, row: Row, answer: Any, choices: Sequence[str] | None) -> str | None:
        if answer is None or (isinstance(answer, str) and not answer.strip()):
            return None
        canonical = self.verifier.canonical(answer, choices)
        if canonical is not None:
            return canonical
        if not isinstance(answer, str):
            expected = (
                f"a letter or an index from 0 to {len(choices or ()) - 1}"
                if isinstance(self.verifier, Choice)
                else f"an answer that the verifier {self.verifier.fingerprint!r} can read"
            )
            raise OpdAlignError(f"{row.place}: the answer is {answer!r}; expected {expected}")
        # Kept as it stands: the verifier will say "unknown" to every reply, and those are counted.
        return answer.strip()


def _pick(row: Row, theirs: str | tuple[str, ...]) -> Any:
    names = (theirs,) if isinstance(theirs, str) else theirs
    return next((row.values[name] for name in names if row.values.get(name) is not None), None)


def _names(source: Source, ours: str) -> str:
    theirs = source.fields.get(ours, ours)
    return " or ".join(repr(name) for name in ((theirs,) if isinstance(theirs, str) else theirs))


def _text(row: Row, source: Source, ours: str, value: Any) -> str:
    if value is None:
        has = ", ".join(sorted(map(str, row.values))) or "nothing"
        raise OpdAlignError(f"{row.place}: no {ours} (looked for {_names(source, ours)}, the row has {has})")
    if not isinstance(value, str):
        raise OpdAlignError(f"{row.place}: the {ours} must be text, not {type(value).__name__} ({value!r})")
    if not value.strip():
        raise OpdAlignError(f"{row.place}: the {ours} is empty")
    return value.strip()


def _choices(row: Row, source: Source, value: Any) -> tuple[str, ...]:
    if value is None:
        raise OpdAlignError(f"{row.place}: no choices (looked for {_names(source, 'choices')})")
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OpdAlignError(f"{row.place}: the choices must be a list, not {type(value).__name__} ({value!r})")
    if not 2 <= len(value) <= 26:
        raise OpdAlignError(f"{row.place}: {len(value)} choices; expected from 2 to 26, one letter each")
    return tuple(str(choice).strip() for choice in value)
