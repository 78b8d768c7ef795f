"""Records, protocols and errors used by every other module.

Everything here is a plain value. Array names end with their axis: `_R` rollouts, `_T` positions of one completion,
`_C` children of all positions of a path (concatenated), `_K` children of one node. No models, no files, no statistics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from reprlib import Repr
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIVERGENCES = ("kl", "js", "l2", "cosine")
"""Full-vocabulary comparisons of student and teacher at a node; `cosine` is a similarity, the others are distances."""

OVERLAP_TOP_K = 16
"""Number of most likely tokens of student and teacher whose overlap is measured, or the whole vocabulary if smaller."""

REWARD = "reward"
"""Value of the teacher column for objectives that need no teacher (Dr. GRPO, GRPO)."""


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, changes of the writing direction, and halves of surrogate pairs."""


def printable(text: str, *, keep: str = "") -> str:
    """Text from outside (names, questions, responses of servers) with unprintable characters replaced.

    Args:
        text: Any text. An escape sequence in it could otherwise control the terminal that shows it.
        keep: Unprintable characters to keep, such as "\\n".
    """
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in keep else "\N{REPLACEMENT CHARACTER}", text)


def counted(n: int, noun: str) -> str:
    """A number and what it counts: `1 question`, `1,200 questions`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


class OpdAlignError(Exception):
    """An error the user can fix; the message says what was wrong, what was expected and what to do."""


def shortened(value: object, limit: int = 80) -> str:
    """A value as it is shown in an error message: at most `limit` characters, whatever it contains."""
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = limit
    try:
        text = short.repr(value)
    except ValueError:  # an integer of more digits than Python converts
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def is_valid_text(text: str) -> bool:
    """Whether a text can be written to a file and tokenized: no lone surrogates, no NUL characters."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


class Outcome(IntEnum):
    """The verifier's result for a completion. Unknown is not incorrect."""

    UNKNOWN = -1
    INCORRECT = 0
    CORRECT = 1


class Finish(IntEnum):
    """Why a completion ended."""

    STOPPED = 0
    TRUNCATED = 1
    FAILED = 2


@dataclass(frozen=True)
class Question:
    """One question to solve.

    Args:
        id: Unique identifier.
        text: The question as the student reads it, before the chat template.
        answer: Reference answer. `None` if the verifier does not need one.
        fields: Further columns that the task or the verifier needs.
    """

    id: str
    text: str = ""
    answer: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A rollout that could not be generated. Failures are counted, never silently dropped.

    Args:
        key: Content key of the rollout.
        reason: Why it could not be generated.
    """

    key: int
    reason: str


@dataclass(frozen=True)
class Rollouts:
    """A batch of completions of one question: row r is `tokens[offsets[r]:offsets[r + 1]]`.

    A completion that stopped includes its end-of-sequence token; a truncated one has none.

    Args:
        tokens: Token ids of all completions, concatenated.
        offsets: Start of each row in `tokens`, plus the total length: one entry more than there are rows.
        launch_R: Number of leading tokens that were forced. Row r is a sample from the student only from that depth on.
        outcome_R: `Outcome` of each row.
        finish_R: `Finish` of each row.
        key_R: Content key of each row. The same key means the same rollout, wherever it was generated.
        failures: Rollouts that could not be generated; they have no rows.
    """

    tokens: Tokens
    offsets: Ints
    launch_R: Ints
    outcome_R: NDArray[np.int8]
    finish_R: NDArray[np.uint8]
    key_R: NDArray[np.uint64]
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.offsets) - 1
        for name in ("launch_R", "outcome_R", "finish_R", "key_R"):
            if len(getattr(self, name)) != rows:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, offsets have {rows}")
        if rows < 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise ValueError("offsets must start at 0 and end at the number of tokens")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def length_R(self) -> Ints:
        return np.diff(self.offsets)

    def completion(self, row: int) -> Tokens:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: NDArray[Any]) -> Rollouts:
        """The given rows (indices or a mask), in that order, without the failures."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        length_R = self.length_R[rows]
        offsets = np.concatenate([[0], np.cumsum(length_R)]).astype(np.int64)
        source = np.repeat(self.offsets[:-1][rows] - offsets[:-1], length_R) + np.arange(offsets[-1])
        return Rollouts(
            self.tokens[source],
            offsets,
            self.launch_R[rows],
            self.outcome_R[rows],
            self.finish_R[rows],
            self.key_R[rows],
        )

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """All rows of all parts, in order."""
        if not parts:
            return Rollouts.of([])
        shifts = np.cumsum([0] + [len(part.tokens) for part in parts])
        offsets = [part.offsets[:-1] + shift for part, shift in zip(parts, shifts[:-1], strict=True)]
        return Rollouts(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([*offsets, shifts[-1:]]).astype(np.int64),
            np.concatenate([part.launch_R for part in parts]),
            np.concatenate([part.outcome_R for part in parts]),
            np.concatenate([part.finish_R for part in parts]),
            np.concatenate([part.key_R for part in parts]),
            tuple(failure for part in parts for failure in part.failures),
        )

    @staticmethod
    def of(
        completions: Sequence[Sequence[int] | Tokens],
        *,
        outcome: Sequence[int] = (),
        launch: Sequence[int] = (),
        key: Sequence[int] = (),
        truncated: Sequence[bool] = (),
    ) -> Rollouts:
        """A batch from Python lists, for tests and small data. Keys default to 0, 1, 2, ..."""
        rows = len(completions)
        lengths = [len(completion) for completion in completions]
        flat = [np.asarray(completion, np.uint32) for completion in completions]
        return Rollouts(
            np.concatenate(flat) if flat else np.empty(0, np.uint32),
            np.cumsum([0, *lengths]).astype(np.int64),
            np.asarray(launch if len(launch) else [0] * rows, np.int64),
            np.asarray(outcome if len(outcome) else [Outcome.UNKNOWN] * rows, np.int8),
            np.asarray(truncated if len(truncated) else [False] * rows).astype(np.uint8),
            np.asarray(key if len(key) else range(rows), np.uint64),
        )


@dataclass(frozen=True)
class SampleRequest:
    """A request for `n` continuations of a prefix.

    Args:
        question: The question to answer.
        prefix: Completion tokens to continue, after the prompt. May be empty.
        n: Number of continuations.
        first: Index of the first continuation. The same index gives the same rollout; a larger one gives new samples.
    """

    question: Question
    prefix: Tokens
    n: int
    first: int = 0

    def keys(self, fingerprint: str, prompt: Sequence[int] = ()) -> NDArray[np.uint64]:
        """Content keys of the requested rollouts: a hash of sampler fingerprint, question, prompt, prefix and index."""
        digest = blake2b(digest_size=8)
        digest.update(f"{fingerprint}\0{self.question.id}\0".encode())
        if prompt:  # exact worlds have no prompt
            digest.update(np.asarray([len(prompt), *prompt], dtype=">u4").tobytes())
        digest.update(np.ascontiguousarray(self.prefix, dtype=">u4").tobytes())
        base = int.from_bytes(digest.digest(), "little")
        return mix64(np.uint64(base) + np.arange(self.first, self.first + self.n, dtype=np.uint64))


@dataclass(frozen=True)
class TeacherScores:
    """One teacher along one path: log-probabilities of the kept tokens, and full-vocabulary comparisons.

    Args:
        log_t_C: Log-probability of each kept child.
        entropy_T: Entropy of the teacher's distribution at each node, in nats.
        kl_T: KL(student ‖ teacher) at each node, in nats.
        js_T: Jensen-Shannon divergence at each node, in nats.
        l2_T: L2 distance of the two probability vectors at each node.
        cosine_T: Cosine similarity of the two probability vectors at each node.
        overlap_T: Share of the student's `OVERLAP_TOP_K` most likely tokens that are also among the teacher's.
        overlap_advantage_T: Mean of `−t (log t − log p)` over the shared tokens, in nats; NaN if there are none.
    """

    log_t_C: Floats
    entropy_T: Floats
    kl_T: Floats
    js_T: Floats
    l2_T: Floats
    cosine_T: Floats
    overlap_T: Floats
    overlap_advantage_T: Floats


@dataclass(frozen=True)
class PathScores:
    """Student and teacher log-probabilities at every depth of one completion.

    The node at depth m is the prefix of m tokens. Its kept children are `token_C[offsets[m]:offsets[m + 1]]`,
    ascending; the completion's own next token is always among them. Log-probabilities are normalized over the full
    vocabulary and include the sampling settings (temperature, top_p, top_k).

    Args:
        completion_T: Tokens of the completion.
        offsets: First child of each node, plus the number of children.
        token_C: Token of each kept child.
        log_p_C: Student log-probability of each kept child.
        entropy_T: Entropy of the student's distribution at each node, in nats.
        teachers: Scores of each teacher, by name.
    """

    completion_T: Tokens
    offsets: Ints
    token_C: Tokens
    log_p_C: Floats
    entropy_T: Floats
    teachers: Mapping[str, TeacherScores]

    def __len__(self) -> int:
        return len(self.completion_T)

    @property
    def depth_C(self) -> Ints:
        """Depth of the node that each child belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def on_path_C(self) -> NDArray[np.bool_]:
        """Whether each child is the completion's own next token."""
        on_path_C: NDArray[np.bool_] = self.token_C == np.repeat(self.completion_T, np.diff(self.offsets))
        return on_path_C

    def above(self, probability: float) -> NDArray[np.bool_]:
        """Whether the student or any teacher gives each child more than `probability`."""
        above_C: NDArray[np.bool_] = self.log_p_C > np.log(probability)
        for teacher in self.teachers.values():
            above_C |= teacher.log_t_C > np.log(probability)
        return above_C

    def with_shared_prefix(self, other: PathScores, nodes: int) -> PathScores:
        """The same path with the scores of its first `nodes` nodes taken from another path that shares them."""
        other_children, own_children = int(other.offsets[nodes]), int(self.offsets[nodes])

        def joined(head: NDArray[Any], tail: NDArray[Any], axis: str) -> NDArray[Any]:
            stop, start = (other_children, own_children) if axis == "C" else (nodes, nodes)
            return np.concatenate([head[:stop], tail[start:]])

        teachers = {
            name: TeacherScores(
                **{
                    column: joined(getattr(other.teachers[name], column), getattr(scores, column), column[-1])
                    for column in TeacherScores.__dataclass_fields__
                }
            )
            for name, scores in self.teachers.items()
        }
        return PathScores(
            self.completion_T,
            np.concatenate([other.offsets[:nodes], self.offsets[nodes:] - own_children + other_children]),
            joined(other.token_C, self.token_C, "C"),
            joined(other.log_p_C, self.log_p_C, "C"),
            joined(other.entropy_T, self.entropy_T, "T"),
            teachers,
        )


@dataclass(frozen=True)
class TopLogProbs:
    """The most likely next tokens at each position of a completion, as returned by a server; shape (positions, k).

    A row with fewer than k tokens is padded with its first token.

    Args:
        token_TK: Token ids.
        log_t_TK: Their log-probabilities.
    """

    token_TK: Ints
    log_t_TK: Floats


@dataclass(frozen=True)
class ScoreRequest:
    """A completion to score.

    Args:
        question: The question that the completion answers.
        completion: Completion tokens, after the prompt.
        keep_depth: Depths of the tokens in `keep_token`.
        keep_token: Tokens to keep among the children whatever their probability.
        floor: Tokens above this probability, for the student or any teacher, are kept as well.
    """

    question: Question
    completion: Tokens
    keep_depth: Ints
    keep_token: Tokens
    floor: float


@runtime_checkable
class Teacher(Protocol):
    """Any object with a name that the student's `score` accepts as a teacher."""

    @property
    def name(self) -> str: ...


class Sampler(Protocol):
    """Samples completions from the student."""

    @property
    def fingerprint(self) -> str:
        """Identifies the student and the sampling settings; part of every rollout key."""
        ...

    @property
    def end_tokens(self) -> Collection[int]:
        """Tokens that end a completion."""
        ...

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        """Content keys of each request's rollouts; the prompt that the student reads is part of the key."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """All requested rollouts, ungraded; the result for one request does not depend on the others."""
        ...


class Scorer(Protocol):
    """Computes student and teacher probabilities along a completion."""

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores: ...

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        """Log-probability of every token, in the order of `rollouts.tokens`; `teacher=None` means the student."""
        ...


class Student(Sampler, Scorer, Protocol):
    """The interface that `analyze` requires of a student."""


class Grader(Protocol):
    """Decides which completions are correct. Truncated completions always count as incorrect."""

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """One `Outcome` per row."""
        ...


def mix64(value: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """SplitMix64 finalizer: a bijection that maps counters to pseudo-random 64-bit words."""
    with np.errstate(over="ignore"):
        word = np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))
