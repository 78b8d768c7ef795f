"""Finished runs of `comparison.py`: a file each while they are made, and all of them in comparison_results.json.

That file is part of the repository, so that the tables can be made again without training, and that somebody who adds
an arm or a seed does not have to repeat the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _comparison_regimes import COMMON, REGIMES

STORED = Path(__file__).with_name("comparison_results.json")
KEPT_METRICS = ("/alignment/weighted", "/alignment/weighted_half_width", "student/pass_rate")
"""Ends of the names of the metrics that the results use; evaluations have a hundred others."""

Run = dict[str, Any]
Key = tuple[str, str, int]


def settings_of(regime: str) -> dict[str, Any]:
    return {**REGIMES[regime].settings, **COMMON}


def key_of(run: Run) -> Key:
    return run["regime"], run["arm"], run["seed"]


def file_of(folder: Path, key: Key) -> Path:
    return folder / "{}-{}-{}.json".format(*key)


def runs_in(folder: Path, stored: Path | None = None) -> dict[Key, Run]:
    """The runs with the present settings in a folder, and those of a file of stored runs."""
    found: list[Run] = json.loads(stored.read_text(encoding="utf-8")) if stored and stored.is_file() else []
    found += [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*-*-*.json"))]
    return {key_of(run): run for run in found if run["settings"] == settings_of(run["regime"])}


def store(runs: Iterable[Run], file: Path) -> None:
    """Writes runs to one file, a line each, without what the results do not use."""
    lines = [json.dumps(_compact(run)) for run in sorted(runs, key=key_of)]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _compact(run: Run) -> Run:
    history = [
        line | {"metrics": {name: value for name, value in line["metrics"].items() if name.endswith(KEPT_METRICS)}}
        for line in run["history"]
    ]
    return run | {"history": history}
