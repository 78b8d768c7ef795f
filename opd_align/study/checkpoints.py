"""Checkpoints on disk: which folders are checkpoints, of which step, and whether they are complete.

Every framework that writes Hugging Face checkpoints is covered, since only names and files are looked at: a folder with
a `config.json` (or `adapter_config.json`) and weights, whose path has a step in it, such as `checkpoint-100`,
`global_step_100/actor/huggingface` or `weights/step_100`. A file of weights states its own length, so one that is still
being written is recognised. Nothing is loaded or written here.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opd_align.report.history import FOLDER
from opd_align.types import OpdAlignError

MAX_DEPTH = 4
"""How many folders deep checkpoints are searched."""
MAX_HEADER = 100 * 2**20
"""Largest header of a safetensors file, in bytes; that of the format."""

CONFIGS = ("config.json", "adapter_config.json")
WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TRAINER_STATE = "trainer_state.json"
NOT_WEIGHTS = ("optimizer", "scheduler", "training_args", "random_states", "rng_state")
"""Beginnings of the names of other files; people remove those of old checkpoints, which are the same without them."""

_STEP = re.compile(r"(\d+)(?!.*\d)")
_NAMED_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter|iteration|update)s?[-_=.]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """A folder with the weights of one training step.

    Args:
        folder: The folder.
        name: Its path within the output directory.
        step: The training step.
        id: Identifies these weights: another one after the folder was overwritten.
        meta: What else is known: `max_steps`, `epoch`, `at` (seconds since 1970), `gate`.
    """

    folder: Path
    name: str
    step: int
    id: str
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_adapter(self) -> bool:
        """Whether it has the weights of an adapter only; some frameworks put the config of its model beside them."""
        whole = [*WEIGHTS, *INDEXES]
        return (self.folder / "adapter_config.json").is_file() and not any(
            (self.folder / name).is_file() for name in whole if not name.startswith("adapter")
        )

    @property
    def is_unchanged(self) -> bool:
        """Whether the folder still has the files that it had when it was found."""
        signature = _signature(self.folder)
        return signature is not None and self.id == _id(self.name, signature)


def find_checkpoints(output_dir: Path, pattern: str | None = None) -> list[Checkpoint]:
    """The checkpoints in an output directory by step, complete or not; one per step.

    Args:
        output_dir: Where the training writes.
        pattern: A glob pattern of their folders, such as `global_step_*/actor/huggingface`. `None`: all folders that
            look like one.
    """
    found: dict[int, Checkpoint] = {}
    for folder in _selected(output_dir, pattern):
        name = str(folder.relative_to(output_dir))
        step = step_of(name)
        if step is None or step in found:
            continue
        signature = _signature(folder)
        if signature is not None:
            found[step] = Checkpoint(folder, name, step, _id(name, signature), _meta(folder, signature))
    return [found[step] for step in sorted(found)]


def name_patterns(output_dir: Path, pattern: str | None = None) -> list[str]:
    """The paths of all checkpoints with a star for the step; those of one training have one in common."""
    names = [str(folder.relative_to(output_dir)) for folder in _selected(output_dir, pattern)]
    found = [(name, match) for name in names if (match := _find_step(name)) is not None]
    return sorted({f"{name[:start]}*{name[end:]}" for name, (start, end) in found})


def step_of(name: str) -> int | None:
    """The step in a path; `None` if there is none.

    The number after a word such as `step` or `checkpoint`, else the last number of the deepest folder that has one.
    """
    found = _find_step(name)
    return None if found is None else int(name[slice(*found)])


def _find_step(name: str) -> tuple[int, int] | None:
    """Where the digits of the step begin and end in a path."""
    for expression in (_NAMED_STEP, _STEP):
        end = len(name)
        for part in reversed(Path(name).parts):
            start = end - len(part)
            matches = list(expression.finditer(part))
            if matches:
                return start + matches[-1].start(1), start + matches[-1].end(1)
            end = start - 1  # the slash
    return None


def _selected(output_dir: Path, pattern: str | None) -> Iterator[Path]:
    if pattern is None:
        yield from _folders(output_dir, 0)
        return
    for folder in sorted(output_dir.glob(pattern)):
        if folder.is_dir() and folder.relative_to(output_dir).parts[:1] != (FOLDER,):
            yield folder


def _id(name: str, signature: tuple[tuple[str, int, int], ...]) -> str:
    return f"{name}@{blake2b(repr(signature).encode(), digest_size=6).hexdigest()}"


def check_pattern(pattern: str) -> None:
    """Refuses a glob pattern that cannot be used."""
    if not pattern or os.path.isabs(pattern) or ".." in Path(pattern).parts:
        raise OpdAlignError(f"--checkpoints takes a pattern within OUTPUT_DIR, such as 'checkpoint-*', not {pattern!r}")


def missing_part(folder: Path) -> str | None:
    """What a checkpoint lacks, in words: a file, or the rest of one; `None` if it is complete."""
    try:
        if not any((folder / name).is_file() for name in CONFIGS):
            return "config.json is missing"
        for name in CONFIGS:
            if (folder / name).is_file():
                json.loads((folder / name).read_bytes())
        shards = [name for index in INDEXES if (folder / index).is_file() for name in _shards(folder / index)]
        weights = shards or [name for name in WEIGHTS if (folder / name).is_file()]
        if not weights:
            return "there are no weights"
        for name in weights:
            if not _is_complete(folder / name):
                return f"{name} is not complete"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    return None


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a config, not searched further, and those within other folders; not our own."""
    try:
        entries = sorted((entry for entry in os.scandir(folder) if entry.is_dir()), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or (depth == 0 and entry.name == FOLDER):
            continue
        path = Path(entry.path)
        if any((path / name).is_file() for name in CONFIGS):
            yield path
        elif depth + 1 < MAX_DEPTH:
            yield from _folders(path, depth + 1)


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...] | None:
    """Name, size and time of the files that make up the weights; `None` if the folder is gone."""
    try:
        files = [
            (entry.name, entry.stat())
            for entry in os.scandir(folder)
            if entry.name in CONFIGS + INDEXES
            or (entry.name.endswith((".safetensors", ".bin")) and not entry.name.startswith(NOT_WEIGHTS))
        ]
        return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files))
    except OSError:
        return None


def _meta(folder: Path, signature: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    meta: dict[str, Any] = {"at": max((time for _, _, time in signature), default=0) / 1e9}
    try:  # written by transformers' trainer and its relatives
        state = json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))
        meta |= {name: state[name] for name in ("max_steps", "epoch") if isinstance(state.get(name), int | float)}
    except (OSError, ValueError, AttributeError):
        pass
    return meta


def _shards(index: Path) -> list[str]:
    weight_map = json.loads(index.read_bytes())["weight_map"]
    return sorted(set(weight_map.values()))


def _is_complete(file: Path) -> bool:
    """Whether a file of weights has the length that it states."""
    if file.suffix != ".safetensors":
        return zipfile.is_zipfile(file)  # torch.save writes the directory of the archive last
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            return False
        header = json.loads(opened.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return bool(size == 8 + length + max(ends, default=0))
