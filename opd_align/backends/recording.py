"""Recorded rollouts and branches as records, and whether an analysis can use them.

`replay_file` reads them from a file and `replay` serves them as a student. The checks here need to know what the
recording is used for: with the probabilities in the file, or with models that read its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.types import Floats, OpdAlignError, Question, Tokens, shortened

MAX_DIFFERENCE = 0.2
"""Two rollouts of one student may differ by this much in the probability of the same token: engines round."""


@dataclass(frozen=True, eq=False)
class RecordedRollout:
    """One completion.

    Args:
        line: Line number in the file, from 1.
        tokens: Token ids of the completion, with the end-of-sequence token if it stopped.
        outcome: `Outcome` of the completion.
        truncated: Whether it was cut off at the maximum length.
        launch: Number of leading tokens that were forced; 0 for a natural rollout.
        log_probs: The student's log-probability of each token. `None`: not recorded.
        teacher_log_probs: Each teacher's log-probability of each token, by name.
        key: Content key. `None`: derived from the file and the position in it.
    """

    line: int
    tokens: Tokens
    outcome: int
    truncated: bool
    launch: int
    log_probs: Floats | None
    teacher_log_probs: Mapping[str, Floats]
    key: int | None


@dataclass(frozen=True, eq=False)
class RecordedBranch:
    """One next token after a prefix, and the outcomes of completions that were forced through it.

    Args:
        line: Line number in the file, from 1.
        prefix: Completion tokens before the token.
        token: The token.
        p: The student's probability of the token after the prefix.
        teacher_p: Each teacher's probability of it, by name.
        outcome_R: `Outcome` of each completion; may be empty.
    """

    line: int
    prefix: Tokens
    token: int
    p: float
    teacher_p: Mapping[str, float]
    outcome_R: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class RecordedQuestion:
    """Everything recorded about one question.

    Args:
        question: The question.
        prompt: What the student read before the completion, as text or token ids. `None`: not recorded.
        rollouts: Its completions, natural and forced, in the order of the file.
        branches: Its branches, in the order of the file.
    """

    question: Question
    prompt: str | tuple[int, ...] | None
    rollouts: Sequence[RecordedRollout]
    branches: Sequence[RecordedBranch]

    @property
    def natural(self) -> list[RecordedRollout]:
        return [rollout for rollout in self.rollouts if rollout.launch == 0]

    @property
    def forced(self) -> list[RecordedRollout]:
        return [rollout for rollout in self.rollouts if rollout.launch > 0]


@dataclass(frozen=True, eq=False)
class Recording:
    """A valid file of recorded rollouts, as returned by `replay_file.read_recording`.

    Args:
        file: Where it was read from.
        digest: Hash of the file's content.
        questions: What was recorded, by question id.
        teachers: Names of the teachers whose probabilities were recorded.
        tokenizer: Name of the tokenizer of all token ids. `None`: not recorded.
        end_tokens: Tokens that end a completion; empty if not recorded.
        temperature: Sampling temperature of the student. `None`: not recorded.
    """

    file: Path
    digest: str
    questions: Mapping[str, RecordedQuestion]
    teachers: Sequence[str]
    tokenizer: str | None
    end_tokens: tuple[int, ...]
    temperature: float | None

    def outcome_branches(self, entry: RecordedQuestion) -> list[RecordedBranch]:
        """The branches whose outcomes are evidence of rollouts; a branch that ends the completion needs no rollout."""
        return [each for each in entry.branches if len(each.outcome_R) and each.token not in self.end_tokens]

    @property
    def has_forced(self) -> bool:
        """Whether there is any evidence besides natural rollouts: forced ones, or outcomes of branches."""
        return any(entry.forced or self.outcome_branches(entry) for entry in self.questions.values())

    def error(self, line: int, problem: str) -> OpdAlignError:
        """An error about a line of the file."""
        return OpdAlignError(f"{self.file}, line {line}: {problem}")

    def check_log_probs(self) -> None:
        """For an analysis without models: every natural rollout needs log-probabilities of student and teachers."""
        for entry in self.questions.values():
            for rollout in entry.natural:
                if rollout.log_probs is None:
                    raise self.error(
                        rollout.line,
                        "log_probs is missing: record the student's log-probabilities of the tokens, or name the model "
                        "that computes them (--student MODEL)",
                    )
                _check_teachers(self, rollout.line, "teacher_log_probs", rollout.teacher_log_probs)
            for branch in entry.branches:
                _check_teachers(self, branch.line, "teacher_p", branch.teacher_p)
            self._check_same_student(entry)

    def check_tokens(self, end_tokens: Iterable[int], vocabulary: int | None = None) -> None:
        """Checks token ids against a model's vocabulary, and that completions stop at an end token or are truncated."""
        ends = sorted(set(end_tokens))
        for entry in self.questions.values():
            for branch in entry.branches:
                ids = np.append(branch.prefix, np.uint32(branch.token))
                self._check_range(branch.line, ids, vocabulary)
                if _is_any(branch.prefix, ends).any():
                    raise self.error(branch.line, "prefix contains an end-of-sequence token")
            for rollout in entry.rollouts:
                self._check_range(rollout.line, rollout.tokens, vocabulary)
                if not ends:
                    continue
                is_end = _is_any(rollout.tokens, ends)
                listed = f"(end_tokens: {', '.join(map(str, ends))})"
                if is_end[: None if rollout.truncated else -1].any():
                    position = int(is_end.argmax())
                    raise self.error(
                        rollout.line,
                        f"tokens continue after the end-of-sequence token at position {position} {listed}"
                        if position < len(is_end) - 1
                        else f"truncated is true, but tokens end with an end-of-sequence token {listed}",
                    )
                if not rollout.truncated and not is_end[-1]:
                    raise self.error(
                        rollout.line,
                        f"tokens end with {int(rollout.tokens[-1])}, which is no end-of-sequence token {listed}; "
                        "append the one that ended the completion, or set truncated to true",
                    )

    def _check_range(self, line: int, tokens: Tokens, vocabulary: int | None) -> None:
        if vocabulary is not None and len(tokens) and int(tokens.max()) >= vocabulary:
            raise self.error(line, f"token {int(tokens.max())} is outside the vocabulary ({vocabulary})")

    def _check_same_student(self, entry: RecordedQuestion) -> None:
        """Rollouts that share a prefix must agree about its probabilities; adjacent ones in sorted order suffice."""
        scored = [rollout for rollout in entry.rollouts if rollout.log_probs is not None]
        scored.sort(key=lambda rollout: rollout.tokens.astype(">u4").tobytes())
        for one, other in pairwise(scored):
            shared = shared_length(one.tokens, other.tokens)
            assert one.log_probs is not None
            assert other.log_probs is not None
            p_T, q_T = np.exp(one.log_probs[:shared]), np.exp(other.log_probs[:shared])
            wrong = np.flatnonzero(np.abs(p_T - q_T) > MAX_DIFFERENCE)
            if len(wrong):
                at = int(wrong[0])
                raise self.error(
                    other.line,
                    f"token {int(other.tokens[at])} at position {at} has probability {q_T[at]:.3g}, but {p_T[at]:.3g} "
                    f"on line {one.line} after the same prefix; all rollouts of a question must come from one "
                    "checkpoint at one temperature",
                )


def shared_length(one: Tokens, other: Tokens) -> int:
    """Number of leading tokens that two completions share."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def _is_any(tokens: Tokens, wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each token is one of a few; `np.isin` takes ten times as long for short arrays."""
    found = np.zeros(len(tokens), bool)
    for token in wanted:
        found |= tokens == token
    return found


def _check_teachers(recording: Recording, line: int, name: str, given: Mapping[str, Any]) -> None:
    missing = [teacher for teacher in recording.teachers if teacher not in given]
    if missing:
        raise recording.error(
            line, f"{name} has no {shortened(missing[0])}, which other lines have; record all teachers"
        )
