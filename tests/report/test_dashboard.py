"""The dashboard without a browser: reading a training, the sentences about it, the page and the server."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.html_elements import Elements
from support.made_trainings import evaluated, line, made_training

from opd_align import metrics
from opd_align.cli.main import main
from opd_align.report import dashboard, server
from opd_align.report.dashboard import dashboard_html, state
from opd_align.report.history import read_training, training_folder
from opd_align.report.server import DashboardServer, DashboardState
from opd_align.report.table_format import Cell, format_cell
from opd_align.report.training_prose import best_variant, evaluation_line, trend
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import OpdAlignError

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One teacher changes from harmful to helpful, the other is always helpful."""
    return made_training(tmp_path_factory.mktemp("made") / "gkd", {"Self-1C": [-8, 0, 8], "Qwen/Qwen3-8B": [8, 8, 8]})


@pytest.fixture
def training(made: Path, tmp_path: Path) -> Path:
    """A copy that tests may modify."""
    return Path(shutil.copytree(made.parent, tmp_path / "gkd")) / "opd_align"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training without any files yet."""
    path = tmp_path / "gkd" / "opd_align"
    path.mkdir(parents=True)
    return path


TEACHER = "teacher/reverse_kl"


def numbers(mean: float | None, half: float | None = 0.1, *, variant: str = TEACHER) -> dict[str, float | None]:
    own = {"alignment/mean": mean, "alignment/half_width": half}
    return {**{f"opd_align/{variant}/{stem}": value for stem, value in own.items()}, "opd_align/student/questions": 8}


def steps(folder: Path) -> list[int]:
    return [evaluation.step for evaluation in read_training(folder).evaluations]


# -- reading the files ----------------------------------------------------------------------------------------


def test_a_resumed_training_replaces_later_lines(folder: Path) -> None:
    lines = [line(step, numbers(0.1)) for step in (0, 100, 200, 300)]
    (folder / "history.jsonl").write_text("".join([*lines, line(200, numbers(0.7))]))
    found = read_training(folder)
    assert [evaluation.step for evaluation in found.evaluations] == [0, 100, 200]
    assert found.evaluations[-1].variants[TEACHER]["alignment/mean"] == 0.7
    rows = [(10, 5.0), (20, 4.0), (30, 3.0), (20, 3.9)]
    (folder / "training.jsonl").write_text("".join(json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in rows))
    assert [(at, row["loss"]) for at, row in read_training(folder).log] == [(10, 5.0), (20, 3.9)]


def test_two_log_rows_of_a_step_are_merged(folder: Path) -> None:
    rows = [{"step": 10, "loss": 2.0}, {"step": 10, "train_loss": 2.5}]
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_training(folder).log == ((10, {"loss": 2.0, "train_loss": 2.5}),)


def test_an_incomplete_last_line_is_ignored(folder: Path) -> None:
    whole, file = line(100, numbers(0.3)), folder / "history.jsonl"
    for cut in range(len(whole) - 1):
        file.write_text(line(0, numbers(0.2)) + whole[:cut])
        found = read_training(folder)
        assert ([evaluation.step for evaluation in found.evaluations], found.unreadable) == ([0], 0)
    file.write_text(line(0, numbers(0.2)) + whole)
    assert steps(folder) == [0, 100]


def test_unreadable_lines_are_skipped_and_counted(folder: Path) -> None:
    glued = line(100, numbers(0.3))[:40] + line(100, numbers(0.3))
    others = ["[1, 2]\n", '{"no": "step"}\n', '{"step": "7"}\n', '{"step": -1}\n', "\n"]
    (folder / "history.jsonl").write_bytes(
        "".join([line(0, numbers(0.2)), glued, *others, line(200, numbers(0.4))]).encode() + b"\xff\xfe\n"
    )
    found = read_training(folder)
    assert [evaluation.step for evaluation in found.evaluations] == [0, 200]
    assert found.unreadable == 7
    assert state(found)["notes"] == ["Skipped 7 lines that could not be parsed."]


def test_unknown_values_are_none(folder: Path) -> None:
    odd = {
        f"opd_align/{TEACHER}/alignment/mean": float("nan"), f"opd_align/{TEACHER}/advantage/mean": None,
        "opd_align/student/pass_rate": float("inf"), "opd_align/student/nodes": "many",
        "opd_align/evaluation/seconds": True,
    }  # fmt: skip
    (folder / "history.jsonl").write_text(line(0, odd))
    (evaluation,) = read_training(folder).evaluations
    assert evaluation.variants == {TEACHER: {"alignment/mean": None, "advantage/mean": None}}
    assert evaluation.common == {"student/pass_rate": None, "student/nodes": None, "evaluation/seconds": None}


def test_keys_are_split_into_variant_and_stem(folder: Path) -> None:
    keys = (
        "Qwen/Qwen3-8B/reverse_kl/alignment/mean", "kl/jsd_0.5/spearman/kl", "reward/dr_grpo/oracle/kept",
        "student/pass_rate", "alignment/mean", "student/not_registered",
    )  # fmt: skip
    (folder / "history.jsonl").write_text(line(0, {f"opd_align/{key}": 1.0 for key in keys}))
    found = read_training(folder)
    (evaluation,) = found.evaluations
    assert evaluation.variants == {
        "Qwen/Qwen3-8B/reverse_kl": {"alignment/mean": 1.0},
        "kl/jsd_0.5": {"spearman/kl": 1.0},
        "reward/dr_grpo": {"oracle/kept": 1.0},
    }
    assert evaluation.common == {"student/pass_rate": 1.0}
    assert [*found.labels.values()] == ["Qwen/Qwen3-8B · reverse_kl", "kl · jsd_0.5", "reward · dr_grpo"]


@pytest.mark.parametrize(
    ("variants", "labels"),
    [
        (["Self-1C/reverse_kl"], ["Self-1C"]),
        (["Self-1C/reverse_kl", "org/model/reverse_kl"], ["Self-1C", "org/model"]),
        (["reward/dr_grpo"], ["dr_grpo"]),
    ],
)
def test_labels_name_the_objective_only_if_needed(folder: Path, variants: list[str], labels: list[str]) -> None:
    logged = {f"opd_align/{variant}/alignment/mean": 1.0 for variant in variants}
    (folder / "history.jsonl").write_text(line(0, logged))
    assert [*read_training(folder).labels.values()] == labels


def test_only_complete_run_directories_are_listed(training: Path) -> None:
    assert read_training(training).runs == ["step-000000", "step-000100", "step-000200"]
    (training / "step-000100" / "summary.json").unlink()
    (training.parent / "summary.json").write_text("{}")
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers(0.1)) + line(301, numbers(0.1), run=".."))
    assert read_training(training).runs == ["step-000000", "step-000200"]
    (training / "step-000200").rename(training / "step-000200-2")
    with (training / "history.jsonl").open("a") as file:
        file.write(line(200, numbers(0.1), run="step-000200-2"))
    assert read_training(training).runs == ["step-000000", "step-000200-2"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "is not a directory"),
        ("empty", "has no folder 'opd_align': no training with AlignmentCallback wrote there"),
        ("gkd/opd_align", "pass '.*gkd'"),
    ],
)
def test_a_folder_without_a_training_raises(training: Path, tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OpdAlignError, match=message):
        training_folder(tmp_path / place)


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
            assert curve == [row[f"opd_align/{variant['name']}/{stem}"] for row in logged]
            checked += 1
    assert checked == 2 * 35
    assert current["common"]["student/pass_rate"] == [row["opd_align/student/pass_rate"] for row in logged]
    assert current["log"]["loss"][0] == (10, 2 / 1.1)
    assert current["step"] == 200
    assert current["max_steps"] == 400


def test_every_chart_has_data(made: Path) -> None:
    """The charts come from the registry, so each of their keys must be among what is logged."""
    current = state(read_training(made))
    drawn = [line["key"] for chart in dashboard.charts() for line in chart["lines"]]
    drawn += [line["half_width"] for chart in dashboard.charts() for line in chart["lines"] if line["half_width"]]
    drawn += [column["key"] for column in dashboard.columns()]
    assert len(drawn) > 30
    assert set(drawn) <= current["variants"][0]["curves"].keys() | current["common"].keys()


def test_a_long_log_is_downsampled_but_keeps_its_spikes(folder: Path) -> None:
    rows = [{"step": at, "loss": 1.0 + (at % 7) / 100 + 9 * (at == 7_777)} for at in range(1, 20_001)]
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curve = state(read_training(folder))["log"]["loss"]
    assert len(curve) <= 2 * dashboard.MAX_BINS + 2
    assert (7_777, rows[7_776]["loss"]) in curve
    assert [at for at, _ in (curve[0], curve[-1])] == [1, 20_000]
    assert set(curve) <= {(row["step"], row["loss"]) for row in rows}
    assert curve == sorted(curve)


def test_the_page_is_self_contained(made: Path) -> None:
    for live in (False, True):
        page = dashboard_html(made, title="gkd", live=live)
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
    page = dashboard_html(folder, title=HOSTILE)
    elements = Elements(page)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert "onerror=alert(1)>" not in page
    assert page.count("<script>") == 1
    current = json.loads(elements.inside["state"])
    assert {variant["label"] for variant in current["variants"]} == {HOSTILE, "{{script}}"}
    assert HOSTILE in current["log"]
    (folder / "history.jsonl").write_text(line(0, numbers(0.5, variant=f"{HOSTILE}/reverse_kl")))
    assert HOSTILE in Elements(dashboard_html(folder, title=HOSTILE)).inside["headline"]


def test_an_unreadable_run_is_noted_and_an_older_one_is_shown(training: Path) -> None:
    (training / "step-000200" / "nodes.parquet").write_bytes(b"not a table")
    elements = Elements(dashboard_html(training, title="gkd"))
    assert json.loads(elements.inside["view"])["run"] == "step-000100"
    (note,) = json.loads(elements.inside["state"])["notes"]
    assert "nodes.parquet' is damaged" in note


def test_an_empty_training_has_a_page(folder: Path) -> None:
    elements = Elements(dashboard_html(folder, title="gkd"))
    assert elements.inside["headline"].strip() == "No evaluation yet."
    assert json.loads(elements.inside["view"]) is None


# -- the server -----------------------------------------------------------------------------------------------


class Client:
    """Sends requests to a dashboard server; returns status, headers and body."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rstrip("/").rpartition(":")[2])

    def __call__(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), body


@pytest.fixture
def served(training: Path) -> Iterator[Client]:
    with DashboardServer(DashboardState(training, title="gkd")) as running:
        yield Client(running.url)


def test_page_state_tokens_and_reports_are_served(served: Client) -> None:
    status, headers, body = served("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert {"X-Frame-Options", "X-Content-Type-Options", "Cross-Origin-Resource-Policy"} <= headers.keys()
    assert Elements(body.decode()).inside["title"].strip() == "gkd"
    status, headers, body = served("/state.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert [one["run"] for one in json.loads(body)["evaluations"]][-1] == "step-000200"
    assert served("/state.json", If_None_Match=headers["ETag"])[::2] == (304, b"")
    status, _, body = served("/view/step-000100.json")
    assert (status, json.loads(body)["run"]) == (200, "step-000100")
    assert len(json.loads(body)["packs"]) > 0
    status, _, body = served("/step/step-000100")
    assert status == 200
    assert b"<title>step-000100</title>" in body


def test_an_appended_line_changes_the_state(served: Client, training: Path) -> None:
    before = served("/state.json")[1]["ETag"]
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers(0.1))[:50])
        file.flush()
        assert served("/state.json")[1]["ETag"] == before
        file.write(line(300, numbers(0.1))[50:])
    _, headers, body = served("/state.json", If_None_Match=before)
    assert headers["ETag"] != before
    assert json.loads(body)["evaluations"][-1]["step"] == 300


@pytest.mark.parametrize(
    "path",
    [
        "/../history.jsonl", "/opd_align/history.jsonl", "/history.jsonl", "/step/..", "/step/../../../etc/passwd",
        "/step/%2e%2e/history.jsonl", "/view/step-000100/../../history.json", "/step/step-000100/nodes.parquet",
        "/step/step-000900", "/state.json?x", "http://127.0.0.1/etc/passwd",
    ],
)  # fmt: skip
def test_other_paths_are_not_found(served: Client, path: str) -> None:
    status, _, body = served(path)
    assert status == 404
    assert b"alignment" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_requests_are_answered(served: Client, method: str) -> None:
    assert served("/", method)[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("LOCALHOST", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("", 403),
        ("[", 403), ("localhost@evil.example", 403), ("192.168.0.7", 403),
    ],
)  # fmt: skip
def test_only_local_host_names_are_accepted(served: Client, host: str, status: int) -> None:
    assert served("/state.json", Host=host)[0] == status


def test_it_listens_on_the_loopback_address_only(served: Client) -> None:
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == served.port]
    assert listening == [f"0100007F:{served.port:04X}"]
    six = Path("/proc/net/tcp6")
    assert not six.exists() or f":{served.port:04X} " not in six.read_text()


def test_thousands_of_connections_without_a_request_do_not_keep_a_browser_out(served: Client) -> None:
    """More connections than a process may usually open files; in turns, since that limit holds for the client too."""
    for start in (b"", b"GET /state.json HTTP/1.1\r\nHost: lo"):
        threads = threading.active_count()
        for _ in range(4):
            half_open = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(400)]
            for one in half_open:
                with suppress(OSError):  # closed by the server already
                    one.sendall(start)
            assert served("/state.json")[0] == 200
            assert threading.active_count() - threads < 200
            for one in half_open:
                one.close()
    assert served("/")[0] == 200


def test_connections_that_are_answered_are_not_closed(served: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the answer to the first is being made, idle connections come and go."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    started, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        started.set()
        assert go_on.wait(30)
        return "report"

    monkeypatch.setattr(server, "step_report", slow)
    answers: list[tuple[int, dict[str, str], bytes]] = []
    reader = threading.Thread(target=lambda: answers.append(served("/step/step-000100")))
    reader.start()
    assert started.wait(30)
    idle = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(20)]
    assert served("/state.json")[0] == 200
    assert idle[0].recv(1) == b""  # closed: the newest take the places
    go_on.set()
    reader.join(30)
    assert [answer[::2] for answer in answers] == [(200, b"report")]
    for one in idle:
        one.close()


def test_a_taken_or_invalid_port_raises(training: Path) -> None:
    page = DashboardState(training, title="gkd")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OpdAlignError, match=f"cannot serve on port {port}: .*omit --port"):
            DashboardServer(page, port)
    with pytest.raises(OpdAlignError, match="invalid port 70000"):
        DashboardServer(page, 70_000)


# -- the command ----------------------------------------------------------------------------------------------


def test_once_writes_the_page_and_exits(training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(training.parent), "--once"]) == 0
    assert capsys.readouterr().out == f"page       {(training / 'dashboard.html').as_uri()}\n"
    assert main(["dashboard", str(training.parent), "--once", "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == (training / "dashboard.html").read_bytes()
    assert not list(training.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a directory"),
        (["gkd", "--port", "99999"], "invalid port 99999"),
        (["gkd", "--once", "--out", "no/such/folder/page.html"], "choose another path with --out"),
        (["gkd", "--once", "--out", "."], "choose another path with --out"),
    ],
)
def test_bad_arguments_are_rejected(
    training: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(training.parents[1])
    assert main(["dashboard", *arguments]) == 2
    assert message in capsys.readouterr().err


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def restore_interrupts() -> None:
    """A test suite that runs in the background ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_it_updates_the_page_until_interrupted(training: Path) -> None:
    command = [sys.executable, "-m", "opd_align.cli", "dashboard", str(training.parent)]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_interrupts
    )
    try:
        assert run.stdout is not None
        page = run.stdout.readline().split()[-1]
        found = re.search(r"http://127\.0\.0\.1:[0-9]+/", run.stdout.readline())
        assert page == (training / "dashboard.html").as_uri()
        assert found is not None
        assert Client(found[0])("/state.json")[0] == 200
        before = (training / "dashboard.html").read_bytes()
        with (training / "history.jsonl").open("a") as file:
            file.write(line(300, numbers(0.1)))
        wait_for(lambda: (training / "dashboard.html").read_bytes() != before)
        run.send_signal(signal.SIGINT)
        rest, errors = run.communicate(timeout=30)
    finally:
        run.kill()
    assert (run.returncode, rest.strip(), errors) == (0, "", "")
