"""The report on a phone, on a tablet and on paper; links to a place; sentences about one of something."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from _made import made_analysis

from opd_align.core.engine import Analysis
from opd_align.core.objectives import ForwardKL, ReverseKL
from opd_align.report.html import write_report

TEACHERS = ("Self-1C", "Qwen3-8B", "Qwen3-4B-Instruct-2507")
WIDTHS = (1400, 768, 390, 320)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(4, length=120, teachers=TEACHERS, objectives=(ReverseKL(), ForwardKL()))


@pytest.fixture(scope="module")
def file(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(analysis, tmp_path_factory.mktemp("report") / "report.html", title="A run with a long name")


def sized(opened: Any, file: Path | str, width: int) -> Any:
    return opened(file, viewport={"width": width, "height": 860}).page


def until(page: Any, condition: str) -> None:
    """Waits; `wait_for_function` evaluates text inside the page, which its Content-Security-Policy forbids."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {condition}")


@pytest.mark.parametrize("width", WIDTHS)
def test_larger_values_are_further_right_and_nothing_overflows(opened: Any, file: Path, width: int) -> None:
    page = sized(opened, file, width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    teachers = page.evaluate("objective().teachers")
    places = {
        name: page.evaluate(
            f"[...document.querySelectorAll('#{name} .row')].map((row) => [...row.querySelectorAll('circle')]"
            ".map((circle) => Number(circle.getAttribute('cx'))))"
        )
        for name in ("ranking", "contrast")
    }
    values = {
        "ranking": [[teacher["alignment"]["mean"]] for teacher in teachers],
        "contrast": [[teacher["contrast"][side] for side in ("correct", "incorrect")] for teacher in teachers],
    }
    for name, of_rows in values.items():
        pairs = sorted(
            (value, x) for row, xs in zip(of_rows, places[name], strict=True) for value, x in zip(row, xs, strict=True)
        )
        xs = [x for _, x in pairs]
        assert len(pairs) >= len(TEACHERS)
        assert xs == sorted(xs)
        chart = page.evaluate(f"byId('{name}').clientWidth")
        assert min(xs) >= 0
        assert max(xs) <= chart
        assert xs[-1] - xs[0] > 0.1 * chart  # the scale has room


@pytest.mark.parametrize("width", WIDTHS)
def test_navigation_is_there_at_every_width(opened: Any, file: Path, width: int) -> None:
    page = sized(opened, file, width)
    link = page.locator(".top nav a", has_text="Tables")
    link.scroll_into_view_if_needed()
    link.click()
    until(page, "Math.abs(byId('tables').getBoundingClientRect().top) < innerHeight")
    assert page.evaluate("location.hash") == "#tables"


# -- links ---------------------------------------------------------------------------------------------------------


def place(page: Any) -> dict[str, Any]:
    return page.evaluate(
        "({question: overview.questions[tokenView.question].id, path: tokenView.index, token: tokenView.depth, "
        "teacher: state.teacher, objective: objective().name})"
    )


def test_a_link_opens_the_place_it_was_copied_at(opened: Any, file: Path) -> None:
    page = sized(opened, file, 1400)
    assert page.evaluate("location.hash") == ""  # opening the page does not change its address
    page.select_option("#objective", "1")
    page.select_option("#question", "2")
    page.wait_for_selector("#text[data-ready='2/0']")
    page.locator("#paths button").nth(1).click()
    page.wait_for_selector("#text[data-ready='2/1']")
    page.select_option("#teacher", label="Self-1C")
    page.keyboard.press("n")
    page.locator("#text span.d").nth(4).click()
    until(page, "location.hash.includes(`token=${tokenView.depth + 1}&`)")
    copied = page.evaluate("location.href")
    where = place(page)
    assert where["question"] == "question-2"
    assert where["path"] == 1
    assert (where["teacher"], where["objective"]) == ("Self-1C", "forward_kl")
    assert parse_qs(copied.partition("#")[2])["token"] == [str(where["token"] + 1)]
    other = opened(file).page
    other.goto("about:blank")
    other.goto(copied)
    other.wait_for_selector("#text[data-ready='2/1']")
    assert place(other) == where
    assert other.evaluate("byId('objective').selectedOptions[0].textContent") == "forward_kl"


def test_a_changed_or_wrong_link_is_followed_as_far_as_it_goes(opened: Any, file: Path) -> None:
    made = opened(file)
    page = made.page
    page.evaluate("location.hash = 'question=question-3&path=2&token=7'")
    page.wait_for_selector("#text[data-ready='3/1']")
    assert place(page)["token"] == 6
    page.evaluate("location.hash = 'question=%3Cimg%20src=x%3E&path=99&token=abc&teacher=nobody'")
    page.wait_for_timeout(200)
    page.evaluate("location.hash = 'question=question-1&path=99&token=99999'")
    page.wait_for_selector("#text[data-ready='1/0']")
    assert place(page)["token"] == 119
    assert [entry for entry in made.noise if not entry.startswith("request: file:")] == []


# -- paper ---------------------------------------------------------------------------------------------------------


def test_paper_shows_whole_tables_and_folded_parts(opened: Any, file: Path) -> None:
    page = opened(file, color_scheme="dark", viewport={"width": 703, "height": 900}).page  # A4 without its margins
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()") == "#fff"
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    cut = page.evaluate(
        "[...document.querySelectorAll('table')].map((table) => table.getBoundingClientRect().right)"
        ".filter((right) => right > innerWidth + 1)"
    )
    assert cut == []
    hidden = page.evaluate(
        "[...document.querySelectorAll('.wide, .list, #text, #card')].filter((box) => box.scrollHeight > "
        "box.clientHeight + 2 && getComputedStyle(box).overflowY !== 'visible').map((box) => box.id || box.className)"
    )
    assert hidden == []
    assert not page.locator(".controls").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("details:not([open])").count() > 0
    assert len(page.pdf(format="A4")) > 50_000


# -- sentences -----------------------------------------------------------------------------------------------------


def test_an_alignment_that_can_only_be_one_or_minus_one_has_no_interval(opened: Any, file: Path) -> None:
    page = opened(file).page
    for alignment, positive, text in (
        (-1, 0.02, "alignment −1 with probability 98% (two continuations: it is either +1 or −1)"),
        (1, 1, "alignment +1 with probability >99% (two continuations: it is either +1 or −1)"),
    ):
        assert page.evaluate(f"alignmentText({alignment}, {alignment}, {alignment}, {positive}, 2)") == text
    # The mean of +1 and −1 by their probabilities.
    mean = "alignment −1 with probability 97% (two continuations: it is either +1 or −1)"
    assert page.evaluate("alignmentText(-0.94, -1, -1, 0.03, 2)") == mean
    assert page.evaluate("alignmentText(-0.9, -1, -0.4, 0.02, 3)") == (
        "alignment −0.90, 90% interval [−1.00, −0.40], negative with probability 98%"
    )


def test_one_teacher_one_question_one_path(opened: Any, tmp_path: Path) -> None:
    small = made_analysis(1, length=12, paths=1, teachers=("Self-1C",))
    page = opened(write_report(small, tmp_path / "one.html")).page
    shown = page.inner_text("main")
    assert "1 question · 1 path · 400 rollouts" in shown
    for wrong in ("1 questions", "1 paths", "1 decisions", "all teachers", "Select a teacher", "best of several"):
        assert wrong not in shown
