"""Selective distillation: the oracle is above every filter, shares are exact, weights are those of the ranking."""

from __future__ import annotations

import sys
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from opd_align.core.metrics import selective_oracle
from opd_align.core.node_rows import select_rows
from opd_align.core.selective import CROSS_FITTED, ORACLE, SHARES, node_weights, selective_curves
from opd_align.types import OpdAlignError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis


@pytest.fixture(scope="module")
def nodes():
    return made_analysis(6, length=60).nodes


@pytest.mark.parametrize("teacher", ["Self-1C", "Qwen3-8B", None])
def test_no_filter_is_above_the_oracle(nodes, teacher):
    curves = selective_curves(nodes, ("kl", "js", "l2", "cosine", "teacher_entropy"), teacher=teacher)
    assert len(curves) == 7
    for name, curve in curves.items():
        if name == CROSS_FITTED:  # valued on other rollouts
            continue
        for point, best in zip(curve, curves[ORACLE], strict=True):
            assert point.signal <= best.signal + 1e-12, (name, point)
    assert curves[ORACLE][-1].signal > curves["kl"][-1].signal + 0.01


def test_all_decisions_have_the_mean_signal_whatever_chooses(nodes):
    full = selective_oracle(nodes, (), teacher="Qwen3-8B")[0].signal
    curves = selective_curves(nodes, teacher="Qwen3-8B")
    for name in (ORACLE, "kl", "js"):
        assert curves[name][0].share == 1
        assert curves[name][0].signal == pytest.approx(full.mean)
        assert curves[name][0].low < full.mean < curves[name][0].high
    assert [point.share for point in curves[ORACLE]] == list(SHARES)


def test_the_kept_signal_is_that_of_sorting_by_hand(nodes):
    rows = select_rows(nodes, None, "Qwen3-8B")
    weight_N, signal_N = node_weights(rows), rows["sr_range"] * rows["alignment"]
    assert weight_N.sum() == pytest.approx(1)
    left, total = 0.25, 0.0
    for at in np.argsort(-rows["kl"], kind="stable"):
        kept = min(weight_N[at], left)
        total, left = total + kept * signal_N[at], left - kept
    point = next(point for point in selective_curves(nodes, teacher="Qwen3-8B")["kl"] if point.share == 0.25)
    assert point.signal == pytest.approx(total / 0.25)


def test_few_questions_have_no_interval_and_no_decisions_no_signal():
    few = made_analysis(3, length=40).nodes
    assert all(isnan(point.low) for point in selective_curves(few, teacher="Qwen3-8B")[ORACLE])
    empty = selective_curves(few.slice(0, 0))
    assert all(isnan(point.signal) for point in empty[ORACLE])
    with pytest.raises(OpdAlignError, match="unknown measure 'kld'"):
        selective_curves(few, ("kld",), teacher="Qwen3-8B")
