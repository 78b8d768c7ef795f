"""The dashboard as a monitor in a real browser: first screen, several trainings, zoom, panels, updates, long logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made_trainings import line, synthetic_training

from opd_align.report.server import DashboardServer, DashboardState

READY = "#facts > *"
LONG_EVALUATIONS, LONG_ROWS = 2_000, 200_000


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two trainings: the teacher of one keeps its alignment, that of the other, which is gated, loses it."""
    folder = tmp_path_factory.mktemp("trainings")
    return {
        "all tokens": synthetic_training(folder / "all", 6, rows=60, teachers=("Self-1C", "Qwen/Qwen3-8B")),
        "incorrect only": synthetic_training(folder / "gated", 4, rows=40, gated=True, drift=0.4),
    }


@pytest.fixture
def open_trainings(opened: Any, tmp_path: Path) -> Any:
    """Opens a static page of trainings."""

    def open_page(trainings: dict[str, Path], hash_: str = "", **settings: Any) -> Any:
        file = DashboardState(trainings).write(tmp_path / "page.html")
        made = opened(f"{file.as_uri()}{hash_}", ready=READY, **settings)
        assert made.noise == []
        return made.page

    return open_page


@pytest.fixture
def followed(opened: Any, tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """A served page and the folder of its training."""
    folder = synthetic_training(tmp_path / "gkd", 6, rows=60)
    with DashboardServer(DashboardState({"gkd": folder})) as server:
        yield opened(server.url, ready="#connection.live").page, folder


def until(page: Any, expression: str) -> None:
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def panel(page: Any, slug: str) -> Any:
    return page.locator(f"figure[data-panel='{slug}']")


def tile(page: Any, title: str) -> list[str]:
    """The lines of a tile."""
    return page.locator(".tile", has=page.get_by_text(title, exact=True)).inner_text().split("\n")


def drag(page: Any, slug: str, start: float, end: float) -> None:
    """Drags over a chart, between two shares of its width."""
    drawing = panel(page, slug).locator("svg[role=img]")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=4)
    page.mouse.up()


def ticks(page: Any, slug: str) -> list[str]:
    return panel(page, slug).locator("svg[role=img] text.soft").all_inner_texts()


# -- the first screen ------------------------------------------------------------------------------------------------


def test_the_first_screen_has_what_matters(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings({"gated": trainings["incorrect only"]}, viewport={"width": 1400, "height": 900})
    assert tile(page, "Loss")[1] == "1.025"  # of the last row, 1 + 1/40 + 0
    assert tile(page, "Pass rate")[1] == "4% ± 10%"
    assert tile(page, "SR-weighted alignment")[1:] == ["+0.042", "−0.06 to +0.14"]
    assert tile(page, "Overhead")[0] == "Overhead"
    # Evaluations at 0, 10, 20, 30; the log is at step 40, two seconds per step.
    assert tile(page, "Next evaluation")[1:] == ["step 40", "due, or delayed by max_overhead"]
    for selector in (".tile", "figure[data-panel=loss]", "[data-panel=student-pass-rate]"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] < 900, selector
    assert panel(page, "sr-weighted-alignment").bounding_box()["y"] < 500


def test_an_alignment_has_colour_only_if_its_interval_excludes_zero(
    open_trainings: Any, trainings: dict[str, Path]
) -> None:
    for name, tone, colour in (("all tokens", "helps", ""), ("incorrect only", "open", "var(--open)")):
        page = open_trainings({name: trainings[name]})
        assert page.locator(".tile b").nth(2).get_attribute("class") == tone
        line = panel(page, "sr-weighted-alignment").locator("path.line").last
        assert colour in line.get_attribute("stroke")
        assert ("color-mix" not in line.get_attribute("stroke")) == (tone == "helps" or colour != "")


def test_after_one_evaluation_there_are_numbers_and_no_dots(open_trainings: Any, tmp_path: Path) -> None:
    page = open_trainings({"gkd": synthetic_training(tmp_path / "gkd", 1)})
    assert page.locator("figure circle").count() == 0
    assert page.locator("figure:visible .numbers").count() > 20
    numbers = panel(page, "alignment-by-position").locator(".numbers")
    assert numbers.inner_text().split("\n") == [
        part for name in ("first third", "middle third", "last third") for part in (name, "+0.400 ± 0.100")
    ]
    assert "No data yet." in panel(page, "loss").inner_text()


# -- several trainings -----------------------------------------------------------------------------------------------


def test_trainings_share_the_charts_and_can_be_hidden(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings(trainings)
    assert page.locator(".runs tbody tr").count() == 2
    lines = panel(page, "loss").locator("path.line")
    assert lines.count() == 2
    assert len({line.get_attribute("stroke") for line in lines.all()}) == 2
    page.get_by_role("button", name="all tokens", exact=True).click()
    assert lines.count() == 1
    assert "off=all+tokens" in page.url
    assert panel(page, "loss").locator(".latest").inner_text() == "1.025"
    page.reload()
    page.wait_for_selector(READY)
    assert panel(page, "loss").locator("path.line").count() == 1
    assert page.inner_text("#headline").startswith("all tokens: ")
    page.select_option("#run", label="incorrect only")
    assert page.inner_text("#headline").startswith("incorrect only: ")
    assert "4 evaluations" in page.inner_text("#about")
    assert page.locator("#rows tr").count() == 4


def test_the_tooltip_names_every_training(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings(trainings)
    drawing = panel(page, "sr-weighted-alignment").locator("svg[role=img]")
    drawing.hover(position={"x": drawing.bounding_box()["width"] - 10, "y": 40})
    rows = page.locator("#tip tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == [*trainings]
    assert "± 0.100" in rows[0]
    assert rows[1].endswith("at 30")  # evaluated at other steps


def test_gate_charts_are_there_with_a_gate_only(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings({"all": trainings["all tokens"]})
    shown = page.locator("#gate figure:visible")
    assert page.locator("nav a[href='#gate']").is_visible() == (shown.count() > 0)
    gated = open_trainings({"gated": trainings["incorrect only"]})
    for slug in ("what-the-gate-distills", "distillation-loss-with-the-gate", "verdicts-of-the-verifier"):
        assert panel(gated, slug).locator("path.line").count() == 2
    assert panel(gated, "gate-denominator").is_hidden()  # can be chosen


# -- zoom, smoothing, panels -----------------------------------------------------------------------------------------


def test_dragging_zooms_all_charts_and_a_double_click_resets(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings({"gkd": trainings["all tokens"]})
    before = ticks(page, "student-pass-rate")
    drag(page, "loss", 0.45, 0.8)
    assert page.locator("#reset-zoom").is_visible()
    low, high = (int(part) for part in page.evaluate("address.get('zoom')").split("-"))
    assert 15 < low < 30 < high < 55
    assert ticks(page, "student-pass-rate") != before
    shown = page.evaluate("[...Curve.all].filter(({ guide }) => guide).map(({ range }) => range.join('-'))")
    assert len(shown) > 20
    assert set(shown) == {f"{low}-{high}"}
    panel(page, "alignment").locator("svg[role=img]").dblclick()
    assert page.locator("#reset-zoom").is_hidden()
    assert ticks(page, "student-pass-rate") == before
    panel(page, "loss").locator("svg[role=img]").press("+")
    assert page.locator("#reset-zoom").is_visible()
    panel(page, "loss").locator("svg[role=img]").press("0")
    assert ticks(page, "student-pass-rate") == before


def test_smoothing_is_an_average_without_bias_at_the_start(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings({"gkd": trainings["all tokens"]})
    known = page.evaluate("smoothed([[0, 1, null, null, null], [1, null], [2, 4, 3, 5, 1]], 0.5)")
    assert known == [[0, 1, None, None, None], [1, None], [2, 3, 3, 5, 1]]  # (0.25·1 + 0.5·4) / 0.75
    assert page.locator("path.raw").count() == 0
    page.evaluate("panels.slider.value = '0.6'; panels.slider.dispatchEvent(new Event('input'))")
    assert panel(page, "loss").locator("path.raw").count() == 1
    assert page.inner_text("#smoothing-value") == "0.60"
    assert "smooth=0.6" in page.url


def test_chosen_panels_are_in_the_address(open_trainings: Any, trainings: dict[str, Path]) -> None:
    page = open_trainings({"gkd": trainings["all tokens"]})
    total = page.locator("figure:visible").count()
    page.click("#panels summary")
    page.locator("#panel-choices").get_by_label("Teacher entropy").uncheck()
    page.locator("#panel-choices").get_by_label("Loss", exact=True).uncheck()
    assert page.locator("figure:visible").count() == total - 2
    again = open_trainings({"gkd": trainings["all tokens"]}, f"#{page.url.partition('#')[2]}&zoom=10-30&smooth=0.5")
    assert again.locator("figure:visible").count() == total - 2
    assert panel(again, "teacher-entropy").is_hidden()
    assert again.evaluate("[panels.zoom, panels.smoothing]") == [[10, 30], 0.5]
    again.click("#panels summary")
    again.click("#default-panels")
    assert again.locator("figure:visible").count() == total
    again.locator("nav a", has_text="Cost").click()
    assert "zoom=10-30" in again.url  # links inside the page leave the address alone


def test_a_strange_address_is_ignored(open_trainings: Any, trainings: dict[str, Path]) -> None:
    strange = "#zoom=9-x&smooth=many&hide=%3Cimg%20src=x%3E&off=nobody&run=nobody&teacher=nobody&zoom"
    page = open_trainings({"gkd": trainings["all tokens"]}, strange)
    assert page.evaluate("[panels.zoom, panels.smoothing, current]") == [None, 0, 0]
    assert page.locator("figure:visible path.line").count() > 20


# -- updates ---------------------------------------------------------------------------------------------------------


def test_an_update_keeps_position_zoom_panels_and_focus(followed: tuple[Any, Path]) -> None:
    page, folder = followed
    page.click("#panels summary")
    page.locator("#panel-choices").get_by_label("Teacher entropy").uncheck()
    page.click("#panels summary")
    drag(page, "teacher-advantage", 0.3, 0.7)
    page.locator("figure[data-panel='decisions'] svg[role=img]").focus()
    page.evaluate("window.marker = byId('overview'); scrollTo(0, 900)")
    kept = (
        "JSON.stringify([Math.round(byId('alignment').getBoundingClientRect().top), panels.zoom, [...panels.changed],"
        " document.activeElement.getAttribute('role')])"
    )
    before = page.evaluate(kept)
    last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    with (folder / "history.jsonl").open("a") as file:
        file.write(line(60, last["metrics"], run=None, next_step=70, max_steps=200))
    with (folder / "training.jsonl").open("a") as file:
        file.write(json.dumps({"step": 65, "loss": 0.125, "at": 1_790_000_200.0}) + "\n")
    until(page, "document.querySelectorAll('#rows tr').length === 7")
    until(page, "document.querySelector('.tile b').textContent === '0.125'")
    assert page.evaluate(kept) == before
    assert page.evaluate("window.marker === byId('overview')")  # not reloaded
    assert tile(page, "Next evaluation")[1].startswith("step 70")
    assert "step 65 of 200" in page.inner_text("#about")


def test_zooming_a_served_page_fetches_the_rows(opened: Any, tmp_path: Path) -> None:
    folder = synthetic_training(tmp_path / "gkd", 2, rows=5_000)
    with DashboardServer(DashboardState({"gkd": folder})) as server:
        page = opened(server.url, ready="#connection.live").page
        assert page.evaluate("logs[0].curves.loss.steps.length") == 600
        page.evaluate("panels.setZoom([1000, 1100])")
        until(page, "zoomedLogs !== null")
        assert page.evaluate("zoomedLogs[0].curves.loss.steps") == list(range(999, 1_102))
        page.evaluate("panels.setZoom(null)")
        assert page.evaluate("zoomedLogs") is None


# -- long trainings --------------------------------------------------------------------------------------------------


def test_a_long_training_stays_usable(opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_training(tmp_path / "long", LONG_EVALUATIONS, rows=LONG_ROWS, every=100, gated=True)
    state, start = DashboardState({"long": folder}), time.process_time()
    size = len(state.page())  # the command, too, has read the files before it prints the address
    reading, start = time.process_time() - start, time.process_time()
    state.page()
    again = time.process_time() - start
    with DashboardServer(state) as server:
        page = opened(server.url, ready="#connection.live").page
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
        drawing = page.evaluate(
            "(() => { const start = performance.now(); draw(); return performance.now() - start; })()"
        )
        sizes = page.evaluate(
            "[...document.querySelectorAll('figure path')].map((one) => one.getAttribute('d').split('L').length)"
        )
        width = page.evaluate("Math.max(...[...document.querySelectorAll('.chart')].map((one) => one.clientWidth))")
        assert len(sizes) > 50
        assert max(sizes) <= 2 * width + 4  # a band has two sides
        assert page.evaluate("document.querySelectorAll('*').length") < 15_000
        assert page.locator("#rows tr").count() == 100
        last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
        with (folder / "history.jsonl").open("a") as file:
            file.write(line(LONG_ROWS, last["metrics"], run=None))
        until(page, f"run().evaluations.at(-1).step === {LONG_ROWS}")
        assert page.evaluate("run().evaluations.length") <= 2_002
        page.click("#all-rows")
        assert page.locator("#rows tr").count() > 1_900
    with capsys.disabled():
        print(f"\npage of {size / 1e6:.1f} MB in {reading:.1f} s, again in {again:.2f} s (CPU time); ", end="")
        print(f"first paint {paint:.0f} ms, redrawing everything {drawing:.0f} ms ", end="")
