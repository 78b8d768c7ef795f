"""Reads multiple-choice answers, by letter or by the text of a choice.

A letter whose text is that of another choice ("B) London" where London is choice A) is no answer, and neither are two
letters. "A" and "I" are words too: what follows must show that the letter is meant.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from opd_align.tasks.characters import strip_markup
from opd_align.tasks.choice_names import (
    COMPOUND,
    RELATED_TO,
    inflected,
    is_name_of,
    last_names,
    listed,
    none_of_them,
    part_of_one,
)
from opd_align.tasks.choice_statements import stated_choice
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.number_values import canonical_number
from opd_align.tasks.number_words import leading_number
from opd_align.tasks.numbers import read_number
from opd_align.tasks.remarks import is_harmless
from opd_align.tasks.statements import (
    CONCLUDED,
    CONCLUSION,
    DENIAL_AFTER,
    HEDGE,
    NEGATION,
    SENTENCE_END,
    after_denials,
    is_aside,
    strip_lead_in,
)

_LETTER_FIRST = re.compile(
    r"(?P<open>[\(\[<]?)\s?(?P<letter>[A-Za-z])\s?(?P<close>[\)\]>]?)(?![A-Za-z\d'’#+])(?P<rest>.*)", re.DOTALL
)
_LETTER_ALSO = re.compile(
    r"[\s).\],]{0,4}(?:or|and|and/or|nor|to|,|/|&|\||\+|or else|as well as|或者?|和|-(?=[A-Z]\b)|"
    r"\s(?=\(?[B-HJ-Z]\)?(?!\w)))"
    r"(?:[\s,(]{0,2}(?:maybe|possibly|perhaps|even|also|either|probably|could be|it could be|else|both|"
    r"then|option|choice|"
    r"the other|at least)\b){0,3}"
    r"[\s,]{0,2}\(?([A-Z])\)?(?![\w'’])(?!\)? (?:is|are|was|were)(?: both| all)? (?:wrong|incorrect|not|false))"
)
_ARTICLE = re.compile(r"^(?:it|this|that|the|an?|they|there) (?=\w{2})")
_SUBSCRIPT = re.compile(r"_\{?(\w)\}?")  # CO_2
_AROUND_OPERATOR = re.compile(r"\s?([-+*/=^<>])\s?(?=[\w(\\-])")
_NEGATED = re.compile(rf"{NEGATION.pattern}|\bnothing\b", re.IGNORECASE)
_EQUATED = re.compile(r"\b(?:i\.e\.|that is|which is)")
# The end of a sentence that names what is left or chosen.
_FINALLY = re.compile(
    r"\b(?:it (?:has to|must|should) be|it's|it is|I(?:'d)? (?:choose|pick|go with|say)|went with|bet on|looks? like|"
    r"points? to|by elimination,|only|"
    r"(?:that )?leaves(?: us with)?|"
    r"leaving(?: us with)?|what(?:'s| is) left is|what remains is) (?:option |choice |only )?\(?([A-Z])\)?"
    r"(?: (?:remains|is left|left|is possible|that remains))?\W{0,3}$",
    re.IGNORECASE,
)
_SURE = re.compile(
    r"\s?[,—-]?\s?(?:surely|definitely|certainly|clearly|obviously|of course|for sure|no question|final answer|"
    r"no doubt|"
    r"without (?:a|any) doubt|hands down|all the way|it is|by far)\W{0,3}|, (?:in spite of|despite|although|"
    r"even though|no matter|whatever)\b.*",
    re.IGNORECASE,
)
_REPLY = re.compile(r"^\W{0,3}(?:(?:no|nope),|(?:well|ok|right|rather|actually|yes),?) ", re.IGNORECASE)  # "C? No, B."
_A_NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
_LONG_WORDING = 12
_PREDICATE = re.compile(r"\b(?:is|are|was|were|becomes|be) ((?:[a-z-]+ ?){1,4})(?=[,.;]|$)")
# "As the volume increases, the pressure decreases", "Although battery seems plausible, it is negligence"
_CONDITION = re.compile(
    r"^\W{0,3}(?:(?P<if>if)|when|as|while|although|though|even though|whereas|because|since|despite|contrary to|"
    r"unlike)\b[^,]{1,160}, (?:then )?",
    re.IGNORECASE,
)
_SIDE_CLAUSE = re.compile(
    r",? (?:as|when|while|whereas|because|since|although|though) (?=\w+ \w+)(?!well\b|a result\b)[^,]{1,160}$",
    re.IGNORECASE,
)
_JUST_AS_GOOD = re.compile(
    r",? (?:but|though|although|however),? \(?[A-Z]\)? [^.;]{0,40}\b(?:just as|equally|also|as well|too|could|"
    r"might|may)\b",
    re.IGNORECASE,
)
_NEXT_SENTENCE = re.compile(r"\)?\.\s+[A-Z]\)? [a-z]{3,}")  # "B. C requires intent."
_SHORTEST_REMARK = 3
_LETTER_AND_REMARK = re.compile(
    r"(?:\(?(?P<letter>[A-Z])(?:\)[.:]?|\.|:)\s(?!\(?[A-Z]\b\.|[a-z])|(?<!.)(?P<dashed>[A-Z])(?:\s?[—–]\s?| - |"
    r",? (?=(?:because|since|due to)\b)))(?P<rest>.+)",
    re.DOTALL,
)
_BEFORE_OR_AFTER = re.compile(
    r"\b(?:after|before|since|until|prior to|later than|earlier than) \d+\W{0,3}$", re.IGNORECASE
)
_LETTER_REMARK = re.compile(r"\s{0,2}(?:$|[).:,;\-—(\[]|(?:is|because|since|as|which|would|based|due|and|it)\b)")
_MENTION = re.compile(
    r"^\W{0,4}([A-Z])(?=\W{0,3}$)|\(([A-Z])\)|(?<![\w(])([A-Z])\)|\b(?:option|choice|letter|answer|statement|选项|"
    r"选) ?\(?([A-Z])\b"
    r"|(?<![\w'’.-])(A(?= (?:is|was|must be|has to be|remains|fits|matches|works|seems|looks|wins)\b))"
    r"|(?<![\w'’.-])([B-HJ-Z])(?![\w'’-]|\. ?[A-Z]\b)|(?:\b(?:is|be|so|therefore|thus|hence|choose|pick|"
    r"select|with|to|answer)|:),? "
    r"([A-Z])(?=\W{0,3}$)"
)
_NOT_BEFORE = re.compile(
    r"(?:\b(?:not|anything but|all but|everything but|far from|neither|nor|never|rather than|instead of|unlike|than|"
    r"except|over|such as|including|e\.g\.|for example|defin(?:e|ing)|consider(?:ing)?|regarding|beyond|says?|"
    r"discuss(?:ing)?|"
    r"(?:concept|notion|definition|idea) of|followed by|ahead of|compared (?:to|with)|versus|vs\.?|"
    r"eliminates?|excludes?|rules? out|without|"
    r"isn't|wasn't|aren't|don't think (?:it is|it's)|cannot be|can't be|eliminating|ruling out)|不是|不选|排除)"
    r"(?:\W{1,3}(?:with|in|the|option|choice|answer|be|it|is|because|of))*(?:\W{0,3}| [\w' -]{1,40}\()$",
    re.IGNORECASE,
)
_WRONG_AFTER = re.compile(
    r"[^.;]{0,60}?(?<!nothing)(?:,| and| or| nor|\)|\s)*\b(?:is|are|was|were|isn't|aren't)(?: both| all|"
    r" also| clearly| therefore)?"
    r" ?(?:wrong|incorrect|not|false|(?:less|partly|nearly|almost) \w+|worse|weaker|unlikely|inferior|eliminated|"
    r"impossible|excluded|out|second|next)\b"
    r"|,? (?:(?:comes|came|is|was) |a close |the |in )?(?:second|runner-up|next best|second[- ]best)\b",
    re.IGNORECASE,
)
_LOWER_RANKED = re.compile(r"\b(?:second|next)(?:[- ]\w+)? (?:is|was|comes) (?:the )?$", re.IGNORECASE)
_STATED = re.compile(
    r"\b(?:it|this|that|which)(?:'s|'d be| would be| is| must be| has to be| should be)\b|\bleav(?:es|ing)\b|"
    r"\b(?:remains|remaining|"
    r"left) is\b|\b(?:corresponds? to|matches|is equivalent to) (?:the )?(?:option|choice|answer|letter)\b|"
    r":\s?\(?[A-Z]\)?\W{0,3}$|"
    r",\s(?:option|answer|choice|letter)\s\(?[A-Z]\)?\W{0,3}$|"
    r"^\W{0,3}(?:definitely|certainly|clearly|probably)\b",
    re.IGNORECASE,
)
_NOT_BEFORE_ANY = re.compile(r"\b(?:not|rather than|instead of|unlike)\b", re.IGNORECASE)
_ORDINAL = re.compile(
    r"(?:the )?(first|second|third|fourth|fifth|last|1st|2nd|3rd|4th|5th) (?:option|choice|one|answer|"
    r"statement)\b(?! (?:is|"
    r"was) (?:not|wrong))",
    re.IGNORECASE,
)
_PLACES = {
    name: place
    for names in ("first second third fourth fifth", "1st 2nd 3rd 4th 5th")
    for place, name in enumerate(names.split())
}
_UNDETERMINED = re.compile(r"\bnot\b|\bnever\b|\bneither\b|\bnone\b|\bunknown\b")
_NO_CHOICE = re.compile(
    r"\W{0,3}(?:none|neither|unknown|n/?a\b|all of|both|not enough|cannot|can't|I (?:do not|don't|am not|"
    r"cannot|can't)|unclear|"
    r"unsure|not\b)",
    re.IGNORECASE,
)


def letters_of(choices: Sequence[str] | None) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 10 if choices is None else len(choices)]


def read_choice(words: str, placement: Placement, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter that a text gives as its answer; an `extract.Reader` once letters and choices are known."""
    whole = strip_markup(words).strip(".,;: {}")
    text = strip_lead_in(whole)
    if choices is not None and placement is not Placement.BOX and (stated := stated_choice(whole, letters, choices)):
        return stated
    if placement is Placement.OPENING:
        if (sure := re.fullmatch(rf"(.{{2,60}}?),?{_SURE.pattern}", text, re.IGNORECASE)) and choice_by_text(
            sure[1], choices
        ):
            return choice_by_text(sure[1], choices)  # "Paris, of course!"
        found = _letter_and_text(text, letters, choices)
        return _letter_and_remarks(text, letters, choices) if found is None else found
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        return _mentioned(whole, placement, letters, choices)
    first = _LETTER_FIRST.fullmatch(text)
    named = choice_by_text(whole, choices) or choice_by_text(text, choices)
    if first is None:
        if placement is Placement.BARE:
            return named or (_in_words(text, letters, choices) if _ORDINAL.fullmatch(text) else None)
        return named or _in_words(text, letters, choices)
    letter, rest = first["letter"].upper(), first["rest"]
    if named and re.match(r"\s?\w", rest) and not first["close"]:
        return named  # "A and B" where that is the text of choice C
    if letter not in letters:
        other_letter = first["letter"].isupper() and not re.match(r"\s?\w", rest)
        return named or (AMBIGUOUS if other_letter and not (placement is Placement.BARE and rest) else None)
    if (
        (also := _LETTER_ALSO.match(rest))
        and not _NEXT_SENTENCE.match(rest)
        and also.group(1) in letters
        and also.group(1) != letter
    ):
        return None if placement is Placement.BARE and re.search(r"[^\W\d_]{4}", rest) else AMBIGUOUS
    closed = bool(first["close"]) or rest[:1] in (".", ":", ")")
    if first["letter"].islower() and rest and not closed:
        return named  # "a cat"
    own = choices is not None and normalised(rest.lstrip(").:-— ")) == normalised(choices[letters.index(letter)])
    if _JUST_AS_GOOD.match(rest):
        return AMBIGUOUS
    if (DENIAL_AFTER.match(rest) and not own) or re.match(r"\W{0,2}\?", rest):
        return None if placement is Placement.BARE else AMBIGUOUS
    if not own and _text_of_another(rest, letter, letters, choices):
        return AMBIGUOUS
    if placement is Placement.BARE:
        return letter if not rest or own or (closed and choices is None) else named
    # "A" and "I" are words as well: what follows must show that the letter is meant.
    if closed or own or _LETTER_REMARK.match(rest) or letter not in "AI":
        return letter
    return named


def choice_by_text(words: str, choices: Sequence[str] | None) -> str | None:
    """Letter of the only choice with this text; `None` if there is none, or several."""
    if choices is None or not (text := normalised(words)):
        return None
    same = [letter for letter, choice in zip(letters_of(choices), choices, strict=False) if normalised(choice) == text]
    same = same or [
        letter
        for letter, choice in zip(letters_of(choices), map(normalised, choices), strict=False)
        if listed(choice) == listed(text) or ((pattern := inflected(choice)) and re.fullmatch(pattern, text))
    ]
    same = same or none_of_them(letters_of(choices), choices, text) or part_of_one(letters_of(choices), choices, text)
    same = same or [letter for letter, name in last_names(letters_of(choices), choices).items() if name == text]
    return same[0] if len(same) == 1 else None


def normalised(words: object) -> str:
    """Wording without case, markup, subscripts and spaces around operators; a number in words as digits."""
    return _normalised(str(words))


@functools.lru_cache(maxsize=4096)
def _normalised(words: str) -> str:
    text = strip_markup(words).strip(" .,;:!(){}").casefold()
    text = _ARTICLE.sub("", text.replace("can't", "can not").replace("cannot", "can not").replace("n't", " not"))
    text = _AROUND_OPERATOR.sub(r"\1", _SUBSCRIPT.sub(r"\1", text))
    number = leading_number(text)
    return canonical_number(number[0]) if number and not number[1].strip() else text


def _letter_and_text(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter of a text that begins with letter and wording of one choice: "A) Paris, not B) London"."""
    first = _LETTER_FIRST.fullmatch(text)
    if first is not None and first["letter"] in letters and _SURE.fullmatch(first["rest"]):
        return first["letter"]  # "C, of course"
    if first is None or choices is None or first["letter"] not in letters:
        return None
    rest = re.sub(r"^[\s).:\]-]{1,4}", "", first["rest"] if not first["close"] else first["rest"] + " ", count=1)
    own = normalised(choices[letters.index(first["letter"])])
    if re.fullmatch(r".{4,}|[a-z]{2,}", normalised(rest)) and own.startswith(normalised(rest)):
        return first["letter"]  # "B: not guilty"
    if not own or not rest.casefold().startswith(own):
        return None  # "A) 1" where 1 is choice B: letter and text contradict each other
    remark = rest[len(own) :]
    if DENIAL_AFTER.match(remark) or HEDGE.search(remark):
        return None
    if not re.match(r"\s?(?:$|[,.;(—-]|because\b|since\b|as\b)", remark) and (
        not re.match(r"\s\w", remark)
        or NEGATION.search(remark)
        or CONCLUDED.search(remark)
        or re.search(r"\bbut\b|\?", remark)
    ):
        return None
    others = {m for groups in _MENTION.findall(remark) for m in groups if m and m in letters} - {first["letter"]}
    return None if others and not _NOT_BEFORE_ANY.search(remark) else first["letter"]


def _letter_and_remarks(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter that a text begins with, if what follows leaves it as it is: "C. No other option fits."."""
    first = _LETTER_AND_REMARK.fullmatch(text)
    letter = (first["letter"] or first["dashed"]) if first else ""
    if first is None or letter not in letters:
        return None
    rest = first["rest"]
    if first["letter"] and len(rest.split()) < _SHORTEST_REMARK:
        return None  # "B) Pariss"
    if DENIAL_AFTER.match(rest) or _text_of_another(rest, letter, letters, choices) or _NO_CHOICE.match(rest):
        return AMBIGUOUS
    for sentence in SENTENCE_END.split(rest):
        if not is_harmless(sentence) or HEDGE.search(sentence):
            return AMBIGUOUS
        named = None if is_aside(sentence) else _mentioned(sentence, Placement.LOOSE, letters, choices)
        if named not in (None, letter) and not (named == AMBIGUOUS and NEGATION.search(sentence)):
            return None
    return letter


def _in_words(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """A choice given by its position ("the second option") or by its text at the start of a sentence."""
    if _NO_CHOICE.match(text):
        return AMBIGUOUS
    if ordinal := _ORDINAL.match(text):
        place = _PLACES.get(ordinal[1].lower(), len(letters) - 1)
        known = choices is not None or ordinal[1].lower() != "last"
        return letters[place] if known and place < len(letters) else None
    if choices is None:
        return None
    # "Paris, the capital of France" and "Paris (B)"
    head = re.split(r"[,(;:]| - | — |\. | because | since ", text, maxsplit=1)[0]
    letter = choice_by_text(head, choices)
    if letter is None or len(head) == len(text):
        return None
    rest = text[len(head) :]
    others = {m for groups in _MENTION.findall(rest[:20]) for m in groups if m in letters and m} - {letter}
    if others or DENIAL_AFTER.match(rest) or re.match(r"\W{0,3}(?:or|and)\b", rest):
        return AMBIGUOUS
    return letter


def _text_of_another(rest: str, letter: str, letters: str, choices: Sequence[str] | None) -> bool:
    """Whether the wording right after a letter is that of another choice, and not that of its own."""
    if choices is None:
        return False
    after_comma = re.match(r"\s?,", rest)
    everything = normalised(rest.lstrip("),.:-—=([ "))
    if any(
        len(other) > _LONG_WORDING and everything.startswith(other)
        for letter_of, other in zip(letters, map(normalised, choices), strict=False)
        if letter_of != letter
    ):
        return True
    wording = normalised(re.split(r"[,;]|\. |\bbecause\b|\bsince\b|\bis\b", rest.lstrip("),.:-—=([ "), maxsplit=1)[0])
    if not wording:
        return False
    own = normalised(choices[letters.index(letter)])
    if wording.startswith(own) and own:
        return False
    others = [normalised(choice) for other, choice in zip(letters, choices, strict=False) if other != letter]
    if after_comma:  # "C, Berlin", but not "C, Berlin being in Germany"
        return wording in filter(None, others)
    return any(other and (wording == other or re.match(rf"{re.escape(other)}\b(?!\w)", wording)) for other in others)


def _mentioned(text: str, placement: Placement, letters: str, choices: Sequence[str] | None) -> str | None:
    """The only choice that a sentence names and does not rule out."""
    whole_text, concluding = text, CONCLUDED.split(text)
    concluded = len(concluding) > 1 or bool(CONCLUSION.match(text) or _STATED.search(text))
    before, text = "".join(concluding[-2:-1]), concluding[-1]  # "it cannot be C, so it must be B"
    equated = bool(_EQUATED.search(whole_text))
    contrasted = re.split(
        r"(?<!\ball)(?<!anything)(?<!everything)(?<!nothing)(?<!none),? \bbut\b", text, flags=re.IGNORECASE
    )
    if len(contrasted) > 1 and not NEGATION.search(contrasted[-1]) and _names(contrasted[-1], letters, choices):
        text, concluded = contrasted[-1], True  # "B is close, but C is better"
    text = _main_clause(text, letters, choices)
    if choices is not None:
        text = _without_parentheses(text, letters, choices)
    if final := _FINALLY.search(text):
        stated = re.split(r"[,;:]| but ", text[: final.start()])[-1]
        if final[1] in letters and not _NEGATED.search(stated) and not HEDGE.search(text):
            return final[1]
    text = _last_clause(text, letters, choices)
    if (instead := after_denials(text)) != text:
        text, concluded = instead, True
    if choices is not None and (whole := _whole_wording(text, choices)):
        return whole
    if (_NO_CHOICE.match(text) and not re.match(r"\W{0,3}not\b", text, re.IGNORECASE)) or HEDGE.search(text):
        return AMBIGUOUS
    text = _REPLY.sub("", text)
    concluded = concluded or bool(re.fullmatch(r"\W{0,3}[A-Z]\W{0,3}", text))
    mentioned: set[str] = set()
    denied = False
    for match in _MENTION.finditer(text):
        letter = next(filter(None, match.groups())).upper()
        if letter not in letters:
            continue
        if (
            _NOT_BEFORE.search(text[max(0, match.start() - 40) : match.start() + (match.group()[0] == "(")])
            or _WRONG_AFTER.match(text, match.end())
            or DENIAL_AFTER.match(text, match.end())
        ):
            denied = True
        else:
            mentioned.add(letter)
    named = _by_number(text, choices) or _named(text, letters, choices)
    if named == AMBIGUOUS:
        return AMBIGUOUS
    if named and (not denied or mentioned):
        mentioned.add(named)
    elif not named and before and mentioned and (equal := _by_number(before, choices)):
        mentioned.add(equal)  # "the result is 18, which is option B"
    if equated and named:  # "D, i.e. Paris"
        mentioned |= {letter for match in _MENTION.findall(before) for letter in match if letter and letter in letters}
    if len(mentioned) > 1:
        return AMBIGUOUS
    unsupported = not named or (NEGATION.search(text) and not _NOT_BEFORE_ANY.search(text))
    if mentioned and placement is Placement.SENTENCE and not concluded and not denied and unsupported:
        return None
    return next(iter(mentioned), None)


def _main_clause(text: str, letters: str, choices: Sequence[str] | None) -> str:
    """A sentence without the clause that it begins or ends with, if the rest names a choice."""
    if condition := _CONDITION.match(text):
        main = text[condition.end() :]
        named = _named(main, letters, choices)
        # "If the price rises, the curve shifts to the right": the question was about that case.
        if condition["if"]:
            return main if named and choices and len(str(choices[letters.index(named)]).split()) > 1 else text
        return main if _names(main, letters, choices) else text
    if side := _SIDE_CLAUSE.search(text):
        main = text[: side.start()]
        return (
            main
            if _named(main, letters, choices) and _named(text[side.start() :], letters, choices) is not None
            else text
        )
    return text


def _names(text: str, letters: str, choices: Sequence[str] | None) -> bool:
    """Whether a clause names a choice."""
    return any(match[0].strip("() ") in letters for match in _MENTION.finditer(text)) or bool(
        _named(text, letters, choices)
    )


def _without_parentheses(text: str, letters: str, choices: Sequence[str]) -> str:
    """A sentence without remarks in parentheses, if the rest names a choice: "winter (summer in the north)"."""
    wordings = set(map(normalised, choices))
    bare = re.sub(r"\(([^()]{2,})\)", lambda match: match.group() if normalised(match[1]) in wordings else " ", text)
    return bare if bare != text and _names(bare, letters, choices) else text


def _last_clause(text: str, letters: str, choices: Sequence[str] | None) -> str:
    """The last of several statements, unless it only says what would be the case otherwise or what comes second."""
    clauses = [clause for clause in text.split(";") if clause.strip()]
    while len(clauses) > 1:
        if not is_aside(clauses[-1]) and _names(clauses[-1], letters, choices):
            return clauses[-1]
        clauses.pop()
    return clauses[0] if clauses else text


def _whole_wording(text: str, choices: Sequence[str]) -> str | None:
    """The letter of a choice such as "cannot be determined", whose wording is no statement otherwise."""
    folded = normalised(text)
    for letter, wording in zip(letters_of(choices), map(normalised, choices), strict=False):
        says_nothing = _NO_CHOICE.match(wording) or _UNDETERMINED.search(wording)
        pattern = rf"(?:it |this |that |so |the \w+ )?{re.escape(wording)}(?!\w)"
        if says_nothing and len(wording) > 6 and re.match(pattern, folded):
            return letter
    return None


def _by_number(text: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the number that a sentence states, if all choices are numbers."""
    if choices is None or not all(map(_A_NUMBER.fullmatch, map(normalised, choices))):
        return None
    number = None if _BEFORE_OR_AFTER.search(text) else read_number(text, Placement.SENTENCE)
    return choice_by_text(number, choices) if number else None


def _named(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the only choice whose text occurs in a sentence, not ruled out."""
    if choices is None:
        return None
    text = _AROUND_OPERATOR.sub(r"\1", text)
    text = text.replace("can't", "can not").replace("cannot", "can not").replace("n't", " not")
    folded = text.casefold()
    shortened = last_names(letters_of(choices), choices)
    found: dict[str, tuple[int, int]] = {}
    for letter, choice in zip(letters, choices, strict=False):
        wording = normalised(choice)
        if len(wording) < 3 or re.fullmatch(r"true|false|yes|no|none|both|all", wording):
            short = (
                re.search(rf"(?:\b(?:is|are|equals|be)|=) {re.escape(wording)}\W{{0,3}}$", folded) if wording else None
            )
            if short:
                found[letter] = (short.end() - 1, short.end())
            continue
        pattern = inflected(wording) or re.escape(wording).replace(",", ",?").replace("\\ ", ",?\\ ").replace(
            ",?,?", ",?"
        )
        alias = shortened.get(letter)
        match = re.search(rf"(?<!\w)(?:{pattern})(?!\w|'s\b)", folded)
        if match is None and alias is not None:
            match = re.search(rf"(?<!\w){re.escape(alias)}(?!\w|'s\b)", folded)
            match = match if match and is_name_of(str(choice), text, *match.span()) else None
        if match and not RELATED_TO.search(text[: match.start()]) and not COMPOUND.match(text, match.end()):
            found[letter] = match.span()
    inner = {
        letter
        for letter, (start, end) in found.items()
        for other, (a, b) in found.items()
        if other != letter and a <= start and end <= b and (a, b) != (start, end)
    }
    kept = {letter: span for letter, span in found.items() if letter not in inner}
    if not kept and not NEGATION.search(text) and (predicate := _PREDICATE.search(folded)):
        partly = part_of_one(letters, choices, predicate[1].strip())
        return partly[0] if partly else None
    stated = [
        letter
        for letter, (start, end) in kept.items()
        if not _BEFORE_OR_AFTER.search(text[:end])
        and not _LOWER_RANKED.search(text[max(0, start - 40) : start])
        and not _NOT_BEFORE.search(text[max(0, start - 40) : start])
        and not NEGATION.search(re.split(r"[,;:]", text[:start])[-1])
        and not DENIAL_AFTER.match(text, end)
        and not _WRONG_AFTER.match(text, end)
    ]
    if any(re.match(r",? (?:or|and/or)\b", folded[kept[letter][1] :]) for letter in stated):
        return AMBIGUOUS  # "Demand increases or decreases"
    return AMBIGUOUS if len(stated) > 1 or (kept and not stated) else next(iter(stated), None)
