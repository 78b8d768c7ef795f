"""The command line: a thin door to the engine.

Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from opd_align.engine import Analysis, Settings
    from opd_align.study import Study

ABOUT = """\
At each token of a student's reasoning, does the teacher's distillation update point toward success?

  opd-align analyze                     an exact world, whose truth is known; about half a minute
  opd-align analyze --out runs/first    the same in a run directory: kept, and continued after an interruption
  opd-align report runs/first           the tables of a finished run
  opd-align analyze --help              what can be chosen
"""

ANALYZE = """\
Samples rollouts, grows a generation tree around a few of them, estimates the success probability of each next
token, and compares the ideal update with the one each teacher's loss would make.

The student is a family of exact worlds: automaton language models whose success probabilities are known in closed
form, so that the tables can be checked. Teachers: `tilted` leans toward success, `style` disagrees only where nothing
is at stake, `adversarial` leans toward failure.

  opd-align analyze --questions 8 --length 200
  opd-align analyze --objectives reverse_kl,forward_kl,dr_grpo --estimator pooled
  opd-align analyze --allocation adaptive --targeted 5000 --nodes nodes.parquet
  opd-align analyze --out runs/first --batch 2000
"""

SCREEN = """\
Samples every question under the plain prompt and under each context (a correct demonstration, a correct and a wrong
one, ...), and tables pass rates by context and difficulty. Interrupted, the same command goes on.

  opd-align screen --student HuggingFaceTB/SmolLM2-135M-Instruct --task boolq --limit 20 --out runs/screen
  opd-align screen --student model.gguf --task gsm8k --data gsm8k.jsonl --teachers Self-1C,Self-1C1W --out runs/screen
  opd-align screen --config boolq.yaml --set demonstrations.trials=20 --out runs/screen
"""

PROMPT = """\
Prints what the student and every teacher read for a question, special tokens included. Demonstrations come from a
screening (--demonstrations-from), or are shown as placeholders.

  opd-align show-prompt --student Qwen/Qwen3-0.6B --task mmlu --limit 1 --teachers Self-1C,Self-1C1W
"""

REPORT = """\
Prints the tables of a finished run directory. Nothing is computed by a model, nothing is written.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `opd-align`; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"opd-align {version('opd-align')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    from opd_align.types import OpdAlignError

    try:
        return int(args.run(args))
    except OpdAlignError as error:
        print(f"opd-align: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        out = getattr(args, "out", None)
        hint = f"; what is finished is in {out}, and the same command goes on from there" if out else ""
        print(f"opd-align: interrupted{hint}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("opd-align", description=ABOUT, formatter_class=_Formatter)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    analyze = commands.add_parser(
        "analyze", help="measure alignment, token by token", description=ANALYZE, formatter_class=_Formatter
    )
    analyze.set_defaults(run=_analyze)
    world = analyze.add_argument_group("the exact world")
    world.add_argument("--questions", type=int, default=6, metavar="N", help="how many worlds (default: %(default)s)")
    world.add_argument("--length", type=int, default=120, help="typical completion length (default: %(default)s)")
    world.add_argument("--forks", type=float, default=1 / 3, help="share of forking positions (default: 0.33)")
    world.add_argument(
        "--stakes", type=float, default=1.0, help="how much ordinary forks matter (default: %(default)s)"
    )
    work = analyze.add_argument_group("the work")
    work.add_argument("--initial", type=int, default=200, metavar="G", help="initial rollouts (default: %(default)s)")
    work.add_argument("--targeted", type=int, metavar="N", help="at most N targeted rollouts a question")
    work.add_argument("--seconds", type=float, help="stop enriching a question after this time")
    work.add_argument("--allocation", default="paper", help="paper or adaptive (default: %(default)s)")
    work.add_argument("--estimator", default="backup", help="backup, direct or pooled (default: %(default)s)")
    work.add_argument("--objectives", default="reverse_kl", help="comma-separated (default: %(default)s)")
    work.add_argument("--n-sig", type=float, default=20, help="effective visits a child needs (default: %(default)s)")
    work.add_argument("--seed", type=int, default=0, help="of worlds and draws (default: %(default)s)")
    work.add_argument("--batch", type=int, default=8192, help="rollouts asked for at a time (default: %(default)s)")
    work.add_argument("--workers", type=int, default=1, help="questions worked on at a time (default: %(default)s)")
    output = analyze.add_argument_group("the result")
    output.add_argument("--out", type=Path, metavar="DIR", help="run directory: every finished batch is kept there")
    output.add_argument("--nodes", type=Path, metavar="FILE", help="write the table of nodes as Parquet")
    screen = commands.add_parser(
        "screen", help="pass rates by context and difficulty", description=SCREEN, formatter_class=_Formatter
    )
    screen.set_defaults(run=_screen)
    _study_arguments(screen)
    screen.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="run directory; continued if it is there"
    )
    prompt = commands.add_parser(
        "show-prompt", help="what student and teachers read", description=PROMPT, formatter_class=_Formatter
    )
    prompt.set_defaults(run=_show_prompt)
    _study_arguments(prompt)
    prompt.add_argument("--demonstrations-from", type=Path, metavar="DIR", help="a finished screening")
    report = commands.add_parser(
        "report", help="print the tables of a run directory", description=REPORT, formatter_class=_Formatter
    )
    report.set_defaults(run=_report)
    report.add_argument("directory", type=Path, metavar="DIR", help="what was given to analyze --out")
    return parser


def _study_arguments(parser: argparse.ArgumentParser) -> None:
    """What names a study; each is short for a key of the configuration."""
    group = parser.add_argument_group("the study")
    group.add_argument("--config", type=Path, metavar="FILE", help="YAML; flags and --set win over it")
    group.add_argument("--student", metavar="MODEL", help="folder, .gguf file, Hub name, or embedded:student")
    group.add_argument("--teachers", metavar="LIST", help="contexts (Self-1C, ...) and models, comma-separated")
    group.add_argument("--task", metavar="NAME", help="boolq, mmlu, gsm8k, aime2024, aime2025, ...")
    group.add_argument("--data", metavar="FILE", help="questions from a file instead of the Hub")
    group.add_argument("--limit", type=int, metavar="N", help="at most N questions")
    group.add_argument("--questions-from", metavar="DIR", help="questions of a screening, in the bins of --bins")
    group.add_argument("--bins", metavar="LIST", help="difficulty, such as medium,hard")
    group.add_argument("--seed", type=int, metavar="N", help="of all draws")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key, dots for depth")


def _study(args: argparse.Namespace) -> Study:
    from opd_align.config import read_config
    from opd_align.study import Study

    short = {
        "student": args.student, "teachers": args.teachers, "task": args.task, "questions.file": args.data,
        "questions.limit": args.limit, "questions.screening": args.questions_from, "questions.bins": args.bins,
        "seed": args.seed,
    }  # fmt: skip
    flags = [f"{key}={value}" for key, value in short.items() if value is not None]
    study = Study(read_config(args.config, [*flags, *args.set]))
    study.check()
    return study


def _screen(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.screening import screening_tables
    from opd_align.report.tables import rendered
    from opd_align.screen import load_screening

    study = _study(args)
    with _bars() as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done, total=max(of, 1))

        study.screen(on_progress=show).into(args.out, study.questions)
    Console().print(rendered(screening_tables(*load_screening(args.out))))
    print(
        f"the screening is in {args.out}; to analyze its questions: opd-align analyze --questions-from {args.out} ..."
    )
    return 0


def _show_prompt(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from opd_align.screen import load_screening
    from opd_align.teachers import Demonstration

    study = _study(args)
    found = load_screening(args.demonstrations_from)[1] if args.demonstrations_from else None
    for question in study.questions:
        for role in [None, *study.roles]:
            context = role.context if role else None
            shown = found
            if shown is None and context is not None:
                kinds = [("correct", context.correct), ("wrong", context.wrong)]
                shown = {
                    question.id: [
                        Demonstration(
                            question.id,
                            context.source,
                            at,
                            kind == "correct",
                            f"{{{kind} response {at + 1}}}",
                            f"{{summary of {kind} response {at + 1}}}",
                        )
                        for kind, count in kinds
                        for at in range(count)
                    ]
                }
            prompting = replace(study.prompting, context=context, demonstrations=shown or {})
            print(f"── {question.id} · {role.name if role else 'student'} · {len(prompting(question)):,} tokens")
            print(prompting.shown(question))
            print()
    return 0


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


def _analyze(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if args.nodes and not args.nodes.parent.is_dir():
        from opd_align.types import OpdAlignError

        raise OpdAlignError(f"the folder of {str(args.nodes)!r} does not exist; make it, or write elsewhere")
    from rich.console import Console

    from opd_align.report.tables import all_tables

    analysis = _run(args, settings)
    Console().print(all_tables(analysis))
    if args.nodes:
        import pyarrow.parquet as pq

        pq.write_table(analysis.nodes, args.nodes)
        print(f"{analysis.nodes.num_rows:,} rows written to {args.nodes}")
    if args.out:
        print(f"the run is in {args.out}; to see this again: opd-align report {args.out}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.tables import all_tables
    from opd_align.store import RunDirectory

    Console().print(all_tables(RunDirectory.load(args.directory)))
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from typing import get_args

    from opd_align.alignment import Rules
    from opd_align.engine import Settings
    from opd_align.enrich import Allocation, Budget
    from opd_align.estimate import Method
    from opd_align.objectives import OBJECTIVES

    named = {objective.name: objective for objective in OBJECTIVES}
    _choose("estimator", args.estimator, get_args(Method))
    _choose("allocation", args.allocation, get_args(Allocation))
    wanted = [name.strip() for name in args.objectives.split(",") if name.strip()]
    for name in wanted:
        _choose("objective", name, named)
    budget = Budget(initial=args.initial, targeted=args.targeted, seconds=args.seconds, allocation=args.allocation)
    rules = Rules(n_sig=args.n_sig, seed=args.seed)
    return Settings([named[name] for name in wanted], budget, rules, args.estimator, batch=args.batch)


def _choose(what: str, name: str, valid: Collection[str]) -> None:
    if name not in valid:
        from difflib import get_close_matches

        from opd_align.types import OpdAlignError

        near = get_close_matches(name, list(valid), 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OpdAlignError(f"unknown {what} {name!r}{hint} There are: {', '.join(valid)}")


def _bars() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, transient=True)


def _run(args: argparse.Namespace, settings: Settings) -> Analysis:
    from opd_align.backends.exact import ExactFamily
    from opd_align.engine import Progress as Step
    from opd_align.engine import analyze
    from opd_align.types import OpdAlignError

    if args.questions < 1:
        raise OpdAlignError(f"--questions must be at least 1, not {args.questions}")
    family = ExactFamily.random(args.seed, args.questions, length=args.length, forks=args.forks, stakes=args.stakes)
    teachers = [
        family.teacher("tilted", lambda world: world.tilted_teacher(seed=args.seed)),
        family.teacher("style", lambda world: world.style_teacher(seed=args.seed)),
        family.teacher("adversarial", lambda world: world.adversarial_teacher(seed=args.seed)),
    ]
    with _bars() as bars:
        overall = bars.add_task("questions", total=args.questions)
        current = bars.add_task("", total=1)
        seen: list[str] = []

        def show(progress: Step) -> None:
            if progress.question not in seen:
                seen.append(progress.question)
                bars.update(overall, completed=len(seen) - 1)
            what = f"{progress.question}: {progress.phase}"
            bars.update(current, description=what, completed=progress.done, total=max(progress.planned, 1))

        task = family, teachers, family.questions, family
        if args.out is None:
            return analyze(*task, settings=settings, on_progress=show, workers=args.workers)
        from opd_align.store import analyze_into

        with warnings.catch_warnings():
            # A shard that was set aside is news for the user, not for the developer.
            warnings.showwarning = lambda message, *_, **__: print(f"opd-align: {message}", file=sys.stderr)
            return analyze_into(args.out, *task, settings=settings, on_progress=show, workers=args.workers)


if __name__ == "__main__":
    sys.exit(main())
