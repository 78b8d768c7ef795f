"""Success probabilities: from counted rollouts to `Q` of every next token, with uncertainty.

Three estimators behind one function. `pooled` counts every rollout at every node it passes, as the paper does.
`direct` counts only rollouts that are samples from the student at that node. `backup` (default) computes the value of
each node from its children and the student's probabilities, deepest first, so that the outcome at one exit informs all
ancestors.

A rollout is evidence about the node at depth m only if its `launch` is at most m. Estimates depend on the set of
rollouts, never on their order. Counts and probabilities only; no teachers and no objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from opd_align.core.chosen_paths import chosen_rows, natural_weights
from opd_align.core.path_estimate import CERTAIN, PathEstimate, path_children, sum_by
from opd_align.core.prior import ExitSamples, ForkPrior, Posterior, probability_class
from opd_align.core.ties import FIXED, INSIDE, LIKELY_TOKEN, UNLIKELY_TOKEN, NodeEvidence, Ties, fit_ties
from opd_align.core.tree import GenerationTree, PathExits, child_keys, find_sorted
from opd_align.settings import Method
from opd_align.types import Floats, Ints, OpdAlignError, PathScores

Bools = NDArray[np.bool_]

_ROUNDS = 5
_WIDENING = 1.1
"""Calibrates the signs of differences between siblings, measured on worlds of three families: the prior is fitted, and
its own error is in no variance. Intervals of a single `Q` do not need it."""
_MOST_WORTH = 500.0
"""Rollouts that the value of another scored path counts as, at most, where ties are estimated."""
_MAX_COMMON = 0.7
"""Largest share of an exit's variance that is attributed to the centre it has in common with its siblings."""


def estimate(
    tree: GenerationTree,
    paths: Sequence[PathScores],
    *,
    method: Method = "backup",
    shrink: bool = True,
    share: float = 1.0,
    ties: bool = True,
) -> list[PathEstimate]:
    """Estimates along the scored paths of one question, which together form a small tree.

    Args:
        tree: All rollouts of the question; must contain the paths.
        paths: Scores of the paths. Paths that share a prefix must have the same children there.
        method: `"backup"`, `"direct"` or `"pooled"`.
        shrink: Whether `"backup"` shrinks each exit toward its siblings, with a strength fitted by marginal likelihood
            over the question's exits. Ignored by the other methods.
        share: Fraction of the question's rollouts that the tree contains. The paths are in it in any case.
        ties: Whether shrunk estimates of `"backup"` know where tokens may be equally good (`core.ties`). Planning does
            not need it.
    """
    if method == "backup":
        return _Backup(tree, paths, shrink, share).solve(ties=ties)
    if method not in get_args(Method):
        raise OpdAlignError(f"unknown estimator {method!r}; choose one of {', '.join(get_args(Method))}")
    # Ends that were graded without sampling are not rollouts and must not be counted.
    counted_R = (tree.launch_R < tree.length_R) | (tree.launch_R == 0)
    counted_R[chosen_rows(tree, paths)] = False
    sampled = tree.subset(counted_R)
    return [_count(sampled, scores, pooled=method == "pooled") for scores in paths]


def _count(tree: GenerationTree, scores: PathScores, *, pooled: bool) -> PathEstimate:
    counts = tree.counts_along(scores.completion_T).reindex(scores.offsets, scores.token_C)
    n_C, w_C = (counts.visits_C, counts.wins_C) if pooled else (counts.evidence_C, counts.evidence_wins_C)
    depth_C = scores.depth_C
    q_C = (w_C + 0.5) / (n_C + 1.0)
    var_C = q_C * (1 - q_C) / (n_C + 2.0)
    # The point estimate is the fraction of correct rollouts, as in the paper; the half counts only affect the variance.
    q_C = np.where(n_C > 0, w_C / np.maximum(n_C, 1), np.nan)
    p_C = np.exp(scores.log_p_C)
    sampled_C = n_C > 0
    mass_T = sum_by(depth_C, np.where(sampled_C, p_C, 0.0), len(scores))
    value_T = sum_by(depth_C, np.where(sampled_C, p_C * q_C, 0.0), len(scores)) / np.where(mass_T > 0, mass_T, np.nan)
    on_path = path_children(scores)
    return PathEstimate(
        q_C, var_C, np.zeros_like(q_C), np.zeros_like(q_C), np.zeros(len(scores)), np.nan_to_num(q_C[on_path], nan=0.5),
        n_C, n_C.astype(float), value_T, np.clip(1 - mass_T, 0.0, 1.0), scores.offsets, counted=True,
    )  # fmt: skip


@dataclass
class _Segment:
    """The nodes of one path that no earlier path has.

    `_S` arrays (slots) hold its children, then one rest slot per node for all tokens that were not kept. `n` and `w`
    are sums of the rollouts' weights, all and correct; `visits` counts rollouts.
    """

    scores: PathScores
    first: int
    parent: int
    depth_S: Ints
    p_S: Floats
    visits_S: Ints
    n_S: Floats
    w_S: Floats
    fixed_S: Bools
    fixed_q_S: Floats
    branch_S: Ints
    on_path_T: Ints
    final: float

    def __post_init__(self) -> None:
        nodes = len(self.scores)
        self.q_S = np.full(len(self.p_S), 0.5)
        self.load_S = np.zeros(len(self.p_S))
        self.own_var_S = np.zeros(len(self.p_S))
        self.sibling_sd_S = np.zeros(len(self.p_S))
        self.value_T1 = np.full(nodes + 1, self.final)
        self.var_T1 = np.zeros(nodes + 1)
        self.rollouts = 0

    @property
    def exit_S(self) -> Bools:
        """Slots whose value comes from counts, not from a scored path or a certain outcome."""
        on_path_S = np.zeros(len(self.p_S), bool)
        on_path_S[self.on_path_T] = True
        return ~self.fixed_S & ~on_path_S & (self.branch_S < 0)


@dataclass(frozen=True)
class _Siblings:
    """The mean of each exit's siblings: the weight of the on-path child, and the variance of the rest of its error."""

    path_weight_E: Floats
    centre_var_E: Floats


class _Backup:
    """Values along the tree of scored paths, deepest first, alternating with fits of the prior.

    Given the prior's responsibilities every exit is linear in the on-path child's value, so a whole path is one
    linear recurrence `V_m = a_m + b_m V_{m+1}`. A few rounds of recurrence and fit converge.
    """

    def __init__(self, tree: GenerationTree, paths: Sequence[PathScores], shrink: bool, share: float = 1.0) -> None:
        self.shrink = shrink
        self.segments = _split_into_segments(tree, paths, natural_weights(tree, paths, share))
        natural_R = tree.outcome_R[tree.launch_R == 0] > 0
        self.prior = ForkPrior.start((float(natural_R.sum()) + 0.5) / (len(natural_R) + 1.0))

    def solve(self, *, ties: bool = True) -> list[PathEstimate]:
        for segment in self.segments:
            segment.value_T1[:-1] = self.prior.overall
        for _ in range(_ROUNDS):
            compared = [self._sibling_means(segment) for segment in self.segments]
            if self.shrink:
                # A rest slot is an average over tokens, which varies less than a token does.
                tokens = [
                    exits.take(np.flatnonzero(segment.exit_S) < len(segment.scores.token_C))
                    for segment, (exits, _) in zip(self.segments, compared, strict=True)
                ]
                self.prior = self.prior.fitted(tokens)
            for segment, (exits, siblings) in zip(self.segments, compared, strict=True):
                self._value_exits(segment, exits, siblings)
            for segment in reversed(self.segments):
                self._update_values(segment)
        found = self._path_estimates()
        if not (ties and self.shrink):
            return found
        _, of_segments = fit_ties(
            [_node_evidence(segment) for segment in self.segments], self.prior.weight_GJ, self.prior.overall
        )
        tied: list[Ties] = []
        for segment, own in zip(self.segments, of_segments, strict=True):
            children = int(segment.scores.offsets[segment.first])
            tied.append(own.joined(tied[segment.parent], segment.first, children) if segment.first else own)
        return [replace(one, ties=of_path) for one, of_path in zip(found, tied, strict=True)]

    def _sibling_means(self, segment: _Segment) -> tuple[ExitSamples, _Siblings]:
        """The samples of each exit with the mean of its siblings, and where the error of that mean comes from.

        The siblings are the on-path child and the other exits of the node.
        """
        self._set_known_values(segment)
        exit_S, depth_S, n_S, w_S = segment.exit_S, segment.depth_S, segment.n_S, segment.w_S
        on_path_S = np.zeros(len(exit_S), bool)
        on_path_S[segment.on_path_T] = True
        path_q_S = segment.value_T1[depth_S + 1]
        spread_S = np.clip(path_q_S * (1 - path_q_S), 0.01, None)
        value_S = np.where(exit_S, (w_S + path_q_S) / (n_S + 1.0), np.where(on_path_S, path_q_S, segment.q_S))
        noise_S = np.where(exit_S, spread_S / np.maximum(n_S, 1), segment.own_var_S)
        noise_S = np.where(on_path_S, segment.var_T1[depth_S + 1], noise_S)
        # Half of the fitted spread is attributed to the exit itself and half to its siblings.
        noise_S = noise_S + 0.5 * spread_S * self.prior.spread(segment.p_S)
        # A certain outcome is 0 or 1 and is no evidence about tokens that continue.
        ignored_S = (exit_S & (n_S == 0)) | segment.fixed_S
        weight_S = np.where(ignored_S, 0.0, 1.0 / noise_S)
        nodes = len(segment.scores)
        sum_T = sum_by(depth_S, weight_S, nodes)
        dot_T = sum_by(depth_S, weight_S * value_S, nodes)
        path_T = sum_by(depth_S, np.where(on_path_S, weight_S, 0.0), nodes)
        others_S = np.maximum(sum_T[depth_S] - weight_S, 1e-12)
        centre_S = np.clip((dot_T[depth_S] - weight_S * value_S) / others_S, 0.0, 1.0)
        exits = ExitSamples(segment.p_S[exit_S], n_S[exit_S], w_S[exit_S], centre_S[exit_S])
        return exits, _Siblings((path_T[depth_S] / others_S)[exit_S], (1.0 / np.maximum(sum_T, 1e-12))[depth_S][exit_S])

    def _value_exits(self, segment: _Segment, exits: ExitSamples, siblings: _Siblings) -> None:
        rows = np.flatnonzero(segment.exit_S)
        posterior = self.prior.posterior(exits) if self.shrink else _unshrunk(exits)
        # The fitted spread of an exit around its siblings contains the error of their mean, which all exits of the node
        # have in common: it moves from their own variance to the shared one.
        common_E = np.minimum(posterior.slope_E**2 * siblings.centre_var_E, _MAX_COMMON * posterior.var_E)
        segment.q_S[rows], segment.own_var_S[rows] = posterior.mean_E, posterior.var_E - common_E
        segment.sibling_sd_S[rows] = np.sqrt(common_E)
        segment.load_S[rows] = posterior.slope_E * siblings.path_weight_E

    def _set_known_values(self, segment: _Segment) -> None:
        segment.q_S[segment.fixed_S] = segment.fixed_q_S[segment.fixed_S]
        segment.own_var_S[segment.fixed_S] = 0.0
        for slot in np.flatnonzero(segment.branch_S >= 0):
            branch = self.segments[segment.branch_S[slot]]
            at = int(segment.depth_S[slot]) + 1
            segment.q_S[slot], segment.own_var_S[slot] = branch.value_T1[at], branch.var_T1[at]

    def _update_values(self, segment: _Segment) -> None:
        self._set_known_values(segment)
        nodes, depth_S, p_S = len(segment.scores), segment.depth_S, segment.p_S
        path_q_T = segment.value_T1[1:].copy()
        off_path_S = np.ones(len(p_S), bool)
        off_path_S[segment.on_path_T] = False
        # Exits were valued for the current on-path value; as a + b·V they change with it.
        b_S = np.where(off_path_S, p_S * segment.load_S, 0.0)
        a_S = np.where(off_path_S, p_S * segment.q_S, 0.0) - b_S * path_q_T[depth_S]
        a_T = sum_by(depth_S, a_S, nodes).tolist()
        b_T = (sum_by(depth_S, b_S, nodes) + p_S[segment.on_path_T]).tolist()
        common_T = sum_by(depth_S, np.where(off_path_S, p_S * segment.sibling_sd_S, 0.0), nodes)
        own_T = sum_by(depth_S, np.where(off_path_S, p_S**2 * segment.own_var_S, 0.0), nodes)
        v_T = (own_T + common_T**2).tolist()
        value, var = segment.final, 0.0
        for m in range(nodes - 1, segment.first - 1, -1):
            value = min(max(a_T[m] + b_T[m] * value, 0.0), 1.0)
            var = b_T[m] * b_T[m] * var + v_T[m]
            segment.value_T1[m], segment.var_T1[m] = value, var
        change_T = segment.value_T1[1:] - path_q_T
        segment.q_S = np.clip(segment.q_S + np.where(off_path_S, segment.load_S * change_T[depth_S], 0.0), 0.0, 1.0)
        segment.q_S[segment.on_path_T] = segment.value_T1[1:]
        segment.load_S[segment.on_path_T] = 1.0
        segment.own_var_S[segment.on_path_T] = 0.0

    def _count_below(self) -> None:
        """Counts, at children whose value comes from exits further down, the rollouts that left there."""
        for segment in reversed(self.segments):
            for slot in np.flatnonzero(segment.branch_S >= 0):
                segment.visits_S[slot] = 1 + self.segments[segment.branch_S[slot]].rollouts
            segment.visits_S[segment.on_path_T] = 0
            sampled_S = np.where(segment.fixed_S, 0, segment.visits_S)  # certain ends are not rollouts
            here_T = sum_by(segment.depth_S, sampled_S, len(segment.scores)).astype(np.int64)
            segment.rollouts = int(here_T.sum())
            # One more: the path itself.
            segment.visits_S[segment.on_path_T] = 1 + segment.rollouts - np.cumsum(here_T)

    def _path_estimates(self) -> list[PathEstimate]:
        self._count_below()
        estimates: list[PathEstimate] = []
        for segment in self.segments:
            estimates.append(_path_estimate(segment, estimates[segment.parent] if segment.first > 0 else None))
        return estimates


def _path_estimate(segment: _Segment, parent: PathEstimate | None) -> PathEstimate:
    scores, children, nodes = segment.scores, len(segment.scores.token_C), len(segment.scores)
    unsampled_S = segment.exit_S & (segment.n_S == 0)
    found = PathEstimate(
        q_C=segment.q_S[:children],
        own_var_C=segment.own_var_S[:children],
        load_C=segment.load_S[:children],
        path_var_T=segment.var_T1[1:],
        path_q_T=segment.value_T1[1:],
        # Children on a scored path or with a certain outcome have evidence even without rollouts of their own.
        visits_C=np.where(segment.exit_S, segment.visits_S, np.maximum(segment.visits_S, 1))[:children],
        effective_C=np.empty(0),
        value_T=segment.value_T1[:-1],
        tail_mass_T=np.clip(sum_by(segment.depth_S, np.where(unsampled_S, segment.p_S, 0.0), nodes), 0.0, 1.0),
        offsets=scores.offsets,
        sibling_sd_C=segment.sibling_sd_S[:children],
        widening=_WIDENING,
    )
    spread_C = np.clip(found.q_C * (1 - found.q_C), 0.001, None)
    effective_C = np.minimum(spread_C / np.maximum(found.se_C**2, 1e-12), CERTAIN)
    certain_C = segment.fixed_S[:children].copy()
    certain_C[segment.on_path_T[-1]] = True
    effective_C[certain_C] = CERTAIN
    found = replace(found, effective_C=effective_C)
    if parent is None:
        return found
    # Up to the branching point, the nodes are those of the parent path.
    shared = {"C": int(scores.offsets[segment.first]), "T": segment.first}
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(parent, name)[: shared[name[-1]]], getattr(found, name)[shared[name[-1]] :]])
        for name in PathEstimate.__dataclass_fields__
        if name[-2:] in ("_C", "_T")
    }
    return replace(found, **joined)


def _node_evidence(segment: _Segment) -> NodeEvidence:
    """The rollouts at the nodes of a segment; a child on another scored path counts as what its value is worth."""
    children = len(segment.scores.token_C)
    exit_C, branch_C = segment.exit_S[:children], segment.branch_S[:children] >= 0
    p_C, q_C = segment.p_S[:children], np.clip(segment.q_S[:children], INSIDE, 1 - INSIDE)
    worth_C = np.clip(q_C * (1 - q_C) / np.maximum(segment.own_var_S[:children], 1e-9) - 1, 0.5, _MOST_WORTH)
    n_C = np.where(branch_C, worth_C, segment.n_S[:children])
    w_C = np.where(branch_C, worth_C * q_C, segment.w_S[:children])
    kind_C = np.where(exit_C | branch_C, np.where(probability_class(p_C) > 0, LIKELY_TOKEN, UNLIKELY_TOKEN), FIXED)
    seen = np.flatnonzero((kind_C != FIXED) & (n_C > 0) & (segment.depth_S[:children] >= segment.first))
    return NodeEvidence(
        segment.depth_S[seen], p_C[seen], n_C[seen], w_C[seen], segment.value_T1[1:], segment.var_T1[1:], kind_C, seen
    )


def _unshrunk(exits: ExitSamples) -> Posterior:
    """The fraction of correct rollouts where there are samples; elsewhere the siblings' mean with a large variance."""
    sampled_E = exits.n_E > 0
    mean_E = (exits.w_E + 0.5) / (exits.n_E + 1.0)
    own_E = mean_E * (1 - mean_E) / (exits.n_E + 2.0)
    wide_E = np.clip(exits.centre_E * (1 - exits.centre_E), 0.01, None) / 4
    return Posterior(
        np.where(sampled_E, exits.w_E / np.maximum(exits.n_E, 1), exits.centre_E),
        np.where(sampled_E, own_E, wide_E),
        np.where(sampled_E, 0.0, 1.0),
    )


def _split_into_segments(tree: GenerationTree, paths: Sequence[PathScores], weight_R: Floats) -> list[_Segment]:
    """Splits the union of the paths into segments. Every rollout counts at the one exit where it leaves all paths."""
    exits = [tree.exits(scores.completion_T) for scores in paths]
    depth_PR = np.stack([path_exits.depth_R for path_exits in exits]) if exits else np.empty((0, len(tree)), np.int64)
    owner_R = depth_PR.argmax(0) if len(depth_PR) else np.empty(0, np.int64)
    segments: list[_Segment] = []
    for index, scores in enumerate(paths):
        common = [common_prefix(scores, other) for other in paths[:index]]
        parent = int(np.argmax(common)) if common else -1
        first = common[parent] + 1 if common else 0
        if common and common[parent] >= min(len(scores), len(paths[parent])):
            raise ValueError("a scored path is a prefix of another one; pass each completion once")
        segments.append(_segment(tree, scores, exits[index], np.where(owner_R == index, weight_R, 0.0), first, parent))
        if common:
            _mark_branch(segments, index)
    return segments


def _segment(
    tree: GenerationTree, scores: PathScores, exits: PathExits, weight_R: Floats, first: int, parent: int
) -> _Segment:
    nodes = len(scores)
    whole_R = (exits.depth_R == nodes) & (tree.length_R == nodes)
    if not whole_R.any():
        raise OpdAlignError("a scored path is not among the rollouts of the tree; add it to the tree first")
    depth_C = scores.depth_C
    p_C = np.exp(scores.log_p_C)
    rest_T = np.clip(1 - sum_by(depth_C, p_C, nodes), 0.0, 1.0)
    depth_S = np.concatenate([depth_C, np.arange(nodes)])
    p_S = np.concatenate([p_C, rest_T])
    children = len(p_C)
    rows = np.flatnonzero((weight_R > 0) & (exits.depth_R >= first) & (exits.depth_R < nodes) & (exits.token_R >= 0))
    depth, launch = exits.depth_R[rows], tree.launch_R[rows]
    found, at = find_sorted(child_keys(depth, exits.token_R[rows]), child_keys(depth_C, scores.token_C))
    # A kept child counts all rollouts sampled after it; the rest slot only those that sampled the token itself.
    counted = np.where(found, launch <= depth + 1, launch <= depth)
    slot = np.where(found, at, children + depth)[counted]
    won = tree.outcome_R[rows][counted] > 0
    weight = weight_R[rows][counted]
    n_S = np.bincount(slot, weight, len(p_S)).astype(np.float64)
    w_S = np.bincount(slot, np.where(won, weight, 0.0), len(p_S)).astype(np.float64)
    visits_S = np.bincount(slot, minlength=len(p_S))
    won_S = np.bincount(slot, won, len(p_S)).astype(np.int64)
    ended = np.bincount(slot, tree.length_R[rows][counted] == depth[counted] + 1, len(p_S)) > 0
    ended[children:] = False
    fixed_S = ended & ((won_S == 0) | (won_S == visits_S))
    return _Segment(
        scores, first, parent, depth_S, p_S, visits_S, n_S, w_S, fixed_S, (w_S > 0).astype(float),
        np.full(len(p_S), -1), path_children(scores), float(tree.outcome_R[whole_R].max()),
    )  # fmt: skip


def _mark_branch(segments: list[_Segment], index: int) -> None:
    """Marks, at the node where a path branches off, the child that belongs to that path."""
    segment = segments[index]
    depth, token = segment.first - 1, segment.scores.completion_T[segment.first - 1]
    owner = segment.parent
    while segments[owner].first > depth:
        owner = segments[owner].parent
    scores = segments[owner].scores
    shared = segment.scores.offsets[segment.first]
    if scores.offsets[segment.first] != shared or (scores.token_C[:shared] != segment.scores.token_C[:shared]).any():
        raise ValueError("paths that share a prefix must have the same children there")
    lo, hi = scores.offsets[depth], scores.offsets[depth + 1]
    slot = int(lo + np.searchsorted(scores.token_C[lo:hi], token))
    segments[owner].branch_S[slot] = index


def common_prefix(one: PathScores, other: PathScores) -> int:
    """Number of leading tokens that two paths share."""
    length = min(len(one), len(other))
    differ = one.completion_T[:length] != other.completion_T[:length]
    return int(differ.argmax()) if differ.any() else length
