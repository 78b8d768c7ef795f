"""How fast a report opens and scrolls, and how large it gets, in a real Chromium.

A path of 30,000 tokens is opened and scrolled through; beside it, in the same browser, a bare page that holds the same
text as plain spans, all of them at once. The file is that of 200 questions, 4 paths of 400 tokens each, 8 teachers.
Without Chromium or Playwright the times are null.

    python benchmarks/report.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _made import made_analysis

from opd_align.report.html import ROOM, report_html, write_report

MIB = 2**20
SCROLL = """
(box) => new Promise((done) => {
  const times = [];
  let last = performance.now(), at = 0;
  const step = (now) => {
    times.push(now - last);
    last = now;
    box.scrollTop += at % 40 === 39 ? 20000 : 60;
    at += 1;
    if (at < FRAMES) requestAnimationFrame(step);
    else done(times.slice(1));
  };
  requestAnimationFrame(step);
})
"""


def browser_program() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def bare_page(words: list[str]) -> str:
    spans = "".join(f"<span>{html.escape(word)}</span>" for word in words)
    style = "height:560px;overflow:auto;white-space:pre-wrap"
    return f'<!doctype html><div id=text data-ready=1 style="{style}">{spans}</div>'


def opened(browser: Any, file: Path, frames: int) -> tuple[float, float]:
    """Seconds until the text can be read, and the 95th percentile of the time between frames while it is scrolled."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    begun = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector("#text[data-ready]", timeout=120_000)
    seconds = time.perf_counter() - begun
    page.evaluate("document.getElementById('text').scrollIntoView()")
    page.wait_for_timeout(500)
    times = page.evaluate_handle("document.getElementById('text')").evaluate(SCROLL.replace("FRAMES", str(frames)))
    page.close()
    return seconds, float(np.quantile(times, 0.95))


def in_browser(folder: Path, quick: bool) -> dict[str, float | None]:
    keys = ("open_seconds_30k", "p95_frame_ms_30k", "open_seconds_bare", "p95_frame_ms_bare")
    program = browser_program()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program, sync_playwright = None, None
    if program is None or sync_playwright is None:
        print("no browser: times are null (apt-get install chromium, pip install playwright)")
        return dict.fromkeys(keys)
    made = made_analysis(1, paths=2, length=30_000)
    file = write_report(made, folder / "long.html")
    own = [row for row in made.children.select(["path", "own", "token"]).to_pylist() if row["own"] and row["path"] == 0]
    bare = folder / "bare.html"
    bare.write_text(bare_page([made.texts[row["token"]] for row in own]), encoding="utf-8")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        opened(browser, bare, 20)  # the first page warms the browser up
        report, plain = (opened(browser, page, 120 if quick else 600) for page in (file, bare))
        browser.close()
    return dict(zip(keys, (*report, *plain), strict=True))


def file_size(quick: bool) -> dict[str, float | None]:
    """Of 200 questions; in a hurry, of ten, with their packs counted twenty times."""
    questions = 10 if quick else 200
    made = made_analysis(questions, length=400, teachers=[f"teacher {number}" for number in range(8)])
    page = report_html(made)
    packs = sum(map(len, re.findall(r'<script type="text/plain" id="pack-[0-9]+">([^<]*)</script>', page)))
    wanted = packs * 200 // questions
    return {
        "file_mib_200_questions": (len(page.encode()) - packs + min(wanted, ROOM)) / MIB,
        "packs_mib_200_questions": wanted / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, for CI")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = in_browser(Path(folder), args.quick) | file_size(args.quick)
    for name, value in result.items():
        print(f"{name:24} {'–' if value is None else f'{value:.3g}'}")
    own, bare = result["open_seconds_30k"], result["open_seconds_bare"]
    if own and bare:
        print(f"{'open, against bare spans':24} {own / bare:.2f} x")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
