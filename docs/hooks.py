"""MkDocs hook for pages that are also read in the repository.

Links to files outside `docs/`, such as `../examples/own_objective.py`, work as they are where the repository is
browsed. On the built site they lead to `repo_url` if it is set, and become plain text otherwise. A link to a file that
does not exist is a warning, and an error with `--strict`. Figures in tables, such as "0.83 ± 0.01" and "[0.50, 0.88]",
are kept on one line.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)\s]+)\)")
TABLE_ROW = re.compile(r"^ *\|.*\|$", re.MULTILINE)
SPACE_WITHIN_FIGURE = re.compile(r"(?<=[\d%]) (?=[±%×]|\([\d−+-]|of \d)|(?<=[±]) (?=\d)|(?<=[\d%],) (?=[\d−+.-]+%?\])")
NO_BREAK_SPACE = "\u00a0"
logger = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    def resolved(match: re.Match[str]) -> str:
        text, path = match.groups()
        if not (ROOT / path).exists():
            logger.warning("%s links to %s, which is not in the repository", page.file.src_path, path)
        if config["repo_url"]:
            return f"[{text}]({config['repo_url']}/blob/main/{path})"
        return f"`{path}`" if text.strip("`/") in path else f"{text} (`{path}`)"

    def on_one_line(row: re.Match[str]) -> str:
        return SPACE_WITHIN_FIGURE.sub(NO_BREAK_SPACE, row.group())

    return TABLE_ROW.sub(on_one_line, LINK.sub(resolved, markdown))
