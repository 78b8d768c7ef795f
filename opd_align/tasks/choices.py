"""Reads multiple-choice answers, by letter or by the text of a choice.

A letter whose text is that of another choice ("B) London" where London is choice A) is no answer, and neither are two
letters. "A" and "I" are words too: what follows must show that the letter is meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from opd_align.tasks.characters import strip_markup
from opd_align.tasks.choice_quotes import highlighted
from opd_align.tasks.choice_sentences import MENTION, NO_CHOICE, NOT_BEFORE_ANY, mentioned
from opd_align.tasks.choice_statements import stated_choice
from opd_align.tasks.choice_wording import choice_by_text, compiled, normalised, plain_maths
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.remarks import confirms, is_harmless
from opd_align.tasks.statements import (
    CONCLUDED,
    CONCLUSION,
    DENIAL_AFTER,
    HEDGE,
    NEGATION,
    SENTENCE_END,
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
_SURE = re.compile(
    r"\s?[,—-]?\s?(?:surely|definitely|certainly|clearly|obviously|of course|for sure|no question|final answer|"
    r"no doubt|"
    r"without (?:a|any) doubt|hands down|all the way|it is|by far|alone|and (?:nothing|no other|none) else)\W{0,3}|"
    r", (?:in spite of|despite|although|"
    r"even though|no matter|whatever)\b.*",
    re.IGNORECASE,
)
_ARROW = re.compile(r"^\W{0,3}(?:→|⇒|➜|->|=>)\s?(?=\S)")
_LONG_WORDING = 12
_LONGEST_LABEL = 3
_JUST_AS_GOOD = re.compile(
    r",? (?:but|though|although|however),? \(?[A-Z]\)? [^.;]{0,40}\b(?:just as|equally|also|as well|too|could|"
    r"might|may)\b",
    re.IGNORECASE,
)
_NEXT_SENTENCE = re.compile(r"\)?\.\s+[A-Z]\)? [a-z]{3,}")  # "B. C requires intent."
_IT_IS = re.compile(
    r"\W{0,3}(?:it|this|that)(?:'s| is|'d be| would be| must be)(?: called| known as)? (.{2,80}?)\W{0,3}", re.IGNORECASE
)
_STATES_AGAIN = re.compile(
    r"^\W{0,3}(?:it|this|that|the \w+)\b[^.]{0,40}\b(?:is|was|be)\b|\b(?:answer|option|choice|but)\b", re.IGNORECASE
)
_SHORTEST_REMARK = 3
_LETTER_AND_REMARK = re.compile(
    r"(?:\(?(?P<letter>[A-Z])(?:\)[.:]?|\.|:)\s(?!\(?[A-Z]\b\.|[a-z])|(?<!.)(?P<dashed>[A-Z])(?:\s?[—–]\s?| - |"
    r",? (?=(?:because|since|due to)\b)))(?P<rest>.+)",
    re.DOTALL,
)
_LETTER_REMARK = re.compile(r"\s{0,2}(?:$|[).:,;\-—(\[]|(?:is|because|since|as|which|would|based|due|and|it)\b)")
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


def read_choice(words: str, placement: Placement, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter that a text gives as its answer; an `extract.Reader` once letters and choices are known."""
    words = _ARROW.sub("", plain_maths(words))
    whole = strip_markup(words).strip(".,;: {}")
    text = re.sub(r"^(?:[Jj]ust|[Oo]nly) (?=\(?[A-Z]\)?$)", "", strip_lead_in(whole))
    if choices is not None and placement is not Placement.BOX and (stated := stated_choice(whole, letters, choices)):
        return stated
    if placement is Placement.OPENING:
        if (sure := re.fullmatch(rf"(.{{2,60}}?),?{_SURE.pattern}", text, re.IGNORECASE)) and choice_by_text(
            sure[1], choices
        ):
            return choice_by_text(sure[1], choices)  # "Paris, of course!"
        if (stated := _stated_first(whole, letters, choices)) is not None:
            return stated
        found = _letter_and_text(text, letters, choices)
        return _letter_and_remarks(text, letters, choices) if found is None else found
    if placement in (Placement.LOOSE, Placement.SENTENCE):
        return highlighted(words, letters, choices) or mentioned(whole, placement, letters, choices)
    if placement is Placement.MARKED and words.lstrip().startswith(('"', "**")):
        quoted = highlighted(words, letters, choices)
        if quoted:
            return quoted
    first = _LETTER_FIRST.fullmatch(text)
    named = choice_by_text(whole, choices) or choice_by_text(text, choices)
    if first is None:
        if placement is Placement.BARE:
            return named or (_in_words(text, letters, choices) if _ORDINAL.fullmatch(text) else None)
        return named or _in_words(text, letters, choices)
    letter, rest = first["letter"].upper(), first["rest"]
    if named and len(whole) > _LONGEST_LABEL and _is_wording(whole, named, letters, choices):
        return named  # "A, B, and C"
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


def _letter_and_text(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter of a text that begins with letter and wording of one choice: "A) Paris, not B) London"."""
    first = _LETTER_FIRST.fullmatch(text)
    if first is not None and first["letter"] in letters and _SURE.fullmatch(first["rest"]):
        return first["letter"]  # "C, of course"
    if first is None or choices is None or first["letter"] not in letters:
        return None
    rest = re.sub(
        r"^[\s).:\]-]{1,4}(?:an? |the )?", "", first["rest"] if not first["close"] else first["rest"] + " ", count=1
    )
    own = normalised(choices[letters.index(first["letter"])])
    if re.fullmatch(r".{4,}|[a-z]{2,}", normalised(rest)) and own.startswith(normalised(rest)):
        return first["letter"]  # "B: not guilty"
    if (
        own
        and len(own) > 3
        and re.fullmatch(rf"an? {re.escape(own)}(?: [a-z]+)?", normalised(rest) and rest.casefold().strip(" ."))
    ):
        return first["letter"]  # "C: an obtuse triangle"
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
    others = {m for groups in MENTION.findall(remark) for m in groups if m and m in letters} - {first["letter"]}
    return None if others and not NOT_BEFORE_ANY.search(remark) else first["letter"]


def _stated_first(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The choice of a first sentence "It's a sonnet.", if what follows only says something about other choices."""
    first, *others = SENTENCE_END.split(text)
    stated = _IT_IS.fullmatch(first)
    letter = choice_by_text(stated[1] if stated else first, choices) if others else None
    if letter is None:
        return None
    for sentence in others:
        if not is_harmless(sentence) or CONCLUDED.search(sentence) or CONCLUSION.match(sentence):
            return None
        if HEDGE.search(sentence) or _STATES_AGAIN.search(sentence):
            return None
    return letter


def _letter_and_remarks(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter that a text begins with, if what follows leaves it as it is: "C. No other option fits."."""
    first = _LETTER_AND_REMARK.fullmatch(text)
    letter = (first["letter"] or first["dashed"]) if first else ""
    if first is None or letter not in letters:
        return None
    rest = first["rest"]
    if confirms(rest):
        return letter
    if first["letter"] and len(rest.split()) < _SHORTEST_REMARK:
        return None  # "B) Pariss"
    if DENIAL_AFTER.match(rest) or _text_of_another(rest, letter, letters, choices) or NO_CHOICE.match(rest):
        return AMBIGUOUS
    for sentence in SENTENCE_END.split(rest):
        if not is_harmless(sentence) or HEDGE.search(sentence):
            return AMBIGUOUS
        named = None if is_aside(sentence) else mentioned(sentence, Placement.LOOSE, letters, choices)
        if named not in (None, letter) and not (named == AMBIGUOUS and NEGATION.search(sentence)):
            return None
    return letter


def _in_words(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """A choice given by its position ("the second option") or by its text at the start of a sentence."""
    if NO_CHOICE.match(text):
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
    others = {m for groups in MENTION.findall(rest[:20]) for m in groups if m in letters and m} - {letter}
    if others or DENIAL_AFTER.match(rest) or re.match(r"\W{0,3}(?:or|and)\b", rest):
        return AMBIGUOUS
    return letter


def _is_wording(text: str, letter: str, letters: str, choices: Sequence[str] | None) -> bool:
    return choices is not None and normalised(text) == normalised(choices[letters.index(letter)])


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
    return any(
        other and (wording == other or compiled(rf"{re.escape(other)}\b(?!\w)").match(wording)) for other in others
    )
