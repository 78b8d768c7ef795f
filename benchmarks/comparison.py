"""Compares gates, mixes of teachers and schedules: trains the embedded models with all of them, several seeds each.

    make recipes-results                            # all runs, two at a time; continues after an interruption
    python benchmarks/comparison.py --report        # only the tables and the plot, from the finished runs
    python benchmarks/comparison.py --regimes harmful --arms ungated sign_agrees
    python benchmarks/comparison.py --regimes harmful --arms ungated --again --folder build/again

Each run is a process of its own and writes a file to build/comparison; benchmarks/comparison_results.json has all that
were made so far, with the version of the code that made them. They are not made again, except with `--again`, which
replaces them. recipes/RESULTS.md and its plot are made from them alone. `--quick` makes two steps of some arms in one
process: it shows that the script works, nothing more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from _comparison_regimes import ARM_TEXTS, COMMON, REGIMES, SHORT
from _comparison_results import load, must_show, write_results
from _comparison_store import STORED, Key, file_of, runs_in, store
from _comparison_training import train

SEEDS = 5
QUICK = {"steps": 2, "every": 1, "questions": 2, "initial": 8, "targeted": 8}
QUICK_RUNS = (
    ("good", "ungated"),
    ("good", "control_sign_agrees"),
    ("good", "oracle_sign"),
    ("mixture", "mix"),
    ("mixture", "equal"),
    ("reward", "handover"),
)


def wanted_runs(regimes: Sequence[str], arms: Sequence[str], seeds: int) -> list[Key]:
    """Seeds in the outer loop: after an interruption all arms have about the same number of runs."""
    return [
        (regime, arm, seed)
        for seed in range(seeds)
        for regime in regimes
        for arm in REGIMES[regime].trained
        if arm in arms
    ]


def missing_runs(folder: Path, wanted: Sequence[Key], *, again: bool) -> list[Key]:
    """The wanted runs without a result; with `again`, only results in the folder count, not stored ones."""
    known = runs_in(folder, None if again else STORED)
    return [run for run in wanted if run not in known]


def run_all(folder: Path, wanted: Sequence[Key], processes: int, *, again: bool = False) -> None:
    """Runs what has no result yet, several at a time, each in a process of its own."""
    missing = missing_runs(folder, wanted, again=again)
    print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished", flush=True)
    # Imports take as long as ten steps: the server has made them, and every run is a fork of it.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    context = get_context("forkserver")
    context.set_forkserver_preload(["_comparison_training"])

    def run_one(run: Key) -> None:
        file = file_of(folder, run)
        process = context.Process(target=train_with_log, args=(run, file))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{run} failed: see {file.with_suffix('.log')}")
        print("{}, {}, seed {}: {:.0f} s".format(*run, json.loads(file.read_text())["seconds"]), flush=True)

    with ThreadPoolExecutor(processes) as pool:
        for _ in pool.map(run_one, missing):
            pass


def train_with_log(run: Key, file: Path) -> None:
    """One run; what it prints goes to a file beside its result."""
    with file.with_suffix(".log").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        train(*run, file)


def quick(folder: Path) -> None:
    """A few steps of some arms; every regime has the settings of a small one."""
    for regime in REGIMES.values():
        regime.settings.update(QUICK)  # type: ignore[attr-defined]
    SHORT.update(QUICK)
    COMMON["accuracy_questions"] = 8
    for regime, arm in QUICK_RUNS:
        train(regime, arm, 0, file_of(folder, (regime, arm, 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/comparison"), help="folder of the result files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "recipes" / "RESULTS.md")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--arms", nargs="+", choices=list(ARM_TEXTS), default=list(ARM_TEXTS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per arm")
    parser.add_argument("--processes", type=int, default=2, help="number of runs at a time")
    parser.add_argument("--report", action="store_true", help="no training, only tables and plots")
    parser.add_argument(
        "--again", action="store_true", help="train also what is stored, unless the folder has it, and replace it"
    )
    parser.add_argument("--one", nargs=3, metavar=("REGIME", "ARM", "SEED"), help="a single run, in this process")
    parser.add_argument("--quick", action="store_true", help="a few steps of some arms: the figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.one:
        regime, arm, seed = arguments.one
        train(regime, arm, int(seed), file_of(arguments.folder, (regime, arm, int(seed))))
        return
    if arguments.quick:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            quick(folder)
            regimes = load(runs_in(folder).values())
            write_results(regimes, folder / "RESULTS.md")
    else:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        if not arguments.report:
            wanted = wanted_runs(arguments.regimes, arguments.arms, arguments.seeds)
            run_all(arguments.folder, wanted, arguments.processes, again=arguments.again)
        runs = runs_in(arguments.folder, STORED)
        if not runs:
            raise SystemExit(f"no finished runs in {arguments.folder}; run without --report first")
        store(runs.values(), STORED)
        regimes = load(runs.values())
        write_results(regimes, arguments.out)
    found = must_show(regimes)
    for name, value in found.items():
        print(f"{name}: {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
