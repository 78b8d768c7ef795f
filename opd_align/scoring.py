"""Scoring along a path: what student and teachers think of every next token, without ever holding the logits.

A path of 30,000 tokens times a vocabulary of 152,000 is 18 GB of logits a model. So each model's body runs once and
leaves hidden states; then the heads run on a few positions at a time, and what a node needs (log-probabilities of the
tokens that matter, entropies, divergences) leaves the chunk while the logits do not.

This room knows torch and transformers' way of splitting a model into body and head; it samples nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opd_align.types import Floats, OpdAlignError, PathScores, ScoreRequest, TeacherScores, Tokens

CHUNK_BYTES = 256 << 20
"""Memory for the probabilities of one chunk of positions, student and teachers together."""


class TokenizerMismatch(OpdAlignError):
    """Student and teacher do not speak the same tokens."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn; the same settings define the student's probabilities. `top_k` 0: no limit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise OpdAlignError(f"sampling: temperature must be above 0, not {self.temperature}; greedy has no forks")
        if not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise OpdAlignError(
                "sampling: top_p must lie in (0, 1], top_k be 0 or more, max_tokens at least 1; "
                f"got top_p={self.top_p}, top_k={self.top_k}, max_tokens={self.max_tokens}"
            )

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the distribution that is sampled from, in float32; -inf for what is cut off."""
        log_p = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        if self.top_k and self.top_k < log_p.shape[-1]:
            least = log_p.topk(self.top_k, dim=-1).values[..., -1:]
            log_p = torch.log_softmax(log_p.masked_fill(log_p < least, -torch.inf), dim=-1)
        if self.top_p < 1:
            ranked, order = log_p.sort(dim=-1, descending=True)
            # A token stays if the mass before it has not reached top_p; so the likeliest always stays.
            before = ranked.exp().cumsum(-1) - ranked.exp()
            ranked = ranked.masked_fill(before >= self.top_p, -torch.inf)
            log_p = torch.log_softmax(torch.empty_like(log_p).scatter_(-1, order, ranked), dim=-1)
        return log_p


@dataclass(frozen=True)
class Side:
    """A model reading a completion after its own prompt."""

    name: str
    model: Any
    prompt: Sequence[int]


def score_path(student: Side, teachers: Sequence[Side], request: ScoreRequest, sampling: Sampling) -> PathScores:
    """Student and teachers along one completion, each with its own prompt, position by position."""
    completion = np.asarray(request.completion, np.uint32)
    sides = [student, *teachers]
    with torch.inference_mode():
        hidden = [_hidden_states(side, completion) for side in sides]
        heads = [side.model.get_output_embeddings() for side in sides]
        # Vocabularies are padded to different lengths; the common ones are those that all can say.
        vocabulary = min(_vocabulary(side.model) for side in sides)
        if len(completion) and int(completion.max()) >= vocabulary:
            raise OpdAlignError(
                f"token {int(completion.max())} of a completion is beyond the common vocabulary ({vocabulary})"
            )
        parts = []
        for start, stop in _chunks(len(completion), vocabulary * len(sides)):
            log_p = sampling.log_probs(heads[0](hidden[0][start:stop])[..., :vocabulary])
            log_t = [
                torch.log_softmax(head(state[start:stop])[..., :vocabulary].float() / sampling.temperature, dim=-1)
                for head, state in zip(heads[1:], hidden[1:], strict=True)
            ]
            parts.append(_reduce(log_p, log_t, request, completion, start))
    return _assemble(parts, completion, [teacher.name for teacher in teachers])


def completion_log_probs(side: Side, completion: Tokens, sampling: Sampling) -> Floats:
    """Log-probability of every token of a completion, chunk by chunk."""
    with torch.inference_mode():
        hidden, head = _hidden_states(side, completion), side.model.get_output_embeddings()
        result = np.empty(len(completion))
        for start, stop in _chunks(len(completion), _vocabulary(side.model)):
            log_p = sampling.log_probs(head(hidden[start:stop]))
            token = torch.as_tensor(completion[start:stop].astype(np.int64), device=log_p.device)
            result[start:stop] = log_p.gather(-1, token[:, None])[:, 0].double().cpu().numpy()
    return result


def check_tokenizers(student: Any, teacher: Any, name: str) -> None:
    """Refuses a teacher whose tokens mean something else, with an example."""
    mine, theirs = student.get_vocab(), teacher.get_vocab()
    if mine == theirs:
        return
    by_id, their_by_id = ({number: text for text, number in vocabulary.items()} for vocabulary in (mine, theirs))
    for number in range(min(len(by_id), len(their_by_id))):
        if by_id.get(number) != their_by_id.get(number):
            raise TokenizerMismatch(
                f"teacher {name!r} does not share the student's vocabulary (id {number} is {their_by_id.get(number)!r} "
                f"there, {by_id.get(number)!r} here); use a context teacher, or one of the same family"
            )


def _hidden_states(side: Side, completion: Tokens) -> Tensor:
    """Last hidden state before each token of the completion: (T, d)."""
    if not len(side.prompt):
        raise OpdAlignError(f"{side.name!r} has an empty prompt; at least one token (such as <bos>) must precede")
    ids = [*side.prompt, *completion[:-1].tolist()] if len(completion) else list(side.prompt)
    limit = getattr(side.model.config, "max_position_embeddings", None)
    if limit is not None and len(ids) > limit:
        raise OpdAlignError(f"{side.name!r}: prompt and completion are {len(ids)} tokens, its context holds {limit}")
    body = side.model.base_model if not hasattr(side.model, "peft_config") else side.model.get_base_model().base_model
    tokens = torch.as_tensor([ids], device=side.model.device)
    hidden: Tensor = body(input_ids=tokens, use_cache=False).last_hidden_state[0]
    return hidden[len(side.prompt) - 1 :][: len(completion)]


def _vocabulary(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def _chunks(length: int, width: int) -> Iterator[tuple[int, int]]:
    # About five float32 arrays of the chunk's size are alive at once.
    step = max(1, CHUNK_BYTES // (5 * 4 * width))
    for start in range(0, length, step):
        yield start, min(start + step, length)


@dataclass(frozen=True)
class _Part:
    """One chunk of positions, reduced: number of kept children a position, their tokens and log-probabilities."""

    size_T: Any
    token_C: Any
    log_p_C: Any
    log_t_C: list[Any]
    entropy_T: Any
    comparison: list[dict[str, Any]]


def _reduce(log_p: Tensor, log_t: Sequence[Tensor], request: ScoreRequest, completion: Tokens, start: int) -> _Part:
    floor = float(np.log(request.floor))
    kept = log_p > floor
    for other in log_t:
        kept |= other > floor
    here = torch.arange(len(log_p), device=log_p.device)
    own = torch.as_tensor(completion[start : start + len(log_p)].astype(np.int64), device=log_p.device)
    kept[here, own] = True
    inside = (request.keep_depth >= start) & (request.keep_depth < start + len(log_p))
    inside &= request.keep_token < log_p.shape[-1]
    depth = torch.as_tensor(request.keep_depth[inside] - start, device=log_p.device)
    kept[depth, torch.as_tensor(request.keep_token[inside].astype(np.int64), device=log_p.device)] = True
    row, token = kept.nonzero(as_tuple=True)
    p = log_p.exp()
    return _Part(
        kept.sum(-1).cpu().numpy(),
        token.cpu().numpy(),
        log_p[row, token].double().cpu().numpy(),
        [other[row, token].double().cpu().numpy() for other in log_t],
        _entropy(log_p, p),
        [_compare(log_p, p, other) for other in log_t],
    )


def _compare(log_p: Tensor, p: Tensor, log_t: Tensor) -> dict[str, Any]:
    t = log_t.exp()
    log_m = torch.logaddexp(log_p, log_t) - np.log(2)
    js = (_kl(p, log_p, log_m) + _kl(t, log_t, log_m)) / 2
    dot = (p * t).sum(-1) / (p.norm(dim=-1) * t.norm(dim=-1))
    columns = {"kl_T": _kl(p, log_p, log_t), "js_T": js, "l2_T": (p - t).norm(dim=-1), "cosine_T": dot}
    return {name: column.double().cpu().numpy() for name, column in columns.items()} | {"entropy_T": _entropy(log_t, t)}


def _kl(weight: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    # 0 · log(0 / x) is 0, and rounding must not make a divergence negative.
    return torch.where(weight > 0, weight * (log_a - log_b), 0.0).sum(-1).clamp(min=0.0)


def _entropy(log_p: Tensor, p: Tensor) -> Any:
    return -torch.where(p > 0, p * log_p, 0.0).sum(-1).double().cpu().numpy()


def _assemble(parts: Sequence[_Part], completion: Tokens, names: Sequence[str]) -> PathScores:
    def joined(columns: Sequence[Any]) -> Any:
        return np.concatenate([np.empty(0), *columns])

    size_T = joined([part.size_T for part in parts]).astype(np.int64)
    teachers = {
        name: TeacherScores(
            log_t_C=joined([part.log_t_C[index] for part in parts]),
            **{
                column: joined([part.comparison[index][column] for part in parts])
                for column in ("entropy_T", "kl_T", "js_T", "l2_T", "cosine_T")
            },
        )
        for index, name in enumerate(names)
    }
    return PathScores(
        completion,
        np.concatenate([[0], np.cumsum(size_T)]).astype(np.int64),
        joined([part.token_C for part in parts]).astype(np.uint32),
        joined([part.log_p_C for part in parts]),
        joined([part.entropy_T for part in parts]),
        teachers,
    )
