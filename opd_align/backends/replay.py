"""Replay: recorded rollouts and branch outcomes in place of a model that samples.

`ReplayStudent` answers requests from a file (`replay_file`): natural rollouts, rollouts that were forced through a
prefix, and outcomes of branches whose continuations were not recorded. What was not recorded is not invented: such a
rollout is missing. Probabilities come from the file too, or from a `scorer`, a student that holds local weights.

Without a scorer only the recorded tokens of a node are known. Entropies and divergences are then those of the recorded
tokens and one more token for the rest of the vocabulary; KL and entropy are lower bounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.recording import RecordedBranch, RecordedQuestion, RecordedRollout, Recording, shared_length
from opd_align.backends.replay_file import read_recording
from opd_align.types import (
    Failure,
    Floats,
    Ints,
    OpdAlignError,
    Outcome,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    TeacherScores,
    Tokens,
    shortened,
)

UNRECORDED = 2**32 - 1
"""Token that stands for a continuation of which only the outcome was recorded."""

MAX_MASS = 1.05
"""The probabilities at a node may add up to this: engines round."""

_MIN_REST = 1e-12


@dataclass(frozen=True)
class RecordedTeacher:
    """A teacher whose probabilities are in the recording.

    Args:
        name: Its name in the file.
        fingerprint: Identifies the recording.
    """

    name: str
    fingerprint: str


@dataclass(frozen=True)
class RecordedPrompt:
    """The prompts of a recording as token ids, for models that score its completions.

    Args:
        recording: The recording.
        chat: Tokenizer for prompts that were recorded as text, chat template already applied.
    """

    recording: Recording
    chat: Any

    def __post_init__(self) -> None:
        for entry in self.recording.questions.values():
            if entry.prompt is None:
                raise self.recording.error(
                    entry.rollouts[0].line, "prompt is missing: a model that scores rollouts has to read their prompt"
                )

    def __call__(self, question: Question) -> tuple[int, ...]:
        prompt = self.recording.questions[question.id].prompt
        if isinstance(prompt, str):
            return tuple(int(token) for token in self.chat.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return prompt or ()

    def token_text(self, token: int) -> str:
        """The text of one token."""
        return "…" if token == UNRECORDED else str(self.chat.token_text(token))

    @property
    def tokenizer_hash(self) -> str:
        """Identifies the tokenizer in manifests."""
        return str(self.chat.fingerprint)


@dataclass(frozen=True, eq=False)
class ReplayStudent:
    """A recording as student and grader.

    Args:
        recording: The recorded rollouts and branches.
        scorer: A student on local weights, which computes the probabilities of student and teachers. `None`: they are
            taken from the recording.
        own_token_outcomes: Whether to serve outcomes without continuations for the path's own tokens. The estimators
            `direct` and `pooled` count them. `backup` values a path by where rollouts leave it, which is unknown here.
        token_text: From a token id to its text. `None`: no texts in reports, unless the scorer has them.
    """

    recording: Recording
    scorer: Any | None = None
    own_token_outcomes: bool = False
    token_text: Callable[[int], str] | None = None
    _indexes: dict[str, _Index] = field(default_factory=dict, init=False, repr=False)
    _paths: defaultdict[str, list[Tokens]] = field(default_factory=lambda: defaultdict(list), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.scorer is None:
            self.recording.check_log_probs()
        else:
            self.recording.check_tokens(self.scorer.end_tokens, self.scorer.vocabulary)
            object.__setattr__(self, "token_text", self.token_text or self.scorer.token_text)

    @staticmethod
    def load(file: str | Path, **options: Any) -> ReplayStudent:
        """The student of a file; `options` are the other arguments."""
        return ReplayStudent(read_recording(file), **options)

    @property
    def name(self) -> str:
        return str(getattr(self.scorer, "name", self.recording.file.stem))

    @property
    def prompt(self) -> Any | None:
        """The scorer's prompt function. `None`: no model reads prompts."""
        return getattr(self.scorer, "prompt", None)

    @property
    def questions(self) -> list[Question]:
        """The recorded questions, in the order of the file."""
        return [entry.question for entry in self.recording.questions.values()]

    @property
    def teachers(self) -> list[RecordedTeacher]:
        """The teachers whose probabilities were recorded."""
        return [RecordedTeacher(name, f"recorded-{self.recording.digest}") for name in self.recording.teachers]

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return self.recording.end_tokens if self.scorer is None else tuple(self.scorer.end_tokens)

    @property
    def fingerprint(self) -> str:
        scorer = "" if self.scorer is None else f"-{self.scorer.fingerprint}"
        own = "-own" if self.own_token_outcomes else ""
        return f"replay-{self.recording.digest}{own}{scorer}"

    # -- sampling and grading --------------------------------------------------------------------------------

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [self._keys(request, fingerprint) for request in requests]

    def _keys(self, request: SampleRequest, fingerprint: str) -> NDArray[np.uint64]:
        index = self._index(request.question.id)
        key_R = request.keys(fingerprint)
        rollouts = index.rollouts(request.prefix)[request.first : request.first + request.n]
        for row, rollout in enumerate(rollouts):
            if rollout.key is not None:
                key_R[row] = rollout.key
            elif rollout.line in index.branched:
                # Paths are chosen in order of their keys, and these are the ones with recorded branches.
                key_R[row] >>= np.uint64(32)
        return key_R

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        """The recorded rollouts with their outcomes; a forced rollout that was not recorded is a failure."""
        return Rollouts.join([self._sample(*pair) for pair in zip(requests, self.keys(requests), strict=True)])

    def _sample(self, request: SampleRequest, key_R: NDArray[np.uint64]) -> Rollouts:
        index, prefix = self._index(request.question.id), np.asarray(request.prefix, np.uint32)
        if not len(prefix) and request.first == 0:
            self._paths.pop(request.question.id, None)  # the start of an analysis, which scores its own paths
        rollouts = index.rollouts(prefix)
        chosen = rollouts[request.first : request.first + request.n]
        branch = index.branches.get(_digest(prefix))
        outcomes: list[int] = []
        if branch is not None and (self.own_token_outcomes or not self._on_path(request.question.id, prefix)):
            start = max(request.first - len(rollouts), 0)
            outcomes = branch.outcome_R[start : start + request.n - len(chosen)].tolist()
        served = len(chosen) + len(outcomes)
        missing = key_R[served:].tolist() if len(prefix) else []  # of natural rollouts there are as many as there are
        rows = Rollouts.of(
            [rollout.tokens for rollout in chosen] + [np.append(prefix, np.uint32(UNRECORDED))] * len(outcomes),
            outcome=[rollout.outcome for rollout in chosen] + outcomes,
            launch=[len(prefix)] * served,
            key=key_R[:served].tolist(),
            truncated=[rollout.truncated for rollout in chosen] + [False] * len(outcomes),
        )
        return replace(rows, failures=tuple(Failure(key, "not recorded") for key in missing))

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """The recorded outcomes; for a completion that was not sampled, that of the same tokens if it was recorded."""
        outcome_R = rollouts.outcome_R.copy()
        index = self._index(question.id)
        for row in np.flatnonzero((outcome_R == Outcome.UNKNOWN) & (rollouts.launch_R == rollouts.length_R)):
            outcome_R[row] = index.end_outcome(rollouts.completion(int(row)))
        return outcome_R

    def _on_path(self, question: str, prefix: Tokens) -> bool:
        return any(shared_length(path, prefix) == len(prefix) for path in self._paths[question])

    def _index(self, question: str) -> _Index:
        if question not in self._indexes:
            if question not in self.recording.questions:
                raise OpdAlignError(f"question {shortened(question)} is not in {self.recording.file}")
            self._indexes[question] = _Index(self.recording.questions[question])
        return self._indexes[question]

    # -- scoring ---------------------------------------------------------------------------------------------

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        self._paths[request.question.id].append(np.asarray(request.completion, np.uint32))
        if self.scorer is not None:
            scored: PathScores = self.scorer.score(request, teachers)
            return scored
        names = [teacher.name for teacher in teachers]
        completion = np.asarray(request.completion, np.uint32)
        known = self._known(request.question, completion, self._index(request.question.id).entry.rollouts, names)
        depth_C, token_C, log_C = known
        kept_C = (log_C > np.log(request.floor)).any(-1) | (token_C == completion[depth_C])
        kept_C |= np.isin(depth_C << 32 | token_C, request.keep_depth << 32 | request.keep_token.astype(np.int64))
        nodes = _Nodes(depth_C, log_C, len(completion))
        return PathScores(
            completion,
            np.concatenate([[0], np.cumsum(np.bincount(depth_C[kept_C], minlength=len(completion)))]).astype(np.int64),
            token_C[kept_C].astype(np.uint32),
            log_C[kept_C, 0],
            nodes.entropy(0),
            {name: nodes.compared(at, log_C[kept_C, at]) for at, name in enumerate(names, start=1)},
        )

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        if self.scorer is not None:
            scored: Floats = self.scorer.token_log_probs(question, rollouts, teacher)
            return scored
        index = self._index(question.id)
        result = np.empty(len(rollouts.tokens))
        for row in range(len(rollouts)):
            completion = rollouts.completion(row)
            same = index.same(completion)
            values = None
            if same is not None:
                values = same.log_probs if teacher is None else same.teacher_log_probs.get(teacher.name)
            if values is None:  # an end that was graded without sampling: its tokens are on other rollouts
                names = [] if teacher is None else [teacher.name]
                depth_C, token_C, log_C = self._known(question, completion, index.entry.natural, names)
                values = log_C[token_C == completion[depth_C], -1]
            result[rollouts.offsets[row] : rollouts.offsets[row + 1]] = values
        return result

    def _known(
        self, question: Question, path: Tokens, rollouts: Sequence[RecordedRollout], teachers: Sequence[str]
    ) -> tuple[Ints, Ints, Floats]:
        """Depth, token and log-probabilities (student, then teachers) of every recorded child along a path, in order.

        The path's own tokens are among them. Values of branches come first, then those of rollouts in file order.
        """
        index, known = self._index(question.id), dict[tuple[int, int], Floats]()
        for depth in range(len(path)) if index.branches else ():
            for branch in index.branches_at(path[:depth]):
                p = [branch.p, *(branch.teacher_p[name] for name in teachers)]
                with np.errstate(divide="ignore"):
                    known[depth, branch.token] = np.log(p)
        covered = 0
        for rollout in rollouts:
            log_probs = [rollout.log_probs, *(rollout.teacher_log_probs.get(name) for name in teachers)]
            if any(values is None for values in log_probs):
                continue
            shared = shared_length(rollout.tokens, path)
            leaves = shared < min(len(path), len(rollout.tokens))
            for depth in [*range(covered, shared), *([shared] if leaves else [])]:
                child = depth, int(rollout.tokens[depth])
                if child not in known:
                    known[child] = np.array([values[depth] for values in log_probs if values is not None])
            covered = max(covered, shared)
        own = [(depth, token) in known for depth, token in enumerate(path.tolist())]
        if not all(own):
            at = own.index(False)
            raise OpdAlignError(
                f"{self.recording.file}: question {shortened(question.id)} has a rollout with token {int(path[at])} at "
                f"position {at}, whose probability is not recorded; record log_probs of this rollout"
            )
        children = sorted(known)
        depth_C, token_C = (np.array(column, np.int64) for column in zip(*children, strict=True))
        log_C = np.array([known[child] for child in children], np.float64).reshape(len(children), 1 + len(teachers))
        mass_T = np.bincount(depth_C, np.exp(log_C[:, 0]))
        if mass_T.max() > MAX_MASS:
            at = int(mass_T.argmax())
            raise OpdAlignError(
                f"{self.recording.file}: question {shortened(question.id)}: the probabilities at position {at} of a "
                f"rollout add up to {mass_T[at]:.3g}; all must come from one checkpoint at one temperature"
            )
        return depth_C, token_C, log_C


class _Index:
    """The rollouts of one question by prefix, and by completion."""

    def __init__(self, entry: RecordedQuestion) -> None:
        self.entry = entry
        self._natural = entry.natural
        self._forced: defaultdict[bytes, list[RecordedRollout]] = defaultdict(list)
        for rollout in entry.forced:
            self._forced[_digest(rollout.tokens[: rollout.launch])].append(rollout)
        self.branches: Mapping[bytes, RecordedBranch] = {
            _digest(np.append(branch.prefix, np.uint32(branch.token))): branch for branch in entry.branches
        }
        self._branches_at: defaultdict[bytes, list[RecordedBranch]] = defaultdict(list)
        for branch in entry.branches:
            self._branches_at[_digest(branch.prefix)].append(branch)
        self._same: dict[bytes, RecordedRollout] = {}
        for rollout in entry.rollouts:
            self._same.setdefault(_digest(rollout.tokens), rollout)
        self.branched = self._find_branched()

    def rollouts(self, prefix: Tokens) -> Sequence[RecordedRollout]:
        """The rollouts that were launched after a prefix."""
        return self._forced.get(_digest(prefix), []) if len(prefix) else self._natural

    def branches_at(self, prefix: Tokens) -> Sequence[RecordedBranch]:
        """The branches at a node."""
        return self._branches_at.get(_digest(prefix), [])

    def same(self, completion: Tokens) -> RecordedRollout | None:
        """The first rollout with these tokens."""
        return self._same.get(_digest(completion))

    def end_outcome(self, completion: Tokens) -> int:
        """The recorded outcome of a completion that ends with its last token."""
        same, branch = self.same(completion), self.branches.get(_digest(completion))
        if same is not None and same.outcome != Outcome.UNKNOWN:
            return same.outcome
        graded = [] if branch is None else branch.outcome_R[branch.outcome_R != Outcome.UNKNOWN].tolist()
        return int(graded[0]) if graded else int(Outcome.UNKNOWN)

    def _find_branched(self) -> set[int]:
        """Lines of the natural rollouts from which something branches off that no other natural rollout shares."""
        parents = {branch.prefix.tobytes(): branch.prefix for branch in self.entry.branches if len(branch.outcome_R)}
        for rollout in self.entry.forced:
            parents[rollout.tokens[: rollout.launch - 1].tobytes()] = rollout.tokens[: rollout.launch - 1]
        order = sorted(self._natural, key=lambda rollout: _sortable(rollout.tokens))
        heads = [_sortable(rollout.tokens) for rollout in order]
        found: set[int] = set()
        for prefix in parents.values():
            wanted = _sortable(prefix)
            low, high = _range(heads, wanted)
            if low < high and heads[low] == heads[high - 1]:
                found.add(order[low].line)
        return found


def _range(heads: Sequence[bytes], prefix: bytes) -> tuple[int, int]:
    """The sorted texts that start with a prefix, as `low, high`."""

    def head(text: bytes) -> bytes:
        return text[: len(prefix)]

    return bisect_left(heads, prefix, key=head), bisect_right(heads, prefix, key=head)


def _sortable(tokens: Tokens) -> bytes:
    return tokens.astype(">u4").tobytes()


def _digest(tokens: Tokens) -> bytes:
    return blake2b(np.ascontiguousarray(tokens, "<u4").tobytes(), digest_size=16).digest()


class _Nodes:
    """Entropies and divergences at every depth, with the rest of the vocabulary as one more token.

    `log_C` has the student's log-probabilities in its first column, then those of the teachers.
    """

    def __init__(self, depth_C: Ints, log_C: Floats, length: int) -> None:
        self.length = length
        p_C = np.exp(log_C)
        mass = np.stack([self._sum(depth_C, column_C) for column_C in p_C.T], axis=-1)
        rest = np.clip(1 - mass, 0.0, 1.0)
        self.depth_C = np.concatenate([depth_C, np.arange(length)])
        self.p_C = np.concatenate([p_C, rest])
        with np.errstate(divide="ignore"):
            # A teacher that is known to have no mass left is not infinitely far from a student with a rounding error.
            log_rest = np.log(np.maximum(rest, np.where(rest.max(-1, keepdims=True) > 0, _MIN_REST, 0.0)))
        self.log_C = np.concatenate([log_C, log_rest])

    def entropy(self, column: int) -> Floats:
        return -self._dot(self.p_C[:, column], self.log_C[:, column])

    def compared(self, column: int, log_t_C: Floats) -> TeacherScores:
        """The teacher in a column against the student; `log_t_C` are its log-probabilities of the kept children."""
        p_C, t_C = self.p_C[:, 0], self.p_C[:, column]
        log_p_C, log_other_C = self.log_C[:, 0], self.log_C[:, column]
        log_m_C = np.logaddexp(log_p_C, log_other_C) - np.log(2)
        with np.errstate(invalid="ignore"):
            kl_T, to_m_T, from_m_T = (
                np.maximum(self._dot(weight_C, one_C - other_C), 0.0)
                for weight_C, one_C, other_C in (
                    (p_C, log_p_C, log_other_C), (p_C, log_p_C, log_m_C), (t_C, log_other_C, log_m_C),
                )
            )  # fmt: skip
        unknown_T = np.full(self.length, np.nan)  # the overlap needs the most likely tokens of both
        norms_T = np.sqrt(self._sum(self.depth_C, p_C**2) * self._sum(self.depth_C, t_C**2))
        return TeacherScores(
            log_t_C,
            self.entropy(column),
            kl_T,
            (to_m_T + from_m_T) / 2,
            np.sqrt(self._sum(self.depth_C, (p_C - t_C) ** 2)),
            self._sum(self.depth_C, p_C * t_C) / norms_T,
            unknown_T,
            unknown_T,
        )

    def _dot(self, weight_C: Floats, value_C: Floats) -> Floats:
        """Sum of weight × value at each depth; 0 × infinity is 0."""
        return self._sum(self.depth_C, np.where(weight_C > 0, weight_C * np.where(weight_C > 0, value_C, 0.0), 0.0))

    def _sum(self, depth_C: Ints, value_C: Floats) -> Floats:
        return np.bincount(depth_C, value_C, self.length).astype(np.float64)
