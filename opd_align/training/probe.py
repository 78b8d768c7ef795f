"""A success probe that sees siblings: how much better or worse than its siblings each next token is.

The score of token k at node u is bilinear and of low rank in the student's hidden state at u and the token's output
embedding, so the scores of all tokens at a node cost one matrix product. It is fitted to the trees of an analysis: the
posterior means of `Q_k − V`, each weighted by its precision. Only differences between siblings count, so scores are
centred at each node with the student's probabilities.

A probe knows which questions it was fitted on and refuses to be judged on them. Whether it is worth gating with is
measured by `benchmarks/probe.py`, before anything is trained with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from opd_align.core.engine import Analysis
from opd_align.core.node_rows import group_rows
from opd_align.types import Floats, Ints, OpdAlignError

HiddenStates = Callable[[str, Sequence[int]], Tensor]
"""From a question id and the tokens of a completion to the student's last hidden state before each token, (T, H)."""

OWN_VARIANCE = 0.05**2
"""Added to the variance of every target: a token that is known exactly must not count a thousand times as much."""

VALIDATION_SHARE = 0.2
"""Share of the questions on which the number of steps is chosen."""


@dataclass(frozen=True)
class ProbeExamples:
    """Nodes with at least two observed children: `_N` nodes, `_C` children.

    Args:
        questions: Ids of the questions.
        question_N: Index of each node's question.
        hidden_NH: The student's last hidden state at each node.
        node_C: Node of each child.
        token_C: Token of each child.
        p_C: The student's probability of each child, normalised over the children of its node.
        target_C: Posterior mean of `Q_k − V`, with V the mean of Q under `p_C`.
        precision_C: Weight of each child: one over the variance of its Q plus `OWN_VARIANCE`.
    """

    questions: tuple[str, ...]
    question_N: Ints
    hidden_NH: Tensor
    node_C: Tensor
    token_C: Tensor
    p_C: Tensor
    target_C: Tensor
    precision_C: Tensor

    def __len__(self) -> int:
        return len(self.question_N)

    def select(self, chosen: Iterable[int]) -> ProbeExamples:
        """The nodes of some of the questions, by index."""
        keep_N = np.isin(self.question_N, list(chosen))
        new_N = torch.from_numpy(np.cumsum(keep_N) - 1)
        keep_C = torch.from_numpy(keep_N)[self.node_C]
        columns = {name: getattr(self, name)[keep_C] for name in ("token_C", "p_C", "target_C", "precision_C")}
        node_C = new_N[self.node_C[keep_C]]
        hidden_NH = self.hidden_NH[torch.from_numpy(keep_N)]
        return replace(self, question_N=self.question_N[keep_N], hidden_NH=hidden_NH, node_C=node_C, **columns)


def examples_of(analysis: Analysis, hidden_states: HiddenStates) -> ProbeExamples:
    """The nodes of an analysis, such as the latest one of `AlignmentCallback`.

    Args:
        analysis: The analysis.
        hidden_states: The student that the analysis was made with.
    """
    table = analysis.children
    question = table["question"].combine_chunks()
    codes_C, path_C = question.indices.to_numpy().astype(np.int64), table["path"].to_numpy().astype(np.int64)
    depth_C, token_C = (table[name].to_numpy().astype(np.int64) for name in ("depth", "token"))
    own_C, p_C, q_C = table["own"].to_numpy(), *(table[name].to_numpy().astype(float) for name in ("p", "q"))
    variance_C = q_C * (1 - q_C) / np.maximum(table["effective"].to_numpy().astype(float), 1e-9)
    path_of_C, first_U = group_rows(codes_C, path_C)
    names = [str(name) for name in question.dictionary.to_pylist()]
    # The student's own `S_u`: what only a teacher proposes is hardly ever sampled.
    usable_C = table["significant"].to_numpy() & np.isfinite(q_C) & (own_C | (p_C > analysis.settings.rules.tau))
    node_of_C, first_N = group_rows(path_of_C, depth_C)
    size_N = np.bincount(node_of_C, usable_C, len(first_N))
    usable_C &= size_N[node_of_C] >= 2
    hidden = []
    for path in range(len(first_U)):
        rows = np.flatnonzero((path_of_C == path) & own_C)
        rows = rows[np.argsort(depth_C[rows])]
        states_TH = hidden_states(names[codes_C[first_U[path]]], token_C[rows].tolist())
        hidden.append(states_TH.float())
    kept_N = np.unique(node_of_C[usable_C])
    new_N = np.full(len(first_N), -1)
    new_N[kept_N] = np.arange(len(kept_N))
    at_N = first_N[kept_N]
    states = [hidden[path][depth] for path, depth in zip(path_of_C[at_N], depth_C[at_N], strict=True)]
    if not states:
        raise OpdAlignError(
            "the analysis has no node with two observed children, so there is nothing to fit a probe to"
        )
    node_C = new_N[node_of_C[usable_C]]
    p_C, q_C = p_C[usable_C], q_C[usable_C]
    p_C = p_C / np.bincount(node_C, p_C)[node_C]
    target_C = q_C - np.bincount(node_C, p_C * q_C)[node_C]
    return ProbeExamples(
        tuple(names),
        codes_C[at_N],
        torch.stack(states),
        torch.from_numpy(node_C),
        torch.from_numpy(token_C[usable_C]),
        *(_float(values) for values in (p_C, target_C, 1 / (variance_C[usable_C] + OWN_VARIANCE))),
    )


@dataclass(frozen=True)
class SuccessProbe:
    """A fitted probe.

    Args:
        node_RH: From hidden states to the rank, (R, H).
        token_VR: From the rank to all tokens, (V, R): output embeddings and their projection, multiplied once.
        shift_H: Subtracted from hidden states.
        scale_H: Hidden states are divided by it.
        questions: Ids of the questions that it was fitted on.
        steps: Number of optimizer steps, chosen on a part of these questions.
    """

    node_RH: Tensor
    token_VR: Tensor
    shift_H: Tensor
    scale_H: Tensor
    questions: frozenset[str]
    steps: int

    def scores(self, hidden_NH: Tensor) -> Tensor:
        """The scores of all tokens at each node, (N, V); only their differences within a node have a meaning."""
        return _project(hidden_NH, self.shift_H, self.scale_H, self.node_RH) @ self.token_VR.T

    def advantages(self, hidden_NH: Tensor, p_NV: Tensor) -> Tensor:
        """Predicted `Q_k − V` of all tokens at each node, centred with the student's probabilities."""
        scores_NV = self.scores(hidden_NH)
        return scores_NV - (p_NV * scores_NV).sum(-1, keepdim=True)

    def check_held_out(self, questions: Iterable[str]) -> None:
        """Raises an error if the probe was fitted on one of these questions."""
        leaked = sorted(self.questions & set(questions))
        if leaked:
            raise OpdAlignError(
                f"the probe was fitted on {len(leaked)} of these questions, such as {leaked[0]!r}; judge it on others"
            )


def fit_probe(
    examples: ProbeExamples,
    embedding_VE: Tensor,
    *,
    rank: int = 16,
    max_steps: int = 400,
    learning_rate: float = 3e-3,
    weight_decay: float = 3.0,
    seed: int = 0,
) -> SuccessProbe:
    """Fits a probe; the number of steps is the best one on a fifth of the questions, which the weights never see.

    Args:
        examples: Nodes of trees.
        embedding_VE: Output embeddings of the student, one row per token.
        rank: Rank of the bilinear form.
        max_steps: Largest number of optimizer steps, each on all examples.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        seed: Random seed of the initial weights and of the split.
    """
    present = np.unique(examples.question_N)
    if len(present) < 2:
        raise OpdAlignError(f"a probe needs trees of at least 2 questions, not {len(present)}")
    generator = torch.Generator().manual_seed(seed)
    order = present[torch.randperm(len(present), generator=generator).numpy()]
    cut = max(1, round(VALIDATION_SHARE * len(order)))
    train, validation = examples.select(order[cut:]), examples.select(order[:cut])
    shift_H, scale_H = train.hidden_NH.mean(0), train.hidden_NH.std(0, correction=0).clamp_min(1e-3)
    mean_E, std_E = embedding_VE.float().mean(0), embedding_VE.float().std(0, correction=0).clamp_min(1e-6)
    # Of unit length on average: otherwise the first step of AdamW, of the same size for every weight, is too large.
    embedding = ((embedding_VE.float() - mean_E) / std_E / embedding_VE.shape[1] ** 0.5).detach()
    width, columns = embedding.shape[1], train.hidden_NH.shape[1]
    node_RH = torch.randn(rank, columns, generator=generator) / columns**0.5
    # Zero: a probe that has learned nothing scores all tokens alike.
    token_RE = torch.zeros(rank, width)
    weights = [node_RH.requires_grad_(), token_RE.requires_grad_()]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=weight_decay)

    def loss(nodes: ProbeExamples) -> Tensor:
        node_NR = _project(nodes.hidden_NH, shift_H, scale_H, weights[0])
        score_C = (node_NR[nodes.node_C] * (embedding[nodes.token_C] @ weights[1].T)).sum(-1)
        mean_N = torch.zeros(len(nodes)).index_add(0, nodes.node_C, nodes.p_C * score_C)
        error_C = score_C - mean_N[nodes.node_C] - nodes.target_C
        return (nodes.precision_C * error_C**2).sum() / nodes.precision_C.sum()

    with torch.no_grad():
        best, best_steps = float(loss(validation)), 0
    found = [weight.detach().clone() for weight in weights]
    for step in range(1, max_steps + 1):
        optimizer.zero_grad()
        torch.autograd.backward(loss(train))
        optimizer.step()
        with torch.no_grad():
            now = float(loss(validation))
        if now < best:
            best, best_steps, found = now, step, [weight.detach().clone() for weight in weights]
    names = frozenset(examples.questions[index] for index in present)
    return SuccessProbe(found[0], embedding @ found[1].T, shift_H, scale_H, names, best_steps)


def _project(hidden_NH: Tensor, shift_H: Tensor, scale_H: Tensor, node_RH: Tensor) -> Tensor:
    return ((hidden_NH.float() - shift_H) / scale_H) @ node_RH.T


def _float(values: Floats) -> Tensor:
    return torch.from_numpy(values).float()
