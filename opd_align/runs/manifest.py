"""The manifest: what a run is, so that a run directory is only resumed by the same run.

It identifies student, tokenizer, teachers, grader, questions and settings by content, and lists the package versions
that were used. Everything except the versions must agree for a resume; every difference is reported by its key. The
number of workers is not part of it. It also has a digest of every file of the result, and one of itself
(`manifest_check`). This module also restores settings from a manifest.
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
from opd_align.runs.filesystem import AnyPath, error_reason, read_file
from opd_align.runs.manifest_check import InvalidManifest, check_structure, from_json, manifest_digest, shown, shown_key
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Floats, Grader, OpdAlignError, Question, Student, Teacher

FORMAT = 4
MAX_DIFFERENCES = 12
"""How many differences an error message lists."""

OUTCOME_KEYS = ("made_with", "results")
"""Keys that say what was made, and with what; the others say what the run is."""

PER_PART_KEYS = ("questions", "prompts", *OUTCOME_KEYS)
"""Keys in which runs that are merged may differ."""


class RunMismatch(OpdAlignError):
    """The directory contains a run with another student, or other teachers, questions or settings."""


@dataclass(frozen=True)
class StoredObjective:
    """A user-defined objective restored from a manifest, which stores its name but not its formula."""

    name: str
    signal: Literal["teacher", "future", "reward"]

    def update(self, nodes: Nodes) -> Floats:
        raise OpdAlignError(
            f"objective {self.name!r} was loaded from a run directory, which does not contain its formula"
        )


def describe(
    student: Student, teachers: Sequence[Teacher], questions: Sequence[Question], grader: Grader, settings: Settings
) -> dict[str, Any]:
    """The manifest of a run, as JSON values.

    Teachers and graders with a `fingerprint` are identified by it; models with a `prompt` also by their prompts.
    """
    manifest = {
        "format": FORMAT,
        "kind": "analysis",
        "student": student.fingerprint,
        "tokenizer": getattr(getattr(student, "prompt", None), "tokenizer_hash", None),
        "prompts": {model.name: _prompts_digest(model, questions) for model in _prompted_models(student, teachers)},
        "teachers": {teacher.name: getattr(teacher, "fingerprint", None) for teacher in teachers},
        "grader": getattr(grader, "fingerprint", _type_name(grader)),
        "settings": _settings(settings),
        "questions": {question.id: question_digest(question) for question in questions},
    }
    precision = getattr(student, "scored_in", None)
    described = as_json(manifest if precision is None else {**manifest, "precision": precision})
    settings_from_manifest(described)  # what is written can be read again
    return described


def check_same_run_early(
    folder: AnyPath,
    stored: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    settings: Settings,
    questions: Iterable[Question],
) -> None:
    """Like `check_same_run`, with what is known before a model is loaded.

    Of the teachers only the names are compared, and questions that are not in the stored run are ignored: they may be
    skipped later.
    """
    digests = {question.id: question_digest(question) for question in questions}
    before = {key: dict.fromkeys(stored["teachers"]) if key == "teachers" else stored.get(key) for key in known}
    now = as_json({**known, "settings": _settings(settings)})
    now["questions"] = {name: digest for name, digest in digests.items() if name in stored["questions"]}
    check_same_run(folder, {**before, "settings": stored["settings"], "questions": stored["questions"]}, now)


def as_json(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest as JSON values; what JSON does not support is converted."""
    plain: dict[str, Any] = json.loads(json.dumps(manifest, default=_json_value))
    return plain


def _settings(settings: Settings) -> dict[str, Any]:
    return asdict(replace(settings, objectives=())) | {"objectives": [*map(_objective_entry, settings.objectives)]}


def versions() -> dict[str, str]:
    """Installed versions of Python and the packages that affect results."""
    found = {"python": platform.python_version()}
    for package in ("opd-align", "numpy", "scipy", "pyarrow", "torch", "transformers", "vllm"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def manifest_bytes(
    manifest: Mapping[str, Any], made_with: Sequence[Mapping[str, str]], results: Mapping[str, str]
) -> bytes:
    """The content of a manifest file.

    Args:
        manifest: What the run is, as returned by `describe`.
        made_with: Package versions of all sessions that worked on the run.
        results: The digest of each file of the result; empty until the run is finished.
    """
    what = {key: value for key, value in as_json(manifest).items() if key not in OUTCOME_KEYS}
    content = {**what, "made_with": [*made_with], "results": dict(results)}
    text = json.dumps({**content, "digest": manifest_digest(content)}, indent=1, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")  # a lone surrogate becomes its JSON escape


def read_manifest(file: AnyPath) -> dict[str, Any] | None:
    """Reads a manifest; `None` if the file does not exist. Raises `OpdAlignError` if it is not what a run wrote."""
    try:
        data = read_file(file)
        if data is None:
            return None
        manifest = _parsed(data)
        file_format = manifest.get("format")
        if file_format == FORMAT:
            if manifest.pop("digest", None) != manifest_digest(manifest):
                raise InvalidManifest("it was changed after it was written: its digest is different")
            check_structure(manifest)
            if manifest["kind"] == "analysis":
                _restored_settings(manifest["settings"])
            return manifest
    except OSError as error:
        raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
    except InvalidManifest as error:
        raise OpdAlignError(
            f"{str(file)!r} is damaged ({error}); restore it from a backup, or choose another directory. The rollouts "
            f"were not changed: opd-align analyze --reuse {file.parent} uses them"
        ) from error
    raise OpdAlignError(
        f"{str(file.parent)!r} has format {shown(file_format)}, but this version of opd-align reads format {FORMAT}; "
        f"it was created with {shown(manifest.get('made_with'))}"
    )


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(f"not valid JSON: {error}") from error
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise InvalidManifest("it is not the manifest of a run")
    return manifest


def settings_from_manifest(manifest: Mapping[str, Any]) -> Settings:
    """Restores the settings; an objective that is not built in becomes a `StoredObjective`."""
    try:
        return _restored_settings(manifest["settings"])
    except InvalidManifest as error:
        raise OpdAlignError(f"these settings cannot be used: {error}") from error


def _restored_settings(stored: Mapping[str, Any]) -> Settings:
    parts: dict[str, Any] = {"objectives": _restored_objectives(stored.get("objectives"))}
    try:
        parts["budget"] = from_json(Budget, stored.get("budget"), "settings.budget")
        parts["rules"] = from_json(Rules, stored.get("rules"), "settings.rules")
        return from_json(Settings, {**stored, **parts}, "settings")
    except OpdAlignError as error:  # the settings check their own values
        raise InvalidManifest(str(error)) from error


def _restored_objectives(entries: object) -> list[Objective]:
    if not isinstance(entries, list) or not entries:
        raise InvalidManifest(f"settings.objectives is {shown(entries)}")
    objectives = [_restored_objective(entry) for entry in entries]
    if len({objective.name for objective in objectives}) < len(objectives):
        raise InvalidManifest("two of settings.objectives have the same name")
    return objectives


def _restored_objective(entry: object) -> Objective:
    types: dict[object, Any] = {_type_name(objective): type(objective) for objective in (*OBJECTIVES, Ideal())}
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise InvalidManifest(f"an entry of settings.objectives is {shown(entry)}")
    where, objective_type = f"settings.objectives.{shown(entry.get('name'))}", types.get(entry["type"])
    if objective_type is None:
        known = {key: entry[key] for key in ("name", "signal") if key in entry}
        return from_json(StoredObjective, known, where)
    names = {field.name for field in fields(objective_type)} if is_dataclass(objective_type) else set()
    try:
        values = {key: entry[key] for key in entry if key in names}
        objective = from_json(objective_type, values, where) if names else objective_type()
    except (ValueError, TypeError) as error:  # the objective checks its own values
        raise InvalidManifest(f"{where}: {error}") from error
    if as_json(_objective_entry(objective)) != entry:
        raise InvalidManifest(f"{where} is {shown(entry)}")
    return objective


def check_same_run(folder: AnyPath, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises `RunMismatch`, which lists the differences, unless both manifests describe the same run."""
    lines = _differences(stored, now, "in the directory", "now")
    if lines:
        raise RunMismatch(
            f"{str(folder)!r} contains another run; choose another directory, or undo these changes:\n{lines}"
        )


def merge_manifests(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The manifest of one run on the questions of all runs, which are given by name.

    Raises `RunMismatch` if the runs differ in anything but their questions.
    """
    (first, manifest), *others = manifests.items()
    merged = {key: value for key, value in as_json(manifest).items() if key != "results"}
    for name, other in others:
        left, right = (
            {key: value for key, value in side.items() if key not in PER_PART_KEYS}
            | {"prompts": dict.fromkeys(side.get("prompts", {}))}
            for side in (manifest, other)
        )
        lines = _differences(left, right, f"in {first}", f"in {name}")
        if lines:
            raise RunMismatch(f"{first!r} and {name!r} cannot be merged, their settings differ:\n{lines}")
        duplicates = merged["questions"].keys() & other["questions"].keys()
        if duplicates:
            duplicate = min(duplicates)
            if merged["questions"][duplicate] != other["questions"][duplicate]:
                raise RunMismatch(
                    f"question {duplicate!r} of {name!r} has the ID of a different question in an earlier run: rows "
                    "without an ID are numbered; give each row of your data a unique ID"
                )
            raise RunMismatch(f"question {duplicate!r} of {name!r} is also in an earlier run; each may occur only once")
        merged["questions"] |= other["questions"]
        for model, digest in other.get("prompts", {}).items():
            merged["prompts"][model] = _sum_of([merged["prompts"][model], digest])
        merged["made_with"] += [entry for entry in other["made_with"] if entry not in merged["made_with"]]
    return merged


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], there: str, here: str) -> str:
    """One line per key that differs; package versions and results are ignored."""
    left, right = (
        _flat({key: value for key, value in side.items() if key not in OUTCOME_KEYS}) for side in (one, other)
    )
    differing = [key for key in {**left, **right} if _shortened(left, key, None) != _shortened(right, key, None)]
    lines = [
        f"  {shown_key(key)}: {_shortened(left, key)} {there}, {_shortened(right, key)} {here}" for key in differing
    ]
    if not lines:
        # The order matters: it is the order of the rows in the result.
        orders = zip(_orders(one).items(), _orders(other).values(), strict=True)
        lines = [f"  {key}: different order {here}" for (key, before), after in orders if before != after]
    more = [f"  … and {len(lines) - MAX_DIFFERENCES} more"] if len(lines) > MAX_DIFFERENCES else []
    return "\n".join([*lines[:MAX_DIFFERENCES], *more])


def _orders(manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        "teachers": [*manifest.get("teachers", ())],
        "contexts": [*manifest.get("contexts", ())],
        "questions": [*manifest.get("questions", ())],
        "objectives": [*_by_name(manifest["settings"].get("objectives", ()))],
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "objectives":
            inner = _by_name(inner)
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, dict) else {f"{prefix}{key}": inner}
    return flat


def _by_name(entries: Any) -> dict[str, Any]:
    """Entries of objectives by their name; what is not such an entry has its position as name."""
    entries = entries if isinstance(entries, list) else [entries]
    return {
        str(entry.get("name", at)) if isinstance(entry, dict) else str(at): entry for at, entry in enumerate(entries)
    }


def _shortened(side: Mapping[str, Any], key: str, width: int | None = 60) -> str:
    if key not in side:
        return "absent"
    text = json.dumps(side[key], ensure_ascii=False)
    text = text if text.isprintable() else json.dumps(side[key])
    return text if width is None or len(text) <= width else f"{text[: width // 2]}…{text[-width // 2 :]}"


def _objective_entry(objective: Any) -> dict[str, Any]:
    parameters = {}
    if is_dataclass(objective):
        parameters = {field.name: getattr(objective, field.name) for field in fields(objective)}
    return {"type": _type_name(objective), **parameters, "name": objective.name, "signal": objective.signal}


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def question_digest(question: Question) -> str:
    """Digest of a question's content, as stored in manifests."""
    content = json.dumps([question.text, question.answer, dict(question.fields)], sort_keys=True, default=_json_value)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def _prompted_models(student: Any, teachers: Sequence[Any]) -> list[Any]:
    return [model for model in (student, *teachers) if callable(getattr(model, "prompt", None))]


def _prompts_digest(model: Any, questions: Sequence[Question]) -> str:
    """Digest of a model's prompts; a sum over the questions, so that manifests can be merged."""
    digests = []
    unavailable = getattr(model.prompt, "unavailable", None)
    for question in questions:
        digest = blake2b(f"{question.id}\0".encode(), digest_size=8)
        if unavailable is not None and unavailable(question) is not None:
            digest.update(b"unavailable")
            digests.append(digest.hexdigest())
            continue
        digest.update(np.asarray(list(model.prompt(question)), ">u4").tobytes())
        digests.append(digest.hexdigest())
    return _sum_of(digests)


def _sum_of(digests: Iterable[str]) -> str:
    return f"{sum(int(digest, 16) for digest in digests) % 2**64:016x}"


def _json_value(value: Any) -> Any:
    """Converts a value that JSON does not support to one that is the same in every process."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    text = str(value)
    return _type_name(value) if " at 0x" in text else text
