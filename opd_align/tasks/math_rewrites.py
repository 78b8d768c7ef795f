r"""Forms of an answer that depend on the gold answer, written as the maths rules read them.

For a ratio, "5 to 1" is written as `$5:1$`; for a time, "6:30 p.m." as `$6:30$`; for a number, a remainder without its
modulus.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.number_words import leading_number

_HALF_OF_DAY = re.compile(r"\d ?(?:\\text\{)?\s?[ap]\.?m\b", re.IGNORECASE)
_MODULUS = re.compile(r"\s?(?:\\pmod|\(?\\(?:bmod|mod|text\{ ?mod ?\}))\s?\{?\w{1,9}\}?\)?")
_RESIDUE_CLASS = re.compile(r"(?:^|[\s$({,=])[a-z]\s?\\equiv")  # $n \equiv 6 \pmod 7$ is no number
_CONGRUENT = re.compile(r"\\equiv(?![A-Za-z])(?=[^$\n]{1,30}?(?:\\pmod|\\bmod|\\mod|\\text\{ ?mod))")
_TIME = re.compile(
    r"\$?(?P<time>\d{1,2}\{?:\}?\d{2})\$?(?P<half>\s?(?:\\text\{)?\s?[ap]\.?\s?m\b\.?\}?\$?)?(?![\d:])", re.IGNORECASE
)
_TIME_GOLD = re.compile(
    r"\s*\d{1,2}:\d{2}(?P<half>\s?(?:\\text\{)?\s?(?P<letter>[ap])\.?\s?m\.?\}?)?\s*", re.IGNORECASE
)
_TO = re.compile(
    r"(?<![\w.])\$?(?P<first>\d{1,6}|[a-z]{3,9})\$? (?:to|:) \$?(?P<second>\d{1,6}|[a-z]{3,9})\$?(?![\w.]\w|:)",
    re.IGNORECASE,
)
_PLAIN_RATIO = re.compile(r"(?<![\w.:$])(\d{1,6}) ?: ?(\d{1,6})(?![\w.:$]\w|[:$])")


def rewrite_for(gold: str) -> Callable[[str], str]:
    """How a text is rewritten for a gold answer: ratios and times in maths mode, remainders without their modulus."""

    def rewrite(response: str) -> str:
        if "\\log_" in response:
            response = re.sub(r"\\log_\{?e\}?(?![A-Za-z])", r"\\ln", response)
        if "mod" in response and "mod" not in gold and not _RESIDUE_CLASS.search(response):
            response = _MODULUS.sub("", _CONGRUENT.sub("=", response))
        if ":" not in gold:
            return response
        if (time := _TIME_GOLD.fullmatch(gold)) and (time["half"] or _HALF_OF_DAY.search(response)):
            return _with_times(response, time)
        return with_ratios(response) if re.fullmatch(r"\s*\d+\s?:\s?\d+\s*", gold) else response

    return rewrite


def _with_times(response: str, gold: re.Match[str]) -> str:
    """The text with times in maths mode, and with "a.m." or "p.m." as the gold answer writes it."""

    def written(match: re.Match[str]) -> str:
        time, half = match["time"].replace("{", "").replace("}", ""), match["half"] or ""
        if gold["half"] and (not half or gold["letter"].lower() in half.lower().replace("m", "")):
            half = gold["half"]
        return f"${time}{half if gold['half'] else ''}$"

    return _TIME.sub(written, response)


def with_ratios(response: str) -> str:
    """The text with "5 to 1" and "five to one" written as "$5:1$", for a gold answer that is a ratio."""
    return _PLAIN_RATIO.sub(r"$\1:\2$", _TO.sub(_ratio, response))


def _ratio(match: re.Match[str]) -> str:
    sides = []
    for side in (match["first"], match["second"]):
        number = None if side.isdigit() else leading_number(side)
        if not side.isdigit() and (number is None or number[1]):
            return match.group()
        sides.append(side if number is None else canonical_number(number[0]))
    return f"${sides[0]}:{sides[1]}$"
