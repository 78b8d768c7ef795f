"""The number that a sentence states, among others that it mentions: "After giving away 8 of 50 pens, he has 42".

Ruled-out numbers, given quantities, labels and operands are told apart from the result; if two are left, there is none.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from opd_align.tasks.evaluate import exact_value
from opd_align.tasks.extract import AMBIGUOUS
from opd_align.tasks.number_context import (
    BOUND_AFTER,
    BOUND_BEFORE,
    DENIED_LATER,
    UNSOLVED,
    is_label,
    is_operand,
    is_ruled_out,
)
from opd_align.tasks.number_values import NUMBER, OPERATOR, UNIT_SLASH, canonical_number, number_value
from opd_align.tasks.number_words import NUMBER_WORD, leading_number
from opd_align.tasks.statements import CONCLUDED, DENIAL_AFTER, HEDGE, NEGATION, after_denials, is_aside

# What is said about the result after it: "10, attained at x = 3".
QUALIFIER = re.compile(
    r"(?:,? (?:attained|achieved|reached|obtained|occurring|which occurs|namely)|, (?:when|where|having|given|using)|"
    r",? after \w{2,12}ing|"
    r",? (?:because|since)|, as (?=\$?\d|there\b|it\b|s?he\b|they\b|the\b|each\b|all\b)|"
    r", (?:which|that|and (?:that|it)) would|, (?:\S{1,12} )?of which|,? with (?:an? )?(?:radius|center|slope|"
    r"equality)|, (?:which|that) (?:s?he|they|we|you|I|"
    r"(?-i:[A-Z][a-z]+))|"
    r",? (?:compared (?:to|with)|versus|as opposed to|while|whereas|in order to|so that|so as to)|,? with (?:none|"
    r"nothing|"
    r"\S{1,12}(?: \w{1,15}){0,3}) (?:left[- ]?over|to spare)|"
    r",? with (?:none|nothing|no \w{1,15}) (?:left|remaining)|"
    r",? when (?:\$?\w{1,3}\$? is )?divided by| upon division by|"
    r",? (?:at|for|when|with|if) (?:\$|\\\()?[a-z](?= ?(?:=|\\ne|≠|[<>]|\\[lg]e))|,? (?:(?:which|"
    r"that) is )?(?:twice|half|double|"
    r"\S{1,12} times) (?:as|the|that|of)|"
    r",? (?:(?:which|that) is )?\S{1,12} (?:\w{1,12} )?(?:more|less|fewer|higher|lower|older|younger) than)\b.*$",
    re.IGNORECASE | re.DOTALL,
)
_EXPLANATION = re.compile(r":| because\b| since\b| by \w+ing\b| - | — ", re.IGNORECASE)
# The same duration or length in two units: "160 minutes, or 2 hours and 40 minutes".
_IN_TWO_UNITS = re.compile(
    r",? (?:or|i\.e\.|that is|which (?:is|equals)|equivalently),? \d{1,4} ?(?:hours?|hrs?|h|days?|weeks?|years?|"
    r"minutes?|min|"
    r"feet|ft|pounds|dollars)(?: and|,)? \d{1,3} ?(?:minutes?|mins?|m|seconds?|secs?|s|hours?|days?|months?|"
    r"inches|ounces|"
    r"cents)(?=\W{0,3}$)",
    re.IGNORECASE,
)
# The same value again, as a percentage, a decimal or rounded: "0.75, or 75%", "7/18, about 39%".
AGAIN = re.compile(
    r"(?<=\d/\d|/\d\d),? (?:or|i\.e\.|that is|which (?:is|equals)),? \d{0,3}\.\d{1,9}(?=\W{0,3}$)|"
    r"(?<=[\d}$)]),? (?:or|i\.e\.|that is),? (?:exactly )?[\d.]{1,9} ?(?:\\?%|percent\b)|"
    r"(?<=[\d}$)]),? (?:(?:or|which is|i\.e\.|that is),? )?(?:about|approximately|approx\.|"
    r"roughly) \$?[\d.]{1,9} ?\\?%?\$?"
    r"(?=\W{0,3}$)"
)
_SO = re.compile(r"\b(?:so|therefore|thus|hence)\b,?", re.IGNORECASE)
_NOT_QUITE = re.compile(r"\bnot (?:quite|exactly|really)\b", re.IGNORECASE)
_CONTRAST = re.compile(
    r"(?<!anything)(?<!everything)(?<!nothing)(?<!\ball),? \b(?:but|however|yet)\b|, and (?=the (?:larger|smaller|"
    r"greater|sum|total|difference|product|answer|"
    r"result) (?:one )?is\b)|, (?:and )?now\b",
    re.IGNORECASE,
)
_PRICE = re.compile(
    r"\b(?:pays?|paid|costs?|earns?|earned|makes?|made|spends?|spent|owes?|saves?|charges?|receives?|brought in|"
    r"brings in|rais(?:es|ed)|yield(?:s|ed)|gets?|got|collects?|totals?)\s"
    r"(?:a total of |exactly )?\$(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\d.,]?\d|[kKMBe%]|\s(?:each|"
    r"per|apiece|more|less|an?|"
    r"million|thousand|billion|for (?:each|every|one))\b)"
)
# Given quantities: "each of the 5 friends", and what a sentence begins with, "After 3 hours, ...".
_GIVEN = re.compile(
    r"\b(?:the|these|those|all|both|his|her|their|its|our|my|every)(?: (?:first|last|next|other|remaining|initial|"
    r"original|same))? [$]?$",
    re.IGNORECASE,
)
_BEGINNING = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence|then|now|finally),? )?(?:in|after|within|over|during|for|at|with|by|on|"
    r"out of|of|since|because|as|"
    r"when|given)\b(?P<given>[^,=]{1,100}), (?=[^,]*\d)|"
    r"^\W{0,3}(?:among|between|of)(?P<listed>(?: \d+,?){1,8} and \d+), |"
    r"^\W{0,3}(?:(?:so|thus|therefore|hence|then|now|finally|and),? )?(?:in|after|within|over|for|during|at|with)"
    r"(?P<adjunct>(?: the| these| those| all)? \d+ [a-z]+(?: (?:per|an?) [a-z]+)?) (?=(?:it|s?he|they|we|you|I|"
    r"that|this|there|the|[A-Z][a-z]+)\b)|"
    r"^\W{0,3}(?:so |then |and )?by (?P<until>(?:week|day|month|year|hour) \d+),? (?=\w)|"
    r"^\W{0,3}(?:so |then |and )?after (?P<done>\w+ing [^,]*?\d+[^,\d]*?),? (?=(?:s?he|they|it|there) (?:has|had|"
    r"have|is|was|are|"
    r"were|gets|will)\b)",
    re.IGNORECASE,
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ORDINAL = rf"\d{{1,6}}(?:st|nd|rd|th)|{'|'.join(_ORDINALS)}"
_IN_PLACE = re.compile(
    rf"(?:\bin (?P<place>{_ORDINAL})(?: place| position)?|"
    rf"\b(?:finish(?:ed|es)|plac(?:ed|es)|rank(?:ed|s))(?: in)? (?P<finished>{_ORDINAL})(?: place| position)?|"
    rf"\b(?:on|after) the (?P<day>{_ORDINAL}) (?:day|floor|night|morning))\W{{0,3}}$",
    re.IGNORECASE,
)
# "Only one pencil is left", "He has one cookie left"
_A_SINGLE = re.compile(
    r"\b(?:only|just|exactly|precisely) one(?! (?:of|thing|way|reason|could|can|must|would|might|by|another|who|that|"
    r"which|approach|method|option|choice|answer|case|half)\b)(?![- ]\w*(?:th|rd|half|quarter)\b)\b|"
    r"(?:^|(?<=, )|(?<=so ))\W{0,3}(?:one|a single) (?!(?:is|was|of|thing|way|reason|could|can|must|would|might|by|"
    r"option|choice|answer|approach|method)\b)[a-z]+ (?:(?:is|was|will be) left|remains|remained|left)\b|"
    r"\b(?:has|have|had|needs?|gets?|got|leaves|leaving|there(?:'s| is| was| remains)) (?:only |just |exactly )?"
    r"(?:one|a single)(?: more)?(?: (?!thing|way|reason|option|choice|answer|approach|method|problem)[a-z]+)?"
    r"(?: (?:left|remaining|more|over))?\W{0,3}$",
    re.IGNORECASE,
)
_REASON_AFTER = re.compile(r",? (?:since|because|as (?=there\b|\d|each\b|all\b)|given that)\b", re.IGNORECASE)
_RESULT_IN_WORDS = re.compile(
    r"[^.;=]{1,80}\b(?:times|plus|minus|divided by|multiplied by|and)\b[^.;=]{1,60}?\b(?:is|are|equals?|makes?|gives?|"
    r"leaves) (?=[a-z]+(?:[ -][a-z]+)?\b)",
    re.IGNORECASE,
)
_ONE_OF = re.compile(
    r"one[ -](?:half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundred|thousand|million)\b", re.IGNORECASE
)
_ROUNDED_AFTER = re.compile(r"(?<=[\d)}%]) ?≈ ?\$?[\d.,]*\d ?%?(?=\W{0,3}$)")  # the exact value, then the rounded one
_DENIED_TAIL = re.compile(r"(?<=\d),? (?:and )?(?:not|rather than|instead of) \$?\d[^;]{0,80}$", re.IGNORECASE)
_TOTAL_OF = re.compile(
    r"\b(?:a|the) (?:grand |combined )?total of (\$?\d[\d,.]*\d|\$?\d)(?=\s|$|[.,](?!\d))", re.IGNORECASE
)
# "If she works 4 hours a day, then in 9 days she works 4 × 9 = 36 hours": the case of the question
_CASE_FIRST = re.compile(
    r"^\W{0,3}if\b[^,=]{1,120}, (?=[^=]*\d[^=]*=[^=]*\d)(?!.*\b(?:would|could|might)\b)(?!.*'d\b)", re.IGNORECASE
)
_REASON_FIRST = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence),? )?(?:because|since|as|given(?: that)?|if (?:we|you|I) (?:add|"
    r"subtract|multiply|divide|sum|combine|put|take|count))\b"
    r"(?:[^,]|,(?=\d{3})){1,160},\s",
    re.IGNORECASE,
)
_RESULT_OF = re.compile(
    r"(?=[^=]*\d)[^=]*?(?:\b(?:(?:sum|product|difference|total|lcm|gcd|average|mean|median|multiple|divisor) of|"
    r"plus|minus|\d+ less|subtracting|taking|adding|removing|multiplying|dividing|twice|double|triple|half|"
    r"roots? of|difference between|(?:less|more) than|times|divided by|"
    r"multiplied by)|(?:%|percent|half|thirds?|quarters?|fourths?|fifths?|sixths?|eighths?|tenths?) of)\b[^=]*?\d[^=]*?"
    r"\b(?:is(?: equal to)?|are|equals?|makes?|gives?(?: us| you| an? \w+ of)?|comes to|leaves|yields|results in) "
    r"(?=\$?\d[\d,.]*(?! (?:\w+ )?(?:more|less|fewer|times)\b))",
    re.IGNORECASE,
)
# "There are none left", "No candies remain", "She has no money left"
_NOTHING_LEFT = re.compile(
    r"(?:^|\b(?:so|and|then|thus|there (?:is|are|were|was|will be)|has|have|had|leaving|leaves) )\W{0,3}"
    r"(?:(?:none|nothing)(?: of (?:the|them|his|her|their|these|it)(?: \w{1,15}){0,2})?|(?:no|"
    r"zero)(?: more)?(?: \w{1,15}){1,2}?) "
    r"(?:(?:is|are|was|were|will be) )?(?:left(?:[- ]over)?|remain(?:s|ed|ing)?)\b(?! (?:to|for|but|except|unless|"
    r"if|until))"
    r"[\w ]{0,30}\W{0,3}$",
    re.IGNORECASE,
)
# "The smallest such number above 26 is 31": the numbers before "is" only describe what is asked for.
_IS_LAST = re.compile(
    r"^(?P<subject>\W{0,3}(?:(?:so|thus|therefore|hence|then|finally),? )?(?:the|our|his|her|its|their|[A-Z][a-z]+'s)\b"
    r"(?:(?!\b(?:is|are|was|were|equals|has|have|gets?|if|when|because|since|while|but|so|and (?:the|his|her|"
    r"its))\b)[^=;:.?]|\.(?=\d)){4,140}?) "
    r"(?:is|are|was|equals|will be|comes to|amounts to)(?: (?:therefore|thus|then|exactly|just|simply|about|now))? "
    r"(?P<value>[$€£]?-?\d[\d,]*(?:\.\d+)?%?)(?: (?!than|times|less|more|out|of|or|and|to|in|short|too|not|"
    r"from)[a-z]+){0,3}"
    r"\W{0,3}$",
    re.IGNORECASE,
)
# "... you can't have three quarters of a bus: 6 buses."
_AFTER_COLON = re.compile(
    r"^[^:]{20,}: (?P<value>(?:a total of )?(?:[$€£]?\d[\d,]*(?:\.\d+)?|"
    r"[a-z]{3,12}(?:-[a-z]{3,5})?)(?: [a-z]{2,15}){0,2})\W{0,3}$",
    re.IGNORECASE,
)
# "Sofia is 11 years old, and her dad is 44": the question is about the first
_AGES = re.compile(
    r"^(?P<first>[^,;]*\bis (?:currently |now )?\d+(?: years old)?),? and (?:his|her|their|the|"
    r"[A-Z])[\w' ]{1,30} is (?:currently |"
    r"now )?\d+(?: years old)?\W{0,3}$"
)
# "If 3 pens cost $15, one pen costs $5": the case of the question, stated as a fact
_GIVEN_CASE = re.compile(
    r"^\W{0,3}(?:so |then |and )?if (?!it|this|that|we|you|I|one|x|y|n|not)(?=[^,]*\d)[^,=;]{4,100}, (?:then )?"
    r"(?=[^,;=]*\d)(?!.*\b(?:would|could|might|may|should|if|but|not|only|also|still)\b)(?!.*(?:'d|n't)\b)",
    re.IGNORECASE,
)
_FROM_TO = re.compile(
    r",? \(?from \d[\d.,]*%?(?: [a-z]+){0,2} to \d[\d.,]*(?<=\d)%?(?: [a-z]+(?=\W{0,3}$))?\)?", re.IGNORECASE
)
_NOUN_AFTER = re.compile(r"\s[a-z]", re.IGNORECASE)
TRAILING = re.compile(
    r" (?:in|over|within|during|across|throughout) (?:the |these |all )?\d+ [a-z]+\W*$|"
    r" by (?:the end of )?(?:week|day|month|year|hour) \d+\W*$",
    re.IGNORECASE,
)
_PER_UNIT = re.compile(r"(?: \w+)? (?:each|per|apiece)\b", re.IGNORECASE)
_IS_RESULT = re.compile(
    r"([-+*/×·÷] ?\d+) (?:is|makes|equals|gives|leaves|yields|comes to)(?: (?:her|him|them|us|you|me|a total of|"
    r"exactly))? "
    r"(?=\$?\d)"
)  # 10 * 10 is 100
_EXPRESSION = re.compile(r"\d\s?[\^√π\\]|(?:\.|,(?!\d{3}\.))\d+[,.]\d{1,2}\b|\b\d+,\d{1,2}\b|\d:\d")


def _place(text: str) -> str | None:
    """The place or day that a sentence ends in: "in 3rd place", "on the third day"."""
    found = _IN_PLACE.search(text)
    if found is None or NEGATION.search(text) or HEDGE.search(text) or NUMBER.search(text[: found.start()]):
        return None
    ordinal = found["place"] or found["finished"] or found["day"]
    return ordinal[:-2] if ordinal[0].isdigit() else str(_ORDINALS.index(ordinal.lower()) + 1)


def _only_word(text: str) -> str | None:
    """The only number in words of a sentence without digits; "one" is mostly a pronoun and counts in few places."""
    reason = _REASON_AFTER.search(text)
    text = text[: reason.start()] if reason and NUMBER_WORD.search(text[: reason.start()]) else text
    qualifier = QUALIFIER.search(text)
    text = text[: qualifier.start()] if qualifier and NUMBER_WORD.search(text[: qualifier.start()]) else text
    if (result := _RESULT_IN_WORDS.match(text)) and not NEGATION.search(text):
        text = text[result.end() :]  # "three times three is nine"
    words = [
        word
        for word in NUMBER_WORD.finditer(text)
        if word.group().lower() not in ("one", "half", "minus", "negative") or _ONE_OF.match(text, word.start())
    ]
    if not words and _A_SINGLE.search(text) and not NEGATION.search(text) and not HEDGE.search(text):
        return "1"
    if not words or NEGATION.search(text) or BOUND_BEFORE.search(text[: words[0].start()]):
        return None
    found = leading_number(text[words[0].start() :])
    if found is None or NUMBER_WORD.search(found[1]):
        return None
    return canonical_number(found[0])


def _main_statement(text: str) -> str:
    """The part of a sentence that states its result: the last of several statements, without a qualification."""
    for part in reversed(text.split(";")):
        if NUMBER.search(part) and not is_aside(part):
            text = part
            break
    qualifier = QUALIFIER.search(text)
    if qualifier and len(NUMBER.findall(text[: qualifier.start()])) == 1:
        text = text[: qualifier.start()]
    explanation = _EXPLANATION.search(text)
    if explanation:
        values = [number_value(number) for number in NUMBER.finditer(text)]
        before = text[: explanation.start()]
        if len(NUMBER.findall(before)) == 1 and _is_explained(values):
            return before
    return text


def _is_explained(values: list[Fraction | None]) -> bool:
    """Whether the first number is the product or the sum of the others: "12 batteries: 4 for each of the 3 toys"."""
    parts = [value for value in values[1:] if value is not None]
    if len(parts) < 2 or len(parts) != len(values) - 1 or len(parts) > 30:
        return False
    return values[0] in (math.prod(parts), sum(parts), len(parts))


def only_price(words: str) -> str | None:
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
    number = NUMBER.fullmatch(left.rpartition("=")[2].strip())
    value = number_value(number) if number and re.search(r"\d\s?[-+*/×·÷]\s?\d", right) else None
    return canonical_number(value) if value is not None and exact_value(right) == value else None


def _result_of_the_others(text: str) -> set[Fraction | None]:
    """The last number of a sentence, if it follows from the others: "After giving away 8 of 50 pens, he has 42"."""
    numbers = list(NUMBER.finditer(text))
    *parts, last = [number_value(number) for number in numbers]
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
    text = TRAILING.sub("", text)
    beginning = _BEGINNING.match(text)
    start = beginning.end() if beginning and NUMBER.search("".join(filter(None, beginning.groups()))) else 0
    stated = [
        number
        for number in NUMBER.finditer(text, start)
        if not (
            _GIVEN.search(text[max(0, number.start() - 25) : number.start()]) and _NOUN_AFTER.match(text, number.end())
        )
    ]
    if (
        len(stated) != 1
        or _PER_UNIT.match(text, stated[0].end())
        or NEGATION.search(text)
        or re.search(r"[+*/×=]", text)
    ):
        return set()
    return {number_value(stated[0])}


def _described(text: str) -> str | None:
    """The part of a sentence that states a result after others have described it; `None` if it has no such part."""
    if HEDGE.search(text):
        return None
    if _NOTHING_LEFT.search(text):
        return "0" if not re.search(r"\b(?:not|never|almost|nearly)\b|n't", text) else None
    if ages := _AGES.match(text):
        return ages["first"]
    reason = _REASON_AFTER.search(text)
    before = text[: reason.start()] if reason else ""
    if NUMBER_WORD.search(before) and not NUMBER.search(before) and not NEGATION.search(before):
        return before  # "There are thirty-six players, as 4 teams have 9 each"
    if (last := _IS_LAST.match(text)) and not NEGATION.search(last["subject"]) and NUMBER.search(last["subject"]):
        return last["value"]
    if (colon := _AFTER_COLON.match(text)) and (NUMBER.search(colon["value"]) or NUMBER_WORD.search(colon["value"])):
        return colon["value"]
    return None


def main_clause(text: str) -> str:
    """A sentence without the reason or the case that it begins with: "Because there are 9 rows, he needs 45 tiles"."""
    reason = _REASON_FIRST.match(text) or _CASE_FIRST.match(text) or _GIVEN_CASE.match(text)
    return text[reason.end() :] if reason else text


def only_number(text: str) -> str | None:
    """The only number of a sentence; a number that is ruled out ("not 17") does not count."""
    text = _IN_TWO_UNITS.sub("", text)
    if "=" not in text and NUMBER.search(without := TRAILING.sub("", text)):
        text = without  # "She reads 42 books over the 6 weeks."
    if " from " in text and NUMBER.search(without := _FROM_TO.sub("", text)):
        text = without  # "Sales went from 100 to 115, an increase of 15%."
    concluding = after_denials(CONCLUDED.split(text)[-1])
    if NUMBER.search(concluding) or (NUMBER_WORD.search(concluding) and not NUMBER.search(text)):
        text = concluding  # "she pays $2 in tax, so she keeps $16"
    elif NUMBER_WORD.search(last := _SO.split(text)[-1]) and _only_word(last) is not None:
        text = last  # "20 − 13 = 7 swam off, therefore thirteen are left"
    text = _DENIED_TAIL.sub("", main_clause(text))
    if stated := _described(text):
        text = stated
    if total := _TOTAL_OF.search(text):
        rest = text[: total.start()] + text[total.end() :]
        if not re.search(r"\btotal\b|[=+*/×]", rest):
            text = f"{text[: total.start()]} {total[1]}" if not NUMBER.search(text[: total.start()]) else total[1]
    if place := _place(text):
        return place
    if HEDGE.search(text) or _NOT_QUITE.search(text):
        return AMBIGUOUS if NUMBER.search(text) else None
    contrasted = _CONTRAST.split(text)[-1]
    if NUMBER.search(contrasted) and not NEGATION.search(contrasted):
        text = contrasted  # "the textbook gives 42, but I get 40"
    if UNSOLVED.fullmatch(text.strip(" .")):
        return AMBIGUOUS
    text = _IS_RESULT.sub(r"\1 = ", text)
    if (result := _RESULT_OF.match(text)) and not OPERATOR.search(text):
        text = text[result.end() :]  # "30 plus 15 equals 45"
    qualifier = QUALIFIER.search(text)
    if qualifier and len(NUMBER.findall(text[: qualifier.start()])) == 1 and "=" not in text[: qualifier.start()]:
        text = text[: qualifier.start()]
    if "=" in text and (computed := _computed(text)) is not None:
        return computed
    if "=" in text:  # the last side that is a number: "2 * 9 = 18 = her daily income"
        text = next((side for side in reversed(text.split("=")) if NUMBER.search(side)), text)
    text = _main_statement(text)
    if _EXPRESSION.search(text) and not re.search(r"\d\s?\^", text):
        return None
    text = _ROUNDED_AFTER.sub("", AGAIN.sub("", text))
    values: set[Fraction | None] = set()
    denied = False
    numbers = list(NUMBER.finditer(text))
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
            or (OPERATOR.match(text, number.end()) and not UNIT_SLASH.match(text, number.end()))
        ):
            return AMBIGUOUS
        else:
            values.add(number_value(number))
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
