"""The cross-fitted oracle: values from the other half, without shrinkage, and nothing where there is nothing."""

from __future__ import annotations

from math import nan

import numpy as np
import pyarrow as pa
import pytest

from opd_align import metrics
from opd_align.backends.exact import ExactWorld
from opd_align.core.alignment import cosine
from opd_align.core.chosen_paths import chosen_rows, halves_of
from opd_align.core.collect import Evidence, collect
from opd_align.core.engine import align, estimated_paths
from opd_align.core.intervals import NORMAL
from opd_align.core.objectives import unified_update
from opd_align.core.oracle import SHARED_SD
from opd_align.core.selective import selective_curves
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Question

SMALL = Settings(
    budget=Budget(initial=40, targeted=120, allocation="adaptive", correct_paths=1, incorrect_paths=1),
    rules=Rules(draws=20),
)


def collected(seed: int) -> Evidence:
    world = ExactWorld.random(seed, length=20, vocabulary=5, stakes=2.0)
    return collect(world, [world.tilted_teacher("T", seed=1)], Question(f"q{seed}"), world, settings=SMALL)


def test_the_value_of_a_node_is_its_unshrunk_signal_in_one_half():
    evidence = collected(8300)
    path, nodes = estimated_paths(evidence, SMALL)[0], align(evidence, SMALL)
    assert path.unshrunk is not None
    scores, checked = path.scores, 0
    for row in nodes.to_pylist():
        if row["path"] != 0 or row["children"] != 2:
            continue
        child = np.flatnonzero((scores.depth_C == row["depth"]) & (scores.log_p_C > np.log(SMALL.rules.tau)))
        if len(child) != 2:  # one of the two is in S_u for the teacher, or for being on the path
            continue
        p, t = (np.exp(log_C[child]) for log_C in (scores.log_p_C, scores.teachers["T"].log_t_C))
        p, t = p / p.sum(), t / t.sum()
        for name, half in zip(("signal_a", "signal_b"), path.unshrunk, strict=True):
            q = half.q_C[child]
            sign = cosine(unified_update(p, q), unified_update(p, np.log(t / p)))
            assert row[name] == pytest.approx(sign * abs(q[0] - q[1]), abs=1e-9)
            checked += 1
    assert checked > 4


def test_the_oracle_takes_its_values_from_the_other_half():
    nodes = pa.table({
        "question": ["a", "a", "b"], "path": [0, 0, 0], "teacher": ["T"] * 3, "objective": ["gkd"] * 3,
        "alignment": [0.5] * 3, "sr_range": [0.2] * 3, "sr_range_a": [0.2] * 3, "sr_range_b": [0.2] * 3,
        "alignment_a": [0.5, -0.5, 0.5], "alignment_b": [0.5, 0.5, 0.5],
        "signal_a": [0.3, -0.1, nan], "signal_b": [0.1, 0.7, -0.2], "kl": [1.0, 2.0, 3.0],
    })  # fmt: skip
    full, kept = metrics.selective_oracle(nodes, (0.0,))
    # Question a: chosen by a, valued 0.1; chosen by b, (0.3 − 0.1) / 2. Question b: only half b has a value.
    assert kept.cross_fitted_signal.mean == pytest.approx((0.1 - 0.2) / 2)
    assert full.cross_fitted_signal.mean == pytest.approx(((0.4 + 0.1) / 2 - 0.2) / 2)


def test_halves_share_only_the_chosen_paths_and_certain_ends():
    evidence = collected(8301)
    tree, (a, b) = evidence.tree, halves_of(evidence.tree, evidence.paths)
    shared = set(chosen_rows(tree, evidence.paths).tolist()) | set(
        np.flatnonzero(tree.launch_R == tree.length_R).tolist()
    )
    assert len(a) + len(b) == len(tree) + len(shared)


def without_shared_error(found) -> float:
    """The half-width of the interval over questions alone."""
    return float(np.sqrt(found.half_width**2 - (NORMAL * SHARED_SD) ** 2))


def test_the_interval_has_an_error_that_more_questions_do_not_reduce():
    n = 400
    columns = {name: np.full(n, 0.3) for name in ("alignment", "alignment_a", "alignment_b", "sr_range")}
    nodes = pa.table({
        "question": [f"q{at}" for at in range(n)], "path": np.zeros(n, int), "teacher": ["T"] * n,
        "objective": ["gkd"] * n, **columns,
    })  # fmt: skip
    full, kept = metrics.selective_oracle(nodes, (0.0,))
    for found in (kept.cross_fitted_signal, kept.cross_fitted_gain):
        assert found.half_width == pytest.approx(NORMAL * SHARED_SD)
    for found in (full.cross_fitted_signal, full.cross_fitted_gain):
        assert found.half_width == pytest.approx(0.0, abs=1e-9)
    everything, half = selective_curves(nodes, (), shares=(1.0, 0.5))["cross-fitted"]
    assert everything.high - everything.low == pytest.approx(0.0, abs=1e-9)
    assert (half.low, half.high) == pytest.approx((0.09 - NORMAL * SHARED_SD, 0.09 + NORMAL * SHARED_SD))


def test_an_error_that_both_halves_share_is_no_gain():
    # Both posteriors overrate one token; the teacher prefers it at half of the nodes. Unshrunk values do not.
    rng = np.random.default_rng(0)
    n = 6_000
    error_N = 0.1 * rng.choice([-1.0, 1.0], n)
    a_N, b_N = error_N + 0.05 * rng.standard_normal((2, n))
    nodes = pa.table({
        "question": [f"q{at % 60}" for at in range(n)], "path": np.zeros(n, int), "teacher": ["T"] * n,
        "objective": ["gkd"] * n, "alignment": np.sign(a_N + b_N), "sr_range": np.abs(a_N + b_N) / 2,
        "alignment_a": np.sign(a_N), "alignment_b": np.sign(b_N), "sr_range_a": np.abs(a_N), "sr_range_b": np.abs(b_N),
        "signal_a": 0.4 * rng.standard_normal(n), "signal_b": 0.4 * rng.standard_normal(n),
    })  # fmt: skip
    found = metrics.selective_oracle(nodes, (0.0,))[1].cross_fitted_signal
    assert abs(found.mean) < without_shared_error(found) / 2
    shrunk = metrics.selective_oracle(nodes.drop_columns(["signal_a", "signal_b"]), (0.0,))[1].cross_fitted_signal
    assert shrunk.mean > 0.09
