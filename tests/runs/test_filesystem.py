"""Run directories in object stores: the same files as on a local disk, written atomically."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main
from opd_align.runs.execute import analyze_into
from opd_align.runs.filesystem import AnyPath, RemotePath, as_path
from opd_align.runs.manifest import RunMismatch, describe
from opd_align.runs.rollout_store import Batch, DamagedFileWarning, RolloutStore, read_shard, write_shard
from opd_align.runs.run_directory import RunDirectory, check_directory
from opd_align.settings import Budget, Settings
from opd_align.types import OpdAlignError, Rollouts

SETTINGS = Settings(budget=Budget(initial=40, targeted=160), batch=40)
RESULT = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json", "manifest.json")


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(3, 2, length=16)


@pytest.fixture(scope="module")
def teachers(family: ExactFamily) -> list[Any]:
    return [family.teacher("tilted", lambda world: world.tilted_teacher(seed=0))]


@pytest.fixture(scope="module")
def on_disk(family: ExactFamily, teachers: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place") / "run"
    analyze_into(path, family, teachers, family.questions, family, settings=SETTINGS)
    return path


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """A bucket of a local S3 server."""
    pytest.importorskip("s3fs", reason="S3 support is not installed (make test-s3)")
    moto = pytest.importorskip("moto.server", reason="no S3 server is installed (make test-s3)")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "nobody")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("runs")
        yield "s3://runs"
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def address(request: pytest.FixtureRequest) -> str:
    """A new run directory in each kind of store."""
    root = "memory:/" if request.param == "memory" else request.getfixturevalue("bucket")
    return f"{root}/{uuid4().hex}/run"


def files(folder: AnyPath) -> dict[str, bytes]:
    return {f"{file.name}": file.read_bytes() for part in (folder, folder / "rollouts") for file in part.glob("*.*")}


def test_local_paths_are_not_changed(tmp_path: Path) -> None:
    assert as_path("runs/x") == Path("runs/x")
    assert as_path(tmp_path) is tmp_path or as_path(tmp_path) == tmp_path
    assert as_path(f"file://{tmp_path}") == tmp_path
    remote = as_path("memory://a/run/")
    assert isinstance(remote, RemotePath)
    assert as_path(remote) is remote
    assert (str(remote), remote.name, str(remote.parent)) == ("memory://a/run", "run", "memory://a")


@pytest.mark.parametrize("address", ["s3://", "memory://", "memory:///", "file://", "zip://x", "dir://x"])
def test_incomplete_urls_are_rejected(address: str) -> None:
    with pytest.raises(OpdAlignError, match=r"is incomplete|cannot be opened|is not a URL"):
        as_path(address)


def test_the_extra_is_suggested_only_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(OpdAlignError, match=r"Please install gcsfs to access Google Storage$"):
        as_path("gs://bucket/run")
    with pytest.raises(OpdAlignError, match=r"opd-align\[remote\]"):
        as_path("s3://bucket/run")


class NoCredentialsError(Exception):
    """Stands for an error type of a store's own library."""


class Closed(fsspec.AbstractFileSystem):  # type: ignore[misc]
    protocol = "closed"

    def info(self, path: str, **_: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    ls = cat_file = pipe_file = info


def test_missing_credentials_are_reported(
    on_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opd_align.runs.filesystem.READ_RETRY_DELAYS_S", ())
    fsspec.register_implementation("closed", Closed, clobber=True)
    exact = ["analyze", "--student", "exact", "--worlds", "1", "--length", "16"]
    with_models = [
        ["analyze", "--limit", "1", "--reuse", "closed://b/run", "--out", str(tmp_path / "run")],
        ["analyze", "--dry-run", "--calibrate-from", "closed://b/run", "--out", str(tmp_path / "run")],
    ]
    for command in (
        [*exact, "--out", "closed://b/run"],
        [*exact, "--reuse", "closed://b/run", "--out", str(tmp_path / "run")],
        ["report", "closed://b/run"],
        ["merge", str(on_disk), "closed://b/run", "--out", str(tmp_path / "merged")],
        *with_models,
    ):
        assert main(command) == 2, command
        error = capsys.readouterr().err
        # The S3 test environment has no models: there, some commands report that first.
        if command in with_models and find_spec("torch") is None and "credentials" not in error:
            assert error.startswith("opd-align: language models need t")  # torch or transformers
            assert error.endswith(": pip install 'opd-align[hf,tasks]'\n")
        else:
            assert "Unable to locate credentials" in error


def test_a_manifest_that_is_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    for look in (RunDirectory.load, lambda path: check_directory(path, "analysis")):
        with pytest.raises(OpdAlignError, match=r"could not read .*manifest.json"):
            look(tmp_path)


def test_unknown_protocols_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OpdAlignError, match="'s4://x' is not a URL that fsspec supports"):
        as_path("s4://x")
    with pytest.raises(SystemExit):
        main(["analyze", "--student", "exact", "--out", "s4://bucket/run"])
    assert "not a URL that fsspec supports" in capsys.readouterr().err


def test_a_run_in_a_store_equals_the_run_on_disk(
    family: ExactFamily, teachers: list[Any], on_disk: Path, address: str
) -> None:
    class Interrupted(ExactFamily):
        calls = 0

        def sample(self, requests: Any) -> Rollouts:
            Interrupted.calls += 1
            if Interrupted.calls == 4:
                raise RuntimeError("interrupted")
            return super().sample(requests)

    interrupted = Interrupted(family.worlds)
    with pytest.raises(RuntimeError, match="interrupted"):
        analyze_into(address, interrupted, teachers, family.questions, family, settings=SETTINGS)
    analyze_into(address, interrupted, teachers, family.questions, family, settings=SETTINGS)
    in_store, local = files(as_path(address)), files(on_disk)
    assert {name: in_store[name] for name in RESULT} == {name: local[name] for name in RESULT}
    assert in_store.keys() == local.keys()
    assert (
        Interrupted.calls == len(list((on_disk / "rollouts").glob("*.parquet"))) - 2 + 1
    )  # two shards hold only grades
    assert RunDirectory.load(address).nodes.num_rows == RunDirectory.load(on_disk).nodes.num_rows


def test_other_settings_are_rejected_in_a_store(family: ExactFamily, teachers: list[Any], address: str) -> None:
    analyze_into(address, family, teachers, family.questions, family, settings=SETTINGS)
    with pytest.raises(RunMismatch, match=r"settings.batch: 40 in the directory, 41 now"):
        analyze_into(address, family, teachers, family.questions, family, settings=replace(SETTINGS, batch=41))


def test_a_run_whose_directory_was_taken_by_another_run_writes_no_result(
    family: ExactFamily, teachers: list[Any], address: str
) -> None:
    """A store has no locks, so two runs may start in the same directory at the same time."""
    mine = describe(family, teachers, family.questions, family, SETTINGS)
    other = replace(SETTINGS, batch=41)
    analysis = analyze_into(f"memory://{uuid4().hex}", family, teachers, family.questions, family, settings=SETTINGS)
    with RunDirectory(address, mine) as run:
        analyze_into(address, family, teachers, family.questions, family, settings=other)
        before = files(as_path(address))
        with pytest.raises(RunMismatch, match=r"settings.batch: 41 in the directory, 40 now"):
            run.finish(analysis, None)  # type: ignore[arg-type]
    assert files(as_path(address)) == before


def test_a_damaged_shard_in_a_store_is_renamed(family: ExactFamily, teachers: list[Any], address: str) -> None:
    analyze_into(address, family, teachers, family.questions, family, settings=SETTINGS)
    victim = next((as_path(address) / "rollouts").glob("*.parquet"))
    whole = victim.read_bytes()
    victim.write_bytes(b"junk")
    with pytest.warns(DamagedFileWarning, match="renamed to"):
        analyze_into(address, family, teachers, family.questions, family, settings=SETTINGS)
    assert victim.read_bytes() == whole
    assert victim.with_name(f"{victim.name}.damaged").read_bytes() == b"junk"


def test_concurrent_writers_of_the_same_batch_do_not_collide(address: str, tmp_path: Path) -> None:
    """A concurrent reader sees no file or the complete file."""
    (tmp_path / "disk").mkdir()
    batch = Batch(Rollouts.of([[1, 2, 3]] * 500), ["q"] * 500)
    for folder in (as_path(address) / "rollouts", tmp_path / "disk"):
        seen, errors, stop = [], [], threading.Event()

        def write(folder: AnyPath = folder) -> None:
            for _ in range(20):
                write_shard(folder / "batch.parquet", batch)

        def read(folder: AnyPath = folder, seen: Any = seen, errors: Any = errors, stop: Any = stop) -> None:
            while not stop.is_set():
                try:
                    found = read_shard(folder / "batch.parquet")
                    seen.append(found is not None and len(found.rollouts))
                except Exception as error:
                    errors.append(error)

        reader = threading.Thread(target=read)
        writers = [threading.Thread(target=write) for _ in range(4)]
        for thread in (reader, *writers):
            thread.start()
        for writer in writers:
            writer.join()
        stop.set()
        reader.join()
        assert not errors
        assert set(seen) <= {False, 500}
        assert [file.name for file in folder.iterdir()] == ["batch.parquet"]


def test_machines_with_equal_process_ids_do_not_collide(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    batch = Batch(Rollouts.of([[1]]), ["q"])
    (tmp_path / f".batch.parquet.{os.getpid()}-0.tmp").write_bytes(b"written by the other machine")
    write_shard(tmp_path / "batch.parquet", batch)
    assert read_shard(tmp_path / "batch.parquet") is not None


def test_errors_of_a_store_are_os_errors() -> None:
    class Refusing:
        def invalidate_cache(self) -> None: ...

        def ls(self, path: str, detail: bool) -> list[str]:
            return []

        def info(self, *_: Any) -> Any:
            raise RuntimeError("no credentials")

        pipe_file = info

    remote = RemotePath(Refusing(), "b/run", "s3://b/run")
    with pytest.raises(OSError, match="RuntimeError: no credentials"):
        remote.exists()
    with pytest.raises(OpdAlignError, match=r"cannot write to 's3://b/run': RuntimeError: no credentials"):
        RunDirectory(remote, {})
    with pytest.raises(OpdAlignError, match=r"could not write to 's3://b/run': RuntimeError: no credentials"):
        RolloutStore(remote).write("batch", Batch(Rollouts.of([[1]]), ["q"]))


def test_the_command_line_works_with_a_store(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "analyze",
        "--student",
        "exact",
        "--worlds",
        "1",
        "--length",
        "16",
        "--initial",
        "40",
        "--targeted",
        "80",
    ]
    assert main([*command, "--out", address]) == 0
    first = capsys.readouterr().out
    assert f"run directory  {address}" in first
    assert (as_path(address) / "report.html").read_bytes().startswith(b"<!doctype html>")
    assert main(["report", address, "--html", str(tmp_path / "page.html")]) == 0
    assert main([*command, "--out", address]) == 0
    assert json.loads((as_path(address) / "spent.json").read_bytes())["tokens"] > 0
    assert main([*command, "--reuse", address, "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "nodes.parquet").read_bytes() == (as_path(address) / "nodes.parquet").read_bytes()
    assert json.loads((tmp_path / "again" / "spent.json").read_text())["tokens"] == 0
