"""`opd-align dashboard`: its help, its arguments, and what it does. Reading and serving is `report.server`."""

from __future__ import annotations

import argparse
from pathlib import Path

from opd_align.cli.terminal import say

DASHBOARD = """\
Shows a running or finished training that uses AlignmentCallback: loss, pass rate, alignment, alarm and overhead first,
then all curves and the tokens of its rollouts. OUTPUT_DIR is the trainer's output_dir. Writes a self-contained HTML
page, serves it on localhost, and updates it until Ctrl-C. Several trainings share the charts.

  opd-align dashboard runs/gkd
  opd-align dashboard all=runs/gkd "incorrect only=runs/gated"    compare trainings, with names of your own
  opd-align dashboard runs/gkd --port 8765        on a remote machine: run ssh -L 8765:127.0.0.1:8765 HOST locally,
                                                  then open the printed address
  opd-align dashboard runs/gkd --once --out training.html                    write the page and exit
"""


def add_dashboard_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="+", metavar="OUTPUT_DIR", help="output_dir of a trainer, or NAME=OUTPUT_DIR; any number"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="HTML file to write (default: OUTPUT_DIR/opd_align/dashboard.html)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to serve on (default: any free port)")
    parser.add_argument("--once", action="store_true", help="write the page and exit")


def dashboard(args: argparse.Namespace) -> int:
    from opd_align.report.history import named_trainings
    from opd_align.report.server import DashboardServer, DashboardState

    folders = named_trainings(args.directories)
    state, file = DashboardState(folders), args.out or next(iter(folders.values())) / "dashboard.html"
    if args.once:
        print(f"page       {state.write(file).resolve().as_uri()}")
        return 0
    with DashboardServer(state, args.port) as server:
        page = state.write(file)
        print(f"page       {page.resolve().as_uri()}")
        print(f"dashboard  {server.url}    press Ctrl-C to stop", flush=True)
        try:
            server.follow(page)
        except KeyboardInterrupt:
            say()
    return 0
