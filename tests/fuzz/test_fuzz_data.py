"""Data files, fuzzed: every file gives exactly its questions or is refused in one line that names the file.

`FUZZ=long` runs all 1,200 cases; without it, a part with the same seeds.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.fuzzing import cases, mutated, outcome

from opd_align.tasks import Task, custom_task
from opd_align.types import Question, is_valid_text

Row = dict[str, Any]
FORMATS = ("jsonl", "json", "csv", "parquet")
TEXTS = [
    "Two and two?",
    'Quoted "words", commas',
    "Zwölf 十二 \U0001f600",
    "line\nbreak",
    "[1, 2]",
    "{x}",
    "=1+1",
    "' OR 1",
    "\t tab",
    "x" * 140_000,
    "\\ud800 as text",
    "a\u2028b",
    "\ufeffmark",
    "0",
    "null",
    "\x1b[31mred",
]
ANSWERS: dict[str, list[tuple[Any, str | None]]] = {
    "number": [("4", "4"), ("1,000", "1000"), ("2.50", "2.5"), ("#### 7", "7"), ("-3", "-3"), ("", None)],
    "true_false": [("True", "True"), ("no", "False"), ("", None)],
    "choice": [("A", "A"), ("b", "B"), ("", None)],
    "maths": [("4", "4"), ("025", "25"), ("", None)],
}
"""Kind → answers as written, and in canonical form."""


def make_rows(rng: random.Random) -> tuple[str, list[Row], list[Question]]:
    """A kind of answer, rows, and the questions that they contain."""
    kind = rng.choice(list(ANSWERS))
    rows, questions = [], []
    for number in range(rng.randint(1, 6)):
        text = f"{number} {rng.choice(TEXTS)}"
        written, answer = rng.choice(ANSWERS[kind])
        row: Row = {"question": text, "answer": written, "note": rng.choice(("", "x", "[", '"'))}
        extra: dict[str, Any] = {}
        name = f"mine-test-{number}"
        if kind == "choice":
            row["choices"] = ["one", f"two, {number}"]
            extra = {"choices": ("one", f"two, {number}")}
        if rng.random() < 0.5:
            row["id"] = name = f"own {number}"
        rows.append(row)
        questions.append(Question(name, text.strip(), answer, extra))
    return kind, rows, questions


def write_rows(file: Path, rows: list[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if file.suffix == ".jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif file.suffix == ".json":
        content = json.dumps(rows).encode()
    elif file.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="")
        writer.writeheader()
        writer.writerows(
            {**row, **({"choices": json.dumps(row["choices"])} if "choices" in row else {})} for row in rows
        )
        content = text.getvalue().encode()
    else:
        buffer = io.BytesIO()
        pq.write_table(
            pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]),
            buffer,
            write_page_checksum=True,
        )
        content = buffer.getvalue()
    file.write_bytes(content)


def edit_row(key: str, *values: Any) -> Callable[[random.Random, list[Row]], None]:
    def edit(rng: random.Random, rows: list[Row]) -> None:
        rng.choice(rows)[key] = rng.choice(values)

    return edit


def repeat_id(rng: random.Random, rows: list[Row]) -> None:
    rows.append({**rows[0], "question": "another one"})
    rows[0]["id"] = rows[-1]["id"] = "same"


def remove_question(rng: random.Random, rows: list[Row]) -> None:
    rng.choice(rows).pop("question")


ROW_DEFECTS: dict[str, Callable[[random.Random, list[Row]], None]] = {
    "no question": remove_question,
    "empty question": edit_row("question", "", "  ", "\n"),
    "NUL": edit_row("question", "a\0b"),
    "same id": repeat_id,
}
JSON_DEFECTS: dict[str, Callable[[random.Random, list[Row]], None]] = {
    "question is not text": edit_row("question", 5, 1.5, True, ["x"], {"a": "b"}, None),
    "surrogate": edit_row("question", "a\ud800", "\udfff"),
    "surrogate in the answer": edit_row("answer", "\ud800"),
    "answer is not readable": edit_row("answer", [1], {"a": 1}, [[]]),
    "id": edit_row("id", [1], {"a": 1}, True, "\ud800"),
}
CHOICE_DEFECTS: dict[str, Callable[[random.Random, list[Row]], None]] = {
    "choices": edit_row("choices", ["x"], [], "abc", ["x"] * 27, ["x", ""]),
}


def damage_text(rng: random.Random, file: Path) -> None:
    """Damages a file in a way that its format cannot represent."""
    content = file.read_bytes()
    if file.suffix == ".parquet":
        cut = rng.randrange(len(content))
        damaged = rng.choice(
            (
                content[:cut],
                content[4:],
                content[:4] + content[-4:],
                b"",
                content[: cut // 2] + content[cut // 2 + 40 :],
            )
        )
    elif file.suffix == ".csv":
        damaged = content + rng.choice(
            (b'"never closed', b"\xff\xfe,1\r\n", b"too,many" + b",cells" * 20 + b"\r\n", b'"a"b,c\r\n')
        )
    else:
        damaged = content + rng.choice(
            (b"{", b"\xff", b'{"question": }', b"[1]", b"5", b'{"a": ' + b"[" * 50_000, b"nul")
        )
    file.write_bytes(damaged)


def defective_file(seed: int, folder: Path) -> tuple[Task, Path, list[Question], str]:
    """A file, the questions in it, and its defect, if any."""
    rng = random.Random(f"data {seed}")
    kind, rows, questions = make_rows(rng)
    file = folder / f"{seed}.{rng.choice(FORMATS)}"
    defects: dict[str, Callable[[random.Random, list[Row]], None]] = dict(ROW_DEFECTS)
    if file.suffix in (".jsonl", ".json"):
        defects |= JSON_DEFECTS
    if kind == "choice" and file.suffix != ".parquet":
        defects |= CHOICE_DEFECTS
    defect = rng.choice(["", *defects, "damaged"]) if rng.random() < 0.7 else ""
    if defect in defects:
        defects[defect](rng, rows)
    write_rows(file, rows)
    if defect == "damaged":
        damage_text(rng, file)
    return custom_task("mine", kind=kind), file, questions, defect


def test_a_file_is_read_exactly_or_refused_by_name(tmp_path):
    accepted = refused = 0
    for seed in cases(250, 700):
        task, file, questions, defect = defective_file(seed, tmp_path)
        case = f"{file.name} {task.verifier.fingerprint} {defect}"
        loaded, message = outcome(case, lambda task=task, file=file: task.load(file))
        assert (loaded is None) == bool(defect), f"{case}: {message or 'accepted'}"
        if loaded is None:
            assert message is not None
            assert file.name in message, f"{case}: {message}"
            refused += 1
        else:
            assert loaded == questions, case
            accepted += 1
        file.unlink()
    assert min(accepted, refused) > 80


PIECES = [
    b'"',
    b"'",
    b",",
    b"\n",
    b"\r",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"\\",
    b"\\ud800",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"question": "x"',
    b'{"question": "y", "answer": 1}\n',
    b"[" * 3000,
    b"PAR1",
    b"\x1a\x00",
    b'"id": "same", ',
    b"question,",
    b";",
]


def test_a_damaged_file_gives_valid_questions_or_one_line(tmp_path):
    accepted = refused = 0
    for seed in cases(150, 500):
        rng = random.Random(f"bytes {seed}")
        kind, rows, questions = make_rows(rng)
        file = tmp_path / f"{seed}.{rng.choice(FORMATS)}"
        write_rows(file, [row | {"question": row["question"][:200]} for row in rows])
        file.write_bytes(mutated(file.read_bytes(), rng, PIECES))
        task = custom_task("mine", kind=kind)
        loaded, _ = outcome(file.name, lambda task=task, file=file: task.load(file))
        if loaded is None:
            refused += 1
            continue
        accepted += 1
        assert loaded
        assert len({question.id for question in loaded}) == len(loaded)
        for question in loaded:
            assert question.text.strip()
            assert is_valid_text(question.text + question.id + (question.answer or ""))
            assert task.messages(question)
        if file.suffix == ".parquet":  # its checksums find every change
            assert [each.text for each in loaded] == [each.text[:200].strip() for each in questions], file.name
        if file.suffix == ".jsonl":
            lines = [json.loads(line) for line in io.StringIO(file.read_bytes().decode("utf-8-sig")) if line.strip()]
            assert [each.text for each in loaded] == [line["question"].strip() for line in lines]
        file.unlink()
    assert min(accepted, refused) > 20
