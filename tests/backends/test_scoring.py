"""Streamed scoring against its slow twin (all logits at once, in float64), and what it rejects."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from support.backend_contract import score_request, tokens
from support.small_models import QUESTION, llama, qwen3
from transformers import Gemma2Config, Gemma2ForCausalLM

from opd_align.backends import scoring, scoring_columns
from opd_align.backends.scoring import (
    PromptedModel,
    RemoteTeacher,
    TokenizerMismatch,
    TopKTeacher,
    check_tokenizers,
    hidden_states,
    output_layer,
    rollout_log_probs,
    score_path,
)
from opd_align.settings import Sampling
from opd_align.types import (
    DIVERGENCES,
    OVERLAP_TOP_K,
    OpdAlignError,
    Rollouts,
    ScoreRequest,
    TeacherScores,
    TopLogProbs,
)

PATH = (np.arange(40) * 11 % 29).astype(np.uint32)
KEEP = [(0, 28), (39, 3), (7, 7)]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def naive_log_probs(model: Any, prompt: Any, path: Any, *, temperature: float = 1.0, vocabulary: int = 30) -> Any:
    """All logits at once, in float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *path.tolist()]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits[:, :vocabulary].double() / temperature, -1).numpy()


def naive_cut(log_p: Any, *, top_k: int, top_p: float) -> Any:
    """Top-k, then top-p, one position at a time."""
    cut = np.full_like(log_p, -np.inf)
    for row, values in enumerate(log_p):
        order = np.argsort(-values, kind="stable")
        order = order[:top_k] if top_k else order
        mass = np.exp(values[order]) / np.exp(values[order]).sum()
        order = order[np.cumsum(mass) - mass < top_p]
        cut[row, order] = values[order] - np.logaddexp.reduce(values[order])
    return cut


def naive_comparison(log_p: Any, log_t: Any) -> dict[str, Any]:
    p, t = np.exp(log_p), np.exp(log_t)
    m = (p + t) / 2

    def kl(a: Any, b: Any) -> Any:
        return np.array(
            [sum(x * np.log(x / y) for x, y in zip(*rows, strict=True) if x > 0) for rows in zip(a, b, strict=True)]
        )

    def most_likely(row: Any) -> set[int]:
        return {int(token) for token in np.argsort(-row, kind="stable")[:OVERLAP_TOP_K] if np.isfinite(row[token])}

    shared = [most_likely(a) & most_likely(b) for a, b in zip(log_p, log_t, strict=True)]
    terms = [[t[at, k] * (log_p[at, k] - log_t[at, k]) for k in tokens] for at, tokens in enumerate(shared)]
    return {
        "overlap_T": np.array([len(tokens) / OVERLAP_TOP_K for tokens in shared]),
        "overlap_advantage_T": np.array([np.mean(term) if term else np.nan for term in terms]),
        "kl_T": kl(p, t),
        "js_T": (kl(p, m) + kl(t, m)) / 2,
        "l2_T": np.sqrt(((p - t) ** 2).sum(-1)),
        "cosine_T": (p * t).sum(-1) / np.sqrt((p**2).sum(-1) * (t**2).sum(-1)),
        "entropy_T": np.array([-sum(x * np.log(x) for x in row if x > 0) for row in t]),
    }  # fmt: skip


@pytest.mark.parametrize("chunk_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 1.4, "top_k": 9, "top_p": 0.7}]
)
def test_streamed_scores_match_those_of_all_logits(monkeypatch, chunk_bytes, settings):
    monkeypatch.setattr(scoring, "CPU_BYTES", chunk_bytes)
    monkeypatch.setattr(scoring_columns, "CPU_BLOCK_BYTES", chunk_bytes // 4)
    sampling = Sampling(**settings)
    student, teacher = qwen3(vocab_size=30), llama(vocab_size=32, seed=3)
    student_prompt, teacher_prompt = [1, 2, 3], [4, 5, 6, 7, 8]
    scores = score_path(
        PromptedModel("student", student, student_prompt),
        [PromptedModel("teacher", teacher, teacher_prompt), PromptedModel("again", student, student_prompt)],
        score_request(QUESTION, PATH, floor=0.03, keep=KEEP),
        sampling,
    )
    tempered_p = naive_log_probs(student, student_prompt, PATH, temperature=sampling.temperature)
    log_p = naive_cut(tempered_p, top_k=sampling.top_k, top_p=sampling.top_p)
    log_t = naive_log_probs(teacher, teacher_prompt, PATH, temperature=sampling.temperature)
    log_again = tempered_p
    kept = (np.exp(log_p) > 0.03) | (np.exp(log_t) > 0.03) | (np.exp(log_again) > 0.03)
    kept[np.arange(len(PATH)), PATH] = True
    for depth, token in KEEP:
        kept[depth, token] = True
    assert scores.token_C.tolist() == np.nonzero(kept)[1].tolist()
    assert np.diff(scores.offsets).tolist() == kept.sum(-1).tolist()
    np.testing.assert_allclose(scores.log_p_C, log_p[kept], atol=1e-5)
    for name, expected in (("teacher", log_t), ("again", log_again)):
        np.testing.assert_allclose(scores.teachers[name].log_t_C, expected[kept], atol=1e-5)
        for column, values in naive_comparison(log_p, expected).items():
            np.testing.assert_allclose(getattr(scores.teachers[name], column), values, atol=1e-5, err_msg=column)
    np.testing.assert_allclose(scores.entropy_T, naive_comparison(log_p, log_p)["entropy_T"], atol=1e-5)


def test_the_student_has_no_divergence_from_itself():
    student = PromptedModel("student", qwen3(vocab_size=30), [1])
    scores = score_path(student, [student], score_request(QUESTION, PATH), Sampling()).teachers["student"]
    for name in DIVERGENCES:
        np.testing.assert_allclose(getattr(scores, f"{name}_T"), 1 if name == "cosine" else 0, atol=1e-6)


def test_a_padded_student_keeps_the_probabilities_it_samples_with():
    student, teacher = qwen3(vocab_size=40), llama(vocab_size=30)
    request = score_request(QUESTION, PATH, floor=1e-30)
    scores = score_path(
        PromptedModel("student", student, [1]), [PromptedModel("teacher", teacher, [1])], request, Sampling()
    )
    log_p = naive_log_probs(student, [1], PATH, vocabulary=40)[:, :30]
    np.testing.assert_allclose(scores.log_p_C, log_p.ravel(), atol=1e-5)
    assert scores.token_C.max() == 29
    assert (scores.teachers["teacher"].kl_T >= 0).all()


@pytest.mark.parametrize("body_tokens", [1, 60, 16384])
def test_batched_scores_match_those_of_each_rollout_alone(monkeypatch, body_tokens):
    monkeypatch.setattr(scoring, "BODY_TOKENS", body_tokens)
    model, sampling = qwen3(vocab_size=30), Sampling(temperature=0.8, top_k=20)
    completions = [PATH[:5], PATH[:0], PATH, PATH[3:4], PATH[10:30]]
    flat = rollout_log_probs(PromptedModel("student", model, [1, 2]), Rollouts.of(completions), sampling)
    expected = []
    for path in completions:
        log_p = naive_cut(naive_log_probs(model, [1, 2], path, temperature=0.8), top_k=20, top_p=1.0)
        expected += log_p[np.arange(len(path)), path].tolist()
    np.testing.assert_allclose(flat, expected, atol=1e-5)
    assert np.isneginf(flat).any()


def test_an_empty_completion_has_no_positions():
    scores = score_path(PromptedModel("s", qwen3(), [1]), [], score_request(QUESTION, PATH[:0]), Sampling())
    assert len(scores) == 0
    assert scores.offsets.tolist() == [0]


class Vocabulary:
    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


def test_another_tokenizer_is_rejected_with_an_example():
    check_tokenizers(Vocabulary("a", "b"), Vocabulary("a", "b", "<extra>"), "big")
    with pytest.raises(TokenizerMismatch, match=r"teacher 'big' .* \(id 1 is 'c' there, 'b' here\)"):
        check_tokenizers(Vocabulary("a", "b"), Vocabulary("a", "c"), "big")


def test_invalid_inputs_are_rejected():
    model = qwen3(vocab_size=30)
    with pytest.raises(OpdAlignError, match="'s' has an empty prompt"):
        PromptedModel("s", model, [])
    with pytest.raises(OpdAlignError, match="'s': prompt and completion are 139 tokens, but its context is 128"):
        score_path(PromptedModel("s", model, [1] * 100), [], score_request(QUESTION, PATH), Sampling())
    small = PromptedModel("t", llama(vocab_size=20), [1])
    with pytest.raises(OpdAlignError, match=r"token 28 .* outside the common vocabulary \(20\)"):
        score_path(PromptedModel("s", model, [1]), [small], score_request(QUESTION, PATH), Sampling())


def test_softcapped_logits_are_rejected():
    shape = {"vocab_size": 30, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(**shape, num_attention_heads=4, num_key_value_heads=2, final_logit_softcapping=0.1)
    ).eval()
    with pytest.raises(OpdAlignError, match="are not those of its body and output layer"):
        score_path(PromptedModel("s", model, [1, 2]), [], score_request(QUESTION, tokens(3)), Sampling())


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"max_tokens": 0}])
def test_sampling_settings_out_of_range_are_rejected(wrong):
    with pytest.raises(OpdAlignError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_top_k_teachers_give_exact_top_tokens_and_lower_bounds_on_divergences():
    """With all tokens known it equals the teacher; with a few, these are exact and the KL is a lower bound."""
    student, teacher = (qwen3(seed=seed, vocab_size=40) for seed in (1, 2))
    completion = np.array([3, 7, 30, 12, 5, 9], np.uint32)
    request = ScoreRequest(QUESTION, completion, np.empty(0, np.int64), np.empty(0, np.uint32), 1e-9)
    models = PromptedModel("student", student, [1, 2]), PromptedModel("teacher", teacher, [4, 5, 6])
    full = score_path(models[0], [models[1]], request, Sampling())
    log_t_TV = full.teachers["teacher"].log_t_C.reshape(len(completion), 40)
    for k in (40, 5):
        token_TK = np.argsort(-log_t_TV, axis=1)[:, :k].copy()
        top_k = TopKTeacher("top-k", TopLogProbs(token_TK, np.take_along_axis(log_t_TV, token_TK, 1)))
        scores = score_path(models[0], [top_k, models[1]], request, Sampling())
        assert list(scores.teachers) == ["top-k", "teacher"]
        partial, exact = scores.teachers["top-k"], scores.teachers["teacher"]
        log_m_TV = partial.log_t_C.reshape(len(completion), 40)
        np.testing.assert_allclose(np.exp(log_m_TV).sum(1), 1, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(log_m_TV, token_TK, 1), np.take_along_axis(log_t_TV, token_TK, 1), atol=1e-5
        )
        assert (partial.kl_T <= exact.kl_T + 1e-5).all()
        if k == 40:
            np.testing.assert_allclose(partial.kl_T, exact.kl_T, atol=1e-4)
            np.testing.assert_allclose(partial.js_T, exact.js_T, atol=1e-5)
        else:
            assert (partial.kl_T < exact.kl_T - 1e-3).any()


def test_a_top_k_teacher_needs_a_student_at_temperature_one():
    top_k = TopKTeacher("top-k", TopLogProbs(np.array([[1]]), np.array([[-0.1]])))
    request = ScoreRequest(QUESTION, np.array([3], np.uint32), np.empty(0, np.int64), np.empty(0, np.uint32), 0.02)
    with pytest.raises(OpdAlignError, match="temperature 1"):
        score_path(PromptedModel("student", qwen3(), [1]), [top_k], request, Sampling(temperature=0.7))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_teacher_in_another_process_scores_bit_identically(temperature):
    """Only hidden states and, once, the output layer are transferred."""
    student, teacher = PromptedModel("student", qwen3(vocab_size=30), [1, 2, 3]), llama(vocab_size=32, seed=3)
    local = PromptedModel("teacher", teacher, [4, 5, 6, 7, 8])
    with torch.no_grad():
        sent = pickle.dumps((output_layer(local), hidden_states(local, [PATH]).clone()))
    head, hidden = pickle.loads(sent)
    assert hidden.shape == (len(PATH), teacher.config.hidden_size)
    request, sampling = score_request(QUESTION, PATH, keep=KEEP), Sampling(temperature=temperature)
    expected, actual = (
        score_path(student, [each], request, sampling) for each in (local, RemoteTeacher("teacher", head, hidden))
    )
    np.testing.assert_array_equal(expected.token_C, actual.token_C)
    np.testing.assert_array_equal(expected.log_p_C, actual.log_p_C)
    for column in TeacherScores.__dataclass_fields__:
        values = [getattr(each.teachers["teacher"], column) for each in (expected, actual)]
        np.testing.assert_array_equal(*values, err_msg=column)
