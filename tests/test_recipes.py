"""Every recipe and every configuration: complete, readable by TRL's parser, and those for a CPU run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config import load_config_from_file

from opd_align.cli import main
from opd_align.training import launch
from opd_align.types import OpdAlignError

RECIPES = sorted(launch.recipes())
SIZES = ["1gpu", "8gpu_zero3", "cpu_tiny"]
ALL = [(recipe, size) for recipe in RECIPES for size in launch.configs(recipe)]
quiet = pytest.mark.filterwarnings("ignore")


def test_the_recipes_are_there():
    names = ["distillation_divergence", "gkd_incorrect_only", "grpo_distill_on_failures", "self_distillation_contexts"]
    assert names == RECIPES
    assert len(ALL) == 12
    every = set(launch.folder().rglob("*.yaml"))
    launched = {launch.folder() / "accelerate" / f"{size}.yaml" for size in SIZES}
    assert every == {launch.configs(recipe)[size] for recipe, size in ALL} | launched


@pytest.mark.parametrize(("recipe", "size"), ALL)
def test_a_configuration_says_what_it_needs_and_how_long_it_takes(recipe, size):
    text = launch.configs(recipe)[size].read_text()
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    for word in ("Hardware: ", "Time: ", "Look at "):
        assert word in header, f"{recipe}/{size} does not say {word}"
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    assert len(keys) == len(set(keys)), "a key that is given twice counts once, and which one is a matter of luck"


@quiet
@pytest.mark.parametrize(("recipe", "size"), ALL)
def test_a_configuration_is_read_by_its_recipe(recipe, size, monkeypatch, capsys, tmp_path):
    """TRL's parser refuses keys that nobody knows; the gate is built; no model is touched."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    script = launch.folder() / f"{recipe}.py"
    spec = spec_from_file_location(recipe, script)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, recipe, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    config = launch.configs(recipe)[size]
    # A machine for tests has no GPU, and transformers refuses bfloat16 there unless told so.
    arguments = [str(script), "--config", str(config), "--dry_run", "--use_cpu", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    module.main()
    assert yaml.safe_load(config.read_text())["model_name_or_path"] in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments[:3], "--no_such_flag", "1"])
    with pytest.raises((ValueError, SystemExit)):
        module.main()


@pytest.mark.parametrize("size", SIZES)
def test_accelerate_reads_its_configurations(size):
    file = launch.folder() / "accelerate" / f"{size}.yaml"
    known = load_config_from_file(str(file))
    assert known.num_processes == (8 if size == "8gpu_zero3" else 1)
    assert known.use_cpu == (size == "cpu_tiny")
    if size == "8gpu_zero3":
        assert known.deepspeed_config["zero_stage"] == 3


def test_the_command_is_accelerates_own():
    command = launch.command("gkd_incorrect_only", ["--max_steps", "3"])
    assert command[1:4] == ["-m", "accelerate.commands.launch", "--config_file"]
    assert [Path(part).name for part in command[4:8]] == [
        "cpu_tiny.yaml", "gkd_incorrect_only.py", "--config", "cpu_tiny.yaml",
    ]  # fmt: skip
    assert command[8:] == ["--max_steps", "3"]
    large = launch.command("distillation_divergence", ["--config=8gpu_zero3", "--seed", "1"])
    assert large[4].endswith("accelerate/8gpu_zero3.yaml")
    assert large[-2:] == ["--seed", "1"]
    own = launch.command("gkd_incorrect_only", ["--config", str(launch.configs("gkd_incorrect_only")["1gpu"])])
    assert "--config_file" not in own


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gkd_incorect_only",), "did you mean 'gkd_incorrect_only'"),
        (("gkd_incorrect_only", ["--config", "2gpu"]), "give a YAML file, or one of 1gpu, 8gpu_zero3, cpu_tiny"),
        (("gkd_incorrect_only", ["--config"]), "--config needs a value"),
    ],
)
def test_what_is_no_recipe_is_refused(arguments, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        launch.command(*arguments)


def test_the_command_line_lists_and_starts_recipes(capsys, monkeypatch):
    assert main(["train"]) == 0
    listed = capsys.readouterr().out
    assert all(recipe in listed for recipe in RECIPES)
    started = []
    monkeypatch.setattr(
        subprocess, "run", lambda command: started.append(command) or subprocess.CompletedProcess([], 3)
    )
    assert main(["train", "gkd_incorrect_only", "--help"]) == 3
    assert started[0][-1] == "--help"
    assert shlex.join(started[0]) in capsys.readouterr().out
    assert main(["train", "nothing"]) == 2


@pytest.mark.training
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_a_cpu(recipe, tmp_path):
    short = {"max_steps": 3, "every_n_steps": 2, "held_out_questions": 2, "train_questions": 64, "logging_steps": 1}
    short |= {"per_device_train_batch_size": 8, "output_dir": tmp_path, "max_overhead": 1.0, "report_to": "none"}
    flags = [str(part) for name, value in short.items() for part in (f"--{name}", value)]
    place = os.environ | {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(launch.command(recipe, flags), capture_output=True, text=True, timeout=600, env=place)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model.safetensors").is_file()
    rows = [json.loads(line) for line in (tmp_path / "opd_align" / "history.jsonl").read_text().splitlines()]
    assert [(row["step"], row["error"]) for row in rows] == [(0, None), (2, None)]
    told = [json.loads(line) for line in (tmp_path / "opd_align" / "training.jsonl").read_text().splitlines()]
    gated = [row for row in told if "gate/sequences_kept" in row]
    assert len(gated) >= 2
    assert all(0 <= row["gate/sequences_kept"] <= 1 for row in gated)
