"""The reliability table of `p_positive`: by hand, on simulated nodes with right probabilities, in an exact world."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

from opd_align.backends.exact import ExactWorld
from opd_align.core.engine import analyze
from opd_align.core.reliability import EDGES, reliability
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Floats, Question


def nodes_of(**columns: object) -> pa.Table:
    n = len(columns["p_positive"])  # type: ignore[arg-type]
    given = {"question": ["q"] * n, "teacher": ["A"] * n, "objective": ["reverse_kl"] * n, "path": [0] * n}
    return pa.table(given | {"alignment": [0.5] * n, "sr_range": [0.1] * n} | columns)


def test_a_table_by_hand() -> None:
    nodes = nodes_of(
        question=["q1", "q1", "q2", "q2"],
        p_positive=[0.99, 0.5, 0.9, 0.1],
        p_positive_a=[0.97, 0.98, 1.0, float("nan")],
        p_positive_b=[0.99, 0.5, 0.5, 0.0],
        alignment_a=[1.0, -0.2, 0.0, float("nan")],
        alignment_b=[0.3, -0.1, 0.2, -1.0],
    )
    table = reliability(nodes)
    assert [(row.low, row.high, row.nodes) for row in table] == [(0.4, 0.6, 2), (0.95, 1.0, 4)]
    middle, sure = table
    # From b: nodes 2 and 3 say 0.5; in a they have -0.2 and 0.
    assert middle.said == pytest.approx(0.5)
    assert middle.other_half.mean == pytest.approx(0.25)
    assert middle.all_rollouts.mean == pytest.approx(0.7)
    # From a: 0.97, 0.98 and 1 with 0.3, -0.1 and 0.2 in b; from b: 0.99 with 1 in a.
    assert sure.said == pytest.approx((0.97 + 0.98 + 1 + 0.99) / 4)
    assert sure.other_half.mean == pytest.approx(3 / 4)
    assert sure.all_rollouts.mean == pytest.approx((0.99 + 0.5 + 0.9 + 0.99) / 4)
    assert sure.other_half.low < 3 / 4 < sure.other_half.high <= 1
    stored = sure.as_json()
    assert stored["other_half"] == pytest.approx(0.75)
    assert stored["nodes"] == 4


def test_one_question_has_no_interval_and_no_halves_no_table() -> None:
    columns = {"p_positive": [0.99], "p_positive_a": [0.99], "p_positive_b": [0.99]}
    nodes = nodes_of(**columns, alignment_a=[1.0], alignment_b=[1.0])
    (row,) = reliability(nodes)
    assert isnan(row.other_half.low)
    assert row.as_json()["other_half_low"] is None
    assert reliability(nodes.drop_columns(["p_positive_a"])) == []
    unknown = nodes.set_column(nodes.column_names.index("p_positive_a"), "p_positive_a", pa.array([float("nan")]))
    assert len(reliability(unknown)) == 1  # from the other half


def simulated(sureness: float) -> pa.Table:
    """Nodes with signals of variance 1, each half with noise of variance 2, and their posteriors; right if 1."""
    rng = np.random.default_rng(0)
    signal = rng.normal(0, 1, 6000)
    a, b = (signal + rng.normal(0, np.sqrt(2.0), 6000) for _ in range(2))

    def positive(mean: Floats, precision: float) -> Floats:
        posterior_mean, posterior_sd = mean * precision / (1 + precision), np.sqrt(1 / (1 + precision))
        return np.asarray(ndtr(sureness * posterior_mean / posterior_sd))

    return nodes_of(
        question=[f"q{i % 30}" for i in range(6000)],
        p_positive=positive((a + b) / 2, 1.0),
        p_positive_a=positive(a, 0.5), p_positive_b=positive(b, 0.5),
        alignment_a=np.sign(a), alignment_b=np.sign(b),
    )  # fmt: skip


def test_right_probabilities_do_not_change_on_average_with_more_rollouts() -> None:
    table = reliability(simulated(1.0))
    assert len(table) == len(EDGES) - 1
    for row in table:
        assert row.all_rollouts.mean == pytest.approx(row.said, abs=0.02)
        assert abs(row.other_half.mean - 0.5) < abs(row.said - 0.5) + 0.02


def test_probabilities_that_are_too_sure_are_taken_back_by_more_rollouts() -> None:
    first, *_, last = reliability(simulated(3.0))
    assert last.all_rollouts.high < last.said - 0.03
    assert first.all_rollouts.low > first.said + 0.03


def test_the_table_of_an_exact_world() -> None:
    world = ExactWorld.random(0, length=40, stakes=4.0)
    budget = Budget(initial=60, targeted=600, allocation="adaptive", correct_paths=1, incorrect_paths=1)
    settings = Settings(budget=budget, rules=Rules(draws=20))
    teachers = [world.tilted_teacher(strength=4.0, noise=1.0, seed=1)]
    found = analyze(world, teachers, [Question(f"q{i}") for i in range(4)], world, settings=settings)
    assert np.isfinite(found.nodes["p_positive_a"].to_numpy()).all()
    # There is no alignment where the SR range is within the resolution.
    counts_N = np.isfinite(found.nodes["alignment"].to_numpy())
    assert counts_N.sum() > 200
    table = reliability(found.nodes)
    assert sum(row.nodes for row in table) == 2 * counts_N.sum()
    assert np.average([row.all_rollouts.mean for row in table], weights=[row.nodes for row in table]) == pytest.approx(
        found.nodes["p_positive"].to_numpy()[counts_N].mean()
    )
    counted = analyze(world, teachers, [Question("q0")], world, settings=replace(settings, estimator="direct"))
    assert sum(row.nodes for row in reliability(counted.nodes)) <= 2 * counted.nodes.num_rows
