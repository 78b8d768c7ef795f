"""Parses numbers as people and models write them, exactly.

Every number becomes a `Fraction`, so that 18, 18.0, 18.00 and 36/2 are one value and 0.333 is not 1/3. Thousands
separators, currencies, units and percent signs are ignored: 12% reads as 12. A comma or space separates thousands only
in groups of three; 1.234 is a decimal, and 1,23 is two numbers.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from opd_align.tasks.extract import AMBIGUOUS, Placement, strip_lead_in, strip_markup

_DIGITS = r"(?:\d{1,3}(?:[, '’]\d{3})+(?!\d)|\d{1,100})(?:\.\d{1,100})?|\.\d{1,100}"
# Not the 2 of "m2", "x^2" or "1.2.3"; a minus sign after a word or digit is a dash.
_NUMBER = re.compile(
    rf"(?<![\w.^,])(?P<sign>[-+]?)[€£¥₹]?(?:(?P<whole>\d{{1,9}}) (?=\d{{1,6}} ?/ ?\d))?(?P<top>{_DIGITS})"
    rf"(?: ?/ ?(?P<bottom>\d{{1,100}})(?![\d.]))?(?P<scale> ?(?:thousand|million|billion)\b)?",
    re.IGNORECASE,
)
_SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARENTHESES = re.compile(r"\([^()]*\)")
_FIRST_SENTENCE = re.compile(r"(.*?[\w)%}])[.;!?]+(?:\s.*|)", re.DOTALL)
# After a number, these make it part of an expression: 2^10, 3!, 5√2, 5\pi, 2*3.
_OPERATOR = re.compile(r"\s?(?:[\^*×·÷!√π\\+/_|<>(\[{]|-\s?\w)")
_LATER_RESULT = re.compile(r"=([^=.;]*(?:\.\d+)?[^=.;]*)(?:[.;]|$)")
_EXPRESSION = re.compile(r"\d\s?[\^√π\\]|[,.]\d+[,.]\d{1,2}\b|\b\d+,\d{1,2}\b")
_PREFIX = re.compile(r"(?:[€£¥₹]|US|USD|EUR|Rs\.?|about|approximately|exactly|[≈~=:-])?\s{0,2}", re.IGNORECASE)


def _number_value(match: re.Match[str]) -> Fraction | None:
    top = Fraction(re.sub(r"[, '’]", "", match["top"]))
    if match["bottom"]:
        if not int(match["bottom"]):
            return None
        top /= int(match["bottom"])
    if match["whole"]:
        top += int(match["whole"])
    if match["scale"]:
        top *= _SCALE[match["scale"].strip().lower()]
    return -top if match["sign"] == "-" else top


def canonical_number(value: Fraction) -> str:
    """The canonical form: an integer, a finite decimal, or a fraction in lowest terms."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    twos = fives = 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1 or max(twos, fives) > 30:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def gold_number(answer: object) -> Fraction | None:
    """The number in a dataset's answer: a number, a number as text, or a solution that ends in `#### N`."""
    if isinstance(answer, bool):
        return None
    if isinstance(answer, int):
        return Fraction(answer)
    if isinstance(answer, float):
        return Fraction(repr(answer)) if math.isfinite(answer) else None
    if isinstance(answer, str):
        found = read_number(answer.rpartition("####")[2][:600], Placement.MARKED)
        return Fraction(found) if found else None
    return None


def read_number(words: str, placement: Placement) -> str | None:
    """The number that a text gives as its answer; an `extract.Reader`."""
    if placement is Placement.OPENING:
        return None  # sentences that begin with a number often contain others
    text = _strip_decoration(words)
    if placement is Placement.LOOSE:
        return _only_number(text)
    text = strip_lead_in(text)
    sentence = _FIRST_SENTENCE.fullmatch(text)
    whole, text = text, sentence.group(1) if sentence else text
    if "=" in text:  # "9 * 2 = 18" and "x = 18": the right side is the result
        if placement is Placement.BARE:
            return None
        results = {_only_number(part) for part in _LATER_RESULT.findall(whole)}
        text = text.rpartition("=")[2].strip()
        if results - {_only_number(text)}:
            return AMBIGUOUS  # "48 / 2 = 24 in May. 48 + 24 = 72 in all."
    before = _PREFIX.match(text)
    # The sign belongs to the number; a dash and a space are a bullet.
    first = _NUMBER.match(text) or (_NUMBER.match(text, before.end()) if before else None)
    if first is None:
        return None
    unit = text[first.end() :]
    if placement is Placement.BARE and not re.fullmatch(r" ?%?[^\W\d]{0,12}\.?", unit):
        return None
    others = {_number_value(other) for other in _NUMBER.finditer(unit)}
    value = _number_value(first)
    if value is None or others - {value} or re.match(r"[,.'eE]\d", unit):
        return AMBIGUOUS
    if _OPERATOR.match(unit) and not re.match(r"\s?/\s?[^\W\d]", unit):  # "5/day" has a unit
        return None
    return canonical_number(value)


def _strip_decoration(words: str) -> str:
    text = strip_markup(words.replace("US$", "$"))
    bare = _PARENTHESES.sub(" ", text)
    return (bare if _NUMBER.search(bare) else text).strip()


def _only_number(text: str) -> str | None:
    if "=" in text:
        text = text.rpartition("=")[2]
    if _EXPRESSION.search(text):
        return None
    values = {_number_value(number) for number in _NUMBER.finditer(text)}
    if len(values) != 1:
        return AMBIGUOUS if values else None
    value = values.pop()
    return None if value is None else canonical_number(value)
