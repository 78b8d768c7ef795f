"""What a finished analysis prints: the conclusion first, then the main tables; all tables with `--verbose`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from opd_align.cli.terminal import say

if TYPE_CHECKING:
    from opd_align.core.engine import Analysis

MAX_WIDTH = 100
"""Longest line of a sentence on a terminal; a longer one is hard to read."""


def print_conclusion(analysis: Analysis, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the recommendation, the verdict in a sentence, and tables.

    Args:
        analysis: The analysis.
        verbose: All tables, and what supports the verdict.
        quiet: The recommendation only.
    """
    from rich.console import Console

    from opd_align.report.prose import verdict
    from opd_align.report.recommendation import recommendation
    from opd_align.report.slices import Slices
    from opd_align.report.tables import all_tables, console_group, main_tables

    slices = Slices(analysis.nodes, n_analyzed=analysis.questions.num_rows)
    _say_wrapped(recommendation(slices.decision))
    if quiet:
        return
    best = slices.decision.best
    found = verdict(slices, best.objective if best else analysis.settings.objectives[0].name)
    _say_wrapped(found.headline)
    say()
    if verbose:
        for point in found.points:
            _say_wrapped(f"- {point}")
        say()
        Console().print(all_tables(analysis))
        return
    Console().print(console_group(main_tables(analysis, slices)))
    say("More tables and what supports the verdict: --verbose. Every token: the report.\n")


def _say_wrapped(text: str) -> None:
    """A sentence: wrapped between words on a terminal, one line in a file."""
    if not sys.stdout.isatty():
        say(text)
        return
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    say(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=""))
