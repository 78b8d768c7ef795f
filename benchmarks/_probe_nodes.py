"""The nodes that candidates are judged on, and the scores that each candidate gives to their children.

Nodes are those of the analyzed paths with at least two children in `S_u` and an SR range above `Rules.resolution`. The
truth is the posterior mean of Q from the tree's rollouts; none of the candidates sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from _probe_trees import Models
from torch import Tensor, nn

from opd_align.core.alignment import EstimatedPath, significant
from opd_align.core.collect import Evidence
from opd_align.core.engine import estimated_paths
from opd_align.settings import Rules, Settings
from opd_align.training.measures import mass_on_top
from opd_align.types import Floats, Question

HIDDEN_UNITS, HEAD_STEPS, HEAD_RATE, HEAD_DECAY = 64, 400, 3e-3, 0.1


@dataclass(frozen=True)
class PathStates:
    """What models say along one path.

    Args:
        question: Id of the question.
        path: The path and its estimates.
        hidden_TH: The student's last hidden state at each node.
        mass_T: For each teacher, its probability of the student's most likely tokens, at each node.
        selected_C: The children in `S_u`.
        after_CH: The student's last hidden state after each child in `S_u`; zero for the others.
    """

    question: str
    path: EstimatedPath
    hidden_TH: Tensor
    mass_T: Mapping[str, Floats]
    selected_C: np.ndarray
    after_CH: Tensor


@torch.no_grad()
def hidden_states(models: Models, question: Question, completion: Sequence[int]) -> Tensor:
    prompt = models.prompt(question)
    ids = torch.tensor([[*prompt, *completion]])
    states = models.student.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    return states[len(prompt) - 1 : -1]


@torch.no_grad()
def _states_after(models: Models, question: Question, path: EstimatedPath, chosen: np.ndarray) -> Tensor:
    """Hidden states after each chosen child: a forward pass for each one, up to 64 at a time."""
    scores = path.scores
    prompt, completion = models.prompt(question), scores.completion_T.astype(np.int64).tolist()
    found = torch.zeros(len(scores.token_C), models.student.config.hidden_size)
    rows = np.flatnonzero(chosen)
    for at in range(0, len(rows), 64):
        block = rows[at : at + 64]
        tokens = [[*prompt, *completion[: scores.depth_C[row]], int(scores.token_C[row])] for row in block]
        width = max(map(len, tokens))
        padded = torch.tensor([[*each, *[0] * (width - len(each))] for each in tokens])
        # Causal, and padded on the right: no mask is needed.
        states = models.student.base_model(input_ids=padded, use_cache=False).last_hidden_state
        found[block] = states[torch.arange(len(block)), torch.tensor([len(each) - 1 for each in tokens])]
    return found


@torch.no_grad()
def path_states(models: Models, evidence: Sequence[Evidence]) -> list[PathStates]:
    found = []
    for each in evidence:
        prompt = models.prompt(each.question)
        for path in estimated_paths(each, Settings()):
            completion = path.scores.completion_T.astype(np.int64).tolist()
            hidden_TH = hidden_states(models, each.question, completion)
            logits_TV = models.student.get_output_embeddings()(hidden_TH)
            ids = torch.tensor([[*prompt, *completion]])
            mass = {}
            for name, teacher in models.teachers.items():
                t_TV = teacher(input_ids=ids).logits[0, len(prompt) - 1 : -1].softmax(-1)
                mass[name] = mass_on_top(logits_TV, t_TV).double().numpy()
            selected_C = significant(path.scores, path.estimate, Rules())
            after_CH = _states_after(models, each.question, path, selected_C)
            found.append(PathStates(each.question.id, path, hidden_TH, mass, selected_C, after_CH))
    return found


@dataclass(frozen=True)
class ValueHead:
    """Predicts Q after a token from the hidden state there; a forward pass for each child of a node."""

    network: nn.Module
    shift_H: Tensor
    scale_H: Tensor
    questions: frozenset[str]

    @torch.no_grad()
    def __call__(self, state_CH: Tensor) -> Floats:
        values: Floats = self.network((state_CH - self.shift_H) / self.scale_H)[:, 0].double().numpy()
        return values


def fit_value_head(paths: Sequence[PathStates], *, units: int, seed: int = 0) -> ValueHead:
    """A value head, linear (`units` = 0) or with a hidden layer; a fifth of the questions decides when to stop."""
    names = sorted({each.question for each in paths})
    order = np.random.default_rng(seed).permutation(len(names))
    held = {names[index] for index in order[: max(1, round(0.2 * len(names)))]}

    def columns(of_held: bool) -> tuple[Tensor, Tensor, Tensor]:
        own = [each for each in paths if (each.question in held) is of_held]
        states = torch.cat([each.after_CH[each.selected_C] for each in own])
        q = np.concatenate([each.path.estimate.q_C[each.selected_C] for each in own])
        variance = np.concatenate([each.path.estimate.se_C[each.selected_C] ** 2 for each in own])
        return states, torch.from_numpy(q).float(), torch.from_numpy(1 / (variance + 0.05**2)).float()

    train, validation = columns(False), columns(True)
    shift_H, scale_H = train[0].mean(0), train[0].std(0, correction=0).clamp_min(1e-3)
    torch.manual_seed(seed)
    width = train[0].shape[1]
    network: nn.Module = nn.Linear(width, 1)
    if units:
        network = nn.Sequential(nn.Linear(width, units), nn.GELU(), nn.Linear(units, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=HEAD_RATE, weight_decay=HEAD_DECAY)

    def loss(data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        states, q, precision = data
        error = network((states - shift_H) / scale_H)[:, 0] - q
        return (precision * error**2).sum() / precision.sum()

    best, found = float("inf"), {}
    for _ in range(HEAD_STEPS):
        optimizer.zero_grad()
        loss(train).backward()
        optimizer.step()
        with torch.no_grad():
            now = float(loss(validation))
        if now < best:
            best, found = now, {name: weight.clone() for name, weight in network.state_dict().items()}
    network.load_state_dict(found)
    return ValueHead(network, shift_H, scale_H, frozenset(names))


ChildScores = Callable[[PathStates], Floats]
"""From a path to a score for each of its children; higher is better."""


def log_ratio(teacher: str) -> ChildScores:
    return lambda each: each.path.scores.teachers[teacher].log_t_C - each.path.scores.log_p_C


def log_prob(each: PathStates) -> Floats:
    return each.path.scores.log_p_C


def outcome_sign(each: PathStates) -> Floats:
    """Above its siblings if the rollout is correct, below them if not."""
    return each.path.scores.on_path_C * (1.0 if each.path.correct else -1.0)
