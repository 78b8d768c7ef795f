"""The paper's tables from an analysis.

Each function lays out one table from records of `metrics`; numbers come in finished. How a table is written, `model`
knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.text import Text

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Column, Table, file_name, row, to_csv, to_latex, to_markdown, to_rich
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.types import OpdAlignError

MEASURES = ("kl", "js")
SHOWN = 20
"""Questions listed in the terminal."""


def all_tables(analysis: Analysis) -> RenderableType:
    """Everything worth reading about an analysis, from the questions to the filters, for the terminal."""
    first, *others = tables(analysis)
    if len(first.rows) > SHOWN:
        first = Table(
            first.name, first.title, first.columns, first.rows[:SHOWN], f"… and {len(first.rows) - SHOWN} more"
        )
    return rendered([first, *others])


def rendered(parts: Iterable[Table]) -> RenderableType:
    """Tables for the terminal, one below the other."""
    return Group(*(piece for table in parts for piece in (to_rich(table), Text())))


def write_tables(analysis: Analysis, folder: PathLike) -> list[AnyPath]:
    """Writes `tables.md`, `tables.tex` and one CSV a table; returns the files."""
    return write(tables(analysis, every=True), folder)


def write(parts: Sequence[Table], folder: PathLike) -> list[AnyPath]:
    """Writes the given tables; returns the files."""
    target = as_path(folder)
    texts = {"tables.md": to_markdown(parts), "tables.tex": to_latex(parts)}
    texts |= {f"{file_name(table.name)}.csv": to_csv(table) for table in parts}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OpdAlignError(
            f"cannot write tables to {str(target)!r}: {error_reason(error)}; choose another folder"
        ) from error
    return [target / name for name in texts]


def tables(analysis: Analysis, *, every: bool = False, slices: Slices | None = None) -> list[Table]:
    """The tables of an analysis; contrasts and what follows for its first objective, with `every` for all of them."""
    slices = slices or Slices(analysis.nodes)
    guided, rewarded = objectives_of(analysis)
    parts = [question_table(analysis.questions)]
    for objective in (*guided, *rewarded):
        ranks = slices.ranks(objective)
        parts += [ranking_table(ranks, objective), alternative_table(ranks, objective)]
    for objective in guided if every else guided[:1]:
        teachers = slices.teachers(objective)
        parts += [
            contrast_table(slices.contrasts(objective), objective),
            delta_table([row for name in teachers for row in slices.contrasts(objective, name)], objective),
            oracle_table([(name, _oracle(slices, objective, name)) for name in teachers], objective),
            filter_table([(name, _filters(slices, objective, name)) for name in teachers], objective),
            correlation_table(slices.correlations(objective), objective),
        ]
    return parts


def objectives_of(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Objectives that follow a teacher, and those that follow the reward."""
    objectives = analysis.settings.objectives
    guided = [objective.name for objective in objectives if objective.signal != "reward"]
    return guided, [objective.name for objective in objectives if objective.signal == "reward"]


def question_table(questions: pa.Table) -> Table:
    """What became of each question."""
    names = ("pass_rate", "initial", "targeted", "correct_paths", "incorrect_paths", "nodes", "note")
    rows = [row(record["question"], *(record[name] for name in names)) for record in questions.to_pylist()]
    columns = (
        Column("question"), Column("pass rate", "plain"), Column("rollouts", "count"), Column("targeted", "count"),
        Column("paths +", "count"), Column("paths −", "count"), Column("rows", "count"), Column("note"),
    )  # fmt: skip
    return Table("questions", "Questions", columns, tuple(rows))


def ranking_table(ranks: Sequence[metrics.TeacherRank], objective: str) -> Table:
    """Teachers, best first; ± is a 95 % interval across questions."""
    columns = (
        Column("teacher"), Column("alignment", "signed"), Column("helps", "share"), Column("harms", "share"),
        Column("open", "share"), Column("ceiling", "plain"), Column("questions", "count"), Column("nodes", "count"),
    )  # fmt: skip
    rows = [
        row(
            rank.teacher, estimate(rank.alignment), rank.helpful, rank.harmful, rank.undecided,
            rank.noise_ceiling.ceiling, rank.n_questions, rank.n_nodes,
        )
        for rank in ranks
    ]  # fmt: skip
    pairs = [rank.two_children for rank in ranks if rank.n_nodes]
    caption = "ceiling: the largest correlation with the truth that this many rollouts allow (split halves)"
    if pairs:
        caption += f"; {max(pairs):.0%} of the nodes have two children, there alignment is ±1"
    title = f"Does following the teacher help? Alignment with the ideal update ({objective})"
    return Table(f"ranking-{objective}", title, columns, tuple(rows), caption)


def alternative_table(ranks: Sequence[metrics.TeacherRank], objective: str) -> Table:
    """The same ranking by other measures."""
    columns = (
        Column("teacher"), Column("positive", "number"), Column("SR-weighted", "signed"), Column("advantage", "signed"),
    )  # fmt: skip
    rows = [
        row(
            rank.teacher, estimate(rank.fraction_positive), estimate(rank.weighted_cosine), estimate(rank.advantage)
        )
        for rank in ranks
    ]  # fmt: skip
    return Table(f"alternative-{objective}", f"The same by other measures ({objective})", columns, tuple(rows))


def contrast_table(contrasts: Iterable[metrics.Contrast], objective: str) -> Table:
    """Correct against incorrect paths, all teachers together."""
    columns = (
        Column("metric"), Column("correct", "signed"), Column("incorrect", "signed"), Column("Δ", "signed"),
        Column("p", "p"), Column("test"),
    )  # fmt: skip
    rows = [
        row(
            contrast.metric.replace("_", " "), contrast.correct, contrast.incorrect,
            Cell(contrast.delta, contrast.half_width), contrast.p_value, contrast.test,
        )
        for contrast in contrasts
    ]  # fmt: skip
    title = f"Correct against incorrect rollouts ({objective})"
    return Table(f"correct-incorrect-{objective}", title, columns, tuple(rows))


def delta_table(contrasts: Iterable[metrics.Contrast], objective: str) -> Table:
    """Correct against incorrect paths, teacher by teacher."""
    columns = (
        Column("teacher"), Column("metric"), Column("correct", "signed"), Column("incorrect", "signed"),
        Column("Δ", "signed"), Column("p", "p"), Column("questions with both", "count"),
    )  # fmt: skip
    rows = [
        row(
            contrast.teacher, contrast.metric.replace("_", " "), contrast.correct, contrast.incorrect,
            Cell(contrast.delta, contrast.half_width), contrast.p_value, contrast.n_pairs,
        )
        for contrast in contrasts
    ]  # fmt: skip
    title = f"Correct against incorrect rollouts, teacher by teacher ({objective})"
    return Table(f"teacher-delta-{objective}", title, columns, tuple(rows), grouped=True)


def oracle_table(rows: Iterable[tuple[str, Sequence[metrics.OracleRow]]], objective: str) -> Table:
    """What selective distillation could gain if alignment were known."""
    columns = (
        Column("teacher"), Column("keep"), Column("signal", "signed"), Column("cross-fitted", "signed"),
        Column("nodes kept", "share"), Column("paths that gain", "share"),
    )  # fmt: skip
    lines = [
        row(
            teacher, "all" if line.threshold is None else f"alignment > {line.threshold:g}", estimate(line.signal),
            estimate(line.cross_fitted_signal), line.share_kept, line.share_beating,
        )
        for teacher, oracle in rows
        for line in oracle
    ]  # fmt: skip
    caption = "signal: SR range × alignment; cross-fitted: chosen on one half of the rollouts, valued on the other"
    title = f"Selective distillation, with hindsight ({objective})"
    return Table(f"oracle-{objective}", title, columns, tuple(lines), caption, grouped=True)


def filter_table(rows: Iterable[tuple[str, Sequence[metrics.FilterRow]]], objective: str) -> Table:
    """What a filter by divergence recovers of that."""
    columns = (
        Column("teacher"), Column("most divergent by"), Column("threshold", "plain"), Column("signal", "signed"),
        Column("nodes kept", "share"), Column("of the oracle's gain", "share"),
    )  # fmt: skip
    lines = [
        row(
            teacher, line.measure, line.threshold, estimate(line.signal), line.share_kept, line.share_of_oracle_gain
        )
        for teacher, filters in rows
        for line in filters
    ]  # fmt: skip
    return Table(
        f"filter-{objective}", f"Divergence as a filter ({objective})", columns, tuple(lines), grouped=True
    )  # fmt: skip


def correlation_table(correlations: Iterable[metrics.Correlation], objective: str) -> Table:
    """Within-path rank correlations of alignment with what a single forward pass shows."""
    columns = Column("teacher"), Column("feature"), Column("Spearman ρ", "signed"), Column("paths", "count")
    rows = [
        row(line.teacher or "all", line.feature.replace("_", " "), estimate(line.rho), line.n_paths)
        for line in correlations
    ]
    title = f"What goes along with alignment within a path ({objective})"
    return Table(f"correlations-{objective}", title, columns, tuple(rows), grouped=True)


def compare(analyses: Mapping[str, Analysis]) -> list[Table]:
    """Analyses side by side: the same run under two estimators, or several runs. Absent is unknown."""
    if not analyses:
        raise OpdAlignError("there is no run to compare; name two or more run directories")
    columns = (
        Column("run"), Column("estimator"), Column("allocation"), Column("questions", "count"),
        Column("nodes", "count"),
    )  # fmt: skip
    rows = [
        row(
            name, analysis.settings.estimator, analysis.settings.budget.allocation, analysis.questions.num_rows,
            analysis.nodes.num_rows,
        )
        for name, analysis in analyses.items()
    ]  # fmt: skip
    parts = [Table("runs", "Runs", columns, tuple(rows))]
    cut = {run: Slices(analysis.nodes) for run, analysis in analyses.items()}
    named = dict.fromkeys(name for analysis in analyses.values() for names in objectives_of(analysis) for name in names)
    for objective in named:
        held = [run for run in analyses if objective in cut[run].objectives]
        if held:
            ranks = {run: {rank.teacher: rank for rank in cut[run].ranks(objective)} for run in held}
            parts += [_ranks_beside(objective, list(analyses), ranks), _deltas_beside(objective, cut, ranks)]
    return parts


_Ranks = Mapping[str, Mapping[str, metrics.TeacherRank]]


def _ranks_beside(objective: str, runs: Sequence[str], ranks: _Ranks) -> Table:
    columns = (Column("teacher"), Column("metric"), *(Column(run, "signed") for run in runs))
    rows = []
    for teacher in dict.fromkeys(name for found in ranks.values() for name in found):
        for metric in ("alignment", "weighted_cosine", "advantage"):
            mine = [ranks.get(run, {}).get(teacher) for run in runs]
            cells = [Cell(None) if rank is None else estimate(getattr(rank, metric)) for rank in mine]
            rows.append(row(teacher, metric.replace("_", " "), *cells))
    title = f"Teachers side by side ({objective})"
    return Table(f"compare-ranking-{objective}", title, columns, tuple(rows), grouped=True)


def _deltas_beside(objective: str, cut: Mapping[str, Slices], ranks: _Ranks) -> Table:
    columns = (
        Column("teacher"), Column("run"), Column("correct", "signed"), Column("incorrect", "signed"),
        Column("Δ", "signed"), Column("p", "p"),
    )  # fmt: skip
    rows = []
    for teacher in dict.fromkeys(name for found in ranks.values() for name in found):
        for run in (run for run in ranks if teacher in ranks[run]):
            mean = cut[run].contrasts(objective, teacher)[0]
            delta = Cell(mean.delta, mean.half_width)
            rows.append(row(teacher, run, mean.correct, mean.incorrect, delta, mean.p_value))
    title = f"Mean cosine on correct and incorrect rollouts, side by side ({objective})"
    return Table(f"compare-delta-{objective}", title, columns, tuple(rows), grouped=True)


def estimate(value: metrics.Estimate) -> Cell:
    """A cell with its interval."""
    return Cell(value.mean, value.half_width)


def _oracle(slices: Slices, objective: str, teacher: str) -> list[metrics.OracleRow]:
    return metrics.selective_oracle(slices.rows(objective, teacher), objective=objective, teacher=teacher)


def _filters(slices: Slices, objective: str, teacher: str) -> list[metrics.FilterRow]:
    rows = slices.rows(objective, teacher)
    return [
        line
        for measure in MEASURES
        for line in metrics.divergence_filter(rows, measure, (0.5,), objective=objective, teacher=teacher)
    ]
