"""Runs of different machines, joined: what one run on all their questions would have made.

The parts share student, teachers, grader and settings; each has questions of its own. Nothing is sampled again, since
no question's rows depend on another question; only the summary is computed anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from opd_align.core.engine import Analysis, dictionary_encoded
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.runs.manifest import joined_manifest, read_manifest
from opd_align.runs.rollout_store import ROLLOUTS, DamagedFileWarning
from opd_align.runs.run_directory import DEMONSTRATIONS, MANIFEST, SPENT, RunDirectory, Usage
from opd_align.runs.shards import DamagedFileError, read_shard
from opd_align.types import OpdAlignError


def merge(runs: Sequence[PathLike], out: PathLike) -> Analysis:
    """Joins finished runs, questions in the order of the runs; refuses those that are no parts of one run."""
    folders = [as_path(run) for run in runs]
    if len(folders) < 2:
        raise OpdAlignError("there is nothing to join: give two runs or more")
    parts = [RunDirectory.load(folder) for folder in folders]
    whole = Analysis(
        dictionary_encoded(pa.concat_tables([part.nodes for part in parts])),
        pa.concat_tables([part.questions for part in parts]),
        parts[0].settings,
        dictionary_encoded(pa.concat_tables([part.children for part in parts])),
        dict(sorted({token: text for part in parts for token, text in part.texts.items()}.items())),
    )
    for folder in folders:
        _check_rollouts(folder)
    shown = [folder / DEMONSTRATIONS for folder in folders if (folder / DEMONSTRATIONS / MANIFEST).exists()]
    described, demonstrated = _described(folders), _described(shown) if shown else {}
    with RunDirectory(out, described) as run:
        _shelve(folders, run)
        if shown:
            with RunDirectory(run.path / DEMONSTRATIONS, demonstrated) as inner:
                _shelve(shown, inner)
        (run.path / SPENT).unlink(missing_ok=True)  # of an earlier merge into the same directory
        run.finish(whole, sum((Usage.of(folder) for folder in folders), Usage()))
    return whole


def _check_rollouts(folder: AnyPath) -> None:
    try:
        if any((folder / ROLLOUTS).glob("*.parquet")):
            return
    except OSError as error:
        raise OpdAlignError(f"cannot look into {str(folder)!r}: {error_reason(error)}") from error
    raise OpdAlignError(f"{str(folder)!r} has no rollouts; the whole needs those of all its parts")


def _described(folders: Sequence[AnyPath]) -> dict[str, Any]:
    manifests = {str(folder): read_manifest(folder / MANIFEST) or {} for folder in folders}
    if len(manifests) < len(folders):
        raise OpdAlignError("the same run is given twice; each may come once")
    return joined_manifest(manifests)


def _shelve(folders: Sequence[AnyPath], run: RunDirectory) -> None:
    """Puts the rollouts of all into one; a batch that is damaged is named and left out."""
    for folder in folders:
        for file in (folder / ROLLOUTS).glob("*.parquet"):
            try:
                batch = read_shard(file)
            except DamagedFileError as error:
                warnings.warn(
                    f"{file} is damaged ({error}); the results are whole, but its batch is not in {run.path}",
                    DamagedFileWarning,
                    stacklevel=3,
                )
                continue
            except OSError as error:
                raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
            if batch is not None and run.shelf.read(file.stem) is None:
                run.shelf.write(file.stem, batch)
