"""The small language models that ship with the package.

A student that solves about half of the arithmetic problems, a stronger teacher with a different writing style, and a
careless teacher: the student, trained on its own wrong solutions. All folders have the layout of any Qwen3 checkpoint;
the scripts in `recipes/embedded_models` trained them.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def student_path() -> Path:
    """Folder with the student's weights and tokenizer."""
    return _FOLDER / "student"


def teacher_path() -> Path:
    """Folder with the teacher's weights and tokenizer."""
    return _FOLDER / "teacher"


def careless_path() -> Path:
    """Folder with the weights and the tokenizer of the careless teacher."""
    return _FOLDER / "careless"
