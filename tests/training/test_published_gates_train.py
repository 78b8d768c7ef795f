"""Short trainings with gates from the literature: open, they are TRL's; otherwise they keep what they say."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from support.gated_runs import TASK, distillation, gkd, grpo, models, prompts, questions, verifier
from trl import DistillationTrainer
from trl.experimental.gkd import GKDTrainer

from opd_align.training.contrast import ContrastiveContexts
from opd_align.training.published_gates import NAMED, EntropyDivergence, FirstPart, Teachable, named_gate
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.types import OpdAlignError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

SHORT = {"max_steps": 1, "gradient_accumulation_steps": 2, "max_completion_length": 48}
SHORT_GKD = {"max_steps": 1, "gradient_accumulation_steps": 2}
HINTS = {"correct_hint": "6 × 4 = 24.\nAnswer: 24", "wrong_hint": "6 + 4 = 10.\nAnswer: 10"}


def with_hints(data: Dataset) -> Dataset:
    return data.map(lambda row: {**row, **HINTS})


def replies() -> Dataset:
    rows = []
    for question in questions(8):
        reply = {"role": "assistant", "content": f"I count.\nAnswer: {question.answer}"}
        rows.append({"messages": [*TASK.messages(question), reply], "answer": question.answer, **HINTS})
    return Dataset.from_list(rows)


def assert_same(one, other):
    assert one.column("loss") == other.column("loss") != []
    for name, weights in one.weights.items():
        assert torch.equal(weights, other.weights[name]), name


OPEN = [Teachable(0.0), EntropyDivergence(1.0, 0.0), FirstPart(1.0), ContrastiveContexts(0.0, unknown="keep")]


def test_open_gates_give_trls_distillation_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("support.gated_runs.prompts", lambda: with_hints(prompts(8)))
    plain = distillation(DistillationTrainer, tmp_path, options=SHORT)
    for gate in OPEN:
        gated = distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator="renormalise", options=SHORT)
        assert gated.column("gate/tokens_kept") == [1.0]
        assert_same(plain, gated)


def test_open_gates_give_trls_gkd_to_the_bit(tmp_path):
    plain = gkd(GKDTrainer, tmp_path, data=replies(), options=SHORT_GKD)
    for gate in OPEN:
        gated = gkd(GatedGKDTrainer, tmp_path, data=replies(), gate=gate, denominator="renormalise", options=SHORT_GKD)
        assert_same(plain, gated)


@pytest.mark.parametrize("name", sorted(set(NAMED) - {"open"}))
def test_each_gate_trains_and_logs_what_it_keeps(name, tmp_path, monkeypatch):
    monkeypatch.setattr("support.gated_runs.prompts", lambda: with_hints(prompts(8)))
    gate = named_gate(name, verifier, unknown="keep")
    options = {**SHORT, "max_steps": 1}
    run = distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator="keep", options=options)
    (row,) = run.logs
    assert 0 < row["gate/tokens_kept"] < 1
    assert row["loss"] == pytest.approx(row["gate/loss"], rel=1e-5)
    expected = {"teachable": 0.2, "divergence": 0.2, "first_part": 0.34, "contrastive_contexts": 0.2}
    if name in expected:
        assert row["gate/tokens_kept"] == pytest.approx(expected[name], abs=0.02)


def test_grpo_takes_them_too(tmp_path):
    gate = named_gate("incorrect_only*teachable", verifier, unknown="drop")
    options = {"max_steps": 1, "max_completion_length": 48}
    teacher = models()["teacher_model"]
    run = grpo(GatedGRPOTrainer, tmp_path, gate=gate, denominator="keep", teacher_model=teacher, options=options)
    assert 0 < run.logs[0]["gate/tokens_kept"] <= 0.2 + 0.02


def test_hints_must_be_in_the_data(tmp_path):
    gate = ContrastiveContexts(unknown="keep")
    with pytest.raises(OpdAlignError, match="column 'correct_hint'"):
        distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator="keep", options=SHORT)
