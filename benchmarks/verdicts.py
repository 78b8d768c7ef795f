r"""Verdicts compared with a human reader's: our verifiers, plain math-verify, and filters as in lm-eval.

The outputs are the tables of the tests. The others are simple equivalents of what is common: math-verify on the whole
text (numbers and expressions); for numbers, the last number of the text; for choices, the last letter in parentheses
or after "answer is"; for true and false, the last such word. Time is per verdict, and for texts of a megabyte.

    python benchmarks/verdicts.py [--quick] [--json FILE]

`--quick` measures fewer texts of a megabyte.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import verdict_table, verdict_table_2, verdict_table_3, verdicts

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict, Verifier
from opd_align.tasks.maths import forget_answers
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.numbers import gold_number

TESTS = Path(__file__).parents[1] / "tests"
VERIFIERS: dict[str, Verifier] = {
    "true_false": TrueFalse(),
    "choice": Choice(),
    "number": Number(),
    "maths": Maths(),
}
GOLDS = {"true_false": "True", "choice": "B", "number": "18", "maths": "204"}
PIECES = [
    *(
        "(A) ",
        "Answer: ",
        "\\boxed{",
        "{",
        "}",
        "9",
        "1,000 ",
        "\\boxed{1}",
        "<think>",
        "**answer**\n",
        "the answer to ",
    ),
    *(
        "B is ",
        "not ",
        "答案",
        "½",
        "²",
        "ﷺ",
        "wait, ",
        "that's wrong ",
        "\\frac",
        "\\tan(",
        "x=5,",
        "1 = ",
        "five ",
        "| ",
    ),
    *("A\n", "true ", "\\boxed{" + "{" * 500 + "}" * 500 + "}", "I choose ", ". ", "10^", "<think></think>", "$", "~~"),
]


class Case(NamedTuple):
    kind: str
    gold: Any
    choices: tuple[str, ...] | None
    output: str
    correct: bool


def cases() -> list[Case]:
    """Every output whose gold answer can be judged."""
    own = {
        "choice": [(*row, tuple(verdicts.CAPITALS)) for row in verdicts.CHOICE]
        + [(*row[:3], tuple(row[3])) for row in verdicts.CHOICE_OF],
        "true_false": [(*row, None) for row in verdicts.TRUE_FALSE],
        "number": [(*row, None) for row in verdicts.NUMBER],
        "maths": [(*row, None) for row in verdicts.MATHS],
    }
    first = [
        Case(kind, gold, choices, output, verdict == "C")
        for kind, rows in own.items()
        for output, gold, verdict, choices in rows
        if verdict != "U"
    ]
    second = [
        Case(case.kind, case.gold, case.choices, case.output, case.expected == "correct")
        for case in verdict_table.VERDICT_TABLE
        if case.expected != "unknown"
    ]
    third = [Case(*row[:4], row[4] == "correct") for row in (*verdict_table_2.CASES, *verdict_table_3.CASES)]
    return first + second + third + [case for number in (4, 5, 6) for case in numbered(number)]


def numbered(number: int) -> list[Case]:
    """The outputs of `verdict_table_<number>.jsonl`."""
    lines = (TESTS / f"support/verdict_table_{number}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Case("true_false" if row["kind"] == "truth" else row["kind"], row["gold"], row.get("choices"), row["output"],
            row["correct"])
        for row in map(json.loads, lines)
    ]  # fmt: skip


def ours(case: Case) -> bool:
    return VERIFIERS[case.kind].judge(case.output, case.gold, case.choices) is Verdict.CORRECT


def plain_math_verify(case: Case) -> bool:
    import math_verify

    gold = math_verify.parse(f"${case.gold}$")
    return bool(math_verify.verify(gold, math_verify.parse(case.output)))


def last_match(case: Case) -> bool:
    """What the filters of lm-eval's tasks do, more or less: the last thing that looks like an answer."""
    gold = VERIFIERS[case.kind].canonical(case.gold, case.choices)
    if case.kind == "number":
        numbers = re.findall(r"-?[$0-9.,]{2,}|-?[0-9]+", case.output)
        value = gold_number(numbers[-1].replace("$", "").rstrip(".,")) if numbers else None
        return value is not None and canonical_number(value) == gold
    if case.kind == "maths":
        boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", case.output)
        return bool(boxes) and re.sub(r"\s", "", boxes[-1]) == re.sub(r"\s", "", str(case.gold))
    if case.kind == "choice":
        letters = re.findall(r"answer is \(?([A-J])\)?|\(([A-J])\)|Answer: ?\(?([A-J])\b", case.output)
        return bool(letters) and "".join(letters[-1]) == gold
    words = re.findall(r"\b(true|false|yes|no)\b", case.output, re.IGNORECASE)
    return bool(words) and {"true": "True", "yes": "True"}.get(words[-1].lower(), "False") == gold


def errors(judge: Callable[[Case], bool], table: list[Case]) -> tuple[int, int]:
    """Numbers of false correct and false incorrect verdicts."""
    verdicts_on = [(case.correct, judge(case)) for case in table]
    return (
        sum(given and not wanted for wanted, given in verdicts_on),
        sum(wanted and not given for wanted, given in verdicts_on),
    )


def seconds(verifier: Verifier, text: str, gold: Any, choices: Any = None) -> float:
    start = time.perf_counter()
    verifier.judge(text, gold, choices)
    return time.perf_counter() - start


def repeated_answers(n: int) -> dict[str, float]:
    """Verdicts on `n` outputs with 20 different answers, as rollouts of one question have them: cached and not."""
    gold = "\\sqrt{7}"
    outputs = [
        f"Step {i} gives it, so the answer is \\boxed{{{1 + i % 20}\\sqrt{{7}}/{1 + i % 20}}}." for i in range(n)
    ]
    verifier = Maths()
    verifier.judge(outputs[0], gold)  # the worker is running
    uncached = []
    for output in outputs[:100]:
        forget_answers()
        uncached.append(seconds(verifier, output, gold))
    cached_ms, uncached_ms = (
        1e3 * statistics.median(times) for times in ([seconds(verifier, each, gold) for each in outputs], uncached)
    )
    return {"repeated_answer_ms": cached_ms, "uncached_over_repeated": uncached_ms / cached_ms}


def measure(*, quick: bool) -> dict[str, float]:
    table = cases()
    exact = [case for case in table if case.kind in ("number", "maths")]
    results: dict[str, float] = {"outputs": len(table), "number_and_maths_outputs": len(exact)}
    compared: list[tuple[str, Callable[[Case], bool], list[Case]]] = [
        ("ours", ours, table),
        ("last_match", last_match, table),
        ("ours_number_and_maths", ours, exact),
        ("math_verify_number_and_maths", plain_math_verify, exact),
        ("last_match_number_and_maths", last_match, exact),
    ]
    for name, judge, rows in compared:
        false_correct, false_incorrect = errors(judge, rows)
        results[f"{name}_agreement"] = 1 - (false_correct + false_incorrect) / len(rows)
        results[f"{name}_false_correct"] = false_correct / len(rows)
        results[f"{name}_false_incorrect"] = false_incorrect / len(rows)
    times: dict[str, list[float]] = {"median_ms": [], "median_without_caches_ms": []}
    for name, each in times.items():
        for case in table:
            if name != "median_ms":
                forget_answers()
            each.append(seconds(VERIFIERS[case.kind], case.output, case.gold, case.choices))
        results[name] = 1e3 * statistics.median(each)
    results |= repeated_answers(500 if quick else 3000)
    Maths().judge("\\boxed{\\sqrt{5}}", "\\sqrt{2}")  # the worker is running
    longest = 0.0
    for piece in PIECES[:: 4 if quick else 1]:
        text = piece * (1_000_000 // len(piece))
        for kind, verifier in VERIFIERS.items():
            longest = max(longest, seconds(verifier, text, GOLDS[kind]))
            longest = max(longest, seconds(verifier, f"{text}\n\\boxed{{{piece * 20}}}", GOLDS[kind]))
    nested = "\\tan(" * 8 + "1" + ")" * 8
    results["longest_megabyte_s"] = longest
    results["nested_tangents_s"] = seconds(Maths(), f"\\boxed{{{nested}}}", "\\sqrt{2}")
    return results


TARGETS = {
    "ours_false_correct": "≤ 0.003",
    "ours_false_incorrect": "≤ 0.03",
    "median_ms": "≤ 0.2",
    "longest_megabyte_s": "≤ 1",
    "outputs": "≥ 800",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer texts of a megabyte")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as one flat object")
    arguments = parser.parse_args()
    results = measure(quick=arguments.quick)
    shown = Table("measure", "value", "target", title="verdicts compared with a human reader's")
    for name, value in results.items():
        shown.add_row(name, f"{value:,.4g}", TARGETS.get(name, ""))
    Console().print(shown)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
