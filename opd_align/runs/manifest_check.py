"""Whether a manifest is the one that a run wrote, and whether its values have the types that readers expect.

A manifest carries a digest of its own content, so that any later change is found, and one of every file of the result.
The structure is checked as well: a manifest that passes can be used without further checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from math import isnan
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

KINDS = ("analysis", "screening", "demonstrations")

REQUIRED: dict[str, type] = {
    "kind": str, "settings": dict, "questions": dict, "made_with": list, "results": dict,
}  # fmt: skip
REQUIRED_IN_ANALYSIS: dict[str, type] = {"prompts": dict, "teachers": dict}
OPTIONAL: dict[str, type] = {"prompts": dict, "teachers": dict, "contexts": dict, "sources": dict}
"""Key → type of its value. Fingerprints may be any JSON value, since models of users provide them."""


class InvalidManifest(Exception):
    """A value of a manifest is missing or has the wrong type."""


def content_digest(data: bytes | memoryview) -> str:
    """Digest of a file's content."""
    return blake2b(data, digest_size=16).hexdigest()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Digest of everything in a manifest except the digest itself; the order of keys counts, white space does not."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    return content_digest(json.dumps(content, separators=(",", ":")).encode())


def check_structure(manifest: Mapping[str, Any]) -> None:
    """Raises `InvalidManifest` unless all keys that readers use are present with values of the right type."""
    required = REQUIRED | (REQUIRED_IN_ANALYSIS if manifest.get("kind") == "analysis" else {})
    for key, expected in required.items():
        if key not in manifest:
            raise InvalidManifest(f"{key} is missing")
        _check_type(key, manifest[key], expected)
    for key, expected in OPTIONAL.items():
        if key in manifest:
            _check_type(key, manifest[key], expected)
    if manifest["kind"] not in KINDS:
        raise InvalidManifest(f"kind is {shown(manifest['kind'])}")
    for key in ("student", "tokenizer", "grader"):
        if manifest["kind"] == "analysis" and key not in manifest:
            raise InvalidManifest(f"{key} is missing")
    for key in ("questions", "results", "sources"):
        for name, value in manifest.get(key, {}).items():
            _check_type(f"{key}.{name}", value, str)
    for name, value in manifest.get("prompts", {}).items():
        if not (isinstance(value, str) and value and set(value) <= set("0123456789abcdef")):
            raise InvalidManifest(f"prompts.{shown(name)} is not a digest")
    if not manifest["made_with"] or not all(isinstance(entry, dict) for entry in manifest["made_with"]):
        raise InvalidManifest("made_with is not a list of package versions")


def from_json(kind: type[T], values: object, where: str) -> T:
    """A dataclass from JSON values; raises `InvalidManifest` if a field is missing, unknown or of another type."""
    if not isinstance(values, dict):
        raise InvalidManifest(f"{where} is {shown(values)}")
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    try:
        hints = get_type_hints(kind)
    except NameError:  # a class of the user's whose annotations cannot be resolved here
        hints = {}
    for name in (*names, *values):
        if name not in values:
            raise InvalidManifest(f"{where}.{name} is missing")
        if name not in names:
            raise InvalidManifest(f"{where} has an unknown key {shown(name)}")
        if not _matches(hints.get(name), values[name]):
            raise InvalidManifest(f"{where}.{name} is {shown(values[name])}")
    return kind(**values)


def shown(value: object) -> str:
    """A value in a message: one short line without control characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}…"


def shown_key(key: str) -> str:
    """A key in a message: plain if it is a short name."""
    return key if key.isprintable() and len(key) <= 120 else shown(key)


def _check_type(key: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise InvalidManifest(f"{shown_key(key)} is {shown(value)}")


def _matches(hint: Any, value: object) -> bool:
    """Whether a JSON value has the type of a setting; JSON does not distinguish 20 and 20.0."""
    if get_origin(hint) in (Union, UnionType):
        return any(_matches(option, value) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint in (bool, str, NoneType):
        return isinstance(value, hint)
    if hint not in (int, float):
        return True  # an object that was restored before
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
        return False
    return hint is float or isinstance(value, int) or value.is_integer()
