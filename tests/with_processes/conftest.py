"""Launches that several tests look at, each made once: processes take longer to start than to train a little."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import once, run_script

FOLDER = Path(__file__).parent

WATCHED = {
    None: ("distillation", "gkd"),
    "ddp": ("distillation", "distillation-unwatched", "own-folders", "outside"),
    "zero2": ("distillation",),
    "zero3": ("distillation", "gkd-extra", "gkd-unwatched", "outside"),
    "fsdp2": ("distillation", "distillation-unwatched", "gkd", "gkd-unwatched"),
}
"""The runs of watched.py in one process, and in two."""

CASES: dict[str, dict[str, Any]] = {
    "gkd-quantile": {"trainer": "gkd", "gate": "quantile", "denominator": "renormalise"},
    "gkd-threshold": {"trainer": "gkd", "gate": "threshold", "denominator": "keep"},
    "distillation": {"trainer": "distillation", "gate": "quantile", "denominator": "renormalise"},
    "overflow": {"trainer": "distillation", "gate": "beginning", "denominator": "keep", "overflow": True},
    "grpo": {"trainer": "grpo", "gate": "incorrect", "denominator": "keep"},
    "ungated": {"trainer": "distillation", "gate": "beginning", "denominator": "keep", "ungated": True},
}
"""The runs of gated_run.py."""

GATED = {
    "ddp": ("gkd-quantile", "gkd-threshold", "distillation", "overflow", "grpo"),
    "zero2": ("gkd-quantile", "distillation", "ungated"),
    "zero3": ("gkd-threshold", "distillation", "overflow", "grpo"),
    "fsdp2": ("gkd-threshold", "distillation", "grpo"),
}
"""Those of each launch; one process has the same as DDP."""


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Path]:
    """The folder with the runs of a launch, by name."""

    @once
    def folder_of(launcher: str | None) -> Path:
        folder = tmp_path_factory.mktemp(f"watched-{launcher or 'one'}")
        run_script(FOLDER / "watched.py", launcher, str(folder), *WATCHED[launcher])
        return folder

    return folder_of


@pytest.fixture(scope="session")
def evaluated_again(watched: Any) -> Callable[[str], Path]:
    """The folder of a launch, where one process has evaluated the final models again."""

    @once
    def folder_of(launcher: str) -> Path:
        folder: Path = watched(launcher)
        kinds = [kind for kind in ("distillation", "gkd") if kind in WATCHED[launcher]]
        for kind in kinds:
            (folder / f"{kind}-again" / "opd_align").mkdir(parents=True)
            shutil.copy(folder / kind / "opd_align" / "demonstrations.json", folder / f"{kind}-again" / "opd_align")
        run_script(FOLDER / "watched.py", None, str(folder), *(f"{kind}-again" for kind in kinds))
        return folder

    return folder_of


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], dict[str, Any]]:
    """The results of the gated runs of a launch, by name."""

    @once
    def results_of(launcher: str | None) -> dict[str, Any]:
        cases = tmp_path_factory.mktemp(f"gated-{launcher or 'one'}") / "cases.json"
        cases.write_text(json.dumps({name: CASES[name] for name in GATED[launcher or "ddp"]}))
        run_script(FOLDER / "gated_run.py", launcher, str(cases))
        return dict(json.loads(cases.with_name("results.json").read_text()))

    return results_of
