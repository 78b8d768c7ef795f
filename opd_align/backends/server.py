"""vLLM and SGLang servers as sampler: token ids in, token ids out, over HTTP. What they are asked is in `server_api`.

Transient errors are retried, on other servers if there are several (`http_pool`). A request that a server rejects
permanently (HTTP 400, 413, 422) becomes failures with its reason, and the other requests continue; if all requests of a
batch are rejected, or the API key, address or model is wrong, the run stops. Responses are checked before they are
used (`responses`): a sample that is not what was requested becomes a failure that names the server, and if a batch has
no other samples, or a response cannot be read, the run stops. Each response is stored with its own call,
so nothing is counted twice however often a call was retried.

vLLM gives the i-th of n samples the seed `seed + i`; see `base.first_seed`. So a request may be split into calls of any
size, or retried, and still asks for the same samples. Equal seeds give equal tokens as long as the logits are equal;
those may differ in the last bits between batches. Nothing here loads a model: a local scorer provides the
probabilities.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
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
    sample_problem,
    tokenizer_vocabulary,
)
from opd_align.backends.http_pool import (
    HttpPool,
    HttpResponse,
    HttpSettings,
    InvalidResponse,
    import_httpx,
    server_urls,
)
from opd_align.backends.loading import generation_configs
from opd_align.backends.responses import (
    Sample,
    check_repetition,
    read_context_length,
    suspicious_repetition,
)
from opd_align.backends.server_api import VLLM, LogProbsQuery, SamplesQuery, ServerApi
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

logger = logging.getLogger(__name__)

T = TypeVar("T")

COMPARED_SAMPLES = 4
"""Number of samples whose log-probabilities are compared with the scorer's."""
REJECTED = {400, 413, 422}
"""HTTP statuses with which a server rejects one request permanently."""


def build_student(spec: StudentSpec, api: ServerApi = VLLM) -> ServerStudent:
    """The student of a model configuration; without a scorer, and without weights here, if it only samples."""
    model = spec.model
    scorer: Any = spec.build_scorer() if spec.scored else None
    end_tokens = (
        spec.end_tokens(*generation_configs(model.model, **model.load.source)) if scorer is None else scorer.end_tokens
    )
    name = model.served_as or model.model
    return ServerStudent(model.url, name, spec.prompt, end_tokens, scorer, spec.sampling, model.http, api)


def build_teacher(name: str, model: ModelSpec, prompt: Prompt, api: ServerApi = VLLM) -> ServerTeacher:
    """The teacher of a model configuration."""
    return ServerTeacher(name, model.url, model.served_as or model.model, prompt, http=model.http, api=api)


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
        api: The kind of server.
    """

    url: str | Sequence[str] = field(repr=False)
    model: str
    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling
    http: HttpSettings = field(default_factory=HttpSettings)
    api: ServerApi = VLLM

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
        parts: tuple[Any, ...] = (
            self.model, self.sampling, sorted(self.end_tokens), getattr(self.scorer, "fingerprint", None),
        )  # fmt: skip
        if self.api != VLLM:  # another sampler: its rollouts are not mixed with those of vLLM
            parts += (self.api.name,)
        return f"server-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    @property
    def context_length(self) -> int | None:
        """The context length that the servers report, if they do; fails if they do not serve the model."""
        return _context_length(self)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        calls = self._calls(requests)
        sent = [call for call in calls if call.max_new_tokens]
        if sent:
            _run(self._send(sent))
            self._check_samples(sent)
            self._compare_log_probs(sent)
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
            order = sorted(calls, key=lambda call: np.array(call.context, ">u4").tobytes())
            try:
                async with asyncio.TaskGroup() as group:
                    for call in order:
                        group.create_task(client.complete(call, self._query(call), self._problem_of(call)))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if all(call.rejection is not None for call in order):
                raise OpdAlignError(
                    f"{order[0].server} rejected all {len(order)} requests of a batch; the first with "
                    f"{order[0].rejection}. Is it a {self.api.name} server, started for this model and these settings?"
                )

    def _problem_of(self, call: _Call) -> Callable[[Any, Any], str | None]:
        return partial(
            sample_problem,
            max_new_tokens=call.max_new_tokens,
            end_tokens=self.end_tokens,
            vocabulary=self.vocabulary,
        )

    def _check_samples(self, calls: Sequence[_Call]) -> None:
        """Stops the run if no sample of a batch is valid, or if samples repeat that are too unlikely for that."""
        invalid = [call for call in calls if call.invalid is not None]
        valid = [call.valid_samples(self._problem_of(call)) for call in calls]
        if invalid and not any(valid):
            raise InvalidResponse(f"{invalid[0].invalid}; no sample of a batch of {len(calls)} requests is valid")
        if invalid:
            failed = sum(call.request.n for call in calls) - sum(map(len, valid))
            logger.warning("%s; in this batch %d samples failed", invalid[0].invalid, failed)
        scorer: Any = self.scorer  # None if the student only samples
        by_prefix: dict[tuple[str, bytes], list[int]] = defaultdict(list)
        # The same request twice in a batch has the same seeds, and so the same samples: it counts once.
        distinct = {(call.request.question.id, call.request.prefix.tobytes(), call.request.first): number
                    for number, call in enumerate(calls)}  # fmt: skip
        for (question, prefix, _), number in distinct.items():
            by_prefix[question, prefix].append(number)
        for numbers in by_prefix.values():
            request = calls[numbers[0]].request
            samples = [tokens for number in numbers for tokens, _ in valid[number]]
            found = suspicious_repetition(request.question, request.prefix, samples)
            servers = " and ".join(dict.fromkeys(calls[number].server for number in numbers))
            if found is not None and scorer is not None:
                check_repetition(found, scorer, servers)
            elif found is not None:
                logger.warning(
                    "%s returned the same %d tokens in %d of %d samples of question %r",
                    servers,
                    len(found.tokens),
                    found.count,
                    found.n,
                    request.question.id,
                )

    def _compare_log_probs(self, calls: Sequence[_Call]) -> None:
        """Compares the servers' log-probabilities of the first samples with the scorer's, once."""
        report = getattr(self.scorer, "report", None)
        if report is None or not report.wants_sampler_gap():
            return
        valid = ((call, call.valid_samples(self._problem_of(call))) for call in calls)
        call, samples = next(((call, samples) for call, samples in valid if samples), (calls[0], []))
        prefix = call.request.prefix
        completions = [np.append(prefix, tokens).astype(np.uint32) for tokens, _ in samples[:COMPARED_SAMPLES]]
        rollouts = Rollouts.of(completions, launch=[len(prefix)] * len(completions))
        teacher = ServerTeacher(self.name, self.url, self.model, self.prompt, http=self.http, api=self.api)
        try:
            sampled = teacher.token_log_probs(call.request.question, rollouts)
        except OpdAlignError as error:  # a server that returns no log-probabilities can still sample
            report.skip_sampler_gap(error)
            return
        report.measure_sampler_gap(self.scorer, call.request.question, rollouts, sampled, "the server")

    def _query(self, call: _Call) -> SamplesQuery:
        seed = first_seed(call.request, call.fingerprint, call.prompt)
        return SamplesQuery(
            self.model, call.context, call.request.n, seed, call.max_new_tokens, self.end_tokens, self.sampling
        )

    def _rollouts(self, call: _Call) -> Rollouts:
        key = call.request.keys(call.fingerprint, call.prompt).tolist()
        if call.rejection is not None:
            return assemble_rollouts(
                [], [], key=[], finish=[], failures=[Failure(each, call.rejection) for each in key]
            )
        return engine_rollouts(
            call.request,
            key,
            call.samples if call.max_new_tokens else None,
            max_new_tokens=call.max_new_tokens,
            end_tokens=self.end_tokens,
            vocabulary=self.vocabulary,
            engine=call.server,
        )


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
        api: The kind of server.
    """

    name: str
    url: str | Sequence[str] = field(repr=False)
    model: str
    prompt: Prompt
    top: int = 20
    http: HttpSettings = field(default_factory=HttpSettings)
    api: ServerApi = VLLM

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
        prompt, vocabulary = list(self.prompt(question)), tokenizer_vocabulary(self.prompt)

        async def request_all() -> list[list[dict[int, float]]]:
            async with _Client(self) as client:
                await client.context_length()
                tasks = [
                    asyncio.ensure_future(
                        client.log_probs(LogProbsQuery(self.model, prompt, list(map(int, each)), top, vocabulary))
                    )
                    for each in completions
                ]
                try:
                    return list(await asyncio.gather(*tasks))
                finally:
                    for task in tasks:  # the others of a call that failed
                        task.cancel()

        return _run(request_all())


@dataclass
class _Call:
    """Some samples of one request, and the result: samples in order (some may be invalid), or a permanent rejection."""

    request: SampleRequest
    fingerprint: str
    prompt: list[int]
    max_new_tokens: int
    samples: list[Sample] = field(default_factory=list)
    invalid: str | None = None
    rejection: str | None = None
    server: str = ""

    @property
    def context(self) -> list[int]:
        return self.prompt + self.request.prefix.tolist()

    def valid_samples(self, problem_of: Callable[[Any, Any], str | None]) -> list[Sample]:
        if self.invalid is None:
            return self.samples
        return [sample for sample in self.samples if problem_of(*sample) is None]


class _Client:
    """The requests that a student or teacher sends, over an open connection pool."""

    def __init__(self, owner: ServerStudent | ServerTeacher) -> None:
        self.model, self.api, self.pool = owner.model, owner.api, HttpPool(owner.url, owner.http)

    async def __aenter__(self) -> _Client:
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.__aexit__(*error)

    async def context_length(self) -> int | None:
        """The shortest context that the servers report; also checks address, API key and model name."""
        limits = []
        for response in await self.pool.get_from_each("/v1/models"):
            if response.status_code != 200:
                raise self._unusable(response)
            limits.append(read_context_length(response, self.model))
        return min((limit for limit in limits if limit is not None), default=None)

    async def complete(self, call: _Call, query: SamplesQuery, problem_of: Callable[[Any, Any], str | None]) -> None:
        """Requests the samples of a call."""
        api = self.api
        try:
            response = await self.pool.call(
                "POST", api.path, api.samples_body(query), read=lambda each: api.read_samples(each, query, problem_of)
            )
        except InvalidResponse as error:
            if error.readable is None:
                raise
            # The invalid samples become failures; the others of the same response are valid.
            call.invalid, response = str(error), error.readable
        call.server = response.url
        if response.status_code in REJECTED:
            call.rejection = response.error
        elif response.status_code != 200:
            raise self._unusable(response)
        else:
            call.samples = response.value

    async def log_probs(self, query: LogProbsQuery) -> list[dict[int, float]]:
        """For each token of a completion, the log-probabilities of that token and of the most likely ones."""
        api = self.api
        body = api.log_probs_body(query)
        response = await self.pool.call("POST", api.path, body, read=lambda each: api.read_log_probs(each, query))
        if response.status_code != 200:
            raise self._unusable(response)
        rows: list[dict[int, float]] = response.value
        return rows

    def _unusable(self, response: HttpResponse) -> OpdAlignError:
        hints = {401: "; is http.api_key right?", 403: "; is http.api_key right?", 404: "; is the url right?"}
        return OpdAlignError(f"{response.url} returned {response.error}{hints.get(response.status_code, '')}")


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
