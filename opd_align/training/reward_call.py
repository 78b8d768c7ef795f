"""How TRL calls a reward function, and what that asks of a verifier: the same for the callback and for gates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from opd_align.types import OpdAlignError

WITHHELD = ("prompt", "completion", "completion_ids")
"""Columns of the data that TRL keeps from reward functions: what was asked and said comes in their place."""

BESIDE = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL hands to reward functions beside the data's columns."""


def call_of(
    function: Callable[..., Any], prompts: Any, completions: Any, columns: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """What the function is called with: of what comes `beside` the columns, only that for which it has a name.

    Refuses one that cannot be called with it: no later batch would do better.
    """
    given = {name: values for name, values in columns.items() if name not in WITHHELD}
    given |= {"prompts": prompts, "completions": completions}
    try:
        signature = inspect.signature(function)
    except ValueError:  # compiled functions have none
        return given
    parameters = signature.parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    given |= {name: value for name, value in beside.items() if takes_all or name in named}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise OpdAlignError(
            f"the verifier cannot be called as TRL calls reward functions: {error}. It is given "
            f"{', '.join(given)}; end its parameters with **columns to take what it does not use"
        ) from None
    return given


def refuse_model(verifier: Any) -> None:
    """A reward model is callable too, but not with prompts and completions."""
    if hasattr(verifier, "named_parameters"):
        raise OpdAlignError(
            f"the verifier is a model ({type(verifier).__name__}); give a function that asks it, as TRL calls reward "
            "functions: prompts and completions in, a number for each completion out"
        )
