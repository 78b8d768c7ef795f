"""The command line: a thin door to the engine.

Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from opd_align.config import StudyConfig
    from opd_align.engine import Analysis
    from opd_align.search import Progress as Step
    from opd_align.study import Study

ABOUT = """\
At each token of a student's reasoning, does the teacher's distillation update point toward success?

  opd-align analyze                                    the models that ship with the package; a minute or two
  opd-align analyze --config boolq_qwen3_0.6b          the paper's settings on a real student
  opd-align screen --student MODEL --task boolq ...    which contexts help, and which questions are worth it
  opd-align report runs/first                          tables and report of a finished run
  opd-align compare runs/first runs/second             several runs side by side
  opd-align train gkd_incorrect_only                   a recipe that acts on it; without a name, all of them
  opd-align dashboard OUTPUT_DIR                       watch a training that has the callback
"""

ANALYZE = """\
Samples rollouts, grows a generation tree around a few of them, estimates the success probability of each next
token, and compares the ideal update with the one each teacher's loss would make. Ends in tables and an HTML report.
Every finished batch is on disk: interrupted, the same command goes on where it was left.

  opd-align analyze
  opd-align analyze --student Qwen/Qwen3-0.6B --task boolq --limit 8 --teachers Self-1C,Self-1C1W,Qwen/Qwen3-4B
  opd-align analyze --config boolq_qwen3_0.6b --set student.backend=vllm --out runs/boolq
  opd-align analyze --estimator pooled --reuse runs/first --out runs/pooled      same rollouts, other counting
  opd-align analyze --dry-run                                                    the plan, and what it will cost
  opd-align analyze --student exact --worlds 8                                   worlds whose truth is known
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
Prints the tables of a finished run directory, and writes them anew where asked. No model is needed.

  opd-align report runs/first
  opd-align report runs/first --html report.html --tables tables/       Markdown, LaTeX and CSV
"""

COMPARE = """\
Prints the tables of several finished runs side by side: other students, other budgets, other estimators.

  opd-align compare runs/backup runs/pooled
"""

TRAIN = """\
Starts a recipe through `accelerate launch`, and says the command. Without a recipe, lists them.

  opd-align train
  opd-align train gkd_incorrect_only                                          the models that ship, on a CPU
  opd-align train distillation_divergence --config 8gpu_zero3 --max_steps 200
  opd-align train grpo_distill_on_failures --config mine.yaml --accelerate my_machines.yaml
  opd-align train gkd_incorrect_only --help                                   every flag of the recipe
"""

DASHBOARD = """\
Shows a training that runs with AlignmentCallback, or did: alignment, oracle, filter, pass rate and cost over its steps,
and the tokens of its rollouts. OUTPUT_DIR is the trainer's output_dir. Writes the page to a file that opens anywhere,
serves it to this machine only, and follows the training until Ctrl-C.

  opd-align dashboard runs/gkd
  opd-align dashboard runs/gkd --port 8765        on another machine: ssh -L 8765:127.0.0.1:8765 HOST, then open the
                                                  printed address at home
  opd-align dashboard runs/gkd --once --out training.html                    only the file
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
        with _spoken_warnings():
            return int(args.run(args))
    except OpdAlignError as error:
        print(f"opd-align: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        out = getattr(args, "out", None)
        hint = f"; what is finished is in {out}, and the same command goes on from there" if out else ""
        print(f"opd-align: interrupted{hint}", file=sys.stderr)
        return 130


@contextmanager
def _spoken_warnings() -> Iterator[None]:
    """What was left out or set aside is news for the user, not for the developer."""
    from opd_align.shelf import DamagedFile

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **options: Any) -> None:
            if category is DamagedFile or category.__name__ == "LeftOut":
                print(f"opd-align: {message}", file=sys.stderr)
            else:
                usual(message, category, *place, **options)

        warnings.showwarning = show
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("opd-align", description=ABOUT, formatter_class=_Formatter)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=text, formatter_class=_Formatter)
        added.set_defaults(run=run)
        return added

    analyze = command("analyze", _analyze, "measure alignment, token by token", ANALYZE)
    _study_arguments(analyze)
    work = analyze.add_argument_group("the work (defaults are the configuration's)")
    work.add_argument("--initial", type=int, metavar="G", help="initial rollouts a question")
    work.add_argument("--targeted", type=int, metavar="N", help="at most N targeted rollouts a question")
    work.add_argument("--seconds", type=float, help="stop enriching a question after this time")
    work.add_argument("--allocation", metavar="NAME", help="paper or adaptive")
    work.add_argument("--estimator", metavar="NAME", help="backup, direct or pooled")
    work.add_argument("--objectives", metavar="LIST", help="reverse_kl, forward_kl, jsd(0.5), minillm, dr_grpo, ...")
    work.add_argument("--n-sig", type=float, metavar="N", help="effective visits a child needs")
    work.add_argument("--backend", metavar="NAME", help="who samples: hf, vllm or server")
    work.add_argument("--batch", type=int, metavar="N", help="rollouts asked for at a time")
    work.add_argument("--workers", type=int, default=1, metavar="N", help="questions worked on at a time (default: 1)")
    work.add_argument(
        "--reuse", type=Path, metavar="DIR", help="take rollouts from another run where they are the same"
    )
    work.add_argument("--dry-run", action="store_true", help="print the plan, sample a little to time it, and stop")
    world = analyze.add_argument_group("exact worlds (--student exact)")
    world.add_argument("--worlds", type=int, default=6, metavar="N", help="how many (default: %(default)s)")
    world.add_argument("--length", type=int, default=120, help="typical completion length (default: %(default)s)")
    world.add_argument("--forks", type=float, default=1 / 3, help="share of forking positions (default: 0.33)")
    world.add_argument("--stakes", type=float, default=1.0, help="how much forks matter (default: %(default)s)")
    analyze.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: one under runs/)")

    screen = command("screen", _screen, "pass rates by context and difficulty", SCREEN)
    _study_arguments(screen)
    screen.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="run directory; continued if it is there"
    )
    prompt = command("show-prompt", _show_prompt, "what student and teachers read", PROMPT)
    _study_arguments(prompt)
    prompt.add_argument("--demonstrations-from", type=Path, metavar="DIR", help="a finished screening")
    report = command("report", _report, "tables and report of a run directory", REPORT)
    report.add_argument("directory", type=Path, metavar="DIR", help="what was given to analyze --out")
    report.add_argument("--html", type=Path, metavar="FILE", help="write the report")
    report.add_argument("--tables", type=Path, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    compare = command("compare", _compare, "several runs side by side", COMPARE)
    compare.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="finished run directories")
    compare.add_argument("--tables", type=Path, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    train = command("train", _train, "start a recipe that distils through a gate", TRAIN)
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="its name")
    train.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="...", help="--config NAME or FILE, and the recipe's own"
    )
    dashboard = command("dashboard", _dashboard, "watch a training that has the callback", DASHBOARD)
    dashboard.add_argument("directory", type=Path, metavar="OUTPUT_DIR", help="the trainer's output_dir")
    dashboard.add_argument(
        "--out", type=Path, metavar="FILE", help="where the page goes (default: OUTPUT_DIR/opd_align/dashboard.html)"
    )
    dashboard.add_argument("--port", type=int, default=0, metavar="N", help="serve on this port (default: a free one)")
    dashboard.add_argument("--once", action="store_true", help="write the page and stop")
    return parser


def _study_arguments(parser: argparse.ArgumentParser) -> None:
    """What names a study; each is short for a key of the configuration."""
    group = parser.add_argument_group("the study")
    group.add_argument("--config", metavar="FILE", help="YAML file, or the name of one that ships")
    group.add_argument("--student", metavar="MODEL", help="folder, .gguf file, Hub name, embedded:student, or exact")
    group.add_argument("--teachers", metavar="LIST", help="contexts (Self-1C, ...) and models, comma-separated")
    group.add_argument("--task", metavar="NAME", help="boolq, mmlu, gsm8k, aime2024, aime2025, arithmetic")
    group.add_argument("--data", metavar="FILE", help="questions from a file instead of the Hub")
    group.add_argument("--limit", type=int, metavar="N", help="at most N questions")
    group.add_argument("--questions-from", metavar="DIR", help="questions of a screening, in the bins of --bins")
    group.add_argument("--bins", metavar="LIST", help="difficulty, such as medium,hard")
    group.add_argument("--seed", type=int, metavar="N", help="of all draws")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key, dots for depth")


SHORT = {
    "student": "student", "teachers": "teachers", "task": "task", "data": "questions.file", "limit": "questions.limit",
    "questions_from": "questions.screening", "bins": "questions.bins", "seed": "seed", "initial": "budget.initial",
    "targeted": "budget.targeted", "seconds": "budget.seconds", "allocation": "budget.allocation",
    "estimator": "estimator", "objectives": "objectives", "n_sig": "rules.n_sig", "backend": "student.backend",
    "batch": "batch",
}  # fmt: skip
"""Flags, and the keys they are short for."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


def _config(args: argparse.Namespace) -> StudyConfig:
    from opd_align.config import read_config

    given = {key: getattr(args, flag) for flag, key in SHORT.items() if getattr(args, flag, None) is not None}
    flags = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    if args.seed is not None:
        flags.append(f"rules.seed={args.seed}")
    named = args.config or (None if args.student else "demo")
    return read_config(named, [*flags, *args.set])


def _study(args: argparse.Namespace) -> Study:
    from opd_align.study import Study

    study = Study(_config(args))
    study.check()
    return study


def _analyze(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.html import write_report
    from opd_align.report.tables import all_tables, write_tables
    from opd_align.shelf import ROLLOUTS
    from opd_align.store import check_directory
    from opd_align.types import OpdAlignError

    config = _config(args)
    if args.workers < 1:
        raise OpdAlignError(f"--workers must be at least 1, not {args.workers}")
    if config.student.model == "exact":
        analysis = _exact(args, config)
    else:
        from opd_align.study import Study

        study = Study(config)
        study.check()
        args.out = args.out or Path("runs") / study.name
        check_directory(args.out, "analysis")
        if args.reuse is not None and not (args.reuse / ROLLOUTS).is_dir():
            raise OpdAlignError(f"{str(args.reuse)!r} is no run directory: it has no rollouts to reuse")
        if args.dry_run:
            from opd_align.plan import plan

            Console().print(plan(study, args.out))
            return 0
        with _progress(len(study.questions)) as (phase, step):
            analysis = study.analyze(args.out, on_phase=phase, on_progress=step, workers=args.workers, reuse=args.reuse)
    Console().print(all_tables(analysis))
    _say(analysis)
    write_tables(analysis, args.out / "tables")
    page = write_report(analysis, args.out / "report.html", title=str(args.out.name))
    print(f"run directory  {args.out}")
    print(f"tables         {args.out / 'tables'}")
    print(f"report         {page.resolve().as_uri()}")
    return 0


def _say(analysis: Analysis) -> None:
    """The verdict in plain words, as the report has it."""
    from opd_align.report.slices import Slices
    from opd_align.report.verdicts import verdict

    told = verdict(Slices(analysis.nodes), analysis.settings.objectives[0].name)
    print("\n".join([told.headline, *told.points]), end="\n\n")


def _exact(args: argparse.Namespace, config: StudyConfig) -> Analysis:
    from opd_align.backends.exact import ExactFamily
    from opd_align.store import analyze_into
    from opd_align.types import OpdAlignError

    if args.worlds < 1:
        raise OpdAlignError(f"--worlds must be at least 1, not {args.worlds}")
    seed, settings = config.seed, config.settings()
    family = ExactFamily.random(seed, args.worlds, length=args.length, forks=args.forks, stakes=args.stakes)
    teachers = [
        family.teacher("tilted", lambda world: world.tilted_teacher(seed=seed)),
        family.teacher("style", lambda world: world.style_teacher(seed=seed)),
        family.teacher("adversarial", lambda world: world.adversarial_teacher(seed=seed)),
    ]
    args.out = args.out or Path("runs") / f"exact-{seed}"
    with _progress(args.worlds) as (_, step):
        return analyze_into(
            args.out, family, teachers, family.questions, family, settings=settings, on_progress=step,
            workers=args.workers, reuse=args.reuse,
        )  # fmt: skip


def _screen(args: argparse.Namespace) -> int:
    from opd_align.store import check_directory

    check_directory(args.out, "screening")
    study = _study(args)
    with _progress(0) as (phase, _):
        study.screen(on_progress=phase).into(args.out, study.questions)
    _screening(args.out, args.out / "tables")
    print(
        f"the screening is in {args.out}; to analyze its questions: opd-align analyze --questions-from {args.out} ..."
    )
    return 0


def _screening(directory: Path, folder: Path | None) -> int:
    from rich.console import Console

    from opd_align.report.screening import screening_tables
    from opd_align.report.tables import rendered, write
    from opd_align.screen import load_screening

    tables = screening_tables(*load_screening(directory))
    Console().print(rendered(tables))
    if folder is not None:
        write(tables, folder)
    return 0


def _show_prompt(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from opd_align.screen import load_screening

    study = _study(args)
    found = load_screening(args.demonstrations_from)[1] if args.demonstrations_from else None
    for question in study.questions:
        for role in [None, *study.roles]:
            context = role.context if role else None
            shown = found or ({question.id: context.placeholders(question)} if context else {})
            prompting = replace(study.prompting_of(role), context=context, demonstrations=shown)
            print(f"── {question.id} · {role.name if role else 'student'} · {len(prompting(question)):,} tokens")
            print(prompting.shown(question))
            print()
    return 0


def _report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.manifest import read_manifest
    from opd_align.report.html import write_report
    from opd_align.report.tables import all_tables, write_tables
    from opd_align.store import MANIFEST, RunDirectory

    if (read_manifest(args.directory / MANIFEST) or {}).get("kind") == "screening":
        return _screening(args.directory, args.tables)
    analysis = RunDirectory.load(args.directory)
    Console().print(all_tables(analysis))
    _say(analysis)
    if args.html:
        print(f"report  {write_report(analysis, args.html, title=args.directory.name).resolve().as_uri()}")
    if args.tables:
        write_tables(analysis, args.tables)
        print(f"tables  {args.tables}")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.tables import compare, rendered, write
    from opd_align.store import RunDirectory

    tables = compare({str(directory): RunDirectory.load(directory) for directory in args.directories})
    Console().print(rendered(tables))
    if args.tables:
        write(tables, args.tables)
        print(f"tables  {args.tables}")
    return 0


def _dashboard(args: argparse.Namespace) -> int:
    from opd_align.report.history import training_folder
    from opd_align.serve import Board, Server

    folder = training_folder(args.directory)
    board = Board(folder, title=args.directory.resolve().name)
    if args.once:
        print(f"page       {board.write(args.out or folder / 'dashboard.html').resolve().as_uri()}")
        return 0
    with Server(board, args.port) as server:
        page = board.write(args.out or folder / "dashboard.html")
        print(f"page       {page.resolve().as_uri()}")
        print(f"dashboard  {server.url}    Ctrl-C ends it", flush=True)
        try:
            server.follow(page)
        except KeyboardInterrupt:
            print()
    return 0


@contextmanager
def _progress(questions: int) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Step], None]]]:
    """Bars for phases (what, done, of how many) and for the engine's steps."""
    with _bars() as bars:
        phases: dict[str, Any] = {}
        seen: list[str] = []

        def phase(what: str, done: int, of: int) -> None:
            if what not in phases:
                phases[what] = bars.add_task(what, total=of)
            bars.update(phases[what], completed=done, total=max(of, 1))

        def step(progress: Step) -> None:
            if progress.question not in seen:
                seen.append(progress.question)
            phase("questions", len(seen) - 1, questions)
            what = f"{progress.question}: {progress.phase}"
            if "now" not in phases:
                phases["now"] = bars.add_task(what, total=1)
            bars.update(phases["now"], description=what, completed=progress.done, total=max(progress.planned, 1))

        yield phase, step


def _train(args: argparse.Namespace) -> int:
    import shlex
    import subprocess

    from opd_align.training import launch

    if args.recipe is None:
        for name, about in launch.recipes().items():
            print(f"{name:28} {about}\n{'':28} --config {' | '.join(launch.configs(name))}")
        print(f"\nscripts and configurations: {launch.folder()}")
        return 0
    command = launch.command(args.recipe, args.flags)
    launch.check_installed()
    print(shlex.join(command), flush=True)
    return subprocess.run(command).returncode


def _bars() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="dim")

    what = TextColumn("{task.description:36}")
    left = TimeRemainingColumn(elapsed_when_finished=True)
    return Progress(SpinnerColumn(), what, BarColumn(), MofNCompleteColumn(), Rate(), left, transient=True)


if __name__ == "__main__":
    sys.exit(main())
