"""Finished runs of `comparison.py`: a file each while they are made, and all of them in comparison_results.json.

That file is part of the repository, so that the tables can be made again without training, and that somebody who adds
an arm or a seed does not have to repeat the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _comparison_regimes import COMMON, ORACLE_ROLLOUTS, ORACLES, REGIMES

STORED = Path(__file__).with_name("comparison_results.json")
KEPT_METRICS = ("/alignment/weighted", "/alignment/weighted_half_width", "student/pass_rate")
"""Ends of the names of the metrics that the results use; evaluations have a hundred others."""

Run = dict[str, Any]
Key = tuple[str, str, int]


def settings_of(regime: str, arm: str) -> dict[str, Any]:
    """What a run depends on; one that was made with other settings is not used."""
    oracle = {"oracle_rollouts": ORACLE_ROLLOUTS} if arm in ORACLES else {}
    return {**REGIMES[regime].settings, **COMMON, **oracle}


def key_of(run: Run) -> Key:
    return run["regime"], run["arm"], run["seed"]


def file_of(folder: Path, key: Key) -> Path:
    return folder / "{}-{}-{}.json".format(*key)


def runs_in(folder: Path, stored: Path | None = None) -> dict[Key, Run]:
    """The runs with the present settings in a folder, and those of a file of stored runs."""
    found = [
        *_read(stored),
        *(json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*-*-*.json"))),
    ]
    return {key_of(run): run for run in found if _is_present(run)}


def store(runs: Iterable[Run], file: Path) -> None:
    """Adds runs to a file, a line each, without what the results do not use; runs with other settings stay in it."""
    kept = {_identity(run): run for run in [*_read(file), *map(_compact, runs)]}
    lines = [json.dumps(run) for _, run in sorted(kept.items())]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _read(file: Path | None) -> list[Run]:
    found: list[Run] = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else []
    return found


def _is_present(run: Run) -> bool:
    return run["regime"] in REGIMES and run["settings"] == settings_of(run["regime"], run["arm"])


def _identity(run: Run) -> tuple[str, str, int, str]:
    return *key_of(run), json.dumps(run["settings"], sort_keys=True)


def _compact(run: Run) -> Run:
    history = [
        line | {"metrics": {name: value for name, value in line["metrics"].items() if name.endswith(KEPT_METRICS)}}
        for line in run["history"]
    ]
    return run | {"history": history}
