"""The figures of `benchmarks/estimators.py`, on worlds with known results."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(BENCHMARKS))
    yield import_module("estimators")
    sys.path.remove(str(BENCHMARKS))


def test_the_standard_error_of_a_mean_is_the_usual_one(benchmark) -> None:
    values = [0.2, 0.5, 0.9, 0.4]
    rows = [({"value": value}, {}) for value in values]
    found = benchmark.with_errors(lambda some: {"mean": benchmark.pooled(some)[0]["value"]}, rows)
    assert found["mean"] == pytest.approx((0.5, np.std(values, ddof=1) / 2))


def test_one_world_has_no_standard_error(benchmark) -> None:
    ((value, error),) = benchmark.with_errors(lambda rows: {"n": float(len(rows))}, [({}, {})]).values()
    assert value == 1
    assert np.isnan(error)


def test_figures_are_pooled_over_the_worlds_that_have_them(benchmark) -> None:
    compared = ({"corr": 0.8, "paper": 0.6}, {"right": 9.0, "paper right": 4.0})
    default = ({"corr": 0.6}, {"right": 5.0})
    means, totals = benchmark.pooled([compared, default])
    assert means == pytest.approx({"corr": 0.7, "paper": 0.6})
    assert totals == {"right": 14.0, "paper right": 4.0}


@pytest.mark.parametrize(
    ("error", "target", "needed"),
    [
        ({0.2: 0.4, 0.5: 0.1}, 0.2, 0.4),
        ({0.5: 0.1, 0.2: 0.4}, 0.4, 0.2),
        ({0.2: 0.4, 0.5: 0.3}, 0.2, float("inf")),
    ],
)
def test_the_fraction_of_rollouts_is_interpolated(benchmark, error, target, needed) -> None:
    assert benchmark.needed_fraction(error, target) == pytest.approx(needed)


def test_a_world_without_comparison_has_the_same_figures_of_the_default(benchmark) -> None:
    world = ("stakes", benchmark.DEVELOPMENT_SEED, 20)
    means, totals = benchmark.measure(benchmark.Job(*world, ()))
    compared_means, compared_totals = benchmark.measure(benchmark.Job(*world, (benchmark.DEFAULT,)))
    assert means.items() <= compared_means.items()
    assert totals.items() <= compared_totals.items()
    figures = benchmark.of_default([(means, totals)])
    assert 0 < figures["verdict_share_fixed_truth"] < 1
    assert 0.3 < figures["node_corr_fixed_truth"] < figures["node_corr_bound"] <= 1
