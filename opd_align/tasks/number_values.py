"""The number that a text contains at one place, as an exact value: digits, separators, fractions, powers, scales."""

from __future__ import annotations

import re
from fractions import Fraction

from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.number_context import CURRENCY
from opd_align.tasks.number_words import SCALES

_DIGITS = r"(?:\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d{1,3}(?:[, ']\d{3})+(?!\d)|\d{1,100})(?:\.\d{1,100})?|\.\d{1,100}"
_WORD_SCALES = "|".join(sorted(map(re.escape, SCALES), key=len, reverse=True))
# Not the 2 of "m2", "x^2" or "1.2.3"; a minus sign after a word or digit is a dash.
NUMBER = re.compile(
    rf"(?<![\w.^,/])(?P<sign>[-+]?)(?P<currency>[{CURRENCY}]?)(?P<inner>-?)"
    rf"(?:(?P<whole>\d{{1,9}})(?: | and |-)(?=\d{{1,6}} ?/ ?\d))?(?P<top>{_DIGITS})"
    rf"(?: ?/ ?(?P<bottom>\d{{1,100}})(?!\d|\.\d))?"
    rf"(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\w)| ?[×x*·] ?10\^(?P<ten>-?\d{{1,3}})(?!\w))?"
    rf"(?:(?:\^|\*\*)\(?(?P<power>-?\d{{1,4}})\)?(?![\w.^]))?"
    rf"(?P<base>_\d{{1,2}}(?!\w))?"
    rf"(?:(?P<letter>k|K|M|MM|B|[mMbB]n|bil|[TQ])(?![\w/^])|(?P<half> and a half\b)"
    rf"|(?P<scale>(?: ?(?:{_WORD_SCALES})(?![A-Za-z])){{1,2}}))?",
)
_LETTERS = {"k": 10**3, "m": 10**6, "mm": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9, "bil": 10**9, "t": 10**12}
# After a number, these make it part of an expression: 2^10, 3!, 5√2, 5\pi, 2*3.
OPERATOR = re.compile(r"\s?(?:[\^*×·÷!√π\\+/_|<>(\[{]|-\s?[\w\\(]|x ?\d)")
UNIT_SLASH = re.compile(r"\s?/\s?[^\W\d]")


def number_value(match: re.Match[str]) -> Fraction | None:
    """The value of a match; `None` for a division by zero and for what has no value by itself."""
    top = Fraction(re.sub(r"[, ']", "", match["top"]))
    if match["bottom"]:
        if not int(match["bottom"]):
            return None
        top /= int(match["bottom"])
    if match["whole"]:
        top += int(match["whole"])
    if match["base"]:
        value = base_value(match["top"] + match["base"])
        return value
    exponent = match["exponent"] or match["ten"]
    if exponent:
        top *= Fraction(10) ** int(exponent)
    if match["power"]:
        value = exact_value(f"({top})^{{{match['power']}}}")
        if value is None:
            return None
        top = value
    if match["half"]:
        top += Fraction(1, 2)
    if match["letter"]:
        scale = _LETTERS.get(match["letter"].lower())
        if scale is None:
            return None
        top *= scale
    for word in re.findall(r"\w+", match["scale"] or ""):
        for scale_word in [word] if word in SCALES else list(word):
            top *= SCALES.get(scale_word.lower(), 1)
    return -top if "-" in (match["sign"], match["inner"]) else top


def base_value(literal: str) -> Fraction | None:
    """The value of digits with a base, such as `101_2`; `None` if these are not digits of that base."""
    digits, _, base = literal.partition("_")
    try:
        return Fraction(int(digits.replace(",", ""), int(base)))
    except ValueError:
        return None


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
