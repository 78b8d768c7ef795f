"""The examples and the code in the README run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The training examples have their own tests.
EXAMPLES = [file for file in sorted((ROOT / "examples").glob("*.py")) if "_with_alignment" not in file.stem]


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples_and_snippets() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "out.svg")] if "FILE.svg" in example.read_text() else []
    assert run(str(example), *arguments).strip()


def test_the_readme_figure_matches_its_script(tmp_path: Path) -> None:
    drawn = tmp_path / "path_values.svg"
    run(str(ROOT / "examples" / "path_values.py"), str(drawn))
    numbers = [
        re.findall(r"\d+(?:\.\d+)?", file.read_text()) for file in (drawn, ROOT / "docs" / "images" / "path_values.svg")
    ]
    assert len(numbers[0]) == len(numbers[1])
    assert all(abs(float(a) - float(b)) < 0.3 for a, b in zip(*numbers, strict=True))
