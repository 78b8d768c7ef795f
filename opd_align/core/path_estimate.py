"""What is known of the success probabilities along one path: estimates, uncertainty, ties.

A value without rollouts or models: `core.estimate` makes it, alignment, allocation and reports read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from opd_align.core.ties import Ties
from opd_align.core.tree import child_keys, find_sorted
from opd_align.types import Floats, Ints, PathScores

Bools = NDArray[np.bool_]

CERTAIN = 1e9
"""Effective visits of a child whose outcome is certain (the completion ends there)."""

_ROUNDING = 1e-12


@dataclass(frozen=True)
class PathEstimate:
    """Estimates for every kept child along one path; `_C` arrays have the layout of the path's scores.

    The posterior of child k is `q_k + load_k · δ + sibling_sd_k · η + ε_k`: δ is the error of the on-path child's value
    (variance `path_var_T`) and η that of the centre that the other children are shrunk toward (variance 1), both shared
    by all children of the node; ε_k is the child's own error (variance `own_var_C`). Alignment depends on differences
    between siblings, so shared errors must not be counted as independent noise.

    Args:
        q_C: Success probability after each child.
        own_var_C: Variance of the child's own error.
        load_C: Coefficient of the on-path error δ.
        sibling_sd_C: Coefficient of the centre's error η.
        path_var_T: Variance of δ at each node.
        path_q_T: Success probability after the path's own token at each node.
        visits_C: Rollouts that count as evidence about the child.
        effective_C: Effective visits, `q (1 − q)` divided by the variance.
        value_T: Success probability at each node.
        tail_mass_T: Student probability of the tokens without any evidence.
        offsets: First child of each node, plus the number of children.
        counted: Whether the estimate is a fraction of counted rollouts (`direct`, `pooled`), not a posterior mean.
        widening: Factor on the standard deviations of the draws.
        ties: Where tokens may be equally good. `None`: not estimated, none are.
    """

    q_C: Floats
    own_var_C: Floats
    load_C: Floats
    sibling_sd_C: Floats
    path_var_T: Floats
    path_q_T: Floats
    visits_C: Ints
    effective_C: Floats
    value_T: Floats
    tail_mass_T: Floats
    offsets: Ints
    counted: bool = False
    widening: float = 1.0
    ties: Ties | None = None

    @property
    def se_C(self) -> Floats:
        """Standard error of each child's `q`."""
        path_var_C = np.repeat(self.path_var_T, np.diff(self.offsets))
        return np.sqrt(self.load_C**2 * path_var_C + self.sibling_sd_C**2 + self.own_var_C)

    def interval_C(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Equal-tailed credible interval of each child's Beta posterior; one-sided where that is densest at 0 or 1.

        There, nearly all of the Beta's mass is at the bound, and its quantiles tell its shape, not what is known: at a
        mean of 0.001 and a standard error of 0.007, 95 % would be below 0.003. So the other end is as far from the mean
        as a normal distribution says. Counted estimates have Jeffreys' interval of a binomial probability, from their
        fraction and number of visits.
        """
        from scipy.stats import beta, norm

        if self.counted:
            a_C, b_C = self.visits_C * self.q_C + 0.5, self.visits_C * (1 - self.q_C) + 0.5
            low_C, high_C = beta.ppf((1 - level) / 2, a_C, b_C), beta.ppf((1 + level) / 2, a_C, b_C)
            return np.where(self.q_C == 0, 0.0, low_C), np.where(self.q_C == 1, 1.0, high_C)
        a_C, b_C = _beta_shape(self.q_C, self.se_C**2)
        low_C, high_C = beta.ppf((1 - level) / 2, a_C, b_C), beta.ppf((1 + level) / 2, a_C, b_C)
        reach_C = norm.ppf(level) * self.se_C
        low_C = np.where(b_C < 1, np.fmin(low_C, self.q_C - reach_C), np.where(a_C < 1, 0.0, low_C))
        high_C = np.where(a_C < 1, np.fmax(high_C, self.q_C + reach_C), np.where(b_C < 1, 1.0, high_C))
        return np.clip(np.fmin(low_C, self.q_C), 0.0, 1.0), np.clip(np.fmax(high_C, self.q_C), 0.0, 1.0)

    def draws(self, child_NK: Ints, depth_N: Ints, *, n: int, rng: np.random.Generator) -> Floats:
        """`n` joint posterior draws of `Q` for N nodes with K selected children each: shape (n, N, K)."""
        # Gaussian, though Q is bounded: only differences matter here, and under a skewed distribution of the same mean
        # a child that nothing is known about would be on one side of its sibling more often than not.
        path_DN1, centre_DN1 = rng.standard_normal((2, n, len(depth_N), 1))
        error_DNK = rng.standard_normal((n, *child_NK.shape)) * np.sqrt(self.own_var_C[child_NK])
        error_DNK += self.load_C[child_NK] * np.sqrt(self.path_var_T[depth_N])[:, None] * path_DN1
        error_DNK += self.sibling_sd_C[child_NK] * centre_DN1
        q_DNK = self.q_C[child_NK] + self.widening * error_DNK
        if self.ties is None:
            return np.asarray(q_DNK)
        path_error_DN1 = np.sqrt(self.path_var_T[depth_N])[:, None] * path_DN1
        path_q_DN1 = self.path_q_T[depth_N][:, None] + self.widening * path_error_DN1
        return np.where(self.ties.drawn(child_NK, depth_N, n=n, rng=rng), path_q_DN1, q_DNK)

    def p_positive(self, child_NK: Ints, depth_N: Ints, weight_NK: Floats) -> Floats:
        """Probability that `Σ_k weight_k Q_k` is positive at N nodes, plus half of the probability that it is zero."""
        if self.ties is None:
            return self._p_positive(child_NK, depth_N, weight_NK, np.zeros(child_NK.shape))
        p_N = np.zeros(len(depth_N))
        for probability_N, tied_NK in self.ties.patterns(child_NK, depth_N, weight_NK):
            p_N += probability_N * self._p_positive(child_NK, depth_N, weight_NK, tied_NK)
        return p_N

    def _p_positive(self, child_NK: Ints, depth_N: Ints, weight_NK: Floats, tied_NK: Floats) -> Floats:
        """The same if children are as good as the path's own with the probabilities `tied_NK`.

        Exact for what `draws` samples from where these are 0 or 1; else mean and variance of the child are those of
        both cases together.
        """
        open_NK = weight_NK * (1 - tied_NK)
        path_N = (weight_NK * tied_NK + open_NK * self.load_C[child_NK]).sum(-1) ** 2 * self.path_var_T[depth_N]
        centre_N = (open_NK * self.sibling_sd_C[child_NK]).sum(-1) ** 2
        path_q_N1 = self.path_q_T[depth_N][:, None]
        between_NK = tied_NK * (self.q_C[child_NK] - path_q_N1) ** 2
        own_N = (weight_NK * open_NK * (self.own_var_C[child_NK] + between_NK)).sum(-1)
        mean_N = (weight_NK * tied_NK * path_q_N1 + open_NK * self.q_C[child_NK]).sum(-1)
        sd_N = self.widening * np.sqrt(path_N + centre_N + own_N)
        # A difference of equal numbers leaves a rounding error, whose sign says nothing.
        zero_N = np.abs(mean_N) <= _ROUNDING * np.abs(weight_NK).sum(-1)
        return np.asarray(np.where(zero_N, 0.5, ndtr(mean_N / np.maximum(sd_N, 1e-300))))


def exact_estimate(scores: PathScores, q_C: Floats) -> PathEstimate:
    """An estimate from known success probabilities, without uncertainty."""
    zero_C, zero_T = np.zeros(len(q_C)), np.zeros(len(scores))
    value_T = sum_by(scores.depth_C, np.exp(scores.log_p_C) * q_C, len(scores))
    return PathEstimate(
        q_C, zero_C, zero_C, zero_C, zero_T, q_C[path_children(scores)], np.ones(len(q_C), np.int64),
        np.full(len(q_C), CERTAIN), value_T, zero_T, scores.offsets,
    )  # fmt: skip


def sum_by(depth: Ints, value: Floats, nodes: int) -> Floats:
    """Sum of the values at each depth."""
    return np.bincount(depth, value, nodes).astype(np.float64)


def path_children(scores: PathScores) -> Ints:
    """Index, among all children, of the path's own token at each depth."""
    keys = child_keys(scores.depth_C, scores.token_C)
    found, at = find_sorted(child_keys(np.arange(len(scores)), scores.completion_T), keys)
    if not found.all():
        raise ValueError("a path's own tokens must be among its scored children")
    return at


def _beta_shape(mean: Floats, var: Floats) -> tuple[Floats, Floats]:
    mean = np.clip(mean, 1e-4, 1 - 1e-4)
    strength = np.clip(mean * (1 - mean) / np.maximum(var, 1e-12) - 1, 1e-2, CERTAIN)
    return mean * strength, (1 - mean) * strength
