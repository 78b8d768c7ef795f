"""Parsing a page for tests that run without a browser."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The elements of a page: `tags` with their attributes, and `inside`: element id (or tag name) → its text.

    Args:
        page: The HTML text.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self._current = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._current = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.inside[self._current] = self.inside.get(self._current, "") + data
