"""The report without a browser: packing is reversible, untrusted text is escaped, sentences match the metrics."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.html_elements import Elements

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import DrGRPO, ForwardKL, ReverseKL
from opd_align.report import html
from opd_align.report.html import report_html, write_report
from opd_align.report.page import script_json
from opd_align.report.prose import DELTA_CAUTION, interval_sign, verdict
from opd_align.report.recommendation import recommendation
from opd_align.report.slices import Slices
from opd_align.report.table_format import format_cell
from opd_align.report.tables import estimate_cell, report_tables
from opd_align.report.token_pack import MAX_CHILDREN, pack, pack_paths, unpack
from opd_align.types import OpdAlignError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(3, length=60, objectives=(ReverseKL(), DrGRPO()))


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return report_html(analysis, title="A run")


def overview(page: str) -> Any:
    return json.loads(Elements(page).inside["overview"])


# -- packs ----------------------------------------------------------------------------------------------------


def test_unpack_restores_what_the_page_displays() -> None:
    rng = np.random.default_rng(0)
    share, cosine, number = (
        rng.random(500),
        rng.uniform(-1, 1, 500),
        rng.normal(0, 1, 500) * 10 ** rng.uniform(-3, 3, 500),
    )
    back = unpack(
        pack(
            {
                "whole": ("u32", np.arange(0, 2**32, 2**23)),
                "short": ("u16", np.arange(700)),
                "byte": ("u8", np.arange(256)),
                "share": ("unit", share),
                "cosine": ("signed", cosine),
                "coarse": ("unit2", share),
                "coarse_cosine": ("signed2", cosine),
                "number": ("f16", number),
                "none": ("unit", np.empty(0)),
            }
        )
    )
    np.testing.assert_array_equal(back["whole"], np.arange(0, 2**32, 2**23))
    np.testing.assert_array_equal(back["short"], np.arange(700))
    np.testing.assert_array_equal(back["byte"], np.arange(256))
    np.testing.assert_allclose(back["share"], share, atol=0.0005 + 1e-12)
    np.testing.assert_allclose(back["cosine"], cosine, atol=0.0005 + 1e-12)
    np.testing.assert_allclose(back["coarse"], share, atol=0.005 + 1e-12)
    np.testing.assert_allclose(back["coarse_cosine"], cosine, atol=0.005 + 1e-12)
    np.testing.assert_allclose(back["number"], number, rtol=1 / 64 + 1 / 1024, atol=1e-6)
    assert len(back["none"]) == 0


@pytest.mark.parametrize("kind", ["unit", "signed", "unit2", "signed2", "f16"])
def test_pack_preserves_nan_zero_and_one(kind: Any) -> None:
    back = unpack(pack({"x": (kind, np.array([np.nan, 0.0, 1.0]))}))["x"]
    assert np.isnan(back[0])
    assert back[1:].tolist() == [0.0, 1.0]


def test_pack_turns_too_large_numbers_into_infinity() -> None:
    back = unpack(pack({"x": ("f16", np.array([1e6, -1e6, np.inf, 65504.0, 65472.0]))}))["x"]
    assert back.tolist() == [np.inf, -np.inf, np.inf, 65504.0, 65472.0]


def test_pack_paths_keeps_children_and_nodes(analysis: Analysis) -> None:
    tokens = sorted(analysis.children["token"].unique().to_pylist())
    paths = list(pack_paths(analysis.nodes, analysis.children, {token: at for at, token in enumerate(tokens)}))
    assert [(path.question, path.path) for path in paths] == [(f"question-{q}", p) for q in range(3) for p in range(4)]
    path = paths[5]
    assert (path.correct, path.length) == (False, 60)
    children = [row for row in analysis.children.to_pylist() if (row["question"], row["path"]) == ("question-1", 1)]
    nodes = [row for row in analysis.nodes.to_pylist() if (row["question"], row["path"]) == ("question-1", 1)]
    columns = unpack(path.data)
    assert len(children) > 70
    assert [tokens[at] for at in columns["token"]] == [row["token"] for row in children]
    np.testing.assert_allclose(columns["q"], [row["q"] for row in children], atol=0.0006)
    np.testing.assert_allclose(columns["t.1"], [row["t"][1] for row in children], atol=0.006)
    known = [row for row in children if row["significant"]]
    np.testing.assert_allclose(columns["update.2"], [row["update"][2] for row in known], rtol=0.02, atol=1e-6)
    np.testing.assert_allclose(columns["ideal"], [row["ideal"] for row in known], rtol=0.02, atol=1e-6)
    for pair, (teacher, objective) in enumerate([("Self-1C", "reverse_kl"), ("Qwen3-8B", "reverse_kl")]):
        own = sorted(
            (row for row in nodes if (row["teacher"], row["objective"]) == (teacher, objective)),
            key=lambda row: row["depth"],
        )
        assert len(own) == path.nodes > 5
        assert columns["node.depth"].tolist() == [row["depth"] for row in own]
        np.testing.assert_allclose(columns[f"alignment.{pair}"], [row["alignment"] for row in own], atol=0.0006)
        words = [("helpful", "harmful", "undecided")[at] for at in columns[f"verdict.{pair}"]]
        assert words == [row["verdict"] for row in own]


def test_a_wide_node_keeps_its_most_probable_children(analysis: Analysis) -> None:
    from opd_align.report.token_pack import _stored_children

    depth_C = np.repeat([0, 1], [40, 3])
    p_C = np.random.default_rng(0).permutation(43) / 1000
    required_C = np.zeros(43, bool)
    required_C[int(np.argmin(p_C[:40]))] = True
    stored_C = _stored_children(depth_C, p_C, required_C)
    assert stored_C[40:].all()
    assert stored_C[:40].sum() == MAX_CHILDREN + 1
    assert stored_C[np.argmin(p_C[:40])]
    assert p_C[:40][stored_C[:40] & ~required_C[:40]].min() > p_C[:40][~stored_C[:40]].max()


# -- the page -------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained(page: str) -> None:
    tags = Elements(page).tags
    assert len(tags) > 100
    assert not [tag for tag, given in tags if tag in ("img", "iframe", "object", "embed", "form", "base")]
    links = [given.get(name) or "" for _, given in tags for name in ("src", "href", "action", "data")]
    assert all(link == "" or link.startswith(("#", "data:")) for link in links)
    assert not [given for _, given in tags if any(name.startswith("on") or name == "style" for name in given)]


def test_a_caution_is_beside_every_difference_of_correct_and_incorrect_rollouts(analysis: Analysis, page: str) -> None:
    tables = [table for table in report_tables(analysis) if any(column.name == "Δ" for column in table.columns)]
    assert len(tables) >= 2
    assert all(table.caption == DELTA_CAUTION for table in tables)
    (point,) = [text for text in verdict(Slices(analysis.nodes), "reverse_kl").points if "incorrect rollouts" in text]
    assert point.endswith(f"{DELTA_CAUTION}.")
    assert f"Δ is correct minus incorrect. {DELTA_CAUTION}." in page


def test_content_security_policy_allows_only_own_script_and_style(page: str) -> None:
    elements = Elements(page)
    (policy,) = [
        given["content"] for tag, given in elements.tags if given.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for rule, text in (("script-src", script), ("style-src", style)):
        assert rules[rule] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("text", [HOSTILE, "<!--", "]]>", "\u2028\u2029", '"\\', "{{script}}", "&lt;", "a\x00b"])
def test_script_json_cannot_close_its_element(text: str) -> None:
    escaped = script_json({"x": [text]})
    assert not set(escaped) & set("<>&\u2028\u2029")
    assert json.loads(escaped) == {"x": [text]}


def test_script_json_replaces_lone_surrogates() -> None:
    assert json.loads(script_json(["a\udc80b"])) == ["a?b"]


def test_untrusted_text_is_escaped_everywhere() -> None:
    made = made_analysis(
        2, length=30, teachers=(HOSTILE, "{{script}}"), name=lambda at: f"{HOSTILE}{at}", word=lambda _: HOSTILE
    )
    page = report_html(made, title=HOSTILE)
    elements = Elements(page)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert "onerror=alert(1)>" not in page
    data = overview(page)
    assert data["title"] == HOSTILE
    assert data["teachers"] == [HOSTILE, "{{script}}"]
    assert set(data["token_texts"]) == {HOSTILE}
    assert page.count("<script>") == 1


def test_tokens_without_text_use_their_id(analysis: Analysis) -> None:
    data = overview(report_html(replace(analysis, texts={})))
    assert all(re.fullmatch("⟨[0-9]+⟩", text) for text in data["token_texts"])


def test_the_same_analysis_gives_the_same_page(analysis: Analysis, page: str) -> None:
    assert report_html(analysis, title="A run") == page


def test_analysis_without_nodes_is_inconclusive(analysis: Analysis) -> None:
    empty = replace(analysis, nodes=analysis.nodes.slice(0, 0), children=analysis.children.slice(0, 0))
    assert "Inconclusive: there was nothing to compare." in report_html(empty)


def test_paths_beyond_the_size_limit_are_counted(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    n_paths = sum(len(question["paths"]) for question in overview(report_html(analysis))["questions"])
    monkeypatch.setattr(html, "MAX_PATH_BYTES", 12_000)
    data = overview(report_html(analysis))
    kept = [len(question["paths"]) for question in data["questions"]]
    assert 3 <= sum(kept) < n_paths == 12
    assert min(kept) >= 1  # the first paths of every question are kept
    assert f"{n_paths - sum(kept)} more paths are included in all statistics" in data["about"]


def test_write_report_names_a_path_that_cannot_be_written(analysis: Analysis, tmp_path: Path) -> None:
    with pytest.raises(OpdAlignError, match="cannot write the report"):
        write_report(analysis, tmp_path / "no" / "report.html")


# -- verdict sentences ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_intervals() -> Analysis:
    """Enough questions for intervals and probabilities."""
    return made_analysis(6, length=60, objectives=(ReverseKL(), ForwardKL(), DrGRPO()))


def test_headline_names_the_highest_ranked_teacher(with_intervals: Analysis) -> None:
    page = report_html(with_intervals)
    best, second, last = metrics.teacher_ranking(with_intervals.nodes, "reverse_kl")
    assert interval_sign(best.alignment) == 1
    elements = Elements(page)
    assert f"Distillation from {best.teacher} points toward success" in elements.inside["headline"]
    points = " ".join(overview(page)["objectives"][0]["verdict"]["points"]).replace("\u00a0", " ")
    for rank in (best, second):
        assert format_cell(estimate_cell(rank.alignment), "signed") in points
    assert f"{best.n_nodes:,} decisions" in points
    assert last.teacher not in points or interval_sign(last.alignment) < 0


@pytest.mark.parametrize(
    ("mean", "half", "expected"), [(0.3, 0.1, 1), (-0.3, 0.1, -1), (0.1, 0.1, 0), (0.3, float("nan"), 0)]
)
def test_interval_sign(mean: float, half: float, expected: int) -> None:
    assert interval_sign(metrics.Estimate(mean, half, 5)) == expected


def test_one_question_is_inconclusive() -> None:
    result = verdict(Slices(made_analysis(1, length=40).nodes), "reverse_kl")
    assert result.headline == "Inconclusive: one question is not enough."
    assert not result.decided


@pytest.mark.parametrize("n", [2, 3])
def test_fewer_than_four_questions_have_no_intervals_and_no_recommendation(n: int) -> None:
    made = made_analysis(n, length=40, objectives=(ReverseKL(), DrGRPO()))
    page = report_html(made)
    data = overview(page)
    assert Elements(page).inside["recommendation"].startswith(f"No recommendation: only {n} questions")
    assert data["objectives"][0]["verdict"]["headline"] == f"Inconclusive: {n} questions are not enough."
    shown = [
        *data["objectives"][0]["verdict"]["points"],
        *(str(table.formatted_rows()) for table in report_tables(made)),
    ]
    assert len(shown) > 6
    assert not [text for text in shown if "±" in text]
    assert all(one["alignment"]["half_width"] is None for one in data["objectives"][0]["teachers"])


def with_alignment(analysis: Analysis, alignment: Any) -> Analysis:
    """The analysis with another alignment at every node, known without error."""

    def moment(signals: int, cosines: int) -> Any:
        return lambda row: row["sr_range"] ** signals * alignment(row) ** (signals + cosines)

    return changed(
        analysis, alignment=alignment, alignment_square=moment(0, 2), signal_mean=moment(1, 0),
        signal_square=moment(2, 0), signal_alignment=moment(1, 1), sr_range_mean=lambda row: row["sr_range"],
    )  # fmt: skip


def changed(analysis: Analysis, **columns: Any) -> Analysis:
    """The analysis with columns of its nodes computed from the row."""
    rows = [row | {name: value(row) for name, value in columns.items()} for row in analysis.nodes.to_pylist()]
    return replace(analysis, nodes=pa.Table.from_pylist(rows, schema=analysis.nodes.schema))


def test_headline_claims_nothing_if_every_decision_is_undecided(with_intervals: Analysis) -> None:
    made = changed(with_intervals, alignment=lambda row: abs(row["alignment"]), verdict=lambda row: "undecided")
    result = verdict(Slices(made.nodes), "reverse_kl")
    assert result.headline == "Inconclusive: no token of any path has a verdict for any of the 3 teachers."
    assert not result.decided


def test_the_recommendation_is_the_first_line_and_its_tables_are_on_the_page(with_intervals: Analysis) -> None:
    good, bad = "Qwen3-8B", "Self-1C"
    factor = {good: 1.0, bad: -1.0}
    made = with_alignment(with_intervals, lambda row: factor.get(row["teacher"], 0.3) * abs(row["alignment"]))
    decision = Slices(made.nodes).decision
    page = Elements(report_html(made))
    first_line = page.inside["recommendation"].strip()
    assert first_line == recommendation(decision)
    assert first_line.startswith(f"Use {good} with ")
    assert f"Harmful: {bad} with " in first_line
    names = [table.name for table in report_tables(made)]
    assert names[:4] == ["questions", "decision", "teacher-by-objective", "pairwise"]
    assert "Teacher × loss" in page.inside["h3"]


def test_headline_if_all_teachers_point_away_from_success(with_intervals: Analysis) -> None:
    made = with_alignment(with_intervals, lambda row: -abs(row["alignment"]))
    assert Slices(made.nodes).decision.outcome == "no_teacher_helps"
    result = verdict(Slices(made.nodes), "reverse_kl")
    assert result.headline == "Distillation from every teacher points away from success."
    assert result.decided


@pytest.mark.parametrize(
    ("best", "second", "expected"),
    [
        ((-0.2, 0.1), (-0.3, 0.4), "Distillation from A, the highest-ranked teacher, points away from success."),
        ((0.3, 0.4), (0.2, 0.1), "Inconclusive: the alignment of A, the highest-ranked teacher, is not significantly "),
        ((0.5, 0.1), (0.2, 0.1), "Distillation from A points toward success, more than from any other teacher."),
        ((0.5, 0.2), (0.2, 0.2), "Distillation from A points toward success."),
    ],
)
def test_headline_claims_nothing_about_other_teachers_that_is_not_significant(
    analysis: Analysis, best: tuple[float, float], second: tuple[float, float], expected: str
) -> None:
    from opd_align.report.prose import _headline

    rank = metrics.teacher_ranking(analysis.nodes, "reverse_kl")[0]
    first, other = (
        replace(rank, teacher=name, alignment=metrics.Estimate(mean, half_width, 5))
        for name, (mean, half_width) in (("A", best), ("B", second))
    )
    same_questions: Any = SimpleNamespace(questions=lambda objective, teacher: {"q1"})
    assert _headline(same_questions, first, [other]).startswith(expected)
