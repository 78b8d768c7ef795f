"""Merging of runs, for example of several machines, into the run that one machine would have made of all questions.

The runs share student, teachers, grader and settings; each has different questions. Nothing is sampled again, since
no question's rows depend on another question; only the summary is recomputed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from opd_align.core.engine import Analysis, dictionary_encoded
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.runs.manifest import merge_manifests, read_manifest
from opd_align.runs.rollout_store import ROLLOUTS, DamagedFileError, DamagedFileWarning, read_shard
from opd_align.runs.run_directory import DEMONSTRATIONS, MANIFEST, SPENT, RunDirectory, Usage
from opd_align.runs.run_prompts import RunPrompts
from opd_align.types import OpdAlignError


def merge(runs: Sequence[PathLike], out: PathLike) -> Analysis:
    """Merges finished runs into the run directory `out`, with questions in the order of the runs.

    Raises `RunMismatch` if the runs differ in anything but their questions.
    """
    folders = [as_path(run) for run in runs]
    if len(folders) < 2:
        raise OpdAlignError("merging needs at least two runs")
    parts = [RunDirectory.load(folder) for folder in folders]
    merged = Analysis(
        dictionary_encoded(pa.concat_tables([part.nodes for part in parts])),
        pa.concat_tables([part.questions for part in parts]),
        parts[0].settings,
        dictionary_encoded(pa.concat_tables([part.children for part in parts])),
        dict(sorted({token: text for part in parts for token, text in part.texts.items()}.items())),
    )
    for folder in folders:
        _check_rollouts(folder)
    demonstrations = [folder / DEMONSTRATIONS for folder in folders if (folder / DEMONSTRATIONS / MANIFEST).exists()]
    manifest, demonstrations_manifest = _manifest(folders), _manifest(demonstrations) if demonstrations else {}
    with RunDirectory(out, manifest) as run:
        _copy_rollouts(folders, run)
        if demonstrations:
            with RunDirectory(run.path / DEMONSTRATIONS, demonstrations_manifest) as inner:
                _copy_rollouts(demonstrations, inner)
        (run.path / SPENT).unlink(missing_ok=True)  # from an earlier merge into the same directory
        prompts = RunPrompts.merged([RunPrompts.load(folder) for folder in folders])
        if prompts is not None:
            prompts.save(run.path)
        run.finish(merged, sum((Usage.load(folder) for folder in folders), Usage()))
    return merged


def _check_rollouts(folder: AnyPath) -> None:
    try:
        if any((folder / ROLLOUTS).glob("*.parquet")):
            return
    except OSError as error:
        raise OpdAlignError(f"cannot read {str(folder)!r}: {error_reason(error)}") from error
    raise OpdAlignError(f"{str(folder)!r} has no rollouts; merging needs the rollouts of every run")


def _manifest(folders: Sequence[AnyPath]) -> dict[str, Any]:
    manifests = {str(folder): read_manifest(folder / MANIFEST) or {} for folder in folders}
    if len(manifests) < len(folders):
        raise OpdAlignError("the same run is given twice; each may occur only once")
    return merge_manifests(manifests)


def _copy_rollouts(folders: Sequence[AnyPath], run: RunDirectory) -> None:
    """Copies the rollouts of all folders into one run; a damaged batch is skipped with a warning."""
    for folder in folders:
        for file in (folder / ROLLOUTS).glob("*.parquet"):
            try:
                batch = read_shard(file)
            except DamagedFileError as error:
                warnings.warn(
                    f"{file} is damaged ({error}); the results are complete, but its batch is missing in {run.path}",
                    DamagedFileWarning,
                    stacklevel=3,
                )
                continue
            except OSError as error:
                raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
            if batch is not None and run.store.read(file.stem) is None:
                run.store.write(file.stem, batch)
