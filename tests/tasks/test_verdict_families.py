r"""Verdicts by family: what an output does with an answer, with several outputs for each way of doing it.

Each family lists outputs that give the gold answer and outputs that do not. "Not" includes no answer at all.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from opd_align.tasks import Choice, Maths, Number, TrueFalse, Verdict, Verifier
from opd_align.tasks.languages import in_english
from opd_align.tasks.prepare import prepared
from opd_align.tasks.statements import after_denials, is_aside

CAPITALS = ("London", "Berlin", "Paris", "Madrid")
COUNTS = ("4", "5", "6", "7")
AUTHORS = ("Herman Melville", "Mark Twain", "Henry James", "Walt Whitman")
STATEMENTS = ("I only", "II only", "I and II only", "I, II, and III")
TRUTHS = ("True, True", "False, False", "True, False", "False, True")
TRENDS = ("It rises", "It falls", "It does not change", "It cannot be determined")
FACTORS = ("x + 3", "x - 3", "2x + 1", "x^2")


class Family(NamedTuple):
    verifier: Verifier
    gold: str
    given: list[str]
    not_given: list[str]
    choices: tuple[str, ...] | None = None


FAMILIES = {
    "a plain last sentence": Family(
        Number(),
        "42",
        [
            "Tom has 42 pens.",
            "tom has 42 pens",
            "Each box holds 6 pens.\n\nTom ends up with 42 pens in total.",
            "7 boxes of 6 pens make 42 pens.",
            "After giving away 8 of his 50 pens, Tom has 42 left.",
            "Tom had 50 pens and gave away 8, leaving him with 42.",
            "Tom has 42 pens: 7 boxes with 6 in each.",
            "Tom has 42 pens, 12 more than Ann.",
            "That leaves 42. Nice and simple!",
            "1. Boxes: 7\n2. Pens per box: 6\n3. Total pens: 7 × 6 = 42",
        ],
        [
            "Tom has 42 pens, so he shares them among 6 friends.\n\nEach friend gets 7.",
            "We start with 42.",
            "Let x = 42.",
            "One possible value is 42.",
            "42 is too low.",
            "It came 42nd.",
            "Nearly 42.",
        ],
    ),
    "what would be the case otherwise": Family(
        Number(),
        "42",
        [
            "He has 42 pens. Had he bought another box, he would have 48.",
            "He has 42 pens. (With another box he'd have 48.)",
            "He has 42 pens. For comparison, Ann has 30.",
            "He has 42 pens, which would fill 7 boxes.",
            "He has 42 pens.\n\nSome remarks:\n1. With another box it would be 48.\n2. Ann has 30.",
        ],
        [
            "If he had bought another box, he would have 42.",
            "He would have 42 pens if he had bought another box.",
            "He has 36 pens. With another box, he would have 42.",
            "Counting the lost ones, there would be 42.",
        ],
    ),
    "somebody else's answer": Family(
        Number(),
        "40",
        ["The textbook gives 42, but I get 40.", "I first got 42, but the correct result is 40."],
        ["My friend says 40. I don't know.", "The book says 40; I get 42.", "Whoever says 40 is mistaken."],
    ),
    "not this but that": Family(
        Number(),
        "41",
        [
            "not 42 but 41",
            "Neither 40 nor 42: 41.",
            "It isn't 42; it's 41.",
            "Nicht 42, sondern 41.",
            "No es 42, sino 41.",
            "Ce n'est pas 42 mais 41.",
            "Не 42, а 41.",
            "答案不是42，而是41。",
        ],
        ["not 41 but 42", "41? No, 42.", "Nicht 41, sondern 42.", "No es 41, sino 42.", "答案不是41，而是42。"],
    ),
    "a number in another language": Family(
        Number(),
        "42",
        [
            "La respuesta es 42.",
            "Respuesta: cuarenta y dos",
            "La réponse est quarante-deux.",
            "Tom hat zweiundvierzig Stifte.",
            "Таким образом, у Тома 42 ручки.",
            "A resposta final é 42.",
            "Quindi Tom ha 42 penne.",
            "答えは四十二です。",
            "所以汤姆一共有42支笔。",
        ],
        ["menos de 42", "mindestens 42", "plus de 42", "больше 42", "超过42", "42未満", "casi 42", "Vielleicht 42."],
    ),
    "formats of numbers": Family(
        Number(),
        "1500",
        ["1.500 €", "Er verdient 1.500 Euro.", "1.5k", "MD (1500)", "15 hundred", "1 500", "1500 = 3 · 500"],
        ["1.500", "1.5", "15", "1500th", "1.5 million"],
    ),
    "percentages of a fraction": Family(
        Number(),
        "0.4",
        ["40%", "40 percent", "The probability is 2/5, or 40%.", "forty percent", "The chance is 40%."],
        ["40", "0.4 million", "4%", "at most 40%"],
    ),
    "checkboxes": Family(
        Choice(),
        "C",
        ["[ ] A\n[ ] B\n[x] C\n[ ] D", "- [ ] London\n- [x] Paris", "A) London ❌\nB) Berlin ❌\nC) Paris ✅"],
        ["[x] A\n[ ] C", "[x] C\n[x] D", "[ ] C", "A) London ✅\nC) Paris ❌"],
        CAPITALS,
    ),
    "JSON": Family(
        Choice(),
        "C",
        [
            '{"answer": "Paris", "confidence": 0.9}',
            '```json\n{"reason": "B is in Germany", "choice": "C"}\n```',
            '{"draft": "B", "final": "C"}',
        ],
        ['{"answer": "C", "final_answer": "B"}', '{"answer": null, "comment": "C"}', '{"answer": ["B", "C"]}'],
        CAPITALS,
    ),
    "a letter after a conclusion": Family(
        Choice(),
        "C",
        [
            "Hence C.",
            "France's capital → C",
            "By elimination, C.",
            "A is in the UK. B is in Germany. That leaves C.",
            "After eliminating A, B and D, only C remains.",
            "B is close, but C is better.",
            "First I picked B. On reflection: C.",
            "A: no. B: no. C: yes. D: no.",
            "There is no doubt that C is correct.",
            "C? Yes, C.",
        ],
        [
            "C fails.",
            "Only C is wrong.",
            "Anything but C.",
            "I doubt it's C.",
            "C is the answer to a different question.",
            "Answer: C is not what was meant.",
            "C? No, B.",
            "If it's about France, C.",
            "The book says C.",
            "I'm torn between B and C.",
        ],
        CAPITALS,
    ),
    "letter and wording disagree": Family(
        Choice(),
        "C",
        ["C, Paris", "C — Paris", "Paris (C)", "C, of course"],
        ["C, London", "C (Berlin)", "The answer is C, Madrid.", "D, i.e. Paris", "Paris (D)"],
        CAPITALS,
    ),
    "a letter in another language": Family(
        Choice(),
        "C",
        [
            "La opción correcta es la C.",
            "Je choisis la réponse C.",
            "Richtig ist C.",
            "Правильный ответ — C.",
            "A alternativa correta é a letra C.",
            "Scelgo la C.",
            "BではなくCです。",
            "不选B，选C。",
            "정답은 C입니다.",
        ],
        ["Die Antwort ist nicht C.", "No es la C.", "Ответ: не C.", "C不对", "peut-être C", "C ist falsch."],
        CAPITALS,
    ),
    "the wording of a choice": Family(
        Choice(),
        "A",
        ["Melville wrote it.", "Answer: Melville", "It was written by Herman Melville, not by Mark Twain."],
        ["It wasn't Melville.", "Melville or Twain", "Not Melville but Twain."],
        AUTHORS,
    ),
    "a number as choice": Family(
        Choice(),
        "B",
        ["Five", "They can buy 5 balls.", "Five balls, since six would be too expensive.", "2 + 3 = 5", "So 5."],
        ["more than 5", "5 or 6", "They can't buy 5 balls.", "The result is 5, which is option C."],
        COUNTS,
    ),
    "an expression as choice": Family(
        Choice(), "B", ["x-3", "The other factor is x − 3.", "$x - 3$"], ["x+3", "3-x"], FACTORS
    ),
    "a choice that denies something": Family(
        Choice(),
        "C",
        ["It doesn't change.", "It does not change at all.", "does not change"],
        ["It does change.", "It does not fall."],
        TRENDS,
    ),
    "sets of statements": Family(
        Choice(),
        "C",
        ["I and II are true, III is false.", "Only I and II.", "I and II, but not III.", "Statements I and II hold."],
        ["I only", "I, II and III", "I think I and III.", "III only"],
        STATEMENTS,
    ),
    "series of truth values": Family(
        Choice(),
        "C",
        ["The first is true, the second is false.", "Statement 1 is true. Statement 2 is false.", "True / False"],
        ["Statement 1 is false. Statement 2 is true.", "True and true"],
        TRUTHS,
    ),
    "true in other words": Family(
        TrueFalse(),
        "True",
        [
            "It's not false.",
            "Yes (no doubt about it).",
            "> Is it legal?\n\nYes. It became legal in 1999.",
            "No, wait. Yes.",
            "False? No, true.",
            "The claim holds.",
            "It would be no in Canada, but here the answer is yes.",
            "Es verdad.",
            "Das stimmt.",
            "Это правда.",
            "そうです。",
        ],
        [
            "Maybe true.",
            "Some say it's true.",
            "Many people believe this is true, but it is a myth.",
            "True or false? Hard to say.",
            "Mark this as true: correct.",
            "Nobody says it's true.",
            "It's true for some, false for others.",
            "True or not, nobody knows.",
            "Yes, if you believe the first paragraph.",
        ],
    ),
    "false in other words": Family(
        TrueFalse(),
        "False",
        [
            "Certainly not.",
            "By no means.",
            "This isn't so.",
            "The opposite is true.",
            "True? No.",
            "The passage says otherwise, so no.",
            "It's true that the answer is false.",
            "Das stimmt nicht.",
            "Ce n'est pas vrai.",
            "Это не так.",
            "不对。",
        ],
        ["No, it's true.", "It's false that the answer is false; it's true.", "No doubt it's true.", "Not wrong."],
    ),
    "a count and a list": Family(
        Maths(),
        "3",
        ["There are 3 real roots.", "It has $3$ real roots: $-1$, $0$ and $1$.", "So exactly three of them work."],
        ["The roots are 1, 2 and 3.", "1, 2, 3", "$\\{1,2,3\\}$", "There are at least 3 real roots."],
    ),
    "an amount of money among other numbers": Family(
        Number(),
        "64",
        ["The 16 glasses cost $64.", "So Kylar pays **$64** for the 16 glasses.", "In 4 weeks, she earns $64."],
        [
            "He pays at most $64 for 16 glasses.",
            "16 glasses cost $64, so each costs $4.",
            "He makes $64 an hour for 8 hours.",
            "He pays $64 for 8 glasses and $20 for 2 more.",
        ],
    ),
    "results of formulas": Family(
        Maths(),
        "6",
        [
            "$3! = 6$",
            "The minimum is $6$, reached for $x = 2$.",
            "The minimum is $6$ at $x = 2$.",
            "The maximum of $ab$ is $6$.",
            "$a = 2$, $b = 4$, and $a + b = 6$.",
            "$x = \\pm 6$, and since $x > 0$, $x = 6$.",
            "$\\boxed{6}$ (with order it would be $\\boxed{12}$).",
            "$\\boxed{6}$\n\nRemark. With order it would be $\\boxed{12}$.",
            "There are $6$ of them: $1, 2, 3, 6, 9, 18$.",
            "\\framebox{6}",
        ],
        [
            "$2x = 6$",
            "$x^2 = 6$",
            "$x = 6$ is extraneous.",
            "We reject $x = 6$.",
            "Assume $x = 6$.",
            "$n$ is a multiple of $6$.",
            "$a = 6$, $b = 7$",
            "$6$ is a lower bound.",
            "\\boxed{6\\text{ million}}",
            "$6:1$",
            "The student got $6$, which is wrong.",
        ],
    ),
    "exact and rounded values": Family(
        Maths(),
        "3\\sqrt{2}",
        [
            "$\\sqrt{18} = 3\\sqrt{2} \\approx 4.24$",
            "The diagonal is **3√2**.",
            "The diagonal is 3*sqrt(2).",
            "It is not $2\\sqrt{3}$ but $3\\sqrt{2}$.",
        ],
        ["The diagonal is not $3\\sqrt2$.", "The diagonal is less than $3\\sqrt2$.", "4.24"],
    ),
    "lists without a box": Family(
        Maths(),
        "2, 3",
        [
            "so x = 2, 3",
            "The roots are 2 and 3.",
            "The solutions are $x = 2$ and $x = 3$.",
            "$x \\in \\{2, 3\\}$",
            "2 and 3",
        ],
        ["x = 2", "The roots are 2 and 4.", "The roots are not 2 and 3."],
    ),
    "plain formulas": Family(
        Maths(),
        "2x+3",
        ["2x + 3", "f(x) = 2x + 3", "We are left with $2x+3$.", "$\\frac{(2x+3)(x+1)}{x+1} = 2x+3$"],
        ["2x", "$2x+3=0$", "$2x - 3$"],
    ),
    "repeating decimals": Family(
        Maths(), "\\frac{5}{6}", ["0.8\\overline{3}", "\\boxed{0.8\\overline{3}}"], ["0.83", "0.\\overline{83}"]
    ),
    "words as answers": Family(
        Maths(),
        "\\text{Evelyn}",
        ["It is Evelyn.", "The winner is Evelyn.", "Evelyn has the greatest speed."],
        ["The winner is Briana, with Evelyn second.", "Evelyn or Debra.", "Not Evelyn."],
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_output_of_a_family_is_read_as_a_careful_reader_would(name):
    family = FAMILIES[name]
    missed = [
        text for text in family.given if family.verifier.judge(text, family.gold, family.choices) is not Verdict.CORRECT
    ]
    accepted = [
        text for text in family.not_given if family.verifier.judge(text, family.gold, family.choices) is Verdict.CORRECT
    ]
    assert family.given
    assert family.not_given
    assert (missed, accepted) == ([], [])


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("La respuesta no es la D, sino la C.", "the answer is not D, but C."),
        ("weniger als 18", "less than 18"),
        ("Gewinn: 70.000 $", "Gewinn: 70000 $"),
        ("fünfunddreißig", "thirty five"),
        ("soixante-douze", "seventy two"),
        ("treinta y cinco dólares", "thirty five dólares"),
    ],
)
def test_deciding_words_of_other_languages_are_translated(text, english):
    assert in_english(text) == english


@pytest.mark.parametrize(
    "text", ["The answer is not D but C.", "I also think so; the son is 1.234 m tall.", "No, six is less than seven."]
)
def test_english_is_not_translated(text):
    assert in_english(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("> Is it 5?\n\nNo, 6.", "No, 6."),
        ("9 * 2 = $<<9*2=18>>18", "9 * 2 = $18"),
        ("~~5~~ 6", " 6"),
        ("6 (otherwise it would be 7)", "6"),
    ],
)
def test_what_is_not_stated_by_the_model_is_removed(text, left):
    assert prepared(text) == left


def test_a_sentence_about_another_case_is_an_aside_and_a_stance_is_not():
    assert is_aside("With another box, he would have 48.")
    assert is_aside("My friend says 18.")
    assert not is_aside("I would say 18.")
    assert not is_aside("She would make 24, but she eats three, so she makes 18.")


def test_what_a_sentence_says_instead_of_what_it_denies():
    assert after_denials("It is not B but C.").strip() == "C."
    assert after_denials("Neither 2 nor 3: 5").strip() == "5"
    assert after_denials("It is C.") == "It is C."
