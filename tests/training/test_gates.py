"""Gates on batches small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opd_align.tasks import task
from opd_align.training.gate_runtime import is_truncated, left_align, scatter
from opd_align.training.gates import (
    DivergenceAbove,
    FunctionGate,
    GateBatch,
    IncorrectOnly,
    Open,
    SignAgrees,
    as_gate,
    compute_weights,
    concatenate_batches,
)
from opd_align.training.measures import (
    LOG_RATIO,
    MEASURES,
    READABLE,
    STUDENT_LOG_PROB,
    TEACHER_LOG_PROB,
    TEACHER_MASS,
    measure_logits,
)
from opd_align.types import OpdAlignError, Outcome

UNKNOWN, INCORRECT, CORRECT = Outcome.UNKNOWN, Outcome.INCORRECT, Outcome.CORRECT
NOT_A_TOKEN = 7.0


def verifier(prompts, completions, **columns):
    return [1.0] * len(completions)


def a_batch(outcomes=(CORRECT, INCORRECT, UNKNOWN), **measures):
    """Three completions of 4, 3 and 2 tokens."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    values = {name: torch.tensor(rows) for name, rows in measures.items()}
    return GateBatch(torch.arange(12).view(3, 4), mask, torch.tensor(outcomes), values.__getitem__)


KL = [[0.0, 0.1, 0.2, 0.3], [0.4, 0.5, 0.6, NOT_A_TOKEN], [0.7, 0.8, NOT_A_TOKEN, NOT_A_TOKEN]]
LOG_RATIOS = [[1.0, -1.0, 0.0, 2.0], [1.0, -1.0, -3.0, NOT_A_TOKEN], [1.0, -1.0, NOT_A_TOKEN, NOT_A_TOKEN]]


def test_an_open_gate_keeps_every_token():
    assert compute_weights(Open(), a_batch()).tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(("unknown", "last"), [("keep", [1, 1, 0, 0]), ("drop", [0, 0, 0, 0])])
def test_incorrect_completions_alone_are_kept(unknown, last):
    assert compute_weights(IncorrectOnly(verifier, unknown=unknown), a_batch()).tolist() == [
        [0, 0, 0, 0],
        [1, 1, 1, 0],
        last,
    ]


def test_correct_completions_may_keep_a_part():
    weights = compute_weights(IncorrectOnly(verifier, correct_weight=0.25, unknown="drop"), a_batch())
    assert weights.tolist() == [[0.25] * 4, [1, 1, 1, 0], [0] * 4]


def test_a_threshold_keeps_what_reaches_it():
    weights = compute_weights(DivergenceAbove(threshold=0.5), a_batch(kl=KL))
    assert weights.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_quantile_is_over_completion_tokens_and_matches_the_analysis(quantile):
    values = np.arange(9) / 10
    kept = values >= np.quantile(values, quantile, method="higher") - 1e-6
    weights = compute_weights(DivergenceAbove(quantile=quantile), a_batch(kl=KL))
    assert weights.sum() == kept.sum()


def test_a_quantile_is_over_all_processes():
    alone = a_batch(kl=KL)
    gathered = GateBatch(
        alone.token_ids_BT, alone.mask_BT, None, alone.measure, lambda local: torch.cat([local, torch.full((91,), 9.0)])
    )
    assert compute_weights(DivergenceAbove(quantile=0.5), alone).sum() == 5
    assert compute_weights(DivergenceAbove(quantile=0.5), gathered).sum() == 0


def test_the_sign_gate_keeps_tokens_on_which_teacher_and_outcome_agree():
    even = [[-2.0] * 4] * 3
    log_t = (torch.tensor(even) + torch.tensor(LOG_RATIOS)).tolist()
    batch = a_batch(student_log_prob=even, teacher_log_prob=log_t)
    assert compute_weights(SignAgrees(verifier, unknown="drop"), batch).tolist() == [
        [1, 0, 1, 1],
        [0, 1, 1, 0],
        [0, 0, 0, 0],
    ]
    assert compute_weights(SignAgrees(verifier, unknown="keep"), batch).tolist()[2] == [1, 1, 0, 0]


def test_gates_multiply():
    both = IncorrectOnly(verifier, unknown="keep") * DivergenceAbove(threshold=0.5)
    assert compute_weights(both, a_batch(kl=KL)).tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0]]
    assert (both.name, both.measures, both.needs_global_batch) == ("incorrect_only*kl>=0.5", ("kl",), False)
    assert both.verifier is verifier
    assert (both * DivergenceAbove(quantile=0.5, measure="js")).needs_global_batch
    assert (both * DivergenceAbove(threshold=1, measure="js")).measures == ("kl", "js")


def test_a_function_is_a_gate():
    def first_token(batch):
        return (torch.arange(batch.mask_BT.shape[1]) == 0).expand_as(batch.mask_BT)

    assert as_gate(first_token).name == "first_token"
    for both in (first_token * IncorrectOnly(verifier, unknown="drop"), Open() * first_token):
        assert "first_token" in both.name
        assert compute_weights(both, a_batch()).sum(1).tolist() in ([0, 1, 0], [1, 1, 1])
    assert set(as_gate(first_token).measures) == {*MEASURES, LOG_RATIO}  # it may read any of them
    assert FunctionGate(first_token, measures=()).measures == ()


def test_a_gate_may_return_numpy_arrays_or_lists():
    for weights in (np.ones((3, 4)), [[1, 1, 1, 1]] * 3, np.ones((3, 4), bool)):
        computed = compute_weights(FunctionGate(lambda batch, weights=weights: weights), a_batch())
        assert torch.equal(computed, compute_weights(Open(), a_batch()))


def test_completions_are_left_aligned():
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()
    tokens = torch.arange(20).view(4, 5)
    aligned = left_align(mask)
    assert aligned.int().tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert scatter(tokens[mask], aligned, fill=-1).tolist() == [[1, 2, -1], [7, -1, 9], [-1, -1, -1], [15, -1, -1]]
    assert torch.equal(scatter(scatter(tokens[mask], aligned)[aligned], mask)[mask], tokens[mask])
    assert left_align(torch.zeros(2, 3).bool()).any() == torch.tensor(False)


def test_a_completion_is_truncated_unless_its_last_token_ends_it():
    tokens = torch.tensor([[5, 9, 0], [9, 5, 0], [5, 5, 9], [9, 9, 9]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]])
    assert is_truncated(tokens, mask, [8, 9]).tolist() == [False, True, False, True]
    assert is_truncated(tokens, mask, 9).tolist() == [False, True, False, True]
    assert is_truncated(tokens, mask, []).all()


def test_micro_batches_are_concatenated():
    short = GateBatch(torch.zeros(1, 2), torch.ones(1, 2).bool(), torch.tensor([INCORRECT]))
    whole = concatenate_batches([a_batch(), short], [{"kl": torch.tensor(KL)}, {"kl": torch.tensor([[0.9, 1.0]])}])
    assert compute_weights(DivergenceAbove(quantile=1.0), whole).nonzero().tolist() == [[3, 1]]
    assert compute_weights(IncorrectOnly(verifier, unknown="drop"), whole).sum(1).tolist() == [0, 3, 0, 2]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: DivergenceAbove(), "threshold or a quantile"),
        (lambda: DivergenceAbove(threshold=1, quantile=0.5), "threshold or a quantile"),
        (lambda: DivergenceAbove(quantile=2), r"\[0, 1\]"),
        (lambda: DivergenceAbove(threshold=float("nan")), "not a number"),
        (lambda: DivergenceAbove(threshold=1, measure="cosine"), "choose from kl, js"),
        (lambda: IncorrectOnly(verifier, unknown="maybe"), "'keep' or 'drop'"),
        (lambda: IncorrectOnly(verifier, correct_weight=-1, unknown="keep"), "0 or more"),
        (lambda: IncorrectOnly("exact match", unknown="keep"), "reward signature"),
        (lambda: SignAgrees(verifier, unknown="?"), "'keep' or 'drop'"),
        (lambda: SignAgrees(verifier, unknown="keep", dead_zone=-1.0), "dead_zone must be 0 or more nats, not -1.0"),
        (
            lambda: IncorrectOnly(verifier, unknown="keep") * SignAgrees(task("boolq").verifier, unknown="keep"),
            "share one verifier",
        ),
        (lambda: as_gate(3), "a function from a GateBatch"),
        (
            lambda: compute_weights(FunctionGate(lambda batch: -batch.mask_BT.float(), "minus"), a_batch()),
            "'minus'.*negative",
        ),
        (lambda: compute_weights(FunctionGate(lambda batch: batch.mask_BT[0], "row"), a_batch()), "shape"),
        (
            lambda: compute_weights(FunctionGate(lambda batch: None, "returns_none"), a_batch()),
            "'returns_none' returned a NoneType",
        ),
        (
            lambda: compute_weights(FunctionGate(lambda batch: [[1.0], [1.0, 0.0]], "ragged"), a_batch()),
            "'ragged'.*list",
        ),
        (
            lambda: compute_weights(DivergenceAbove(threshold=1), GateBatch(*[torch.ones(1, 1).bool()] * 2)),
            "measure 'kl' is not available",
        ),
        (
            lambda: compute_weights(IncorrectOnly(verifier, unknown="keep"), GateBatch(*[torch.ones(1, 1).bool()] * 2)),
            "were not verified",
        ),
    ],
)
def test_invalid_gates_are_refused(make, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        make()


def test_the_choice_about_unknown_outcomes_has_no_default():
    with pytest.raises(TypeError, match="unknown"):
        IncorrectOnly(verifier)


def test_measures_follow_their_definitions():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(5, 7, generator=generator), torch.randn(5, 7, generator=generator)
    tokens = torch.tensor([0, 1, 2, 3, 4])
    p, t = student.double().softmax(-1), teacher.double().softmax(-1)
    m = (p + t) / 2
    expected = {
        "kl": (p * (p / t).log()).sum(-1),
        "js": ((p * (p / m).log()).sum(-1) + (t * (t / m).log()).sum(-1)) / 2,
        "student_entropy": -(p * p.log()).sum(-1),
        "teacher_entropy": -(t * t.log()).sum(-1),
        LOG_RATIO: (t / p).log()[range(5), tokens],
        STUDENT_LOG_PROB: p.log()[range(5), tokens],
        TEACHER_LOG_PROB: t.log()[range(5), tokens],
        TEACHER_MASS: torch.ones(5).double(),  # of seven tokens, all are among the 16 most likely
    }
    assert set(expected) == {*READABLE}
    for name, value in expected.items():
        torch.testing.assert_close(measure_logits(name, student, teacher, tokens).double(), value, atol=1e-6, rtol=1e-5)
