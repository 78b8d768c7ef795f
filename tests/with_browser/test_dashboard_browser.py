"""The dashboard in a real browser: it opens in silence, its curves say what was logged, it follows a training."""

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
LEANING, STEADY = "Self-1C", "Qwen/Qwen3-8B"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both teachers lean toward success, and one comes to lean away from it; one evaluation failed."""
    folder = made_training(tmp_path_factory.mktemp("made") / "gkd", {LEANING: [8, 0, -8], STEADY: [8, 8, 8]})
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    lines.insert(2, line(150, {"opd_align/failures": 1}, run=None, error=ERROR))
    (folder / "history.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def file(made: Path) -> Path:
    return DashboardState(made, title="A training").write(made / "dashboard.html")


@pytest.fixture
def training(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.parent, tmp_path / "gkd")) / "opd_align"


@pytest.fixture
def server(training: Path) -> Iterator[DashboardServer]:
    with DashboardServer(DashboardState(training, title="A training")) as running:
        yield running


def logged(folder: Path, at: int, key: str) -> float:
    return float(json.loads((folder / "history.jsonl").read_text().splitlines()[at])["metrics"][f"opd_align/{key}"])


def said(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def until(page: Any, expression: str, seconds: float = 15) -> None:
    # The page's own policy forbids the browser to evaluate text, so it is asked again and again from here.
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def figure(page: Any, title: str) -> Any:
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))


def test_it_opens_in_silence_and_draws_everything(opened: Any, file: Path) -> None:
    made = opened(file)
    made.page.wait_for_timeout(300)
    assert made.noise == []
    assert made.page.title() == "A training"
    figures = made.page.locator("figure")
    assert figures.count() == 23
    assert made.page.locator("figure svg[role=img]").count() == 23
    assert made.page.locator("#pulse").inner_text() == ""
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_pointing_at_a_curve_reads_the_numbers_that_were_logged(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page
    page.select_option("#variant", label=LEANING)
    drawing = figure(page, "Alignment").locator("svg[role=img]")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    drawing.hover(position={"x": box["width"] - 9, "y": 60})
    tip = page.locator("#tip").inner_text()
    assert "step 200" in tip
    for name in (LEANING, STEADY):
        assert f"{said(logged(made, 3, f'alignment/mean/{name}'))} ± " in tip
    marked = page.locator("figure g[visibility=visible] .guide")
    assert marked.count() == 23  # the same step in all of them
    drawing.hover(position={"x": 50, "y": 60})
    assert said(logged(made, 0, f"alignment/mean/{LEANING}")) in page.locator("#tip").inner_text()
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()
    assert marked.count() == 0


def test_a_curve_is_read_by_keys(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page
    page.keyboard.press("Tab")
    drawing = figure(page, "Pass rate of the student").locator("svg[role=img]")
    drawing.focus()
    assert "step 200" in page.locator("#tip").inner_text()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    assert "step 0" in page.locator("#tip").inner_text()
    assert f"{100 * logged(made, 0, 'pass_rate'):.0f}%" in page.locator("#tip").inner_text()
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
    # Where nothing is known the curve is only hinted at.
    assert figure(page, "On which rollouts").locator("path[opacity='0.3']").count() == 2


def test_another_teacher_means_other_words_curves_and_colours(opened: Any, file: Path, made: Path) -> None:
    page = opened(file).page

    def looks() -> tuple[str, ...]:
        spans = page.evaluate("[...document.querySelectorAll('#text span')].map((s) => s.className).join()")
        words, lines = (
            page.inner_text("#headline"),
            figure(page, "On which rollouts").locator("svg[role=img]").inner_html(),
        )
        return words, lines, spans, page.inner_text("#rows")

    page.select_option("#variant", label=STEADY)
    before = looks()
    assert STEADY in before[0]
    figure(page, "Alignment").locator(".legend button", has_text=LEANING).click()
    assert page.locator("#variant option:checked").inner_text() == LEANING
    after = looks()
    assert LEANING in after[0]
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert page.evaluate("view.pairs[tokenView.pair][0]") == LEANING
    assert said(logged(made, 3, f"alignment/mean/{LEANING}")) in page.inner_text("#points")
    page.locator("#text span.d").first.click()
    page.keyboard.press("t")
    assert page.evaluate("view.pairs[tokenView.pair][0]") == STEADY


def test_any_scalar_of_the_trainer_can_be_looked_at(opened: Any, file: Path) -> None:
    page = opened(file).page
    log = figure(page, "Trainer's log")
    assert log.locator(".latest").inner_text() == "0.6667"
    log.locator("select").select_option("learning_rate")
    assert log.locator(".latest").inner_text() == "1.00e-5"


def test_the_tokens_of_the_newest_step_are_read_as_in_the_report(opened: Any, file: Path) -> None:
    page = opened(file).page
    assert page.locator("#step option").all_inner_texts() == ["step 200"]
    page.locator("#text span.d").first.click()
    assert "decision 1 of" in page.inner_text("#card")
    page.keyboard.press("]")
    page.wait_for_selector("#text[data-ready='0/1']")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [700, 390])
def test_it_fits_small_windows_by_day_and_night(opened: Any, file: Path, scheme: Any, width: int) -> None:
    page = opened(file, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) > 380) == (scheme == "light")


def test_foreign_text_stays_text(opened: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gkd" / "opd_align"
    folder.mkdir(parents=True)
    _, numbers = evaluated(folder, 0, {HOSTILE: 8.0, "b": 4.0})
    (folder / "training.jsonl").write_text(json.dumps({"step": 1, HOSTILE: 1.0}) + "\n")
    (folder / "history.jsonl").write_text(line(0, numbers, trainer=HOSTILE) + line(10, error=HOSTILE, trainer=HOSTILE))
    made = opened(DashboardState(folder, title=HOSTILE).write(tmp_path / "page.html"))
    page = made.page
    page.select_option("#variant", label=HOSTILE)
    for key in ("j", "k", "n", "t", "]"):
        page.keyboard.press(key)
    figure(page, "Alignment").locator("svg[role=img]").hover()
    page.wait_for_timeout(200)
    assert made.noise == []
    assert page.locator("img").count() == 0
    assert page.title() == HOSTILE
    for place in ("#headline", "#about", "#rows", "#points", "#running-curves", "#teacher", "#tip"):
        assert HOSTILE in page.locator(place).inner_text(), place


def test_a_training_that_has_just_begun_has_a_page_too(opened: Any, chromium: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gkd" / "opd_align"
    folder.mkdir(parents=True)
    page = chromium.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(DashboardState(folder, title="gkd").write(tmp_path / "page.html").as_uri())
    assert page.inner_text("#headline") == "No evaluation has been made yet."
    assert page.inner_text("#unread") == "There is no finished run directory yet."
    assert page.locator("#book").is_hidden()
    for key in ("j", "n", "t", "]"):
        page.keyboard.press(key)
    assert noise == []
    page.close()


# -- served ---------------------------------------------------------------------------------------------------


def test_a_served_page_follows_the_training(opened: Any, server: DashboardServer, training: Path) -> None:
    made = opened(server.url)
    page = made.page
    page.wait_for_selector("#pulse.live")
    assert page.locator("figure").first.locator(".legend b").count() == 2
    _, numbers = evaluated(training, 300, {LEANING: 2.0, STEADY: 8.0})
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers))
    page.locator("#headline", has_text="At step 300").wait_for(timeout=15_000)
    # Nobody was reading, so the newest tokens are shown.
    until(page, "view.run === 'step-000300'")
    assert page.locator("#rows tr").count() == 5
    # Somebody is reading now, and is not interrupted.
    page.locator("#text span.d").first.click()
    _, numbers = evaluated(training, 400, {LEANING: 1.0, STEADY: 8.0})
    with (training / "history.jsonl").open("a") as file:
        file.write(line(400, numbers))
    page.locator("#newer", has_text="Show step 400").wait_for(timeout=15_000)
    assert page.evaluate("view.run") == "step-000300"
    page.click("#newer")
    until(page, "view.run === 'step-000400'")
    assert page.locator("#newer").is_hidden()
    assert {entry.split(":")[0] for entry in made.noise} == {"request"}
    assert all(server.url in entry for entry in made.noise)


def test_a_served_page_opens_every_step_and_its_report(opened: Any, server: DashboardServer) -> None:
    page = opened(server.url).page
    page.wait_for_selector("#pulse.live")
    assert page.locator("#step option").all_inner_texts() == ["step 200", "step 100", "step 0"]
    page.select_option("#step", label="step 0")
    until(page, "view.run === 'step-000000'")
    page.wait_for_timeout(4_000)  # it stays, news or not
    assert page.evaluate("view.run") == "step-000000"
    with page.context.expect_page() as found:
        page.locator("#rows tr", has_text="100").get_by_role("link", name="open").first.click()
    report = found.value
    report.wait_for_selector("#text[data-ready]")
    assert report.title() == "step-000100"


def test_the_command_of_a_report_is_copied(opened: Any, server: DashboardServer, training: Path) -> None:
    page = opened(server.url, permissions=["clipboard-read", "clipboard-write"]).page
    button = page.locator("#rows tr").first.get_by_role("button")
    button.click()
    page.locator("#rows tr").first.get_by_role("button", name="copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == f"opd-align report {training / 'step-000200'} --html step-000200.html"


def test_a_server_that_ends_leaves_a_page_that_can_be_read(opened: Any, training: Path) -> None:
    with DashboardServer(DashboardState(training, title="A training")) as server:
        page = opened(server.url).page
        page.wait_for_selector("#pulse.live")
    page.wait_for_selector("#pulse.lost", timeout=15_000)
    assert page.inner_text("#pulse") == "server stopped"
    page.select_option("#variant", label=STEADY)
    assert STEADY in page.inner_text("#headline")
