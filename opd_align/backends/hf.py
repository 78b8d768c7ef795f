"""Hugging Face transformers as student and teacher: samples from arbitrary prefixes, scores paths.

A rollout's tokens depend on its key and the model alone: every draw takes its randomness from (key, position), never
from the batch that the rollout happens to be in. What remains of the batch is rounding: in float32 it changes about
one draw in a million, in bfloat16 more. `hf_attention` shares prefixes between the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import pairwise
from threading import RLock
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from numpy.typing import NDArray
from torch import Tensor

from opd_align.backends.base import (
    Prompt,
    StudentSpec,
    TeacherClient,
    assemble_rollouts,
    check_fits,
    check_prefix,
    check_prompt,
    uniform_numbers,
)
from opd_align.backends.hf_attention import (
    PrefixCache,
    RowGroup,
    fitting_tokens,
    full_attention_layers,
    generation_cache,
    prefill,
    shared_prefix_attention,
    shared_prefixes,
)
from opd_align.backends.loading import context_length, short_name, update_with_weights
from opd_align.backends.precision import scoring_precision
from opd_align.backends.scoring import (
    PromptedModel,
    RemoteTeacher,
    TopKTeacher,
    check_eval_mode,
    rollout_log_probs,
    sampled_log_probs,
    score_path,
)
from opd_align.backends.scoring_report import SCORING_REPORT, ScoringReport
from opd_align.settings import Precision, Sampling
from opd_align.types import (
    Finish,
    Floats,
    Ints,
    OpdAlignError,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    Tokens,
)

EXPECTED_PROMPT_TOKENS = 256
EXPECTED_NEW_TOKENS = 512
"""How long completions run is not known in advance; a batch that this guess makes too large is halved."""

_SCORING = RLock()
"""Threads that sample on servers score one after the other: a model's weights are converted while it is scored."""


def build_student(spec: StudentSpec) -> HFStudent:
    """The student of a model configuration, on weights that are loaded here."""
    loaded = spec.load_model()
    # Weights are shared between students, names are not: the name is part of every rollout's key.
    name = spec.model.name or short_name(spec.model.model)
    return HFStudent(
        name,
        loaded.model,
        spec.prompt,
        spec.end_tokens(*loaded.configs),
        spec.sampling,
        precision=spec.scoring.precision,
        scoring_gib=spec.scoring.memory_gib,
        report=spec.cached(SCORING_REPORT, ScoringReport) if spec.scored else None,
    )


@dataclass(frozen=True)
class HFTeacher:
    """A transformers model with its own prompt; with the student's own model it is a self-distillation teacher.

    Args:
        name: The teacher's name in tables and keys.
        model: A causal language model in eval mode, with or without PEFT adapters.
        prompt: From a question to the token ids before the completion, demonstrations and the like included.
        precision: The precision in which it is scored; weights in float32 are scored in float32 in any case.
    """

    name: str
    model: Any
    prompt: Prompt
    precision: Precision = "auto"

    @property
    def context_length(self) -> int | None:
        """How many tokens fit into the model's context, if its config says so."""
        return context_length(self.model)

    @property
    def fingerprint(self) -> str:
        """A hash of the current weights, and the precision if it is another one; prompts are in the manifest."""
        digest = update_with_weights(blake2b(digest_size=16), self.model).hexdigest()
        precision = scoring_precision(self.model, self.precision)
        return f"hf-{digest}" if precision == "native" else f"hf-{digest}-{precision}"


@dataclass(frozen=True)
class HFStudent:
    """A transformers model as student: samples and scores in this process.

    Args:
        name: The student's name; part of every rollout's key.
        model: A causal language model in eval mode, with or without PEFT adapters. Every layer must attend to the whole
            context.
        prompt: From a question to the token ids before the completion.
        end_tokens: Token ids that end a completion; the model's own generation config is ignored.
        sampling: Temperature, top-p, top-k, maximum completion length and seed.
        batch_tokens: Upper bound on rows × tokens of a batch. `None`: as many as fit into the memory that is free. A
            batch that runs out of memory is halved; rows that have ended by then are kept.
        batch_rows: Upper bound on the rows of a batch.
        before_step: Called before each token of a batch is sampled; what it raises ends the sampling. `None`: nothing.
        precision: The precision in which paths are scored; sampling is always in that of the weights.
        scoring_gib: Memory for the logits of a chunk of positions. `None`: by the memory that is free.
        report: Filled with what the precision changes, measured on the first path. `None`: not measured.
    """

    name: str
    model: Any
    prompt: Prompt
    end_tokens: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    batch_tokens: int | None = None
    batch_rows: int = 512
    before_step: Callable[[], None] | None = None
    precision: Precision = "auto"
    scoring_gib: float | None = None
    report: ScoringReport | None = field(default=None, compare=False, repr=False)
    concurrent: ClassVar[bool] = False

    @property
    def scored_in(self) -> str | None:
        """The precision in which paths are scored, `float32` or `head`; `None` if it is that of the weights.

        It is in the manifest of a run, but not in the fingerprint: rollouts do not depend on it.
        """
        precision = scoring_precision(self.model, self.precision)
        return None if precision == "native" else precision

    @property
    def context_length(self) -> int | None:
        """How many tokens fit into the model's context, if its config says so."""
        return context_length(self.model)

    @property
    def vocabulary(self) -> int:
        """The number of token ids, padding included."""
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    @property
    def fingerprint(self) -> str:
        """A hash of name, sampling settings and current weights: a model in training gets another after each step."""
        digest = blake2b(digest_size=16)
        settings = (self.name, self.sampling, sorted(self.end_tokens))
        digest.update(repr(settings).encode())
        return f"hf-{update_with_weights(digest, self.model).hexdigest()}"

    @property
    def rows_at_a_time(self) -> int:
        """About how many completions are decoded together, by the memory that is free now."""
        tokens = self.batch_tokens or fitting_tokens(self.model)
        return max(1, min(self.batch_rows, tokens // (self.sampling.max_tokens + EXPECTED_PROMPT_TOKENS)))

    def check(self) -> None:
        """Rejects a model that this backend cannot sample."""
        full_attention_layers(self.model, self.name)

    @property
    def unsupported(self) -> str | None:
        """Why this backend cannot sample the model; `None` if it can."""
        try:
            self.check()
        except OpdAlignError as error:
            return str(error)
        return None

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """From a token id to its text, if the prompt function provides it."""
        return getattr(self.prompt, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        questions = {request.question.id: request.question for request in requests}
        prompts = {name: list(self.prompt(question)) for name, question in questions.items()}
        return [request.keys(fingerprint, prompts[request.question.id]) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        if not requests:
            return Rollouts.of([])
        check_eval_mode(self.model, self.name)
        layers = full_attention_layers(self.model, self.name)
        contexts, rows = self._rows(requests)
        steps: list[tuple[Ints, Tokens]] = []
        prefixes, prefix_B = shared_prefixes(contexts)
        rows = replace(rows, prefix_R=prefix_B[rows.request_R])
        waiting = rows.take(np.flatnonzero(rows.max_new_R > 0))
        # Rows of one prefix side by side, those of similar depth next to each other: they use the same part of it.
        waiting = waiting.take(np.lexsort((waiting.row_R, -waiting.cached_R, waiting.prefix_R)))
        batch_tokens = self.batch_tokens or fitting_tokens(self.model)
        caches: dict[int, PrefixCache | None] = {}
        with torch.no_grad():
            while len(waiting.row_R):
                new_tokens = min(int(waiting.max_new_R.max()), EXPECTED_NEW_TOKENS)
                tokens_per_row = int(waiting.cached_R[: self.batch_rows].max()) + new_tokens
                size = max(1, min(self.batch_rows, batch_tokens // tokens_per_row))
                batch = waiting.take(np.arange(size)[: len(waiting.row_R)])
                # A cached prefix takes the memory of a row. Small groups of many prefixes decode together: the cost of
                # a step hardly depends on the number of rows.
                first = np.flatnonzero(np.diff(batch.prefix_R, prepend=-1))
                if len(first) > 1 and len(first) + len(batch.row_R) > max(batch_tokens // tokens_per_row, 1):
                    batch = batch.take(np.arange(first[1]))
                try:
                    caches = {
                        number: caches[number]
                        if number in caches
                        else prefill(self.model, prefixes[number], layers=layers, name=self.name)
                        for number in np.unique(batch.prefix_R).tolist()
                    }
                    steps += self._decode(caches, batch)
                except RuntimeError as error:
                    if not should_reduce_batch_size(error):
                        raise
                    done = error.finished_R if isinstance(error, _OutOfMemory) else np.empty(0, np.int64)
                    if len(batch.row_R) == 1:
                        raise error.__cause__ or error from None
                    steps += error.steps if isinstance(error, _OutOfMemory) else []
                    # The rows that ended are kept; those that did not start again, half as many at a time. What a row
                    # draws depends on its key alone, so they draw the same tokens again.
                    waiting = waiting.take(np.flatnonzero(~np.isin(waiting.row_R, done)))
                    batch_tokens = max(1, (len(batch.row_R) - len(done)) // 2) * tokens_per_row
                else:
                    waiting = waiting.take(np.arange(len(batch.row_R), len(waiting.row_R)))
                    continue
                caches = {}
                clear_device_cache(garbage_collection=True)
        return self._rollouts(requests, rows, steps)

    def score(self, request: ScoreRequest, teachers: Sequence[HFTeacher | TeacherClient]) -> PathScores:
        with _SCORING:
            return self._score(request, teachers)

    def _score(self, request: ScoreRequest, teachers: Sequence[HFTeacher | TeacherClient]) -> PathScores:
        inputs = [self._teacher_inputs(request, teacher) for teacher in teachers]
        chunk_bytes = None if self.scoring_gib is None else int(self.scoring_gib * 2**30)
        student = _prompted(self, request.question)
        if self.report is not None and self.report.noise is None and len(request.completion):
            local = [each for each in inputs if isinstance(each, PromptedModel)]
            self.report.measure_noise(student, local, request.completion, self.sampling.temperature)
        return score_path(student, inputs, request, self.sampling, chunk_bytes=chunk_bytes)

    def token_log_probs(
        self, question: Question, rollouts: Rollouts, teacher: HFTeacher | TeacherClient | None
    ) -> Floats:
        if teacher is not None and not isinstance(teacher, HFTeacher):
            return teacher.token_log_probs(question, rollouts)
        model = self if teacher is None else teacher
        sampling = self.sampling if teacher is None else Sampling(self.sampling.temperature)
        with _SCORING:
            return rollout_log_probs(_prompted(model, question), rollouts, sampling)

    def _teacher_inputs(
        self, request: ScoreRequest, teacher: HFTeacher | TeacherClient
    ) -> PromptedModel | RemoteTeacher | TopKTeacher:
        if isinstance(teacher, HFTeacher):
            return _prompted(teacher, request.question)
        return teacher.score_inputs(request.question, request.completion, self.model.device)

    def _rows(self, requests: Sequence[SampleRequest]) -> tuple[list[tuple[int, ...]], _Rows]:
        """The token ids before each request's continuations, and all rows to sample."""
        fingerprint = self.fingerprint
        prompts: dict[str, list[int]] = {}
        contexts = []
        for request in requests:
            if request.question.id not in prompts:
                prompts[request.question.id] = self._checked_prompt(request.question)
            self._check_prefix(request.prefix)
            contexts.append((*prompts[request.question.id], *request.prefix.tolist()))
        n_B = [request.n for request in requests]
        request_R = np.repeat(np.arange(len(requests)), n_B)
        keys = [request.keys(fingerprint, prompts[request.question.id]) for request in requests]
        max_new_B = [self.sampling.max_tokens - len(request.prefix) for request in requests]
        return contexts, _Rows(
            row_R=np.arange(len(request_R)),
            request_R=request_R,
            cached_R=np.array([len(context) - 1 for context in contexts], np.int64)[request_R],
            input_R=np.array([context[-1] for context in contexts], np.int64)[request_R],
            max_new_R=np.array(max_new_B, np.int64)[request_R],
            key_R=np.concatenate([np.empty(0, np.uint64), *keys]),
            prefix_R=np.zeros(len(request_R), np.int64),
        )

    def _checked_prompt(self, question: Question) -> list[int]:
        prompt = list(self.prompt(question))
        check_prompt(question, prompt)
        check_fits(question, prompt, self.sampling.max_tokens, self.context_length, repr(self.name))
        return prompt

    def _check_prefix(self, prefix: Tokens) -> None:
        check_prefix(prefix, self.end_tokens)
        if len(prefix) > self.sampling.max_tokens:
            raise OpdAlignError(
                f"a prefix of {len(prefix)} tokens is longer than the maximum completion length "
                f"({self.sampling.max_tokens})"
            )
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        if len(prefix) and int(prefix.max()) >= vocabulary:
            raise OpdAlignError(f"token {int(prefix.max())} of a prefix is outside the vocabulary ({vocabulary})")

    def _decode(self, caches: Mapping[int, PrefixCache | None], rows: _Rows) -> list[tuple[Ints, Tokens]]:
        """Decodes a batch until all rows have ended; for each step, the rows still running and their new tokens.

        A device that runs out of memory raises `_OutOfMemory`, which has the rows that ended before.
        """
        steps: list[tuple[Ints, Tokens]] = []
        try:
            self._decode_into(steps, caches, rows)
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            raise _OutOfMemory.after(steps, self.end_tokens, rows, error) from error
        return steps

    def _decode_into(
        self, steps: list[tuple[Ints, Tokens]], caches: Mapping[int, PrefixCache | None], rows: _Rows
    ) -> None:
        device = self.model.device
        groups = _row_groups(caches, rows, device)
        cache = generation_cache()
        input_B = torch.as_tensor(rows.input_R, device=device)
        running = np.ones(len(rows.row_R), bool)
        with shared_prefix_attention(self.model):
            while True:
                if self.before_step is not None:
                    self.before_step()
                position_B = rows.cached_R + np.minimum(len(steps), rows.max_new_R - 1)
                logits = self.model(
                    input_ids=input_B[:, None],
                    position_ids=torch.as_tensor(position_B, device=device)[:, None],
                    past_key_values=cache,
                    use_cache=True,
                    opd_align_groups=groups,
                ).logits[:, -1]
                input_B = _draw(sampled_log_probs(self.sampling, logits), uniform_numbers(rows.key_R, position_B))
                token_B = input_B.cpu().numpy()
                steps.append((rows.row_R[running], token_B[running].astype(np.uint32)))
                running &= ~np.isin(token_B, self.end_tokens) & (rows.max_new_R > len(steps))
                if not running.any():
                    return
                # Compacting the batch copies the caches, so finished rows are kept until a fifth has ended.
                if running.mean() < 0.8:
                    kept = np.flatnonzero(running)
                    rows, running = rows.take(kept), running[kept]
                    index = torch.as_tensor(kept, device=device)
                    input_B = input_B[index]
                    groups = _row_groups(caches, rows, device)
                    cache.batch_select_indices(index)

    def _rollouts(
        self, requests: Sequence[SampleRequest], rows: _Rows, steps: Sequence[tuple[Ints, Tokens]]
    ) -> Rollouts:
        """Prefixes and drawn tokens as rollouts; the steps of a row are in order."""
        if not len(rows.row_R):
            return Rollouts.of([])
        row = np.concatenate([np.empty(0, np.int64), *(step for step, _ in steps)])
        drawn = np.concatenate([np.empty(0, np.uint32), *(token for _, token in steps)])
        order = np.argsort(row, kind="stable")
        drawn_R = np.split(drawn[order], np.searchsorted(row[order], np.arange(1, len(rows.row_R))))
        stopped_R = [bool(len(tokens)) and int(tokens[-1]) in self.end_tokens for tokens in drawn_R]
        return assemble_rollouts(
            [requests[number].prefix for number in rows.request_R],
            drawn_R,
            key=rows.key_R.tolist(),
            finish=[Finish.STOPPED if stopped else Finish.TRUNCATED for stopped in stopped_R],
        )


@dataclass(frozen=True)
class _Rows:
    """Rollouts to sample, one per row.

    `row_R` is the row's place in the result, `request_R` its request, `cached_R` how many tokens come before its first
    input token `input_R`, `max_new_R` how many tokens it may generate, `prefix_R` which shared prefix it uses.
    """

    row_R: Ints
    request_R: Ints
    cached_R: Ints
    input_R: Ints
    max_new_R: Ints
    key_R: NDArray[np.uint64]
    prefix_R: Ints

    def take(self, rows: Ints) -> _Rows:
        return _Rows(*(getattr(self, column.name)[rows] for column in fields(self)))


class _OutOfMemory(RuntimeError):
    """A batch that ran out of memory, with the rows that had ended before and their steps."""

    finished_R: Ints
    steps: list[tuple[Ints, Tokens]]

    @staticmethod
    def after(steps: Sequence[tuple[Ints, Tokens]], ends: Sequence[int], rows: _Rows, cause: Exception) -> _OutOfMemory:
        """From all steps of a batch to those of the rows that ended: by an end token, or at their longest."""
        error = _OutOfMemory(str(cause))
        ended = [row[np.isin(token, ends)] for row, token in steps]
        longest = dict(zip(rows.row_R.tolist(), rows.max_new_R.tolist(), strict=True))
        ended += [np.array([row for row in running.tolist() if longest[row] == step], np.int64)
                  for step, (running, _) in enumerate(steps, 1)]  # fmt: skip
        error.finished_R = np.unique(np.concatenate([np.empty(0, np.int64), *ended]))
        kept = [(row, token, np.isin(row, error.finished_R)) for row, token in steps]
        error.steps = [(row[is_kept], token[is_kept]) for row, token, is_kept in kept]
        return error


def _prompted(model: HFStudent | HFTeacher, question: Question) -> PromptedModel:
    return PromptedModel(model.name, model.model, list(model.prompt(question)), model.precision)


def _row_groups(caches: Mapping[int, PrefixCache | None], rows: _Rows, device: Any) -> list[RowGroup]:
    """The rows of a batch by the prefix they share; rows of one prefix are adjacent."""
    edges = [*np.flatnonzero(np.diff(rows.prefix_R, prepend=-1)).tolist(), len(rows.prefix_R)]
    return [
        RowGroup.of(start, caches[int(rows.prefix_R[start])], rows.cached_R[start:stop], device)
        for start, stop in pairwise(edges)
    ]


def _draw(log_p: Tensor, uniform_B: Floats) -> Tensor:
    """One token per row by inverting its distribution function, the most likely token first, then in order of id."""
    uniform = torch.as_tensor(uniform_B, device=log_p.device)
    top, token = log_p.max(dim=-1)
    if bool(torch.isnan(top).any()):
        raise OpdAlignError("the student's probabilities are NaN; has its training diverged?")
    beyond = uniform - top.double().exp()
    # At most positions one token has nearly all the mass: only the others need the whole distribution function.
    rest = torch.nonzero(beyond >= 0)[:, 0]
    if len(rest):
        mass = log_p[rest].double().exp_().scatter_(-1, token[rest, None], 0.0)
        cdf = mass.cumsum_(-1)
        # Rounding may leave the uniform number beyond the last step; the last token with any mass takes it.
        target = torch.minimum(beyond[rest], cdf[:, -1] * (1 - 2.0**-40))
        found = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
        token[rest] = torch.where(cdf[:, -1] > 0, found, token[rest])
    return token
