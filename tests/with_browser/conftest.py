"""Chromium for the tests that open a page; without it they are skipped, with instructions for installing it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks"), str(Path(__file__).parents[1])]

INSTALL = "to run this test: apt-get install chromium, pip install playwright (its own browsers are not needed)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running browser."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip(f"Chromium is not installed; {INSTALL}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(f"playwright is not installed; {INSTALL}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page and everything it did by itself: console messages, errors, dialogs, requests."""

    page: Any
    noise: list[str] = field(default_factory=list)


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a file or URL and records what the page does."""
    contexts = []

    def open_page(location: Path | str, *, ready: str = "#text[data-ready]", **settings: Any) -> Opened:
        viewport = {"width": 1280, "height": 900}
        settings = {"viewport": viewport, "reduced_motion": "reduce", "timezone_id": "UTC", **settings}
        context = chromium.new_context(**settings)
        contexts.append(context)
        result = Opened(context.new_page())
        page, noise = result.page, result.noise
        page.on("console", lambda message: noise.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: noise.append(f"request: {request.url[:80]}"))
        url = location.as_uri() if isinstance(location, Path) else location
        page.goto(url)
        page.wait_for_selector(ready, timeout=60_000, state="attached")
        assert noise.pop(0) == f"request: {url.partition('#')[0][:80]}"
        return result

    yield open_page
    for context in contexts:
        context.close()
