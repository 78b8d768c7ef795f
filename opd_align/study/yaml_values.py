"""Plain values from YAML: whatever the text contains, the result is a small tree of values or an `OpdAlignError`.

Stricter than PyYAML where it would pick one of several meanings: a key that appears twice is an error. Anchors are
allowed, as long as the tree stays small when they are expanded.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from opd_align.types import OpdAlignError, shortened

MAX_VALUES = 100_000
"""Number of values of a configuration, with anchors expanded."""
MAX_DEPTH = 30
"""Depth of nested lists and sections."""
TOO_DEEP = "lists or sections are nested too deeply"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also rejects repeated keys and deep nesting (its time is quadratic in the depth)."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise OpdAlignError(TOO_DEEP)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        if self.flow_level > MAX_DEPTH:
            raise OpdAlignError(TOO_DEEP)
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node)
                if key in seen:
                    line = key_node.start_mark.line + 1
                    raise OpdAlignError(f"the key {shortened(key)} appears more than once (line {line})")
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str) -> Any:
    """The values of a YAML text; an `OpdAlignError` in one line says why it cannot be read."""
    try:
        return _expanded(yaml.load(text, _Loader), 0, [0])
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise OpdAlignError(f"not YAML: {error.problem or 'invalid text'}{place}") from error
    except yaml.YAMLError as error:
        raise OpdAlignError(f"not YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError:
        raise OpdAlignError(TOO_DEEP) from None
    except OpdAlignError:
        raise
    # A date with a 13th month, `0b_`, a number of 5,000 digits: errors of the types that PyYAML converts to.
    except Exception as error:
        raise OpdAlignError(f"a value cannot be read: {' '.join(str(error).split())[:200]}") from error


def _expanded(value: Any, depth: int, count: list[int]) -> Any:
    """A copy without shared parts: changing a section does not change another one that refers to the same anchor.

    Rejects values that are too deep, endless (an anchor that contains itself) or huge.
    """
    count[0] += 1
    if depth > MAX_DEPTH:
        raise OpdAlignError(TOO_DEEP)
    if count[0] > MAX_VALUES:
        raise OpdAlignError(f"more than {MAX_VALUES:,} values, with anchors expanded")
    if isinstance(value, dict):
        return {key: _expanded(inner, depth + 1, count) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner, depth + 1, count) for inner in value]
    return value
