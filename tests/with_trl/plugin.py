"""A pytest plugin for a run of TRL's own tests: puts our trainers in the place of TRL's, and the stand-ins of `hub`.

`OPD_ALIGN_TRL_MODE` says which trainers ("plain": TRL's own), `OPD_ALIGN_TRL_RESULTS` where outcomes are written,
`OPD_ALIGN_TRL_BASELINE` where those with TRL's own trainers are: what did not pass there is not tried with ours.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
from trl import import_utils

from with_trl import hub

RESULTS: dict[str, list[str]] = {}


def pytest_configure() -> None:
    datasets.load_dataset = hub.load_dataset
    # Tests of another version may ask for libraries that the installed TRL does not know.
    import_utils.__getattr__ = _unknown_library


def _unknown_library(name: str) -> Any:
    if name.startswith("is_") and name.endswith("_available"):
        return lambda: False
    raise AttributeError(name)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    baseline = os.environ.get("OPD_ALIGN_TRL_BASELINE")
    if baseline is None:
        return
    outcomes = json.loads(Path(baseline).read_text())
    passed = {item.nodeid for item in items if outcomes.get(item.nodeid, [""])[0] == "passed"}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in passed])
    items[:] = [item for item in items if item.nodeid in passed]


def pytest_collection_finish(session: Any) -> None:
    from with_trl.substitutes import SUBSTITUTES

    for module in {item.module for item in session.items}:
        for name, kind in SUBSTITUTES[os.environ["OPD_ALIGN_TRL_MODE"]].items():
            if hasattr(module, name):
                setattr(module, name, kind)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        RESULTS[report.nodeid] = ["not collected", str(report.longrepr).strip().splitlines()[-1]]
        _write()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or (report.outcome != "passed" and report.nodeid not in RESULTS):
        crash = getattr(report.longrepr, "reprcrash", None)
        RESULTS[report.nodeid] = [report.outcome, crash.message.splitlines()[0] if crash else ""]
        _write()


def _write() -> None:
    """After every test: a run that is cut short still shows what it did."""
    Path(os.environ["OPD_ALIGN_TRL_RESULTS"]).write_text(json.dumps(RESULTS, indent=1))
