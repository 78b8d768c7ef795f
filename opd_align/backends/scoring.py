"""Scoring along a path: next-token probabilities of student and teachers, without ever holding all logits.

A path of 30,000 tokens times a vocabulary of 152,000 is 18 GB of logits per model. So each model's body runs once and
returns hidden states; then the output layers run on a few positions at a time, and each chunk is reduced to what a node
needs: log-probabilities of the kept tokens, entropies, divergences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opd_align.settings import Sampling
from opd_align.types import (
    OVERLAP_TOP_K,
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

COMPARED = ("entropy_T", "kl_T", "js_T", "l2_T", "cosine_T", "overlap_T", "overlap_advantage_T")
"""Full-vocabulary columns of a teacher."""

BODY_TOKENS = 16384
"""Tokens per forward pass of a model's body when many completions are scored."""


class TokenizerMismatch(OpdAlignError):
    """Student and teacher do not share a vocabulary."""


def sampled_log_probs(sampling: Sampling, logits: Tensor) -> Tensor:
    """Log-probabilities of the distribution that is sampled from, in float32; -inf for tokens that are cut off."""
    log_p = tempered(logits, sampling.temperature)
    if sampling.top_k and sampling.top_k < log_p.shape[-1]:
        # Tokens that tie with the last one are kept, as in transformers.
        threshold = log_p.topk(sampling.top_k, dim=-1).values[..., -1:]
        log_p = _normalised(log_p.masked_fill(log_p < threshold, -torch.inf))
    if sampling.top_p < 1:
        ranked, order = log_p.sort(dim=-1, descending=True, stable=True)
        # A token is kept if the mass before it has not reached top_p; so the most likely one always is.
        mass_before = ranked.exp().cumsum(-1) - ranked.exp()
        ranked = ranked.masked_fill(mass_before >= sampling.top_p, -torch.inf)
        log_p = _normalised(torch.empty_like(log_p).scatter_(-1, order, ranked))
    return log_p


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities at a temperature, in float32."""
    logits = logits.float()
    return _normalised(logits if temperature == 1 else logits / temperature)


def _normalised(logits: Tensor) -> Tensor:
    """`log_softmax` in float32, two digits more accurate over 152,000 tokens: `sum` adds pairwise, not in sequence."""
    logits = logits - logits.amax(-1, keepdim=True)
    return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1).double()


def _norm(values: Tensor) -> Tensor:
    return _sum(values * values).sqrt_()


@dataclass(frozen=True)
class PromptedModel:
    """A model that reads a completion after its own prompt.

    Args:
        name: The model's name in results and messages.
        model: A causal language model in eval mode.
        prompt: Token ids before the completion; at least one.
    """

    name: str
    model: Any
    prompt: Sequence[int]

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise OpdAlignError(f"{self.name!r} has an empty prompt; at least one token (such as <bos>) is required")
        check_eval_mode(self.model, self.name)


@dataclass(frozen=True)
class TopKTeacher:
    """A teacher of which only the most likely tokens at each position are known.

    Args:
        name: The teacher's name in results.
        top: Its most likely tokens along the completion, at temperature 1.
    """

    name: str
    top: TopLogProbs

    def log_probs(self, start: int, log_p: Tensor) -> Tensor:
        """Full distributions: the known tokens as given, the remaining mass in proportion to the student.

        Of all distributions that agree with the known values, this is the closest to the student's in KL.
        """
        rows = slice(start, start + len(log_p))
        outside = int(self.top.token_TK[rows].max(initial=0))
        if outside >= log_p.shape[-1]:
            raise OpdAlignError(
                f"teacher {self.name!r} has token {outside} among its most likely ones, which is outside the common "
                f"vocabulary ({log_p.shape[-1]}); does it have the student's tokenizer?"
            )
        token = torch.as_tensor(self.top.token_TK[rows], device=log_p.device)
        log_t = torch.as_tensor(self.top.log_t_TK[rows], device=log_p.device)
        known = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, token, True)
        given = torch.full_like(log_p, -torch.inf).scatter_(1, token, log_t.to(log_p.dtype))
        remaining = torch.log((1 - _sum(given.exp())).clamp(min=1e-12))
        others = torch.logsumexp(log_p.masked_fill(known, -torch.inf).double(), -1)
        spread = log_p + (remaining - others).to(log_p.dtype)[:, None]
        return torch.where(known, given, spread)


@dataclass(frozen=True)
class RemoteTeacher:
    """A teacher whose body ran in another process: its last hidden states, and a local copy of its output layer.

    Hidden states are a few thousand numbers per position where logits are 152,000, and give exactly the same logits.

    Args:
        name: The teacher's name in results.
        head: The output layer, on the device of `hidden`.
        hidden: Last hidden state before each token of the completion: (tokens, d).
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
    """Scores student and teachers along one completion, each after its own prompt.

    The student's probabilities are those it samples with. A teacher's are at the same temperature, over the tokens
    that student and all teachers have in common: vocabularies are padded to different lengths.
    """
    completion = np.asarray(request.completion, np.uint32)
    full_teachers = [teacher for teacher in teachers if not isinstance(teacher, TopKTeacher)]
    if len(full_teachers) < len(teachers) and sampling.temperature != 1:
        raise OpdAlignError(
            "a teacher behind a server returns probabilities at temperature 1; sample the student at temperature 1 too"
        )
    models: list[PromptedModel | RemoteTeacher] = [student, *full_teachers]
    with torch.no_grad():
        heads = [model.head if isinstance(model, RemoteTeacher) else output_layer(model) for model in models]
        vocabulary = min(int(head.weight.shape[0]) for head in heads)
        _check_tokens(completion, vocabulary)
        hidden = [
            model.hidden if isinstance(model, RemoteTeacher) else hidden_states(model, [completion]) for model in models
        ]
        columns = _Columns(completion, [teacher.name for teacher in teachers])
        for start, stop in _chunks(len(completion), vocabulary * len(models)):
            log_p = sampled_log_probs(sampling, heads[0](hidden[0][start:stop]))[..., :vocabulary]
            log_t = {
                model.name: tempered(head(state[start:stop])[..., :vocabulary], sampling.temperature).to(log_p.device)
                for model, head, state in zip(full_teachers, heads[1:], hidden[1:], strict=True)
            }
            log_t |= {each.name: each.log_probs(start, log_p) for each in teachers if isinstance(each, TopKTeacher)}
            _reduce(log_p, [log_t[teacher.name] for teacher in teachers], request, start, columns)
    return columns.scores()


def rollout_log_probs(prompted: PromptedModel, rollouts: Rollouts, sampling: Sampling) -> Floats:
    """Log-probability of every token of every rollout, flat like `rollouts.tokens`."""
    _check_tokens(rollouts.tokens, int(prompted.model.get_output_embeddings().weight.shape[0]))
    result = np.empty(len(rollouts.tokens))
    with torch.no_grad():
        head = output_layer(prompted)
        for rows in _length_batches(rollouts.length_R, len(prompted.prompt)):
            completions = [rollouts.completion(int(row)) for row in rows]
            scored = _log_probs(head, hidden_states(prompted, completions), np.concatenate(completions), sampling)
            ends = np.cumsum([len(completion) for completion in completions])[:-1]
            for row, values in zip(rows, np.split(scored, ends), strict=True):
                result[rollouts.offsets[row] : rollouts.offsets[row + 1]] = values
    return result


def check_tokenizers(student: Any, teacher: Any, name: str) -> None:
    """Rejects a teacher whose token ids stand for other tokens than the student's."""
    own, other = ({number: text for text, number in each.get_vocab().items()} for each in (student, teacher))
    # Ids that only one of them has are padding and added tokens, outside the common vocabulary.
    for number in sorted(own.keys() & other.keys()):
        if own[number] != other[number]:
            raise TokenizerMismatch(
                f"teacher {name!r} does not share the student's vocabulary (id {number} is {other[number]!r} there, "
                f"{own[number]!r} here); use a context teacher, or one of the same family"
            )


def check_eval_mode(model: Any, name: str) -> None:
    """Rejects a model in training mode: dropout and checkpointing would corrupt its probabilities."""
    if model.training:
        raise OpdAlignError(f"{name!r} is in training mode; call model.eval() before it samples or scores")


def _check_tokens(tokens: Tokens, vocabulary: int) -> None:
    if len(tokens) and int(tokens.max()) >= vocabulary:
        raise OpdAlignError(
            f"token {int(tokens.max())} of a completion is outside the common vocabulary ({vocabulary})"
        )


def _body(model: Any) -> Any:
    # PEFT puts its layers inside the model it wraps, so the wrapped body includes the adapter.
    return (model.get_base_model() if hasattr(model, "peft_config") else model).base_model


def output_layer(prompted: PromptedModel) -> Any:
    """The model's output layer, after checking that body and output layer alone reproduce the logits."""
    model, head, body = prompted.model, prompted.model.get_output_embeddings(), _body(prompted.model)
    ids = torch.as_tensor([list(prompted.prompt[:4])], device=model.device)
    with _recorded_autocast(body, model.device.type) as autocast:
        logits = model(input_ids=ids, use_cache=False).logits.float()
    # Accelerate wraps the model's forward, but not the body's, in autocast: compare both in the same precision.
    with autocast.state:
        split = head(body(input_ids=ids, use_cache=False).last_hidden_state).float()
    if bool(torch.isnan(logits).any()):
        raise OpdAlignError(f"the probabilities of {prompted.name!r} are NaN; has its training diverged?")
    scale = float(logits.abs().max())
    if logits.shape != split.shape or not torch.allclose(logits, split, rtol=1e-2, atol=1e-2 * scale):
        raise OpdAlignError(
            f"the logits of {prompted.name!r} ({type(model).__name__}) are not those of its body and output layer "
            "(scaling, capping or a virtual prompt?), which scoring in chunks does not support"
        )
    return head


@dataclass
class _Autocast:
    """The autocast state in which a module was last called."""

    state: AbstractContextManager[Any]


@contextmanager
def _recorded_autocast(module: Any, device_type: str) -> Iterator[_Autocast]:
    """Records the autocast state in which the module is called within the block."""
    recorded = _Autocast(nullcontext())

    def record(*_: Any) -> None:
        enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        recorded.state = torch.autocast(device_type, dtype=dtype, enabled=enabled)

    handle = module.register_forward_pre_hook(record)
    try:
        yield recorded
    finally:
        handle.remove()


def hidden_states(prompted: PromptedModel, completions: Sequence[Tokens]) -> Tensor:
    """Last hidden state before each token of the completions, concatenated: (tokens, d)."""
    lengths = [len(completion) for completion in completions]
    longest = len(prompted.prompt) + max(*lengths, 1) - 1  # the last token is scored, not read
    limit = getattr(prompted.model.config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise OpdAlignError(
            f"{prompted.name!r}: prompt and completion are {longest} tokens, but its context is {limit}"
        )
    ids = np.zeros((len(completions), longest), np.int64)
    ids[:, : len(prompted.prompt)] = prompted.prompt
    for row, completion in enumerate(completions):
        ids[row, len(prompted.prompt) : len(prompted.prompt) + len(completion) - 1] = completion[:-1]
    # In a causal model, padding on the right does not affect what is left of it: no mask is needed.
    tokens = torch.as_tensor(ids, device=prompted.model.device)
    hidden: Tensor = _body(prompted.model)(input_ids=tokens, use_cache=False).last_hidden_state[
        :, len(prompted.prompt) - 1 :
    ]
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


def _length_batches(length_R: Any, prompt: int) -> Iterator[Any]:
    """Rows in batches of similar length, longest first, of at most `BODY_TOKENS` tokens, padding included."""
    order = np.argsort(-length_R, kind="stable")
    while len(order):
        size = max(1, BODY_TOKENS // (prompt + int(length_R[order[0]])))
        yield order[:size]
        order = order[size:]


def _chunks(length: int, width: int) -> Iterator[tuple[int, int]]:
    # About five float32 arrays of the chunk's size are alive at once.
    step = max(1, CHUNK_BYTES // (5 * 4 * width))
    for start in range(0, length, step):
        yield start, min(start + step, length)


class _Columns:
    """The results of the chunks so far.

    Arrays for all positions are allocated at once, and those for children grow by doubling: small arrays that outlive
    their chunk would fill the gaps that its large ones leave, and malloc would need new memory for every next chunk
    (28 MB each, with two models and 152,000 tokens).
    """

    def __init__(self, completion: Tokens, teachers: Sequence[str]) -> None:
        length = len(completion)
        self.completion, self.teachers, self.filled = completion, teachers, 0
        self.size_T, self.entropy_T = np.zeros(length, np.int64), np.zeros(length)
        self.comparison = [{name: np.zeros(length) for name in COMPARED} for _ in teachers]
        self.token_C = np.zeros(4 * length + 64, np.uint32)
        self.log_C = np.zeros((1 + len(teachers), len(self.token_C)))

    def put(self, start: int, kept: Tensor, log: Sequence[Tensor]) -> None:
        """Adds the kept children of a chunk that starts at a position; `log` has student first, then the teachers."""
        row, token = kept.nonzero(as_tuple=True)
        end = self.filled + len(row)
        while end > len(self.token_C):
            self.token_C = np.concatenate([self.token_C, np.zeros_like(self.token_C)])
            self.log_C = np.concatenate([self.log_C, np.zeros_like(self.log_C)], axis=1)
        self.size_T[start : start + len(kept)] = kept.sum(-1).cpu().numpy()
        self.token_C[self.filled : end] = token.cpu().numpy()
        for column_C, log_model in zip(self.log_C, log, strict=True):
            column_C[self.filled : end] = log_model[row, token].double().cpu().numpy()
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
    position = torch.arange(len(log_p), device=log_p.device)
    own = torch.as_tensor(columns.completion[start:stop].astype(np.int64), device=log_p.device)
    kept[position, own] = True
    inside = (request.keep_depth >= start) & (request.keep_depth < stop)
    inside &= request.keep_token < log_p.shape[-1]
    depth = torch.as_tensor(request.keep_depth[inside] - start, device=log_p.device)
    kept[depth, torch.as_tensor(request.keep_token[inside].astype(np.int64), device=log_p.device)] = True
    columns.put(start, kept, [log_p, *log_t])
    p = log_p.exp()
    columns.entropy_T[start:stop] = _entropy(log_p, p)
    for comparison, other in zip(columns.comparison, log_t, strict=True):
        for name, value in _compare(log_p, p, other).items():
            comparison[name][start:stop] = value


def _compare(log_p: Tensor, p: Tensor, log_t: Tensor) -> dict[str, Any]:
    t = log_t.exp()
    log_m = ((p + t) / 2).log_()
    js = (_kl(p, log_p, log_m) + _kl(t, log_t, log_m)) / 2
    cosine = _sum(p * t) / (_norm(p) * _norm(t))
    columns = {"kl_T": _kl(p, log_p, log_t), "js_T": js, "l2_T": _norm(p - t), "cosine_T": cosine}
    columns["overlap_T"], columns["overlap_advantage_T"] = _overlap(log_p, log_t)
    return {name: column.cpu().numpy() for name, column in columns.items()} | {"entropy_T": _entropy(log_t, t)}


def _overlap(log_p: Tensor, log_t: Tensor) -> tuple[Tensor, Tensor]:
    """How far the most likely tokens of student and teacher are the same, and the teacher's preference among those."""
    k = min(OVERLAP_TOP_K, log_p.shape[-1])
    top_p, top_t = log_p.topk(k, dim=-1).indices, log_t.topk(k, dim=-1).indices
    log_p, log_t = log_p.gather(-1, top_t).double(), log_t.gather(-1, top_t).double()
    # Tokens that sampling cuts off are not among the student's, whatever rank `topk` gives them.
    shared = (top_t[:, :, None] == top_p[:, None, :]).any(-1) & torch.isfinite(log_p) & torch.isfinite(log_t)
    count = shared.sum(-1)
    advantage = (log_t.exp() * (log_p - log_t)).masked_fill(~shared, 0.0).sum(-1) / count  # 0 / 0 is NaN
    return count.double() / k, advantage


def _kl(weight: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    # 0 · log(0 / x) is 0, and rounding must not make a divergence negative.
    return _sum((log_a - log_b).mul_(weight).masked_fill_(weight == 0, 0.0)).clamp(min=0.0)


def _entropy(log_p: Tensor, p: Tensor) -> Any:
    return -_sum((p * log_p).masked_fill_(p == 0, 0.0)).cpu().numpy()
