"""Short measurements of how student and teachers are set up, on a few sampled completions.

Each function compares two ways to compute the same number: sampled and scored, server and local, low precision and
float32, twenty known tokens and ten. What is acceptable is decided elsewhere (`teachers.setup_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opd_align.backends.base import Prompt
from opd_align.backends.precision import scoring_precision, stored_dtype
from opd_align.backends.scoring import (
    PromptedModel,
    TopKTeacher,
    hidden_states,
    rollout_log_probs,
    scored_head,
    tempered,
)
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.settings import Precision, Sampling
from opd_align.types import Floats, OpdAlignError, Question, Rollouts, ScoreRequest, Tokens, TopLogProbs

PROBE_TOKENS = 64
"""Positions of a completion on which models are compared over the full vocabulary."""

CHUNK = 16
"""Positions per chunk: a few arrays of 152,000 numbers per position."""


class ProbeUnavailable(OpdAlignError):
    """A measurement that this setup does not allow, with the reason."""


@dataclass(frozen=True)
class Sampled:
    """Completions of one question, sampled by the student, graded if there is a verifier."""

    question: Question
    rollouts: Rollouts


@dataclass(frozen=True)
class Gap:
    """A difference between two ways to compute log-probabilities.

    Args:
        mean: Mean difference per token, in nats; its absolute value where single tokens can be compared.
        largest: Largest absolute difference of a token, in nats.
        z: The mean divided by its standard error, where the mean of exact values is zero; NaN otherwise.
        tokens: Number of tokens.
    """

    mean: float
    largest: float
    z: float
    tokens: int


def sampling_gap(student: Any, samples: Sequence[Sampled], max_rollouts: int = 16) -> Gap:
    """Surprise of the sampled tokens minus the entropy of the distribution that the student scores with.

    If the sampler draws from that distribution, each difference has mean zero given the tokens before it, so their sum
    divided by the root of their summed squares is about normal, wherever completions end.
    """
    rows = [(each.question, each.rollouts.completion(row)) for each in samples for row in range(len(each.rollouts))]
    step = max(1, len(rows) // max_rollouts)
    gaps = [np.empty(0)]
    for question, completion in rows[::step][:max_rollouts]:
        scores = student.score(_own_tokens(question, completion), [])
        gaps.append(-scores.log_p_C[scores.on_path_C] - scores.entropy_T)
    gap = np.concatenate(gaps)
    spread = float(np.sqrt((gap**2).sum()))
    if not len(gap):
        raise ProbeUnavailable("no tokens were sampled")
    return Gap(float(gap.mean()), float(np.abs(gap).max()), 0.0 if spread == 0 else float(gap.sum()) / spread, len(gap))


def server_gap(server: ServerTeacher | ServerStudent, local: PromptedModel, sampled: Sampled) -> Gap:
    """Difference between the log-probabilities of a server and those of local weights, at temperature 1."""
    if isinstance(server, ServerStudent):
        server = ServerTeacher(server.name, server.url, server.model, server.prompt, http=server.http)
    remote = server.token_log_probs(sampled.question, sampled.rollouts)
    gap = np.abs(remote - rollout_log_probs(local, sampled.rollouts, Sampling()))
    if not len(gap):
        raise ProbeUnavailable("no tokens were sampled")
    return Gap(float(gap.mean()), float(gap.max()), float("nan"), len(gap))


@dataclass(frozen=True)
class TopKBias:
    """How much a teacher is known by its most likely tokens.

    Args:
        top: Number of tokens per position.
        mass: Mean probability of the known tokens.
        kl: Mean KL(student‖teacher) from them, a lower bound.
        kl_of_half: The same from half as many.
    """

    top: int
    mass: float
    kl: float
    kl_of_half: float


def top_k_bias(student: Any, teacher: ServerTeacher, question: Question, completion: Tokens) -> TopKBias:
    """Known mass along a completion, and how much the divergence still changes with the number of known tokens."""
    top = teacher.top_log_probs(question, completion)
    own = np.asarray(completion, np.int64)[:, None]
    repeated = (top.token_TK == top.token_TK[:, :1]) & (np.arange(top.token_TK.shape[1]) > 0)
    mass_T = np.where(repeated, 0.0, np.exp(top.log_t_TK)).sum(1)
    rank = np.argsort(np.argsort(-top.log_t_TK, axis=1, kind="stable"), axis=1, kind="stable")
    kept = (rank < max(1, teacher.top // 2)) | (top.token_TK == own)
    first = kept.argmax(1)[:, None]
    half = TopLogProbs(
        np.where(kept, top.token_TK, np.take_along_axis(top.token_TK, first, 1)),
        np.where(kept, top.log_t_TK, np.take_along_axis(top.log_t_TK, first, 1)),
    )
    scores = student.score(_own_tokens(question, completion), [_Known("all", top), _Known("half", half)])
    kl, kl_of_half = (float(scores.teachers[name].kl_T.mean()) for name in ("all", "half"))
    return TopKBias(teacher.top, float(mass_T.mean()), kl, kl_of_half)


@dataclass(frozen=True)
class _Known:
    """A teacher whose top-k log-probabilities are known already."""

    name: str
    top: TopLogProbs

    def score_inputs(self, question: Question, completion: Tokens, device: Any) -> TopKTeacher:
        return TopKTeacher(self.name, self.top)


def update_cosine(
    student: PromptedModel,
    teacher: PromptedModel,
    completion: Tokens,
    *,
    temperature: float = 1.0,
) -> float:
    """Cosine of the distillation update in the models' own precision and in float32, along one completion.

    The update is that of reverse KL on the full vocabulary, all positions concatenated. The models' own precision is
    that in which they are scored (`PromptedModel.precision`), autocast included if this is called within it.
    """
    completion = completion[:PROBE_TOKENS]
    exact = [replace(each, precision="float32") for each in (student, teacher)]
    for each in exact:
        if stored_dtype(each.model) != "float32" and scoring_precision(each.model, each.precision) != "float32":
            raise ProbeUnavailable(f"{each.name} cannot be computed in float32: its weights are quantised or offloaded")
    with torch.no_grad():
        own = list(distillation_updates(student, teacher, completion, temperature))
        dot = square = exact_square = 0.0
        with torch.autocast(student.model.device.type, enabled=False):
            references = distillation_updates(exact[0], exact[1], completion, temperature)
            for update, reference in zip(own, references, strict=True):
                dot += float((update * reference).sum())
                square += float((update**2).sum())
                exact_square += float((reference**2).sum())
    if square == 0 or exact_square == 0:
        raise ProbeUnavailable("student and teacher are equal on this completion, so there is no update")
    return float(dot / np.sqrt(square * exact_square))


def distillation_updates(
    student: PromptedModel, teacher: PromptedModel, completion: Tokens, temperature: float
) -> Iterator[Tensor]:
    """The update of reverse KL over the vocabulary, for some positions at a time: (positions, vocabulary)."""
    heads = [each.model.get_output_embeddings() for each in (student, teacher)]
    hidden = [hidden_states(each, [completion]) for each in (student, teacher)]
    vocabulary = min(int(head.weight.shape[0]) for head in heads)
    with scored_head(student, heads[0]), scored_head(teacher, heads[1]):
        for start in range(0, len(completion), CHUNK):
            log_p, log_t = (
                tempered(head(state[start : start + CHUNK])[..., :vocabulary], temperature)
                for head, state in zip(heads, hidden, strict=True)
            )
            p, ratio = log_p.exp(), log_t.to(log_p.device) - log_p
            yield (p * (ratio - (p * ratio).sum(-1, keepdim=True))).double()


def padding_mass(prompted: PromptedModel, completion: Tokens, n_tokens: int) -> float:
    """Mean probability of the rows of the output layer that the tokenizer has no token for."""
    head, total = prompted.model.get_output_embeddings(), 0.0
    completion = completion[:PROBE_TOKENS]
    if int(head.weight.shape[0]) <= n_tokens or not len(completion):
        return 0.0
    with torch.no_grad():
        hidden = hidden_states(prompted, [completion])
        for start in range(0, len(completion), CHUNK):
            total += float(tempered(head(hidden[start : start + CHUNK]), 1.0)[:, n_tokens:].exp().sum())
    return total / len(completion)


def prompted(
    model: Any, prompt: Prompt, question: Question, name: str, precision: Precision = "native"
) -> PromptedModel:
    """A local model with its prompt of one question."""
    return PromptedModel(name, model, list(prompt(question)), precision)


def _own_tokens(question: Question, completion: Tokens) -> ScoreRequest:
    """Scores the completion's own tokens and keeps no others."""
    return ScoreRequest(question, completion, np.empty(0, np.int64), np.empty(0, np.uint32), 1.0)


def last_tokens(values: Floats, rollouts: Rollouts) -> Floats:
    """The entries of a flat array (one per token) at the last token of each rollout; empty ones are left out."""
    return values[rollouts.offsets[1:][rollouts.length_R > 0] - 1]
