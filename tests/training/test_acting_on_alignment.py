"""Trainings with a mix of teachers and a schedule: neutral they are TRL's to the bit, and otherwise what they say."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from support.gated_runs import QUIET, dialogues, distillation, gkd, grpo, models, prompts, verifier
from support.scripted_schedule import Scripted, ScriptedSchedule
from support.trainings import ARITHMETIC, TINY, held_out
from transformers import TrainerCallback, set_seed
from trl import DistillationConfig, DistillationTrainer, GRPOTrainer
from trl.experimental.gkd import GKDTrainer

from opd_align.backends.loading import load_model
from opd_align.core.alarm import alarms
from opd_align.core.metric_registry import parse_key
from opd_align.core.random_walk import Reading
from opd_align.settings import Budget
from opd_align.training import (
    AlignmentCallback,
    AlignmentSchedule,
    DivergenceAbove,
    FunctionGate,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    IncorrectOnly,
    Open,
    TeacherMix,
)
from opd_align.training.alignment_schedule import STATE
from opd_align.training.teacher_pool import TeacherPool
from opd_align.types import OpdAlignError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

SAVED = 2
KEPT = {"save_strategy": "steps", "save_steps": SAVED, "max_steps": 4, "gradient_accumulation_steps": 2}
SHORT = {"max_completion_length": 24}
RUNS = {
    "distillation": (distillation, DistillationTrainer, GatedDistillationTrainer, "keep", SHORT),
    "gkd": (gkd, GKDTrainer, GatedGKDTrainer, "trl", {"lmbda": 0.5, "max_new_tokens": 16}),
}


def scheduled(kind, script, **options):
    """A trainer class whose trainers have a scripted schedule."""

    def make(**arguments):
        trainer = kind(**arguments)
        name = "GRPOTrainer" if kind is GatedGRPOTrainer else "DistillationTrainer"
        callback = Scripted(trainer, script, kind=name)
        trainer.add_callback(callback)
        trainer.add_callback(ScriptedSchedule(callback, **options))
        trainer.add_callback(KeepWeights(kept))
        return trainer

    kept: dict[int, dict[str, torch.Tensor]] = {}
    make.kept = kept
    return make


class KeepWeights(TrainerCallback):
    def __init__(self, kept):
        self.kept = kept

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.kept[state.global_step] = {name: value.detach().clone() for name, value in model.state_dict().items()}


def schedule_of(run):
    (found,) = [each for each in run.trainer.callback_handler.callbacks if isinstance(each, AlignmentSchedule)]
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- neutral


@pytest.mark.parametrize("name", RUNS)
def test_one_teacher_at_full_strength_is_trl_to_the_bit(name, tmp_path):
    run, plain_class, gated_class, denominator, options = RUNS[name]
    options = KEPT | options
    plain = run(plain_class, tmp_path / "plain", options=options)
    mix = TeacherMix({"only": models()["teacher_model"]})
    neutral = scheduled(gated_class, {0: 0.5, 2: 0.5})
    own = {"teacher_model": mix, "gate": Open(), "denominator": denominator}
    ours = run(neutral, tmp_path / "ours", options=options, **own)
    assert ours.column("loss") == plain.column("loss")
    assert same(ours.weights, plain.weights)
    assert set(ours.column("mix/only/all/weight")) == {1.0}
    assert set(ours.column("schedule/strength")) == {1.0}

    def resumed(kind, folder, **more):
        set_seed(1)
        made = run.__globals__["trained"]
        run.__globals__["trained"] = lambda trainer: trainer
        try:
            trainer = run(kind, folder, options=options, **more)
        finally:
            run.__globals__["trained"] = made
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}"))
        return trainer

    again = resumed(plain_class, tmp_path / "plain")
    mix = TeacherMix({"only": models()["teacher_model"]})
    continued = resumed(
        scheduled(gated_class, {0: 0.5, 2: 0.5}), tmp_path / "ours", **(own | {"teacher_model": mix})
    )  # fmt: skip
    assert same(continued.model.state_dict(), again.model.state_dict())
    assert same(continued.model.state_dict(), plain.weights)


# -- several teachers

FIRST = {"max_steps": 1}


def two(**options):
    careless = load_model("embedded:careless").model
    return TeacherMix({"good": models()["teacher_model"], "careless": careless}, **options)


@pytest.mark.parametrize("name", RUNS)
def test_a_mix_has_the_gradient_of_each_rollouts_own_teacher(name, tmp_path, monkeypatch):
    run, _, gated_class, _, options = RUNS[name]
    options, own = FIRST | options | {"per_device_train_batch_size": 4}, {"gate": Open(), "denominator": "keep"}
    if name == "gkd":
        options["lmbda"] = 0.0
    alone = {}
    for teacher, index in (("good", 0), ("careless", 1)):
        monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows, index=index: torch.full((len(rows),), index).numpy())
        alone[teacher] = run(gated_class, tmp_path, teacher_model=two(), options=options, **own).gradients[0]
    single = run(gated_class, tmp_path, options=options, **own).gradients[0]
    for weight, gradient in single.items():
        torch.testing.assert_close(alone["good"][weight], gradient, rtol=1e-4, atol=1e-6)
    half = {}
    for part, drawn in (("mixed", [0, 1, 0, 1]), ("good", [0, -1, 0, -1]), ("careless", [-1, 1, -1, 1])):
        monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows, drawn=drawn: torch.tensor(drawn).numpy())
        half[part] = run(gated_class, tmp_path, teacher_model=two(), options=options, **own).gradients[0]
    for weight, gradient in half["mixed"].items():
        parts = half["good"][weight] + half["careless"][weight]
        torch.testing.assert_close(gradient, parts, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(half["mixed"][weight], alone["good"][weight], atol=1e-4) for weight in half["mixed"])
    monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows: torch.full((len(rows),), -1).numpy())
    nothing = run(gated_class, tmp_path, teacher_model=two(), options=options, **own)
    assert all(not gradient.any() for gradient in nothing.gradients[0].values())


@pytest.mark.parametrize("name", RUNS)
def test_rollouts_without_a_teacher_are_not_in_the_sum_of_weights(name, tmp_path, monkeypatch):
    run, _, gated_class, _, options = RUNS[name]
    options = FIRST | options | ({"lmbda": 0.0} if name == "gkd" else {})
    logs = {}
    for drawn in ([0, -1, 1, -1], [-1, 0, -1, 1], [0, 0, 0, 0]):
        monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows, drawn=drawn: torch.tensor(drawn).numpy())
        for denominator in ("renormalise", "keep"):
            own = {"teacher_model": two(), "gate": Open(), "denominator": denominator, "options": options}
            (logs[tuple(drawn), denominator],) = run(gated_class, tmp_path, **own).logs
    one, other, every = [logs[drawn, "renormalise"] for drawn in ((0, -1, 1, -1), (-1, 0, -1, 1), (0, 0, 0, 0))]
    tokens = every["gate/denominator"]
    assert 0 < one["gate/denominator"] < tokens
    assert one["gate/denominator"] + other["gate/denominator"] == tokens
    assert one["gate/denominator"] == one["gate/tokens_distilled"]
    assert one["gate/loss_open"] == pytest.approx(one["gate/kept_divergence"]), "of those that have a teacher"
    assert {logs[drawn, "keep"]["gate/denominator"] for drawn, _ in logs} == {tokens}


def test_rollouts_without_a_teacher_are_not_in_a_quantile(tmp_path, monkeypatch):
    """Their divergence from no teacher is large: in the quantile, it would drop all tokens of the others."""
    monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows: torch.tensor([0, -1, -1, -1]).numpy())
    own = {"teacher_model": two(), "gate": DivergenceAbove(quantile=0.5), "denominator": "renormalise"}
    (row,) = gkd(GatedGKDTrainer, tmp_path, options=FIRST, **own).logs
    assert row["gate/sequences_kept"] == 1, "of those that have a teacher"
    assert row["gate/tokens_kept"] == pytest.approx(0.5, abs=0.05)


def test_a_gate_that_gathers_within_the_loss_is_refused(tmp_path):
    """Processes compute the loss as often as they have teachers: one that waits for the others would wait forever."""
    gate = FunctionGate(lambda batch: batch.measure("kl") >= batch.gather(batch.measure("kl")).mean(), measures=("kl",))
    own = {"teacher_model": two(), "gate": gate, "denominator": "keep", "options": FIRST | SHORT}
    with pytest.raises(OpdAlignError, match="compares tokens of all processes within the loss"):
        distillation(GatedDistillationTrainer, tmp_path, **own)


class Away(TeacherPool):
    """On a CPU there is nowhere to go: here the weights of a teacher in host memory are not numbers."""

    def _make_room(self, name):
        for each, model in self._models.items():
            for weight in model.parameters():
                kept = vars(weight).setdefault("kept", weight.data)
                weight.data = kept if each == name else torch.full_like(kept, torch.nan)


@pytest.mark.parametrize("name", RUNS)
def test_teachers_that_take_turns_on_the_device_give_the_same_training(name, tmp_path, monkeypatch):
    run, _, gated_class, _, options = RUNS[name]
    data = {"distillation": prompts, "gkd": dialogues}[name](4)
    options = options | {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    own = {"gate": Open(), "denominator": "keep", "eval_dataset": data, "options": options}
    monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows: torch.tensor([0, 1, 0, 1]).numpy())
    both = run(gated_class, tmp_path, teacher_model=two(), **own)
    monkeypatch.setattr("opd_align.training.teacher_mix.TeacherPool", Away)
    in_turn = run(gated_class, tmp_path, teacher_model=two(one_at_a_time=True), **own)
    assert same(in_turn.gradients[0], both.gradients[0])
    assert same(in_turn.weights, both.weights)
    losses = [
        [row["eval_loss"] for row in each.trainer.state.log_history if "eval_loss" in row] for each in (both, in_turn)
    ]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


def test_grpo_distills_from_a_mix_too(tmp_path):
    gate = IncorrectOnly(verifier, unknown="drop")
    own = {"gate": gate, "denominator": "keep", "teacher_model": two(weights={"good": 1.0, "careless": 1.0})}
    run = grpo(GatedGRPOTrainer, tmp_path, options={"max_steps": 2, "max_completion_length": 48}, **own)
    assert run.column("mix/good/all/weight") == [0.5, 0.5]


def test_a_mix_follows_the_callback_and_is_stored(tmp_path, caplog):
    rows = [
        {**row, "kind": "two" if number % 2 else "three"} for number, row in enumerate(prompts(24).to_list())
    ]  # fmt: skip
    from datasets import Dataset

    def make(mix):
        set_seed(1)
        options = QUIET | KEPT | {"max_completion_length": 48, "gradient_accumulation_steps": 1}
        args = DistillationConfig(str(tmp_path), **options)
        own = models() | {"teacher_model": mix, "gate": Open(), "denominator": "keep"}
        trainer = GatedDistillationTrainer(args=args, train_dataset=Dataset.from_list(rows), **own)
        kinds = [
            {"prompt": ARITHMETIC.messages(each), "answer": each.answer, "kind": "two" if n % 2 else "three"}
            for n, each in enumerate(held_out(8))
        ]
        callback = AlignmentCallback(
            trainer, kinds, ARITHMETIC, every_n_steps=2, budget=TINY, max_overhead=None, on_error="raise"
        )
        trainer.add_callback(callback)
        mix.follow(callback)
        return trainer, callback

    mix = two(kind="kind")
    trainer, callback = make(mix)
    assert callback.teachers == callback.evaluator.distilled == ["good", "careless"]
    trainer.train()
    assert [reading.step for reading in mix.log.of("good", "two")] == [0, 2, 4]
    assert {*mix.weights} == {"two", "three"}
    for kind, weights in mix.weights.items():
        none = f"Every teacher harms on questions of the kind {kind!r}" in caplog.text and not weights.any()
        assert weights.sum() == pytest.approx(0 if none else 1)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    keys = [key for key in logged[-1] if key.startswith("mix/")]
    assert len(keys) == 4
    assert all(parse_key(key) is not None for key in keys)
    again = two(kind="kind")
    other, _ = make(again)
    other.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"))
    assert again.log.readings == mix.log.readings
    assert {kind: each.tolist() for kind, each in again.weights.items()} == {
        kind: each.tolist() for kind, each in mix.weights.items()
    }
    assert same(other.model.state_dict(), trainer.model.state_dict())


# -- schedules

RUIN = {0: 0.4, 1: 0.4, 2: 0.4, 3: -0.4, 4: -0.5, 5: -0.5}


def when_raised(script):
    states = alarms([Reading(step, mean, 0.05) for step, mean in script.items()])
    return next(state.step for state in states if state.raised)


@pytest.mark.parametrize("snapshots", ["disk", "memory"])
def test_a_rollback_ends_with_the_weights_of_the_best_step(snapshots, tmp_path):
    kind = scheduled(DistillationTrainer, RUIN, snapshots=snapshots)
    run = distillation(kind, tmp_path, options=SHORT | {"max_steps": 8, "save_strategy": "steps", "save_steps": 50})
    schedule = schedule_of(run)
    assert schedule.ended_at == when_raised(RUIN) == run.trainer.state.global_step < 8
    assert schedule.returned_to == 2
    assert same(run.weights, kind.kept[schedule.returned_to])
    stored = json.loads((tmp_path / f"checkpoint-{schedule.ended_at}" / STATE).read_text())
    assert (stored["ended_at"], stored["returned_to"]) == (schedule.ended_at, schedule.returned_to)
    saved = load_model(str(tmp_path / f"checkpoint-{schedule.ended_at}")).model
    assert same(saved.state_dict(), run.weights), "the last checkpoint has the restored weights"
    keys = {key for row in run.logs for key in row if key.startswith("schedule/")}
    assert {parse_key(key).metric.stem for key in keys} == {"strength", "p_helps"}


def test_stop_ends_with_the_present_weights(tmp_path):
    kind = scheduled(DistillationTrainer, RUIN, on_harm="stop")
    run = distillation(kind, tmp_path, options=SHORT | {"max_steps": 8})
    assert run.trainer.state.global_step == when_raised(RUIN)
    assert schedule_of(run).returned_to is None
    assert not (tmp_path / "opd_align" / "rollback").exists()


def test_zero_holds_the_weights_where_they_are(tmp_path):
    script = {0: 0.0, 1: -0.6, 2: -0.6}
    kind = scheduled(DistillationTrainer, script, on_harm="zero")
    run = distillation(kind, tmp_path, options=SHORT | {"max_steps": 5, "weight_decay": 0.1})
    assert run.trainer.state.global_step == 5
    strength = run.column("schedule/strength")
    assert strength[0] == 1 or strength[1] == 0
    assert strength[-1] == 0
    off = strength.index(0.0) + 1
    assert same(run.weights, kind.kept[off]), "neither momentum nor weight decay moves them"
    assert not same(run.weights, kind.kept[0])


def test_a_real_training_returns_when_its_pass_rate_has_fallen(tmp_path, caplog):
    """`embedded:careless` was trained on wrong solutions: a student that copies it solves fewer questions."""
    set_seed(1)
    options = QUIET | {"max_steps": 12, "max_completion_length": 96, "per_device_train_batch_size": 16}
    args = DistillationConfig(str(tmp_path), **options | {"learning_rate": 1e-3, "beta": 1.0})
    own = models() | {"teacher_model": load_model("embedded:careless").model}
    before = {name: value.detach().clone() for name, value in own["model"].state_dict().items()}
    trainer = DistillationTrainer(args=args, train_dataset=prompts(64), **own)
    callback = AlignmentCallback(
        trainer, held_out(32), ARITHMETIC, every_n_steps=6, budget=Budget(initial=24, targeted=16), max_overhead=None,
        on_error="raise",
    )  # fmt: skip
    schedule = AlignmentSchedule(callback, follow="pass_rate")
    trainer.add_callback(callback)
    trainer.add_callback(schedule)
    trainer.train()
    assert (schedule.ended_at, schedule.returned_to) == (6, 0)
    assert same(trainer.model.state_dict(), before)
    assert "The student has become worse: its pass rate is" in caplog.text


REWARDED = {"max_steps": 2, "max_completion_length": 48, "num_generations": 4}


def rewarded(folder, strengths, monkeypatch, *, gate=None, teacher=None, **options):
    """A run of `GatedGRPOTrainer` whose schedule has these strengths, by step."""
    monkeypatch.setattr(
        "opd_align.training.trainers.grpo.schedule_strength", lambda trainer: strengths[trainer.state.global_step]
    )
    own = {"gate": gate or IncorrectOnly(verifier, unknown="drop"), "denominator": "keep"}
    own["teacher_model"] = teacher or models()["teacher_model"]
    return grpo(GatedGRPOTrainer, folder, options=REWARDED | options, **own)


@pytest.mark.parametrize(
    "gate",
    [IncorrectOnly(verifier, unknown="drop"), IncorrectOnly(verifier, unknown="drop") * DivergenceAbove(quantile=0.5)],
    ids=["outcomes", "quantile"],
)
def test_grpo_hands_over_to_the_reward(gate, tmp_path):
    """At strength 0 the training is GRPO's own to the bit, and the teacher, whose weights are infinite, rests."""
    teacher, passes = models()["teacher_model"], []
    for weight in teacher.parameters():
        weight.data.fill_(torch.inf)
    teacher.base_model.register_forward_hook(lambda *given: passes.append(given))
    own = {"gate": gate, "denominator": "keep", "teacher_model": teacher}
    off = grpo(scheduled(GatedGRPOTrainer, {0: -0.9}, on_harm="zero"), tmp_path, options=REWARDED, **own)
    plain = grpo(GRPOTrainer, tmp_path, options=REWARDED)
    assert off.column("schedule/strength") == [0.0, 0.0]
    assert off.column("loss") == plain.column("loss")
    assert same(off.weights, plain.weights)
    assert not passes
    assert off.column("gate/tokens_kept") == off.column("gate/loss") == [0.0, 0.0]
    assert not off.column("gate/loss_open"), "not known"
    assert len(off.column("gate/correct")) == 2, "outcomes are still known"


def test_grpo_is_linear_in_the_strength(tmp_path, monkeypatch):
    """What the teacher gives up, the reward takes over."""
    full, half, none = [
        rewarded(tmp_path, [strength], monkeypatch, max_steps=1).gradients[0] for strength in (1.0, 0.25, 0.0)
    ]
    for name, gradient in half.items():
        torch.testing.assert_close(gradient, 0.25 * full[name] + 0.75 * none[name], rtol=1e-3, atol=1e-6)
    assert any(not torch.allclose(full[name], none[name], atol=1e-4) for name in full)


def test_a_strength_that_changes_within_a_generation_batch(tmp_path, monkeypatch):
    """Each generation is used for two steps; with a learning rate of 0, the steps of all runs can be compared."""
    options = {"max_steps": 4, "steps_per_generation": 2, "learning_rate": 0.0}
    plain = grpo(GRPOTrainer, tmp_path, options=REWARDED | options).gradients
    full = rewarded(tmp_path, [1.0] * 4, monkeypatch, **options).gradients
    changing = rewarded(tmp_path, [1.0, 0.0, 0.0, 1.0], monkeypatch, **options).gradients
    assert same(changing[0], full[0])
    assert same(changing[1], plain[1]), "with all advantages, though the batch was generated to be distilled"
    assert same(changing[2], plain[2])
    assert same(changing[3], plain[3]), "no teacher was asked when it was generated"
    assert not same(full[1], plain[1])


def test_a_distillation_weight_of_zero_keeps_an_infinite_divergence_out(tmp_path):
    teacher = models()["teacher_model"]
    for weight in teacher.parameters():
        weight.data.fill_(torch.inf)
    own = {"gate": Open(), "denominator": "keep", "teacher_model": teacher, "distillation_weight": 0.0}
    assert same(
        grpo(GatedGRPOTrainer, tmp_path, options=REWARDED, **own).weights,
        grpo(GRPOTrainer, tmp_path, options=REWARDED).weights,
    )


def test_a_schedule_refuses_trainers_without_a_distillation_loss(tmp_path):
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path)), is_deepspeed_enabled=False)
    callback = Scripted(trainer, {}, kind="SDPOTrainer")
    with pytest.raises(OpdAlignError, match="AlignmentSchedule does not support SimpleNamespace"):
        AlignmentSchedule(callback)
    callback = Scripted(trainer, {}, teachers=())
    with pytest.raises(OpdAlignError, match="needs a teacher that the trainer distills from"):
        AlignmentSchedule(callback)
    trainer.callback_handler, trainer.is_deepspeed_enabled = SimpleNamespace(callbacks=[]), True
    with pytest.raises(OpdAlignError, match="not supported under DeepSpeed"):
        AlignmentSchedule(Scripted(trainer, {}))
