"""The fork prior: fits increase the likelihood, and posteriors are between counts and siblings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom

from opd_align.core import prior as prior_module
from opd_align.core.prior import ExitSamples, ForkPrior

STRENGTHS = prior_module.STRENGTH_J
LIKELY, UNLIKELY = 0.3, 0.01


def exits_of(p: object, n: object, w: object, centre: object) -> ExitSamples:
    columns = np.broadcast_arrays(*(np.atleast_1d(column) for column in (p, n, w, centre)))
    return ExitSamples(
        columns[0].astype(float), columns[1].astype(int), columns[2].astype(int), columns[3].astype(float)
    )


def drawn_exits(
    seed: int, *, strength: float, size: int, n: int, p: float = LIKELY, centre: float = 0.5
) -> ExitSamples:
    """Exits whose success varies around the centre with variance centre (1 - centre) / (strength + 1)."""
    rng = np.random.default_rng(seed)
    q_E = rng.beta(centre * strength, (1 - centre) * strength, size)
    return exits_of(p, n, rng.binomial(n, q_E), np.full(size, centre))


def only(strength: float, overall: float = 0.5) -> ForkPrior:
    """A prior with one strength only, so that counts cannot change the mixture."""
    weight_J = np.where(strength == STRENGTHS, 1.0, 1e-300)
    assert weight_J.max() == 1.0
    return ForkPrior(overall, np.stack([weight_J, weight_J]))


def log_marginal(prior: ForkPrior, exits: ExitSamples) -> float:
    """Log-probability of the correct rollouts: slow reference, one exit at a time."""
    total = 0.0
    for p, n, w, centre in zip(exits.p_E, exits.n_E, exits.w_E, exits.centre_E, strict=True):
        resemblance_J = STRENGTHS / (STRENGTHS + 0.2)
        mean_J = np.clip(resemblance_J * centre + (1 - resemblance_J) * prior.overall, 0.004, 0.996)
        likelihood_J = betabinom.pmf(w, n, STRENGTHS * mean_J, STRENGTHS * (1 - mean_J))
        total += np.log(prior.weight_GJ[int(p >= 0.05)] @ likelihood_J)
    return float(total)


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([LIKELY, UNLIKELY]),
            st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
            st.floats(0, 1),
        ),
        min_size=1,
        max_size=12,
    ),
    overall=st.floats(0.01, 0.99),
)
@settings(deadline=None)
def test_a_fit_increases_the_likelihood(rows, overall) -> None:
    exits = exits_of(
        [p for p, _, _ in rows], [n for _, (n, _), _ in rows], [w for _, (_, w), _ in rows], [c for _, _, c in rows]
    )
    start = ForkPrior.start(overall)
    once = start.fitted([exits])
    # The initial weights are the mode of the pseudo-counts, so any gain is a gain in likelihood.
    assert log_marginal(once, exits) >= log_marginal(start, exits) - 1e-9
    assert np.allclose(once.weight_GJ.sum(-1), 1.0)
    assert (once.weight_GJ > 0).all()

    def penalised(prior: ForkPrior) -> float:
        return log_marginal(prior, exits) + float((prior_module.PSEUDO_GJ * np.log(prior.weight_GJ)).sum())

    assert penalised(once.fitted([exits])) >= penalised(once) - 1e-9


def test_a_fit_gains_much_if_the_initial_weights_are_wrong() -> None:
    exits = drawn_exits(0, strength=2000.0, size=200, n=100)
    start = ForkPrior.start(0.5)
    assert log_marginal(start.fitted([exits]), exits) > log_marginal(start, exits) + 20


@pytest.mark.parametrize("strength", [4.0, 12.0, 40.0, 120.0])
@pytest.mark.parametrize("p", [LIKELY, UNLIKELY])
def test_the_fitted_spread_is_that_of_the_exits(strength: float, p: float) -> None:
    exits = drawn_exits(1, strength=strength, size=800, n=300, p=p)
    fitted = ForkPrior.start(0.5)
    for _ in range(5):
        fitted = fitted.fitted([exits])
    assert fitted.spread(np.array([p]))[0] == pytest.approx(1 / (strength + 1), rel=0.25)


def test_likely_and_unlikely_tokens_are_fitted_separately() -> None:
    wild, tame = (
        drawn_exits(2, strength=4.0, size=300, n=100, p=UNLIKELY),
        drawn_exits(3, strength=400.0, size=300, n=100, p=LIKELY),
    )
    fitted = ForkPrior.start(0.5).fitted([wild, tame])
    spread_unlikely, spread_likely = fitted.spread(np.array([UNLIKELY, LIKELY]))
    assert spread_unlikely > 10 * spread_likely
    alone = ForkPrior.start(0.5).fitted([tame])
    assert np.array_equal(alone.weight_GJ[1], fitted.weight_GJ[1])
    assert np.allclose(alone.weight_GJ[0], ForkPrior.start(0.5).weight_GJ[0])  # nothing seen, nothing learnt


def test_the_split_into_parts_does_not_matter() -> None:
    exits = drawn_exits(4, strength=12.0, size=50, n=20)
    whole = ForkPrior.start(0.4).fitted([exits])
    cut = [
        ExitSamples(*(column[piece] for column in (exits.p_E, exits.n_E, exits.w_E, exits.centre_E)))
        for piece in (slice(0, 7), slice(7, 7), slice(7, None))
    ]
    assert np.allclose(ForkPrior.start(0.4).fitted(cut).weight_GJ, whole.weight_GJ, rtol=1e-12)


def test_a_fit_without_exits_keeps_the_initial_weights() -> None:
    start = ForkPrior.start(0.3)
    unseen = exits_of(LIKELY, 0, 0, 0.7)
    assert np.allclose(start.fitted([]).weight_GJ, start.weight_GJ)
    assert np.allclose(start.fitted([unseen]).weight_GJ, start.weight_GJ)


@given(
    n=st.integers(1, 200),
    share=st.floats(0, 1),
    centre=st.floats(0, 1),
    p=st.sampled_from([LIKELY, UNLIKELY]),
    overall=st.floats(0, 1),
)
@settings(deadline=None)
def test_the_posterior_is_between_observed_fraction_and_siblings(n, share, centre, p, overall) -> None:
    w = round(share * n)
    found = ForkPrior.start(centre).posterior(exits_of(p, n, w, centre))
    low, high = sorted((w / n, centre))
    assert low - 1e-12 <= found.mean_E[0] <= high + 1e-12
    # The pass rate has a small weight; the posterior is never outside the range of the three.
    found = ForkPrior.start(overall).posterior(exits_of(p, n, w, centre))
    assert min(low, overall) - 1e-12 <= found.mean_E[0] <= max(high, overall) + 1e-12
    assert 0 < found.var_E[0] <= 0.25
    assert 0 <= found.slope_E[0] < 1


def test_many_samples_dominate_the_prior() -> None:
    prior = ForkPrior.start(0.5)
    error = []
    for n in (10, 1000, 100_000, 10_000_000):
        found = prior.posterior(exits_of(LIKELY, n, 0.2 * n, 0.9))
        error.append(abs(found.mean_E[0] - 0.2))
    assert error == sorted(error, reverse=True)
    assert error[-1] < 1e-5
    assert found.var_E[0] == pytest.approx(0.2 * 0.8 / 1e7, rel=0.01)
    assert found.slope_E[0] < 1e-5


@pytest.mark.parametrize("centre", [0.0, 0.05, 0.5, 1.0])
def test_without_samples_the_posterior_is_the_siblings_mean(centre: float) -> None:
    prior = ForkPrior.start(0.6)
    for p in (LIKELY, UNLIKELY):
        found = prior.posterior(exits_of(p, 0, 0, centre))
        assert abs(found.mean_E[0] - centre) < 0.05
        assert found.slope_E[0] > 0.9
        # Without samples the variance is at least the spread of the fitted forks.
        inside = min(max(centre, 0.01), 0.99)
        assert found.var_E[0] > 0.5 * prior.spread(np.array([p]))[0] * inside * (1 - inside)


@pytest.mark.parametrize("centre", [0.03, 0.2, 0.9, 0.98])
def test_the_prior_variance_is_proportional_to_q_times_1_minus_q(centre: float) -> None:
    prior = only(400.0, overall=centre)
    middle = only(400.0).posterior(exits_of(LIKELY, 0, 0, 0.5)).var_E[0]
    found = prior.posterior(exits_of(LIKELY, 0, 0, centre)).var_E[0]
    relative = centre * (1 - centre) / 0.25
    assert found / middle == pytest.approx(relative, rel=0.01)


@given(n=st.integers(0, 50), share=st.floats(0, 1), centre=st.floats(0.01, 0.99), pick=st.integers(0, 7))
@settings(deadline=None)
def test_of_one_component_the_slope_is_the_derivative_with_respect_to_the_siblings(n, share, centre, pick) -> None:
    w, step = round(share * n), 1e-4
    one_class = only(STRENGTHS[pick])
    up, down = (one_class.posterior(exits_of(LIKELY, n, w, centre + sign * step)).mean_E[0] for sign in (1, -1))
    slope = one_class.posterior(exits_of(LIKELY, n, w, centre)).slope_E[0]
    assert slope == pytest.approx((up - down) / (2 * step), abs=1e-7)


def test_without_samples_the_mixture_is_fixed_and_so_is_its_slope() -> None:
    prior = ForkPrior.start(0.6)
    up, down = (prior.posterior(exits_of(LIKELY, 0, 0, centre)).mean_E[0] for centre in (0.7, 0.3))
    assert prior.posterior(exits_of(LIKELY, 0, 0, 0.5)).slope_E[0] == pytest.approx((up - down) / 0.4, abs=1e-12)


def test_the_posterior_of_one_class_is_the_textbook_one() -> None:
    strength, overall = 12.0, 0.3
    found = only(strength, overall).posterior(exits_of(LIKELY, 10, 7, 0.5))
    resemblance = strength / (strength + 0.2)
    mean = (7 + strength * (resemblance * 0.5 + (1 - resemblance) * overall)) / (10 + strength)
    assert found.mean_E[0] == pytest.approx(mean, abs=1e-12)
    assert found.var_E[0] == pytest.approx(mean * (1 - mean) / (10 + strength + 1), abs=1e-12)


@pytest.mark.parametrize("correct", [0, 1])
@pytest.mark.parametrize("centre", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("overall", [0.0, 1.0])
def test_all_incorrect_and_all_correct_are_finite(correct: int, centre: float, overall: float) -> None:
    n_E = np.array([0, 1, 20, 10**6])
    exits = exits_of(LIKELY, n_E, correct * n_E, centre)
    fitted = ForkPrior.start(overall).fitted([exits])
    found = fitted.posterior(exits)
    assert np.isfinite(fitted.weight_GJ).all()
    for column in (found.mean_E, found.var_E, found.slope_E):
        assert np.isfinite(column).all()
    assert ((found.mean_E >= 0) & (found.mean_E <= 1)).all()
    assert (found.var_E > 0).all()  # nothing that was only counted is certain


def test_a_fit_does_not_modify_the_initial_prior() -> None:
    start = ForkPrior.start(0.5)
    before = start.weight_GJ.copy()
    fitted = start.fitted([drawn_exits(5, strength=1.0, size=50, n=50)])
    assert not np.allclose(fitted.weight_GJ, before)
    assert np.array_equal(start.weight_GJ, before)
    assert np.array_equal(ForkPrior.start(0.5).weight_GJ, before)
