"""Parses numbers as people and models write them, exactly.

Every number becomes a `Fraction`, so that 18, 18.0, 36/2, 1.8e1 and eighteen are one value and 0.333 is not 1/3.
Thousands separators, currencies, units and percent signs are ignored: 12% reads as 12 (and is 0.12 too: see
`is_percentage_of`). Multipliers are not: $5k is
5000, five dozen is 60. A comma or space separates thousands only in groups of three (2,00,000 in India); 1.234 is a
decimal, and so is 1,5. A bound ("less than 18", "< 5") and a denial ("not 18") are no numbers.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from opd_align.tasks.characters import strip_markup
from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.number_context import BOUND_AFTER, BOUND_BEFORE, CURRENCY, DENIED_LATER, is_label, is_operand, is_ruled_out
from opd_align.tasks.number_words import NUMBER_WORD, SCALES, leading_number
from opd_align.tasks.statements import CONCLUDED, DENIAL_AFTER, HEDGE, NEGATION, after_denials, is_aside, strip_lead_in

_DIGITS = r"(?:\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d{1,3}(?:[, ']\d{3})+(?!\d)|\d{1,100})(?:\.\d{1,100})?|\.\d{1,100}"
_WORD_SCALES = "|".join(sorted(map(re.escape, SCALES), key=len, reverse=True))
# Not the 2 of "m2", "x^2" or "1.2.3"; a minus sign after a word or digit is a dash.
_NUMBER = re.compile(
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
_DECIMAL_COMMA = re.compile(r"(?<![\d,.])(\d{1,3}(?:\.\d{3})+|\d{1,9}),(\d{1,2})(?![\d,]|\.\d)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_FIRST_SENTENCE = re.compile(r"(.*?[\w)%}])(?:[;!?]+(?!\s?=)|\.+(?!\d))(?:\s.*|)", re.DOTALL)
# After a number, these make it part of an expression: 2^10, 3!, 5√2, 5\pi, 2*3.
_OPERATOR = re.compile(r"\s?(?:[\^*×·÷!√π\\+/_|<>(\[{]|-\s?[\w\\(]|x ?\d)")
_UNIT_SLASH = re.compile(r"\s?/\s?[^\W\d]")
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
# What is said about the result after it: "10, attained at x = 3".
QUALIFIER = re.compile(
    r"(?:,? (?:attained|achieved|reached|obtained|occurring|which occurs|namely)|, (?:when|where|having|given|using)|"
    r",? after \w{2,12}ing|"
    r",? (?:because|since)|, (?:which|that|and (?:that|it)) would|, \S{1,12} of which|"
    r",? when divided by| upon division by|"
    r",? (?:at|for|when|with|if) (?:\$|\\\()?[a-z](?= ?=)|,? (?:(?:which|that) is )?(?:twice|half|double|"
    r"\S{1,12} times) (?:as|the|that|of)|"
    r",? (?:(?:which|that) is )?\S{1,12} (?:\w{1,12} )?(?:more|less|fewer|higher|lower|older|younger) than)\b.*$",
    re.IGNORECASE | re.DOTALL,
)
_EXPLANATION = re.compile(r":| because\b| since\b| by \w+ing\b| - | — ", re.IGNORECASE)
# 0.75, or 75%
# The same value again, as a percentage or rounded: "0.75, or 75%", "7/18, about 39%".
AGAIN = re.compile(
    r"(?<=[\d}$)]),? (?:or|i\.e\.|that is),? (?:exactly )?[\d.]{1,9} ?(?:\\?%|percent\b)|"
    r"(?<=[\d}$)]),? (?:(?:or|which is|i\.e\.|that is),? )?(?:about|approximately|approx\.|"
    r"roughly) \$?[\d.]{1,9} ?\\?%?\$?"
    r"(?=\W{0,3}$)"
)
_REASON = re.compile(r"([^\s,]{1,20}(?: [^\W\d]{1,15}){0,2}),? (?:because|since)\b", re.IGNORECASE)
_NOT_QUITE = re.compile(r"\bnot (?:quite|exactly|really)\b", re.IGNORECASE)
_CONTRAST = re.compile(r",? \b(?:but|however|yet)\b|, and (?=the (?:larger|smaller|greater|sum|total|difference|product|answer|result) (?:one )?is\b)|, (?:and )?now\b", re.IGNORECASE)
_PRICE = re.compile(
    r"\b(?:pays?|paid|costs?|earns?|earned|makes?|made|spends?|spent|owes?|saves?|charges?|receives?|brought in|brings in|rais(?:es|ed)|yield(?:s|ed)|gets?|got|collects?|totals?)\s"
    r"(?:a total of |exactly )?\$(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\d.,]?\d|[kKMBe%]|\s(?:each|"
    r"per|apiece|more|less|an?|"
    r"million|thousand|billion|for (?:each|every|one))\b)"
)
# Given quantities: "each of the 5 friends", and what a sentence begins with, "After 3 hours, ...".
_GIVEN = re.compile(r"\b(?:the|these|those|all|both|his|her|their|its|our|my|every)(?: (?:first|last|next|other|remaining|initial|original|same))? [$]?$", re.IGNORECASE)
_BEGINNING = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence|then|now|finally),? )?(?:in|after|within|over|during|for|at|with|by|on|out of|of|since|because|as|"
    r"when|given)\b(?P<given>[^,=]{1,100}), (?=[^,]*\d)",
    re.IGNORECASE,
)
_ONE_OF = re.compile(r"one[ -](?:half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundred|thousand|million)\b", re.IGNORECASE)
_ROUNDED_AFTER = re.compile(r"(?<=[\d)}%]) ?≈ ?\$?[\d.,]*\d ?%?(?=\W{0,3}$)")  # the exact value, then the rounded one
_DENIED_TAIL = re.compile(r"(?<=\d),? (?:and )?(?:not|rather than|instead of) \$?\d[^;]{0,80}$", re.IGNORECASE)
_TOTAL_OF = re.compile(r"\b(?:a|the) (?:grand |combined )?total of (\$?\d[\d,.]*\d|\$?\d)(?=\s|$|[.,](?!\d))", re.IGNORECASE)
_REASON_FIRST = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence),? )?(?:because|since|as|given(?: that)?|if (?:we|you|I) (?:add|subtract|multiply|divide|sum|combine|put|take|count))\b"
    r"(?:[^,]|,(?=\d{3})){1,160},\s",
    re.IGNORECASE,
)
_RESULT_OF = re.compile(
    r"(?=[^=]*\d)[^=]*?(?:\b(?:(?:sum|product|difference|total|lcm|gcd|average|mean|median|multiple|divisor) of|plus|minus|times|divided by|multiplied by)|(?:%|percent|half|third|quarter) of)\b[^=]*?\d[^=]*?"
    r"\b(?:is|are|equals?|makes?|gives?|comes to|leaves) (?=\$?\d)",
    re.IGNORECASE,
)
_DEFINITE = re.compile(r"\W{0,3}(?:the|these|those) \d", re.IGNORECASE)
_PER_UNIT = re.compile(r"(?: \w+)? (?:each|per|apiece)\b", re.IGNORECASE)
_IS_RESULT = re.compile(r"([-+*/×·÷] ?\d+) (?:is|makes|equals|gives) (?=\$?\d)")  # 10 * 10 is 100
_POWERS = re.compile(r"(?=[^^]*\^)\d{1,9}(?:\s?[·×*^]\s?\d{1,9}){1,8}")
_MINUS = re.compile(r"\b(?:negative|minus)\s(?=[\d.])", re.IGNORECASE)
_STATEMENTS = re.compile(r"\s?(?:[,;]|\band\b|\.(?!\d))\s?")
_EXPRESSION = re.compile(r"\d\s?[\^√π\\]|(?:\.|,(?!\d{3}\.))\d+[,.]\d{1,2}\b|\b\d+,\d{1,2}\b|\d:\d")
_CANONICAL = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
_CONCLUSION = re.compile(r"(?:so|thus|hence|therefore|which|giving|then|finally)\b", re.IGNORECASE)


def _number_value(match: re.Match[str]) -> Fraction | None:
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


def gold_number(answer: object) -> Fraction | None:
    """The number in a dataset's answer: a number, a number as text or words, or a solution that ends in `#### N`."""
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
    text = _strip_decoration(words)
    if decimal_comma and "," in text:
        text = _DECIMAL_COMMA.sub(lambda match: f"{match[1].replace('.', '')}.{match[2]}", text)
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        found = _only_number(text)
        return _only_price(words) or found if found == AMBIGUOUS else found
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
        result = _equation_result(text, whole)
        if result is None or result == AMBIGUOUS:
            return result
        text = result
    return _first_number(text, placement)


def _first_number(text: str, placement: Placement) -> str | None:
    """The number at the start of a text; others after it must have the same value."""
    before = _PREFIX.match(text)
    # The sign belongs to the number; a dash and a space are a bullet.
    first = _NUMBER.match(text) or (_NUMBER.match(text, before.end()) if before else None)
    if first is None:
        if re.match(
            r"(?:not|n't|never|less|more|fewer|greater|at (?:least|most)|[<>]|\\[lgn]e\b)", text, re.IGNORECASE
        ):
            return AMBIGUOUS if _NUMBER.search(text) and placement is not Placement.BARE else None
        return _in_words(text[before.end() :] if before else text, placement)
    unit = text[first.end() :]
    if placement is Placement.BARE and not re.fullmatch(
        r" ?%?(?:[^\W\d]{0,12}(?:/[^\W\d]{1,8})?|degrees [CF])\.?", unit
    ):
        return None
    value = _number_value(first)
    if value is None or re.match(r"[,.'eE:]\d", unit) or BOUND_AFTER.match(unit) or DENIAL_AFTER.match(unit):
        return AMBIGUOUS
    if is_operand(text, first.start(), first.end(), only=False):
        return AMBIGUOUS
    if (approximately := re.match(r" ?%? ?≈ ?", unit)) and _NUMBER.match(unit, approximately.end()):
        return canonical_number(value)  # the exact value is given first, then rounded
    others = {_number_value(other) for other in _NUMBER.finditer(unit) if not _is_remark(unit, other)}
    if others - {value}:
        return AMBIGUOUS
    if _OPERATOR.match(unit) and not _UNIT_SLASH.match(unit):  # "5/day" has a unit
        exact = exact_value(text)
        return None if exact is None or not re.search(r"\d\s?[!^]", text) else canonical_number(exact)
    if NUMBER_WORD.match(unit.lstrip(" -")):
        return AMBIGUOUS
    return canonical_number(value)


def _is_remark(text: str, number: re.Match[str]) -> bool:
    """Whether a later number is the one that was ruled out: "18, not 17", "18 rather than 17"."""
    return is_ruled_out(BOUND_BEFORE.search(text[: number.start()]))


def _only_word(text: str) -> str | None:
    """The only number in words of a sentence without digits; "one" is not counted, it is mostly a pronoun."""
    words = [
        word
        for word in NUMBER_WORD.finditer(text)
        if word.group().lower() not in ("one", "half", "minus", "negative") or _ONE_OF.match(text, word.start())
    ]
    if not words or NEGATION.search(text) or BOUND_BEFORE.search(text[: words[0].start()]):
        return None
    found = leading_number(text[words[0].start() :])
    if found is None or NUMBER_WORD.search(found[1]):
        return None
    return canonical_number(found[0])


def main_statement(text: str) -> str:
    """The part of a sentence that states its result: the last of several statements, without a qualification."""
    for part in reversed(text.split(";")):
        if _NUMBER.search(part) and not is_aside(part):
            text = part
            break
    qualifier = QUALIFIER.search(text)
    if qualifier and len(_NUMBER.findall(text[: qualifier.start()])) == 1:
        text = text[: qualifier.start()]
    explanation = _EXPLANATION.search(text)
    if explanation:
        values = [_number_value(number) for number in _NUMBER.finditer(text)]
        before = text[: explanation.start()]
        if len(_NUMBER.findall(before)) == 1 and _is_explained(values):
            return before
    return text


def _is_explained(values: list[Fraction | None]) -> bool:
    """Whether the first number is the product or the sum of the others: "12 batteries: 4 for each of the 3 toys"."""
    parts = [value for value in values[1:] if value is not None]
    if len(parts) < 2 or len(parts) != len(values) - 1 or len(parts) > 30:
        return False
    return values[0] in (math.prod(parts), sum(parts), len(parts))


def _only_price(words: str) -> str | None:
    """The only amount of money in a sentence with other numbers: "She pays $64 for 16 glasses"."""
    words = words.replace("\\$", "$").replace("**", "")
    words = next((part for part in reversed(CONCLUDED.split(words)) if re.search(r"\d", part)), words)
    prices = _PRICE.findall(words)
    if len(prices) != 1 or words.count("$") != 1 or HEDGE.search(words) or NEGATION.search(words):
        return None
    if BOUND_BEFORE.search(words[: words.index("$")]) or re.search(r"[=+*/×]", words):
        return None
    return canonical_number(Fraction(prices[0].replace(",", "")))


def _computed(text: str) -> str | None:
    """The number of an equation that computes it on the right: "18 = 9 × 2"."""
    left, _, right = text.rstrip(". ").rpartition("=")
    number = _NUMBER.fullmatch(left.rpartition("=")[2].strip())
    value = _number_value(number) if number and re.search(r"\d\s?[-+*/×·÷]\s?\d", right) else None
    return canonical_number(value) if value is not None and exact_value(right) == value else None


def _result_of_the_others(text: str) -> set[Fraction | None]:
    """The last number of a sentence, if it follows from the others: "After giving away 8 of 50 pens, he has 42"."""
    numbers = list(_NUMBER.finditer(text))
    *parts, last = [_number_value(number) for number in numbers]
    if not re.search(r"(?!and\b|or\b)\b[^\W\d]{2,}", text[numbers[-2].end() : numbers[-1].start()]):
        return set(parts) | {last}  # "1, 2 and 3" is a list
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or not 2 <= len(parts) <= 6 or last is None:
        return set(parts) | {last}
    results = {math.prod(known), sum(known), max(known) - (sum(known) - max(known))}
    if len(known) == 2 and min(known) > 0:
        results.add(max(known) / min(known))
    return {last} if last in results else set(parts) | {last}


def _not_given(text: str) -> set[Fraction | None]:
    """The only number of a sentence that is no given quantity: "Each of the 5 friends gets 4.8 ounces"."""
    beginning = _BEGINNING.match(text)
    start = beginning.end() if beginning and _NUMBER.search(beginning["given"]) else 0
    stated = [
        number for number in _NUMBER.finditer(text, start) if not _GIVEN.search(text[max(0, number.start() - 25) : number.start()])
    ]
    if len(stated) != 1 or _PER_UNIT.match(text, stated[0].end()) or NEGATION.search(text) or re.search(r"[+*/×=]", text):
        return set()
    return {_number_value(stated[0])}


def _in_words(text: str, placement: Placement) -> str | None:
    """A number in words at the start of a text that contains no digits."""
    found = leading_number(text)
    if found is None:
        return None
    value, rest = found
    if placement is Placement.BARE and not re.fullmatch(r" ?%?[^\W\d]{0,12}\.?", rest):
        return None
    if any(_number_value(other) != value for other in _NUMBER.finditer(rest)) or any(
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
    values = {_only_number(result) or result for result in results}
    concluding = re.findall(r"[,;.]\s?(?:and )?(\w+)[^=]*=", whole)
    if len(values) > 1 and not (concluding and _CONCLUSION.match(concluding[-1])):
        return AMBIGUOUS  # "x = 5, y = 6" and "48 / 2 = 24 in May. 48 + 24 = 72 in all."
    if len(values) > 1:
        return results[-1]
    left, _, right = text.rpartition("=")
    right = right.strip()
    number = _NUMBER.match(right)
    if number and _OPERATOR.match(right[number.end() :]) and _NUMBER.fullmatch(left.strip()):
        return left.strip()  # "18 = 9 * 2"
    return right


def _strip_decoration(words: str) -> str:
    if "!" in words and words.count("$") == 1:
        words = _EXCLAIMED.sub(r"\1.", words)
    text = _MINUS.sub("-", strip_markup(words.replace("US$", "$")))
    text = _ROMAN.sub(r"\1", _MANY_POINTS.sub(lambda match: match.group().replace(".", ""), _ARROW.sub("", text)))
    bare = _PARENTHESES.sub(" ", text) if "(" in text else text
    return (bare if _NUMBER.search(bare) else text).strip()


def main_clause(text: str) -> str:
    """A sentence without the reason or the case that it begins with: "Because there are 9 rows, he needs 45 tiles"."""
    reason = _REASON_FIRST.match(text)
    return text[reason.end() :] if reason else text


def _only_number(text: str) -> str | None:
    """The only number of a sentence; a number that is ruled out ("not 17") does not count."""
    concluding = after_denials(CONCLUDED.split(text)[-1])
    if _NUMBER.search(concluding):
        text = concluding  # "she pays $2 in tax, so she keeps $16"
    text = _DENIED_TAIL.sub("", main_clause(text))
    if total := _TOTAL_OF.search(text):
        rest = text[: total.start()] + text[total.end() :]
        if not re.search(r"\btotal\b|[=+*/×]", rest):
            text = f"{text[: total.start()]} {total[1]}" if not _NUMBER.search(text[: total.start()]) else total[1]
    if HEDGE.search(text) or _NOT_QUITE.search(text):
        return AMBIGUOUS if _NUMBER.search(text) else None
    contrasted = _CONTRAST.split(text)[-1]
    if _NUMBER.search(contrasted) and not NEGATION.search(contrasted):
        text = contrasted  # "the textbook gives 42, but I get 40"
    text = _IS_RESULT.sub(r"\1 = ", text)
    if (result := _RESULT_OF.match(text)) and not _OPERATOR.search(text):
        text = text[result.end() :]  # "30 plus 15 equals 45"
    qualifier = QUALIFIER.search(text)
    if qualifier and len(_NUMBER.findall(text[: qualifier.start()])) == 1 and "=" not in text[: qualifier.start()]:
        text = text[: qualifier.start()]
    if "=" in text and (computed := _computed(text)) is not None:
        return computed
    if "=" in text:  # the last side that is a number: "2 * 9 = 18 = her daily income"
        text = next((side for side in reversed(text.split("=")) if _NUMBER.search(side)), text)
    text = main_statement(text)
    if _EXPRESSION.search(text) and not re.search(r"\d\s?\^", text):
        return None
    text = _ROUNDED_AFTER.sub("", AGAIN.sub("", text))
    values: set[Fraction | None] = set()
    denied = False
    numbers = list(_NUMBER.finditer(text))
    for number in numbers:
        bound = BOUND_BEFORE.search(text[max(0, number.start() - 30) : number.start()])
        if is_label(text, number.start()):
            continue
        if is_ruled_out(bound):
            denied = True
        elif (
            bound
            or NEGATION.search(re.split(r"[,;.:] ", text[: number.start()])[-1])
            or is_operand(text, *number.span(), only=len(numbers) == 1)
            or BOUND_AFTER.match(text, number.end())
            or DENIED_LATER.match(text, number.end())
            or DENIAL_AFTER.match(text, number.end())
            or (_OPERATOR.match(text, number.end()) and not _UNIT_SLASH.match(text, number.end()))
        ):
            return AMBIGUOUS
        else:
            values.add(_number_value(number))
    if not values and not denied and not re.search(r"\d", text):
        return _only_word(text)
    if len(values) > 1 and not denied:
        values = _result_of_the_others(text)
    if len(values) > 1 and not denied:
        values = _not_given(text) or values
    if len(values) != 1:
        return AMBIGUOUS if values or denied else None
    value = values.pop()
    return None if value is None else canonical_number(value)
