"""The report in a real browser: it opens in silence, says what the tables say, is read by mouse and keyboard."""

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
from opd_align.report.table_format import shown
from opd_align.report.tables import estimate

HOSTILE = "</script><img src=x onerror=alert(1)>"
TEACHERS = ("Self-1C", "Qwen3-8B", "Qwen3-4B")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(4, length=150, teachers=TEACHERS, objectives=(ReverseKL(), ForwardKL()))


@pytest.fixture(scope="module")
def file(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(analysis, tmp_path_factory.mktemp("report") / "report.html", title="A run")


def chosen_depth(page: Any) -> int:
    return int(page.evaluate("reader.depth"))


def test_it_opens_in_silence(opened: Any, file: Path) -> None:
    made = opened(file)
    made.page.wait_for_timeout(300)
    assert made.noise == []
    assert made.page.title() == "A run"
    for chart in ("ranking", "contrast", "curves", "spread", "correlations", "tree"):
        assert made.page.locator(f"#{chart} svg").count() == 1
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_says_what_the_tables_say(opened: Any, file: Path, analysis: Analysis) -> None:
    page = opened(file).page
    for number, objective in enumerate(("reverse_kl", "forward_kl")):
        page.select_option("#objective", str(number))
        ranks = metrics.teacher_ranking(analysis.nodes, objective)
        assert ranks[0].teacher in page.inner_text("#headline")
        assert shown(estimate(ranks[0].alignment), "signed") in page.inner_text("#points").replace("\u00a0", " ")
        drawn = page.locator("#ranking .row text.number").all_text_contents()
        assert drawn == [shown(estimate(rank.alignment), "signed") for rank in ranks]
        names = page.locator("#ranking .row text.who").all_text_contents()
        assert names == [rank.teacher for rank in ranks]


def test_hovering_shows_the_continuations_and_a_click_keeps_them(opened: Any, file: Path, analysis: Analysis) -> None:
    page = opened(file).page
    token = page.locator("#text span.d").nth(3)
    token.scroll_into_view_if_needed()
    token.hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert {"next", "p", "t", "Q"} <= set(tip.inner_text().split())
    token.click()
    depth = chosen_depth(page)
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


def test_another_teacher_means_other_colours_and_other_numbers(opened: Any, file: Path) -> None:
    page = opened(file).page

    def looks() -> tuple[str, str]:
        classes = page.evaluate("[...document.querySelectorAll('#text span')].map((s) => s.className).join()")
        return classes, page.inner_text("#card")

    before = looks()
    other = next(name for name in TEACHERS if name != page.evaluate("state.teacher"))
    page.select_option("#teacher", label=other)
    assert page.evaluate("state.teacher") == other
    assert looks()[0] != before[0]
    assert page.locator("#ranking .row[aria-pressed=true] text.who").text_content() == other
    page.locator("#ranking .row").first.press("Enter")
    assert page.evaluate("state.teacher") == page.locator("#ranking .row text.who").first.text_content()


def test_the_keyboard_is_enough(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.keyboard.press("j")
    first = chosen_depth(page)
    assert page.locator("#card .chip.helpful").count() == 1
    assert page.evaluate("document.activeElement.classList.contains('on')")
    page.keyboard.press("j")
    assert chosen_depth(page) != first
    page.keyboard.press("Shift+J")
    assert chosen_depth(page) == first
    page.select_option("#teacher", label="Self-1C")  # leans nowhere, so it does both
    page.locator("#text span.on").focus()
    page.keyboard.press("k")
    assert page.locator("#card .chip.harmful").count() == 1
    depths = page.evaluate("[...reader.path.depths]")
    page.evaluate("reader.select(reader.path.depths[3], { focus: true })")
    for key, expected in (("ArrowRight", 4), ("n", 5), ("p", 4), ("ArrowLeft", 3)):
        page.keyboard.press(key)
        assert chosen_depth(page) == depths[expected]
    page.keyboard.press("ArrowDown")
    assert chosen_depth(page) == depths[3] + 1
    page.keyboard.press("ArrowUp")
    before = page.evaluate("state.teacher")
    page.keyboard.press("t")
    assert page.evaluate("state.teacher") != before
    page.keyboard.press("]")
    page.wait_for_selector("#text[data-ready='0/1']")
    assert page.locator("#paths button[aria-pressed=true]").inner_text().endswith("2")
    page.locator("#find").press_sequentially("n")
    assert page.input_value("#find") == "n"  # keys belong to whoever is being typed into


def test_the_tree_is_walked_by_its_tokens(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.evaluate("reader.select(20)")
    page.locator("#tree .go[aria-label*='token 22']").click()
    assert chosen_depth(page) == 21
    page.locator("#tree .go[aria-label*='token 21']").press("Enter")
    assert chosen_depth(page) == 20


def test_a_click_in_the_list_opens_that_path(opened: Any, file: Path) -> None:
    page = opened(file).page
    page.locator("#rows tr").nth(2).locator("button").nth(1).click()
    page.wait_for_selector("#text[data-ready='2/1']")
    assert "Question 2" in page.inner_text("#asked")


def test_a_run_without_paths_opens_too(opened: Any, analysis: Analysis, tmp_path: Path) -> None:
    bare = replace(analysis, nodes=analysis.nodes.slice(0, 0), children=analysis.children.slice(0, 0))
    made = opened(write_report(bare, tmp_path / "report.html"))
    for key in ("j", "k", "n", "ArrowRight", "t", "]"):
        made.page.keyboard.press(key)
    assert "Nothing could be decided" in made.page.inner_text("#headline")
    assert "No path of this question" in made.page.inner_text("#text")
    assert made.noise == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_switch(opened: Any, file: Path, scheme: Any) -> None:
    page = opened(file, color_scheme=scheme).page

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    assert (brightness() > 380) == (scheme == "light")
    page.click("#theme")
    assert (brightness() > 380) == (scheme == "dark")


def test_foreign_text_stays_text(opened: Any, tmp_path: Path) -> None:
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


def test_a_path_of_30000_tokens_is_read_smoothly(opened: Any, tmp_path: Path) -> None:
    long = made_analysis(1, paths=2, length=30_000)
    made = opened(write_report(long, tmp_path / "report.html"))
    page = made.page
    assert page.locator("#text span").count() < 6_000  # the rest exists when it is looked at
    page.evaluate("reader.select(29_990)")
    page.wait_for_timeout(400)
    inside = page.evaluate(
        "(() => { const a = document.querySelector('#text span.on').getBoundingClientRect(),"
        " b = document.getElementById('text').getBoundingClientRect();"
        " return a.top >= b.top && a.bottom <= b.bottom; })()"
    )
    assert inside
    page.evaluate("document.getElementById('text').scrollTop = 0")
    page.wait_for_timeout(400)
    words = page.evaluate("Array.from({ length: 12 }, (_, at) => overview.words[reader.path.word(at)]).join('')")
    assert page.inner_text("#text").replace("↵", "").split()[:6] == words.split()[:6]
    assert made.noise == []
