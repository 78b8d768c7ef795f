"""The reports of the gallery open without errors and without the network, and fit a desk and a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_pictures import OUTSIDE

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("page", sorted(GALLERY.glob("*.html")), ids=lambda page: page.stem)
def test_a_page_of_the_gallery_opens(page: Path, width: int, opened) -> None:
    made = opened(page, viewport={"width": width, "height": 900})
    assert made.noise == []
    assert made.page.evaluate(OUTSIDE) == []
    assert made.page.locator("h1").inner_text().strip()
    assert made.page.locator("#text").inner_text().strip()
