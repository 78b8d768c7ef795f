"""Exact worlds: language models whose success probabilities are known in closed form.

An automaton moves through hidden states while it generates: (position, state, token) gives the next state, the state
gives the token probabilities, the final state decides success, and truncation is a failure. So `Q` after any prefix
follows from dynamic programming, at any length. A world samples and scores through the same protocols as a real model,
so users can test their own objectives and estimators on it.

It imitates reasoning traces: most positions are nearly deterministic, some fork, most forks change the outcome little,
a few decide it. States are ordered, and completions that end in the upper half are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.exact_random import EOS, random_tables
from opd_align.types import (
    OVERLAP_TOP_K,
    Finish,
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
    mix64,
)


@dataclass(frozen=True)
class ExactTeacher:
    """A teacher on the same automaton.

    Args:
        name: Name of the teacher.
        log_t_LSV: Log-probabilities by position, state and token.
    """

    name: str
    log_t_LSV: Floats


@dataclass(frozen=True, eq=False)
class ExactWorld:
    """An automaton language model with exact success probabilities. Create one with `ExactWorld.random`.

    Args:
        log_p_LSV: Student log-probabilities by position, state and token. Token 0 ends the completion.
        next_LSV: Next state by position, state and token.
        success_S: Whether a completion that ends in a state is correct.
        start: Initial state.
    """

    log_p_LSV: Floats
    next_LSV: NDArray[np.uint8]
    success_S: NDArray[np.bool_]
    start: int

    @staticmethod
    def random(
        seed: int,
        *,
        length: int = 150,
        vocabulary: int = 24,
        states: int = 0,
        forks: float = 1 / 3,
        peakedness: float = 0.98,
        stakes: float = 1.0,
    ) -> ExactWorld:
        """A random world.

        Args:
            seed: Random seed.
            length: Typical completion length in tokens. Truncation is half as many tokens later (at least 70).
            vocabulary: Number of tokens, including the end-of-sequence token.
            states: Number of states, at most 256. 0: 200, fewer for long worlds.
            forks: Fraction of positions with a likely alternative, in [0, 1].
            peakedness: Probability mass outside the tail of unlikely tokens, in (0.5, 1).
            stakes: How much an ordinary fork changes the outcome. 1 imitates traces of a real model, 4 gives large
                success-rate ranges nearly everywhere.
        """
        return ExactWorld(
            *random_tables(
                seed,
                length=length,
                vocabulary=vocabulary,
                states=states,
                forks=forks,
                peakedness=peakedness,
                stakes=stakes,
            )
        )

    # -- exact quantities ------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Maximum completion length in tokens; longer completions are truncated."""
        return len(self.log_p_LSV)

    @property
    def vocabulary(self) -> int:
        return self.log_p_LSV.shape[2]

    @cached_property
    def value_LS(self) -> Floats:
        """Success probability of the student from every position and state; row `limit` is truncation."""
        value = np.zeros((self.limit + 1, len(self.success_S)))
        win_S = self.success_S.astype(float)
        for position in range(self.limit - 1, -1, -1):
            after_SV = value[position + 1][self.next_LSV[position]]
            after_SV[:, EOS] = win_S
            value[position] = (np.exp(self.log_p_LSV[position]) * after_SV).sum(-1)
        return value

    def exact_q(self, prefix: Tokens) -> Floats:
        """Exact success probability after `prefix` and each next token of the vocabulary."""
        self._check_prefix(prefix)
        if len(prefix) == self.limit:
            raise OpdAlignError(f"a prefix of {self.limit} tokens has no next token: this world truncates there")
        position, state = len(prefix), int(self.states_along(prefix)[-1])
        return self._after(np.array([position]), np.array([state]))[0]

    def exact_q_along(self, scores: PathScores) -> Floats:
        """Exact success probability of every kept child of a path; same shape as `scores.token_C`."""
        depth_T = np.arange(len(scores))
        q_TV = self._after(depth_T, self.states_along(scores.completion_T)[:-1])
        return q_TV[np.repeat(depth_T, np.diff(scores.offsets)), scores.token_C]

    def exact_reward_to_go_along(self, scores: PathScores, teacher: ExactTeacher) -> Floats:
        """Exact expected `Σ log t − log p` from each kept child on, including the child's own term."""
        with np.errstate(invalid="ignore"):
            step_LSV = np.where(np.isneginf(self.log_p_LSV), 0.0, teacher.log_t_LSV - self.log_p_LSV)
        to_go = np.zeros((self.limit + 1, len(self.success_S)))
        for position in range(self.limit - 1, -1, -1):
            after_SV = to_go[position + 1][self.next_LSV[position]]
            after_SV[:, EOS] = 0.0
            p_SV = np.exp(self.log_p_LSV[position])
            # Tokens with student probability 0 contribute nothing, even where the teacher's log-probability is −inf.
            to_go[position] = (p_SV * np.where(p_SV > 0, step_LSV[position] + after_SV, 0.0)).sum(-1)
        depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
        state_C = self.states_along(scores.completion_T)[depth_C]
        after_C = to_go[depth_C + 1, self.next_LSV[depth_C, state_C, scores.token_C]]
        after_C[scores.token_C == EOS] = 0.0
        return step_LSV[depth_C, state_C, scores.token_C] + after_C

    def _after(self, position_N: Ints, state_N: Ints) -> Floats:
        q_NV = self.value_LS[(position_N + 1)[:, None], self.next_LSV[position_N, state_N]]
        q_NV[:, EOS] = self.success_S[state_N]
        return q_NV

    def states_along(self, completion: Tokens) -> Ints:
        """State before each token of the completion, and after the last one."""
        states = np.empty(len(completion) + 1, np.int64)
        states[0] = state = self.start
        for position, token in enumerate(completion.tolist()):
            state = state if token == EOS else int(self.next_LSV[position, state, token])
            states[position + 1] = state
        return states

    # -- teachers --------------------------------------------------------------------------------------------

    def tilted_teacher(
        self, name: str = "tilted", *, strength: float = 8.0, noise: float = 0.5, seed: int = 0
    ) -> ExactTeacher:
        """A teacher that prefers tokens leading to success (avoids them for negative `strength`), with noise."""
        noise_LSV = np.random.default_rng(seed).normal(0.0, noise, self.log_p_LSV.shape)
        return ExactTeacher(name, _normalised(self.log_p_LSV + strength * self._advantage_LSV + noise_LSV))

    def style_teacher(self, name: str = "style", *, noise: float = 1.5, seed: int = 0) -> ExactTeacher:
        """A teacher that moves probability only among tokens that do not change the success probability."""
        noise_LSV = np.random.default_rng(seed).normal(0.0, noise, self.log_p_LSV.shape)
        neutral_LSV = (np.abs(self._advantage_LSV) < 0.01) & (self.log_p_LSV > -np.inf)
        log_neutral_LSV = np.where(neutral_LSV, self.log_p_LSV, -np.inf)
        moved_LSV = log_neutral_LSV + noise_LSV
        with np.errstate(invalid="ignore"):
            mass_LS1 = np.logaddexp.reduce(log_neutral_LSV, axis=-1, keepdims=True)
            moved_LSV += mass_LS1 - np.logaddexp.reduce(moved_LSV, axis=-1, keepdims=True)
        return ExactTeacher(name, np.where(neutral_LSV, moved_LSV, self.log_p_LSV))

    def adversarial_teacher(
        self, name: str = "adversarial", *, strength: float = 8.0, noise: float = 0.5, seed: int = 0
    ) -> ExactTeacher:
        """A teacher that prefers tokens leading to failure."""
        return self.tilted_teacher(name, strength=-strength, noise=noise, seed=seed)

    @cached_property
    def _advantage_LSV(self) -> Floats:
        advantage = np.empty_like(self.log_p_LSV)
        win_S = self.success_S.astype(float)
        for position in range(self.limit):
            after_SV = self.value_LS[position + 1][self.next_LSV[position]]
            after_SV[:, EOS] = win_S
            advantage[position] = after_SV - self.value_LS[position][:, None]
        return advantage

    # -- Student protocol: sampling and scoring --------------------------------------------------------------

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return (EOS,)

    @cached_property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=16)
        # Rounded: logarithms differ in the last digit between machines, and the same world must give the same rollouts.
        for table in (np.round(self.log_p_LSV, 6) + 0.0, self.next_LSV, self.success_S):
            digest.update(np.ascontiguousarray(table).tobytes())
        return f"exact-{digest.hexdigest()}-{self.start}"

    @cached_property
    def _inverse_cdf(self) -> tuple[Floats, NDArray[np.uint8]]:
        """Cumulative probabilities in descending order of probability, and the token of each rank."""
        if self.vocabulary > 256:
            raise OpdAlignError(f"sampling supports vocabularies of at most 256 tokens, not {self.vocabulary}")
        rank_LSV = np.argsort(-self.log_p_LSV, axis=-1, kind="stable").astype(np.uint8)
        cdf_LSV = np.exp(np.take_along_axis(self.log_p_LSV, rank_LSV.astype(np.int64), axis=-1)).cumsum(-1)
        cdf_LSV[..., -1] = np.inf
        return cdf_LSV, rank_LSV

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [request.keys(fingerprint) for request in requests]

    def sample(self, requests: Sequence[SampleRequest], fingerprint: str = "") -> Rollouts:
        """Samples all requests at once; each token depends only on the rollout's key and position.

        `fingerprint` replaces the world's own in the keys; `ExactFamily` passes its own.
        """
        for request in requests:
            self._check_prefix(request.prefix)
        prefix_B = Rollouts.of([request.prefix for request in requests])
        n_B = np.array([request.n for request in requests], np.int64)
        request_R = np.repeat(np.arange(len(requests)), n_B)
        launch_R = prefix_B.length_R[request_R]
        keys = [request.keys(fingerprint or self.fingerprint) for request in requests]
        key_R = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        state_R = self._final_states(prefix_B)[request_R]
        steps, end_R, finish_R = self._continue(launch_R, state_R, key_R)
        length_R = launch_R + end_R
        offsets = np.concatenate([[0], np.cumsum(length_R)]).astype(np.int64)
        tokens = np.empty(offsets[-1], np.uint32)
        forced = prefix_B.take(request_R)
        tokens[np.repeat(offsets[:-1] - forced.offsets[:-1], launch_R) + np.arange(len(forced.tokens))] = forced.tokens
        for step, (rows, token) in enumerate(steps):
            tokens[offsets[rows] + launch_R[rows] + step] = token
        outcome_R = np.full(len(key_R), Outcome.UNKNOWN, np.int8)
        return Rollouts(tokens, offsets, launch_R, outcome_R, finish_R, key_R)

    def _continue(
        self, launch_R: Ints, state_R: Ints, key_R: NDArray[np.uint64]
    ) -> tuple[list[tuple[Ints, NDArray[np.uint8]]], Ints, NDArray[np.uint8]]:
        cdf_LSV, rank_LSV = self._inverse_cdf
        rows, position, state = np.arange(len(key_R)), launch_R.copy(), state_R.copy()
        end_R = np.zeros(len(key_R), np.int64)
        finish_R = np.full(len(key_R), Finish.TRUNCATED, np.uint8)
        steps: list[tuple[Ints, NDArray[np.uint8]]] = []
        active = position < self.limit
        while True:
            rows, position, state = rows[active], position[active], state[active]
            if not len(rows):
                return steps, end_R, finish_R
            uniform = _uniform(key_R[rows], position)
            # Most positions are nearly deterministic: try the most likely token first and search only for the rest.
            rank = np.zeros(len(rows), np.int64)
            rest = np.flatnonzero(uniform >= cdf_LSV[position, state, 0])
            rank[rest] = (cdf_LSV[position[rest], state[rest]] <= uniform[rest, None]).sum(-1)
            token = rank_LSV[position, state, rank]
            steps.append((rows, token))
            end_R[rows] += 1
            stopped = token == EOS
            finish_R[rows[stopped]] = Finish.STOPPED
            state = self.next_LSV[position, state, token].astype(np.int64)
            position = position + 1
            active = ~stopped & (position < self.limit)

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """Correct if the completion stopped in a successful state."""
        final_R = self._final_states(rollouts)
        return (self.success_S[final_R] & (rollouts.finish_R == Finish.STOPPED)).astype(np.int8)

    def score(self, request: ScoreRequest, teachers: Sequence[ExactTeacher]) -> PathScores:
        completion = np.asarray(request.completion, np.uint32)
        depth_T = np.arange(len(completion))
        state_T = self.states_along(completion)[:-1]
        log_p_TV = self.log_p_LSV[depth_T, state_T]
        log_t = {teacher.name: teacher.log_t_LSV[depth_T, state_T] for teacher in teachers}
        kept_TV = log_p_TV > np.log(request.floor)
        for log_t_TV in log_t.values():
            kept_TV |= log_t_TV > np.log(request.floor)
        kept_TV[depth_T, completion] = True
        kept_TV[request.keep_depth, request.keep_token] = True
        offsets = np.concatenate([[0], np.cumsum(kept_TV.sum(-1))]).astype(np.int64)
        return PathScores(
            completion,
            offsets,
            np.nonzero(kept_TV)[1].astype(np.uint32),
            log_p_TV[kept_TV],
            _entropy(log_p_TV),
            {name: _compare(log_p_TV, log_t_TV, kept_TV) for name, log_t_TV in log_t.items()},
        )

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: ExactTeacher | None) -> Floats:
        table = self.log_p_LSV if teacher is None else teacher.log_t_LSV
        result = np.empty(len(rollouts.tokens))
        for rows, position, state, token in self._walk(rollouts):
            result[rollouts.offsets[rows] + position] = table[position, state, token]
        return result

    def _final_states(self, rollouts: Rollouts) -> Ints:
        final_R = np.full(len(rollouts), self.start, np.int64)
        for rows, position, state, token in self._walk(rollouts):
            final_R[rows] = np.where(token == EOS, state, self.next_LSV[position, state, token])
        return final_R

    def _walk(self, rollouts: Rollouts) -> Iterator[tuple[Ints, int, Ints, Tokens]]:
        """Yields, for each position: the rows long enough, the position, their states and tokens."""
        order = np.argsort(-rollouts.length_R, kind="stable")
        falling = -rollouts.length_R[order]
        state = np.full(len(rollouts), self.start, np.int64)
        for position in range(int(rollouts.length_R.max(initial=0))):
            rows = order[: np.searchsorted(falling, -position, side="left")]
            token = rollouts.tokens[rollouts.offsets[rows] + position]
            state = state[: len(rows)]
            yield rows, position, state, token
            state = np.where(token == EOS, state, self.next_LSV[position, state, token])

    def _check_prefix(self, prefix: Tokens) -> None:
        if len(prefix) > self.limit:
            raise OpdAlignError(f"a prefix of {len(prefix)} tokens is longer than this world's limit of {self.limit}")
        if len(prefix) and (int(prefix.max()) >= self.vocabulary or (prefix == EOS).any()):
            raise OpdAlignError(
                f"a prefix must not contain the end-of-sequence token ({EOS}) or tokens of {self.vocabulary} and above"
            )


@dataclass(frozen=True)
class ExactFamilyTeacher:
    """One teacher per world, with a common name.

    Args:
        name: Name of the teacher.
        teachers: Teacher of each world, by question id.
    """

    name: str
    teachers: Mapping[str, ExactTeacher]


@dataclass(frozen=True, eq=False)
class ExactFamily:
    """Several exact worlds as one student: each question has its own world.

    Args:
        worlds: Worlds by question id.
    """

    worlds: Mapping[str, ExactWorld]

    @staticmethod
    def random(seed: int, n: int, **options: Any) -> ExactFamily:
        """`n` random worlds; `options` are passed to `ExactWorld.random`."""
        return ExactFamily({f"world-{seed + i}": ExactWorld.random(seed + i, **options) for i in range(n)})

    @property
    def questions(self) -> list[Question]:
        return [Question(name) for name in self.worlds]

    def teacher(self, name: str, make: Callable[[ExactWorld], ExactTeacher]) -> ExactFamilyTeacher:
        """A teacher for all worlds; `make` creates the teacher of one world."""
        return ExactFamilyTeacher(name, {question: make(world) for question, world in self.worlds.items()})

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return (EOS,)

    @cached_property
    def fingerprint(self) -> str:
        return "+".join(world.fingerprint for world in self.worlds.values())

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [request.keys(fingerprint) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        runs = groupby(requests, key=lambda request: request.question.id)
        return Rollouts.join([self._world(question).sample(list(run), self.fingerprint) for question, run in runs])

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        return self._world(question.id).grade(question, rollouts)

    def score(self, request: ScoreRequest, teachers: Sequence[ExactFamilyTeacher]) -> PathScores:
        world = self._world(request.question.id)
        own_teachers = [replace(teacher.teachers[request.question.id], name=teacher.name) for teacher in teachers]
        return world.score(request, own_teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: ExactFamilyTeacher | None) -> Floats:
        world = self._world(question.id)
        own_teacher = None if teacher is None else teacher.teachers[question.id]
        return world.token_log_probs(question, rollouts, own_teacher)

    def _world(self, question: str) -> ExactWorld:
        if question not in self.worlds:
            raise OpdAlignError(f"no world for question {question!r}; the family has {', '.join(self.worlds)}")
        return self.worlds[question]


def _uniform(key_R: NDArray[np.uint64], position_R: Ints) -> Floats:
    with np.errstate(over="ignore"):
        word = mix64(key_R ^ mix64(position_R.astype(np.uint64)))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normalised(logits: Floats) -> Floats:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _entropy(log_p_TV: Floats) -> Floats:
    p_TV = np.exp(log_p_TV)
    return -(p_TV * np.where(p_TV > 0, log_p_TV, 0.0)).sum(-1)


def _compare(log_p_TV: Floats, log_t_TV: Floats, kept_TV: NDArray[np.bool_]) -> TeacherScores:
    p_TV, t_TV = np.exp(log_p_TV), np.exp(log_t_TV)
    log_m_TV = np.logaddexp(log_p_TV, log_t_TV) - np.log(2)

    def kl(weight_TV: Floats, log_a_TV: Floats, log_b_TV: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.where(weight_TV > 0, weight_TV * (log_a_TV - log_b_TV), 0.0).sum(-1)

    norms_T = np.linalg.norm(p_TV, axis=-1) * np.linalg.norm(t_TV, axis=-1)
    return TeacherScores(
        log_t_TV[kept_TV],
        _entropy(log_t_TV),
        kl(p_TV, log_p_TV, log_t_TV),
        (kl(p_TV, log_p_TV, log_m_TV) + kl(t_TV, log_t_TV, log_m_TV)) / 2,
        np.linalg.norm(p_TV - t_TV, axis=-1),
        (p_TV * t_TV).sum(-1) / norms_T,
        *_overlap(log_p_TV, log_t_TV),
    )


def _overlap(log_p_TV: Floats, log_t_TV: Floats) -> tuple[Floats, Floats]:
    k = min(OVERLAP_TOP_K, log_p_TV.shape[-1])
    shared_TV = np.isfinite(log_p_TV) & np.isfinite(log_t_TV)
    for log_TV in (log_p_TV, log_t_TV):
        top_TV = np.zeros_like(shared_TV)
        np.put_along_axis(top_TV, np.argsort(-log_TV, axis=-1, kind="stable")[:, :k], True, axis=-1)
        shared_TV &= top_TV
    count_T = shared_TV.sum(-1)
    with np.errstate(invalid="ignore"):
        advantage_TV = np.where(shared_TV, np.exp(log_t_TV) * (log_p_TV - log_t_TV), 0.0)
    return count_T / k, advantage_TV.sum(-1) / np.where(count_T > 0, count_T, np.nan)
