"""The dashboard in a real browser: no console output, charts show the logged values, a served page updates itself."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.made_trainings import evaluated, line, made_training

from opd_align.report.server import DashboardServer, DashboardState

HOSTILE = "</script><img src=x onerror=alert(1)>"
ERROR = "OutOfMemoryError: tried to allocate 2 GiB"
CHANGING, STEADY = "Self-1C", "Qwen/Qwen3-8B"
CHARTS_SHOWN = 33
"""Those of the registry except the gate's, the loss and the learning rate."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two helpful teachers, one of which becomes harmful; one evaluation failed."""
    folder = made_training(tmp_path_factory.mktemp("made") / "gkd", {CHANGING: [8, 0, -8], STEADY: [8, 8, 8]})
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    lines.insert(2, line(150, {"opd_align/evaluation/failures": 1}, run=None, error=ERROR))
    (folder / "history.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def file(made: Path) -> Path:
    return DashboardState({"A training": made}).write(made / "dashboard.html")


@pytest.fixture
def training(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.parent, tmp_path / "gkd")) / "opd_align"


@pytest.fixture
def server(training: Path) -> Iterator[DashboardServer]:
    with DashboardServer(DashboardState({"A training": training})) as running:
        yield running


def logged(folder: Path, at: int, key: str) -> float:
    return float(json.loads((folder / "history.jsonl").read_text().splitlines()[at])["metrics"][f"opd_align/{key}"])


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def until(page: Any, expression: str, seconds: float = 15) -> None:
    # The content security policy forbids evaluating strings in the page, so poll from here.
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def figure(page: Any, title: str) -> Any:
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))


def test_all_charts_are_drawn_without_console_output(opened: Any, file: Path) -> None:
    made = opened(file)
    made.page.wait_for_timeout(300)
    assert made.noise == []
    assert made.page.title() == "A training"
    shown = made.page.locator("figure:visible")
    assert shown.count() == CHARTS_SHOWN
    assert made.page.locator("figure:visible svg[role=img]").count() == CHARTS_SHOWN
    assert made.page.locator("#gate").is_hidden()  # no gate, so nothing to show
    assert made.page.locator("#connection").inner_text() == ""
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hovering_over_a_chart_shows_the_logged_values(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page
    page.select_option("#variant", label=CHANGING)
    drawing = figure(page, "Alignment").locator("svg[role=img]")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    drawing.hover(position={"x": box["width"] - 9, "y": 60})
    tip = page.locator("#tip").inner_text()
    assert "step 200" in tip
    for name in (CHANGING, STEADY):
        assert f"{signed(logged(made, 3, f'{name}/reverse_kl/alignment/mean'))} ± " in tip
    marked = page.locator("figure g[visibility=visible] .guide")
    assert marked.count() == CHARTS_SHOWN  # the same step in every chart
    drawing.hover(position={"x": 50, "y": 60})
    assert signed(logged(made, 0, f"{CHANGING}/reverse_kl/alignment/mean")) in page.locator("#tip").inner_text()
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()
    assert marked.count() == 0


def test_a_chart_can_be_read_by_keyboard(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page
    page.keyboard.press("Tab")
    drawing = figure(page, "Student pass rate").locator("svg[role=img]")
    drawing.focus()
    assert "step 200" in page.locator("#tip").inner_text()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    assert "step 0" in page.locator("#tip").inner_text()
    assert f"{100 * logged(made, 0, 'student/pass_rate'):.0f}%" in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert "step 100" in page.locator("#tip").inner_text()


def test_a_failed_evaluation_is_marked_with_its_error(opened: Any, file: Path) -> None:
    page = opened(file).page
    drawing = figure(page, "Alignment").locator("svg[role=img]")
    cross = drawing.locator(".cross")
    assert cross.count() == 1
    cross.scroll_into_view_if_needed()
    spot, box = cross.bounding_box(), drawing.bounding_box()
    drawing.hover(position={"x": spot["x"] + spot["width"] / 2 - box["x"], "y": 60})
    assert f"failed: {ERROR}" in page.locator("#tip").inner_text()
    assert page.locator("#rows tr", has_text="150").locator(".wrong").inner_text() == ERROR
    assert ERROR in page.inner_text("#points")
    # Faint lines across the failed evaluation.
    assert figure(page, "Alignment by rollout outcome").locator("path.gap").count() == 2


def test_selecting_a_teacher_changes_text_charts_and_colours(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page

    def appearance() -> tuple[str, ...]:
        spans = page.evaluate("[...document.querySelectorAll('#text span')].map((s) => s.className).join()")
        words, lines = (
            page.inner_text("#headline"),
            figure(page, "Alignment by rollout outcome").locator("svg[role=img]").inner_html(),
        )
        return words, lines, spans, page.inner_text("#rows")

    page.select_option("#variant", label=STEADY)
    before = appearance()
    assert STEADY in before[0]
    figure(page, "Alignment").locator(".legend button", has_text=CHANGING).click()
    assert page.locator("#variant option:checked").inner_text() == CHANGING
    after = appearance()
    assert CHANGING in after[0]
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert page.evaluate("tokensOfRun.view.pairs[tokenView.pair][0]") == CHANGING
    assert signed(logged(made, 3, f"{CHANGING}/reverse_kl/alignment/mean")) in page.inner_text("#points")
    page.locator("#text span.d").first.click()
    page.keyboard.press("t")
    assert page.evaluate("tokensOfRun.view.pairs[tokenView.pair][0]") == STEADY


def test_the_alarm_is_that_of_the_selected_teacher(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page
    shown = page.locator(".tile", has_text="Alarm")
    for teacher, raised in ((STEADY, False), (CHANGING, True)):
        page.select_option("#variant", label=teacher)
        level = int(logged(made, 3, f"{teacher}/reverse_kl/alarm/level"))
        assert (level < 0) == raised
        assert shown.locator("b").inner_text() == {1: "helps", -1: "fades", -2: "harms"}[level]
        assert ("raised" in str(shown.get_attribute("class"))) == raised
        assert shown.locator("> small").inner_text().startswith("helps with probability ")


def test_scalars_of_the_trainer_have_charts(opened: Any, file: Path) -> None:
    page = opened(file).page
    assert figure(page, "Loss").locator(".latest").inner_text() == "0.6667"
    assert figure(page, "learning_rate").locator(".latest").inner_text() == "1.00e-5"


def test_the_tokens_of_the_newest_step_are_shown(opened: Any, file: Path) -> None:
    page = opened(file).page
    assert page.locator("#step option").all_inner_texts() == ["step 200"]
    page.locator("#text span.d").first.click()
    assert "decision 1 of" in page.inner_text("#card")
    page.keyboard.press("]")
    page.wait_for_selector("#text[data-ready='0/1']")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 390])
def test_it_fits_small_windows_in_light_and_dark_mode(opened: Any, file: Path, scheme: Any, width: int) -> None:
    page = opened(file, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) > 380) == (scheme == "light")


def test_untrusted_text_is_escaped(opened: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gkd" / "opd_align"
    folder.mkdir(parents=True)
    _, numbers = evaluated(folder, 0, {HOSTILE: 8.0, "b": 4.0})
    (folder / "training.jsonl").write_text(json.dumps({"step": 1, HOSTILE: 1.0}) + "\n")
    lines = line(0, numbers, trainer=HOSTILE), line(5, numbers, run=None), line(10, error=HOSTILE, trainer=HOSTILE)
    (folder / "history.jsonl").write_text("".join(lines))
    made = opened(DashboardState({HOSTILE: folder}).write(tmp_path / "page.html"))
    page = made.page
    page.select_option("#variant", label=HOSTILE)
    for key in ("j", "k", "n", "t", "]"):
        page.keyboard.press(key)
    figure(page, "Alignment").locator("svg[role=img]").hover()
    page.wait_for_timeout(200)
    assert made.noise == []
    assert page.locator("img").count() == 0
    assert page.title() == HOSTILE
    for place in ("#headline", "#about", "#rows", "#points", "#trainer-charts", "#teacher", "#tip"):
        assert HOSTILE in page.locator(place).inner_text(), place


def test_an_empty_training_has_a_page(opened: Any, chromium: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gkd" / "opd_align"
    folder.mkdir(parents=True)
    page = chromium.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(DashboardState({"gkd": folder}).write(tmp_path / "page.html").as_uri())
    assert page.inner_text("#headline") == "No evaluation yet."
    assert page.inner_text("#reader-status") == "No complete run directory yet."
    assert page.locator("#reader-body").is_hidden()
    for key in ("j", "n", "t", "]"):
        page.keyboard.press(key)
    assert noise == []
    page.close()


# -- served ---------------------------------------------------------------------------------------------------


def test_a_served_page_updates_itself(opened: Any, server: DashboardServer, training: Path) -> None:
    made = opened(server.url)
    page = made.page
    page.wait_for_selector("#connection.live")
    assert figure(page, "SR-weighted alignment").locator(".legend b").count() == 2
    _, numbers = evaluated(training, 300, {CHANGING: 2.0, STEADY: 8.0})
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers))
    page.locator("#headline", has_text="At step 300").wait_for(timeout=15_000)
    # The user has not started to read, so the newest tokens are shown.
    until(page, "tokensOfRun.view.run === 'step-000300'")
    assert page.locator("#rows tr").count() == 5
    # The user is reading, so the shown step stays.
    page.locator("#text span.d").first.click()
    _, numbers = evaluated(training, 400, {CHANGING: 1.0, STEADY: 8.0})
    with (training / "history.jsonl").open("a") as file:
        file.write(line(400, numbers))
    page.locator("#newer", has_text="Show step 400").wait_for(timeout=15_000)
    assert page.evaluate("tokensOfRun.view.run") == "step-000300"
    page.click("#newer")
    until(page, "tokensOfRun.view.run === 'step-000400'")
    assert page.locator("#newer").is_hidden()
    assert {entry.split(":")[0] for entry in made.noise} == {"request"}
    assert all(server.url in entry for entry in made.noise)


def test_a_served_page_opens_every_step_and_its_report(opened: Any, server: DashboardServer) -> None:
    page = opened(server.url).page
    page.wait_for_selector("#connection.live")
    assert page.locator("#step option").all_inner_texts() == ["step 200", "step 100", "step 0"]
    page.select_option("#step", label="step 0")
    until(page, "tokensOfRun.view.run === 'step-000000'")
    page.wait_for_timeout(4_000)  # it stays after updates
    assert page.evaluate("tokensOfRun.view.run") == "step-000000"
    with page.context.expect_page() as found:
        page.locator("#rows tr", has_text="100").get_by_role("link", name="open").first.click()
    report = found.value
    report.wait_for_selector("#text[data-ready]")
    assert report.title() == "step-000100"


def test_the_report_command_can_be_copied(opened: Any, server: DashboardServer, training: Path) -> None:
    page = opened(server.url, permissions=["clipboard-read", "clipboard-write"]).page
    button = page.locator("#rows tr").first.get_by_role("button")
    button.click()
    page.locator("#rows tr").first.get_by_role("button", name="copied").wait_for()
    page.evaluate("drawRows()")  # as at every update
    assert page.locator("#rows tr").first.get_by_role("button").inner_text() == "copied"
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == f"opd-align report {training / 'step-000200'} --html step-000200.html"


def test_the_page_still_works_after_the_server_stops(opened: Any, training: Path) -> None:
    with DashboardServer(DashboardState({"A training": training})) as server:
        page = opened(server.url).page
        page.wait_for_selector("#connection.live")
    page.wait_for_selector("#connection.lost", timeout=15_000)
    assert page.inner_text("#connection") == "server stopped"
    page.select_option("#variant", label=STEADY)
    assert STEADY in page.inner_text("#headline")
