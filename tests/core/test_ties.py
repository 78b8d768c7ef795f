"""Where tokens are equally good: the fit beside a slow twin, laws of the posterior, and worlds in which it is known."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaln
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import aggregates
from _worlds import explore, teachers_of, world_of

from opd_align.backends.exact import ExactWorld
from opd_align.core import ties
from opd_align.core.collect import collect
from opd_align.core.engine import align
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.prior import STRENGTH_J, ForkPrior
from opd_align.core.ties import FIXED, LIKELY_TOKEN, UNLIKELY_TOKEN, NodeEvidence, TieModel, Ties, fit_ties
from opd_align.settings import Budget
from opd_align.types import Floats, Question

WEIGHT_GJ = ForkPrior.start(0.5).weight_GJ
OVERALL = 0.6
MODEL = TieModel(np.array([0.3, 0.2, 0.5]), 0.4, WEIGHT_GJ, OVERALL)


def evidence_of(
    rows: list[tuple[int, float, float, float]], value: tuple[float, ...] = (0.5,), var: float = 0.001
) -> NodeEvidence:
    """Rows are (node, student probability, rollouts, correct ones), each for one child."""
    depth_E, p_E, n_E, w_E = (np.array(column, float) for column in zip(*rows, strict=True))
    kind_C = np.where(p_E >= 0.05, LIKELY_TOKEN, UNLIKELY_TOKEN)
    return NodeEvidence(
        depth_E.astype(int), p_E, n_E, w_E, np.array(value), np.full(len(value), var), kind_C, np.arange(len(rows))
    )


def slow_posterior(rows: list[tuple[int, float, float, float]], value: float, var: float) -> tuple[Floats, Floats]:
    """States of one node, and which of its unlikely tokens are tied, by enumeration of every case on a fine grid."""
    strength = value * (1 - value) / var - 1
    values = beta.ppf((np.arange(400) + 0.5) / 400, strength * value, strength * (1 - value))
    state_A, tied_E, open_total = np.zeros(3), np.zeros(len(rows)), 0.0
    for u in values:
        tied = [w * np.log(u) + (n - w) * np.log1p(-u) for _, _, n, w in rows]
        apart = [
            np.log(
                sum(
                    weight * np.exp(betaln(w + s * m, n - w + s * (1 - m)) - betaln(s * m, s * (1 - m)))
                    for weight, s in zip(WEIGHT_GJ[int(p >= 0.05)], STRENGTH_J, strict=True)
                    for m in [(s * u + 0.2 * OVERALL) / (s + 0.2)]
                )
            )
            for _, p, n, w in rows
        ]
        state_A[0] += MODEL.state_A[0] * np.exp(sum(tied))
        for state, pattern in product((1, 2), product((True, False), repeat=len(rows))):
            likelihood = MODEL.state_A[state]
            for (_, p, _, _), is_tied, one, other in zip(rows, pattern, tied, apart, strict=True):
                if p >= 0.05:
                    likelihood *= (np.exp(one) if state == 1 else np.exp(other)) if is_tied else 0.0
                else:
                    likelihood *= MODEL.token * np.exp(one) if is_tied else (1 - MODEL.token) * np.exp(other)
            state_A[state] += likelihood
            open_total += likelihood
            tied_E += likelihood * np.array(pattern)
    return state_A / state_A.sum(), tied_E / open_total


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0.3, 20, 10)],
        [(0, 0.3, 20, 3), (0, 0.1, 12, 6)],
        [(0, 0.2, 30, 14), (0, 0.02, 8, 0), (0, 0.03, 5, 3)],
        [(0, 0.02, 40, 2)],
    ],
)
def test_the_posterior_agrees_with_a_slow_twin(rows) -> None:
    part = evidence_of(rows)
    found = ties._ties(part, ties._Likelihoods(part, OVERALL), MODEL)
    state_A, tied_E = slow_posterior(rows, 0.5, 0.001)
    assert [found.all_T[0], found.likely_T[0]] == pytest.approx(state_A[:2], abs=0.01)
    unlikely_C = part.kind_C == UNLIKELY_TOKEN
    assert found.token_C[unlikely_C] == pytest.approx(tied_E[unlikely_C], abs=0.01)
    assert (found.token_C[~unlikely_C] == 0).all()


def test_each_step_of_the_fit_raises_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (node, p, n, rng.binomial(n, np.clip(0.5 + d, 0, 1)))
        for node in range(60)
        for p, n, d in ((0.3, 20, 0.0), (0.02, 10, rng.choice([0.0, -0.45])))
    ]
    part = evidence_of(rows, value=(0.5,) * 60)
    each = ties._Likelihoods(part, OVERALL)

    def log_posterior(model: TieModel) -> float:
        # Unnormalised joint_ANU, summed: the marginal likelihood of every node; and the pseudo-counts.
        share = each.scaled_EUJ * model.weight_GJ[each.class_E][:, None]
        differ = np.log(share.sum(-1)) + each.largest_EU
        either = np.logaddexp(np.log(model.token) + each.tied_EU, np.log1p(-model.token) + differ)
        total = np.zeros((60, ties._POINTS, 3))
        for state, (likely, unlikely) in enumerate(
            ((each.tied_EU, each.tied_EU), (each.tied_EU, either), (differ, either))
        ):
            np.add.at(total[..., state], each.node_E, np.where(each.unlikely_E1, unlikely, likely))
        nodes = np.logaddexp.reduce((total + np.log(model.state_A)).reshape(60, -1), axis=-1).sum()
        pseudo = np.log(model.state_A).sum() * ties._STATE_PSEUDO
        pseudo += ties._TOKEN_PSEUDO * (np.log(model.token) + np.log1p(-model.token))
        return float(nodes + pseudo + (ties.PSEUDO_GJ * np.log(model.weight_GJ)).sum())

    found = []
    for steps in range(1, 12):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ties, "_STEPS", steps)
            found.append(log_posterior(fit_ties([part], WEIGHT_GJ, OVERALL)[0]))
    assert np.diff(found).min() > -1e-9
    assert found[-1] > found[0] + 0.1


def test_a_question_of_ties_and_one_of_decisions_are_told_apart() -> None:
    rng = np.random.default_rng(1)

    def fitted(effect: float) -> tuple[TieModel, Ties]:
        rows = [(node, 0.3, 25, rng.binomial(25, 0.5 + rng.choice([-effect, effect]))) for node in range(200)]
        model, (one,) = fit_ties([evidence_of(rows, value=(0.5,) * 200)], WEIGHT_GJ, OVERALL)
        return model, one

    nothing, tied = fitted(0.0)
    decisive, apart = fitted(0.4)
    # Two states are the same here, without unlikely tokens.
    assert nothing.state_A[:2].sum() > 0.7
    assert (tied.all_T + tied.likely_T).mean() > 0.7
    assert decisive.state_A[2] > 0.9
    assert (apart.all_T + apart.likely_T).mean() < 0.1


def test_a_decisive_token_is_not_tied_among_many_ties() -> None:
    rng = np.random.default_rng(2)
    rows = [(node, 0.3, 25, rng.binomial(25, 0.5)) for node in range(200)]
    rows[7] = (7, 0.3, 25, 1)
    _, (found,) = fit_ties([evidence_of(rows, value=(0.5,) * 200)], WEIGHT_GJ, OVERALL)
    assert found.all_T[7] + found.likely_T[7] < 0.02


def test_a_mistake_among_unlikely_tokens_leaves_the_likely_ones_tied() -> None:
    rows = []
    for node in range(100):
        rows += [(node, 0.3, 25, 12 + node % 2), (node, 0.02, 20, 1 if node % 2 else 10)]
    part = evidence_of(rows, value=(0.5,) * 100)
    _, (found,) = fit_ties([part], WEIGHT_GJ, OVERALL)
    mistake_T = np.arange(100) % 2 == 1
    assert (found.likely_T[mistake_T] > 0.7).all()
    assert (found.token_C[1::2][mistake_T] < 0.05).all()


def test_patterns_are_a_distribution_and_agree_with_draws() -> None:
    kind_C = np.array([FIXED, LIKELY_TOKEN, UNLIKELY_TOKEN, UNLIKELY_TOKEN])
    one = Ties(np.array([0.25]), np.array([0.35]), np.array([0, 0, 0.5, 0.01]), kind_C)
    child_NK, depth_N, weight_NK = np.array([[0, 1, 2, 3]]), np.array([0]), np.array([[1.0, -0.5, 0.2, -0.7]])
    patterns = list(one.patterns(child_NK, depth_N, weight_NK))
    assert sum(p_N for p_N, _ in patterns) == pytest.approx([1.0])
    by_pattern = sum(p_N[:, None] * tied_NK for p_N, tied_NK in patterns)
    exact = np.array([[0, 0.6, 0.25 + 0.75 * 0.5, 0.25 + 0.75 * 0.01]])
    np.testing.assert_allclose(by_pattern, exact, atol=1e-12)
    drawn = one.drawn(child_NK, depth_N, n=40_000, rng=np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(0), exact, atol=0.01)


@pytest.mark.parametrize("children", [3, 5, 12])
def test_the_probability_of_a_sign_agrees_with_draws_and_knows_no_order(children) -> None:
    rng = np.random.default_rng(children)
    zero = np.zeros(children)
    kind_C = np.array([FIXED, LIKELY_TOKEN] + [UNLIKELY_TOKEN] * (children - 2))
    token_C = np.where(kind_C == UNLIKELY_TOKEN, rng.random(children), 0.0)
    weight_K = rng.normal(size=children) * np.where(kind_C == UNLIKELY_TOKEN, 0.3, 1.0)
    weight_K -= weight_K.mean()

    def found(order: np.ndarray) -> tuple[PathEstimate, Floats]:
        q_C = np.random.default_rng(1).uniform(0.3, 0.7, children)
        one = PathEstimate(
            q_C[order], np.where(order > 0, 0.004, 0.0), np.where(order > 0, 0.4, 1.0), zero, np.array([0.002]),
            q_C[:1], np.ones(children, int), np.ones(children), q_C[:1], np.zeros(1), np.array([0, children]),
            ties=Ties(np.array([0.2]), np.array([0.3]), token_C[order], kind_C[order]),
        )  # fmt: skip
        return one, one.p_positive(np.arange(children)[None], np.array([0]), weight_K[order][None])

    one, p = found(np.arange(children))
    assert found(rng.permutation(children))[1] == pytest.approx(p, abs=1e-9)
    draws_DK = one.draws(np.arange(children)[None], np.array([0]), n=60_000, rng=rng)[:, 0]
    total_D = draws_DK @ weight_K
    drawn = ((total_D > 1e-12) + 0.5 * (np.abs(total_D) <= 1e-12)).mean()
    # Beyond four unlikely tokens it is an approximation.
    assert drawn == pytest.approx(p[0], abs=0.01 if children < 7 else 0.03)


def test_nodes_where_all_is_lost_do_not_decide_what_others_are() -> None:
    rng = np.random.default_rng(5)
    live = [(node, 0.3, 25, rng.binomial(25, 0.5)) for node in range(100)]
    dead = [(node, 0.3, 1000, 0) for node in range(100, 300)]
    alone, _ = fit_ties([evidence_of(live, value=(0.5,) * 100)], WEIGHT_GJ, OVERALL)
    part = evidence_of(live + dead, value=(0.5,) * 100 + (0.0,) * 200)
    together, _ = fit_ties([part], WEIGHT_GJ, OVERALL)
    assert together.state_A == pytest.approx(alone.state_A, abs=0.01)


@pytest.mark.parametrize(("n", "w"), [(5, 1), (20, 1), (400, 3)])
def test_a_success_beside_certain_failure_is_no_tie(n, w) -> None:
    for value, won in ((0.0, w), (1.0, n - w)):
        part = evidence_of([(0, 0.3, n, won)], value=(value,), var=0.0)
        found = ties._ties(part, ties._Likelihoods(part, OVERALL), MODEL)
        assert found.all_T[0] + found.likely_T[0] < 0.02


def test_the_sign_of_a_tied_node_is_open_and_that_of_the_rest_is_unchanged() -> None:
    zero = np.zeros(2)
    plain = PathEstimate(
        np.array([0.4, 0.6]), np.array([0.0, 0.01]), np.array([1.0, 0.5]), zero, np.array([0.002]), np.array([0.4]),
        np.ones(2, int), np.ones(2), np.array([0.5]), np.zeros(1), np.array([0, 2]),
    )  # fmt: skip
    weight_NK, child_NK, depth_N = np.array([[-0.2, 0.2]]), np.array([[0, 1]]), np.array([0])
    sure = plain.p_positive(child_NK, depth_N, weight_NK)[0]
    for share in (0.0, 0.3, 1.0):
        kind_C = np.array([FIXED, LIKELY_TOKEN])  # the path's own token and another one
        found = replace(plain, ties=Ties(np.zeros(1), np.array([share]), zero, kind_C))
        p = found.p_positive(child_NK, depth_N, weight_NK)[0]
        assert p == pytest.approx(share * 0.5 + (1 - share) * sure)
        assert found.p_positive(child_NK, depth_N, -weight_NK)[0] == pytest.approx(1 - p)
        draws_DK = found.draws(child_NK, depth_N, n=40_000, rng=np.random.default_rng(3))[:, 0]
        difference_D = draws_DK[:, 1] - draws_DK[:, 0]
        assert ((difference_D > 0) + 0.5 * (difference_D == 0)).mean() == pytest.approx(p, abs=0.01)
        assert (difference_D == 0).mean() == pytest.approx(share, abs=0.01)


def test_where_nothing_is_at_stake_hardly_anything_has_a_verdict() -> None:
    """In these worlds every pair of tokens leads to the same state, so each verdict within pairs is wrong."""
    decided, rows = 0, 0
    for seed in range(8):
        world, teachers = aggregates.null_world(900 + seed, 60)
        evidence = collect(world, teachers, Question(f"null-{seed}"), world, settings=aggregates.SETTINGS)
        nodes = align(evidence, aggregates.SETTINGS)
        decided += sum(verdict != "undecided" for verdict in nodes["verdict"].to_pylist())
        rows += nodes.num_rows
    assert rows > 200
    assert decided / rows < 0.03


@pytest.mark.parametrize("family", ["late", "cot", "real"])
def test_verdicts_are_right_in_exact_worlds(family) -> None:
    right, decided = 0, 0
    for seed in range(40, 44):
        world = world_of(family, seed, 60)
        evidence = explore(world, teachers_of(world, seed, family), Budget(initial=100, targeted=3000))
        said, true = aggregates.align(evidence, aggregates.SETTINGS), aggregates.true_table(world, evidence)
        keys = ("path", "depth", "teacher")
        truth = {tuple(row[k] for k in keys): row["alignment"] for row in true.to_pylist()}
        for row in said.to_pylist():
            exact = truth.get(tuple(row[k] for k in keys))
            if row["verdict"] != "undecided":
                decided += 1
                right += exact is not None and exact * (1 if row["verdict"] == "helpful" else -1) > 0
    assert decided > 30
    assert right / decided > 0.95


def branched_world() -> tuple[ExactWorld, list[PathEstimate]]:
    world = world_of("real", 11, 60)
    evidence = explore(world, teachers_of(world, 11), Budget(initial=100, targeted=1500))
    return world, estimate(evidence.tree, evidence.paths)


def test_every_path_has_ties_of_its_own_layout() -> None:
    _, found = branched_world()
    for one in found:
        assert one.ties is not None
        assert [len(getattr(one.ties, f.name)) for f in fields(Ties)] == [
            len(one.value_T), len(one.value_T), len(one.q_C), len(one.q_C)
        ]  # fmt: skip
        for value in (one.ties.all_T, one.ties.likely_T, one.ties.all_T + one.ties.likely_T, one.ties.token_C):
            assert ((value >= 0) & (value <= 1 + 1e-12)).all()


def test_without_rollouts_beside_the_paths_the_start_is_kept() -> None:
    empty = NodeEvidence(
        np.empty(0, int), np.empty(0), np.empty(0), np.empty(0), np.array([0.5]), np.array([0.01]),
        np.array([UNLIKELY_TOKEN, FIXED]), np.empty(0, int),
    )  # fmt: skip
    model, (one,) = fit_ties([empty], WEIGHT_GJ, OVERALL)
    assert model.state_A == pytest.approx(np.full(3, 1 / 3))
    assert one.all_T == pytest.approx([1 / 3])
    assert one.token_C == pytest.approx([0.5, 0.0])
    assert fit_ties([], WEIGHT_GJ, OVERALL)[1] == []


@pytest.mark.parametrize(("value", "var"), [(0.0, 0.0), (1.0, 0.0), (1e-9, 1e-12), (0.5, 0.25), (0.999, 0.2)])
def test_values_at_the_border_give_finite_probabilities(value, var) -> None:
    rows = [(0, 0.3, 20, 20), (0, 0.02, 5000, 0), (0, 0.01, 0.3, 0.3)]
    _, (one,) = fit_ties([evidence_of(rows, value=(value,), var=var)], WEIGHT_GJ, OVERALL)
    assert all(np.isfinite(getattr(one, f.name)).all() for f in fields(Ties))
