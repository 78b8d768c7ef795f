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

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
OPENING = [1, 545, 201]
PROMPT = [1, 30, 40, *OPENING]


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    yield SimpleNamespace(
        **{name: import_module(f"_prediction_{name}") for name in ("models", "teachers", "analysis", "long", "picture")}
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
