"""The dashboard without a browser: the sentences about a training, its data, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.html_elements import Elements
from support.made_trainings import TEACHER, evaluated, line, numbers

from opd_align import metrics
from opd_align.report import dashboard_state
from opd_align.report.dashboard import dashboard_html
from opd_align.report.dashboard_state import log_state, state
from opd_align.report.history import named_trainings, read_training
from opd_align.report.table_format import Cell, format_cell
from opd_align.report.training_prose import best_variant, evaluation_line, trend
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import OpdAlignError

HOSTILE = "</script><img src=x onerror=alert(1)>"


# -- sentences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "headline"),
    [
        ((0.3, 0.1), (0.6, 0.1), "At step 100, following the teacher points toward success, more than at step 0."),
        ((0.6, 0.1), (0.3, 0.1), "At step 100, following the teacher points toward success, less than at step 0."),
        ((0.3, 0.1), (0.4, 0.1), "At step 100, following the teacher points toward success."),
        ((0.3, 0.1), (-0.3, 0.1), "At step 100, following the teacher points away from success, unlike at step 0."),
        ((-0.3, 0.1), (-0.6, 0.1), "At step 100, following the teacher points away from success, more than at step 0."),
        ((-0.6, 0.1), (-0.3, 0.1), "At step 100, following the teacher points away from success, less than at step 0."),
        (
            (0.6, 0.1),
            (0.0, 0.1),
            "At step 100, following the teacher shows no significant alignment with success, unlike at step 0.",
        ),
        ((0.3, None), (0.6, None), "At step 100, following the teacher shows no significant alignment with success."),
    ],
)
def test_the_headline_only_claims_what_the_intervals_support(
    folder: Path, first: Any, last: Any, headline: str
) -> None:
    (folder / "history.jsonl").write_text(line(0, numbers(*first)) + line(100, numbers(*last)))
    assert trend(read_training(folder), TEACHER).headline == headline


def test_the_sentences_contain_the_numbers(made: Path) -> None:
    found = read_training(made)
    analysis = RunDirectory.load(made / "step-000200")
    ranks = {rank.teacher: rank for rank in metrics.teacher_ranking(analysis.nodes, "reverse_kl")}
    before = metrics.teacher_ranking(RunDirectory.load(made / "step-000000").nodes, "reverse_kl")
    verdict = trend(found, "Self-1C/reverse_kl")
    text = " ".join(verdict.points)
    assert "following Self-1C points toward success, unlike at step 0." in verdict.headline
    now = ranks["Self-1C"].alignment
    shown = format_cell(Cell(now.mean, now.half_width), "signed")
    assert f"Its alignment is {shown}, a 95 % interval over 6 held-out questions" in text
    (first,) = (rank for rank in before if rank.teacher == "Self-1C")
    assert f"At step 0 it was {format_cell(Cell(first.alignment.mean), 'signed')} " in text
    assert ": the intervals do not overlap, it has risen." in text
    assert f"with {format_cell(Cell(ranks['Qwen/Qwen3-8B'].alignment.mean), 'signed')} " in text
    steady = " ".join(trend(found, "Qwen/Qwen3-8B/reverse_kl").points)
    assert "the intervals overlap, the change is inconclusive" in steady
    best = best_variant(found)
    assert best is not None
    assert ranks[best.removesuffix("/reverse_kl")].alignment.mean == max(rank.alignment.mean for rank in ranks.values())


def test_fewer_than_four_questions_are_too_few_to_claim_anything(folder: Path) -> None:
    few = {"opd_align/student/questions": 2}
    (folder / "history.jsonl").write_text(line(0, numbers(0.4, 0.1) | few) + line(100, numbers(-0.9, 0.1) | few))
    verdict = trend(read_training(folder), TEACHER)
    assert verdict.headline == "At step 100, there are too few questions (2) to tell where following the teacher leads."
    assert not verdict.decided
    assert "there are too few questions for a confidence interval (2, at least 4 are needed)" in verdict.points[0]
    assert verdict.points[1] == "At step 0 it was +0.400; too few questions to compare the two."


def test_intervals_end_where_the_scale_ends(folder: Path) -> None:
    enough = {"opd_align/student/questions": 4}
    (folder / "history.jsonl").write_text(line(0, numbers(0.41, 1.2) | enough))
    (strength, *_) = trend(read_training(folder), TEACHER).points
    assert "Its alignment is +0.410 (−0.790 to +1.000), a 95 % interval over 4 held-out questions" in strength


def test_the_line_of_an_evaluation(folder: Path) -> None:
    logged = {
        "opd_align/org/T/jsd_1/alignment/mean": 0.41, "opd_align/org/T/jsd_1/alignment/half_width": 1.2,
        "opd_align/org/T/jsd_1/alignment/weighted": 0.5, "opd_align/org/T/jsd_1/gated/alignment": 0.6,
        "opd_align/student/pass_rate": 0.25, "opd_align/student/questions": 8, "opd_align/evaluation/seconds": 12.34,
    }  # fmt: skip
    assert evaluation_line(1200, logged) == (
        "opd-align at step 1,200: org/T/jsd_1 alignment +0.410 (−0.790 to +1.000; SR-weighted +0.500; with the gate "
        "+0.600), pass rate 25%, 8 questions, 12.3 s"
    )
    few = {"opd_align/T/jsd_1/alignment/mean": 0.41, "opd_align/T/jsd_1/nodes/questions": 2}
    assert "T/jsd_1 alignment +0.410 (too few questions: 2), 0 questions" in evaluation_line(0, few)
    assert evaluation_line(0, {}) == "opd-align at step 0: no alignment, 0 questions"
    assert evaluation_line(0, {}, waiting="no demonstration") == "opd-align at step 0: no result yet, no demonstration"


def test_waiting_for_demonstrations_is_not_a_failure(folder: Path) -> None:
    (folder / "history.jsonl").write_text(line(0, {}, run=None, waiting="no demonstration"))
    current = state(read_training(folder))
    assert current["findings"][0]["headline"] == "No result yet: no demonstration."
    assert current["notes"] == ["No result at step 0: no demonstration."]
    assert "failed" not in current["about"]


def test_a_reward_objective_is_named_in_the_headline(folder: Path) -> None:
    (folder / "history.jsonl").write_text(line(0, numbers(0.5, variant="reward/dr_grpo")))
    headline = trend(read_training(folder), "reward/dr_grpo").headline
    assert headline == "At step 0, the reward's own update (dr_grpo) points toward success."


def test_the_headline_without_any_result(folder: Path) -> None:
    def headline() -> str:
        return str(state(read_training(folder))["findings"][0]["headline"])

    assert headline() == "No evaluation yet."
    (folder / "history.jsonl").write_text(line(0))
    assert headline() == "No evaluation has succeeded yet."
    (folder / "history.jsonl").write_text(line(0) + line(100, numbers(None, None)))
    assert headline() == "No evaluation has found a decision to compare yet."


def test_a_failed_evaluation_is_reported_and_the_last_good_one_is_described(folder: Path) -> None:
    failed = line(200, {"opd_align/evaluation/failures": 1}, error="OutOfMemoryError: 2 GiB\nmore of it")
    (folder / "history.jsonl").write_text(line(0, numbers(0.3)) + line(100, numbers(0.4)) + failed)
    verdict = trend(read_training(folder), TEACHER)
    assert verdict.headline.startswith("At step 100, ")
    assert verdict.points[-1] == "1 of 3 evaluations failed, most recently at step 200: OutOfMemoryError: 2 GiB"


# -- the page -------------------------------------------------------------------------------------------------


def test_the_curves_are_the_logged_numbers(made: Path) -> None:
    current = state(read_training(made))
    logged = [json.loads(text)["metrics"] for text in (made / "history.jsonl").read_text().splitlines()]
    assert [one["step"] for one in current["evaluations"]] == [0, 100, 200]
    assert {variant["label"] for variant in current["variants"]} == {"Self-1C", "Qwen/Qwen3-8B"}
    checked = 0
    for variant in current["variants"]:
        for stem, curve in variant["curves"].items():
            expected = [row[f"opd_align/{variant['name']}/{stem}"] for row in logged]
            assert [value is None for value in curve] == [value is None for value in expected]
            known = [value for value in expected if value is not None]
            assert [value for value in curve if value is not None] == pytest.approx(known, rel=1e-5)
            checked += 1
    assert checked > 2 * 45
    assert current["common"]["student/pass_rate"] == pytest.approx(
        [row["opd_align/student/pass_rate"] for row in logged], rel=1e-5
    )
    assert current["max_steps"] == 400
    log = log_state(read_training(made))
    assert (log["curves"]["loss"]["steps"][0], log["curves"]["loss"]["values"][0]) == (10, 1.81818)
    assert log["step"] == 200


def test_every_chart_has_data(made: Path) -> None:
    """The charts come from the registry, so each of their keys must be among what is logged."""
    current = state(read_training(made))
    specs = [chart for chart in dashboard_state.charts() if chart["section"] != "gate"]
    drawn = [line[name] for chart in specs for line in chart["lines"] for name in ("key", "half_width") if line[name]]
    drawn += [column["key"] for column in dashboard_state.columns()]
    assert len(drawn) > 50
    assert set(drawn) <= current["variants"][0]["curves"].keys() | current["common"].keys()


def test_many_evaluations_are_reduced_and_keep_extremes_and_failures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_state, "MAX_EVALUATIONS", 20)
    key = f"opd_align/{TEACHER}/alignment/weighted"
    lines = [line(at, {**numbers(0.1), key: -0.9 if at == 333 else 0.001 * (at % 10)}) for at in range(1000)]
    lines[500] = line(500)
    (folder / "history.jsonl").write_text("".join(lines))
    current = state(read_training(folder))
    steps = [one["step"] for one in current["evaluations"]]
    assert 20 <= len(steps) <= 24
    assert {0, 333, 500, 999} <= set(steps)
    curve = current["variants"][0]["curves"]["alignment/weighted"]
    assert len(curve) == len(steps)
    assert curve[steps.index(333)] == -0.9
    (note,) = current["notes"]
    assert note.startswith(f"Showing {len(steps)} of 1,000 evaluations")


def test_the_next_evaluation_is_the_planned_one_or_one_interval_later(folder: Path) -> None:
    def next_step(*lines: str) -> Any:
        (folder / "history.jsonl").write_text("".join(lines))
        return state(read_training(folder))["next_step"]

    interval = {**numbers(0.1), "opd_align/evaluation/interval": 40}
    assert next_step() is None
    assert next_step(line(0, numbers(0.1))) is None
    assert next_step(line(60, interval)) == 100
    assert next_step(line(60, interval, next_step=90)) == 90
    assert next_step(line(60, interval, next_step="soon")) == 100
    assert log_state(read_training(folder))["finished"] is False
    (folder / "training_finished").touch()
    assert log_state(read_training(folder))["finished"] is True


def test_several_trainings_have_names(made: Path, tmp_path: Path) -> None:
    for name in ("a/gkd", "b/gkd", "b/other"):
        (tmp_path / name / "opd_align").mkdir(parents=True)

    def names(*given: str) -> list[str]:
        return [*named_trainings([one.replace("/", f"{tmp_path}/", 1) for one in given])]

    assert names("/a/gkd") == ["gkd"]
    assert names("/a/gkd", "/b/other") == ["gkd", "other"]
    assert names("/a/gkd", "/b/gkd") == ["a/gkd", "b/gkd"]
    assert names("all=/a/gkd", "no gate=/b/gkd") == ["all", "no gate"]
    with pytest.raises(OpdAlignError, match="two trainings are called 'all'"):
        names("all=/a/gkd", "all=/b/gkd")
    with pytest.raises(OpdAlignError, match="is not a directory"):
        names("all=/c")
    trainings = {name: read_training(made) for name in ("all", "no gate")}
    inside = Elements(dashboard_html(trainings)).inside
    assert inside["title"].strip() == "all · no gate"
    assert [run["name"] for run in json.loads(inside["state"])] == ["all", "no gate"]
    assert [len(json.loads(inside[name])) for name in ("log", "views")] == [2, 2]


def test_the_page_is_self_contained(made: Path) -> None:
    for live in (False, True):
        page = dashboard_html({"gkd": read_training(made)}, live=live)
        tags = Elements(page).tags
        assert len(tags) > 100
        links = [given.get(name) or "" for _, given in tags for name in ("src", "href", "action", "data")]
        assert all(link == "" or link.startswith(("#", "data:")) for link in links)
        assert not [given for _, given in tags if any(name.startswith("on") or name == "style" for name in given)]
        (policy,) = [given["content"] for _, given in tags if given.get("http-equiv") == "Content-Security-Policy"]
        assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
        assert ("connect-src 'self'" in str(policy)) == live
        assert json.loads(Elements(page).inside["page"])["live"] == live


def test_untrusted_text_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "gkd" / "opd_align"
    folder.mkdir(parents=True)
    _, logged = evaluated(folder, 0, {HOSTILE: 8.0, "{{script}}": 4.0})
    row = json.dumps({"step": 1, HOSTILE: 1.0}) + "\n"
    (folder / "training.jsonl").write_text(row)
    (folder / "history.jsonl").write_text(
        line(0, logged, trainer=HOSTILE) + line(1, None, error=HOSTILE, trainer=HOSTILE)
    )
    page = dashboard_html({HOSTILE: read_training(folder)})
    elements = Elements(page)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert "onerror=alert(1)>" not in page
    assert page.count("<script>") == 1
    (current,) = json.loads(elements.inside["state"])
    assert {variant["label"] for variant in current["variants"]} == {HOSTILE, "{{script}}"}
    assert HOSTILE in json.loads(elements.inside["log"])[0]["curves"]
    (folder / "history.jsonl").write_text(line(0, numbers(0.5, variant=f"{HOSTILE}/reverse_kl")))
    assert HOSTILE in Elements(dashboard_html({HOSTILE: read_training(folder)})).inside["headline"]


def test_an_unreadable_run_is_noted_and_an_older_one_is_shown(training: Path) -> None:
    (training / "step-000200" / "nodes.parquet").write_bytes(b"not a table")
    elements = Elements(dashboard_html({"gkd": read_training(training)}))
    assert json.loads(elements.inside["views"])[0]["run"] == "step-000100"
    (note,) = json.loads(elements.inside["state"])[0]["notes"]
    assert "nodes.parquet' is damaged" in note


def test_an_empty_training_has_a_page(folder: Path) -> None:
    elements = Elements(dashboard_html({"gkd": read_training(folder)}))
    assert elements.inside["headline"].strip() == "No evaluation yet."
    assert json.loads(elements.inside["views"]) == [None]
