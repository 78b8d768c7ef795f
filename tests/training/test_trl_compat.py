"""The names that opd-align uses of TRL, transformers and accelerate: checked by table, and refused when they change."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from opd_align.training import trl_compat
from opd_align.training.trl_compat import ATTRIBUTES, METHODS, NAMES, check_attributes, check_trainer, resolve
from opd_align.types import OpdAlignError

pytestmark = pytest.mark.filterwarnings("ignore")

ALL_METHODS = [(owner, name) for owner, table in METHODS.items() for name in table]


def trainer_class(owner: str) -> Any:
    if owner == "Trainer":
        from transformers import Trainer

        return Trainer
    return resolve(owner)


def test_importing_the_tables_imports_no_library():
    code = "import sys, opd_align.training.trl_compat; print(*sys.modules.keys() & {'trl', 'torch', 'transformers'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_as_expected(name):
    assert getattr(trl_compat, name) is resolve(name)


@pytest.mark.parametrize(("owner", "name"), ALL_METHODS)
def test_every_method_is_as_expected(owner, name):
    check_trainer(trainer_class(owner), [name])


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'SFTTrainer'"):
        _ = trl_compat.SFTTrainer
    with pytest.raises(OpdAlignError, match="_no_such_method not listed in"):
        check_trainer(trainer_class("GRPOTrainer"), ["_no_such_method"])


@pytest.mark.parametrize("name", [name for name in NAMES if NAMES[name].module.startswith("trl")])
def test_a_renamed_function_is_refused(name, monkeypatch):
    module = sys.modules.get(NAMES[name].module) or __import__(NAMES[name].module, fromlist=["_"])
    resolve(name)
    monkeypatch.delattr(module, NAMES[name].attribute, raising=False)
    monkeypatch.setattr(module, "__getattr__", _raise_attribute_error, raising=False)  # TRL imports lazily
    if module.__class__.__name__ == "_LazyModule":
        monkeypatch.setattr(type(module), "__getattr__", lambda self, name: _raise_attribute_error(name))
    with pytest.raises(OpdAlignError, match=rf"TRL {metadata.version('trl')} is not supported.*>=1\.16,<1\.17"):
        resolve(name)


def _raise_attribute_error(name: str) -> Any:
    raise AttributeError(name)


@pytest.mark.parametrize("name", [name for name in NAMES if NAMES[name].call is not None])
def test_a_changed_parameter_of_a_function_is_refused(name, monkeypatch):
    module = __import__(NAMES[name].module, fromlist=["_"])
    resolve(name)
    monkeypatch.setattr(module, NAMES[name].attribute, lambda other: None)
    with pytest.raises(OpdAlignError, match=r"is not supported: .*(takes|new required parameter)"):
        resolve(name)


@pytest.mark.parametrize(("owner", "name"), ALL_METHODS)
def test_a_renamed_method_is_refused(owner, name, monkeypatch):
    kind = trainer_class(owner)
    for base in kind.__mro__:
        if name in vars(base):
            monkeypatch.delattr(base, name)
    with pytest.raises(OpdAlignError, match=rf"is not supported: {owner} has no attribute '{name}'. Tested versions"):
        check_trainer(kind, [name])


@pytest.mark.parametrize(("owner", "name"), ALL_METHODS)
def test_a_changed_parameter_of_a_method_is_refused(owner, name, monkeypatch):
    kind = trainer_class(owner)

    def changed(self: Any, other: Any) -> None: ...

    monkeypatch.setattr(kind, name, changed)
    with pytest.raises(OpdAlignError, match=rf"{owner}\.{name} (takes|has a new required parameter)"):
        check_trainer(kind, [name])


def test_a_subclass_is_judged_by_what_it_inherits(monkeypatch):
    base = trainer_class("GRPOTrainer")
    gated = type("Gated", (base,), {"_compute_loss": lambda self, model, inputs: None})
    check_trainer(gated, ["_compute_loss"])
    monkeypatch.delattr(base, "_compute_loss")
    with pytest.raises(OpdAlignError, match="GRPOTrainer has no attribute '_compute_loss'"):
        check_trainer(gated, ["_compute_loss"])


@pytest.mark.parametrize("attribute", ["_metrics", "accelerator"])
def test_a_missing_attribute_is_refused(attribute):
    base = trainer_class("DistillationTrainer")
    names = {*ATTRIBUTES["Trainer"], *ATTRIBUTES["DistillationTrainer"]}
    kind = type("Bare", (base,), dict.fromkeys(names))
    trainer = object.__new__(kind)
    check_attributes(trainer)
    lacking = type("Bare", (base,), dict.fromkeys(names - {attribute}))
    with pytest.raises(OpdAlignError, match=f"has no attribute '{attribute}'"):
        check_attributes(object.__new__(lacking))


def test_versions_outside_the_tested_range(monkeypatch, caplog):
    monkeypatch.setattr(trl_compat.metadata, "version", lambda library: "1.10.0")
    with pytest.raises(OpdAlignError, match=r"TRL 1\.10\.0 is not supported: this version is too old"):
        resolve("GRPOTrainer")
    monkeypatch.setattr(trl_compat.metadata, "version", lambda library: "1.99.0")
    for _ in range(2):
        check_trainer(trainer_class("GRPOTrainer"))
    assert caplog.text.count("TRL 1.99.0 is newer than the versions that opd-align was tested with") == 1
