"""Numbers for trackers: the same as the metrics', under keys that say whose they are."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from opd_align import Budget, DrGRPO, ExactFamily, ForwardKL, ReverseKL, Settings, analyze, metrics
from opd_align.report.trackers import paths_html, scalars, top_nodes, variants


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(seed=3, n=3, length=40)


def analysis_of(family: ExactFamily, teachers: Any, *objectives: Any) -> Any:
    kinds = {"good": lambda world: world.tilted_teacher(), "<b>bad</b>": lambda world: world.adversarial_teacher()}
    given = [family.teacher(name, kinds[name]) for name in teachers]
    budget = Budget(initial=64, targeted=600, allocation="adaptive")
    return analyze(family, given, family.questions, family, settings=Settings(objectives, budget))


def test_one_teacher_has_short_keys_and_the_numbers_of_the_metrics(family):
    analysis = analysis_of(family, ["good"], ReverseKL())
    numbers = scalars(analysis)
    (rank,) = metrics.teacher_ranking(analysis.nodes)
    (row,) = metrics.divergence_filter(analysis.nodes, "kl", (0.5,))
    oracle = metrics.selective_oracle(analysis.nodes, (0.0,))[1]
    assert numbers["opd_align/alignment/mean"] == rank.alignment.mean
    assert numbers["opd_align/alignment/decided"] == rank.helpful + rank.harmful
    assert numbers["opd_align/oracle/gain"] == oracle.gain.mean
    assert numbers["opd_align/filter/threshold"] == row.threshold
    assert numbers["opd_align/rollouts"] == sum(
        analysis.questions[name].to_numpy().sum() for name in ("initial", "targeted")
    )
    assert numbers["opd_align/nodes"] == analysis.nodes.num_rows
    correlations = {row.feature: row.rho.mean for row in metrics.within_path_correlations(analysis.nodes)}
    assert numbers["opd_align/spearman/kl"] == correlations["kl"]


def test_several_have_their_names_in_the_keys(family):
    two = analysis_of(family, ["good", "<b>bad</b>"], ReverseKL())
    assert list(variants(two).values()) == ["/good", "/<b>bad</b>"]
    numbers = scalars(two)
    assert numbers["opd_align/alignment/mean/good"] > numbers["opd_align/alignment/mean/<b>bad</b>"]
    more = scalars(analysis_of(family, ["good"], ReverseKL(), ForwardKL(), DrGRPO()))
    assert {key.removeprefix("opd_align/alignment/mean") for key in more if "alignment/mean" in key} == {
        "/good/reverse_kl",
        "/good/forward_kl",
        "/dr_grpo",
    }
    assert "opd_align/advantage/dr_grpo" not in more, "no teacher, no advantage of a teacher"


def test_what_is_unknown_is_nan_and_never_zero(family):
    one = analyze(
        family,
        [family.teacher("good", lambda world: world.tilted_teacher())],
        family.questions[:1],
        family,
        settings=Settings(budget=Budget(initial=1, targeted=0, allocation="adaptive")),
    )
    numbers = scalars(one)
    assert numbers["opd_align/nodes"] == 0
    assert all(isnan(value) for key, value in numbers.items() if "/alignment/" in key)


def test_the_token_view_escapes_names_and_shades_by_verdict(family):
    two = analysis_of(family, ["<b>bad</b>", "good"], ReverseKL())
    page = paths_html(two)
    assert "<b>bad</b>" not in page
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "rgba(200,102,10" in page, "an adversarial teacher harms somewhere"
    assert page.count("<pre>") == 4
    rows = top_nodes(two, 5)
    assert len(rows) == 5
    assert [row["sr_range"] for row in rows] == sorted((row["sr_range"] for row in rows), reverse=True)
