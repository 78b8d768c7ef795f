"""The two small models that ship with the package, and where they came from.

A student that solves arithmetic problems about half of the time, and a better teacher with other habits: folders like
those of any Qwen3, made by `recipes/embedded_models/train.py`.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def student_path() -> Path:
    """Folder of the student's weights and tokenizer."""
    return _HERE / "student"


def teacher_path() -> Path:
    """Folder of the teacher's weights and tokenizer."""
    return _HERE / "teacher"
