r"""Reads mathematical answers: the number, expression, list or word that a text gives as its answer.

`math_compare` decides whether it is the gold answer.
"""

from __future__ import annotations

import functools
import re

from opd_align.tasks.characters import plain_characters, strip_markup
from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.math_compare import (
    ASSIGNED,
    COMMANDS,
    NUMBER,
    RELATION,
    ROUNDED,
    TEXT,
    UNITS,
    base_literal,
    combinations,
    forget_comparisons,
    is_whole,
    tidy,
)
from opd_align.tasks.number_sentences import AGAIN, QUALIFIER, main_clause
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.numbers import read_number
from opd_align.tasks.statements import (
    CONCLUDED,
    DENIAL_AFTER,
    HEDGE,
    NEGATION,
    after_denials,
    is_aside,
    strip_lead_in,
)

_NOT_A_NUMBER = re.compile(
    r"^\s?-?\d[\d.,]*(?![eE][-+]?\d)[A-Za-z](?![A-Za-z])(?!$)|^\s?-?\d[\d.,/]*[a-ln-z]$|\d\s?!|\d[A-Za-z]*[\^_]|^\s?-?\d+\((?=[^()]*[-+*/^\\])"
)  # 5x, 5!, 2^3, 4(1 + \sqrt{2})
_PROSE = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff]|(?<![\\A-Za-z])(?:[A-Za-z]{3,}|(?:is|it|of|to|in|an|at|on|by|we|so|no|be|as|if|do|"
    r"my)\b)",
)
# "$5\pi$ because ..." is an answer with a reason; "$m/n$ where ..." is not an answer yet.
_MATHS_MODE = re.compile(
    r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))"
    r"(?=[ *]{0,4}(?:$|[.,;!]|in (?:base|octal|binary|hex|its|simplest|lowest|interval|radical|decimal|"
    r"scientific)|(?:because|since|as|by|from|which|units?|cm|square|cubic|sq\.?|liters|litres|ft|degrees|inches|feet|meters|"
    r"radians|metres|km|mm|kg|seconds|minutes|hours|days|years|dollars|percent|ways|solutions)\b))"
)
_RULED_OUT = re.compile(
    r"\b(?:not|n't|never|neither|nor|than|least|most|up to|over|under|above|below|divisible by|multiple of|factor of|"
    r"divides|reject|discard|exclude|assume|let|try|before|until)\s*$",
    re.IGNORECASE,
)
_DENIED_TAIL = re.compile(
    r" ?\(not [^()]{1,60}\)|(?<!\bis)(?<!\bare)(?<!\bdoes)(?<!\bdo)(?<!\bwas)(?<!\bcan),? (?:and |but )?(?:not|"
    r"rather than|instead of) [^,;.]{1,60}(?=[,;.]|$)",
    re.IGNORECASE,
)
_PLAIN_LIST = re.compile(
    r"(?:^|\b(?:are|is|is either|solutions?|roots?)|=|:)\s*((?:[a-z] ?= ?)?-?\d+(?:/\d+)?(?:(?:,?\s(?:and|or)\s|"
    r",\s?)(?:[a-z] ?= ?)?-?\d+(?:/\d+)?)+)$"
)
_PLAIN_FORMULA = re.compile(
    r"(?=.*(?:\b\d{0,9}[a-z]\s?[-+^*/=(]|[-+^*/(]\s?[a-z]\b|\(.*,))(?:\b[a-z]\b|\d+[a-z]?|[-+^*/=().,\s{}]|\b(?:and|"
    r"or)\b)+\.?"
)
_BETWEEN_ITEMS = re.compile(r"[\s,]*(?:and|or|y|e|et|ou|o|und|oder|и|или|或|和|或者|と)?[\s,]*")
_UNSOLVED = re.compile(r"\$?\s*(?:\d+\s?[a-z]|[a-z]\s?\^\s?\{?\d+\}?)\s*=[^=]+")  # 2x = 6, x^2 = 6
# f(x) + g(x), (f + g)(x), \int ... dx, \lim ..., \frac{d}{dx} ...
_OF_FUNCTIONS = re.compile(
    r"\s*(?:\\(?:int|iint|oint|lim|sum|prod|max|min|gcd)(?![A-Za-z])|\\frac\s?\{(?:d|\\partial)|"
    r"(?:(?:[fghpqFGHPQ]'{0,2}|\([fgh]\s?(?:[-+·*]|\\circ|\\cdot)?\s?[fgh]\))\s?\((?:[a-z]|-?\d+|[fgh]\([^()]{1,9}\))\)"
    r"\s?(?:[-+·*/]|\\cdot|\\times)?\s?)+$)"
)
_SOLVED_LAST = re.compile(
    r"[^=,;$]*\d(?P<variable>[a-z])\b[^=,;$]*=[^=,;$]+,\s?(?:so )?(?P<last>(?P=variable)\s?=[^=,;$]+)"
)
_SQUARE_ROOT = re.compile(
    r"(?P<before>^\s?|\bis )the (?:positive |principal )?square root of \$?(?P<number>\d+)\$?(?=\W{0,3}$)",
    re.IGNORECASE,
)
_POINT = re.compile(r"^\s?[A-Z](?=\([^()]*,[^()]*\)\s?$)")  # P(2,5)
_ONE_VARIABLE = re.compile(
    r"(?=[^=]*[-+*/^\d])(?:\d{0,6}\s?(?P<variable>[a-z])(?:\^\{?\d+\}?)?)\s?(?:[-+]\s?\d+(?:\s?(?P=variable)\b)?\s?)*=[^=]+"
)  # x + 3 = 10
_PLAIN_FUNCTION = re.compile(r"(?<![\\\w])sqrt\(([^()]{1,60})\)")
_PLAIN_LOGARITHM = re.compile(r"(?<![\\\w])(?P<name>ln|log|sin|cos|tan|arctan|arcsin|arccos)(?=\(| \d|\d)")
_PLAIN_PI = re.compile(r"(?<![\\A-Za-z])pi\b")
_IS = re.compile(
    r"\b(?:is|are|equals|becomes|(?:we|you|I) (?:get|obtain|have|find)|gives|yields|leaves|left with|"
    r"(?:simplifies|reduces|"
    r"evaluates|comes|amounts|converges|equal|equivalent) to)\s{0,2}$"
)
_SEGMENT = re.compile(r"(?:\$|\\\()([^$\n]{1,300}?)(?:\$|\\\))")
_COMPOUND = re.compile(r"[^=,]*\w\s?[-+/^(][^=,]*=([^=,]+)")  # a + b = 10, f(3) = 10
_STATED = re.compile(
    r"(?:\b(?:is(?: at)?|are(?: at)?|equals?|be|gives?|get|obtain)\b:?|\w:) (?P<plain>[^\s*].{0,120})$|"
    r"(?:^|\b(?:[Ss]o|[Tt]hus|[Hh]ence|[Tt]hen|[Tt]herefore|get|have)\b,? )(?P<named>[a-z] ?= ?(?:(?!\b(?:the|is|"
    r"are)\b).){1,60})$|\*\*(?P<bold>[^*\n]{1,120})\*\*"
)
_ALTERNATIVES = re.compile(r"\b(?:or|and)\b|\\lor\b|\\vee\b", re.IGNORECASE)
_BOUND_WORDS = re.compile(
    r"\b(?:or (?:more|less|fewer|greater|higher|lower|above|below)|at (?:least|most)|(?:more|less|fewer|"
    r"greater) than|up to)\b",
    re.IGNORECASE,
)
# The variable of $x \\to 6$ and $n \\mid 6$ does not have this value.
_NO_VALUE = re.compile(r"[a-z]\)?\s?(?:\\(?:to|(?:long)?rightarrow|mapsto|n?mid|sim)(?![A-Za-z])|→|->|∣)")
# A sentence that only says where something is looked at: "For $x = 6$ this fails."
_ADJUNCT = re.compile(
    r"\W{0,4}(?:(?:so|thus|then|now|hence),? )?(?:for|when|whenever|if|at|with|(?:by )?(?:setting|plugging in|"
    r"substituting|taking|"
    r"putting|using|adding|subtracting)|(?:the )?case|let|where|as|see|from|by|since|because|given(?: that)?|"
    r"recall(?: that)?)\s{0,2}$",
    re.IGNORECASE,
)
_NO_SUCH = re.compile(r"\bno (?:\w+ ){1,3}(?:with|where|for|of|such|when)\b", re.IGNORECASE)
_REMARK = re.compile(r"\s\((?=[^()]*[a-z]{3})(?:[^()]|\([^()]*\)){3,120}\)(?=[.\s]{0,3}$)")
# "the cube root of 2, $\\sqrt[3]{2}$"
_ROOT_IN_WORDS = re.compile(
    r"the (?:positive |principal |negative |real )?(?:square|cube|fourth) root of \$?\w{1,6}\$?, (?=\$)"
)
_IN_BASE = re.compile(r" \(?(?:(?:when )?(?:written |expressed )?in )?base[ -]\$?\d{1,2}\$?\)?(?![\d$])")
_BASE_LAST = re.compile(
    r"(?:\b(?:is|equals|as|get|to)|=) \$?(?P<literal>[0-9A-F]{1,40}_\{?\d{1,2}\}?)\$?(?: in \w+)?\W{0,3}$"
)
_TUPLE_LAST = re.compile(
    r"\b(?:at|point|vertex|coordinates|pair|solution)(?: the point)? (?P<tuple>\([^()]{1,30},[^()]{1,30}\))$"
)
_COMPARED = re.compile(
    r"\bthan (?!any|all|every|the (?:others|rest|other))|\b(?:second|slowest|last|least|lowest|"
    r"smallest)\b[^,]{0,20} is\b"
)
_WORD_ANSWER = re.compile(r"[A-Za-z][A-Za-z'-]*(?: solutions?)?")


_SHORT = 60
"""Texts of at most this length are answers rather than sentences: completions of a question give the same few."""


@functools.lru_cache(maxsize=4096)  # a question's answer is read for each of its completions
def canonical_expression(answer: str) -> str | None:
    """A dataset's answer in the form used for comparison; `None` if it cannot be read."""
    text = plain_characters(answer).strip()
    literal = base_literal(text)
    if literal:
        return literal
    if gold_words(text) is not None:
        number = read_number(text, Placement.BARE)
        return number or text
    value = exact_value(tidy(combinations(text)))
    if value is not None:
        return canonical_number(value)
    number = None if is_whole(text) else read_maths(text, Placement.BARE)
    if number and NUMBER.fullmatch(number):
        return number
    return text if _is_expression(text) else None


@functools.lru_cache(maxsize=4096)
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
        concluding = CONCLUDED.split(text)[-1]
        text = concluding if re.search(r"\w{3}", concluding) else text
        found = re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text)
        if found is None or HEDGE.search(text):
            return None
        if re.search(r"\b(?:not|n't|or|never|no|cannot)\b|n't\b", text.replace(gold, "")) or _COMPARED.search(text):
            return AMBIGUOUS
        if gold.startswith("no "):  # "The system has no solution."
            return gold
        # "Evelyn has the highest", "the student is Evelyn", not "... is Briana, with Evelyn a close second"
        stated = (
            r"(?:\b(?:is|are|was|be|so|thus|hence|therefore|falls?|fell|lands?)|:|=),? (?:on |in |a |an |the ){0,2}"
        )
        predicate = rf"{stated}{re.escape(gold)}(?!\w)"
        subject = rf"(?:^|^[^,]{{1,100}}, )(?:on |in |an? |the )?{re.escape(gold)}(?!\w)"
        return gold if re.search(subject, text) or re.search(predicate, text) else None
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
    return (_read_again if len(words) <= _SHORT else _read)(words, placement, whole)


def _read(words: str, placement: Placement, whole: bool) -> str | None:
    if placement is Placement.OPENING:
        return None
    if placement is Placement.BARE:
        words = words.lstrip("= ")
    words = _PLAIN_PI.sub(r"\\pi", _PLAIN_FUNCTION.sub(r"\\sqrt{\1}", plain_characters(words)))
    words = _PLAIN_LOGARITHM.sub(r"\\\g<name>", words.replace("$$", "$"))
    equation = strip_lead_in(words.strip()).strip(" .$")
    if not whole and (solved := _SOLVED_LAST.fullmatch(equation)):
        words = equation = solved["last"]  # 3x = 36, x = 12
    if not whole and (_UNSOLVED.fullmatch(equation) or _is_unsolved(equation)):
        return AMBIGUOUS
    if placement in (Placement.LOOSE, Placement.SENTENCE) and "$" in _REMARK.sub("", words):
        words = _REMARK.sub("", words)
    segments = [segment.group(1) for segment in _SEGMENT.finditer(words)] or [words]
    if len(segments) == 1 and _NO_VALUE.search(segments[0]) and not re.search(r"=|\d.*\d", words):
        return AMBIGUOUS
    if "square root" in words and placement is not Placement.BOX:
        words = _SQUARE_ROOT.sub(r"\g<before>$\\sqrt{\g<number>}$", words)
    if placement is Placement.MARKED and not whole and (qualifier := QUALIFIER.search(words)):
        before = words[: qualifier.start()]
        words = before if re.search(r"[\d$]", before) and "=" not in before else words
    if placement is not Placement.BOX and " " in words:
        words = AGAIN.sub("", words)
        words = _DENIED_TAIL.sub("", words) if re.search(r"[\d$}]", _DENIED_TAIL.sub("", words)) else words
    if placement in (Placement.LOOSE, Placement.SENTENCE) and "_" in words:
        based = None if NEGATION.search(words) or HEDGE.search(words) else _BASE_LAST.search(words)
        if based and (literal := base_literal(based["literal"])):
            return literal
    text = strip_lead_in(strip_markup(words)).rstrip(". ")
    if "boxed" in text or text.count("{") != text.count("}"):
        return None  # truncated
    if literal := base_literal(text) or (base_literal(words) if "_{" in words else None):
        return literal
    if placement is Placement.BARE and re.fullmatch(r"\d{1,20}\^\{?\d{1,4}\}?", text):
        value = exact_value(text)
        return None if value is None else canonical_number(value)
    if placement is Placement.BOX:
        if "?" in text or NEGATION.search(text) or _BOUND_WORDS.search(text):
            return AMBIGUOUS
        value = exact_value(tidy(words))
        if value is not None:
            return canonical_number(value)
    if RELATION.search(text.replace("≈", "")) and placement in (Placement.BOX, Placement.MARKED):
        return _expression(words, placement, whole)
    stated = CONCLUDED.split(text)[-1] if placement is Placement.SENTENCE else text
    if _ALTERNATIVES.search(stated) and not whole and re.search(r"\b(?:or)\b|\\(?:lor|vee)\b", stated, re.IGNORECASE):
        several = placement is Placement.BARE and (CONCLUDED.search(text) or re.search(r"[.;] [A-Z]", text))
        return None if several else AMBIGUOUS
    if whole and placement in (Placement.BOX, Placement.MARKED) and _is_expression(words):
        return _expression(words, placement, whole)
    if placement in (Placement.LOOSE, Placement.SENTENCE) and _is_ruled_out(words):
        return AMBIGUOUS
    if placement in (Placement.LOOSE, Placement.SENTENCE) and (found := _only_segment(words, whole)) is not None:
        return found
    concluded = CONCLUDED.split(words)
    if placement in (Placement.LOOSE, Placement.SENTENCE) and len(concluded) > 1 and re.search(r"[\d$]", concluded[-1]):
        words = concluded[-1]  # "$12 = 2^2 \\cdot 3$, so it has $6$ divisors"
        text = strip_lead_in(strip_markup(words)).rstrip(". ")
    names = [name.group() for segment in _SEGMENT.finditer(words) if (name := ASSIGNED.match(segment.group(1)))]
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


_read_again = functools.lru_cache(maxsize=4096)(_read)


def forget_answers() -> None:
    """Empties the caches of answers that were read and compared, to measure what they save."""
    _read_again.cache_clear()
    forget_comparisons()


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
    if (
        placement is Placement.BARE
        and "$" not in words
        and "\\" not in words
        and not _PLAIN_FORMULA.fullmatch(words.strip())
    ):
        return None
    # The original text: math-verify handles units and text commands better than `strip_markup`.
    expression = re.sub(r"\*\*|\$|\\[\[\]()]", "", strip_lead_in(words.strip())).replace("−", "-").strip(" .:")
    rounded = ROUNDED.split(expression, maxsplit=1)
    if len(rounded) == 2 and rounded[0].strip() and not whole:
        return f"{_last_side(rounded[0], whole)} \\approx {rounded[1].strip()}"
    return _last_side(expression, whole) or None


def _last_side(expression: str, whole: bool) -> str:
    """The result of a chain of equations; "x^2 + y^2 = 1" is itself the result."""
    sides = re.split(r"(?<![<>!\\])=", expression)
    if whole:
        expression = _POINT.sub("", expression)
        if len(sides) == 2 and all(re.match(r"\s?(?:\\left)?\(.*\)\s?$", side) for side in sides):
            return sides[1].strip()  # (\frac{4}{2}, \frac{10}{2}) = (2, 5)
    if (
        len(sides) > 1
        and not whole
        and "," not in expression
        and ";" not in expression
        and not RELATION.search(expression)
    ):
        last = sides[-1].strip()
        defines = (
            len(sides) > 2 or ASSIGNED.match(expression) or _is_constant(sides[0]) or _OF_FUNCTIONS.match(sides[0])
        )
        expression = last if defines else expression
        if exact_value(tidy(last)) is not None:
            expression = last
    return expression.strip()


def _is_ruled_out(words: str) -> bool:
    """Whether the last formula of a sentence is denied or only supposed: "$x = 6$ is extraneous"."""
    words = after_denials(words)
    segments = list(_SEGMENT.finditer(words))
    if not segments or CONCLUDED.search(words):
        return False
    before, after = words[: segments[-1].start()], words[segments[-1].end() :]
    denied = NEGATION.search(re.split(r"[,;:]", before)[-1]) or _RULED_OUT.search(before) or _NO_SUCH.search(before)
    only_a_case = len(segments) == 1 and _ADJUNCT.fullmatch(before)  # "For $x = 6$ ..."
    return bool(denied or only_a_case or DENIAL_AFTER.match(after))


def _is_unsolved(equation: str) -> bool:
    """Whether an equation in one variable is not solved yet: "x + 3 = 10", but not "y - 1 = 2x"."""
    unsolved = _ONE_VARIABLE.fullmatch(equation)
    right = COMMANDS.sub("", equation.partition("=")[2])
    return unsolved is not None and not set(re.findall(r"[a-z]", right)) - {unsolved["variable"]}


def _is_constant(side: str) -> bool:
    """Whether a side of an equation has no variable, so that the equation only computes it."""
    return bool(side.strip()) and not re.search(r"[A-Za-z]", COMMANDS.sub("", side))


def _only_segment(words: str, whole: bool) -> str | None:
    """The expression of a sentence that ends in its only formula: "The point is $(2, 5)$."."""
    words = _IN_BASE.sub("", _ROOT_IN_WORDS.sub("", main_clause(words)))
    concluding = after_denials(CONCLUDED.split(words)[-1])
    words = concluding if _SEGMENT.search(concluding) else words
    clauses = [clause for clause in words.split(";") if _SEGMENT.search(clause) and not is_aside(clause)]
    words = clauses[-1] if clauses else words
    qualifier = QUALIFIER.search(words)
    words = words[: qualifier.start()] if qualifier and re.search(r"[\d$]", words[: qualifier.start()]) else words
    segments = list(_SEGMENT.finditer(words))
    if segments and (HEDGE.search(words) or not _MATHS_MODE.match(words, segments[-1].start())):
        return None
    if not segments and (stated := _stated_expression(words, whole)) is not None:
        return stated
    if whole and len(segments) > 1 and all(ASSIGNED.match(segment.group(1)) for segment in segments):
        listed = ", ".join(segment.group(1) for segment in segments)
        return None if HEDGE.search(words) or NEGATION.search(words) else listed  # $x = 1$ and $x = 4$
    if whole and (items := _listed(words, segments)):
        return items
    if len(segments) > 1 and (result := _COMPOUND.fullmatch(segments[-1].group(1).strip())):
        return read_maths(result[1], Placement.BOX, whole=whole)  # $a = 3$, $b = 7$, and $a + b = 10$
    if len(segments) > 1 and _IS.search(words[segments[-2].end() : segments[-1].start()]) and not HEDGE.search(words):
        return read_maths(segments[-1].group(1), Placement.BOX, whole=whole)  # the maximum of $ab$ is $16$
    if len(segments) != 1 or HEDGE.search(words) or NEGATION.search(words):
        return None
    if not whole and _is_unsolved(segments[0].group(1).strip(" .")):
        return AMBIGUOUS  # not solved yet
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
    if (
        (pair := _TUPLE_LAST.search(words.strip().rstrip(". ")))
        and not HEDGE.search(words)
        and not NEGATION.search(words)
    ):
        return read_maths(pair["tuple"], Placement.BOX, whole=whole)  # "They meet at (2, 5)"
    stated = _STATED.search(words.strip().rstrip(". "))
    if stated is None or HEDGE.search(words) or NEGATION.search(words):
        return None
    expression = (stated["plain"] or stated["named"] or stated["bold"]).strip("*. ")
    formula = re.search(r"\\|\d+[a-z]$|[a-z] ?[-+^/*]|[-+^/*(] ?[a-z]|^\(.*,.*\)$", expression) or (
        whole and stated["named"]
    )
    if not formula or not _is_expression(expression):
        return None
    return read_maths(expression, Placement.BOX, whole=whole)


def _is_expression(words: str) -> bool:
    """Whether there is something other than prose, after removing text commands (mostly units) and other commands."""
    words = UNITS.sub("", words.strip())
    left = COMMANDS.sub(" ", TEXT.sub(" ", strip_lead_in(words)))
    return bool(re.search(r"\w|\\", TEXT.sub(" ", words))) and not _PROSE.search(left)


def _words(text: str) -> str:
    words = strip_markup(text).strip(" .,;:!(){}").casefold()
    return re.sub(r"\bno (?:real )?solutions?\b", "no solution", words)
