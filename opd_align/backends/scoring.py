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

from opd_align.settings import Sampling
from opd_align.types import (
    Floats,
    OpdAlignError,
    PathScores,
    Rollouts,
    ScoreRequest,
    TeacherScores,
    Tokens,
    TopLogProbs,
)

CHUNK_BYTES = 64 << 20
"""Memory for the probabilities of one chunk of positions, student and teachers together."""

COMPARED = ("entropy_T", "kl_T", "js_T", "l2_T", "cosine_T")
"""Whole-vocabulary columns of a teacher."""

BODY_TOKENS = 16384
"""Tokens that a model's body reads at a time when many completions are scored."""


class TokenizerMismatch(OpdAlignError):
    """Student and teacher do not speak the same tokens."""


def sampled_log_probs(sampling: Sampling, logits: Tensor) -> Tensor:
    """Log-probabilities of the distribution that is sampled from, in float32; -inf for what is cut off."""
    log_p = tempered(logits, sampling.temperature)
    if sampling.top_k and sampling.top_k < log_p.shape[-1]:
        # Tokens that tie with the last one stay, as in transformers.
        least = log_p.topk(sampling.top_k, dim=-1).values[..., -1:]
        log_p = _normalised(log_p.masked_fill(log_p < least, -torch.inf))
    if sampling.top_p < 1:
        ranked, order = log_p.sort(dim=-1, descending=True, stable=True)
        # A token stays if the mass before it has not reached top_p; so the likeliest always stays.
        before = ranked.exp().cumsum(-1) - ranked.exp()
        ranked = ranked.masked_fill(before >= sampling.top_p, -torch.inf)
        log_p = _normalised(torch.empty_like(log_p).scatter_(-1, order, ranked))
    return log_p


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities at a temperature, in float32."""
    logits = logits.float()
    return _normalised(logits if temperature == 1 else logits / temperature)


def _normalised(logits: Tensor) -> Tensor:
    """`log_softmax` in float32, two digits better over 152,000 tokens: `sum` adds up in pairs, not in a row."""
    logits = logits - logits.amax(-1, keepdim=True)
    return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())


def _summed(values: Tensor) -> Tensor:
    return values.sum(-1).double()


def _length(values: Tensor) -> Tensor:
    return _summed(values * values).sqrt_()


@dataclass(frozen=True)
class PromptedModel:
    """A model reading a completion after its own prompt."""

    name: str
    model: Any
    prompt: Sequence[int]

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise OpdAlignError(f"{self.name!r} has an empty prompt; at least one token (such as <bos>) must precede")
        check_evaluating(self.model, self.name)


@dataclass(frozen=True)
class TopKTeacher:
    """A teacher of which only the likeliest tokens of each position are known."""

    name: str
    top: TopLogProbs

    def log_probs(self, start: int, log_p: Tensor) -> Tensor:
        """Whole distributions: the known tokens as told, what is left over the others as the student spreads it.

        Of all distributions that agree with what is known, that is the one nearest to the student's in KL.
        """
        rows = slice(start, start + len(log_p))
        token = torch.as_tensor(self.top.token_TK[rows], device=log_p.device)
        log_t = torch.as_tensor(self.top.log_t_TK[rows], device=log_p.device)
        known = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, token, True)
        told = torch.full_like(log_p, -torch.inf).scatter_(1, token, log_t.to(log_p.dtype))
        left = torch.log((1 - _summed(told.exp())).clamp(min=1e-12))
        others = torch.logsumexp(log_p.masked_fill(known, -torch.inf).double(), -1)
        spread = log_p + (left - others).to(log_p.dtype)[:, None]
        return torch.where(known, told, spread)


@dataclass(frozen=True)
class RemoteTeacher:
    """A teacher whose body read the completion elsewhere: its last hidden states, and its output layer here.

    Hidden states are a few thousand numbers a position where logits are 152,000, and give exactly those logits.
    """

    name: str
    head: Any
    hidden: Tensor


def score_path(
    student: PromptedModel,
    teachers: Sequence[PromptedModel | RemoteTeacher | TopKTeacher],
    request: ScoreRequest,
    sampling: Sampling,
) -> PathScores:
    """Student and teachers along one completion, each with its own prompt, position by position.

    The student's probabilities are those it samples with. A teacher's are at the same temperature, over the tokens
    that student and teachers all can say: vocabularies are padded to different lengths.
    """
    completion = np.asarray(request.completion, np.uint32)
    whole = [teacher for teacher in teachers if not isinstance(teacher, TopKTeacher)]
    if len(whole) < len(teachers) and sampling.temperature != 1:
        raise OpdAlignError(
            "a teacher behind a server tells probabilities at temperature 1; sample the student there too"
        )
    sides: list[PromptedModel | RemoteTeacher] = [student, *whole]
    with torch.no_grad():
        heads = [side.head if isinstance(side, RemoteTeacher) else output_layer(side) for side in sides]
        vocabulary = min(int(head.weight.shape[0]) for head in heads)
        _check_tokens(completion, vocabulary)
        hidden = [
            side.hidden if isinstance(side, RemoteTeacher) else hidden_states(side, [completion]) for side in sides
        ]
        columns = _Columns(completion, [teacher.name for teacher in teachers])
        for start, stop in _chunks(len(completion), vocabulary * len(sides)):
            log_p = sampled_log_probs(sampling, heads[0](hidden[0][start:stop]))[..., :vocabulary]
            found = {
                side.name: tempered(head(state[start:stop])[..., :vocabulary], sampling.temperature).to(log_p.device)
                for side, head, state in zip(whole, heads[1:], hidden[1:], strict=True)
            }
            found |= {each.name: each.log_probs(start, log_p) for each in teachers if isinstance(each, TopKTeacher)}
            _reduce(log_p, [found[teacher.name] for teacher in teachers], request, start, columns)
    return columns.scores()


def rollout_log_probs(side: PromptedModel, rollouts: Rollouts, sampling: Sampling) -> Floats:
    """Log-probability of every token of every rollout, flat like `rollouts.tokens`."""
    _check_tokens(rollouts.tokens, _vocabulary(side.model))
    result = np.empty(len(rollouts.tokens))
    with torch.no_grad():
        head = output_layer(side)
        for rows in _alike(rollouts.length_R, len(side.prompt)):
            completions = [rollouts.completion(int(row)) for row in rows]
            scored = _log_probs(head, hidden_states(side, completions), np.concatenate(completions), sampling)
            ends = np.cumsum([len(completion) for completion in completions])[:-1]
            for row, values in zip(rows, np.split(scored, ends), strict=True):
                result[rollouts.offsets[row] : rollouts.offsets[row + 1]] = values
    return result


def check_tokenizers(student: Any, teacher: Any, name: str) -> None:
    """Refuses a teacher whose tokens mean something else, with an example."""
    mine, theirs = ({number: text for text, number in side.get_vocab().items()} for side in (student, teacher))
    # What only one of them has lies beyond the common vocabulary, where padding and additions live.
    for number in sorted(mine.keys() & theirs.keys()):
        if mine[number] != theirs[number]:
            raise TokenizerMismatch(
                f"teacher {name!r} does not share the student's vocabulary (id {number} is {theirs[number]!r} there, "
                f"{mine[number]!r} here); use a context teacher, or one of the same family"
            )


def check_evaluating(model: Any, name: str) -> None:
    """Refuses a model in training mode: dropout and checkpointing would make its probabilities garbage."""
    if model.training:
        raise OpdAlignError(f"{name!r} is in training mode; call model.eval() before it samples or scores")


def _check_tokens(tokens: Tokens, vocabulary: int) -> None:
    if len(tokens) and int(tokens.max()) >= vocabulary:
        raise OpdAlignError(f"token {int(tokens.max())} of a completion is beyond the common vocabulary ({vocabulary})")


def _body(model: Any) -> Any:
    # PEFT puts its layers inside the model it wraps, so the wrapped body speaks with the adapter.
    return (model.get_base_model() if hasattr(model, "peft_config") else model).base_model


def output_layer(side: PromptedModel) -> Any:
    """The model's output layer, after making sure that it and the body are all there is to the logits."""
    model, head = side.model, side.model.get_output_embeddings()
    few = torch.as_tensor([list(side.prompt[:4])], device=model.device)
    whole = model(input_ids=few, use_cache=False).logits.float()
    split = head(_body(model)(input_ids=few, use_cache=False).last_hidden_state).float()
    if bool(torch.isnan(whole).any()):
        raise OpdAlignError(f"{side.name!r} gives NaN in place of probabilities; has its training diverged?")
    if whole.shape != split.shape or not torch.allclose(whole, split, rtol=1e-2, atol=1e-2 * float(whole.abs().max())):
        raise OpdAlignError(
            f"{side.name!r} ({type(model).__name__}) does more to its logits than body and output layer "
            "(scaling, capping or a virtual prompt), which scoring in chunks does not know"
        )
    return head


def hidden_states(side: PromptedModel, completions: Sequence[Tokens]) -> Tensor:
    """Last hidden state before each token of the completions, one after the other: (tokens, d)."""
    lengths = [len(completion) for completion in completions]
    longest = len(side.prompt) + max(*lengths, 1) - 1  # the last token is scored, not read
    limit = getattr(side.model.config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise OpdAlignError(f"{side.name!r}: prompt and completion are {longest} tokens, its context holds {limit}")
    ids = np.zeros((len(completions), longest), np.int64)
    ids[:, : len(side.prompt)] = side.prompt
    for row, completion in enumerate(completions):
        ids[row, len(side.prompt) : len(side.prompt) + len(completion) - 1] = completion[:-1]
    # Padding on the right of a causal model changes nothing on its left: no mask is needed.
    tokens = torch.as_tensor(ids, device=side.model.device)
    hidden: Tensor = _body(side.model)(input_ids=tokens, use_cache=False).last_hidden_state[:, len(side.prompt) - 1 :]
    if len(completions) == 1:
        return hidden[0, : lengths[0]]
    return torch.cat([state[:length] for state, length in zip(hidden, lengths, strict=True)])


def _log_probs(head: Any, hidden: Tensor, tokens: Tokens, sampling: Sampling) -> Floats:
    result = np.empty(len(tokens))
    for start, stop in _chunks(len(tokens), head.weight.shape[0]):
        log_p = sampled_log_probs(sampling, head(hidden[start:stop]))
        token = torch.as_tensor(tokens[start:stop].astype(np.int64), device=log_p.device)
        result[start:stop] = log_p.gather(-1, token[:, None])[:, 0].double().cpu().numpy()
    return result


def _alike(length_R: Any, prompt: int) -> Iterator[Any]:
    """Rows in batches of similar length, longest first; a batch reads at most `BODY_TOKENS`, padding included."""
    order = np.argsort(-length_R, kind="stable")
    while len(order):
        size = max(1, BODY_TOKENS // (prompt + int(length_R[order[0]])))
        yield order[:size]
        order = order[size:]


def _vocabulary(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def _chunks(length: int, width: int) -> Iterator[tuple[int, int]]:
    # About five float32 arrays of the chunk's size are alive at once.
    step = max(1, CHUNK_BYTES // (5 * 4 * width))
    for start in range(0, length, step):
        yield start, min(start + step, length)


class _Columns:
    """What has left the chunks so far.

    Room for all positions is taken at once, and for children by doubling: small arrays that outlive their chunk would
    settle in the gaps that its large ones leave, and malloc would need fresh memory for every next chunk (28 MB each,
    with two models and 152,000 tokens).
    """

    def __init__(self, completion: Tokens, teachers: Sequence[str]) -> None:
        length = len(completion)
        self.completion, self.teachers, self.filled = completion, teachers, 0
        self.size_T, self.entropy_T = np.zeros(length, np.int64), np.zeros(length)
        self.comparison = [{name: np.zeros(length) for name in COMPARED} for _ in teachers]
        self.token_C = np.zeros(4 * length + 64, np.uint32)
        self.log_C = np.zeros((1 + len(teachers), len(self.token_C)))

    def put(self, start: int, kept: Tensor, log: Sequence[Tensor]) -> None:
        """The kept children of a chunk that starts at a position, with the log-probabilities of all speakers."""
        row, token = kept.nonzero(as_tuple=True)
        end = self.filled + len(row)
        while end > len(self.token_C):
            self.token_C = np.concatenate([self.token_C, np.zeros_like(self.token_C)])
            self.log_C = np.concatenate([self.log_C, np.zeros_like(self.log_C)], axis=1)
        self.size_T[start : start + len(kept)] = kept.sum(-1).cpu().numpy()
        self.token_C[self.filled : end] = token.cpu().numpy()
        for column_C, speaker in zip(self.log_C, log, strict=True):
            column_C[self.filled : end] = speaker[row, token].double().cpu().numpy()
        self.filled = end

    def scores(self) -> PathScores:
        teachers = {
            name: TeacherScores(log_t_C=self.log_C[1 + index, : self.filled].copy(), **self.comparison[index])
            for index, name in enumerate(self.teachers)
        }
        return PathScores(
            self.completion,
            np.concatenate([[0], np.cumsum(self.size_T)]).astype(np.int64),
            self.token_C[: self.filled].copy(),
            self.log_C[0, : self.filled].copy(),
            self.entropy_T,
            teachers,
        )


def _reduce(log_p: Tensor, log_t: Sequence[Tensor], request: ScoreRequest, start: int, columns: _Columns) -> None:
    floor = float(np.log(request.floor))
    stop = start + len(log_p)
    kept = log_p > floor
    for other in log_t:
        kept |= other > floor
    here = torch.arange(len(log_p), device=log_p.device)
    own = torch.as_tensor(columns.completion[start:stop].astype(np.int64), device=log_p.device)
    kept[here, own] = True
    inside = (request.keep_depth >= start) & (request.keep_depth < stop)
    inside &= request.keep_token < log_p.shape[-1]
    depth = torch.as_tensor(request.keep_depth[inside] - start, device=log_p.device)
    kept[depth, torch.as_tensor(request.keep_token[inside].astype(np.int64), device=log_p.device)] = True
    columns.put(start, kept, [log_p, *log_t])
    p = log_p.exp()
    columns.entropy_T[start:stop] = _entropy(log_p, p)
    for found, other in zip(columns.comparison, log_t, strict=True):
        for name, value in _compare(log_p, p, other).items():
            found[name][start:stop] = value


def _compare(log_p: Tensor, p: Tensor, log_t: Tensor) -> dict[str, Any]:
    t = log_t.exp()
    log_m = ((p + t) / 2).log_()
    js = (_kl(p, log_p, log_m) + _kl(t, log_t, log_m)) / 2
    dot = _summed(p * t) / (_length(p) * _length(t))
    columns = {"kl_T": _kl(p, log_p, log_t), "js_T": js, "l2_T": _length(p - t), "cosine_T": dot}
    return {name: column.cpu().numpy() for name, column in columns.items()} | {"entropy_T": _entropy(log_t, t)}


def _kl(weight: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    # 0 · log(0 / x) is 0, and rounding must not make a divergence negative.
    return _summed((log_a - log_b).mul_(weight).masked_fill_(weight == 0, 0.0)).clamp(min=0.0)


def _entropy(log_p: Tensor, p: Tensor) -> Any:
    return -_summed((p * log_p).masked_fill_(p == 0, 0.0)).cpu().numpy()
