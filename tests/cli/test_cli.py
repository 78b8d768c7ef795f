"""The command line: commands, output, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.cli.commands import _config
from opd_align.cli.main import _parser, main
from opd_align.core.alignment import SCHEMA

SMALL = ["analyze", "--student", "exact", "--worlds", "2", "--length", "40", "--initial", "60", "--targeted", "600"]


def test_analyze_prints_the_tables_and_writes_the_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*SMALL, "--objectives", "reverse_kl,dr_grpo", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    # The conclusion first, and only the tables that support it.
    assert shown.startswith(("Use ", "No ", "Undecided", "Do not "))
    headings = ["Which teacher to use", "Alignment with the ideal update by teacher", "Correct vs. incorrect rollouts"]
    assert [shown.count(heading) for heading in headings] == [1, 1, 1]
    assert "Divergence filter" not in shown
    # The tilted teacher leans toward success and the adversarial one away from it: the ranking must tell them apart.
    ranking = shown[shown.index("(reverse_kl)") : shown.index("noise ceiling:")]
    assert "style" in ranking
    assert ranking.index("tilted") < ranking.index("adversarial")
    assert f"report         {(out / 'report.html').as_uri()}" in shown
    assert (out / "report.html").stat().st_size > 10_000
    assert (out / "tables" / "tables.md").is_file()
    assert main(["report", str(out), "--verbose"]) == 0
    verbose = capsys.readouterr().out
    for heading in (*headings, "Questions\n", "Divergence filter", "Rank correlation"):
        assert heading in verbose
    assert verbose.splitlines()[0] == shown.splitlines()[0]
    assert main(["report", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out == shown.splitlines()[0] + "\n"
    nodes = pq.read_table(out / "nodes.parquet")
    assert nodes.column_names == SCHEMA.names
    assert set(nodes["objective"].to_pylist()) == {"reverse_kl", "dr_grpo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimator", "bakcup"], "did you mean 'backup'?"),
        (["--allocation", "papre"], "did you mean 'paper'?"),
        (["--objectives", "reverse_lk"], "did you mean 'reverse_kl'?"),
        (["--objectives", ""], "settings.objectives is empty"),
        (["--worlds", "0"], "at least 1"),
        (["--workers", "0"], "at least 1"),
        (["--reuse", "no/such/run"], "no rollouts to reuse"),
        (["--set", "budgt.initial=3"], "did you mean 'budget'?"),
        (["--config", "dmo"], "did you mean 'demo'?"),
        (["--config", "no/such/file.yaml"], "cannot read the configuration"),
        (["--length", "2"], "length >= 4"),
        (["--forks", "1.5"], "forks must lie in [0, 1]"),
        (["--initial", "0"], "initial must be at least 1"),
        (["--n-sig", "-2"], "n_sig must be above 0"),
        (["--n-sig", "nan"], "n_sig must be above 0"),
        (["--seconds", "nan"], "cannot be negative"),
    ],
)
def test_bad_input_gives_an_error_message_without_traceback(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--out", str(tmp_path / "run"), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err


def test_a_closed_pipe_gives_no_traceback(tmp_path: Path) -> None:
    assert main([*SMALL, "--out", str(tmp_path / "run")]) == 0
    command = [sys.executable, "-m", "opd_align.cli", "report", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (1, 141), "1 if rich was writing, which handles a closed pipe itself"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "opd-align analyze" in capsys.readouterr().out


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opd_align.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("opd-align ")


def test_another_estimator_reuses_the_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "backup", tmp_path / "pooled"
    assert main([*SMALL, "--out", str(first)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactFamily, "sample", lambda *_: pytest.fail("sampled again"))
        assert main([*SMALL, "--estimator", "pooled", "--reuse", str(first), "--out", str(second)]) == 0
        capsys.readouterr()
        assert main(["compare", str(first), str(second)]) == 0
    shown = capsys.readouterr().out
    assert "backup" in shown
    assert "pooled" in shown


def test_report_needs_only_a_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--out", str(run)]) == 0
    page, folder = tmp_path / "page.html", tmp_path / "tables"
    assert main(["report", str(run), "--html", str(page), "--tables", str(folder)]) == 0
    assert page.read_bytes() == (run / "report.html").read_bytes()
    assert (folder / "tables.tex").read_text(encoding="utf-8").count(r"\begin{table}") > 3


def test_an_output_directory_with_other_files_is_refused_before_a_model_is_loaded(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("opd_align.study.build.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    assert main(["analyze", "--limit", "1", "--out", str(taken)]) == 2
    assert "is not empty and not a run directory" in capsys.readouterr().err
    assert [file.name for file in taken.iterdir()] == ["notes.txt"]
    assert main(["analyze", "--limit", "1", "--out", str(taken / "notes.txt")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["analyze", "--limit", "1", "--out", str(taken / "notes.txt" / "run")]) == 2
    assert "cannot be created: " in capsys.readouterr().err
    (tmp_path / "loop").symlink_to("loop")
    for link in ("loop", "loop/run"):
        assert main(["analyze", "--limit", "1", "--out", str(tmp_path / link)]) == 2
        assert "is a link to something that does not exist" in capsys.readouterr().err
    assert main(["analyze", "--limit", "1", "--bins", "hard", "--out", str(tmp_path / "run")]) == 2
    assert "bins select from a screening" in capsys.readouterr().err


def test_an_estimate_is_refused_before_anything_is_printed(tmp_path, capsys) -> None:
    none = ["--data", str(tmp_path / "none.jsonl"), "--set", "task={name: mine, kind: number}"]
    for mistake in (none, ["--objectives", ""]):
        assert main(["analyze", "--dry-run", "--limit", "1", "--out", str(tmp_path / "run"), *mistake]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1


def test_a_file_that_is_not_utf8_is_reported_with_the_line(tmp_path, capsys) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes(b'{"question": "a", "answer": "1"}\n{"question": "\xff"}\n')
    assert main(["analyze", "--data", str(data), "--set", "task={name: mine, kind: number}"]) == 2
    assert "line 2: not UTF-8" in capsys.readouterr().err


def test_another_student_is_run_as_the_configuration_says(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("student: {model: a/b, name: old, adapter: lora, dtype: bfloat16, backend: vllm}\n")
    args = _parser().parse_args(["analyze", "--config", str(file), "--student", "c/d"])
    student = _config(args).student
    assert (student.model, student.dtype, student.backend) == ("c/d", "bfloat16", "vllm")
    assert student.name is None
    assert student.adapter is None
