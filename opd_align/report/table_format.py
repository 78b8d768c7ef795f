"""A table as a value, and the four ways to write it: rich text, Markdown, CSV and LaTeX.

A cell holds a value and, where it is an estimate, the half-width of its interval; its column says how both are shown.
All formats are made from the same cells, so they cannot disagree; CSV keeps the numbers as they are. Names are
untrusted text and are escaped for where they go. This room computes nothing.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table as RichTable
from rich.text import Text

Kind = Literal["text", "signed", "number", "plain", "share", "count", "p"]
Value = str | int | float | None
UNKNOWN = "–"

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "−": "$-$", "…": r"\dots{}", "Δ": r"$\Delta$", "ρ": r"$\rho$", "±": r"$\pm$", "×": r"$\times$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A value and, if it has one, the half-width of its interval."""

    value: Value
    error: float | None = None


@dataclass(frozen=True)
class Column:
    """`signed` and `number` show three decimals, with and without a plus; `plain` three digits."""

    name: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """`name` is what its file is called; with `grouped`, a first cell like the one above it is left blank to read."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    grouped: bool = False

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.name!r} has not {len(self.columns)} cells")

    def __rich__(self) -> RichTable:
        return to_rich(self)

    def shown(self) -> list[list[str]]:
        """The cells as people read them."""
        rows, above = [], None
        for row in self.rows:
            line = [shown(cell, column.kind) for cell, column in zip(row, self.columns, strict=True)]
            above, line[0] = line[0], "" if self.grouped and line[0] == above else line[0]
            rows.append(line)
        return rows


def row(*values: Value | Cell) -> tuple[Cell, ...]:
    """Cells from bare values."""
    return tuple(value if isinstance(value, Cell) else Cell(value) for value in values)


def shown(cell: Cell, kind: Kind) -> str:
    """A cell as people read it, the same in every format."""
    value = cell.value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if isinstance(value, str):
        # Names come from outside: what does not print could move the cursor of a terminal.
        return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)
    error = cell.error
    spread = "" if error is None or math.isnan(error) else f" ± {error:.3f}"
    match kind:
        case "signed":
            return f"{value:+.3f}{spread}".replace("-", "−")
        case "number":
            return f"{value:.3f}{spread}".replace("-", "−")
        case "share":
            return f"{value:.0%}"
        case "count":
            return f"{value:,}"
        case "p":
            return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
        case _:
            return f"{value:.3g}"


def to_rich(table: Table) -> RichTable:
    """For the terminal."""
    drawn = RichTable(
        title=Text(table.title, style="bold"), title_justify="left", caption_justify="left", box=None, pad_edge=False,
        caption=Text(table.caption, style="dim") if table.caption else None,
    )  # fmt: skip
    for index, column in enumerate(table.columns):
        left = column.kind == "text"
        drawn.add_column(Text(column.name), justify="left" if left else "right", no_wrap=index == 0, overflow="fold")
    for line in table.shown():
        drawn.add_row(*map(Text, line))
    return drawn


def to_markdown(tables: Sequence[Table]) -> str:
    """One section a table."""
    parts = []
    for table in tables:
        marks = [":--" if column.kind == "text" else "--:" for column in table.columns]
        lines = [[_markdown(column.name) for column in table.columns], marks]
        lines += [[_markdown(text) for text in line] for line in table.shown()]
        drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = f"\n\n{_markdown(table.caption)}" if table.caption else ""
        parts.append(f"## {_markdown(table.title)}\n\n{drawn}{caption}\n")
    return "\n".join(parts)


def to_latex(tables: Sequence[Table]) -> str:
    """One `table` environment a table; needs the package booktabs."""
    parts = []
    for table in tables:
        kinds = "".join("l" if column.kind == "text" else "r" for column in table.columns)
        head = " & ".join(rf"\textbf{{{_latex(column.name)}}}" for column in table.columns)
        lines = []
        for place, (line, cells) in enumerate(zip(table.shown(), table.rows, strict=True)):
            if table.grouped and place and line[0]:
                lines.append(r"\midrule")
            texts = [_latex_cell(text, cell) for text, cell in zip(line, cells, strict=True)]
            lines.append(" & ".join(texts) + r" \\")
        caption = ". ".join(part for part in (table.title, table.caption) if part)
        body = "\n".join([rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", rf"{head} \\", r"\midrule", *lines])
        parts.append(
            "\\begin{table}[h]\n\\centering\n\\small\n"
            f"\\caption{{{_latex(caption)}.}}\n\\label{{tab:{file_name(table.name)}}}\n"
            f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
        )
    return "\n".join(parts)


def to_csv(table: Table) -> str:
    """Full numbers; a column that has intervals is followed by their half-widths, unknown is empty."""
    has_error = [any(line[at].error is not None for line in table.rows) for at in range(len(table.columns))]
    header = []
    for column, spread in zip(table.columns, has_error, strict=True):
        header += [column.name, f"{column.name} half-width"] if spread else [column.name]
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(header)
    for line in table.rows:
        values: list[Value] = []
        for cell, spread in zip(line, has_error, strict=True):
            values += [cell.value, cell.error] if spread else [cell.value]
        writer.writerow(["" if value is None or value != value else value for value in values])
    return sink.getvalue()


def file_name(name: str) -> str:
    """A name with nothing in it that a file system or LaTeX would mind."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "table"


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_cell(text: str, cell: Cell) -> str:
    if isinstance(cell.value, str) or text in (UNKNOWN, ""):
        return _latex(text)
    power = re.sub(
        r"^(\d)e([+-])0*(\d+)$", lambda found: rf"{found[1]} \times 10^{{{found[2].strip('+')}{found[3]}}}", text
    )
    number = power.replace("±", r"\pm").replace("−", "-").replace("%", r"\%").replace(",", "{,}")
    return f"${number}$"
