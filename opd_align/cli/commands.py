"""The commands: each is a function from parsed arguments to an exit code.

Heavy libraries are imported when a command runs. Which arguments exist is defined in `main`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opd_align.cli.terminal import say

if TYPE_CHECKING:
    from opd_align.core.engine import Analysis
    from opd_align.runs.filesystem import AnyPath
    from opd_align.study.build import Study
    from opd_align.study.config import StudyConfig
    from opd_align.study.ray import RayCluster

KEY_OF_FLAG = {
    "student": "student.model", "teachers": "teachers", "task": "task", "data": "questions.file",
    "limit": "questions.limit", "questions_from": "questions.screening", "bins": "questions.bins", "seed": "seed",
    "initial": "budget.initial", "targeted": "budget.targeted", "seconds": "budget.seconds",
    "allocation": "budget.allocation", "estimator": "estimator", "objectives": "objectives", "n_sig": "rules.n_sig",
    "backend": "student.backend", "batch": "batch", "device_map": "student.load.device_map",
    "attn_implementation": "student.load.attn_implementation", "revision": "student.load.revision",
    "tensor_parallel_size": "student.load.tensor_parallel_size",
    "gpu_memory_utilization": "student.load.gpu_memory_utilization", "max_model_len": "student.load.max_model_len",
}  # fmt: skip
"""Command-line flag → the configuration key that it sets."""


def analyze(args: argparse.Namespace) -> int:
    config = _config(args)
    _check_flags(args, config)
    if args.rollouts is not None:
        from opd_align.cli.replay import analyze_rollouts

        return _present(analyze_rollouts(args, config), args)
    if config.student.model == "exact":
        return _present(_analyze_exact(args, config), args)
    from opd_align.cli.hardware import other_processes, placed_study, print_memory
    from opd_align.cli.running import run_study
    from opd_align.runs.rollout_store import check_reuse
    from opd_align.runs.run_directory import check_directory
    from opd_align.study.build import Study

    if args.dry_run and args.hardware and not args.calibrate_from:  # needs no questions
        print_memory(args, config)
        return 0
    study = Study(_with_room_to_grow(args, config))
    study.check_analysis()
    args.out = args.out or Path("runs") / study.name
    check_directory(args.out, "analysis")
    if args.reuse is not None:
        check_reuse(args.reuse)
    if args.dry_run:
        print_memory(args, config)
        return _print_plan(args, study)
    where = _cluster(args) if args.engine == "ray" else other_processes(args, config)
    analysis = run_study(args, placed_study(study) if where is None else study, where)
    return _present(analysis, args)


def _with_room_to_grow(args: argparse.Namespace, config: StudyConfig) -> StudyConfig:
    """With --until-decided, the configured number of questions is where to start, and --max-questions where to end."""
    from dataclasses import replace

    from opd_align.study.until_decided import MAX_QUESTIONS, START
    from opd_align.types import OpdAlignError

    if args.until_decided is None:
        return config
    if not 0.5 < args.until_decided < 1:
        raise OpdAlignError(
            f"--until-decided takes a probability between 0.5 and 1, such as 0.95, not {args.until_decided:g}"
        )
    start = START if config.questions.limit is None else config.questions.limit
    most = max(MAX_QUESTIONS, start) if args.max_questions is None else args.max_questions
    if most < start:
        raise OpdAlignError(f"--max-questions must be at least the {start} questions to start with, not {most}")
    args.start_questions = start
    return replace(config, questions=replace(config.questions, limit=most))


def _config(args: argparse.Namespace) -> StudyConfig:
    from opd_align.cli.running import QUICK
    from opd_align.study.config import read_config

    quick = QUICK if getattr(args, "quick", False) else {}
    name = args.config or (None if args.student or getattr(args, "rollouts", None) else "demo")
    return read_config(name, _overrides(args, quick))


def _overrides(args: argparse.Namespace, defaults: Mapping[str, object]) -> list[str]:
    """What flags set in a configuration, and the defaults of a command where they do not."""
    values = {key: getattr(args, flag) for flag, key in KEY_OF_FLAG.items() if getattr(args, flag, None) is not None}
    if args.student is not None:  # how it is run stays as configured; what belongs to the configured model does not
        values |= {"student.name": None, "student.adapter": None}
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**defaults, **values}.items()]
    if args.seed is not None:
        overrides.append(f"rules.seed={args.seed}")
    return [*overrides, *args.set]


def read_study(args: argparse.Namespace, defaults: Mapping[str, object]) -> Study:
    """The study that flags and a configuration describe, checked; without --config, with defaults of the command."""
    from opd_align.study.config import read_config

    return _checked(read_config(args.config, _overrides(args, defaults)))


def _checked(config: StudyConfig) -> Study:
    from opd_align.study.build import Study

    study = Study(config)
    study.check()
    return study


def _check_flags(args: argparse.Namespace, config: StudyConfig) -> None:
    """Refuses flags that would have no effect, or that the backend does not support."""
    from opd_align.backends.base import find_backend
    from opd_align.types import OpdAlignError

    cost = ("hardware", "tokens_per_second", "dollars_per_gpu_hour", "calibrate_from")
    cluster = ("ray_address", "gpus_per_worker", "teacher_actors")
    for needed, present, flags in (
        ("--dry-run", args.dry_run, cost),
        ("--engine ray", args.engine == "ray", cluster),
        ("--until-decided", args.until_decided is not None, ("max_questions",)),
    ):
        given = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(args, flag) is not None]
        if given and not present:
            raise OpdAlignError(f"{given[0]} has no effect without {needed}")
    several = args.gpus is not None or args.processes is not None
    for other, present in (
        ("--engine ray", args.engine == "ray"),
        ("--workers", args.workers is not None),
        ("--rollouts", args.rollouts is not None),
        ("--student exact", config.student.model == "exact"),
    ):
        if several and present:
            raise OpdAlignError(f"--gpus and --processes do not go with {other}; remove one of the two")
    if args.processes is not None and args.processes < 1:
        raise OpdAlignError(f"--processes must be at least 1, not {args.processes}")
    if args.until_decided is not None:
        for reason, refused in (
            ("--engine ray", args.engine == "ray"),
            ("--gpus or --processes", several),
            ("--rollouts, whose questions are fixed", args.rollouts is not None),
            ("--student exact", config.student.model == "exact"),
        ):
            if refused:
                raise OpdAlignError(f"--until-decided does not support {reason}; remove one of the two")
    if args.workers is not None and args.workers < 1:
        raise OpdAlignError(f"--workers must be at least 1, not {args.workers}")
    in_process = args.rollouts is None and config.student.model != "exact" and args.engine == "local"
    if (args.workers or 1) > 1 and in_process and not find_backend(config.student.backend).concurrent:
        raise OpdAlignError(
            f"--workers {args.workers} needs a student behind a server: backend {config.student.backend} has one model "
            "in this process, which one thread at a time can use. To sample several questions in one call: "
            "--set questions_per_group=8; to analyze them in several processes: --processes 2, or --gpus 0-1"
        )
    if config.student.model == "exact":
        if args.dry_run:
            raise OpdAlignError("--dry-run does not support --student exact, which takes seconds; remove --dry-run")
        if args.engine != "local":
            raise OpdAlignError("--student exact runs locally only; remove --engine, or choose a model as student")
        if args.worlds < 1:
            raise OpdAlignError(f"--worlds must be at least 1, not {args.worlds}")


def _analyze_exact(args: argparse.Namespace, config: StudyConfig) -> Analysis:
    from opd_align.backends.exact import ExactFamily
    from opd_align.cli.progress import progress
    from opd_align.runs.execute import analyze_into

    seed, settings = config.seed, config.settings()
    family = ExactFamily.random(seed, args.worlds, length=args.length, forks=args.forks, stakes=args.stakes)
    teachers = [
        family.teacher("tilted", lambda world: world.tilted_teacher(seed=seed)),
        family.teacher("style", lambda world: world.style_teacher(seed=seed)),
        family.teacher("adversarial", lambda world: world.adversarial_teacher(seed=seed)),
    ]
    args.out = args.out or Path("runs") / f"exact-{seed}"
    with progress(args.worlds, quiet=args.quiet) as (_, on_progress):
        return analyze_into(
            args.out, family, teachers, family.questions, family, settings=settings, on_progress=on_progress,
            workers=args.workers or 1, reuse=args.reuse,
        )  # fmt: skip


def _cluster(args: argparse.Namespace) -> RayCluster:
    from opd_align.study.ray import LOCAL, RayCluster
    from opd_align.types import OpdAlignError

    gpus_of_teacher: dict[str, float | None] = {}
    for entry in filter(None, (args.teacher_actors or "").split(",")):
        name, _, gpus = entry.partition("=")
        try:
            gpus_of_teacher[name.strip()] = float(gpus) if gpus else None
        except ValueError:
            raise OpdAlignError(f"--teacher-actors takes NAME or NAME=GPUS, not {entry!r}") from None
    return RayCluster(args.ray_address or LOCAL, args.workers, args.gpus_per_worker, gpus_of_teacher)


def _print_plan(args: argparse.Namespace, study: Study) -> int:
    from rich.console import Console

    from opd_align.cli.hardware import planned_gpus
    from opd_align.study.plan import Prices, plan

    prices = Prices(len(planned_gpus(args)) or 1, args.tokens_per_second, args.dollars_per_gpu_hour)
    Console().print(plan(study, args.out, prices, args.calibrate_from))
    return 0


def _present(analysis: Analysis, args: argparse.Namespace) -> int:
    """Prints the conclusion of a finished run and writes tables and report into its directory."""
    from opd_align.cli.conclusion import print_conclusion
    from opd_align.report.html import write_report
    from opd_align.report.provenance import Provenance
    from opd_align.report.tables import write_tables

    out = args.out
    write_tables(analysis, out / "tables")
    page = write_report(analysis, out / "report.html", title=out.name, provenance=Provenance.load(out))
    print_conclusion(analysis, verbose=args.verbose, quiet=args.quiet)
    if not args.quiet:
        say(f"run directory  {out}")
        say(f"tables         {out / 'tables'}")
    say(f"report         {page.resolve().as_uri()}")
    return 0


def merge(args: argparse.Namespace) -> int:
    from opd_align.runs.merge import merge

    return _present(merge(args.directories, args.out), args)


def screen(args: argparse.Namespace) -> int:
    from opd_align.cli.hardware import placed_study
    from opd_align.cli.progress import progress
    from opd_align.runs.run_directory import check_directory

    check_directory(args.out, "screening")
    study = placed_study(_checked(_config(args)))
    with progress(0, quiet=args.quiet) as (on_phase, _):
        study.screen(on_progress=on_phase).run(args.out, study.questions)
    _print_screening(args.out, args.out / "tables")
    say(f"Screening saved in {args.out}. To analyze its questions: opd-align analyze --questions-from {args.out} ...")
    return 0


def _print_screening(directory: AnyPath, folder: AnyPath | None) -> int:
    from rich.console import Console

    from opd_align.report.screening import screening_tables
    from opd_align.report.tables import console_group, write_table_files
    from opd_align.teachers.screening import load_screening

    tables = screening_tables(*load_screening(directory))
    if folder is not None:
        write_table_files(tables, folder)
    Console().print(console_group(tables))
    return 0


def show_prompt(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from opd_align.teachers.screening import load_screening

    study = _checked(_config(args))
    screened = load_screening(args.demonstrations_from)[1] if args.demonstrations_from else None
    for question in study.questions:
        for spec in [None, *study.teacher_specs]:
            context = spec.context if spec else None
            demonstrations = screened or ({question.id: context.placeholders(question)} if context else {})
            prompting = replace(study.prompt_of(spec), context=context, demonstrations=demonstrations)
            say(f"── {question.id} · {spec.name if spec else 'student'} · {len(prompting(question)):,} tokens")
            say(prompting.text(question))
            say()
    return 0


def doctor(args: argparse.Namespace) -> int:
    from opd_align.cli.hardware import placed_study
    from opd_align.study.build import Study
    from opd_align.study.doctor import check_study
    from opd_align.teachers.findings import SetupReport
    from opd_align.types import OpdAlignError

    config = _config(args)
    if config.student.model == "exact":
        raise OpdAlignError("doctor checks language models; --student exact needs no check")
    findings = []
    study = placed_study(Study(config))
    for finding in check_study(study, n_questions=args.sample_questions, n_rollouts=args.sample_rollouts):
        say(str(finding))
        findings.append(finding)
    found = SetupReport(findings)
    say(found.summary)
    return found.exit_code(strict=args.strict)


def report(args: argparse.Namespace) -> int:
    from opd_align.cli.conclusion import print_conclusion
    from opd_align.report.html import write_report
    from opd_align.report.provenance import Provenance
    from opd_align.report.tables import write_tables
    from opd_align.runs.filesystem import check_output
    from opd_align.runs.manifest import read_manifest
    from opd_align.runs.run_directory import MANIFEST, RunDirectory
    from opd_align.types import OpdAlignError

    if args.html:
        check_output(args.html)
    if (read_manifest(args.directory / MANIFEST) or {}).get("kind") == "screening":
        if args.html:
            raise OpdAlignError("--html has no effect on a screening, which has tables only; use --tables")
        return _print_screening(args.directory, args.tables)
    analysis = RunDirectory.load(args.directory)
    # Written before anything is printed, so that an error is not the last of a hundred lines.
    provenance = Provenance.load(args.directory)
    title = args.directory.name
    page = write_report(analysis, args.html, title=title, provenance=provenance) if args.html else None
    if args.tables:
        write_tables(analysis, args.tables)
    print_conclusion(analysis, verbose=args.verbose, quiet=args.quiet)
    if page is not None:
        print(f"report  {page.resolve().as_uri()}")
    if args.tables:
        print(f"tables  {args.tables}")
    return 0


def compare(args: argparse.Namespace) -> int:
    from rich.console import Console

    from opd_align.report.tables import compare, console_group, write_table_files
    from opd_align.runs.run_directory import RunDirectory

    tables = compare({str(directory): RunDirectory.load(directory) for directory in args.directories})
    # Written before anything is printed, so that an error is not the last of many lines.
    if args.tables:
        write_table_files(tables, args.tables)
    Console().print(console_group(tables))
    if args.tables:
        print(f"tables  {args.tables}")
    return 0


def train(args: argparse.Namespace) -> int:
    import shlex
    import subprocess

    from opd_align.training import launch

    if args.recipe is None:
        for name, description in launch.recipes().items():
            print(f"{name:28} {description}\n{'':28} --config {' | '.join(launch.configs(name))}")
        print(f"\nScripts and configurations: {launch.folder()}")
        return 0
    command = launch.command(args.recipe, args.flags)
    launch.check_installed()
    print(shlex.join(command), flush=True)
    return subprocess.run(command).returncode
