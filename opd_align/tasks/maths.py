r"""Reads and compares mathematical answers: numbers exactly, expressions with math-verify.

Structure is compared here: a list has as many items as the gold answer has, an inequality is no number, and in
`x=5, y=6` no value stands for both. math-verify sees one expression at a time; it would take 6 for that answer.
"""

from __future__ import annotations

import re
from fractions import Fraction

from opd_align.tasks.characters import plain_characters, strip_markup
from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.math_pool import POOL
from opd_align.tasks.number_words import SCALES
from opd_align.tasks.numbers import QUALIFIER, base_value, canonical_number, read_number
from opd_align.tasks.statements import CONCLUDED, DENIAL_AFTER, HEDGE, NEGATION, after_denials, is_aside, strip_lead_in

NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
"""The canonical form of a number."""

_NOT_A_NUMBER = re.compile(
    r"^\s?-?\d[\d.,]*(?![eE][-+]?\d)[A-Za-z](?![A-Za-z])(?!$)|^\s?-?\d[\d.,/]*[a-ln-z]$|\d\s?!|\d[A-Za-z]*[\^_]"
)  # 5x, 5!, 2^3
_PROSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|(?<![\\A-Za-z])(?:[A-Za-z]{3,}|(?:is|it|of|to|in|an|at|on|by|we|so|no|be|as|if|do|my)\b)")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mbox|textup)\s?\{([^{}]*)\}(?:\^\s?\{?\d\}?)?")
_COMMANDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|\b(?:sqrt|frac|log|ln|sin|cos|tan|pi|circ|exp|degrees?|and|or)\b"
)
# "$5\pi$ because ..." is an answer with a reason; "$m/n$ where ..." is not an answer yet.
_MATHS_MODE = re.compile(
    r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))"
    r"(?=[ *]{0,4}(?:$|[.,;!]|(?:because|since|as|by|from|which|units?|cm|square|degrees|inches|feet|meters)\b))"
)
_RULED_OUT = re.compile(
    r"\b(?:not|n't|never|neither|nor|than|least|most|up to|over|under|above|below|divisible by|multiple of|factor of|divides|reject|discard|exclude|assume|let|try)\s*$", re.IGNORECASE
)
_DENIED_TAIL = re.compile(r" ?\(not [^()]{1,60}\)|(?<!\bis)(?<!\bare)(?<!\bdoes)(?<!\bdo)(?<!\bwas)(?<!\bcan),? (?:and |but )?(?:not|rather than|instead of) [^,;.]{1,60}(?=[,;.]|$)", re.IGNORECASE)
_SCALED_TEXT = re.compile(
    r"(\d[\d.,]*)\s?(?:\\[,; ])?\s?\\(?:text|mathrm|mbox)\{\s*(thousand|million|billion|trillion|dozen)s?\b[^{}]*\}",
    re.IGNORECASE,
)
_PLAIN_LIST = re.compile(
    r"(?:^|\b(?:are|is|solutions?|roots?)|=|:)\s*((?:[a-z] ?= ?)?-?\d+(?:/\d+)?(?:(?:,?\s(?:and|or)\s|,\s?)(?:[a-z] ?= ?)?-?\d+(?:/\d+)?)+)$"
)
_PLAIN_FORMULA = re.compile(
    r"(?=.*(?:\b\d{0,9}[a-z]\s?[-+^*/=(]|[-+^*/(]\s?[a-z]\b|\(.*,))(?:\b[a-z]\b|\d+[a-z]?|[-+^*/=().,\s{}]|\b(?:and|or)\b)+\.?"
)
_MEMBER = re.compile(r"^[a-z]\s*\\in\s*(?=\\\{)")  # x \in \{2, 3\}
_BETWEEN_ITEMS = re.compile(r"[\s,]*(?:and|or|y|e|et|ou|o|und|oder|и|или|或|和|或者|と)?[\s,]*")
_UNSOLVED = re.compile(r"\$?\s*(?:\d+\s?[a-z]|[a-z]\s?\^\s?\{?\d+\}?)\s*=[^=]+")  # 2x = 6, x^2 = 6
_PLAIN_FUNCTION = re.compile(r"(?<![\\\w])sqrt\(([^()]{1,60})\)")
_PLAIN_PI = re.compile(r"(?<![\\A-Za-z])pi\b")
_IS = re.compile(r"\b(?:is|are|equals|becomes|we (?:get|obtain|have|find)|gives|yields|leaves)\s{0,2}$")
_SEGMENT = re.compile(r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))")
_COMPOUND = re.compile(r"[^=,]*\w\s?[-+/^(][^=,]*=([^=,]+)")  # a + b = 10, f(3) = 10
_ROUNDED = re.compile(r"\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])|≈")
_STATED = re.compile(
    r"(?:\b(?:is|are|equals?|be|gives?|get|obtain)\b:?|\w:) (?P<plain>[^\s*].{0,120})$|"
    r"(?:^|\b(?:so|thus|hence|then|get|have)\b,? )(?P<named>[a-z] ?= ?.{1,60})$|\*\*(?P<bold>[^*\n]{1,120})\*\*"
)
_ALTERNATIVES = re.compile(r"\b(?:or|and)\b|\\lor\b|\\vee\b", re.IGNORECASE)
_RELATION = re.compile(r"<|>|\\(?:leq?|geq?|lt|gt|neq?|leqslant|geqslant|in|notin|equiv|approx|sim)(?![A-Za-z])")
_SET_LIKE = re.compile(
    r"\\(?:cup|cap|infty|emptyset|varnothing|mathbb|setminus|mid)|^[\[(].*,.*[\])]$|^\\\{.*\\\}$", re.DOTALL
)
_BASE = re.compile(r"\(?([0-9A-Fa-f]{1,40})\)?_\{?(\d{1,2})\}?")
_BASE_WORDS = re.compile(r"([0-9A-Fa-f]{1,40}) ?\(?(?:in )?base[ -](\d{1,2})\)?", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"\s*\(\\?[a-z]{1,6}(?:,\s?\\?[a-z]{1,6}){1,3}\)\s*=(?!=)\s*|"
    r"\s*\\?[A-Za-z]\w{0,9}(?:_\{?\w{1,4}\}?)?(?:\([a-z, ]{1,8}\))?\s*=(?!=)\s*"
)
_NAMED_TUPLE = re.compile(r"[^=]{1,20}=\s*(?:[(\[]|\\\{).*[)\]}]$", re.DOTALL)
_UNITS = re.compile(
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
]
# Towers of powers, long exponents and deep nesting would take sympy hours, and no real answer contains them.
_UNBOUNDED = re.compile(r"\^\s?\{?\s?\(?-?\d{4}|\^[^+\-=,]{0,30}\^|\*\*[^+\-=,]{0,30}\*\*|\d{60}|(?:[({]\s?){12}")
_LONGEST_EXPRESSION = 300
_BOUND_WORDS = re.compile(
    r"\b(?:or (?:more|less|fewer|greater|higher|lower|above|below)|at (?:least|most)|(?:more|less|fewer|"
    r"greater) than|up to)\b",
    re.IGNORECASE,
)
_WORD_ANSWER = re.compile(r"[A-Za-z][A-Za-z'-]*(?: solutions?)?")


def canonical_expression(answer: str) -> str | None:
    """A dataset's answer in the form used for comparison; `None` if it cannot be read."""
    text = plain_characters(answer).strip()
    literal = _base_literal(text)
    if literal:
        return literal
    if gold_words(text) is not None:
        number = read_number(text, Placement.BARE)
        return number or text
    value = exact_value(_tidy(text))
    if value is not None:
        return canonical_number(value)
    number = None if is_whole(text) else read_maths(text, Placement.BARE)
    if number and NUMBER.fullmatch(number):
        return number
    return text if _is_expression(text) else None


def gold_words(gold: str) -> str | None:
    r"""The words of a gold answer that is no expression, such as `\text{even}` or `Monday`; `None` for others."""
    inner = re.fullmatch(r"\s*\\(?:text(?:bf|it|rm|normal)?|mathrm|mbox)\s?\{([^{}]{1,60})\}\s*", gold)
    if inner and re.search(r"[A-Za-z]", inner[1]):
        return _words(inner[1])
    if _WORD_ANSWER.fullmatch(gold) and (len(gold) > 2 or re.fullmatch(r"[A-J]", gold)):
        return _words(gold)
    return None


def read_words(words: str, placement: Placement, gold: str) -> str | None:
    """An answer in words; an `extract.Reader` once the gold answer is known."""
    text = _words(re.sub(r"^on ", "", strip_lead_in(strip_markup(words)), flags=re.IGNORECASE))
    if placement is Placement.OPENING:
        return None
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        found = re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text)
        if found is None or HEDGE.search(text):
            return None
        if re.search(r"\b(?:not|n't|or|never|no)\b|n't\b", text):
            return AMBIGUOUS
        # "Evelyn has the highest", "the student is Evelyn", not "... is Briana, with Evelyn a close second"
        predicate = rf"(?:\b(?:is|are|was|be|so|thus|hence|therefore)|:|=),? (?:on |in |a |an |the ){{0,2}}{re.escape(gold)}(?!\w)"
        return gold if found.start() == 0 or re.search(predicate, text) else None
    if text == gold or placement is Placement.BARE:
        return gold if text == gold else None
    if text.startswith(gold) and not re.match(r"\w", text[len(gold) :]):
        rest = text[len(gold) :]
        return AMBIGUOUS if DENIAL_AFTER.match(rest) or re.match(r"\W{0,3}(?:or|and)\b", rest) else gold
    return text or None


def read_maths(words: str, placement: Placement, *, whole: bool = False) -> str | None:
    """The number or expression that a text gives as its answer; an `extract.Reader`.

    Args:
        words: Text to read.
        placement: Where it was found.
        whole: Whether the gold answer is a list or an equation, so that "1 or 2" and "x + y = 1" are one answer.
    """
    if placement is Placement.OPENING:
        return None
    words = _PLAIN_PI.sub(r"\\pi", _PLAIN_FUNCTION.sub(r"\\sqrt{\1}", plain_characters(words)))
    if _UNSOLVED.fullmatch(words.strip(" .$")) and not whole:
        return AMBIGUOUS
    if placement is not Placement.BOX and " " in words:
        words = _DENIED_TAIL.sub("", words) if re.search(r"[\d$}]", _DENIED_TAIL.sub("", words)) else words
    text = strip_lead_in(strip_markup(words)).rstrip(". ")
    if "boxed" in text or text.count("{") != text.count("}"):
        return None  # truncated
    if literal := _base_literal(text):
        return literal
    if placement is Placement.BARE and re.fullmatch(r"\d{1,20}\^\{?\d{1,4}\}?", text):
        value = exact_value(text)
        return None if value is None else canonical_number(value)
    if placement is Placement.BOX:
        if "?" in text or NEGATION.search(text) or _BOUND_WORDS.search(text):
            return AMBIGUOUS
        value = exact_value(_tidy(words))
        if value is not None:
            return canonical_number(value)
    if _RELATION.search(text.replace("≈", "")) and placement in (Placement.BOX, Placement.MARKED):
        return _expression(words, placement, whole)
    if _ALTERNATIVES.search(text) and not whole and re.search(r"\b(?:or)\b|\\(?:lor|vee)\b", text, re.IGNORECASE):
        return AMBIGUOUS
    if whole and placement in (Placement.BOX, Placement.MARKED) and _is_expression(words):
        return _expression(words, placement, whole)
    if placement in (Placement.LOOSE, Placement.SENTENCE) and _is_ruled_out(words):
        return AMBIGUOUS
    if placement in (Placement.LOOSE, Placement.SENTENCE) and (found := _only_segment(words, whole)):
        return found
    names = [name.group() for segment in _SEGMENT.finditer(words) if (name := _ASSIGNED.match(segment.group(1)))]
    if len(set(names)) > 1 and placement in (Placement.LOOSE, Placement.SENTENCE) and not CONCLUDED.search(words):
        return AMBIGUOUS  # $a = 2$, $b = 5$
    if (
        not _NOT_A_NUMBER.search(text.rpartition("=")[2])
        and (number := read_number(words, placement, decimal_comma=False)) is not None
    ):
        # Tuples and lists of numbers are several numbers but one expression.
        if number != AMBIGUOUS:
            return number
        if placement in (Placement.LOOSE, Placement.SENTENCE) or not _is_expression(words):
            return AMBIGUOUS
    return _expression(words, placement, whole)


def compare_expressions(found: str, gold: str) -> str:
    """Compares two answers: "same", "different", "unparseable", or "unknown" where math-verify fails."""
    if _ROUNDED.search(found) and not _ROUNDED.search(gold):  # the exact value and the rounded one both count
        replies = [compare_expressions(side, gold) for side in _ROUNDED.split(found)[-2:] if side.strip()]
        return "same" if "same" in replies else replies[0] if replies else "unparseable"
    found, gold = (_MEMBER.sub("", _tidy(side)) for side in (found, gold))
    if found == gold:
        return "same"
    if _BASE.fullmatch(gold) or _BASE.fullmatch(found):
        return _compare_bases(found, gold)
    found_value, gold_value = exact_value(found), exact_value(gold)
    if found_value is not None and gold_value is not None:
        return "same" if found_value == gold_value else "different"
    if len(found) > _LONGEST_EXPRESSION or _UNBOUNDED.search(found):
        return "unparseable"
    found, gold = (_without_name(side) if _NAMED_TUPLE.match(side) else side for side in (found, gold))
    found_items, gold_items = _items(found), _items(gold)
    if found_items and gold_items and (len(found_items[1]) > 1 or len(gold_items[1]) > 1):
        return _compare_lists(found_items, gold_items)
    found, gold = _without_name(found), _without_name(gold)
    if bool(_RELATION.search(found)) != bool(_RELATION.search(gold)) and not (
        _SET_LIKE.search(gold) or _SET_LIKE.search(found)
    ):
        return "different"
    if re.search(r"\d\s?:\s?\d", found) and ":" not in gold:
        return "different"  # a ratio
    if "=" in found and "=" not in gold and (identity := _identity(found)):
        found = identity
    if "=" in found and "=" not in gold and not _RELATION.search(gold):
        return "different"
    if found == gold:
        return "same"
    reply = POOL.compare(gold, found)
    return {"same": "same", "different": "different", "unparseable": "unparseable"}.get(reply, "unknown")


def is_whole(gold: str) -> bool:
    """Whether a gold answer is a list or an equation, rather than a value."""
    tidy = _tidy(gold)
    return _is_list(tidy) or "=" in _without_name(tidy)


def _is_list(tidy: str) -> bool:
    items = _items(tidy)
    return items is not None and len(items[1]) > 1


def is_readable(gold: str) -> bool:
    """Whether a gold answer in canonical form can be compared with anything."""
    if NUMBER.fullmatch(gold) or _BASE.fullmatch(gold) or _is_list(_tidy(gold)):
        return True
    return POOL.compare(_tidy(gold), "") == "readable"


def _expression(words: str, placement: Placement, whole: bool) -> str | None:
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        segments = list(_MATHS_MODE.finditer(words))
        if HEDGE.search(words) or not segments:
            return None
        if len(segments) > 1 or _RULED_OUT.search(words[: segments[-1].start()]):
            return AMBIGUOUS
        return read_maths(segments[-1].group(1), Placement.MARKED, whole=whole)
    segment = None if placement is Placement.BOX else _MATHS_MODE.match(strip_lead_in(words.lstrip(" *:")))
    if segment and segment.group(1) != words:
        if placement is Placement.BARE and re.search(r"\w", strip_lead_in(words.lstrip(" *:"))[segment.end() :]):
            return None
        return read_maths(segment.group(1), Placement.MARKED, whole=whole)
    if not _is_expression(words):
        return None
    if placement is Placement.BARE and "$" not in words and "\\" not in words and not _PLAIN_FORMULA.fullmatch(words.strip()):
        return None
    # The original text: math-verify handles units and text commands better than `strip_markup`.
    expression = re.sub(r"\*\*|\$|\\[\[\]()]", "", strip_lead_in(words.strip())).replace("−", "-").strip(" .:")
    rounded = _ROUNDED.split(expression, maxsplit=1)
    if len(rounded) == 2 and rounded[0].strip() and not whole:
        return f"{_last_side(rounded[0], whole)} \\approx {rounded[1].strip()}"
    return _last_side(expression, whole) or None


def _last_side(expression: str, whole: bool) -> str:
    """The result of a chain of equations; "x^2 + y^2 = 1" is itself the result."""
    sides = re.split(r"(?<![<>!\\])=", expression)
    if (
        len(sides) > 1
        and not whole
        and "," not in expression
        and ";" not in expression
        and not _RELATION.search(expression)
    ):
        last = sides[-1].strip()
        expression = last if len(sides) > 2 or _ASSIGNED.match(expression) or _is_constant(sides[0]) else expression
        if exact_value(_tidy(last)) is not None:
            expression = last
    return expression.strip()


def _is_ruled_out(words: str) -> bool:
    """Whether the last formula of a sentence is denied or only supposed: "$x = 6$ is extraneous"."""
    segments = list(_SEGMENT.finditer(words))
    if not segments or CONCLUDED.search(words):
        return False
    before, after = words[: segments[-1].start()], words[segments[-1].end() :]
    denied = NEGATION.search(re.split(r"[,;:]", before)[-1]) or _RULED_OUT.search(before)
    return bool(denied or DENIAL_AFTER.match(after))


def _is_constant(side: str) -> bool:
    """Whether a side of an equation has no variable, so that the equation only computes it."""
    return bool(side.strip()) and not re.search(r"[A-Za-z]", _COMMANDS.sub("", side))


def _only_segment(words: str, whole: bool) -> str | None:
    """The expression of a sentence that ends in its only formula: "The point is $(2, 5)$."."""
    concluding = after_denials(CONCLUDED.split(words)[-1])
    words = concluding if _MATHS_MODE.search(concluding) else words
    clauses = [clause for clause in words.split(";") if _SEGMENT.search(clause) and not is_aside(clause)]
    words = clauses[-1] if clauses else words
    words = words[: qualifier.start()] if (qualifier := QUALIFIER.search(words)) else words
    segments = list(_SEGMENT.finditer(words))
    if segments and not _MATHS_MODE.match(words, segments[-1].start()):
        return None
    if not segments and (stated := _stated_expression(words, whole)) is not None:
        return stated
    if whole and len(segments) > 1 and all(_ASSIGNED.match(segment.group(1)) for segment in segments):
        listed = ", ".join(segment.group(1) for segment in segments)
        return None if HEDGE.search(words) or NEGATION.search(words) else listed  # $x = 1$ and $x = 4$
    if whole and (listed := _listed(words, segments)):
        return listed
    if len(segments) > 1 and (result := _COMPOUND.fullmatch(segments[-1].group(1).strip())):
        return read_maths(result[1], Placement.BOX, whole=whole)  # $a = 3$, $b = 7$, and $a + b = 10$
    if len(segments) > 1 and _IS.search(words[segments[-2].end() : segments[-1].start()]) and not HEDGE.search(words):
        return read_maths(segments[-1].group(1), Placement.BOX, whole=whole)  # the maximum of $ab$ is $16$
    if len(segments) != 1 or HEDGE.search(words) or NEGATION.search(words):
        return None
    if re.search(r"[\d$]", words[: segments[0].start()] + words[segments[0].end() :]):
        return None
    if re.search(r"\b(?:than|least|most|up to)\s*$", words[: segments[0].start()]):
        return None
    return read_maths(segments[0].group(1), Placement.BOX, whole=whole)


def _listed(words: str, segments: list[re.Match[str]]) -> str | None:
    """The items that a sentence ends in, each in maths mode or all without: "the roots are $2$ and $3$"."""
    if HEDGE.search(words) or NEGATION.search(words):
        return None
    if not segments:
        plain = _PLAIN_LIST.search(words.rstrip(". "))
        return re.sub(r",?\s(?:and|or)\s", ", ", plain[1]) if plain else None
    items = [segments[-1].group(1)]
    for before, after in zip(reversed(segments[:-1]), reversed(segments), strict=False):
        if not _BETWEEN_ITEMS.fullmatch(words[before.end() : after.start()]):
            break
        items.insert(0, before.group(1))
    return ", ".join(items) if len(items) > 1 else None


def _stated_expression(words: str, whole: bool) -> str | None:
    """An expression without maths mode that a sentence ends in: "The height is 2√3"."""
    stated = _STATED.search(words.strip().rstrip(". "))
    if stated is None or HEDGE.search(words) or NEGATION.search(words):
        return None
    expression = (stated["plain"] or stated["named"] or stated["bold"]).strip("*. ")
    formula = re.search(r"\\|[a-z] ?[-+^/*]|[-+^/*(] ?[a-z]|^\(.*,.*\)$", expression) or (whole and stated["named"])
    if not formula or not _is_expression(expression):
        return None
    return read_maths(expression, Placement.BOX, whole=whole)


def _is_expression(words: str) -> bool:
    """Whether there is something other than prose, after removing text commands (mostly units) and other commands."""
    words = _UNITS.sub("", words.strip())
    left = _COMMANDS.sub(" ", _TEXT.sub(" ", strip_lead_in(words)))
    return bool(re.search(r"\w|\\", _TEXT.sub(" ", words))) and not _PROSE.search(left)


def _words(text: str) -> str:
    return strip_markup(text).strip(" .,;:!(){}").casefold()


def _tidy(expression: str) -> str:
    """One way to write what LaTeX writes in many: no spacing commands, units, degrees and percent signs."""
    expression = expression.strip().rstrip(".")
    if "{" in expression:
        expression = _SCALED_TEXT.sub(lambda m: f"{m[1]} \\times {SCALES[m[2].lower()]}", expression)
    for pattern, replacement in _TIDY:
        expression = pattern.sub(replacement, expression)
    without_text = _TEXT.sub(lambda m: " , " if m[1].strip() in ("and", "or") else " ", expression).strip()
    expression = without_text if re.search(r"\w", without_text) else _TEXT.sub(r"\1", expression)
    expression = _UNITS.sub("", expression.strip())
    return " ".join(expression.split()).replace(" , ", ", ").replace(" = ", "=")


def _base_literal(text: str) -> str | None:
    match = _BASE.fullmatch(_TEXT.sub(r"\1", text).strip(" $.")) or _BASE_WORDS.fullmatch(text.strip(" $."))
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
    name = _ASSIGNED.match(expression)
    rest = expression[name.end() :] if name else expression
    return rest if "=" not in rest else expression


def _identity(expression: str) -> str | None:
    """The right side of an equation whose sides have the same variables: `(x^2-1)/(x-1) = x+1`."""
    sides = expression.split("=")
    variables = [set(re.findall(r"[a-zA-Z]", _COMMANDS.sub("", side))) for side in sides]
    return sides[-1] if len(sides) == 2 and variables[0] == variables[1] and variables[0] else None


def _items(expression: str) -> tuple[str, list[str]] | None:
    """Brackets and items of a list; `None` for what is no list (a matrix, a union, an inequality)."""
    if "\\begin" in expression or "\\cup" in expression or _RELATION.search(expression):
        return None
    expression = expression.replace("\\{", "⟨").replace("\\}", "⟩")
    brackets = ""
    if expression[:1] in "([⟨" and expression[-1:] in ")]⟩" and expression and _closes_at_end(expression):
        brackets, expression = expression[0] + expression[-1], expression[1:-1]
    assigned = _ASSIGNED.match(expression)
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
    return brackets, [item.replace("⟨", "\\{").replace("⟩", "\\}") for item in items]


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
        [m.group().strip(" =") if (m := _ASSIGNED.match(item)) else "" for item in items]
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
