"""Assembling a self-contained HTML page: a template, its styles and scripts, and a Content-Security-Policy.

Callers escape whatever they put into the template, text with `html.escape` and data with `script_json`. The policy
allows only this page's style and script, by hash, so that no data on the page can become either.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any


def page_html(
    template: str, values: Mapping[str, str], *, styles: Sequence[str], scripts: Sequence[str], live: bool = False
) -> str:
    """The page as text.

    Args:
        template: Name of the HTML file in `static/`; `{{name}}` in it is replaced.
        values: Placeholder name → escaped HTML.
        styles: CSS files in `static/`, concatenated in this order.
        scripts: JavaScript files in `static/`, concatenated in this order.
        live: Allow requests to the server the page came from; False allows no requests at all.
    """
    style, script = ("\n".join(static_file(name) for name in names) for names in (styles, scripts))
    policy = html.escape(_content_security_policy(style, script, live), quote=True)
    replacements = {**values, "style": style, "script": script, "policy": policy}
    # A single pass: placeholders inside inserted text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: replacements[match[1]], static_file(template))


def static_file(name: str) -> str:
    """The text of a file in `static/`."""
    return (files("opd_align.report") / "static" / name).read_text(encoding="utf-8")


def script_json(value: Any) -> str:
    """JSON that is safe between script tags: no character in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    # A lone surrogate (half of a broken token) cannot be encoded as UTF-8.
    return text.encode("utf-8", "replace").decode()


def package_version() -> str:
    """The installed version of opd-align; empty if it is not installed."""
    try:
        return version("opd-align")
    except PackageNotFoundError:
        return ""


def _content_security_policy(style: str, script: str, live: bool) -> str:
    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    rules = [
        "default-src 'none'", f"script-src {digest(script)}", f"style-src {digest(style)}", "img-src data:",
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)
