"""Tables: the data model, four output formats that agree with each other, and the tables of the paper."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from itertools import chain
from pathlib import Path

import pytest
from rich.console import Console

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.core.reliability import reliability
from opd_align.report.html import report_html
from opd_align.report.slices import Slices
from opd_align.report.table_format import (
    Cell,
    Column,
    Table,
    file_name,
    format_cell,
    row,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)
from opd_align.report.tables import TEACHER_TABLES, all_tables, compare, report_tables, write_tables
from opd_align.types import OpdAlignError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis

SMALL = Table(
    "small",
    "A small table",
    (Column("name"), Column("value", "signed"), Column("share", "share"), Column("n", "count"), Column("p", "p")),
    (row("a", Cell(-0.25, 0.125), 0.5, 1200, 2e-7), row("a", Cell(math.nan, math.nan), None, 0, 0.04)),
    "with a caption",
    grouped=True,
)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(4, length=40, objectives=(ReverseKL(), DrGRPO()))


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_reliability_of_probabilities_is_among_the_tables(analysis: Analysis) -> None:
    (table,) = [table for table in report_tables(analysis) if table.name.startswith("reliability")]
    expected = reliability(analysis.nodes, "reverse_kl")
    assert [cells[-1].value for cells in table.rows] == [row.nodes for row in expected] != []
    assert "Reliability of p_positive" in printed(all_tables(analysis))


# -- data model and formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "kind", "expected"),
    [
        (Cell(0.25, 0.0625), "signed", "+0.250 ± 0.062"),
        (Cell(-0.25), "signed", "−0.250"),
        (Cell(0.25, math.nan), "number", "0.250"),
        (Cell(0.256), "share", "26%"),
        (Cell(12345), "count", "12,345"),
        (Cell(0.0123), "p", "0.012"),
        (Cell(2e-7), "p", "2e-07"),
        (Cell(math.nan), "signed", "–"),
        (Cell(None), "count", "–"),
        (Cell("a\x1b[31mb"), "text", "a�[31mb"),
    ],
)
def test_format_cell(cell: Cell, kind: str, expected: str) -> None:
    assert format_cell(cell, kind) == expected  # type: ignore[arg-type]


def test_all_formats_show_the_same_numbers() -> None:
    markdown, latex, text = to_markdown([SMALL]), to_latex([SMALL]), printed(SMALL)
    for part in ("−0.250 ± 0.125", "50%", "1,200", "2e-07", "0.040", "–"):
        assert part in markdown
        assert part in text
    for part in (r"$-0.250 \pm 0.125$", r"$50\%$", "$1{,}200$", r"$2 \times 10^{-7}$", "$0.040$", "--"):
        assert part in latex
    for part in ("A small table", "with a caption"):
        assert all(part in format for format in (markdown, latex, text))


def test_csv_keeps_full_precision() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(SMALL))))
    assert [row["name"] for row in rows] == ["a", "a"]
    assert float(rows[0]["value"]) == -0.25
    assert float(rows[0]["value half-width"]) == 0.125
    assert float(rows[0]["p"]) == 2e-7
    assert rows[1]["value"] == rows[1]["value half-width"] == rows[1]["share"] == ""
    assert rows[1]["n"] == "0"  # zero is not unknown


def test_names_are_escaped_in_every_format() -> None:
    name = r"a|b_c*<i>&\x{}$%#~^" + "\n[red]"
    table = Table("t", "T", (Column("name"), Column("n", "count")), (row(name, 1),))
    lines = to_markdown([table]).splitlines()
    (line,) = [line for line in lines if line.startswith("| a")]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    assert "<i>" not in line
    latex = to_latex([table])
    (line,) = [line for line in latex.splitlines() if line.startswith("a|b")]
    assert r"\textbackslash{}x\{\}\$\%\#\textasciitilde{}\textasciicircum{}" in line
    assert "[red]" in printed(to_rich(table))
    ((_, _), (back, _)) = csv.reader(io.StringIO(to_csv(table)))
    assert back == name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=1+1", "'=1+1"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("-x", "'-x"), ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"), ("\r\n=1", "'\r\n=1"), (" =1", "' =1"), ("-0.5", "-0.5"), ("+1e-3", "+1e-3"), ("a=b", "a=b"),
        ("", ""), (-0.5, "-0.5"), (-3, "-3"),
    ],
)  # fmt: skip
def test_csv_cells_are_never_formulas(value: str | float, expected: str) -> None:
    table = Table("t", "T", (Column(str(value)), Column("n", "count")), (row(value, -1),))
    header, cells = csv.reader(io.StringIO(to_csv(table), newline=""))
    assert (header[0], cells) == (expected, [expected, "-1"])


def test_control_characters_do_not_reach_the_terminal() -> None:
    hostile = "a\x1b[2Jb\x9bc\u202ed\ud800"
    table = Table("t", hostile, (Column(hostile), Column(hostile, "count")), (row(hostile, 1),), hostile)
    shown = printed(to_rich(table))
    assert not set(shown) & set("\x1b\x9b\u202e\ud800")
    assert "a\N{REPLACEMENT CHARACTER}[2Jb" in shown


@pytest.mark.parametrize(
    ("name", "expected"), [("ranking-reverse_kl", "ranking-reverse-kl"), ("../x y", "x-y"), ("…", "table")]
)
def test_file_names_are_safe(name: str, expected: str) -> None:
    assert file_name(name) == expected


def test_a_row_of_the_wrong_length_raises() -> None:
    with pytest.raises(ValueError, match="must have 1 cells"):
        Table("t", "T", (Column("a"),), (row(1, 2),))


# -- the paper's tables ---------------------------------------------------------------------------------------


def test_tables_agree_with_metrics(analysis: Analysis) -> None:
    found = {table.name: table for table in report_tables(analysis)}
    ranks = metrics.teacher_ranking(analysis.nodes, "reverse_kl")
    rows = found["ranking-reverse_kl"].rows
    assert [line[0].value for line in rows] == [rank.teacher for rank in ranks]
    assert [(line[1].value, line[1].half_width) for line in rows] == [
        (rank.alignment.mean, rank.alignment.half_width) for rank in ranks
    ]
    deltas = [
        contrast
        for teacher in sorted(rank.teacher for rank in ranks)
        for contrast in metrics.correct_vs_incorrect(analysis.nodes, "reverse_kl", teacher=teacher)
    ]
    assert deltas
    assert [(line[0].value, line[4].value, line[5].value) for line in found["teacher-delta-reverse_kl"].rows] == [
        (delta.teacher, delta.delta, delta.p_value) for delta in deltas
    ]


def test_all_tables_of_the_paper_are_made(analysis: Analysis) -> None:
    names = {table.name for table in report_tables(analysis)}
    kinds = ("ranking", "alternative", "correct-incorrect", "teacher-delta", "oracle", "filter", "correlations")
    assert names >= {f"{kind}-reverse_kl" for kind in kinds} | {"questions", "ranking-dr_grpo"}


def test_write_tables(analysis: Analysis, tmp_path: Path) -> None:
    files = write_tables(analysis, tmp_path / "tables")
    assert {file.name for file in files} >= {"tables.md", "tables.tex", "questions.csv", "ranking-reverse-kl.csv"}
    assert all(file.stat().st_size > 50 for file in files)
    best = metrics.teacher_ranking(analysis.nodes, "reverse_kl")[0]
    number = format_cell(Cell(best.alignment.mean, best.alignment.half_width), "signed")
    assert f"{best.teacher} | {number}" in (tmp_path / "tables" / "tables.md").read_text()
    latex = (tmp_path / "tables" / "tables.tex").read_text()
    assert (
        latex.count(r"\begin{table}")
        == latex.count(r"\end{tabular}")
        == len(report_tables(analysis, every_objective=True))
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(OpdAlignError, match="cannot write tables"):
        write_tables(analysis, tmp_path / "file")


def test_a_new_table_is_added_in_one_place(analysis: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def extra_table(slices: Slices, objective: str) -> Table:
        rows = (row(slices.rows(objective).num_rows),)
        return Table(f"extra-{objective}", "Extra", (Column("rows_of_all_nodes", "count"),), rows)

    monkeypatch.setattr("opd_align.report.tables.TEACHER_TABLES", (*TEACHER_TABLES, extra_table))
    assert "Extra" in printed(all_tables(analysis))
    assert "extra-reverse-kl.csv" in {file.name for file in write_tables(analysis, tmp_path)}
    for output in ((tmp_path / "tables.md").read_text(), (tmp_path / "tables.tex").read_text(), report_html(analysis)):
        assert "Extra" in output


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_no_word_and_no_number_is_broken_in_a_narrow_terminal(analysis: Analysis, width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    tables = report_tables(analysis)
    for table in tables:
        console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    known = {
        word
        for table in tables
        for text in (
            table.title, table.caption, *(column.name for column in table.columns), *chain(*table.formatted_rows()),
        )
        for word in text.split()
    }  # fmt: skip
    assert {word for line in lines for word in line.split()} == known
    numbers = {cell for table in tables for row in table.formatted_rows() for cell in row if "±" in cell}
    assert len(numbers) > 5
    assert all(any(number in line for line in lines) for number in numbers)


def test_columns_that_do_not_fit_continue_below() -> None:
    numbers = tuple(Column(f"a long column header {index}", "signed") for index in range(4))
    table = Table("t", "T", (Column("name"), *numbers), (row("a", *[Cell(0.5, 0.25)] * 4),))
    for width, blocks in ((80, 1), (40, 2)):
        console = Console(file=io.StringIO(), width=width)
        console.print(table)
        output = console.file.getvalue()  # type: ignore[attr-defined]
        assert output.count("+0.500 ± 0.250") == 4
        assert output.count("name") == blocks


def test_terminal_shows_at_most_twenty_questions() -> None:
    output = printed(all_tables(made_analysis(22, paths=1, length=8)))
    assert "question-19" in output
    assert "question-20" not in output
    assert "… and 2 more" in output


def test_analysis_without_nodes(analysis: Analysis) -> None:
    empty = Analysis(analysis.nodes.slice(0, 0), analysis.questions, analysis.settings)
    assert "Questions" in printed(all_tables(empty))


def test_compare_runs(analysis: Analysis) -> None:
    other = made_analysis(4, length=40, teachers=("Qwen3-8B", "new"))
    found = {table.name: table for table in compare({"one": analysis, "two": other})}
    assert [line[0].value for line in found["runs"].rows] == ["one", "two"]
    ranking = found["compare-ranking-reverse_kl"]
    assert [column.name for column in ranking.columns] == ["teacher", "metric", "one", "two"]
    by_teacher = {line[0].value: line for line in ranking.rows if line[1].value == "alignment"}
    assert by_teacher["new"][2].value is None
    for at, run in ((2, analysis), (3, other)):
        rank = {rank.teacher: rank for rank in metrics.teacher_ranking(run.nodes, "reverse_kl")}["Qwen3-8B"]
        assert by_teacher["Qwen3-8B"][at] == Cell(rank.alignment.mean, rank.alignment.half_width)
    assert "two" not in {line[1].value for line in found["compare-delta-dr_grpo"].rows}
    with pytest.raises(OpdAlignError, match="no run to compare"):
        compare({})
