"""Two tables of outputs that the rules were not written with, each by somebody who had not read the rules.

`verdict_table_4.jsonl` has texts related to those of `verdict_table_3.py`, with which the rules were written;
`verdict_table_5.jsonl` has none. Their figures are in docs/benchmarks.md. Once a rule is written with one of these
tables, it is no longer blind.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict

SUPPORT = Path(__file__).parents[1] / "support"
VERIFIERS = {"number": Number(), "maths": Maths(), "truth": TrueFalse(), "choice": Choice()}


@pytest.mark.parametrize(("table", "rows", "falsely_incorrect"), [(4, 848, 25), (5, 891, 29)])
def test_nothing_is_falsely_correct_and_few_are_falsely_incorrect(table, rows, falsely_incorrect):
    text = (SUPPORT / f"verdict_table_{table}.jsonl").read_text(encoding="utf-8")
    cases = [json.loads(line) for line in text.splitlines()]
    assert len(cases) == rows
    accepted = [
        VERIFIERS[case["kind"]].judge(case["output"], case["gold"], case.get("choices")) == Verdict.CORRECT
        for case in cases
    ]
    pairs = list(zip(cases, accepted, strict=True))
    assert [case["output"] for case, correct in pairs if correct and not case["correct"]] == []
    assert sum(case["correct"] and not correct for case, correct in pairs) <= falsely_incorrect
