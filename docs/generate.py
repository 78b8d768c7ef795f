"""Writes the generated page `docs/metrics.md` from the metric registry: `python docs/generate.py`.

With `--check` nothing is written; the exit code tells whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opd_align.core.metric_registry import metrics_markdown

PAGE = Path(__file__).parent / "metrics.md"


def main() -> int:
    text = metrics_markdown()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/metrics.md is out of date; run: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
