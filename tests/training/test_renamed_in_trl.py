"""A TRL in which a touched name is renamed, changed or no longer called: no gated trainer trains without its gate."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.gated_runs import QUIET, distillation, gkd, grpo, models, prompts, verifier
from transformers import set_seed
from trl import DistillationTrainer, GRPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

import opd_align
from opd_align.training import trl_compat
from opd_align.training.gates import DivergenceAbove, FunctionGate, Open
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.training.trainers.sdpo import SDPOGate
from opd_align.training.trl_names import GENERATED, METHODS, NAMES, TESTED
from opd_align.types import OpdAlignError

pytestmark = pytest.mark.filterwarnings("ignore")
training = pytest.mark.training

GATED = {"gkd": GatedGKDTrainer, "distillation": GatedDistillationTrainer, "grpo": GatedGRPOTrainer}
TRL = {"gkd": GKDTrainer, "distillation": DistillationTrainer, "grpo": GRPOTrainer}
CLOSED = FunctionGate(lambda batch: torch.zeros_like(batch.mask_BT, dtype=torch.float32), "closed", measures=())
FOLDER = Path(opd_align.__file__).parent / "training"
GATE_MODULES = [*FOLDER.glob("trainers/[dg]*.py"), FOLDER / "gate_runtime.py", FOLDER / "chunked_divergence.py"]


def generated(name: str) -> tuple[str, ...]:
    return GENERATED[TRL[name].__name__]


def overridden(name: str) -> list[str]:
    """TRL's and transformers' methods that a gated trainer overrides."""
    return sorted(method for method in vars(GATED[name]) if hasattr(TRL[name], method) and method[:2] != "__")


DISTILLATION = "DistillationTrainer"
CALLED = {
    "gkd": [("GKDTrainer", "generalized_jsd_loss"), ("GKDTrainer", "generate_on_policy_outputs")],
    "distillation": [],
    "grpo": [(DISTILLATION, "_compute_loss"), (DISTILLATION, "_get_last_hidden_state")],
}
TOUCHED = [
    *[(name, TRL[name].__name__, method) for name in GATED for method in overridden(name)],
    *[(name, owner, method) for name in GATED for owner, method in CALLED[name]],
]


def owner_class(owner: str) -> type:
    return {kind.__name__: kind for kind in TRL.values()}[owner]


def construct(name: str) -> None:
    """Reaches the checks, which come before models are loaded."""
    GATED[name]("no/such/model", teacher_model="no/such/teacher", gate=CLOSED, denominator="keep")


def test_every_overridden_method_is_in_the_table():
    assert ("gkd", "GKDTrainer", "compute_loss") in TOUCHED
    assert ("distillation", "DistillationTrainer", "_generate_and_score_completions") in TOUCHED
    assert ("grpo", "GRPOTrainer", "_compute_loss") in TOUCHED
    for _, owner, method in TOUCHED:
        assert method in METHODS[owner] or method in METHODS["Trainer"], (owner, method)


def touched_methods_of(owner: str) -> set[str]:
    return {method for _, of, method in TOUCHED if of == owner}


def test_every_method_of_a_gated_trainer_in_the_table_is_tried_below():
    for kind in TRL.values():
        assert {*METHODS[kind.__name__]} <= touched_methods_of(kind.__name__)


@pytest.mark.parametrize(("name", "owner", "method"), TOUCHED)
def test_construction_refuses_a_renamed_method(name, owner, method, monkeypatch):
    for base in owner_class(owner).__mro__:
        if method in vars(base):
            monkeypatch.setattr(base, f"{method}_renamed", vars(base)[method], raising=False)
            monkeypatch.delattr(base, method)
    with pytest.raises(OpdAlignError, match=rf"is not supported: \w+ has no attribute '{method}'. Tested versions"):
        construct(name)


@pytest.mark.parametrize(("name", "owner", "method"), TOUCHED)
def test_construction_refuses_a_changed_signature(name, owner, method, monkeypatch):
    base = next(base for base in owner_class(owner).__mro__ if method in vars(base))

    def changed(self, other):
        raise AssertionError

    monkeypatch.setattr(base, method, changed)
    with pytest.raises(OpdAlignError, match=rf"\.{method} (takes|has a new required parameter)"):
        construct(name)


@pytest.mark.parametrize("name", ["distillation", "grpo"])
def test_construction_refuses_a_renamed_kernel(name, monkeypatch):
    from trl.trainer import distillation_trainer

    monkeypatch.delattr(distillation_trainer, "ChunkedDivergenceFunction")
    with pytest.raises(OpdAlignError, match=r"cannot import trl\.trainer\.distillation_trainer\.Chunked"):
        construct(name)


# Names that are imported


def imported_names() -> list[str]:
    """The names of the table that the gate modules import when they are imported."""
    found = set()
    for path in GATE_MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "opd_align.training.trl_compat":
                found |= {alias.name for alias in node.names}
    return sorted(found & {*NAMES})


BREAK_EACH_NAME = """
import os, sys
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
from importlib import import_module
from opd_align.training import trl_compat
from opd_align.types import OpdAlignError
MODULES = ["distillation", "gkd", "grpo"]
for name in sys.argv[1:]:
    for key in [key for key in sys.modules if key.startswith("opd_align.training.") and key != trl_compat.__name__]:
        del sys.modules[key]
    wanted = trl_compat.NAMES[name]
    renamed = type(wanted)(wanted.module, wanted.attribute + "_before_it_was_renamed", wanted.call, wanted.members)
    trl_compat.NAMES[name] = renamed
    refused = []
    for module in MODULES:
        try:
            import_module(f"opd_align.training.trainers.{module}")
        except OpdAlignError as error:
            assert "is not supported: cannot import" in str(error) and "Tested versions" in str(error), error
            refused.append(module)
    trl_compat.NAMES[name] = wanted
    print(name, *refused)
"""


@training
def test_importing_a_gated_trainer_refuses_each_renamed_name():
    names = imported_names()
    assert {"GKDTrainer", "ChunkedDivergenceFunction", "ForwardRedirection", "TrainerCallback"} <= {*names}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BREAK_EACH_NAME, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    refused = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert refused.keys() == {*names}
    assert all(refused.values()), refused
    assert refused["TrainerCallback"] == ["distillation", "gkd", "grpo"]


OLD_TRL = """
import os, sys
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
from importlib import metadata
version, *missing = sys.argv[1:]
real = metadata.version
metadata.version = lambda library: version if library == "trl" else real(library)
for module in missing:
    sys.modules[module] = None  # import raises ModuleNotFoundError
from opd_align.types import OpdAlignError
for name in ("GatedDistillationTrainer", "GatedGRPOTrainer"):
    try:
        import opd_align.training
        getattr(opd_align.training, name)
    except OpdAlignError as error:
        print(error)
"""


@training
@pytest.mark.parametrize(
    ("version", "missing", "complaint"),
    [
        ("1.10.0", ["trl.kernels"], "TRL 1.10.0 is not supported: this version is too old."),
        ("1.16.0", ["trl.kernels"], "TRL 1.16.0 is not supported: cannot import"),
        ("1.16.0", ["triton", "trl.kernels.chunked_divergence"], "TRL 1.16.0 is not supported: cannot import"),
    ],
)
def test_a_trl_without_its_kernels_is_refused_with_the_tested_versions(version, missing, complaint):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OLD_TRL, version, *missing], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("TRL")]
    assert len(lines) == 2, done.stdout
    assert all(line.startswith(complaint) and line.endswith("Tested versions of TRL: >=1.16,<1.17") for line in lines)


def test_the_package_requires_the_tested_versions():
    requirements = (Path(opd_align.__file__).parents[1] / "pyproject.toml").read_text()
    assert requirements.count('"trl>') == requirements.count(f'"trl{TESTED["trl"]}"') == 2


# Names that TRL keeps but no longer calls: only a training can show it


def train(name, folder, gate, denominator):
    options = {"max_steps": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    own = {"gate": gate, "denominator": denominator}
    if name == "gkd":
        return gkd(GatedGKDTrainer, folder, options=options | {"lmbda": 1.0}, **own)
    length = {"max_completion_length": 8}
    if name == "distillation":
        return distillation(GatedDistillationTrainer, folder, options=options | length, **own)
    own["teacher_model"] = models()["teacher_model"]
    return grpo(GatedGRPOTrainer, folder, options=options | length | {"num_generations": 2}, **own)


# `_get_last_hidden_state` saves a forward pass and `compute_loss` of Distillation logs: neither gates.
NOT_A_GATE = {
    ("grpo", "_get_last_hidden_state"),
    ("distillation", "_get_last_hidden_state"),
    ("distillation", "compute_loss"),
}
BYPASSED = [(name, method) for name in GATED for method in overridden(name) if (name, method) not in NOT_A_GATE]


@training
@pytest.mark.parametrize(("name", "method"), BYPASSED)
def test_the_first_step_fails_if_an_override_is_not_called(name, method, tmp_path, monkeypatch):
    steps = count_optimizer_steps(monkeypatch)
    monkeypatch.delattr(GATED[name], method)
    with pytest.raises(OpdAlignError, match=r"without the gate 'closed'.*Tested versions of TRL"):
        train(name, tmp_path, CLOSED, "keep")
    assert not steps


@training
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("gate", [CLOSED, DivergenceAbove(quantile=0.5)], ids=["closed", "quantile"])
def test_the_first_step_fails_if_the_loss_finds_its_divergence_elsewhere(name, gate, tmp_path, monkeypatch):
    """The loss is computed as ever, but not through the name that is replaced."""
    from contextlib import nullcontext

    steps = count_optimizer_steps(monkeypatch)
    monkeypatch.setattr(trl_compat, "replaced_kernel", lambda apply: nullcontext())
    monkeypatch.setattr(GatedGKDTrainer, "_replaced_divergence", lambda self, divergence: nullcontext())
    with pytest.raises(OpdAlignError, match=r"(without the gate|does not (use|call)).*Tested versions of TRL"):
        train(name, tmp_path, gate, "keep")
    assert not steps


@training
@pytest.mark.parametrize(("name", "key"), [(name, key) for name in ("distillation", "grpo") for key in generated(name)])
def test_the_first_step_fails_if_generation_returns_something_else(name, key, tmp_path, monkeypatch):
    plain = TRL[name]._generate_and_score_completions

    def renamed(self, inputs):
        return {f"{each}_renamed" if each == key else each: value for each, value in plain(self, inputs).items()}

    monkeypatch.setattr(TRL[name], "_generate_and_score_completions", renamed)
    with pytest.raises(OpdAlignError, match=f"_generate_and_score_completions returns no '{key}'"):
        train(name, tmp_path, Open(), "keep")


def count_optimizer_steps(monkeypatch) -> list[int]:
    steps: list[int] = []
    plain = torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        steps.append(1)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    return steps


# SDPO


def sdpo(folder):
    set_seed(1)
    settings = {"max_completion_length": 8, "num_generations": 2, "max_steps": 1, "per_device_train_batch_size": 4}
    settings |= {"distillation_alpha": 1.0, "distillation_mode": "full_logits"}
    made = models()
    made.pop("teacher_model")
    gate = SDPOGate(verifier, unknown="drop")
    args = SDPOConfig(str(folder), **(QUIET | settings))
    return gate, SDPOTrainer(args=args, train_dataset=prompts(), reward_funcs=[gate.reward], **made)


@training
@pytest.mark.parametrize("change", ["renamed", "signature"])
def test_sdpo_attach_refuses_a_changed_dispatch(change, tmp_path, monkeypatch):
    gate, trainer = sdpo(tmp_path)
    name = "_dispatch_self_distillation_callback"
    if change == "renamed":
        monkeypatch.delattr(SDPOTrainer, name)
    else:
        monkeypatch.setattr(SDPOTrainer, name, lambda self, event: None)
    with pytest.raises(OpdAlignError, match=f"is not supported: SDPOTrainer.*{name}"):
        gate.attach(trainer)


@training
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("on_teacher_context_built", "built without the gate"),
        ("on_self_distillation_batch_prepared", "built without the gate"),
        ("self_distillation_mask", "has no 'self_distillation_mask'"),
        ("copy", "built without the gate"),
    ],
)
def test_the_first_step_of_sdpo_fails_if_an_event_has_changed(change, complaint, tmp_path, monkeypatch):
    steps = count_optimizer_steps(monkeypatch)
    plain = SDPOTrainer._dispatch_self_distillation_callback

    def dispatch(self, event_name, **payload):
        if change == "copy" and event_name == "on_teacher_context_built":
            payload["self_distillation_mask"] = torch.ones_like(payload["self_distillation_mask"])
        if change == "copy" and event_name == "on_self_distillation_batch_prepared":
            payload["self_distillation_mask"] = torch.full_like(payload["self_distillation_mask"], 2.0)
        payload = {f"{name}_renamed" if name == change else name: value for name, value in payload.items()}
        plain(self, f"{event_name}_renamed" if event_name == change else event_name, **payload)

    monkeypatch.setattr(SDPOTrainer, "_dispatch_self_distillation_callback", dispatch)
    gate, trainer = sdpo(tmp_path)
    gate.attach(trainer)
    with pytest.raises(OpdAlignError, match=rf"{complaint}.*Tested versions of TRL"):
        trainer.train()
    assert not steps
