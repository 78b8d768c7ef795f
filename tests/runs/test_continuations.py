"""Stored rollouts that continue a prefix: those of a slow twin, whatever the order of the shards; prompts of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opd_align.runs.continuations import Wanted, continuations
from opd_align.runs.rollout_store import Batch, write_shard
from opd_align.runs.run_prompts import RunPrompts
from opd_align.types import OpdAlignError, Outcome, Rollouts

RNG = np.random.default_rng(0)


def batch(question: str, first: int, n: int = 60) -> Batch:
    completions = [RNG.integers(0, 3, RNG.integers(1, 6)).tolist() for _ in range(n)]
    rollouts = Rollouts.of(
        completions,
        outcome=RNG.integers(0, 2, n).tolist(),
        key=[int(key) for key in RNG.permutation(n) + first],
        truncated=(RNG.random(n) < 0.2).tolist(),
    )
    return Batch(rollouts, [question] * n)


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return [batch("a", 0), batch("b", 1000), batch("a", 2000)]


def stored(folder: Path, batches: list[Batch]) -> Path:
    (folder / "rollouts").mkdir(parents=True)
    for number, each in enumerate(batches):
        write_shard(folder / "rollouts" / f"{number}.parquet", each)
    return folder


def slow(batches: list[Batch], wanted: Wanted, n: int) -> list[tuple[int, ...]]:
    found: dict[tuple[int, ...], int] = {}
    for each in batches:
        rollouts = each.rollouts
        for row in range(len(rollouts)):
            tokens = tuple(rollouts.completion(row).tolist())
            usable = rollouts.outcome_R[row] == wanted.outcome and rollouts.finish_R[row] == 0
            if usable and each.question_R[row] == wanted.question and tokens[: len(wanted.prefix)] == wanted.prefix:
                found[tokens] = min(found.get(tokens, 10**9), int(rollouts.key_R[row]))
    return sorted(found, key=lambda tokens: found[tokens])[:n]


@pytest.mark.parametrize("n", [1, 3, 100])
def test_continuations_are_those_of_a_slow_twin(tmp_path, batches, n):
    wanted = [
        Wanted(question, prefix, outcome)
        for question in "abc"
        for prefix in [(), (0,), (1, 2), (2, 2, 1, 0)]
        for outcome in (Outcome.CORRECT, Outcome.INCORRECT)
    ]
    expected = [slow(batches, each, n) for each in wanted]
    assert sum(map(len, expected)) > 5
    for name, order in (("one", batches), ("other", batches[::-1])):
        found = continuations(stored(tmp_path / name, order), wanted, n=n)
        assert [[tuple(tokens.tolist()) for tokens in each] for each in found] == expected


def test_a_folder_without_rollouts_is_refused(tmp_path):
    with pytest.raises(OpdAlignError, match="not a run directory"):
        continuations(tmp_path, [])


def test_prompts_are_restored_and_merged(tmp_path):
    prompts = RunPrompts("model", {"a": [{"role": "user", "content": "1 + 1 = ?"}]})
    prompts.save(tmp_path)
    assert RunPrompts.load(tmp_path) == prompts
    other = RunPrompts("model", {"b": [{"role": "user", "content": "?"}]})
    merged = RunPrompts.merged([prompts, other])
    assert merged is not None
    assert set(merged.messages) == {"a", "b"}
    assert RunPrompts.merged([prompts, None]) is None
    assert RunPrompts.merged([prompts, RunPrompts("another", {})]) is None


def test_damaged_prompts_are_named(tmp_path):
    assert RunPrompts.load(tmp_path) is None
    (tmp_path / "prompts.json").write_text('{"tokenizer": "x", "messages": [1]}')
    with pytest.raises(OpdAlignError, match=r"prompts\.json"):
        RunPrompts.load(tmp_path)
