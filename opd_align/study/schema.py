"""The JSON schema of a configuration, for editors: completion, descriptions and errors while a YAML file is written.

Generated from the dataclasses of `config` and their docstrings, so that it knows every key. It accepts what
`read_config` accepts, short forms included; what depends on several keys is checked there only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from opd_align.study.config import ModelConfig, QuestionsConfig, StudyConfig, TaskConfig, TeacherConfig
from opd_align.tasks import TASKS
from opd_align.teachers.contexts import CONTEXTS

SHORT_FORMS = {
    ModelConfig: "a model: folder, .gguf file, Hub name, embedded:student or embedded:teacher",
    TeacherConfig: "a context such as Self-1C, or a model",
    TaskConfig: "the name of a built-in task",
    QuestionsConfig: "a file with questions",
}
"""Sections that may be given by a single text."""
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # YAML reads 1e-3 as text.
    float: {"type": ["number", "string"]},
}


def config_schema() -> dict[str, Any]:
    """The schema as JSON values."""
    definitions: dict[str, Any] = {}
    _section(StudyConfig, definitions)
    study = definitions.pop("StudyConfig")
    examples = {"TaskConfig": list(TASKS), "TeacherConfig": list(CONTEXTS)}
    for name, known in examples.items():
        definitions[name]["anyOf"][0]["examples"] = known
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of an opd-align study",
        **study,
        "$defs": dict(sorted(definitions.items())),
    }


def _section(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a dataclass, which is added to the definitions."""
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # entered first: a section may contain itself
        hints, described = get_type_hints(kind), argument_descriptions(kind.__doc__ or "")
        properties = {}
        required = []
        for key in fields(kind):
            value = _value(hints[key.name], definitions)
            if key.name in described:
                value = {**value, "description": described[key.name]}
            if key.default is not MISSING and isinstance(key.default, str | int | float | bool):
                value = {**value, "default": key.default}
            properties[key.name] = value
            if key.default is MISSING and key.default_factory is MISSING:
                required.append(key.name)
        section: dict[str, Any] = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
        # The student's model has a default where the section is given without it.
        if required and kind is not ModelConfig:
            section["required"] = required
        short = SHORT_FORMS.get(kind)
        definitions[name] = {"anyOf": [{"type": "string", "description": short}, section]} if short else section
    return {"$ref": f"#/$defs/{name}"}


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = [_value(argument, definitions) for argument in arguments if argument is not NoneType]
        return {"anyOf": [inner, {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and is_dataclass(hint):
        return _section(hint, definitions)
    if origin is not None and issubclass(origin, Mapping):
        return {"type": ["object", "null"]}
    if origin is not None and issubclass(origin, Sequence):
        items = _value(arguments[0], definitions)
        # A list may be given as text with commas, or be empty.
        return {"anyOf": [{"type": "array", "items": items}, {"type": ["string", "null"]}]}
    return dict(_PLAIN[hint])


def argument_descriptions(docstring: str) -> dict[str, str]:
    """The section `Args` of a docstring: name → description."""
    _, found, text = docstring.partition("Args:\n")
    described: dict[str, str] = {}
    name = ""
    for line in text.splitlines() if found else ():
        entry = re.match(r" {8}(\w+): (.*)", line)
        if entry:
            name, described[entry[1]] = entry[1], entry[2].strip()
        elif name and line.startswith(" " * 12):
            described[name] += f" {line.strip()}"
        elif line.strip():
            break
    return described
