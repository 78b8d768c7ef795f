"""The transformers backend: model families, dtypes, adapters, depths, end tokens, memory; and what it rejects."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import backend_contract as contract
from support.backend_contract import NOTHING, rows_of, score_request, tokens
from support.small_models import END, QUESTION, llama, qwen3
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from opd_align.backends import hf_attention
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.scoring import sampled_log_probs
from opd_align.backends.vllm import too_few_sequences
from opd_align.runs.execute import analyze_into
from opd_align.settings import Sampling
from opd_align.types import Finish, OpdAlignError, Question, Rollouts, SampleRequest, mix64

LONG = {"vocab_size": 40, "max_position_embeddings": 256}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def student_of(model: Any, *, prompt: Any = (1, 2, 3), ends: Any = END, **sampling: Any) -> HFStudent:
    return HFStudent("tiny", model, lambda question: list(prompt), ends, Sampling(**({"max_tokens": 30} | sampling)))


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()


def with_lora(model: Any) -> Any:
    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"])).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.5)
    return adapted


def decode_naively(student: HFStudent, request: SampleRequest) -> list[tuple[int, ...]]:
    """The slow twin: every row by itself, a forward pass over the whole sequence for each token, no cache, no batch."""
    rows = []
    with torch.no_grad():
        for key in student.keys([request])[0]:
            context = [*student.prompt(request.question), *request.prefix.tolist()]
            completion = request.prefix.tolist()
            while len(completion) < student.sampling.max_tokens and (not completion or completion[-1] not in END):
                log_p = sampled_log_probs(
                    student.sampling, student.model(input_ids=torch.tensor([context])).logits[:, -1]
                )
                p = log_p[0].double().exp().numpy()
                word = mix64(np.uint64(key) ^ mix64(np.array([len(context) - 1], np.uint64)))
                uniform = float((word[0] >> np.uint64(11)) * 2.0**-53)
                order = [int(p.argmax()), *(token for token in range(len(p)) if token != p.argmax())]
                drawn = order[min(int(np.searchsorted(np.cumsum(p[order]), uniform, side="right")), len(p) - 1)]
                context.append(drawn)
                completion.append(drawn)
            rows.append(tuple(completion))
    return rows


MODELS = {
    "qwen3": lambda: qwen3(**LONG),
    "llama": lambda: llama(**LONG),
    "llama-one-kv-head": lambda: llama(**LONG, num_key_value_heads=1),
    "llama-eager": lambda: llama(**LONG, attn_implementation="eager"),
    "gpt2": gpt2,
    "lora": lambda: with_lora(qwen3(**LONG)),
}


@pytest.mark.parametrize("model", MODELS)
def test_shared_prefixes_match_naive_decoding(model):
    student = student_of(MODELS[model](), temperature=0.9, top_p=0.97)
    path = (np.arange(25) * 7 % 37 + 2).astype(np.uint32)
    prefixes = [path[:0], path[:1], path[:9], np.append(path[:9], 5).astype(np.uint32), path, tokens(9, 9)]
    requests = [SampleRequest(QUESTION, prefix, 4) for prefix in prefixes]
    before = student.model.config._attn_implementation
    rollouts = student.sample(requests)
    assert rows_of(rollouts) == [row for request in requests for row in decode_naively(student, request)]
    assert student.model.config._attn_implementation == before
    for row in range(len(rollouts)):
        stopped = int(rollouts.completion(row)[-1]) in END
        assert rollouts.finish_R[row] == (Finish.STOPPED if stopped else Finish.TRUNCATED)
    assert set(rollouts.finish_R.tolist()) == {Finish.STOPPED, Finish.TRUNCATED}


def test_one_token_prompts_and_several_questions_in_one_call():
    student = HFStudent(
        "tiny",
        qwen3(**LONG),
        lambda question: [2] if question.id == "short" else [3, 4, 5, 6],
        END,
        Sampling(max_tokens=10),
    )
    requests = [
        SampleRequest(Question("short"), NOTHING, 5),
        SampleRequest(Question("long"), tokens(7), 5),
        SampleRequest(Question("short"), tokens(7, 8), 5),
    ]
    rollouts = student.sample(requests)
    assert rows_of(rollouts) == [row for request in requests for row in decode_naively(student, request)]


def test_a_path_is_prefilled_once(monkeypatch):
    student = student_of(llama(**LONG))
    path = np.full(20, 7, np.uint32)
    prefilled: list[int] = []
    forward = type(student.model).forward

    def counted(self, *args, input_ids=None, **options):
        if input_ids.shape[1] > 1:
            prefilled.append(input_ids.numel())
        return forward(self, *args, input_ids=input_ids, **options)

    monkeypatch.setattr(type(student.model), "forward", counted)
    student.sample([SampleRequest(QUESTION, path[:depth], 3) for depth in range(21)])
    assert prefilled == [3 + 20 - 1]


def test_rows_stop_at_their_own_limit():
    student = student_of(qwen3(**LONG), ends=(), max_tokens=12)
    rollouts = student.sample([SampleRequest(QUESTION, np.full(depth, 5, np.uint32), 3) for depth in (0, 5, 11, 12)])
    assert (rollouts.length_R == 12).all()
    assert (rollouts.finish_R == Finish.TRUNCATED).all()
    assert rollouts.launch_R.tolist() == [0] * 3 + [5] * 3 + [11] * 3 + [12] * 3


def test_every_end_token_ends():
    student = student_of(qwen3(**LONG), ends=tuple(range(20)))
    rollouts = student.sample([SampleRequest(QUESTION, NOTHING, 200)])
    last = Counter(int(rollouts.completion(row)[-1]) for row in np.flatnonzero(rollouts.finish_R == Finish.STOPPED))
    assert len(last) > 1
    for row in range(len(rollouts)):
        *inner, final = rollouts.completion(row).tolist()
        assert min(inner, default=20) >= 20
        assert (final < 20) == (rollouts.finish_R[row] == Finish.STOPPED)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_batch_sizes_do_not_matter(rows):
    model = qwen3(**LONG)
    requests = [SampleRequest(QUESTION, np.full(depth, 5, np.uint32), 6) for depth in (0, 3, 9)]
    few = HFStudent("tiny", model, lambda question: [1, 2], END, Sampling(max_tokens=30), batch_rows=rows)
    many = HFStudent("tiny", model, lambda question: [1, 2], END, Sampling(max_tokens=30))
    assert rows_of(few.sample(requests)) == rows_of(many.sample(requests))


def test_rows_that_ended_before_memory_ran_out_are_not_sampled_again(monkeypatch):
    """Memory runs out at the tenth token: rows that ended by then are kept, the others start again in halves."""
    student = student_of(qwen3(**LONG), ends=tuple(range(6)))
    requests = [SampleRequest(QUESTION, NOTHING, 40), SampleRequest(QUESTION, np.full(25, 7, np.uint32), 8)]
    expected = student.sample(requests)
    short = int((expected.length_R - expected.launch_R < 10).sum())
    assert 8 < short < 48
    forward, calls, started = type(student.model).forward, [0], []

    def limited(self, *args, input_ids=None, past_key_values=None, **options):
        if past_key_values is not None:
            new = past_key_values.get_seq_length()
            if new == 0:
                started.append(len(input_ids))
            calls[0] += 1
            if calls[0] == 10:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, *args, input_ids=input_ids, past_key_values=past_key_values, **options)

    monkeypatch.setattr(type(student.model), "forward", limited)
    assert rows_of(student.sample(requests)) == rows_of(expected)
    assert started[0] == 48
    assert sum(started[1:]) == 48 - short
    assert len(started) > 2  # halves


def test_the_size_of_a_batch_follows_from_free_memory(monkeypatch):
    model = qwen3(**LONG)
    config = model.config
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert hf_attention.kv_bytes_per_token(model) == per_token
    monkeypatch.setattr(hf_attention, "free_bytes", lambda device: 100 * per_token)
    assert hf_attention.fitting_tokens(model) == 40
    monkeypatch.setattr(hf_attention, "free_bytes", lambda device: 2**60)
    assert hf_attention.fitting_tokens(model) == hf_attention.MAX_BATCH_TOKENS


def test_an_engine_for_few_sequences_is_not_used(monkeypatch):
    """TRL's colocated engine is limited to the sequences of a training batch."""
    student = student_of(qwen3(**LONG), max_tokens=256)
    per_token = hf_attention.kv_bytes_per_token(student.model)
    monkeypatch.setattr(
        hf_attention, "free_bytes", lambda device: int(200 * 512 * per_token / hf_attention.KV_SHARE) + 1
    )
    assert student.rows_at_a_time == 200

    def engine(limit: int) -> Any:
        config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=limit))
        return SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config))

    assert too_few_sequences(engine(16), student.rows_at_a_time)
    assert not too_few_sequences(engine(64), student.rows_at_a_time)
    assert not too_few_sequences(SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=None)), 10**6)


def test_threads_are_refused_before_anything_is_sampled(tmp_path):
    student = student_of(qwen3(**LONG))
    with pytest.raises(OpdAlignError, match="workers=2, but 'tiny' has one model in this process"):
        analyze_into(tmp_path / "run", student, [], [QUESTION], lambda question: None, workers=2)
    assert not (tmp_path / "run").exists()


def test_out_of_memory_halves_the_batch(monkeypatch):
    student = student_of(qwen3(**LONG))
    requests = [SampleRequest(QUESTION, NOTHING, 40)]
    expected = rows_of(student.sample(requests))
    sizes: list[int] = []
    forward = type(student.model).forward

    def limited(self, *args, input_ids=None, **options):
        sizes.append(len(input_ids))
        if len(input_ids) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, *args, input_ids=input_ids, **options)

    monkeypatch.setattr(type(student.model), "forward", limited)
    assert rows_of(student.sample(requests)) == expected
    assert [size for size in sizes if size > 10] == [40, 20]
    assert max(sizes[4:]) == 10


def test_out_of_memory_in_a_batch_of_one_is_raised(monkeypatch):
    student = student_of(qwen3(**LONG))
    before = student.model.config._attn_implementation

    def out_of_memory(self, *args, past_key_values=None, **options):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(type(student.model), "forward", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        student.sample([SampleRequest(QUESTION, NOTHING, 8)])
    assert student.model.config._attn_implementation == before


def test_bfloat16_agrees_with_its_own_scoring():
    student = student_of(qwen3(**LONG, dtype=torch.bfloat16))
    rollouts = student.sample([SampleRequest(QUESTION, NOTHING, 2000)])
    with torch.no_grad():
        p = sampled_log_probs(student.sampling, student.model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]).exp()
    first = Counter(int(rollouts.completion(row)[0]) for row in range(len(rollouts)))
    contract.assert_drawn_from(first, dict(enumerate((p.double() / p.double().sum()).tolist())))


def test_adapters_are_used_in_scoring():
    plain, adapted = llama(**LONG), with_lora(llama(**LONG))
    student = student_of(adapted)
    completion = tokens(5, 6, 7, 8)
    scores = student.score(
        score_request(QUESTION, completion, floor=1e-30), [HFTeacher("base", plain, lambda question: [1, 2, 3])]
    )
    with torch.no_grad():
        ids = torch.tensor([[1, 2, 3, 5, 6, 7]])
        own = torch.log_softmax(adapted(input_ids=ids).logits[0, 2:], -1).double().numpy()
        base = torch.log_softmax(plain(input_ids=ids).logits[0, 2:], -1).double().numpy()
    np.testing.assert_allclose(scores.log_p_C.reshape(4, -1), own, atol=1e-5)
    np.testing.assert_allclose(scores.teachers["base"].log_t_C.reshape(4, -1), base, atol=1e-5)
    assert scores.teachers["base"].kl_T.max() > 0.01


def test_the_fingerprint_depends_on_weights_adapters_and_settings():
    model = with_lora(qwen3())
    student = student_of(model)
    fingerprints = {student.fingerprint}
    assert student_of(model).fingerprint in fingerprints
    with torch.no_grad():
        next(weight for name, weight in model.named_parameters() if "lora_A" in name)[0, 0] += 1e-3
    fingerprints.add(student.fingerprint)
    with model.disable_adapter():
        fingerprints.add(student.fingerprint)
    fingerprints.add(student_of(model, temperature=0.5).fingerprint)
    fingerprints.add(student_of(model, ends=(0,)).fingerprint)
    assert len(fingerprints) == 5


def test_a_model_in_training_mode_is_rejected():
    model = qwen3().train()
    student = student_of(model)
    with pytest.raises(OpdAlignError, match="is in training mode"):
        student.sample([SampleRequest(QUESTION, NOTHING, 1)])
    with pytest.raises(OpdAlignError, match="is in training mode"):
        student.score(score_request(QUESTION, [2, 0]), [])


def test_sliding_windows_are_rejected():
    shape = {"vocab_size": 6, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = MistralForCausalLM(MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=8))
    with pytest.raises(OpdAlignError, match="attend to the whole context"):
        student_of(model.eval()).sample([SampleRequest(QUESTION, NOTHING, 1)])


@pytest.mark.parametrize(
    ("prompt", "prefix", "message"),
    [
        ((), NOTHING, "empty prompt"),
        (tuple([2] * 100), NOTHING, "do not fit the context"),
        ((2,), tokens(2, 0), "end-of-sequence"),
        ((2,), np.full(31, 2, np.uint32), "longer than the maximum completion length"),
        ((2,), tokens(6), "outside the vocabulary"),
    ],
)
def test_invalid_requests_are_rejected(prompt, prefix, message):
    with pytest.raises(OpdAlignError, match=message):
        student_of(qwen3(), prompt=prompt).sample([SampleRequest(QUESTION, prefix, 1)])


def test_sampling_preserves_rng_state_and_gradients():
    model = qwen3()
    state = torch.get_rng_state()
    student_of(model).sample([SampleRequest(QUESTION, NOTHING, 5)])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    model.train()
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()


def test_no_requests_give_no_rollouts():
    assert len(student_of(qwen3()).sample([])) == 0
    assert len(student_of(qwen3()).sample([SampleRequest(QUESTION, NOTHING, 0)])) == 0
    assert not len(student_of(qwen3()).token_log_probs(QUESTION, Rollouts.of([]), None))


def test_another_prompt_gives_other_keys():
    model = llama()
    first, second = (student_of(model, prompt=prompt) for prompt in ((1, 2), (1, 3)))
    request = SampleRequest(QUESTION, NOTHING, 5)
    assert first.fingerprint == second.fingerprint
    assert not set(first.keys([request])[0].tolist()) & set(second.keys([request])[0].tolist())
