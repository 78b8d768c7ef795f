"""MkDocs hook for links from pages to files of the repository outside `docs/`, such as `../examples/own_objective.py`.

They work as they are where the repository is browsed. On the built site they lead to `repo_url` if it is set, and
become plain text otherwise. A link to a file that does not exist is a warning, and an error with `--strict`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)\s]+)\)")
logger = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    def resolved(match: re.Match[str]) -> str:
        text, path = match.groups()
        if not (ROOT / path).exists():
            logger.warning("%s links to %s, which is not in the repository", page.file.src_path, path)
        return f"[{text}]({config['repo_url']}/blob/main/{path})" if config["repo_url"] else f"{text} (`{path}`)"

    return LINK.sub(resolved, markdown)
