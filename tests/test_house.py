"""The house itself: who may import whom, what stays unloaded, which names are public, how long a file is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import opd_align

PACKAGE = Path(opd_align.__file__).parent

# A room is a module, or a folder with all its modules. Read top to bottom: a room may import those named
# beside it, all of which stand above it. A folder whose modules may import each other names itself.
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "tree": {"types"},
    "prior": {"types"},
    "estimate": {"types", "tree", "prior"},
    "objectives": {"types"},
    "future": {"types", "tree", "objectives"},
    "alignment": {"types", "tree", "estimate", "objectives"},
    "metrics": {"types"},
    "enrich": {"types", "tree", "estimate", "objectives"},
    "scoring": {"types"},
    "line": {"types"},
    "backends": {"types", "scoring", "line"},
    "search": {"types", "tree", "estimate", "objectives", "future", "alignment", "enrich"},
    "engine": {"types", "tree", "estimate", "alignment", "search"},
    "place": {"types"},
    "shards": {"types", "place"},
    "manifest": {"types", "objectives", "alignment", "enrich", "search", "place"},
    "shelf": {"types", "place", "shards"},
    "store": {"types", "metrics", "alignment", "search", "engine", "place", "shards", "manifest", "shelf"},
    "tasks": {"types", "tasks"},
    "embedded": {"types", "scoring", "backends", "tasks", "embedded"},
    "chat": {"types"},
    "teachers": {"types", "chat", "tasks"},
    "demonstrations": {"types", "teachers"},
    "screen": {
        "types", "metrics", "manifest", "place", "shards", "shelf", "store", "tasks", "teachers", "demonstrations",
    },
    "models": {"types", "embedded"},
    "report": {"types", "metrics", "alignment", "engine", "place", "store", "screen", "teachers", "report"},
    "serve": {"types", "place", "shards", "store", "report"},
    "training": {
        "types", "objectives", "alignment", "metrics", "enrich", "scoring", "backends", "search", "engine", "place",
        "shards", "manifest", "shelf", "store", "tasks", "chat", "teachers", "demonstrations", "screen", "models",
        "report", "training",
    },
}  # fmt: skip
# Those that wire everything together.
for room in ("config", "study", "actors", "cluster", "merge", "plan", "bars", "commands", "cli"):
    MAY_IMPORT[room] = set(MAY_IMPORT)

PUBLIC = [
    "AlignmentCallback",
    "Analysis",
    "Budget",
    "DrGRPO",
    "ExactFamily",
    "ExactWorld",
    "ForwardKL",
    "GRPO",
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

HEAVY = {"torch", "transformers", "vllm", "trl", "wandb", "ray", "scipy"}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """`opd_align.backends.exact` lives in `backends`; the package's front door is the room `opd_align`."""
    return module.split(".")[1] if "." in module else module


def imported_modules(source: str, *, package: str) -> set[str]:
    """The modules of opd_align that a source imports, at whatever level and wherever in the file.

    `package` is what the source's relative imports start from.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from opd_align import tree` takes a module, `from opd_align.tree import GenerationTree` a name.
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner in SOURCES else origin)
    return {module for module in found if module.split(".")[0] == "opd_align"}


def imports_of(module: str) -> set[str]:
    file = SOURCES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return imported_modules(file.read_text(encoding="utf-8"), package=package)


def modules_loaded_by(*arguments: str) -> set[str]:
    """What a fresh interpreter imports on its way, by the interpreter's own account."""
    command = [sys.executable, "-X", "importtime", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_the_table_points_one_way():
    above: set[str] = set()
    for room, allowed in MAY_IMPORT.items():
        assert allowed <= above | {room}, f"{room} may import {sorted(allowed - above)}, which stand below it"
        above.add(room)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import opd_align.types", {"opd_align.types"}),
        ("from opd_align.types import Question", {"opd_align.types"}),
        ("from opd_align import types", {"opd_align.types"}),
        ("from opd_align import Question", {"opd_align"}),
        ("from . import types as words, backends", {"opd_align.types", "opd_align.backends"}),
        ("from .types import Question", {"opd_align.types"}),
        ("def late():\n    from .backends import anything", {"opd_align.backends"}),
        ("import numpy\nfrom opd_aligned import types", set()),
    ],
)
def test_imports_are_found_however_they_are_written(line, expected):
    assert imported_modules(line, package="opd_align") == expected


def test_relative_imports_climb_from_where_they_stand():
    climbing = "from ..types import Question\nfrom . import types\nfrom .. import types"
    expected = {"opd_align.types", "opd_align.backends"}
    assert imported_modules(climbing, package="opd_align.backends") == expected


def test_imports_go_downwards_only():
    assert {"opd_align", "opd_align.types", "opd_align.backends"} <= SOURCES.keys()
    wrong = []
    for module in SOURCES.keys() - {"opd_align"}:  # the front door may fetch from every room
        room = room_of(module)
        if room not in MAY_IMPORT:
            wrong.append(f"{module} has no room yet: give it a place in the table")
            continue
        for target in imports_of(module) - {module}:
            if room_of(target) not in MAY_IMPORT[room]:
                wrong.append(f"{module} imports {target}, but {room} may import {sorted(MAY_IMPORT[room])}")
    assert not wrong, "\n".join(sorted(wrong))


def test_importing_the_package_loads_nothing_heavy():
    loaded = modules_loaded_by("-c", "import opd_align")
    assert "opd_align" in loaded
    assert not loaded & (HEAVY | {"numpy", "pyarrow"})


def test_asking_the_command_for_help_loads_nothing_heavy():
    loaded = modules_loaded_by("-m", "opd_align.cli", "--help")
    assert "opd_align" in loaded
    assert not loaded & HEAVY


def test_the_public_names_are_pinned():
    assert sorted(opd_align.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(opd_align))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name):
    assert getattr(opd_align, name) is getattr(opd_align, name)


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        _ = opd_align.analyse


def test_a_file_answers_one_question():
    lines = {module: len(file.read_text(encoding="utf-8").splitlines()) for module, file in SOURCES.items()}
    assert lines
    assert not {module: count for module, count in lines.items() if count > 500}


def test_no_room_is_a_drawer_for_everything():
    names = {part for module in SOURCES for part in module.split(".")}
    assert "types" in names
    assert not names & {"utils", "util", "helpers", "misc", "common"}
