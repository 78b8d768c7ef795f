"""Recipes by name: where they are, and the command that starts one.

A recipe is a script with a folder of configurations beside it. In a checkout they stand in `recipes/`, in an installed
package within it. Nothing heavy is imported here, unless it is run: `python -m opd_align.training.launch` is
`accelerate launch` that ends as the recipe did, with its exit code and without a traceback of its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from opd_align.types import OpdAlignError

PACKAGE = Path(__file__).parent.parent
DEFAULT = "cpu_tiny"
ONE_GPU = "1gpu"


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


def machines() -> dict[str, Path]:
    """The launch configurations that ship, by name."""
    return {file.stem: file for file in sorted((folder() / "accelerate").glob("*.yaml"))}


def command(recipe: str, flags: Sequence[str] = ()) -> list[str]:
    """What starts a recipe: `accelerate launch`, its script, and its flags.

    `--config` names one of the recipe's configurations or a YAML file, `--accelerate` a launch configuration, again by
    name or file; everything else is the recipe's own.
    """
    if recipe not in recipes():
        near = get_close_matches(recipe, recipes(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise OpdAlignError(f"there is no recipe {recipe!r}; {hint}There are: {', '.join(recipes())}")
    config, rest = _taken("--config", flags)
    launch, rest = _taken("--accelerate", rest)
    config = config or DEFAULT
    file = _found("configuration", config, configs(recipe))
    if launch is None and config in configs(recipe):
        launch = config
    settings = [] if launch is None else ["--config_file", str(_found("launch configuration", launch, machines()))]
    if launch == ONE_GPU and "CUDA_VISIBLE_DEVICES" in os.environ:
        # The configuration names a GPU, and accelerate would set that over the user's own choice.
        settings += ["--gpu_ids", os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]]
    script = folder() / f"{recipe}.py"
    return [sys.executable, "-m", "opd_align.training.launch", *settings, str(script), "--config", str(file), *rest]


def check_installed() -> None:
    """Refuses to start without the libraries for training."""
    missing = [name for name in ("trl", "accelerate", "peft", "datasets") if find_spec(name) is None]
    if missing:
        raise OpdAlignError(f"training needs {', '.join(missing)}: pip install 'opd-align[train,tasks]'")


def launched() -> int:
    """Runs accelerate's launcher on this process's arguments; the exit code is the recipe's."""
    from accelerate.commands.launch import main
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # whoever chose a recipe need not hear it from each process
    try:
        main()
        return 0
    except subprocess.CalledProcessError as error:
        code = error.returncode
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except (ImportError, ValueError, OSError) as error:  # a launch configuration that does not fit this machine
        print(f"opd-align: accelerate cannot launch: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code if code > 0 else 128 - code  # as a shell tells a signal


def _found(kind: str, name: str, known: Mapping[str, Path]) -> Path:
    file = known.get(name, Path(name))
    if not file.is_file():
        raise OpdAlignError(f"there is no {kind} {name!r}; give a YAML file, or one of {', '.join(known)}")
    return file


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


if __name__ == "__main__":
    sys.exit(launched())
