"""Running the analysis of a study from the command line: expected duration, progress, stages until it is decided."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opd_align.cli.terminal import say

if TYPE_CHECKING:
    from opd_align.core.decision import Decision
    from opd_align.core.engine import Analysis
    from opd_align.study.build import Study
    from opd_align.study.prepared import PreparedStudy
    from opd_align.study.processes import Slot
    from opd_align.study.ray import RayCluster

QUICK = {
    "questions.limit": 8, "budget.initial": 60, "budget.targeted": 400, "budget.allocation": "adaptive",
    "budget.correct_paths": 1, "budget.incorrect_paths": 1, "rules.n_sig": 10, "demonstrations.trials": 24,
}  # fmt: skip
"""Configuration keys that `--quick` sets, unless they are set otherwise."""


def run_study(args: argparse.Namespace, study: Study, where: RayCluster | Sequence[Slot] | None) -> Analysis:
    """Analyzes a study into `args.out`, and saves what the report says about it.

    Args:
        args: The parsed arguments.
        study: The study.
        where: A cluster, or processes of this machine. `None`: this process.
    """
    from opd_align.runs.run_prompts import RunPrompts
    from opd_align.study.describe import describe_study

    prepared: list[PreparedStudy] = []
    if where is None and not args.quiet:
        _say_expected_duration(args, study)
    if args.until_decided is not None:
        analysis = _until_decided(args, study, prepared)
    else:
        analysis = _run(args, study, len(study.usable_questions), prepared, where)
    describe_study(study, prepared[-1]).save(args.out)
    messages = {question.id: study.task.messages(question) for question in prepared[-1].questions}
    RunPrompts(study.config.student.model, messages).save(args.out)
    return analysis


def _run(
    args: argparse.Namespace,
    study: Study,
    n_questions: int,
    prepared: list[PreparedStudy],
    where: RayCluster | Sequence[Slot] | None = None,
    **options: Any,
) -> Analysis:
    from opd_align.cli.progress import progress

    with progress(n_questions, quiet=args.quiet) as (on_phase, on_progress):
        options |= {"on_phase": on_phase, "on_progress": on_progress, "on_prepared": prepared.append}
        if isinstance(where, Sequence):
            from opd_align.study.processes import analyze_with_processes

            return analyze_with_processes(where, study, args.out, reuse=args.reuse, **options)
        if where is not None:
            from opd_align.study.ray import analyze_with_ray

            return analyze_with_ray(where, study, args.out, reuse=args.reuse, **options)
        return study.analyze(args.out, workers=args.workers or 1, reuse=args.reuse, **options)


def _until_decided(args: argparse.Namespace, study: Study, prepared: list[PreparedStudy]) -> Analysis:
    from opd_align.runs.execute import GroupCache
    from opd_align.study.until_decided import analyze_until_decided

    done: GroupCache = {}
    most = len(study.usable_questions)

    def analyze(stage: Study, n_new: int) -> Analysis:
        return _run(args, stage, n_new, prepared, extend=True, done=done)

    def on_stage(n: int, decision: Decision) -> None:
        from opd_align.report.recommendation import recommendation

        if args.quiet:
            return
        state = "decided" if decision.decided else "all questions are used" if len(done) >= most else "going on"
        say(f"{n} questions, {state}: {recommendation(decision)}")

    return analyze_until_decided(
        study, args.out, analyze, level=args.until_decided, start=args.start_questions, on_stage=on_stage
    )


def _say_expected_duration(args: argparse.Namespace, study: Study) -> None:
    """Prints how long the run will take, unless it is a resumed one, whose remaining part is unknown."""
    from opd_align.runs.run_directory import has_results
    from opd_align.study.plan import expected_duration
    from opd_align.types import OpdAlignError

    if has_results(args.out):
        say(f"Resuming {args.out}: what is stored there is not sampled again.")
        return
    n_questions = len(study.usable_questions)
    stage = n_questions if args.until_decided is None else min(args.start_questions, n_questions)
    try:
        say(expected_duration(study, stage, n_questions))
    except OpdAlignError as error:  # the analysis may still succeed: it counts failures, and skips what does not fit
        say(f"Expected duration: unknown ({error}).")
