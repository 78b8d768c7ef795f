"""How candidates are judged: rank correlation within nodes, and what a gate made of them would keep.

Defined before any result was seen. At each node, Spearman's correlation of a candidate's scores with the posterior
means of Q over the children in `S_u`; a candidate that scores all children alike has 0. Over nodes, the mean weighted
by the SR range; beside it, the plain mean over nodes whose SR range is at least `REAL_SPREAD`. Intervals: bootstrap
over questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from _probe_nodes import ChildScores, PathStates, log_ratio
from scipy.stats import rankdata

from opd_align.settings import Rules
from opd_align.types import Floats

REAL_SPREAD = 0.1
RESAMPLES = 2000
KEPT = 0.8
"""Quantile of the gates that keep a fifth of the tokens."""


@dataclass(frozen=True)
class Node:
    """A node of a path: `children` are indices of its children in `S_u`."""

    path: int
    depth: int
    children: np.ndarray
    sr_range: float


def nodes_of(paths: Sequence[PathStates]) -> list[Node]:
    found = []
    for number, each in enumerate(paths):
        depth_C = each.path.scores.depth_C
        for depth in np.unique(depth_C[each.selected_C]):
            children = np.flatnonzero(each.selected_C & (depth_C == depth))
            sr_range = float(np.ptp(each.path.estimate.q_C[children]))
            if len(children) >= 2 and sr_range > Rules().resolution:
                found.append(Node(number, int(depth), children, sr_range))
    return found


def spearman(one: Floats, other: Floats) -> float:
    """Rank correlation, 0 if either side is constant."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (one, other))
    norm = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / norm) if norm > 0 else 0.0


@dataclass(frozen=True)
class Judge:
    """The held-out nodes.

    Args:
        paths: The held-out paths.
        nodes: Their nodes.
        question_N: Index of each node's question.
    """

    paths: Sequence[PathStates]
    nodes: Sequence[Node]
    question_N: np.ndarray

    @staticmethod
    def of(paths: Sequence[PathStates]) -> Judge:
        names = sorted({each.question for each in paths})
        nodes = nodes_of(paths)
        return Judge(paths, nodes, np.array([names.index(paths[node.path].question) for node in nodes]))

    @property
    def sr_range_N(self) -> Floats:
        return np.array([node.sr_range for node in self.nodes])

    def correlations(self, scores: ChildScores, truth: ChildScores | None = None) -> Floats:
        """One number per node."""
        truth = truth or (lambda each: each.path.estimate.q_C)
        scored, true = [scores(each) for each in self.paths], [truth(each) for each in self.paths]
        found = [spearman(scored[node.path][node.children], true[node.path][node.children]) for node in self.nodes]
        return np.array(found)

    def halves(self) -> Floats:
        """Correlation of the estimates from two disjoint halves of the rollouts."""
        first, second = (lambda each: each.path.halves[0].q_C), (lambda each: each.path.halves[1].q_C)
        return self.correlations(first, second)

    # -- gates: which nodes they keep, for one teacher

    def agreement(self, teacher: str, scores: ChildScores) -> np.ndarray:
        """Whether the teacher's update raises the expected score: Σ p (f − f̄) score above zero."""
        ratio, scored = [log_ratio(teacher)(each) for each in self.paths], [scores(each) for each in self.paths]
        keep = []
        for node in self.nodes:
            log_p = self.paths[node.path].path.scores.log_p_C[node.children]
            p = np.exp(log_p - log_p.max())
            p /= p.sum()
            f = ratio[node.path][node.children]
            keep.append(float((p * (f - (p * f).sum()) * scored[node.path][node.children]).sum()) > 0)
        return np.array(keep)

    def per_path(self, keep: Callable[[PathStates], np.ndarray]) -> np.ndarray:
        """Whether each node is kept by a rule that sees a whole path, one boolean per depth."""
        kept = [keep(each) for each in self.paths]
        return np.array([bool(kept[node.path][node.depth]) for node in self.nodes])

    def quantile(self, value: Callable[[PathStates], Floats], at: float) -> float:
        return float(np.quantile(np.concatenate([value(each) for each in self.paths]), at, method="higher"))

    def gates(self, teacher: str, learned: Mapping[str, ChildScores]) -> dict[str, np.ndarray]:
        """For each gate, which nodes it keeps; quantiles are over all tokens of the paths."""

        def kl(each: PathStates) -> Floats:
            return each.path.scores.teachers[teacher].kl_T

        def entropy(each: PathStates) -> Floats:
            return each.path.scores.entropy_T

        def teachable(each: PathStates) -> Floats:
            return kl(each) * each.mass_T[teacher]

        def agrees(each: PathStates) -> np.ndarray:
            own = log_ratio(teacher)(each)[each.path.scores.on_path_C]
            return own >= 0 if each.path.correct else own <= 0

        limit = {"kl": self.quantile(kl, KEPT), "teachable": self.quantile(teachable, KEPT)}
        sure, far = self.quantile(entropy, 0.5), self.quantile(kl, 0.5)
        return {
            "open": np.ones(len(self.nodes), bool),
            "incorrect only": self.per_path(lambda each: np.full(len(each.path.scores), not each.path.correct)),
            "first third": self.per_path(lambda e: np.arange(len(e.path.scores)) < np.ceil(len(e.path.scores) / 3)),
            "top fifth by KL": self.per_path(lambda each: kl(each) >= limit["kl"]),
            "teachable, top fifth": self.per_path(lambda each: teachable(each) >= limit["teachable"]),
            "low entropy, large KL": self.per_path(lambda each: (entropy(each) <= sure) & (kl(each) >= far)),
            "outcome's sign": self.per_path(agrees),
            **{name: self.agreement(teacher, scores) for name, scores in learned.items()},
            "oracle": self.agreement(teacher, lambda each: each.path.estimate.q_C),
        }

    # -- over nodes and questions

    def mean(self, value_N: Floats, weight_N: Floats) -> tuple[float, Floats]:
        """Weighted mean over nodes, and the same of each bootstrap sample of questions."""
        n = int(self.question_N.max()) + 1
        top = np.bincount(self.question_N, weight_N * value_N, n)
        bottom = np.bincount(self.question_N, weight_N, n)
        drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))  # the same for every candidate: paired
        return float(top.sum() / bottom.sum()), top[drawn].sum(1) / bottom[drawn].sum(1)


def interval(samples: Floats) -> tuple[float, float]:
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)
