"""The names that opd-align uses of TRL, transformers and accelerate: checked by table, and refused when they change."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opd_align.training import launch, trl_compat
from opd_align.training.trl_compat import check_attributes, check_events, check_trainer, resolve
from opd_align.training.trl_names import (
    AT_RUN_TIME,
    ATTRIBUTES,
    CLIENT_ATTRIBUTES,
    METHODS,
    NAMES,
    SDPO_EVENTS,
    UNTESTED,
    VLLM_ATTRIBUTES,
)
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
    with pytest.raises(OpdAlignError, match=r"is not supported: .*(takes|new required parameter|has no parameter)"):
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


MEMBERS = [(name, member) for name, wanted in NAMES.items() for member in wanted.members]


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_a_renamed_member_is_refused(name, member, monkeypatch):
    kind = resolve(name)
    for base in kind.__mro__:
        if member in vars(base):
            monkeypatch.delattr(base, member)
    # `__call__` and `register` are then found in the metaclass, with other parameters.
    with pytest.raises(OpdAlignError, match=rf"is not supported: \w+( has no attribute '{member}'|\.{member} takes)"):
        resolve(name)


@pytest.mark.parametrize(("name", "member"), [pair for pair in MEMBERS if NAMES[pair[0]].members[pair[1]] is not None])
def test_a_changed_parameter_of_a_member_is_refused(name, member, monkeypatch):
    def changed(self: Any, other: Any) -> None: ...

    monkeypatch.setattr(resolve(name), member, changed)
    with pytest.raises(OpdAlignError, match=rf"\.{member} (takes|has a new required parameter|has no parameter)"):
        resolve(name)


ALL_ATTRIBUTES = [
    (owner, name) for owner in ATTRIBUTES if owner == "Trainer" or owner in NAMES for name in ATTRIBUTES[owner]
]


@pytest.mark.parametrize(("owner", "attribute"), ALL_ATTRIBUTES)
def test_a_missing_attribute_is_refused(owner, attribute, monkeypatch):
    base = trainer_class("DistillationTrainer" if owner == "Trainer" else owner)
    names = {*ATTRIBUTES["Trainer"], *ATTRIBUTES[base.__name__]}
    check_attributes(object.__new__(type("Bare", (base,), dict.fromkeys(names))))
    for inherited in base.__mro__:
        if attribute in vars(inherited):
            monkeypatch.delattr(inherited, attribute)
    lacking = type("Bare", (base,), dict.fromkeys(names - {attribute}))
    with pytest.raises(OpdAlignError, match=f"has no attribute '{attribute}'"):
        check_attributes(object.__new__(lacking))


@pytest.mark.parametrize("event", SDPO_EVENTS)
def test_a_renamed_event_is_refused(event, monkeypatch):
    check_events(trainer_class("SDPOTrainer"))
    monkeypatch.setattr(trl_compat, "SDPO_EVENTS", {f"{event}_before_it_was_renamed": ()})
    with pytest.raises(OpdAlignError, match=f"SDPOTrainer has no event '{event}_before"):
        check_events(trainer_class("SDPOTrainer"))


def pretend_trl(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    real = metadata.version
    monkeypatch.setattr(trl_compat.metadata, "version", lambda name: version if name == "trl" else real(name))


def test_versions_outside_the_tested_range(monkeypatch, caplog):
    monkeypatch.delenv(UNTESTED, raising=False)
    for version, complaint in (("1.10.0", "too old"), ("1.17.0.dev0", "too new"), ("2.0.0", "too new")):
        pretend_trl(monkeypatch, version)
        with pytest.raises(OpdAlignError, match=rf"TRL {version} is not supported: .*{complaint}.*>=1\.16,<1\.17"):
            resolve("GRPOTrainer")
        with pytest.raises(OpdAlignError, match=complaint):
            launch.check_installed()  # `opd-align train`, before it starts any process
    with pytest.raises(OpdAlignError, match=f"{UNTESTED}=1 lets you try it"):
        resolve("GRPOTrainer")


def test_a_newer_version_can_be_tried_and_is_still_checked(monkeypatch, caplog):
    monkeypatch.setenv(UNTESTED, "1")
    pretend_trl(monkeypatch, "1.99.0")
    for _ in range(2):
        check_trainer(trainer_class("GRPOTrainer"))
    assert caplog.text.count("TRL 1.99.0 is newer than the versions that opd-align was tested with") == 1
    monkeypatch.delattr(trainer_class("GRPOTrainer"), "_compute_loss")
    with pytest.raises(OpdAlignError, match=r"TRL 1\.99\.0 is not supported: GRPOTrainer has no attribute"):
        check_trainer(trainer_class("GRPOTrainer"), ["_compute_loss"])
    pretend_trl(monkeypatch, "1.10.0")
    with pytest.raises(OpdAlignError, match="too old"):  # names that it lacks are missing for certain
        check_trainer(trainer_class("GRPOTrainer"))


# What exists only with vLLM


def namespace(*paths: str) -> SimpleNamespace:
    """An object with these attributes, and attributes of attributes."""
    made = SimpleNamespace()
    for path in paths:
        owner = made
        for name in path.split("."):
            if not hasattr(owner, name):
                setattr(owner, name, SimpleNamespace())
            owner = getattr(owner, name)
    return made


VLLM = {
    "colocate": VLLM_ATTRIBUTES["colocate"],
    "server": (*VLLM_ATTRIBUTES["server"], *(f"vllm_client.{name}" for name in CLIENT_ATTRIBUTES)),
}


def trainer_with_vllm(mode: str, *, without: str = "", is_main: bool = True) -> Any:
    base = trainer_class("GRPOTrainer")
    names = {*ATTRIBUTES["Trainer"], *ATTRIBUTES["GRPOTrainer"], "_last_loaded_step"} - {without}
    trainer = object.__new__(type("Bare", (base,), dict.fromkeys(names)))
    trainer.use_vllm = True
    trainer.accelerator = SimpleNamespace(is_main_process=is_main)
    trainer.vllm_generation = namespace(*(path for path in VLLM[mode] if path != without))
    trainer.vllm_generation.mode = mode
    if without != "model":
        trainer.vllm_generation.model = torch.nn.Linear(2, 2)
    return trainer


@pytest.mark.parametrize(("mode", "path"), [(mode, path) for mode in VLLM for path in VLLM[mode] if path != "mode"])
def test_what_is_read_of_vllm_is_checked(mode, path):
    check_attributes(trainer_with_vllm(mode))
    with pytest.raises(OpdAlignError, match=f"has no attribute '{path.rpartition('.')[2]}'"):
        check_attributes(trainer_with_vllm(mode, without=path))


def test_only_the_first_process_has_a_client():
    trainer = trainer_with_vllm("server", is_main=False)
    del trainer.vllm_generation.vllm_client
    check_attributes(trainer)


def test_what_is_read_of_adapters_is_checked(monkeypatch):
    peft = pytest.importorskip("peft", reason="PEFT is missing: pip install 'opd-align[train]'")
    monkeypatch.setitem(NAMES, "BaseTunerLayer", replace(NAMES["BaseTunerLayer"], attribute="AdapterLayer"))
    trainer = trainer_with_vllm("colocate")
    check_attributes(trainer)
    trainer.vllm_generation.model = peft.get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(2, 2)), peft.LoraConfig(target_modules=["0"])
    )
    with pytest.raises(OpdAlignError, match=r"PEFT .* is not supported: cannot import peft\..*AdapterLayer"):
        check_attributes(trainer)


def test_the_step_of_the_last_sync_is_checked():
    with pytest.raises(OpdAlignError, match="has no attribute '_last_loaded_step'"):
        check_attributes(trainer_with_vllm("colocate", without="_last_loaded_step"))


@pytest.mark.parametrize("name", CLIENT_ATTRIBUTES)
def test_a_teachers_client_is_checked(name):
    trainer = trainer_with_vllm("colocate")
    trainer.teacher_client = namespace(*CLIENT_ATTRIBUTES)
    check_attributes(trainer)
    delattr(trainer.teacher_client, name)
    with pytest.raises(OpdAlignError, match=f"has no attribute '{name}'"):
        check_attributes(trainer)


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_names_that_are_not_imported_are_checked_with_the_trainer(name, monkeypatch):
    wanted = NAMES[name]
    monkeypatch.setitem(NAMES, name, replace(wanted, attribute=f"{wanted.attribute}_before_it_was_renamed"))
    with pytest.raises(OpdAlignError, match=f"is not supported: cannot import .*{wanted.attribute}_before"):
        check_attributes(trainer_with_vllm("colocate"))


def test_every_name_of_the_layers_below_is_in_the_table():
    """Private modules and attributes of transformers, accelerate and vLLM that the backends use."""
    folder = Path(trl_compat.__file__).parents[1] / "backends"
    imported = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (
                "transformers",
                "accelerate",
            ):
                imported |= {(node.module, alias.name) for alias in node.names}
    assert ("transformers.cache_utils", "DynamicLayer") in imported
    public = {("transformers", "DynamicCache")}
    assert imported - public <= {(each.module, each.attribute) for each in NAMES.values()}
