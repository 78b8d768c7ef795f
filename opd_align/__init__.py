"""Measure, token by token, whether an on-policy distillation update increases the probability of success.

The names in `__all__` are the public API. Each is imported on first access, so `import opd_align` takes milliseconds
and does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opd_align.backends.exact import ExactFamily, ExactWorld
    from opd_align.core import metrics
    from opd_align.core.engine import Analysis, analyze
    from opd_align.core.objectives import (
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
    from opd_align.core.tree import GenerationTree
    from opd_align.runs.run_directory import load_run
    from opd_align.settings import Budget, Rules, Settings
    from opd_align.training.callback import AlignmentCallback
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
    "load_run",
    "metrics",
]

_MODULE_OF = {
    "AlignmentCallback": "training.callback",
    "Analysis": "core.engine",
    "Budget": "settings",
    "DrGRPO": "core.objectives",
    "ExactFamily": "backends.exact",
    "ExactWorld": "backends.exact",
    "ForwardKL": "core.objectives",
    "GRPO": "core.objectives",
    "GeneralisedJSD": "core.objectives",
    "GenerationTree": "core.tree",
    "Ideal": "core.objectives",
    "MiniLLM": "core.objectives",
    "Objective": "core.objectives",
    "OpdAlignError": "types",
    "Question": "types",
    "ReverseKL": "core.objectives",
    "Rollouts": "types",
    "Rules": "settings",
    "SampleRequest": "types",
    "Settings": "settings",
    "SingleSample": "core.objectives",
    "analyze": "core.engine",
    "load_run": "runs.run_directory",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("opd_align.core.metrics")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'opd_align' has no attribute {name!r}")
    value = getattr(import_module(f"opd_align.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # later accesses do not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
