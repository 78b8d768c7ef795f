"""`SignAgrees`: where student and teacher agree up to rounding, rounding does not decide."""

from __future__ import annotations

import math

import pytest
import torch

from opd_align.backends.loading import load_model
from opd_align.tasks import task
from opd_align.training.gates import GateBatch, SignAgrees, compute_weights, concatenate_batches
from opd_align.training.measures import STUDENT_LOG_PROB, TEACHER_LOG_PROB, log_ratio_rounding, measure_logits
from opd_align.types import Outcome

EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float16, torch.bfloat16)}


def verifier(prompts, completions, **columns):
    return [1.0] * len(completions)


GATE = SignAgrees(verifier, unknown="drop")
BY_SIGN = SignAgrees(verifier, unknown="drop", dead_zone=0.0)


def weights(gate, log_p, log_t, dtype, outcome):
    """The weights of one completion whose tokens have these log-probabilities."""
    values = {STUDENT_LOG_PROB: log_p[None], TEACHER_LOG_PROB: log_t[None]}
    tokens = torch.zeros(1, len(log_p)).long()
    batch = GateBatch(tokens, tokens == 0, torch.tensor([outcome]), values.__getitem__, eps=EPS[dtype])
    return compute_weights(gate, batch)[0]


@pytest.mark.parametrize(
    ("dtype", "p", "inside", "outside"),
    [
        (torch.bfloat16, 0.5, 0.05, 0.08),
        (torch.bfloat16, 0.995, 5e-4, 8e-4),
        (torch.float16, 0.5, 6e-3, 1e-2),
        (torch.float32, 0.5, 9e-6, 1.5e-5),
        (torch.float32, 0.995, 1.5e-6, 3e-6),
    ],
)
def test_a_difference_within_rounding_is_kept_and_a_larger_one_is_decided_by_its_sign(dtype, p, inside, outside):
    log_p = torch.full((4,), math.log(p), dtype=torch.float64)
    log_t = log_p + torch.tensor([inside, -inside, outside, -outside], dtype=torch.float64)
    assert weights(GATE, log_p, log_t, dtype, Outcome.CORRECT).tolist() == [1, 1, 1, 0]
    assert weights(GATE, log_p, log_t, dtype, Outcome.INCORRECT).tolist() == [1, 1, 0, 1]
    assert weights(BY_SIGN, log_p, log_t, dtype, Outcome.CORRECT).tolist() == [1, 0, 1, 0]


def test_a_zone_of_ones_own():
    log_p, log_t = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.2, -1.4, -0.8])
    gate = SignAgrees(verifier, unknown="drop", dead_zone=0.3)
    assert weights(gate, log_p, log_t, torch.float32, Outcome.CORRECT).tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_does_not_make_a_renormalised_step_larger(dtype):
    """Student and teacher are the same model, evaluated by two kernels: the sum of weights is the number of tokens."""
    generator = torch.Generator().manual_seed(0)
    hidden, head = (
        torch.randn(64, 32, generator=generator).to(dtype),
        torch.randn(50, 32, generator=generator).to(dtype),
    )
    student = (hidden @ head.T).float()
    # The same product, summed in two halves and rounded once more.
    teacher = (hidden[:, :16] @ head[:, :16].T + hidden[:, 16:] @ head[:, 16:].T).float()
    tokens = torch.multinomial(student.softmax(-1), 1, generator=generator)[:, 0]
    values = {
        name: measure_logits(name, student, teacher, tokens).view(8, 8) for name in (STUDENT_LOG_PROB, TEACHER_LOG_PROB)
    }
    batch = GateBatch(
        tokens.view(8, 8),
        torch.ones(8, 8).bool(),
        torch.tensor([Outcome.CORRECT, Outcome.INCORRECT] * 4),
        values.__getitem__,
        eps=EPS[dtype],
    )
    assert compute_weights(GATE, batch).sum() == 64
    assert compute_weights(BY_SIGN, batch).sum() < 56
    assert concatenate_batches([batch, batch], []).eps == EPS[dtype]


@pytest.fixture(scope="module")
def completions():
    """Completions of the embedded student, and where its tokens are."""
    student, arithmetic = load_model("embedded:student"), task("arithmetic")
    tokenizer = student.tokenizer
    messages = [[*arithmetic.messages(question)] for question in arithmetic.load(split="train", limit=24)]
    texts = [tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in messages]
    prompts = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    torch.manual_seed(0)
    ids = student.model.generate(**prompts, max_new_tokens=32, do_sample=True)
    start = prompts["input_ids"].shape[1]
    mask = ids != tokenizer.pad_token_id
    return ids, mask, start


def log_probs(name, completions, dtype, *, autocast=False):
    ids, mask, start = completions
    model = load_model(name).model.to(dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(input_ids=ids, attention_mask=mask.long()).logits[:, start - 1 : -1]
    logits = logits if dtype is torch.float64 else logits.float()
    return logits.log_softmax(-1).gather(-1, ids[:, start:, None])[..., 0][mask[:, start:]].double()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
def test_the_zone_is_small_and_no_verdict_outside_it_is_one_of_rounding(precision, completions):
    """Against float64, on the tokens of the embedded student."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    eps = EPS[torch.float32 if precision == "float32" else torch.bfloat16]
    exact = [log_probs(f"embedded:{name}", completions, torch.float64) for name in ("student", "teacher")]
    log_p, log_t = (
        log_probs(f"embedded:{name}", completions, dtype, autocast=precision == "autocast")
        for name in ("student", "teacher")
    )
    push, true_push = log_t - log_p, exact[1] - exact[0]
    inside = push.abs() <= log_ratio_rounding(log_p, log_t, eps)
    assert len(push) > 500
    assert inside.double().mean() < 0.2
    # What is kept for rounding is next to nothing of what the teacher says.
    assert true_push[inside].abs().sum() < 0.002 * true_push.abs().sum()
    assert (push.sign() != true_push.sign())[~inside].double().mean() < 0.001
