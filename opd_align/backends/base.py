"""What all backends share: assembling rollouts, seeds, request checks, and the registry of backends by name.

A backend is a module with a function `build_student(spec)`. The built-in ones are listed in `BACKENDS`; any other
importable module that defines `BACKEND = Backend(__name__)` is used under its import name, so a new engine is one file.
Nothing here imports torch: a machine that only sends requests to a server does not need it.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.load_options import LoadOptions
from opd_align.settings import Scoring
from opd_align.types import (
    Failure,
    Finish,
    Floats,
    Ints,
    OpdAlignError,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    Scorer,
    ScoreRequest,
    Tokens,
    mix64,
    printable,
)

if TYPE_CHECKING:
    from opd_align.backends.http_pool import HttpSettings
    from opd_align.backends.loading import LoadedModel
    from opd_align.backends.scoring import RemoteTeacher, TopKTeacher
    from opd_align.settings import Sampling

Prompt = Callable[[Question], Sequence[int]]
"""From a question to the token ids before the completion."""

VLLM_MIN_TEMPERATURE = 0.01
"""vLLM silently raises lower temperatures to this one, and would then sample another distribution than we score."""
MAX_TOKENS = 1 << 32
"""Token ids are stored in 32 bits."""


# -- registry -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """Where a backend is implemented and which keys of a model configuration apply to it.

    Args:
        module: Import name of the module that defines `build_student(spec: StudentSpec)`; imported on first use.
        remote: Whether the model runs behind a server. If so, the configuration must have a `url`, may have
            `served_as` and `http`, and the module also defines `build_teacher(name, model, prompt)`.
        adapters: Whether the backend can sample with a PEFT adapter.
        concurrent: Whether several threads may sample at the same time.
    """

    module: str
    remote: bool = False
    adapters: bool = True
    concurrent: bool = True

    def build_student(self, spec: StudentSpec) -> Any:
        """The student that a model configuration describes."""
        return import_module(self.module).build_student(spec)

    def build_teacher(self, name: str, model: ModelSpec, prompt: Prompt) -> TeacherClient:
        """A teacher whose model runs behind a server."""
        return import_module(self.module).build_teacher(name, model, prompt)


BACKENDS: Mapping[str, Backend] = {
    "hf": Backend("opd_align.backends.hf", concurrent=False),
    "vllm": Backend("opd_align.backends.vllm", adapters=False, concurrent=False),
    "server": Backend("opd_align.backends.server", remote=True),
    "sglang": Backend("opd_align.backends.sglang", remote=True),
}


def find_backend(name: str) -> Backend:
    """A built-in backend, or the `BACKEND` of the importable module of that name."""
    if name in BACKENDS:
        return BACKENDS[name]
    if _is_module(name):
        found = getattr(import_module(name), "BACKEND", None)
        if isinstance(found, Backend):
            return found
    near = get_close_matches(name, BACKENDS, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise OpdAlignError(
        f"unknown backend {name!r}{hint} There are: {', '.join(BACKENDS)}; an importable module that defines BACKEND "
        "can be given by its import name"
    )


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package that does not exist; a module without a spec
        return False


class ModelSpec(Protocol):
    """The keys of a model configuration that backends read; see `ModelConfig` for their meaning."""

    @property
    def model(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def url(self) -> Sequence[str]: ...
    @property
    def served_as(self) -> str | None: ...
    @property
    def http(self) -> HttpSettings: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def load(self) -> LoadOptions: ...


@dataclass(frozen=True)
class StudentSpec:
    """What a backend builds a student from.

    Args:
        model: The model's configuration.
        prompt: From a question to the token ids before the completion.
        sampling: Temperature and cut-offs, maximum length.
        scored: Whether the student must score too. A student that only samples needs no scorer, and behind a server no
            weights here.
        end_tokens: From the configs that name end-of-sequence tokens (`LoadedModel.configs`, `generation_configs`) to
            the tokens that end a completion.
        load_model: Loads the weights with transformers; students and teachers with the same weights share them.
        cached: `cached(key, make)` calls `make` once per key; for engines that several students share.
        scoring: How paths are scored.
    """

    model: ModelSpec
    prompt: Prompt
    sampling: Sampling
    scored: bool
    end_tokens: Callable[..., tuple[int, ...]]
    load_model: Callable[[], LoadedModel]
    cached: Callable[[Any, Callable[[], Any]], Any]
    scoring: Scoring = field(default_factory=Scoring)

    def build_scorer(self) -> Any:
        """The same student on local weights: scores what another engine samples."""
        return BACKENDS["hf"].build_student(self)


class TeacherClient(Protocol):
    """A teacher whose model is not in this process: behind a server, or in another process."""

    @property
    def name(self) -> str: ...

    def score_inputs(self, question: Question, completion: Tokens, device: Any) -> RemoteTeacher | TopKTeacher:
        """What scoring needs along a completion: hidden states and output layer, or the top-k log-probabilities."""
        ...

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat like `rollouts.tokens`."""
        ...


# -- students of generation engines ---------------------------------------------------------------------------


class EngineStudent(ABC):
    """A student that an engine samples and a local `scorer` scores; both must hold the same weights.

    A subclass has the attributes below and implements `fingerprint` and `sample`.
    """

    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @abstractmethod
    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts: ...

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """From a token id to its text, if the prompt function provides it."""
        return getattr(self.prompt, "token_text", None)

    @property
    def scored_in(self) -> str | None:
        """The precision of the scores where it is not that of the weights; see `HFStudent.scored_in`."""
        return getattr(self.scorer, "scored_in", None)

    @property
    def vocabulary(self) -> int | None:
        """Token ids are below this: the smaller of what the scorer and the prompt's tokenizer say; None if neither."""
        sizes = (getattr(self.scorer, "vocabulary", None), tokenizer_vocabulary(self.prompt))
        return min((size for size in sizes if size is not None), default=None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [request.keys(fingerprint, list(self.prompt(request.question))) for request in requests]

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        return self.scorer.score(request, teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        return self.scorer.token_log_probs(question, rollouts, teacher)

    def max_new_tokens(self, request: SampleRequest) -> int:
        """How many tokens may follow the prefix: the limit counts the completion from its start."""
        return max(0, self.sampling.max_tokens - len(request.prefix))

    def _check_settings(self, name: str, *, min_temperature: float = 0.0) -> None:
        """For constructors: the scorer must score the distribution that the engine samples from."""
        if self.sampling.temperature < min_temperature:
            raise OpdAlignError(
                f"{name!r}: this backend samples at temperature {min_temperature} or above, "
                f"not {self.sampling.temperature}"
            )
        for setting in ("sampling", "end_tokens"):
            own, expected = getattr(self, setting), getattr(self.scorer, setting, None)
            if expected is not None and own != expected:
                raise OpdAlignError(
                    f"{name!r} samples with {setting} {own}, but its scorer is set to {expected}; "
                    "the scores would be those of another distribution, so give both the same"
                )


def tokenizer_vocabulary(prompt: Prompt) -> int | None:
    """One more than the largest token id of the tokenizer that a prompt is built with; None if it is not known."""
    return getattr(getattr(prompt, "chat", None), "vocabulary", None)


# -- request checks -------------------------------------------------------------------------------------------


def check_prompt(question: Question, prompt: Sequence[int]) -> None:
    if not prompt:
        raise OpdAlignError(f"question {question.id!r} has an empty prompt; at least one token is required")


def check_fits(question: Question, prompt: Sequence[int], max_tokens: int, limit: int | None, model: str) -> None:
    """Rejects a prompt that, with `max_tokens` new tokens, exceeds the context of `model`; `limit` None: unknown."""
    if limit is not None and len(prompt) + max_tokens > limit:
        raise OpdAlignError(
            f"question {question.id!r}: {len(prompt)} prompt tokens and up to {max_tokens} new ones do not fit the "
            f"context of {model} ({limit}); use a smaller limit of new tokens (`sampling.max_tokens`)"
        )


def check_prefix(prefix: Tokens, end_tokens: Sequence[int]) -> None:
    if np.isin(prefix, end_tokens).any():
        raise OpdAlignError("a prefix to continue cannot contain an end-of-sequence token")


# -- seeds and rollouts ---------------------------------------------------------------------------------------


def first_seed(request: SampleRequest, fingerprint: str, prompt: Sequence[int]) -> int:
    """Seed of a request's first sample, for engines that give the i-th of n samples the seed `seed + i`.

    It is (hash of the request's content) + `first`, so sample number k has the same seed however it was requested.
    """
    content = replace(request, n=1, first=0).keys(fingerprint, prompt)[0]
    return (int(content) >> 2) + request.first  # two bits fewer: stays a positive int64


def uniform_numbers(key_B: NDArray[np.uint64], position_B: Ints) -> Floats:
    """One number in [0, 1) per rollout key and position: counter-based, so independent of the batch."""
    word_B = mix64(key_B ^ mix64(position_B.astype(np.uint64)))
    return (word_B >> np.uint64(11)).astype(np.float64) * 2.0**-53


def assemble_rollouts(
    prefixes: Sequence[Tokens],
    new_tokens: Sequence[Tokens | Sequence[int]],
    *,
    key: Sequence[int],
    finish: Sequence[Finish],
    failures: Sequence[Failure] = (),
) -> Rollouts:
    """Ungraded rollouts whose completions are a forced prefix and the new tokens after it, row by row."""
    completions = [
        np.concatenate([prefix, np.asarray(tokens, np.uint32)]).astype(np.uint32)
        for prefix, tokens in zip(prefixes, new_tokens, strict=True)
    ]
    batch = Rollouts.of(completions, launch=[len(prefix) for prefix in prefixes], key=key)
    return replace(batch, finish_R=np.asarray(finish, np.uint8), failures=tuple(failures))


def sample_problem(
    tokens: Any, reason: Any, *, max_new_tokens: int, end_tokens: Sequence[int], vocabulary: int | None
) -> str | None:
    """What is wrong with an engine's sample, `None` if nothing is; reads on after the engine's name.

    Args:
        tokens: The new tokens, as the engine returned them.
        reason: The finish reason, as the engine returned it: "stop" or "length".
        max_new_tokens: How many tokens were requested at most.
        end_tokens: Tokens that end a completion.
        vocabulary: Token ids must be below it. `None`: unknown.
    """
    if not isinstance(tokens, list | tuple):
        return f"returned {_shortened(tokens)} in place of a list of token ids"
    # `True` is an int for `isinstance`.
    wrong = next((token for token in tokens if type(token) is not int), None)
    if wrong is not None or None in tokens:
        return f"returned {_shortened(wrong)} as a token id"
    limit = MAX_TOKENS if vocabulary is None else vocabulary
    outside = next((token for token in (min(tokens), max(tokens)) if not 0 <= token < limit), None) if tokens else None
    if outside is not None:
        return f"returned token {_shortened(outside)}, which is outside the vocabulary ({limit})"
    if len(tokens) > max_new_tokens:
        return f"returned {len(tokens)} tokens, more than max_tokens ({max_new_tokens})"
    ends = set(end_tokens)
    inside = next((token for token in tokens[: None if reason == "length" else -1] if token in ends), None)
    if inside is not None:
        return f"returned the end-of-sequence token {inside} inside a rollout"
    if reason == "length":
        if len(tokens) == max_new_tokens:
            return None
        return (
            f"ended the rollout with 'length' after {len(tokens)} tokens, before max_tokens ({max_new_tokens}); "
            "is its context too short?"
        )
    if reason == "stop" and tokens and tokens[-1] in ends:
        return None
    last = f" at token {tokens[-1]}" if reason == "stop" and tokens else ""
    return f"ended the rollout with {_shortened(reason)}{last}"


def _shortened(value: Any) -> str:
    text = value if isinstance(value, int) and abs(value) < 1 << 64 else reprlib.repr(value)
    return printable(f"{text}"[:80])


def engine_rollouts(
    request: SampleRequest,
    key: Sequence[int],
    samples: Sequence[tuple[Sequence[int], str | None]] | None,
    *,
    max_new_tokens: int,
    end_tokens: Sequence[int],
    vocabulary: int | None = None,
    engine: str,
) -> Rollouts:
    """Rollouts of one request from an engine's samples: pairs of new tokens and finish reason ("stop" or "length").

    `samples` is None if no token may follow the prefix: then all rows are truncated. A sample that `sample_problem`
    objects to is recorded as a failure.
    """
    if samples is None:
        samples, max_new_tokens = [((), "length")] * len(key), 0
    finished: list[tuple[int, Sequence[int], Finish]] = []
    failures: list[Failure] = []
    for number, (tokens, reason) in zip(key, samples, strict=True):
        problem = sample_problem(
            tokens, reason, max_new_tokens=max_new_tokens, end_tokens=end_tokens, vocabulary=vocabulary
        )
        if problem is None:
            finished.append((number, tokens, Finish.TRUNCATED if reason == "length" else Finish.STOPPED))
        else:
            failures.append(Failure(number, f"{engine} {problem}"))
    return assemble_rollouts(
        [request.prefix] * len(finished),
        [tokens for _, tokens, _ in finished],
        key=[number for number, _, _ in finished],
        finish=[reason for _, _, reason in finished],
        failures=failures,
    )
