"""The manifest: what a run is, so that a directory is continued only by the same run.

It names student, tokenizer, teachers, grader, questions and settings by content, and lists the versions of what
worked on the run. Everything but the versions must agree for a resume; a difference is named, key by key. The number
of workers is no part of it. Here also: settings back from JSON, as far as JSON can hold them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from opd_align.alignment import Rules
from opd_align.enrich import Budget
from opd_align.objectives import OBJECTIVES, Ideal, Nodes, Objective
from opd_align.search import Settings
from opd_align.types import Floats, Grader, OpdAlignError, Question, Student, Teacher

FORMAT = 2
SHOWN = 12
"""How many differences are spelled out."""


class RunMismatch(OpdAlignError):
    """The directory holds a run of another student, other teachers, questions or settings."""


@dataclass(frozen=True)
class StoredObjective:
    """An objective of the user's own, read back: its name is known, its formula is not."""

    name: str
    signal: Literal["teacher", "future", "reward"]

    def update(self, nodes: Nodes) -> Floats:
        raise OpdAlignError(f"objective {self.name!r} was read from a run directory, which does not hold its formula")


def describe(
    student: Student, teachers: Sequence[Teacher], questions: Sequence[Question], grader: Grader, settings: Settings
) -> dict[str, Any]:
    """What a run is, as JSON holds it.

    Teachers and graders may say more of themselves in a `fingerprint`; whoever has a `prompt`, by what it reads.
    """
    described = {
        "format": FORMAT,
        "kind": "analysis",
        "student": student.fingerprint,
        "tokenizer": getattr(getattr(student, "prompt", None), "tokenizer_hash", None),
        "prompts": {speaker.name: _prompts_digest(speaker, questions) for speaker in _speakers(student, teachers)},
        "teachers": {teacher.name: getattr(teacher, "fingerprint", None) for teacher in teachers},
        "grader": getattr(grader, "fingerprint", _type_name(grader)),
        "settings": asdict(replace(settings, objectives=())) | {"objectives": [*map(_written, settings.objectives)]},
        "questions": {question.id: question_digest(question) for question in questions},
    }
    plain: dict[str, Any] = json.loads(json.dumps(described, default=_plain))
    return plain


def versions() -> dict[str, str]:
    """What is at work here."""
    found = {"python": platform.python_version()}
    for package in ("opd-align", "numpy", "scipy", "pyarrow", "torch", "transformers", "vllm"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def read_manifest(file: Path) -> dict[str, Any] | None:
    """A stored manifest, `None` where there is none."""
    try:
        manifest = json.loads(file.read_bytes())
        found, maker = manifest["format"], manifest["made_with"][-1]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise OpdAlignError(
            f"{str(file)!r} cannot be read ({error}); put back a copy of it, or choose another directory. "
            "The rollouts beside it are untouched"
        ) from error
    if found != FORMAT:
        raise OpdAlignError(
            f"{str(file.parent)!r} has format {found}, this opd-align reads format {FORMAT}; it was made with {maker}"
        )
    return dict(manifest)


def settings_of(manifest: Mapping[str, Any]) -> Settings:
    """The settings back; an objective that is not built in comes back as a `StoredObjective`."""
    types: dict[str, Any] = {_type_name(objective): type(objective) for objective in (*OBJECTIVES, Ideal())}
    stored = dict(manifest["settings"])
    objectives: list[Objective] = []
    for entry in stored.pop("objectives"):
        made = types.get(entry["type"])
        if made is None:
            objectives.append(StoredObjective(entry["name"], entry["signal"]))
        else:
            objectives.append(made(**{field.name: entry[field.name] for field in fields(made)}))
    budget, rules = Budget(**stored.pop("budget")), Rules(**stored.pop("rules"))
    return Settings(objectives=objectives, budget=budget, rules=rules, **stored)


def refuse_other(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises `RunMismatch`, with every difference named, unless both describe the same run."""
    there, here = (_flat({key: value for key, value in side.items() if key != "made_with"}) for side in (stored, now))
    differing = [key for key in {**there, **here} if _shown(there, key, None) != _shown(here, key, None)]
    lines = [f"  {key}: {_shown(there, key)} in the directory, {_shown(here, key)} now" for key in differing]
    if not lines:
        # Rows follow the order in which things were given.
        orders = zip(_orders(stored).items(), _orders(now).values(), strict=True)
        lines = [f"  {key}: in another order now" for (key, before), after in orders if before != after]
    if lines:
        more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        head = f"{str(folder)!r} holds another run; choose another directory, or undo the difference:"
        raise RunMismatch("\n".join([head, *lines[:SHOWN], *more]))


def _orders(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        "teachers": [*manifest.get("teachers", ())],
        "contexts": [*manifest.get("contexts", ())],
        "questions": [*manifest["questions"]],
        "objectives": [objective["name"] for objective in manifest["settings"].get("objectives", ())],
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "objectives":
            inner = {entry["name"]: entry for entry in inner}
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, dict) else {f"{prefix}{key}": inner}
    return flat


def _shown(side: Mapping[str, Any], key: str, width: int | None = 60) -> str:
    if key not in side:
        return "absent"
    text = json.dumps(side[key], ensure_ascii=False)
    return text if width is None or len(text) <= width else f"{text[: width // 2]}…{text[-width // 2 :]}"


def _written(objective: Any) -> dict[str, Any]:
    parameters = {}
    if is_dataclass(objective):
        parameters = {field.name: getattr(objective, field.name) for field in fields(objective)}
    return {"type": _type_name(objective), **parameters, "name": objective.name, "signal": objective.signal}


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def question_digest(question: Question) -> str:
    """A question by its content, as manifests name it."""
    content = json.dumps([question.text, question.answer, dict(question.fields)], sort_keys=True, default=_plain)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def _speakers(student: Any, teachers: Sequence[Any]) -> list[Any]:
    return [speaker for speaker in (student, *teachers) if callable(getattr(speaker, "prompt", None))]


def _prompts_digest(speaker: Any, questions: Sequence[Question]) -> str:
    """All that a speaker reads before a completion, question by question."""
    digest = blake2b(digest_size=8)
    for question in questions:
        prompt = list(speaker.prompt(question))
        digest.update(np.asarray([len(prompt), *prompt], ">u4").tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Something that JSON does not know, as something that is the same in the next process."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    text = str(value)
    return _type_name(value) if " at 0x" in text else text
