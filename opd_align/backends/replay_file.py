"""The file format of recorded rollouts: JSON lines, checked line by line before anything is computed.

Three kinds of lines: a rollout (`question`, `tokens`, `outcome`), a branch (`question`, `prefix`, `token`, `p`,
`outcomes`) and, without a `question`, settings that hold for the whole file. docs/replay.md describes every field. The
first problem of a file is raised as an error that names the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from opd_align.backends.recording import RecordedBranch, RecordedQuestion, RecordedRollout, Recording
from opd_align.types import REWARD, Floats, OpdAlignError, Outcome, Question, Tokens, is_valid_text, shortened

MAX_TOKEN = 2**31 - 1
"""Largest token id in a file; `replay` uses one id above it."""

SETTINGS_FIELDS = ("tokenizer", "end_tokens", "temperature")
ROLLOUT_FIELDS = (
    "question", "tokens", "outcome", "truncated", "launch", "log_probs", "teacher_log_probs", "prompt", "text",
    "answer", "key", "tokenizer",
)  # fmt: skip
BRANCH_FIELDS = ("question", "prefix", "token", "p", "teacher_p", "outcomes", "tokenizer")


def read_recording(file: str | Path) -> Recording:
    """Reads and checks a file; raises `OpdAlignError` with the line number of the first problem."""
    return _Reader(Path(file)).read()


class _LineError(Exception):
    """A problem with the current line."""


@dataclass
class _QuestionLines:
    """The lines of one question so far."""

    first: int
    prompt: str | tuple[int, ...] | None = None
    prompt_line: int = 0
    text: str = ""
    answer: str | None = None
    rollouts: list[RecordedRollout] = field(default_factory=list)
    branches: dict[tuple[bytes, int], RecordedBranch] = field(default_factory=dict)

    def as_question(self, name: str) -> Question:
        """The question; a prompt that was recorded as text is shown where there is no other text."""
        return Question(name, self.text or (self.prompt if isinstance(self.prompt, str) else ""), self.answer)


class _Reader:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[str, _QuestionLines] = {}
        self.teachers: dict[str, None] = {}
        self.tokenizer: tuple[str, int] | None = None
        self.settings: dict[str, Any] = {}
        self.line_of_key: dict[int, int] = {}

    def read(self) -> Recording:
        digest = blake2b(digest_size=16)
        number = 0
        try:
            with open(self.file, "rb") as lines:
                for number, raw in enumerate(lines, start=1):
                    digest.update(raw)
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if text:
                        self.add(number, json.loads(text, object_pairs_hook=_unique_fields))
        except OSError as error:
            raise OpdAlignError(f"{self.file}: cannot be read: {error.strerror or error}") from error
        except _LineError as error:
            raise OpdAlignError(f"{self.file}, line {number}: {error}") from None
        except UnicodeDecodeError as error:
            raise OpdAlignError(f"{self.file}, line {number}: not UTF-8 text") from error
        except RecursionError:
            raise OpdAlignError(f"{self.file}, line {number}: lists or objects are nested too deeply") from None
        except json.JSONDecodeError as error:
            raise OpdAlignError(
                f"{self.file}, line {number}, column {error.colno}: not JSON: {error.msg}; every line must be a "
                "JSON object"
            ) from error
        except ValueError as error:  # an integer of more digits than Python converts
            raise OpdAlignError(f"{self.file}, line {number}: not JSON: a number is too long") from error
        if not self.lines:
            raise OpdAlignError(f"{self.file}: there are no rollouts; docs/replay.md describes the format")
        for name, entry in self.lines.items():
            if not any(rollout.launch == 0 for rollout in entry.rollouts):
                raise OpdAlignError(
                    f"{self.file}, line {entry.first}: question {shortened(name)} has no natural rollout (tokens, "
                    "without launch)"
                )
        recording = Recording(
            self.file,
            digest.hexdigest(),
            {
                name: RecordedQuestion(
                    entry.as_question(name), entry.prompt, entry.rollouts, [*entry.branches.values()]
                )
                for name, entry in self.lines.items()
            },
            [*self.teachers],
            self.tokenizer and self.tokenizer[0],
            self.settings.get("end_tokens", ()),
            self.settings.get("temperature"),
        )
        recording.check_tokens(recording.end_tokens)
        return recording

    def add(self, number: int, line: Any) -> None:
        if not isinstance(line, dict):
            raise _LineError(f"expected an object with named fields, found {shortened(line)}")
        self._check_tokenizer(number, line.get("tokenizer"))
        if "question" not in line:
            self._add_settings(line)
            return
        name = line["question"]
        if not isinstance(name, str) or not name or not is_valid_text(name):
            raise _LineError(f"question must be the question's id as text, not {shortened(name)}")
        if "tokens" in line:
            _check_names(line, ROLLOUT_FIELDS, ("outcome",))
            entry = self.lines.setdefault(name, _QuestionLines(number))
            self._add_question(entry, number, line)
            entry.rollouts.append(self._rollout(number, line))
        elif "token" in line or "prefix" in line:
            _check_names(line, BRANCH_FIELDS, ("prefix", "token", "p"))
            entry = self.lines.setdefault(name, _QuestionLines(number))
            branch = self._branch(number, line)
            same = entry.branches.setdefault((branch.prefix.tobytes(), branch.token), branch)
            if same is not branch:
                raise _LineError(f"the same question, prefix and token are on line {same.line}; join their outcomes")
        else:
            _check_names(line, (*ROLLOUT_FIELDS, *BRANCH_FIELDS), ())
            raise _LineError("neither tokens (a rollout) nor prefix and token (a branch) is given")

    def _check_tokenizer(self, number: int, name: Any) -> None:
        if name is None:
            return
        if not isinstance(name, str) or not name:
            raise _LineError(f"tokenizer must be a name, not {shortened(name)}")
        self.tokenizer = self.tokenizer or (name, number)
        if name != self.tokenizer[0]:
            raise _LineError(
                f"tokenizer is {shortened(name)}, but {shortened(self.tokenizer[0])} on line {self.tokenizer[1]}; "
                "write one file per tokenizer"
            )

    def _add_settings(self, line: dict[str, Any]) -> None:
        if self.lines or self.settings:
            raise _LineError("question is missing; only the first line may have settings instead")
        if not line.keys() & set(SETTINGS_FIELDS):
            raise _LineError(f"question is missing (or, in the first line, one of {', '.join(SETTINGS_FIELDS)})")
        _check_names(line, SETTINGS_FIELDS, ())
        if line.get("end_tokens") is not None:
            self.settings["end_tokens"] = tuple(_tokens("end_tokens", line["end_tokens"]).tolist())
        temperature = line.get("temperature")
        if temperature is not None:
            if type(temperature) not in (int, float) or not isfinite(temperature) or temperature <= 0:
                raise _LineError(f"temperature must be a number above 0, not {shortened(temperature)}")
            self.settings["temperature"] = float(temperature)
        self.settings.setdefault("end_tokens", ())

    def _add_question(self, entry: _QuestionLines, number: int, line: dict[str, Any]) -> None:
        prompt = line.get("prompt")
        if prompt is not None:
            if not (isinstance(prompt, str) and is_valid_text(prompt)):
                prompt = tuple(_tokens("prompt", prompt).tolist())
            if not prompt:
                raise _LineError("prompt is empty")
            if entry.prompt is not None and prompt != entry.prompt:
                raise _LineError(
                    f"prompt differs from the one of the same question on line {entry.prompt_line}; give every prompt "
                    "its own question id"
                )
            entry.prompt, entry.prompt_line = prompt, entry.prompt_line or number
        for name in ("text", "answer"):
            value = line.get(name)
            if value is not None:
                if not isinstance(value, str) or not is_valid_text(value):
                    raise _LineError(f"{name} must be text, not {shortened(value)}")
                setattr(entry, name, getattr(entry, name) or value)

    def _rollout(self, number: int, line: dict[str, Any]) -> RecordedRollout:
        tokens = _tokens("tokens", line["tokens"])
        if not len(tokens):
            raise _LineError("tokens is empty")
        truncated, launch, key = line.get("truncated"), line.get("launch"), line.get("key")
        launch = 0 if launch is None else launch
        if truncated not in (None, True, False) or type(truncated) is float:
            raise _LineError(f"truncated must be true or false, not {shortened(truncated)}")
        if type(launch) is not int or not 0 <= launch < len(tokens):
            raise _LineError(
                f"launch must be a whole number from 0 to {len(tokens) - 1} (at least one token is sampled), not "
                f"{shortened(launch)}"
            )
        if key is not None:
            if type(key) is not int or not 0 <= key < 2**64:
                raise _LineError(f"key must be a whole number from 0 to 2^64 - 1, not {shortened(key)}")
            if self.line_of_key.setdefault(key, number) != number:
                raise _LineError(f"key {key} is also on line {self.line_of_key[key]}")
        log_probs = line.get("log_probs")
        return RecordedRollout(
            number,
            tokens,
            _outcome("outcome", line["outcome"]),
            bool(truncated),
            launch,
            None if log_probs is None else _log_probs("log_probs", log_probs, len(tokens), zero=False),
            {
                name: _log_probs(f"teacher_log_probs of {shortened(name)}", values, len(tokens), zero=True)
                for name, values in self._by_teacher("teacher_log_probs", line).items()
            },
            key,
        )

    def _branch(self, number: int, line: dict[str, Any]) -> RecordedBranch:
        prefix, token = _tokens("prefix", line["prefix"]), line["token"]
        (token,) = _tokens("token", [token]).tolist()
        p = line["p"]
        if type(p) not in (int, float) or not 0 < p <= 1:
            raise _LineError(f"p must be a probability in (0, 1], not {shortened(p)}")
        teacher_p = self._by_teacher("teacher_p", line)
        for name, t in teacher_p.items():
            if type(t) not in (int, float) or not 0 <= t <= 1:
                raise _LineError(f"teacher_p of {shortened(name)} must be a probability in [0, 1], not {shortened(t)}")
        outcomes = line.get("outcomes")
        outcomes = [] if outcomes is None else outcomes
        if not isinstance(outcomes, list):
            raise _LineError(f"outcomes must be a list, not {shortened(outcomes)}")
        outcome_R = np.array([_outcome("outcomes", outcome) for outcome in outcomes], np.int8)
        return RecordedBranch(number, prefix, token, float(p), teacher_p, outcome_R)

    def _by_teacher(self, name: str, line: dict[str, Any]) -> dict[str, Any]:
        values = line.get(name)
        if values is None:
            return {}
        if not isinstance(values, dict):
            raise _LineError(f"{name} must be an object with the teachers' names, not {shortened(values)}")
        for teacher in values:
            if not teacher or not is_valid_text(teacher) or teacher == REWARD:
                raise _LineError(f"{name}: {shortened(teacher)} cannot be the name of a teacher")
            self.teachers.setdefault(teacher)
        return values


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _LineError(f"the field {shortened(repeated)} appears more than once")
    return values


def _check_names(line: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    """Fields of other tools are ignored, but not misspelled ones."""
    for name in line:
        near = get_close_matches(name, known, 1, 0.8) if name not in known else []
        if near and near[0] not in line:
            raise _LineError(f"unknown field {shortened(name)}; did you mean {near[0]!r}?")
    missing = [name for name in needed if name not in line]
    if missing:
        raise _LineError(f"{missing[0]} is missing")


def _tokens(name: str, values: Any) -> Tokens:
    if not isinstance(values, list):
        raise _LineError(f"{name} must be a list of token ids, not {shortened(values)}")
    if not set(map(type, values)) <= {int}:
        wrong = next(value for value in values if type(value) is not int)
        raise _LineError(f"{name}: {shortened(wrong)} is not a token id")
    if values and not 0 <= min(values) <= max(values) <= MAX_TOKEN:
        wrong = min(values) if min(values) < 0 else max(values)
        raise _LineError(f"{name}: {shortened(wrong)} is not a token id; ids range from 0 to {MAX_TOKEN}")
    return np.array(values, np.uint32)


def _log_probs(name: str, values: Any, length: int, *, zero: bool) -> Floats:
    """Log-probabilities, one per token; `zero` allows -Infinity: a teacher may exclude a token, but the student not."""
    if not isinstance(values, list) or len(values) != length:
        found = len(values) if isinstance(values, list) else shortened(values)
        raise _LineError(f"{name} must have one log-probability for each of the {length} tokens, not {found}")
    if not set(map(type, values)) <= {int, float}:
        wrong = next(value for value in values if type(value) not in (int, float))
        raise _LineError(f"{name}: {shortened(wrong)} is not a number")
    try:
        array = np.array(values, np.float64)
    except OverflowError:
        raise _LineError(f"{name}: a number is too large for a log-probability") from None
    # Engines that round may report a little more than probability 1.
    valid = (array <= 1e-3) & (np.isfinite(array) | (array == -np.inf) & zero)
    if not valid.all():
        wrong = float(array[int((~valid).argmax())])
        raise _LineError(f"{name}: {wrong:g} is not a log-probability (at most 0)")
    return np.minimum(array, 0.0)


def _outcome(name: str, value: Any) -> int:
    if value is None:
        return int(Outcome.UNKNOWN)
    # A reward of 0.5 or -1 is not an outcome: which rewards are successes is for the user to say.
    if isinstance(value, bool | int | float) and value in (0, 1):
        return int(value)
    raise _LineError(f"{name}: {shortened(value)} is not an outcome; use 1 or true, 0 or false, or null for unknown")
