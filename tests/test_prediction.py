"""The prediction study: its teachers are what they claim to be, and its analysis gives known answers."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opd_align.backends.loading import load_model
from opd_align.backends.scoring import PromptedModel, output_layer
from opd_align.study.config import read_config
from opd_align.study.teacher_specs import teacher_spec

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
OPENING = [1, 545, 201]
PROMPT = [1, 30, 40, *OPENING]


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    yield SimpleNamespace(
        **{
            name: import_module(f"_prediction_{name}")
            for name in ("models", "teachers", "analysis", "long", "sgd", "picture")
        },
        demo_check=import_module("demo_check"),
    )
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def student():
    return load_model("embedded:student").model.requires_grad_(False)


@pytest.fixture(scope="module")
def teacher():
    return load_model("embedded:teacher").model.requires_grad_(False)


def logits(model, tokens):
    return model(input_ids=torch.tensor([tokens])).logits[0]


def test_combinations_of_models_have_the_logits_they_say(modules, student, teacher):
    tokens = [*PROMPT, 50, 60, 70]
    plain, other = modules.models.plain(student), modules.models.plain(teacher)
    s, t = logits(student, tokens), logits(teacher, tokens)
    assert torch.allclose(logits(plain, tokens), s, atol=1e-5)
    assert torch.allclose(logits(modules.models.tempered(other, 2.5), tokens), t / 2.5, atol=1e-5)
    away = modules.models.combined([plain, other], [1.8, -0.8])
    assert torch.allclose(logits(away, tokens), 1.8 * s - 0.8 * t, atol=1e-4)
    biased = logits(modules.models.biased(plain, [527], 2.5), tokens)
    assert torch.allclose(biased[:, 527], s[:, 527] + 2.5, atol=1e-5)
    assert torch.allclose(biased[:, :527], s[:, :527], atol=1e-5)
    # Scoring takes body and output layer apart and checks that they give the logits.
    assert output_layer(PromptedModel("away", away, tokens)) is away.head


def test_a_context_teacher_reads_its_own_prompt_and_predicts_the_same_completion(modules, student):
    context, completion = [1, 77, 88, 99, 30, 40, *OPENING], [50, 60, 70]
    plain = modules.models.plain(student)
    body = modules.models.WithContext(plain.body, {tuple(PROMPT): tuple(context)}, OPENING)
    model = modules.models.LinearTeacher(body, plain.config, plain.head.weight)
    padded = torch.tensor([[0, 0, *PROMPT, *completion]])
    mask = torch.tensor([[0, 0, *[1] * (len(PROMPT) + len(completion))]])
    read = model(input_ids=padded, attention_mask=mask).logits[0, -len(completion) - 1 :]
    assert torch.allclose(read, logits(student, context + completion)[-len(completion) - 1 :], atol=1e-4)


def test_a_mixture_uses_one_model_per_question(modules, student, teacher):
    mixed = modules.models.by_question(
        modules.models.plain(student), modules.models.plain(teacher), lambda tokens: tokens[1] == 30
    )
    other = [1, 31, 40, *OPENING]
    both = mixed(input_ids=torch.tensor([PROMPT, other])).logits
    assert torch.allclose(both[0], logits(student, PROMPT), atol=1e-4)
    assert torch.allclose(both[1], logits(teacher, other), atol=1e-4)


def test_sampling_follows_the_combined_logits(modules, student):
    """A bias of 50 on one token: it is drawn every time; with the end token, sampling stops."""
    forced = modules.models.biased(modules.models.plain(student), [527], 50.0)
    drawn = modules.models.sample(forced, [PROMPT, [5, *PROMPT]], max_tokens=3, end=2, seed=0)
    assert drawn.tolist() == [[527] * 3] * 2
    ended = modules.models.biased(modules.models.plain(student), [2], 50.0)
    assert modules.models.sample(ended, [PROMPT], max_tokens=3, end=2, seed=0).tolist() == [[2]]


def test_the_list_has_enough_teachers_in_families_and_none_of_the_development(modules):
    listed, development = modules.teachers.entries(), modules.teachers.entries(development=True)
    assert len({entry.name for entry in listed}) == len(listed) >= 24
    assert len({entry.family for entry in listed}) >= 6
    assert len({entry.loss for entry in listed}) >= 5
    own = {(entry.model_key, entry.loss) for entry in listed}
    assert not own & {(entry.model_key, entry.loss) for entry in development}


@pytest.fixture
def study(modules, tmp_path):
    """Five teachers whose gain rises with one predictor and falls with another."""
    entries = [modules.teachers.Entry(f"t{n}", f"family-{n % 3}", "anti", {"c": n}, "reverse_kl") for n in range(5)]
    (tmp_path / "runs").mkdir()
    before = {"correct": [4] * 40, "samples": 8, "two_step": [True, False] * 20}
    (tmp_path / "before.json").write_text(json.dumps(before))
    measured = {}
    for n, entry in enumerate(entries):
        measured[entry.name] = {name: (float(n) ** 3, 0.1) for name in modules.analysis.PREDICTORS}
        measured[entry.name]["mean_alignment"] = (-float(n), 0.1)
        measured[entry.name]["teacher_accuracy"] = (None if n == 4 else 0.5 + n / 10, None)
        for seed in range(2):
            run = {"correct": [1] * (5 * n + 5) + [0] * (35 - 5 * n), "samples": 1, "cpu_seconds": 1.0}
            (tmp_path / "runs" / f"{entry.name}-{seed}.json").write_text(json.dumps(run))
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    return modules.analysis.Study.load(tmp_path, entries, seeds=3)


def test_gains_and_correlations_of_known_runs(modules, study):
    assert study.gain_E == pytest.approx([0.125 * n + 0.125 - 0.5 for n in range(5)])
    for gain in study.gains:
        assert gain.low <= gain.mean <= gain.high
    rank = study.correlation(modules.analysis.HEADLINE, modules.analysis.spearman)
    assert (rank.value, rank.n) == (pytest.approx(1.0), 5)
    assert study.correlation(modules.analysis.HEADLINE, modules.analysis.pearson).value < 0.95
    assert study.correlation("mean_alignment", modules.analysis.spearman).value == pytest.approx(-1.0)
    assert study.correlation("teacher_accuracy", modules.analysis.spearman).n == 4
    assert study.reliability() == pytest.approx(1.0)


def test_figures_are_plain_json_with_the_headline(modules, study):
    found = json.loads(json.dumps(modules.analysis.figures(study), allow_nan=False))
    assert (found["n_teachers"], found["n_seeds"], found["spearman_headline"]) == (5, 2, 1.0)
    assert found["spearman_headline_low"] <= 1.0
    assert found["n_teacher_accuracy"] == 4
    assert set(found["without_family_mean_alignment"]) == {"family-0", "family-1", "family-2"}
    assert modules.picture.scatter(study).count("<title>") == 5 + 4


def test_correlations_of_many_rows_are_those_of_each_row(modules):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, (6, 12)).astype(float), rng.normal(size=(6, 12))
    for method in (modules.analysis.spearman, modules.analysis.pearson):
        assert method(x, y) == pytest.approx([float(method(*row)) for row in zip(x, y, strict=True)])
    assert modules.analysis.pearson(x[0], y[0]) == pytest.approx(np.corrcoef(x[0], y[0])[0, 1])
    assert np.isnan(modules.analysis.pearson(np.ones(4), y[0, :4]))


def test_long_trainings_are_reported_with_the_alarm_of_their_evaluations(modules, tmp_path):
    alignment = [0.3] * 4 + [-0.15] * 5
    rows = [
        {"step": 20 * n, "accuracy": 0.5 + 0.05 * min(n, 8 - n), "alignment": mean, "half_width": 0.3, "questions": 16}
        for n, mean in enumerate(alignment)
    ]
    (tmp_path / "long-made.json").write_text(json.dumps(rows), encoding="utf-8")
    found = modules.long.report(tmp_path)["made"]
    assert found["best"] == 80
    assert [row["level"] for row in found["rows"][:4]] == ["helps"] * 4
    # One bad reading after good ones is not enough.
    assert 80 < found["alarm"] <= 140
    assert found["below_zero"] == 80
    assert [row["next_gain"] for row in found["rows"]][:-1] == pytest.approx([0.05] * 4 + [-0.05] * 4)
    # Alignment is high where the next steps gain, and low where they lose.
    known = modules.long.next_gain_correlations({"made": found})["all/alignment"]
    assert (known["n"], known["pearson"]) == (8, pytest.approx(1.0))


def test_sgd_takes_the_best_learning_rate_and_does_not_train_twice(modules, tmp_path):
    listed, calls = modules.sgd.chosen(), []
    stored = json.loads(modules.sgd.RESULTS.read_text(encoding="utf-8"))["teachers"]
    order = sorted(listed, key=lambda entry: stored[entry.name]["first_order_gain"])

    def train(entry, seed, rate):
        """The gain by SGD follows the first-order gain; the learning rate 0.3 is the best one."""
        calls.append((entry.name, seed, rate))
        correct = order.index(entry) if entry in order else 10 - round(10 * abs(rate - 0.3))
        return {"correct": [1] * correct + [0] * (40 - correct), "samples": 1, "accuracy": correct / 40}

    before = {"correct": [2] * 40, "samples": 8, "two_step": [True, False] * 20}
    (tmp_path / "before.json").write_text(json.dumps(before))
    modules.sgd.run_sgd(train, tmp_path, seeds=1)
    assert [(seed, rate) for name, seed, rate in calls if name == listed[0].name] == [(0, 0.3)]
    n_calls = len(calls)
    modules.sgd.run_sgd(train, tmp_path, seeds=1)
    assert len(calls) == n_calls == len(listed) + len(modules.sgd.RATES)
    found = json.loads(json.dumps(modules.analysis.plain(modules.sgd.figures(tmp_path)), allow_nan=False))
    assert (found["n_teachers"], found["n_seeds"], found["rates"]["rate"]) == (len(listed), 1, 0.3)
    assert found["spearman_first_order_gain_sgd"][0] == 1.0
    assert found["spearman_first_order_gain_adamw"][0] < 1.0


def demo(modules, seed, line, better, *, as_good=(), harmful=()):
    """A run of the demo with a recommendation; `better` is the stated order of the candidates."""
    p_helps = {"Self-1C": 0.98, "Teacher": 0.96, "Careless": 0.1}
    candidates = [{"teacher": name, "p_helps": p_helps[name]} for name in better]
    matrix = [[0.5 if a == b else 0.9 if a < b else 0.1 for b in range(3)] for a in range(3)]
    decision = {"as_good": list(as_good), "candidates": candidates, "better": matrix, "level": 0.95, "p_first": 0.8,
                "outcome": "undecided", "harmful": [[name, "reverse_kl"] for name in harmful]}  # fmt: skip
    return modules.demo_check.Demo(seed, line, decision)


def test_a_recommendation_is_right_if_training_finds_no_better_teacher(modules, tmp_path):
    correct = {"Self-1C": [80, 82], "Teacher": [83, 81], "Careless": [20, 22]}
    (tmp_path / "runs").mkdir()
    before = {"correct": [4] * 100, "samples": 8, "two_step": [True, False] * 50}
    (tmp_path / "before.json").write_text(json.dumps(before))
    for name, counts in correct.items():
        for seed, n in enumerate(counts):
            run = {"correct": [1] * n + [0] * (100 - n), "samples": 1}
            (tmp_path / "runs" / f"{name}-{seed}.json").write_text(json.dumps(run))
    trainings = modules.demo_check.Trainings.load(tmp_path, 2)
    assert (trainings.best, trainings.harms) == ("Teacher", ["Careless"])
    assert trainings.difference("Teacher", "Careless")[0] == pytest.approx(0.61)
    first = ["Self-1C", "Teacher", "Careless"]
    found = modules.demo_check.figures(
        trainings,
        [
            demo(modules, 1, "Use Self-1C: ...", first, harmful=["Careless"]),
            demo(modules, 2, "Use Careless: ...", ["Careless", "Teacher", "Self-1C"]),
            demo(modules, 3, "Use Teacher or Careless: ...", ["Teacher", "Careless", "Self-1C"], as_good=[1]),
            demo(modules, 4, "Undecided: ...", first, harmful=["Careless"]),
        ],
    )
    # Self-1C cannot be told from the best. Careless can, alone or with it; and no recommendation is not a right one.
    assert (found["right"], found["names_the_best"], found["harmful_named"]) == (1, 1, 2)
    assert found["pairs"]["Self-1C - Teacher"]["right_side"] is None
    assert found["pairs"]["Teacher - Careless"]["right_side"] == 3
    assert found["recommends"] == {"Self-1C": 1, "Teacher": 1, "Careless": 2}
    assert (found["helps_right"], found["helps_known"]) == (12, 12)


def test_the_teachers_that_the_check_trains_with_are_those_of_the_demo(modules):
    teachers = read_config("demo").teachers
    assert [spec.name for spec in map(teacher_spec, teachers)] == [each.name for each in modules.demo_check.CANDIDATES]
