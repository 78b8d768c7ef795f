"""Digests of the result: every flipped bit of every file is found, named, and repaired by the same command."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opd_align.backends.exact import ExactFamily
from opd_align.cli.main import main
from opd_align.core.objectives import DrGRPO, ReverseKL
from opd_align.runs.execute import analyze_into
from opd_align.runs.filesystem import write_output
from opd_align.runs.manifest_check import content_digest
from opd_align.runs.merge import merge
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Settings
from opd_align.types import OpdAlignError

RESULTS = ("nodes.parquet", "children.parquet", "questions.parquet", "tokens.parquet", "summary.json")
FLIPS = 600
SETTINGS = Settings([ReverseKL(), DrGRPO()], Budget(initial=48, targeted=200), batch=50)
FAMILY = ExactFamily.random(1, 3, length=12, stakes=3.0)
TEACHERS = [FAMILY.teacher("tilted", lambda world: world.tilted_teacher())]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on all questions, and runs on the first one and on the others."""
    folder = tmp_path_factory.mktemp("digests")
    for name, questions in (
        ("whole", FAMILY.questions), ("first", FAMILY.questions[:1]), ("others", FAMILY.questions[1:]),
    ):  # fmt: skip
        analyze_into(folder / name, FAMILY, TEACHERS, questions, FAMILY, settings=SETTINGS)
    return {name: folder / name for name in ("whole", "first", "others")}


@pytest.fixture
def run(finished: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished["whole"], tmp_path / "run"))


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(data)
    damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def test_the_manifest_has_a_digest_of_every_file_of_the_result(run: Path) -> None:
    stored = json.loads((run / "manifest.json").read_text())["results"]
    assert stored == {name: content_digest((run / name).read_bytes()) for name in stored}
    assert sorted(stored) == sorted(RESULTS)


def test_every_flipped_bit_of_a_result_is_found_and_its_file_named(run: Path) -> None:
    rng, found = np.random.default_rng(19), 0
    for name in RESULTS:
        whole = (run / name).read_bytes()
        for _ in range(FLIPS // len(RESULTS)):
            (run / name).write_bytes(flip(whole, rng))
            with pytest.raises(OpdAlignError, match=rf"run/{name}' is damaged .* run the same opd-align analyze"):
                RunDirectory.load(run)
            found += 1
        (run / name).write_bytes(whole)
    assert found == FLIPS
    assert RunDirectory.load(run).nodes.num_rows > 50


def test_every_flipped_bit_of_a_manifest_is_found(run: Path) -> None:
    file, rng, refused = run / "manifest.json", np.random.default_rng(20), 0
    whole, settings = file.read_bytes(), RunDirectory.load(run).settings
    for _ in range(200):
        file.write_bytes(flip(whole, rng))
        try:
            loaded = RunDirectory.load(run)
        except OpdAlignError as error:
            refused += "manifest.json' is damaged" in str(error) or "has format" in str(error)
        else:
            assert loaded.settings == settings
            assert json.loads(file.read_bytes()) == json.loads(whole)
    assert refused > 190


def test_a_swapped_result_of_another_run_is_found(run: Path, finished: dict[str, Path]) -> None:
    shutil.copy(finished["others"] / "children.parquet", run / "children.parquet")
    with pytest.raises(OpdAlignError, match=r"children\.parquet' is damaged"):
        RunDirectory.load(run)


def test_the_same_command_repairs_the_result(run: Path, finished: dict[str, Path], monkeypatch: Any) -> None:
    rng = np.random.default_rng(21)
    for name in RESULTS:
        (run / name).write_bytes(flip((run / name).read_bytes(), rng))
    monkeypatch.setattr(ExactFamily, "sample", lambda *_: pytest.fail("sampled again"))
    analyze_into(run, FAMILY, TEACHERS, FAMILY.questions, FAMILY, settings=SETTINGS)
    for name in (*RESULTS, "manifest.json"):
        assert (run / name).read_bytes() == (finished["whole"] / name).read_bytes()


def test_damaged_results_are_not_merged(finished: dict[str, Path], tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(finished["others"], tmp_path / "others"))
    data = (damaged / "nodes.parquet").read_bytes()
    (damaged / "nodes.parquet").write_bytes(flip(data, np.random.default_rng(22)))
    with pytest.raises(OpdAlignError, match=r"others/nodes\.parquet' is damaged"):
        merge([finished["first"], damaged], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_digests_of_a_merged_run_are_those_of_the_whole(finished: dict[str, Path], tmp_path: Path) -> None:
    merge([finished["first"], finished["others"]], tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (finished["whole"] / "manifest.json").read_bytes()


# -- reports ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [("missing/dir/x.html", "does not exist; create it"), ("", "is a folder"), ("file/x.html", "is not a folder")],
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(run), "--html", str(tmp_path / target)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("name", ["manifest.json", "nodes.parquet", "summary.json", "rollouts/x.parquet"])
def test_no_output_replaces_a_file_of_a_run(run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    (run.parent / "link").symlink_to(run / name)
    for target in (run / name, run.parent / "link"):
        for command in (["report", str(run), "--html"], ["export", str(run), "--pivotal"]):
            assert main([*command, str(target)]) == 2
            assert "it is a file of a run; choose another path" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_tables_are_printed_in_any_encoding(run: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding=encoding))
    assert main(["report", str(run), "--verbose"]) == 0
    assert b"Alignment with the ideal update" in printed.getvalue()
    assert b"\\u2212" not in printed.getvalue()  # minus signs are "-"


def test_two_exports_need_two_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    assert main(["export", str(run), "--pivotal", str(file), "--preferences", f"{tmp_path}/./rows.jsonl"]) == 2
    assert "name two files" in capsys.readouterr().err
    assert not file.exists()


def test_a_comparison_that_cannot_be_written_is_not_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", str(run), str(run), "--tables", str(tmp_path / "file")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cannot write tables" in printed.err


def test_a_report_is_replaced_only_by_a_complete_one(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    page, link = tmp_path / "report.html", tmp_path / "link.html"
    link.symlink_to(page)
    assert main(["report", str(run), "--html", str(link), "--tables", str(tmp_path / "tables")]) == 0
    before = {file: file.read_bytes() for file in (page, *(tmp_path / "tables").iterdir())}
    assert len(before) > 5
    assert link.is_symlink()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full_disk)
        assert main(["report", str(run), "--html", str(link)]) == 2
        assert main(["report", str(run), "--tables", str(tmp_path / "tables")]) == 2
    assert {file: file.read_bytes() for file in (page, *(tmp_path / "tables").iterdir())} == before
    assert not list(tmp_path.glob(".*"))


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)
    write_output(pipe, "page")
    assert os.read(handle, 100) == b"page"
    assert pipe.is_fifo()
    os.close(handle)
