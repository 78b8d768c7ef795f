"""README and docs: code runs as printed, commands parse, links lead somewhere, generated pages are up to date."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from support.trl_dump import write_output_dir

from opd_align.backends.replay_file import read_recording
from opd_align.cli.commands import _config
from opd_align.cli.main import _parser, main
from opd_align.core import objectives
from opd_align.study.config import read_config
from opd_align.training.launch import command as launch_command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LOG.md", "recipes/RESULTS.md"))]

# Pages that show how to add something to "your" trainer leave its construction out.
YOUR_TRAINER = """
from datasets import Dataset
from trl.experimental.gkd import GKDConfig, GKDTrainer
from opd_align.backends.loading import load_model
from opd_align.tasks import task

student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
rows = [
    {"messages": [*task("arithmetic").messages(question), {"role": "assistant", "content": question.answer}]}
    for question in task("arithmetic").load(split="train", limit=8)
]
args = GKDConfig("out", max_steps=1, max_new_tokens=64, max_length=256, report_to=[], use_cpu=True, bf16=False)
trainer = GKDTrainer(
    student.model, teacher.model, args, train_dataset=Dataset.from_list(rows), processing_class=student.tokenizer
)
"""


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)):
            found.append((f"{page.stem}-{number}", block))
    return found


PYTHON, SHELL, YAML = blocks("python"), blocks("sh"), blocks("yaml")


def commands() -> list[tuple[str, str]]:
    found = []
    for name, block in SHELL:
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("opd-align "):
                found.append((name, line))
    return found


def test_there_is_something_to_check() -> None:
    assert len(PAGES) >= 12
    assert len(PYTHON) >= 5
    assert len(commands()) >= 20
    assert YAML


@pytest.mark.parametrize("code", [code for _, code in PYTHON], ids=[name for name, _ in PYTHON])
def test_python_code_runs_as_printed(code: str, tmp_path: Path) -> None:
    assigned = {
        node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    adds_to_trainer = "trainer." in code and "trainer" not in assigned
    if "completions_00010.parquet" in code:
        write_output_dir(tmp_path / "out")
    script = tmp_path / "snippet.py"
    script.write_text(f"{YOUR_TRAINER}{code}trainer.train()\n" if adds_to_trainer else code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    if "AlignmentCallback" in code:
        (history,) = tmp_path.rglob("history.jsonl")
        assert '"error": null' in history.read_text() or '"error"' not in history.read_text(), history.read_text()
        assert "alignment/mean" in history.read_text()
    elif "check_trainer_setup" in code:
        assert "GKDTrainer of TRL" in done.stdout
        assert " passed\n" in done.stdout
    elif "gate=" in code:
        assert "gate/tokens_kept" in done.stdout
    elif "rollouts.jsonl" in code:
        recording = read_recording(tmp_path / "rollouts.jsonl")
        assert {len(entry.natural) for entry in recording.questions.values()} == {40}
    else:
        assert done.stdout.index("good") < done.stdout.index("bad")


@pytest.mark.parametrize("command", [line for _, line in commands()], ids=[name for name, _ in commands()])
def test_commands_and_their_configurations_are_valid(command: str) -> None:
    # The S3 client is an extra of its own; any other store that fsspec knows parses the same way.
    args = _parser().parse_args(shlex.split(command.replace("s3://", "memory://"), comments=True)[1:])
    if args.command in ("analyze", "screen", "show-prompt"):
        _config(args)  # keys, contexts, objectives, backends and shipped configurations by name
    elif args.command == "train" and args.recipe:
        launch_command(args.recipe, args.flags)


def test_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = [line for _, block in SHELL for line in block.splitlines()]
    made = {line.split()[1] for line in lines if line.startswith("make ")}
    scripts = {line.split()[1] for line in lines if line.startswith("python ")}
    for page in MARKDOWN:
        made |= set(re.findall(r"`make ([a-z0-9-]+)", page.read_text("utf-8")))
    assert {"demo", "test", "docs"} <= made <= targets
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)


def test_the_objective_of_the_architecture_page_works() -> None:
    (diff, *_) = [block for _, block in blocks("diff")]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    *definition, entry = added
    assert entry.strip() == "NegativeOnly(),"
    namespace = {**vars(objectives), "__name__": objectives.__name__}
    exec("\n".join(definition), namespace)
    student, teacher = np.log([[0.5, 0.3, 0.2]]), np.log([[0.2, 0.3, 0.5]])
    nodes = objectives.Nodes(student, teacher, *[np.zeros((1, 3))] * (len(fields(objectives.Nodes)) - 2))
    update = namespace["NegativeOnly"]().update(nodes)
    assert update.sum() == pytest.approx(0)
    assert update[0, 0] < 0 < update[0, 2]


def test_the_quickstart_analyzes_the_data_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "mine.jsonl").write_text(data, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (command,) = [
        line for _, line in commands() if "--config demo --data mine.jsonl" in line and "--dry-run" not in line
    ]
    assert main([*shlex.split(command)[1:], "--initial", "40", "--targeted", "100"]) == 0
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


@pytest.mark.parametrize("text", [text for _, text in YAML], ids=[name for name, _ in YAML])
def test_configurations_are_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    read_config(file)


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else page.parent / path
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {target}"


def test_the_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 130
    assert len(readme.split()) < 1000


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
