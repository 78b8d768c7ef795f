"""Tables: one model, four formats that cannot disagree, and the paper's tables on top of it."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.report.table_format import (
    Cell,
    Column,
    Table,
    file_name,
    row,
    shown,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)
from opd_align.report.tables import all_tables, compare, tables, write_tables
from opd_align.types import OpdAlignError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis

SMALL = Table(
    "small",
    "A small table",
    (Column("who"), Column("what", "signed"), Column("share", "share"), Column("n", "count"), Column("p", "p")),
    (row("a", Cell(-0.25, 0.125), 0.5, 1200, 2e-7), row("a", Cell(math.nan, math.nan), None, 0, 0.04)),
    "with a caption",
    grouped=True,
)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(3, length=40, objectives=(ReverseKL(), DrGRPO()))


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


# -- the model ------------------------------------------------------------------------------------------------


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
def test_a_cell_is_shown_in_one_way(cell: Cell, kind: str, expected: str) -> None:
    assert shown(cell, kind) == expected  # type: ignore[arg-type]


def test_all_formats_show_the_same_numbers() -> None:
    markdown, latex, text = to_markdown([SMALL]), to_latex([SMALL]), printed(SMALL)
    for part in ("−0.250 ± 0.125", "50%", "1,200", "2e-07", "0.040", "–"):
        assert part in markdown
        assert part in text
    for part in (r"$-0.250 \pm 0.125$", r"$50\%$", "$1{,}200$", r"$2 \times 10^{-7}$", "$0.040$", "--"):
        assert part in latex
    for part in ("A small table", "with a caption"):
        assert all(part in format for format in (markdown, latex, text))


def test_csv_keeps_the_numbers_themselves() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(SMALL))))
    assert [row["who"] for row in rows] == ["a", "a"]
    assert float(rows[0]["what"]) == -0.25
    assert float(rows[0]["what half-width"]) == 0.125
    assert float(rows[0]["p"]) == 2e-7
    assert rows[1]["what"] == rows[1]["what half-width"] == rows[1]["share"] == ""
    assert rows[1]["n"] == "0"  # zero is not unknown


def test_names_cannot_break_a_format() -> None:
    name = r"a|b_c*<i>&\x{}$%#~^" + "\n[red]"
    table = Table("t", "T", (Column("who"), Column("n", "count")), (row(name, 1),))
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
    ("name", "expected"), [("ranking-reverse_kl", "ranking-reverse-kl"), ("../x y", "x-y"), ("…", "table")]
)
def test_file_names_are_harmless(name: str, expected: str) -> None:
    assert file_name(name) == expected


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="has not 1 cells"):
        Table("t", "T", (Column("a"),), (row(1, 2),))


# -- the paper's tables ---------------------------------------------------------------------------------------


def test_the_ranking_is_that_of_metrics(analysis: Analysis) -> None:
    found = {table.name: table for table in tables(analysis)}
    ranks = metrics.teacher_ranking(analysis.nodes, "reverse_kl")
    rows = found["ranking-reverse_kl"].rows
    assert [line[0].value for line in rows] == [rank.teacher for rank in ranks]
    assert [(line[1].value, line[1].error) for line in rows] == [
        (rank.alignment.mean, rank.alignment.half_width) for rank in ranks
    ]
    deltas = [
        delta
        for teacher in sorted(rank.teacher for rank in ranks)
        for delta in metrics.correct_vs_incorrect(analysis.nodes, "reverse_kl", teacher=teacher)
    ]
    assert [(line[0].value, line[4].value, line[5].value) for line in found["teacher-delta-reverse_kl"].rows] == [
        (delta.teacher, delta.delta, delta.p_value) for delta in deltas
    ]


def test_every_table_of_the_paper_is_there(analysis: Analysis) -> None:
    names = {table.name for table in tables(analysis)}
    kinds = ("ranking", "alternative", "correct-incorrect", "teacher-delta", "oracle", "filter", "correlations")
    assert names >= {f"{kind}-reverse_kl" for kind in kinds} | {"questions", "ranking-dr_grpo"}


def test_all_of_it_is_written(analysis: Analysis, tmp_path: Path) -> None:
    files = write_tables(analysis, tmp_path / "tables")
    assert {file.name for file in files} >= {"tables.md", "tables.tex", "questions.csv", "ranking-reverse-kl.csv"}
    assert all(file.stat().st_size > 50 for file in files)
    best = metrics.teacher_ranking(analysis.nodes, "reverse_kl")[0]
    number = shown(Cell(best.alignment.mean, best.alignment.half_width), "signed")
    assert f"{best.teacher} | {number}" in (tmp_path / "tables" / "tables.md").read_text()
    latex = (tmp_path / "tables" / "tables.tex").read_text()
    assert latex.count(r"\begin{table}") == latex.count(r"\end{tabular}") == len(tables(analysis, every=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(OpdAlignError, match="cannot write tables"):
        write_tables(analysis, tmp_path / "file")


def test_the_terminal_lists_twenty_questions() -> None:
    shown_text = printed(all_tables(made_analysis(22, paths=1, length=8)))
    assert "question-19" in shown_text
    assert "question-20" not in shown_text
    assert "… and 2 more" in shown_text


def test_an_analysis_without_nodes_has_tables_too(analysis: Analysis) -> None:
    empty = Analysis(analysis.nodes.slice(0, 0), analysis.questions, analysis.settings)
    assert "Questions" in printed(all_tables(empty))


def test_runs_stand_side_by_side(analysis: Analysis) -> None:
    other = made_analysis(2, length=40, teachers=("Qwen3-8B", "new"))
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
