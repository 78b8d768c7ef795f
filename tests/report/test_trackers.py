"""What is logged to W&B and trackio beside the scalars."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support import wandb_offline

from opd_align import Budget, ExactFamily, ReverseKL, Settings, analyze
from opd_align.core.metric_registry import parse_key
from opd_align.report import trackers
from opd_align.report.trackers import files_are_due, paths_html, top_nodes, tracker_media
from opd_align.training.evaluation_log import tracker_row


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
    media = tracker_media(analysis_of(family, ["good", "<b>bad</b>"], ReverseKL()), FakeWandb())
    assert set(media) == {
        "opd_align/good/reverse_kl/alignment/histogram",
        "opd_align/<b>bad</b>/reverse_kl/alignment/histogram",
        "opd_align/student/top_nodes",
        "opd_align/student/paths",
    }
    parsed = [parse_key(key) for key in media]
    assert all(found is not None and found.metric.shown_in == ("W&B",) for found in parsed)


def test_files_become_rarer_so_that_a_long_training_has_few_of_them():
    due = [number for number in range(1, 2001) if files_are_due(number)]
    assert due[:16] == list(range(1, 17))
    assert len(due) == 71
    gaps = [(after - before) / after for before, after in pairwise(due[16:])]
    assert max(gaps) <= 1 / 8, "the newest file is never much older than the training"


def test_no_medium_grows_with_the_length_of_rollouts(family, monkeypatch):
    analysis = analysis_of(family, ["good"], ReverseKL())
    assert "…" not in paths_html(analysis)
    monkeypatch.setattr(trackers, "MAX_TOKENS", 5)
    blocks = paths_html(analysis).split("<pre>")[1:]
    assert len(blocks) == 4
    for block in blocks:
        shown = block.partition("</pre>")[0]
        assert shown.endswith(" …")
        assert shown.count("…") == 1
    scalars = tracker_media(analysis, FakeWandb(), files=False)
    assert set(scalars) == {"opd_align/good/reverse_kl/alignment/histogram"}


def test_a_long_training_keeps_few_files_in_wandb(family, tmp_path, monkeypatch):
    import wandb

    wandb_offline.use(tmp_path, monkeypatch)
    analysis = analysis_of(family, ["good"], ReverseKL())
    wandb.init(project="p")
    try:
        for number in range(1, 41):
            wandb.log(tracker_row(100 * number, {}, analysis, wandb, number=number))
    finally:
        wandb.finish()
    rows = wandb_offline.history(tmp_path)
    assert len(rows) == 40
    key = "train/opd_align/student/paths"
    with_page = [row["train/global_step"] // 100 for row in rows if any(name.startswith(key) for name in row)]
    assert with_page == [*range(1, 17), *range(18, 33, 2), 36, 40]
    histogram = "train/opd_align/good/reverse_kl/alignment/histogram"
    assert all(any(name.startswith(histogram) for name in row) for row in rows)
    assert len(list(tmp_path.rglob("media/html/**/*.html"))) == 26
