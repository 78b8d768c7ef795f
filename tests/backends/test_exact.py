"""Exact worlds against brute force: exact quantities, samples, scores and teachers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from opd_align.backends import exact, scoring_columns
from opd_align.backends.exact import EOS, ExactFamily, ExactTeacher, ExactWorld
from opd_align.types import (
    Finish,
    Floats,
    OpdAlignError,
    Outcome,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    Tokens,
)

Q = Question("q")
Prefix = tuple[int, ...]


def tokens(prefix: Any = ()) -> Tokens:
    return np.array(prefix, np.uint32)


def sample_request(prefix: Any = (), n: int = 1, first: int = 0, question: Question = Q) -> SampleRequest:
    return SampleRequest(question, tokens(prefix), n, first)


def score(
    world: ExactWorld, completion: Any, *teachers: ExactTeacher, floor: float = 0.02, keep: Any = ()
) -> PathScores:
    depth, token = [pair[0] for pair in keep], [pair[1] for pair in keep]
    return world.score(
        ScoreRequest(Q, tokens(completion), np.array(depth, np.int64), tokens(token), floor), list(teachers)
    )


def log_table(rng: np.random.Generator, shape: tuple[int, int, int], holes: float) -> Floats:
    """Random log-probabilities; some tokens, but never the last two, have probability zero."""
    logits = rng.normal(0, 1, shape)
    logits[..., :-2][rng.random(shape)[..., :-2] < holes] = -inf
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def tiny_world(seed: int, *, limit: int = 4, holes: float = 0.0) -> ExactWorld:
    """Four tokens and three states, two of them successful: small enough to enumerate every completion."""
    rng = np.random.default_rng(seed)
    shape = (limit, 3, 4)
    next_LSV = rng.integers(0, 3, shape).astype(np.uint8)
    return ExactWorld(log_table(rng, shape, holes), next_LSV, np.array([True, False, True]), int(rng.integers(3)))


TINY = [tiny_world(seed, holes=holes) for seed in range(3) for holes in (0.0, 0.3)]
tiny = pytest.mark.parametrize("world", TINY, ids=range(len(TINY)))


def tiny_teacher(world: ExactWorld, seed: int = 7) -> ExactTeacher:
    logits = world.log_p_LSV + np.random.default_rng(seed).normal(0, 1, world.log_p_LSV.shape)
    return ExactTeacher("random", logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))


# -- slow references ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """One whole completion: its probability after the forced prefix, and its outcome."""

    completion: Prefix
    probability: float
    stopped: bool
    won: bool


def slow_states(world: ExactWorld, completion: Any) -> list[int]:
    """State before each token."""
    states = [world.start]
    for position, token in enumerate(completion):
        states.append(states[-1] if token == EOS else int(world.next_LSV[position, states[-1], token]))
    return states


def endings(world: ExactWorld, prefix: Prefix = ()) -> Iterator[Ending]:
    """Every possible completion after a prefix."""

    def walk(completion: Prefix, probability: float) -> Iterator[Ending]:
        state = slow_states(world, completion)[-1]
        if completion and completion[-1] == EOS:
            yield Ending(completion, probability, True, bool(world.success_S[state]))
        elif len(completion) == world.limit:
            yield Ending(completion, probability, False, False)
        else:
            for token in range(world.vocabulary):
                p = exp(world.log_p_LSV[len(completion), state, token])
                if p > 0:
                    yield from walk((*completion, token), probability * p)

    return walk(prefix, 1.0)


def slow_log_probs(world: ExactWorld, table_LSV: Floats, completion: Any) -> list[float]:
    states = slow_states(world, completion)
    return [float(table_LSV[i, states[i], token]) for i, token in enumerate(completion)]


def open_prefixes(world: ExactWorld) -> list[Prefix]:
    """Every prefix that can be continued."""
    return [prefix for depth in range(world.limit) for prefix in product(range(1, world.vocabulary), repeat=depth)]


# -- exact quantities -----------------------------------------------------------------------------------------


@tiny
def test_q_is_the_probability_of_correct_completions(world: ExactWorld) -> None:
    assert sum(ending.probability for ending in endings(world)) == pytest.approx(1)
    prefixes = open_prefixes(world)
    assert len(prefixes) == 1 + 3 + 9 + 27
    for prefix in prefixes:
        expected = [
            sum(ending.probability * ending.won for ending in endings(world, (*prefix, token))) for token in range(4)
        ]
        np.testing.assert_allclose(world.exact_q(tokens(prefix)), expected, atol=1e-12)
    value = sum(ending.probability * ending.won for ending in endings(world))
    assert world.value_LS[0, world.start] == pytest.approx(value)
    assert 0.02 < value < 0.98


@tiny
def test_q_along_a_path_is_q_at_its_prefixes(world: ExactWorld) -> None:
    for ending in endings(world):
        scores = score(world, ending.completion)
        q_C = world.exact_q_along(scores)
        assert len(q_C) == len(scores.token_C)
        for depth in range(len(scores)):
            here = slice(scores.offsets[depth], scores.offsets[depth + 1])
            q_V = world.exact_q(tokens(ending.completion[:depth]))
            np.testing.assert_array_equal(q_C[here], q_V[scores.token_C[here]])
        own = np.flatnonzero(scores.token_C[scores.offsets[-2] :] == ending.completion[-1])[0]
        assert q_C[scores.offsets[-2] + own] == ending.won


@tiny
@pytest.mark.parametrize("forbids", [False, True])
def test_reward_to_go_is_the_mean_log_ratio_of_continuations(world: ExactWorld, forbids: bool) -> None:
    teacher = tiny_teacher(world)
    if forbids:  # a teacher that never ends at the third position: whatever may end there expects minus infinity
        teacher.log_t_LSV[2, :, EOS] = -inf
    forbidden = finite = 0
    for ending in list(endings(world))[::7]:
        scores = score(world, ending.completion, teacher, floor=1e-9)
        to_go_C = world.exact_reward_to_go_along(scores, teacher)
        depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
        for depth, token, found in zip(depth_C, scores.token_C.tolist(), to_go_C, strict=True):
            expected = 0.0
            for later in endings(world, (*ending.completion[:depth], token)):
                log_t = slow_log_probs(world, teacher.log_t_LSV, later.completion)
                log_p = slow_log_probs(world, world.log_p_LSV, later.completion)
                expected += later.probability * (sum(log_t[depth:]) - sum(log_p[depth:]))
            assert found == pytest.approx(expected, abs=1e-10)
            forbidden += np.isneginf(found)
            finite += np.isfinite(found)
    assert finite > 0
    assert (forbidden > 0) == forbids


def test_reward_to_go_at_the_start_is_minus_the_kl_of_whole_sequences() -> None:
    world = TINY[0]
    teacher = tiny_teacher(world)
    kl = 0.0
    for ending in endings(world):
        log_t = slow_log_probs(world, teacher.log_t_LSV, ending.completion)
        kl += ending.probability * (log(ending.probability) - sum(log_t))
    scores = score(world, [1], teacher, floor=1e-9)
    assert len(scores.token_C) == 4
    to_go = world.exact_reward_to_go_along(scores, teacher)
    assert (np.exp(scores.log_p_C) * to_go).sum() == pytest.approx(-kl)
    assert kl > 0.1


def uniform_world(*, limit: int, ends: bool, wins: bool) -> ExactWorld:
    """One state; three equally likely tokens, and optionally the end token."""
    p = np.array([0.25] * 4 if ends else [0.0, 1 / 3, 1 / 3, 1 / 3])
    with np.errstate(divide="ignore"):
        log_p = np.broadcast_to(np.log(p), (limit, 1, 4)).copy()
    return ExactWorld(log_p, np.zeros((limit, 1, 4), np.uint8), np.array([wins]), 0)


def test_truncation_is_a_failure() -> None:
    world = uniform_world(limit=5, ends=False, wins=True)
    assert not world.exact_q(tokens())[1:].any()
    rollouts = world.sample([sample_request(n=50)])
    assert (rollouts.length_R == 5).all()
    assert (rollouts.finish_R == Finish.TRUNCATED).all()
    assert (world.grade(Q, rollouts) == Outcome.INCORRECT).all()
    # The same tokens with an end token would be correct.
    ended = Rollouts.of([[*rollouts.completion(0)[:4], EOS]])
    assert world.grade(Q, ended).tolist() == [Outcome.CORRECT]


def test_a_completion_may_end_at_any_position() -> None:
    world = uniform_world(limit=5, ends=True, wins=True)
    for prefix in open_prefixes(world):
        left = 5 - len(prefix)
        q = world.exact_q(tokens(prefix))
        assert q[EOS] == 1
        np.testing.assert_allclose(q[1:], 1 - 0.75 ** (left - 1), atol=1e-12)
    rollouts = world.sample([sample_request(n=400)])
    stopped_R = rollouts.finish_R == Finish.STOPPED
    assert set(rollouts.length_R[stopped_R]) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(world.grade(Q, rollouts), stopped_R)
    for row in range(len(rollouts)):
        completion = rollouts.completion(row).tolist()
        assert completion.count(EOS) == stopped_R[row] == (completion[-1] == EOS)
        assert stopped_R[row] or len(completion) == 5


def test_random_worlds_may_end_at_every_position() -> None:
    world = ExactWorld.random(0, length=30)
    assert world.limit == 30 + 70
    assert ExactWorld.random(0, length=200, states=8).limit == 300
    assert np.isfinite(world.log_p_LSV).all()
    np.testing.assert_allclose(np.exp(world.log_p_LSV).sum(-1), 1)
    end_L = np.exp(world.log_p_LSV[:, 0, EOS])
    assert (np.diff(end_L) > 0).all()
    # The probability to end does not depend on the state.
    np.testing.assert_allclose(np.exp(world.log_p_LSV[..., EOS]), end_L[:, None] + np.zeros((1, 200)))


# -- samples --------------------------------------------------------------------------------------------------


@tiny
@pytest.mark.parametrize("prefix", [(), (3,), (2, 1)])
def test_samples_follow_the_exact_probabilities(world: ExactWorld, prefix: Prefix) -> None:
    n = 20_000
    rollouts = world.sample([sample_request(prefix, n)])
    assert (rollouts.launch_R == len(prefix)).all()
    seen = Counter(tuple(rollouts.completion(row).tolist()) for row in range(n))
    expected = {ending.completion: n * ending.probability for ending in endings(world, prefix)}
    assert set(seen) <= set(expected)  # nothing impossible, the prefix at the head of all

    often = [completion for completion, count in expected.items() if count >= 5]
    observed = [seen[completion] for completion in often]
    predicted = [expected[completion] for completion in often]
    if n - sum(predicted) > 1e-6:
        observed.append(n - sum(observed))
        predicted.append(n - sum(predicted))
    assert len(observed) > 3
    assert stats.chisquare(observed, predicted).pvalue > 1e-4

    next_token = Counter(completion[len(prefix)] for completion in seen.elements())
    p_V = np.exp(world.log_p_LSV[len(prefix), slow_states(world, prefix)[-1]])
    possible = np.flatnonzero(p_V)
    assert stats.chisquare([next_token[token] for token in possible], n * p_V[possible]).pvalue > 1e-4


@pytest.mark.parametrize("seed", [0, 1])
def test_mean_outcome_is_the_exact_q(seed: int) -> None:
    world = ExactWorld.random(seed, length=40, vocabulary=8, stakes=4.0)
    path = world.sample([sample_request(n=1)]).completion(0)
    n, tested = 4000, 0
    requests = [sample_request(path[:depth], n) for depth in range(0, len(path), 6)]
    rollouts = world.sample(requests)
    outcome_BN = world.grade(Q, rollouts).reshape(len(requests), n)
    for request, outcome_N in zip(requests, outcome_BN, strict=True):
        depth = len(request.prefix)
        q = world.value_LS[depth, slow_states(world, request.prefix.tolist())[-1]]
        p_V = np.exp(world.log_p_LSV[depth, slow_states(world, request.prefix.tolist())[-1]])
        assert q == pytest.approx((p_V * world.exact_q(request.prefix)).sum())
        assert abs(outcome_N.mean() - q) <= 4 * sqrt(q * (1 - q) / n) + 1e-12
        tested += 0.02 < q < 0.98
    assert tested >= 3


def test_outcome_is_left_to_the_grader() -> None:
    assert (TINY[0].sample([sample_request(n=10)]).outcome_R == Outcome.UNKNOWN).all()


@pytest.mark.parametrize("world", TINY[:2])
def test_grade_agrees_with_brute_force(world: ExactWorld) -> None:
    all_endings = list(endings(world))
    rollouts = Rollouts.of(
        [ending.completion for ending in all_endings], truncated=[not ending.stopped for ending in all_endings]
    )
    assert world.grade(Q, rollouts).tolist() == [ending.won for ending in all_endings]
    assert len({ending.won for ending in all_endings}) == 2


def rows_of(rollouts: Rollouts) -> list[tuple[Any, ...]]:
    columns = (rollouts.key_R, rollouts.launch_R, rollouts.finish_R)
    return [
        (*(int(column[row]) for column in columns), tuple(rollouts.completion(row).tolist()))
        for row in range(len(rollouts))
    ]


request_lists = st.lists(
    st.builds(
        sample_request,
        st.lists(st.integers(1, 3), max_size=4),
        st.integers(0, 5),
        st.integers(0, 9),
        st.sampled_from([Question("a"), Question("b")]),
    ),
    max_size=6,
)
properties = settings(deadline=None, max_examples=60)


@properties
@given(request_lists, st.data())
def test_a_request_does_not_depend_on_the_others(requests: list[SampleRequest], data: st.DataObject) -> None:
    world = TINY[0]
    alone = [rows_of(world.sample([request])) for request in requests]
    assert [len(rows) for rows in alone] == [request.n for request in requests]
    order = data.draw(st.permutations(range(len(requests))))
    together = rows_of(world.sample([requests[i] for i in order]))
    assert together == [row for i in order for row in alone[i]]


@properties
@given(st.lists(st.integers(1, 3), max_size=4), st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
def test_a_request_may_be_split(prefix: list[int], n: int, more: int, first: int) -> None:
    world = TINY[0]
    whole = world.sample([sample_request(prefix, n + more, first)])
    parts = world.sample([sample_request(prefix, n, first), sample_request(prefix, more, first + n)])
    assert rows_of(whole) == rows_of(parts)


def test_keys_identify_the_rollout() -> None:
    world = TINY[0]
    prefixes = open_prefixes(world)
    requests = [sample_request(prefix, 50, question=Question(name)) for prefix in prefixes for name in "ab"]
    rollouts = world.sample(requests)
    assert len(np.unique(rollouts.key_R)) == len(rollouts) == 50 * 2 * len(prefixes)
    np.testing.assert_array_equal(rollouts.key_R[:50], requests[0].keys(world.fingerprint))
    # Another index, question or world gives other keys and other samples.
    long = ExactWorld.random(0, length=20)
    base = {row[-1] for row in rows_of(long.sample([sample_request(n=20)]))}
    for other in (sample_request(n=20, first=20), sample_request(n=20, question=Question("r"))):
        found = rows_of(long.sample([other]))
        assert len(base & {row[-1] for row in found}) < 5
    assert not set(long.sample([sample_request(n=20)]).key_R) & set(
        ExactWorld.random(1, length=20).sample([sample_request(n=20)]).key_R
    )


def test_no_requests_give_no_rollouts() -> None:
    assert len(TINY[0].sample([])) == 0
    assert len(TINY[0].sample([sample_request(n=0), sample_request((1,), 0)])) == 0


def test_a_prefix_of_maximum_length_is_truncated() -> None:
    rollouts = TINY[0].sample([sample_request((1, 2, 3, 1), 3), sample_request((1, 2), 2)])
    assert rollouts.finish_R[:3].tolist() == [Finish.TRUNCATED] * 3
    assert [rollouts.completion(row).tolist() for row in range(3)] == [[1, 2, 3, 1]] * 3
    assert rollouts.completion(3)[:2].tolist() == [1, 2]


# -- invalid inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [(1, 2, 3, 1, 2), (EOS,), (1, EOS, 2), (4,), (1, 9)])
def test_invalid_prefixes_raise(prefix: Prefix) -> None:
    with pytest.raises(OpdAlignError, match="prefix"):
        TINY[0].sample([sample_request(), sample_request(prefix)])
    with pytest.raises(OpdAlignError, match="prefix"):
        TINY[0].exact_q(tokens(prefix))


def test_a_prefix_of_maximum_length_has_no_next_token() -> None:
    with pytest.raises(OpdAlignError, match="prefix"):
        TINY[0].exact_q(tokens((1, 2, 3, 1)))


@pytest.mark.parametrize(
    "options",
    [
        {"length": 3},
        {"length": 0},
        {"length": -5},
        {"vocabulary": 3},
        {"states": 3},
        {"states": 257},
        {"states": -1},
        {"forks": -0.1},
        {"forks": 1.1},
        {"forks": float("nan")},
        {"peakedness": 0.5},
        {"peakedness": 1.0},
        {"stakes": -1.0},
        {"stakes": float("nan")},
        {"stakes": inf},
    ],
    ids=str,
)
def test_invalid_options_raise(options: dict[str, Any]) -> None:
    with pytest.raises(OpdAlignError, match=next(iter(options))):
        ExactWorld.random(0, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"length": 4, "vocabulary": 4, "states": 4},
        {"length": 10, "states": 256},
        {"length": 10, "forks": 0.0},
        {"length": 10, "forks": 1.0, "stakes": 0.0},
    ],
    ids=str,
)
def test_extreme_valid_options_give_a_world(options: dict[str, Any]) -> None:
    world = ExactWorld.random(0, **options)
    np.testing.assert_allclose(np.exp(world.log_p_LSV).sum(-1), 1)
    assert world.next_LSV.max() < len(world.success_S)
    assert len(world.sample([sample_request(n=3)])) == 3


def test_sampling_large_vocabularies_raises() -> None:
    assert len(ExactWorld.random(0, length=4, vocabulary=256, states=4).sample([sample_request()])) == 1
    with pytest.raises(OpdAlignError, match="256"):
        ExactWorld.random(0, length=4, vocabulary=257, states=4).sample([sample_request()])


# -- seeds ----------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_world() -> None:
    one, again = ExactWorld.random(5, length=20), ExactWorld.random(5, length=20)
    assert one.fingerprint == again.fingerprint
    assert rows_of(one.sample([sample_request(n=5)])) == rows_of(again.sample([sample_request(n=5)]))
    others = [
        ExactWorld.random(6, length=20),
        ExactWorld.random(5, length=21),
        ExactWorld.random(5, length=20, stakes=2.0),
        ExactWorld.random(5, length=20, forks=0.5),
        ExactWorld(one.log_p_LSV, one.next_LSV, one.success_S, one.start + 1),
        ExactWorld(one.log_p_LSV, one.next_LSV, ~one.success_S, one.start),
    ]
    assert len({world.fingerprint for world in (one, *others)}) == 1 + len(others)


def test_teachers_depend_on_their_seed() -> None:
    world = ExactWorld.random(5, length=20)
    for make in (world.tilted_teacher, world.adversarial_teacher, world.style_teacher):
        np.testing.assert_array_equal(make(seed=1).log_t_LSV, make(seed=1).log_t_LSV)
        assert (make(seed=1).log_t_LSV != make(seed=2).log_t_LSV).any()


# -- scores ---------------------------------------------------------------------------------------------------


def slow_comparison(p_V: list[float], t_V: list[float]) -> dict[str, float]:
    """Entropies in nats, divergences over the full vocabulary."""

    def kl(a_V: list[float], b_V: list[float]) -> float:
        return sum(a * (log(a) - (log(b) if b > 0 else -inf)) for a, b in zip(a_V, b_V, strict=True) if a > 0)

    def dot(a_V: list[float], b_V: list[float]) -> float:
        return sum(a * b for a, b in zip(a_V, b_V, strict=True))

    m_V = [(p + t) / 2 for p, t in zip(p_V, t_V, strict=True)]
    return {
        "kl": kl(p_V, t_V),
        "js": (kl(p_V, m_V) + kl(t_V, m_V)) / 2,
        "l2": sqrt(sum((p - t) ** 2 for p, t in zip(p_V, t_V, strict=True))),
        "cosine": dot(p_V, t_V) / sqrt(dot(p_V, p_V) * dot(t_V, t_V)),
        "entropy": -sum(t * log(t) for t in t_V if t > 0),
    }


@pytest.mark.parametrize("floor", [0.02, 0.2, 1e-12])
@pytest.mark.parametrize("holes", [0.0, 0.4])
def test_scores_agree_with_a_loop_over_the_vocabulary(floor: float, holes: float) -> None:
    rng = np.random.default_rng(3)
    shape = (8, 3, 6)
    next_LSV = rng.integers(0, 3, shape).astype(np.uint8)
    world = ExactWorld(log_table(rng, shape, holes), next_LSV, np.array([True, False, True]), 1)
    # An unrelated teacher has other zero probabilities than the student.
    teachers = [tiny_teacher(world), ExactTeacher("free", log_table(rng, shape, holes))]
    keep = [(0, 5), (3, 2), (3, 4), (3, 4), (4, 1)]
    for row in range(3):
        completion = world.sample([sample_request(n=3)]).completion(row).tolist()
        completion = [*completion[:-1], 1, 2, 3, 4, 5, 1, 2][:7]
        scores = score(world, completion, *teachers, floor=floor, keep=keep)
        assert list(scores.teachers) == ["random", "free"]
        assert scores.completion_T.tolist() == completion
        assert len(scores) == len(scores.entropy_T) == len(scores.offsets) - 1 == 7
        assert scores.offsets[-1] == len(scores.token_C) == len(scores.log_p_C)
        states = slow_states(world, completion)
        for depth, own in enumerate(completion):
            p_V = np.exp(world.log_p_LSV[depth, states[depth]]).tolist()
            t = {teacher.name: np.exp(teacher.log_t_LSV[depth, states[depth]]).tolist() for teacher in teachers}
            kept = [
                token
                for token in range(6)
                if token == own
                or (depth, token) in keep
                or p_V[token] > floor
                or any(t_V[token] > floor for t_V in t.values())
            ]
            here = slice(scores.offsets[depth], scores.offsets[depth + 1])
            assert scores.token_C[here].tolist() == kept
            np.testing.assert_allclose(np.exp(scores.log_p_C[here]), [p_V[token] for token in kept], atol=1e-15)
            assert scores.entropy_T[depth] == pytest.approx(slow_comparison(p_V, p_V)["entropy"])
            for name, t_V in t.items():
                found = scores.teachers[name]
                np.testing.assert_allclose(np.exp(found.log_t_C[here]), [t_V[token] for token in kept], atol=1e-15)
                for column, value in slow_comparison(p_V, t_V).items():
                    assert getattr(found, f"{column}_T")[depth] == pytest.approx(value, abs=1e-12), column


def test_each_rule_alone_keeps_a_token() -> None:
    p = np.log([0.004, 0.9, 0.05, 0.04, 0.005, 0.001])
    t = np.log([0.004, 0.9, 0.001, 0.005, 0.05, 0.04])
    world = ExactWorld(p.reshape(1, 1, 6), np.zeros((1, 1, 6), np.uint8), np.array([True]), 0)
    teacher = ExactTeacher("t", t.reshape(1, 1, 6))
    assert score(world, [1]).token_C.tolist() == [1, 2, 3]
    assert score(world, [1], teacher).token_C.tolist() == [1, 2, 3, 4, 5]
    assert score(world, [5]).token_C.tolist() == [1, 2, 3, 5]
    assert score(world, [1], keep=[(0, 4)]).token_C.tolist() == [1, 2, 3, 4]
    assert score(world, [1], floor=0.045).token_C.tolist() == [1, 2]
    # Probabilities are normalized over the full vocabulary, whichever tokens are kept.
    assert np.exp(score(world, [1]).log_p_C).sum() == pytest.approx(0.99)
    assert np.exp(score(world, [1], floor=1e-9).log_p_C).sum() == pytest.approx(1)


def test_a_teacher_equal_to_the_student_has_zero_divergence() -> None:
    world = ExactWorld.random(2, length=20)
    same = score(world, world.sample([sample_request()]).completion(0), ExactTeacher("same", world.log_p_LSV)).teachers[
        "same"
    ]
    for column in ("kl_T", "js_T", "l2_T"):
        np.testing.assert_allclose(getattr(same, column), 0, atol=1e-15)
    np.testing.assert_allclose(same.cosine_T, 1)


def test_overlap_of_the_most_likely_tokens_as_in_the_transformers_backend() -> None:
    rng = np.random.default_rng(0)
    log_p_TV, log_t_TV = (np.log(rng.dirichlet(np.full(60, 0.3), 40)) for _ in range(2))
    log_p_TV[:, 30:] = -np.inf  # as if sampling had cut these off
    ours = exact._overlap(log_p_TV, log_t_TV)
    theirs = scoring_columns._overlap(*(torch.from_numpy(values) for values in (log_p_TV, log_t_TV)))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other.numpy())
    assert 0 < ours[0].mean() < 0.6
    same, advantage = exact._overlap(log_t_TV, log_t_TV)
    assert (same == 1).all()
    np.testing.assert_allclose(advantage, 0, atol=1e-15)
    with np.errstate(divide="ignore"):
        apart = exact._overlap(np.log([[1.0, 0.0]]), np.log([[0.0, 1.0]]))
    assert apart[0].tolist() == [0.0]
    assert np.isnan(apart[1]).all(), "without an overlap there is no advantage"


@tiny
def test_token_log_probs_agree_with_a_walk(world: ExactWorld) -> None:
    teacher = tiny_teacher(world)
    rollouts = world.sample([sample_request(n=30), sample_request((2, 1), 20), sample_request((3,), 20)])
    rollouts = rollouts.take(np.random.default_rng(0).permutation(70))
    for who, table_LSV in ((None, world.log_p_LSV), (teacher, teacher.log_t_LSV)):
        expected = [
            value for row in range(70) for value in slow_log_probs(world, table_LSV, rollouts.completion(row).tolist())
        ]
        np.testing.assert_array_equal(world.token_log_probs(Q, rollouts, who), expected)
    assert world.token_log_probs(Q, Rollouts.of([]), teacher).shape == (0,)


# -- teachers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visited:
    """One-step advantage and total variation of a teacher at the nodes of some completions."""

    advantage_N: Floats
    variation_N: Floats


def visit(world: ExactWorld, teacher: ExactTeacher) -> Visited:
    rollouts = world.sample([sample_request(n=12)])
    advantage, variation = [], []
    for row in range(12):
        completion = rollouts.completion(row)
        for depth, state in enumerate(slow_states(world, completion.tolist())[:-1]):
            gap_V = np.exp(teacher.log_t_LSV[depth, state]) - np.exp(world.log_p_LSV[depth, state])
            advantage.append(float((gap_V * world.exact_q(completion[:depth])).sum()))
            variation.append(float(np.abs(gap_V).sum() / 2))
    return Visited(np.array(advantage), np.array(variation))


def policy_value(world: ExactWorld, teacher: ExactTeacher) -> float:
    """Success probability of the teacher's own completions."""
    policy = ExactWorld(teacher.log_t_LSV, world.next_LSV, world.success_S, world.start)
    return float(policy.value_LS[0, world.start])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tilted_teachers_raise_success_and_adversarial_ones_lower_it(seed: int) -> None:
    world = ExactWorld.random(seed, length=40, vocabulary=10, states=60)
    student = world.value_LS[0, world.start]
    tilted, adversarial = world.tilted_teacher(), world.adversarial_teacher()
    for teacher in (tilted, adversarial):
        np.testing.assert_allclose(np.exp(teacher.log_t_LSV).sum(-1), 1)
    assert visit(world, tilted).advantage_N.mean() > 1e-4
    assert visit(world, adversarial).advantage_N.mean() < -1e-4
    assert policy_value(world, adversarial) + 0.1 < student < policy_value(world, tilted) - 0.1
    # Without noise, a positive tilt cannot lower success at any node, and a negative one cannot raise it.
    pure, turned = world.tilted_teacher(noise=0.0), world.tilted_teacher(noise=0.0, strength=-8.0)
    assert visit(world, pure).advantage_N.min() > -1e-12
    assert visit(world, turned).advantage_N.max() < 1e-12
    np.testing.assert_array_equal(turned.log_t_LSV, world.adversarial_teacher(noise=0.0).log_t_LSV)


@pytest.mark.parametrize("world", [ExactWorld.random(0, length=40, vocabulary=10, states=60), *TINY])
def test_style_teacher_differs_only_where_success_does_not_change(world: ExactWorld) -> None:
    style = world.style_teacher()
    np.testing.assert_allclose(np.exp(style.log_t_LSV).sum(-1), 1)
    differs = 0
    for position in range(world.limit):
        after_SV = world.value_LS[position + 1][world.next_LSV[position]]
        after_SV[:, EOS] = world.success_S
        at_stake_SV = np.abs(after_SV - world.value_LS[position][:, None]) > 0.0101
        log_p_SV, log_t_SV = world.log_p_LSV[position], style.log_t_LSV[position]
        np.testing.assert_allclose(np.exp(log_t_SV[at_stake_SV]), np.exp(log_p_SV[at_stake_SV]), atol=1e-12)
        differs += int((np.abs(np.exp(log_t_SV) - np.exp(log_p_SV)) > 0.01).sum())
    if world.limit > 4:
        visited = visit(world, style)
        assert differs > 100
        assert visited.variation_N.mean() > 0.02
        assert (np.abs(visited.advantage_N) <= 0.0101 * 2 * visited.variation_N + 1e-12).all()


def test_style_teacher_keeps_zero_probabilities() -> None:
    """The only neutral token has probability zero for the student: there is no mass to move."""
    p_LSV = np.zeros((2, 3, 4))
    p_LSV[0, :] = [0, 0.5, 0.5, 0]  # token 1 leads to state 0, which wins, token 2 to state 1, which loses
    p_LSV[1, :2, EOS] = 1
    p_LSV[1, 2] = [0.5, 0.5, 0, 0]  # token 3 would lead to state 2, worth as much as the start
    next_LSV = np.broadcast_to(np.array([0, 0, 1, 2], np.uint8), (2, 3, 4)).copy()
    with np.errstate(divide="ignore"):
        world = ExactWorld(np.log(p_LSV), next_LSV, np.array([True, False, True]), 0)
    assert world.exact_q(tokens()).tolist() == [1, 1, 0, 0.5]
    np.testing.assert_array_equal(world.style_teacher().log_t_LSV[0, 0], world.log_p_LSV[0, 0])


# -- families -------------------------------------------------------------------------------------------------


def test_a_family_uses_the_world_of_the_question() -> None:
    family = ExactFamily.random(4, 2, length=12, vocabulary=6)
    one, two = family.questions
    assert {one.id, two.id} == set(family.worlds)
    teacher = family.teacher("tilt", lambda world: world.tilted_teacher("ignored"))
    requests = [
        sample_request(n=3, question=one),
        sample_request((1,), 2, question=two),
        sample_request((2,), 2, question=one),
    ]
    rollouts = family.sample(requests)
    expected = [family.worlds[request.question.id].sample([request], family.fingerprint) for request in requests]
    assert rows_of(rollouts) == [row for part in expected for row in rows_of(part)]
    assert rollouts.key_R[:3].tolist() == requests[0].keys(family.fingerprint).tolist()

    own, world = rollouts.take(np.array([0, 1, 2, 5, 6])), family.worlds[one.id]
    own_teacher = teacher.teachers[one.id]
    np.testing.assert_array_equal(family.grade(one, own), world.grade(one, own))
    for who, who_alone in ((None, None), (teacher, own_teacher)):
        found = family.token_log_probs(one, own, who)
        np.testing.assert_array_equal(found, world.token_log_probs(one, own, who_alone))
    wanted = ScoreRequest(one, own.completion(0), np.empty(0, np.int64), tokens(), 0.02)
    scores = family.score(wanted, [teacher])
    alone = world.score(wanted, [own_teacher])
    np.testing.assert_array_equal(scores.teachers["tilt"].log_t_C, alone.teachers["ignored"].log_t_C)
    np.testing.assert_array_equal(scores.token_C, alone.token_C)
    assert family.fingerprint != ExactFamily.random(5, 2, length=12, vocabulary=6).fingerprint


def test_a_family_raises_for_an_unknown_question() -> None:
    family = ExactFamily.random(4, 1, length=12, vocabulary=6)
    teacher, unknown = family.teacher("tilt", lambda world: world.tilted_teacher()), Question("no-such-world")
    rollouts = family.sample([sample_request(question=family.questions[0])])
    wanted = ScoreRequest(unknown, tokens([1]), np.empty(0, np.int64), tokens(), 0.02)
    for call in (
        lambda: family.sample([sample_request(question=unknown)]),
        lambda: family.grade(unknown, rollouts),
        lambda: family.score(wanted, [teacher]),
        lambda: family.token_log_probs(unknown, rollouts, teacher),
    ):
        with pytest.raises(OpdAlignError, match="no-such-world"):
            call()


# -- size -----------------------------------------------------------------------------------------------------


def test_a_world_of_thirty_thousand_tokens_uses_little_memory() -> None:
    started = time.process_time()
    world = ExactWorld.random(0, length=30_000, vocabulary=6)
    assert world.log_p_LSV.shape == (45_000, 24, 6)
    assert world.log_p_LSV.nbytes + world.next_LSV.nbytes < 100e6
    rollouts = world.sample([sample_request(n=2)])
    assert 15_000 < rollouts.length_R.mean() < 45_000
    assert 0.1 < world.value_LS[0, world.start] < 0.9

    completion = rollouts.completion(0)
    scores = score(world, completion, ExactTeacher("t", world.log_p_LSV), floor=1e-12)
    p_C, q_C = np.exp(scores.log_p_C), world.exact_q_along(scores)
    # The success probability of a node equals that of the child that led there.
    value_T = np.add.reduceat(p_C * q_C, scores.offsets[:-1])
    own_C = scores.token_C == np.repeat(completion, np.diff(scores.offsets))
    np.testing.assert_allclose(q_C[own_C][:-1], value_T[1:], atol=1e-9)
    assert q_C[own_C][-1] == world.grade(Q, rollouts)[0]
    flat = world.token_log_probs(Q, rollouts, None)
    np.testing.assert_array_equal(flat[: len(completion)], scores.log_p_C[own_C])
    assert time.process_time() - started < 60
