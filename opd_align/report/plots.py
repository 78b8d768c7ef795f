"""Charts of an analysis with matplotlib, for notebooks and papers.

Every function draws on one pair of axes and returns them; pass `ax` to draw on your own. Numbers are those of
`core.metrics` and of the tables of the analysis. matplotlib is imported when a chart is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.core.engine import Analysis
from opd_align.report.prose import half_width_shown
from opd_align.report.slices import Slices
from opd_align.report.tables import objective_names
from opd_align.types import REWARD, OpdAlignError

HELP, HARM, OPEN = "#1f6fb5", "#c8660a", "#8d929a"
"""Colours of the report: toward success, away from it, undecided."""
COLOUR = {"helpful": HELP, "harmful": HARM, "undecided": OPEN}


class AnalysisPlots:
    """The charts of one analysis.

    Args:
        analysis: The analysis to show.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._slices = Slices(analysis.nodes, n_analyzed=analysis.questions.num_rows)

    def ranking(self, objective: str | None = None, *, ax: Any = None) -> Any:
        """Mean alignment of every teacher with its 95% interval across questions, best on top.

        Args:
            objective: Name of the objective. `None`: the first one.
            ax: Axes to draw on. `None`: new ones.
        """
        name = self._objective(objective)
        ranks = [rank for rank in self._slices.ranks(name) if rank.n_nodes][::-1]
        _require(ranks, f"objective {name!r}")
        ax = _axes(ax, height=0.9 + 0.45 * len(ranks))
        for at, rank in enumerate(ranks):
            half_width, mean = half_width_shown(rank.alignment), rank.alignment.mean
            decided = half_width is not None and abs(mean) > half_width
            colour = OPEN if not decided else HELP if mean > 0 else HARM
            ax.errorbar(mean, at, xerr=half_width, fmt="o", color=colour, capsize=3)
        ax.set_yticks(range(len(ranks)), [_label(rank.teacher) for rank in ranks])
        ax.set_ylim(-0.6, len(ranks) - 0.4)
        return _alignment_axis(ax, f"Alignment by teacher ({name})", "alignment, mean and 95% interval")

    def correct_vs_incorrect(self, objective: str | None = None, *, ax: Any = None) -> Any:
        """Mean alignment on correct and on incorrect rollouts, a line per teacher.

        Args:
            objective: Name of the objective. `None`: the first one.
            ax: Axes to draw on. `None`: new ones.
        """
        name = self._objective(objective)
        teachers: list[str | None] = [*self._slices.teachers(name)] or [None]
        found = [(teacher, self._slices.contrasts(name, teacher)[0]) for teacher in teachers]
        known = [(teacher, one) for teacher, one in found if isfinite(one.correct) and isfinite(one.incorrect)][::-1]
        _require(known, f"correct and incorrect rollouts with objective {name!r}")
        ax = _axes(ax, height=1.2 + 0.45 * len(known))
        for at, (_, contrast) in enumerate(known):
            ax.plot([contrast.incorrect, contrast.correct], [at, at], color=OPEN, zorder=1)
        for label, colour, values in (
            ("correct rollouts", HELP, [contrast.correct for _, contrast in known]),
            ("incorrect rollouts", HARM, [contrast.incorrect for _, contrast in known]),
        ):
            ax.scatter(values, range(len(known)), color=colour, label=label, zorder=2)
        ax.set_yticks(range(len(known)), [_label(teacher or REWARD) for teacher, _ in known])
        ax.set_ylim(-0.6, len(known) - 0.4)
        ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
        return _alignment_axis(ax, "", f"mean alignment ({name})")

    def path(
        self,
        question: str | None = None,
        path: int = 0,
        *,
        teacher: str | None = None,
        objective: str | None = None,
        ax: Any = None,
    ) -> Any:
        """Alignment along one path with its 90% intervals, coloured by verdict; the area is the SR range.

        Args:
            question: Id of the question. `None`: the first one with a path.
            path: Index of the path within its question.
            teacher: Name of the teacher. `None`: the first one in the ranking.
            objective: Name of the objective. `None`: the first one.
            ax: Axes to draw on. `None`: new ones.
        """
        name = self._objective(objective)
        ranks = self._slices.ranks(name)
        _require(ranks, f"objective {name!r}")
        teacher = _known("teacher", teacher or ranks[0].teacher, [rank.teacher for rank in ranks])
        rows = self._slices.rows(name, teacher)
        questions = rows["question"].unique().to_pylist()
        question = _known("question", question or questions[0], questions)
        rows = rows.filter(pc.and_(pc.equal(rows["question"], question), pc.equal(rows["path"], path)))
        _require(rows.num_rows, f"path {path} of question {question!r}")
        rows = rows.sort_by("depth")
        depth, alignment, low, high, sr_range = (
            np.asarray(rows[column].to_numpy(), float)
            for column in ("depth", "alignment", "alignment_low", "alignment_high", "sr_range")
        )
        verdict = np.array(rows["verdict"].to_pylist(), object)
        ax = _axes(ax, width=8, height=3)
        ax.bar(depth, sr_range, width=1, color=OPEN, alpha=0.25, label="SR range")
        for kind, colour in COLOUR.items():
            own = verdict == kind
            if own.any():
                ax.vlines(depth[own], low[own], high[own], color=colour, alpha=0.4, linewidth=2)
                ax.scatter(depth[own], alignment[own], color=colour, s=18, label=kind, zorder=3)
        outcome = "correct" if rows["path_correct"][0].as_py() else "incorrect"
        ax.axhline(0, color="0.6", linewidth=0.8)
        ax.set(xlabel="token", ylabel=f"alignment ({name})", ylim=(-1.08, 1.08))
        ax.set_xlim(-1, rows["path_length"][0].as_py())
        ax.set_title(f"{_plain(question)}, path {path} ({outcome}), {_label(teacher)}", loc="left", fontsize="medium")
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        return ax

    def histogram(
        self, teacher: str | None = None, objective: str | None = None, *, bins: int = 40, ax: Any = None
    ) -> Any:
        """How many decisions have which alignment.

        Args:
            teacher: Name of the teacher. `None`: all teachers.
            objective: Name of the objective. `None`: the first one.
            bins: Number of bins over [-1, 1].
            ax: Axes to draw on. `None`: new ones.
        """
        name = self._objective(objective)
        made = metrics.alignment_histogram(self._analysis.nodes, bins, objective=name, teacher=teacher)
        _require(sum(made.counts), f"objective {name!r}")
        edges = np.array(made.edges)
        centre = (edges[1:] + edges[:-1]) / 2
        ax = _axes(ax, height=2.6)
        ax.bar(centre, made.counts, width=np.diff(edges), color=np.where(centre < 0, HARM, HELP))
        ax.set_ylabel("decisions")
        who = "all teachers" if teacher is None else _label(teacher)
        return _alignment_axis(ax, f"{who} ({name}): mean {made.mean:+.2f}", "alignment", zero=False)

    def _objective(self, objective: str | None) -> str:
        names = [name for listed in objective_names(self._analysis) for name in listed]
        return _known("objective", objective or names[0], names)


def prediction_scatter(
    table: Any, *, x: str = "alignment", y: str = "gain", label: str = "teacher", ax: Any = None
) -> Any:
    """What was measured before training against what training gained, a point per row, with both correlations.

    Args:
        table: Columns by name: a pyarrow table, a pandas data frame, or a mapping of sequences. Columns named
            `<x>_half_width` and `<y>_half_width` are drawn as error bars if they exist.
        x: Column of the prediction.
        y: Column of the gain.
        label: Column with the name of each point; points are not named if it does not exist.
        ax: Axes to draw on. `None`: new ones.
    """
    from scipy import stats

    columns: Mapping[str, Sequence[Any]] = table.to_pydict() if hasattr(table, "to_pydict") else table
    for name in (x, y):
        if name not in columns:
            listed = ", ".join(map(str, columns))
            raise OpdAlignError(f"the table has no column {name!r}; available: {listed}")
    values = {name: np.asarray(columns[name], float) for name in (x, y)}
    known = np.isfinite(values[x]) & np.isfinite(values[y])
    _require(known.sum() >= 2, "two rows with both values")
    errors = [
        np.asarray(columns[f"{name}_half_width"], float)[known] if f"{name}_half_width" in columns else None
        for name in (x, y)
    ]
    at_x, at_y = values[x][known], values[y][known]
    ax = _axes(ax, width=4.5, height=4)
    ax.errorbar(at_x, at_y, xerr=errors[0], yerr=errors[1], fmt="o", color=HELP, ecolor=OPEN, capsize=2)
    if label in columns:
        names = np.asarray(columns[label], object)[known]
        for name, one, other in zip(names, at_x, at_y, strict=True):
            ax.annotate(_plain(str(name)), (one, other), xytext=(4, 4), textcoords="offset points", fontsize="small")
    title = f"{known.sum()} points"
    if known.sum() >= 3 and np.ptp(at_x) > 0 and np.ptp(at_y) > 0:
        title += f", Spearman {stats.spearmanr(at_x, at_y)[0]:+.2f}, Pearson {stats.pearsonr(at_x, at_y)[0]:+.2f}"
    ax.margins(0.12)
    ax.axhline(0, color="0.6", linewidth=0.8, zorder=0)
    ax.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlabel=_plain(x.replace("_", " ")), ylabel=_plain(y.replace("_", " ")))
    ax.set_title(title, loc="left", fontsize="medium")
    return ax


def _axes(ax: Any, *, width: float = 6, height: float) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise OpdAlignError("charts need matplotlib: pip install 'opd-align[plot]'") from None
    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return ax


def _alignment_axis(ax: Any, title: str, label: str, *, zero: bool = True) -> Any:
    if zero:
        ax.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    ax.set(xlim=(-1.05, 1.05), xlabel=label)
    ax.set_title(title, loc="left", fontsize="medium")
    return ax


def _known(kind: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise OpdAlignError(f"there is no {kind} {name!r}; available: {', '.join(names)}")
    return name


def _require(found: Any, what: str) -> None:
    if not found:
        raise OpdAlignError(f"nothing to draw: the analysis has no decisions for {what}")


def _label(teacher: str) -> str:
    return "reward update" if teacher == REWARD else _plain(teacher)


def _plain(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
