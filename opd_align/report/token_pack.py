"""Paths as bytes that a page can open one at a time: columns quantised, shuffled, deflated, in base64.

A pack is a JSON index (column → type, place and number of entries) and the columns behind it. Shares and cosines keep
the two or three decimals that are shown, other numbers two to three digits. Bytes of equal significance lie together,
which is what makes them small. `unpack` reads what the page reads. This room knows arrays and tables; the meaning of
the columns is the page's.
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
MOST_CHILDREN = 16
"""Children shown of a node, beside those in `S_u`; the rest of a wide node is mere tail."""

VERDICTS = ("helpful", "harmful", "undecided")
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
"""Steps in one, and where zero lies; the largest number that fits means that there is none."""
_MANTISSA = 0b1111111111100000
"""What is kept of a half-precision number: five binary digits after the first."""

NODE_COLUMNS = (
    "depth", "alignment", "alignment_low", "alignment_high", "p_positive", "sr_range", "visits", "tail_mass",
    "student_entropy", "advantage", "teacher_entropy", *DIVERGENCES,
)  # fmt: skip
CHILD_COLUMNS = (
    "path_correct", "depth", "token", "own", "significant", "p", "q", "q_low", "q_high", "visits", "ideal",
)  # fmt: skip


@dataclass(frozen=True)
class PackedPath:
    """One path: what the list shows of it, and its pack in base64."""

    question: str
    path: int
    correct: bool
    length: int
    nodes: int
    data: str


def pack(columns: Mapping[str, tuple[Kind, NDArray[Any]]]) -> str:
    """Columns as text; `unit` lies in [0, 1], `signed` in [-1, 1], NaN stays NaN."""
    index: dict[str, tuple[str, int, int]] = {}
    body = bytearray()
    for name, (kind, values) in columns.items():
        stored = _quantised(kind, values)
        index[name] = (kind, len(body), len(stored))
        # All first bytes, then all second bytes: neighbours look alike, and deflate likes that.
        body += stored.view(np.uint8).reshape(len(stored), stored.itemsize).T.tobytes()
    head = json.dumps(index, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(len(head).to_bytes(4, "little") + head + bytes(body), 9)).decode()


def unpack(text: str) -> dict[str, NDArray[Any]]:
    """The columns of a pack, as the page sees them."""
    raw = zlib.decompress(base64.b64decode(text))
    start = 4 + int.from_bytes(raw[:4], "little")
    columns = {}
    for name, (kind, at, count) in json.loads(raw[4:start]).items():
        dtype = np.dtype(_STORED[kind])
        planes = np.frombuffer(raw, np.uint8, count * dtype.itemsize, start + at).reshape(dtype.itemsize, count)
        values = np.ascontiguousarray(planes.T).view(dtype).reshape(count)
        columns[name] = _restored(kind, values)
    return columns


def packed_paths(nodes: pa.Table, children: pa.Table, vocabulary: Mapping[int, int]) -> Iterator[PackedPath]:
    """Every path of the tables; `vocabulary` numbers the tokens as the page lists them."""
    teachers, pairs = alignment.teachers_of(children), alignment.pairs_of(children)
    rows_of, none = _by_path(nodes), np.empty(0, np.int64)
    pair_N = _pair_numbers(nodes, pairs)
    of_node, of_child = _arrays(nodes, NODE_COLUMNS), _arrays(children, CHILD_COLUMNS)
    of_node["verdict"] = _codes(nodes["verdict"], VERDICTS)
    of_child["word"] = np.array([vocabulary[token] for token in of_child["token"].tolist()], np.uint32)
    of_child["t"] = _matrix(children["t"], len(teachers))
    # Only the significant have updates: where those of a path begin is where they end of all before.
    update_SO = _matrix(children["update"].drop_null(), len(pairs))
    place_C = np.cumsum(of_child["significant"]) - 1
    for key, rows in _by_path(children).items():
        own = {name: values[rows] for name, values in of_child.items()}
        chosen = rows[own["significant"].astype(bool)]
        mine = rows_of.get(key, none)
        here = {name: values[mine] for name, values in of_node.items()}
        columns = _child_columns(own, update_SO[place_C[chosen]]) | _node_columns(here, pair_N[mine], teachers, pairs)
        yield PackedPath(
            question=key[0],
            path=key[1],
            correct=bool(own["path_correct"][0]),
            length=len(columns["count"][1]),
            nodes=len(columns["node.depth"][1]),
            data=pack(columns),
        )


def _by_path(table: pa.Table) -> dict[tuple[str, int], NDArray[np.int64]]:
    """The rows of each question and path, in the order of the table."""
    encoded = table["question"].cast(pa.string()).combine_chunks().dictionary_encode()
    names, question_N = encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
    path_N = table["path"].to_numpy().astype(np.int64)
    order = np.lexsort((path_N, question_N))
    key_N = np.stack([question_N[order], path_N[order]], axis=1)
    cuts = np.flatnonzero((np.diff(key_N, axis=0) != 0).any(1)) + 1
    return {
        (names[question_N[rows[0]]], int(path_N[rows[0]])): np.sort(rows) for rows in np.split(order, cuts) if len(rows)
    }


def _child_columns(own: Mapping[str, NDArray[Any]], update_SO: NDArray[Any]) -> dict[str, tuple[Kind, NDArray[Any]]]:
    chosen_C, own_C, depth_C = own["significant"].astype(bool), own["own"].astype(bool), own["depth"]
    shown_C = _shown(depth_C, own["p"], chosen_C | own_C)
    kept: dict[str, tuple[Kind, NDArray[Any]]] = {
        "count": ("u16", np.bincount(depth_C[shown_C], minlength=int(depth_C.max(initial=-1)) + 1)),
        "token": ("u32", own["word"][shown_C]),
        "flags": ("u8", (own_C + 2 * chosen_C)[shown_C]),
        **{name: ("unit", own[name][shown_C]) for name in ("p", "q")},
        **{name: ("unit2", own[name][shown_C]) for name in ("q_low", "q_high")},
        "visits": ("u32", own["visits"][shown_C]),
        "ideal": ("f16", own["ideal"][chosen_C]),
    }
    kept |= {f"t.{at}": ("unit2", values) for at, values in enumerate(own["t"][shown_C].T)}
    return kept | {f"update.{at}": ("f16", values) for at, values in enumerate(update_SO.T)}


def _shown(depth_C: NDArray[Any], p_C: NDArray[Any], always_C: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The likeliest children of each node, and those that must be there."""
    order = np.lexsort((-p_C, depth_C))
    first_C = np.concatenate([[True], np.diff(depth_C[order]) != 0])[: len(order)]
    place = np.arange(len(order))
    rank_C = np.empty(len(order), np.int64)
    rank_C[order] = place - np.maximum.accumulate(np.where(first_C, place, 0))
    return always_C | (rank_C < MOST_CHILDREN)


def _node_columns(
    here: Mapping[str, NDArray[Any]],
    pair_N: NDArray[np.int64],
    teachers: Sequence[str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, tuple[Kind, NDArray[Any]]]:
    """Columns of the nodes by depth: what they have in common, then by teacher, then by (teacher, objective)."""
    columns: dict[str, tuple[Kind, NDArray[Any]]] = {"node.depth": ("u32", np.empty(0, np.uint32))}
    number_of = {name: at for at, name in enumerate(teachers)}
    for at, (teacher, _) in enumerate(pairs):
        rows = np.flatnonzero(pair_N == at)
        rows = rows[np.argsort(here["depth"][rows], kind="stable")]
        columns |= {
            f"alignment.{at}": ("signed", here["alignment"][rows]),
            f"low.{at}": ("signed2", here["alignment_low"][rows]),
            f"high.{at}": ("signed2", here["alignment_high"][rows]),
            f"positive.{at}": ("unit2", here["p_positive"][rows]),
            f"verdict.{at}": ("u8", here["verdict"][rows]),
        }
        if at == 0:
            columns |= {
                "node.depth": ("u32", here["depth"][rows]),
                "node.sr_range": ("unit", here["sr_range"][rows]),
                "node.visits": ("u32", here["visits"][rows]),
                "node.tail_mass": ("unit", here["tail_mass"][rows]),
                "node.student_entropy": ("f16", here["student_entropy"][rows]),
            }
        number = number_of.get(teacher)
        if number is not None and f"advantage.{number}" not in columns:
            numbers = ("advantage", "teacher_entropy", *DIVERGENCES)
            columns |= {f"{name}.{number}": ("f16", here[name][rows]) for name in numbers}
    return columns


def _arrays(table: pa.Table, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(table[name].to_numpy()) for name in names}


def _codes(column: pa.ChunkedArray, words: Sequence[str]) -> NDArray[np.int64]:
    """Each entry's place among the words."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    place = np.array([words.index(word) for word in encoded.dictionary.to_pylist()], np.int64)
    return place[encoded.indices.to_numpy()] if len(place) else np.empty(0, np.int64)


def _pair_numbers(nodes: pa.Table, pairs: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
    """The place of each row's (teacher, objective) among the pairs; -1 for none of them."""
    teachers, objectives = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    table = np.full((len(teachers), len(objectives)), -1)
    for at, (teacher, objective) in enumerate(pairs):
        table[teachers.index(teacher), objectives.index(objective)] = at
    return np.asarray(table[_codes(nodes["teacher"], teachers), _codes(nodes["objective"], objectives)])


def _matrix(column: pa.ChunkedArray, width: int) -> NDArray[Any]:
    flat = column.combine_chunks().flatten().to_numpy()
    return np.asarray(flat).reshape(len(column), width)


def _quantised(kind: Kind, values: NDArray[Any]) -> NDArray[Any]:
    stored = np.dtype(_STORED[kind])
    if kind in _DECIMALS:
        steps, zero = _DECIMALS[kind]
        whole = np.clip(np.round(np.asarray(values, np.float64) * steps) + zero, 0, steps + zero)
        return np.where(np.isnan(whole), np.iinfo(stored).max, np.nan_to_num(whole)).astype(stored)
    if kind == "f16":
        with np.errstate(over="ignore"):  # too large is infinite, which the page can say
            bits = np.ascontiguousarray(values, stored).view("<u2")
        rounded = np.minimum(bits.astype(np.uint32) + 16, 0xFFFF) & _MANTISSA
        # Infinity and NaN have no digits to round, and the largest numbers must not become them.
        return np.where((bits & 0x7FFF) >= 0x7BE0, bits, rounded).astype("<u2").view(stored)
    return np.ascontiguousarray(values, stored)


def _restored(kind: str, values: NDArray[Any]) -> NDArray[Any]:
    if kind not in _DECIMALS:
        return values
    steps, zero = _DECIMALS[kind]
    return np.where(values == np.iinfo(values.dtype).max, np.nan, (values.astype(np.float64) - zero) / steps)
