"""What is logged to W&B beside the scalars."""

from __future__ import annotations

from typing import Any

import pytest

from opd_align import Budget, ExactFamily, ReverseKL, Settings, analyze
from opd_align.core.metric_registry import parse_key
from opd_align.report.trackers import paths_html, top_nodes, wandb_media


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(seed=3, n=3, length=40)


def analysis_of(family: ExactFamily, teachers: Any, *objectives: Any) -> Any:
    kinds = {"good": lambda world: world.tilted_teacher(), "<b>bad</b>": lambda world: world.adversarial_teacher()}
    given = [family.teacher(name, kinds[name]) for name in teachers]
    budget = Budget(initial=64, targeted=600, allocation="adaptive")
    return analyze(family, given, family.questions, family, settings=Settings(objectives, budget))


def test_token_html_escapes_names_and_colours_by_verdict(family):
    two = analysis_of(family, ["<b>bad</b>", "good"], ReverseKL())
    page = paths_html(two)
    assert "<b>bad</b>" not in page
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "rgba(200,102,10" in page, "an adversarial teacher is harmful somewhere"
    assert page.count("<pre>") == 4
    rows = top_nodes(two, 5)
    assert len(rows) == 5
    assert [row["sr_range"] for row in rows] == sorted((row["sr_range"] for row in rows), reverse=True)


class FakeWandb:
    """Returns the arguments of each medium."""

    Histogram = Table = Html = staticmethod(lambda *args, **kwargs: (args, kwargs))


def test_media_have_registered_keys(family):
    media = wandb_media(analysis_of(family, ["good", "<b>bad</b>"], ReverseKL()), FakeWandb())
    assert set(media) == {
        "opd_align/good/reverse_kl/alignment/histogram",
        "opd_align/<b>bad</b>/reverse_kl/alignment/histogram",
        "opd_align/student/top_nodes",
        "opd_align/student/paths",
    }
    parsed = [parse_key(key) for key in media]
    assert all(found is not None and found.metric.shown_in == ("W&B",) for found in parsed)
