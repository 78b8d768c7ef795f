"""Node tables: alignment computed by hand on single nodes, edge cases, uncertainty against known posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, log, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opd_align import metrics
from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.core.alignment import (
    CHILDREN,
    SCHEMA,
    EstimatedPath,
    child_table,
    cosine,
    node_table,
    pairs_of,
    significant,
    teachers_of,
)
from opd_align.core.collect import collect
from opd_align.core.objectives import DrGRPO, ForwardKL, Ideal, Nodes, ReverseKL, unified_update
from opd_align.core.path_estimate import exact_estimate
from opd_align.core.reliability import p_positive
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import REWARD, PathScores, Question, Rollouts, TeacherScores

RKL = [ReverseKL()]


@dataclass(frozen=True)
class Node:
    """Student and teacher probabilities over tokens 1, 2, ..., and success probabilities; the path takes `taken`."""

    p: Sequence[float]
    q: Sequence[float]
    t: Mapping[str, Sequence[float]]
    taken: int = 1


def path_of(*nodes: Node, question: str = "q", index: int = 0, correct: bool = True) -> EstimatedPath:
    """A path through the nodes whose success probabilities are known exactly."""
    size_T = [len(node.p) for node in nodes]
    completion = np.array([node.taken for node in nodes], np.uint32)
    with np.errstate(divide="ignore"):
        log_p_C = np.log(np.concatenate([node.p for node in nodes]))
        log_t = {name: np.log(np.concatenate([node.t[name] for node in nodes])) for name in nodes[0].t}
    numbers_T = np.arange(len(nodes), dtype=float)
    scores = PathScores(
        completion,
        np.cumsum([0, *size_T]),
        np.concatenate([np.arange(1, size + 1) for size in size_T]).astype(np.uint32),
        log_p_C,
        10 + numbers_T,
        {
            name: TeacherScores(log_t_C, *(offset + numbers_T for offset in (20, 30, 40, 50, 60, 70, 80)))
            for name, log_t_C in log_t.items()
        },
    )
    tree = GenerationTree.build(Rollouts.of([completion] * 3, outcome=[1] * 3))
    estimate = exact_estimate(scores, np.concatenate([node.q for node in nodes]).astype(float))
    return EstimatedPath(question, index, correct, scores, estimate, tree.counts_along(completion), 0.5)


def rows_of(*paths: EstimatedPath, objectives: Sequence[Any] = RKL, **rules: Any) -> list[dict[str, Any]]:
    return node_table(paths, objectives, Rules(**rules)).to_pylist()


def uncertain(path: EstimatedPath, own_var: Sequence[float], **columns: Any) -> EstimatedPath:
    """The same path with uncertain estimates of these variances."""
    return replace(path, estimate=replace(path.estimate, own_var_C=np.array(own_var, float), **columns))


def slow_alignment(p: Sequence[float], t: Sequence[float], q: Sequence[float]) -> float:
    """Cosine of the two updates, term by term."""
    p, t = [x / sum(p) for x in p], [x / sum(t) for x in t]

    def update(f: list[float]) -> list[float]:
        mean = sum(a * b for a, b in zip(p, f, strict=True))
        return [a * (b - mean) for a, b in zip(p, f, strict=True)]

    ideal, push = update(list(q)), update([log(b) - log(a) for a, b in zip(p, t, strict=True)])
    dot = sum(a * b for a, b in zip(ideal, push, strict=True))
    return dot / sqrt(sum(a * a for a in ideal) * sum(b * b for b in push))


probabilities = st.floats(0.03, 0.9)
successes = st.floats(0.0, 1.0).map(lambda q: round(q, 3))


# -- cosine ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(probabilities, probabilities, successes), min_size=3, max_size=6))
@settings(deadline=None)
def test_alignment_is_the_cosine_of_the_updates(children) -> None:
    p, t, q = ([child[i] for child in children] for i in range(3))
    share = [a / sum(p) - b / sum(t) for a, b in zip(p, t, strict=True)]
    assume(max(q) - min(q) > 0.01 and max(map(abs, share)) > 1e-3)
    (row,) = rows_of(path_of(Node(p, q, {"T": t})), tau=1e-9)
    assert row["alignment"] == pytest.approx(slow_alignment(p, t, q), abs=1e-9)
    assert row["alignment"] == pytest.approx(row["alignment_mean"], abs=1e-9)  # nothing is uncertain
    assert row["children"] == len(children)


@given(st.tuples(*[st.tuples(probabilities, probabilities, successes)] * 2))
@settings(deadline=None)
def test_two_children_are_aligned_or_opposed(children) -> None:
    p, t, q = ([child[i] for child in children] for i in range(3))
    push, gain = t[0] / sum(t) - p[0] / sum(p), q[0] - q[1]
    assume(abs(push) > 1e-3 and abs(gain) > 1e-9)
    (row,) = rows_of(path_of(Node(p, q, {"T": t})), tau=1e-9)
    assert row["alignment"] == pytest.approx(np.sign(push * gain), abs=1e-9)
    assert abs(row["alignment"]) <= 1
    assert row["verdict"] == ("helpful" if push * gain > 0 else "harmful")
    assert row["p_positive"] == (push * gain > 0)


def test_forward_and_reverse_kl_have_separate_rows() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3], "B": [0.7, 0.2, 0.1]})
    rows = rows_of(path_of(node), objectives=[ReverseKL(), ForwardKL()])
    assert {(row["teacher"], row["objective"]) for row in rows} == {
        (teacher, objective) for teacher in "AB" for objective in ("reverse_kl", "forward_kl")
    }
    ideal = np.array([0.5, 0.3, 0.2]) * (np.array([0.9, 0.1, 0.5]) - 0.58)
    gap = np.array([0.2, 0.5, 0.3]) - np.array([0.5, 0.3, 0.2])
    forward = next(row for row in rows if (row["teacher"], row["objective"]) == ("A", "forward_kl"))
    assert forward["alignment"] == pytest.approx(ideal @ gap / np.linalg.norm(ideal) / np.linalg.norm(gap))
    assert forward["update_norm"] == pytest.approx(np.linalg.norm(gap))


def test_advantage_and_sr_range_by_hand() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3]})
    (row,) = rows_of(path_of(node))
    assert row["sr_range"] == pytest.approx(0.8)
    assert row["advantage"] == pytest.approx((0.2 * 0.9 + 0.5 * 0.1 + 0.3 * 0.5) - (0.5 * 0.9 + 0.3 * 0.1 + 0.2 * 0.5))
    assert row["value"] == pytest.approx(0.58)


def test_sums_include_only_significant_children() -> None:
    node = Node([0.4, 0.3, 0.2, 0.1], [0.9, 0.1, 0.5, 0.0], {"A": [0.1, 0.4, 0.3, 0.2]})
    path = path_of(node)
    effective_C = np.array([50.0, 20.0, 19.9, 1e9])
    path = replace(path, estimate=replace(path.estimate, effective_C=effective_C, counted=True))
    (row,) = rows_of(path, n_sig=20)
    known = [0, 1, 3]
    p, t, q = ([column[k] for k in known] for column in (node.p, node.t["A"], node.q))
    assert row["children"] == 3
    assert row["effective_visits"] == 20
    assert row["alignment"] == pytest.approx(slow_alignment(p, t, q))
    assert row["sr_range"] == pytest.approx(0.9)
    expected = sum((b / sum(t) - a / sum(p)) * c for a, b, c in zip(p, t, q, strict=True))
    assert row["advantage"] == pytest.approx(expected)


# -- edge cases -----------------------------------------------------------------------------------------------


def test_a_teacher_equal_to_the_student_has_zero_alignment() -> None:
    nodes = [
        Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"same": [0.5, 0.3, 0.2]}),
        Node([0.6, 0.4], [0, 1], {"same": [0.6, 0.4]}),
    ]
    for restrict in ("renormalise", "full"):
        path = path_of(*nodes)
        rows = rows_of(replace(path, halves=(path.estimate, path.estimate)), restrict=restrict)
        assert len(rows) == 2
        for row in rows:
            assert row["alignment"] == row["alignment_mean"] == row["alignment_a"] == row["alignment_b"] == 0
            assert row["update_norm"] == pytest.approx(0, abs=1e-12)
            assert row["advantage"] == pytest.approx(0, abs=1e-12)
            assert row["p_positive"] == 0.5
            assert row["verdict"] == "undecided"


def test_the_ranking_of_a_teacher_equal_to_the_student_is_defined() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"same": [0.5, 0.3, 0.2], "other": [0.2, 0.5, 0.3]})
    paths = [path_of(node, node, question=name) for name in ("a", "b")]
    ranks = {rank.teacher: rank for rank in metrics.teacher_ranking(node_table(paths, RKL, Rules()))}
    same = ranks["same"]
    assert same.alignment.mean == same.weighted_cosine.mean == same.fraction_positive.mean == 0
    assert same.undecided == 1
    assert same.helpful == same.harmful == 0
    assert same.n_nodes == 4
    assert ranks["other"].harmful == 1


def test_a_node_with_one_significant_child_has_no_row() -> None:
    fork = Node([0.6, 0.4], [0.2, 0.8], {"A": [0.5, 0.5]})
    path = path_of(Node([1.0], [0.5], {"A": [1.0]}), fork, fork, Node([0.99, 0.01], [1, 0], {"A": [0.99, 0.01]}))
    effective_C = np.array([1e9, 1e9, 1e9, 1e9, 3.0, 1e9, 1e9])
    path = replace(path, estimate=replace(path.estimate, effective_C=effective_C, counted=True))
    assert [row["depth"] for row in rows_of(path)] == [1]
    assert rows_of(path_of(Node([1.0], [0.5], {"A": [1.0]}))) == []


def test_children_without_visits_do_not_make_a_node() -> None:
    path = path_of(Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3]}))
    for visits, expected in (([5, 0, 0], 0), ([5, 1, 0], 3), ([5, 7, 0], 3)):
        few_C = np.array(visits, float)
        seen = replace(path, estimate=replace(path.estimate, visits_C=np.array(visits), effective_C=few_C))
        assert significant(seen.scores, seen.estimate, Rules()).sum() == expected


def test_a_child_is_significant_if_probable_for_student_or_own_teacher_or_on_the_path() -> None:
    teachers = {"A": [0.9, 0.05, 0.01, 0.01], "B": [0.9, 0.01, 0.05, 0.01]}
    path = path_of(Node([0.9, 0.01, 0.01, 0.01], [0.1, 0.2, 0.3, 0.4], teachers, taken=4))

    def members(teacher: str | None, tau: float = 0.02) -> list[bool]:
        return significant(path.scores, path.estimate, Rules(tau=tau), teacher).tolist()

    assert members(None) == members(REWARD) == [True, False, False, True]
    assert members("A") == [True, True, False, True]
    assert members("B") == [True, False, True, True]
    assert all(members(None, tau=0.005))
    assert all(members("A", tau=0.0))


def test_a_teacher_has_the_same_rows_whatever_other_teachers_there_are() -> None:
    own, other = [0.6, 0.3, 0.09, 0.01], [0.1, 0.1, 0.1, 0.7]
    nodes = [([0.7, 0.2, 0.095, 0.005], [0.5, 0.9, 0.1, 0.7]), ([0.97, 0.01, 0.01, 0.01], [0.5, 0.4, 0.1, 0.7])]
    alone = path_of(*[Node(p, q, {"A": own}) for p, q in nodes])
    among = path_of(*[Node(p, q, {"A": own, "B": other}) for p, q in nodes])
    of_other = [row for row in rows_of(among) if row["teacher"] == "B"]
    assert [row["children"] for row in of_other] == [4, 4]
    assert [row["children"] for row in rows_of(alone)] == [3, 3]
    for one, same in zip([row for row in rows_of(among) if row["teacher"] == "A"], rows_of(alone), strict=True):
        assert one == pytest.approx(same, nan_ok=True)


def test_zero_sr_range_gives_no_alignment_and_metrics_skip_it() -> None:
    flat, fork = Node([0.6, 0.4], [0.7, 0.7], {"A": [0.1, 0.9]}), Node([0.6, 0.4], [0.2, 0.8], {"A": [0.1, 0.9]})
    table = node_table([path_of(flat, fork)], RKL, Rules())
    by_depth = {row["depth"]: row for row in table.to_pylist()}
    assert isnan(by_depth[0]["alignment"])
    assert by_depth[0]["sr_range"] == 0
    assert by_depth[0]["verdict"] == "undecided"
    (rank,) = metrics.teacher_ranking(table)
    assert rank.n_nodes == 1
    assert rank.alignment.mean == pytest.approx(1.0)


@pytest.mark.parametrize("restrict", ["renormalise", "full"])
@pytest.mark.parametrize(
    ("p", "t"),
    [
        ([0.7, 0.3, 0.0], [0.2, 0.3, 0.5]),
        ([0.7, 0.2, 0.1], [0.2, 0.8, 0.0]),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
        ([0.7, 0.3, 0.0], [0.7, 0.3, 0.0]),
        ([0.5, 0.1, 0.1], [0.0, 0.0, 0.0]),
    ],
)
def test_zero_probabilities_give_finite_rows(p, t, restrict) -> None:
    rows = rows_of(
        path_of(Node(p, [0.1, 0.6, 0.9], {"A": t}, taken=2)), restrict=restrict, objectives=[ReverseKL(), ForwardKL()]
    )
    assert len(rows) == 2
    for row in rows:
        for name in ("alignment", "alignment_mean", "advantage", "update_norm", "p_positive", "sr_range", "value"):
            assert np.isfinite(row[name]), name
        assert -1 <= row["alignment"] <= 1


def test_a_teacher_with_zero_probability_for_the_bad_token_is_helpful() -> None:
    (row,) = rows_of(path_of(Node([0.7, 0.3], [0.9, 0.0], {"A": [1.0, 0.0]})))
    assert row["alignment"] == pytest.approx(1.0)
    assert row["advantage"] == pytest.approx(0.9 - 0.63)


def test_cosine_of_a_zero_update_is_zero_not_nan() -> None:
    assert cosine(
        np.array([[1.0, -1.0], [0.0, 0.0], [1.0, -1.0]]), np.array([[0.0, 0.0], [1.0, -1.0], [2.0, -2.0]])
    ) == (pytest.approx([0.0, 0.0, 1.0]))
    # A tiny ideal update still has a direction; rounding errors in the objective's update do not.
    tiny, rounding = np.array([1e-12, -1e-12]), np.array([1e-16, -1e-16])
    push = np.array([0.3, -0.3])
    assert cosine(tiny, push) == pytest.approx(1.0)
    assert cosine(push, rounding) == 0


# -- full vocabulary ------------------------------------------------------------------------------------------


def full_update(p: Sequence[float], t: Sequence[float]) -> np.ndarray:
    p, t = np.array(p), np.array(t)
    f = np.log(t) - np.log(p)
    return p * (f - p @ f)


def test_full_restricts_the_full_vocabulary_update() -> None:
    # The last two tokens are too unlikely to be in S_u, but the teacher lowers one of them, which raises all others.
    node = Node([0.5, 0.3, 0.17, 0.015, 0.015], [0.9, 0.1, 0.5, 0.0, 0.0], {"A": [0.45, 0.35, 0.184, 1e-6, 0.015999]})
    (full,), (renormalised,) = (rows_of(path_of(node), restrict=restrict) for restrict in ("full", "renormalise"))
    push = full_update(node.p, node.t["A"])[:3]
    p = np.array(node.p[:3]) / sum(node.p[:3])
    ideal = p * (np.array(node.q[:3]) - p @ np.array(node.q[:3]))
    assert full["children"] == 3
    assert full["alignment"] == pytest.approx(ideal @ push / np.linalg.norm(ideal) / np.linalg.norm(push), abs=1e-9)
    assert full["update_norm"] == pytest.approx(np.linalg.norm(push), abs=1e-12)
    assert renormalised["alignment"] == pytest.approx(slow_alignment(node.p[:3], node.t["A"][:3], node.q[:3]))
    assert abs(full["alignment"] - renormalised["alignment"]) > 0.01
    assert full["sr_range"] == renormalised["sr_range"]


def test_the_rest_of_the_vocabulary_acts_as_one_more_token() -> None:
    node = Node([0.5, 0.2], [0.9, 0.1], {"A": [0.3, 0.3]})
    (row,) = rows_of(path_of(node), restrict="full")
    push = full_update([0.5, 0.2, 0.3], [0.3, 0.3, 0.4])[:2]
    ideal = np.array([1, -1]) * 5 / 7 * 2 / 7 * 0.8
    assert row["update_norm"] == pytest.approx(np.linalg.norm(push))
    assert row["alignment"] == pytest.approx(ideal @ push / np.linalg.norm(ideal) / np.linalg.norm(push))
    # Two children but not ±1: the restricted update does not sum to zero.
    assert abs(row["alignment"]) < 0.999


def test_full_and_renormalise_agree_if_all_children_are_significant() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3]})
    (full,), (renormalised,) = (rows_of(path_of(node), restrict=restrict) for restrict in ("full", "renormalise"))
    assert full["alignment"] == pytest.approx(renormalised["alignment"], abs=1e-12)


# -- rows -----------------------------------------------------------------------------------------------------


def test_every_row_has_question_path_and_depth() -> None:
    two = Node([0.6, 0.4], [0.2, 0.8], {"A": [0.5, 0.5], "B": [0.8, 0.2]})
    three = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3], "B": [0.5, 0.2, 0.3]}, taken=3)
    paths = [
        path_of(two, three, two, question="x", index=0),
        path_of(three, two, question="x", index=1, correct=False),
        path_of(two, question="y"),
    ]
    table = node_table(paths, RKL, Rules())
    assert table.schema == SCHEMA
    rows = {(row["question"], row["path"], row["depth"], row["teacher"]): row for row in table.to_pylist()}
    places = [("x", 0, 0), ("x", 0, 1), ("x", 0, 2), ("x", 1, 0), ("x", 1, 1), ("y", 0, 0)]
    assert set(rows) == {(*place, teacher) for place in places for teacher in "AB"}
    assert len(table) == len(rows)
    row = rows["x", 0, 1, "B"]
    assert (row["token"], row["path_length"], row["depth_normalised"], row["path_correct"]) == (3, 3, 0.5, True)
    assert (row["visits"], row["tail_mass"], row["children"], row["objective"]) == (3, 0, 3, "reverse_kl")
    assert [row[name] for name in ("student_entropy", "teacher_entropy", "kl", "js", "l2", "cosine")] == [
        11, 21, 31, 41, 51, 61,
    ]  # fmt: skip
    assert rows["x", 1, 0, "A"]["path_correct"] is False
    assert rows["y", 0, 0, "A"]["depth_normalised"] == 0
    assert isnan(row["alignment_a"])
    assert isnan(row["alignment_b"])


def test_no_rows_give_an_empty_table() -> None:
    assert node_table([], RKL, Rules()).schema == SCHEMA
    assert len(node_table([path_of(Node([1.0], [0.5], {"A": [1.0]}))], RKL, Rules())) == 0


def test_an_objective_without_a_teacher_has_one_row_per_node() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3], "B": [0.5, 0.2, 0.3]})
    rows = rows_of(path_of(node), objectives=[Ideal(), DrGRPO(), ReverseKL()])
    assert sorted((row["objective"], row["teacher"]) for row in rows) == [
        ("dr_grpo", REWARD), ("ideal", REWARD), ("reverse_kl", "A"), ("reverse_kl", "B"),
    ]  # fmt: skip
    (ideal,) = (row for row in rows if row["objective"] == "ideal")
    assert ideal["alignment"] == pytest.approx(1.0)
    assert all(isnan(ideal[name]) for name in ("advantage", "kl", "js", "l2", "cosine", "teacher_entropy"))


def test_a_policy_gradient_uses_the_natural_rollouts() -> None:
    node = Node([0.5, 0.5], [0.9, 0.1], {})
    path = path_of(node)
    rollouts = Rollouts.of([[1], [1], [2], [2]], outcome=[1, 1, 0, 1], launch=[0, 0, 0, 1])
    path = replace(path, counts=GenerationTree.build(rollouts).counts_along([1]), pass_rate=2 / 3)
    (row,) = rows_of(path, objectives=[DrGRPO()])
    # The last rollout is forced through 2 and does not count; the correct ones sampled 1, the incorrect one 2.
    advantage = np.array([2 - 2 * 2 / 3, 0 - 2 / 3])
    push = (advantage - 0.5 * advantage.sum()) / 3
    assert row["update_norm"] == pytest.approx(np.linalg.norm(push))
    assert row["alignment"] == pytest.approx(1.0)
    assert row["visits"] == 3


def test_an_update_with_a_wrong_shape_raises_with_the_objective_name() -> None:
    class Lopsided:
        name, signal = "lopsided", "teacher"

        def update(self, nodes: Nodes) -> np.ndarray:
            return nodes.p[:, :1]

    with pytest.raises(ValueError, match="'lopsided' returned"):
        rows_of(path_of(Node([0.5, 0.5], [0.9, 0.1], {"A": [0.4, 0.6]})), objectives=[Lopsided()])


# -- uncertainty ----------------------------------------------------------------------------------------------


def test_verdicts_are_decided_only_for_clear_cases() -> None:
    teachers = {"up": [0.8, 0.2], "down": [0.2, 0.8]}
    clear, close = Node([0.5, 0.5], [0.8, 0.2], teachers), Node([0.5, 0.5], [0.51, 0.5], teachers)
    path = uncertain(path_of(clear, close), [0.002, 0.002, 0.01, 0.01])
    rows = {(row["depth"], row["teacher"]): row for row in rows_of(path, draws=2000)}
    assert rows[0, "up"]["p_positive"] > 0.999
    assert rows[0, "up"]["verdict"] == "helpful"
    assert rows[0, "down"]["p_positive"] < 0.001
    assert rows[0, "down"]["verdict"] == "harmful"
    assert (rows[0, "down"]["alignment_low"], rows[0, "down"]["alignment_high"]) == pytest.approx((-1, -1))
    for teacher in ("up", "down"):
        assert 0.4 < rows[1, teacher]["p_positive"] < 0.6
        assert rows[1, teacher]["verdict"] == "undecided"
        assert (rows[1, teacher]["alignment_low"], rows[1, teacher]["alignment_high"]) == pytest.approx((-1, 1))
        assert abs(rows[1, teacher]["alignment"]) < 0.2
    counted = replace(path, estimate=replace(path.estimate, counted=True))
    assert [abs(row["alignment"]) for row in rows_of(counted)] == pytest.approx([1] * 4)


def test_p_positive_matches_the_posterior() -> None:
    node = Node([0.5, 0.5], [0.55, 0.5], {"A": [0.8, 0.2]})
    (row,) = rows_of(uncertain(path_of(node), [0.001, 0.0015]), draws=20_000)
    # The difference has mean 0.05 and standard deviation 0.05.
    assert row["p_positive"] == pytest.approx(0.841345, abs=1e-6)
    assert row["alignment_mean"] == pytest.approx(2 * row["p_positive"] - 1, abs=0.015)


def test_p_positive_is_the_share_of_draws_with_a_positive_cosine() -> None:
    """Several children, shared errors, and an update that does not sum to zero."""
    node = Node([0.5, 0.3, 0.15, 0.05], [0.55, 0.5, 0.6, 0.3], {"A": [0.1, 0.6, 0.2, 0.1]})
    path = uncertain(path_of(node), [0.001, 0.002, 0.003, 0.02])
    shared = {"path_var_T": np.array([0.004]), "load_C": np.array([1.0, 0.6, 0.3, 0.9])}
    found = replace(path.estimate, **shared, sibling_sd_C=np.array([0.0, 0.05, 0.03, 0.02]), widening=1.2)
    children, update = np.arange(4)[None], np.array([[-0.3, 0.4, 0.1, 0.2]])
    p = np.array([node.p])
    drawn = found.draws(children, np.array([0]), n=40_000, rng=np.random.default_rng(0))
    share = (cosine(unified_update(p, drawn), update) > 0).mean()
    assert 0.2 < share < 0.4
    assert p_positive(found, children, np.array([0]), p, update)[0] == pytest.approx(share, abs=0.01)


def test_p_positive_is_a_half_without_a_sign() -> None:
    children, depth, p = np.array([[0, 1]]), np.array([0]), np.array([[0.7, 0.3]])
    equal = path_of(Node([0.7, 0.3], [0.1 + 0.2, 0.3], {"A": [0.5, 0.5]})).estimate
    assert p_positive(equal, children, depth, p, np.array([[0.5, -0.5]]))[0] == 0.5
    apart = path_of(Node([0.7, 0.3], [0.9, 0.3], {"A": [0.5, 0.5]})).estimate
    assert p_positive(apart, children, depth, p, np.array([[0.5, -0.5]]))[0] == 1.0
    assert p_positive(apart, children, depth, p, np.zeros((1, 2)))[0] == 0.5


def test_shared_error_of_siblings_does_not_make_a_verdict_undecided() -> None:
    path = uncertain(path_of(Node([0.5, 0.5], [0.5, 0.4], {"A": [0.8, 0.2]})), [0.0, 1e-5])
    shared = replace(path.estimate, path_var_T=np.array([0.02]), load_C=np.array([1.0, 0.95]))
    alone = replace(path.estimate, own_var_C=shared.se_C**2)
    (together,), (apart,) = (rows_of(replace(path, estimate=estimate)) for estimate in (shared, alone))
    assert together["verdict"] == "helpful"
    assert apart["verdict"] == "undecided"


@pytest.mark.parametrize("confidence", [0.6, 0.8, 0.95, 0.99])
def test_verdicts_use_the_configured_confidence(confidence: float) -> None:
    rng = np.random.default_rng(0)
    nodes = [Node([0.5, 0.5], [0.5 + gap, 0.5], {"A": [0.7, 0.3]}) for gap in rng.normal(0, 0.12, 300)]
    rows = rows_of(uncertain(path_of(*nodes), np.full(600, 0.003)), confidence=confidence, draws=100)
    verdicts = {"helpful": 0, "harmful": 0, "undecided": 0}
    for row in rows:
        positive = row["p_positive"]
        expected = "helpful" if positive >= confidence else "harmful" if positive <= 1 - confidence else "undecided"
        assert row["verdict"] == expected
        verdicts[expected] += 1
    assert min(verdicts.values()) > 10


def test_split_halves_are_computed_like_the_whole() -> None:
    node = Node([0.5, 0.3, 0.2], [0.9, 0.1, 0.5], {"A": [0.2, 0.5, 0.3]})
    path = path_of(node)
    other = [0.1, 0.5, 0.6]
    halves = (path.estimate, exact_estimate(path.scores, np.array(other)))
    (row,) = rows_of(replace(path, halves=halves, unshrunk=halves[::-1]))
    assert row["alignment_a"] == pytest.approx(row["alignment"])
    assert row["alignment_b"] == pytest.approx(slow_alignment(node.p, node.t["A"], other))
    assert row["signal_a"] == pytest.approx(0.5 * row["alignment_b"])
    assert row["signal_b"] == pytest.approx(0.8 * row["alignment_a"])


# -- seeds ----------------------------------------------------------------------------------------------------


def uncertain_path(question: str, index: int = 0) -> EstimatedPath:
    node = Node([0.5, 0.3, 0.2], [0.5, 0.45, 0.55], {"A": [0.2, 0.5, 0.3]})
    two = Node([0.6, 0.4], [0.45, 0.5], {"A": [0.5, 0.5]})
    path = path_of(node, two, node, question=question, index=index)
    halves = (path.estimate, path.estimate)
    return uncertain(replace(path, halves=halves, unshrunk=halves), np.full(8, 0.01))


def test_rows_of_a_question_do_not_depend_on_the_others() -> None:
    alone = rows_of(uncertain_path("b"))
    among = rows_of(
        uncertain_path("a"),
        uncertain_path("b"),
        uncertain_path("c"),
        uncertain_path("b", index=1),
    )
    assert [row for row in among if (row["question"], row["path"]) == ("b", 0)] == alone
    reordered = rows_of(uncertain_path("b", index=1), uncertain_path("c"), uncertain_path("b"))
    assert [row for row in reordered if (row["question"], row["path"]) == ("b", 0)] == alone


def test_another_seed_question_or_path_gives_other_draws() -> None:
    def drawn(path: EstimatedPath, seed: int = 0) -> list[float]:
        return [row["alignment_mean"] for row in rows_of(path, seed=seed)]

    assert drawn(uncertain_path("a")) == drawn(uncertain_path("a"))
    assert drawn(uncertain_path("a")) != drawn(uncertain_path("a"), seed=1)
    assert drawn(uncertain_path("a")) != drawn(uncertain_path("b"))
    assert drawn(uncertain_path("a")) != drawn(uncertain_path("a", index=1))


# -- exact world ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> ExactWorld:
    return ExactWorld.random(3, length=20, vocabulary=8, states=24, stakes=3.0)


@pytest.fixture(scope="module")
def truth(world: ExactWorld) -> tuple[pa.Table, list[PathScores], list[ExactTeacher]]:
    teachers = [world.tilted_teacher(noise=0.2, seed=1), world.adversarial_teacher(noise=0.2, seed=2)]
    plan = Settings(budget=Budget(initial=30, targeted=0))
    evidence = collect(world, teachers, Question("w"), world, settings=plan)
    paths = [
        EstimatedPath(
            "w", index, right, scores, exact_estimate(scores, world.exact_q_along(scores)),
            evidence.tree.counts_along(scores.completion_T), evidence.pass_rate,
        )
        for index, (scores, right) in enumerate(zip(evidence.paths, evidence.correct, strict=True))
    ]  # fmt: skip
    return node_table(paths, RKL, Rules()), list(evidence.paths), teachers


def test_the_exact_estimate_gives_the_exact_alignment(world, truth) -> None:
    table, paths, teachers = truth
    tables = {teacher.name: teacher.log_t_LSV for teacher in teachers}
    checked = 0
    for row in table.to_pylist():
        scores, depth = paths[row["path"]], row["depth"]
        prefix = scores.completion_T[:depth]
        state = int(world.states_along(prefix)[-1])
        log_p_V, q_V = world.log_p_LSV[depth, state], world.exact_q(prefix)
        log_t = {name: log_t_LSV[depth, state] for name, log_t_LSV in tables.items()}
        likely_V = np.exp(np.maximum(log_p_V, log_t[row["teacher"]])) > 0.02
        likely_V[scores.completion_T[depth]] = True
        children = np.flatnonzero(likely_V)
        assert row["children"] == len(children)
        assert row["sr_range"] == pytest.approx(np.ptp(q_V[children]), abs=1e-12)
        if row["sr_range"] > 1e-6:
            p, t = np.exp(log_p_V[children]), np.exp(log_t[row["teacher"]][children])
            assert row["alignment"] == pytest.approx(slow_alignment(p.tolist(), t.tolist(), q_V[children]), abs=1e-6)
            checked += 1
    assert checked > 30


def test_helpful_and_harmful_teachers_are_distinguished(truth) -> None:
    ranks = {rank.teacher: rank for rank in metrics.teacher_ranking(truth[0])}
    assert ranks["tilted"].weighted_cosine.mean > 0.7
    assert ranks["adversarial"].weighted_cosine.mean < -0.7
    assert ranks["tilted"].advantage.mean > 0 > ranks["adversarial"].advantage.mean


# -- child table ----------------------------------------------------------------------------------------------


def test_the_child_table_has_every_kept_child_and_reproduces_the_node_table() -> None:
    objectives = [ReverseKL(), ForwardKL(), DrGRPO()]
    fork = Node(
        [0.5, 0.3, 0.195, 0.005], [0.5, 0.9, 0.1, 0.7], {"A": [0.2, 0.6, 0.195, 0.005], "B": [0.6, 0.2, 0.195, 0.005]}
    )
    plain = Node([1.0], [0.5], {"A": [1.0], "B": [1.0]})
    path = uncertain(path_of(fork, plain, question="q", index=3, correct=False), [0.01] * 5)
    table = child_table([path], ["A", "B"], objectives, Rules())
    assert table.schema.equals(CHILDREN)
    assert teachers_of(table) == ["A", "B"]
    pairs = pairs_of(table)
    assert pairs == [(a, o) for o in ("reverse_kl", "forward_kl") for a in ("A", "B")] + [("reward", "dr_grpo")]
    rows = table.to_pylist()
    assert [(row["depth"], row["token"], row["own"]) for row in rows] == [
        (0, 1, True), (0, 2, False), (0, 3, False), (0, 4, False), (1, 1, True),
    ]  # fmt: skip
    assert {(row["question"], row["path"], row["path_correct"]) for row in rows} == {("q", 3, False)}
    # The fourth is below tau for student and teachers; a node with one child has no alignment.
    assert [row["significant"] for row in rows] == [True, True, True, False, False]
    np.testing.assert_allclose([row["t"] for row in rows[:2]], [[0.2, 0.6], [0.6, 0.2]], rtol=1e-6)
    np.testing.assert_allclose([row["q"] for row in rows[:4]], fork.q, rtol=1e-6)
    assert all(row["q_low"] < row["q"] < row["q_high"] for row in rows)
    assert [row["update"] is None for row in rows] == [row["ideal"] is None for row in rows] == [False] * 3 + [True] * 2
    ideal, updates = np.array([row["ideal"] for row in rows[:3]]), np.array([row["update"] for row in rows[:3]])
    assert abs(ideal.sum()) < 1e-6
    known = uncertain(path, [0.0] * 5)
    nodes = {(row["teacher"], row["objective"]): row["alignment"] for row in rows_of(known, objectives=objectives)}
    for pair, update in zip(pairs, updates.T, strict=True):
        np.testing.assert_allclose(float(cosine(ideal, update)), nodes[pair], atol=1e-5)


def test_the_child_table_has_zero_updates_outside_a_teachers_own_set() -> None:
    fork = Node([0.6, 0.39, 0.01], [0.5, 0.9, 0.1], {"A": [0.2, 0.79, 0.01], "B": [0.4, 0.2, 0.4]})
    path = path_of(fork)
    rows = child_table([path], ["A", "B"], RKL, Rules()).to_pylist()
    assert [row["significant"] for row in rows] == [True] * 3
    of_a, of_b = np.array([row["update"] for row in rows]).T
    assert of_a[2] == 0
    assert of_a[:2] == pytest.approx([-of_a[1], of_a[1]])
    assert np.abs(of_b).min() > 0
    assert of_b.sum() == pytest.approx(0, abs=1e-6)


def test_a_question_without_paths_still_has_teacher_and_pair_metadata() -> None:
    table = child_table([], ["A"], [ReverseKL()], Rules())
    assert table.num_rows == 0
    assert (teachers_of(table), pairs_of(table)) == (["A"], [("A", "reverse_kl")])
