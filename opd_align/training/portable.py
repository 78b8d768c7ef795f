"""Objects as JSON that another process can read: settings, questions, verifiers, objectives, contexts.

A dataclass is written as its import path and its fields, a function or class as its import path, a built-in task by
name, and all else must be plain values. Reading imports what is named, from the folders where it was found when it was
written; so a file is read only from a directory that its user trusts, such as the output directory of a training. Live
objects (models, closures) cannot be described, and are refused with what to do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opd_align.tasks import TASKS, Task
from opd_align.types import OpdAlignError

KIND = "__"
"""Key of a JSON object that stands for something other than a mapping."""


def to_json(value: Any, what: str) -> Any:
    """The value as JSON; raises `OpdAlignError` if it cannot be described. `what` names it in the error."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [to_json(item, what) for item in value]
    if isinstance(value, tuple):
        return {KIND: "tuple", "items": [to_json(item, what) for item in value]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and KIND not in value:
            return {key: to_json(item, what) for key, item in value.items()}
        return {KIND: "mapping", "items": [[to_json(part, what) for part in item] for item in value.items()]}
    if isinstance(value, Task) and TASKS.get(value.name) is value:
        return {KIND: "task", "name": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {KIND: "object", "type": import_path(type(value), what)} | {
            "fields": {name: to_json(item, what) for name, item in given.items()}
        }
    if _has_no_state(value):
        return {KIND: "object", "type": import_path(type(value), what), "fields": {}}
    return {KIND: "import", "path": import_path(value, what)}


def from_json(value: Any) -> Any:
    """The value that `to_json` has described."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(KIND)
    if kind is None:
        return {key: from_json(item) for key, item in value.items()}
    if kind == "tuple":
        return tuple(from_json(item) for item in value["items"])
    if kind == "mapping":
        return {from_json(key): from_json(item) for key, item in value["items"]}
    if kind == "object":
        made: Any = import_object(value["type"])
        return made(**{name: from_json(item) for name, item in value["fields"].items()})
    return TASKS[value["name"]] if kind == "task" else import_object(value["path"])


def import_path(value: Any, what: str) -> str:
    """Where another process finds a function or class, as "module:name", with the folder for modules of the user."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module == "__main__" or (name is not None and "<" in name):
        raise OpdAlignError(
            f"{what}: {name!r} is defined in the script itself or inside a function, where another process cannot find "
            "it; define it at the top of a module that both processes can import"
        )
    if module is None or name is None or _found(module, name) is not value:
        raise OpdAlignError(
            f"{what}: a {type(value).__name__} cannot be described for another process; use plain values, dataclasses, "
            "and functions at the top of a module"
        )
    file = getattr(sys.modules[module], "__file__", None)
    of_user = file is not None and "site-packages" not in file and not module.startswith("opd_align.")
    folder = f"@{Path(file).resolve().parents[module.count('.')]}" if of_user and file else ""
    return f"{module}:{name}{folder}"


def import_object(path: str) -> Any:
    """What `import_path` has named; also a plain "module:name" of the user's."""
    named, _, folder = path.partition("@")
    module, separator, name = named.partition(":")
    if not separator or not module or not name:
        raise OpdAlignError(f"{path!r} does not name an object; expected module:name")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    try:
        importlib.import_module(module)
    except Exception as error:  # of the user's module
        raise OpdAlignError(f"cannot import {module!r}: {type(error).__name__}: {error}") from error
    found = _found(module, name)
    if found is None:
        raise OpdAlignError(f"module {module!r} has no {name!r}")
    return found


def _has_no_state(value: Any) -> bool:
    """Whether an object is what calling its class without arguments gives, such as an objective without parameters."""
    kind: Any = type(value)
    made_plainly = kind.__init__ is object.__init__ and kind.__new__ is object.__new__
    return made_plainly and hasattr(value, "__dict__") and not vars(value)


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
