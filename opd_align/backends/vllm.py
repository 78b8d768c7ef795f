"""vLLM's offline engine as sampler: token ids in, token ids out; probabilities come from a scorer beside it.

Every request is one vLLM request with `n=`, and they are handed over in the order of their tokens, so that a path is
prefilled once and its targets find their prefix in the cache. vLLM gives the i-th of n samples the seed `seed + i`;
we seed a request with (hash of its content) + `first`, so sample number k has the same seed however it was asked for.
Equal seeds give equal tokens as long as the logits are equal; those may differ in the last bits between batches, so
across batch compositions results are equal in distribution and, on most rows, in tokens, but not guaranteed to the bit.

This room knows vLLM and nothing of transformers: scoring is the business of the scorer that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.settings import Sampling
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
)

Prompt = Callable[[Question], Sequence[int]]

COLDEST = 0.01
"""vLLM silently raises lower temperatures to this one, and then samples from another distribution than we score."""


def vllm_engine(model: str | Path, **options: Any) -> Any:
    """A `vllm.LLM` set up for token ids only; options (dtype, max_model_len, ...) are vLLM's own and win."""
    vllm = _vllm()
    settled: dict[str, Any] = {
        "skip_tokenizer_init": True, "enable_prefix_caching": True, "generation_config": "vllm",
    }  # fmt: skip
    if vllm.platforms.current_platform.is_cpu():
        # After part of a prefill vLLM 0.32 winds a seeded request's generator back, which torch's CPU one cannot do
        # ("CPU Generator does not use offset"), and the engine dies.
        settled["enable_chunked_prefill"] = False
    return vllm.LLM(model=str(model), **(settled | options))


@dataclass(frozen=True)
class VLLMStudent:
    """A student that samples with vLLM and is scored by `scorer`, which must hold the same weights.

    `llm` is a `vllm.LLM`, such as `vllm_engine` makes. `prompt` gives the token ids before the completion.
    Only `end_tokens` end a completion; what the model's own generation config says is ignored.
    """

    name: str
    llm: Any
    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling

    def __post_init__(self) -> None:
        if self.sampling.temperature < COLDEST:
            raise OpdAlignError(
                f"{self.name!r}: vLLM samples at temperature {COLDEST} or above, not {self.sampling.temperature}"
            )
        for what in ("sampling", "end_tokens"):
            mine, theirs = getattr(self, what), getattr(self.scorer, what, None)
            if theirs is not None and mine != theirs:
                raise OpdAlignError(
                    f"{self.name!r} samples with {what} {mine}, but its scorer is set to {theirs}; "
                    "the scores would be those of another distribution, so give both the same"
                )

    @property
    def context_length(self) -> int:
        return int(self._config.max_model_len)

    @property
    def fingerprint(self) -> str:
        """Name, settings, the engine's model and precision; the weights through the scorer's own fingerprint."""
        config = self._config
        parts = (
            self.name, self.sampling, sorted(self.end_tokens), config.model, config.dtype,
            getattr(self.scorer, "fingerprint", None),
        )  # fmt: skip
        return f"vllm-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """What a token reads, if whoever writes the prompts can tell."""
        return getattr(self.prompt, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        return [request.keys(fingerprint, list(self.prompt(request.question))) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        keys, seeds = self.keys(requests), self._seeds(requests)
        read = [self._read(request) for request in requests]
        open_ended = [n for n, request in enumerate(requests) if request.n and self._room(request)]
        # Ascending as bytes: a prefix stands right before its extensions.
        open_ended.sort(key=lambda n: np.asarray(read[n], ">u4").tobytes())
        found: list[Sequence[Any] | None] = [None] * len(requests)
        if open_ended:
            outputs = self.llm.generate(
                [{"prompt_token_ids": read[n]} for n in open_ended],
                [self._params(requests[n], seeds[n]) for n in open_ended],
                use_tqdm=False,
            )
            for n, output in zip(open_ended, outputs, strict=True):
                found[n] = output.outputs
        return Rollouts.join([
            self._rollouts(request, key_R.tolist(), outputs)
            for request, key_R, outputs in zip(requests, keys, found, strict=True)
        ])  # fmt: skip

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        return self.scorer.score(request, teachers)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        return self.scorer.token_log_probs(question, rollouts, teacher)

    @property
    def _config(self) -> Any:
        return self.llm.llm_engine.vllm_config.model_config

    def _room(self, request: SampleRequest) -> int:
        """How many tokens may follow the prefix: the limit counts the completion from its start."""
        return max(0, self.sampling.max_tokens - len(request.prefix))

    def _read(self, request: SampleRequest) -> list[int]:
        """What the engine reads before it continues: prompt and prefix."""
        prompt, limit = list(self.prompt(request.question)), self.context_length
        if not prompt:
            raise OpdAlignError(
                f"question {request.question.id!r} has an empty prompt; at least one token must precede"
            )
        if len(prompt) + self.sampling.max_tokens > limit:
            raise OpdAlignError(
                f"question {request.question.id!r}: {len(prompt)} prompt tokens and up to {self.sampling.max_tokens} "
                f"new ones do not fit the context of {self.name!r} ({limit})"
            )
        if np.isin(request.prefix, self.end_tokens).any():
            raise OpdAlignError("a prefix to continue cannot hold an end-of-sequence token")
        read = prompt + request.prefix.tolist()
        # Without a tokenizer vLLM does not check this itself, and the whole engine dies of one such token.
        if max(read) >= self._config.get_vocab_size():
            raise OpdAlignError(
                f"question {request.question.id!r}: token {max(read)} is beyond the vocabulary of {self.name!r} "
                f"({self._config.get_vocab_size()}); is the prompt made with this model's tokenizer?"
            )
        return read

    def _seeds(self, requests: Sequence[SampleRequest]) -> list[int]:
        """Seed of each request's first sample; the following samples have the following seeds."""
        contents = self.keys([replace(request, n=1, first=0) for request in requests])
        # Two bits less: it stays a positive int64.
        return [(int(key) >> 2) + request.first for (key,), request in zip(contents, requests, strict=True)]

    def _params(self, request: SampleRequest, seed: int) -> Any:
        # Text is never made: `detokenize` would cost time, and fails on an engine without a tokenizer.
        return _vllm().SamplingParams(
            n=request.n,
            seed=seed,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            max_tokens=self._room(request),
            stop_token_ids=list(self.end_tokens),
            ignore_eos=True,
            detokenize=False,
        )

    def _rollouts(self, request: SampleRequest, keys: Sequence[int], outputs: Sequence[Any] | None) -> Rollouts:
        if outputs is None:  # nothing may follow the prefix
            rows = [(key, request.prefix, Finish.TRUNCATED) for key in keys]
            return _joined(rows, len(request.prefix), ())
        rows, failures = [], []
        for key, output in zip(keys, outputs, strict=True):
            completion = np.concatenate([request.prefix, np.asarray(output.token_ids, np.uint32)])
            if output.finish_reason == "length":
                rows.append((key, completion, Finish.TRUNCATED))
            elif output.finish_reason == "stop" and int(completion[-1]) in self.end_tokens:
                rows.append((key, completion, Finish.STOPPED))
            else:
                failures.append(Failure(key, f"vLLM ended the rollout with {output.finish_reason!r}"))
        return _joined(rows, len(request.prefix), tuple(failures))


def _joined(rows: Sequence[tuple[int, Any, Finish]], launch: int, failures: tuple[Failure, ...]) -> Rollouts:
    batch = Rollouts.of(
        [completion for _, completion, _ in rows], launch=[launch] * len(rows), key=[key for key, _, _ in rows]
    )
    return replace(batch, finish_R=np.asarray([finish for _, _, finish in rows], np.uint8), failures=failures)


def _vllm() -> Any:
    try:
        import vllm
        import vllm.platforms
    except ImportError as error:
        raise OpdAlignError(
            f"this needs vLLM, which does not load here ({error}): pip install 'opd-align[vllm]'"
        ) from error
    return vllm
