"""Hugging Face transformers as student and teacher: samples from arbitrary prefixes, scores paths.

All targets of a path share its prefix, so the path is read once and its key/value cache is cut and copied for each
target; nothing is prefilled twice. A rollout's tokens depend on its key and the model alone: every draw takes its
randomness from (key, position), never from the batch it happens to be in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opd_align.scoring import Sampling, Side, completion_log_probs, score_path
from opd_align.types import (
    Finish,
    Floats,
    OpdAlignError,
    Outcome,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    mix64,
)

Prompt = Callable[[Question], Sequence[int]]


@dataclass(frozen=True)
class HFTeacher:
    """A model with its own prompt for each question; the student's own model makes it a self-distillation teacher."""

    name: str
    model: Any
    prompt: Prompt


@dataclass(frozen=True)
class HFStudent:
    """A causal language model as student.

    `prompt` gives the token ids before the completion. `batch_tokens` bounds rows × cached tokens of a batch;
    running out of memory halves it and goes on.
    """

    name: str
    model: Any
    prompt: Prompt
    end_tokens: tuple[int, ...]
    sampling: Sampling = Sampling()
    batch_tokens: int = 65536
    batch_rows: int = 256

    @property
    def fingerprint(self) -> str:
        """Name, sampling settings and weights; the latter through a few of their sums."""
        digest = blake2b(digest_size=16)
        digest.update(f"{self.name}\0{self.sampling}\0{sorted(self.end_tokens)}\0{self.model.dtype}".encode())
        for name, weight in self.model.named_parameters():
            if weight.ndim == 1:
                digest.update(f"{name}\0{weight.double().sum().item():.12e}".encode())
        return f"hf-{digest.hexdigest()}"

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        rows = [row for number, request in enumerate(requests) for row in self._rows(number, request)]
        order = {(row.request, row.index): place for place, row in enumerate(rows)}
        done: list[Any] = [None] * len(rows)
        with torch.inference_mode():
            for trunk, mine in _by_trunk(rows):
                cache = self._prefill(trunk)
                for row, tokens, finish in self._decode(cache, mine):
                    done[order[row.request, row.index]] = (row, tokens, finish)
        completions = [np.concatenate([row.prefix, np.asarray(tokens, np.uint32)]) for row, tokens, _ in done]
        result = Rollouts.of(
            completions, launch=[len(row.prefix) for row in rows], key=[row.key for row in rows],
            outcome=[Outcome.UNKNOWN] * len(rows),
        )  # fmt: skip
        result.finish_R[:] = [finish for _, _, finish in done]
        return result

    def score(self, request: ScoreRequest, teachers: Sequence[HFTeacher]) -> PathScores:
        question = request.question
        sides = [Side(teacher.name, teacher.model, teacher.prompt(question)) for teacher in teachers]
        return score_path(self._side(question), sides, request, self.sampling)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: HFTeacher | None) -> Floats:
        side = self._side(question) if teacher is None else Side(teacher.name, teacher.model, teacher.prompt(question))
        sampling = self.sampling if teacher is None else Sampling(self.sampling.temperature)
        parts = [completion_log_probs(side, rollouts.completion(row), sampling) for row in range(len(rollouts))]
        return np.concatenate([np.empty(0), *parts])

    def _side(self, question: Question) -> Side:
        return Side(self.name, self.model, self.prompt(question))

    def _rows(self, number: int, request: SampleRequest) -> list[_Row]:
        prompt = list(self.prompt(request.question))
        if not prompt:
            raise OpdAlignError(
                f"question {request.question.id!r} has an empty prompt; at least one token must precede"
            )
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(prompt) + self.sampling.max_tokens > limit:
            raise OpdAlignError(
                f"question {request.question.id!r}: {len(prompt)} prompt tokens and up to {self.sampling.max_tokens} "
                f"new ones do not fit the context of {self.name!r} ({limit})"
            )
        if np.isin(request.prefix, self.end_tokens).any():
            raise OpdAlignError("a prefix to continue cannot hold an end-of-sequence token")
        keys = request.keys(self.fingerprint_once)
        read = (*prompt, *request.prefix.tolist())
        return [_Row(number, index, read, request.prefix, int(key)) for index, key in enumerate(keys)]

    @property
    def fingerprint_once(self) -> str:
        return self.fingerprint

    def _prefill(self, trunk: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer along the trunk: (heads, tokens, size) each."""
        if not trunk:
            return []
        found = self.model(
            input_ids=torch.as_tensor([trunk], device=self.model.device), use_cache=True, logits_to_keep=1
        ).past_key_values
        return [(layer.keys[0], layer.values[0]) for layer in found.layers]

    def _decode(self, cache: list[tuple[Tensor, Tensor]], rows: Sequence[_Row]) -> Any:
        """Finished rows, batch by batch; batches hold rows of similar depth, so that little is padded."""
        from accelerate.utils.memory import should_reduce_batch_size

        waiting = sorted(rows, key=lambda row: (-len(row.read), row.request, row.index))
        room = self.batch_tokens
        while waiting:
            deepest = len(waiting[0].read) + min(self.sampling.max_tokens, 256)
            size = max(1, min(self.batch_rows, room // deepest))
            try:
                finished = list(_Batch(self, cache, waiting[:size]).run())
            except Exception as error:
                if size == 1 or not should_reduce_batch_size(error):
                    raise
                room = max(deepest, room // 2)
                continue
            yield from finished
            waiting = waiting[size:]


@dataclass(frozen=True)
class _Row:
    """One rollout to make: what is read before it continues (prompt and prefix), and where its randomness comes from."""

    request: int
    index: int
    read: tuple[int, ...]
    prefix: NDArray[np.uint32]
    key: int


class _Batch:
    """Rows that decode side by side; left-padded with copies of the trunk's cache."""

    def __init__(self, student: HFStudent, cache: list[tuple[Tensor, Tensor]], rows: Sequence[_Row]) -> None:
        self.student, self.model, self.rows = student, student.model, list(rows)
        self.device = student.model.device
        length_B = torch.tensor([len(row.read) - 1 for row in rows], device=self.device)
        longest = int(length_B.max())
        place = torch.arange(longest, device=self.device) - (longest - length_B[:, None])
        self.mask = (place >= 0).long()
        self.cache = _dynamic_cache()
        for layer, (key, value) in enumerate(cache if longest else []):
            # (heads, tokens, size) at (B, longest) → (B, heads, longest, size); padding repeats token 0, masked.
            at = place.clamp(min=0)
            self.cache.update(key[:, at].transpose(0, 1), value[:, at].transpose(0, 1), layer)
        self.position = length_B
        self.input = torch.tensor([row.read[-1] for row in rows], device=self.device)
        self.key = torch.from_numpy(np.array([row.key for row in rows], np.uint64).view(np.int64).copy())
        self.tokens: list[list[int]] = [[] for _ in rows]

    def run(self) -> Any:
        sampling, ends = self.student.sampling, set(self.student.end_tokens)
        alive = [n for n, row in enumerate(self.rows) if len(row.prefix) < sampling.max_tokens]
        for row in set(range(len(self.rows))) - set(alive):
            yield self.rows[row], self.tokens[row], Finish.TRUNCATED
        self._keep(alive, alive)
        while alive:
            drawn = self._step().tolist()
            left = []
            for slot, (row, token) in enumerate(zip(alive, drawn, strict=True)):
                self.tokens[row].append(token)
                if token in ends:
                    yield self.rows[row], self.tokens[row], Finish.STOPPED
                elif len(self.rows[row].prefix) + len(self.tokens[row]) >= sampling.max_tokens:
                    yield self.rows[row], self.tokens[row], Finish.TRUNCATED
                else:
                    left.append(slot)
            self._keep(left, alive)
            alive = [alive[slot] for slot in left]

    def _step(self) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        logits = self.model(
            input_ids=self.input[:, None],
            attention_mask=self.mask,
            position_ids=self.position[:, None],
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        depth = np.array([len(self.rows[0].prefix)])  # replaced below, per row
        del depth
        token = _draw(self.student.sampling.log_probs(logits), self.key, self.position)
        self.input, self.position = token, self.position + 1
        return token

    def _keep(self, slots: list[int], alive: list[int]) -> None:
        if len(slots) == len(self.input):
            return
        at = torch.tensor(slots, dtype=torch.long, device=self.device)
        self.mask, self.input, self.position = self.mask[at], self.input[at], self.position[at]
        self.key = self.key[at.cpu()]
        if len(slots):
            self.cache.batch_select_indices(at)
            # Columns that pad every remaining row need not be attended to any longer.
            spare = int(self.mask.argmax(dim=1).min())
            if spare:
                self.mask = self.mask[:, spare:]
                for layer in self.cache.layers:
                    layer.keys, layer.values = layer.keys[:, :, spare:], layer.values[:, :, spare:]


def _dynamic_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def _draw(log_p: Tensor, key_B: Tensor, position_B: Tensor) -> Tensor:
    """One token a row by inverting the distribution function at a uniform number from (key, position)."""
    word = mix64(key_B.numpy().view(np.uint64) ^ mix64(position_B.cpu().numpy().astype(np.uint64)))
    uniform = torch.from_numpy((word >> np.uint64(11)).astype(np.float64) * 2.0**-53).to(log_p.device)
    cdf = log_p.double().exp().cumsum(-1)
    token = torch.searchsorted(cdf, (uniform * cdf[:, -1])[:, None], right=True)[:, 0]
    return token.clamp(max=log_p.shape[-1] - 1)


def _by_trunk(rows: Sequence[_Row]) -> list[tuple[tuple[int, ...], list[_Row]]]:
    """Rows grouped by the longest sequence that has all they read, but the last token, as a prefix."""
    heads = sorted({row.read[:-1] for row in rows})
    # In lexicographic order a sequence stands right before its extensions.
    trunks = [
        head
        for head, after in zip(heads, [*heads[1:], None], strict=True)
        if after is None or after[: len(head)] != head
    ]
    groups: dict[tuple[int, ...], list[_Row]] = {trunk: [] for trunk in trunks}
    from bisect import bisect_left

    for row in rows:
        groups[trunks[bisect_left(trunks, row.read[:-1])]].append(row)
    return list(groups.items())
