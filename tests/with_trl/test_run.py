"""The runner of TRL's own tests: what it does without them, and what it reports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from with_trl import run
from with_trl.cannot_pass import CANNOT_PASS


def test_without_a_repository_it_skips_with_the_reason(monkeypatch, capsys, tmp_path):
    def offline(command, **options):
        raise subprocess.CalledProcessError(128, command, stderr="fatal: Could not resolve host: github.com\n")

    monkeypatch.delenv("TRL_CHECKOUT", raising=False)
    monkeypatch.setattr(run, "TESTS", tmp_path / "tests")
    monkeypatch.setattr(subprocess, "run", offline)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run.main() == 0
    assert capsys.readouterr().out.startswith("skipped: TRL's tests are only in https://github.com/huggingface/trl")


def test_a_folder_without_trls_tests_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TRL_CHECKOUT", str(tmp_path))
    with pytest.raises(SystemExit, match="is not a checkout of TRL"):
        run.checkout()


def test_only_what_passes_with_trls_own_trainers_must_pass_with_ours(monkeypatch, capsys):
    plain = {"f.py::a": ["passed", ""], "f.py::b[x]": ["passed", ""], "f.py::c": ["failed", "no such model"]}
    passing = {"f.py::a": ["passed", ""], "f.py::b[x]": ["passed", ""]}
    assert run.report({"plain": plain, "gate": passing, "callback": passing}) == 0
    assert "2 of 3 tests ran and passed" in capsys.readouterr().out
    failing = {"f.py::a": ["passed", ""], "f.py::b[x]": ["failed", "KeyError: 'loss'"]}
    assert run.report({"plain": plain, "gate": failing, "callback": passing}) == 1
    assert "FAILED f.py::b[x]: KeyError: 'loss'" in capsys.readouterr().out
    assert run.report({"plain": plain, "gate": passing, "callback": {}}) == 1  # what did not run has not passed
    for name in ("b", "b[x]"):
        with monkeypatch.context() as patch:
            patch.setitem(CANNOT_PASS, ("gate", name), "because")
            assert run.report({"plain": plain, "gate": failing, "callback": passing}) == 0
        assert "cannot f.py::b[x]: because" in capsys.readouterr().out
