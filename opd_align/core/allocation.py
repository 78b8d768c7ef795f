"""Allocation of targeted rollouts: which paths to analyze, which (node, token) to sample next, and when to stop.

`paper` plans once: per path and exponential depth window, the tokens with the largest updates and the largest
probability gaps, each brought up to a fixed number of visits. `adaptive` visits each token once, then plans in rounds
from the estimates: it samples where the outcome is uncertain and matters for the results. All teachers share one tree.

This module only plans; `collect` samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opd_align.core.estimate import common_prefix
from opd_align.core.objectives import LOG_FLOOR, unified_update
from opd_align.core.path_estimate import CERTAIN, PathEstimate
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget
from opd_align.types import Finish, Floats, Ints, PathScores, Tokens

_MIN_STD = 1e-9
"""Standard deviations below this need no further rollouts."""

_LAUNCHES = 12
"""Nodes of each path from which `plan_on_path` launches."""


@dataclass(frozen=True)
class Target:
    """Targeted rollouts through one child.

    Args:
        prefix: Completion tokens to force; the last one is the child to sample from.
        n: Number of further rollouts.
    """

    prefix: Tokens
    n: int


@dataclass(frozen=True)
class Sampleable:
    """Which tokens the rollouts of `adaptive` are forced through.

    Args:
        tau: Tokens need more than this probability, for the student or any teacher.
        ends: Tokens that end a completion: nothing is left to sample.
        limit: Length of truncated completions, where nothing is left to sample. `None`: none was truncated.
    """

    tau: float
    ends: Tokens
    limit: int | None = None


def representative_paths(tree: GenerationTree, budget: Budget) -> list[tuple[Tokens, bool]]:
    """Natural rollouts to analyze as (completion, correct), correct ones first.

    The choice is by key, so it is random but reproducible. Truncated completions are chosen in proportion to their
    number, rounded, after those that stopped: they take part if truncation is common, not if it is rare. No path is
    chosen twice, and none is a prefix of another one, whatever their outcomes.
    """
    natural = np.flatnonzero(tree.launch_R == 0)
    natural = natural[np.argsort(tree.key_R[natural], kind="stable")]
    chosen: list[tuple[Tokens, bool]] = []
    chosen_bytes: list[bytes] = []

    def choose(rows: Ints, wanted: int, correct: bool) -> int:
        found = 0
        for row in rows:
            if found == wanted:
                break
            completion = np.asarray(tree.completion(int(row)), np.uint32)
            raw = completion.tobytes()
            if raw and not any(raw.startswith(other) or other.startswith(raw) for other in chosen_bytes):
                chosen_bytes.append(raw)
                chosen.append((completion, correct))
                found += 1
        return found

    for correct, wanted in ((True, budget.correct_paths), (False, budget.incorrect_paths)):
        rows = natural[(tree.outcome_R[natural] > 0) == correct]
        stopped = tree.finish_R[rows] == Finish.STOPPED
        truncated = round(wanted * float(np.mean(~stopped))) if len(rows) else 0
        found = choose(rows[stopped], wanted - truncated, correct)
        found += choose(rows[~stopped], wanted - found, correct)
        choose(rows[stopped], wanted - found, correct)
    return chosen


def depth_windows(length: int, first: int) -> Ints:
    """Edges of the depth windows: `first` wide, then twice as wide each time, until the length is covered."""
    edges, width = [0], first
    while edges[-1] < length:
        edges.append(edges[-1] + width)
        width *= 2
    return np.array(edges)


def plan_paper(tree: GenerationTree, paths: Sequence[PathScores], budget: Budget, ends: Tokens) -> list[Target]:
    """The paper's plan, from shallow to deep windows across all paths, so that a limit drops the deepest first."""
    planned: dict[bytes, tuple[tuple[int, int, int], Target]] = {}
    for index, scores in enumerate(paths):
        depth_C = scores.depth_C
        visits_C = tree.counts_along(scores.completion_T).reindex(scores.offsets, scores.token_C).visits_C
        open_C = scores.above(budget.tau) & ~np.isin(scores.token_C, ends) & (visits_C < budget.n_min)
        update_C, gap_C = _largest_update(scores), _largest_gap(scores)
        edges = depth_windows(len(scores), budget.first_window)
        for window in range(len(edges) - 1):
            inside = np.flatnonzero(open_C & (depth_C >= edges[window]) & (depth_C < edges[window + 1]))
            by_update = inside[np.argsort(-update_C[inside], kind="stable")][: budget.by_update]
            by_gap = inside[np.argsort(-gap_C[inside], kind="stable")][: budget.by_gap]
            for rank, child in enumerate(dict.fromkeys([*by_update.tolist(), *by_gap.tolist()])):
                prefix = _prefix(scores, child)
                target = Target(prefix, budget.n_min - int(visits_C[child]))
                planned.setdefault(prefix.tobytes(), ((window, rank, index), target))
    targets = [target for _, target in sorted(planned.values(), key=lambda entry: entry[0])]
    return targets if budget.targeted is None else _limit_total(targets, budget.targeted)


def plan_adaptive(
    paths: Sequence[PathScores], estimates: Sequence[PathEstimate], tokens: Sampleable, *, rollouts: int
) -> list[Target]:
    """One round: distributes `rollouts` to reduce the uncertainty that matters most for the results.

    Each child has the standard deviation that its own error causes in the results, at its node and above. Each rollout
    lowers it as one more visit would; the plan makes the remaining standard deviations as equal as possible.
    """
    candidates: list[tuple[PathScores, Ints]] = []
    stds: list[Floats] = []
    effective: list[Floats] = []
    opened = _open_children(paths, estimates, tokens)
    for scores, estimate, open_C in zip(paths, estimates, opened, strict=True):
        std_C = _std_in_results(scores, estimate)
        spread_C = np.clip(estimate.q_C * (1 - estimate.q_C), 0.01, 0.25)
        effective_C = spread_C / np.maximum(estimate.own_var_C, 1e-9)
        child = np.flatnonzero(open_C & (std_C > 0))
        candidates.append((scores, child))
        stds.append(std_C[child])
        effective.append(effective_C[child])
    if not sum(map(len, stds)):
        return []
    n_E = _water_fill(np.concatenate(stds), np.concatenate(effective), rollouts)
    n_by_path = np.split(n_E, np.cumsum([len(std_E) for std_E in stds])[:-1])
    # Prefixes of long paths are long: create only those that are sampled.
    return [
        Target(_prefix(scores, child[i]), int(n_E[i]))
        for (scores, child), n_E in zip(candidates, n_by_path, strict=True)
        for i in np.flatnonzero(n_E)
    ]


def plan_unvisited(
    paths: Sequence[PathScores], estimates: Sequence[PathEstimate], tokens: Sampleable, *, rollouts: int
) -> list[Target]:
    """One rollout through every token that has none, the student's most probable ones first.

    `plan_adaptive` samples where estimates are uncertain. But a token without rollouts is valued like the path, and
    where that nearly always succeeds or fails, such as shortly before its end, nothing seems uncertain.
    """
    found: list[tuple[float, int, int]] = []
    for index, open_C in enumerate(_open_children(paths, estimates, tokens)):
        child = np.flatnonzero(open_C & (estimates[index].visits_C == 0))
        found += [(-float(paths[index].log_p_C[each]), index, int(each)) for each in child]
    return [Target(_prefix(paths[index], child), 1) for _, index, child in sorted(found)[:rollouts]]


def _open_children(
    paths: Sequence[PathScores], estimates: Sequence[PathEstimate], tokens: Sampleable
) -> list[NDArray[np.bool_]]:
    """The children of each path that rollouts can tell something about, each in one path only."""
    opened = []
    for index, (scores, estimate) in enumerate(zip(paths, estimates, strict=True)):
        depth_C = scores.depth_C
        open_C = scores.above(tokens.tau) & ~np.isin(scores.token_C, tokens.ends) & (estimate.effective_C < CERTAIN)
        if tokens.limit is not None:
            open_C &= depth_C < tokens.limit - 1
        # The on-path child is valued through the exits below it, and so is a child that is on another scored path.
        open_C &= ~scores.on_path_C
        for other_index, other in enumerate(paths):
            shared = common_prefix(scores, other)
            if shared < len(other):
                open_C &= (depth_C != shared) | (scores.token_C != other.completion_T[shared])
            if other_index < index:
                open_C &= depth_C > shared  # shared nodes are planned with the earlier path
        opened.append(open_C)
    return opened


def plan_on_path(paths: Sequence[PathScores], *, rollouts: int) -> list[Target]:
    """Rollouts that follow the path for a while: forced to one of its nodes, they leave it where the student would.

    `plan_adaptive` never samples unlikely tokens, so nothing else measures what they lead to. Launches are spread over
    each path evenly in the student's surprise: as many nodes apart as it takes to leave the path.
    """
    prefixes: dict[bytes, Tokens] = {}
    for scores in paths:
        surprise_T = np.cumsum(-scores.log_p_C[scores.on_path_C])
        share_L = (np.arange(_LAUNCHES) + 0.5) / _LAUNCHES
        for depth in np.unique(np.searchsorted(surprise_T, share_L * surprise_T[-1])):
            if 0 < depth < len(scores):
                prefix = np.asarray(scores.completion_T[:depth], np.uint32)
                prefixes.setdefault(prefix.tobytes(), prefix)
    if not prefixes:
        return []
    n_L = np.full(len(prefixes), rollouts // len(prefixes))
    n_L[: rollouts % len(prefixes)] += 1
    return [Target(prefix, int(n)) for prefix, n in zip(prefixes.values(), n_L, strict=True) if n]


def _std_in_results(scores: PathScores, estimate: PathEstimate) -> Floats:
    """Root of the summed variances that a child's own error causes.

    It acts at its node, and through the value of the path at every node above, weighted by the probability of getting
    there.
    """
    depth_C = scores.depth_C
    p_C = np.exp(scores.log_p_C)
    follow_T = np.minimum(np.bincount(depth_C, p_C * estimate.load_C, len(scores)), 1.0).tolist()
    above_T = np.zeros(len(scores))
    for m in range(1, len(scores)):
        above_T[m] = 1.0 + follow_T[m - 1] ** 2 * above_T[m - 1]
    return np.sqrt(estimate.own_var_C * (1.0 + p_C**2 * above_T[depth_C]))


def _water_fill(std_E: Floats, effective_E: Floats, rollouts: int) -> Ints:
    """Integers that sum to `rollouts` and equalize the standard deviations afterwards.

    After n more visits the standard deviation is `std · sqrt(effective / (effective + n))`. Fewer rollouts are used if
    all standard deviations drop below `_MIN_STD`.
    """

    def needed(level: float) -> Floats:
        return np.maximum(effective_E * ((std_E / level) ** 2 - 1), 0.0)

    low, high = _MIN_STD, max(float(std_E.max()), _MIN_STD)
    rollouts = min(rollouts, int(np.ceil(needed(_MIN_STD)).sum()))
    for _ in range(60):
        level = (low * high) ** 0.5
        low, high = (level, high) if needed(level).sum() > rollouts else (low, level)
    exact_E = needed(high)
    whole_E = np.floor(exact_E).astype(np.int64)
    missing = min(max(rollouts - int(whole_E.sum()), 0), len(whole_E))
    whole_E[np.argsort(-(exact_E - whole_E), kind="stable")[:missing]] += 1
    return whole_E


def _largest_update(scores: PathScores) -> Floats:
    """Largest |GKD update| over all teachers, on the kept children."""
    largest_C = np.zeros(len(scores.token_C))
    size_T = np.diff(scores.offsets)
    for size in np.unique(size_T):
        child_NK = scores.offsets[:-1][size_T == size][:, None] + np.arange(size)
        log_p_NK = np.maximum(scores.log_p_C[child_NK], LOG_FLOOR)
        for teacher in scores.teachers.values():
            log_t_NK = np.maximum(teacher.log_t_C[child_NK], LOG_FLOOR)
            update_NK = np.abs(unified_update(np.exp(log_p_NK), log_t_NK - log_p_NK))
            largest_C[child_NK] = np.maximum(largest_C[child_NK], update_NK)
    return largest_C


def _largest_gap(scores: PathScores) -> Floats:
    """Largest |teacher probability − student probability| over all teachers."""
    gaps = [np.abs(np.exp(teacher.log_t_C) - np.exp(scores.log_p_C)) for teacher in scores.teachers.values()]
    return np.max(gaps, axis=0) if gaps else np.zeros(len(scores.token_C))


def _prefix(scores: PathScores, child: int) -> Tokens:
    """The path up to the child's node, then the child."""
    depth = int(np.searchsorted(scores.offsets, child, "right")) - 1
    return np.append(scores.completion_T[:depth], scores.token_C[child]).astype(np.uint32)


def _limit_total(targets: Sequence[Target], limit: int) -> list[Target]:
    """The first targets, with at most `limit` rollouts in total."""
    kept: list[Target] = []
    for target in targets:
        if limit <= 0:
            break
        kept.append(Target(target.prefix, min(target.n, limit)))
        limit -= target.n
    return kept
