"""Mutated manifests: refused with a message, or equal to the original. Nothing else is accepted, nothing crashes.

`FUZZ=long` (set by `make fuzz`) tries more of them. All seeds are fixed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main
from opd_align.core.objectives import OBJECTIVES, GeneralisedJSD
from opd_align.runs.execute import analyze_into
from opd_align.runs.manifest import (
    FORMAT,
    check_same_run_early,
    describe,
    manifest_bytes,
    merge_manifests,
    read_manifest,
    settings_from_manifest,
)
from opd_align.runs.manifest_check import manifest_digest
from opd_align.runs.run_directory import RunDirectory, check_directory
from opd_align.settings import Budget, Settings
from opd_align.teachers.screening import load_screening
from opd_align.types import OpdAlignError

MUTATIONS = 10_000 if os.environ.get("FUZZ") == "long" else 700
FAMILY = ExactFamily.random(1, 2, length=8, stakes=3.0)
TEACHERS = [FAMILY.teacher("tilted", lambda world: world.tilted_teacher())]
SETTINGS = Settings([*OBJECTIVES, GeneralisedJSD(0.25)], Budget(initial=20, targeted=40), batch=20)

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 48, 2**63, 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "0", "48",
    "paper", "reverse_kl", "../x", "\x1b[31m", "\u202e", "\ud800", "é" * 3000, [], [None], [[]], {}, {"": None},
    {"name": "x"}, [{"name": []}], {"type": "opd_align.core.objectives.ReverseKL"},
]  # fmt: skip
"""What a value is replaced with."""
TEXTS = [
    b"", b"null", b"[]", b"{}", b"0", b'"manifest"', b"{" * 100_000, b"[" * 100_000, b'{"format":' * 50_000,
    b"\x00" * 100, b"\xff\xfe", b"PAR1", b'{"format": 4}', b'{"format": true}', b'{"format": 4.0}', b'{"format": "4"}',
    b'{"format": 3, "made_with": 5}', b'{"format": ' + b"9" * 10_000 + b"}", b'{"format": 1e999}', b'{"format": -1}',
    b'{"format": 99, "made_with": {"\\u001b[31m": "' + b"x" * 5000 + b'"}}',
]  # fmt: skip
"""Whole files that are no manifest."""


def analysis_manifest() -> dict[str, Any]:
    return describe(FAMILY, TEACHERS, FAMILY.questions, FAMILY, SETTINGS) | {"prompts": {"prompted": "0f" * 8}}


def screening_manifest() -> dict[str, Any]:
    return {
        "format": FORMAT, "kind": "screening", "student": "model-1", "tokenizer": "chat-1", "grader": "task-1",
        "contexts": {"Self-1C": {"correct": 1, "wrong": 0, "write": "package.function"}},
        "sources": {"self": "self: model-1"}, "summariser": None, "prompts": {"Baseline": "0123456789abcdef"},
        "settings": {"trials": {"trials": 60}, "rollouts": 8, "batch": 16}, "questions": {"q-1": "ab", "q-2": "cd"},
    }  # fmt: skip


MANIFESTS: dict[str, Callable[[], dict[str, Any]]] = {"analysis": analysis_manifest, "screening": screening_manifest}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifests") / "run"
    analyze_into(path, FAMILY, TEACHERS, FAMILY.questions, FAMILY, settings=SETTINGS)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON tree, except the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in inner for found in ((*path, key), *places(child, (*path, key)))]


def mutated_tree(manifest: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three values removed, replaced, renamed, added or reordered."""
    copy: dict[str, Any] = json.loads(json.dumps(manifest))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = places(copy)
        if not found:
            break
        *path, key = rng.choice(found)
        parent: Any = copy
        for step in path:
            parent = parent[step]
        kind = rng.choice(["remove", "replace", "replace", "replace", "rename", "add", "reorder", "nudge"])
        if kind == "remove":
            del parent[key]
        elif kind == "replace":
            parent[key] = deepcopy(rng.choice(VALUES))
        elif kind == "nudge" and type(parent[key]) in (int, float):
            parent[key] += rng.choice([-1, 1, 0.5])
        elif isinstance(parent, list):
            parent.insert(rng.randint(0, len(parent)), deepcopy(rng.choice([rng.choice(VALUES), parent[key]])))
        elif kind == "rename":
            parent[rng.choice(["x", "", key.upper(), f"{key} "])] = parent.pop(key)
        elif kind == "add":
            parent[rng.choice(["unknown", "objectives", "initial", "\x1b]0;x\x07"])] = deepcopy(rng.choice(VALUES))
        else:
            parent[key] = parent.pop(key)
    return copy


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """The same file, damaged as text."""
    at, length = rng.randrange(len(data)), rng.randint(1, 40)
    kind = rng.choice(["flip", "flip", "cut", "drop", "repeat", "insert", "zero", "encode", "spaces", "append"])
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == "encode":
        return data.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-be"]))
    if kind == "spaces":
        return json.dumps(json.loads(data), indent=rng.choice([None, 0, 7])).encode()
    return {
        "cut": data[:at],
        "drop": data[:at] + data[at + length :],
        "repeat": data[:at] + data[at : at + length] + data[at:],
        "insert": data[:at] + rng.choice([b"\x00", b"\xff", b'"', b"}", b"{", b",", b"0", b"\\", b"NaN"]) + data[at:],
        "zero": data[:at] + bytes(length) + data[at + length :],
        "append": data + rng.choice([data, b"}", b"x", b"\n\n"]),
    }[kind]


def text_of(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def canonical(manifest: Any) -> str:
    return json.dumps(manifest)


def assert_refused_in_one_line(error: OpdAlignError) -> None:
    text = str(error)
    assert text.isprintable() or "contains another run" in text or "cannot be merged" in text  # lists of differences
    assert len(text) < 2500


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_mutated_manifest_is_refused_or_equal(tmp_path: Path, kind: str) -> None:
    rng, file, refused = random.Random(f"mutated {kind}"), tmp_path / "manifest.json", 0
    data = manifest_bytes(MANIFESTS[kind](), [{"numpy": "2.0"}], {"nodes.parquet": "ab"})
    file.write_bytes(data)
    original = read_manifest(file)
    texts = [*TEXTS, *(None for _ in range(MUTATIONS))]
    for text in texts:
        file.write_bytes(
            text
            if text is not None
            else mutated_bytes(data, rng)
            if rng.random() < 0.4
            else text_of(mutated_tree(json.loads(data), rng))
        )
        try:
            accepted = read_manifest(file)
        except OpdAlignError as error:
            assert_refused_in_one_line(error)
            refused += 1
        else:
            assert canonical(accepted) == canonical(original)
    assert refused > 0.85 * len(texts)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_with_a_valid_digest_is_refused_or_used_as_it_says(run: Path, kind: str) -> None:
    """As a program that computes the digest would write it: the values are still checked."""
    rng, refused, file = random.Random(f"sealed {kind}"), 0, run / "manifest.json"
    own = analysis_manifest()
    results = json.loads(file.read_bytes())["results"]
    sealed = json.loads(manifest_bytes(MANIFESTS[kind](), [{"numpy": "2.0"}], results))
    file.write_bytes(text_of(sealed))
    stored = read_manifest(file)
    assert stored is not None
    known = {"tokenizer": None, "grader": "x", "teachers": {"tilted": None}}

    def open_run() -> None:
        file.write_bytes(text_of(mutated))
        RunDirectory(run, MANIFESTS[kind]()).close()

    def load() -> None:
        file.write_bytes(text_of(mutated))
        loaded, stored_settings = RunDirectory.load(run).settings, dict(mutated["settings"])
        expected = [(entry["name"], entry["signal"]) for entry in stored_settings.pop("objectives")]
        assert [(objective.name, objective.signal) for objective in loaded.objectives] == expected
        assert asdict(replace(loaded, objectives=())) == {**stored_settings, "objectives": ()}

    def resume_early() -> None:
        if read["kind"] == "analysis":
            check_same_run_early(run, read, known, settings=SETTINGS, questions=FAMILY.questions)

    doors: list[Callable[[], Any]] = [
        open_run,
        load,
        resume_early,
        lambda: check_directory(run, kind),
        lambda: load_screening(run),
        lambda: merge_manifests({"a": stored, "b": read}),
        lambda: merge_manifests({"b": read, "a": own | {"made_with": []}}),
        lambda: settings_from_manifest(read) if read["kind"] == "analysis" else None,
    ]
    for _ in range(MUTATIONS):
        mutated = mutated_tree({key: value for key, value in sealed.items() if key != "digest"}, rng)
        mutated["digest"] = manifest_digest(mutated)
        file.write_bytes(text_of(mutated))
        try:
            read = read_manifest(file) or {}
        except OpdAlignError as error:
            assert_refused_in_one_line(error)
            refused += 1
            continue
        assert canonical(read) == canonical({key: value for key, value in mutated.items() if key != "digest"})
        for door in doors:
            try:
                door()
            except OpdAlignError as error:
                assert_refused_in_one_line(error)
    assert refused > 0.2 * MUTATIONS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("settings"), "settings is missing"),
        (lambda m: m.update(teachers=None), "teachers is null"),
        (lambda m: m.update(questions=["q"]), r"questions is \[\"q\"\]"),
        (lambda m: m["questions"].update(q=5), "questions.q is 5"),
        (lambda m: m.update(kind="training"), 'kind is "training"'),
        (lambda m: m.update(made_with=[]), "made_with is not a list of package versions"),
        (lambda m: m.update(results=None), "results is null"),
        (lambda m: m["settings"]["budget"].update(speed=1), 'settings.budget has an unknown key "speed"'),
        (lambda m: m["settings"]["budget"].pop("tau"), "settings.budget.tau is missing"),
        (lambda m: m["settings"]["budget"].update(initial="48"), 'settings.budget.initial is "48"'),
        (lambda m: m["settings"]["budget"].update(initial=48.5), "settings.budget.initial is 48.5"),
        (lambda m: m["settings"]["budget"].update(initial=0), "initial must be at least 1"),
        (lambda m: m["settings"]["rules"].update(restrict="half"), 'settings.rules.restrict is "half"'),
        (lambda m: m["settings"].update(shrink=1), "settings.shrink is 1"),
        (lambda m: m["settings"].update(objectives=[]), r"settings.objectives is \[\]"),
        (lambda m: m["settings"]["objectives"].append(None), "an entry of settings.objectives is null"),
        (lambda m: m["settings"]["objectives"][0].update(signal="x"), 'settings.objectives.".*".signal is "x"'),
        (lambda m: m["prompts"].update(prompted="xyz"), 'prompts."prompted" is not a digest'),
    ],
)
def test_known_mistakes_are_named(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    manifest = json.loads(manifest_bytes(analysis_manifest(), [{"numpy": "2.0"}], {}))
    del manifest["digest"]
    change(manifest)
    file = tmp_path / "manifest.json"
    file.write_bytes(text_of(manifest | {"digest": manifest_digest(manifest)}))
    with pytest.raises(OpdAlignError, match=rf"manifest\.json' is damaged \(.*{message}.*\); restore it"):
        read_manifest(file)


def test_commands_print_one_line_for_a_bad_manifest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, data = random.Random("commands"), (run / "manifest.json").read_bytes()
    other = Path(shutil.copytree(run, run.with_name("other")))
    commands = [
        ["report", str(run)],
        ["compare", str(run), str(run)],
        ["merge", str(other), str(run), "--out", str(run.with_name("merged"))],
        ["screen", "--out", str(run)],
        ["analyze", "--out", str(run), "--limit", "1"],
    ]
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "manifest.json"}
    for at in range(40):
        manifest = mutated_tree(json.loads(data), rng)
        if canonical(manifest) == canonical(json.loads(data)):
            continue
        (run / "manifest.json").write_bytes(text_of(manifest))
        assert main(commands[at % len(commands)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("opd-align: ")
        assert printed.err.count("\n") == 1
    assert {file: file.read_bytes() for file in before} == before
