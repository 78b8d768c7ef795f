"""SGLang as a server: its requests and answers, against a small server that speaks its native API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sglang_server import serving_sglang
from support.small_models import END, QUESTION, qwen3

from opd_align.backends.base import find_backend
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.http_pool import HttpSettings, InvalidResponse
from opd_align.backends.scoring_report import ScoringReport
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.backends.server_api import SGLANG, VLLM
from opd_align.settings import Sampling
from opd_align.study.config import read_config
from opd_align.types import Finish, OpdAlignError, SampleRequest, ScoreRequest

pytest.importorskip("httpx")
IMPATIENT = HttpSettings(patience_s=0.5)
LONG = {"vocab_size": 40, "max_position_embeddings": 256}


def prompt(question: Any) -> list[int]:
    return [5, 6, 7]


@pytest.fixture(scope="module")
def model() -> Any:
    return qwen3(**LONG)


def student_of(server: Any, model: Any, report: ScoringReport | None = None, **sampling: Any) -> ServerStudent:
    settings = Sampling(**({"max_tokens": 20} | sampling))
    scorer = HFStudent("student", model, prompt, END, settings, report=report)
    return ServerStudent(server.url, "student", prompt, END, scorer, settings, IMPATIENT, SGLANG)


def request(prefix: Any = (), n: int = 1, first: int = 0) -> SampleRequest:
    return SampleRequest(QUESTION, np.array(prefix, np.uint32), n, first)


def test_samples_are_lists_of_token_ids_that_end_where_they_should(model):
    with serving_sglang(model) as server:
        rollouts = student_of(server, model).sample([request(n=40), request((9, 9), n=5)])
    assert len(rollouts) == 45
    assert set(rollouts.finish_R.tolist()) == {Finish.STOPPED, Finish.TRUNCATED}
    for row in range(len(rollouts)):
        *inner, last = rollouts.completion(row).tolist()
        assert not set(inner) & set(END)
        assert (last in END) == (rollouts.finish_R[row] == Finish.STOPPED)
    assert rollouts.launch_R.tolist() == [0] * 40 + [2] * 5


def test_the_request_is_what_sglang_understands(model):
    with serving_sglang(model) as server:
        student_of(server, model, temperature=0.7, top_p=0.9).sample([request((9,), n=3, first=2)])
        (body,) = server.bodies
    assert body["input_ids"] == [[5, 6, 7, 9]] * 3
    seeds = [params.pop("sampling_seed") for params in body["sampling_params"]]
    assert [seed - seeds[0] for seed in seeds] == [0, 1, 2]
    settings = {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.0, "max_new_tokens": 19}
    for params in body["sampling_params"]:
        assert params.items() >= settings.items()
        assert params["stop_token_ids"] == list(END)
        assert "ignore_eos" not in params  # it would also ignore the tokens that end a completion


def test_seeds_belong_to_samples_not_to_calls(model):
    with serving_sglang(model) as server:
        student = student_of(server, model)
        together = student.sample([request(n=6)])
        apart = student.sample([request(n=2), request(n=4, first=2)])
    assert together.key_R.tolist() == apart.key_R.tolist()
    assert together.tokens.tolist() == apart.tokens.tolist()


def test_a_completion_that_ends_at_its_last_token_has_stopped(model):
    with serving_sglang(model) as server:
        rollouts = student_of(server, model, max_tokens=1).sample([request(n=60)])
    ended = np.isin(rollouts.tokens, END)
    assert 0 < ended.sum() < 60
    np.testing.assert_array_equal(rollouts.finish_R == Finish.STOPPED, ended)


def test_a_teacher_scores_like_a_local_one(model):
    student = HFStudent("student", model, prompt, END, Sampling(max_tokens=12))
    rollouts = student.sample([request(n=3)])
    completion = rollouts.completion(0)
    score_request = ScoreRequest(QUESTION, completion, np.empty(0, np.int64), np.empty(0, np.uint32), 0.02)
    with serving_sglang(model) as server:
        remote = ServerTeacher("remote", server.url, "student", prompt, top=40, http=IMPATIENT, api=SGLANG)
        scores = student.score(score_request, [HFTeacher("local", model, prompt), remote])
        flat = student.token_log_probs(QUESTION, rollouts, remote)
        assert remote.context_length == 256
    np.testing.assert_allclose(scores.teachers["remote"].log_t_C, scores.teachers["local"].log_t_C, atol=1e-4)
    np.testing.assert_allclose(flat, student.token_log_probs(QUESTION, rollouts, None), atol=1e-4)


def test_the_servers_log_probs_are_compared_with_the_scorers(model):
    report = ScoringReport()
    with serving_sglang(model) as server:
        student = student_of(server, model, report, temperature=0.8)
        for _ in range(2):
            student.sample([request((9,), n=6)])
        compared = sum("top_logprobs_num" in body for body in server.bodies)
    assert report.sampler_gap is not None
    assert report.sampler_gap[1] < 1e-4
    assert compared == 4


def edited(change: Any) -> Any:
    def misbehave(path: str, body: dict[str, Any], answer: Any) -> Any:
        if path == "/generate":
            for item in answer if isinstance(answer, list) else [answer]:
                change(item)
        return answer

    return misbehave


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda item: item["meta_info"].pop("output_token_logprobs"), "lists of token ids, as SGLang does"),
        (lambda item: item["output_ids"].append(3), "lists of token ids, as SGLang does"),
        (lambda item: item["meta_info"].update(prompt_tokens=2), "continued other tokens"),
        (lambda item: item["meta_info"].update(finish_reason={"type": "abort"}), "ended the rollout with 'abort'"),
    ],
)
def test_answers_pass_the_same_checks_as_those_of_vllm(model, change, message):
    with serving_sglang(model, edited(change)) as server, pytest.raises(InvalidResponse, match=message):
        student_of(server, model).sample([request(n=3)])


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item["meta_info"]["input_token_logprobs"].pop(),
        lambda item: item["meta_info"]["input_token_logprobs"].__setitem__(2, [-0.1, 39, None]),
        lambda item: item["meta_info"].pop("input_top_logprobs"),
    ],
)
def test_log_probs_of_other_tokens_are_rejected(model, change):
    with serving_sglang(model, edited(change)) as server:
        teacher = ServerTeacher("T", server.url, "student", prompt, http=IMPATIENT, api=SGLANG)
        with pytest.raises(InvalidResponse, match="did not return the prompt's log-probabilities, as SGLang does"):
            teacher.top_log_probs(QUESTION, [8, 9, 10])


def test_it_is_a_backend_by_name(model):
    config = read_config(None, ["student.backend=sglang", "student.url=http://127.0.0.1:1"])
    assert find_backend(config.student.backend).remote
    with pytest.raises(OpdAlignError, match="has backend sglang but no url"):
        read_config(None, ["student.backend=sglang"])
    with serving_sglang(model) as server:
        student = student_of(server, model)
        other = ServerStudent(server.url, "student", prompt, END, student.scorer, student.sampling, IMPATIENT, VLLM)
        assert student.fingerprint != other.fingerprint
