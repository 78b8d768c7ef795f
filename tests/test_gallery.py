"""The reports of the gallery: each is there, small, linked with a picture, and names no folder of a machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import make_gallery  # noqa: E402

TEXT = (ROOT / "docs" / "gallery.md").read_text("utf-8")


def test_the_gallery_has_the_pages_that_its_script_makes() -> None:
    names = {page.stem for page in make_gallery.GALLERY.glob("*.html")}
    assert names == set(make_gallery.PAGES)
    assert "gallery.md" in (ROOT / "mkdocs.yml").read_text("utf-8")


@pytest.mark.parametrize("name", make_gallery.PAGES)
def test_a_page_is_linked_with_a_picture_and_can_be_shipped(name: str) -> None:
    page, picture = (make_gallery.GALLERY / f"{name}.{ending}" for ending in ("html", "png"))
    assert re.search(rf"\[!\[[^\]]+\]\(gallery/{name}\.png\)\]\(gallery/{name}\.html\)", TEXT)
    assert make_gallery.problems(page) == []
    assert "</html>" in page.read_text("utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 2**20


@pytest.mark.parametrize("content", ["x /home/me/runs x", 'open("/tmp/a")', "file:///C:/runs", ">/mnt/data/a<"])
def test_a_page_with_a_path_of_a_machine_is_refused(content: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<p>{content}</p></html>", encoding="utf-8")
    assert len(make_gallery.problems(page)) == 1
    page.write_text("<p>and/or</p><a href='https://example.org/tmp/x'></mnt/></html>", encoding="utf-8")
    assert make_gallery.problems(page) == []
