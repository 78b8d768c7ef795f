"""Runs of different machines, joined: what one run on all their questions would have made.

The parts share student, teachers, grader and settings; each has questions of its own. Nothing is sampled again, since
no question's rows depend on another question; only the summary is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from opd_align.engine import Analysis, encoded
from opd_align.manifest import joined_manifest, read_manifest
from opd_align.place import Address, Place, place
from opd_align.shelf import ROLLOUTS, Shelf
from opd_align.store import DEMONSTRATIONS, MANIFEST, RunDirectory, Spent
from opd_align.types import OpdAlignError


def merge(runs: Sequence[Address], out: Address) -> Analysis:
    """Joins finished runs, questions in the order of the runs; refuses those that are no parts of one run."""
    folders = [place(run) for run in runs]
    if len(folders) < 2:
        raise OpdAlignError("there is nothing to join: give two runs or more")
    parts = [RunDirectory.load(folder) for folder in folders]
    whole = Analysis(
        encoded(pa.concat_tables([part.nodes for part in parts])),
        pa.concat_tables([part.questions for part in parts]),
        parts[0].settings,
        encoded(pa.concat_tables([part.children for part in parts])),
        dict(sorted({token: text for part in parts for token, text in part.texts.items()}.items())),
    )
    with _shelved(folders, place(out)) as run:
        shown = [folder / DEMONSTRATIONS for folder in folders if (folder / DEMONSTRATIONS / MANIFEST).exists()]
        if shown:
            _shelved(shown, run.path / DEMONSTRATIONS).close()
        run.finish(whole, sum((Spent.of(folder) for folder in folders), Spent()))
    return whole


def _shelved(folders: Sequence[Place], out: Place) -> RunDirectory:
    """A run directory with the rollouts of all."""
    manifests = {str(folder): read_manifest(folder / MANIFEST) or {} for folder in folders}
    if len(manifests) < len(folders):
        raise OpdAlignError("the same run is given twice; each may come once")
    run = RunDirectory(out, joined_manifest(manifests))
    for folder in folders:
        shelf = Shelf(out, reuse=folder)
        for file in (folder / ROLLOUTS).glob("*.parquet"):
            shelf.read(file.stem)  # from there, if it is whole
    return run
