"""Pivotal decisions: probabilities against simulation, decisions against a slow twin and against exact worlds."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from opd_align import Budget, ExactFamily, Settings, analyze
from opd_align.core.engine import Analysis
from opd_align.core.pivotal import pivotal_decisions, probability_greater
from opd_align.types import OpdAlignError


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(seed=3, n=3, length=40)


@pytest.fixture(scope="module")
def analysis(family: ExactFamily) -> Analysis:
    teachers = [family.teacher("tilted", lambda world: world.tilted_teacher(seed=0))]
    settings = Settings(budget=Budget(initial=100, targeted=1500, allocation="adaptive"))
    return analyze(family, teachers, family.questions, family, settings=settings)


def test_probabilities_agree_with_simulation():
    rng = np.random.default_rng(0)
    cases = [(0.6, 100, 0.5, 100), (0.9, 10, 0.2, 30), (1.0, 5, 0.0, 5), (0.3, 40, 0.3, 400), (0.01, 50, 0.0, 1e9)]
    found = probability_greater(*np.array(cases).T)
    for (mean_a, n_a, mean_b, n_b), probability in zip(cases, found, strict=True):
        a = rng.beta(mean_a * n_a + 0.5, (1 - mean_a) * n_a + 0.5, 200_000)
        b = rng.beta(mean_b * n_b + 0.5, (1 - mean_b) * n_b + 0.5, 200_000)
        assert probability == pytest.approx((a > b).mean(), abs=0.005)


def test_equal_evidence_gives_one_half():
    assert probability_greater(*np.array([[0.4, 30.0, 0.4, 30.0]]).T) == pytest.approx(0.5, abs=1e-6)


def test_decisions_are_those_of_a_slow_twin(analysis):
    at_place = defaultdict(list)
    own = defaultdict(dict)
    for row in analysis.children.to_pylist():
        if row["own"]:
            own[row["question"], row["path"]][row["depth"]] = row["token"]
        if row["significant"] and row["visits"]:
            at_place[row["question"], row["path"], row["depth"]].append(row)
    expected = {}
    for (question, path, depth), rows in at_place.items():
        best, worst = (choose(rows, key=lambda row: row["q"]) for choose in (max, min))
        shapes = [np.array([row[name]], float) for row in (best, worst) for name in ("q", "effective")]
        if best["q"] - worst["q"] >= 0.05 and probability_greater(*shapes)[0] >= 0.9:
            prefix = tuple(own[question, path][at] for at in range(depth))
            expected.setdefault((question, prefix), (best["q"], worst["q"]))  # tokens may be tied
    found = pivotal_decisions(analysis.nodes, analysis.children, min_difference=0.05, confidence=0.9)
    assert len(found) > 5
    assert {(one.question, one.prefix): (one.chosen.success, one.rejected.success) for one in found} == expected
    for one in found:
        assert one.difference == pytest.approx(one.options[0].success - one.options[-1].success)
        assert [option.success for option in one.options] == sorted((o.success for o in one.options), reverse=True)
        assert set(one.verdicts["reverse_kl"]) == {"tilted"}
        assert all(set(option.teachers) == {"tilted"} for option in one.options)


def test_a_decision_is_right_as_often_as_its_probability_promises(family, analysis):
    found = pivotal_decisions(analysis.nodes, analysis.children, min_difference=0.05, confidence=0.95)
    right = []
    for one in found:
        q = family._world(one.question).exact_q(np.array(one.prefix, np.uint32))
        right.append(q[one.chosen.token] > q[one.rejected.token])
    assert len(right) >= 5
    assert np.mean(right) >= 0.95


def test_thresholds_are_checked(analysis):
    for options in ({"min_difference": 1.5}, {"confidence": 0.2}, {"confidence": 1.0}):
        with pytest.raises(OpdAlignError, match=next(iter(options))):
            pivotal_decisions(analysis.nodes, analysis.children, **options)


def test_no_rows_give_no_decisions(analysis):
    assert pivotal_decisions(analysis.nodes.slice(0, 0), analysis.children.slice(0, 0)) == []
