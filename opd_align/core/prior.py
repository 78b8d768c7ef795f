"""Empirical-Bayes prior: how much the success probability of a token may differ from that of its siblings.

Most forks change the outcome little, a few decide it. So an exit (a token that leaves the path) with few samples is
shrunk toward its siblings. The strength comes from all exits of the question: a mixture of Beta priors, from "decides
the outcome" to "changes nothing", with weights fitted by marginal likelihood. Unlikely tokens are more often mistakes
than likely ones, so they have weights of their own.

Works on counts and probabilities only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from opd_align.types import Floats, Ints

STRENGTH_J = np.array([1.0, 4.0, 12.0, 40.0, 120.0, 400.0, 2000.0, 1e5])
# The smaller the strength, the less an exit resembles its siblings, and the closer its prior mean is to the pass rate.
_RESEMBLANCE_J = STRENGTH_J / (STRENGTH_J + 0.2)
# Initial weights of the fit, also its pseudo-counts, which dominate when there are few exits. Row 0, unlikely tokens:
# weakly informative. Row 1, likely tokens: measured on forks of an 8B model, half of them within 0.03 of each other,
# one in ten more than 0.1 apart.
_LIKELY = 0.05
PSEUDO_GJ = np.array([[0.3, 0.5, 0.5, 0.4, 0.4, 0.3, 0.2, 0.1], [0.1, 0.15, 0.2, 0.3, 0.6, 0.6, 0.6, 0.45]])
_EM_STEPS = 25
_INSIDE = 0.004
"""Prior means are at least this far from 0 and 1 where variances and likelihoods depend on them."""


@dataclass(frozen=True)
class ExitSamples:
    """Samples of the exits of a path.

    Args:
        p_E: Student probability of each exit.
        n_E: Number of rollouts through it; a rollout may count for more than one.
        w_E: Number of correct rollouts among `n_E`.
        centre_E: Mean success probability of its siblings.
    """

    p_E: Floats
    n_E: Floats
    w_E: Floats
    centre_E: Floats

    def take(self, chosen_E: NDArray[np.bool_]) -> ExitSamples:
        return ExitSamples(self.p_E[chosen_E], self.n_E[chosen_E], self.w_E[chosen_E], self.centre_E[chosen_E])


@dataclass(frozen=True)
class Posterior:
    """Posterior of each exit's success probability.

    Args:
        mean_E: Mean.
        var_E: Variance.
        slope_E: Derivative of the mean with respect to the siblings' mean, for fixed shares of the components.
    """

    mean_E: Floats
    var_E: Floats
    slope_E: Floats


@dataclass(frozen=True)
class ForkPrior:
    """The prior of one question's exits: a mixture of Beta distributions.

    Args:
        overall: Pass rate of the question.
        weight_GJ: Mixture weights by probability class (G) and strength (J).
    """

    overall: float
    weight_GJ: Floats

    @staticmethod
    def start(overall: float) -> ForkPrior:
        return ForkPrior(overall, PSEUDO_GJ / PSEUDO_GJ.sum(-1, keepdims=True))

    def spread(self, p: Floats) -> Floats:
        """Prior variance of exits with the probability `p`, as a fraction of `Q (1 − Q)`."""
        return np.asarray((self.weight_GJ / (STRENGTH_J + 1.0)).sum(-1)[probability_class(p)])

    def fitted(self, parts: Sequence[ExitSamples]) -> ForkPrior:
        """The prior with weights that maximize the likelihood of the sampled exits (expectation maximization)."""
        if not parts:
            return self
        p_E, n_E, w_E, centre_E = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("p_E", "n_E", "w_E", "centre_E")
        )
        seen_E = n_E > 0
        exits = ExitSamples(p_E[seen_E], n_E[seen_E], w_E[seen_E], centre_E[seen_E])
        class_E = probability_class(exits.p_E)
        weight_GJ = self.weight_GJ.copy()
        likelihood_EJ = self._log_likelihood(exits)
        likelihood_EJ = np.exp(likelihood_EJ - likelihood_EJ.max(-1, keepdims=True))
        for group in range(len(weight_GJ)):
            group_EJ = likelihood_EJ[class_E == group]
            for _ in range(_EM_STEPS):
                share_EJ = weight_GJ[group] * group_EJ
                total_J = PSEUDO_GJ[group] + (share_EJ / share_EJ.sum(-1, keepdims=True)).sum(0)
                weight_GJ[group] = total_J / total_J.sum()
        return replace(self, weight_GJ=weight_GJ)

    def posterior(self, exits: ExitSamples) -> Posterior:
        n_E1, w_E1 = exits.n_E[:, None], exits.w_E[:, None]
        log_EJ = np.log(self.weight_GJ)[probability_class(exits.p_E)] + self._log_likelihood(exits)
        share_EJ = np.exp(log_EJ - log_EJ.max(-1, keepdims=True))
        share_EJ /= share_EJ.sum(-1, keepdims=True)
        prior_EJ = self._prior_means(exits)
        mean_EJ = (w_E1 + STRENGTH_J * prior_EJ) / (n_E1 + STRENGTH_J)
        mean_E = (share_EJ * mean_EJ).sum(-1)
        # A prior mean of exactly 0 or 1 would give zero variance without any evidence.
        cautious_EJ = (w_E1 + STRENGTH_J * np.clip(prior_EJ, _INSIDE, 1 - _INSIDE)) / (n_E1 + STRENGTH_J)
        within_E = (share_EJ * cautious_EJ * (1 - cautious_EJ) / (n_E1 + STRENGTH_J + 1.0)).sum(-1)
        between_E = (share_EJ * (mean_EJ - mean_E[:, None]) ** 2).sum(-1)
        slope_E = (share_EJ * _RESEMBLANCE_J * STRENGTH_J / (n_E1 + STRENGTH_J)).sum(-1)
        return Posterior(mean_E, within_E + between_E, slope_E)

    def _prior_means(self, exits: ExitSamples) -> Floats:
        return prior_means(exits.centre_E[:, None], self.overall)

    def _log_likelihood(self, exits: ExitSamples) -> Floats:
        """Beta-binomial log-likelihood up to a constant per exit; without samples all strengths are equally likely."""
        log_EJ = np.zeros((len(exits.n_E), len(STRENGTH_J)))
        seen_E = exits.n_E > 0
        w_E1, lost_E1 = exits.w_E[seen_E, None], (exits.n_E - exits.w_E)[seen_E, None]
        inside_EJ = np.clip(self._prior_means(exits)[seen_E], _INSIDE, 1 - _INSIDE)
        a_EJ, b_EJ = STRENGTH_J * inside_EJ, STRENGTH_J * (1 - inside_EJ)
        log_EJ[seen_E] = betaln(w_E1 + a_EJ, lost_E1 + b_EJ) - betaln(a_EJ, b_EJ)
        return log_EJ


def prior_means(centre: Floats, overall: float) -> Floats:
    """Prior mean by strength, in the last axis.

    Args:
        centre: Mean success probability of the siblings; the last axis has length 1.
        overall: Pass rate of the question.
    """
    return np.asarray(_RESEMBLANCE_J * centre + (1 - _RESEMBLANCE_J) * overall)


def probability_class(p: Floats) -> Ints:
    """0 for unlikely tokens, 1 for likely ones."""
    return (p >= _LIKELY).astype(np.int64)
