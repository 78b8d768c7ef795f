"""The command `watch`: evaluates the checkpoints of a training as they appear."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from opd_align.cli.terminal import say

if TYPE_CHECKING:
    from opd_align.training.watch_spec import WatchSpec

STUDY_FLAGS = (
    "config", "student", "teachers", "task", "data", "limit", "questions_from", "bins", "seed", "set", "initial",
    "targeted", "seconds", "allocation", "estimator", "objectives", "n_sig", "backend", "batch",
)  # fmt: skip
"""Flags that describe what to evaluate, for trainings that do not say so themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of watching itself; those of a study follow."""
    group = parser.add_argument_group("watching")
    group.add_argument(
        "--checkpoints", metavar="GLOB",
        help="folders within OUTPUT_DIR to evaluate (default: snapshots of the callback, else every checkpoint)",
    )  # fmt: skip
    group.add_argument("--until-step", type=int, metavar="N", help="stop after step N is evaluated")
    group.add_argument("--idle-timeout", type=float, metavar="S", help="stop after S seconds without a checkpoint")
    group.add_argument("--once", action="store_true", help="evaluate what is there, then stop")
    group.add_argument(
        "--poll", type=float, default=2.0, metavar="S", help="look for checkpoints every S seconds (default: 2)"
    )
    group.add_argument(
        "--settle", type=float, default=5.0, metavar="S",
        help="read a checkpoint after it has not changed for S seconds (default: 5)",
    )  # fmt: skip
    group.add_argument("--device", metavar="DEVICE", help="torch device of all models, such as cuda:1")
    group.add_argument("--verifier", metavar="MODULE:NAME", help="grade with this reward function instead")
    group.add_argument(
        "--wandb", choices=("auto", "training", "own", "off"), default="auto",
        help="log to the W&B run of the training, or to an own one (default: own, if the training reports to W&B)",
    )  # fmt: skip
    group.add_argument(
        "--no-alerts", action="store_true", help="do not warn when a teacher stops helping, or harms the student"
    )


def watch(args: argparse.Namespace) -> int:
    from opd_align.study.checkpoints import check_pattern
    from opd_align.study.watch_config import check_output_dir
    from opd_align.types import OpdAlignError

    check_output_dir(args.directory)
    for name, value in (("idle-timeout", args.idle_timeout), ("poll", args.poll), ("settle", args.settle)):
        if value is not None and not 0 <= value < float("inf"):
            raise OpdAlignError(f"--{name} must be a number of seconds, not {value}")
    if args.until_step is not None and args.until_step < 0:
        raise OpdAlignError(f"--until-step must be 0 or more, not {args.until_step}")
    if args.checkpoints is not None:
        check_pattern(args.checkpoints)
    # What the evaluation logs (excluded questions, verifier failures) belongs to this command's output.
    logging.basicConfig(format="opd-align: %(message)s", level=logging.WARNING)
    count = _watch(args)
    while count is None:
        count = _watch(args)
    say(f"{count} checkpoint{'s' if count != 1 else ''} evaluated")
    return 0


def _watch(args: argparse.Namespace) -> int | None:
    """Watches to the end, and returns the number of evaluations; `None` if the training has other settings by now."""
    from opd_align.report.history import FOLDER

    spec, snapshots = _spec(args)

    from opd_align.study.watch import TrainingRestarted, Until, Watcher
    from opd_align.study.watch_tracking import wandb_rows

    rows = wandb_rows(args.directory / FOLDER, args.wandb, spec.wandb)
    watcher = Watcher(
        args.directory, spec, pattern=args.checkpoints, snapshots=snapshots, poll_s=args.poll, settle_s=args.settle,
        track=rows or (lambda: None), say=say,
    )  # fmt: skip
    say(f"watching {args.directory}; to see the results: opd-align dashboard {args.directory}")
    try:
        return watcher.run(Until(args.until_step, args.idle_timeout, args.once))
    except TrainingRestarted as error:
        say(f"{error}; reading them")
        return None
    finally:
        if rows is not None:
            rows.finish()


def _spec(args: argparse.Namespace) -> tuple[WatchSpec, bool]:
    """What to evaluate, and whether the training leaves snapshots."""
    from opd_align.cli.commands import read_study
    from opd_align.report.history import FOLDER
    from opd_align.study.watch_config import BUDGET, spec_of_study, spec_of_training, with_verifier
    from opd_align.training.watch_spec import read_spec
    from opd_align.types import OpdAlignError

    given = [f"--{flag.replace('_', '-')}" for flag in STUDY_FLAGS if getattr(args, flag)]
    describes_itself = read_spec(args.directory / FOLDER) is not None
    if given and describes_itself:
        raise OpdAlignError(
            f"{given[0]}: this training has an AlignmentCallback with where='outside', which says what to evaluate; "
            f"remove {', '.join(given)}"
        )
    if given:
        named = [flag for flag in ("--config", "--task", "--data") if flag in given]
        if not named and not any(entry.startswith("task") for entry in args.set):
            raise OpdAlignError(f"{given[0]}: there are no held-out questions; name them with --task or --config")
        study = read_study(args, defaults={} if args.config else BUDGET)
        student_named = bool(args.config or args.student or any(entry.startswith("student") for entry in args.set))
        spec = spec_of_study(study, student_named=student_named)
    else:
        spec = spec_of_training(args.directory)
    if args.verifier is not None:
        spec = with_verifier(spec, args.verifier)
    if args.device is not None:
        from opd_align.study.watched_models import on_device

        spec = on_device(spec, args.device)
    if args.no_alerts:
        spec = replace(spec, alerts_on=())
    return spec, not given
