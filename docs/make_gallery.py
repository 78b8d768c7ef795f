"""Makes the reports of the gallery again: runs of this package, their pages, and a picture of each.

    python docs/make_gallery.py demo training                       # minutes on a CPU
    python docs/make_gallery.py smollm2 --questions boolq.jsonl     # about an hour of CPU time
    python docs/make_gallery.py pictures                            # with playwright and Chromium

Runs are under runs/gallery; one that is finished or was interrupted is not sampled again. A page that names a folder
of this machine, or is too large for the repository, is refused.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
RUNS = ROOT / "runs" / "gallery"
EXAMPLE = ROOT / "examples" / "smollm2_boolq"
MAX_BYTES = 3 * 2**20
MACHINE_PATH = re.compile(r"file://|(?<![\w.<])/(?:home|root|tmp|work(?:space)?|Users|mnt|opt|var)/")
"""What a page that is shipped must not contain: an absolute path of the machine on which it was made."""
PAGES = {"demo": "#tokens", "smollm2": "#verdict", "training": "#overview"}
"""Page → the part of it that its picture shows."""
TEACHERS = {"Teacher": "embedded:teacher", "Careless": "embedded:careless"}
"""Name → teacher of the two trainings."""
WIDTH, MAX_HEIGHT = 1200, 860
STEPS, EVERY, HELD_OUT = 24, 8, 12


def run(*command: str | Path) -> None:
    """Runs a command from the repository's folder, with this checkout of the package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *map(str, command)], check=True, cwd=ROOT, env=environment)


def opd_align(*arguments: str | Path) -> None:
    run("-m", "opd_align.cli", *arguments)


def demo() -> None:
    opd_align("analyze", "--out", RUNS / "demo")
    opd_align("report", RUNS / "demo", "--html", GALLERY / "demo.html", "--quiet")


def training() -> None:
    for name, model in TEACHERS.items():
        if not (RUNS / name / "opd_align" / "history.jsonl").exists():
            run(
                "examples/gkd_with_alignment.py", "--output_dir", RUNS / name, "--teacher", model,
                "--max_steps", str(STEPS), "--every_n_steps", str(EVERY), "--questions", str(HELD_OUT),
                "--max_overhead", "1", "--logging_steps", "2", "--report_to", "none",
            )  # fmt: skip
    # Relative, since the page has commands that name these folders.
    runs = [f"{name}={(RUNS / name).relative_to(ROOT)}" for name in TEACHERS]
    opd_align("dashboard", *runs, "--once", "--out", GALLERY / "training.html")


def smollm2(questions: Path) -> None:
    out = RUNS / "smollm2_boolq"
    run(EXAMPLE / "run.py", questions.resolve(), "--out", out)
    opd_align("report", out, "--html", GALLERY / "smollm2.html", "--tables", out / "tables", "--quiet")
    shutil.copyfile(out / "tables" / "tables.md", EXAMPLE / "tables.md")


def pictures() -> None:
    """A part of each page."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, part in PAGES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, reduced_motion="reduce")
            page.goto((GALLERY / f"{name}.html").as_uri())
            page.wait_for_selector("#text[data-ready]", state="attached")
            box = page.locator(part).bounding_box()
            clip = {"x": 0, "y": box["y"], "width": WIDTH, "height": min(box["height"], MAX_HEIGHT)}
            # The whole page, since a navigation that stays in view would cover what is scrolled to.
            page.screenshot(path=GALLERY / f"{name}.png", full_page=True, clip=clip)
        browser.close()


def problems(page: Path) -> list[str]:
    """Why a page cannot be shipped."""
    found = []
    if page.stat().st_size > MAX_BYTES:
        found.append(f"{page.name} has {page.stat().st_size / 2**20:.1f} MiB, more than {MAX_BYTES / 2**20:.0f}")
    if match := MACHINE_PATH.search(page.read_text("utf-8")):
        found.append(f"{page.name} contains {match.group()!r}, a path of the machine on which it was made")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="+", choices=("demo", "training", "smollm2", "pictures"))
    parser.add_argument("--questions", type=Path, help="BoolQ as JSON lines (question, passage, answer), for smollm2")
    arguments = parser.parse_args()
    if "smollm2" in arguments.what and arguments.questions is None:
        parser.error("smollm2 needs --questions FILE")
    GALLERY.mkdir(exist_ok=True)
    for what in arguments.what:
        smollm2(arguments.questions) if what == "smollm2" else globals()[what]()
    refused = [problem for page in sorted(GALLERY.glob("*.html")) for problem in problems(page)]
    print("\n".join(refused), file=sys.stderr, end="\n" if refused else "")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
