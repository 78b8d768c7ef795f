"""The examples of the callback, run for a few steps from the command line; reads W&B's offline file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from support.wandb_offline import history

from opd_align.core.metric_registry import parse_key

pytestmark = pytest.mark.training

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*_with_alignment.py"))
SMALL = ["--max_steps", "3", "--per_device_train_batch_size", "8", "--logging_steps", "1"]


def test_there_is_one_for_each_trainer():
    assert [example.stem.partition("_")[0] for example in EXAMPLES] == ["distillation", "gkd", "grpo"]


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.stem)
def run(request: Any, tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp(request.param.stem)
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(request.param), "--output_dir", str(folder / "out"), *SMALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def is_logged(key: str) -> bool:
    parsed = parse_key(key)
    return not key.endswith("half_width") or parsed is None or parsed.metric.logged


def test_the_numbers_in_wandb_are_those_of_the_history(run):
    lines = [json.loads(line) for line in (run / "out" / "opd_align" / "history.jsonl").read_text().splitlines()]
    logged = [row for row in history(run) if "train/opd_align/student/pass_rate" in row]
    assert len(lines) == len(logged) >= 1
    assert lines[0]["metrics"]["opd_align/student/nodes"] > 0
    for line, row in zip(lines, logged, strict=True):
        assert row["train/global_step"] == line["step"]
        # Half-widths that only the dashboard needs are in the history alone.
        known = {
            f"train/{key}": value for key, value in line["metrics"].items() if value is not None and is_logged(key)
        }
        assert known.keys() <= row.keys()
        assert all(isclose(row[key], value, rel_tol=1e-12, abs_tol=1e-15) for key, value in known.items())


def test_wandb_shows_a_histogram_a_table_and_a_token_view(run):
    keys = {key: value for row in history(run) for key, value in row.items() if key.startswith("train/opd_align/")}
    kinds = {value for key, value in keys.items() if key.endswith("/_type")}
    logged = {key.removeprefix("train/") for key, value in keys.items() if isinstance(value, int | float)}
    media = {key.removeprefix("train/").removesuffix("/_type") for key in keys if key.endswith("/_type")}
    scalars = {key for key in logged if not any(key.startswith(f"{medium}/") for medium in media)}
    assert scalars
    assert not [key for key in scalars | media if parse_key(key) is None]
    assert kinds == {"histogram", "table-file", "html-file"}
    (page, *_) = sorted(run.rglob("*.html"))
    assert "blue helps, orange harms" in page.read_text()
    assert "<script" not in page.read_text()


def test_all_rows_of_the_trainer_itself_are_logged(run):
    rows = [row for row in history(run) if "train/loss" in row]
    assert [row["train/global_step"] for row in rows] == [1, 2, 3]
    own = [json.loads(line) for line in (run / "out" / "opd_align" / "training.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in own if "loss" in line] == [row["train/loss"] for row in rows]
