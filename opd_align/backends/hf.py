"""Hugging Face transformers as student and teacher: samples from arbitrary prefixes, scores paths.

All targets of a path share its prefix, so the path is read once, and every row of a batch attends to that one copy of
its keys and values, as far as its own prefix goes, beside the few it adds itself: nothing is prefilled twice, and
nothing is copied for each row. A batch may hold rows of many paths and questions. A rollout's tokens depend on its key
and the model alone: every draw takes its randomness from (key, position), never from the batch it happens to be in.
What rounding leaves of the batch is of the size of rounding: in float32 about one draw in a million, in bfloat16 more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from opd_align.backends.scoring import (
    PromptedModel,
    RemoteTeacher,
    TopKTeacher,
    check_evaluating,
    rollout_log_probs,
    sampled_log_probs,
    score_path,
)
from opd_align.settings import Sampling
from opd_align.types import (
    Floats,
    Ints,
    OpdAlignError,
    PathScores,
    Question,
    Rollouts,
    SampleRequest,
    ScoreRequest,
    Tokens,
    mix64,
)

Prompt = Callable[[Question], Sequence[int]]

ATTENTION = "opd_align_trunk"
"""Name under which transformers knows the attention used while sampling."""


@dataclass(frozen=True)
class HFTeacher:
    """A model with its own prompt for each question; the student's own model makes it a self-distillation teacher."""

    name: str
    model: Any
    prompt: Prompt

    @property
    def context_length(self) -> int | None:
        return _context_length(self.model)

    @property
    def fingerprint(self) -> str:
        """The weights as they are now; what the teacher reads is the manifest's to tell."""
        return f"hf-{_weights(self.model, blake2b(digest_size=16)).hexdigest()}"


@dataclass(frozen=True)
class HFStudent:
    """A causal language model as student; give it in eval mode, with or without PEFT adapters.

    `prompt` gives the token ids before the completion. `batch_tokens` bounds rows × tokens of a batch, `batch_rows`
    its rows; running out of memory halves a batch and goes on.
    """

    name: str
    model: Any
    prompt: Prompt
    end_tokens: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    batch_tokens: int = 1 << 19
    batch_rows: int = 512

    @property
    def context_length(self) -> int | None:
        """How many tokens the model can read and write, where it tells."""
        return _context_length(self.model)

    @property
    def fingerprint(self) -> str:
        """Name, sampling settings and weights as they are now: a model in training has another after each step."""
        digest = blake2b(digest_size=16)
        settings = (self.name, self.sampling, sorted(self.end_tokens))
        digest.update(repr(settings).encode())
        return f"hf-{_weights(self.model, digest).hexdigest()}"

    def check(self) -> None:
        """Refuses a model that cannot sample here."""
        _full_attention_layers(self.model, self.name)

    @property
    def token_text(self) -> Callable[[int], str] | None:
        """What a token reads, if whoever writes the prompts can tell."""
        return getattr(self.prompt, "token_text", None)

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        fingerprint = self.fingerprint
        prompts = {request.question.id: request.question for request in requests}
        read = {name: list(self.prompt(question)) for name, question in prompts.items()}
        return [request.keys(fingerprint, read[request.question.id]) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        if not requests:
            return Rollouts.of([])
        check_evaluating(self.model, self.name)
        layers = _full_attention_layers(self.model, self.name)
        readings, rows = self._read(requests)
        steps: list[tuple[Ints, Tokens]] = []
        trunks, trunk_B = _trunks(readings)
        rows = replace(rows, trunk_R=trunk_B[rows.request_R])
        waiting = rows.take(np.flatnonzero(rows.room_R > 0))
        # Rows of one trunk side by side, those of similar depth next to each other: they read the same part of it.
        waiting = waiting.take(np.lexsort((waiting.row_R, -waiting.depth_R, waiting.trunk_R)))
        room = self.batch_tokens
        held: dict[int, _Trunk | None] = {}
        with torch.no_grad():
            while len(waiting.row_R):
                # How long rows will run is not known; half a thousand tokens is a guess that memory can correct.
                tokens = int(waiting.depth_R[: self.batch_rows].max()) + min(int(waiting.room_R.max()), 512)
                size = max(1, min(self.batch_rows, room // tokens))
                batch = waiting.take(np.arange(size)[: len(waiting.row_R)])
                # A trunk takes the room of a row. Small batches of many trunks decode together: what a step costs
                # hardly depends on how many rows take it.
                first = np.flatnonzero(np.diff(batch.trunk_R, prepend=-1))
                if len(first) > 1 and len(first) + len(batch.row_R) > max(room // tokens, 1):
                    batch = batch.take(np.arange(first[1]))
                try:
                    held = {
                        number: held[number] if number in held else self._prefill(trunks[number], layers)
                        for number in np.unique(batch.trunk_R).tolist()
                    }
                    steps += self._continue(held, batch)
                except RuntimeError as error:
                    if len(batch.row_R) == 1 or not should_reduce_batch_size(error):
                        raise
                    room = len(batch.row_R) // 2 * tokens
                else:
                    waiting = waiting.take(np.arange(len(batch.row_R), len(waiting.row_R)))
                    continue
                held = {}
                clear_device_cache(garbage_collection=True)
        return _assembled(requests, rows, steps, self.end_tokens)

    def score(self, request: ScoreRequest, teachers: Sequence[Any]) -> PathScores:
        sides = [self._heard(request, teacher) for teacher in teachers]
        return score_path(self._side(request.question, None), sides, request, self.sampling)

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any | None) -> Floats:
        if teacher is not None and hasattr(teacher, "token_log_probs"):  # not here
            return teacher.token_log_probs(question, rollouts)
        sampling = self.sampling if teacher is None else Sampling(self.sampling.temperature)
        return rollout_log_probs(self._side(question, teacher), rollouts, sampling)

    def _heard(self, request: ScoreRequest, teacher: Any) -> PromptedModel | RemoteTeacher | TopKTeacher:
        if hasattr(teacher, "top_log_probs"):  # behind a server
            return TopKTeacher(teacher.name, teacher.top_log_probs(request.question, request.completion))
        if hasattr(teacher, "hidden_states"):  # in another process
            hidden = teacher.hidden_states(request.question, request.completion)
            return RemoteTeacher(teacher.name, teacher.head(self.model.device), hidden.to(self.model.device))
        return self._side(request.question, teacher)

    def _side(self, question: Question, teacher: HFTeacher | None) -> PromptedModel:
        speaker = teacher or self
        return PromptedModel(speaker.name, speaker.model, list(speaker.prompt(question)))

    def _read(self, requests: Sequence[SampleRequest]) -> tuple[list[tuple[int, ...]], _Rows]:
        """What each request reads before it continues, and its rows."""
        fingerprint = self.fingerprint
        prompts: dict[str, list[int]] = {}
        readings = []
        for request in requests:
            if request.question.id not in prompts:
                prompts[request.question.id] = self._checked_prompt(request.question)
            self._check_prefix(request.prefix)
            readings.append((*prompts[request.question.id], *request.prefix.tolist()))
        n_B = [request.n for request in requests]
        request_R = np.repeat(np.arange(len(requests)), n_B)
        keys = [request.keys(fingerprint, prompts[request.question.id]) for request in requests]
        room_B = [self.sampling.max_tokens - len(request.prefix) for request in requests]
        return readings, _Rows(
            np.arange(len(request_R)),
            request_R,
            np.array([len(reading) - 1 for reading in readings], np.int64)[request_R],
            np.array([reading[-1] for reading in readings], np.int64)[request_R],
            np.array(room_B, np.int64)[request_R],
            np.concatenate([np.empty(0, np.uint64), *keys]),
            np.zeros(len(request_R), np.int64),
        )

    def _checked_prompt(self, question: Question) -> list[int]:
        prompt = list(self.prompt(question))
        if not prompt:
            raise OpdAlignError(f"question {question.id!r} has an empty prompt; at least one token must precede")
        limit = self.context_length
        if limit is not None and len(prompt) + self.sampling.max_tokens > limit:
            raise OpdAlignError(
                f"question {question.id!r}: {len(prompt)} prompt tokens and up to {self.sampling.max_tokens} "
                f"new ones do not fit the context of {self.name!r} ({limit})"
            )
        return prompt

    def _check_prefix(self, prefix: Tokens) -> None:
        if np.isin(prefix, self.end_tokens).any():
            raise OpdAlignError("a prefix to continue cannot hold an end-of-sequence token")
        if len(prefix) > self.sampling.max_tokens:
            raise OpdAlignError(
                f"a prefix of {len(prefix)} tokens is longer than completions may be ({self.sampling.max_tokens})"
            )
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        if len(prefix) and int(prefix.max()) >= vocabulary:
            raise OpdAlignError(f"token {int(prefix.max())} of a prefix is beyond the vocabulary ({vocabulary})")

    def _prefill(self, trunk: tuple[int, ...], layers: int) -> _Trunk | None:
        if not trunk:
            return None
        ids = torch.as_tensor([trunk], device=self.model.device)
        found = self.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        if len(found.layers) != layers:
            raise OpdAlignError(f"{self.name!r} caches {len(found.layers)} layers, {layers} were expected")
        return _Trunk([layer.keys[0] for layer in found.layers], [layer.values[0] for layer in found.layers])

    def _continue(self, trunks: Mapping[int, _Trunk | None], rows: _Rows) -> list[tuple[Ints, Tokens]]:
        """Decodes rows side by side until all have ended; step by step, which rows took which tokens."""
        device = self.model.device
        shared = _shared(trunks, rows, device)
        cache = Cache(layer_class_to_replicate=_OwnLayer)
        input_B = torch.as_tensor(rows.last_R, device=device)
        steps: list[tuple[Ints, Tokens]] = []
        alive = np.ones(len(rows.row_R), bool)
        with _attending(self.model):
            while True:
                position_B = rows.depth_R + np.minimum(len(steps), rows.room_R - 1)
                logits = self.model(
                    input_ids=input_B[:, None],
                    position_ids=torch.as_tensor(position_B, device=device)[:, None],
                    past_key_values=cache,
                    use_cache=True,
                    opd_align_shared=shared,
                ).logits[:, -1]
                input_B = _draw(sampled_log_probs(self.sampling, logits), _uniform(rows.key_R, position_B))
                token_B = input_B.cpu().numpy()
                steps.append((rows.row_R[alive], token_B[alive].astype(np.uint32)))
                alive &= ~np.isin(token_B, self.end_tokens) & (rows.room_R > len(steps))
                if not alive.any():
                    return steps
                # Moving the survivors together copies their caches, so rows that ended go along for a while.
                if alive.mean() < 0.8:
                    left = np.flatnonzero(alive)
                    rows, alive = rows.take(left), alive[left]
                    at = torch.as_tensor(left, device=device)
                    input_B = input_B[at]
                    shared = _shared(trunks, rows, device)
                    cache.batch_select_indices(at)


@dataclass(frozen=True)
class _Rows:
    """Rollouts to make, side by side: where each goes, how deep it starts, with which token, how far it may run."""

    row_R: Ints
    request_R: Ints
    depth_R: Ints
    last_R: Ints
    room_R: Ints
    key_R: NDArray[np.uint64]
    trunk_R: Ints

    def take(self, rows: Ints) -> _Rows:
        return _Rows(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True)
class _Trunk:
    """Keys and values of a trunk, layer by layer (heads, tokens, size): one copy for all rows that read it."""

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(frozen=True)
class _Shared:
    """Rows `start` to `stop` of a batch, and what they share: the part of a trunk that the deepest of them has read.

    `bias_BT` closes the part that a row has not read; `None` if all have read all of it.
    """

    start: int
    stop: int
    trunk: _Trunk | None
    bias_BT: Tensor | None


def _shared(trunks: Mapping[int, _Trunk | None], rows: _Rows, device: Any) -> list[_Shared]:
    """What the rows of a batch share, trunk by trunk; rows of one trunk stand together."""
    edges = [*np.flatnonzero(np.diff(rows.trunk_R, prepend=-1)).tolist(), len(rows.trunk_R)]
    parts = []
    for start, stop in pairwise(edges):
        trunk, depth_B = trunks[int(rows.trunk_R[start])], rows.depth_R[start:stop]
        longest = int(depth_B.max())
        if trunk is None or not longest:
            parts.append(_Shared(start, stop, None, None))
            continue
        read = _Trunk(*([layer[:, :longest] for layer in layers] for layers in (trunk.keys, trunk.values)))
        bias = None
        if (depth_B != longest).any():
            unread_BT = torch.arange(longest, device=device) >= torch.as_tensor(depth_B, device=device)[:, None]
            bias = torch.where(unread_BT, -torch.inf, 0.0).to(read.keys[0].dtype)
        parts.append(_Shared(start, stop, read, bias))
    return parts


class _OwnLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The keys and values that rows add themselves, in a buffer that doubles: a step writes, it does not copy."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.is_initialized, self.length = True, 0
            self.room = key_states.new_empty(2, *key_states.shape[:2], 32, key_states.shape[-1])
        if self.length == self.room.shape[-2]:
            self.room = torch.cat([self.room, torch.empty_like(self.room)], dim=-2)
        self.room[0, :, :, self.length] = key_states[:, :, 0]
        self.room[1, :, :, self.length] = value_states[:, :, 0]
        self.length += 1
        self.keys, self.values = self.room[:, :, :, : self.length]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        self.room = self.room[:, indices]


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    opd_align_shared: Sequence[_Shared],
    **options: Any,
) -> tuple[Tensor, None]:
    """One new token a row over the trunk that it shares and the row's own tokens, in one softmax."""
    unknown = [name for name in ("sliding_window", "softcap", "s_aux") if options.get(name) is not None]
    if unknown:
        raise OpdAlignError(f"sampling does not know attention with {unknown[0]}; use the vLLM backend for this model")
    rows, heads, _, size = query.shape
    groups = key.shape[1]
    query = (query * scaling).view(rows, groups, heads // groups, size)
    own = query @ key.transpose(-1, -2)
    mixed = [
        _mixed(module.layer_idx, shared, *(part[shared.start : shared.stop] for part in (query, own, value)))
        for shared in opd_align_shared
    ]
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).reshape(rows, 1, heads, value.shape[-1]), None


def _mixed(layer: int, shared: _Shared, query: Tensor, own: Tensor, value: Tensor) -> Tensor:
    if shared.trunk is None:
        return torch.softmax(own, dim=-1, dtype=torch.float32).to(value.dtype) @ value
    trunk_key, trunk_value = shared.trunk.keys[layer], shared.trunk.values[layer]
    rows, groups, each, size = query.shape
    # Grouped by key head, all rows and query heads meet the trunk in one product.
    gathered = query.transpose(0, 1).reshape(groups, -1, size)
    common = (gathered @ trunk_key.transpose(-1, -2)).view(groups, rows, each, -1)
    if shared.bias_BT is not None:
        common += shared.bias_BT[:, None]
    weight = torch.softmax(torch.cat([common.transpose(0, 1), own], dim=-1), dim=-1, dtype=torch.float32)
    weight = weight.to(value.dtype)
    length = common.shape[-1]
    read = weight[..., :length].transpose(0, 1).reshape(groups, -1, length) @ trunk_value
    return read.view(groups, rows, each, -1).transpose(0, 1) + weight[..., length:] @ value


# No mask function goes with it: transformers then makes no mask, and `_attend` needs none.
AttentionInterface.register(ATTENTION, _attend)


@contextmanager
def _attending(model: Any) -> Iterator[None]:
    """Within, the model attends through `_attend`."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def _full_attention_layers(model: Any, name: str) -> int:
    """Number of layers, all of which attend to everything; other models are refused."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    layers = DynamicCache(config=model.config).layers
    odd = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if odd or not layers or not getattr(base, "_supports_attention_backend", False):
        raise OpdAlignError(
            f"{name!r} ({type(base).__name__}) cannot sample here: every layer must attend to the whole context, "
            f"through transformers' attention interface{f' (it has {odd[0]})' if odd else ''}; use the vLLM backend"
        )
    return len(layers)


def _context_length(model: Any) -> int | None:
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def _adapters(model: Any) -> tuple[str, ...]:
    """Names of the PEFT adapters that take part; their weights alone do not tell."""
    if not hasattr(model, "peft_config"):
        return ()
    if any(getattr(module, "disable_adapters", False) is True for module in model.modules()):
        return ("disabled",)
    return tuple(sorted(map(str, model.active_adapters)))


def _weights(model: Any, digest: Any) -> Any:
    """All weights and active adapters, into a digest."""
    digest.update(repr(_adapters(model)).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name}\0{weight.dtype}\0{tuple(weight.shape)}\0{_checksum(weight)}\0".encode())
    return digest


def _checksum(weight: Tensor) -> int:
    """Sum of a tensor's bits as integers: exact, so the same on any number of threads, and as fast as memory."""
    weight = weight.detach().contiguous()
    if weight.data_ptr() % 8:  # a slice of a larger buffer need not start at a whole word
        weight = weight.clone()
    flat = weight.view(-1).view(torch.uint8)
    whole = len(flat) // 8 * 8
    return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].sum())


def _uniform(key_B: NDArray[np.uint64], position_B: Ints) -> Floats:
    word = mix64(key_B ^ mix64(position_B.astype(np.uint64)))
    return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _draw(log_p: Tensor, uniform_B: Floats) -> Tensor:
    """One token a row by inverting its distribution function, the likeliest token first, then in order of id."""
    uniform = torch.as_tensor(uniform_B, device=log_p.device)
    top, token = log_p.max(dim=-1)
    if bool(torch.isnan(top).any()):
        raise OpdAlignError("the student gives NaN in place of probabilities; has its training diverged?")
    beyond = uniform - top.double().exp()
    # Most positions are all but certain: only the others need the whole distribution function.
    rest = torch.nonzero(beyond >= 0)[:, 0]
    if len(rest):
        mass = log_p[rest].double().exp_().scatter_(-1, token[rest, None], 0.0)
        cdf = mass.cumsum_(-1)
        # Rounding may leave the uniform number beyond the last step; the last token with any mass takes it.
        wanted = torch.minimum(beyond[rest], cdf[:, -1] * (1 - 2.0**-40))
        found = torch.searchsorted(cdf, wanted[:, None], right=True)[:, 0]
        token[rest] = torch.where(cdf[:, -1] > 0, found, token[rest])
    return token


def _trunks(readings: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], Ints]:
    """The longest sequences that have all that requests read, but the last token, as prefixes; and whose is whose."""
    heads = sorted({reading[:-1] for reading in readings})
    # In lexicographic order a sequence stands right before its extensions.
    follows = zip(heads, [*heads[1:], None], strict=True)
    trunks = [head for head, after in follows if after is None or after[: len(head)] != head]
    return trunks, np.array([bisect_left(trunks, reading[:-1]) for reading in readings], np.int64)


def _assembled(
    requests: Sequence[SampleRequest], rows: _Rows, steps: Sequence[tuple[Ints, Tokens]], ends: Sequence[int]
) -> Rollouts:
    """Prefixes and drawn tokens as rollouts; the steps of a row stand in their order."""
    row = np.concatenate([np.empty(0, np.int64), *(step for step, _ in steps)])
    drawn = np.concatenate([np.empty(0, np.uint32), *(token for _, token in steps)])
    order = np.argsort(row, kind="stable")
    drawn_R = np.split(drawn[order], np.searchsorted(row[order], np.arange(1, max(len(rows.row_R), 1))))
    launch_R = [len(requests[number].prefix) for number in rows.request_R]
    completions = [
        np.concatenate([requests[number].prefix, tokens]).astype(np.uint32)
        for number, tokens in zip(rows.request_R, drawn_R, strict=True)
    ] if len(rows.row_R) else []  # fmt: skip
    truncated = [not len(tokens) or int(tokens[-1]) not in ends for tokens in completions]
    return Rollouts.of(completions, launch=launch_R, key=rows.key_R.tolist(), truncated=truncated)
