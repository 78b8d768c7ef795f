"""Alignment by position in the completion, and alignment with the weights of a gate: numbers computed by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from opd_align import metrics


def nodes(*rows: dict[str, Any]) -> pa.Table:
    defaults = {"question": "q", "path": 0, "path_length": 9, "depth": 0, "teacher": "T", "objective": "gkd"}
    return pa.Table.from_pylist([{**defaults, "alignment": 0.0, "sr_range": 0.5, **row} for row in rows])


def test_thirds_of_a_completion() -> None:
    table = nodes(*({"depth": depth, "alignment": depth / 10} for depth in range(9)))
    first, middle, last = metrics.alignment_by_position(table)
    assert [third.mean for third in (first, middle, last)] == pytest.approx([0.1, 0.4, 0.7])
    short = nodes({"path_length": 1, "alignment": 0.3})
    assert [third.n for third in metrics.alignment_by_position(short)] == [1, 0, 0], "a third without nodes is unknown"


def test_an_open_gate_gives_the_mean_alignment() -> None:
    nodes_of = ((0, 0), (1, 0), (1, 1), (1, 2))  # path and depth: one node on the first path, three on the second
    table = nodes(*({"path": path, "depth": depth, "alignment": path - 0.1 * depth} for path, depth in nodes_of))
    for weight in (1.0, 0.25):
        gated = metrics.gated_alignment(table.append_column(metrics.GATE_WEIGHT, pa.array([weight] * 4)))
        (rank,) = metrics.teacher_ranking(
            table.append_column("verdict", pa.array(["undecided"] * 4))
            .append_column("advantage", pa.array([0.0] * 4))
            .append_column("children", pa.array([2] * 4))
            .append_column("alignment_a", pa.array([0.0] * 4))
            .append_column("alignment_b", pa.array([0.0] * 4))
        )
        assert gated.alignment.mean == pytest.approx(rank.alignment.mean) == pytest.approx((0 + 0.9) / 2)
        assert gated.share_kept == 1


def test_a_gate_weighs_nodes_and_drops_questions_without_weight() -> None:
    table = nodes(
        {"path": 0, "alignment": 1.0},
        {"path": 1, "alignment": -0.5},
        {"path": 1, "alignment": -1.0, "depth": 1},
        {"question": "dropped", "alignment": 0.7},
    ).append_column(metrics.GATE_WEIGHT, pa.array([0.2, 1.0, 0.0, 0.0]))
    gated = metrics.gated_alignment(table)
    # Path 0 has one node of weight 0.2; path 1 has two nodes, so each counts half: 0.5 · 1.0.
    assert gated.alignment.mean == pytest.approx((0.2 * 1.0 + 0.5 * -0.5) / 0.7)
    assert gated.signal.mean == pytest.approx(gated.alignment.mean / 2)
    assert gated.alignment.n == 1
    assert gated.share_kept == 0.5
