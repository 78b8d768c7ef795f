"""The command line: what a person types, and what comes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opd_align.alignment import SCHEMA
from opd_align.cli import main

SMALL = ["analyze", "--questions", "2", "--length", "40", "--initial", "60", "--targeted", "600"]


def test_analyze_prints_the_tables_and_writes_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nodes.parquet"
    assert main([*SMALL, "--objectives", "reverse_kl,dr_grpo", "--nodes", str(file)]) == 0
    shown = capsys.readouterr().out
    for heading in (
        "Questions",
        "Does following the teacher help?",
        "Correct against incorrect",
        "Divergence as a filter",
    ):
        assert heading in shown
    # The tilted teacher leans toward success and the adversarial one away from it: the ranking must tell them apart.
    ranking = shown[shown.index("(reverse_kl)") : shown.index("ceiling:")]
    assert "style" in ranking
    assert ranking.index("tilted") < ranking.index("adversarial")
    nodes = pq.read_table(file)
    assert nodes.column_names == SCHEMA.names
    assert set(nodes["objective"].to_pylist()) == {"reverse_kl", "dr_grpo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimator", "bakcup"], "did you mean 'backup'?"),
        (["--allocation", "papre"], "did you mean 'paper'?"),
        (["--objectives", "reverse_lk"], "did you mean 'reverse_kl'?"),
        (["--objectives", ""], "no objective"),
        (["--questions", "0"], "at least 1"),
        (["--length", "2"], "length >= 4"),
        (["--forks", "1.5"], "forks must lie in [0, 1]"),
        (["--initial", "0"], "initial must be at least 1"),
        (["--nodes", "no/such/folder/nodes.parquet"], "does not exist"),
    ],
)
def test_bad_input_is_refused_in_the_users_words(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "opd-align analyze" in capsys.readouterr().out


def test_the_installed_command_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opd_align.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("opd-align ")
