"""The paper's three screening tables: availability of demonstrations, results, breakdown by difficulty.

Drawn from the records of `screen`; numbers come in finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opd_align.core.metrics import Estimate
from opd_align.report.table_format import Cell, Column, Table, row
from opd_align.teachers.contexts import SELF, Demonstration
from opd_align.teachers.eligibility import availability
from opd_align.teachers.screening import BASELINE, BINS, EXTREMELY_HARD, Screening, variant_rows


def screening_tables(screening: Screening, demonstrations: Mapping[str, Sequence[Demonstration]]) -> list[Table]:
    """All tables of a screening, and what was left out."""
    tables = [difficulty_table(screening)]
    if len(screening.variants) > 1:
        tables += [availability_table(screening, demonstrations), results_table(screening)]
    tables.append(breakdown_table(screening))
    if screening.missing.num_rows:
        tables.append(missing_table(screening))
    return tables


def availability_table(screening: Screening, demonstrations: Mapping[str, Sequence[Demonstration]]) -> Table:
    found = availability(screening.sources, len(screening.questions), demonstrations)
    by_source = [("Self" if name == SELF else name, "count") for name in found.by_source]
    columns = [("screened", "count"), *by_source, ("all sources", "count"), ("compared", "count")]
    counts = [found.questions, *found.by_source.values(), found.all, len(screening.compared)]
    return Table(
        "availability",
        "Questions with at least one correct demonstration",
        tuple(Column(name, "count") for name, _ in columns),
        (row(*counts),),
        "compared: questions that every variant could be asked",
    )


def results_table(screening: Screening) -> Table:
    columns = (Column("variant"), Column("accuracy", "number"), Column("Δ", "signed"), Column("questions", "count"))
    return Table(
        "screening",
        "Screening results",
        columns,
        tuple(
            row(each.variant, _cell(each.accuracy), _cell(each.delta), each.accuracy.n)
            for each in variant_rows(screening)
        ),
        "means over questions ± 95 % half-width; Δ: paired difference from the baseline; extremely hard ones left out",
    )


def breakdown_table(screening: Screening) -> Table:
    bins = list(reversed(BINS))
    columns = [Column("variant")]
    for name in bins:
        columns += [Column(name, "number"), Column(f"n {name}", "count")]
    rows = []
    for each in variant_rows(screening):
        cells: list[Cell | str | int] = [each.variant]
        for name in bins:
            cells += [_cell(each.by_bin[name]), each.by_bin[name].n]
        rows.append(row(*cells))
    return Table("difficulty", "Accuracy by difficulty (baseline pass rate)", tuple(columns), tuple(rows))


def difficulty_table(screening: Screening) -> Table:
    bin_of = screening.difficulty()
    counts = [sum(found == name for found in bin_of.values()) for name in (*BINS, EXTREMELY_HARD)]
    columns = tuple(Column(name, "count") for name in (*BINS, EXTREMELY_HARD))
    return Table("bins", f"Questions by difficulty ({BASELINE.lower()})", columns, (row(*counts),))


def missing_table(screening: Screening) -> Table:
    rows = [row(each["question"], each["variant"], each["reason"]) for each in screening.missing.to_pylist()]
    columns = (Column("question"), Column("variant"), Column("reason"))
    return Table("left-out", "Left out of the comparison", columns, tuple(rows), grouped=True)


def _cell(estimate: Estimate | None) -> Cell:
    return Cell(None) if estimate is None else Cell(estimate.mean, estimate.half_width)
