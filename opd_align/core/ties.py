"""Ties: nodes and tokens where nothing is at stake.

After most forks of a text the answer is as likely to be right as before, whatever the token. A prior with a spread
cannot say so: it expects some difference everywhere, and the sign of a difference that is not there looks like
knowledge. So every node is in one of three states: all its tokens are equally good; its likely tokens are, but unlikely
ones may be mistakes; or each may differ. In the last two states an unlikely token may still be as good as the path's
own. How common each state is, and how far tokens differ otherwise, is fitted to all rollouts of the question by
marginal likelihood, with the success probability after the path's own token integrated out.

Ties change what is known of differences between tokens (signs, alignment, SR range), not the estimates of `Q`. Counts
and probabilities only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln
from scipy.stats import beta

from opd_align.core.prior import PSEUDO_GJ, STRENGTH_J, prior_means, probability_class
from opd_align.types import Floats, Ints

ALL, LIKELY, NONE = range(3)
"""States of a node: which of its tokens are equally good."""
FIXED, UNLIKELY_TOKEN, LIKELY_TOKEN = range(3)
"""Kinds of tokens: a certain outcome is never tied."""

_POINTS = 9
"""Values of the success probability after the path's own token that likelihoods are averaged over."""
INSIDE = 0.002
"""These values are at least this far from 0 and 1, unless they are certain."""
_CERTAIN_INSIDE = 1e-5
_STATE_PSEUDO = 1.0
_TOKEN_PSEUDO = 0.5
_STEPS, _TOLERANCE = 30, 1e-4
_ENUMERATED = 4
"""Unlikely tokens of a node whose ties are enumerated; those of others enter as means and variances."""


@dataclass(frozen=True)
class NodeEvidence:
    """Rollouts through tokens beside a path.

    Args:
        depth_E: Node of each token.
        p_E: The student's probability of it.
        n_E: Rollouts through it, above 0.
        w_E: Correct ones among them.
        value_T: Success probability after the path's own token at each node.
        var_T: Its variance.
        kind_C: Kind of every child of the path.
        child_E: Index of each token among the children.
    """

    depth_E: Ints
    p_E: Floats
    n_E: Floats
    w_E: Floats
    value_T: Floats
    var_T: Floats
    kind_C: Ints
    child_E: Ints


@dataclass(frozen=True)
class Ties:
    """Posterior probabilities of ties along one path.

    Args:
        all_T: That all tokens of a node are equally good, except for certain outcomes.
        likely_T: That only the likely ones are known to be.
        token_C: That an unlikely child is as good as the path's own if not all are equally good; 0 for other children.
        kind_C: Kind of every child.
    """

    all_T: Floats
    likely_T: Floats
    token_C: Floats
    kind_C: Ints

    def joined(self, parent: Ties, nodes: int, children: int) -> Ties:
        """These, with the first nodes and children of the parent path."""
        return Ties(
            np.concatenate([parent.all_T[:nodes], self.all_T[nodes:]]),
            np.concatenate([parent.likely_T[:nodes], self.likely_T[nodes:]]),
            np.concatenate([parent.token_C[:children], self.token_C[children:]]),
            np.concatenate([parent.kind_C[:children], self.kind_C[children:]]),
        )

    def patterns(self, child_NK: Ints, depth_N: Ints, weight_NK: Floats) -> Iterator[tuple[Floats, Floats]]:
        """The cases of which children are tied: their probabilities, and the probability of each tie in that case.

        A tied child has the value after the path's own token. In each case a tie is certain or excluded, except for
        unlikely tokens beyond the few with the largest weights. Probabilities of the cases of a node sum to 1.
        """
        kind_NK = self.kind_C[child_NK]
        all_N, likely_N = self.all_T[depth_N], self.likely_T[depth_N]
        yield all_N, (kind_NK != FIXED).astype(float)
        token_NK, likely_NK = self.token_C[child_NK], (kind_NK == LIKELY_TOKEN).astype(float)
        open_NK = np.abs(weight_NK) * np.minimum(token_NK, 1 - token_NK)
        first_NK = np.argsort(-open_NK, axis=-1, kind="stable")[:, :_ENUMERATED]
        first_NK = first_NK[:, : int((open_NK > 0).sum(-1).max(initial=0))]
        for case in product((True, False), repeat=first_NK.shape[1]):
            tied_NK, case_N = token_NK.copy(), np.ones(len(depth_N))
            for is_tied, column_N in zip(case, first_NK.T, strict=True):
                row_N = np.arange(len(depth_N))
                case_N *= token_NK[row_N, column_N] if is_tied else 1 - token_NK[row_N, column_N]
                tied_NK[row_N, column_N] = is_tied
            yield likely_N * case_N, np.maximum(tied_NK, likely_NK)
            yield (1 - all_N - likely_N) * case_N, tied_NK

    def drawn(self, child_NK: Ints, depth_N: Ints, *, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Which children are tied, in `n` draws: shape (n, N, K)."""
        state_DN1 = rng.random((n, len(depth_N), 1))
        token_DNK = rng.random((n, *child_NK.shape)) < self.token_C[child_NK]
        kind_NK = self.kind_C[child_NK]
        all_N1 = self.all_T[depth_N][:, None]
        likely_N1 = all_N1 + self.likely_T[depth_N][:, None]
        of_state_DNK = (state_DN1 < all_N1) & (kind_NK != FIXED)
        return np.asarray(of_state_DNK | (state_DN1 < likely_N1) & (kind_NK == LIKELY_TOKEN) | token_DNK)


@dataclass(frozen=True)
class TieModel:
    """What is the same for all nodes of a question.

    Args:
        state_A: How common each state of a node is.
        token: How often an unlikely token is as good as the path's own, in nodes where not all are.
        weight_GJ: Weights of the strengths (`core.prior`) of tokens that are not tied, by probability class.
        overall: Pass rate of the question.
    """

    state_A: Floats
    token: float
    weight_GJ: Floats
    overall: float


class _Likelihoods:
    """Likelihoods of the rollouts at all nodes (`_N`) and tokens (`_E`) for a grid of values of the path (`_U`)."""

    def __init__(self, part: NodeEvidence, overall: float) -> None:
        nodes_N, self.node_E = np.unique(part.depth_E, return_inverse=True)
        self.nodes_N, n_E1, w_E1 = nodes_N, part.n_E[:, None], part.w_E[:, None]
        value_N, var_N = part.value_T[nodes_N], part.var_T[nodes_N]
        mean_N = np.clip(value_N, INSIDE, 1 - INSIDE)
        strength_N = np.clip(mean_N * (1 - mean_N) / np.maximum(var_N, 1e-9) - 1, 0.5, 1e6)
        points_U = (np.arange(_POINTS) + 0.5) / _POINTS
        value_NU = beta.ppf(points_U, (strength_N * mean_N)[:, None], (strength_N * (1 - mean_N))[:, None])
        certain_N1, inside_N1 = (var_N == 0)[:, None], np.where(var_N == 0, _CERTAIN_INSIDE, INSIDE)[:, None]
        value_NU = np.clip(np.where(certain_N1, value_N[:, None], value_NU), inside_N1, 1 - inside_N1)
        value_EU = value_NU[self.node_E]
        # Where all is lost or won, tied and different tokens look alike: such nodes must not decide the fit.
        self.fitted_N = np.abs(value_N - 0.5) < 0.5 - INSIDE
        self.tied_EU = w_E1 * np.log(value_EU) + (n_E1 - w_E1) * np.log1p(-value_EU)
        prior_EUJ = prior_means(value_EU[..., None], overall)
        a_EUJ, b_EUJ = prior_EUJ * STRENGTH_J, (1 - prior_EUJ) * STRENGTH_J
        differ_EUJ = betaln(w_E1[..., None] + a_EUJ, (n_E1 - w_E1)[..., None] + b_EUJ) - betaln(a_EUJ, b_EUJ)
        self.largest_EU = differ_EUJ.max(-1)
        self.scaled_EUJ = np.exp(differ_EUJ - self.largest_EU[..., None])
        self.class_E = probability_class(part.p_E)
        self.unlikely_E1 = (self.class_E == 0)[:, None]

    def posterior(self, model: TieModel) -> _Posterior:
        share_EUJ = self.scaled_EUJ * model.weight_GJ[self.class_E][:, None]
        total_EU = share_EUJ.sum(-1)
        differ_EU = np.log(total_EU) + self.largest_EU
        top_EU = np.maximum(self.tied_EU, differ_EU)
        tied_EU, apart_EU = model.token * np.exp(self.tied_EU - top_EU), (1 - model.token) * np.exp(differ_EU - top_EU)
        either_EU = np.log(tied_EU + apart_EU) + top_EU
        log_ANU = np.zeros((3, len(self.nodes_N), _POINTS))
        for log_NU, of_likely_EU, of_unlikely_EU in zip(
            log_ANU, (self.tied_EU, self.tied_EU, differ_EU), (self.tied_EU, either_EU, either_EU), strict=True
        ):
            np.add.at(log_NU, self.node_E, np.where(self.unlikely_E1, of_unlikely_EU, of_likely_EU))
        log_ANU += np.log(model.state_A)[:, None, None]
        joint_ANU = np.exp(log_ANU - log_ANU.max((0, 2))[:, None])
        joint_ANU /= joint_ANU.sum((0, 2))[:, None]
        return _Posterior(joint_ANU, tied_EU / (tied_EU + apart_EU), share_EUJ / total_EU[..., None])


@dataclass(frozen=True)
class _Posterior:
    """Posterior of one path.

    Args:
        joint_ANU: State of each node and value after the path's own token; sums to 1 for each node.
        tied_EU: That an unlikely token is tied, if not all tokens of its node are.
        share_EUJ: Strength of each token if it is not tied.
    """

    joint_ANU: Floats
    tied_EU: Floats
    share_EUJ: Floats


def fit_ties(parts: Sequence[NodeEvidence], weight_GJ: Floats, overall: float) -> tuple[TieModel, list[Ties]]:
    """Fits the model of one question by expectation maximization; the ties of each of its paths.

    Args:
        parts: The rollouts beside each path; a rollout is in one of them.
        weight_GJ: Weights of strengths to start with.
        overall: Pass rate of the question.
    """
    found = [_Likelihoods(part, overall) if len(part.depth_E) else None for part in parts]
    model = TieModel(np.full(3, 1 / 3), 0.3, weight_GJ, overall)
    for _ in range(_STEPS):
        before, model = model, _refitted(model, [each for each in found if each])
        change = max(np.abs(model.state_A - before.state_A).max(), np.abs(model.weight_GJ - before.weight_GJ).max())
        if max(change, abs(model.token - before.token)) < _TOLERANCE:
            break
    return model, [_ties(part, each, model) for part, each in zip(parts, found, strict=True)]


def _refitted(model: TieModel, found: Sequence[_Likelihoods]) -> TieModel:
    """One step of expectation maximization."""
    state_A, token_2, total_GJ = np.full(3, _STATE_PSEUDO), np.full(2, _TOKEN_PSEUDO), PSEUDO_GJ.copy()
    for each in found:
        posterior, unlikely_E = each.posterior(model), each.unlikely_E1[:, 0]
        joint_ANU = posterior.joint_ANU * each.fitted_N[:, None]
        state_A += joint_ANU.sum((1, 2))
        open_NU = joint_ANU[LIKELY] + joint_ANU[NONE]
        tied_EU, apart_EU = (open_NU[each.node_E] * share for share in (posterior.tied_EU, 1 - posterior.tied_EU))
        token_2 += tied_EU[unlikely_E].sum(), apart_EU[unlikely_E].sum()
        apart_EU = np.where(each.unlikely_E1, apart_EU, joint_ANU[NONE][each.node_E])
        np.add.at(total_GJ, each.class_E, (posterior.share_EUJ * apart_EU[..., None]).sum(1))
    token = float(token_2[0] / token_2.sum())
    return TieModel(state_A / state_A.sum(), token, total_GJ / total_GJ.sum(-1, keepdims=True), model.overall)


def _ties(part: NodeEvidence, each: _Likelihoods | None, model: TieModel) -> Ties:
    nodes = len(part.value_T)
    all_T, likely_T = np.full(nodes, model.state_A[ALL]), np.full(nodes, model.state_A[LIKELY])
    token_C = np.where(part.kind_C == UNLIKELY_TOKEN, model.token, 0.0)
    if each:
        posterior = each.posterior(model)
        state_AN = posterior.joint_ANU.sum(-1)
        all_T[each.nodes_N], likely_T[each.nodes_N] = state_AN[ALL], state_AN[LIKELY]
        open_EU = (posterior.joint_ANU[LIKELY] + posterior.joint_ANU[NONE])[each.node_E]
        open_E = open_EU.sum(-1)
        token_E = (open_EU * posterior.tied_EU).sum(-1) / np.where(open_E > 0, open_E, 1.0)
        token_C[part.child_E] = np.where(part.kind_C[part.child_E] == UNLIKELY_TOKEN, token_E, 0.0)
    return Ties(all_T, likely_T, token_C, part.kind_C)
