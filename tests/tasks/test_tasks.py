"""Tasks: loading questions from files and the Hub, formatting messages, grading tokens."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opd_align
from opd_align.cli.main import main
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.tasks import TASKS, Choice, Form, Number, Source, Task, TextGrader, TrueFalse, Verdict, custom_task, task
from opd_align.tasks.builtin import BUILTIN
from opd_align.types import OpdAlignError, Outcome, Question, Rollouts

DATA = Path(os.environ.get("OPD_ALIGN_DATA", Path(__file__).parents[3] / "shared" / "data"))

MMLU_ROW = {"question": "What is 2+2?\n", "choices": ["3", "4", "5", "6"], "answer": 1, "subject": "arithmetic"}
BOOLQ_ROW = {"question": "is the sky blue", "answer": True, "passage": "By day the sky is blue."}
GSM8K_ROW = {"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"}
AIME_ROW = {"problem": "Find $xy$.", "answer": "025", "solution": "long"}
ROWS = {"mmlu": MMLU_ROW, "boolq": BOOLQ_ROW, "gsm8k": GSM8K_ROW, "aime2024": AIME_ROW, "aime2025": AIME_ROW}


def write_jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def one(name: str, tmp_path: Path) -> Question:
    (question,) = TASKS[name].load(write_jsonl(tmp_path / f"{name}.jsonl", [ROWS[name]]))
    return question


# Prompts

MESSAGES = {
    "mmlu": (
        "Answer the following multiple choice question. The last line of your response should be of the following "
        "format: 'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by step before "
        "answering.\n"
        "\n"
        "What is 2+2?\n"
        "\n"
        "A) 3\n"
        "B) 4\n"
        "C) 5\n"
        "D) 6"
    ),
    "boolq": (
        "Answer the following true or false question about the passage. The last line of your response should be of "
        "the following format: 'Answer: $ANSWER' (without quotes) where ANSWER is True or False. Think step by step "
        "before answering.\n"
        "\n"
        "Passage: By day the sky is blue.\n"
        "\n"
        "Question: is the sky blue"
    ),
    "gsm8k": (
        "Solve the following math problem. The last line of your response should be of the following format: "
        "'Answer: $NUMBER' (without quotes) where NUMBER is the final result, without units. Think step by step "
        "before answering.\n"
        "\n"
        "Two and two?"
    ),
    "aime2024": (
        "Solve the following math problem, whose answer is an integer from 0 to 999. The last line of your response "
        "should be of the following format: 'Answer: $ANSWER' (without quotes) where ANSWER is that integer, which "
        "may "
        "stand in \\boxed{}. Think step by step before answering.\n"
        "\n"
        "Find $xy$."
    ),
}
MESSAGES["aime2025"] = MESSAGES["aime2024"]


@pytest.mark.parametrize("name", MESSAGES)
def test_prompts_are_pinned(name, tmp_path):
    assert task(name).messages(one(name, tmp_path)) == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": MESSAGES[name]},
    ]


def test_every_builtin_task_has_the_name_it_is_listed_under():
    assert MESSAGES.keys() <= TASKS.keys()
    assert all(name == built_in.name for name, built_in in TASKS.items())


def test_system_none_gives_no_system_message():
    bare = Task("bare", Number(), Form("Solve."), system=None)
    assert bare.messages(Question("q", "1+1?")) == [{"role": "user", "content": "Solve.\n\n1+1?"}]


def test_the_instruction_lists_one_letter_per_choice():
    question = Question("q", "Pick.", fields={"choices": ("x", "y", "z")})
    assert "one of ABC." in task("mmlu").user_message(question)
    assert task("mmlu").user_message(question).endswith("A) x\nB) y\nC) z")


# Loading


@pytest.mark.parametrize(
    ("name", "answer", "fields"),
    [
        ("mmlu", "B", {"choices": ("3", "4", "5", "6"), "subject": "arithmetic"}),
        ("boolq", "True", {"passage": "By day the sky is blue."}),
        ("gsm8k", "4", {}),
        ("aime2024", "25", {}),
        ("aime2025", "25", {}),
    ],
)
def test_a_row_as_on_the_hub_becomes_a_question(name, answer, fields, tmp_path):
    question = one(name, tmp_path)
    assert question.answer == answer
    assert question.fields == fields
    assert question.text == (ROWS[name].get("problem") or ROWS[name]["question"]).strip()
    assert question.id == f"{name}-{TASKS[name].source.split}-0"
    assert TASKS[name].verifier.judge(f"Answer: {answer}", question.answer, fields.get("choices")) is Verdict.CORRECT


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("boolq", BOOLQ_ROW | {"answer": "False"}, "False"),
        ("boolq", BOOLQ_ROW | {"answer": 0}, "False"),
        ("mmlu", MMLU_ROW | {"answer": "b"}, "B"),
        ("aime2025", {"question": "Find.", "answer": 70}, "70"),
        ("gsm8k", GSM8K_ROW | {"answer": "1,234"}, "1234"),
        ("gsm8k", GSM8K_ROW | {"answer": 51.0}, "51"),
        ("gsm8k", {"question": "Two?"}, None),
        ("gsm8k", {"question": "Two?", "answer": None}, None),
        ("gsm8k", {"question": "Two?", "answer": " "}, None),
        ("gsm8k", {"question": "Two?", "answer": "a few"}, "a few"),
    ],
)
def test_answers_are_converted_to_canonical_form(name, row, answer, tmp_path):
    (question,) = TASKS[name].load(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert question.answer == answer


@pytest.mark.parametrize("answer", [None, "a few"])
def test_without_a_readable_answer_every_verdict_is_unknown(answer, tmp_path):
    (question,) = task("gsm8k").load(write_jsonl(tmp_path / "rows.jsonl", [{"question": "Two?", "answer": answer}]))
    assert task("gsm8k").verifier.judge("Answer: 2", question.answer) is Verdict.UNKNOWN


def test_all_formats_give_the_same_questions(tmp_path):
    rows = [MMLU_ROW, MMLU_ROW | {"question": "Again, with a comma?", "answer": 3}]
    files = [write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "rows.json", tmp_path / "rows.parquet"]
    files[1].write_text(json.dumps(rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), files[2])
    first, *others = [task("mmlu").load(file) for file in files]
    assert [question.answer for question in first] == ["B", "D"]
    assert all(other == first for other in others)


def test_choices_in_a_csv_file_are_json(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text('id,question,choices,answer\nq1,"Which, then?","[""x"", ""y""]",1\n,Another?,"[""x"", ""y""]",A\n')
    first, second = custom_task("csv", kind="choice").load(file)
    assert first == Question("q1", "Which, then?", "B", {"choices": ("x", "y")})
    assert (second.id, second.answer) == ("csv-test-1", "A")


def test_a_byte_order_mark_is_ignored(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("question,answer\nTwo?,2\n", encoding="utf-8-sig")
    assert task("gsm8k").load(file)[0].answer == "2"


def test_offset_and_limit_count_rows_and_ids_contain_row_numbers(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"question": f"q{n}", "answer": n} for n in range(10)])
    questions = task("gsm8k").load(file, offset=3, limit=2)
    assert [question.text for question in questions] == ["q3", "q4"]
    assert [question.id for question in questions] == ["gsm8k-test-3", "gsm8k-test-4"]
    assert [question.id for question in task("gsm8k").load(file, split="dev", limit=1)] == ["gsm8k-dev-0"]
    assert task("gsm8k").load(file, offset=99) == []


def test_an_invalid_line_after_the_limit_is_not_read(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "q", "answer": 1}\n{broken\n')
    assert len(task("gsm8k").load(file, limit=1)) == 1


Q = '{"question": "q", "answer": 1}\n'


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("gsm8k", "r.jsonl", Q + "\n{broken\n", "line 3: not JSON"),
        ("gsm8k", "r.jsonl", Q + "[1]\n", "line 2: expected an object with named fields, found list"),
        ("gsm8k", "r.jsonl", '{"text": "q", "answer": 1}\n', "line 1: no question .*'question'.* has answer, text"),
        ("gsm8k", "r.jsonl", '{"question": 5}\n', "the question must be text, not int"),
        ("gsm8k", "r.jsonl", '{"question": " "}\n', "the question is empty"),
        ("gsm8k", "r.jsonl", '{"question": "q", "answer": [1]}\n', r"line 1: the answer is \[1\]"),
        ("gsm8k", "r.jsonl", '{"id": 1, "question": "q"}\n' * 2, "line 2: id '1' is already used by .*line 1"),
        ("boolq", "r.jsonl", Q, "no passage"),
        ("mmlu", "r.jsonl", Q, "no choices"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"answer": 4}), "the answer is 4; .* index from 0 to 3"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"answer": True}), "the answer is True"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"choices": "abcd"}), "choices must be a list, not str"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"choices": ["x"]}), "1 choices; expected from 2 to 26"),
        ("aime2024", "r.jsonl", '{"q": 1}\n', "looked for 'problem' or 'question'"),
        ("gsm8k", "r.json", '{"question": "q"}', "expected a list of objects, found dict"),
        ("gsm8k", "r.json", Q + Q, r"not JSON.*\.jsonl"),
        ("gsm8k", "r.csv", "question,answer\nq\n", "line 2: expected 2 cells"),
        ("gsm8k", "r.parquet", "no such thing", "not Parquet"),
        ("gsm8k", "r.txt", "q", "cannot read .txt; use .jsonl"),
        ("gsm8k", "r.jsonl", "", r"r\.jsonl: contains no questions"),
        ("gsm8k", "r.json", "", r"r\.json: contains no questions"),
        ("gsm8k", "r.json", "[]", r"r\.json: contains no questions"),
        ("gsm8k", "r.csv", "question,answer\n", r"r\.csv: contains no questions"),
        ("gsm8k", "r.jsonl", '{"a": ' + "[" * 99999, "line 1: lists or objects are nested too deeply"),
        ("gsm8k", "r.json", "[" * 99999, "nested too deeply"),
        ("gsm8k", "r.jsonl", '{"question": "q\\ud800"}', "line 1: the question .* not valid in text"),
        ("gsm8k", "r.jsonl", '{"question": "q", "answer": "\\ud800"}', "line 1: the answer .* not valid in text"),
        ("gsm8k", "r.jsonl", '{"question": "q", "id": "\\udfff"}', "line 1: the id .* not valid in text"),
        ("gsm8k", "r.jsonl", '{"question": "q", "id": [1]}', r"line 1: the id must be text or a number, not \[1\]"),
        ("gsm8k", "r.jsonl", '{"question": "q", "question": "r"}', "line 1: .*'question' appears more than once"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"choices": ["x", None]}), "line 1: a choice is None; expected text"),
        ("mmlu", "r.jsonl", json.dumps(MMLU_ROW | {"choices": ["x", "\ud800"]}), "line 1: the choice .* surrogates"),
        ("gsm8k", "r.csv", 'question,answer\nq,1\n"r,2\ns,3\n', "line 4: not CSV: unexpected end of data"),
        ("gsm8k", "r.csv", "question,answer,answer\nq,1,2\n", "the column 'answer' appears more than once"),
    ],
)
def test_errors_in_a_file_name_the_location(name, file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(OpdAlignError, match=message):
        task(name).load(tmp_path / file)


def test_a_long_cell_is_read_and_the_limit_of_the_process_stays(tmp_path):
    before, passage = csv.field_size_limit(), "x" * 300_000
    (tmp_path / "r.csv").write_text(f'question,answer\n"{passage}",1\n[0],2\n')
    long, short = task("gsm8k").load(tmp_path / "r.csv")
    assert long.text == passage
    assert (short.text, short.answer) == ("[0]", "2")
    assert csv.field_size_limit() == before


def test_a_damaged_parquet_file_is_reported(tmp_path):
    file = tmp_path / "r.parquet"
    rows = [{"question": f"How many are {n} and {n}?", "answer": str(2 * n)} for n in range(300)]
    pq.write_table(pa.Table.from_pylist(rows), file, write_page_checksum=True)
    whole = file.read_bytes()
    assert len(task("gsm8k").load(file)) == 300
    for damaged in (whole[:-100], whole[:2000] + bytes(500) + whole[2500:], whole[:4] + whole[-8:], b"PAR1" * 4):
        file.write_bytes(damaged)
        with pytest.raises(OpdAlignError, match=r"r\.parquet: not Parquet"):
            task("gsm8k").load(file)


def test_numbers_as_pandas_writes_them(tmp_path):
    columns = {"question": ["a", "b"], "answer": [2.0, float("nan")], "choices": [["x", "y", "z"]] * 2}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    assert [each.answer for each in task("gsm8k").load(tmp_path / "r.parquet")] == ["2", None]
    assert [each.answer for each in task("mmlu").load(tmp_path / "r.parquet")] == ["C", None]
    pq.write_table(pa.table({"question": ["a"], "answer": [Decimal("2.50")]}), tmp_path / "r.parquet")
    assert task("gsm8k").load(tmp_path / "r.parquet")[0].answer == "2.5"


def test_too_many_generated_questions_are_refused_at_once():
    with pytest.raises(OpdAlignError, match=r"generates at most 20,000 questions, .* request 1,000,000,000"):
        task("arithmetic").load(limit=10**9)
    with pytest.raises(OpdAlignError, match="at most 20,000"):
        task("arithmetic").load(limit=1, offset=10**18)


def test_a_limit_beyond_every_integer_type_means_all(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [GSM8K_ROW])
    assert len(task("gsm8k").load(file, limit=10**20)) == 1
    assert task("gsm8k").load(file, offset=10**20) == []


def test_pipes_and_broken_links_are_named_as_such(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(OpdAlignError, match=r"pipe.jsonl: a pipe or a device; save its content in a file"):
        task("gsm8k").load(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    with pytest.raises(OpdAlignError, match=r"loop.jsonl: a link to a file that does not exist"):
        task("gsm8k").load(tmp_path / "loop.jsonl")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_csv_file_with_other_separators_is_refused_with_the_reason(tmp_path, separator):
    file = tmp_path / "rows.csv"
    file.write_text(f"question{separator}answer\nWhat is 2+3?{separator}5\n", encoding="utf-8")
    with pytest.raises(OpdAlignError, match=r"rows.csv: cells are separated by .*; save the file with commas"):
        task("gsm8k").load(file)


def test_spaces_around_the_names_of_columns_do_not_count(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("question, answer\nWhat is 2+3?, 5\n", encoding="utf-8")
    assert [(each.text, each.answer) for each in task("gsm8k").load(file)] == [("What is 2+3?", "5")]


def test_a_missing_file_and_a_negative_offset_are_refused(tmp_path):
    with pytest.raises(OpdAlignError, match="no such file"):
        task("gsm8k").load(tmp_path / "none.jsonl")
    with pytest.raises(OpdAlignError, match="no such file"):
        task("gsm8k").load("x" * 5000 + ".jsonl")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OpdAlignError, match="a folder, not a file"):
        task("gsm8k").load(tmp_path / "folder.csv")
    with pytest.raises(OpdAlignError, match="cannot be negative"):
        task("gsm8k").load(tmp_path / "none.jsonl", offset=-1)


FILES = {
    "boolq": ("boolq_dev_first300.jsonl", 300),
    "mmlu": ("mmlu_test_first5_per_subject.jsonl", 285),
    "aime2024": ("aime2024.jsonl", 30),
    "aime2025": ("aime2025.jsonl", 30),
    "gsm8k": ("gsm8k_test_first200.jsonl", 200),
    "svamp": ("svamp_first200.jsonl", 200),
}


@pytest.mark.parametrize("name", FILES)
def test_real_questions_load_and_their_own_answers_are_correct(name):
    file, count = DATA / FILES[name][0], FILES[name][1]
    if not file.is_file():
        pytest.skip(f"{file} does not exist (set OPD_ALIGN_DATA to the folder that contains it)")
    this = custom_task("svamp", kind="number", passage="passage") if name == "svamp" else task(name)
    questions = this.load(file)
    assert len(questions) == count
    for question in questions:
        choices = question.fields.get("choices")
        assert question.answer is not None
        assert this.verifier.canonical(question.answer, choices) == question.answer
        assert (
            this.verifier.judge(f"Let me see.\n\nAnswer: {question.answer}", question.answer, choices)
            is Verdict.CORRECT
        )
        assert question.text in this.user_message(question)
        if choices is not None:
            wording = choices["ABCD".index(question.answer)]
            for text in (
                f"Answer: {wording}",
                f"Answer: {question.answer}) {wording}",
                f"Option {question.answer}: {wording}",
            ):
                assert this.verifier.judge(text, question.answer, choices) is Verdict.CORRECT


# The Hub, replaced by a folder that `datasets` loads, and by its failures


def test_a_folder_loaded_by_datasets_uses_the_same_mapping(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    file = write_jsonl(tmp_path / "data" / "test.jsonl", [MMLU_ROW, MMLU_ROW | {"answer": 0}])
    local = Task(
        "mmlu", Choice(), task("mmlu").user_message, Source(str(file.parent), None, "test", task("mmlu").source.fields)
    )
    assert local.load() == task("mmlu").load(file)
    assert [question.id for question in local.load(offset=1)] == ["mmlu-test-1"]


@pytest.mark.parametrize(
    ("name", "hub", "config", "split"),
    [
        ("boolq", "google/boolq", None, "validation"),
        ("mmlu", "cais/mmlu", "all", "test"),
        ("gsm8k", "openai/gsm8k", "main", "test"),
        ("aime2024", "HuggingFaceH4/aime_2024", None, "train"),
        ("aime2025", "MathArena/aime_2025", None, "train"),
    ],
)
def test_without_a_file_the_dataset_is_loaded_from_the_hub(name, hub, config, split, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    calls = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **options: calls.append((names, options)) or [ROWS[name]]
    )
    (question,) = task(name).load(limit=5)
    task(name).load(split="other")
    assert question.id == f"{name}-{split}-0"
    assert calls == [((hub, config), {"split": split}), ((hub, config), {"split": "other"})]


def test_an_error_of_the_hub_suggests_a_local_file(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")

    def failing(*names, **options):
        raise ValueError("Unknown split\nand a long trace")

    monkeypatch.setattr(datasets, "load_dataset", failing)
    with pytest.raises(OpdAlignError, match=r"cais/mmlu .*split test.*Unknown split\. .*--data questions\.jsonl"):
        task("mmlu").load()


def test_without_a_connection_the_cache_is_read_at_once(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    constants = pytest.importorskip("huggingface_hub").constants
    # Port 1 of this machine refuses connections, as a machine without a network does.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    modes = []

    def load(*names, **options):
        modes.append((datasets.config.HF_HUB_OFFLINE, constants.is_offline_mode()))
        if len(modes) == 2:
            raise ConnectionError("Couldn't reach the Hub")
        return [MMLU_ROW]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(task("mmlu").load()) == 1
    with pytest.raises(
        OpdAlignError, match=r"no connection to the Hub, and no cached copy\. .*--data questions\.jsonl"
    ):
        task("mmlu").load()
    assert modes == [(True, True)] * 2
    assert not constants.is_offline_mode()


def test_without_datasets_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OpdAlignError, match=r"opd-align\[tasks\]"):
        task("mmlu").load()


def test_a_task_without_dataset_asks_for_a_file():
    with pytest.raises(OpdAlignError, match=r"'mine' has no dataset on the Hub; name a file: --data questions\.jsonl"):
        custom_task("mine", kind="number").load()


# Built-in and custom tasks


@pytest.mark.parametrize(
    ("typo", "meant"), [("bolq", "boolq"), ("MMLU", "mmlu"), ("aime_2025", "aime2025"), ("gsm8", "gsm8k")]
)
def test_a_typo_suggests_the_closest_name(typo, meant):
    with pytest.raises(OpdAlignError, match=f"no task '{typo}'.* did you mean '{meant}'"):
        task(typo)


def test_an_unknown_name_lists_all_tasks():
    with pytest.raises(OpdAlignError, match=r"only boolq, mmlu.*custom_task"):
        task("crossword")


def test_custom_columns_are_mapped(tmp_path):
    row = {"q": "Is it?", "gold": "no", "story": "It is not."}
    custom = custom_task(
        "mine", kind="true_false", question="q", answer="gold", passage="story", instruction="True or False?"
    )
    (question,) = custom.load(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert question == Question("mine-test-0", "Is it?", "False", {"passage": "It is not."})
    assert custom.user_message(question) == "True or False?\n\nPassage: It is not.\n\nQuestion: Is it?"


@pytest.mark.parametrize("kind", ["choice", "true_false", "number", "maths"])
def test_every_kind_requests_the_answer_on_the_last_line(kind, tmp_path):
    row = {"question": "q", "answer": "1", "choices": ["x", "y"]}
    custom = custom_task("mine", kind=kind)
    (question,) = custom.load(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert "The last line of your response should be of the following format: 'Answer: $" in custom.user_message(
        question
    )
    assert custom.verifier.judge(f"Answer: {question.answer}", question.answer, ["x", "y"]) is Verdict.CORRECT


def test_an_unknown_kind_and_unused_choices_are_refused():
    with pytest.raises(OpdAlignError, match=r"no kind 'math', .*did you mean 'maths'"):
        custom_task("mine", kind="math")
    with pytest.raises(OpdAlignError, match="only used with the kind 'choice'"):
        custom_task("mine", kind="number", choices="options")


# Adding a task touches `tasks/builtin.py` only


@pytest.mark.parametrize("command", ["analyze", "screen", "show-prompt"])
def test_a_task_in_the_builtin_table_is_listed_by_the_command_line(command, monkeypatch, capsys):
    monkeypatch.setitem(BUILTIN, "riddles", custom_task("riddles", kind="number"))
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    assert f"one of {', '.join(BUILTIN)}" in " ".join(capsys.readouterr().out.split())
    assert "riddles" in BUILTIN


def test_a_task_in_the_builtin_table_is_usable_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(BUILTIN, "riddles", custom_task("riddles", kind="number", instruction="Riddle:"))
    data = write_jsonl(tmp_path / "riddles.jsonl", [{"question": "How many legs has a cat?", "answer": "4"}])
    study = Study(read_config(None, ["task=riddles", f"questions.file={data}"]))
    assert task("riddles") is study.task is BUILTIN["riddles"]
    assert [(question.id, question.answer) for question in study.questions] == [("riddles-test-0", "4")]
    with pytest.raises(OpdAlignError, match="did you mean 'riddles'"):
        task("ridles")


def test_no_other_source_file_lists_the_tasks():
    files = [
        file for file in Path(opd_align.__file__).parent.rglob("*.py") if file.parts[-2:] != ("tasks", "builtin.py")
    ]
    assert len(files) > 50
    literals = [
        (file, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for file in files:
        names = {text for where, text in literals if where == file} & TASKS.keys()
        assert len(names) <= 1, f"{file} lists {names}"
    for file, text in literals:
        assert sum(name in re.split(r"[^\w]+", text) for name in TASKS) <= 2, f"{file} lists tasks: {text}"


# Grading tokens

WORDS = ["Answer:", "True", "False", "or", "<eos>"]
END = 4


class Decoder:
    """Decodes ids to words and counts its calls."""

    calls = 0

    def __call__(self, tokens):
        self.calls += 1
        assert END not in tokens
        return " ".join(WORDS[token] for token in tokens)


def test_tokens_are_decoded_verified_and_mapped_to_outcomes():
    grader = TextGrader(task("boolq"), Decoder(), {END})
    rollouts = Rollouts.of([[0, 1, END], [0, 2, END], [0, 1, 3, 2], [0, 1, END], [END], []])
    question = Question("q", "is it", "True")
    assert grader.verdicts(question, rollouts) == [
        Verdict.CORRECT,
        Verdict.INCORRECT,
        Verdict.UNPARSEABLE,
        Verdict.CORRECT,
        Verdict.UNPARSEABLE,
        Verdict.UNPARSEABLE,
    ]
    outcomes = grader.grade(question, rollouts)
    assert outcomes.dtype == np.int8
    assert outcomes.tolist() == [1, 0, 0, 1, 0, 0]


def test_without_an_answer_every_outcome_is_unknown():
    grader = TextGrader(task("boolq"), Decoder(), {END})
    outcomes = grader.grade(Question("q"), Rollouts.of([[0, 1, END], [3]]))
    assert outcomes.tolist() == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert grader.grade(Question("q"), Rollouts.of([])).shape == (0,)


def test_identical_completions_are_decoded_once():
    decoder = Decoder()
    TextGrader(task("boolq"), decoder, {END}).grade(
        Question("q", "", "True"), Rollouts.of([[0, 1, END]] * 32 + [[0, 2]])
    )
    assert decoder.calls == 2


def test_a_grader_passes_choices_and_has_a_fingerprint():
    grader = TextGrader(task("mmlu"), lambda tokens: "Answer: Paris", ())
    question = Question("q", "Capital of France?", "B", {"choices": ("London", "Paris")})
    assert grader.grade(question, Rollouts.of([[1]])).tolist() == [Outcome.CORRECT]
    assert grader.fingerprint == "mmlu:choice/6"
    assert TextGrader(custom_task("x", kind="true_false"), str).fingerprint == f"x:{TrueFalse().fingerprint}"


def test_importing_tasks_imports_no_heavy_library():
    heavy = {"torch", "datasets", "math_verify", "sympy", "pyarrow"}
    code = f"import sys, opd_align.tasks; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
