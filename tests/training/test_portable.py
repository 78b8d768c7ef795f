"""Objects that another process can read again, and those that cannot be described."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from opd_align.core.objectives import GRPO, AtTemperature, GeneralisedJSD
from opd_align.settings import Budget, Sampling, Settings
from opd_align.tasks import TASKS, custom_task, task
from opd_align.teachers.contexts import context
from opd_align.training.gates import DivergenceAbove, IncorrectOnly
from opd_align.training.portable import from_json, import_object, to_json
from opd_align.training.watch_spec import TeacherRef, WatchSpec, read_spec, write_spec
from opd_align.types import OpdAlignError, Question


def reward(completions: Any, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def again(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value, "value"))))


@pytest.mark.parametrize(
    "value",
    [
        *TASKS.values(),
        custom_task("mine", kind="maths", instruction="Solve."),
        task("mmlu").verifier,
        Settings([GRPO(), AtTemperature(GeneralisedJSD(0.5), 0.9)], Budget(initial=7)),
        Sampling(0.9, 0.95, 20, 72, 5),
        context("Self-1C1W"),
        Question("q", "2 + 2", "4", {"choices": ("3", "4"), "prompt": [{"role": "user", "content": "?"}]}),
        {"a": (1, 2.5, None), 3: [True, "ü"], "__": "a key of the user's"},
        reward,
        IncorrectOnly(reward, unknown="keep"),
        DivergenceAbove(threshold=0.25),
        float("inf"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_read_is_what_was_written(value):
    assert again(value) == value


def test_numbers_of_numpy_become_plain_ones():
    assert again({"a": np.float64(0.5), "b": np.arange(3)}) == {"a": 0.5, "b": [0, 1, 2]}


@dataclass
class _Holds:
    value: Any


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda completions: [], "define it at the top of a module"),
        (partial(reward), "cannot be described"),
        (object, None),
        (_Holds(lambda: 0), "define it at the top of a module"),
        ([np.random.default_rng(0)], "cannot be described"),
    ],
)
def test_what_cannot_be_described_is_refused_with_its_name(value, message):
    if message is None:
        assert again(value) is value
        return
    with pytest.raises(OpdAlignError, match=message) as caught:
        to_json(value, "where='outside', verifier")
    assert str(caught.value).startswith("where='outside', verifier: ")


def test_functions_of_a_script_are_refused(monkeypatch):
    monkeypatch.setattr(reward, "__module__", "__main__")
    with pytest.raises(OpdAlignError, match="defined in the script itself"):
        to_json(reward, "verifier")


def test_modules_of_the_user_are_found_where_they_were(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text("def right(completions, **columns):\n    return [1.0]\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    described = to_json(import_object("my_rewards:right"), "verifier")
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    monkeypatch.delitem(sys.modules, "my_rewards")
    assert from_json(described)([]) == [1.0]
    with pytest.raises(OpdAlignError, match="module 'my_rewards' has no 'wrong'"):
        import_object("my_rewards:wrong")


def test_the_description_of_a_training_is_read_as_it_was_written(tmp_path):
    spec = WatchSpec(
        (Question("q", "?", "4"),), task("arithmetic"), Sampling(), Settings(),
        (TeacherRef("Self-1C", context("Self-1C")), TeacherRef("teacher", model="embedded:teacher", digest="ab")),
        template={"enable_thinking": False}, autocast="bfloat16", wandb={"id": "x"},
    )  # fmt: skip
    assert read_spec(tmp_path) is None
    write_spec(tmp_path, spec)
    found = read_spec(tmp_path)
    assert found is not None
    assert found.tokenizer == str(tmp_path / "watch" / "tokenizer")
    assert {name: getattr(found, name) for name in vars(spec) if name != "tokenizer"} == {
        name: value for name, value in vars(spec).items() if name != "tokenizer"
    }
    file = tmp_path / "watch" / "spec.json"
    for content, message in (("{", "cannot read"), ('{"format": 99}', "another version"), ('{"format": 1}', "cannot")):
        file.write_text(content)
        with pytest.raises(OpdAlignError, match=message):
            read_spec(tmp_path)
