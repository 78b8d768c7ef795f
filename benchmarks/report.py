"""How fast a report opens and scrolls in Chromium, and how large the file is.

A report with a path of 30,000 tokens is opened and scrolled; for comparison, so is a bare page with the same text as
plain spans, all of them at once. The file size is for 200 questions, 4 paths of 400 tokens each, 8 teachers. Without
Chromium or Playwright the times are null. CPU seconds of summary and report are for 1,000 questions.

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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _made import made_analysis

from opd_align.core.metric_registry import summary
from opd_align.report.html import MAX_PATH_BYTES, report_html, write_report

MIB = 2**20
SCROLL = """
(box) => new Promise((done) => {
  const times = [];
  let last = performance.now(), frame = 0;
  const step = (now) => {
    times.push(now - last);
    last = now;
    box.scrollTop += frame % 40 === 39 ? 20000 : 60;
    frame += 1;
    if (frame < FRAMES) requestAnimationFrame(step);
    else done(times.slice(1));
  };
  requestAnimationFrame(step);
})
"""


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def bare_page(tokens: list[str]) -> str:
    spans = "".join(f"<span>{html.escape(token)}</span>" for token in tokens)
    style = "height:560px;overflow:auto;white-space:pre-wrap"
    return f'<!doctype html><div id=text data-ready=1 style="{style}">{spans}</div>'


def open_and_scroll(browser: Any, file: Path, frames: int) -> tuple[float, float]:
    """Seconds until the text is readable, and the 95th percentile of the time between frames while scrolling (ms)."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    start = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector("#text[data-ready]", timeout=120_000)
    seconds = time.perf_counter() - start
    page.evaluate("document.getElementById('text').scrollIntoView()")
    page.wait_for_timeout(500)
    times = page.evaluate_handle("document.getElementById('text')").evaluate(SCROLL.replace("FRAMES", str(frames)))
    page.close()
    return seconds, float(np.quantile(times, 0.95))


def browser_times(folder: Path, quick: bool) -> dict[str, float | None]:
    keys = ("open_seconds_30k", "p95_frame_ms_30k", "open_seconds_bare", "p95_frame_ms_bare")
    program = find_browser()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program, sync_playwright = None, None
    if program is None or sync_playwright is None:
        print("Chromium or Playwright not found: times are null (apt-get install chromium, pip install playwright)")
        return dict.fromkeys(keys)
    analysis = made_analysis(1, paths=2, length=30_000)
    file = write_report(analysis, folder / "long.html")
    rows = analysis.children.select(["path", "own", "token"]).to_pylist()
    tokens = [row["token"] for row in rows if row["own"] and row["path"] == 0]
    bare = folder / "bare.html"
    bare.write_text(bare_page([analysis.texts[token] for token in tokens]), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        open_and_scroll(browser, bare, 20)  # warm-up
        report, plain = (open_and_scroll(browser, page, 120 if quick else 600) for page in (file, bare))
        browser.close()
    return dict(zip(keys, (*report, *plain), strict=True))


def file_size(quick: bool) -> dict[str, float | None]:
    """For 200 questions; with `quick`, extrapolated from the packs of ten."""
    questions = 10 if quick else 200
    analysis = made_analysis(questions, length=400, teachers=[f"teacher {number}" for number in range(8)])
    page = report_html(analysis)
    packs = sum(map(len, re.findall(r'<script type="text/plain" id="pack-[0-9]+">([^<]*)</script>', page)))
    all_packs = packs * 200 // questions
    return {
        "file_mib_200_questions": (len(page.encode()) - packs + min(all_packs, MAX_PATH_BYTES)) / MIB,
        "packs_mib_200_questions": all_packs / MIB,
    }


def many_questions(quick: bool) -> dict[str, float | None]:
    """Summary and report of 1,000 questions (4 paths of 60 tokens, 3 teachers); `quick`: of 100."""
    analysis = made_analysis(100 if quick else 1000, length=60)
    # As the engine made them before: one chunk per question, path and teacher.
    size = max(1, analysis.nodes.num_rows // (len(analysis.questions) * 12))
    chunked = pa.concat_tables(analysis.nodes.slice(at, size) for at in range(0, analysis.nodes.num_rows, size))
    times = [cpu_seconds(lambda each=each: summary(each)) for each in (analysis, replace(analysis, nodes=chunked))]
    return {
        "many_questions": len(analysis.questions),
        "many_rows": analysis.nodes.num_rows,
        "summary_s": times[0],
        "summary_chunked_over_contiguous": times[1] / times[0],
        "report_s": cpu_seconds(lambda: report_html(analysis)),
    }


def cpu_seconds(function: Callable[[], object]) -> float:
    """The least of three calls: the first one also pays for the memory that making the analysis left to clean up."""
    times = []
    for _ in range(3):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="use small sizes (for CI)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = browser_times(Path(folder), args.quick) | file_size(args.quick) | many_questions(args.quick)
    for name, value in result.items():
        print(f"{name:32} {'–' if value is None else f'{value:.3g}'}")
    own, bare = result["open_seconds_30k"], result["open_seconds_bare"]
    if own and bare:
        print(f"{'open vs. bare spans':32} {own / bare:.2f} x")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
