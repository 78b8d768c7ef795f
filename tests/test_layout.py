"""Package layout: allowed imports between layers, lazy loading, public names, file sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import opd_align

PACKAGE = Path(opd_align.__file__).parent

# The layers, bottom first. A layer is a top-level module or a folder with all its modules, except `core.objectives`:
# settings use objectives, and everything else in `core` uses settings. A layer may import itself and those it lists.
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "hub": set(),
    "core.objectives": {"types"},
    "settings": {"types", "core.objectives"},
    "core": {"types", "core.objectives", "settings"},
    "embedded": set(),
    "backends": {"types", "hub", "settings", "core.objectives", "core", "embedded"},
    "tasks": {"types", "hub"},
    "runs": {"types", "settings", "core.objectives", "core"},
    "teachers": {"types", "settings", "core", "backends", "tasks", "runs"},
    "report": {"types", "settings", "core", "runs", "teachers"},
    "training": {
        "types", "settings", "core.objectives", "core", "backends", "tasks", "runs", "teachers", "report",
    },
    "study": {
        "types", "settings", "core.objectives", "core", "backends", "tasks", "runs", "teachers", "report", "training",
    },
    "cli": {
        "types", "settings", "core.objectives", "core", "backends", "tasks", "runs", "teachers", "report", "training",
        "study",
    },
}  # fmt: skip

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
    "load_run",
    "metrics",
]

HEAVY = {"torch", "transformers", "vllm", "trl", "wandb", "ray", "scipy"}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def layer_of(module: str) -> str:
    """`opd_align.backends.exact` belongs to `backends`; the package itself is the layer `opd_align`."""
    inner = module.removeprefix("opd_align.")
    return inner if inner in MAY_IMPORT else inner.split(".")[0]


def imported_modules(source: str, *, package: str) -> set[str]:
    """The modules of opd_align that a source imports, including imports inside functions.

    `package` is the package that relative imports start from.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from opd_align import tree` imports a module, `from opd_align.core.tree import GenerationTree` a name.
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner in SOURCES else origin)
    return {module for module in found if module.split(".")[0] == "opd_align"}


def imports_of(module: str) -> set[str]:
    file = SOURCES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return imported_modules(file.read_text(encoding="utf-8"), package=package)


def modules_loaded_by(*arguments: str) -> set[str]:
    """Modules that a new interpreter imports, according to `-X importtime`."""
    command = [sys.executable, "-X", "importtime", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_layers_only_import_lower_layers():
    above: set[str] = set()
    for layer, allowed in MAY_IMPORT.items():
        assert allowed <= above, f"{layer} may import {sorted(allowed - above)}, which are not below it"
        above.add(layer)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import opd_align.types", {"opd_align.types"}),
        ("from opd_align.types import Question", {"opd_align.types"}),
        ("from opd_align import types", {"opd_align.types"}),
        ("from opd_align import Question", {"opd_align"}),
        ("from . import types as records, backends", {"opd_align.types", "opd_align.backends"}),
        ("from .types import Question", {"opd_align.types"}),
        ("def late():\n    from .backends import anything", {"opd_align.backends"}),
        ("import numpy\nfrom opd_aligned import types", set()),
    ],
)
def test_all_import_forms_are_found(line, expected):
    assert imported_modules(line, package="opd_align") == expected


def test_relative_imports_start_from_the_package():
    source = "from ..types import Question\nfrom . import types\nfrom .. import types"
    expected = {"opd_align.types", "opd_align.backends"}
    assert imported_modules(source, package="opd_align.backends") == expected


def test_modules_follow_the_layer_table():
    assert {"opd_align", "opd_align.types", "opd_align.backends"} <= SOURCES.keys()
    wrong = []
    for module in SOURCES.keys() - {"opd_align"}:  # the package itself may import every layer
        layer = layer_of(module)
        if layer not in MAY_IMPORT:
            wrong.append(f"{module} belongs to no layer: add it to the table")
            continue
        for target in imports_of(module) - {module}:
            if layer_of(target) not in MAY_IMPORT[layer] | {layer}:
                wrong.append(f"{module} imports {target}, but {layer} may import {sorted(MAY_IMPORT[layer])}")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_import_cycles():
    """Imports inside functions count too."""
    graph = {module: imports_of(module) & SOURCES.keys() - {module, "opd_align"} for module in SOURCES}
    graph.pop("opd_align")
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")
    assert len(order) >= len(graph) > 50


def test_the_top_level_is_small():
    shown = [entry for entry in PACKAGE.iterdir() if not entry.name.startswith(("__pycache__", "."))]
    assert len([entry for entry in shown if entry.suffix == ".py"]) <= 4
    assert len([entry for entry in shown if entry.is_dir()]) <= 11


def test_importing_the_package_loads_nothing_heavy():
    loaded = modules_loaded_by("-c", "import opd_align")
    assert "opd_align" in loaded
    assert not loaded & (HEAVY | {"numpy", "pyarrow"})


def test_cli_help_loads_nothing_heavy():
    loaded = modules_loaded_by("-m", "opd_align.cli", "--help")
    assert "opd_align" in loaded
    assert not loaded & HEAVY


def test_the_public_names_are_pinned():
    assert sorted(opd_align.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(opd_align))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name):
    assert getattr(opd_align, name) is getattr(opd_align, name)


def test_an_unknown_name_raises():
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        _ = opd_align.analyse


def test_no_file_exceeds_500_lines():
    lines = {module: len(file.read_text(encoding="utf-8").splitlines()) for module, file in SOURCES.items()}
    assert lines
    assert not {module: count for module, count in lines.items() if count > 500}


def test_no_module_has_a_generic_name():
    names = {part for module in SOURCES for part in module.split(".")}
    assert "types" in names
    assert not names & {"utils", "util", "helpers", "misc", "common"}
