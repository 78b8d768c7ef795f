"""Trainings for the tests of history and dashboard."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.made_trainings import made_training


@pytest.fixture(scope="session")
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
