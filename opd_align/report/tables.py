"""The tables of an analysis, as in the paper.

Each `*_table` function lays out one table from records of `core.metrics`; numbers arrive computed. To add a table,
write such a function here and append it to `OBJECTIVE_TABLES` or `TEACHER_TABLES`: terminal, HTML report, Markdown,
LaTeX and CSV all read these two tuples. `table_format` does the formatting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.text import Text

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import FILTER_QUANTILE
from opd_align.core.reliability import reliability
from opd_align.report.prose import DELTA_CAUTION, delta_cell, half_width_shown
from opd_align.report.recommendation import decision_tables
from opd_align.report.slices import Slices
from opd_align.report.table_format import Cell, Column, Table, file_name, row, to_csv, to_latex, to_markdown, to_rich
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason, write_output
from opd_align.types import OpdAlignError

FILTER_DIVERGENCES = ("kl", "js")
"""Divergences by which the divergence filter selects nodes."""
MAX_QUESTIONS_IN_TERMINAL = 20
LABELS = {
    "mean_cosine": "alignment", "weighted_cosine": "SR-weighted alignment", "advantage": "teacher advantage",
    "depth_normalised": "depth (normalised)", "kl": "KL", "js": "JS", "l2": "L2", "cosine": "cosine(p, t)",
}  # fmt: skip
"""Display names of metrics and features."""


def question_table(questions: pa.Table) -> Table:
    """Pass rate, rollouts and paths of each question, and why a question was skipped.

    Args:
        questions: `Analysis.questions`, one row per question.
    """
    fields = ("pass_rate", "initial", "targeted", "correct_paths", "incorrect_paths", "nodes", "note")
    rows = [row(record["question"], *(record[field] for field in fields)) for record in questions.to_pylist()]
    columns = (
        Column("question"), Column("pass rate", "plain"), Column("initial rollouts", "count"),
        Column("targeted rollouts", "count"), Column("correct paths", "count"), Column("incorrect paths", "count"),
        Column("node rows", "count"), Column("note"),
    )  # fmt: skip
    return Table("questions", "Questions", columns, tuple(rows))


def ranking_table(slices: Slices, objective: str) -> Table:
    """Teachers by mean alignment, best first.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    ranks = slices.ranks(objective)
    columns = (
        Column("teacher"), Column("alignment", "signed"), Column("helpful", "share"), Column("harmful", "share"),
        Column("undecided", "share"), Column("noise ceiling", "plain"), Column("questions", "count"),
        Column("nodes", "count"),
    )  # fmt: skip
    rows = [
        row(
            rank.teacher, estimate_cell(rank.alignment), rank.helpful, rank.harmful, rank.undecided,
            rank.noise_ceiling.ceiling, rank.n_questions, rank.n_nodes,
        )
        for rank in ranks
    ]  # fmt: skip
    caption = (
        "±: 95% interval across questions; noise ceiling: highest correlation with the true alignment that this number "
        "of rollouts allows (split-half)"
    )
    two_children = [rank.two_children for rank in ranks if rank.n_nodes]
    if two_children:
        caption += f"; {max(two_children):.0%} of the nodes have two children, where alignment is exactly ±1"
    if len({rank.n_questions for rank in ranks if rank.n_nodes}) > 1:
        caption += "; not all teachers have the same questions: the verdict compares two teachers on those they share"
    title = f"Alignment with the ideal update by teacher ({objective})"
    return Table(f"ranking-{objective}", title, columns, tuple(rows), caption)


def alternative_table(slices: Slices, objective: str) -> Table:
    """The teachers of `ranking_table` by other measures, in the same order.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("teacher"), Column("share positive", "number"), Column("SR-weighted alignment", "signed"),
        Column("teacher advantage", "signed"),
    )  # fmt: skip
    rows = [
        row(
            rank.teacher, estimate_cell(rank.fraction_positive), estimate_cell(rank.weighted_cosine),
            estimate_cell(rank.advantage),
        )
        for rank in slices.ranks(objective)
    ]  # fmt: skip
    title = f"Alternative measures by teacher ({objective})"
    return Table(f"alternative-{objective}", title, columns, tuple(rows))


def contrast_table(slices: Slices, objective: str) -> Table:
    """Correct vs. incorrect paths, averaged over teachers.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("metric"), Column("correct", "signed"), Column("incorrect", "signed"), Column("Δ", "signed"),
        Column("p", "p"), Column("test"),
    )  # fmt: skip
    rows = [
        row(
            _label(contrast.metric), contrast.correct, contrast.incorrect, delta_cell(contrast),
            contrast.p_value, contrast.test,
        )
        for contrast in slices.contrasts(objective)
    ]  # fmt: skip
    title = f"Correct vs. incorrect rollouts, all teachers ({objective})"
    return Table(f"correct-incorrect-{objective}", title, columns, tuple(rows), DELTA_CAUTION)


def delta_table(slices: Slices, objective: str) -> Table:
    """Correct vs. incorrect paths for each teacher.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("teacher"), Column("metric"), Column("correct", "signed"), Column("incorrect", "signed"),
        Column("Δ", "signed"), Column("p", "p"), Column("questions with both", "count"),
    )  # fmt: skip
    rows = [
        row(
            contrast.teacher, _label(contrast.metric), contrast.correct, contrast.incorrect,
            delta_cell(contrast), contrast.p_value, contrast.n_pairs,
        )
        for teacher in slices.teachers(objective)
        for contrast in slices.contrasts(objective, teacher)
    ]  # fmt: skip
    title = f"Correct vs. incorrect rollouts by teacher ({objective})"
    return Table(f"teacher-delta-{objective}", title, columns, tuple(rows), DELTA_CAUTION, grouped=True)


def oracle_table(slices: Slices, objective: str) -> Table:
    """What selective distillation would gain if the alignment of every node were known.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("teacher"), Column("nodes selected"), Column("signal", "signed"),
        Column("cross-fitted signal", "signed"), Column("nodes kept", "share"), Column("paths improved", "share"),
    )  # fmt: skip
    rows = [
        row(
            teacher, "all" if oracle.threshold is None else f"alignment > {oracle.threshold:g}",
            estimate_cell(oracle.signal), estimate_cell(oracle.cross_fitted_signal), oracle.share_kept,
            oracle.share_beating,
        )
        for teacher in slices.teachers(objective)
        for oracle in metrics.selective_oracle(slices.rows(objective, teacher), objective=objective, teacher=teacher)
    ]  # fmt: skip
    caption = (
        "signal: SR range × alignment; cross-fitted: nodes selected on one half of the rollouts, signal evaluated on "
        "the other, not shrunk"
    )
    title = f"Selective distillation with an oracle ({objective})"
    return Table(f"oracle-{objective}", title, columns, tuple(rows), caption, grouped=True)


def filter_table(slices: Slices, objective: str) -> Table:
    """How much of the oracle's gain a divergence filter recovers.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("teacher"), Column("divergence"), Column("threshold", "plain"), Column("signal", "signed"),
        Column("nodes kept", "share"), Column("share of oracle gain", "share"),
    )  # fmt: skip
    rows = [
        row(
            teacher, _label(result.measure), result.threshold, estimate_cell(result.signal), result.share_kept,
            result.share_of_oracle_gain,
        )
        for teacher in slices.teachers(objective)
        for divergence in FILTER_DIVERGENCES
        for result in metrics.divergence_filter(
            slices.rows(objective, teacher), divergence, (FILTER_QUANTILE,), objective=objective, teacher=teacher
        )
    ]  # fmt: skip
    title = f"Divergence filter: only the most divergent nodes ({objective})"
    return Table(f"filter-{objective}", title, columns, tuple(rows), grouped=True)


def correlation_table(slices: Slices, objective: str) -> Table:
    """Within-path rank correlations of alignment with quantities that a single forward pass gives.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = Column("teacher"), Column("feature"), Column("Spearman ρ", "signed"), Column("paths", "count")
    rows = [
        row(
            correlation.teacher or "all",
            _label(correlation.feature),
            estimate_cell(correlation.rho),
            correlation.n_paths,
        )
        for correlation in slices.correlations(objective)
    ]
    title = f"Rank correlation with alignment within a path ({objective})"
    return Table(f"correlations-{objective}", title, columns, tuple(rows), grouped=True)


def reliability_table(slices: Slices, objective: str) -> Table:
    """How often alignments turn out positive, by the probability that half of the rollouts gives.

    Args:
        slices: The nodes of the analysis.
        objective: Name of the objective.
    """
    columns = (
        Column("probability from one half"), Column("mean", "number"), Column("positive in the other half", "number"),
        Column("mean from all rollouts", "number"), Column("nodes", "count"),
    )  # fmt: skip
    rows = [
        row(
            f"{each.low:.2f} to {each.high:.2f}", each.said, estimate_cell(each.other_half),
            estimate_cell(each.all_rollouts), each.nodes,
        )
        for each in reliability(slices.rows(objective), objective)
    ]  # fmt: skip
    caption = (
        "if the probabilities are right, all rollouts give the same mean as one half; closer to 0.5 means too sure, "
        "further from it too cautious"
    )
    return Table(f"reliability-{objective}", f"Reliability of p_positive ({objective})", columns, tuple(rows), caption)


OBJECTIVE_TABLES = (ranking_table, alternative_table)
"""Tables of every objective."""
TEACHER_TABLES = (contrast_table, delta_table, oracle_table, filter_table, correlation_table, reliability_table)
"""Tables of objectives that follow a teacher, after all `OBJECTIVE_TABLES`."""


def report_tables(analysis: Analysis, *, every_objective: bool = False, slices: Slices | None = None) -> list[Table]:
    """All tables of an analysis.

    Args:
        analysis: The analysis to show.
        every_objective: Make `TEACHER_TABLES` for every objective that follows a teacher, not only for the first.
        slices: The nodes of the analysis, if the caller already has them; None builds them.
    """
    slices = slices or Slices(analysis.nodes, n_analyzed=analysis.questions.num_rows)
    from_teacher, from_reward = objective_names(analysis)
    result = [question_table(analysis.questions), *decision_tables(slices.decision)]
    for objective in (*from_teacher, *from_reward):
        result += [make_table(slices, objective) for make_table in OBJECTIVE_TABLES]
    for objective in from_teacher if every_objective else from_teacher[:1]:
        result += [make_table(slices, objective) for make_table in TEACHER_TABLES]
    return result


def objective_names(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Names of the objectives that follow a teacher, and of those that follow the reward."""
    objectives = analysis.settings.objectives
    from_teacher = [objective.name for objective in objectives if objective.signal != "reward"]
    return from_teacher, [objective.name for objective in objectives if objective.signal == "reward"]


def main_tables(analysis: Analysis, slices: Slices) -> list[Table]:
    """The tables of a conclusion: candidates, ranking, correct against incorrect rollouts.

    With several objectives, the last two are those of the best candidate.

    Args:
        analysis: The analysis to show.
        slices: Its nodes.
    """
    from_teacher, from_reward = objective_names(analysis)
    best = slices.decision.best
    objective = best.objective if best is not None else (*from_teacher, *from_reward)[0]
    tables = [*decision_tables(slices.decision)[:1], ranking_table(slices, objective)]
    return [*tables, contrast_table(slices, objective)] if objective in from_teacher else tables


def all_tables(analysis: Analysis) -> RenderableType:
    """The tables of an analysis for the terminal; a long list of questions is cut."""
    questions, *others = report_tables(analysis)
    hidden = len(questions.rows) - MAX_QUESTIONS_IN_TERMINAL
    if hidden > 0:
        rows = questions.rows[:MAX_QUESTIONS_IN_TERMINAL]
        questions = Table(questions.name, questions.title, questions.columns, rows, f"… and {hidden} more")
    return console_group([questions, *others])


def console_group(tables: Iterable[Table]) -> RenderableType:
    """Tables for the terminal, one below the other."""
    return Group(*(renderable for table in tables for renderable in (to_rich(table), Text())))


def write_tables(analysis: Analysis, folder: PathLike) -> list[AnyPath]:
    """Writes the tables of all objectives as `tables.md`, `tables.tex` and one CSV file per table.

    Args:
        analysis: The analysis to show.
        folder: Where to write; created if missing.

    Returns:
        The files written.
    """
    return write_table_files(report_tables(analysis, every_objective=True), folder)


def write_table_files(tables: Sequence[Table], folder: PathLike) -> list[AnyPath]:
    """Writes the given tables as `tables.md`, `tables.tex` and one CSV file per table; returns the files."""
    target = as_path(folder)
    texts = {"tables.md": to_markdown(tables), "tables.tex": to_latex(tables)}
    texts |= {f"{file_name(table.name)}.csv": to_csv(table) for table in tables}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_output(target / name, text)
    except OSError as error:
        raise OpdAlignError(
            f"cannot write tables to {str(target)!r}: {error_reason(error)}; choose another folder"
        ) from error
    return [target / name for name in texts]


def compare(analyses: Mapping[str, Analysis]) -> list[Table]:
    """Tables that compare several analyses, e.g. the same run with two estimators, or several runs.

    Args:
        analyses: Run name → analysis. A teacher or objective that a run does not have is shown as unknown.
    """
    if not analyses:
        raise OpdAlignError("there is no run to compare; name two or more run directories")
    columns = (
        Column("run"), Column("estimator"), Column("allocation"), Column("questions", "count"),
        Column("node rows", "count"),
    )  # fmt: skip
    rows = [
        row(
            name, analysis.settings.estimator, analysis.settings.budget.allocation, analysis.questions.num_rows,
            analysis.nodes.num_rows,
        )
        for name, analysis in analyses.items()
    ]  # fmt: skip
    result = [Table("runs", "Runs", columns, tuple(rows))]
    slices = {run: Slices(analysis.nodes) for run, analysis in analyses.items()}
    objectives = dict.fromkeys(
        name for analysis in analyses.values() for names in objective_names(analysis) for name in names
    )
    for objective in objectives:
        runs = [run for run in analyses if objective in slices[run].objectives]
        if runs:
            ranks = {run: {rank.teacher: rank for rank in slices[run].ranks(objective)} for run in runs}
            result += [_compare_ranks(objective, list(analyses), ranks), _compare_deltas(objective, slices, ranks)]
    return result


_Ranks = Mapping[str, Mapping[str, metrics.TeacherRank]]


def _compare_ranks(objective: str, runs: Sequence[str], ranks: _Ranks) -> Table:
    columns = (Column("teacher"), Column("metric"), *(Column(run, "signed") for run in runs))
    rows = []
    for teacher in dict.fromkeys(name for by_teacher in ranks.values() for name in by_teacher):
        for metric in ("alignment", "weighted_cosine", "advantage"):
            rank_of_run = [ranks.get(run, {}).get(teacher) for run in runs]
            cells = [Cell(None) if rank is None else estimate_cell(getattr(rank, metric)) for rank in rank_of_run]
            rows.append(row(teacher, _label(metric), *cells))
    title = f"Teachers by run ({objective})"
    return Table(f"compare-ranking-{objective}", title, columns, tuple(rows), grouped=True)


def _compare_deltas(objective: str, slices: Mapping[str, Slices], ranks: _Ranks) -> Table:
    columns = (
        Column("teacher"), Column("run"), Column("correct", "signed"), Column("incorrect", "signed"),
        Column("Δ", "signed"), Column("p", "p"),
    )  # fmt: skip
    rows = []
    for teacher in dict.fromkeys(name for by_teacher in ranks.values() for name in by_teacher):
        for run in (run for run in ranks if teacher in ranks[run]):
            contrast = slices[run].contrasts(objective, teacher)[0]
            delta = delta_cell(contrast)
            rows.append(row(teacher, run, contrast.correct, contrast.incorrect, delta, contrast.p_value))
    title = f"Mean alignment on correct and incorrect rollouts by run ({objective})"
    return Table(f"compare-delta-{objective}", title, columns, tuple(rows), DELTA_CAUTION, grouped=True)


def estimate_cell(estimate: metrics.Estimate) -> Cell:
    """A mean and the half-width of its interval as a cell; no interval for fewer than four questions."""
    return Cell(estimate.mean, half_width_shown(estimate))


def _label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))
