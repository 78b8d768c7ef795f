"""Paths as compact text that the page decodes one at a time: quantised columns, shuffled, deflated, in base64.

A pack is a JSON index (column → type, offset and number of entries) followed by the columns. Shares and cosines keep
the two or three decimals that are displayed, other numbers two to three significant digits. Bytes of equal
significance are stored together, which makes them compress well. `unpack` decodes a pack as the page does. This module
handles arrays and tables; the page interprets the columns.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from opd_align.core import alignment
from opd_align.types import DIVERGENCES

Kind = Literal["u8", "u16", "u32", "unit", "signed", "unit2", "signed2", "f16"]
MAX_CHILDREN = 16
"""Children stored per node, besides those in `S_u`; the rest of a wide node has very little probability."""

VERDICTS = ("helpful", "harmful", "undecided")
UNDECIDED = VERDICTS.index("undecided")
_STORED = {
    "u8": "u1",
    "u16": "<u2",
    "u32": "<u4",
    "unit": "<u2",
    "signed": "<u2",
    "unit2": "u1",
    "signed2": "u1",
    "f16": "<f2",
}
_DECIMALS = {"unit": (1000, 0), "signed": (1000, 1000), "unit2": (100, 0), "signed2": (100, 100)}
"""Steps per unit, and the code of zero; the largest code of the integer type means unknown."""
_MANTISSA = 0b1111111111100000
"""Bits kept of a half-precision number: sign, exponent and the first five bits of the fraction."""

NODE_COLUMNS = (
    "depth", "alignment", "alignment_low", "alignment_high", "p_positive", "sr_range", "visits", "tail_mass",
    "student_entropy", "advantage", "teacher_entropy", *DIVERGENCES,
)  # fmt: skip
CHILD_COLUMNS = (
    "path_correct", "depth", "token", "own", "significant", "p", "q", "q_low", "q_high", "visits", "ideal",
)  # fmt: skip


@dataclass(frozen=True)
class PackedPath:
    """One path: its entry in the list of paths, and its pack.

    Args:
        question: Id of the question.
        path: Index of the path within its question.
        correct: Whether the rollout was correct.
        length: Number of tokens.
        nodes: Number of decisions (positions with a known alignment).
        data: The pack in base64.
    """

    question: str
    path: int
    correct: bool
    length: int
    nodes: int
    data: str


def pack(columns: Mapping[str, tuple[Kind, NDArray[Any]]]) -> str:
    """Columns as text.

    Args:
        columns: Name → type and values. `unit` values are in [0, 1], `signed` in [-1, 1]; NaN is preserved.
    """
    index: dict[str, tuple[str, int, int]] = {}
    body = bytearray()
    for name, (kind, values) in columns.items():
        stored = _quantise(kind, values)
        index[name] = (kind, len(body), len(stored))
        # All first bytes, then all second bytes: similar neighbours compress better.
        body += stored.view(np.uint8).reshape(len(stored), stored.itemsize).T.tobytes()
    head = json.dumps(index, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(len(head).to_bytes(4, "little") + head + bytes(body), 9)).decode()


def unpack(text: str) -> dict[str, NDArray[Any]]:
    """The columns of a pack, as the page decodes them."""
    raw = zlib.decompress(base64.b64decode(text))
    start = 4 + int.from_bytes(raw[:4], "little")
    columns = {}
    for name, (kind, offset, count) in json.loads(raw[4:start]).items():
        dtype = np.dtype(_STORED[kind])
        planes = np.frombuffer(raw, np.uint8, count * dtype.itemsize, start + offset).reshape(dtype.itemsize, count)
        values = np.ascontiguousarray(planes.T).view(dtype).reshape(count)
        columns[name] = _dequantise(kind, values)
    return columns


def pack_paths(nodes: pa.Table, children: pa.Table, token_index: Mapping[int, int]) -> Iterator[PackedPath]:
    """Every path of the tables, packed.

    Args:
        nodes: `Analysis.nodes`.
        children: `Analysis.children`.
        token_index: Token id → index in the list of token texts of the page.
    """
    teachers, pairs = alignment.teachers_of(children), alignment.pairs_of(children)
    node_rows_of, no_rows = _by_path(nodes), np.empty(0, np.int64)
    pair_N = _pair_indices(nodes, pairs)
    node_arrays, child_arrays = _arrays(nodes, NODE_COLUMNS), _arrays(children, CHILD_COLUMNS)
    node_arrays["verdict"] = _codes(nodes["verdict"], VERDICTS)
    child_arrays["token_index"] = np.array([token_index[token] for token in child_arrays["token"].tolist()], np.uint32)
    child_arrays["t"] = _matrix(children["t"], len(teachers))
    # Only significant children have updates: the row of a child's update is the number of significant ones before it.
    update_SO = _matrix(children["update"].drop_null(), len(pairs))
    update_row_C = np.cumsum(child_arrays["significant"]) - 1
    for key, child_rows in _by_path(children).items():
        path_children = {name: values[child_rows] for name, values in child_arrays.items()}
        significant = child_rows[path_children["significant"].astype(bool)]
        node_rows = node_rows_of.get(key, no_rows)
        path_nodes = {name: values[node_rows] for name, values in node_arrays.items()}
        columns = _child_columns(path_children, update_SO[update_row_C[significant]])
        columns |= _node_columns(path_nodes, pair_N[node_rows], teachers, pairs)
        yield PackedPath(
            question=key[0],
            path=key[1],
            correct=bool(path_children["path_correct"][0]),
            length=len(columns["count"][1]),
            nodes=len(columns["node.depth"][1]),
            data=pack(columns),
        )


def _by_path(table: pa.Table) -> dict[tuple[str, int], NDArray[np.int64]]:
    """Row indices of each (question, path), in table order."""
    encoded = table["question"].cast(pa.string()).combine_chunks().dictionary_encode()
    names, question_N = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
    path_N = table["path"].to_numpy().astype(np.int64)
    order = np.lexsort((path_N, question_N))
    key_N = np.stack([question_N[order], path_N[order]], axis=1)
    cuts = np.flatnonzero((np.diff(key_N, axis=0) != 0).any(1)) + 1
    return {
        (names[question_N[rows[0]]], int(path_N[rows[0]])): np.sort(rows) for rows in np.split(order, cuts) if len(rows)
    }


def _child_columns(
    children: Mapping[str, NDArray[Any]], update_SO: NDArray[Any]
) -> dict[str, tuple[Kind, NDArray[Any]]]:
    significant_C, own_C, depth_C = (
        children["significant"].astype(bool),
        children["own"].astype(bool),
        children["depth"],
    )
    stored_C = _stored_children(depth_C, children["p"], significant_C | own_C)
    columns: dict[str, tuple[Kind, NDArray[Any]]] = {
        "count": ("u16", np.bincount(depth_C[stored_C], minlength=int(depth_C.max(initial=-1)) + 1)),
        "token": ("u32", children["token_index"][stored_C]),
        "flags": ("u8", (own_C + 2 * significant_C)[stored_C]),
        **{name: ("unit", children[name][stored_C]) for name in ("p", "q")},
        **{name: ("unit2", children[name][stored_C]) for name in ("q_low", "q_high")},
        "visits": ("u32", children["visits"][stored_C]),
        "ideal": ("f16", children["ideal"][significant_C]),
    }
    columns |= {f"t.{index}": ("unit2", values) for index, values in enumerate(children["t"][stored_C].T)}
    return columns | {f"update.{index}": ("f16", values) for index, values in enumerate(update_SO.T)}


def _stored_children(depth_C: NDArray[Any], p_C: NDArray[Any], required_C: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The most probable children of each node, and the required ones."""
    order = np.lexsort((-p_C, depth_C))
    first_C = np.concatenate([[True], np.diff(depth_C[order]) != 0])[: len(order)]
    position = np.arange(len(order))
    rank_C = np.empty(len(order), np.int64)
    rank_C[order] = position - np.maximum.accumulate(np.where(first_C, position, 0))
    return required_C | (rank_C < MAX_CHILDREN)


def _node_columns(
    nodes: Mapping[str, NDArray[Any]],
    pair_N: NDArray[np.int64],
    teachers: Sequence[str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, tuple[Kind, NDArray[Any]]]:
    """Columns of the nodes by depth: common to all, per teacher, and per (teacher, objective) pair."""
    depth_N, first_N = np.unique(nodes["depth"], return_index=True)
    columns: dict[str, tuple[Kind, NDArray[Any]]] = {"node.depth": ("u32", depth_N)}
    columns |= {
        "node.sr_range": ("unit", nodes["sr_range"][first_N]),
        "node.visits": ("u32", nodes["visits"][first_N]),
        "node.tail_mass": ("unit", nodes["tail_mass"][first_N]),
        "node.student_entropy": ("f16", nodes["student_entropy"][first_N]),
    }
    teacher_index = {name: index for index, name in enumerate(teachers)}
    for pair, (teacher, _) in enumerate(pairs):
        rows = np.flatnonzero(pair_N == pair)
        rows = rows[np.argsort(nodes["depth"][rows], kind="stable")]
        # A teacher that was not available on this question has no rows.
        values = {name: column[rows] if len(rows) else np.full(len(depth_N), np.nan) for name, column in nodes.items()}
        columns |= {
            f"alignment.{pair}": ("signed", values["alignment"]),
            f"low.{pair}": ("signed2", values["alignment_low"]),
            f"high.{pair}": ("signed2", values["alignment_high"]),
            f"positive.{pair}": ("unit2", values["p_positive"]),
            f"verdict.{pair}": ("u8", values["verdict"] if len(rows) else np.full(len(depth_N), UNDECIDED)),
        }
        index = teacher_index.get(teacher)
        if index is not None and f"advantage.{index}" not in columns:
            names = ("advantage", "teacher_entropy", *DIVERGENCES)
            columns |= {f"{name}.{index}": ("f16", values[name]) for name in names}
    return columns


def _arrays(table: pa.Table, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(table[name].to_numpy()) for name in names}


def _codes(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.int64]:
    """The index in `values` of each entry."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    code = np.array([values.index(value) for value in encoded.dictionary.to_pylist()], np.int64)
    return code[encoded.indices.to_numpy()] if len(code) else np.empty(0, np.int64)


def _pair_indices(nodes: pa.Table, pairs: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
    """The index of each row's (teacher, objective) in `pairs`; -1 if it is not there."""
    teachers, objectives = (sorted({pair[part] for pair in pairs}) for part in (0, 1))
    index_of_pair = np.full((len(teachers), len(objectives)), -1)
    for index, (teacher, objective) in enumerate(pairs):
        index_of_pair[teachers.index(teacher), objectives.index(objective)] = index
    return np.asarray(index_of_pair[_codes(nodes["teacher"], teachers), _codes(nodes["objective"], objectives)])


def _matrix(column: pa.ChunkedArray, width: int) -> NDArray[Any]:
    flat = column.combine_chunks().flatten().to_numpy()
    return np.asarray(flat).reshape(len(column), width)


def _quantise(kind: Kind, values: NDArray[Any]) -> NDArray[Any]:
    stored = np.dtype(_STORED[kind])
    if kind in _DECIMALS:
        steps, zero = _DECIMALS[kind]
        whole = np.clip(np.round(np.asarray(values, np.float64) * steps) + zero, 0, steps + zero)
        return np.where(np.isnan(whole), np.iinfo(stored).max, np.nan_to_num(whole)).astype(stored)
    if kind == "f16":
        with np.errstate(over="ignore"):  # too large becomes infinite, which the page displays
            bits = np.ascontiguousarray(values, stored).view("<u2")
        rounded = np.minimum(bits.astype(np.uint32) + 16, 0xFFFF) & _MANTISSA
        # Infinity and NaN are kept, and rounding must not turn the largest numbers into them.
        return np.where((bits & 0x7FFF) >= 0x7BE0, bits, rounded).astype("<u2").view(stored)
    return np.ascontiguousarray(values, stored)


def _dequantise(kind: str, values: NDArray[Any]) -> NDArray[Any]:
    if kind not in _DECIMALS:
        return values
    steps, zero = _DECIMALS[kind]
    return np.where(values == np.iinfo(values.dtype).max, np.nan, (values.astype(np.float64) - zero) / steps)
