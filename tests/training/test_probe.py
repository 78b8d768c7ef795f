"""The success probe: known bilinear advantages, its slow twin, questions that it was fitted on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis
from _probe_judge import spearman

from opd_align.core.node_rows import centred_ranks
from opd_align.training.probe import OWN_VARIANCE, ProbeExamples, examples_of, fit_probe
from opd_align.types import OpdAlignError

WIDTH, VOCABULARY = 6, 30


def made_examples(seed: int, *, questions: int = 20, nodes: int = 40, noise: float = 0.0) -> ProbeExamples:
    """Nodes whose advantages are bilinear in random hidden states and `EMBEDDING`, with three children each."""
    generator = torch.Generator().manual_seed(seed)
    n = questions * nodes
    hidden = torch.randn(n, WIDTH, generator=generator)
    token = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:3] for _ in range(n)]).reshape(-1)
    node = torch.arange(n).repeat_interleave(3)
    p = torch.full((3 * n,), 1 / 3)
    q = (hidden[node] @ FORM * EMBEDDING[token]).sum(-1) + noise * torch.randn(3 * n, generator=generator)
    target = q - q.view(n, 3).mean(1).repeat_interleave(3)
    names = tuple(f"{seed}-{number}" for number in range(questions))
    return ProbeExamples(
        names, np.repeat(np.arange(questions), nodes), hidden, node, token, p, target, torch.ones(3 * n)
    )


EMBEDDING = torch.randn(VOCABULARY, 5, generator=torch.Generator().manual_seed(1))
FORM = torch.outer(torch.tensor([1.0, -1, 0, 0, 0, 2]), torch.tensor([0.1, 0, -0.2, 0, 0.1]))
FREE = {"rank": 2, "weight_decay": 0.0, "learning_rate": 1e-2}
"""Of small rank and without decay: there is nothing else to learn here."""


def test_bilinear_advantages_are_found_on_other_questions():
    probe = fit_probe(made_examples(0, noise=0.1), EMBEDDING, **FREE)
    other = made_examples(1)
    p_NV = torch.zeros(len(other), VOCABULARY)
    p_NV[other.node_C, other.token_C] = other.p_C
    found_C = probe.advantages(other.hidden_NH, p_NV)[other.node_C, other.token_C]
    assert np.corrcoef(found_C.numpy(), other.target_C.numpy())[0, 1] > 0.98
    assert probe.steps > 0
    assert found_C.view(-1, 3).mean(1).abs().max() < 1e-5


def test_all_tokens_cost_one_matrix_product_and_equal_a_loop():
    probe = fit_probe(made_examples(0), EMBEDDING, rank=2, max_steps=50)
    hidden = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5))
    scores = probe.scores(hidden)
    assert scores.shape == (3, VOCABULARY)
    for node in range(3):
        for token in range(VOCABULARY):
            state = [(hidden[node, h] - probe.shift_H[h]) / probe.scale_H[h] for h in range(WIDTH)]
            ranks = [sum(probe.node_RH[r, h] * state[h] for h in range(WIDTH)) for r in range(2)]
            expected = sum(ranks[r] * probe.token_VR[token, r] for r in range(2))
            assert float(scores[node, token]) == pytest.approx(float(expected), abs=1e-4)


def test_where_there_is_nothing_to_learn_no_step_is_made():
    examples = made_examples(0, questions=6, nodes=5)
    shuffled = examples.target_C[torch.randperm(len(examples.target_C), generator=torch.Generator().manual_seed(0))]
    noise = ProbeExamples(*(*vars(examples).values(),)[:6], 0 * shuffled, examples.precision_C)
    probe = fit_probe(noise, EMBEDDING)
    assert probe.steps == 0
    assert not probe.scores(examples.hidden_NH).any()


def test_imprecise_targets_count_less():
    """Wrong targets with a thousandth of the precision do not change what is learned."""
    examples, wrong = made_examples(0), made_examples(2)
    names = examples.questions + wrong.questions
    both = ProbeExamples(
        names,
        np.concatenate([examples.question_N, wrong.question_N + len(examples.questions)]),
        torch.cat([examples.hidden_NH, wrong.hidden_NH]),
        torch.cat([examples.node_C, wrong.node_C + len(examples)]),
        torch.cat([examples.token_C, wrong.token_C]),
        torch.cat([examples.p_C, wrong.p_C]),
        torch.cat([examples.target_C, -wrong.target_C]),
        torch.cat([examples.precision_C, wrong.precision_C / 1000]),
    )
    probe, other = fit_probe(both, EMBEDDING, **FREE), made_examples(3)
    found_C = probe.scores(other.hidden_NH)[other.node_C, other.token_C].view(-1, 3)
    centred = (found_C - found_C.mean(1, keepdim=True)).reshape(-1)
    assert np.corrcoef(centred.numpy(), other.target_C.numpy())[0, 1] > 0.98


def test_questions_that_it_was_fitted_on_are_refused():
    probe = fit_probe(made_examples(0, questions=4), EMBEDDING, max_steps=1)
    probe.check_held_out(["1-0", "1-1"])
    with pytest.raises(OpdAlignError, match="fitted on 2 of these questions, such as '0-1'"):
        probe.check_held_out(["1-0", "0-3", "0-1"])
    with pytest.raises(OpdAlignError, match="at least 2 questions, not 1"):
        fit_probe(made_examples(0, questions=1), EMBEDDING)


def test_examples_are_the_nodes_of_an_analysis():
    """Against a loop over the rows of the child table."""
    analysis = made_analysis(questions=3, length=40, teachers=("teacher",))
    calls = []

    def states(question, tokens):
        calls.append(question)
        return torch.tensor([[len(calls) - 1.0, depth] for depth in range(len(tokens))])

    examples = examples_of(analysis, states)
    rows = analysis.children.to_pylist()
    nodes: dict[tuple, list] = {}
    for row in rows:
        if row["significant"] and (row["own"] or row["p"] > analysis.settings.rules.tau):
            nodes.setdefault((row["question"], row["path"], row["depth"]), []).append(row)
    nodes = {key: children for key, children in nodes.items() if len(children) >= 2}
    assert len(examples) == len(nodes) > 10
    assert len(calls) == len({(row["question"], row["path"]) for row in rows})
    for number in range(len(examples)):
        mine = (examples.node_C == number).numpy()
        question = examples.questions[examples.question_N[number]]
        assert calls[int(examples.hidden_NH[number, 0])] == question
        candidates = [key for key in nodes if key[0] == question and key[2] == int(examples.hidden_NH[number, 1])]
        tokens = examples.token_C[mine].tolist()
        children = next(nodes[key] for key in candidates if [row["token"] for row in nodes[key]] == tokens)
        p = np.array([row["p"] for row in children])
        q = np.array([row["q"] for row in children])
        variance = q * (1 - q) / np.array([row["effective"] for row in children])
        np.testing.assert_allclose(examples.p_C[mine], p / p.sum(), rtol=1e-5)
        np.testing.assert_allclose(examples.target_C[mine], q - (p * q).sum() / p.sum(), atol=1e-6)
        np.testing.assert_allclose(examples.precision_C[mine], 1 / (variance + OWN_VARIANCE), rtol=1e-4)


def test_the_judges_rank_correlation():
    assert spearman(np.array([1.0, 2.0]), np.array([0.3, 0.2])) == -1
    assert spearman(np.array([1.0, 1.0]), np.array([0.3, 0.2])) == 0
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, 9).astype(float), rng.random(9)
    group = np.zeros(9, np.int64)
    a, b = centred_ranks(group, one, 1), centred_ranks(group, other, 1)
    assert spearman(one, other) == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
