"""One small run of the embedded models: exported as decisions and preference pairs, and read by the notebook."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from opd_align import load_run
from opd_align.backends.chat import Chat
from opd_align.backends.loading import load_tokenizer
from opd_align.cli.main import main
from opd_align.core.alignment import teachers_of
from opd_align.study.export import preference_pairs
from opd_align.tasks import task
from opd_align.types import OpdAlignError, Question

NOTEBOOK = Path(__file__).parents[1] / "examples" / "from_run_to_decision.ipynb"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("decision") / "runs" / "first"
    options = ["--limit", "1", "--set", "questions.offset=2", "--initial", "60", "--targeted", "300", "--n-sig", "10"]
    assert main(["analyze", *options, "--out", str(out)]) == 0
    return out


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("exported")
    files = folder / "pivotal.jsonl", folder / "preferences.jsonl"
    options = ["--pivotal", str(files[0]), "--preferences", str(files[1]), "--pairs-per-decision", "2"]
    assert main(["export", str(run), *options]) == 0
    return files


def test_every_exported_decision_is_decided(exported, run):
    found = lines(exported[0])
    teachers = set(teachers_of(load_run(run).children))
    assert found
    for row in found:
        best, worst = row["options"][0], row["options"][-1]
        assert row["difference"] == pytest.approx(best["success"] - worst["success"], abs=1e-5)
        assert row["difference"] >= 0.1
        assert row["probability"] >= 0.95
        assert len(row["prefix_tokens"]) == row["depth"]
        assert set(best["teachers"]) == teachers != set()
        assert best["text"] == load_tokenizer("embedded:student").decode([best["token"]])


def matches(row: dict[str, Any], pair: dict[str, Any], chat: Chat) -> bool:
    """Whether a pair is of this decision: two paths may have decisions with the same best token at the same depth."""
    if (row["question"], row["depth"]) != (pair["question"], pair["depth"]):
        return False
    begins = chat.decode([*row["prefix_tokens"], row["options"][0]["token"]])
    return bool(pair["chosen"][0]["content"].startswith(begins))


def test_pairs_branch_at_the_decision_and_have_the_verdicts(exported):
    chat, arithmetic = Chat(load_tokenizer("embedded:student")), task("arithmetic")
    decisions = lines(exported[0])
    pairs = lines(exported[1])
    assert pairs
    for pair in pairs:
        (row,) = [row for row in decisions if matches(row, pair, chat)]
        question = Question(row["question"], row["question_text"], row["answer"])
        assert pair["prompt"] == arithmetic.messages(question)
        for side, option, correct in (("chosen", 0, True), ("rejected", -1, False)):
            (message,) = pair[side]
            begins = chat.decode([*row["prefix_tokens"], row["options"][option]["token"]])
            assert message["role"] == "assistant"
            assert message["content"].startswith(begins)
            assert arithmetic.verifier(completions=[message["content"]], answer=[row["answer"]]) == [float(correct)]
        assert pair["chosen_success"] > pair["rejected_success"]
    assert len({json.dumps(pair["chosen"]) for pair in pairs}) > 1


def test_pairs_load_with_datasets(exported, tmp_path):
    from datasets import load_dataset

    loaded = load_dataset("json", data_files=str(exported[1]), split="train", cache_dir=str(tmp_path))
    assert loaded[0]["prompt"][0]["role"] == "system"
    assert loaded.num_rows == len(lines(exported[1]))


def test_a_tokenizer_without_a_chat_template_gets_plain_text(run, monkeypatch):
    base = load_tokenizer("embedded:student")
    base.chat_template = None
    monkeypatch.setattr("opd_align.backends.loading.load_tokenizer", lambda _: base)
    row = preference_pairs(run).rows[0]
    assert all(isinstance(row[name], str) for name in ("prompt", "chosen", "rejected"))
    assert row["prompt"].endswith("\n\n")


def test_what_cannot_be_exported_is_said_first(run, tmp_path, capsys):
    assert main(["export", str(run)]) == 2
    assert "--pivotal FILE, --preferences FILE, or both" in capsys.readouterr().err
    assert main(["export", str(run), "--pivotal", str(tmp_path / "no" / "file")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["export", str(run), "--pivotal", str(tmp_path / "a"), "--confidence", "95"]) == 2
    assert "confidence must be from 0.5 to below 1" in capsys.readouterr().err
    exact = tmp_path / "exact"
    assert main(["analyze", "--student", "exact", "--worlds", "1", "--length", "20", "--out", str(exact)]) == 0
    capsys.readouterr()
    assert main(["export", str(exact), "--pivotal", str(tmp_path / "b"), "--preferences", str(tmp_path / "c")]) == 2
    assert "--tokenizer MODEL" in capsys.readouterr().err
    assert all(row["prefix"] is None for row in lines(tmp_path / "b"))
    with pytest.raises(OpdAlignError, match="pairs_per_decision"):
        preference_pairs(run, pairs_per_decision=0)


def test_the_notebook_runs_from_load_to_decision(run, monkeypatch, capsys):
    """Runs every cell like a notebook: the value of a last expression is shown, as HTML if it can be."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.chdir(run.parent.parent)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 8
    namespace: dict[str, Any] = {}
    shown = []
    for cell in cells:
        *body, last = ast.parse(cell).body
        if not isinstance(last, ast.Expr):
            body, last = [*body, last], ast.parse("None").body[0]
        exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), namespace)
        shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else value)
        if hasattr(value, "figure"):
            value.figure.draw_without_rendering()
    plt.close("all")
    assert "No recommendation" in shown[0]
    printed = capsys.readouterr().out
    assert "too_few_questions" in printed
    assert "pairs at" in printed
    assert namespace["pivotal"]


def test_load_run_is_public(run):
    assert load_run(str(run)).questions.num_rows == 1
