"""vLLM servers with an OpenAI-compatible API as sampler: token ids in, token ids out, over HTTP.

Transient errors are retried, on other servers if there are several (`http_pool`). A request that a server rejects
permanently (HTTP 400, 413, 422) becomes failures with its reason, and the other requests continue; if all requests of a
batch are rejected, or the API key, address or model is wrong, the run stops. Each response is stored with its own call,
so nothing is counted twice however often a call was retried.

vLLM gives the i-th of n samples the seed `seed + i`; see `base.first_seed`. So a request may be split into calls of any
size, or retried, and still asks for the same samples. Equal seeds give equal tokens as long as the logits are equal;
those may differ in the last bits between batches. Nothing here loads a model: a local scorer provides the
probabilities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opd_align.backends.base import (
    VLLM_MIN_TEMPERATURE,
    EngineStudent,
    ModelSpec,
    Prompt,
    StudentSpec,
    assemble_rollouts,
    check_fits,
    check_prefix,
    check_prompt,
    engine_rollouts,
    first_seed,
)
from opd_align.backends.http_pool import HttpPool, HttpSettings, error_message, import_httpx, server_urls
from opd_align.backends.loading import generation_configs
from opd_align.types import (
    Failure,
    Floats,
    OpdAlignError,
    Question,
    Rollouts,
    SampleRequest,
    Scorer,
    Tokens,
    TopLogProbs,
)

if TYPE_CHECKING:  # a machine that only sends requests to a server needs no torch, which `scoring` imports
    from opd_align.backends.scoring import TopKTeacher
    from opd_align.settings import Sampling

T = TypeVar("T")

REJECTED = {400, 413, 422}
"""HTTP statuses with which a server rejects one request permanently."""


def build_student(spec: StudentSpec) -> ServerStudent:
    """The student of a model configuration; without a scorer, and without weights here, if it only samples."""
    model = spec.model
    scorer: Any = spec.build_scorer() if spec.scored else None
    end_tokens = spec.end_tokens(*generation_configs(model.model)) if scorer is None else scorer.end_tokens
    name = model.served_as or model.model
    return ServerStudent(model.url, name, spec.prompt, end_tokens, scorer, spec.sampling, model.http)


def build_teacher(name: str, model: ModelSpec, prompt: Prompt) -> ServerTeacher:
    """The teacher of a model configuration."""
    return ServerTeacher(name, model.url, model.served_as or model.model, prompt, http=model.http)


@dataclass(frozen=True)
class ServerStudent(EngineStudent):
    """A student that vLLM servers sample and `scorer` scores.

    Args:
        url: Address of a server, or of several that serve the same weights, with or without `/v1`.
        model: The name under which they serve the student.
        prompt: From a question to the token ids before the completion.
        end_tokens: Token ids that end a completion; the servers' generation config is ignored.
        scorer: Scores the same weights, usually an `HFStudent` with equal `sampling` and `end_tokens`; None if the
            student only samples.
        sampling: Temperature (0.01 or above), top-p, top-k, maximum completion length and seed.
        http: Concurrency, timeouts and API key.
    """

    url: str | Sequence[str]
    model: str
    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling
    http: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        import_httpx()
        _check_urls(self.url, self.model)
        self._check_settings(self.model, min_temperature=VLLM_MIN_TEMPERATURE)

    @property
    def name(self) -> str:
        return self.model

    @property
    def fingerprint(self) -> str:
        """A hash of model name and settings; the scorer's fingerprint covers the weights. Addresses are not in it."""
        parts = (self.model, self.sampling, sorted(self.end_tokens), getattr(self.scorer, "fingerprint", None))
        return f"server-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    @property
    def context_length(self) -> int | None:
        """The context length that the servers report, if they do; fails if they do not serve the model."""
        return _context_length(self)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        calls = self._calls(requests)
        if any(call.max_new_tokens for call in calls):
            _run(self._send(calls))
        return Rollouts.join([self._rollouts(call) for call in calls])

    def _calls(self, requests: Sequence[SampleRequest]) -> list[_Call]:
        fingerprint, calls = self.fingerprint, []
        for request in requests:
            prompt = list(self.prompt(request.question))
            check_prompt(request.question, prompt)
            check_prefix(request.prefix, self.end_tokens)
            for start in range(0, request.n, self.http.samples_per_call):
                n = min(self.http.samples_per_call, request.n - start)
                part = replace(request, n=n, first=request.first + start)
                calls.append(_Call(part, fingerprint, prompt, self.max_new_tokens(request)))
        return calls

    async def _send(self, calls: Sequence[_Call]) -> None:
        async with _Client(self) as client:
            limit, served = await client.context_length(), f"{self.model!r} at {' and '.join(server_urls(self.url))}"
            for call in calls:
                check_fits(call.request.question, call.prompt, self.sampling.max_tokens, limit, served)
            # Ascending as bytes: a prefix comes right before its extensions, which find it in the server's cache.
            order = [call for call in calls if call.max_new_tokens]
            order.sort(key=lambda call: np.array(call.context, ">u4").tobytes())
            try:
                async with asyncio.TaskGroup() as group:
                    for call in order:
                        group.create_task(client.complete(call, self._body(call)))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if all(call.rejection is not None for call in order):
                raise OpdAlignError(
                    f"{order[0].rejected_by} rejected all {len(order)} requests of a batch; the first with "
                    f"{order[0].rejection}. Is it a vLLM server, started for this model and these settings?"
                )

    def _body(self, call: _Call) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "model": self.model,
            "prompt": call.context,
            "n": call.request.n,
            "seed": first_seed(call.request, call.fingerprint, call.prompt),
            "max_tokens": call.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            # The server takes anything that is not set here from the model's generation_config.json.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(self.end_tokens),
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def _rollouts(self, call: _Call) -> Rollouts:
        key = call.request.keys(call.fingerprint, call.prompt).tolist()
        if call.rejection is not None:
            return assemble_rollouts(
                [], [], key=[], finish=[], failures=[Failure(each, call.rejection) for each in key]
            )
        samples = call.samples if call.max_new_tokens else None
        return engine_rollouts(call.request, key, samples, end_tokens=self.end_tokens, engine="the server")


@dataclass(frozen=True)
class ServerTeacher:
    """A teacher behind vLLM servers, which return the `top` most likely tokens at each position.

    The probability of all other tokens is known only in sum; scoring distributes it in proportion to the student, so
    that divergences are lower bounds. Log-probabilities are at temperature 1, so the student must sample at 1 too.

    Args:
        name: The teacher's name in tables and keys.
        url: Address of a server, or of several that serve the same weights, with or without `/v1`.
        model: The name under which they serve the teacher.
        prompt: From a question to the token ids before the completion, demonstrations and the like included.
        top: How many tokens to request per position; at most the server's `--max-logprobs` (vLLM's default is 20).
        http: Concurrency, timeouts and API key.
    """

    name: str
    url: str | Sequence[str]
    model: str
    prompt: Prompt
    top: int = 20
    http: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        _check_urls(self.url, self.model)

    @property
    def fingerprint(self) -> str:
        """Model name and number of tokens per position; the weights are not known here."""
        return f"server:{self.model}:{self.top}"

    @property
    def context_length(self) -> int | None:
        """The context length that the servers report, if they do; fails if they do not serve the model."""
        return _context_length(self)

    def score_inputs(self, question: Question, completion: Tokens, device: Any) -> TopKTeacher:
        """What scoring needs along a completion: the top-k log-probabilities."""
        from opd_align.backends.scoring import TopKTeacher

        return TopKTeacher(self.name, self.top_log_probs(question, completion))

    def top_log_probs(self, question: Question, completion: Tokens | Sequence[int]) -> TopLogProbs:
        """The most likely tokens along a completion, the completion's own included."""
        (positions,) = self._prompt_log_probs(question, [completion], self.top)
        width = max(map(len, positions), default=1)
        rows = [list(row.items()) + [next(iter(row.items()))] * (width - len(row)) for row in positions]
        return TopLogProbs(
            np.array([[token for token, _ in row] for row in rows], np.int64).reshape(len(rows), width),
            np.array([[value for _, value in row] for row in rows]).reshape(len(rows), width),
        )

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat like `rollouts.tokens`."""
        completions = [rollouts.completion(row).tolist() for row in range(len(rollouts))]
        return np.array(
            [
                row[token]
                for rows, tokens in zip(self._prompt_log_probs(question, completions, 0), completions, strict=True)
                for row, token in zip(rows, tokens, strict=True)
            ]
        )

    def _prompt_log_probs(
        self, question: Question, completions: Sequence[Any], top: int
    ) -> list[list[dict[int, float]]]:
        prompt = list(self.prompt(question))

        async def request_all() -> list[list[dict[int, float]]]:
            async with _Client(self) as client:
                await client.context_length()
                calls = [client.prompt_log_probs(prompt, [int(token) for token in each], top) for each in completions]
                return list(await asyncio.gather(*calls))

        return _run(request_all())


@dataclass
class _Call:
    """Some samples of one request, and the result: samples in order, or a permanent rejection."""

    request: SampleRequest
    fingerprint: str
    prompt: list[int]
    max_new_tokens: int
    samples: list[tuple[list[int], str]] = field(default_factory=list)
    rejection: str | None = None
    rejected_by: str = ""

    @property
    def context(self) -> list[int]:
        return self.prompt + self.request.prefix.tolist()


class _Client:
    """The requests that a student or teacher sends, over an open connection pool."""

    def __init__(self, owner: ServerStudent | ServerTeacher) -> None:
        self.model, self.pool = owner.model, HttpPool(owner.url, owner.http)

    async def __aenter__(self) -> _Client:
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.__aexit__(*error)

    async def context_length(self) -> int | None:
        """The shortest context that the servers report; also checks address, API key and model name."""
        limits = [self._model_context(response) for response in await self.pool.get_from_each("/v1/models")]
        return min((limit for limit in limits if limit is not None), default=None)

    def _model_context(self, response: Any) -> int | None:
        if response.status_code != 200:
            raise self._unusable(response)
        base = str(response.request.url).removesuffix("/v1/models")
        try:
            served = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OpdAlignError(
                f"{base}/v1/models does not respond like an OpenAI-compatible server: {response.text[:200]!r}"
            ) from None
        if self.model not in served:
            raise OpdAlignError(f"{base} does not serve {self.model!r}; it serves {sorted(served)}")
        limit = served[self.model]
        return None if limit is None else int(limit)

    async def complete(self, call: _Call, body: dict[str, Any]) -> None:
        """Requests the samples of a call."""
        response = await self.pool.call("POST", "/v1/completions", body)
        if response.status_code in REJECTED:
            call.rejection = f"HTTP {response.status_code}: {error_message(response)}"
            call.rejected_by = str(response.request.url)
        elif response.status_code != 200:
            raise self._unusable(response)
        else:
            call.samples = self._samples(response, call.request.n)

    async def prompt_log_probs(self, prompt: list[int], completion: list[int], top: int) -> list[dict[int, float]]:
        """For each token of a completion, the log-probabilities of that token and of the most likely ones."""
        body = {
            "model": self.model,
            "prompt": prompt + completion,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": top,
        }
        response = await self.pool.call("POST", "/v1/completions", body)
        if response.status_code != 200:
            raise self._unusable(response)
        try:
            positions = response.json()["choices"][0]["prompt_logprobs"][len(prompt) :]
            rows = [{int(token): float(entry["logprob"]) for token, entry in row.items()} for row in positions]
        except (ValueError, LookupError, TypeError, AttributeError):
            rows = []
        if len(rows) != len(completion) or any(token not in row for token, row in zip(completion, rows, strict=False)):
            raise OpdAlignError(
                f"{response.request.url} did not return the prompt's log-probabilities, as vLLM does. "
                f"The response starts with {response.text[:200]!r}"
            )
        return rows

    def _samples(self, response: Any, n: int) -> list[tuple[list[int], str]]:
        try:
            choices = sorted(response.json()["choices"], key=lambda choice: choice["index"])
            samples = [(choice["token_ids"], choice["finish_reason"]) for choice in choices]
        except (ValueError, KeyError, TypeError):
            samples = []
        if len(samples) != n or any(not isinstance(tokens, list) for tokens, _ in samples):
            raise OpdAlignError(
                f"{response.request.url} did not return {n} lists of token ids; that needs vLLM 0.10.2 or newer "
                f"('return_token_ids'). The response starts with {response.text[:200]!r}"
            )
        return samples

    def _unusable(self, response: Any) -> OpdAlignError:
        hints = {401: "; is http.api_key right?", 403: "; is http.api_key right?", 404: "; is the url right?"}
        return OpdAlignError(
            f"{response.request.url} returned HTTP {response.status_code}: {error_message(response)}"
            f"{hints.get(response.status_code, '')}"
        )


def _check_urls(url: str | Sequence[str], model: str) -> None:
    if not server_urls(url):
        raise OpdAlignError(f"{model!r} has no server: give the url of one, or of several")


def _context_length(owner: ServerStudent | ServerTeacher) -> int | None:
    async def request() -> int | None:
        async with _Client(owner) as client:
            return await client.context_length()

    return _run(request())


def _run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in a thread of its own if an event loop is already running (as in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()
