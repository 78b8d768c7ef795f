"""A mix of teachers without a training: what it refuses, its weights, its draws, its state, its models."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opd_align.backends.loading import load_model
from opd_align.core.metric_registry import parse_key
from opd_align.core.random_walk import Reading
from opd_align.training.alignment_readings import ReadingLog
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.gates import DivergenceAbove, Open
from opd_align.training.held_out import HeldOut
from opd_align.training.teacher_mix import NONE, TeacherMix
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.training.trainers.mixed_loss import TEACHER
from opd_align.training.trl_compat import GRPOTrainer
from opd_align.types import OpdAlignError


class Model(torch.nn.Module):
    """Enough of a model for a pool."""

    def __init__(self, vocabulary: int = 6) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, vocabulary)
        text = SimpleNamespace(vocab_size=vocabulary)
        self.config = SimpleNamespace(get_text_config=lambda: text)

    def get_output_embeddings(self):
        return self.head


def trainer(columns=("prompt", "kind"), **more):
    accelerator = SimpleNamespace(
        process_index=0, num_processes=1, device=torch.device("cpu"), state=SimpleNamespace(deepspeed_plugin=None),
        prepare_model=lambda model, device_placement, evaluation_mode: model,
    )  # fmt: skip
    return SimpleNamespace(
        accelerator=accelerator, is_fsdp_enabled=False, is_deepspeed_enabled=False, model=Model(),
        teacher_model=Model(), train_dataset=SimpleNamespace(column_names=list(columns)),
        state=SimpleNamespace(global_step=0), add_callback=lambda callback: None, is_world_process_zero=lambda: True,
        **more,
    )  # fmt: skip


def two(**options):
    return TeacherMix({"a": Model(), "b": Model()}, **options)


def with_readings(mix, means, *, error=0.05, kinds=None):
    """The mix after evaluations; `means` are by teacher and kind, one value per evaluation."""
    kinds = kinds or sorted({kind for _, kind in means})
    if kinds != ["all"]:
        mix.log = ReadingLog(mix.names, {f"q{number}": kind for number, kind in enumerate(kinds)})
    for key, values in means.items():
        mix.log.readings[key] = [Reading(20 * n, value, error) for n, value in enumerate(values)]
    mix._update()
    return mix


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TeacherMix({}), "needs teachers by name"),
        (lambda: TeacherMix(["a"]), "needs teachers by name"),
        (lambda: TeacherMix({"": Model()}), "names of teachers must be text"),
        (lambda: TeacherMix({"a": 3}), "'a' is a int; expected a model"),
        (lambda: TeacherMix({"a": "Self-1C"}), "the first teacher of a TeacherMix must be a model"),
        (lambda: TeacherMix({"a": Model(), "b": "Self-3C"}), "'b' shows what a data set has no column for"),
        (lambda: TeacherMix({"a": Model(), "b": "Self-Sum-1C"}), "one correct and one wrong solution of the student"),
        (lambda: two(strategy="greedy"), "strategy must be one of thompson, expected_gain"),
        (lambda: two(floor=0.6), "floor must be between 0 and 1/2"),
        (lambda: two(weights={"a": float("nan")}), "weights must be finite"),
        (lambda: two(weights={"a": -1.0, "b": 2.0}), "weights must be finite, 0 or more"),
        (lambda: two(weights={"a": 0.0}), "one of them above 0"),
        (lambda: two(weights={"c": 1.0}), "weights name the teacher 'c'; the teachers are a, b"),
        (lambda: two(weights={"x": {"a": 1.0}}), "say which column has it"),
        (lambda: two(kind="kind", weights={"a": 1.0}), "must be given by kind of question"),
    ],
)
def test_mistakes_are_refused_at_construction(make, message):
    with pytest.raises(OpdAlignError, match=message):
        make()


def test_what_contradicts_a_mix_is_refused_when_the_trainer_is_constructed():
    with pytest.raises(OpdAlignError, match="kind='subject' is not a column of the data set; its columns are prompt"):
        two(kind="subject").attach(trainer(), Open(), measuring_pass=False)
    with pytest.raises(OpdAlignError, match="compares all tokens of a step before the loss"):
        two().attach(trainer(), DivergenceAbove(quantile=0.5), measuring_pass=True)
    with pytest.raises(OpdAlignError, match="calibrated for one teacher"):
        two().attach(trainer(), CalibratedDivergence() * Open(), measuring_pass=False)
    with pytest.raises(OpdAlignError, match="'b' has a vocabulary of 7 tokens and the student one of 6"):
        TeacherMix({"a": Model(), "b": Model(7)}).attach(trainer(), Open(), measuring_pass=False)
    with pytest.raises(OpdAlignError, match="'b' returned a int, not a model"):
        TeacherMix({"a": Model(), "b": lambda: 3}).attach(trainer(), Open(), measuring_pass=False)
    sharded = trainer()
    plugin = sharded.accelerator.state.fsdp_plugin = SimpleNamespace(fsdp_version=1, cpu_ram_efficient_loading=False)
    sharded.is_fsdp_enabled = True
    with pytest.raises(OpdAlignError, match="several teachers are not supported under FSDP1; use FSDP2"):
        two().attach(sharded, Open(), measuring_pass=False)
    plugin.fsdp_version, plugin.cpu_ram_efficient_loading = 2, True
    for mix in (two(), TeacherMix({"a": Model()})):
        with pytest.raises(OpdAlignError, match="stay zero on the others; set it to false in accelerate's"):
            mix.attach(sharded, Open(), measuring_pass=False)
    plugin.cpu_ram_efficient_loading, sharded.accelerator.device = False, torch.device("meta")
    two().attach(sharded, Open(), measuring_pass=False)
    assert sharded.teacher_model.head.weight.is_meta, "accelerate leaves the first teacher on the CPU"
    deepspeed = trainer()
    deepspeed.is_deepspeed_enabled = True
    with pytest.raises(OpdAlignError, match="one_at_a_time=True is not supported under DeepSpeed"):
        two(one_at_a_time=True).attach(deepspeed, Open(), measuring_pass=False)
    mix = two()
    mix.attach(trainer(), Open(), measuring_pass=False)
    with pytest.raises(OpdAlignError, match="belongs to one trainer"):
        mix.attach(trainer(), Open(), measuring_pass=False)
    # One teacher is never compared with another one, so any gate will do.
    TeacherMix({"a": Model()}).attach(trainer(), CalibratedDivergence(), measuring_pass=True)


def callback_of(own, questions, **more):
    settings = SimpleNamespace(objectives=[SimpleNamespace(name="jsd_1", signal="teacher")])
    evaluator = SimpleNamespace(held_out=SimpleNamespace(questions=questions))
    given = {"outside": None, "settings": settings, "evaluator": evaluator, "latest": None, "latest_step": None}
    return SimpleNamespace(adapter=SimpleNamespace(trainer=own), **(given | more))


def question(name, **fields):
    return SimpleNamespace(id=name, fields=fields)


def test_following_a_callback_is_checked():
    own = trainer()
    own.train_dataset = {"kind": ["easy", "hard"]}
    mix = two(kind="kind")
    with pytest.raises(OpdAlignError, match="must be that of the trainer"):
        mix.follow(callback_of(own, []))
    mix.attach(own, Open(), measuring_pass=False)
    with pytest.raises(OpdAlignError, match="held-out question 'q1' has no 'kind'"):
        mix.follow(callback_of(own, [question("q0", kind="easy"), question("q1")]))
    with pytest.raises(
        OpdAlignError, match="of the kind 'hard' and the held-out questions have none; kinds there: easy"
    ):
        mix.follow(callback_of(own, [question("q0", kind="easy")]))
    with pytest.raises(OpdAlignError, match="inside the training"):
        mix.follow(callback_of(own, [], outside=object()))
    fixed = two(weights={"a": 1.0})
    with pytest.raises(OpdAlignError, match="has fixed weights"):
        fixed.follow(callback_of(own, []))


def test_fixed_weights_must_have_every_kind_of_the_data_set():
    mix = two(kind="kind", weights={"easy": {"a": 1.0}, "hrad": {"b": 1.0}})
    own = trainer()
    own.train_dataset = {"kind": ["easy", "hard"]}
    with pytest.raises(
        OpdAlignError, match=r"of the kind 'hard' and weights=\{\.\.\.\} has none .* for 'easy', 'hrad'"
    ):
        mix.attach(own, Open(), measuring_pass=False)
    own.train_dataset = iter([])  # an iterable one: its kinds are not known before
    mix.attach(own, Open(), measuring_pass=False)
    assert mix.draw([{"kind": "easy"}, {"kind": "hrad"}]).tolist() == [0, 1]
    with pytest.raises(OpdAlignError, match=r"of the kind 'hard' and weights=\{\.\.\.\} has none"):
        mix.draw([{"kind": "easy"}, {"kind": "hard"}])


def test_small_evaluations_have_questions_of_every_kind(caplog):
    own, mix = trainer(), two(kind="kind")
    own.train_dataset, updates = {"kind": ["easy", "hard"]}, []
    own.add_callback, own.remove_callback = updates.append, updates.remove
    own.callback_handler = SimpleNamespace(callbacks=updates)
    mix.attach(own, Open(), measuring_pass=False)
    kinds = ["easy"] * 5 + ["hard"] * 4  # as a sorted data set has them
    callback = callback_of(own, [])
    held_out = HeldOut(tuple(question(f"q{n}", kind=kind) for n, kind in enumerate(kinds)), None)
    callback.evaluator.held_out, callback.evaluator.evaluation = held_out, SimpleNamespace(held_out=held_out)
    mix.follow(callback)
    ordered = callback.evaluator.evaluation.held_out.questions
    assert [each.id for each in ordered] == ["q0", "q5", "q1", "q6", "q2", "q7", "q3", "q8", "q4"]
    assert callback.evaluator.held_out.questions == ordered
    # What no evaluation has told anything about is said, once.
    mix.log.take = lambda callback: True
    mix.log.step, mix.log.readings = 0, {("a", "easy"): [Reading(0, 0.1, 0.1)]}
    with caplog.at_level(logging.WARNING):
        updates[0].on_step_begin(None, own.state, None)
        updates[0].on_step_begin(None, own.state, None)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("Nothing is known of questions of the kind 'hard' after the evaluation at step 0")


def test_a_callback_that_the_trainer_does_not_have_is_refused_when_training_begins():
    own, mix = trainer(), two()
    updates = []
    own.add_callback, own.remove_callback = updates.append, updates.remove
    own.callback_handler = SimpleNamespace(callbacks=updates)
    mix.attach(own, Open(), measuring_pass=False)
    callback = callback_of(own, [])
    mix.follow(callback)
    with pytest.raises(OpdAlignError, match=r"call trainer.add_callback\(callback\) before mix.follow"):
        updates[0].on_train_begin(None, own.state, None)
    own.add_callback(callback)
    updates[0].on_train_begin(None, own.state, None)


def test_each_kind_gets_the_teacher_that_helps_there(caplog):
    mix = two(kind="kind", floor=0.05)
    mix.trainer = trainer()
    means = {
        ("a", "easy"): [0.4, 0.4],
        ("b", "easy"): [-0.4, -0.4],
        ("a", "hard"): [0.1, 0.1],
        ("b", "hard"): [0.3, 0.4],
    }
    with caplog.at_level(logging.WARNING):
        with_readings(mix, means)
        with_readings(mix, means)
    assert mix.weights["easy"].tolist() == [1, 0], "a teacher that surely harms is not used, whatever the floor"
    assert mix.weights["hard"][0] == pytest.approx(0.05, abs=0.01)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["Teacher 'b' harms on questions of the kind 'easy': its weight is 0"], "once"
    assert mix.draw([{"kind": "easy"}] * 50).tolist() == [0] * 50
    assert np.mean(mix.draw([{"kind": "hard"}] * 4000)) == pytest.approx(0.95, abs=0.02)
    assert {parse_key(key).variant for key in mix.metrics()} == {"a/easy", "b/easy", "a/hard", "b/hard"}


def test_where_every_teacher_harms_nothing_is_distilled():
    mix = with_readings(two(), {("a", "all"): [-0.5, -0.5], ("b", "all"): [-0.4, -0.4]})
    mix.trainer = trainer()
    assert mix.weights["all"].tolist() == [0, 0]
    assert mix.draw([{}] * 3).tolist() == [NONE] * 3


def test_one_teacher_is_always_used():
    mix = with_readings(TeacherMix({"a": Model()}), {("a", "all"): [-0.5, -0.5]})
    assert mix.weights["all"].tolist() == [1.0]


def test_draws_depend_on_the_step_alone():
    mix, again = two(), two()
    mix.trainer, again.trainer = trainer(), trainer()
    rows = [{}] * 40
    first = [mix.draw(rows).tolist() for _ in range(2)]
    assert first[0] != first[1], "micro-batches of one step differ"
    mix.trainer.state.global_step = again.trainer.state.global_step = 7
    state = torch.get_rng_state()
    assert mix.draw(rows).tolist() == again.draw(rows).tolist(), "as in a training that was resumed at this step"
    assert torch.equal(state, torch.get_rng_state())
    other = two(seed=1)
    other.trainer = mix.trainer
    assert other.draw(rows).tolist() != again.draw(rows).tolist()


def test_weights_are_restored_and_frozen_ones_stay():
    means = {("a", "all"): [0.3], ("b", "all"): [0.0]}
    mix = with_readings(two(live=False), means)
    frozen = mix.weights["all"].copy()
    with_readings(mix, {("a", "all"): [0.3, -0.5], ("b", "all"): [0.0, 0.5]})
    assert mix.weights["all"].tolist() == frozen.tolist()
    stored = json.loads(json.dumps(mix.state_dict(), allow_nan=False))
    for live in (False, True):
        resumed = two(live=live)
        resumed.load_state_dict(stored)
        assert resumed.log.readings == mix.log.readings
        assert (resumed.weights["all"].tolist() == frozen.tolist()) is not live
    mix.load_state_dict({})
    assert mix.weights["all"].tolist() == [0.5, 0.5], "a new training"


def test_weights_are_frozen_by_kind_once_every_teacher_is_known_there():
    mix = two(kind="kind", live=False)
    means = {("a", "easy"): [0.3], ("b", "easy"): [0.0], ("a", "hard"): [0.3]}
    with_readings(mix, means)  # b has not been measured on hard ones
    easy, hard = mix.weights["easy"].tolist(), mix.weights["hard"].tolist()
    means |= {("a", "easy"): [0.3, -0.5], ("b", "easy"): [0.0, 0.5], ("b", "hard"): [0.6]}
    with_readings(mix, means)
    assert mix.weights["easy"].tolist() == easy
    assert mix.weights["hard"].tolist() != hard
    hard = mix.weights["hard"].tolist()
    with_readings(mix, means | {("b", "hard"): [0.6, -0.6]})
    assert mix.weights["hard"].tolist() == hard
    resumed = two(kind="kind", live=False)
    resumed.log = ReadingLog(resumed.names, mix.log.kind_of)
    resumed.load_state_dict(json.loads(json.dumps(mix.state_dict(), allow_nan=False)))
    assert [resumed.weights[kind].tolist() for kind in ("easy", "hard")] == [easy, hard]


def test_a_teacher_that_evaluations_cannot_measure_is_said_once_and_gets_the_floor(caplog):
    mix = TeacherMix({"a": Model(), "self": "Self-1C"})
    mix.log.evaluations = 1
    with_readings(mix, {("a", "all"): [0.05]})
    assert mix.weights["all"][1] > 0.3
    mix.log.evaluations = 2
    with_readings(mix, {("a", "all"): [0.05, 0.05], ("self", "all"): [float("nan")] * 2})
    assert mix.weights["all"] == pytest.approx([0.95, 0.05])
    for _ in range(2):
        mix._warn_of_unknown()
    assert caplog.messages == [
        "2 evaluations could not measure teacher 'self' on all questions (fewer than 4 of them with the solutions that "
        "it shows): until one does, its weight is the floor (0.05), or 0 if every other teacher harms"
    ]
    again = TeacherMix({"a": Model(), "self": "Self-1C"})
    again.load_state_dict(json.loads(json.dumps(mix.state_dict())))
    assert again.weights["all"] == pytest.approx([0.95, 0.05])
    with_readings(mix, {("self", "all"): [0.4]})
    assert mix.weights["all"][1] > 0.9, "measured after all"
    assert TeacherMix({"a": Model(), "b": Model(), "c": "Self-1C"}, one_at_a_time=True).log.turns == 2


def test_unknown_readings_are_stored():
    mix = with_readings(two(), {("a", "all"): [0.3], ("b", "all"): [0.1]}, error=float("nan"))
    assert mix.weights["all"].tolist() == [0.5, 0.5]
    stored = json.loads(json.dumps(mix.state_dict(), allow_nan=False))
    resumed = two()
    resumed.load_state_dict(stored)
    assert not any(reading.known for reading in resumed.log.of("a"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_teacher_given_by_its_path_has_the_precision_that_it_was_saved_in(dtype, tmp_path):
    teacher = load_model("embedded:teacher")
    teacher.model.to(dtype).save_pretrained(tmp_path)
    teacher.tokenizer.save_pretrained(tmp_path)
    model = TeacherMix({"a": str(tmp_path)}).pool.first_model()
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    pairs = zip(model.parameters(), teacher.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_one_at_a_time_keeps_one_model_and_measures_each_in_turn():
    loaded = []

    def load():
        loaded.append(Model())
        return loaded[-1]

    mix = TeacherMix({"a": Model(), "b": load, "c": load}, one_at_a_time=True)
    own = trainer()
    mix.attach(own, Open(), measuring_pass=False)
    assert mix.pool.loaded == [own.teacher_model]
    assert mix.pool["b"] is loaded[0]
    assert mix.pool["c"] is loaded[1]
    assert mix.pool.loaded == [own.teacher_model, loaded[1]], "b was dropped; the first one is in host memory"
    assert mix.pool["b"] is loaded[2]
    measured = []
    for step in range(4):
        (name,) = mix.evaluated
        measured.append(name)
        mix.log.readings.setdefault((name, "all"), []).append(Reading(step, 0.1, 0.1))
    assert measured == ["a", "b", "c", "a"]


def test_grpo_does_not_fall_back_to_the_first_teacher(monkeypatch):
    """Without the student's hidden states, the loss of each teacher's own rollouts cannot be computed."""
    own = object.__new__(GatedGRPOTrainer)
    own.accelerator, own.distillation_beta = SimpleNamespace(num_processes=1), 1.0
    own._teacher_mix, own._student_states, own._gate_runtime = two(), None, None
    monkeypatch.setattr(GatedGRPOTrainer, "_keep_student_states", lambda self, student: nullcontext())
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs: torch.zeros(()))
    with pytest.raises(OpdAlignError, match="no forward pass of the student's backbone"):
        own._both_losses(None, {TEACHER: torch.tensor([0, 1])}, torch.ones(()), 1.0)
