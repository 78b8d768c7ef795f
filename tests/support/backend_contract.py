"""The contract of all backends (exact world, hf, vLLM, server) as checks that run on any student.

A backend's test builds a small student whose vocabulary can be enumerated and calls these functions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from scipy.stats import chisquare

from opd_align.types import Finish, Outcome, Question, Rollouts, SampleRequest, ScoreRequest

NOTHING = np.empty(0, np.uint32)


def tokens(*values: int) -> Any:
    return np.array(values, np.uint32)


def rows_of(rollouts: Rollouts) -> list[tuple[int, ...]]:
    return [tuple(rollouts.completion(row).tolist()) for row in range(len(rollouts))]


def score_request(question: Question, completion: Any, *, floor: float = 0.02, keep: Any = ()) -> ScoreRequest:
    keep = list(keep)
    return ScoreRequest(
        question,
        np.asarray(completion, np.uint32),
        np.array([depth for depth, _ in keep], np.int64),
        np.array([token for _, token in keep], np.uint32),
        floor,
    )


def next_token_probabilities(student: Any, question: Question, prefix: Any, filler: int) -> dict[int, float]:
    """The student's scored next-token probabilities after a prefix; `filler` is the path's token, the floor is ~0."""
    scores = student.score(score_request(question, [*prefix, filler], floor=1e-30), [])
    last = slice(scores.offsets[-2], scores.offsets[-1])
    return dict(zip(scores.token_C[last].tolist(), np.exp(scores.log_p_C[last]).tolist(), strict=True))


def assert_drawn_from(counts: Counter[Any], probability: dict[Any, float]) -> None:
    """Chi-square test; outcomes with expected counts below five are pooled, impossible ones must not occur."""
    n = sum(counts.values())
    assert n > 0
    impossible = [outcome for outcome in counts if probability.get(outcome, 0.0) == 0.0]
    assert not impossible
    common = [outcome for outcome, p in probability.items() if p * n >= 5]
    observed = [counts[outcome] for outcome in common]
    expected = [probability[outcome] * n for outcome in common]
    if n - sum(expected) > 1e-3:
        observed.append(n - sum(observed))
        expected.append(n - sum(expected))
    assert len(observed) > 1
    expected_array = np.array(expected) * sum(observed) / sum(expected)
    assert chisquare(observed, expected_array).pvalue > 1e-4


def check_sampler(student: Any, question: Question, *, prefix: Any, n: int = 20) -> None:
    """Shapes, launch depths, keys, finish flags, end tokens, prefixes; `prefix` must be one that can be continued."""
    requests = [SampleRequest(question, NOTHING, n), SampleRequest(question, prefix, n, first=3)]
    rollouts = student.sample(requests)
    assert len(rollouts) == 2 * n
    assert rollouts.launch_R.tolist() == [0] * n + [len(prefix)] * n
    keys = np.concatenate(student.keys(requests))
    assert rollouts.key_R.tolist() == keys.tolist()
    assert (rollouts.outcome_R == Outcome.UNKNOWN).all()
    assert not rollouts.failures
    ends = np.array(sorted(student.end_tokens))
    for row in range(len(rollouts)):
        completion = rollouts.completion(row)
        launch = int(rollouts.launch_R[row])
        assert completion[:launch].tolist() == prefix[:launch].tolist()
        assert not np.isin(completion[:-1], ends).any()
        stopped = bool(len(completion)) and completion[-1] in ends
        assert rollouts.finish_R[row] == (Finish.STOPPED if stopped else Finish.TRUNCATED)
    assert len(student.sample([])) == 0


def check_batches_do_not_matter(student: Any, question: Question, *, prefix: Any, n: int = 24) -> None:
    """The same rollout alone, in a larger batch, in another order, and with `n` split by `first`."""
    whole = student.sample([SampleRequest(question, prefix, n)])
    head = SampleRequest(question, prefix, n // 3)
    tail = SampleRequest(question, prefix, n - n // 3, first=n // 3)
    other = SampleRequest(question, NOTHING, 7)
    mixed = student.sample([tail, other, head])
    split = n - n // 3
    assert rows_of(mixed)[split + 7 :] + rows_of(mixed)[:split] == rows_of(whole)
    assert rows_of(mixed)[split : split + 7] == rows_of(student.sample([other]))
    fresh = student.sample([SampleRequest(question, prefix, n, first=n)])
    assert not set(fresh.key_R.tolist()) & set(whole.key_R.tolist())
    assert rows_of(fresh) != rows_of(whole)


def check_frequencies(student: Any, question: Question, *, prefix: Any, n: int = 3000) -> None:
    """Next-token frequencies match the scorer's probabilities, at depth 0 and after a forced prefix."""
    filler = int(next(iter(student.end_tokens)))
    rollouts = student.sample([SampleRequest(question, NOTHING, n), SampleRequest(question, prefix, n)])
    for start, before in ((0, NOTHING), (n, prefix)):
        drawn = Counter(int(rollouts.completion(row)[len(before)]) for row in range(start, start + n))
        assert_drawn_from(drawn, next_token_probabilities(student, question, before, filler))


def check_whole_completions(student: Any, question: Question, *, vocabulary: int, limit: int, n: int = 4000) -> None:
    """Frequencies of whole completions match the product of their tokens' probabilities; all are enumerated."""
    ends = set(student.end_tokens)
    filler = min(ends)
    probability: dict[tuple[int, ...], float] = {}

    def walk(prefix: tuple[int, ...], mass: float) -> None:
        if (prefix and prefix[-1] in ends) or len(prefix) == limit:
            probability[prefix] = mass
            return
        following = next_token_probabilities(student, question, prefix, filler)
        for token in range(vocabulary):
            walk((*prefix, token), mass * following.get(token, 0.0))

    walk((), 1.0)
    assert abs(sum(probability.values()) - 1) < 1e-4
    assert_drawn_from(Counter(rows_of(student.sample([SampleRequest(question, NOTHING, n)]))), probability)


def check_scorer(student: Any, question: Question, teachers: Any, *, completion: Any, vocabulary: int) -> None:
    """Probabilities sum to one; the path's token and the requested ones are kept, in order; teachers likewise."""
    everything = student.score(score_request(question, completion, floor=1e-30), teachers)
    assert len(everything) == len(completion)
    assert list(everything.teachers) == [teacher.name for teacher in teachers]
    depth_C = np.repeat(np.arange(len(completion)), np.diff(everything.offsets))
    np.testing.assert_allclose(np.bincount(depth_C, np.exp(everything.log_p_C)), 1, atol=1e-5)
    for scores in everything.teachers.values():
        # Tokens that only the teacher finds likely are kept too.
        np.testing.assert_allclose(np.bincount(depth_C, np.exp(scores.log_t_C)), 1, atol=1e-5)
        assert (scores.kl_T >= 0).all()
        assert ((scores.js_T >= 0) & (scores.js_T <= np.log(2) + 1e-6)).all()
        assert (scores.cosine_T <= 1 + 1e-6).all()
    rare = (len(completion) - 1, vocabulary - 1)
    few = student.score(score_request(question, completion, floor=0.999, keep=[rare]), teachers)
    for depth in range(len(completion)):
        children = few.token_C[few.offsets[depth] : few.offsets[depth + 1]].tolist()
        assert children == sorted(set(children))
        assert completion[depth] in children
    assert rare[1] in few.token_C[few.offsets[-2] :]
    own_C = few.token_C == np.repeat(few.completion_T, np.diff(few.offsets))
    rollouts = Rollouts.of([completion, completion[:1]])
    flat = student.token_log_probs(question, rollouts, None)
    np.testing.assert_allclose(flat[: len(completion)], few.log_p_C[own_C], atol=1e-5)
    np.testing.assert_allclose(flat[len(completion) :], flat[:1], atol=1e-5)
    for teacher in teachers:
        flat = student.token_log_probs(question, rollouts, teacher)
        np.testing.assert_allclose(flat[: len(completion)], few.teachers[teacher.name].log_t_C[own_C], atol=1e-5)
