"""Report and dashboard as they look: at three widths, light, dark and on paper, against pictures kept in `pictures/`.

Fonts differ between machines, so parts are compared, not pages: each chart and each box must be there, where it was on
the page, with about as much on it as before. A part that disappears, becomes empty or reaches beyond the page fails.
After a change that is meant, renew the pictures and look at them:

    RENEW_PICTURES=1 make test-browser ARGS="-k pictures"
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _made import made_analysis
from PIL import Image
from support.made_trainings import line, made_training

from opd_align.core.objectives import ForwardKL, ReverseKL
from opd_align.report.html import write_report
from opd_align.report.server import DashboardState

FOLDER = Path(__file__).parent / "pictures"
RENEW = bool(os.environ.get("RENEW_PICTURES"))
WIDTHS = {1400: 4, 768: 3, 390: 2}
"""Width of the window, and by how much its pictures are reduced."""
PAPER_WIDTH = 703
"""A4 without its margins."""
PARTS = "section[id], .chart[id], figure[data-panel] .chart, #facts, #text, #card, #plot, #tree, .list, footer"
BOXES = f"""[...document.querySelectorAll({PARTS!r})].filter((part) => part.getClientRects().length).map((part) => {{
  const box = part.getBoundingClientRect();
  const panel = part.closest("figure[data-panel]")?.dataset.panel;
  return [panel ? `panel ${{panel}}` : part.id || part.className || part.tagName,
    [box.left + scrollX, box.top + scrollY, box.width, box.height].map(Math.round)];
}})"""
OUTSIDE = """[...document.querySelectorAll("main *")].filter((part) => {
  const box = part.getBoundingClientRect();
  const isOutside = box.width && box.right > document.documentElement.clientWidth + 1;
  return isOutside && !part.closest(".wide, .list, #plot, #tree, nav");
}).map((part) => `${part.tagName} ${part.id || part.className} ${part.textContent.slice(0, 40)}`)"""
OVERLAPS = """[...document.querySelectorAll("figure svg[role=img]")].flatMap((chart) => {
  const labels = [...chart.querySelectorAll("text.soft")].map((label) => [label.textContent, label.getBoundingClientRect()]);
  const isOver = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  return labels.flatMap(([text, a], at) => labels.slice(at + 1).filter(([, b]) => isOver(a, b)).map(([other]) => [text, other]));
})"""  # noqa: E501


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    analysis = made_analysis(
        4, length=120, teachers=("Self-1C", "Qwen3-8B", "Qwen3-4B"), objectives=(ReverseKL(), ForwardKL())
    )
    training = made_training(folder / "gkd", {"Self-1C": [8, 0, -8], "Qwen/Qwen3-8B": [8, 8, 8]})
    with (training / "history.jsonl").open("a") as file:
        file.write(line(250, error="OutOfMemoryError: tried to allocate 2 GiB"))
    return {
        "report": write_report(analysis, folder / "report.html", title="A run"),
        "dashboard": DashboardState({"A training": training}).write(folder / "dashboard.html"),
    }


def grey(page: Any, reduced_by: int) -> Image.Image:
    # A picture of the whole page resizes the window for a moment, and 120 ms later the page would draw charts again:
    # on a busy machine before the picture is taken, but after the boxes were measured.
    page.evaluate("window.usualTimeout = window.setTimeout; window.setTimeout = () => 0")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L")
    page.evaluate("window.setTimeout = window.usualTimeout")
    return picture.resize((picture.width // reduced_by, picture.height // reduced_by), Image.Resampling.BOX)


def ink(picture: Image.Image, box: list[int], reduced_by: int) -> float:
    """How much a part differs from its background, which is its most frequent brightness."""
    left, top, width, height = (number / reduced_by for number in box)
    part = np.asarray(picture.crop((round(left), round(top), round(left + width), round(top + height))), float)
    if not part.size:
        return 0.0
    background = np.bincount(part.astype(int).ravel()).argmax()
    return float(np.abs(part - background).mean())


SETTLED = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 250))))"""


def settle(page: Any) -> None:
    """Waits until no redrawing is left to be done: 120 ms after a resize event the charts are drawn again."""
    page.evaluate(SETTLED)


def compare(page: Any, name: str, reduced_by: int) -> None:
    """Compares a page with its picture, or renews the picture."""
    boxes = {key: box for key, box in page.evaluate(BOXES) if box[2] and box[3]}
    assert page.evaluate(OUTSIDE) == [], name
    assert page.evaluate(OVERLAPS) == [], name
    assert len(boxes) > 10
    picture = grey(page, reduced_by)
    file, layout = FOLDER / f"{name}.png", FOLDER / "layout.json"
    known = json.loads(layout.read_text()) if layout.exists() else {}
    if RENEW:
        FOLDER.mkdir(exist_ok=True)
        picture.quantize(16).save(file, optimize=True)
        known[name] = boxes
        texts = [f"{json.dumps(one)}: {json.dumps(of)}" for one, of in sorted(known.items())]
        layout.write_text("{\n" + ",\n".join(texts) + "\n}\n")
        return
    expected, before = known[name], Image.open(file).convert("L")
    assert [*boxes] == [*expected], f"{name}: other parts, or another order"
    for part, box in boxes.items():
        for now, then in zip((box[0], box[2]), (expected[part][0], expected[part][2]), strict=True):
            assert abs(now - then) <= 16, f"{name}: {part} is {now} px from the left or wide, it was {then}"
        assert 0.7 < box[3] / expected[part][3] < 1.4, f"{name}: the height of {part}"
        amount, usual = ink(picture, box, reduced_by), ink(before, expected[part], reduced_by)
        assert 0.5 * usual - 0.3 < amount < 2 * usual + 1, f"{name}: {part} is emptier or fuller than it was"
    assert 0.8 < picture.height / before.height < 1.25


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["report", "dashboard"])
def test_pages_look_like_their_pictures(opened: Any, pages: dict[str, Path], name: str, width: int) -> None:
    page = opened(pages[name], viewport={"width": width, "height": 900}, color_scheme="light").page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        settle(page)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        compare(page, f"{name}-{width}-{scheme}", WIDTHS[width])


@pytest.mark.parametrize("name", ["report", "dashboard"])
def test_pages_on_paper_look_like_their_pictures(opened: Any, pages: dict[str, Path], name: str) -> None:
    page = opened(pages[name], viewport={"width": PAPER_WIDTH, "height": 900}, color_scheme="dark").page
    settle(page)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    compare(page, f"{name}-print", 3)


@pytest.mark.skipif(RENEW, reason="the pictures are being renewed")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("document.querySelector('[data-panel=alignment]').remove()", "other parts"),
        ("document.querySelector('[data-panel=alignment] .chart').style.visibility = 'hidden'", "emptier"),
        ("byId('facts').style.width = '1700px'", r"assert \['DIV"),
        ("document.querySelector('.charts').style.gridTemplateColumns = '1fr'", "the height of overview"),
    ],
)
def test_a_damaged_page_does_not_pass(opened: Any, pages: dict[str, Path], damage: str, message: str) -> None:
    page = opened(pages["dashboard"], viewport={"width": 1400, "height": 900}).page
    settle(page)
    page.evaluate(damage)
    with pytest.raises(AssertionError, match=message):
        compare(page, "dashboard-1400-light", WIDTHS[1400])
