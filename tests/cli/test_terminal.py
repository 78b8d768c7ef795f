"""What commands print about names, questions and URLs from outside: no control characters, no passwords."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opd_align.cli.main import main
from opd_align.cli.progress import progress
from opd_align.cli.terminal import complain, say
from opd_align.core.collect import DONE, Progress

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m[/red]"


def test_control_characters_are_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{HOSTILE}\n\tnext 文　字 👩‍🚀")
    complain(f"{HOSTILE} at http://me:secret@host:1/v1")
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x07\x9b")
    assert out.endswith("\n\tnext 文　字 👩‍🚀\n")
    assert err.startswith("opd-align: a")
    assert "http://***@host:1/v1" in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("student.name=../x", "student: '../x' is not a valid name: it must not start with a dot or contain slashes"),
        ("student.name=a/b", "student: 'a/b' is not a valid name"),
        ("student.name=..", "student: '..' is not a valid name"),
        (r"student.name=a\b", "is not a valid name"),
        ("student.name=' '", "student: ' ' is not a valid name: it is empty"),
        (f"student.name={json.dumps('a' + chr(27) + '[2J')}", r"student: 'a\x1b[2J' is not a valid name"),
        (f"teachers=[{json.dumps({'name': 'a' + chr(27), 'context': 'Self-1C'})}]", r"'a\x1b' is not a valid name"),
        ("student.http.api_key=12345", "student.http.api_key: expected text, got a value of another type"),
        ("student.url=http://me:12345/x@host", "'http://***@host' is not a valid server URL"),
        ("student.url={a: http://me:12345@host}", "student.url: expected a list"),
    ],
)
def test_names_and_urls_are_checked_before_a_model_is_loaded(
    override: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "--student", "embedded:student", "--task", "arithmetic", "--set", override]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert "\x1b" not in out + err
    assert "12345" not in out + err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("up", [True, False])
def test_a_password_in_a_url_is_neither_printed_nor_stored(
    up: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("httpx")
    pytest.importorskip("torch")
    from support.model_server import serving

    from opd_align.backends.loading import load_model

    with serving(load_model("embedded:student").model) as server:
        settings = {
            "student.backend": "server", "student.http.patience_s": 0, "student.served_as": "student",
            "student.url": server.url.replace("//", "//me:secret@") if up else "http://me:secret@127.0.0.1:1",
            "questions.limit": 1, "budget.initial": 8, "budget.targeted": 0, "sampling.max_tokens": 60,
        }  # fmt: skip
        overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = ["analyze", "--student", "embedded:student", "--task", "arithmetic", "--teachers", "embedded:teacher"]
        assert main([*command, *overrides, "--out", str(tmp_path / "run")]) == (0 if up else 2)
    out, err = capsys.readouterr()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert (tmp_path / "run/manifest.json" in files) == up
    assert ("http://127.0.0.1:1/v1/models did not respond" in err) != up
    for text in (out, err, caplog.text, *(file.read_bytes().decode("latin-1") for file in files)):
        assert "secret" not in text


def test_questions_with_escape_sequences_are_shown_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"id": HOSTILE, "question": f"How many {HOSTILE}?", "answer": "4"}) + "\n")
    task = ["--set", "task.name=own", "--set", "task.kind=number", "--data", str(data)]
    assert main(["show-prompt", "--student", "embedded:student", "--teachers", "embedded:teacher", *task]) == 0
    out, err = capsys.readouterr()
    assert "How many a" in out
    assert not set(out + err) & set("\x1b\x07\x9b")


def test_progress_shows_any_question_name(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1) as (on_phase, on_progress):
        on_phase(HOSTILE, 0, 1)
        on_progress(Progress(HOSTILE, "initial", 1, 2))
        on_progress(Progress(HOSTILE, DONE, 2, 2))
    assert "\x1b]0;" not in capsys.readouterr().out
