"""The report in a real browser: no errors or requests, the numbers of the tables, navigation by mouse and keyboard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _made import made_analysis

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import ForwardKL, ReverseKL
from opd_align.report.html import write_report
from opd_align.report.provenance import Provenance, TeacherNote
from opd_align.report.table_format import format_cell
from opd_align.report.tables import estimate_cell

HOSTILE = "</script><img src=x onerror=alert(1)>"
TEACHERS = ("Self-1C", "Qwen3-8B", "Qwen3-4B")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(4, length=150, teachers=TEACHERS, objectives=(ReverseKL(), ForwardKL()))


@pytest.fixture(scope="module")
def file(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(analysis, tmp_path_factory.mktemp("report") / "report.html", title="A run")


def selected_depth(page: Any) -> int:
    return int(page.evaluate("tokenView.depth"))


def test_opens_without_errors_or_requests(opened: Any, file: Path) -> None:
    made = opened(file)
    made.page.wait_for_timeout(300)
    assert made.noise == []
    assert made.page.title() == "A run"
    for chart in ("ranking", "contrast", "selective-curves", "histogram", "correlations", "tree"):
        assert made.page.locator(f"#{chart} svg").count() == 1
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_charts_show_the_numbers_of_the_tables(opened: Any, file: Path, analysis: Analysis) -> None:
    page = opened(file).page
    for number, objective in enumerate(("reverse_kl", "forward_kl")):
        page.select_option("#objective", str(number))
        ranks = metrics.teacher_ranking(analysis.nodes, objective)
        assert ranks[0].teacher in page.inner_text("#headline")
        assert format_cell(estimate_cell(ranks[0].alignment), "signed") in page.inner_text("#points").replace(
            "\u00a0", " "
        )
        values = page.locator("#ranking .row text.number").all_text_contents()
        assert values == [format_cell(estimate_cell(rank.alignment), "signed") for rank in ranks]
        names = page.locator("#ranking .row text.teacher").all_text_contents()
        assert names == [rank.teacher for rank in ranks]


def test_hover_shows_the_tooltip_and_click_the_card(opened: Any, file: Path, analysis: Analysis) -> None:
    page = opened(file).page
    token = page.locator("#text span.d").nth(3)
    token.scroll_into_view_if_needed()
    token.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert {"next", "token", "p", "t", "Q"} <= set(tip.inner_text().split())
    token.click()
    depth = selected_depth(page)
    rows = [
        row
        for row in analysis.nodes.to_pylist()
        if (row["question"], row["path"], row["depth"], row["objective"]) == ("question-0", 0, depth, "reverse_kl")
    ]
    (row,) = [row for row in rows if row["teacher"] == page.evaluate("state.teacher")]
    card = page.inner_text("#card")
    assert row["verdict"] in card
    assert f"{row['sr_range']:.3f}" in card
    assert f"token {depth + 1} of 150" in card
    children = [
        child
        for child in analysis.children.to_pylist()
        if (child["question"], child["path"], child["depth"]) == ("question-0", 0, depth)
    ]
    assert page.locator("#card svg g").count() == len(children) >= 2


def test_selecting_a_teacher_changes_colours_and_numbers(opened: Any, file: Path) -> None:
    page = opened(file).page

    def appearance() -> tuple[str, str]:
        classes = page.evaluate("[...document.querySelectorAll('#text span')].map((s) => s.className).join()")
        return classes, page.inner_text("#card")

    before = appearance()
    other = next(name for name in TEACHERS if name != page.evaluate("state.teacher"))
    page.select_option("#teacher", label=other)
    assert page.evaluate("state.teacher") == other
    assert appearance()[0] != before[0]
    assert page.locator("#ranking .row[aria-pressed=true] text.teacher").text_content() == other
    page.locator("#ranking .row").first.press("Enter")
    assert page.evaluate("state.teacher") == page.locator("#ranking .row text.teacher").first.text_content()


def test_keyboard_navigation(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.keyboard.press("j")
    first = selected_depth(page)
    assert page.locator("#card .chip.helpful").count() == 1
    assert page.evaluate("document.activeElement.classList.contains('on')")
    page.keyboard.press("j")
    assert selected_depth(page) != first
    page.keyboard.press("Shift+J")
    assert selected_depth(page) == first
    page.select_option("#teacher", label="Self-1C")  # has helpful and harmful decisions
    page.locator("#text span.on").focus()
    page.keyboard.press("k")
    assert page.locator("#card .chip.harmful").count() == 1
    depths = page.evaluate("[...tokenView.path.depths]")
    page.evaluate("tokenView.select(tokenView.path.depths[3], { focus: true })")
    for key, expected in (("ArrowRight", 4), ("n", 5), ("p", 4), ("ArrowLeft", 3)):
        page.keyboard.press(key)
        assert selected_depth(page) == depths[expected]
    page.keyboard.press("ArrowDown")
    assert selected_depth(page) == depths[3] + 1
    page.keyboard.press("ArrowUp")
    before = page.evaluate("state.teacher")
    page.keyboard.press("t")
    assert page.evaluate("state.teacher") != before
    page.keyboard.press("]")
    page.wait_for_selector("#text[data-ready='0/1']")
    assert page.locator("#paths button[aria-pressed=true]").inner_text().endswith("2")
    page.locator("#find").press_sequentially("n")
    assert page.input_value("#find") == "n"  # shortcuts are off in input fields


def test_tree_navigation(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.evaluate("tokenView.select(20)")
    page.locator("#tree .go[aria-label*='token 22']").click()
    assert selected_depth(page) == 21
    page.locator("#tree .go[aria-label*='token 21']").press("Enter")
    assert selected_depth(page) == 20


def test_question_list_opens_a_path(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.locator("#rows tr").nth(2).locator("button").nth(1).click()
    page.wait_for_selector("#text[data-ready='2/1']")
    assert "Question 2" in page.inner_text("#question-text")


def test_a_run_without_paths(opened: Any, analysis: Analysis, tmp_path: Path) -> None:
    bare = replace(analysis, nodes=analysis.nodes.slice(0, 0), children=analysis.children.slice(0, 0))
    made = opened(write_report(bare, tmp_path / "report.html"))
    for key in ("j", "k", "n", "ArrowRight", "t", "]"):
        made.page.keyboard.press(key)
    assert "Inconclusive: there was nothing to compare" in made.page.inner_text("#headline")
    assert "contains no path of this question" in made.page.inner_text("#text")
    assert made.noise == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(opened: Any, file: Path, scheme: Any) -> None:
    page = opened(file, color_scheme=scheme).page

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    assert (brightness() > 380) == (scheme == "light")
    page.click("#theme")
    assert (brightness() > 380) == (scheme == "dark")


def test_untrusted_text_is_escaped(opened: Any, tmp_path: Path) -> None:
    hostile = made_analysis(
        2,
        length=40,
        teachers=(HOSTILE, "b"),
        name=lambda at: f"{HOSTILE}{at}",
        word=lambda token: f" {HOSTILE}{token % 7}",
    )
    made = opened(write_report(hostile, tmp_path / "report.html", title=HOSTILE))
    page = made.page
    for key in ("j", "k", "n", "t", "]"):
        page.keyboard.press(key)
    page.locator("#text span.d").first.hover()
    page.click("#tables summary")
    page.wait_for_timeout(200)
    assert made.noise == []
    assert page.locator("img").count() == 0
    assert page.title() == HOSTILE
    assert HOSTILE in page.inner_text("#text")
    assert HOSTILE in page.inner_text("#rows")
    assert HOSTILE in page.inner_text("#tables")


def test_a_path_of_30000_tokens(opened: Any, tmp_path: Path) -> None:
    long = made_analysis(1, paths=2, length=30_000)
    made = opened(write_report(long, tmp_path / "report.html"))
    page = made.page
    assert page.locator("#text span").count() < 6_000  # elements exist only near the visible part
    page.evaluate("tokenView.select(29_990)")
    page.wait_for_timeout(400)
    inside = page.evaluate(
        "(() => { const a = document.querySelector('#text span.on').getBoundingClientRect(),"
        " b = document.getElementById('text').getBoundingClientRect();"
        " return a.top >= b.top && a.bottom <= b.bottom; })()"
    )
    assert inside
    page.evaluate("document.getElementById('text').scrollTop = 0")
    page.wait_for_timeout(400)
    words = page.evaluate(
        "Array.from({ length: 12 }, (_, at) => overview.token_texts[tokenView.path.tokenAt(at)]).join('')"
    )
    assert page.inner_text("#text").replace("↵", "").split()[:6] == words.split()[:6]
    assert made.noise == []


def test_a_highlight_opens_its_place_in_the_token_view(opened: Any, file: Path, analysis: Analysis) -> None:
    made = opened(file)
    page = made.page
    listed = page.evaluate("teacher().highlights.best")
    number, decision = next((at, one) for at, one in enumerate(listed) if one["question"] > 0)
    page.locator("#best button").nth(number).click()
    page.wait_for_selector(f"#text[data-ready='{decision['question']}/{decision['path']}']")
    assert selected_depth(page) == decision["depth"]
    assert f"token {decision['depth'] + 1} of 150" in page.inner_text("#card")
    assert page.locator("#by-position tbody tr").count() == 3
    assert made.noise == []


def test_no_filter_curve_is_above_the_oracle_and_bands_are_drawn(opened: Any, file: Path) -> None:
    page = opened(file).page
    curves = page.evaluate("Object.fromEntries(teacher().curves.map(({ name, points }) => [name, points]))")
    for name in ("kl", "js"):
        pairs = list(zip(curves[name], curves["oracle"], strict=True))
        assert len(pairs) == 7
        assert all(point["signal"] <= best["signal"] + 1e-12 for point, best in pairs)
    assert page.locator("#selective-curves .band").count() == 2


@pytest.mark.parametrize("width", [1400, 390])
def test_the_decision_fits_the_page_and_prompts_follow_the_teacher(opened: Any, tmp_path: Path, width: int) -> None:
    made = made_analysis(4, length=40, teachers=TEACHERS, objectives=(ReverseKL(), ForwardKL()))
    prompts = {"question-0": {"": "the student's prompt", "Self-1C": "a prompt with a demonstration"}}
    notes = (TeacherNote("Self-1C", "the student itself, reading 1 correct response"),)
    source = Provenance({"student": "embedded:student"}, notes, prompts)
    page = opened(
        write_report(made, tmp_path / "report.html", provenance=source), viewport={"width": width, "height": 900}
    ).page
    page.wait_for_selector("#text[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#decision table").count() == 3
    assert "reading 1 correct response" in page.inner_text("#provenance")
    page.select_option("#teacher", label="Self-1C")
    assert page.text_content("#prompt-text") == "a prompt with a demonstration"
    page.select_option("#teacher", label="Qwen3-8B")
    assert page.text_content("#prompt-title") == "What the student read for this question"
    page.select_option("#question", "1")
    page.wait_for_selector("#text[data-ready='1/0']")
    assert page.locator("#prompt").is_hidden()
