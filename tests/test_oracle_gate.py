"""The oracle gate: exact worlds with known gains, a slow twin on the embedded models, and trainings."""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gated_runs import TASK, distillation, models, questions

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _comparison_oracle import TEACHER, NodeEffects, OracleGate, node_effects, weights

from opd_align.backends.chat import Chat
from opd_align.backends.exact import ExactWorld
from opd_align.backends.hf import HFStudent
from opd_align.core.collect import collect, collect_group
from opd_align.core.estimate import estimate
from opd_align.core.path_estimate import exact_estimate
from opd_align.settings import Budget, Rules, Sampling, Settings
from opd_align.tasks.grading import TextGrader
from opd_align.training import Open
from opd_align.training.gates import GateBatch
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.types import OpdAlignError, Question, Rollouts, SampleRequest, ScoreRequest

SETTINGS = Settings(budget=Budget(initial=40, targeted=400, allocation="adaptive", rounds=2))


@pytest.fixture(scope="module")
def world() -> ExactWorld:
    return ExactWorld.random(1, length=25, vocabulary=8, states=40, stakes=3.0)


def completions(world: ExactWorld, n: int) -> list[np.ndarray]:
    rollouts = world.sample([SampleRequest(Question("paths"), np.empty(0, np.uint32), n)])
    return [rollouts.completion(row) for row in range(n)]


def exact_gains(world: ExactWorld, teacher, completion: np.ndarray) -> np.ndarray:
    """Cov_p(Q, log t − log p) at every node, over the whole vocabulary."""
    empty = np.empty(0, np.int64)
    scores = world.score(ScoreRequest(Question("q"), completion, empty, empty.astype(np.uint32), 1e-12), [teacher])
    q_C, p_C = world.exact_q_along(scores), np.exp(scores.log_p_C)
    gains = []
    for depth in range(len(scores)):
        here = scores.depth_C == depth
        f = scores.teachers[teacher.name].log_t_C[here] - scores.log_p_C[here]
        gains.append(float(np.sum(p_C[here] * q_C[here] * (f - np.sum(p_C[here] * f)))))
    return np.array(gains)


# -- given paths


def test_a_given_path_is_analyzed_but_is_no_evidence(world):
    teacher, paths = world.tilted_teacher(TEACHER, noise=0.3, seed=1), completions(world, 4)
    asked = [Question(str(number)) for number in range(4)]
    given = collect_group(world, [teacher], asked, world, settings=SETTINGS, completions=paths)
    for question, path, evidence in zip(asked, paths, given, strict=True):
        assert [scores.completion_T.tolist() for scores in evidence.paths] == [path.tolist()]
        assert evidence.note == ""
        natural = evidence.tree.launch_R == 0
        chosen = collect(world, [teacher], question, world, settings=SETTINGS)
        assert natural.sum() == SETTINGS.budget.initial
        assert evidence.pass_rate == chosen.pass_rate
        (counts,) = estimate(evidence.tree, evidence.paths, method="direct")
        assert counts.visits_C[evidence.paths[0].depth_C == 0].sum() >= SETTINGS.budget.initial - 1


def test_an_empty_completion_has_no_path(world):
    teacher = world.tilted_teacher(TEACHER)
    empty = np.empty(0, np.uint32)
    (evidence,) = collect_group(world, [teacher], [Question("q")], world, settings=SETTINGS, completions=[empty])
    assert list(evidence.paths) == []
    assert evidence.note == ""


# -- effects


def test_gains_are_exact_where_success_is_known(world):
    teacher = world.tilted_teacher(TEACHER, noise=0.3, seed=1)
    for path in completions(world, 5):
        empty = np.empty(0, np.int64)
        request = ScoreRequest(Question("q"), path, empty, empty.astype(np.uint32), 1e-12)
        scores = world.score(request, [teacher])
        effects = node_effects(scores, exact_estimate(scores, world.exact_q_along(scores)), Rules(tau=0.0))
        expected = exact_gains(world, teacher, path)
        known = np.isfinite(effects.gain_T)
        assert known.sum() >= 5
        np.testing.assert_allclose(effects.gain_T[known], expected[known], atol=1e-12)
        assert set(np.unique(effects.p_positive_T[known])) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize(("kind", "sign"), [("tilted_teacher", 1), ("adversarial_teacher", -1)])
def test_measured_gains_agree_with_exact_ones(world, kind, sign):
    teacher, paths = getattr(world, kind)(TEACHER, noise=0.3, seed=1), completions(world, 8)
    asked = [Question(str(number)) for number in range(8)]
    measured, exact, positive = [], [], []
    for path, evidence in zip(
        paths, collect_group(world, [teacher], asked, world, settings=SETTINGS, completions=paths), strict=True
    ):
        (values,) = estimate(evidence.tree, evidence.paths)
        effects = node_effects(evidence.paths[0], values)
        known = np.isfinite(effects.gain_T)
        measured.append(effects.gain_T[known])
        positive.append(effects.p_positive_T[known])
        exact.append(exact_gains(world, teacher, path)[known])
    measured_N, exact_N, positive_N = map(np.concatenate, (measured, exact, positive))
    assert sign * measured_N.sum() > 0 < sign * exact_N.sum()
    assert np.corrcoef(measured_N, exact_N)[0, 1] > 0.8
    right_N = (positive_N >= 0.5) == (exact_N >= 0)
    assert np.average(right_N, weights=np.abs(exact_N)) > 0.9


def test_weights_by_mode():
    effects = NodeEffects(np.array([0.2, np.nan, -0.3, 0.0]), np.array([0.9, np.nan, 0.1, 0.5]))
    assert weights(effects, "sign").tolist() == [1, 0, 0, 1]
    assert weights(effects, "soft").tolist() == pytest.approx([1.8, 1, 0.2, 1])
    assert weights(effects, "rollout").tolist() == [0, 0, 0, 0]
    # Without a measurement nothing is kept by sign; the others are open.
    assert weights(NodeEffects.unknown(3), "sign").tolist() == [0, 0, 0]
    for mode in ("soft", "rollout"):
        assert weights(NodeEffects.unknown(3), mode).tolist() == [1, 1, 1]


def test_wrong_arguments_are_refused():
    with pytest.raises(OpdAlignError, match="choose one of sign, soft, rollout"):
        OracleGate(TASK, None, None, "signs")
    with pytest.raises(OpdAlignError, match="at least 8"):
        OracleGate(TASK, None, None, rollouts=2)
    with pytest.raises(OpdAlignError, match="needs a trainer"):
        OracleGate(TASK, None, None)(GateBatch(torch.zeros(1, 2), torch.ones(1, 2).bool()))


# -- the embedded models

MAX_TOKENS = 64
SHORT = {"max_steps": 2, "max_completion_length": 40}


@pytest.fixture(scope="module")
def embedded():
    made = models()
    student, teacher, tokenizer = made["model"].eval(), made["teacher_model"].eval(), made["processing_class"]
    harmful = copy.deepcopy(student)
    with torch.no_grad():
        for weight, target in zip(harmful.parameters(), teacher.parameters(), strict=True):
            weight.add_(target - weight, alpha=-0.3)
    chat, rows = Chat(tokenizer), questions(8)
    sampler = sampler_of(student, chat)
    sampled = sampler.sample([SampleRequest(question, np.empty(0, np.uint32), 1) for question in rows])
    by_key = {int(key): sampled.completion(row).tolist() for row, key in enumerate(sampled.key_R)}
    keys = sampler.keys([SampleRequest(question, np.empty(0, np.uint32), 1) for question in rows])
    batch = (
        [TASK.messages(question) for question in rows],
        [by_key[int(key)] for (key,) in keys],
        [row.answer for row in rows],
    )
    return student, {"good": teacher, "harmful": harmful}, tokenizer, batch


def sampler_of(student, chat: Chat) -> HFStudent:
    ends = chat.end_tokens(student.config)
    return HFStudent(
        "s",
        student,
        lambda question: chat.prompt(TASK.messages(question)),
        ends,
        Sampling(max_tokens=MAX_TOKENS, seed=9),
    )


def plain_gain(sampler: HFStudent, grader: TextGrader, teacher, batch, row: int, depth: int) -> float:
    """Cov_p(Q, log t − log p) at one node, with Q from 100 rollouts after each likely token."""
    question, tokens = questions(len(batch[0]))[row], batch[1][row]
    prompt = list(sampler.prompt(question))
    ids = torch.tensor([[*prompt, *tokens[:depth]]])
    with torch.no_grad():
        log_p, log_t = (
            model(input_ids=ids).logits[0, -1].log_softmax(-1).numpy() for model in (sampler.model, teacher)
        )
    likely = np.flatnonzero((np.maximum(log_p, log_t) > np.log(0.02)) | (np.arange(len(log_p)) == tokens[depth]))
    success = []
    for token in likely.tolist():
        prefix = np.array([*tokens[:depth], token], np.uint32)
        if token in sampler.end_tokens:
            rollouts = Rollouts.of([prefix])
        else:
            rollouts = sampler.sample([SampleRequest(question, prefix, 100)])
        success.append(float((grader.grade(question, rollouts) > 0).mean()))
    p = np.exp(log_p[likely])
    p, f = p / p.sum(), log_t[likely] - log_p[likely]
    return float(np.sum(p * np.array(success) * (f - np.sum(p * f))))


@pytest.mark.training
def test_known_teachers_help_and_harm_and_nothing_is_disturbed(embedded):
    student, teachers, tokenizer, batch = embedded
    gates = {name: OracleGate(TASK, teacher, tokenizer, rollouts=96, seed=3) for name, teacher in teachers.items()}
    student.train()
    drawn = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    found = {
        name: gate.effects(student, *batch, temperature=1.0, max_tokens=MAX_TOKENS) for name, gate in gates.items()
    }
    again = gates["good"].effects(student, *batch, temperature=1.0, max_tokens=MAX_TOKENS)
    assert all(module.training for module in student.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in student.parameters())
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    for one, other in zip(found["good"], again, strict=True):
        np.testing.assert_array_equal(one.gain_T, other.gain_T)
        np.testing.assert_array_equal(one.p_positive_T, other.p_positive_T)
    gain = {name: np.mean([np.nansum(effects.gain_T) for effects in each]) for name, each in found.items()}
    assert gain["good"] > 0 > gain["harmful"]

    # The slow twin: plain rollouts after each likely token, at the nodes with the largest gains.
    student.eval()
    chat = Chat(tokenizer)
    sampler = sampler_of(student, chat)
    grader = TextGrader(TASK, chat.decode, sampler.end_tokens)
    nodes = sorted(
        (
            (abs(gain), row, depth)
            for row, effects in enumerate(found["good"])
            for depth, gain in enumerate(effects.gain_T)
            if gain == gain
        ),
        reverse=True,
    )[:3]
    for _, row, depth in nodes:
        assert np.sign(plain_gain(sampler, grader, teachers["good"], batch, row, depth)) == np.sign(
            found["good"][row].gain_T[depth]
        )


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
class TestTraining:
    def test_with_all_weights_one_it_is_an_open_gate_to_the_bit(self, tmp_path):
        class AllOnes(OracleGate):
            def __call__(self, batch):
                assert super().__call__(batch).shape == batch.mask_BT.shape
                return batch.mask_BT.float()

        made = models()
        gate = AllOnes(TASK, made["teacher_model"], made["processing_class"], rollouts=16)
        runs = [
            distillation(GatedDistillationTrainer, tmp_path, gate=each, denominator="keep", options=SHORT)
            for each in (Open(), gate)
        ]
        assert len(gate.latest) == 4
        assert runs[0].column("loss") == runs[1].column("loss") != []
        for name, value in runs[0].weights.items():
            assert torch.equal(value, runs[1].weights[name]), name

    @pytest.mark.parametrize("mode", ["sign", "soft", "rollout"])
    def test_the_loss_is_trls_with_its_weights(self, mode, tmp_path):
        made = models()
        gate = OracleGate(TASK, made["teacher_model"], made["processing_class"], mode, rollouts=48)
        options = {**SHORT, "max_steps": 1}
        run = distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator="keep", options=options)
        (row,) = run.logs
        assert row["loss"] == pytest.approx(row["gate/loss"], rel=1e-5)
        expected = sum(float(weights(effects, mode).sum()) for effects in gate.latest)
        assert row["gate/tokens_distilled"] == pytest.approx(expected, rel=1e-6)
        assert row["gate/oracle/nodes"] > 0
