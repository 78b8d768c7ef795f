"""The dashboard's server and its command."""

from __future__ import annotations

import http.client
import json
import os
import re
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
from support.made_trainings import line, numbers

from opd_align.cli.main import main
from opd_align.report import server
from opd_align.report.server import DashboardServer, DashboardState
from opd_align.types import OpdAlignError


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
    with DashboardServer(DashboardState({"gkd": training})) as running:
        yield Client(running.url)


def test_page_state_tokens_and_reports_are_served(served: Client) -> None:
    status, headers, body = served("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert {"X-Frame-Options", "X-Content-Type-Options", "Cross-Origin-Resource-Policy"} <= headers.keys()
    assert Elements(body.decode()).inside["title"].strip() == "gkd"
    status, headers, body = served("/state.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert [one["run"] for one in json.loads(body)[0]["evaluations"]][-1] == "step-000200"
    assert json.loads(served("/log.json")[2])[0]["curves"]["loss"]["steps"][-1] == 200
    assert json.loads(served("/log/50-60.json")[2])[0]["curves"]["loss"]["steps"] == [40, 50, 60, 70]
    assert served("/state.json", If_None_Match=headers["ETag"])[::2] == (304, b"")
    status, _, body = served("/view/0/step-000100.json")
    assert (status, json.loads(body)["run"]) == (200, "step-000100")
    assert len(json.loads(body)["packs"]) > 0
    status, _, body = served("/step/0/step-000100")
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
    assert json.loads(body)[0]["evaluations"][-1]["step"] == 300
    (log,) = json.loads(served("/log.json")[2])
    assert (log["step"], log["finished"]) == (300, False)  # a training may have no log of its own
    (training / "training_finished").touch()
    assert json.loads(served("/log.json")[2])[0]["finished"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/../history.jsonl", "/opd_align/history.jsonl", "/history.jsonl", "/step/..", "/step/../../../etc/passwd",
        "/step/0/%2e%2e/history.jsonl", "/view/0/step-000100/../../history.json", "/step/0/step-000100/nodes.parquet",
        "/step/0/step-000900", "/step/1/step-000100", "/view/-1/step-000100.json", "/state.json?x", "/log/5-.json",
        "http://127.0.0.1/etc/passwd",
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
    reader = threading.Thread(target=lambda: answers.append(served("/step/0/step-000100")))
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
    page = DashboardState({"gkd": training})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OpdAlignError, match=f"cannot serve on port {port}: .*omit --port"):
            DashboardServer(page, port)
    with pytest.raises(OpdAlignError, match="invalid port 70000"):
        DashboardServer(page, 70_000)


# -- the command ----------------------------------------------------------------------------------------------


def test_the_page_replaces_no_file_of_the_training_and_no_device(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(training / "history.jsonl")
    before = (training / "history.jsonl").read_bytes()
    for target in (training / "history.jsonl", tmp_path / "link"):
        assert main(["dashboard", str(training.parent), "--once", "--out", str(target)]) == 2
        assert "it is a file of the training" in capsys.readouterr().err
    assert (training / "history.jsonl").read_bytes() == before
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert main(["dashboard", str(training.parent), "--once", "--out", str(tmp_path / "pipe")]) == 0
    reader.join()
    assert b"<html" in read[0]
    assert (tmp_path / "pipe").is_fifo()


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


def test_what_arrives_right_after_the_page_was_written_is_news(training: Path, tmp_path: Path) -> None:
    state = DashboardState({"gkd": training})
    state.write(tmp_path / "page.html")
    assert not state.has_news
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers(0.1)))
    assert state.has_news
    state.write(tmp_path / "page.html")
    assert not state.has_news


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
