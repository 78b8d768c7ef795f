"""Which code made a run of `comparison.py`: version of the package and git commit, and a line of the results about it.

Runs that were made before this was recorded are valid, and of an unknown version.
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import opd_align

UNKNOWN = "unknown"

ESTIMATOR = (
    "Alignments, and what follows them (schedules by alignment, the weights of `mix`), are of the estimator of their "
    "version, before the last change of its prior and before `adaptive` sampled every token at least once; so are the "
    "estimates of the oracle gates."
)
"""True of the stored runs: remove it when they are trained again."""

Versions = Mapping[tuple[str, str], Mapping[int, str]]
"""Version of each seed, by title of the regime and arm."""


def made_with() -> dict[str, str]:
    """What a run that starts now is made with; "-dirty" after a commit: the code had changes that are not in it."""
    return {"opd_align": opd_align.__version__, "commit": _commit(Path(__file__).parent)}


def version_of(run: Mapping[str, Any]) -> str:
    """The version of a run, for a reader."""
    made = run.get("made_with")
    return f"opd_align {made['opd_align']}, commit {made['commit']}" if made else UNKNOWN


def version_line(versions: Versions) -> str | None:
    """Which trainings were made by which version; `None` if all were made by the same one."""
    runs = Counter(version for seeds in versions.values() for version in seeds.values())
    if len(runs) < 2:
        return None
    (most, _), *others = runs.most_common()
    words = [f"{version} ({_trainings(version, versions)})" for version, _ in others]
    return f"Trainings were made with different versions of the code: {'; '.join(words)}; all others: {most}."


def _trainings(version: str, versions: Versions) -> str:
    """The arms that a version made, by regime; with their seeds if it did not make all of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for (title, arm), seeds in versions.items():
        own = [seed for seed, each in seeds.items() if each == version]
        if own:
            part = "" if len(own) == len(seeds) else f" with seed {', '.join(map(str, own))}"
            found[title].append(f"`{arm}`{part}")
    return "; ".join(f'"{title}": {", ".join(arms)}' for title, arms in found.items())


def _commit(folder: Path) -> str:
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD").stdout.strip()
        # Of the code alone: every call that trains also changes the stored runs, which later calls do not depend on.
        changed = _git(folder, "diff", "--quiet", "HEAD", "--", "*.py", "../opd_align").returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return commit + ("-dirty" if changed else "") if commit else UNKNOWN


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
