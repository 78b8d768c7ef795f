"""The first hour with the wheel: installed into an empty environment, used from an empty folder, mistakes included.

`make test-wheel` builds the wheel and installs it, with the extras that a training needs, into `.venv-wheel`. Nothing
here imports the repository.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

BIN = Path(__file__).parents[2] / ".venv-wheel" / "bin"
SMALL = ["--set", "budget.initial=16", "--set", "budget.targeted=40"]

SCRIPT = """
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.gkd import GKDConfig, GKDTrainer

from opd_align import AlignmentCallback
from opd_align.embedded import student_path, teacher_path
from opd_align.settings import Budget

question = "Tom has 3 boxes with 4 pens each. How many pens does he have?"
prompt = [{"role": "user", "content": question}]
rows = [{"messages": [*prompt, {"role": "assistant", "content": "Answer: 12"}]}] * 4


def correct(completions, answer, **kwargs):
    return [float(gold in each[-1]["content"]) for each, gold in zip(completions, answer, strict=True)]


tokenizer = AutoTokenizer.from_pretrained(student_path())
trainer = GKDTrainer(
    model=AutoModelForCausalLM.from_pretrained(student_path()),
    teacher_model=AutoModelForCausalLM.from_pretrained(teacher_path()),
    processing_class=tokenizer,
    train_dataset=Dataset.from_list(rows),
    args=GKDConfig(output_dir="out", max_steps=2, per_device_train_batch_size=2, max_length=96, max_new_tokens=32,
                   report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False),
)
held_out = [{"prompt": prompt, "answer": "12"}]
budget = Budget(initial=16, targeted=16)
trainer.add_callback(AlignmentCallback(trainer, held_out, correct, every_n_steps=2, budget=budget, max_overhead=None))
trainer.train()
"""


def run(folder: Path, *command: str, fails: bool = False) -> str:
    """The output of a command of the environment, run in `folder`, where nothing of the repository can be found."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert not fails or "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if not (BIN / "opd-align").exists():
        pytest.skip("the wheel is not installed: run `make test-wheel`")


def test_the_package_comes_from_the_wheel(tmp_path):
    location = run(tmp_path, "python", "-c", "import opd_align; print(opd_align.__file__)").strip()
    assert Path(location).is_relative_to(BIN.parent)


def test_a_run_of_the_embedded_models_ends_with_tables_and_report(tmp_path):
    run(tmp_path, "opd-align", "analyze", "--limit", "4", *SMALL, "--out", "runs/first")
    assert json.loads((tmp_path / "runs/first/summary.json").read_text(encoding="utf-8"))
    assert "</html>" in (tmp_path / "runs/first/report.html").read_text(encoding="utf-8")
    assert run(tmp_path, "opd-align", "report", "runs/first")


def test_own_questions_in_a_csv_file(tmp_path):
    with (tmp_path / "mine.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            ("A box has 3 rows of 4 pens. How many pens?", "12"),
            ("Ann has 5 pens and buys 6. How many now?", "11"),
        ]
        csv.writer(file).writerows([("question", "answer"), *rows])
    task = ["--set", "task={name: mine, kind: number}", "--set", "sampling.max_tokens=200", "--teachers", "Self-1C"]
    output = run(
        tmp_path, "opd-align", "analyze", "--student", "embedded:student", "--data", "mine.csv", *task, "--dry-run"
    )
    assert "2" in output
    mistake = run(
        tmp_path, "opd-align", "analyze", "--student", "embedded:student", "--data", "my.csv", *task, fails=True
    )
    assert "my.csv" in mistake


def test_the_callback_in_an_own_gkd_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    run(tmp_path, "python", "train.py")
    rows = (tmp_path / "out/opd_align/history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 2]
    run(tmp_path, "opd-align", "dashboard", "out", "--once", "--out", "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["analyze", "--model", "embedded:student"], "--student"),
        (["analyze", "--student", "no/such/folder"], "no/such/folder"),
        (["report", "runs/none"], "runs/none"),
        (["dashboard", "nowhere"], "nowhere"),
        (["watch", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_answered_in_words(tmp_path, command, named):
    assert named in run(tmp_path, "opd-align", *command, fails=True)
