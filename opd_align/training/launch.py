"""Recipes by name: where they are, and the command that launches one.

A recipe is a script with a folder of YAML configurations of the same name. They are in `recipes/` of a checkout, or in
the installed package. This module imports nothing heavy unless it is run: `python -m opd_align.training.launch` is
`accelerate launch` with the recipe's exit code and without a traceback of its own.
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

from opd_align.training import trl_compat
from opd_align.types import OpdAlignError

PACKAGE = Path(__file__).parent.parent
DEFAULT = "cpu_tiny"
ONE_GPU = "1gpu"


def folder() -> Path:
    """The directory of the recipes."""
    found = next((path for path in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if path.is_dir()), None)
    if found is None:
        raise OpdAlignError(f"no recipes found in {PACKAGE} or {PACKAGE.parent}; reinstall opd-align")
    return found


def recipes() -> dict[str, str]:
    """Names of the recipes and their one-line descriptions; only scripts with a folder of configurations count."""
    scripts = [script for script in sorted(folder().glob("*.py")) if configs(script.stem)]
    return {script.stem: _first_line(script) for script in scripts}


def configs(recipe: str) -> dict[str, Path]:
    """The configurations of a recipe by name."""
    return {file.stem: file for file in sorted((folder() / recipe).glob("*.yaml"))}


def accelerate_configs() -> dict[str, Path]:
    """The configurations of `accelerate launch` by name."""
    return {file.stem: file for file in sorted((folder() / "accelerate").glob("*.yaml"))}


def command(recipe: str, flags: Sequence[str] = ()) -> list[str]:
    """The command that launches a recipe.

    `--config` is the name of one of the recipe's configurations or a YAML file, `--accelerate` the name of a
    configuration of `accelerate launch` or a YAML file; all other flags are passed to the recipe.
    """
    if recipe not in recipes():
        similar = get_close_matches(recipe, recipes(), n=1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        raise OpdAlignError(f"unknown recipe {recipe!r}; {hint}Available recipes: {', '.join(recipes())}")
    config, rest = _pop_flag("--config", flags)
    launch, rest = _pop_flag("--accelerate", rest)
    config = config or DEFAULT
    file = _find_config("configuration", config, configs(recipe))
    if launch is None and config in configs(recipe):
        launch = config
    settings = (
        []
        if launch is None
        else ["--config_file", str(_find_config("accelerate configuration", launch, accelerate_configs()))]
    )
    if launch == ONE_GPU and "CUDA_VISIBLE_DEVICES" in os.environ:
        # The configuration sets gpu_ids, which would override CUDA_VISIBLE_DEVICES.
        settings += ["--gpu_ids", os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0]]
    script = folder() / f"{recipe}.py"
    return [sys.executable, "-m", "opd_align.training.launch", *settings, str(script), "--config", str(file), *rest]


def check_installed() -> None:
    """Raises if a library that training requires is not installed, or a version of TRL that is not supported."""
    missing = [name for name in ("trl", "accelerate", "peft", "datasets") if find_spec(name) is None]
    if missing:
        raise OpdAlignError(f"training requires {', '.join(missing)}: pip install 'opd-align[train,tasks]'")
    trl_compat.check_version()


def main() -> int:
    """Runs accelerate's launcher with the arguments of this process; returns the exit code of the recipe."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # else every process prints the warning
    try:
        trl_compat.launch_main()
        return 0
    except subprocess.CalledProcessError as error:
        code = error.returncode
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except (ImportError, ValueError, OSError) as error:  # an accelerate configuration that does not fit this machine
        print(f"opd-align: accelerate launch failed: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code if code > 0 else 128 - code  # signals as a shell reports them


def _find_config(kind: str, name: str, known: Mapping[str, Path]) -> Path:
    file = known.get(name, Path(name))
    if not file.is_file():
        raise OpdAlignError(f"unknown {kind} {name!r}; use a YAML file or one of {', '.join(known)}")
    return file


def _pop_flag(flag: str, flags: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of a flag, and the remaining flags."""
    rest = list(flags)
    for number, given in enumerate(rest):
        if given == flag and number + 1 < len(rest):
            value = rest[number + 1]
            del rest[number : number + 2]
            return value, rest
        if given.startswith(f"{flag}="):
            return rest.pop(number).partition("=")[2], rest
    if flag in rest:
        raise OpdAlignError(f"{flag} requires a value")
    return None, rest


def _first_line(script: Path) -> str:
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
