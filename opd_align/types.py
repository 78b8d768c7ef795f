"""Records and protocols: the words that every other room speaks.

Everything here is a plain value. Arrays carry their axis as a suffix: `_R` rollouts, `_T` positions of one
completion, `_C` children of all positions of a path laid end to end, `_K` children of one node.
This room knows no model, no file and no statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIVERGENCES = ("kl", "js", "l2", "cosine")
"""Full-vocabulary comparisons of student and teacher at a node; `cosine` is a similarity, the others distances."""

REWARD = "reward"
"""Teacher name of the rows whose objective needs no teacher (Dr. GRPO, GRPO)."""


class OpdAlignError(Exception):
    """Something the user can put right; the message says what was wrong, what was expected and what to do."""


class Outcome(IntEnum):
    """What the verifier said of a completion. Unknown is not incorrect."""

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
    """One item to solve. `fields` carries what a task needs beyond text and answer."""

    id: str
    text: str = ""
    answer: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A rollout that could not be made, and why; counted, never silently dropped."""

    key: int
    reason: str


@dataclass(frozen=True)
class Rollouts:
    """Completions of one question, side by side: row r is `tokens[offsets[r]:offsets[r + 1]]`.

    `launch` is how many leading tokens were forced, so row r is a sample of the student only from that depth
    on. A completion that stopped by itself includes its end-of-sequence token; a truncated one has none.
    `key` identifies the rollout by content: the same key is the same rollout, wherever it was made.
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
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, offsets say {rows}")
        if rows < 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise ValueError("offsets must run from 0 to the number of tokens")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def length_R(self) -> Ints:
        return np.diff(self.offsets)

    def completion(self, row: int) -> Tokens:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: NDArray[Any]) -> Rollouts:
        """The given rows (indices or a mask), in that order; failures stay behind."""
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
        """A batch from Python lists, for tests and small data; keys default to 0, 1, 2, ..."""
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
    """`n` continuations of `prefix` (completion tokens, after the prompt); `first` numbers the first of them.

    Asking again with a larger `first` gives fresh samples; asking again with the same one gives the same.
    """

    question: Question
    prefix: Tokens
    n: int
    first: int = 0

    def keys(self, fingerprint: str, prompt: Sequence[int] = ()) -> NDArray[np.uint64]:
        """Content keys of the rollouts asked for: the sampler's fingerprint, question, prompt, prefix and number."""
        digest = blake2b(digest_size=8)
        digest.update(f"{fingerprint}\0{self.question.id}\0".encode())
        if prompt:  # an exact world has none
            digest.update(np.asarray([len(prompt), *prompt], dtype=">u4").tobytes())
        digest.update(np.ascontiguousarray(self.prefix, dtype=">u4").tobytes())
        base = int.from_bytes(digest.digest(), "little")
        return mix64(np.uint64(base) + np.arange(self.first, self.first + self.n, dtype=np.uint64))


@dataclass(frozen=True)
class TeacherScores:
    """One teacher along one path: log-probabilities of the kept tokens, and whole-vocabulary comparisons."""

    log_t_C: Floats
    entropy_T: Floats
    kl_T: Floats
    js_T: Floats
    l2_T: Floats
    cosine_T: Floats


@dataclass(frozen=True)
class PathScores:
    """What the student and its teachers say at every depth of one completion.

    The node at depth m is the prefix of m tokens. Its kept children are
    `token_C[offsets[m]:offsets[m + 1]]`, ascending, the completion's own next token always among them.
    Log-probabilities are those of the whole vocabulary, as sampled (temperature and the like included).
    """

    completion_T: Tokens
    offsets: Ints
    token_C: Tokens
    log_p_C: Floats
    entropy_T: Floats
    teachers: Mapping[str, TeacherScores]

    def __len__(self) -> int:
        return len(self.completion_T)

    def with_head(self, other: PathScores, nodes: int) -> PathScores:
        """The same path, its first `nodes` nodes as they were scored along another one that shares them."""
        theirs, mine = int(other.offsets[nodes]), int(self.offsets[nodes])

        def joined(head: NDArray[Any], tail: NDArray[Any], of: str) -> NDArray[Any]:
            cut, rest = (theirs, mine) if of == "C" else (nodes, nodes)
            return np.concatenate([head[:cut], tail[rest:]])

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
            np.concatenate([other.offsets[:nodes], self.offsets[nodes:] - mine + theirs]),
            joined(other.token_C, self.token_C, "C"),
            joined(other.log_p_C, self.log_p_C, "C"),
            joined(other.entropy_T, self.entropy_T, "T"),
            teachers,
        )


@dataclass(frozen=True)
class TopLogProbs:
    """The likeliest next tokens at each position of a completion, as far as a server tells: (positions, k) each.

    A row with fewer than k tokens is filled up with its first one.
    """

    token_TK: Ints
    log_t_TK: Floats


@dataclass(frozen=True)
class ScoreRequest:
    """A completion to score, the tokens to keep at each depth beside those above `floor`.

    `keep` pairs depths with tokens (parallel arrays) that must be among the children whatever their probability.
    """

    question: Question
    completion: Tokens
    keep_depth: Ints
    keep_token: Tokens
    floor: float


@runtime_checkable
class Teacher(Protocol):
    """Anything with a name that the student's scorer knows how to compare the student with."""

    @property
    def name(self) -> str: ...


class Sampler(Protocol):
    """Draws completions from the student."""

    @property
    def fingerprint(self) -> str:
        """Names student and sampling settings; part of every rollout's key."""
        ...

    @property
    def end_tokens(self) -> Collection[int]:
        """Tokens that end a completion."""
        ...

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        """The content keys under which each request's rollouts come back; what the student reads is part of them."""
        ...

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """All requested rollouts, ungraded; the result for one request does not depend on the others."""
        ...


class Scorer(Protocol):
    """Computes what student and teachers think along a completion."""

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores: ...

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        """Log-probability of every token of every rollout (flat, like `rollouts.tokens`); `None`: the student's."""
        ...


class Student(Sampler, Scorer, Protocol):
    """What `analyze` needs of a student."""


class Grader(Protocol):
    """Decides which completions are correct; truncated ones are overruled to incorrect by the engine."""

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """One `Outcome` per row."""
        ...


def mix64(value: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection that turns counters into independent-looking 64-bit words."""
    with np.errstate(over="ignore"):
        word = np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))
