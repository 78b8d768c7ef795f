"""What the commands do, each a function from its arguments to an exit code.

Heavy imports wait until a command runs. What arguments there are is the business of `cli`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opd_align.core.engine import Analysis
    from opd_align.runs.filesystem import AnyPath
    from opd_align.study.build import Study
    from opd_align.study.config import StudyConfig
    from opd_align.study.ray import RayCluster

SHORT = {
    "student": "student", "teachers": "teachers", "task": "task", "data": "questions.file", "limit": "questions.limit",
    "questions_from": "questions.screening", "bins": "questions.bins", "seed": "seed", "initial": "budget.initial",
    "targeted": "budget.targeted", "seconds": "budget.seconds", "allocation": "budget.allocation",
    "estimator": "estimator", "objectives": "objectives", "n_sig": "rules.n_sig", "backend": "student.backend",
    "batch": "batch",
}  # fmt: skip
"""Flags, and the keys they are short for."""


def _config(args: argparse.Namespace) -> StudyConfig:
    from opd_align.study.config import read_config

    given = {key: getattr(args, flag) for flag, key in SHORT.items() if getattr(args, flag, None) is not None}
    flags = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    if args.seed is not None:
        flags.append(f"rules.seed={args.seed}")
    named = args.config or (None if args.student else "demo")
    return read_config(named, [*flags, *args.set])


def _study(args: argparse.Namespace) -> Study:
    from opd_align.study.build import Study

    study = Study(_config(args))
    study.check()
    return study


def analyze(args: argparse.Namespace) -> int:
    from opd_align.runs.rollout_store import check_reuse
    from opd_align.runs.run_directory import check_directory
    from opd_align.types import OpdAlignError

    config = _config(args)
    _refuse_idle_flags(args)
    if args.workers is not None and args.workers < 1:
        raise OpdAlignError(f"--workers must be at least 1, not {args.workers}")
    if config.student.model == "exact":
        if args.dry_run:
            raise OpdAlignError(
                "exact worlds take seconds and no GPU; leave out --dry-run, or choose a model as student"
            )
        if args.engine != "local":
            raise OpdAlignError("exact worlds need no cluster; leave out --engine, or choose a model as student")
        analysis = _exact(args, config)
    else:
        from opd_align.study.build import Study

        study = Study(config)
        study.check()
        args.out = args.out or Path("runs") / study.name
        check_directory(args.out, "analysis")
        if args.reuse is not None:
            check_reuse(args.reuse)
        if args.dry_run:
            from rich.console import Console

            from opd_align.study.plan import Prices, plan

            prices = Prices(1 if args.gpus is None else args.gpus, args.tokens_per_second, args.dollars_per_gpu_hour)
            Console().print(plan(study, args.out, prices, args.calibrate_from))
            return 0
        from opd_align.cli.progress import progress

        with progress(len(study.questions)) as (phase, step):
            options = {"on_phase": phase, "on_progress": step, "reuse": args.reuse}
            if args.engine == "ray":
                from opd_align.study.ray import analyze_with_ray

                analysis = analyze_with_ray(_cluster(args), study, args.out, **options)
            else:
                analysis = study.analyze(args.out, workers=args.workers or 1, **options)
    return _presented(analysis, args.out)


def _refuse_idle_flags(args: argparse.Namespace) -> None:
    """A flag that would do nothing is a misunderstanding."""
    from opd_align.types import OpdAlignError

    prices = ("gpus", "tokens_per_second", "dollars_per_gpu_hour", "calibrate_from")
    for owner, there, flags in (
        ("a plan; say --dry-run", args.dry_run, prices),
        ("a cluster; say --engine ray", args.engine == "ray", ("ray_address", "gpus_per_worker", "apart")),
    ):
        given = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(args, flag) is not None]
        if given and not there:
            raise OpdAlignError(f"{given[0]} belongs to {owner}")


def _presented(analysis: Analysis, out: AnyPath) -> int:
    """Tables and report of a run that has just been finished."""
    from rich.console import Console

    from opd_align.report.html import write_report
    from opd_align.report.tables import all_tables, write_tables

    Console().print(all_tables(analysis))
    _say(analysis)
    write_tables(analysis, out / "tables")
    page = write_report(analysis, out / "report.html", title=out.name)
    print(f"run directory  {out}")
    print(f"tables         {out / 'tables'}")
    print(f"report         {page.resolve().as_uri()}")
    return 0


def merge(args: argparse.Namespace) -> int:
    from opd_align.runs.merge import merge

    return _presented(merge(args.directories, args.out), args.out)


def _say(analysis: Analysis) -> None:
    """The verdict in plain words, as the report has it."""
    from opd_align.report.prose import verdict
    from opd_align.report.slices import Slices

    told = verdict(Slices(analysis.nodes), analysis.settings.objectives[0].name)
    print("\n".join([told.headline, *told.points]), end="\n\n")


def _exact(args: argparse.Namespace, config: StudyConfig) -> Analysis:
    from opd_align.backends.exact import ExactFamily
    from opd_align.cli.progress import progress
    from opd_align.runs.execute import analyze_into
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
    with progress(args.worlds) as (_, step):
        return analyze_into(
            args.out, family, teachers, family.questions, family, settings=settings, on_progress=step,
            workers=args.workers or 1, reuse=args.reuse,
        )  # fmt: skip


def _cluster(args: argparse.Namespace) -> RayCluster:
    from opd_align.study.ray import LOCAL, RayCluster
    from opd_align.types import OpdAlignError

    apart: dict[str, float | None] = {}
    for each in filter(None, (args.apart or "").split(",")):
        name, _, gpus = each.partition("=")
        try:
            apart[name.strip()] = float(gpus) if gpus else None
        except ValueError:
            raise OpdAlignError(f"--apart takes NAME or NAME=GPUS, not {each!r}") from None
    return RayCluster(args.ray_address or LOCAL, args.workers, args.gpus_per_worker, apart)


def screen(args: argparse.Namespace) -> int:
    from opd_align.cli.progress import progress
    from opd_align.runs.run_directory import check_directory

    check_directory(args.out, "screening")
    study = _study(args)
    with progress(0) as (phase, _):
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
    from opd_align.teachers.screening import load_screening

    tables = screening_tables(*load_screening(directory))
    Console().print(rendered(tables))
    if folder is not None:
        write(tables, folder)
    return 0


def show_prompt(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from opd_align.teachers.screening import load_screening

    study = _study(args)
    found = load_screening(args.demonstrations_from)[1] if args.demonstrations_from else None
    for question in study.questions:
        for spec in [None, *study.teacher_specs]:
            context = spec.context if spec else None
            shown = found or ({question.id: context.placeholders(question)} if context else {})
            prompting = replace(study.prompt_of(spec), context=context, demonstrations=shown)
            print(f"── {question.id} · {spec.name if spec else 'student'} · {len(prompting(question)):,} tokens")
            print(prompting.shown(question))
            print()
    return 0


def report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.html import write_report
    from opd_align.report.tables import all_tables, write_tables
    from opd_align.runs.manifest import read_manifest
    from opd_align.runs.run_directory import MANIFEST, RunDirectory

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


def compare(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.tables import compare, rendered, write
    from opd_align.runs.run_directory import RunDirectory

    tables = compare({str(directory): RunDirectory.load(directory) for directory in args.directories})
    Console().print(rendered(tables))
    if args.tables:
        write(tables, args.tables)
        print(f"tables  {args.tables}")
    return 0


def dashboard(args: argparse.Namespace) -> int:
    from opd_align.report.history import training_folder
    from opd_align.report.server import DashboardServer, DashboardState

    folder = training_folder(args.directory)
    board = DashboardState(folder, title=args.directory.resolve().name)
    if args.once:
        print(f"page       {board.write(args.out or folder / 'dashboard.html').resolve().as_uri()}")
        return 0
    with DashboardServer(board, args.port) as server:
        page = board.write(args.out or folder / "dashboard.html")
        print(f"page       {page.resolve().as_uri()}")
        print(f"dashboard  {server.url}    Ctrl-C ends it", flush=True)
        try:
            server.follow(page)
        except KeyboardInterrupt:
            print()
    return 0


def train(args: argparse.Namespace) -> int:
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
