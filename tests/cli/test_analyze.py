"""`opd-align analyze` on the embedded models, from the command line to the report, and its cost estimate.

All tests share one small run, started through the command line.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from opd_align.backends.exact import ExactWorld
from opd_align.backends.loading import load_model, weight_bytes
from opd_align.cli.main import main
from opd_align.core.engine import Analysis
from opd_align.report.provenance import Provenance
from opd_align.runs.filesystem import as_path
from opd_align.runs.run_directory import RunDirectory, Usage
from opd_align.settings import Budget
from opd_align.study import plan as plan_module
from opd_align.study.build import Study
from opd_align.study.config import builtin_configs, read_config
from opd_align.study.plan import Measured, calibrated, measure, measure_growing, planned, targeted_rollouts
from opd_align.types import Failure, OpdAlignError, Question, Rollouts, SampleRequest

# Two problems whose changes are easily misread ("brought back", "given away").
SMALL = [
    "--limit", "2", "--set", "questions.offset=2", "--initial", "100", "--targeted", "1500", "--n-sig", "10",
    "--allocation", "paper", "--set", "budget.n_min=60",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analyze") / "run"
    assert main(["analyze", *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def analysis(run: Path) -> Analysis:
    return RunDirectory.load(run)


def test_the_default_run_writes_tables_and_a_report(run, analysis):
    assert set(analysis.nodes["teacher"].to_pylist()) == {"Self-1C", "Teacher", "Careless"}
    assert analysis.questions.num_rows == 2
    assert (run / "report.html").stat().st_size > 10_000
    assert "Careless" in (run / "tables" / "tables.md").read_text(encoding="utf-8")
    assert "Answer" in "".join(analysis.texts.values())


def test_the_run_says_where_it_comes_from(run, analysis):
    made = Provenance.load(run)
    assert made.facts["student"] == "embedded:student (hf)"
    assert made.facts["task"].startswith("arithmetic: 2 questions")
    meanings = {note.name: note.meaning for note in made.teachers}
    assert meanings == {
        "Self-1C": "the student itself, reading 1 correct response to the same question (the student's own)",
        "Teacher": "embedded:teacher (hf), with the student's prompt",
        "Careless": "embedded:careless (hf), with the student's prompt",
    }
    for question in analysis.questions.to_pylist():
        prompts = made.prompts[question["question"]]
        assert all(question["text"] in text for text in prompts.values())
        assert prompts["Teacher"] == prompts[""] != prompts["Self-1C"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Where this comes from" in page
    assert "reading 1 correct response to the same question" in page
    assert json.loads((run / "summary.json").read_text())["decision"]["outcome"] == "too_few_questions"


def forks(analysis: Analysis) -> dict[frozenset[str], list[float]]:
    """SR range of every fork, by the texts of its likely and significant children."""
    children: dict[tuple[Any, ...], list[tuple[str, float]]] = defaultdict(list)
    for row in analysis.children.to_pylist():
        if row["significant"] and row["p"] > 0.05:
            node = (row["question"], row["path"], row["depth"])
            children[node].append((analysis.texts[row["token"]].strip(), row["q"]))
    found: dict[frozenset[str], list[float]] = defaultdict(list)
    for siblings in children.values():
        if len(siblings) > 1:
            found[frozenset(text for text, _ in siblings)].append(np.ptp([q for _, q in siblings]))
    return found


def test_style_tokens_have_a_small_sr_range_and_operators_a_large_one(analysis):
    ranges = forks(analysis)

    def sr_ranges(*alternatives: set[str]) -> list[float]:
        return [
            value for texts, values in ranges.items() if any(texts <= each for each in alternatives) for value in values
        ]

    style = sr_ranges({"We", "There", "First"}, {"so", "therefore"}, {"Then", "Now", "After"})
    operator = sr_ranges({"×", "+", "-"})
    assert len(style) > 5
    assert len(operator) > 1
    assert np.mean(style) < 0.1
    assert np.mean(operator) > 0.25


@pytest.mark.filterwarnings("default::opd_align.study.build.SkippedQuestionsWarning")
def test_dry_run_counts_only_questions_that_can_be_used(tmp_path, capsys):
    rows = [("a", "2 and 2?", "4"), ("b", "2 and 3?", "Paris"), ("c", "2 and 4?", None), ("d", "2 and 2?", "4")]
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps(dict(zip(("id", "question", "answer"), row, strict=True))) + "\n" for row in rows)
    )
    command = ["analyze", "--data", str(data), "--set", "task={name: mine, kind: number}", "--initial", "100"]
    assert main([*command, "--targeted", "50", "--dry-run", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "1 of task mine (3 more are skipped" in " ".join(shown.out.split())
    assert re.search(r"initial rollouts\W+100\b", shown.out)
    assert "3 of 4 questions are skipped: 'b': the answer 'Paris' cannot be read as a number" in shown.err


def test_dry_run_prints_the_cost(tmp_path, capsys):
    assert main(["analyze", *SMALL, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "3,000 at most" in shown
    assert "tokens/s (measured)" in shown
    assert "GPU hours" in shown
    assert "8.0 MiB (student 2.7 MiB + teacher 2.7 MiB + careless 2.7 MiB)" in " ".join(shown.split())
    assert not (tmp_path / "run").exists()


def test_the_plan_follows_from_the_budget():
    budget = read_config("boolq_qwen3_0.6b").budget
    # Windows of 50, 100 and 200 tokens cover 300; four paths, 20 + 20 tokens a window, 100 rollouts each.
    assert targeted_rollouts(budget, 300) == 4 * 3 * 40 * 100
    plan = planned(budget, 2, 8, Measured(length=300, tokens_per_second=1000))
    assert plan.initial == 400
    assert plan.tokens == 2 * 300 * (200 + 48000 // 2)
    assert plan.seconds == pytest.approx(plan.tokens / 1000)
    assert plan.scored_tokens == 2 * 4 * 300 * 9


def test_planned_targeted_rollouts_and_minillm_scoring():
    budget = read_config("boolq_qwen3_0.6b").budget
    assert targeted_rollouts(replace(budget, targeted=10**6), 300) == 48_000
    assert targeted_rollouts(replace(budget, targeted=100), 300) == 100
    assert targeted_rollouts(replace(budget, targeted=10**6, allocation="adaptive"), 300) == 10**6
    plan = planned(budget, 2, 8, Measured(length=300, tokens_per_second=1000), futures=True)
    assert plan.scored_tokens == 2 * (4 + 200 + 48_000) * 300 * 9


def test_a_question_is_not_split_over_gpus():
    plan = planned(Budget(), 10, 2, Measured(length=100, tokens_per_second=1000))
    rounds = {gpus: plan.seconds_on(gpus) / plan.seconds for gpus in (1, 4, 10, 64)}
    assert rounds == pytest.approx({1: 1.0, 4: 0.3, 10: 0.1, 64: 0.1})


def test_a_failing_student_gives_an_error_instead_of_a_plan():
    class Failing:
        def sample(self, requests):
            return replace(Rollouts.of([]), failures=(Failure(1, "out of memory"),))

    with pytest.raises(OpdAlignError, match="no estimate is possible: out of memory"):
        measure(SimpleNamespace(student=Failing(), usable_questions=[Question("q")]))


def test_the_speed_is_measured_in_batches_like_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world, sizes = ExactWorld.random(0, length=20), []

    class Counting:
        def sample(self, requests: list[SampleRequest]) -> Rollouts:
            sizes.append(requests[0].n)
            return world.sample(requests)

    budget = Budget(initial=200)
    study = SimpleNamespace(student=Counting(), usable_questions=[Question("q")], config=SimpleNamespace(budget=budget))
    monkeypatch.setattr(plan_module, "TIMED_S", math.inf)  # a machine that is never slow
    assert measure_growing(study)[1] == 200
    assert [size for size in sizes if size > 2] == [8, 32, 128, 200]
    monkeypatch.setattr(plan_module, "TIMED_S", 0.0)
    assert measure_growing(study)[1] == 8


def test_a_resumed_run_cannot_be_used_for_speed(run, tmp_path):
    """A killed session leaves rollouts without the time they took."""
    resumed = Path(shutil.copytree(run, tmp_path / "resumed"))
    spent = json.loads((run / "spent.json").read_text())
    (resumed / "spent.json").write_text(json.dumps({"tokens": spent["tokens"] // 10, "seconds": spent["seconds"]}))
    with pytest.raises(OpdAlignError, match=rf"was resumed, .* of its {spent['tokens']:,} tokens .* set --tokens-per"):
        calibrated(resumed)
    assert calibrated(resumed, 100.0).length == calibrated(run).length


def test_a_run_with_another_student_or_task_is_refused_for_calibration(run, tmp_path, capsys):
    command = ["analyze", *SMALL, "--dry-run", "--calibrate-from", str(run), "--out", str(tmp_path / "plan")]
    command += ["--teachers", "Self-1C"]
    assert main([*command, "--student", "embedded:teacher"]) == 2
    assert "another student (student there, teacher here)" in capsys.readouterr().err
    data = tmp_path / "own.jsonl"
    data.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    assert main([*command, "--task", "gsm8k", "--data", str(data), "--set", "questions.offset=0"]) == 2
    assert "another grader" in capsys.readouterr().err
    assert main([*command, "--teachers", "Self-1C"]) == 0
    assert "calibrated with other teachers (Self-1C" in " ".join(capsys.readouterr().out.split())


def test_a_small_run_predicts_the_cost_of_a_larger_one(run, tmp_path, capsys):
    """Two questions predict the cost of four without loading a model."""
    measured = calibrated(run)
    shards = [pq.read_table(file) for file in (run / "rollouts").glob("*.parquet")]
    rows = [row for table in shards for row in table.to_pylist()]
    natural = [len(row["tokens"]) for row in rows if row["launch"] == 0]
    forced = [len(row["tokens"]) - row["launch"] for row in rows if 0 < row["launch"] < len(row["tokens"])]
    assert (len(natural), len(forced)) == (200, 3000)
    assert measured.length == pytest.approx(np.mean(natural))
    assert measured.targeted_length == pytest.approx(np.mean(forced))
    assert measured.needed == 1.0  # the limit of 1,500 was used up
    spent = Usage.load(as_path(run))
    assert spent.tokens == sum(natural) + sum(forced)
    assert measured.tokens_per_second == pytest.approx(spent.tokens / spent.seconds)
    assert calibrated(run, 50.0).tokens_per_second == 50.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opd_align.study.build.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
        options = ["--hardware", "4x80", "--tokens-per-second", "100", "--dollars-per-gpu-hour", "2.5"]
        command = ["analyze", *SMALL, "--limit", "4", "--dry-run", "--calibrate-from", str(run), *options]
        assert main([*command, "--out", str(tmp_path / "plan")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    tokens = 2 * spent.tokens
    assert f"{tokens:,} at" in shown
    assert f"about {tokens / 400 / 60:,.1f} minutes at 100 tokens/s (as given) on each of 4 GPUs" in shown
    assert f"{tokens / 360000:,.1f} GPU hours, ${tokens / 360000 * 2.5:,.2f} at $2.50 per hour" in shown


def test_a_calibration_with_another_budget_gives_a_note(run, tmp_path, capsys):
    command = ["analyze", *SMALL, "--dry-run", "--calibrate-from", str(run), "--out", str(tmp_path / "plan")]
    for more, noted in (([], False), (["--targeted", "4500"], True)):
        assert main([*command, *more]) == 0
        assert ("calibrated with another budget" in " ".join(capsys.readouterr().out.split())) == noted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--hardware", "0x80"], "COUNTxGB, such as 1x80"),
        (["--dry-run", "--gpus", "8"], "there is no GPU 8; no GPU is visible"),
        (["--dry-run", "--tokens-per-second", "-1"], "a speed above 0"),
        (["--dry-run", "--tokens-per-second", "0"], "a speed above 0"),
        (["--dry-run", "--tokens-per-second", "inf"], "a speed above 0"),
        (["--dry-run", "--calibrate-from", "no/such/run"], "does not exist"),
        (["--dollars-per-gpu-hour", "0"], "--dollars-per-gpu-hour has no effect without --dry-run"),
        (["--hardware", "8x80"], "--hardware has no effect without --dry-run"),
        (["--teacher-actors", "Teacher"], "--teacher-actors has no effect without --engine ray"),
        (["--ray-address", "auto"], "--ray-address has no effect without --engine ray"),
        (["--gpus-per-worker", "1"], "--gpus-per-worker has no effect without --engine ray"),
        (["--student", "exact", "--dry-run"], "--dry-run does not support --student exact"),
    ],
)
def test_invalid_cost_options_are_refused(options, message, tmp_path, capsys):
    assert main(["analyze", *SMALL, *options, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


def test_every_shipped_configuration_is_whole():
    configurations = builtin_configs()
    assert {"demo", "boolq_qwen3_0.6b", "mmlu_qwen3_0.6b", "aime2025_qwen3_0.6b"} <= set(configurations)
    for name, file in configurations.items():
        config = read_config(file)
        config.settings()
        study = Study(config)
        assert len(study.teacher_specs) == (3 if name == "demo" else 8), name
        assert study.task.name in name or name == "demo"
    assert read_config("aime2025_qwen3_1.7b").rules.n_sig == 40


def test_the_size_of_weights_is_known_without_loading_them():
    loaded = load_model("embedded:student").model
    assert weight_bytes("embedded:student", device="cpu") == 4 * sum(weight.numel() for weight in loaded.parameters())
    assert weight_bytes("embedded:student", dtype="bfloat16") == 2 * sum(each.numel() for each in loaded.parameters())


def test_pooled_estimates_are_biased_low_on_incorrect_paths(run, analysis, tmp_path):
    """Forced rollouts share the path's prefix, so counting them above the forced token biases values to its outcome."""
    assert (
        main(["analyze", *SMALL, "--estimator", "pooled", "--reuse", str(run), "--out", str(tmp_path / "pooled")]) == 0
    )
    pooled = RunDirectory.load(tmp_path / "pooled")
    q = {
        name: {
            (row["question"], row["path"], row["depth"], row["path_correct"]): row["q"]
            for row in found.children.to_pylist()
            if row["own"] and row["visits"] > 0
        }
        for name, found in (("pooled", pooled), ("backup", analysis))
    }
    shared = q["pooled"].keys() & q["backup"].keys()
    gap = {
        correct: np.nanmean([q["pooled"][node] - q["backup"][node] for node in shared if node[3] == correct])
        for correct in (True, False)
    }
    assert gap[False] < -0.01
    assert gap[True] > gap[False] + 0.01


def test_the_default_output_directory_is_under_runs(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "--limit",
        "1",
        "--initial",
        "8",
        "--targeted",
        "8",
        "--allocation",
        "adaptive",
        "--teachers",
        "embedded:teacher",
    ]
    assert main(["analyze", *small]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").is_file()
