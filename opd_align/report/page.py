"""A page as one file: a template, its styles and scripts, and a policy that lets nothing else in.

Whatever is put into the template is escaped by who puts it there, text with `html.escape` and data with `in_script`;
here it is not looked at again. The policy names style and script by their hashes, so that nothing a page holds can
become either. This room knows neither analyses nor charts.
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
    """The page as text; `live`: it may ask the server it came from, and nobody else."""
    style, script = ("\n".join(part(name) for name in names) for names in (styles, scripts))
    own = {"style": style, "script": script, "policy": html.escape(_policy(style, script, live), quote=True)}
    filled = {**values, **own}
    # One pass: what is put in is not looked at again, whatever it contains.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], part(template))


def part(name: str) -> str:
    """A file that lies beside this one."""
    return (files("opd_align.report") / "static" / name).read_text(encoding="utf-8")


def in_script(value: Any) -> str:
    """JSON that can stand between script tags: no character in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    # A lone surrogate, half of a broken token, cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode()


def made_by() -> str:
    """The version of the package, where it is installed."""
    try:
        return version("opd-align")
    except PackageNotFoundError:
        return ""


def _policy(style: str, script: str, live: bool) -> str:
    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    rules = [
        "default-src 'none'", f"script-src {digest(script)}", f"style-src {digest(style)}", "img-src data:",
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)
