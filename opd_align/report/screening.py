"""The tables of a screening, as in the paper: availability of demonstrations, results, breakdown by difficulty.

Made from the records of `teachers.screening`; numbers arrive computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opd_align.core.metrics import Estimate
from opd_align.report.table_format import Cell, Column, Table, row
from opd_align.teachers.contexts import SELF, Demonstration
from opd_align.teachers.eligibility import availability
from opd_align.teachers.screening import BASELINE, BINS, EXTREMELY_HARD, Screening, variant_rows


def screening_tables(screening: Screening, demonstrations: Mapping[str, Sequence[Demonstration]]) -> list[Table]:
    """All tables of a screening, ending with what was excluded.

    Args:
        screening: The screening to show.
        demonstrations: Question id → the demonstrations found for it.
    """
    tables = [difficulty_table(screening)]
    if len(screening.variants) > 1:
        tables += [availability_table(screening, demonstrations), results_table(screening)]
    tables.append(breakdown_table(screening))
    if screening.missing.num_rows:
        tables.append(missing_table(screening))
    return tables


def availability_table(screening: Screening, demonstrations: Mapping[str, Sequence[Demonstration]]) -> Table:
    """How many questions have a correct demonstration, by source.

    Args:
        screening: The screening to show.
        demonstrations: Question id → the demonstrations found for it.
    """
    available = availability(screening.sources, len(screening.questions), demonstrations)
    sources = ["Self" if name == SELF else name for name in available.by_source]
    counts = [available.questions, *available.by_source.values(), available.all, len(screening.compared)]
    return Table(
        "availability",
        "Questions with at least one correct demonstration",
        tuple(Column(name, "count") for name in ("screened", *sources, "all sources", "compared")),
        (row(*counts),),
        "compared: questions that could be sampled with every variant",
    )


def results_table(screening: Screening) -> Table:
    """Accuracy of each variant and its difference from the baseline."""
    columns = (Column("variant"), Column("accuracy", "number"), Column("Δ", "signed"), Column("questions", "count"))
    return Table(
        "screening",
        "Screening results",
        columns,
        tuple(
            row(result.variant, _cell(result.accuracy), _cell(result.delta), result.accuracy.n)
            for result in variant_rows(screening)
        ),
        "mean over questions ± half-width of the 95% interval; Δ: paired difference from the baseline; extremely hard "
        "questions are excluded",
    )


def breakdown_table(screening: Screening) -> Table:
    """Accuracy of each variant in each difficulty bin."""
    bins = list(reversed(BINS))
    columns = [Column("variant")]
    for name in bins:
        columns += [Column(name, "number"), Column(f"n {name}", "count")]
    rows = []
    for result in variant_rows(screening):
        cells: list[Cell | str | int] = [result.variant]
        for name in bins:
            cells += [_cell(result.by_bin[name]), result.by_bin[name].n]
        rows.append(row(*cells))
    return Table("difficulty", "Accuracy by difficulty (baseline pass rate)", tuple(columns), tuple(rows))


def difficulty_table(screening: Screening) -> Table:
    """Number of questions in each difficulty bin."""
    bin_of = screening.difficulty()
    counts = [sum(bin_name == name for bin_name in bin_of.values()) for name in (*BINS, EXTREMELY_HARD)]
    columns = tuple(Column(name, "count") for name in (*BINS, EXTREMELY_HARD))
    return Table("bins", f"Questions by difficulty ({BASELINE.lower()} pass rate)", columns, (row(*counts),))


def missing_table(screening: Screening) -> Table:
    """Questions excluded from the comparison, with the reason."""
    rows = [row(record["question"], record["variant"], record["reason"]) for record in screening.missing.to_pylist()]
    columns = (Column("question"), Column("variant"), Column("reason"))
    return Table("left-out", "Excluded from the comparison", columns, tuple(rows), grouped=True)


def _cell(estimate: Estimate | None) -> Cell:
    return Cell(None) if estimate is None else Cell(estimate.mean, estimate.half_width)
