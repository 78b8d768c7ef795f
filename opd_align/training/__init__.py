"""Training with TRL: the callback that evaluates alignment, gates on the distillation loss, and gated trainers.

Names are imported from their modules on first use; `import opd_align` imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "AlignmentCallback": "callback",
    "AlignmentSchedule": "alignment_schedule",
    "CalibratedDivergence": "calibrated_gate",
    "ContrastiveContexts": "contrast",
    "DivergenceAbove": "gates",
    "EntropyDivergence": "published_gates",
    "FirstPart": "published_gates",
    "FunctionGate": "gates",
    "Gate": "gates",
    "GateBatch": "gates",
    "GatedDistillationTrainer": "trainers.distillation",
    "GatedGKDTrainer": "trainers.gkd",
    "GatedGRPOTrainer": "trainers.grpo",
    "IncorrectOnly": "gates",
    "Open": "gates",
    "SDPOGate": "trainers.sdpo",
    "SignAgrees": "gates",
    "Teachable": "published_gates",
    "TeacherMix": "teacher_mix",
    "check_trainer_setup": "doctor",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'opd_align.training' has no attribute {name!r}")
    return getattr(import_module(f"opd_align.training.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
