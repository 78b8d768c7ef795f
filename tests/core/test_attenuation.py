"""Corrections for attenuation on tables whose truth is known, and on exact worlds."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from opd_align import metrics
from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.core.alignment import EstimatedPath, node_table
from opd_align.core.attenuation import (
    ALIGNMENT_MOMENTS,
    COMMON_SD,
    KINDS,
    LEAST,
    MODEL_SD,
    MOMENTS,
    SENSITIVITY,
    advantage_values,
    alignment_values,
    weighted_values,
)
from opd_align.core.collect import collect
from opd_align.core.decision import question_values
from opd_align.core.engine import align
from opd_align.core.intervals import interval
from opd_align.core.node_rows import select_rows
from opd_align.core.path_estimate import exact_estimate
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import REWARD, Question

NOTHING = ("alignment", *ALIGNMENT_MOMENTS)
"""Columns that are 0 where nothing is at stake."""
SMALL = Settings(
    budget=Budget(initial=60, targeted=300, allocation="adaptive", correct_paths=1, incorrect_paths=1),
    rules=Rules(draws=60),
)


def made_nodes(columns: dict[str, np.ndarray], teacher: str = "T") -> pa.Table:
    """A node table with these columns; the columns of corrections that are not given are 0, something is at stake."""
    n = len(columns["alignment"])
    zeros = {name: np.zeros(n) for name in MOMENTS} | {"at_stake": np.ones(n)}
    same = {"path": np.zeros(n, np.int64), "teacher": [teacher] * n, "objective": ["gkd"] * n}
    given = {"advantage": np.zeros(n), "alignment_low": np.full(n, -0.5), "alignment_high": np.full(n, 0.5)}
    return pa.table(same | given | zeros | columns)


def two_way_forks(theta: float, *, questions: int, nodes: int = 60, seed: int = 0) -> pa.Table:
    """Forks between two tokens, with SR range 0.2 and alignment +1 at a share (1 + theta) / 2 of the nodes.

    What is seen of each is its sign with normal noise. The posterior mean for equally likely signs follows exactly.
    """
    rng = np.random.default_rng(seed)
    n = questions * nodes
    sign_N = np.where(rng.random(n) < (1 + theta) / 2, 1.0, -1.0)
    precision_N = rng.uniform(0.05, 1.0, n)
    mean_N = np.tanh(precision_N * sign_N + np.sqrt(precision_N) * rng.standard_normal(n))
    return made_nodes({
        "question": np.repeat([f"q{at:03}" for at in range(questions)], nodes), "alignment": mean_N,
        "sr_range": np.full(n, 0.2), "alignment_square": np.ones(n), "signal_mean": 0.2 * mean_N,
        "signal_square": np.full(n, 0.04), "signal_alignment": np.full(n, 0.2), "sr_range_mean": np.full(n, 0.2),
    })  # fmt: skip


@pytest.mark.parametrize("theta", [-0.6, 0.0, 0.3])
def test_the_corrected_mean_is_the_truth_where_the_posterior_mean_is_pulled_toward_zero(theta):
    rows = select_rows(two_way_forks(theta, questions=200), None)
    for values in (alignment_values(rows), weighted_values(rows)):
        assert values.value_Q.mean() == pytest.approx(theta, abs=0.03)
        assert 0.3 < values.attenuation < 0.6
    assert abs(rows.question_means(rows["alignment"]).mean()) < 0.6 * abs(theta) + 0.02


def test_nodes_where_nothing_is_at_stake_do_not_count():
    nodes = two_way_forks(0.3, questions=50)
    tied = two_way_forks(0.3, questions=50, seed=1)
    for name in NOTHING:
        tied = tied.set_column(tied.column_names.index(name), name, pa.array(np.zeros(tied.num_rows)))
    together = pa.concat_tables([nodes, tied])
    for values in (alignment_values, weighted_values):
        alone, both = (values(select_rows(table, None)) for table in (nodes, together))
        np.testing.assert_allclose(both.value_Q, alone.value_Q, atol=1e-12)
        assert both.attenuation == pytest.approx(alone.attenuation)


def test_a_question_without_anything_at_stake_has_no_mean():
    nodes = two_way_forks(0.3, questions=3)
    nothing = np.array([question == "q001" for question in nodes["question"].to_pylist()])
    for name in NOTHING:
        value = np.where(nothing, 0.0, nodes[name].to_numpy())
        nodes = nodes.set_column(nodes.column_names.index(name), name, pa.array(value))
    value_Q = alignment_values(select_rows(nodes, None)).value_Q
    assert np.isnan(value_Q).tolist() == [False, True, False]


def test_known_values_are_not_changed():
    rng = np.random.default_rng(1)
    alignment_N, sr_N = rng.uniform(-1, 1, 60), rng.uniform(0.1, 0.5, 60)
    signal_N = alignment_N * sr_N
    nodes = made_nodes({
        "question": np.repeat(["a", "b", "c"], 20), "alignment": alignment_N, "sr_range": sr_N,
        "alignment_square": alignment_N**2, "signal_mean": signal_N, "signal_square": signal_N**2,
        "signal_alignment": signal_N * alignment_N, "sr_range_mean": sr_N,
    })  # fmt: skip
    with_moments, without = select_rows(nodes, None), select_rows(nodes.drop_columns(list(MOMENTS)), None)
    for values in (alignment_values, weighted_values):
        assert values(with_moments).value_Q == pytest.approx(values(without).value_Q)
        assert values(with_moments).attenuation == pytest.approx(1.0)
        assert values(with_moments).model_sd == pytest.approx(0.0, abs=1e-6)


def test_the_spread_of_corrected_values_is_that_of_a_ratio_estimate():
    rows = select_rows(two_way_forks(0.4, questions=12, seed=3), None)
    mean_Q = rows.question_means(rows["alignment"])
    left_Q = rows.question_means(rows["alignment"] ** 2)
    ratio = mean_Q.mean() / left_Q.mean()
    # The textbook standard error of a ratio of means.
    error = (mean_Q - ratio * left_Q).std(ddof=1) / sqrt(12) / left_Q.mean()
    values = alignment_values(rows)
    found = interval(values)
    assert found.mean == pytest.approx(ratio)
    # The model's error: a share of the true value, which may be a standard error larger, and a part common to all.
    share = MODEL_SD * (abs(ratio) + error) * sqrt(1 - left_Q.mean())
    model = np.hypot(share, COMMON_SD * (1 / left_Q.mean() - 1))
    half_width = np.hypot(stats.t.ppf(0.975, 11) * error, stats.norm.ppf(0.975) * model)
    assert found.half_width == pytest.approx(half_width)


def test_a_teacher_without_effect_has_an_interval_that_more_questions_do_not_close():
    # Half of the nodes say +1, half −1, in every question alike: the estimate is 0 and has no spread.
    sign_N = np.tile([1.0, -1.0], 40)
    for share in (0.8, 0.4, 0.2):
        rows = select_rows(made_nodes({
            "question": np.repeat([f"q{at:02}" for at in range(20)], 4), "alignment": share * sign_N,
            "sr_range": np.full(80, 0.2), "alignment_square": np.full(80, share), "signal_mean": 0.2 * share * sign_N,
            "signal_square": np.full(80, 0.04 * share), "signal_alignment": np.full(80, 0.2 * share),
            "sr_range_mean": np.full(80, 0.2),
        }), None)  # fmt: skip
        for values in (alignment_values(rows), weighted_values(rows)):
            found = interval(values)
            assert (found.mean, found.attenuation) == pytest.approx((0.0, share), abs=1e-12)
            assert found.half_width == pytest.approx(stats.norm.ppf(0.975) * COMMON_SD * (1 / share - 1))


def test_intervals_are_wider_where_the_two_models_of_attenuation_disagree():
    # Half of the nodes matter and are known, half matter little and nothing is known of them. If effects grow with the
    # stakes, 0.2 / 0.21 of the truth is left; if they do not, half of it.
    n = 80
    large_N = np.arange(n) % 2 == 0
    mean_N, sr_N = np.where(large_N, np.where(np.arange(n) % 8 == 0, -1.0, 1.0), 0.0), np.where(large_N, 0.4, 0.02)
    rows = select_rows(made_nodes({
        "question": np.repeat([f"q{at}" for at in range(5)], 16), "alignment": mean_N, "sr_range": sr_N,
        "alignment_square": np.ones(n), "signal_mean": sr_N * mean_N, "signal_square": sr_N**2,
        "signal_alignment": sr_N, "sr_range_mean": sr_N,
    }), None)  # fmt: skip
    values = alignment_values(rows)
    assert values.attenuation == pytest.approx(0.2 / 0.21)
    assert values.doubt == pytest.approx(SENSITIVITY * log(0.4 / 0.21))
    standard_error = values.value_Q.std(ddof=1) / sqrt(5)
    share = values.doubt * (abs(values.value_Q.mean()) + standard_error)
    assert values.model_sd == pytest.approx(np.hypot(share, COMMON_SD * (0.21 / 0.2 - 1)))
    # The SR-weighted alignment has two models as well: 0.16 / 0.1604 and 0.2 / 0.21.
    weighted = weighted_values(rows)
    assert weighted.attenuation == pytest.approx(0.16 / 0.1604)
    assert weighted.doubt == pytest.approx(SENSITIVITY * log((0.16 / 0.1604) / (0.2 / 0.21)))


def test_advantage_of_tokens_without_rollouts_is_that_of_similar_tokens():
    # Seen tokens gain 0.5 per unit of gap where they are unlikely, 0.1 where they are likely.
    columns = {"question": np.array(["a", "b"]), "alignment": np.ones(2), "sr_range": np.ones(2)}
    for kind, slope, seen, gap in zip(
        KINDS, (0.5, 0.1), ((0.1, 0.2), (0.3, 0.3)), ((0.4, 0.4), (0.6, 0.2)), strict=True
    ):
        columns |= {f"advantage_seen_{kind}": slope * np.array(seen), f"gap_seen_{kind}": np.array(seen)}
        columns |= {f"gap_{kind}": np.array(gap)}
    values = advantage_values(select_rows(made_nodes(columns), None))
    assert values.value_Q == pytest.approx([0.5 * 0.4 + 0.1 * 0.6, 0.5 * 0.4 + 0.1 * 0.2])


def test_hardly_any_rollouts_on_a_kind_of_token_are_not_extrapolated_without_limit():
    # One unlikely token in a million of the gap has rollouts, and gained by chance.
    columns = {"question": np.array(["a", "b"]), "alignment": np.ones(2), "sr_range": np.ones(2)}
    columns |= {"advantage_seen_unlikely": np.array([1e-4, 0.0]), "gap_seen_unlikely": np.array([1e-6, 1e-6])}
    columns |= {"gap_unlikely": np.ones(2)}
    values = advantage_values(select_rows(made_nodes(columns), None))
    assert values.value_Q == pytest.approx([1e-4 / LEAST, 0.0])


def test_updates_from_rewards_are_not_corrected():
    nodes = two_way_forks(0.3, questions=5)
    reward = nodes.set_column(nodes.column_names.index("teacher"), "teacher", pa.array([REWARD] * nodes.num_rows))
    rows = select_rows(reward, "gkd")
    assert alignment_values(rows).value_Q == pytest.approx(rows.question_means(rows["alignment"]))
    assert alignment_values(rows).attenuation == 1.0


def test_intervals_stay_inside_the_range_of_values():
    rows = select_rows(two_way_forks(0.97, questions=4, nodes=8), None)
    found = interval(alignment_values(rows), bounds=(-1.0, 1.0))
    assert found.mean + found.half_width > 1
    assert -1 <= found.low < found.mean <= found.high == 1.0


def test_a_recommendation_compares_corrected_values():
    few = two_way_forks(0.3, questions=6)
    pairs, value_QP, _ = question_values(few)
    assert pairs == [("T", "gkd")]
    assert value_QP[:, 0] == pytest.approx(weighted_values(select_rows(few, None)).value_Q)


def exact_nodes(world: ExactWorld, teachers: list[ExactTeacher], name: str) -> tuple[pa.Table, pa.Table]:
    """The node table of an analysis with few rollouts, and that of the truth."""
    evidence = collect(world, teachers, Question(name), world, settings=SMALL)
    paths = [
        EstimatedPath(
            name, index, correct, scores, exact_estimate(scores, world.exact_q_along(scores)),
            evidence.tree.counts_along(scores.completion_T), evidence.pass_rate,
        )
        for index, (scores, correct) in enumerate(zip(evidence.paths, evidence.correct, strict=True))
    ]  # fmt: skip
    truth = node_table(paths, SMALL.objectives, Rules(draws=1)).drop_columns(list(MOMENTS))
    return align(evidence, SMALL), truth


def test_corrected_aggregates_of_exact_worlds_are_closer_to_the_truth():
    tables = []
    for seed in range(8):
        world = ExactWorld.random(8100 + seed, length=50, stakes=2.0)
        tables.append(exact_nodes(world, [world.tilted_teacher("T", strength=4.0, noise=1.0, seed=seed)], f"q{seed}"))
    nodes, truth = (pa.concat_tables(each).unify_dictionaries() for each in zip(*tables, strict=True))
    (rank,), (plain,), (true,) = map(metrics.teacher_ranking, (nodes, nodes.drop_columns(list(MOMENTS)), truth))
    for quantity in ("alignment", "weighted_cosine", "advantage"):
        found, before, exact = (getattr(each, quantity) for each in (rank, plain, true))
        assert before.mean < exact.mean
        assert abs(found.mean - exact.mean) < abs(before.mean - exact.mean)
        assert found.low <= exact.mean <= found.high
    assert 0.2 < rank.alignment.attenuation < 0.9


def test_the_cross_fitted_oracle_finds_nothing_where_nothing_is():
    # Tokens come in pairs with the same next state; the teacher raises one as much as it lowers the other.
    parts = []
    for seed in range(8):
        base = ExactWorld.random(8200 + seed, length=40, vocabulary=9, stakes=2.0)
        log_p_LSV, next_LSV = base.log_p_LSV.copy(), base.next_LSV.copy()
        for token in (1, 3, 5, 7):
            both_LS1 = np.logaddexp.reduce(log_p_LSV[..., token : token + 2], axis=-1, keepdims=True)
            log_p_LSV[..., token : token + 2] = both_LS1 - np.log(2)
            next_LSV[..., token + 1] = next_LSV[..., token]
        world = ExactWorld(log_p_LSV, next_LSV, base.success_S, base.start)
        # Not below tau, where the teacher could lift one of two tokens into S_u without the other.
        log_t_LSV = log_p_LSV + np.where(log_p_LSV > np.log(0.02), [0.0, *[0.7, -0.7] * 4], 0.0)
        log_t_LSV -= np.logaddexp.reduce(log_t_LSV, axis=-1, keepdims=True)
        nodes, truth = exact_nodes(world, [ExactTeacher("T", log_t_LSV)], f"q{seed}")
        assert np.nan_to_num(truth["alignment"].to_numpy()) == pytest.approx(0.0, abs=1e-6)
        parts.append(nodes)
    oracle = metrics.selective_oracle(pa.concat_tables(parts).unify_dictionaries())[1]
    assert oracle.signal.mean > oracle.cross_fitted_signal.mean
    assert abs(oracle.cross_fitted_signal.mean) < oracle.cross_fitted_signal.half_width
