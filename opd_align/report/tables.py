"""The paper's tables from a NodeTable, as rich text for the terminal.

Each function draws one table from records of `metrics`; numbers come in finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyarrow as pa
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opd_align import metrics
from opd_align.engine import Analysis
from opd_align.types import REWARD


def all_tables(analysis: Analysis) -> RenderableType:
    """Everything worth reading about an analysis, from the questions to the filters."""
    nodes = analysis.nodes
    objectives = [objective for objective in analysis.settings.objectives if objective.signal != "reward"]
    parts: list[RenderableType] = [question_table(analysis.questions)]
    for objective in objectives:
        ranks = metrics.teacher_ranking(nodes, objective.name)
        parts.append(ranking_table(ranks, objective.name))
    rewards = [objective for objective in analysis.settings.objectives if objective.signal == "reward"]
    for objective in rewards:
        parts.append(ranking_table(metrics.teacher_ranking(nodes, objective.name), objective.name))
    if objectives:
        main = objectives[0].name
        teachers = sorted({name for name in nodes["teacher"].to_pylist() if name != REWARD})
        contrasts = [contrast for name in teachers for contrast in _contrasts(nodes, main, name)]
        parts.append(contrast_table([*metrics.correct_vs_incorrect(nodes, main), *contrasts], main))
        parts.append(oracle_table([(name, _oracle(nodes, main, name)) for name in teachers], main))
        parts.append(filter_table([(name, _filters(nodes, main, name)) for name in teachers], main))
        parts.append(correlation_table(metrics.within_path_correlations(nodes, main), main))
    return Group(*_spaced(parts))


def question_table(questions: pa.Table) -> Table:
    """What became of each question, the first twenty of them."""
    table = _table("Questions", "question", "pass rate", "rollouts", "targeted", "paths + / −", "rows", "note")
    for row in questions.slice(0, 20).to_pylist():
        paths = f"{row['correct_paths']} / {row['incorrect_paths']}"
        table.add_row(
            row["question"], _plain(row["pass_rate"]), f"{row['initial']:,}", f"{row['targeted']:,}", paths,
            f"{row['nodes']:,}", row["note"],
        )  # fmt: skip
    if len(questions) > 20:
        table.caption = f"… and {len(questions) - 20} more"
    return table


def ranking_table(ranks: Sequence[metrics.TeacherRank], objective: str) -> Table:
    """Teachers, best first; ± is a 95 % interval across questions."""
    table = _table(
        f"Does following the teacher help? Alignment with the ideal update ({objective})",
        "teacher", "alignment", "positive", "SR-weighted", "advantage", "helps / harms / open", "ceiling",
        "nodes",
    )  # fmt: skip
    for rank in ranks:
        verdicts = f"{rank.helpful:.0%} / {rank.harmful:.0%} / {rank.undecided:.0%}" if rank.n_nodes else "–"
        table.add_row(
            rank.teacher, _estimate(rank.alignment), _estimate(rank.fraction_positive, sign=""),
            _estimate(rank.weighted_cosine), _estimate(rank.advantage), verdicts,
            _plain(rank.noise_ceiling.ceiling), f"{rank.n_nodes:,}",
        )  # fmt: skip
    pairs = [rank.two_children for rank in ranks if rank.n_nodes]
    table.caption = "ceiling: the largest correlation with the truth that this many rollouts allow (split halves)"
    if pairs:
        table.caption += f"; {max(pairs):.0%} of the nodes have two children, there alignment is ±1"
    return table


def contrast_table(contrasts: Iterable[metrics.Contrast], objective: str) -> Table:
    """Correct against incorrect paths."""
    table = _table(
        f"Correct against incorrect rollouts ({objective})",
        "teacher", "metric", "correct", "incorrect", "Δ", "p", "test",
    )  # fmt: skip
    for contrast in contrasts:
        delta = metrics.Estimate(contrast.delta, contrast.half_width, contrast.n_pairs)
        table.add_row(
            contrast.teacher or "all", contrast.metric.replace("_", " "), _number(contrast.correct),
            _number(contrast.incorrect), _estimate(delta), _p_value(contrast.p_value), contrast.test,
        )  # fmt: skip
    return table


def oracle_table(rows: Iterable[tuple[str, Sequence[metrics.OracleRow]]], objective: str) -> Table:
    """What selective distillation could gain if alignment were known."""
    table = _table(
        f"Selective distillation, with hindsight ({objective})",
        "teacher", "keep", "signal", "cross-fitted", "nodes kept", "paths that gain",
    )  # fmt: skip
    for teacher, oracle in rows:
        for row in oracle:
            keep = "all" if row.threshold is None else f"alignment > {row.threshold:g}"
            gaining = "–" if row.threshold is None else _share(row.share_beating)
            table.add_row(
                teacher,
                keep,
                _estimate(row.signal),
                _estimate(row.cross_fitted_signal),
                _share(row.share_kept),
                gaining,
            )
            teacher = ""
    table.caption = (
        "signal: SR range × alignment; cross-fitted: chosen on one half of the rollouts, valued on the other"
    )
    return table


def filter_table(rows: Iterable[tuple[str, Sequence[metrics.FilterRow]]], objective: str) -> Table:
    """What a filter by divergence recovers of that."""
    table = _table(
        f"Divergence as a filter ({objective})",
        "teacher", "keep the most divergent by", "threshold", "signal", "nodes kept", "of the oracle's gain",
    )  # fmt: skip
    for teacher, filters in rows:
        for row in filters:
            table.add_row(
                teacher, row.measure, _plain(row.threshold), _estimate(row.signal), _share(row.share_kept),
                _share(row.share_of_oracle_gain),
            )  # fmt: skip
            teacher = ""
    return table


def correlation_table(correlations: Iterable[metrics.Correlation], objective: str) -> Table:
    """Within-path rank correlations of alignment with what a single forward pass shows."""
    table = _table(
        f"What goes along with alignment within a path ({objective})", "feature", "teacher", "Spearman ρ", "paths"
    )
    for row in correlations:
        table.add_row(row.feature.replace("_", " "), row.teacher or "all", _estimate(row.rho), f"{row.n_paths:,}")
    return table


def _contrasts(nodes: pa.Table, objective: str, teacher: str) -> list[metrics.Contrast]:
    found = metrics.correct_vs_incorrect(nodes, objective, teacher=teacher)
    return [contrast for contrast in found if contrast.metric == "mean_cosine"]


def _oracle(nodes: pa.Table, objective: str, teacher: str) -> list[metrics.OracleRow]:
    return metrics.selective_oracle(nodes, objective=objective, teacher=teacher)


def _filters(nodes: pa.Table, objective: str, teacher: str) -> list[metrics.FilterRow]:
    return [
        row
        for measure in ("kl", "js")
        for row in metrics.divergence_filter(nodes, measure, (0.5,), objective=objective, teacher=teacher)
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=Text(title, style="bold"), title_justify="left", caption_justify="left", box=None, pad_edge=False
    )
    for index, column in enumerate(columns):
        left = index == 0 or column in ("note", "test", "metric")
        table.add_column(column, justify="left" if left else "right", no_wrap=index == 0, overflow="fold")
    return table


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    return [piece for part in parts for piece in (part, Text())]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.3f}"


def _plain(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _estimate(estimate: metrics.Estimate, sign: str = "+") -> str:
    if math.isnan(estimate.mean):
        return "–"
    spread = "" if math.isnan(estimate.half_width) else f" ± {estimate.half_width:.3f}"
    return f"{estimate.mean:{sign}.3f}{spread}"


def _p_value(p: float) -> str:
    return "–" if math.isnan(p) else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"
