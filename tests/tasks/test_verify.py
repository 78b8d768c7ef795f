"""Verifiers: a table of realistic texts, properties that hold for any text, and TRL's reward signature."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import verdict_families, verdict_table, verdict_table_2, verdict_table_3, verdicts

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict
from opd_align.tasks.extract import boxed, strip_thinking
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.numbers import gold_number
from opd_align.types import OpdAlignError

VERDICT_OF = {"C": Verdict.CORRECT, "I": Verdict.INCORRECT, "P": Verdict.UNPARSEABLE, "U": Verdict.UNKNOWN}
KINDS = [Choice(), TrueFalse(), Number(), Maths()]
BY_NAME = pytest.mark.parametrize("verifier", KINDS, ids=lambda verifier: verifier.__name__)
GOLDS = {"choice": "B", "true_false": "True", "number": "18", "maths": "204"}

TABLE = [
    *((Choice(), *row, verdicts.CAPITALS) for row in verdicts.CHOICE),
    *((Choice(), *row) for row in verdicts.CHOICE_OF),
    *((TrueFalse(), *row, None) for row in verdicts.TRUE_FALSE),
    *((Number(), *row, None) for row in verdicts.NUMBER),
    *((Maths(), *row, None) for row in verdicts.MATHS),
]


@pytest.mark.parametrize(("verifier", "text", "gold", "verdict", "choices"), TABLE)
def test_verdicts_match_the_table(verifier, text, gold, verdict, choices):
    assert verifier.judge(text, gold, choices) is VERDICT_OF[verdict]


FAMILIES = [
    *((Choice(), *row, verdicts.CAPITALS) for row in verdict_families.CHOICE),
    *((TrueFalse(), *row, None) for row in verdict_families.TRUE_FALSE),
    *((Number(), *row, None) for row in verdict_families.NUMBER),
    *((Maths(), *row, None) for row in verdict_families.MATHS),
]


@pytest.mark.parametrize(("verifier", "text", "gold", "verdict", "choices"), FAMILIES)
def test_verdicts_on_families_of_outputs_that_simple_rules_misread(verifier, text, gold, verdict, choices):
    given = verifier.judge(text, gold, choices)
    if verdict == "N":
        assert given in (Verdict.INCORRECT, Verdict.UNPARSEABLE)
    else:
        assert given is VERDICT_OF[verdict]


def test_the_table_is_large_and_contains_every_verdict_for_every_kind():
    for kind in KINDS:
        rows = [verdict for verifier, _, _, verdict, _ in TABLE if verifier == kind]
        assert len(rows) >= 60
        assert set(rows) == set(VERDICT_OF)


def test_a_human_reader_agrees_on_a_large_table_written_without_knowledge_of_the_rules():
    """At most 0.3 % false correct and 3 % false incorrect, on all tables together; the families are not counted."""
    kinds = {kind.__name__: kind for kind in KINDS}
    rows = [(kinds[c.kind], c.output, c.gold, c.expected, c.choices) for c in verdict_table.VERDICT_TABLE]
    rows += [
        (kinds[kind], text, gold, expected, choices)
        for kind, gold, choices, text, expected in (*verdict_table_2.CASES, *verdict_table_3.CASES)
    ]
    rows += [(kind, text, gold, VERDICT_OF[verdict].value, choices) for kind, text, gold, verdict, choices in TABLE]
    assert len(rows) >= 800
    given = [(expected, kind.judge(text, gold, choices), text) for kind, text, gold, expected, choices in rows]
    false_correct = [text for expected, verdict, text in given if verdict is Verdict.CORRECT and expected != "correct"]
    false_incorrect = [
        text for expected, verdict, text in given if verdict is not Verdict.CORRECT and expected == "correct"
    ]
    assert len(false_correct) <= 0.003 * len(rows), false_correct
    assert len(false_incorrect) <= 0.03 * len(rows), false_incorrect
    assert all(verdict is Verdict.UNKNOWN for expected, verdict, _ in given if expected == "unknown")


def test_the_third_table_is_read_as_its_reader_did():
    kinds = {kind.__name__: kind for kind in KINDS}
    misread = {
        text
        for kind, gold, choices, text, expected in verdict_table_3.CASES
        if (kinds[kind].judge(text, gold, choices) is Verdict.CORRECT) != (expected == "correct")
    }
    assert len(verdict_table_3.CASES) >= 560
    assert misread == verdict_table_3.MISREAD


# Properties

# Repeated, these make naive patterns backtrack from every position.
LONG = [
    "Answer: ",
    "the answer to ",
    "\\boxed{",
    "<think>",
    "(A) ",
    "1,000 ",
    "**answer**\n",
    "\\text{",
    " ",
    "9",
    "✅ ",
]
LONG += ["would, ", "$x=1$, ", "[x] A\n", '{"answer": ', "not a but ", "la respuesta ", "I, II "]

# Random characters hardly ever match a pattern; these pieces do.
PIECES = [
    *("Answer:", " the answer is ", "\\boxed{", "}", "{", "<think>", "</think>", "B", "(A)", "A", "True", "no", " or "),
    *("18", "1,234", "-", "/", "=", "\\frac{1}{2}", "^", "$", "**", "\n", "####", ".", " ", "\\text{", "Paris", "²"),
    *("<answer>", "is correct", "$LETTER", "<|im_end|>", "\\sqrt{2}", "x", "not"),
    *(
        "[x] ",
        '{"answer": ',
        " would ",
        "; ",
        " but ",
        "> ",
        "$x=2$",
        " no es ",
        "不是",
        "? No, ",
        "II",
        " i.e. ",
        "%",
        "→",
    ),
]
any_text = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
any_gold = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=2)
)
choice_lists = st.one_of(st.none(), st.lists(st.sampled_from(["Paris", "18", "A", "", "B and C"]), max_size=5))


@BY_NAME
@settings(max_examples=40, deadline=None)
@given(text=any_text, gold=any_gold, choices=choice_lists)
def test_a_verifier_never_raises(verifier, text, gold, choices):
    assert isinstance(verifier.judge(text, gold, choices), Verdict)


@BY_NAME
@settings(max_examples=20, deadline=None)
@given(text=any_text, gold=st.sampled_from([None, "", "  ", [], {}, float("nan")]))
def test_without_a_readable_gold_answer_every_verdict_is_unknown(verifier, text, gold):
    assert verifier.judge(text, gold) is Verdict.UNKNOWN


@BY_NAME
@settings(max_examples=20, deadline=None)
@given(text=any_text)
def test_with_a_gold_answer_no_verdict_is_unknown(verifier, text):
    if verifier.__name__ != "maths":  # math-verify may fail
        assert verifier.judge(text, GOLDS[verifier.__name__]) is not Verdict.UNKNOWN


FORMATS = [
    "Answer: {}",
    "**Answer:** {}",
    "**Answer: {}**",
    "Some thoughts first.\n\nAnswer: {}.",
    "<think>Answer: nonsense</think>\n\nAnswer: {}",
    "nonsense, Answer: nonsense</think>\nAnswer: {}",
    "### Final Answer\n\n{}",
    "Answer: $\\boxed{{{}}}$",
    "\\boxed{{{}}}",
    "Hence \\boxed{{\\text{{{}}}}}.",
    "The answer is {}.",
    "Therefore, the correct answer is **{}**.",
    "<answer>{}</answer>",
    "Answer: {}<|im_end|>",
    "{}",
]


@pytest.mark.parametrize("template", FORMATS)
@settings(max_examples=5, deadline=None)
@given(
    stated=st.integers(-99999, 99999),
    gold=st.integers(-99999, 99999),
    letters=st.tuples(*[st.sampled_from("ABCD")] * 2),
)
def test_the_format_of_an_answer_does_not_change_its_verdict(template, stated, gold, letters):
    for verifier, given_answer, wanted in [
        (Number(), stated, gold),
        (Number(), f"{stated:,}", stated),
        (Maths(), stated, gold),
        (Choice(), letters[0], letters[1]),
        (TrueFalse(), stated > 0, gold > 0),
    ]:
        expected = verifier.canonical(given_answer) == verifier.canonical(wanted)
        verdict = verifier.judge(template.format(given_answer), wanted)
        assert verdict is (Verdict.CORRECT if expected else Verdict.INCORRECT)


@given(top=st.integers(-(10**9), 10**9), bottom=st.integers(1, 10**6))
def test_a_canonical_number_is_read_back_as_the_same_value(top, bottom):
    value = Fraction(top, bottom)
    assert gold_number(canonical_number(value)) == value


@given(
    before=st.text("ab{}\\ ", max_size=10),
    inner=st.recursive(st.text("xy ", max_size=3), lambda s: s.map("{{{}}}".format)),
)
def test_a_box_keeps_its_inner_braces(before, inner):
    text = f"{before} \\boxed{{{inner}}} rest"
    start = text.index("\\boxed{") + len("\\boxed{")
    assert boxed(text, start) == (inner.strip(), len(text) - len(" rest"))


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "\nb"),
        ("a</think>b", "b"),
        ("<think>a", None),
        ("a<think>b", None),
        ("a<think>b</think>c", "a\nc"),
        ("a</think>b<think>c", None),
        ("a<think>b</think>c</think>d", "d"),
        ("<thinking>a</thinking>b", "\nb"),
        ("b<|im_end|><think>", "b"),
    ],
)
def test_thinking_is_removed_and_unfinished_thinking_gives_none(text, visible):
    assert strip_thinking(text) == visible


@BY_NAME
@pytest.mark.parametrize("piece", LONG)
def test_a_megabyte_takes_well_under_a_second(verifier, piece):
    text = piece * (1_000_000 // len(piece))
    verifier.judge(text, GOLDS[verifier.__name__])  # a worker of math-verify starts with the first expression
    start = time.process_time()
    verifier.judge(text, GOLDS[verifier.__name__])
    assert time.process_time() - start < 1.0


def test_verdicts_are_the_same_in_threads():
    rows = [(text, gold) for text, gold, *_ in verdicts.MATHS if "\\" in str(gold)]
    assert len(rows) > 10
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(lambda row: Maths().judge(*row), rows))
    assert threaded == [Maths().judge(*row) for row in rows]


@pytest.mark.parametrize(
    ("verifier", "answer", "canonical"),
    [
        (Choice(), 2, "C"),
        (Choice(), "c", "C"),
        (Choice(), "2", "C"),
        (Choice(), "Berlin", "C"),
        (Choice(), "(C) Berlin", "C"),
        (Choice(), 4, None),
        (Choice(), -1, None),
        (Choice(), "E", None),
        (TrueFalse(), "no", "False"),
        (TrueFalse(), 1, "True"),
        (Number(), "so it is\n#### 1,234", "1234"),
        (Number(), 0.5, "0.5"),
        (Number(), "2/6", "1/3"),
        (Number(), -0.25, "-0.25"),
        (Maths(), "007", "7"),
        (Maths(), 7, "7"),
        (Maths(), " \\sqrt{2} ", "\\sqrt{2}"),
    ],
)
def test_canonical_forms_of_gold_answers(verifier, answer, canonical):
    assert verifier.canonical(answer, verdicts.CAPITALS if verifier == Choice() else None) == canonical


def test_a_digit_that_is_both_an_index_and_a_choice_is_ambiguous():
    assert Choice().canonical("1", ["1", "0", "2", "3"]) is None
    assert Choice().canonical("1", ["0", "1", "2", "3"]) == "B"


# TRL

AS_TRL_CALLS = {"completion_ids": [[1], [2], [3]], "trainer_state": object(), "log_extra": print, "log_metric": print}


def test_a_verifier_is_a_reward_function_as_trl_calls_it():
    """`GRPOTrainer._calculate_rewards` of TRL 1.16: keywords only, every column of the data set, some of its own."""
    rewards = Choice()(
        prompts=["p", "p", "p"],
        completions=["Answer: B", "Answer: C", "no idea"],
        answer=["B", 1, "B"],
        choices=[verdicts.CAPITALS] * 3,
        subject=["geography"] * 3,
        **AS_TRL_CALLS,
    )
    assert rewards == [1.0, 0.0, 0.0]


def test_an_unknown_verdict_gives_none_not_zero():
    assert Number()(completions=["Answer: 18", "Answer: 18"], answer=[None, "18"]) == [None, 1.0]


def test_the_last_assistant_message_of_a_conversation_is_graded():
    conversation = [
        {"role": "assistant", "content": "Answer: 1"},
        {"role": "tool", "content": "Answer: 2"},
        {"role": "assistant", "content": "Answer: 18"},
        {"role": "tool", "content": "Answer: 3"},
    ]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Answer: "}, {"type": "text", "text": "18"}]}]
    calls = [{"role": "assistant", "content": None}]
    completions = [conversation, parts, calls, []]
    assert Number()(completions=completions, answer=["18"] * 4) == [1.0, 1.0, 0.0, 0.0]


@BY_NAME
def test_every_verifier_accepts_the_same_columns(verifier):
    gold = GOLDS[verifier.__name__]
    columns = {"prompts": ["p"], "completions": [f"Answer: {gold}"], "answer": [gold], "choices": [None]}
    assert verifier(**columns, **AS_TRL_CALLS) == [1.0]


@BY_NAME
def test_a_verifier_has_a_name_and_a_fingerprint_and_can_be_pickled(verifier):
    # TRL 1.16 names the metric rewards/<name>/mean after it (`get_callable_name`).
    assert getattr(verifier, "__name__", None) in GOLDS
    assert verifier.fingerprint == f"{verifier.__name__}/6"
    assert pickle.loads(pickle.dumps(verifier)) == verifier


def test_a_training_set_without_answers_is_refused():
    with pytest.raises(OpdAlignError, match="column 'answer'"):
        Number()(prompts=["p"], completions=["Answer: 18"])


def test_a_column_of_another_length_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        Number()(completions=["Answer: 18", "Answer: 18"], answer=["18"])


def test_a_last_line_without_words_is_no_error():
    assert TrueFalse().judge("0? 0\r:", "true") is not Verdict.CORRECT
