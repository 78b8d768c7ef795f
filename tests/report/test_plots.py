"""Charts show the numbers of the metrics; data frames have the rows of the tables; notebooks see escaped text."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.html_elements import Elements

from opd_align import metrics
from opd_align.core.engine import Analysis
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.report.plots import prediction_scatter
from opd_align.types import OpdAlignError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _made import made_analysis

HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return made_analysis(5, length=40, objectives=(ReverseKL(), DrGRPO()))


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    yield
    plt.close("all")


def points(ax: Any) -> list[tuple[float, float]]:
    return [tuple(xy) for line in ax.lines if line.get_marker() == "o" for xy in line.get_xydata().tolist()]


def test_the_ranking_has_every_teacher_best_on_top(analysis):
    ax = analysis.plot.ranking()
    ranks = metrics.teacher_ranking(analysis.nodes, "reverse_kl")
    assert len(ranks) > 1
    assert [label.get_text() for label in ax.get_yticklabels()][::-1] == [rank.teacher for rank in ranks]
    assert [x for x, _ in sorted(points(ax), key=lambda xy: -xy[1])] == pytest.approx([r.alignment.mean for r in ranks])
    ax.figure.draw_without_rendering()


def test_correct_and_incorrect_are_those_of_the_metrics(analysis):
    ax = analysis.plot.correct_vs_incorrect()
    teachers = [label.get_text() for label in ax.get_yticklabels()]
    sides = {each.get_label(): each.get_offsets()[:, 0].tolist() for each in ax.collections}
    for at, teacher in enumerate(teachers):
        contrast = metrics.correct_vs_incorrect(analysis.nodes, "reverse_kl", teacher=teacher)[0]
        assert sides["correct rollouts"][at] == pytest.approx(contrast.correct)
        assert sides["incorrect rollouts"][at] == pytest.approx(contrast.incorrect)


def test_a_path_shows_its_nodes(analysis):
    rows = analysis.to_pandas()
    question, path, teacher = rows.iloc[0][["question", "path", "teacher"]]
    ax = analysis.plot.path(question, int(path), teacher=teacher)
    own = rows[(rows.question == question) & (rows.path == path) & (rows.teacher == teacher)]
    own = own[own.objective == "reverse_kl"]
    dots = [np.asarray(each.get_offsets()) for each in ax.collections if each.get_label() in set(own.verdict)]
    drawn = np.concatenate(dots)
    assert drawn[np.argsort(drawn[:, 0])] == pytest.approx(own.sort_values("depth")[["depth", "alignment"]].to_numpy())
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(own.sort_values("depth").sr_range.tolist())


def test_the_histogram_counts_all_decisions(analysis):
    teacher = metrics.teacher_ranking(analysis.nodes, "reverse_kl")[0].teacher
    for name in (None, teacher):
        expected = metrics.alignment_histogram(analysis.nodes, objective="reverse_kl", teacher=name).counts
        ax = analysis.plot.histogram(name)
        assert [bar.get_height() for bar in ax.patches] == list(expected)


def test_charts_of_a_reward_objective(analysis):
    assert [label.get_text() for label in analysis.plot.ranking("dr_grpo").get_yticklabels()] == ["reward update"]
    assert analysis.plot.correct_vs_incorrect("dr_grpo").collections


@pytest.mark.parametrize("form", ["dict", "arrow", "pandas"])
def test_the_scatter_takes_any_table(form):
    import matplotlib.pyplot as plt

    table: Any = {"teacher": ["a", "$b", "c"], "alignment": [0.1, 0.2, 0.4], "gain": [1.0, 3.0, 2.0]}
    if form != "dict":
        table = pa.table(table)
    if form == "pandas":
        table = table.to_pandas()
    _, own = plt.subplots()
    ax = prediction_scatter(table, ax=own)
    assert ax is own
    assert "Spearman +0.50" in ax.get_title(loc="left")
    assert points(ax) == [(0.1, 1.0), (0.2, 3.0), (0.4, 2.0)]
    ax.figure.draw_without_rendering()  # a name with a dollar sign is not a formula


def test_unknown_names_are_answered_with_those_that_exist(analysis):
    with pytest.raises(OpdAlignError, match="no objective 'jsd'; available: reverse_kl, dr_grpo"):
        analysis.plot.ranking("jsd")
    with pytest.raises(OpdAlignError, match="no teacher 'nobody'"):
        analysis.plot.path(teacher="nobody")
    with pytest.raises(OpdAlignError, match="path 99"):
        analysis.plot.path(path=99)
    with pytest.raises(OpdAlignError, match="no column 'gain'"):
        prediction_scatter({"alignment": [1.0]})
    with pytest.raises(OpdAlignError, match="choose one of nodes, children, questions"):
        analysis.to_pandas("rollouts")


@pytest.mark.parametrize(("package", "hint"), [("matplotlib", r"opd-align\[plot\]"), ("pandas", "pip install pandas")])
def test_a_missing_package_is_named(analysis, monkeypatch, package, hint):
    original = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OpdAlignError, match=hint):
        analysis.plot.ranking() if package == "matplotlib" else analysis.to_pandas()


def test_data_frames_have_the_rows_and_the_texts(analysis):
    for name in ("nodes", "children", "questions"):
        assert len(analysis.to_pandas(name)) == getattr(analysis, name).num_rows
    with_texts = replace(analysis, texts={token: f"<{token}>" for token in range(1000)})
    nodes = with_texts.to_pandas()
    assert (nodes["token_text"] == "<" + nodes["token"].astype(str) + ">").all()


def test_a_notebook_shows_the_recommendation_and_escapes_names(analysis):
    ranks = metrics.teacher_ranking(analysis.nodes, "reverse_kl")
    column = [HOSTILE if name == ranks[0].teacher else name for name in analysis.nodes["teacher"].to_pylist()]
    at = analysis.nodes.column_names.index("teacher")
    hostile = replace(analysis, nodes=analysis.nodes.set_column(at, "teacher", pa.array(column)))
    for made in (analysis, hostile):
        page = made._repr_html_()
        assert "<script" not in page
        assert len(page) < 6000
        assert "Alignment with the ideal update by teacher (reverse_kl)" in page
        assert "dr_grpo" in page
        assert [tag for tag, _ in Elements(page).tags].count("table") == 2
    assert "&lt;script&gt;" in hostile._repr_html_()


def test_the_repr_is_one_short_line(analysis):
    assert repr(analysis).startswith("Analysis(5 questions, ")
    assert len(repr(analysis)) < 80


def test_an_analysis_without_nodes_is_shown(analysis):
    empty = replace(analysis, nodes=analysis.nodes.slice(0, 0))
    assert "nothing to compare" in empty._repr_html_()
    with pytest.raises(OpdAlignError, match="nothing to draw"):
        empty.plot.ranking()
