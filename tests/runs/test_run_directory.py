"""The run directory: stored rollouts are reused, damage is reported, and runs are never mixed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opd_align.backends.exact import EOS, ExactFamily
from opd_align.cli.main import main
from opd_align.core.alignment import SCHEMA, pairs_of, teachers_of
from opd_align.core.decision import decide
from opd_align.core.engine import Analysis, analyze
from opd_align.core.objectives import OBJECTIVES, DrGRPO, GeneralisedJSD, ReverseKL, unified_update
from opd_align.core.reliability import reliability
from opd_align.runs import filesystem, rollout_store
from opd_align.runs.execute import analyze_into
from opd_align.runs.manifest import RunMismatch, StoredObjective, describe, manifest_bytes, read_manifest
from opd_align.runs.rollout_store import (
    Batch,
    CachedStudent,
    DamagedFileError,
    DamagedFileWarning,
    RolloutStore,
    read_shard,
    write_shard,
)
from opd_align.runs.run_directory import RunBusy, RunDirectory, Usage
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Failure, Finish, OpdAlignError, Outcome, Question, Rollouts, SampleRequest

BUDGET = Budget(initial=60, targeted=240, n_min=30, correct_paths=1, incorrect_paths=1)
SETTINGS = Settings([ReverseKL(), DrGRPO()], BUDGET, Rules(draws=20), batch=50)
TABLES = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet")


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(0, 3, length=20, vocabulary=8, states=40, stakes=3.0)


@pytest.fixture(scope="module")
def teachers(family: ExactFamily) -> list[Any]:
    return [
        family.teacher("tilted", lambda world: world.tilted_teacher()),
        family.teacher("style", lambda world: world.style_teacher()),
    ]


@pytest.fixture(scope="module")
def plain(family: ExactFamily, teachers: list[Any]) -> Analysis:
    """The same analysis without a run directory."""
    return analyze(family, teachers, family.questions, family, settings=SETTINGS)


@pytest.fixture(scope="module")
def finished(family: ExactFamily, teachers: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "run"
    analyze_into(path, family, teachers, family.questions, family, settings=SETTINGS)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@dataclass
class Counting:
    """A family that records calls; the sampling call number `fail_at` raises."""

    family: ExactFamily
    fail_at: int | None = None
    requested: list[int] = field(default_factory=list)
    graded: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        self.requested.append(sum(request.n for request in requests))
        if self.fail_at is not None and len(self.requested) > self.fail_at:
            raise RuntimeError("the student failed on purpose")
        return self.family.sample(requests)

    def grade(self, question: Question, rollouts: Rollouts) -> Any:
        self.graded += len(rollouts)
        return self.family.grade(question, rollouts)


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Equal tables, NaN equal to itself (unlike in Arrow's own comparison)."""
    return one.schema.equals(other.schema) and rollout_store.table_bytes(one) == rollout_store.table_bytes(other)


def run_into(path: Path, family: Any, teachers: list[Any], settings: Settings = SETTINGS, **more: Any) -> Analysis:
    return analyze_into(path, family, teachers, family.questions, family, settings=settings, **more)


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


# -- round trip -----------------------------------------------------------------------------------------------


def test_a_run_directory_does_not_change_the_analysis(finished: Path, plain: Analysis) -> None:
    loaded = RunDirectory.load(finished)
    assert loaded.nodes.num_rows > 50
    assert same_rows(loaded.nodes, plain.nodes)
    assert loaded.nodes.schema.equals(SCHEMA)
    assert same_rows(loaded.questions, plain.questions)
    assert loaded.children.num_rows > loaded.nodes.num_rows
    assert same_rows(loaded.children, plain.children)
    assert teachers_of(loaded.children) == teachers_of(plain.children) == ["tilted", "style"]
    assert pairs_of(loaded.children) == pairs_of(plain.children)
    assert loaded.settings == plain.settings == SETTINGS


def test_the_loaded_analysis_equals_the_returned_one(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    settings = Settings([*OBJECTIVES, GeneralisedJSD(0.25)], replace(BUDGET, allocation="adaptive"), batch=64)
    analysis = run_into(tmp_path / "run", family, teachers, settings)
    loaded = RunDirectory.load(tmp_path / "run")
    assert same_rows(analysis.nodes, loaded.nodes)
    assert same_rows(analysis.questions, loaded.questions)
    assert analysis.settings == loaded.settings


def test_token_texts_are_stored(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    class WithTexts(Counting):
        def token_text(self, token: int) -> str:
            return f"\nword {token} é"

    analysis = run_into(tmp_path / "run", WithTexts(family), teachers)
    loaded = RunDirectory.load(tmp_path / "run")
    assert loaded.texts == analysis.texts == {token: f"\nword {token} é" for token in analysis.texts}
    assert set(analysis.texts) == set(analysis.children["token"].to_pylist())


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_number_of_workers_does_not_change_the_files(
    family: ExactFamily, teachers: list[Any], finished: Path, tmp_path: Path, workers: int
) -> None:
    run_into(tmp_path / "run", family, teachers, workers=workers)
    for name in (*TABLES, "summary.json", "manifest.json"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()
    assert files(tmp_path / "run") == files(finished)


def test_running_a_finished_run_again_samples_nothing(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in files(run) if name != "lock"}
    student = Counting(family)
    run_into(run, student, teachers)
    assert not student.requested
    assert not student.graded  # added endings included
    assert {name: (run / name).read_bytes() for name in files(run) if name != "lock"} == before


def test_the_files_are_plain_parquet_and_json(finished: Path, plain: Analysis, family: ExactFamily) -> None:
    rollouts = pa.concat_tables([pq.read_table(file) for file in sorted((finished / "rollouts").glob("*.parquet"))])
    assert rollouts.column_names == rollout_store.SHARD_SCHEMA.names
    record = plain.questions.to_pylist()
    total = sum(row["initial"] + row["targeted"] + row["certain"] for row in record)
    assert len(rollouts) == total == len(rollouts["key"].unique())
    world = family.worlds["world-1"]
    own = rollouts.filter(pa.compute.equal(rollouts["question"], "world-1")).to_pylist()
    assert len(own) > 200
    batch = Rollouts.of([row["tokens"] for row in own], truncated=[row["finish"] == 1 for row in own])
    assert world.grade(Question("world-1"), batch).tolist() == [row["outcome"] for row in own]
    summary = json.loads((finished / "summary.json").read_text())
    loaded = RunDirectory.load(finished)
    assert summary["decision"] == decide(loaded.nodes, n_analyzed=loaded.questions.num_rows).as_json()
    tilted, style = (summary[f"opd_align/{teacher}/reverse_kl/alignment/mean"] for teacher in ("tilted", "style"))
    assert tilted > style
    assert summary["reliability"]["reverse_kl"] == [row.as_json() for row in reliability(loaded.nodes, "reverse_kl")]
    assert sum(row["nodes"] for row in summary["reliability"]["reverse_kl"]) > 100
    nodes = pq.read_table(finished / "nodes.parquet")
    assert {str(column.type) for column in nodes.schema} <= {
        "string", "bool", "double", "int16", "int32", "int64", "uint32",
    }  # fmt: skip


def test_a_user_defined_objective_is_loaded_by_name(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    class Mine:
        name, signal, scale = "mine", "teacher", 2.0

        def update(self, nodes: Any) -> Any:
            return unified_update(nodes.p, nodes.log_t)

    analysis = run_into(tmp_path / "run", family, teachers, replace(SETTINGS, objectives=[Mine()]))
    loaded = RunDirectory.load(tmp_path / "run")
    assert same_rows(analysis.nodes, loaded.nodes)
    assert loaded.settings.objectives == (StoredObjective("mine", "teacher"),)
    with pytest.raises(OpdAlignError, match="formula"):
        loaded.settings.objectives[0].update(None)  # type: ignore[arg-type]


# -- resume ---------------------------------------------------------------------------------------------------


def test_a_failed_run_is_resumed_without_sampling_run_into(
    family: ExactFamily, teachers: list[Any], finished: Path, tmp_path: Path
) -> None:
    batches, failures = 0, 0
    while True:
        student = Counting(family, fail_at=4)
        try:
            run_into(tmp_path / "run", student, teachers, workers=1 + failures % 2)
            break
        except RuntimeError:
            failures += 1
            batches += 4
    batches += len(student.requested)
    clean = Counting(family)
    analyze(clean, teachers, family.questions, family, settings=SETTINGS)
    assert failures >= 3
    assert batches == len(clean.requested)
    assert (tmp_path / "run" / "nodes.parquet").read_bytes() == (finished / "nodes.parquet").read_bytes()
    assert files(tmp_path / "run") == files(finished)


def test_writing_a_batch_twice_changes_nothing(family: ExactFamily, finished: Path, tmp_path: Path) -> None:
    file = next((finished / "rollouts").glob("*.parquet"))
    batch = read_shard(file)
    assert batch is not None
    for _ in range(2):
        write_shard(tmp_path / file.name, batch)
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert len(list(tmp_path.iterdir())) == 1


def test_different_batches_have_different_ids() -> None:
    keys = [np.arange(3, dtype=np.uint64), np.arange(5, 6, dtype=np.uint64)]
    names = {
        rollout_store.batch_id(keys, "sample"),
        rollout_store.batch_id(keys[::-1], "sample"),
        rollout_store.batch_id(keys, "grade"),
    }
    assert len(names | {rollout_store.batch_id(keys[:1], "sample")}) == 4


def test_a_directory_without_a_finished_batch_accepts_new_settings(
    family: ExactFamily, teachers: list[Any], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError):
        run_into(tmp_path, Counting(family, fail_at=0), teachers)
    changed = replace(SETTINGS, budget=replace(BUDGET, initial=40))
    run_into(tmp_path, family, teachers, changed)
    assert RunDirectory.load(tmp_path).settings == changed
    shutil.rmtree(tmp_path / "rollouts")  # for example to save space; the results still belong to their settings
    with pytest.raises(RunMismatch):
        run_into(tmp_path, family, teachers)


def test_an_invalid_call_creates_no_directory(family: ExactFamily, tmp_path: Path) -> None:
    with pytest.raises(OpdAlignError, match="needs a teacher"):
        run_into(tmp_path / "run", family, [])
    assert not (tmp_path / "run").exists()


# -- unknown outcomes and failures -----------------------------------------------------------------------------


@dataclass
class PartlyFailing(Counting):
    """Grades a third of the completions as unknown, and fails to sample a few."""

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        rollouts = super().sample(requests)
        lost = rollouts.key_R % np.uint64(29) == 0
        failures = tuple(Failure(int(key), f"failed: {key % 3}") for key in rollouts.key_R[lost])
        return replace(rollouts.take(~lost), failures=failures)

    def grade(self, question: Question, rollouts: Rollouts) -> Any:
        return np.where(rollouts.key_R % np.uint64(3) == 0, Outcome.UNKNOWN, super().grade(question, rollouts))


def test_unknown_and_failed_rollouts_survive_a_resume(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    student = PartlyFailing(family)
    expected = analyze(student, teachers, family.questions, student, settings=SETTINGS)
    assert min(expected.questions["unknown"].to_pylist()) > 20
    assert min(expected.questions["failed"].to_pylist()) > 2
    for expect_work in (True, False, False):
        student = PartlyFailing(family)
        analysis = run_into(tmp_path / "run", student, teachers)
        assert same_rows(analysis.nodes, expected.nodes)
        assert same_rows(analysis.questions, expected.questions)
        assert bool(student.requested) == bool(student.graded) == expect_work


@pytest.mark.parametrize("where", ["memory://passing/run", None])
@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_temporary_read_error_is_not_damage(
    where: str | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: Any
) -> None:
    monkeypatch.setattr(filesystem, "READ_RETRY_DELAYS_S", (0.0, 0.0, 0.0))
    store = RolloutStore(where or tmp_path)
    store.folder.mkdir(parents=True, exist_ok=True)
    store.write("b" * 32, Batch(Rollouts.of([[1, 2, 3]]), ["q"]))
    read_bytes, remaining = type(store.folder).read_bytes, [times]

    def throttled(file: Any) -> bytes:
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise OSError(errno.EMFILE, "SlowDown")
        return read_bytes(file)

    monkeypatch.setattr(type(store.folder), "read_bytes", throttled)
    if times < 4:
        assert store.read("b" * 32) is not None
    else:
        with pytest.raises(OpdAlignError, match=r"could not read .*SlowDown; nothing was changed"):
            store.read("b" * 32)
    assert [file.name for file in store.folder.iterdir()] == [f"{'b' * 32}.parquet"]
    assert not recwarn.list


def test_a_batch_that_failed_completely_is_not_stored(family: ExactFamily, tmp_path: Path) -> None:
    class Refused(Counting):
        def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
            keys = np.concatenate(self.keys(requests)).tolist()
            return replace(Rollouts.of([]), failures=tuple(Failure(key, "refused") for key in keys))

    request = SampleRequest(family.questions[0], np.empty(0, np.uint32), 3)
    (tmp_path / "rollouts").mkdir()
    store, student = RolloutStore(tmp_path), Refused(family)
    assert len(CachedStudent(store, student, student).sample([request]).failures) == 3
    assert not list(store.folder.iterdir())
    store.write(rollout_store.batch_id(student.keys([request]), "sample"), Batch(student.sample([request]), ["x"] * 3))
    assert len(CachedStudent(store, family, family).sample([request])) == 3  # nor reused if it is there


def test_a_failure_is_stored_as_a_row_with_a_reason(tmp_path: Path) -> None:
    with_failure = replace(
        Rollouts.of([[3, 1, EOS], [3]], outcome=[1, -1], launch=[1, 0], key=[7, 2**64 - 1], truncated=[False, True]),
        failures=(Failure(9, "the server died"),),
    )
    for rollouts, questions in (
        (with_failure, ["a", "b", "a"]),
        (replace(Rollouts.of([]), failures=with_failure.failures), ["a"]),
        (Rollouts.of([]), []),
        (Rollouts.of([[], [5]]), ["a", "a"]),
    ):
        file = tmp_path / f"batch-{len(questions)}.parquet"
        write_shard(file, Batch(rollouts, questions))
        back = read_shard(file)
        assert back is not None
        assert list(back.question_R) == questions
        for name in ("tokens", "offsets", "launch_R", "outcome_R", "finish_R", "key_R"):
            column = getattr(back.rollouts, name)
            assert column.dtype == getattr(rollouts, name).dtype
            np.testing.assert_array_equal(column, getattr(rollouts, name))
        assert back.rollouts.failures == rollouts.failures
    rows = pq.read_table(tmp_path / "batch-3.parquet").to_pylist()
    assert rows[2] == {
        "batch": "batch-3", "question": "a", "key": 9, "launch": None, "outcome": -1, "finish": Finish.FAILED,
        "tokens": None, "reason": "the server died",
    }  # fmt: skip
    assert [row["reason"] for row in rows[:2]] == [None, None]


def test_a_batch_of_several_questions_is_graded_question_by_question(family: ExactFamily, tmp_path: Path) -> None:
    a, b, _ = family.questions
    requests = [SampleRequest(q, np.empty(0, np.uint32), 30, first) for first in (0, 30) for q in (a, b)]
    with RunDirectory(tmp_path, describe(family, [], [a, b], family, SETTINGS)) as run:
        sampled = run.cached(family, family).sample(requests)
    expected = family.sample(requests)
    np.testing.assert_array_equal(sampled.tokens, expected.tokens)
    question_R = np.repeat([0, 1, 0, 1], 30)
    for index, question in enumerate((a, b)):
        own = expected.take(question_R == index)
        np.testing.assert_array_equal(sampled.outcome_R[question_R == index], family.grade(question, own))


def test_rollouts_that_were_not_requested_are_rejected(family: ExactFamily, tmp_path: Path) -> None:
    class WrongKeys(Counting):
        def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
            rollouts = super().sample(requests)
            return replace(rollouts, key_R=rollouts.key_R + np.uint64(1))

    request = SampleRequest(family.questions[0], np.empty(0, np.uint32), 3)
    with RunDirectory(tmp_path, describe(family, [], family.questions, family, SETTINGS)) as run:
        with pytest.raises(ValueError, match="not requested"):
            run.cached(WrongKeys(family), family).sample([request])
        assert not any(run.store.folder.iterdir())


# -- other settings -------------------------------------------------------------------------------------------


def test_every_difference_is_listed_with_both_values(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    other = Settings([ReverseKL(), GeneralisedJSD(0.5)], replace(BUDGET, initial=61), SETTINGS.rules, batch=49)
    before = {name: (run / name).read_bytes() for name in files(run)}
    with pytest.raises(RunMismatch) as caught:
        run_into(run, family, teachers[:1], other)
    message = str(caught.value)
    assert "settings.budget.initial: 60 in the directory, 61 now" in message
    assert "settings.batch: 50 in the directory, 49 now" in message
    assert "teachers.style: null in the directory, absent now" in message
    assert 'settings.objectives.dr_grpo.signal: "reward" in the directory, absent now' in message
    assert "settings.objectives.jsd_0.5.beta: absent in the directory, 0.5 now" in message
    assert "estimator" not in message
    assert {name: (run / name).read_bytes() for name in files(run)} | {"lock": b""} == before | {"lock": b""}


def test_another_student_or_other_questions_are_rejected(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    other = ExactFamily(dict(reversed(family.worlds.items())))
    with pytest.raises(RunMismatch, match="student: "):
        run_into(run, other, teachers)
    questions = [replace(family.questions[0], answer="42"), *family.questions[1:]]
    with pytest.raises(RunMismatch, match=r'questions\.world-0: "\w+" in the directory, "\w+" now') as caught:
        analyze_into(run, family, teachers, questions, family, settings=SETTINGS)
    assert "world-1" not in str(caught.value)
    with pytest.raises(RunMismatch, match="questions: different order"):
        analyze_into(run, family, teachers, family.questions[::-1], family, settings=SETTINGS)
    with pytest.raises(RunMismatch, match=r"questions\.world-2: .* absent now"):
        analyze_into(run, family, teachers, family.questions[:2], family, settings=SETTINGS)
    many = [Question(str(i)) for i in range(37)]
    with pytest.raises(RunMismatch, match="and 28 more"):
        analyze_into(run, family, teachers, many, family, settings=SETTINGS)


def test_the_manifest_does_not_depend_on_the_process(family: ExactFamily) -> None:
    question = Question("q", fields={"set": {"b", "a"}, "f": lambda: 0, "array": np.arange(3), "path": Path("x")})
    one, two = (describe(family, [], [replace(question)], family, SETTINGS) for _ in range(2))
    assert one == two
    other = replace(question, fields={**question.fields, "array": np.arange(4)})
    assert describe(family, [], [other], family, SETTINGS)["questions"] != one["questions"]


def test_an_unreadable_manifest_is_reported_and_not_changed(
    family: ExactFamily, teachers: list[Any], run: Path
) -> None:
    for content, message in ((b'{"format": 1', "is damaged .not valid JSON"), (b"[]", "is damaged .it is not the man")):
        (run / "manifest.json").write_bytes(content)
        for attempt in (lambda: run_into(run, family, teachers), lambda: RunDirectory.load(run)):
            with pytest.raises(OpdAlignError, match=message):
                attempt()
        assert (run / "manifest.json").read_bytes() == content


def test_another_format_is_rejected(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(OpdAlignError, match="format 99"):
        run_into(run, family, teachers)


def test_other_package_versions_are_accepted_and_recorded(
    family: ExactFamily, teachers: list[Any], run: Path, finished: Path
) -> None:
    manifest = read_manifest(run / "manifest.json")
    assert manifest is not None
    (run / "manifest.json").write_bytes(manifest_bytes(manifest, [{"numpy": "0.1"}], manifest["results"]))
    assert same_rows(RunDirectory.load(run).nodes, RunDirectory.load(finished).nodes)
    run_into(run, family, teachers)
    made_with = json.loads((run / "manifest.json").read_text())["made_with"]
    assert made_with[0] == {"numpy": "0.1"}
    assert made_with[1]["pyarrow"] == pa.__version__


# -- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "swapped"])
def test_a_damaged_shard_is_renamed_and_sampled_run_into(
    family: ExactFamily, teachers: list[Any], run: Path, finished: Path, damage: str
) -> None:
    victim, other = sorted((run / "rollouts").glob("*.parquet"))[:2]
    whole = victim.read_bytes()
    damaged_bytes = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:200] + bytes([whole[200] ^ 4]) + whole[201:],
        "empty": b"",
        "foreign": (run / "nodes.parquet").read_bytes(),
        "swapped": other.read_bytes(),
    }[damage]
    victim.write_bytes(damaged_bytes)
    student = Counting(family)
    with pytest.warns(DamagedFileWarning, match=f"{victim.name} is damaged .* renamed to {victim.name}.damaged"):
        run_into(run, student, teachers)
    assert len(student.requested) <= 1
    assert victim.with_name(f"{victim.name}.damaged").read_bytes() == damaged_bytes
    assert victim.read_bytes() == whole
    assert (run / "nodes.parquet").read_bytes() == (finished / "nodes.parquet").read_bytes()
    # A second damaged file does not overwrite the first.
    victim.write_bytes(b"again")
    with pytest.warns(DamagedFileWarning, match="damaged-2"):
        run_into(run, family, teachers)
    assert victim.with_name(f"{victim.name}.damaged").read_bytes() == damaged_bytes


def test_every_flipped_bit_is_detected(finished: Path, tmp_path: Path) -> None:
    source = next((finished / "rollouts").glob("*.parquet"))
    whole, expected = source.read_bytes(), read_shard(source)
    assert expected is not None
    rng = np.random.default_rng(0)
    detected = 0
    for position in rng.choice(len(whole), 300, replace=False):
        damaged_bytes = bytearray(whole)
        damaged_bytes[position] ^= 1 << int(rng.integers(8))
        (tmp_path / source.name).write_bytes(damaged_bytes)
        try:
            back = read_shard(tmp_path / source.name)
        except DamagedFileError:
            detected += 1
            continue
        # A bit that is not read (statistics, padding): the batch must then be the one that was written.
        assert back is not None
        np.testing.assert_array_equal(back.rollouts.tokens, expected.rollouts.tokens)
        np.testing.assert_array_equal(back.rollouts.key_R, expected.rollouts.key_R)
        np.testing.assert_array_equal(back.rollouts.outcome_R, expected.rollouts.outcome_R)
    assert detected > 100


def test_temporary_files_are_ignored_and_removed(
    family: ExactFamily, teachers: list[Any], run: Path, finished: Path
) -> None:
    shard = next((run / "rollouts").glob("*.parquet"))
    half = [
        shard.with_name(f".{shard.name}.123-0.tmp"),
        run / ".nodes.parquet.123-1.tmp",
        run / ".manifest.json.123-2.tmp",
    ]
    for file in half:
        file.write_bytes(b"PAR1 half")
    assert same_rows(RunDirectory.load(run).nodes, RunDirectory.load(finished).nodes)
    assert all(file.exists() for file in half)  # loading removes nothing: another process may be writing
    run_into(run, family, teachers)
    assert files(run) == files(finished)


def test_a_run_killed_before_its_manifest_was_written_starts_run_into(
    family: ExactFamily, teachers: list[Any], tmp_path: Path, finished: Path
) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "lock").write_text("pid 1 on nowhere\n")
    (tmp_path / ".manifest.json.5-0.tmp").write_text("{")
    run_into(tmp_path, family, teachers)
    assert files(tmp_path) == files(finished)


def test_damaged_tables_are_rebuilt_from_the_rollouts(
    family: ExactFamily, teachers: list[Any], run: Path, finished: Path
) -> None:
    for name in (*TABLES, "summary.json"):
        (run / name).write_bytes((run / name).read_bytes()[:100])
        with pytest.raises(OpdAlignError, match=f"{name}' is damaged .* nothing is sampled again"):
            RunDirectory.load(run)
        student = Counting(family)
        run_into(run, student, teachers)
        assert not student.requested
        assert (run / name).read_bytes() == (finished / name).read_bytes()


# -- the disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_is_reported_and_leaves_no_partial_file(
    family: ExactFamily, teachers: list[Any], tmp_path: Path, finished: Path, monkeypatch: Any, call: str
) -> None:
    remaining = 12  # calls that succeed

    def failing(real: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return wrapper

    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(os, "fsync", failing(os.fsync))
        elif call == "rename":
            patch.setattr(Path, "replace", failing(Path.replace))
        else:
            patch.setattr(rollout_store, "table_bytes", failing(rollout_store.table_bytes))
        with pytest.raises(
            OpdAlignError, match=r"No space left on device; \d+ finished batches are stored in"
        ) as caught:
            run_into(tmp_path / "run", family, teachers)
    assert "run the same command again" in str(caught.value)
    kept = list((tmp_path / "run" / "rollouts").iterdir())
    assert kept
    assert all(file.suffix == ".parquet" and read_shard(file) for file in kept)
    assert not list((tmp_path / "run").glob(".*"))
    student = Counting(family)
    run_into(tmp_path / "run", student, teachers)
    assert student.requested
    assert files(tmp_path / "run") == files(finished)
    assert (tmp_path / "run" / "nodes.parquet").read_bytes() == (finished / "nodes.parquet").read_bytes()


SMALL_DISK = """
mount -t tmpfs -o size=96k none "$1" || exit 77
shift
"$@"
code=$?
df --output=avail . >&2
find . -name '*.tmp' >&2
exit $code
"""


def test_a_disk_that_is_full_for_real(tmp_path: Path) -> None:
    """Uses a tmpfs of 96 KiB in a new mount namespace; needs permission to mount."""
    probe = ["unshare", "-m", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no permission to mount a tmpfs; run as root on Linux")
    command = [
        sys.executable, "-m", "opd_align.cli", "analyze", "--student", "exact", "--worlds", "2", "--length", "40",
        "--initial", "100", "--targeted", "3000", "--batch", "100", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    script = ["unshare", "-m", "sh", "-c", SMALL_DISK, "sh", str(tmp_path), *command]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, cwd=Path(filesystem.__file__).parents[2])
    if done.returncode == 77:
        pytest.skip("no permission to mount a tmpfs; run as root on Linux")
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert "finished batches are stored in" in done.stderr
    assert "Traceback" not in done.stderr
    assert ".tmp" not in done.stderr


def test_a_read_only_directory_is_reported(
    family: ExactFamily, teachers: list[Any], run: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def read_only(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        with pytest.raises(OpdAlignError, match="Read-only file system; choose another directory"):
            run_into(run, family, teachers)
        assert RunDirectory.load(run).nodes.num_rows > 50
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", read_only)
        with pytest.raises(OpdAlignError, match="Read-only"):
            run_into(tmp_path / "new", family, teachers)


def test_directories_with_other_content_are_rejected(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(OpdAlignError, match=r"not empty and not a run directory \(it contains 'thesis.tex'"):
        run_into(tmp_path, family, teachers)
    assert files(tmp_path) == {"thesis.tex"}
    with pytest.raises(OpdAlignError, match="is a file"):
        run_into(tmp_path / "thesis.tex", family, teachers)
    with pytest.raises(OpdAlignError, match="Not a directory"):
        run_into(tmp_path / "thesis.tex" / "run", family, teachers)


def test_rollouts_without_a_manifest_are_rejected(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    for name in ("manifest.json", "summary.json", "spent.json", *TABLES):
        (run / name).unlink()
    with pytest.raises(OpdAlignError, match="'rollouts' but no manifest"):
        run_into(run, family, teachers)


# -- concurrency ----------------------------------------------------------------------------------------------


def test_a_second_process_is_rejected_with_the_id_of_the_first(
    family: ExactFamily, teachers: list[Any], run: Path
) -> None:
    holding = f"""
import fcntl, os, sys
handle = os.open({str(run / "lock")!r}, os.O_RDWR)
fcntl.flock(handle, fcntl.LOCK_EX)
os.ftruncate(handle, 0)
os.write(handle, f"pid {{os.getpid()}} on here\\n".encode())
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunBusy, match=rf"in use by another run \(pid {holder.pid} on here\)"):
            run_into(run, family, teachers)
        assert RunDirectory.load(run).nodes.num_rows > 50  # reading needs no lock
        holder.kill()
    run_into(run, family, teachers)


def test_the_lock_is_always_released(family: ExactFamily, teachers: list[Any], run: Path) -> None:
    manifest = describe(family, teachers, family.questions, family, SETTINGS)
    with RunDirectory(run, manifest), pytest.raises(RunBusy, match=f"pid {os.getpid()} on"):
        RunDirectory(run, manifest)
    with pytest.raises(RunMismatch):
        RunDirectory(run, manifest | {"student": "another"})
    RunDirectory(run, manifest).close()


def test_a_directory_that_cannot_be_locked_gives_a_warning(
    family: ExactFamily, teachers: list[Any], run: Path, monkeypatch: Any
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.warns(UserWarning, match="cannot be locked"):
        run_into(run, family, teachers)


def test_usage_of_several_workers_is_wall_time(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    begin = time.monotonic()
    run_into(tmp_path / "run", family, teachers, workers=3)
    assert 0 < Usage.load(tmp_path / "run").seconds <= time.monotonic() - begin


def test_a_failure_in_one_worker_stops_the_others(family: ExactFamily, teachers: list[Any], tmp_path: Path) -> None:
    student = Counting(family, fail_at=5)
    with pytest.raises(RuntimeError, match="failed on purpose"):
        run_into(tmp_path, student, teachers, workers=3)
    assert len(student.requested) <= 8
    with pytest.raises(OpdAlignError, match="workers must be at least 1"):
        run_into(tmp_path, family, teachers, workers=0)


# -- the command line -----------------------------------------------------------------------------------------

SMALL = [
    "analyze",
    "--student",
    "exact",
    "--worlds",
    "2",
    "--length",
    "30",
    "--initial",
    "60",
    "--targeted",
    "300",
    "--batch",
    "100",
]


def test_analyze_into_a_directory_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--out", str(run)]) == 0
    first = capsys.readouterr().out
    assert f"run directory  {run}" in first
    assert main(["report", str(run)]) == 0
    assert first.strip().startswith(capsys.readouterr().out.strip())
    assert main([*SMALL, "--out", str(run), "--workers", "2"]) == 0
    assert capsys.readouterr().out.strip() == first.strip()
    assert main([*SMALL, "--out", str(run), "--n-sig", "10"]) == 2
    assert "settings.rules.n_sig: 20.0 in the directory, 10.0 now" in capsys.readouterr().err


def test_damage_is_reported_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    victim = next((tmp_path / "rollouts").glob("*.parquet"))
    victim.write_bytes(b"junk")
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main([*SMALL, "--out", str(tmp_path)]) == 0
    error = "".join(capfd.readouterr().err.split())
    assert f"opd-align:{victim}isdamaged" in error


def test_report_names_what_is_missing(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (run / "summary.json").unlink()
    stored = len(list((run / "rollouts").iterdir()))
    for path, message in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "empty", "is not a run directory: it has no manifest.json"),
        (run / "nodes.parquet", "does not exist"),
        (run, f"not finished: summary.json is missing, {stored} finished batches are stored"),
    ):
        assert main(["report", str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


@pytest.mark.parametrize(("option", "value"), [("--batch", "0"), ("--workers", "0")])
def test_invalid_numbers_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main([*SMALL, "--out", str(tmp_path), option, value]) == 2
    assert "at least" in capsys.readouterr().err
