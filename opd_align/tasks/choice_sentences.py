"""The choice that a sentence states: named by letter or wording, not ruled out, and the only one.

"It cannot be C, so it must be B" states B; "B is close, but C is better" states C; "B or C" states none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from opd_align.tasks.choice_names import (
    COMPOUND,
    RELATED_TO,
    inflected,
    is_name_of,
    last_names,
    part_of_one,
)
from opd_align.tasks.choice_wording import AROUND_OPERATOR, choice_by_text, compiled, letters_of, normalised
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.numbers import read_number
from opd_align.tasks.remarks import is_harmless
from opd_align.tasks.statements import (
    CONCLUDED,
    CONCLUSION,
    DENIAL_AFTER,
    HEDGE,
    NEGATION,
    after_denials,
    is_aside,
)

_NEGATED = re.compile(rf"{NEGATION.pattern}|\bnothing\b", re.IGNORECASE)
_EQUATED = re.compile(r"\b(?:i\.e\.|that is|which is)")
_IN_OTHER_WORDS = re.compile(r"\b(?:i\.e\.|that is,|in other words)", re.IGNORECASE)
_ONLY_MENTION = re.compile(r"\W{0,3}(?:option|choice|letter) \(?([A-Z])\)?\W{0,3}", re.IGNORECASE)
# "All are sympathetic effects except B", but not "All are correct except B"
_ALL_EXCEPT = re.compile(
    r"\W{0,3}(?:(?:so|thus|hence|therefore),? )?(?:all|every|each|everything)\b(?P<first>[^.;]{0,80}?),? "
    r"(?:except|but|apart from|other than|save)(?: for)? (?:option |choice )?(?P<what>[^.;,]{1,80}?)"
    r"(?P<rest> (?:is|are|was|were|has|have|does|do|can)\b[^.;]{0,80})?\W{0,3}",
    re.IGNORECASE,
)
_OTHERS_CLAIMED = re.compile(r"\b(?:is|are|was|were|has|have|does|do|can|cause|belong|describe|increase|decrease)\b")
_NO_CLAIM = re.compile(
    r"\b(?:right|correct|true|wrong|incorrect|false|possible|plausible|acceptable|fine|answers?|could|might|may|"
    r"options?|choices?|candidates?|applies|apply|works?|fits?|valid|likely|not|n't|no)\b",
    re.IGNORECASE,
)
_PREDICATE_BEFORE = re.compile(
    r"(?:\b(?:is|are|was|were|equals|be|becomes|called|by|known as)|=) (?:the |an? )?$", re.IGNORECASE
)
_RELATIVE = re.compile(
    r"(?: \([^()]{1,40}\))?,? (?:which|who|whose|that|[a-z]+ing|while|whereas|with|followed|even|long|later)\b",
    re.IGNORECASE,
)
_FORMULA_UNIT = re.compile(r" (?:time|steps|operations|comparisons|space|complexity|lookups?)\b", re.IGNORECASE)
_SHARE = re.compile(r"\d ?(?:%|percent\b)")
_IT_IS = re.compile(r"\W{0,3}(?:it|this|that)(?:'s| is| was)\b", re.IGNORECASE)
# The end of a sentence that names what is left or chosen.
_FINALLY = re.compile(
    r"\b(?:it (?:has to|must|should) be|gotta be|got to be|"
    r"it's|it is|I(?:'d)? (?:choose|pick|go with|say)|went with|bet on|looks? like|"
    r"points? to|lean(?:ing)? towards?|by (?:process of |the process of )?elimination,|only|"
    r"(?:that |this |which )gives(?: us)?|brings (?:us|me) to|leads (?:us |me )?to|(?:we|I)(?:'re| are|'m|"
    r" am) left with|"
    r"(?:this|that|which|evidence|text|passage|it)(?: \w+ly)? (?:supports|indicates|confirms|favou?rs|selects|"
    r"yields|implies)|"
    r"(?:this|that|which|it)(?: best)? (?:corresponds to|aligns with|agrees with|amounts to|is consistent with|"
    r"is equivalent "
    r"to|matches(?: with)?|fits)|"
    r"(?:closest|nearest|(?<!second-)(?<!second )(?<!next )(?<!next-)best|remaining|only|most \w+|"
    r"left)(?: (?:remaining|possible|matching|correct|viable|sensible))? (?:option|"
    r"choice|answer|candidate|possibility|match|fit|one)(?: (?:left|remaining|that (?:remains|fits|works|matches)|"
    r"here))?"
    r"(?: is|:)|one left is|"
    r"(?:that )?leaves(?: us with)?|"
    r"leaving(?: us with)?|what(?:'s| is) left is|what remains is) (?:therefore |thus |then )?(?:option |choice |"
    r"only |answer )?"
    r"\(?([A-Z])\)?(?:,? as the (?:only|best) \w+)?"
    r"(?: (?:remains|is left|left|is possible|that remains))?\W{0,3}$",
    re.IGNORECASE,
)
_REPLY = re.compile(r"^\W{0,3}(?:(?:no|nope),|(?:well|ok|right|rather|actually|yes),?) ", re.IGNORECASE)  # "C? No, B."
_A_NUMBER = re.compile(r"-?\d+(?:\.\d+|/\d+)?")
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
_BEFORE_OR_AFTER = re.compile(
    r"\b(?:after|before|since|until|prior to|later than|earlier than) \d+\W{0,3}$", re.IGNORECASE
)
MENTION = re.compile(
    r"^\W{0,4}([A-Z])(?=\W{0,3}$)|\(([A-Z])\)|(?<![\w(])([A-Z])\)|\b(?:option|choice|letter|answer|statement|选项|"
    r"选) ?\(?([A-Z])\b"
    r"|(?<![\w'’.-])(A(?= (?:is|was|must be|has to be|remains|fits|matches|works|seems|looks|wins)\b))"
    r"|(?<![\w'’.-])([B-HJ-Z])(?![\w'’-]|\. ?[A-Z]\b)|(?:\b(?:is|be|so|therefore|thus|hence|choose|pick|"
    r"select|with|to|answer)|:),? "
    r"([A-Z])(?=\W{0,3}$)"
)
NOT_BEFORE = re.compile(
    r"(?:\b(?:not|anything but|all (?:\w+ )?but|everything but|every \w+ but|far from|neither|nor|never|"
    r"rather than|instead of|unlike|than|"
    r"except|over|such as|including|e\.g\.|for example|defin(?:e|ing)|consider(?:ing)?|regarding|beyond|says?|"
    r"discuss(?:ing)?|"
    r"(?:concept|notion|definition|idea) of|followed by|ahead of|compared (?:to|with)|in contrast to|contrary to|"
    r"(?:different|distinct|differs?) from|opposed to|versus|vs\.?|(?:confused|contrasts?) with|mistaken for|"
    r"eliminates?|excludes?|rules? out|without|"
    r"isn't|wasn't|aren't|don't think (?:it is|it's)|cannot be|can't be|eliminating|ruling out)|不是|不选|排除)"
    r"(?:\W{1,3}(?:with|in|the|option|choice|answer|be|it|is|because|of))*(?:\W{0,3}| [\w' -]{1,40}\()$",
    re.IGNORECASE,
)
WRONG_AFTER = re.compile(
    r"[^.;]{0,60}?(?<!nothing)(?:,| and| or| nor|\)|\s)*\b(?:is|are|was|were|isn't|aren't)(?: both| all|"
    r" also| clearly| therefore)?"
    r" ?(?:wrong|incorrect|not|false|(?:less|partly|nearly|almost) \w+|worse|weaker|unlikely|inferior|eliminated|"
    r"impossible|excluded|out|second|next)\b"
    r"|,? (?:fits|works|matches|does|answers|makes)(?: \w+)? (?:less|worse|badly|poorly|no sense|little sense)\b"
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
NOT_BEFORE_ANY = re.compile(r"\b(?:not|rather than|instead of|unlike)\b", re.IGNORECASE)
_UNDETERMINED = re.compile(r"\bnot\b|\bnever\b|\bneither\b|\bnone\b|\bunknown\b")
NO_CHOICE = re.compile(
    r"\W{0,3}(?:none|neither|unknown|n/?a\b|all of|both|not enough|cannot|can't|I (?:do not|don't|am not|"
    r"cannot|can't)|unclear|"
    r"unsure|not\b)",
    re.IGNORECASE,
)


def mentioned(text: str, placement: Placement, letters: str, choices: Sequence[str] | None) -> str | None:
    """The only choice that a sentence names and does not rule out."""
    if (only := _ONLY_MENTION.fullmatch(text)) and only[1].upper() in letters:
        return only[1].upper()
    if choices is not None and (exception := _exception(text, letters, choices)):
        return exception
    whole_text, concluding = text, CONCLUDED.split(text)
    concluded = len(concluding) > 1 or bool(CONCLUSION.match(text) or _STATED.search(text))
    before, text = "".join(concluding[-2:-1]), concluding[-1]  # "it cannot be C, so it must be B"
    equated = bool(_EQUATED.search(whole_text))
    if choices is not None and " " in text.strip() and (exact := _exact_wording(text, choices)):
        return exact  # "so A and B are independent"
    if _IN_OTHER_WORDS.search(whole_text) and not _names(text, letters, choices) and not NEGATION.search(before):
        text = before if _named(before, letters, choices) else text  # "judicial review, i.e. the power to ..."
    contrasted = re.split(
        r"(?<!\ball)(?<!options)(?<!choices)(?<!anything)(?<!everything)(?<!nothing)(?<!none),? \bbut\b",
        text,
        flags=re.IGNORECASE,
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
    if (NO_CHOICE.match(text) and not re.match(r"\W{0,3}not\b", text, re.IGNORECASE)) or HEDGE.search(text):
        return AMBIGUOUS
    text = _REPLY.sub("", text)
    concluded = concluded or bool(re.fullmatch(r"\W{0,3}[A-Z]\W{0,3}", text))
    letters_named: set[str] = set()
    denied = False
    for match in MENTION.finditer(text):
        letter = next(filter(None, match.groups())).upper()
        if letter not in letters:
            continue
        if (
            NOT_BEFORE.search(text[max(0, match.start() - 40) : match.start() + (match.group()[0] == "(")])
            or _LOWER_RANKED.search(text[max(0, match.start() - 40) : match.start()])
            or WRONG_AFTER.match(text, match.end())
            or DENIAL_AFTER.match(text, match.end())
        ):
            denied = True
        else:
            letters_named.add(letter)
    named = _by_number(text, choices) or _named(text, letters, choices)
    if named == AMBIGUOUS:
        return AMBIGUOUS
    if named and (not denied or letters_named):
        letters_named.add(named)
    elif not named and before and letters_named and (equal := _by_number(before, choices)):
        letters_named.add(equal)  # "the result is 18, which is option B"
    if equated and named:  # "D, i.e. Paris"
        letters_named |= {
            letter for match in MENTION.findall(before) for letter in match if letter and letter in letters
        }
    if len(letters_named) > 1:
        return AMBIGUOUS
    unsupported = not named or (NEGATION.search(text) and not NOT_BEFORE_ANY.search(text))
    if letters_named and placement is Placement.SENTENCE and not concluded and not denied and unsupported:
        return None
    return next(iter(letters_named), None)


def _exact_wording(text: str, choices: Sequence[str]) -> str | None:
    wording = normalised(text)
    same = [
        letter for letter, choice in zip(letters_of(choices), choices, strict=False) if normalised(choice) == wording
    ]
    return same[0] if len(same) == 1 and len(wording) > 3 else None


def _exception(text: str, letters: str, choices: Sequence[str]) -> str | None:
    """The choice of "All are sympathetic effects except B": the question was which one is not."""
    found = _ALL_EXCEPT.fullmatch(text)
    if found is None:
        return None
    claim = f"{found['first']} {found['rest'] or ''}"
    if not _OTHERS_CLAIMED.search(claim) or _NO_CLAIM.search(claim) or HEDGE.search(text):
        return None
    what = found["what"].strip(" ()")
    return what if len(what) == 1 and what in letters else choice_by_text(what, choices) if len(what) > 1 else None


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
    return any(match[0].strip("() ") in letters for match in MENTION.finditer(text)) or bool(
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
    if len(clauses) == 2 and all(_SHARE.search(clause) and _named(clause, letters, choices) for clause in clauses):
        # "Nitrogen makes up 78 %; oxygen only 21 %": which of two shares is asked for is not known otherwise.
        return clauses[0] if re.search(r"\b(?:only|just|merely)\b", clauses[1]) else text
    if len(clauses) == 2 and _IT_IS.match(clauses[0]) and not CONCLUSION.match(clauses[1]):
        # "This is classical conditioning; operant conditioning involves rewards."
        subject = re.match(rf"\W{{0,3}}(?:an? |the )?(?:{_any_wording(choices)})\b", clauses[1].casefold())
        if subject and _named(clauses[0], letters, choices):
            return clauses[0]
    if len(clauses) > 1 and choice_by_text(clauses[0], choices) and all(map(is_harmless, clauses[1:])):
        return clauses[0]  # "Meiosis; mitosis makes body cells."
    while len(clauses) > 1:
        if not is_aside(clauses[-1]) and _names(clauses[-1], letters, choices):
            return clauses[-1]
        clauses.pop()
    return clauses[0] if clauses else text


def _whole_wording(text: str, choices: Sequence[str]) -> str | None:
    """The letter of a choice such as "cannot be determined", whose wording is no statement otherwise."""
    folded = normalised(text)
    for letter, wording in zip(letters_of(choices), map(normalised, choices), strict=False):
        says_nothing = NO_CHOICE.match(wording) or _UNDETERMINED.search(wording)
        pattern = rf"(?:it |this |that |so |the \w+ )?{re.escape(wording)}(?!\w)"
        if says_nothing and len(wording) > 6 and re.match(pattern, folded):
            return letter
    return None


def _any_wording(choices: Sequence[str] | None) -> str:
    return "|".join(re.escape(normalised(choice)) for choice in choices or () if normalised(choice)) or "(?!)"


def _by_number(text: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the number that a sentence states, if all choices are numbers."""
    if choices is None or not all(map(_A_NUMBER.fullmatch, map(normalised, choices))):
        return None
    number = None if _BEFORE_OR_AFTER.search(text) else read_number(text, Placement.SENTENCE)
    if not number:
        return None
    values = [Fraction(normalised(choice)) for choice in choices]
    percent = re.search(r"\d ?(?:%|percent\b)", text) and not any("%" in str(choice) for choice in choices)
    for value in (Fraction(number), Fraction(number) / 100 if percent else Fraction(number)):
        same = [letter for letter, other in zip(letters_of(choices), values, strict=False) if other == value]
        if len(same) == 1:
            return same[0]
    return None


def _named(text: str, letters: str, choices: Sequence[str] | None) -> str | None:
    """The letter of the only choice whose text occurs in a sentence, not ruled out."""
    if choices is None:
        return None
    text = AROUND_OPERATOR.sub(r"\1", text)
    text = text.replace("can't", "can not").replace("cannot", "can not").replace("n't", " not")
    folded = text.casefold()
    shortened = last_names(letters_of(choices), choices)
    found: dict[str, tuple[int, int]] = {}
    for letter, choice in zip(letters, choices, strict=False):
        wording = normalised(choice)
        if len(wording) < 3 or re.fullmatch(r"true|false|yes|no|none|both|all", wording):
            short = (
                compiled(rf"(?:\b(?:is|are|equals|be)|=) {re.escape(wording)}\W{{0,3}}$").search(folded)
                if wording
                else None
            )
            if short:
                found[letter] = (short.end() - 1, short.end())
            continue
        pattern = inflected(wording) or re.escape(wording).replace(",", ",?").replace("\\ ", ",?\\ ").replace(
            ",?,?", ",?"
        )
        alias = shortened.get(letter)
        formula = "(" in wording and not wording.startswith("(")
        around = (r"(?<![\w/*^+.-])", r"(?![\w(]| ?[/*^+])") if formula else (r"(?<!\w)", r"(?!\w|'s\b)")
        match = compiled(rf"{around[0]}(?:{pattern}){around[1]}").search(folded)
        if match is None and alias is not None:
            match = compiled(rf"(?<!\w){re.escape(alias)}(?!\w|'s\b)").search(folded)
            match = match if match and is_name_of(str(choice), text, *match.span()) else None
        if match is None or RELATED_TO.search(text[: match.start()]):
            continue
        if not COMPOUND.match(text, match.end()) or (formula and _FORMULA_UNIT.match(text, match.end())):
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
        and not NOT_BEFORE.search(text[max(0, start - 40) : start])
        and not NEGATION.search(re.split(r"[,;:]", text[:start])[-1])
        and not DENIAL_AFTER.match(text, end)
        and not WRONG_AFTER.match(text, end)
    ]
    if any(re.match(r",? (?:or|and/or)\b", folded[kept[letter][1] :]) for letter in stated):
        return AMBIGUOUS  # "Demand increases or decreases"
    if len(stated) > 1 and (one := _predicate_of(text, {letter: kept[letter] for letter in stated})):
        return one
    return AMBIGUOUS if len(stated) > 1 or (kept and not stated) else next(iter(stated), None)


def _predicate_of(text: str, spans: dict[str, tuple[int, int]]) -> str | None:
    """The choice that something is said to be, if the others only occur beside it.

    "The derivative of x^3 is 3x^2", "The case was Brown v. Board of Education, which overruled Plessy v. Ferguson".
    """
    predicates = [letter for letter, (start, _) in spans.items() if _PREDICATE_BEFORE.search(text[:start])]
    if len(predicates) != 1:
        return None
    start, end = spans[predicates[0]]
    for letter, (other_start, _) in spans.items():
        if letter == predicates[0]:
            continue
        beside = (
            re.search(r"\bof (?:the )?$", text[:other_start]) if other_start < start else _RELATIVE.match(text, end)
        )
        if not beside:
            return None
    return predicates[0]
