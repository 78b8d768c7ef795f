"""Where a teacher helps and hurts: the right decisions, at the right places, by kind and position."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from opd_align.core.highlights import KINDS, MAX_PER_PATH, MAX_SHOWN, THIRDS, highlights, token_kind
from opd_align.core.metrics import teacher_ranking

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis


@pytest.fixture(scope="module")
def analysis():
    return made_analysis(6, length=60)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (" 12", "number"), ("x2", "number"), (" books", "word"), ("é", "word"), (" +", "symbol"), (".", "symbol"),
        ("\n", "line break"), (".\n", "line break"), ("  ", "space"), ("", "space"), (None, "unknown"), ("_", "symbol"),
    ],
)  # fmt: skip
def test_kinds_of_tokens(text, kind):
    assert token_kind(text) == kind
    assert kind in KINDS


def test_the_worst_and_best_decisions_are_those_of_the_table(analysis):
    found = highlights(analysis.nodes, analysis.texts, objective="reverse_kl", teacher="Qwen3-8B")
    rows = [
        row for row in analysis.nodes.to_pylist() if row["teacher"] == "Qwen3-8B" and row["objective"] == "reverse_kl"
    ]
    harmful = [row for row in rows if row["verdict"] == "harmful"] or rows
    worst = min(harmful, key=lambda row: row["sr_range"] * row["alignment"])
    first = found.worst[0]
    assert (first.question, first.path, first.depth) == (worst["question"], worst["path"], worst["depth"])
    assert first.signal == pytest.approx(worst["sr_range"] * worst["alignment"])
    assert all(one.signal < 0 for one in found.worst)
    assert all(one.signal > 0 for one in found.best)
    for listed in (found.worst, found.best):
        assert 3 <= len(listed) <= MAX_SHOWN
        assert max(Counter((one.question, one.path) for one in listed).values()) <= MAX_PER_PATH
        decided = [one.verdict != "undecided" for one in listed]
        assert decided == sorted(decided, reverse=True)


def test_parts_cover_all_decisions(analysis):
    found = highlights(analysis.nodes, analysis.texts, objective="reverse_kl", teacher="Qwen3-8B")
    n_nodes = next(r.n_nodes for r in teacher_ranking(analysis.nodes, "reverse_kl") if r.teacher == "Qwen3-8B")
    for parts in (found.kinds, found.positions):
        assert sum(part.n_nodes for part in parts) == n_nodes
        assert sum(part.share for part in parts) == pytest.approx(1)
    assert [part.name for part in found.positions] == list(THIRDS)
    assert {part.name for part in found.kinds} >= {"number", "word"}


def test_a_decision_that_paths_share_is_listed_once(analysis):
    doubled = analysis.nodes.to_pylist()
    doubled += [row | {"path": row["path"] + 10} for row in doubled]
    import pyarrow as pa

    nodes = pa.Table.from_pylist(doubled, schema=analysis.nodes.schema)
    found = highlights(nodes, analysis.texts, objective="reverse_kl", teacher="Qwen3-8B")
    places = [(one.question, one.depth, one.signal) for one in found.worst]
    assert len(places) == len(set(places)) > 3


def test_no_decisions_are_no_highlights(analysis):
    found = highlights(analysis.nodes.slice(0, 0), {}, objective="reverse_kl", teacher="Qwen3-8B")
    assert (found.worst, found.best, found.kinds, found.positions) == ((), (), (), ())
