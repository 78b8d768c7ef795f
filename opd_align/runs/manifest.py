"""The manifest: what a run is, so that a directory is continued only by the same run.

It names student, tokenizer, teachers, grader, questions and settings by content, and lists the versions of what
worked on the run. Everything but the versions must agree for a resume; a difference is named, key by key. The number
of workers is no part of it. Here also: settings back from JSON, as far as JSON can hold them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np

from opd_align.core.objectives import OBJECTIVES, Ideal, Nodes, Objective
from opd_align.runs.filesystem import AnyPath, error_reason
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Floats, Grader, OpdAlignError, Question, Student, Teacher

FORMAT = 3
SHOWN = 12
"""How many differences are spelled out."""

OWN = ("questions", "prompts", "made_with")
"""What parts of one run may have of their own."""


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
        "settings": _settings(settings),
        "questions": {question.id: question_digest(question) for question in questions},
    }
    return _as_json(described)


def refuse_early(
    folder: AnyPath,
    stored: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    settings: Settings,
    questions: Iterable[Question],
) -> None:
    """Like `refuse_other`, by what is known before a model is loaded: questions may be left out later, and of the
    teachers there are names.
    """
    asked = {question.id: question_digest(question) for question in questions}
    then = {key: dict.fromkeys(stored["teachers"]) if key == "teachers" else stored.get(key) for key in known}
    now = _as_json({**known, "settings": _settings(settings)})
    now["questions"] = {name: told for name, told in asked.items() if name in stored["questions"]}
    refuse_other(folder, {**then, "settings": stored["settings"], "questions": stored["questions"]}, now)


def _as_json(described: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(described, default=_plain))
    return plain


def _settings(settings: Settings) -> dict[str, Any]:
    return asdict(replace(settings, objectives=())) | {"objectives": [*map(_written, settings.objectives)]}


def versions() -> dict[str, str]:
    """What is at work here."""
    found = {"python": platform.python_version()}
    for package in ("opd-align", "numpy", "scipy", "pyarrow", "torch", "transformers", "vllm"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def read_manifest(file: AnyPath) -> dict[str, Any] | None:
    """A stored manifest, `None` where there is none."""
    try:
        manifest = json.loads(file.read_bytes())
        found, maker = manifest["format"], manifest["made_with"][-1]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
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


def refuse_other(folder: AnyPath, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises `RunMismatch`, with every difference named, unless both describe the same run."""
    lines = _differences(stored, now, "in the directory", "now")
    if lines:
        raise RunMismatch(
            f"{str(folder)!r} holds another run; choose another directory, or undo the difference:\n{lines}"
        )


def joined_manifest(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What one run on the questions of all would be, by the runs' names; refuses runs that differ in anything else."""
    (first, manifest), *others = manifests.items()
    whole = json.loads(json.dumps(manifest))
    for name, other in others:
        own, theirs = ({k: v for k, v in side.items() if k not in OWN} for side in (manifest, other))
        lines = _differences(own, theirs, f"in {first}", f"in {name}")
        if lines:
            raise RunMismatch(f"{first!r} and {name!r} are no parts of one run:\n{lines}")
        twice = whole["questions"].keys() & other["questions"].keys()
        if twice:
            both = min(twice)
            if whole["questions"][both] != other["questions"][both]:
                raise RunMismatch(
                    f"question {both!r} of {name!r} is another one than in a run before it: rows without an id are "
                    "numbered; give each row of your data an id of its own"
                )
            raise RunMismatch(f"question {both!r} of {name!r} is also in a run before it; each may come once")
        whole["questions"] |= other["questions"]
        for speaker, digest in other.get("prompts", {}).items():
            whole["prompts"][speaker] = _sum_of([whole["prompts"][speaker], digest])
        whole["made_with"] += [each for each in other["made_with"] if each not in whole["made_with"]]
    return dict(whole)


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], there: str, here: str) -> str:
    """What differs, key by key, a line each; which versions were at work does not count."""
    left, right = (_flat({key: value for key, value in side.items() if key != "made_with"}) for side in (one, other))
    differing = [key for key in {**left, **right} if _shown(left, key, None) != _shown(right, key, None)]
    lines = [f"  {key}: {_shown(left, key)} {there}, {_shown(right, key)} {here}" for key in differing]
    if not lines:
        # Rows follow the order in which things were given.
        orders = zip(_orders(one).items(), _orders(other).values(), strict=True)
        lines = [f"  {key}: in another order {here}" for (key, before), after in orders if before != after]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join([*lines[:SHOWN], *more])


def _orders(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        "teachers": [*manifest.get("teachers", ())],
        "contexts": [*manifest.get("contexts", ())],
        "questions": [*manifest.get("questions", ())],
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
    """All that a speaker reads before a completion; a sum over the questions, so that runs can be joined."""
    digests = []
    for question in questions:
        digest = blake2b(f"{question.id}\0".encode(), digest_size=8)
        digest.update(np.asarray(list(speaker.prompt(question)), ">u4").tobytes())
        digests.append(digest.hexdigest())
    return _sum_of(digests)


def _sum_of(digests: Iterable[str]) -> str:
    return f"{sum(int(digest, 16) for digest in digests) % 2**64:016x}"


def _plain(value: Any) -> Any:
    """Something that JSON does not know, as something that is the same in the next process."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    text = str(value)
    return _type_name(value) if " at 0x" in text else text
