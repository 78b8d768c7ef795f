r"""Compares mathematical answers: numbers exactly, structure here, expressions with math-verify.

A list has as many items as the gold answer has, an inequality is no number, and in `x=5, y=6` no value stands for both.
math-verify sees one expression at a time; it would take 6 for that answer.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.math_pool import POOL
from opd_align.tasks.number_values import base_value
from opd_align.tasks.number_words import SCALES

NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
"""The canonical form of a number."""
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mbox|textup)\s?\{([^{}]*)\}(?:\^\s?\{?\d\}?)?")
COMMANDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\b(?:sqrt|frac|log|ln|sin|cos|tan|pi|circ|exp|degrees?|and|or)\b"
)
_SCALED_TEXT = re.compile(
    r"(\d[\d.,]*)\s?(?:\\[,; ])?\s?\\(?:text|mathrm|mbox)\{\s*(thousand|million|billion|trillion|dozen)s?\b[^{}]*\}",
    re.IGNORECASE,
)
_MEMBER = re.compile(r"^[a-z]\s*\\in\s*(?=\\\{)")  # x \in \{2, 3\}
ROUNDED = re.compile(r"\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])|≈")
RELATION = re.compile(r"<|>|\\(?:leq?|geq?|lt|gt|neq?|leqslant|geqslant|in|notin|equiv|approx|sim)(?![A-Za-z])")
_DOWN = (">", "\\ge")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_SET_LIKE = re.compile(
    r"\\(?:cup|cap|infty|emptyset|varnothing|mathbb|setminus|mid)|^[\[(].*,.*[\])]$|^\\\{.*\\\}$", re.DOTALL
)
_BASE = re.compile(r"\(?([0-9A-Fa-f]{1,40})\)?_\{?(\d{1,2})\}?")
_BASE_WORDS = re.compile(r"([0-9A-Fa-f]{1,40}) ?\(?(?:in )?base[ -](\d{1,2})\)?", re.IGNORECASE)
_BASE_NAMES = [
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
]
_BASE_IN_WORDS = re.compile(rf"_\{{?(?:\\text\{{)?\s?({'|'.join(_BASE_NAMES)})\s?\}}{{0,2}}", re.IGNORECASE)
ASSIGNED = re.compile(
    r"\s*\(\\?[a-z]{1,6}(?:,\s?\\?[a-z]{1,6}){1,3}\)\s*=(?!=)\s*|"
    r"\s*(?:\\?\|[^|=]{1,10}\\?\||\\(?:sin|cos|tan|log|ln|angle|overline|vec|hat|bar|mathbf|boldsymbol|bm)\s*\\?\{?[A-Za-z]{1,6}\}?|"
    r"\[[A-Z]{2,5}\])\s*=(?!=)\s*|"
    r"\s*\\?[A-Za-z]\w{0,9}(?:_\{?\w{1,4}\}?)?(?:\([a-z, ]{1,8}\))?\s*=(?!=)\s*"
)
_NAMED_TUPLE = re.compile(r"[^=]{1,20}=\s*(?:[(\[]|\\\{).*[)\]}]$", re.DOTALL)
UNITS = re.compile(
    r"(?<=[\d}\s)])\s?(?:square |cubic |sq\.? )?(?:units?|cm|mm|km|m|kg|g|inch(?:es)?|in|feet|ft|meters?|"
    r"metres?|miles?|"
    r"degrees?|dollars?|cents?|hours?|minutes?|seconds?|days?|years?|ways?|people|percent|centimeters?|rad(?:ians)?)"
    r"(?:\^\{?[23]\}?)?\.?$"
)
_TIDY = [
    (
        re.compile(
            r"\\(?:left|right|displaystyle|big[lr]?|Big[lr]?)(?![A-Za-z])|(?<!\\)\\[;:! ]|\\q?quad\b|~|\$|\\[()\[\]]"
        ),
        "",
    ),
    (re.compile(r"\\,(?!\d{3}(?!\d))"), ""),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\[dt]binom"), r"\\binom"),
    (re.compile(r"\^\s?\{?\s?\\circ\s?\}?|°|\\degree\b"), ""),
    (re.compile(r"\\?%|\\\$|[€£¥]"), ""),
    (re.compile(r"\\leq(?:slant)?(?![A-Za-z])|<="), r"\\le"),
    (re.compile(r"\\geq(?:slant)?(?![A-Za-z])|>="), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\sqrt\s?\[(\d)\]\s?(\d|[a-z])(?![A-Za-z])"), r"\\sqrt[\1]{\2}"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\{?\s?\{?(\d{1,3})\}?\s?\\choose\s?\{?(\d{1,3})\}?\s?\}?"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?:\{\})?[\^_]\{?(\d{1,3})\}?\s?(?:\\(?:text|mathrm)\{C\}|C)_\{?(\d{1,3})\}?"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<=\d)\s?(?:\\text\{\s?to\s?\}|to)\s?(?=\d)"), ":"),
    (re.compile(r"^\s?\(\s?-\s?\\infty\s?,\s?\+?\s?\\infty\s?\)$|^\\text\{\s?all real numbers\s?\}$"), r"\\mathbb{R}"),
]
_COMBINATIONS = re.compile(r"C\s?\(\s?(\d{1,3})\s?,\s?(\d{1,3})\s?\)")
# One inequality, or two around a variable: x > 2, 0 \le x < 1
_SIDE, _LESS = r"\s*([^<>\\=,a-z]{1,20}|-?\s?\\infty|-?\\(?:d?frac|sqrt|pi)[^<>=,a-z]{0,30})\s*", r"(<|>|\\le|\\ge)"
_BETWEEN = re.compile(rf"{_SIDE}{_LESS}\s*[a-z]\s*{_LESS}{_SIDE}")
_BEYOND = re.compile(rf"[a-z]\s*{_LESS}{_SIDE}")
_BEYOND_LEFT = re.compile(rf"{_SIDE}{_LESS}\s*[a-z]")
_BUILDER = re.compile(r"\\\{\s?[a-z](?:\s?\\in\s?\\mathbb\{?R\}?)?\s?(?:\\mid|\||:)\s?(.*?)\s?\\\}")
_INTERVAL = re.compile(r"[\[(][^,]{1,40},[^,]{1,40}[\])](?:\s?\\cup\s?[\[(][^,]{1,40},[^,]{1,40}[\])]){0,4}")
# Towers of powers, long exponents and deep nesting would take sympy hours, and no real answer contains them.
_UNBOUNDED = re.compile(r"\^\s?\{?\s?\(?-?\d{4}|\^[^+\-=,]{0,30}\^|\*\*[^+\-=,]{0,30}\*\*|\d{60}|(?:[({]\s?){12}")
_LONGEST_EXPRESSION = 300


def compare_expressions(found: str, gold: str) -> str:
    """Compares two answers: "same", "different", "unparseable", or "unknown" where math-verify fails."""
    try:
        return _compared(found, gold)
    except _UnknownError:
        return "unknown"


class _UnknownError(Exception):
    """Not kept by the cache: a comparison that ran out of time on a busy machine is tried again."""


@functools.lru_cache(maxsize=4096)  # completions of a question give the same few answers
def _compared(found: str, gold: str) -> str:
    reply = _comparison(found, gold)
    if reply == "unknown":
        raise _UnknownError
    return reply


def forget_comparisons() -> None:
    """Empties the caches of comparisons, to measure what they save."""
    _compared.cache_clear()
    POOL.clear_cache()


def _comparison(found: str, gold: str) -> str:
    if ROUNDED.search(found) and not ROUNDED.search(gold):  # the exact value and the rounded one both count
        replies = [_comparison(side, gold) for side in ROUNDED.split(found)[-2:] if side.strip()]
        return "same" if "same" in replies else replies[0] if replies else "unparseable"
    found, gold = (_MEMBER.sub("", tidy(side)) for side in (found, gold))
    if found == gold:
        return "same"
    if _BASE.fullmatch(gold) or _BASE.fullmatch(found):
        return _compare_bases(found, gold)
    found_value, gold_value = exact_value(found), exact_value(gold)
    if found_value is not None and gold_value is not None:
        return "same" if found_value == gold_value else "different"
    if len(found) > _LONGEST_EXPRESSION or _UNBOUNDED.search(found):
        return "unparseable"
    if not gold.startswith("("):  # C(8,3) is a point there
        found = combinations(found)
    if _INTERVAL.fullmatch(gold) and (interval := _as_interval(found)):
        found = interval
    found, gold = (_without_name(side) if _NAMED_TUPLE.match(side) else side for side in (found, gold))
    found_items, gold_items = _items(found), _items(gold)
    if found_items and gold_items and (len(found_items[1]) > 1 or len(gold_items[1]) > 1):
        return _compare_lists(found_items, gold_items)
    if "=" in _without_name(found) and _is_line(gold):
        return _reply(POOL.compare(gold, found))
    found, gold = _without_name(found), _without_name(gold)
    if bool(RELATION.search(found)) != bool(RELATION.search(gold)) and not (
        _SET_LIKE.search(gold) or _SET_LIKE.search(found)
    ):
        return "different"
    if re.search(r"\d\s?:\s?\d", found) and ":" not in gold:
        return "different"  # a ratio
    if "=" in found and "=" not in gold and (identity := _identity(found)):
        found = identity
    if "=" in found and "=" not in gold and not RELATION.search(gold):
        return "different"
    if found == gold:
        return "same"
    return _reply(POOL.compare(gold, found))


def _reply(word: str) -> str:
    return {"same": "same", "different": "different", "unparseable": "unparseable"}.get(word, "unknown")


def combinations(expression: str) -> str:
    r"""`C(8,3)` as `\binom{8}{3}`."""
    return _COMBINATIONS.sub(r"\\binom{\1}{\2}", expression)


def _as_interval(expression: str) -> str | None:
    r"""Inequalities for one variable as an interval: `0 \le x < 1` as `[0,1)`, `x<0, x>1` as a union; else `None`."""
    if builder := _BUILDER.fullmatch(expression):
        expression = builder[1]
    intervals = []
    for part in re.split(r"\s(?:or)\s|\\lor\b|\\vee\b|,", expression):
        if between := _BETWEEN.fullmatch(part.strip()):
            low, first, second, high = between.groups()
            if (first in _DOWN) != (second in _DOWN):
                return None
            ends = (low, first, second, high) if first not in _DOWN else (high, second, first, low)
        elif beyond := _BEYOND.fullmatch(part.strip()) or _BEYOND_LEFT.fullmatch(part.strip()):
            sign, side = beyond.groups() if beyond.re is _BEYOND else (_FLIPPED[beyond[2]], beyond[1])
            ends = (side, sign, "<", "\\infty") if sign in _DOWN else ("-\\infty", "<", sign, side)
        else:
            return None
        low, first, second, high = (end.strip() for end in ends)
        intervals.append(f"{'[' if 'e' in first else '('}{low},{high}{']' if 'e' in second else ')'}")
    return " \\cup ".join(intervals)


def _is_line(gold: str) -> bool:
    """Whether a gold answer gives one variable by another, so that any form of the equation will do: `y=2x+1`."""
    name = ASSIGNED.fullmatch(gold[: gold.find("=") + 1])
    variables = set(re.findall(r"[a-z]", COMMANDS.sub("", gold)))
    return bool(name) and gold.count("=") == 1 and "(" not in gold[: gold.find("=")] and variables == {"x", "y"}


@functools.lru_cache(maxsize=4096)
def is_whole(gold: str) -> bool:
    """Whether a gold answer is a list or an equation, rather than a value."""
    expression = tidy(gold)
    return _is_list(expression) or "=" in _without_name(expression) or _is_line(expression)


def _is_list(expression: str) -> bool:
    items = _items(expression)
    return items is not None and len(items[1]) > 1


@functools.lru_cache(maxsize=4096)
def is_readable(gold: str) -> bool:
    """Whether a gold answer in canonical form can be compared with anything."""
    if NUMBER.fullmatch(gold) or _BASE.fullmatch(gold) or _is_list(tidy(gold)):
        return True
    return POOL.compare(tidy(gold), "") == "readable"


def tidy(expression: str) -> str:
    """One way to write what LaTeX writes in many: no spacing commands, units, degrees and percent signs."""
    expression = expression.strip().rstrip(".")
    if "{" in expression:
        expression = _SCALED_TEXT.sub(lambda m: f"{m[1]} \\times {SCALES[m[2].lower()]}", expression)
    for pattern, replacement in _TIDY:
        expression = pattern.sub(replacement, expression)
    without_text = TEXT.sub(lambda m: " , " if m[1].strip() in ("and", "or") else " ", expression).strip()
    expression = without_text if re.search(r"\w", without_text) else TEXT.sub(r"\1", expression)
    expression = UNITS.sub("", expression.strip())
    return " ".join(expression.split()).replace(" , ", ", ").replace(" = ", "=")


def base_literal(text: str) -> str | None:
    text = _BASE_IN_WORDS.sub(lambda m: f"_{_BASE_NAMES.index(m[1].lower()) + 2}", text) if "_" in text else text
    match = _BASE.fullmatch(TEXT.sub(r"\1", text).strip(" $.")) or _BASE_WORDS.fullmatch(text.strip(" $."))
    return f"{match[1]}_{match[2]}" if match and base_value(f"{match[1]}_{match[2]}") is not None else None


def _compare_bases(found: str, gold: str) -> str:
    """Digits with a base: as gold answer, a way of writing is asked for; as answer, it stands for its value."""
    found_base, gold_base = _BASE.fullmatch(found), _BASE.fullmatch(gold)
    if gold_base:
        digits, base = (found_base[1], found_base[2]) if found_base else (found, gold_base[2])
        return "same" if (digits.lstrip("0"), base) == (gold_base[1].lstrip("0"), gold_base[2]) else "different"
    value = base_value(f"{found_base[1]}_{found_base[2]}") if found_base else None
    return "same" if value is not None and value == exact_value(gold) else "different"


def _without_name(expression: str) -> str:
    """`x=5` and `f(x)=5` as `5`."""
    name = ASSIGNED.match(expression)
    rest = expression[name.end() :] if name else expression
    return rest if "=" not in rest else expression


def _identity(expression: str) -> str | None:
    """The right side of an equation whose sides have the same variables: `(x^2-1)/(x-1) = x+1`."""
    sides = expression.split("=")
    variables = [set(re.findall(r"[a-zA-Z]", COMMANDS.sub("", side))) for side in sides]
    return sides[-1] if len(sides) == 2 and variables[0] == variables[1] and variables[0] else None


def _items(expression: str) -> tuple[str, list[str]] | None:
    """Brackets and items of a list; `None` for what is no list (a matrix, a union, an inequality)."""
    if "\\begin" in expression or "\\cup" in expression or RELATION.search(expression):
        return None
    expression = expression.replace("\\{", "⟨").replace("\\}", "⟩")
    brackets = ""
    if expression[:1] in "([⟨" and expression[-1:] in ")]⟩" and expression and _closes_at_end(expression):
        brackets, expression = expression[0] + expression[-1], expression[1:-1]
    assigned = ASSIGNED.match(expression)
    if plus_minus := re.fullmatch(r"(?P<left>[^,]*?)\\pm\s?(?P<right>[^,]+)", expression):
        left = plus_minus["left"][assigned.end() :] if assigned else plus_minus["left"]
        return "", [f"{left}+{plus_minus['right']}".lstrip("+"), f"{left}-{plus_minus['right']}"]
    items, depth, start = [], 0, 0
    separated = re.sub(r"\s(?:and|or)\s|\\lor\b|\\vee\b|;", ",", expression).replace(",,", ",")
    for position, character in enumerate(separated):
        depth += (character in "([{⟨") - (character in ")]}⟩")
        if character == "," and depth == 0:
            items.append(separated[start:position])
            start = position + 1
    items = [item.strip() for item in [*items, separated[start:]] if item.strip()]
    items = [item.replace("⟨", "\\{").replace("⟩", "\\}") for item in items]
    return brackets, items if brackets == "()" else [sign for item in items for sign in _both_signs(item)]


def _both_signs(item: str) -> list[str]:
    r"""`\pm 1` as `1` and `-1`."""
    left, _, right = item.partition("\\pm")
    if not right or "\\pm" in right or not _:
        return [item]
    name = ASSIGNED.match(left)
    left = left[name.end() :] if name else left
    return [f"{left}+{right.strip()}".lstrip("+ "), f"{left}-{right.strip()}".strip()]


def _closes_at_end(expression: str) -> bool:
    depth = 0
    for position, character in enumerate(expression):
        depth += (character in "([⟨") - (character in ")]⟩")
        if depth == 0:
            return position == len(expression) - 1
    return False


def _compare_lists(found: tuple[str, list[str]], gold: tuple[str, list[str]]) -> str:
    found_items, gold_items = found[1], gold[1]
    if len(found_items) != len(gold_items):
        return "different"
    plain = ("", "⟨⟩")
    if found[0] != gold[0] and not (found[0] in plain and gold[0] in plain) and "" not in (found[0], gold[0]):
        return "different"  # (0, 1) is not [0, 1]
    names = [
        [m.group().strip(" =") if (m := ASSIGNED.match(item)) else "" for item in items]
        for items in (found_items, gold_items)
    ]
    distinct = [all(row) and len(set(row)) == len(row) for row in names]
    if all(distinct):
        if set(names[0]) != set(names[1]):
            return "different"
        order = dict(zip(names[0], found_items, strict=True))
        found_items = [order[name] for name in names[1]]
    ordered = all(distinct) or gold[0] not in plain or (distinct[0] != distinct[1]) or found[0] not in plain
    left = [_without_name(item) for item in found_items]
    wanted = [_without_name(item) for item in gold_items]
    if not ordered:
        values = [[exact_value(item) for item in row] for row in (left, wanted)]
        if None not in values[0] and None not in values[1]:
            return "same" if sorted(map(_key, values[0])) == sorted(map(_key, values[1])) else "different"
    reply = "same"
    for item in wanted:
        candidates = left[:1] if ordered else left[:12]
        replies = []
        for candidate in candidates:
            replies.append(compare_expressions(candidate, item))
            if replies[-1] == "same":
                left.remove(candidate)
                break
        if replies[-1] != "same":
            return "unknown" if "unknown" in replies else "different"
    return reply


def _key(value: Fraction | None) -> Fraction:
    return value if value is not None else Fraction(0)
