"""Rollouts of a run that continue given prefixes, found among all that it stored.

Every shard is read once and only what is returned stays in memory. Which rollouts are returned depends on their content
keys alone, never on the order of the shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from opd_align.runs.filesystem import PathLike, as_path, error_reason
from opd_align.runs.rollout_store import ROLLOUTS, DamagedFileError, check_reuse, read_shard
from opd_align.types import Finish, OpdAlignError, Outcome, Rollouts, Tokens


@dataclass(frozen=True)
class Wanted:
    """A prefix, and how the rollouts that continue it should end.

    Args:
        question: Id of the question.
        prefix: Completion tokens that a rollout must begin with.
        outcome: The verdict that it must have.
    """

    question: str
    prefix: tuple[int, ...]
    outcome: Outcome


def continuations(run: PathLike, wanted: Sequence[Wanted], *, n: int = 1) -> list[list[Tokens]]:
    """For each entry, up to `n` different completions of the run that begin and end as wanted, whole.

    Truncated completions are left out: they have no end that could be learned.

    Args:
        run: The run directory.
        wanted: What to look for.
        n: Largest number of completions per entry.
    """
    folder = as_path(run)
    check_reuse(folder)
    by_question: dict[str, list[int]] = {}
    for index, entry in enumerate(wanted):
        by_question.setdefault(entry.question, []).append(index)
    found: list[dict[bytes, tuple[int, Tokens]]] = [{} for _ in wanted]
    for file in (folder / ROLLOUTS).glob("*.parquet"):
        try:
            batch = read_shard(file)
        except (OSError, DamagedFileError) as error:
            reason = error_reason(error) if isinstance(error, OSError) else error
            raise OpdAlignError(f"could not read {str(file)!r}: {reason}") from error
        if batch is not None:
            question_R = np.array(batch.question_R[: len(batch.rollouts)], object)
            for question in set(question_R.tolist()) & by_question.keys():
                rollouts = batch.rollouts.take(question_R == question)
                _add(found, rollouts, {index: wanted[index] for index in by_question[question]}, n)
    return [[tokens for _, tokens in sorted(each.values(), key=lambda entry: entry[0])] for each in found]


def _add(
    found: list[dict[bytes, tuple[int, Tokens]]], rollouts: Rollouts, wanted: Mapping[int, Wanted], n: int
) -> None:
    """Adds the matching rollouts of one question; of equal completions the smallest key counts."""
    length_R, start_R = rollouts.length_R, rollouts.offsets[:-1]
    for index, entry in wanted.items():
        depth = len(entry.prefix)
        usable_R = (length_R >= depth) & (rollouts.outcome_R == entry.outcome) & (rollouts.finish_R == Finish.STOPPED)
        rows = np.flatnonzero(usable_R)
        # The last token of the prefix rules out most rollouts, before whole prefixes are compared.
        if depth:
            rows = rows[rollouts.tokens[start_R[rows] + depth - 1] == entry.prefix[-1]]
        prefix = np.array(entry.prefix, rollouts.tokens.dtype)
        for row in rows.tolist():
            tokens = rollouts.completion(row)
            if np.array_equal(tokens[:depth], prefix):
                content, key = tokens.tobytes(), int(rollouts.key_R[row])
                before = found[index].get(content)
                if before is None or key < before[0]:
                    found[index][content] = (key, tokens.copy())
        if len(found[index]) > n:
            found[index] = dict(nsmallest(n, found[index].items(), key=lambda item: item[1][0]))
