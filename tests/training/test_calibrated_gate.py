"""The calibrated gate on analyses of exactly solvable models."""

from __future__ import annotations

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.gated_runs import QUIET, TASK, models, prompts, questions, verifier
from transformers import TrainerCallback
from trl import DistillationConfig

from opd_align import AlignmentCallback, metrics
from opd_align.backends.exact import ExactFamily
from opd_align.core.engine import Settings, analyze
from opd_align.core.objectives import DrGRPO, ForwardKL, ReverseKL
from opd_align.settings import Budget, Rules
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.gated_alignment import gate_state
from opd_align.training.gates import GateBatch, IncorrectOnly, compute_weights
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.types import OpdAlignError


def analyzed(teacher, *, seed=0, n=10):
    worlds = ExactFamily.random(seed=seed, n=n, length=40)
    settings = Settings([ReverseKL()], Budget(initial=60, targeted=1500, allocation="adaptive"), Rules())
    return analyze(worlds, [worlds.teacher("teacher", teacher)], worlds.questions, worlds, settings=settings)


@pytest.fixture(scope="module")
def helpful_teacher():
    """A teacher that is right where it diverges from the student."""
    return analyzed(lambda world: world.tilted_teacher())


@pytest.fixture(scope="module")
def harmful_teacher():
    """A teacher that is wrong where it diverges: the larger the divergence, the worse the token."""
    return analyzed(lambda world: world.adversarial_teacher())


def evaluating(latest=None, teachers=("teacher",), objectives=None):
    """The part of a callback that the gate uses."""
    known = {"latest": latest, "latest_step": 200, "teachers": teachers}
    return SimpleNamespace(**known, settings=Settings(objectives or [ReverseKL()]))


def significant_gains(analysis, quantiles):
    rows = metrics.divergence_filter(analysis.nodes, "kl", quantiles)
    return [row for row in rows if row.gain.mean - row.gain.half_width > 0]


def test_the_threshold_is_that_of_the_best_filter_with_a_significant_gain(helpful_teacher):
    gate = CalibratedDivergence(evaluating(helpful_teacher))
    gaining = significant_gains(helpful_teacher, gate.quantiles)
    assert gaining, "a filter helps in this world by construction"
    assert gate.threshold == max(gaining, key=lambda row: row.signal.mean).threshold
    values = torch.tensor([[gate.threshold - 1e-3, gate.threshold + 1e-3]])
    batch = GateBatch(torch.zeros(1, 2), torch.ones(1, 2).bool(), None, lambda name: values)
    assert compute_weights(gate, batch).tolist() == [[0.0, 1.0]]
    assert gate.extra_metrics() == {"calibrated_open": 0.0, "threshold": gate.threshold}
    kept = helpful_teacher.nodes["kl"].to_numpy() >= gate.threshold
    assert 0 < kept.mean() < 1


def test_the_gate_is_open_if_no_filter_has_a_significant_gain(harmful_teacher):
    gate = CalibratedDivergence(evaluating(harmful_teacher))
    assert not significant_gains(harmful_teacher, gate.quantiles)
    assert gate.threshold == -math.inf
    batch = GateBatch(torch.zeros(1, 2), torch.tensor([[True, False]]), None, lambda name: torch.tensor([[0.0, 0.0]]))
    assert compute_weights(gate, batch).tolist() == [[1.0, 0.0]]
    assert gate.extra_metrics() == {"calibrated_open": 1.0}


def test_few_questions_do_not_change_the_threshold(helpful_teacher):
    names = np.asarray(helpful_teacher.nodes["question"])
    few = SimpleNamespace(nodes=helpful_teacher.nodes.filter(np.isin(names, np.unique(names)[:3])))
    callback = evaluating(few)
    gate = CalibratedDivergence(callback)
    assert gate.threshold == -math.inf
    callback.latest = helpful_teacher
    found = gate.threshold
    assert math.isfinite(found)
    callback.latest = few
    assert gate.threshold == found


def test_it_follows_the_callback(helpful_teacher, harmful_teacher):
    callback = evaluating()
    gate = CalibratedDivergence(None, "js")
    assert gate.threshold == -math.inf
    gate.follow(callback)
    assert (gate.name, gate.measures, gate.threshold) == ("calibrated_js", ("js",), -math.inf)
    callback.latest = helpful_teacher
    first = gate.threshold
    assert math.isfinite(first)
    callback.latest = harmful_teacher
    assert gate.threshold == -math.inf
    callback.latest = helpful_teacher
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
def test_invalid_arguments_are_refused(own, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        CalibratedDivergence(evaluating(), **own)


def test_calibration_needs_a_teacher_and_a_distillation_objective():
    with pytest.raises(OpdAlignError, match="none is evaluated"):
        CalibratedDivergence(evaluating(objectives=[DrGRPO()]))
    with pytest.raises(OpdAlignError, match="none is evaluated"):
        CalibratedDivergence(evaluating(teachers=()))


def test_it_uses_the_trainers_own_teacher_and_objective_by_default(helpful_teacher):
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
    assert CalibratedDivergence(callback).threshold == -math.inf, "the trainer's own teacher is harmful"
    other = CalibratedDivergence(callback, teacher="Self-1C", objective="reverse_kl")
    rows = metrics.divergence_filter(both.nodes, "kl", other.quantiles, objective="reverse_kl", teacher="Self-1C")
    assert other.threshold in [row.threshold for row in rows]


def test_a_resumed_training_continues_with_the_threshold(helpful_teacher, caplog):
    gate = IncorrectOnly(verifier, unknown="keep") * CalibratedDivergence(evaluating(helpful_teacher))
    calibrated = gate.gates[1]
    state = json.loads(json.dumps(gate.state_dict()))
    assert state == {"1": {"threshold": calibrated.threshold, "step": 200}}
    callback = evaluating()
    resumed = CalibratedDivergence(callback)
    with caplog.at_level("INFO", "opd_align"):
        (IncorrectOnly(verifier, unknown="keep") * resumed).load_state_dict(state)
    assert "measured at step 200" in caplog.text
    assert resumed.threshold == calibrated.threshold, "before there is a new evaluation"
    names = np.asarray(helpful_teacher.nodes["question"])
    callback.latest = SimpleNamespace(nodes=helpful_teacher.nodes.filter(np.isin(names, np.unique(names)[:3])))
    assert resumed.threshold == calibrated.threshold, "an evaluation on three questions does not open it"
    resumed.load_state_dict({})
    assert resumed.threshold == -math.inf, "a new training starts with an open gate"


@pytest.mark.parametrize("broken", [None, "0.3", math.nan, [1]])
def test_a_threshold_that_cannot_be_read_leaves_the_gate_open(broken):
    gate = CalibratedDivergence(evaluating())
    gate.load_state_dict({"threshold": broken, "step": 3})
    assert (gate.threshold, gate.state_dict()) == (-math.inf, {"threshold": None, "step": None})


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stored", [True, False])
def test_the_threshold_is_read_beside_the_checkpoint_wherever_that_is(stored, tmp_path, caplog):
    def made(folder, steps):
        gate = CalibratedDivergence()
        options = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1, "max_completion_length": 8}
        args = DistillationConfig(str(folder), **(QUIET | options))
        data = {"train_dataset": prompts(), "gate": gate, "denominator": "keep"}
        trainer = GatedDistillationTrainer(args=args, **data, **models())
        budget = Budget(initial=4, targeted=4, rounds=1)
        callback = AlignmentCallback(
            trainer, questions(2), TASK, every_n_steps=50, max_overhead=None, budget=budget, on_error="raise"
        )
        gate.follow(callback)
        trainer.add_callback(callback)
        return trainer, callback, gate

    class Calibrates(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            gate._threshold = 0.25  # as if an evaluation on more questions had been made

    trainer, first, gate = made(tmp_path / "first", 1)
    trainer.add_callback(Calibrates())
    trainer.train()
    checkpoint = tmp_path / "moved" / "checkpoint-1"
    shutil.copytree(tmp_path / "first" / "checkpoint-1", checkpoint)
    shutil.copytree(first.folder, checkpoint.parent / "opd_align")
    if not stored:
        (checkpoint / "opd_align.json").unlink()
    shutil.rmtree(tmp_path / "first")
    trainer, resumed, gate = made(tmp_path / "second", 2)
    caplog.clear()
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 2
    (row,) = [row for row in trainer.state.log_history if row["step"] == 2 and "gate/calibrated_open" in row]
    warned = [each.message for each in caplog.records if "starting a new evaluation schedule" in each.message]
    if stored:
        assert (row["gate/calibrated_open"], row["gate/threshold"]) == (0.0, 0.25)
        assert (resumed.schedule.num_evaluations, resumed.latest_step) == (1, 0)
        assert resumed.latest is not None
        assert not warned
    else:
        assert row["gate/calibrated_open"] == 1.0
        assert len(warned) == 1
        assert "gate calibrated_kl starts open" in warned[0]


def test_a_gate_without_a_callback_warns_once(caplog):
    gate = CalibratedDivergence()
    assert gate.threshold == gate.threshold == -math.inf
    assert caplog.text.count("follows no callback") == 1


def test_the_state_of_a_users_gate_cannot_harm_a_training(caplog):
    class Mine(CalibratedDivergence):
        def state_dict(self):
            return {"tensor": torch.zeros(2)}

    trainer = SimpleNamespace(_gate_runtime=SimpleNamespace(gate=Mine(evaluating())))
    assert gate_state(trainer) == {}
    assert "The state of the gate calibrated_kl is not in the checkpoint: TypeError" in caplog.text
