"""Tables of outputs whose misread ones are counted.

`verdict_table_4.jsonl` to `verdict_table_6.jsonl` were written by people who had not read the rules, and measured
before the rules saw them; what was measured then is in docs/benchmarks.md. Once a rule is written with a table, it is
no longer blind: the counts here are those of the present rules. `verdict_endings.jsonl` is by the author of the rules:
short outputs by how a text ends, about one in eight of them a negation or another neighbour that does not give the
answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict

SUPPORT = Path(__file__).parents[1] / "support"
VERIFIERS = {"number": Number(), "maths": Maths(), "truth": TrueFalse(), "choice": Choice()}


@pytest.mark.parametrize(
    ("table", "rows", "falsely_incorrect"),
    [
        ("verdict_table_4", 848, 3),
        ("verdict_table_5", 891, 2),
        ("verdict_table_6", 900, 12),
        ("verdict_endings", 2716, 34),
    ],
)
def test_nothing_is_falsely_correct_and_few_are_falsely_incorrect(table, rows, falsely_incorrect):
    text = (SUPPORT / f"{table}.jsonl").read_text(encoding="utf-8")
    cases = [json.loads(line) for line in text.splitlines()]
    assert len(cases) == rows
    accepted = [
        VERIFIERS[case["kind"]].judge(case["output"], case["gold"], case.get("choices")) == Verdict.CORRECT
        for case in cases
    ]
    pairs = list(zip(cases, accepted, strict=True))
    assert [case["output"] for case, correct in pairs if correct and not case["correct"]] == []
    assert sum(case["correct"] and not correct for case, correct in pairs) <= falsely_incorrect
