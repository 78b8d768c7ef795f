"""SGLang servers as backend: like `server`, over SGLang's native API."""

from __future__ import annotations

from opd_align.backends import server
from opd_align.backends.base import ModelSpec, Prompt, StudentSpec
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.backends.server_api import SGLANG


def build_student(spec: StudentSpec) -> ServerStudent:
    """The student of a model configuration."""
    return server.build_student(spec, SGLANG)


def build_teacher(name: str, model: ModelSpec, prompt: Prompt) -> ServerTeacher:
    """The teacher of a model configuration."""
    return server.build_teacher(name, model, prompt, SGLANG)
