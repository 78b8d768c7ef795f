"""The two small language models that ship with the package.

A student that solves about half of the arithmetic problems, and a stronger teacher with a different writing style.
Both folders have the layout of any Qwen3 checkpoint; `recipes/embedded_models/train.py` trained them.
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
