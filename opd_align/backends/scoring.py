"""Scoring along a path: next-token probabilities of student and teachers, without ever holding all logits.

A path of 30,000 tokens times a vocabulary of 152,000 is 18 GB of logits per model. So each model's body runs once and
returns hidden states; then the output layers run on as many positions as fit into the memory that is free, one model
after the other, and each chunk is reduced to what a node needs (`scoring_columns`): log-probabilities of the kept
tokens, entropies, divergences. `precision` says in how many digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opd_align.backends.precision import float32_attention, float32_layers, float32_weights, scoring_precision
from opd_align.backends.scoring_columns import Chunk, Columns, block_bytes, row_blocks
from opd_align.settings import Precision, Sampling
from opd_align.types import Floats, OpdAlignError, PathScores, Rollouts, ScoreRequest, Tokens, TopLogProbs

CPU_BYTES = 1 << 30
"""Memory for one chunk of positions on a CPU, unless it is set."""
GPU_SHARE, MIN_GPU_BYTES, MAX_GPU_BYTES = 0.5, 64 << 20, 16 << 30
"""Share of a GPU's free memory for one chunk, and its limits; more than the largest is not faster."""
CHUNK_ARRAYS = 3
"""Float32 arrays of a chunk's size that are alive at once: the student's log-probabilities, one model's logits and its
log-probabilities. All others are of the size of a block (`row_blocks`)."""

BODY_TOKENS = 16384
"""Tokens per forward pass of a model's body when many completions are scored."""


class TokenizerMismatch(OpdAlignError):
    """Student and teacher do not share a vocabulary."""


def sampled_log_probs(sampling: Sampling, logits: Tensor) -> Tensor:
    """Log-probabilities of the distribution that is sampled from, in float32; -inf for tokens that are cut off."""
    log_p = tempered(logits, sampling.temperature)
    if (not sampling.top_k or sampling.top_k >= log_p.shape[-1]) and sampling.top_p == 1:
        return log_p
    if log_p.ndim == 1:
        return _cut_off(sampling, log_p)
    for (block,) in row_blocks(log_p):
        block.copy_(_cut_off(sampling, block))
    return log_p


def _cut_off(sampling: Sampling, log_p: Tensor) -> Tensor:
    """Top-k, then top-p, each renormalised."""
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
    return _normalised(logits.float() if temperature == 1 else logits.float() / temperature)


def _normalised(logits: Tensor) -> Tensor:
    """`log_softmax` in float32, two digits more accurate over 152,000 tokens: `sum` adds pairwise, not in sequence."""
    log_p = logits - logits.amax(-1, keepdim=True)
    if log_p.ndim == 1:
        return log_p.sub_(log_p.exp().sum(-1, keepdim=True).log_())
    for (block,) in row_blocks(log_p):
        block.sub_(block.exp().sum(-1, keepdim=True).log_())
    return log_p


@dataclass(frozen=True)
class PromptedModel:
    """A model that reads a completion after its own prompt.

    Args:
        name: The model's name in results and messages.
        model: A causal language model in eval mode.
        prompt: Token ids before the completion; at least one.
        precision: The precision in which it is scored.
    """

    name: str
    model: Any
    prompt: Sequence[int]
    precision: Precision = "native"

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

    def log_probs(self, rows: Any, log_p: Tensor) -> Tensor:
        """Full distributions: the known tokens as given, the remaining mass in proportion to the student.

        Of all distributions that agree with the known values, this is the closest to the student's in KL.

        Args:
            rows: Positions of the completion, as a slice or array.
            log_p: The student's log-probabilities there.
        """
        outside = int(self.top.token_TK[rows].max(initial=0))
        if outside >= log_p.shape[-1]:
            raise OpdAlignError(
                f"teacher {self.name!r} has token {outside} among its most likely ones, which is outside the common "
                f"vocabulary ({log_p.shape[-1]}); does it have the student's tokenizer?"
            )
        token = torch.as_tensor(self.top.token_TK[rows], device=log_p.device)
        log_t = torch.as_tensor(self.top.log_t_TK[rows], device=log_p.device)
        result, start = torch.empty_like(log_p), 0
        for (block,) in row_blocks(log_p):
            part = slice(start, start + len(block))
            result[part], start = _completed(block, token[part], log_t[part]), part.stop
        return result


def _completed(log_p: Tensor, token: Tensor, log_t: Tensor) -> Tensor:
    known = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, token, True)
    given = torch.full_like(log_p, -torch.inf).scatter_(1, token, log_t.to(log_p.dtype))
    remaining = torch.log((1 - given.exp().sum(-1).double()).clamp(min=1e-12))
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
    *,
    chunk_bytes: int | None = None,
) -> PathScores:
    """Scores student and teachers along one completion, each after its own prompt.

    The student's probabilities are those it samples with. A teacher's are at the same temperature, over the tokens
    that student and all teachers have in common: vocabularies are padded to different lengths. `chunk_bytes` is the
    memory for one chunk of positions; `None`: by the memory that is free.
    """
    completion = np.asarray(request.completion, np.uint32)
    full_teachers = [teacher for teacher in teachers if not isinstance(teacher, TopKTeacher)]
    if len(full_teachers) < len(teachers) and sampling.temperature != 1:
        raise OpdAlignError(
            "a teacher behind a server returns probabilities at temperature 1; sample the student at temperature 1 too"
        )
    models: list[PromptedModel | RemoteTeacher] = [student, *full_teachers]
    with torch.no_grad(), ExitStack() as stack:
        heads = [model.head if isinstance(model, RemoteTeacher) else output_layer(model) for model in models]
        vocabulary = min(int(head.weight.shape[0]) for head in heads)
        _check_tokens(completion, vocabulary)
        hidden = [
            model.hidden if isinstance(model, RemoteTeacher) else hidden_states(model, [completion]) for model in models
        ]
        for model, head in zip(models, heads, strict=True):
            stack.enter_context(scored_head(model, head))
        states = [_States(*each, vocabulary, sampling.temperature) for each in zip(heads, hidden, strict=True)]
        by_name = {model.name: each for model, each in zip(full_teachers, states[1:], strict=True)}
        sources = [each if isinstance(each, TopKTeacher) else by_name[each.name] for each in teachers]
        columns = Columns(completion, [teacher.name for teacher in teachers])
        budget = min(_chunk_bytes(state.device, chunk_bytes) for state in hidden)
        for start, stop in _chunks(len(completion), vocabulary, budget, block_bytes(hidden[0].device)):
            log_p = sampled_log_probs(sampling, heads[0](hidden[0][start:stop]))[..., :vocabulary]
            Chunk(log_p, request, start, columns).reduce(sources)
    return columns.scores()


@dataclass(frozen=True)
class _States:
    """A teacher's hidden states along a path, and the output layer that makes log-probabilities of them."""

    head: Any
    hidden: Tensor
    vocabulary: int
    temperature: float

    def log_probs(self, rows: Any, log_p: Tensor) -> Tensor:
        logits = self.head(self.hidden[rows])[..., : self.vocabulary]
        return tempered(logits, self.temperature).to(log_p.device)


def scored_head(model: PromptedModel | RemoteTeacher, head: Any) -> AbstractContextManager[Any]:
    """The output layer in the precision in which its model is scored; that of a remote teacher comes in it."""
    if isinstance(model, RemoteTeacher) or scoring_precision(model.model, model.precision) == "native":
        return nullcontext()
    return float32_weights(head)


def rollout_log_probs(prompted: PromptedModel, rollouts: Rollouts, sampling: Sampling) -> Floats:
    """Log-probability of every token of every rollout, flat like `rollouts.tokens`."""
    _check_tokens(rollouts.tokens, int(prompted.model.get_output_embeddings().weight.shape[0]))
    result = np.empty(len(rollouts.tokens))
    with torch.no_grad():
        head = output_layer(prompted)
        for rows in _length_batches(rollouts.length_R, len(prompted.prompt)):
            completions = [rollouts.completion(int(row)) for row in rows]
            hidden = hidden_states(prompted, completions)
            with scored_head(prompted, head):
                scored = _log_probs(head, hidden, np.concatenate(completions), sampling)
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
    """Last hidden state before each token of the completions, concatenated: (tokens, d).

    They are in the precision in which the model's output layer is to be called.
    """
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
    tokens, body = torch.as_tensor(ids, device=prompted.model.device), _body(prompted.model)
    precision = scoring_precision(prompted.model, prompted.precision)
    with float32_layers(prompted.model, body) if precision == "float32" else _own_precision(prompted.model):
        hidden: Tensor = body(input_ids=tokens, use_cache=False).last_hidden_state[:, len(prompted.prompt) - 1 :]
    hidden = hidden if precision == "native" else hidden.float()
    if len(completions) == 1:
        return hidden[0, : lengths[0]]
    return torch.cat([state[:length] for state, length in zip(hidden, lengths, strict=True)])


def _own_precision(model: Any) -> AbstractContextManager[Any]:
    """For a model that is scored as it is; its weights may be in float32."""
    mixed = torch.is_autocast_enabled(model.device.type)
    in_float32 = getattr(model, "dtype", None) == torch.float32  # a module of the user's own may have no dtype
    return float32_attention(model) if in_float32 and not mixed else nullcontext()


def _log_probs(head: Any, hidden: Tensor, tokens: Tokens, sampling: Sampling) -> Floats:
    result = np.empty(len(tokens))
    sizes = _chunk_bytes(hidden.device, None), block_bytes(hidden.device)
    for start, stop in _chunks(len(tokens), head.weight.shape[0], *sizes):
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


def _chunk_bytes(device: Any, given: int | None) -> int:
    """Memory for one chunk: what is given, else a share of what is free on a GPU, else what a CPU can spare."""
    if given is not None:
        return given
    if device.type != "cuda":
        return CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(min(max(GPU_SHARE * (free + held), MIN_GPU_BYTES), MAX_GPU_BYTES))


def _chunks(length: int, vocabulary: int, budget: int, block: int) -> Iterator[tuple[int, int]]:
    """The position where each chunk begins and the one after its end, for bytes of memory in all and per block.

    The number of positions is a power of two: it then seldom depends on how much memory is free, on which the last
    digit of a matrix product depends.
    """
    rows = max(1, (budget - min(block, budget // 2)) // (CHUNK_ARRAYS * 4 * vocabulary))
    step = 1 << (rows.bit_length() - 1)
    for start in range(0, length, step):
        yield start, min(start + step, length)
