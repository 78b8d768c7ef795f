"""What servers are asked, and where their answers have it: vLLM's OpenAI-compatible API and SGLang's native one.

Token ids go in and come out; text is never read. Both give the same values, which pass the same checks (`responses`).

SGLang's `/generate` differs from vLLM in ways that matter here: `ignore_eos` also ignores `stop_token_ids`, so it is
not set, and a completion that the server ends at a token of its own is a failure; a completion whose last token is both
its end and the longest allowed is reported as `length`; a seed belongs to one sample, and has an effect only if the
server was started with `--enable-deterministic-inference`. It needs SGLang 0.5.4 or newer (`sampling_seed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opd_align.backends.http_pool import HttpResponse
from opd_align.backends.responses import (
    Sample,
    read_prompt_log_probs,
    read_samples,
    read_sglang_log_probs,
    read_sglang_samples,
)
from opd_align.settings import Sampling


@dataclass(frozen=True)
class SamplesQuery:
    """Samples to request.

    Args:
        model: The model's name on the server.
        context: Token ids of prompt and prefix.
        n: Number of samples.
        seed: Seed of the first sample; the i-th has `seed + i`.
        max_tokens: Longest sample, in tokens.
        end_tokens: Tokens that end a sample.
        sampling: Temperature and cut-offs.
    """

    model: str
    context: Sequence[int]
    n: int
    seed: int
    max_tokens: int
    end_tokens: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True)
class LogProbsQuery:
    """Log-probabilities to request: those of a completion's tokens, and of the `top` most likely ones there."""

    model: str
    prompt: Sequence[int]
    completion: Sequence[int]
    top: int
    vocabulary: int | None


class ServerApi(Protocol):
    """The requests and responses of one kind of server."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...

    def samples_body(self, query: SamplesQuery) -> dict[str, Any]: ...

    def read_samples(
        self, response: HttpResponse, query: SamplesQuery, problem_of: Callable[[Any, Any], str | None]
    ) -> list[Sample]: ...

    def log_probs_body(self, query: LogProbsQuery) -> dict[str, Any]: ...

    def read_log_probs(self, response: HttpResponse, query: LogProbsQuery) -> list[dict[int, float]]: ...


@dataclass(frozen=True)
class VLLMApi:
    """vLLM's OpenAI-compatible completions, with its fields for token ids and for log-probabilities of the prompt."""

    name: str = "vLLM"
    path: str = "/v1/completions"

    def samples_body(self, query: SamplesQuery) -> dict[str, Any]:
        return {
            "model": query.model,
            "prompt": list(query.context),
            "n": query.n,
            "seed": query.seed,
            "max_tokens": query.max_tokens,
            "temperature": query.sampling.temperature,
            "top_p": query.sampling.top_p,
            "top_k": query.sampling.top_k,
            # The server takes anything that is not set here from the model's generation_config.json.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(query.end_tokens),
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def read_samples(
        self, response: HttpResponse, query: SamplesQuery, problem_of: Callable[[Any, Any], str | None]
    ) -> list[Sample]:
        return read_samples(response, query.n, query.context, problem_of)

    def log_probs_body(self, query: LogProbsQuery) -> dict[str, Any]:
        return {
            "model": query.model,
            "prompt": [*query.prompt, *query.completion],
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": query.top,
        }

    def read_log_probs(self, response: HttpResponse, query: LogProbsQuery) -> list[dict[int, float]]:
        return read_prompt_log_probs(response, query.prompt, query.completion, query.top, query.vocabulary)


@dataclass(frozen=True)
class SGLangApi:
    """SGLang's `/generate`: a batch with one entry per sample."""

    name: str = "SGLang"
    path: str = "/generate"

    def samples_body(self, query: SamplesQuery) -> dict[str, Any]:
        settings = {
            "max_new_tokens": query.max_tokens,
            "temperature": query.sampling.temperature,
            "top_p": query.sampling.top_p,
            "top_k": query.sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(query.end_tokens),
        }
        return {
            "input_ids": [list(query.context)] * query.n,
            "sampling_params": [{**settings, "sampling_seed": query.seed + index} for index in range(query.n)],
            # The token ids are part of these in every version; `output_ids` are not.
            "return_logprob": True,
        }

    def read_samples(
        self, response: HttpResponse, query: SamplesQuery, problem_of: Callable[[Any, Any], str | None]
    ) -> list[Sample]:
        return read_sglang_samples(response, query.n, query.context, query.end_tokens, problem_of)

    def log_probs_body(self, query: LogProbsQuery) -> dict[str, Any]:
        return {
            "input_ids": [*query.prompt, *query.completion],
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            # The first position that is returned has no log-probability: it is the prompt's last token.
            "logprob_start_len": len(query.prompt) - 1,
            "top_logprobs_num": query.top,
        }

    def read_log_probs(self, response: HttpResponse, query: LogProbsQuery) -> list[dict[int, float]]:
        return read_sglang_log_probs(response, query.completion, query.top, query.vocabulary)


VLLM, SGLANG = VLLMApi(), SGLangApi()
