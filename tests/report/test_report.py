"""The report without a browser: what is packed comes back, what is foreign stays text, what is said is true."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.html_elements import Elements

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.report import html
from opd_align.report.html import report_html, write_report
from opd_align.report.page import in_script
from opd_align.report.prose import side, verdict
from opd_align.report.slices import Slices
from opd_align.report.table_format import shown
from opd_align.report.tables import estimate
from opd_align.report.token_pack import MOST_CHILDREN, pack, packed_paths, unpack
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


def test_a_pack_gives_back_what_a_screen_can_show() -> None:
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
def test_unknown_stays_unknown_and_the_ends_are_exact(kind: Any) -> None:
    back = unpack(pack({"x": (kind, np.array([np.nan, 0.0, 1.0]))}))["x"]
    assert np.isnan(back[0])
    assert back[1:].tolist() == [0.0, 1.0]


def test_large_numbers_become_infinite_not_unknown() -> None:
    back = unpack(pack({"x": ("f16", np.array([1e6, -1e6, np.inf, 65504.0, 65472.0]))}))["x"]
    assert back.tolist() == [np.inf, -np.inf, np.inf, 65504.0, 65472.0]


def test_every_path_is_packed_with_its_children_and_nodes(analysis: Analysis) -> None:
    tokens = sorted(analysis.children["token"].unique().to_pylist())
    paths = list(packed_paths(analysis.nodes, analysis.children, {token: at for at, token in enumerate(tokens)}))
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


def test_a_wide_node_keeps_its_likeliest_children(analysis: Analysis) -> None:
    from opd_align.report.token_pack import _shown

    depth_C = np.repeat([0, 1], [40, 3])
    p_C = np.random.default_rng(0).permutation(43) / 1000
    always_C = np.zeros(43, bool)
    always_C[int(np.argmin(p_C[:40]))] = True
    shown_C = _shown(depth_C, p_C, always_C)
    assert shown_C[40:].all()
    assert shown_C[:40].sum() == MOST_CHILDREN + 1
    assert shown_C[np.argmin(p_C[:40])]
    assert p_C[:40][shown_C[:40] & ~always_C[:40]].min() > p_C[:40][~shown_C[:40]].max()


# -- the page -------------------------------------------------------------------------------------------------


def test_the_page_is_complete_in_itself(page: str) -> None:
    tags = Elements(page).tags
    assert len(tags) > 100
    assert not [tag for tag, given in tags if tag in ("img", "iframe", "object", "embed", "form", "base")]
    links = [given.get(name) or "" for _, given in tags for name in ("src", "href", "action", "data")]
    assert all(link == "" or link.startswith(("#", "data:")) for link in links)
    assert not [given for _, given in tags if any(name.startswith("on") or name == "style" for name in given)]


def test_the_policy_admits_this_script_and_this_style_only(page: str) -> None:
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
def test_json_cannot_leave_its_element(text: str) -> None:
    escaped = in_script({"x": [text]})
    assert not set(escaped) & set("<>&\u2028\u2029")
    assert json.loads(escaped) == {"x": [text]}


def test_half_a_character_does_not_stop_the_report() -> None:
    assert json.loads(in_script(["a\udc80b"])) == ["a?b"]


def test_foreign_text_stays_text_everywhere() -> None:
    made = made_analysis(
        2, length=30, teachers=(HOSTILE, "{{script}}"), name=lambda at: f"{HOSTILE}{at}", word=lambda _: HOSTILE
    )
    page = report_html(made, title=HOSTILE)
    elements = Elements(page)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert "onerror=alert(1)>" not in page
    told = overview(page)
    assert told["title"] == HOSTILE
    assert told["teachers"] == [HOSTILE, "{{script}}"]
    assert set(told["words"]) == {HOSTILE}
    assert page.count("<script>") == 1


def test_tokens_that_nobody_can_read_are_shown_by_their_number(analysis: Analysis) -> None:
    told = overview(report_html(replace(analysis, texts={})))
    assert all(re.fullmatch("⟨[0-9]+⟩", word) for word in told["words"])


def test_the_same_analysis_gives_the_same_page(analysis: Analysis, page: str) -> None:
    assert report_html(analysis, title="A run") == page


def test_an_analysis_without_nodes_says_so(analysis: Analysis) -> None:
    empty = replace(analysis, nodes=analysis.nodes.slice(0, 0), children=analysis.children.slice(0, 0))
    assert "Nothing could be decided." in report_html(empty)


def test_paths_that_do_not_fit_stay_out_and_are_counted(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = overview(report_html(analysis))
    sizes = sum(len(asked["paths"]) for asked in whole["questions"])
    monkeypatch.setattr(html, "ROOM", 12_000)
    told = overview(report_html(analysis))
    kept = [len(asked["paths"]) for asked in told["questions"]]
    assert 3 <= sum(kept) < sizes == 12
    assert min(kept) >= 1  # every question's first ones first
    assert f"{sizes - sum(kept)} more paths count in all figures" in told["about"]


def test_where_it_cannot_be_written_is_said(analysis: Analysis, tmp_path: Path) -> None:
    with pytest.raises(OpdAlignError, match="cannot write the report"):
        write_report(analysis, tmp_path / "no" / "report.html")


# -- words ----------------------------------------------------------------------------------------------------


def test_the_headline_rests_on_the_first_teacher_of_the_ranking(analysis: Analysis, page: str) -> None:
    best, second, last = metrics.teacher_ranking(analysis.nodes, "reverse_kl")
    assert side(best.alignment) == 1
    elements = Elements(page)
    assert f"Following {best.teacher} points toward success" in elements.inside["headline"]
    told = " ".join(overview(page)["objectives"][0]["verdict"]["points"]).replace("\u00a0", " ")
    for rank in (best, second):
        assert shown(estimate(rank.alignment), "signed") in told
    assert f"{best.n_nodes:,} decisions" in told
    assert last.teacher not in told or side(last.alignment) < 0


@pytest.mark.parametrize(
    ("mean", "half", "expected"), [(0.3, 0.1, 1), (-0.3, 0.1, -1), (0.1, 0.1, 0), (0.3, float("nan"), 0)]
)
def test_a_side_is_taken_only_by_the_whole_interval(mean: float, half: float, expected: int) -> None:
    assert side(metrics.Estimate(mean, half, 5)) == expected


def test_one_question_decides_nothing() -> None:
    told = verdict(Slices(made_analysis(1, length=40).nodes), "reverse_kl")
    assert told.headline == "One question is too little to decide anything."
    assert not told.decided


def test_teachers_that_harm_are_not_praised_for_being_first(analysis: Analysis) -> None:
    flipped = analysis.nodes.to_pylist()
    for row in flipped:
        row["alignment"] = -abs(row["alignment"])
    import pyarrow as pa

    told = verdict(Slices(pa.Table.from_pylist(flipped, schema=analysis.nodes.schema)), "reverse_kl")
    assert told.headline == "Every teacher points away from success."
    assert told.decided
