"""The metric registry: one key per metric, the values of `core.metrics`, and every consumer reads it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.logged import logged_metrics

from opd_align import Budget, DrGRPO, ExactFamily, ForwardKL, ReverseKL, Rules, Settings, analyze, metrics
from opd_align.core import metric_registry
from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import (
    HEADLINE,
    METRICS,
    TEACHER_METRICS,
    for_trackers,
    headline_first,
    metrics_markdown,
    parse_key,
    recorded_metrics,
    summary,
)
from opd_align.core.metric_schema import CHARTS, Chart, Metric
from opd_align.report import dashboard_state


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(seed=3, n=4, length=40)


def analysis_of(family: ExactFamily, teachers: list[str], *objectives: Any) -> Analysis:
    teacher_of = {"good": lambda world: world.tilted_teacher(), "org/bad": lambda world: world.adversarial_teacher()}
    budget = Budget(initial=64, targeted=600, allocation="adaptive")
    given = [family.teacher(name, teacher_of[name]) for name in teachers]
    return analyze(family, given, family.questions, family, settings=Settings(objectives, budget))


@pytest.fixture(scope="module")
def analysis(family: ExactFamily) -> Analysis:
    return analysis_of(family, ["good", "org/bad"], ReverseKL(), ForwardKL(), DrGRPO())


# -- the registry itself ----------------------------------------------------------------------------------------------


def test_every_metric_is_documented_and_has_its_own_key() -> None:
    keys = [metric.key() for metric in METRICS]
    assert len(set(keys)) == len(keys) > 50
    for metric in METRICS:
        assert re.fullmatch(r"[`A-Z1p-].*\.", metric.meaning), metric.stem
        low, high = metric.range
        assert low < high


def test_keys_are_parsed_from_the_right() -> None:
    for teacher in ("Self-1C", "Qwen/Qwen3-8B", "student", "a/alignment/mean", "gate"):
        for metric in TEACHER_METRICS:
            assert parse_key(metric.key(teacher, "reverse_kl")) == (metric, f"{teacher}/reverse_kl")
    for metric in METRICS:
        if metric.level == "mix":
            assert parse_key(metric.key("Qwen/Qwen3-8B", "hard")) == (metric, "Qwen/Qwen3-8B/hard")
        elif metric.level != "teacher":
            assert parse_key(metric.key()) == (metric, None)
    for unknown in (
        "opd_align/alignment/mean",
        "opd_align/T/alignment/mean",
        "opd_align/T/gkd/alignment/median",
        "loss",
    ):
        assert parse_key(unknown) is None
    assert parse_key("other/T/gkd/alignment/mean") is None


def test_no_stem_is_the_end_of_another() -> None:
    stems = [metric.stem for metric in TEACHER_METRICS]
    assert not [(one, other) for one in stems for other in stems if one.endswith(f"/{other}")]
    fixed = [metric.key() for metric in METRICS if metric.level in ("student", "evaluation")]
    assert not [(key, stem) for key in fixed for stem in stems if key.endswith(f"/{stem}") and key.count("/") > 2]


def test_charts_and_half_widths_refer_to_what_exists() -> None:
    titles = [chart.title for chart in CHARTS]
    assert len(set(titles)) == len(titles)
    assert {title for metric in METRICS for title in metric.charts} == set(titles)
    stems = {(metric.level, metric.stem) for metric in METRICS}
    assert {(metric.level, metric.half_width) for metric in METRICS if metric.half_width} <= stems
    for title in titles:
        shown = [metric for metric in METRICS if title in metric.charts]
        assert len({metric.level in ("teacher", "gate") and metric.level for metric in shown}) == 1
        assert all(metric.logged for metric in shown), "a chart can only show what is logged"
        assert len(shown) == 1 or all(metric.charts[title] for metric in shown), "several lines need labels"


def test_every_estimate_that_is_charted_has_an_interval() -> None:
    """Without one are counts, a probability, and shares and thresholds of the nodes themselves."""
    charted = [metric for metric in METRICS if metric.charts and metric.level in ("teacher", "student")]
    without = {metric.stem for metric in charted if metric.half_width is None and metric.ends is None}
    assert without == {
        "alarm/p_helps",
        "alignment/decided", "alignment/noise_ceiling", "oracle/kept", "filter/kept", "filter/threshold",
        "filter/oracle_share", "questions", "nodes", "rollouts", "truncated", "unknown",
    }  # fmt: skip
    assert len(charted) - len(without) > 20


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_are_those_of_core_metrics(family: ExactFamily) -> None:
    analysis = analysis_of(family, ["good"], ReverseKL())
    values = logged_metrics(analysis)
    (rank,) = metrics.teacher_ranking(analysis.nodes)
    (row,) = metrics.divergence_filter(analysis.nodes, "kl", (0.5,))
    full, oracle = metrics.selective_oracle(analysis.nodes, (0.0,))
    contrast = metrics.correct_vs_incorrect(analysis.nodes)[0]
    correlations = {row.feature: row.rho.mean for row in metrics.within_path_correlations(analysis.nodes)}
    expected = {
        "alignment/mean": rank.alignment.mean,
        "alignment/half_width": rank.alignment.half_width,
        "alignment/weighted": rank.weighted_cosine.mean,
        "alignment/correct": contrast.correct,
        "alignment/decided": rank.helpful + rank.harmful,
        "advantage/mean": rank.advantage.mean,
        "oracle/full_signal": full.signal.mean,
        "oracle/gain": oracle.gain.mean,
        "oracle/cross_fitted_signal": oracle.cross_fitted_signal.mean,
        "filter/threshold": row.threshold,
        "spearman/kl": correlations["kl"],
    }
    assert {stem: values[f"opd_align/good/reverse_kl/{stem}"] for stem in expected} == expected
    assert values["opd_align/student/nodes"] == analysis.nodes.num_rows
    assert values["opd_align/student/rollouts"] == sum(
        analysis.questions[name].to_numpy().sum() for name in ("initial", "targeted")
    )


def test_values_are_within_their_range(analysis: Analysis) -> None:
    checked = 0
    for key, value in summary(analysis).items():
        parsed = parse_key(key)
        assert parsed is not None
        low, high = parsed.metric.range
        assert value is None or low - 1e-9 <= value <= high + 1e-9, key
        checked += value is not None
    assert checked > 100


def test_keys_have_one_shape_for_any_number_of_teachers_and_objectives(family: ExactFamily, analysis: Analysis) -> None:
    one, several = logged_metrics(analysis_of(family, ["good"], ReverseKL())), logged_metrics(analysis)
    assert one.keys() < several.keys()
    found = {key.removesuffix("/alignment/mean") for key in several if key.endswith("/alignment/mean")}
    assert found == {
        "opd_align/good/reverse_kl", "opd_align/good/forward_kl", "opd_align/org/bad/reverse_kl",
        "opd_align/org/bad/forward_kl", "opd_align/reward/dr_grpo",
    }  # fmt: skip
    assert several["opd_align/good/reverse_kl/alignment/mean"] > several["opd_align/org/bad/reverse_kl/alignment/mean"]


def test_metrics_of_a_teacher_are_absent_for_rewards(analysis: Analysis) -> None:
    keys = [key for key in summary(analysis) if key.startswith("opd_align/reward/dr_grpo/")]
    stems = {key.removeprefix("opd_align/reward/dr_grpo/") for key in keys}
    expected = [metric for metric in TEACHER_METRICS if metric.compute and not metric.needs_gate]
    assert stems == {metric.stem for metric in expected if not metric.needs_teacher}


def test_exactly_the_registered_metrics_are_produced(analysis: Analysis) -> None:
    """What the callback and gates log is checked in tests/training/test_logged_keys.py."""
    for produced, places in ((summary(analysis), "summary.json"), (logged_metrics(analysis), "log")):
        known = {found.metric.key() for key in produced if (found := parse_key(key)) is not None}
        assert all(parse_key(key) is not None for key in produced)
        expected = [metric for metric in METRICS if metric.compute and places in metric.shown_in]
        assert known == {metric.key() for metric in expected if not metric.needs_gate}


def test_unknown_values_are_nan_in_the_log_and_null_in_the_summary(family: ExactFamily) -> None:
    teachers = [family.teacher("good", lambda world: world.tilted_teacher())]
    budget = Budget(initial=60, targeted=600, allocation="adaptive")
    one = analyze(family, teachers, family.questions[:1], family, settings=Settings(budget=budget))
    values, written = logged_metrics(one), summary(one)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert isfinite(values["opd_align/good/reverse_kl/alignment/mean"])
    interval = "opd_align/good/reverse_kl/alignment/half_width"  # a single question has no interval
    assert isnan(values[interval])
    assert written[interval] is None


def test_a_teacher_without_nodes_has_no_metrics(family: ExactFamily) -> None:
    teachers = [family.teacher("good", lambda world: world.tilted_teacher())]
    # With this threshold each node has one token.
    settings = Settings(budget=Budget(initial=1, targeted=0), rules=Rules(tau=0.99))
    none = analyze(family, teachers, family.questions[:1], family, settings=settings)
    assert none.nodes.num_rows == 0
    for values in (logged_metrics(none), summary(none)):
        assert values["opd_align/student/nodes"] == 0
        assert {key.split("/")[1] for key in values} == {"student"}


def test_the_history_has_all_intervals_and_trackers_only_what_is_logged(analysis: Analysis) -> None:
    recorded, logged = recorded_metrics(analysis), logged_metrics(analysis)
    assert {key: recorded[key] for key in logged} == pytest.approx(logged, nan_ok=True)
    half_widths = {key for key in recorded if key not in logged}
    stem = "opd_align/good/reverse_kl/alignment/correct"
    assert stem in logged
    assert f"{stem}_half_width" in half_widths
    assert all(key.endswith("half_width") for key in half_widths)
    assert for_trackers(recorded) == {key: value for key, value in logged.items() if isfinite(value)}
    assert for_trackers({"loss": 1.0, "text": "x", "nan": float("nan"), "none": None}) == {"loss": 1.0}


def test_intervals_of_outcomes_and_pass_rate_are_those_over_questions(analysis: Analysis) -> None:
    values = recorded_metrics(analysis)
    rates = analysis.questions["pass_rate"].to_numpy()
    assert len(rates) == 4
    half = stats.t.ppf(0.975, 3) * rates.std(ddof=1) / 2
    expected = min(half, max(rates.mean(), 1 - rates.mean()))
    assert values["opd_align/student/pass_rate_half_width"] == pytest.approx(expected)
    contrast = metrics.correct_vs_incorrect(analysis.nodes, "reverse_kl", teacher="good")[0]
    for side in ("correct", "incorrect"):
        estimate = getattr(contrast, f"{side}_interval")
        assert estimate.mean == pytest.approx(getattr(contrast, side))
        assert estimate.half_width > 0


def test_headline_metrics_come_first(analysis: Analysis) -> None:
    assert [metric.stem for metric in METRICS[:4]] == list(HEADLINE)
    keys = list(logged_metrics(analysis))
    # Four pairs of teacher and objective, a reward objective without overlap, and one pass rate.
    assert [parse_key(key).metric.stem for key in keys[:15]] == [  # type: ignore[union-attr]
        *["alignment/mean"] * 5, *["alignment/weighted"] * 5, *["overlap_ratio"] * 4, "pass_rate",
    ]  # fmt: skip
    values = {"loss": 1.0, "gate/loss": 2.0, "opd_align/student/pass_rate": 0.5}
    assert list(headline_first(values)) == ["opd_align/student/pass_rate", "loss", "gate/loss"]
    page = metrics_markdown()
    assert page.index("## What to watch") < page.index("opd_align/student/pass_rate") < page.index("## Per teacher")


def test_fewer_than_four_questions_have_no_interval(family: ExactFamily) -> None:
    teachers = [family.teacher("good", lambda world: world.tilted_teacher())]
    settings = Settings(budget=Budget(initial=60, targeted=300, allocation="adaptive"))
    key = "opd_align/good/reverse_kl/alignment/half_width"
    for n, known in ((3, False), (4, True)):
        some = analyze(family, teachers, family.questions[:n], family, settings=settings)
        assert some.nodes["question"].unique().to_pylist() == [question.id for question in family.questions[:n]]
        assert isfinite(logged_metrics(some)[key]) == known


def test_an_interval_is_never_wider_than_the_scale(monkeypatch: pytest.MonkeyPatch, analysis: Analysis) -> None:
    monkeypatch.setattr(metrics, "interval", lambda value_Q, bounds=None: metrics.Estimate(0.41, 4.23, 4))
    values = logged_metrics(analysis)
    assert values["opd_align/good/reverse_kl/alignment/half_width"] == 1.41, "from −1 to 1.82, cut at 1"


# -- adding a metric --------------------------------------------------------------------------------------------------


def test_one_record_adds_a_metric_everywhere(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding a metric changes one file: a `Metric` (and a `Chart` for a chart of its own) in metric_registry.py."""
    added = Metric(
        "teacher", "alignment/median", "Median alignment.", "cosine", "higher",
        lambda records: float(np.nanmedian(records.rows["alignment"].to_numpy())),
        charts={"Median alignment": ""}, column="median",
    )  # fmt: skip
    chart = Chart("Median alignment", "alignment")
    for module in (metric_registry, dashboard_state):
        monkeypatch.setattr(module, "METRICS", (*METRICS, added))
    monkeypatch.setattr(dashboard_state, "CHARTS", (*CHARTS, chart))
    monkeypatch.setitem(metric_registry._TEACHER_STEMS, added.stem, added)
    key = "opd_align/good/reverse_kl/alignment/median"
    assert -1 <= logged_metrics(analysis)[key] == summary(analysis)[key] <= 1
    assert parse_key(key) == (added, "good/reverse_kl")
    assert "| `opd_align/<teacher>/<objective>/alignment/median` | Median alignment. |" in metrics_markdown()
    assert dashboard_state.charts()[-1]["lines"] == [
        {"key": "alignment/median", "label": "", "half_width": None, "ends": None}
    ]
    assert "median" in [column["title"] for column in dashboard_state.columns()]


def test_the_markdown_page_lists_every_metric() -> None:
    lines = [line for line in metrics_markdown().splitlines() if line.startswith("| `")]
    assert len(lines) == len(METRICS)
    assert {line.count("|") for line in lines} == {7}
    for metric, line in zip(METRICS, lines, strict=True):
        assert line.startswith(f"| `{metric.key()}` | {metric.meaning} |")
    assert "| −1 to 1 | higher | summary.json, log, dashboard: Alignment, " in lines[0]
    unbounded = replace(METRICS[0], bounds=(-inf, inf))
    assert metric_registry._range_text(unbounded) == "any"


def test_the_wandb_example_names_only_registered_metrics() -> None:
    text = (Path(__file__).parents[2] / "examples" / "wandb_workspace.md").read_text(encoding="utf-8")
    stems = set(re.findall(r"`…/([a-z0-9_/]+)`", text))
    assert len(stems) > 15
    assert stems <= {metric.stem for metric in TEACHER_METRICS}
    fixed = set(re.findall(r"`train/(opd_align/(?:student|evaluation)/[a-z_]+)`", text))
    assert len(fixed) > 4
    assert all(parse_key(key) is not None for key in fixed)
