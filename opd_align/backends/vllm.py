"""vLLM's offline engine as sampler: token ids in, token ids out; a local scorer provides the probabilities.

Every request is one vLLM request with `n=`, and requests are submitted in the order of their tokens, so that a path is
prefilled once and its targets find their prefix in the cache. vLLM gives the i-th of n samples the seed `seed + i`; see
`base.first_seed`. Equal seeds give equal tokens as long as the logits are equal. Those may differ in the last bits
between batches, so across batch compositions results are equal in distribution and, on most rows, in tokens, but not
guaranteed to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from opd_align.backends.base import (
    VLLM_MIN_TEMPERATURE,
    EngineStudent,
    Prompt,
    StudentSpec,
    check_fits,
    check_prefix,
    check_prompt,
    engine_rollouts,
    first_seed,
)
from opd_align.backends.engine_processes import watched_engine
from opd_align.backends.loading import resolve_reference
from opd_align.backends.scoring_report import ScoringReport
from opd_align.settings import Sampling
from opd_align.types import OpdAlignError, Rollouts, SampleRequest, Scorer

STEP_RATIO = 8
"""How much longer a step of transformers may take than one of vLLM: an estimate on the safe side, not measured."""


def build_student(spec: StudentSpec) -> VLLMStudent:
    """The student of a model configuration: an engine in this process, and the same weights as its scorer."""
    model, scorer = spec.model, spec.build_scorer()
    dtype = {} if model.dtype == "auto" else {"dtype": model.dtype}
    options = dtype | model.load.engine_arguments | dict(model.options)
    if model.load.rope_scaling is not None:
        # The scorer's config, which is extended: vLLM replaces the whole of `rope_parameters`, base frequency included.
        config = scorer.model.config
        names = ("rope_parameters", "max_position_embeddings")
        options["hf_overrides"] = {name: getattr(config, name) for name in names}
    engine = spec.cached(
        ("engine", model.model, repr(options)), lambda: vllm_engine(resolve_reference(model.model)[0], **options)
    )
    return VLLMStudent(scorer.name, engine, spec.prompt, scorer.end_tokens, scorer, spec.sampling)


def vllm_engine(model: str | Path, **options: Any) -> Any:
    """A `vllm.LLM` set up for token ids only; options (dtype, max_model_len, ...) are vLLM's and take precedence."""
    vllm = _import_vllm()
    defaults: dict[str, Any] = {
        "skip_tokenizer_init": True, "enable_prefix_caching": True, "generation_config": "vllm",
    }  # fmt: skip
    if vllm.platforms.current_platform.is_cpu():
        # After part of a prefill vLLM 0.32 rewinds a seeded request's generator, which torch's CPU generator does not
        # support ("CPU Generator does not use offset"), and the engine dies.
        defaults["enable_chunked_prefill"] = False
    with watched_engine():
        return vllm.LLM(model=str(model), **(defaults | options))


def too_few_sequences(llm: Any, rows: int) -> bool:
    """Whether an engine that another program set up decodes so few sequences at a time that transformers is faster.

    TRL limits its colocated engine to the sequences of one training batch. A step of transformers takes a few times as
    long as one of vLLM, and with many rows that is the better bargain.

    Args:
        llm: A `vllm.LLM`.
        rows: How many sequences transformers can decode at a time.
    """
    scheduler = getattr(llm.llm_engine.vllm_config, "scheduler_config", None)
    limit = getattr(scheduler, "max_num_seqs", None)
    return limit is not None and rows >= STEP_RATIO * int(limit)


@dataclass(frozen=True)
class VLLMStudent(EngineStudent):
    """A student that samples with a vLLM engine in this process and is scored by `scorer`.

    Args:
        name: The student's name; part of every rollout's key.
        llm: A `vllm.LLM`, such as `vllm_engine` returns.
        prompt: From a question to the token ids before the completion.
        end_tokens: Token ids that end a completion; the model's own generation config is ignored.
        scorer: Scores the same weights, usually an `HFStudent` with equal `sampling` and `end_tokens`.
        sampling: Temperature (0.01 or above), top-p, top-k, maximum completion length and seed.
    """

    name: str
    llm: Any
    prompt: Prompt
    end_tokens: tuple[int, ...]
    scorer: Scorer
    sampling: Sampling
    concurrent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check_settings(self.name, min_temperature=VLLM_MIN_TEMPERATURE)

    @property
    def context_length(self) -> int:
        """How many tokens fit into the engine's context."""
        return int(self._config.max_model_len)

    @property
    def fingerprint(self) -> str:
        """A hash of name, settings, the engine's model and dtype; the scorer's fingerprint covers the weights."""
        config = self._config
        parts = (
            self.name, self.sampling, sorted(self.end_tokens), config.model, config.dtype,
            getattr(self.scorer, "fingerprint", None),
        )  # fmt: skip
        return f"vllm-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        keys, fingerprint = self.keys(requests), self.fingerprint
        prompts = [self._checked_prompt(request) for request in requests]
        contexts = [prompt + request.prefix.tolist() for prompt, request in zip(prompts, requests, strict=True)]
        self._check_vocabulary(requests, contexts)
        unfinished = [i for i, request in enumerate(requests) if request.n and self.max_new_tokens(request)]
        # Ascending as bytes: a prefix comes right before its extensions.
        unfinished.sort(key=lambda i: np.asarray(contexts[i], ">u4").tobytes())
        samples: list[list[tuple[Sequence[int], str | None]] | None] = [None] * len(requests)
        if unfinished:
            params = [self._params(requests[i], first_seed(requests[i], fingerprint, prompts[i])) for i in unfinished]
            report = self._report()
            if report is not None:
                params[0].logprobs = 0  # of the sampled token alone
            outputs = self.llm.generate([{"prompt_token_ids": contexts[i]} for i in unfinished], params, use_tqdm=False)
            for i, output in zip(unfinished, outputs, strict=True):
                samples[i] = [(list(map(int, each.token_ids)), each.finish_reason) for each in output.outputs]
            if report is not None:
                self._compare_log_probs(report, requests[unfinished[0]], outputs[0].outputs)
        return Rollouts.join([
            engine_rollouts(
                request, key_R.tolist(), made, max_new_tokens=self.max_new_tokens(request), end_tokens=self.end_tokens,
                vocabulary=self._config.get_vocab_size(), engine="vLLM",
            )
            for request, key_R, made in zip(requests, keys, samples, strict=True)
        ])  # fmt: skip

    def _report(self) -> ScoringReport | None:
        """The report, if the next request's log-probabilities are to be compared with the scorer's."""
        report: ScoringReport | None = getattr(self.scorer, "report", None)
        if report is None or not report.wants_sampler_gap():
            return None
        if getattr(self._config, "logprobs_mode", "raw_logprobs") != "raw_logprobs":
            report.skip_sampler_gap("logprobs_mode is not raw_logprobs")
            return None
        return report

    def _compare_log_probs(self, report: ScoringReport, request: SampleRequest, outputs: Sequence[Any]) -> None:
        try:
            sampled = [
                [float(entry[token].logprob) for token, entry in zip(each.token_ids, each.logprobs, strict=True)]
                for each in outputs
            ]
        except (TypeError, LookupError, ValueError, AttributeError) as error:
            report.skip_sampler_gap(f"vLLM did not return them ({error!r})")
            return
        completions = [[*request.prefix.tolist(), *map(int, each.token_ids)] for each in outputs]
        forced = [float("nan")] * len(request.prefix)
        rollouts = Rollouts.of(
            [np.array(tokens, np.uint32) for tokens in completions], launch=[len(forced)] * len(completions)
        )
        flat = np.array([value for values in sampled for value in (*forced, *values)])
        report.measure_sampler_gap(self.scorer, request.question, rollouts, flat, "vLLM")

    @property
    def _config(self) -> Any:
        return self.llm.llm_engine.vllm_config.model_config

    def _checked_prompt(self, request: SampleRequest) -> list[int]:
        prompt = list(self.prompt(request.question))
        check_prompt(request.question, prompt)
        check_fits(request.question, prompt, self.sampling.max_tokens, self.context_length, repr(self.name))
        check_prefix(request.prefix, self.end_tokens)
        return prompt

    def _check_vocabulary(self, requests: Sequence[SampleRequest], contexts: Sequence[Sequence[int]]) -> None:
        # Without a tokenizer vLLM does not check this itself, and one such token kills the whole engine.
        vocabulary = self._config.get_vocab_size()
        for request, context in zip(requests, contexts, strict=True):
            if max(context) >= vocabulary:
                raise OpdAlignError(
                    f"question {request.question.id!r}: token {max(context)} is outside the vocabulary of "
                    f"{self.name!r} ({vocabulary}); was the prompt built with this model's tokenizer?"
                )

    def _params(self, request: SampleRequest, seed: int) -> Any:
        # No text is needed: `detokenize` would cost time, and fails on an engine without a tokenizer.
        return _import_vllm().SamplingParams(
            n=request.n,
            seed=seed,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            max_tokens=self.max_new_tokens(request),
            stop_token_ids=list(self.end_tokens),
            ignore_eos=True,
            detokenize=False,
        )


def _import_vllm() -> Any:
    try:
        import vllm
        import vllm.platforms
    except ImportError as error:
        raise OpdAlignError(
            f"this needs vLLM, which cannot be imported ({error}): pip install 'opd-align[vllm]'"
        ) from error
    return vllm
