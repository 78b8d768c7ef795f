"""`opd-align export`: pivotal decisions of a run as JSON lines and as preference pairs."""

from __future__ import annotations

import argparse

from opd_align.cli.terminal import say


def export(args: argparse.Namespace) -> int:
    from opd_align.runs.filesystem import check_output, real_path
    from opd_align.runs.run_directory import RunDirectory
    from opd_align.study.export import pivotal_rows, preference_pairs, write_json_lines
    from opd_align.types import OpdAlignError, counted

    if args.pivotal is None and args.preferences is None:
        raise OpdAlignError("nothing to write: name --pivotal FILE, --preferences FILE, or both")
    files = [file for file in (args.pivotal, args.preferences) if file is not None]
    if len({str(real_path(file)) for file in files}) < len(files):
        raise OpdAlignError(f"--pivotal and --preferences both name {str(args.pivotal)!r}; name two files")
    for file in files:
        check_output(file)
    analysis = RunDirectory.load(args.directory)
    thresholds = {"min_difference": args.min_difference, "confidence": args.confidence}
    if args.pivotal is not None:
        rows = pivotal_rows(analysis, **thresholds)
        write_json_lines(args.pivotal, rows)
        say(f"{args.pivotal}: {counted(len(rows), 'pivotal decision')}")
    if args.preferences is not None:
        found = preference_pairs(
            args.directory, analysis, tokenizer=args.tokenizer, pairs_per_decision=args.pairs_per_decision, **thresholds
        )
        write_json_lines(args.preferences, found.rows)
        without = f"; {found.n_without} have no rollouts for a pair" if found.n_without else ""
        pairs, decisions = counted(len(found.rows), "preference pair"), counted(found.n_decisions, "decision")
        say(f"{args.preferences}: {pairs} at {decisions}{without}")
    return 0
