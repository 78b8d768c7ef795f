"""The table data model and its four output formats: rich text, Markdown, CSV and LaTeX.

A cell holds a value and, if the value is an estimate, the half-width of its interval; the column determines how both
are formatted. All formats are produced from the same cells, so they always agree; CSV keeps full precision. Names are
untrusted text and are escaped for each format. Nothing is computed here.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from opd_align.types import printable

Kind = Literal["text", "signed", "number", "plain", "share", "count", "p"]
Value = str | int | float | None
UNKNOWN = "–"
GAP = 2
"""Spaces between the columns of a table in the terminal."""
FORMULA_STARTS = ("=", "+", "-", "@")
"""Spreadsheets read a cell that starts with one of these as a formula."""

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "−": "$-$", "…": r"\dots{}", "Δ": r"$\Delta$", "ρ": r"$\rho$", "±": r"$\pm$", "×": r"$\times$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One table cell.

    Args:
        value: Text or number; None or NaN means unknown.
        half_width: Half-width of the interval around `value`; None if the value is not an estimate.
    """

    value: Value
    half_width: float | None = None


@dataclass(frozen=True)
class Column:
    """One table column.

    Args:
        name: Header text.
        kind: Number format. `signed` and `number` show three decimals, with and without a plus sign; `plain` shows
            three significant digits; `share` a percentage; `count` an integer; `p` a p-value.
    """

    name: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """A titled table, independent of any output format.

    Args:
        name: Stem of the CSV file name.
        title: Heading above the table.
        columns: Header and number format of each column.
        rows: Cells, one tuple per row, as long as `columns`.
        caption: Note below the table.
        grouped: Leave the first cell blank where it repeats the cell above (except in CSV).
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    grouped: bool = False

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row of table {self.name!r} must have {len(self.columns)} cells")

    def __rich__(self) -> RenderableType:
        return to_rich(self)

    def formatted_rows(self) -> list[list[str]]:
        """All cells as display text."""
        formatted, previous = [], None
        for row in self.rows:
            texts = [format_cell(cell, column.kind) for cell, column in zip(row, self.columns, strict=True)]
            previous, texts[0] = texts[0], "" if self.grouped and texts[0] == previous else texts[0]
            formatted.append(texts)
        return formatted


def row(*values: Value | Cell) -> tuple[Cell, ...]:
    """A table row; bare values become cells without an interval."""
    return tuple(value if isinstance(value, Cell) else Cell(value) for value in values)


def format_cell(cell: Cell, kind: Kind) -> str:
    """A cell as display text, the same in every format.

    Args:
        cell: The cell to format.
        kind: Number format, see `Column`.
    """
    value = cell.value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if isinstance(value, str):
        return printable(value)
    half_width = cell.half_width
    interval = "" if half_width is None or math.isnan(half_width) else f" ± {half_width:.3f}"
    match kind:
        case "signed":
            return f"{value:+.3f}{interval}".replace("-", "−")
        case "number":
            return f"{value:.3f}{interval}".replace("-", "−")
        case "share":
            return f"{value:.0%}".replace("-", "−")
        case "count":
            return f"{value:,}"
        case "p":
            return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
        case _:
            return f"{value:.3g}"


def to_rich(table: Table) -> RenderableType:
    """The table for a terminal of any width: columns that do not fit continue below, after the first column."""
    return _Shown(table)


@dataclass(frozen=True)
class _Shown:
    """A table with its title above and its caption below, laid out for the width it is shown at."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, rows = self.table, self.table.formatted_rows()
        yield Text(printable(table.title), style="bold")
        for part in _parts(table.columns, rows, options.max_width):
            yield _rich_part(table.columns, rows, part)
        if table.caption:
            yield Text(printable(table.caption, keep="\n"), style="dim")


def _parts(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[dict[int, int]]:
    """Columns (index → width) of each block; no number is broken, and no word that is not as long as a path or URL."""
    least, most, longest_word = [], [], max(2 * width // 5, 16)
    for index, column in enumerate(columns):
        words, texts = printable(column.name).split(), [row[index] for row in rows]
        cells = [word for text in texts for word in text.split()] if column.kind == "text" else texts
        needed = max(map(cell_len, (*words, *cells)), default=0)
        least.append(min(needed, longest_word) if column.kind == "text" else needed)
        natural = (printable(column.name), *texts) if column.kind == "text" else (*words, *texts)
        most.append(max(map(cell_len, natural), default=0))
    blocks: list[list[int]] = [[0]]
    for index in range(1, len(columns)):
        if sum(least[at] + GAP for at in blocks[-1]) + least[index] > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(index)
    return [_widths(block, least, most, width) for block in blocks]


def _widths(block: Sequence[int], least: Sequence[int], most: Sequence[int], width: int) -> dict[int, int]:
    """Every column as wide as its words need; what is left goes to columns whose text would wrap."""
    widths = {at: min(least[at], width) for at in block}
    left = width - sum(widths.values()) - GAP * (len(block) - 1)
    for at in sorted(block, key=lambda at: most[at] - widths[at]):
        more = max(min(most[at] - widths[at], left), 0)
        widths[at], left = widths[at] + more, left - more
    return widths


def _rich_part(columns: Sequence[Column], rows: Sequence[Sequence[str]], part: Mapping[int, int]) -> RichTable:
    result = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, width in part.items():
        is_text = columns[index].kind == "text"
        name = textwrap.fill(printable(columns[index].name), max(width, 1), break_on_hyphens=False)
        result.add_column(Text(name), justify="left" if is_text else "right", width=max(width, 1), overflow="fold")
    for texts in rows:
        result.add_row(*(Text(texts[index]) for index in part))
    return result


def to_markdown(tables: Sequence[Table]) -> str:
    """A Markdown document with one section per table."""
    sections = []
    for table in tables:
        alignments = [":--" if column.kind == "text" else "--:" for column in table.columns]
        lines = [[_markdown(column.name) for column in table.columns], alignments]
        lines += [[_markdown(text) for text in texts] for texts in table.formatted_rows()]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = f"\n\n{_markdown(table.caption)}" if table.caption else ""
        sections.append(f"## {_markdown(table.title)}\n\n{body}{caption}\n")
    return "\n".join(sections)


def to_latex(tables: Sequence[Table]) -> str:
    """One `table` environment per table; requires the package booktabs."""
    environments = []
    for table in tables:
        alignments = "".join("l" if column.kind == "text" else "r" for column in table.columns)
        header = " & ".join(rf"\textbf{{{_latex(column.name)}}}" for column in table.columns)
        lines = []
        for index, (texts, cells) in enumerate(zip(table.formatted_rows(), table.rows, strict=True)):
            if table.grouped and index and texts[0]:
                lines.append(r"\midrule")
            columns = [_latex_cell(text, cell) for text, cell in zip(texts, cells, strict=True)]
            lines.append(" & ".join(columns) + r" \\")
        caption = ". ".join(part for part in (table.title, table.caption) if part)
        body = "\n".join([rf"\begin{{tabular}}{{{alignments}}}", r"\toprule", rf"{header} \\", r"\midrule", *lines])
        environments.append(
            "\\begin{table}[h]\n\\centering\n\\small\n"
            f"\\caption{{{_latex(caption)}.}}\n\\label{{tab:{file_name(table.name)}}}\n"
            f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
        )
    return "\n".join(environments)


def to_csv(table: Table) -> str:
    """Full precision; a column with intervals is followed by a column of half-widths, unknown values are empty.

    Text that a spreadsheet would execute as a formula starts with an apostrophe.
    """
    has_interval = [
        any(cells[index].half_width is not None for cells in table.rows) for index in range(len(table.columns))
    ]
    header = []
    for column, interval in zip(table.columns, has_interval, strict=True):
        header += [column.name, f"{column.name} half-width"] if interval else [column.name]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(map(_csv, header))
    for cells in table.rows:
        values: list[Value] = []
        for cell, interval in zip(cells, has_interval, strict=True):
            values += [cell.value, cell.half_width] if interval else [cell.value]
        writer.writerow(["" if value is None or value != value else _csv(value) for value in values])
    return output.getvalue()


def _csv(value: Value) -> Value:
    if not isinstance(value, str) or not value.lstrip().startswith(FORMULA_STARTS):
        return value
    try:
        float(value)  # text that is a number stays one
    except ValueError:
        return f"'{value}"
    return value


def file_name(name: str) -> str:
    """`name` with every character replaced that is not safe in a file name or a LaTeX label."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "table"


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_cell(text: str, cell: Cell) -> str:
    if isinstance(cell.value, str) or text in (UNKNOWN, ""):
        return _latex(text)
    with_power = re.sub(
        r"^(\d)e([+-])0*(\d+)$", lambda match: rf"{match[1]} \times 10^{{{match[2].strip('+')}{match[3]}}}", text
    )
    number = with_power.replace("±", r"\pm").replace("−", "-").replace("%", r"\%").replace(",", "{,}")
    return f"${number}$"
