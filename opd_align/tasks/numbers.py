"""Parses numbers as people and models write them, exactly.

Every number becomes a `Fraction`, so that 18, 18.0, 36/2, 1.8e1 and eighteen are one value and 0.333 is not 1/3.
Thousands separators, currencies, units and percent signs are ignored: 12% reads as 12 (and is 0.12 too: see
`is_percentage_of`). Multipliers are not: $5k is
5000, five dozen is 60. A comma or space separates thousands only in groups of three (2,00,000 in India); 1.234 is a
decimal, and so is 1,5. A bound ("less than 18", "< 5") and a denial ("not 18") are no numbers.
"""

from __future__ import annotations

import functools
import math
import re
from fractions import Fraction

from opd_align.tasks.characters import strip_markup
from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.number_context import (
    BOUND_AFTER,
    BOUND_BEFORE,
    CURRENCY,
    UNSOLVED,
    is_label,
    is_operand,
    is_ruled_out,
)
from opd_align.tasks.number_sentences import AGAIN, QUALIFIER, TRAILING, only_number, only_price
from opd_align.tasks.number_values import NUMBER, OPERATOR, UNIT_SLASH, canonical_number, number_value
from opd_align.tasks.number_words import NUMBER_WORD, leading_number
from opd_align.tasks.statements import DENIAL_AFTER, NEGATION, strip_lead_in

_DECIMAL_COMMA = re.compile(r"(?<![\d,.])(\d{1,3}(?:\.\d{3})+|\d{1,9}),(\d{1,2})(?![\d,]|\.\d)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_FIRST_SENTENCE = re.compile(r"(.*?[\w)%}])(?:[;!?]+(?!\s?=)|\.+(?!\d))(?:\s.*|)", re.DOTALL)
_PREFIX = re.compile(
    rf"(?:(?:[{CURRENCY}≈~=:-]|(?:US|USD|EUR|GBP|INR|Rs\.?|about|approximately|approx\.?|roughly|around|"
    rf"exactly|only|just|"
    r"precisely|equals?|is|simply|a total of|the number|probably|definitely|surely|"
    r"clearly)(?![a-z])) ?){0,3}",
    re.IGNORECASE,
)
_MANY_POINTS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.]?\d)")  # 1.234.567
_EXCLAIMED = re.compile(r"(\$\d[\d,.]*)!+(?=[\s*]|$)")  # "So it's $18!"
_ROMAN = re.compile(
    r"\b(?=[IVXLCDM]{2})M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}) ?(?:\(|= ?)(\d+)\)?"
)
_ARROW = re.compile(r"^\W{0,2}(?:=>|->|[→⇒∴➜])\s?")
_REASON = re.compile(r"([^\s,]{1,20}(?: [^\W\d]{1,15}){0,2}),? (?:because\b|since\b|as (?=\d))", re.IGNORECASE)
# "#45", "6 out of 36", "x → 24"
_NOT_STATED = re.compile(
    r"#\d+\.?|\d+ out of \d+\.?|\$?[a-z] ?(?:→|->|\\to|\\mid|\|) ?-?\d+\$?\.?|for [a-z] ?= ?\d+\.?", re.IGNORECASE
)
# "The chance is 3 in 8"
_IN_OR_OUT_OF = re.compile(
    r"\b((?:chances?|probability|odds|likelihood)\b[^.\d]{0,40}\b(?:is|are|of|equals) )(\d{1,6}) (?:in|out of) "
    r"(\d{1,6})(?=\W{0,3}$)",
    re.IGNORECASE,
)
_DEFINITE = re.compile(r"\W{0,3}(?:the|these|those) \d", re.IGNORECASE)
_POWERS = re.compile(r"(?=[^^]*\^)\d{1,9}(?:\s?[·×*^]\s?\d{1,9}){1,8}")
_MINUS = re.compile(r"\b(?:negative|minus)\s(?=[\d.])", re.IGNORECASE)
_STATEMENTS = re.compile(r"\s?(?:[,;]|\band\b|\.(?!\d))\s?")
_CANONICAL = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
_CONCLUSION = re.compile(r"(?:so|thus|hence|therefore|which|giving|then|finally)\b", re.IGNORECASE)


def gold_number(answer: object) -> Fraction | None:
    """The number in a dataset's answer: a number, a number as text or words, or a solution that ends in `#### N`."""
    if isinstance(answer, bool):
        return None
    if isinstance(answer, int):
        return Fraction(answer)
    if isinstance(answer, float):
        return Fraction(repr(answer)) if math.isfinite(answer) else None
    if isinstance(answer, str):
        return _gold_in_text(answer.rpartition("####")[2][:600])
    return None


@functools.lru_cache(maxsize=4096)  # a question's answer is read for each of its completions
def _gold_in_text(text: str) -> Fraction | None:
    found = read_number(text, Placement.MARKED)
    return Fraction(found) if found else None


def is_percentage_of(found: str | None, gold: str | None, text: str) -> bool:
    """Whether an answer is written as a percentage of what the gold answer is a fraction of: 75% and 0.75."""
    if not found or not gold or "/" in found or not _CANONICAL.fullmatch(found) or not _CANONICAL.fullmatch(gold):
        return False
    if Fraction(found) != 100 * Fraction(gold) or Fraction(gold) == 0:
        return False
    if re.search(rf"(?<![\d.]){re.escape(found)}(?:\.0{{1,6}})?[ $}}*]{{0,4}}\\?(?:%|per ?cent\b)", text):
        return True
    in_words = [leading_number(words) for words in re.findall(r"([a-z]+(?:[ -][a-z]+)?) per ?cent\b", text.lower())]
    return any(number is not None and number[0] == Fraction(found) for number in in_words)


def read_number(words: str, placement: Placement, *, decimal_comma: bool = True) -> str | None:
    """The number that a text gives as its answer; an `extract.Reader`.

    Args:
        words: Text to read.
        placement: Where it was found.
        decimal_comma: Whether 1,5 is one number; in mathematics, it is a list.
    """
    if placement is Placement.OPENING:
        return None  # sentences that begin with a number often contain others
    if _NOT_STATED.fullmatch(words.strip()):
        return AMBIGUOUS
    words = _IN_OR_OUT_OF.sub(r"\1\2/\3", words) if " in " in words or " out of " in words else words
    text = _strip_decoration(words)
    if decimal_comma and "," in text:
        text = _DECIMAL_COMMA.sub(lambda match: f"{match[1].replace('.', '')}.{match[2]}", text)
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        found = only_number(text)
        return only_price(words) or found if found == AMBIGUOUS else found
    if placement is Placement.BARE and _DEFINITE.match(text):
        return None  # "the 45 tiles"
    text = strip_lead_in(text)
    if placement is Placement.BOX:
        if "?" in text or NEGATION.search(text):
            return AMBIGUOUS
        value = exact_value(words)
        if value is not None:
            return canonical_number(value)
    text = AGAIN.sub("", text)
    if placement is Placement.MARKED and "=" not in text and NUMBER.search(without := TRAILING.sub("", text)):
        qualifier = QUALIFIER.search(without)
        only = qualifier and len(NUMBER.findall(without[: qualifier.start()])) == 1
        text = without[: qualifier.start()] if qualifier and only else without  # "10, of which 3 are new"
    if placement is Placement.MARKED and (reason := _REASON.match(text)):
        text = reason[1]  # "18, because 9 × 2 = 18 and not 16 × 2 = 32"
    sentence = _FIRST_SENTENCE.fullmatch(text)
    whole, text = text, sentence.group(1) if sentence else text
    if placement is Placement.BARE and re.fullmatch(r"\d+\s?!+", whole):
        return AMBIGUOUS  # a factorial or an exclamation
    if placement is Placement.BARE and _POWERS.fullmatch(whole) and (value := exact_value(whole)) is not None:
        return canonical_number(value)  # 4·5^2
    if placement is Placement.BARE and text != whole.rstrip(".!; "):
        return None
    if placement is Placement.MARKED and "$" in words and "!" in words and "!" not in text:
        value = exact_value(text + "!")  # $5!$ in maths mode is a factorial, "18!" is not
        if re.search(r"\d\s?!\s?\$", words) and value is not None:
            return canonical_number(value)
    if "=" in text:  # "9 * 2 = 18" and "x = 18": the right side is the result
        if placement is Placement.BARE:
            return None
        if UNSOLVED.fullmatch(text.strip(" .")):
            return AMBIGUOUS
        result = _equation_result(text, whole)
        if result is None or result == AMBIGUOUS:
            return result
        text = result
    return _first_number(text, placement)


def _first_number(text: str, placement: Placement) -> str | None:
    """The number at the start of a text; others after it must have the same value."""
    before = _PREFIX.match(text)
    # The sign belongs to the number; a dash and a space are a bullet.
    first = NUMBER.match(text) or (NUMBER.match(text, before.end()) if before else None)
    if first is None:
        if re.match(
            r"(?:not|n't|never|less|more|fewer|greater|at (?:least|most)|[<>]|\\[lgn]e\b)", text, re.IGNORECASE
        ):
            return AMBIGUOUS if NUMBER.search(text) and placement is not Placement.BARE else None
        return _in_words(text[before.end() :] if before else text, placement)
    if placement is Placement.BARE and is_label(text, first.start()):
        return None
    unit = text[first.end() :]
    if placement is Placement.BARE and not re.fullmatch(
        r" ?%?(?:[^\W\d]{0,12}(?:/[^\W\d]{1,8})?|degrees [CF])\.?", unit
    ):
        return None
    value = number_value(first)
    if value is None or re.match(r"[,.'eE:]\d", unit) or BOUND_AFTER.match(unit) or DENIAL_AFTER.match(unit):
        return AMBIGUOUS
    if is_operand(text, first.start(), first.end(), only=False):
        return AMBIGUOUS
    if (approximately := re.match(r" ?%? ?≈ ?", unit)) and NUMBER.match(unit, approximately.end()):
        return canonical_number(value)  # the exact value is given first, then rounded
    others = {number_value(other) for other in NUMBER.finditer(unit) if not _is_remark(unit, other)}
    if others - {value}:
        return AMBIGUOUS
    if OPERATOR.match(unit) and not UNIT_SLASH.match(unit):  # "5/day" has a unit
        exact = exact_value(text)
        return None if exact is None or not re.search(r"\d\s?[!^]", text) else canonical_number(exact)
    if NUMBER_WORD.match(unit.lstrip(" -")):
        return AMBIGUOUS
    return canonical_number(value)


def _is_remark(text: str, number: re.Match[str]) -> bool:
    """Whether a later number is the one that was ruled out: "18, not 17", "18 rather than 17"."""
    return is_ruled_out(BOUND_BEFORE.search(text[: number.start()]))


def _in_words(text: str, placement: Placement) -> str | None:
    """A number in words at the start of a text that contains no digits."""
    found = leading_number(text)
    if found is None:
        return None
    value, rest = found
    if placement is Placement.BARE and not re.fullmatch(r" ?%?[^\W\d]{0,12}\.?", rest):
        return None
    if any(number_value(other) != value for other in NUMBER.finditer(rest)) or any(
        map(leading_number, rest.lower().split())
    ):
        return AMBIGUOUS
    if re.match(r"\s?(?:of (?:the|these|those|them)|thing|way|reason|could|can|must|has|would|might)\b", rest):
        return None  # "one of the ways", "one thing"
    if DENIAL_AFTER.match(rest) or BOUND_AFTER.match(rest):
        return AMBIGUOUS
    return canonical_number(value)


def _equation_result(text: str, whole: str) -> str | None:
    """What stands after the last `=`, if the equations do not give several results."""
    statements = [part for part in _STATEMENTS.split(whole) if re.search(r"(?<![<>!])=", part)]
    results = [part.rpartition("=")[2].strip() for part in statements]
    values = {only_number(result) or result for result in results}
    concluding = re.findall(r"[,;.]\s?(?:and )?(\w+)[^=]*=", whole)
    if len(values) > 1 and not (concluding and _CONCLUSION.match(concluding[-1])):
        return AMBIGUOUS  # "x = 5, y = 6" and "48 / 2 = 24 in May. 48 + 24 = 72 in all."
    if len(values) > 1:
        return results[-1]
    left, _, right = text.rpartition("=")
    right = right.strip()
    number = NUMBER.match(right)
    if number and OPERATOR.match(right[number.end() :]) and NUMBER.fullmatch(left.strip()):
        return left.strip()  # "18 = 9 * 2"
    return right


def _strip_decoration(words: str) -> str:
    if "!" in words and words.count("$") == 1:
        words = _EXCLAIMED.sub(r"\1.", words)
    text = _MINUS.sub("-", strip_markup(words.replace("US$", "$")))
    text = _ROMAN.sub(r"\1", _MANY_POINTS.sub(lambda match: match.group().replace(".", ""), _ARROW.sub("", text)))
    bare = _PARENTHESES.sub(" ", text) if "(" in text else text
    return (bare if NUMBER.search(bare) else text).strip()
