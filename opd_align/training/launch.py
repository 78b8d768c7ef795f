"""Recipes by name: where they are, and the command that starts one.

A recipe is a script with a folder of configurations beside it. In a checkout they stand in `recipes/`, in an installed
package within it. Nothing heavy is imported here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from opd_align.types import OpdAlignError

PACKAGE = Path(__file__).parent.parent
DEFAULT = "cpu_tiny"


def folder() -> Path:
    """Where the recipes are."""
    found = next((place for place in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if place.is_dir()), None)
    if found is None:
        raise OpdAlignError(f"the recipes are neither in {PACKAGE} nor beside it; install the package again")
    return found


def recipes() -> dict[str, str]:
    """Names, and what each does in a line."""
    scripts = [script for script in sorted(folder().glob("*.py")) if (folder() / script.stem).is_dir()]
    return {script.stem: _first_line(script) for script in scripts}


def configs(recipe: str) -> dict[str, Path]:
    """The configurations that ship with a recipe, by name."""
    return {file.stem: file for file in sorted((folder() / recipe).glob("*.yaml"))}


def command(recipe: str, flags: Sequence[str] = ()) -> list[str]:
    """What starts a recipe: `accelerate launch`, its script, and its flags.

    `--config` names one of the recipe's configurations or a YAML file, `--accelerate` another launch configuration;
    everything else is the recipe's own.
    """
    if recipe not in recipes():
        near = get_close_matches(recipe, recipes(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise OpdAlignError(f"there is no recipe {recipe!r}; {hint}There are: {', '.join(recipes())}")
    config, rest = _taken("--config", flags)
    launch, rest = _taken("--accelerate", rest)
    config = config or DEFAULT
    known = configs(recipe)
    file = known.get(config, Path(config))
    if not file.is_file():
        raise OpdAlignError(f"there is no configuration {config!r}; give a YAML file, or one of {', '.join(known)}")
    if launch is None and config in known:
        launch = str(folder() / "accelerate" / f"{config}.yaml")
    settings = [] if launch is None else ["--config_file", launch]
    script = folder() / f"{recipe}.py"
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", *settings]
    return [*accelerate, str(script), "--config", str(file), *rest]


def check_installed() -> None:
    """Refuses to start without the libraries for training."""
    missing = [name for name in ("trl", "accelerate", "peft", "datasets") if find_spec(name) is None]
    if missing:
        raise OpdAlignError(f"training needs {', '.join(missing)}: pip install 'opd-align[train,tasks]'")


def _taken(flag: str, flags: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of a flag, and the others without it."""
    rest = list(flags)
    for number, given in enumerate(rest):
        if given == flag and number + 1 < len(rest):
            value = rest[number + 1]
            del rest[number : number + 2]
            return value, rest
        if given.startswith(f"{flag}="):
            return rest.pop(number).partition("=")[2], rest
    if flag in rest:
        raise OpdAlignError(f"{flag} needs a value")
    return None, rest


def _first_line(script: Path) -> str:
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
