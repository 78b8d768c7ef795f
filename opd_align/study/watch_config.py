"""What a watcher evaluates: as the callback wrote it, or from the configuration of a study.

A training with `AlignmentCallback(where="outside")` describes itself. For any other (another framework, a script of
one's own) a configuration as of `opd-align analyze` names task, questions, teachers and settings; its student is
replaced by each checkpoint. Mistakes are found here, before a model is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opd_align.backends.base import find_backend
from opd_align.backends.loading import check_model
from opd_align.report.history import FOLDER, HISTORY
from opd_align.settings import Sampling
from opd_align.study.build import Study
from opd_align.teachers.contexts import SELF
from opd_align.training.evaluation import DEFAULT_BUDGET, QUESTIONS_PER_GROUP
from opd_align.training.portable import import_object
from opd_align.training.watch_spec import TeacherRef, WatchSpec, read_spec
from opd_align.types import OpdAlignError

BUDGET = {f"budget.{name}": getattr(DEFAULT_BUDGET, name) for name in ("initial", "targeted", "allocation", "rounds")}
"""Configuration keys of the callback's default budget: an evaluation is made many times, an analysis once."""


def check_output_dir(output_dir: Path) -> None:
    """Refuses what is not the output directory of a training."""
    if not output_dir.is_dir():
        problem = "is a file" if output_dir.exists() else "does not exist"
        raise OpdAlignError(
            f"{str(output_dir)!r} {problem}; pass the directory that a training writes its checkpoints to"
        )
    if (output_dir / HISTORY).is_file():
        raise OpdAlignError(
            f"{str(output_dir)!r} is the {FOLDER!r} folder inside an output directory; pass {str(output_dir.parent)!r}"
        )


def spec_of_training(output_dir: Path) -> WatchSpec:
    """What the callback of a training wrote."""
    spec = read_spec(output_dir / FOLDER)
    if spec is None:
        raise OpdAlignError(
            f"{str(output_dir)!r} does not say what to evaluate. For a training with AlignmentCallback(..., "
            "where='outside'), start the training first; for any other, name held-out questions: --task and "
            "--teachers, or --config"
        )
    return spec


def spec_of_study(study: Study, *, student_named: bool) -> WatchSpec:
    """What a configuration describes.

    Args:
        study: The study, already checked.
        student_named: Whether the user named a student: the model that the training started from, with its tokenizer.
    """
    config = study.config
    if config.student.backend != "hf":
        raise OpdAlignError(
            f"watch samples with transformers; student.backend is {config.student.backend!r}, remove it"
        )
    sampling = config.sampling
    return WatchSpec(
        tuple(study.usable_questions),
        study.task,
        Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, config.seed),
        replace(config.settings(), questions_per_group=QUESTIONS_PER_GROUP),
        tuple(_teachers(study)),
        tokenizer=config.student.model if student_named else None,
        thinking=config.student.thinking,
        dtype=config.student.dtype,
        device=config.student.device,
        load=replace(config.student.load, revision=None),  # a checkpoint has none
        base=config.student.model if student_named else None,
    )


def _teachers(study: Study) -> list[TeacherRef]:
    made = []
    for spec in study.teacher_specs:
        if spec.context is not None and spec.context.source != SELF and spec.context.correct + spec.context.wrong:
            raise OpdAlignError(
                f"context {spec.context.name!r} uses responses of {spec.context.source!r}; a watcher has only those of "
                "the student itself"
            )
        model = spec.model
        if model is None:
            made.append(TeacherRef(spec.name, spec.context))
        elif find_backend(model.backend).remote:
            made.append(TeacherRef(spec.name, spec.context, served=model, backend=model.backend))
        else:
            check_model(model.model, dtype=model.dtype, device=model.device)
            how: dict[str, Any] = {"dtype": model.dtype, "device": model.device, "load": model.load}
            made.append(TeacherRef(spec.name, spec.context, model.model, model.adapter, **how))
    return made


def with_verifier(spec: WatchSpec, path: str) -> WatchSpec:
    """With another verifier, given as "module:function"."""
    return replace(spec, verifier=import_object(path))
