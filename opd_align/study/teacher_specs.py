"""Teachers of a configuration before their models are loaded: a name, a context, a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opd_align.backends.loading import short_name
from opd_align.study.config import ModelConfig, TeacherConfig
from opd_align.teachers.contexts import SELF, Context, context
from opd_align.types import OpdAlignError


@dataclass(frozen=True)
class TeacherSpec:
    """A teacher before its model is loaded.

    Args:
        name: The teacher's name, unique within a study.
        context: What its prompt contains in addition to the student's prompt. `None`: nothing.
        model: Its model. `None`: the student.
    """

    name: str
    context: Context | None
    model: ModelConfig | None


def teacher_spec(teacher: TeacherConfig) -> TeacherSpec:
    """The teacher that a configuration describes; raises `OpdAlignError` where it is incomplete or contradictory."""
    has_counts = teacher.correct is not None or teacher.wrong is not None
    own: Context | None = None
    if teacher.context is not None:
        if has_counts or teacher.summarised:
            raise OpdAlignError(
                f"teachers: {teacher.context!r} is built in; remove correct, wrong and summarised, or the context"
            )
        own = context(teacher.context)
    elif has_counts:
        if not teacher.name:
            raise OpdAlignError("teachers: a context of your own needs a name")
        own = Context(
            teacher.name, teacher.correct or 0, teacher.wrong or 0, teacher.summarised, teacher.source or SELF
        )
    elif teacher.model is None:
        raise OpdAlignError("teachers: each needs a context, a model, or both")
    elif teacher.summarised or teacher.source:
        raise OpdAlignError("teachers: summarised and source belong to a context; set correct and wrong too")
    if teacher.name and own is not None:
        own = replace(own, name=teacher.name)
    if own is not None and teacher.source and teacher.context:
        own = replace(own, source=teacher.source)
    model = teacher.model
    model_name = model.name or short_name(model.model) if model else ""
    name = teacher.name or (own.name if own else model_name)
    if own is not None and model is not None and not teacher.name:
        name = f"{own.name} · {model_name}"
    return TeacherSpec(name, own, model)
