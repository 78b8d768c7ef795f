"""Tell, token by token, whether an on-policy distillation update points where success lies.

The names below are what people may rely on. Each is fetched from its room when first used, so that
`import opd_align` costs milliseconds and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opd_align import metrics
    from opd_align.alignment import Rules
    from opd_align.backends.exact import ExactFamily, ExactWorld
    from opd_align.engine import Analysis, analyze
    from opd_align.enrich import Budget
    from opd_align.objectives import (
        GRPO,
        DrGRPO,
        ForwardKL,
        GeneralisedJSD,
        Ideal,
        MiniLLM,
        Objective,
        ReverseKL,
        SingleSample,
    )
    from opd_align.search import Settings
    from opd_align.training.callback import AlignmentCallback
    from opd_align.tree import GenerationTree
    from opd_align.types import OpdAlignError, Question, Rollouts, SampleRequest

__version__ = "0.1.0"

__all__ = [
    "GRPO",
    "AlignmentCallback",
    "Analysis",
    "Budget",
    "DrGRPO",
    "ExactFamily",
    "ExactWorld",
    "ForwardKL",
    "GeneralisedJSD",
    "GenerationTree",
    "Ideal",
    "MiniLLM",
    "Objective",
    "OpdAlignError",
    "Question",
    "ReverseKL",
    "Rollouts",
    "Rules",
    "SampleRequest",
    "Settings",
    "SingleSample",
    "__version__",
    "analyze",
    "metrics",
]

_ROOM_OF = {
    "AlignmentCallback": "training.callback",
    "Analysis": "engine",
    "Budget": "enrich",
    "DrGRPO": "objectives",
    "ExactFamily": "backends.exact",
    "ExactWorld": "backends.exact",
    "ForwardKL": "objectives",
    "GRPO": "objectives",
    "GeneralisedJSD": "objectives",
    "GenerationTree": "tree",
    "Ideal": "objectives",
    "MiniLLM": "objectives",
    "Objective": "objectives",
    "OpdAlignError": "types",
    "Question": "types",
    "ReverseKL": "objectives",
    "Rollouts": "types",
    "Rules": "alignment",
    "SampleRequest": "types",
    "Settings": "search",
    "SingleSample": "objectives",
    "analyze": "engine",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("opd_align.metrics")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'opd_align' has no attribute {name!r}")
    value = getattr(import_module(f"opd_align.{_ROOM_OF[name]}"), name)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
