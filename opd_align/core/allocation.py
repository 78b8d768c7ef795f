"""Enrichment: which paths to look at, which (node, token) to roll out next, and when to stop.

`paper` plans once: per path and exponential depth window the tokens that teachers push or dispute most, each
brought up to a fixed number of visits. `adaptive` plans in rounds from the estimates: it spends where an outcome is
still open and would matter, and nothing where it is settled. The tree is shared by all teachers.

This room only plans; the engine does the rolling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opd_align.core.estimate import CERTAIN, PathEstimate, common_prefix, laid_out
from opd_align.core.objectives import LOG_FLOOR, unified_update
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget
from opd_align.types import Finish, Floats, Ints, PathScores, Tokens


@dataclass(frozen=True)
class Target:
    """`n` more rollouts that are forced through `prefix` (its last token is the one in question)."""

    prefix: Tokens
    n: int


def representative_paths(tree: GenerationTree, budget: Budget) -> list[tuple[Tokens, bool]]:
    """Natural rollouts to look at closely, correct ones first; chosen by key, so at random and for good.

    Completions that came to their end are preferred to truncated ones. No path is taken twice, or is the beginning of
    another one, whatever the grader said of them.
    """
    natural = np.flatnonzero(tree.launch_R == 0)
    order = natural[np.lexsort((tree.key_R[natural], tree.finish_R[natural] != Finish.STOPPED))]
    chosen: list[tuple[Tokens, bool]] = []
    taken: list[bytes] = []
    for correct, wanted in ((True, budget.correct_paths), (False, budget.incorrect_paths)):
        until = len(chosen) + wanted
        for row in order[(tree.outcome_R[order] > 0) == correct]:
            if len(chosen) == until:
                break
            completion = np.asarray(tree.completion(int(row)), np.uint32)
            raw = completion.tobytes()
            if raw and not any(raw.startswith(other) or other.startswith(raw) for other in taken):
                taken.append(raw)
                chosen.append((completion, correct))
    return chosen


def windows(length: int, first: int) -> Ints:
    """Edges of the depth windows: `first` wide, then twice as wide each time, until the length is covered."""
    edges, width = [0], first
    while edges[-1] < length:
        edges.append(edges[-1] + width)
        width *= 2
    return np.array(edges)


def plan_paper(
    tree: GenerationTree, paths: Sequence[PathScores], budget: Budget, ends: NDArray[np.uint32]
) -> list[Target]:
    """The paper's plan, windows from shallow to deep across all paths, so that a cut hits the deepest first."""
    planned: dict[bytes, tuple[tuple[int, int, int], Target]] = {}
    for index, scores in enumerate(paths):
        depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
        visits_C = laid_out(tree.counts_along(scores.completion_T), scores).visits_C
        open_C = _matters(scores, budget.tau) & ~np.isin(scores.token_C, ends) & (visits_C < budget.n_min)
        push_C, gap_C = _largest_push(scores), _largest_gap(scores)
        edges = windows(len(scores), budget.first_window)
        for window in range(len(edges) - 1):
            inside = np.flatnonzero(open_C & (depth_C >= edges[window]) & (depth_C < edges[window + 1]))
            by_push = inside[np.argsort(-push_C[inside], kind="stable")][: budget.by_update]
            by_gap = inside[np.argsort(-gap_C[inside], kind="stable")][: budget.by_gap]
            for rank, child in enumerate(dict.fromkeys([*by_push.tolist(), *by_gap.tolist()])):
                prefix = _prefix(scores, int(depth_C[child]), child)
                target = Target(prefix, budget.n_min - int(visits_C[child]))
                planned.setdefault(prefix.tobytes(), ((window, rank, index), target))
    chosen = [target for _, target in sorted(planned.values(), key=lambda entry: entry[0])]
    return _cut(chosen, budget.targeted)


def plan_adaptive(
    paths: Sequence[PathScores],
    estimates: Sequence[PathEstimate],
    budget: Budget,
    ends: NDArray[np.uint32],
    *,
    spend: int,
) -> list[Target]:
    """One round: `spend` rollouts go where they shrink the uncertainty that matters most.

    A child's claim is the standard deviation that its own success causes in what is reported, here and above; each
    rollout granted lowers it as one more visit would, and the claims left over are level.
    """
    place: list[tuple[PathScores, Ints]] = []
    claim: list[Floats] = []
    held: list[Floats] = []
    for index, (scores, estimate) in enumerate(zip(paths, estimates, strict=True)):
        depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
        open_C = _matters(scores, budget.tau) & ~np.isin(scores.token_C, ends) & (estimate.effective_C < CERTAIN)
        # The on-path child is valued through the exits below it, and a child that is itself a scored path likewise.
        open_C &= scores.token_C != scores.completion_T[depth_C]
        for number, other in enumerate(paths):
            parting = common_prefix(scores, other)
            if parting < len(other):
                open_C &= (depth_C != parting) | (scores.token_C != other.completion_T[parting])
            if number < index:
                open_C &= depth_C > parting  # the nodes above have had their turn
        claim_C = _claims(scores, estimate)
        spread_C = np.clip(estimate.q_C * (1 - estimate.q_C), 0.01, 0.25)
        effective_C = spread_C / np.maximum(estimate.own_var_C, 1e-9)
        child = np.flatnonzero(open_C & (claim_C > 0))
        place.append((scores, child))
        claim.append(claim_C[child])
        held.append(effective_C[child])
    if not sum(map(len, claim)):
        return []
    n_E = _water_fill(np.concatenate(claim), np.concatenate(held), spend)
    shares = np.split(n_E, np.cumsum([len(claim_E) for claim_E in claim])[:-1])
    # Prefixes of long paths are long: only those that are rolled out are written down.
    return [
        Target(_prefix(scores, _depth_of(scores, child[i]), child[i]), int(share_E[i]))
        for (scores, child), share_E in zip(place, shares, strict=True)
        for i in np.flatnonzero(share_E)
    ]


def _claims(scores: PathScores, estimate: PathEstimate) -> Floats:
    """Root of the summed variances that a child's own error causes: at its node, and through the value of the path
    at every node above, which it enters with the probability of getting there."""
    depth_C = np.repeat(np.arange(len(scores)), np.diff(scores.offsets))
    p_C = np.exp(scores.log_p_C)
    follow_T = np.minimum(np.bincount(depth_C, p_C * estimate.load_C, len(scores)), 1.0).tolist()
    above_T = np.zeros(len(scores))
    for m in range(1, len(scores)):
        above_T[m] = 1.0 + follow_T[m - 1] ** 2 * above_T[m - 1]
    return np.sqrt(estimate.own_var_C * (1.0 + p_C**2 * above_T[depth_C]))


def _water_fill(claim_E: Floats, held_E: Floats, spend: int, settled: float = 1e-9) -> Ints:
    """Integers that sum to `spend` and level `claim · sqrt(held / (held + n))`, the standard deviations afterwards.

    Less is spent where that brings all of them below `settled`.
    """

    def needed(level: float) -> Floats:
        # After n more visits the deviation is claim·sqrt(held / (held + n)); solve that for n.
        return np.maximum(held_E * ((claim_E / level) ** 2 - 1), 0.0)

    low, high = settled, max(float(claim_E.max()), settled)
    spend = min(spend, int(np.ceil(needed(settled)).sum()))
    for _ in range(60):
        level = (low * high) ** 0.5
        low, high = (level, high) if needed(level).sum() > spend else (low, level)
    exact_E = needed(high)
    whole_E = np.floor(exact_E).astype(np.int64)
    missing = min(max(spend - int(whole_E.sum()), 0), len(whole_E))
    whole_E[np.argsort(-(exact_E - whole_E), kind="stable")[:missing]] += 1
    return whole_E


def _matters(scores: PathScores, tau: float) -> NDArray[np.bool_]:
    matters_C = scores.log_p_C > np.log(tau)
    for teacher in scores.teachers.values():
        matters_C |= teacher.log_t_C > np.log(tau)
    return matters_C


def _largest_push(scores: PathScores) -> Floats:
    """Largest |GKD update| of any teacher, on the kept children."""
    push_C = np.zeros(len(scores.token_C))
    size_T = np.diff(scores.offsets)
    for size in np.unique(size_T):
        child_NK = scores.offsets[:-1][size_T == size][:, None] + np.arange(size)
        log_p_NK = np.maximum(scores.log_p_C[child_NK], LOG_FLOOR)
        for teacher in scores.teachers.values():
            log_t_NK = np.maximum(teacher.log_t_C[child_NK], LOG_FLOOR)
            update_NK = np.abs(unified_update(np.exp(log_p_NK), log_t_NK - log_p_NK))
            push_C[child_NK] = np.maximum(push_C[child_NK], update_NK)
    return push_C


def _largest_gap(scores: PathScores) -> Floats:
    gaps = [np.abs(np.exp(teacher.log_t_C) - np.exp(scores.log_p_C)) for teacher in scores.teachers.values()]
    return np.max(gaps, axis=0) if gaps else np.zeros(len(scores.token_C))


def _depth_of(scores: PathScores, child: int) -> int:
    return int(np.searchsorted(scores.offsets, child, "right")) - 1


def _prefix(scores: PathScores, depth: int, child: int) -> Tokens:
    return np.append(scores.completion_T[:depth], scores.token_C[child]).astype(np.uint32)


def _cut(targets: Sequence[Target], limit: int | None) -> list[Target]:
    kept: list[Target] = []
    left = sum(target.n for target in targets) if limit is None else limit
    for target in targets:
        if left <= 0:
            break
        kept.append(Target(target.prefix, min(target.n, left)))
        left -= target.n
    return kept
