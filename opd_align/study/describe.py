"""A study in words, for the report: student, task and sampling, what each teacher is and what it read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opd_align.backends.scoring_report import SCORING_REPORT
from opd_align.report.provenance import Provenance, TeacherNote, kept_prompts
from opd_align.study.build import Study
from opd_align.study.config import ModelConfig
from opd_align.study.prepared import PreparedStudy
from opd_align.study.teacher_specs import TeacherSpec
from opd_align.teachers.contexts import SELF
from opd_align.types import counted


def describe_study(study: Study, prepared: PreparedStudy) -> Provenance:
    """What the report says about a study.

    Args:
        study: The study.
        prepared: Its questions and demonstrations.
    """
    config = study.config
    sampling, questions = config.sampling, config.questions
    chosen_by = f" of the screening {_shared(questions.screening)}" if questions.screening else ""
    source = f" from {_shared(questions.file)}" if questions.file else chosen_by
    limits = [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    limits += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    skipped = f", {len(prepared.skipped)} skipped" if prepared.skipped else ""
    facts = {
        "student": _model(config.student),
        "task": f"{study.task.name}: {counted(len(prepared.questions), 'question')}{source}{skipped}",
        "seed": f"{config.seed}",
        "sampling": ", ".join(
            [f"temperature {sampling.temperature:g}", *limits, f"at most {sampling.max_tokens:,} tokens"]
        ),
    }
    report = study.made(SCORING_REPORT)  # None on a cluster, where students are in other processes
    facts |= {} if report is None else report.facts()
    notes = [TeacherNote(spec.name, teacher_meaning(spec, study)) for spec in study.teacher_specs]
    prompts = {}
    for question in prepared.questions:
        texts = {"": study.student_prompt.text(question)}
        for spec in study.teacher_specs:
            prompt = replace(study.prompt_of(spec), demonstrations=prepared.demonstrations)
            if prompt.unavailable(question) is None:
                texts[spec.name] = prompt.text(question)
        prompts[question.id] = texts
    return Provenance(facts, notes, kept_prompts(prompts))


def teacher_meaning(spec: TeacherSpec, study: Study) -> str:
    """What a teacher is: its model, and what its prompt has in addition to the student's."""
    model = "the student itself" if spec.model is None else _model(spec.model)
    context = spec.context
    if context is None:
        return f"{model}, with the student's prompt"
    counts = [(context.correct, "correct"), (context.wrong, "wrong")]
    shown = " and ".join(f"{count} {kind} response{'s' if count > 1 else ''}" for count, kind in counts if count)
    if not shown:
        return f"{model}, with a prompt of its own"
    if context.source == SELF:
        writer = "the student's own"
    else:
        writer = f"written by {_shared(study.config.source.model) if study.config.source else context.source}"
    return f"{model}, reading {shown} to the same question ({writer}{', summarised' if context.summarised else ''})"


def _model(model: ModelConfig) -> str:
    adapter = f" with adapter {_shared(model.adapter)}" if model.adapter else ""
    return f"{_shared(model.model)}{adapter} ({model.backend})"


def _shared(name: object) -> str:
    """A name as it is, an absolute path by its last part: reports are shared, folders of a machine are not."""
    path = Path(str(name))
    return path.name if path.is_absolute() else str(name)
