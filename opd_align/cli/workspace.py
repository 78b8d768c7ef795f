"""The command `workspace`: a W&B workspace for a training, with what to watch first."""

from __future__ import annotations

import argparse
from pathlib import Path

from opd_align.cli.terminal import say

DESCRIPTION = """\
Makes a W&B workspace for a training that reports to W&B: what to watch first, then the alarm, then the charts of the
dashboard. The keys are those that the training has logged, so it needs at least one evaluation.

  opd-align workspace runs/gkd --project my-team/distillation
  opd-align workspace runs/gkd --project my-team/distillation --dry-run       sections and keys; nothing is sent
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("directory", type=Path, metavar="OUTPUT_DIR", help="output_dir of the training")
    parser.add_argument("--project", required=True, metavar="ENTITY/PROJECT", help="where the training's W&B runs are")
    parser.add_argument(
        "--name", default="opd-align", metavar="NAME", help="name of the workspace (default: opd-align)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print sections, charts and keys; nothing is sent")


def workspace(args: argparse.Namespace) -> int:
    """Makes the workspace, or prints it."""
    from opd_align.report.history import read_training, training_folder
    from opd_align.report.workspace import build_workspace, workspace_sections
    from opd_align.types import OpdAlignError

    entity, slash, project = args.project.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise OpdAlignError(f"--project must be ENTITY/PROJECT, as in the address of the project, not {args.project!r}")
    sections = workspace_sections(read_training(training_folder(args.directory)))
    made = build_workspace(sections, entity=entity, project=project, name=args.name)
    if args.dry_run:
        for section in sections:
            say(section.title)
            for panel in section.panels:
                say(f"  {panel.title}: {', '.join(panel.keys)}")
        return 0
    try:
        made.save()
    except Exception as error:  # not logged in, no connection, no such project
        raise OpdAlignError(f"W&B did not accept the workspace: {type(error).__name__}: {error}") from error
    say(f"workspace {args.name!r}: {made.url}")
    return 0
