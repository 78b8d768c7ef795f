"""`opd-align analyze --rollouts FILE`: with the probabilities in the file, and with local models on a TRL dump."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.recorded_world import recorded_analysis, write_lines
from support.trl_dump import COLUMNS, write_output_dir

from opd_align import Budget, ExactFamily, Settings
from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.loading import load_model
from opd_align.backends.replay import RecordedPrompt
from opd_align.backends.replay_file import read_recording
from opd_align.cli.main import main
from opd_align.runs.run_directory import RunDirectory
from opd_align.types import Rollouts

ROOT = Path(__file__).parents[2]


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exact world with targeted rollouts, and the same without them in `natural.jsonl`."""
    folder = tmp_path_factory.mktemp("world")
    family = ExactFamily.random(3, 2, length=12, forks=0.5, vocabulary=12, states=60)
    teachers = [
        family.teacher("tilted", lambda world: world.tilted_teacher()),
        family.teacher("style", lambda world: world.style_teacher()),
    ]
    recorded_analysis(folder / "world.jsonl", family, teachers, Settings(budget=Budget(initial=60, n_min=20)))
    natural = [line for line in lines_of(folder / "world.jsonl") if "launch" not in line]
    write_lines(folder / "natural.jsonl", natural)
    return folder


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory `out` of a training, converted to `rollouts.jsonl` by the code in docs/replay.md."""
    folder = tmp_path_factory.mktemp("training")
    write_output_dir(folder / "out")
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/replay.md").read_text("utf-8"), re.DOTALL)
        if "completions_00010" in block
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(code, {})
    return folder


# -- probabilities in the file --------------------------------------------------------------------------------


def test_natural_rollouts_say_first_what_they_cannot_tell(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["analyze", "--rollouts", str(world / "natural.jsonl"), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    out = capsys.readouterr().out
    first = out[: out.index("Which teacher to use")]
    assert "natural.jsonl: probabilities as recorded; teachers: tilted, style" in first
    assert "2 questions, 120 natural rollouts, no targeted." in first
    assert re.search(r"on its own after \d+ of \d+ tokens; nothing later is judged. Estimator: direct", first)
    assert re.search(r"Of \d+ tokens on the analyzed paths, \d+ \([\d.]+%\) could be compared, \d+ decided", first)
    analysis = RunDirectory.load(tmp_path / "run")
    assert analysis.questions["initial"].to_pylist() == [60, 60]
    assert analysis.questions["targeted"].to_pylist() == [0, 0]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    before = (tmp_path / "run" / "nodes.parquet").read_bytes()
    assert main(command) == 0  # resumes
    assert (tmp_path / "run" / "nodes.parquet").read_bytes() == before


def test_targeted_rollouts_and_teachers_of_a_file_are_used(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--teachers", "style", "--limit", "1", "--set", "budget.n_min=20", "--out", str(tmp_path / "run")]
    assert main(["analyze", "--rollouts", str(world / "world.jsonl"), *options]) == 0
    out = capsys.readouterr().out
    assert "count as failed" in out
    nodes = pq.read_table(tmp_path / "run" / "nodes.parquet")
    assert nodes.num_rows > 0
    assert set(nodes["teacher"].to_pylist()) == {"style"}
    assert set(nodes["question"].to_pylist()) == {"world-3"}
    (record,) = RunDirectory.load(tmp_path / "run").questions.to_pylist()
    assert record["targeted"] > record["failed"]
    assert RunDirectory.load(tmp_path / "run").settings.estimator == "backup"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "gsm8k"], "--task has no effect with --rollouts"),
        (["--backend", "vllm"], "--backend has no effect with --rollouts"),
        (["--dry-run"], "--rollouts samples nothing: remove --dry-run"),
        (["--student", "exact"], "--student exact samples its own rollouts"),
        (["--teachers", "tited"], "teacher 'tited' is not in .* (recorded: tilted, style)"),
        (["--targeted", "5"], "--targeted: .* has no branches and no rollouts with launch above 0"),
        (["--set", "questions.offset=9"], "questions: none is selected"),
        (["--set", "questions.ids=[nine]"], "there is no question 'nine'"),
        (["--objectives", "minilm"], "unknown objective"),
        (["--student", "embedded:student"], "name the teachers' models too"),
        (["--student", "embedded:student", "--teachers", "Self-1C"], "teacher 'Self-1C' has a context"),
        (["--student", "embedded:student", "--teachers", "embedded:teacher"], "line 2: prompt is missing"),
        (["--student", "/no/such/model", "--teachers", "embedded:teacher"], "does not exist"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_written(
    options: list[str], message: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["analyze", "--rollouts", str(world / "natural.jsonl"), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert re.search(message.replace("(", r"\(").replace(")", r"\)"), error)
    assert len(error.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "allocation"),
    [
        ([], "paper"),
        (["--allocation", "adaptive"], "adaptive"),
        (["--set", "budget.allocation=adaptive"], "adaptive"),
        (["--quick"], "adaptive"),
    ],
)
def test_recorded_branches_are_all_used_unless_an_allocation_is_chosen(
    options: list[str], allocation: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "--rollouts", str(world / "world.jsonl"), "--limit", "1", "--out", "run", *options]) == 0
    assert f'"allocation": "{allocation}"' in Path("run/manifest.json").read_text()


def test_a_bad_file_is_one_line_with_the_line_number(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(world / "natural.jsonl")
    lines[4]["outcome"] = "correct"
    file = write_lines(tmp_path / "bad.jsonl", lines)
    assert main(["analyze", "--rollouts", str(file), "--out", str(tmp_path / "run")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.endswith(
        "line 5: outcome: 'correct' is not an outcome; use 1 or true, 0 or false, or null for unknown"
    )
    assert not (tmp_path / "run").exists()
    for line in lines:
        line.pop("teacher_log_probs", None)
    lines[4]["outcome"] = 1
    write_lines(file, [line for line in lines if "p" not in line])
    assert main(["analyze", "--rollouts", str(file), "--out", str(tmp_path / "run")]) == 2
    assert "has no teacher_log_probs, which objective 'reverse_kl' needs" in capsys.readouterr().err
    assert main(["analyze", "--rollouts", str(file), "--out", str(tmp_path / "run"), "--objectives", "grpo"]) == 0


def test_reward_to_go_needs_the_tokens_of_every_rollout(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(world / "natural.jsonl")
    assert main(["analyze", "--rollouts", str(world / "world.jsonl"), "--objectives", "minillm"]) == 2
    assert "objective 'minillm' needs log_probs and teacher_log_probs of every rollout" in capsys.readouterr().err
    lines.append({"question": "world-3", "prefix": [1], "token": 3, "p": 0.01, "outcomes": [1, 0]})
    file = write_lines(tmp_path / "file.jsonl", lines)
    assert main(["analyze", "--rollouts", str(file), "--objectives", "minillm"]) == 2
    assert f"line {len(lines)}: objective 'minillm' needs the tokens of every rollout" in capsys.readouterr().err


def test_a_tokenizer_in_the_file_gives_tokens_their_text(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, *lines = lines_of(world / "natural.jsonl")
    for tokenizer in ("embedded:student", "/no/such/folder"):
        file = write_lines(tmp_path / "file.jsonl", [settings | {"tokenizer": tokenizer}, *lines])
        run = tmp_path / tokenizer.replace("/", "")
        assert main(["analyze", "--rollouts", str(file), "--limit", "1", "--out", str(run)]) == 0
        texts = RunDirectory.load(run).texts
        assert bool(texts) == (tokenizer == "embedded:student")
    assert (
        "Reports show token ids instead of text: the folder '/no/such/folder' does not exist" in capsys.readouterr().out
    )


# -- local models ---------------------------------------------------------------------------------------------


def test_local_models_score_a_trl_dump_as_if_its_log_probs_were_recorded(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # With keys in the file, both analyses choose the same paths.
    lines = [line | {"key": index} for index, line in enumerate(lines_of(dump / "rollouts.jsonl"))]
    file = write_lines(tmp_path / "rollouts.jsonl", lines)
    common = ["--rollouts", str(file), "--n-sig", "3", "--limit", "1"]
    models = ["--student", str(dump / "out/checkpoint-10"), "--teachers", "embedded:teacher"]
    assert main(["analyze", *common, *models, "--out", str(tmp_path / "local")]) == 0
    assert "probabilities computed by" in capsys.readouterr().out
    local = RunDirectory.load(tmp_path / "local")
    assert local.nodes.num_rows > 0
    assert "".join(local.texts.values()).strip()
    assert local.questions["text"].to_pylist() == [lines[0]["prompt"]]

    recording = read_recording(file)
    student, teacher = load_model(str(dump / "out/checkpoint-10")), load_model("embedded:teacher")
    chat = Chat(student.tokenizer)
    prompt = RecordedPrompt(recording, chat)
    scorer = HFStudent("student", student.model, prompt, chat.end_tokens(*student.configs))
    for line in lines:
        rollouts, question = Rollouts.of([line["tokens"]]), recording.questions[line["question"]].question
        line["log_probs"] = scorer.token_log_probs(question, rollouts, None).tolist()
        log_t = scorer.token_log_probs(question, rollouts, HFTeacher("teacher", teacher.model, prompt))
        line["teacher_log_probs"] = {"teacher": log_t.tolist()}
    write_lines(file, lines)
    assert main(["analyze", *common, "--out", str(tmp_path / "recorded")]) == 0
    recorded = RunDirectory.load(tmp_path / "recorded")

    def children(analysis: Any) -> dict[tuple[int, int, int], tuple[float, float, int]]:
        rows = analysis.children.to_pylist()
        return {(row["path"], row["depth"], row["token"]): (row["p"], row["t"][0], row["visits"]) for row in rows}

    one, other = children(local), children(recorded)
    assert len(other) > 50
    for child, values in other.items():
        np.testing.assert_allclose(values, one[child], rtol=1e-3, atol=1e-4)
    # Only the models know the tokens that no rollout took, so a recorded divergence is a lower bound.
    kl = {(row["path"], row["depth"]): row["kl"] for row in local.nodes.to_pylist()}
    compared = [(row["kl"], kl[row["path"], row["depth"]]) for row in recorded.nodes.to_pylist()]
    assert compared
    assert all(0 <= low <= exact + 1e-6 for low, exact in compared)


@pytest.mark.parametrize(
    ("budget", "options", "allocation"),
    [
        ("{allocation: paper}", [], "paper"),
        ("{allocation: adaptive}", [], "adaptive"),
        ("{tau: 0.05}", [], "adaptive"),  # the default of a configuration
        ("{allocation: paper}", ["--allocation", "adaptive"], "adaptive"),
        ("{allocation: adaptive}", ["--set", "budget.allocation=paper"], "paper"),
    ],
)
def test_a_configuration_file_decides_the_allocation_of_recorded_rollouts(
    budget: str, options: list[str], allocation: str, dump: Path, tmp_path: Path
) -> None:
    config = tmp_path / "study.yaml"
    config.write_text(
        f"student: {{model: {dump / 'out/checkpoint-10'}}}\nteachers: [{{model: {{model: embedded:teacher}}}}]\n"
        f"budget: {budget}\n"
    )
    command = ["analyze", "--rollouts", str(dump / "rollouts.jsonl"), "--config", str(config), "--limit", "1"]
    assert main([*command, "--out", str(tmp_path / "run"), *options]) == 0
    assert RunDirectory.load(tmp_path / "run").settings.budget.allocation == allocation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [99_999]}, "line 1: token 99999 is outside the vocabulary"),
        ({"tokens": [20, 21]}, "line 1: tokens end with 21, which is no end-of-sequence token"),
        ({"prompt": None}, "line 41: prompt differs|line 1: prompt is missing"),
    ],
)
def test_tokens_of_another_tokenizer_are_found_before_scoring(
    change: dict[str, Any], message: str, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(dump / "rollouts.jsonl")
    for line in lines if "prompt" in change else lines[:1]:
        line.update(change)
    file = write_lines(tmp_path / "file.jsonl", lines)
    models = ["--student", str(dump / "out/checkpoint-10"), "--teachers", "embedded:teacher"]
    assert main(["analyze", "--rollouts", str(file), *models, "--out", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.training
def test_trl_writes_the_columns_that_the_converter_reads(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from opd_align.tasks import task

    def accuracy_reward(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion[-1]["content"]) % 2) for completion in completions]

    loaded = load_model("embedded:student")
    questions = task("arithmetic").load(split="train", limit=2)
    data = Dataset.from_list([{"prompt": task("arithmetic").messages(question)} for question in questions])
    args = GRPOConfig(
        str(tmp_path / "out"), max_steps=1, logging_steps=1, num_generations=4, per_device_train_batch_size=4,
        max_completion_length=16, log_completions=True, report_to=[], use_cpu=True, bf16=False, save_strategy="no",
    )  # fmt: skip
    GRPOTrainer(loaded.model, accuracy_reward, args, train_dataset=data, processing_class=loaded.tokenizer).train()
    (file,) = (tmp_path / "out" / "completions").glob("completions_*.parquet")
    real = pq.read_table(file)
    made = pq.read_table(write_output_dir(tmp_path / "made", questions=1, num_generations=2) / "completions" / (
        "completions_00010.parquet"
    ))  # fmt: skip
    assert real.column_names == made.column_names == COLUMNS
    assert set(real["prompt"][0].as_py()[0]) == set(made["prompt"][0].as_py()[0]) == {"role", "content"}
    assert set(real["completion"][0].as_py()[0]) == {"role", "content"}
