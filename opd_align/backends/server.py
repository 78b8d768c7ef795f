"""vLLM servers behind their OpenAI-compatible door as sampler: token ids in, token ids out, over HTTP.

A run outlives its servers: the line tries passing trouble again, and elsewhere. A request that a server refuses for
good (HTTP 400, 413, 422) becomes failures with its reason, and the others go on; where all are refused, and at a wrong
key, address or model, the run stops. Each answer lands in the slot of its own call, so nothing is counted twice however
often a call was repeated.

vLLM gives the i-th of n samples the seed `seed + i`; we seed with (hash of the request's content) + number of the
sample, so a request may be cut into calls of any size, or repeated, and asks for the same samples. Equal seeds give
equal tokens as long as the logits are equal; those may differ in the last bits between batches.

This room knows vLLM's protocol and nothing of models: scoring is the business of the scorer that it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.http_pool import HttpPool, HttpSettings, error_message, import_httpx, server_urls
from opd_align.types import (
    Failure,
    Finish,
    Floats,
    OpdAlignError,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    Scorer,
    ScoreRequest,
    TopLogProbs,
)

if TYPE_CHECKING:  # a machine that only asks a server needs no torch, which `scoring` loads
    from opd_align.settings import Sampling

Prompt = Callable[[Question], Sequence[int]]

T = TypeVar("T")

COLDEST = 0.01
"""vLLM silently raises lower temperatures to this one, and then samples from another distribution than we score."""

REFUSED_FOR_GOOD = {400, 413, 422}


@dataclass(frozen=True)
class ServerStudent:
    """A student that vLLM servers sample and `scorer` scores, all of which must hold the same weights.

    `url` is a server's address, or those of several, with or without `/v1`; `model` the name under which they serve the
    student. `prompt` gives the token ids before the completion. Only `end_tokens` end a completion.
    """

    url: str | Sequence[str]
    model: str
    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling
    line: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        import_httpx()
        if not server_urls(self.url):
            raise OpdAlignError(f"{self.model!r} has no server: give the address of one, or of several")
        if self.sampling.temperature < COLDEST:
            raise OpdAlignError(
                f"{self.model!r}: vLLM samples at temperature {COLDEST} or above, not {self.sampling.temperature}"
            )
        for what in ("sampling", "end_tokens"):
            mine, theirs = getattr(self, what), getattr(self.scorer, what, None)
            if theirs is not None and mine != theirs:
                raise OpdAlignError(
                    f"{self.model!r} samples with {what} {mine}, but its scorer is set to {theirs}; "
                    "the scores would be those of another distribution, so give both the same"
                )

    @property
    def name(self) -> str:
        return self.model

    @property
    def fingerprint(self) -> str:
        """Model name, settings and the scorer's fingerprint, which knows the weights; the address is no part of it."""
        parts = (self.model, self.sampling, sorted(self.end_tokens), getattr(self.scorer, "fingerprint", None))
        return f"server-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    @property
    def context_length(self) -> int | None:
        """Asks the server whether it serves the model; its context length, where it tells."""

        async def ask() -> int | None:
            async with _Session(self) as session:
                return await session.context_length()

        return _run(ask())

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """What a token reads, if whoever writes the prompts can tell."""
        return getattr(self.prompt, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [request.keys(fingerprint, list(self.prompt(request.question))) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        calls = self._calls(requests)
        if any(call.room for call in calls):
            _run(self._answer(calls))
        return Rollouts.join([self._rollouts(call) for call in calls])

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        return self.scorer.score(request, teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        return self.scorer.token_log_probs(question, rollouts, teacher)

    def _calls(self, requests: Sequence[SampleRequest]) -> list[_Call]:
        fingerprint, calls = self.fingerprint, []
        for request in requests:
            prompt = list(self.prompt(request.question))
            if not prompt:
                raise OpdAlignError(
                    f"question {request.question.id!r} has an empty prompt; at least one token must precede"
                )
            if np.isin(request.prefix, self.end_tokens).any():
                raise OpdAlignError("a prefix to continue cannot hold an end-of-sequence token")
            # The limit counts the completion from its start.
            room = max(0, self.sampling.max_tokens - len(request.prefix))
            for start in range(0, request.n, self.line.samples_per_call):
                n = min(self.line.samples_per_call, request.n - start)
                part = replace(request, n=n, first=request.first + start)
                calls.append(_Call(part, fingerprint, prompt, room))
        return calls

    async def _answer(self, calls: Sequence[_Call]) -> None:
        async with _Session(self) as session:
            limit = await session.context_length()
            for call in calls:
                if limit is not None and len(call.prompt) + self.sampling.max_tokens > limit:
                    raise OpdAlignError(
                        f"question {call.request.question.id!r}: {len(call.prompt)} prompt tokens and up to "
                        f"{self.sampling.max_tokens} new ones do not fit the context of {self.model!r} "
                        f"at {' and '.join(server_urls(self.url))} ({limit})"
                    )
            # Ascending as bytes: a prefix stands right before its extensions, and is in the server's cache for them.
            order = sorted((call for call in calls if call.room), key=lambda call: np.array(call.read, ">u4").tobytes())
            try:
                async with asyncio.TaskGroup() as group:
                    for call in order:
                        group.create_task(session.complete(call))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if all(call.refusal is not None for call in order):
                raise OpdAlignError(
                    f"{order[0].refused_by} refused all {len(order)} requests of a batch; the first with "
                    f"{order[0].refusal}. Is it a vLLM server, started for this model and these settings?"
                )

    def _rollouts(self, call: _Call) -> Rollouts:
        prefix, keys = call.request.prefix, call.request.keys(call.fingerprint, call.prompt).tolist()
        if not call.room:
            return _joined([(key, prefix, Finish.TRUNCATED) for key in keys], len(prefix), ())
        if call.refusal is not None:
            return _joined([], len(prefix), tuple(Failure(key, call.refusal) for key in keys))
        rows, failures = [], []
        for key, (tokens, reason) in zip(keys, call.samples, strict=True):
            completion = np.concatenate([prefix, np.asarray(tokens, np.uint32)])
            if reason == "length":
                rows.append((key, completion, Finish.TRUNCATED))
            elif reason == "stop" and len(tokens) and tokens[-1] in self.end_tokens:
                rows.append((key, completion, Finish.STOPPED))
            else:
                last = f" at token {tokens[-1]}" if reason == "stop" and len(tokens) else ""
                failures.append(Failure(key, f"the server ended the rollout with {reason!r}{last}"))
        return _joined(rows, len(prefix), tuple(failures))


@dataclass(frozen=True)
class ServerTeacher:
    """A teacher behind a server, which tells the `top` likeliest tokens at each position (vLLM's `--max-logprobs`, 20).

    What it puts on all others is known only in sum; scoring spreads that as the student does, so that divergences
    come out as small as they can be. Log-probabilities are at temperature 1, so the student must sample there.
    """

    name: str
    url: str | Sequence[str]
    model: str
    prompt: Prompt
    top: int = 20
    line: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        if not server_urls(self.url):
            raise OpdAlignError(f"{self.model!r} has no server: give the address of one, or of several")

    @property
    def fingerprint(self) -> str:
        """Name and number of tokens told; the weights are the server's secret."""
        return f"server:{self.model}:{self.top}"

    @property
    def context_length(self) -> int | None:
        async def ask() -> int | None:
            async with _Session(self) as session:
                return await session.context_length()

        return _run(ask())

    def top_log_probs(self, question: Question, completion: Sequence[int]) -> TopLogProbs:
        """The likeliest tokens along a completion, the completion's own among them."""
        (told,) = self._told(question, [completion], self.top)
        width = max(map(len, told), default=1)
        rows = [list(row.items()) + [next(iter(row.items()))] * (width - len(row)) for row in told]
        return TopLogProbs(
            np.array([[token for token, _ in row] for row in rows], np.int64).reshape(len(rows), width),
            np.array([[value for _, value in row] for row in rows]).reshape(len(rows), width),
        )

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        completions = [rollouts.completion(row).tolist() for row in range(len(rollouts))]
        told = self._told(question, completions, 0)
        return np.array(
            [
                row[token]
                for rows, tokens in zip(told, completions, strict=True)
                for row, token in zip(rows, tokens, strict=True)
            ]
        )

    def _told(self, question: Question, completions: Sequence[Any], top: int) -> list[list[dict[int, float]]]:
        prompt = list(self.prompt(question))

        async def ask() -> list[list[dict[int, float]]]:
            async with _Session(self) as session:
                await session.context_length()
                calls = [session.read_back(prompt, [int(token) for token in each], top) for each in completions]
                return list(await asyncio.gather(*calls))

        return _run(ask())


@dataclass
class _Call:
    """Some samples of one request, and what became of them: samples in order, or a refusal."""

    request: SampleRequest
    fingerprint: str
    prompt: list[int]
    room: int
    samples: list[tuple[list[int], str]] = field(default_factory=list)
    refusal: str | None = None
    refused_by: str = ""

    @property
    def read(self) -> list[int]:
        return self.prompt + self.request.prefix.tolist()

    @property
    def seed(self) -> int:
        """Seed of the first sample; the following samples have the following seeds."""
        content = replace(self.request, n=1, first=0).keys(self.fingerprint, self.prompt)[0]
        return (int(content) >> 2) + self.request.first  # stays a positive int64


class _Session:
    """What a student or teacher says over an open line."""

    def __init__(self, student: Any) -> None:
        self.student, self.line = student, HttpPool(student.url, student.line)

    async def __aenter__(self) -> _Session:
        await self.line.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.line.__aexit__(*error)

    async def context_length(self) -> int | None:
        """What the servers say of the model, as a check of address, key and name before anything expensive."""
        limits = [self._served(response) for response in await self.line.from_each("/v1/models")]
        return min((limit for limit in limits if limit is not None), default=None)

    def _served(self, response: Any) -> int | None:
        if response.status_code != 200:
            raise self._unusable(response)
        base = str(response.request.url).removesuffix("/v1/models")
        try:
            served = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OpdAlignError(
                f"{base}/v1/models does not answer like an OpenAI-compatible server: {response.text[:200]!r}"
            ) from None
        if self.student.model not in served:
            raise OpdAlignError(f"{base} does not serve {self.student.model!r}; it serves {sorted(served)}")
        limit = served[self.student.model]
        return None if limit is None else int(limit)

    async def complete(self, call: _Call) -> None:
        response = await self.line.call("POST", "/v1/completions", self._body(call))
        if response.status_code in REFUSED_FOR_GOOD:
            call.refusal = f"HTTP {response.status_code}: {error_message(response)}"
            call.refused_by = str(response.request.url)
        elif response.status_code != 200:
            raise self._unusable(response)
        else:
            call.samples = self._samples(response, call.request.n)

    async def read_back(self, prompt: list[int], completion: list[int], top: int) -> list[dict[int, float]]:
        """For each token of a completion, what the model thought of it and of the likeliest ones."""
        body = {
            "model": self.student.model,
            "prompt": prompt + completion,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": top,
        }
        response = await self.line.call("POST", "/v1/completions", body)
        if response.status_code != 200:
            raise self._unusable(response)
        try:
            told = response.json()["choices"][0]["prompt_logprobs"][len(prompt) :]
            rows = [{int(token): float(entry["logprob"]) for token, entry in row.items()} for row in told]
        except (ValueError, LookupError, TypeError, AttributeError):
            rows = []
        if len(rows) != len(completion) or any(token not in row for token, row in zip(completion, rows, strict=False)):
            raise OpdAlignError(
                f"{response.request.url} did not answer with the prompt's log-probabilities, as vLLM does. "
                f"The answer began {response.text[:200]!r}"
            )
        return rows

    def _body(self, call: _Call) -> dict[str, Any]:
        sampling = self.student.sampling
        return {
            "model": self.student.model,
            "prompt": call.read,
            "n": call.request.n,
            "seed": call.seed,
            "max_tokens": call.room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            # Whatever is not said here, the server takes from the model's generation_config.json.
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(self.student.end_tokens),
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def _samples(self, response: Any, n: int) -> list[tuple[list[int], str]]:
        try:
            choices = sorted(response.json()["choices"], key=lambda choice: choice["index"])
            samples = [(choice["token_ids"], choice["finish_reason"]) for choice in choices]
        except (ValueError, KeyError, TypeError):
            samples = []
        if len(samples) != n or any(not isinstance(tokens, list) for tokens, _ in samples):
            raise OpdAlignError(
                f"{response.request.url} did not answer with {n} lists of token ids; "
                f"that needs vLLM 0.10.2 or newer ('return_token_ids'). The answer began {response.text[:200]!r}"
            )
        return samples

    def _unusable(self, response: Any) -> OpdAlignError:
        hint = {
            401: "; is the line's api_key right?",
            403: "; is the line's api_key right?",
            404: "; is the url right?",
        }
        return OpdAlignError(
            f"{response.request.url} answered HTTP {response.status_code}: {error_message(response)}"
            f"{hint.get(response.status_code, '')}"
        )


def _joined(rows: Sequence[tuple[int, Any, Finish]], launch: int, failures: tuple[Failure, ...]) -> Rollouts:
    batch = Rollouts.of(
        [completion for _, completion, _ in rows], launch=[launch] * len(rows), key=[key for key, _, _ in rows]
    )
    return replace(batch, finish_R=np.asarray([finish for _, _, finish in rows], np.uint8), failures=failures)


def _run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in a thread of its own where a loop is running already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()
