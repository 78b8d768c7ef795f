"""`opd-align analyze --rollouts FILE`: rollouts that another program recorded, in place of a student that samples.

Without `--student`, all probabilities are those in the file and no model is needed. With it, the student and the
teachers are local models that read the recorded prompts and completions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opd_align.backends.base import check_fits
from opd_align.backends.recording import Recording, shared_length
from opd_align.backends.replay import RecordedPrompt, ReplayStudent
from opd_align.backends.replay_file import read_recording
from opd_align.cli.progress import progress
from opd_align.cli.terminal import say
from opd_align.runs.execute import analyze_into
from opd_align.runs.run_directory import check_directory
from opd_align.study.teacher_specs import teacher_spec
from opd_align.types import OpdAlignError, Question, Tokens, counted

if TYPE_CHECKING:
    from opd_align.core.engine import Analysis
    from opd_align.settings import Settings
    from opd_align.study.config import ModelConfig, StudyConfig

NO_EFFECT = ("task", "data", "questions_from", "bins", "backend", "reuse")
FEW_ROLLOUTS = 30
"""Below this number of natural rollouts per question, hardly any verdict is certain."""


def analyze_rollouts(args: argparse.Namespace, config: StudyConfig) -> Analysis:
    """The analysis of a recording; prints what it can and cannot tell, for the lines before the tables."""
    for flag in NO_EFFECT:
        if getattr(args, flag) is not None:
            raise OpdAlignError(
                f"--{flag.replace('_', '-')} has no effect with --rollouts: rollouts, questions and outcomes are those "
                "in the file"
            )
    if args.dry_run or args.engine != "local":
        raise OpdAlignError("--rollouts samples nothing: remove --dry-run and --engine")
    if args.student == "exact":
        raise OpdAlignError("--student exact samples its own rollouts; remove --rollouts, or name a model")
    recording = read_recording(args.rollouts)
    questions = _questions(recording, config)
    args.out = args.out or Path("runs") / f"{recording.file.stem}-{recording.digest[:6]}"
    check_directory(args.out, "analysis")
    settings = _settings(args, config, recording)
    local = args.student is not None or args.config is not None
    if local:
        student, teachers = _local_models(recording, config, settings, questions)
    else:
        student, teachers = _recorded(recording, config, settings)
    with progress(len(questions), quiet=args.quiet) as (_, on_progress):
        analysis = analyze_into(
            args.out, student, teachers, questions, student, settings=settings, on_progress=on_progress,
            workers=args.workers or 1,
        )  # fmt: skip
    source = f"computed by {config.student.model}" if local else "as recorded"
    names = ", ".join(teacher.name for teacher in teachers) or "none"
    for line in (
        []
        if args.quiet
        else [
            f"{recording.file}: probabilities {source}; teachers: {names}",
            *description(recording, questions, analysis),
        ]
    ):
        say(line)
    return analysis


def _questions(recording: Recording, config: StudyConfig) -> list[Question]:
    ids, selected = config.questions.ids, [entry.question for entry in recording.questions.values()]
    unknown = [name for name in ids if name not in recording.questions]
    if unknown:
        raise OpdAlignError(f"questions: there is no question {unknown[0]!r} in {recording.file}")
    if ids:
        selected = [recording.questions[name].question for name in ids]
    selected = selected[config.questions.offset :][: config.questions.limit]
    if not selected:
        raise OpdAlignError(
            f"questions: none is selected from {recording.file} with offset {config.questions.offset} and limit "
            f"{config.questions.limit}"
        )
    return selected


def _settings(args: argparse.Namespace, config: StudyConfig, recording: Recording) -> Settings:
    """All natural rollouts unless `--initial` says otherwise; without targeted ones, counts instead of `backup`."""
    settings = config.settings()
    budget = settings.budget
    # `adaptive` saves rollouts, and these cost nothing: the paper's plan asks for all alternatives.
    chosen = args.allocation or args.config or args.quick
    if not chosen and not any(each.startswith("budget") and "allocation" in each for each in args.set):
        budget = replace(budget, allocation="paper")
    if args.initial is None:
        most = max(len(entry.natural) for entry in recording.questions.values())
        budget = replace(budget, initial=most)
    estimator = settings.estimator
    if not recording.has_forced:
        if args.targeted:
            raise OpdAlignError(f"--targeted: {recording.file} has no branches and no rollouts with launch above 0")
        budget = replace(budget, targeted=0)
        # Where a rollout is on its own, nothing but its own outcome tells `backup` the value of the path.
        if args.estimator is None and not any(each.startswith("estimator=") for each in args.set):
            estimator = "direct"
    outcomes_only = [each for entry in recording.questions.values() for each in recording.outcome_branches(entry)]
    future = [objective.name for objective in settings.objectives if objective.signal == "future"]
    if future and outcomes_only:
        raise recording.error(
            outcomes_only[0].line,
            f"objective {future[0]!r} needs the tokens of every rollout; record rollouts with launch instead of "
            "outcomes of a branch",
        )
    return replace(settings, budget=budget, estimator=estimator)


def _recorded(recording: Recording, config: StudyConfig, settings: Settings) -> tuple[ReplayStudent, list[Any]]:
    """Student and teachers with the probabilities in the file."""
    student = ReplayStudent(recording, None, settings.estimator != "backup", _token_text(recording))
    by_name = {teacher.name: teacher for teacher in student.teachers}
    wanted = [each.name or each.context or (each.model.model if each.model else "") for each in config.teachers]
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        listed = ", ".join(by_name) or "none"
        raise OpdAlignError(
            f"teacher {unknown[0]!r} is not in {recording.file} (recorded: {listed}); to compute its probabilities "
            "with a local model, name the student too (--student MODEL)"
        )
    teachers = [by_name[name] for name in wanted] or [*by_name.values()]
    needs_teacher = [objective.name for objective in settings.objectives if objective.signal != "reward"]
    if needs_teacher and not teachers:
        raise OpdAlignError(
            f"{recording.file} has no teacher_log_probs, which objective {needs_teacher[0]!r} needs; record them, or "
            "name local models (--student MODEL --teachers MODEL)"
        )
    future = [objective.name for objective in settings.objectives if objective.signal == "future"]
    for rollout in [each for entry in recording.questions.values() for each in entry.forced] if future else ():
        if rollout.log_probs is None or any(teacher.name not in rollout.teacher_log_probs for teacher in teachers):
            raise recording.error(
                rollout.line, f"objective {future[0]!r} needs log_probs and teacher_log_probs of every rollout"
            )
    return student, teachers


def _token_text(recording: Recording) -> Any | None:
    """Texts of tokens for the report, if the file names a tokenizer that can be loaded."""
    if recording.tokenizer is None:
        return None
    try:
        from opd_align.backends.chat import Chat
        from opd_align.backends.loading import load_tokenizer

        chat = Chat(load_tokenizer(recording.tokenizer))
    except OpdAlignError as error:
        say(f"Reports show token ids instead of text: {error}")
        return None
    recording.check_tokens((), chat.vocabulary)
    return chat.token_text


def _local_models(
    recording: Recording, config: StudyConfig, settings: Settings, questions: Sequence[Question]
) -> tuple[ReplayStudent, list[Any]]:
    """Student and teachers on local weights, which read the recorded prompts and completions."""
    specs = [teacher_spec(teacher) for teacher in config.teachers]
    contexts = [spec.name for spec in specs if spec.context is not None or spec.model is None]
    if contexts:
        raise OpdAlignError(
            f"teacher {contexts[0]!r} has a context, whose demonstrations are not in a file of rollouts; name models"
        )
    if not specs and any(objective.signal != "reward" for objective in settings.objectives):
        raise OpdAlignError(
            "--student computes probabilities, so name the teachers' models too (--teachers MODEL); without --student, "
            "those in the file are used"
        )
    from opd_align.backends.chat import Chat
    from opd_align.backends.hf import HFStudent, HFTeacher
    from opd_align.backends.loading import check_model, load_model, load_tokenizer, short_name
    from opd_align.backends.scoring import TokenizerMismatch, check_tokenizers
    from opd_align.settings import Sampling

    models: list[ModelConfig] = [config.student, *(spec.model for spec in specs if spec.model is not None)]
    for model in models:
        check_model(model.model, dtype=model.dtype, device=model.device)
    tokenizers = [load_tokenizer(model.model, **model.load.source) for model in models]
    if recording.tokenizer not in (None, config.student.model):
        try:
            check_tokenizers(tokenizers[0], load_tokenizer(str(recording.tokenizer)), "")
        except TokenizerMismatch:
            raise TokenizerMismatch(
                f"{recording.file} has token ids of {recording.tokenizer!r}, which are other tokens for "
                f"{config.student.model!r}; name the student that sampled the rollouts"
            ) from None
    for spec, tokenizer in zip(specs, tokenizers[1:], strict=True):
        check_tokenizers(tokenizers[0], tokenizer, spec.name)
    chat = Chat(tokenizers[0], config.student.thinking)
    recording.check_tokens((), chat.vocabulary)
    prompt = RecordedPrompt(recording, chat)
    completions = {name: [rollout.tokens for rollout in entry.rollouts] for name, entry in recording.questions.items()}
    longest = max(len(tokens) for each in completions.values() for tokens in each)
    temperature = recording.temperature or config.sampling.temperature
    sampling = Sampling(temperature, config.sampling.top_p, config.sampling.top_k, longest, config.seed)
    loaded = {
        key: load_model(model.model, adapter=model.adapter, dtype=model.dtype, device=model.device, load=model.load)
        for key, model in {_weights_key(each): each for each in models}.items()
    }
    weights = [loaded[_weights_key(model)] for model in models]
    name = config.student.name or short_name(config.student.model)
    ends, precision = chat.end_tokens(*weights[0].configs), config.scoring.precision
    scorer = HFStudent(name, weights[0].model, prompt, ends, sampling, precision=precision)
    teachers = [
        HFTeacher(spec.name, each.model, prompt, precision) for spec, each in zip(specs, weights[1:], strict=True)
    ]
    readers: list[HFStudent | HFTeacher] = [scorer, *teachers]
    for reader in readers:
        for question in questions:
            tokens = max(map(len, completions[question.id]))
            check_fits(question, prompt(question), tokens, reader.context_length, repr(reader.name))
    return ReplayStudent(recording, scorer, settings.estimator != "backup"), teachers


def _weights_key(model: ModelConfig) -> tuple[Any, ...]:
    return model.model, model.adapter, model.dtype, model.device, model.load


def description(recording: Recording, questions: Sequence[Question], analysis: Analysis) -> list[str]:
    """What was recorded, and what an analysis of it can and cannot tell."""
    entries = [recording.questions[question.id] for question in questions]
    natural = [rollout.tokens for entry in entries for rollout in entry.natural]
    forced = sum(
        len(entry.forced) + sum(len(branch.outcome_R) for branch in recording.outcome_branches(entry))
        for entry in entries
    )
    lines = [
        f"{counted(len(entries), 'question')}, {counted(len(natural), 'natural rollout')}, {forced or 'no'} targeted."
    ]
    if forced:
        lines.append(
            "Success rates are known where rollouts were recorded. Targeted rollouts that the plan asks for and the "
            "file does not have count as failed."
        )
    else:
        shared = [n for entry in entries for n in _shared_lengths([rollout.tokens for rollout in entry.natural])]
        lines.append(
            "Natural rollouts only: a token has a success rate only where many rollouts share the prefix before it. "
            f"The median rollout is on its own after {np.median(shared):.0f} of {np.median([*map(len, natural)]):.0f} "
            f"tokens; nothing later is judged. Estimator: {analysis.settings.estimator}."
        )
    tokens, judged, decided = _judged(analysis)
    share = f"{100 * judged / max(tokens, 1):.2g}%"
    lines.append(
        f"Of {counted(tokens, 'token')} on the analyzed paths, {judged} ({share}) could be compared, {decided} decided."
    )
    if not decided:
        lines.append("No verdict is certain: the tables below are inconclusive.")
    if len(natural) < FEW_ROLLOUTS * len(entries):
        lines.append(
            f"{len(natural) / len(entries):.3g} natural rollouts per question are few; sample more of them, or let "
            "opd-align sample (analyze without --rollouts)."
        )
    return lines


def _judged(analysis: Analysis) -> tuple[int, int, int]:
    """Number of tokens on the paths, of those with a row, and of those with a verdict for some teacher."""
    place = ["question", "path", "depth"]
    rows = analysis.nodes.select([*place, "verdict"]).to_pylist()
    tokens = analysis.children.select(place).group_by(place).aggregate([]).num_rows
    places = [{tuple(row[name] for name in place) for row in part} for part in (
        rows, [row for row in rows if row["verdict"] != "undecided"],
    )]  # fmt: skip
    return tokens, len(places[0]), len(places[1])


def _shared_lengths(completions: Sequence[Tokens]) -> list[int]:
    """For each completion, the longest prefix that it shares with another one."""
    ordered = sorted(completions, key=lambda tokens: tokens.astype(">u4").tobytes())
    between = [0, *(shared_length(one, other) for one, other in pairwise(ordered)), 0]
    return [max(pair) for pair in pairwise(between)]
