"""The calibrated gate against analyses of worlds whose truth is known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opd_align import metrics
from opd_align.backends.exact import ExactFamily
from opd_align.core.engine import Settings, analyze
from opd_align.core.objectives import DrGRPO, ForwardKL, ReverseKL
from opd_align.settings import Budget, Rules
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.gates import GateBatch, compute_weights
from opd_align.types import OpdAlignError


def analysed(teacher, *, seed=0, n=10):
    worlds = ExactFamily.random(seed=seed, n=n, length=40)
    settings = Settings([ReverseKL()], Budget(initial=60, targeted=1500, allocation="adaptive"), Rules())
    return analyze(worlds, [worlds.teacher("teacher", teacher)], worlds.questions, worlds, settings=settings)


@pytest.fixture(scope="module")
def helped():
    """A teacher that is right where it speaks up."""
    return analysed(lambda world: world.tilted_teacher())


@pytest.fixture(scope="module")
def misled():
    """A teacher that is wrong where it speaks up: the more divergent its tokens, the worse they are."""
    return analysed(lambda world: world.adversarial_teacher())


def evaluating(latest=None, teachers=("teacher",), objectives=None):
    """What a gate sees of a callback."""
    return SimpleNamespace(latest=latest, teachers=teachers, settings=Settings(objectives or [ReverseKL()]))


def best(analysis, quantiles):
    rows = metrics.divergence_filter(analysis.nodes, "kl", quantiles)
    return [row for row in rows if row.gain.mean - row.gain.half_width > 0]


def test_the_threshold_is_that_of_the_best_filter_that_surely_gains(helped):
    gate = CalibratedDivergence(evaluating(helped))
    gaining = best(helped, gate.quantiles)
    assert gaining, "this world was made so that a filter helps"
    assert gate.threshold == max(gaining, key=lambda row: row.signal.mean).threshold
    values = torch.tensor([[gate.threshold - 1e-3, gate.threshold + 1e-3]])
    batch = GateBatch(torch.zeros(1, 2), torch.ones(1, 2).bool(), None, lambda name: values)
    assert compute_weights(gate, batch).tolist() == [[0.0, 1.0]]
    assert gate.extra_metrics() == {"calibrated_open": 0.0, "threshold": gate.threshold}
    kept = helped.nodes["kl"].to_numpy() >= gate.threshold
    assert 0 < kept.mean() < 1


def test_where_no_filter_surely_gains_the_gate_is_open(misled):
    gate = CalibratedDivergence(evaluating(misled))
    assert not best(misled, gate.quantiles)
    assert gate.threshold == -math.inf
    batch = GateBatch(torch.zeros(1, 2), torch.tensor([[True, False]]), None, lambda name: torch.tensor([[0.0, 0.0]]))
    assert compute_weights(gate, batch).tolist() == [[1.0, 0.0]]
    assert gate.extra_metrics() == {"calibrated_open": 1.0}


def test_few_questions_leave_the_threshold_as_it_was(helped):
    names = np.asarray(helped.nodes["question"])
    few = SimpleNamespace(nodes=helped.nodes.filter(np.isin(names, np.unique(names)[:3])))
    callback = evaluating(few)
    gate = CalibratedDivergence(callback)
    assert gate.threshold == -math.inf
    callback.latest = helped
    found = gate.threshold
    assert math.isfinite(found)
    callback.latest = few
    assert gate.threshold == found


def test_it_follows_the_callback(helped, misled):
    callback = evaluating()
    gate = CalibratedDivergence(None, "js")
    assert gate.threshold == -math.inf
    gate.follow(callback)
    assert (gate.name, gate.measures, gate.threshold) == ("calibrated_js", ("js",), -math.inf)
    callback.latest = helped
    first = gate.threshold
    assert math.isfinite(first)
    callback.latest = misled
    assert gate.threshold == -math.inf
    callback.latest = helped
    assert gate.threshold == first


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"measure": "l2"}, "no measure 'l2'"),
        ({"quantiles": ()}, "quantiles"),
        ({"quantiles": (0.5, 1.0)}, "quantiles"),
        ({"teacher": "Self-3C"}, "'Self-3C' is not evaluated; the callback evaluates teacher"),
        ({"objective": "forward_kl"}, "'forward_kl' is not evaluated; the callback evaluates reverse_kl"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(own, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        CalibratedDivergence(evaluating(), **own)


def test_rewards_alone_cannot_calibrate():
    with pytest.raises(OpdAlignError, match="none is evaluated"):
        CalibratedDivergence(evaluating(objectives=[DrGRPO()]))
    with pytest.raises(OpdAlignError, match="none is evaluated"):
        CalibratedDivergence(evaluating(teachers=()))


def test_it_looks_at_what_the_trainer_distils_and_at_nothing_else(helped):
    worlds = ExactFamily.random(seed=0, n=10, length=40)
    settings = Settings(
        [DrGRPO(), ForwardKL(), ReverseKL()], Budget(initial=60, targeted=1500, allocation="adaptive"), Rules()
    )
    teachers = [
        worlds.teacher("teacher", lambda world: world.adversarial_teacher()),
        worlds.teacher("Self-1C", lambda world: world.tilted_teacher()),
    ]
    both = analyze(worlds, teachers, worlds.questions, worlds, settings=settings)
    callback = evaluating(both, ("teacher", "Self-1C"), settings.objectives)
    assert CalibratedDivergence(callback).threshold == -math.inf, "its own teacher harms"
    other = CalibratedDivergence(callback, teacher="Self-1C", objective="reverse_kl")
    rows = metrics.divergence_filter(both.nodes, "kl", other.quantiles, objective="reverse_kl", teacher="Self-1C")
    assert other.threshold in [row.threshold for row in rows]


def test_a_gate_that_follows_nobody_says_so_once(caplog):
    gate = CalibratedDivergence()
    assert gate.threshold == gate.threshold == -math.inf
    assert caplog.text.count("follows no callback") == 1
