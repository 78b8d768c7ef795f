"""Responses of vLLM and SGLang servers as values, each checked against what was requested.

A response that passes here can be stored: samples are lists of token ids of the vocabulary that end where the request
says, log-probabilities are those of a distribution. Anything else raises `InvalidResponse`, which names the server.
Samples that repeat more often than the student's own probabilities allow are found by `check_repetition`.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opd_align.backends.base import MAX_TOKENS
from opd_align.backends.http_pool import HttpResponse, InvalidResponse
from opd_align.types import OpdAlignError, Question, Rollouts, Tokens, printable

Sample = tuple[list[int], str]
"""New tokens and finish reason."""

TOLERANCE = 1e-3
"""How far rounding may lift a log-probability above 0, or a sum of probabilities above 1."""
MAX_LISTED_MODELS = 10

MIN_EQUAL_SAMPLES, MIN_EQUAL_TOKENS = 4, 32
"""Samples are suspicious if at least 4 are all equal, or if any two of at least 32 tokens are."""
IMPLAUSIBLE = 1e-9
"""Chance repetitions below this probability are attributed to the server."""


def read_context_length(response: HttpResponse, model: str) -> int | None:
    """The context length in a list of models; `None` if the server does not report it."""
    base = response.url.removesuffix("/v1/models")
    try:
        served = {card["id"]: card.get("max_model_len") for card in response.json()["data"]}
        names = sorted(map(str, served))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InvalidResponse(
            f"{response.url} does not respond like an OpenAI-compatible server: {response.excerpt!r}"
        ) from None
    if model not in served:
        more = f" and {len(names) - MAX_LISTED_MODELS} more" if len(names) > MAX_LISTED_MODELS else ""
        listed = [printable(name[:200]) for name in names[:MAX_LISTED_MODELS]]
        raise OpdAlignError(f"{base} does not serve {model!r}; it serves {listed}{more}")
    limit = served[model]
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidResponse(
            f"{response.url}: max_model_len of {model!r} is {reprlib.repr(limit)}; expected a whole number above 0"
        )
    return limit


def read_samples(
    response: HttpResponse, n: int, context: Sequence[int], problem_of: Callable[[Any, Any], str | None]
) -> list[Sample]:
    """The `n` samples of a response, in order.

    Args:
        response: The response.
        n: The number of requested samples.
        context: The requested prompt and prefix.
        problem_of: From the tokens and the finish reason of a sample to what is wrong with it. If a sample has a
            problem, the `InvalidResponse` is readable, and has all samples.
    """
    try:
        listed = response.json()["choices"]
        choices = {choice["index"]: choice for choice in listed}
        samples = [(choices[index]["token_ids"], choices[index]["finish_reason"]) for index in range(n)]
        prompts = [choices[index].get("prompt_token_ids") for index in range(n)]
    except (ValueError, LookupError, TypeError, AttributeError):
        listed, choices, samples, prompts = [], {}, [], []
    as_requested = len(listed) == len(choices) == n and all(type(index) is int for index in choices)
    if not as_requested or any(not isinstance(tokens, list) for tokens, _ in samples):
        raise InvalidResponse(
            f"{response.url} did not return {n} lists of token ids; that needs vLLM 0.10.2 or newer "
            f"('return_token_ids'). The response starts with {response.excerpt!r}"
        )
    if any(prompt is not None and prompt != list(context) for prompt in prompts):
        raise InvalidResponse(
            f"{response.url} continued other tokens than those in the request; does it change the prompt?"
        )
    return _checked_samples(response, samples, problem_of)


def read_sglang_samples(
    response: HttpResponse,
    n: int,
    context: Sequence[int],
    end_tokens: Sequence[int],
    problem_of: Callable[[Any, Any], str | None],
) -> list[Sample]:
    """The `n` samples of a response of SGLang's `/generate`, in order; see `read_samples`."""
    try:
        listed = response.json()
        samples = [_sglang_sample(item, end_tokens) for item in listed]
        lengths = [item["meta_info"].get("prompt_tokens", len(context)) for item in listed]
    except (ValueError, LookupError, TypeError, AttributeError):
        samples, lengths = [], []
    if len(samples) != n or any(not isinstance(tokens, list) for tokens, _ in samples):
        raise InvalidResponse(
            f"{response.url} did not return {n} lists of token ids, as SGLang does. The response starts with "
            f"{response.excerpt!r}"
        )
    if any(length != len(context) for length in lengths):
        raise InvalidResponse(
            f"{response.url} continued other tokens than those in the request; does it change the prompt?"
        )
    return _checked_samples(response, samples, problem_of)


def _sglang_sample(item: Any, end_tokens: Sequence[int]) -> Sample:
    meta = item["meta_info"]
    drawn = [token for _, token, *_ in meta["output_token_logprobs"]]
    tokens = item.get("output_ids", drawn)
    if tokens != drawn:
        raise ValueError("output_ids are not the tokens of output_token_logprobs")
    reason = meta["finish_reason"]["type"]
    # The length is checked before the end.
    return tokens, "stop" if reason == "length" and tokens and tokens[-1] in end_tokens else reason


def _checked_samples(
    response: HttpResponse, samples: list[Sample], problem_of: Callable[[Any, Any], str | None]
) -> list[Sample]:
    problems = [problem for sample in samples if (problem := problem_of(*sample)) is not None]
    if problems:
        raise InvalidResponse(
            f"{response.url} {problems[0]} ({len(problems)} of {len(samples)} samples are invalid)",
            replace(response, value=samples),
        )
    return samples


def read_prompt_log_probs(
    response: HttpResponse, prompt: Sequence[int], completion: Sequence[int], top: int, vocabulary: int | None
) -> list[dict[int, float]]:
    """For each token of a completion, the log-probabilities of that token and of the `top` most likely ones."""
    try:
        positions = response.json()["choices"][0]["prompt_logprobs"]
        rows = [{token: entry["logprob"] for token, entry in row.items()} for row in positions[len(prompt) :]]
    except (ValueError, LookupError, TypeError, AttributeError):
        positions, rows = [], []
    tokens = [str(token) for token in completion]
    if len(positions) != len(prompt) + len(tokens) or any(a not in row for a, row in zip(tokens, rows, strict=True)):
        raise InvalidResponse(
            f"{response.url} did not return the prompt's log-probabilities, as vLLM does. "
            f"The response starts with {response.excerpt!r}"
        )
    return [_log_probs(row, response.url, top, vocabulary) for row in rows]


def read_sglang_log_probs(
    response: HttpResponse, completion: Sequence[int], top: int, vocabulary: int | None
) -> list[dict[int, float]]:
    """Like `read_prompt_log_probs`, from a response of SGLang's `/generate`."""
    try:
        meta = response.json()["meta_info"]
        # The first position is the prompt's last token.
        own = [(token, value) for value, token, *_ in meta["input_token_logprobs"][1:]]
        likely = meta["input_top_logprobs"][1:] if top else [()] * len(own)
        rows = [
            {str(each): number for number, each, *_ in more or ()} | {str(token): value}
            for (token, value), more in zip(own, likely, strict=True)
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        own, rows = [], []
    if [token for token, _ in own] != list(completion):
        raise InvalidResponse(
            f"{response.url} did not return the prompt's log-probabilities, as SGLang does. "
            f"The response starts with {response.excerpt!r}"
        )
    return [_log_probs(row, response.url, top, vocabulary) for row in rows]


def _log_probs(row: dict[str, Any], url: str, top: int, vocabulary: int | None) -> dict[int, float]:
    limit, checked = MAX_TOKENS if vocabulary is None else vocabulary, {}
    for token, value in row.items():
        if not (token.isascii() and token.isdigit() and len(token) < 12 and str(int(token)) == token):
            raise InvalidResponse(f"{url} returned {reprlib.repr(token)} as a token id")
        if int(token) >= limit:
            raise InvalidResponse(f"{url} returned token {token}, which is outside the vocabulary ({limit})")
        # Written so that NaN, and whole numbers beyond the range of floats, are rejected too.
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= TOLERANCE:
            raise InvalidResponse(
                f"{url} returned {reprlib.repr(value)} as the log-probability of token {token}; expected a number of "
                "at most 0 (vLLM sends -9999 for a probability of 0)"
            )
        checked[int(token)] = min(float(value), 0.0)
    mass = math.fsum(map(math.exp, checked.values()))
    if mass > 1 + TOLERANCE:
        raise InvalidResponse(f"{url} returned probabilities that sum to {mass:.4g}, which is more than 1")
    # A whole vocabulary may have fewer tokens than requested.
    if len(checked) < top and mass < 1 - TOLERANCE:
        raise InvalidResponse(
            f"{url} returned {len(checked)} tokens at a position where the {top} most likely ones were requested"
        )
    return checked


# -- samples that repeat ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repetition:
    """A completion that was sampled more than once from the same prefix.

    Args:
        question: The question.
        prefix: The completion tokens before the samples.
        tokens: The new tokens.
        count: How often they were sampled.
        n: The number of samples from this prefix.
    """

    question: Question
    prefix: Tokens
    tokens: tuple[int, ...]
    count: int
    n: int

    def log_chance(self, log_p: float) -> float:
        """Upper bound on the log-probability of the repetition, for tokens of log-probability `log_p`."""
        pairs = math.lgamma(self.n + 1) - math.lgamma(self.count + 1) - math.lgamma(self.n - self.count + 1)
        return pairs + (self.count - 1) * log_p


def suspicious_repetition(question: Question, prefix: Tokens, samples: Iterable[Sequence[int]]) -> Repetition | None:
    """The repetition among the samples from one prefix that is most unlikely by its length; `None`: nothing unusual."""
    counts = Counter(map(tuple, samples))
    n = counts.total()
    found = [
        Repetition(question, prefix, tokens, count, n)
        for tokens, count in counts.items()
        if count > 1 and (len(tokens) >= MIN_EQUAL_TOKENS or count == n >= MIN_EQUAL_SAMPLES)
    ]
    return max(found, key=lambda each: (each.count - 1) * len(each.tokens), default=None)


def check_repetition(found: Repetition, scorer: Any, servers: str) -> None:
    """Raises `InvalidResponse` for a repetition that the student would practically never produce.

    Args:
        found: Result of `suspicious_repetition`.
        scorer: Scores the student; needs one forward pass over the repeated tokens.
        servers: The servers, as the message names them.
    """
    completion = np.concatenate([found.prefix, np.asarray(found.tokens, np.uint32)])
    rollouts = Rollouts.of([completion], launch=[len(found.prefix)])
    log_p_T = np.asarray(scorer.token_log_probs(found.question, rollouts, None))[len(found.prefix) :]
    # A token at the edge of top-p may be excluded here but not on the server; it says nothing about repetitions.
    log_p = float(log_p_T[np.isfinite(log_p_T)].sum())
    if found.log_chance(log_p) < math.log(IMPLAUSIBLE):
        raise InvalidResponse(
            f"{servers} returned the same {len(found.tokens)} tokens in {found.count} of {found.n} samples of question "
            f"{found.question.id!r}, to which the student gives the probability {math.exp(log_p):.1e}. Does a cache in "
            "between ignore the seed, or does the server have other weights?"
        )
