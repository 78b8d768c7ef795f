"""What is said about an answer rather than as an answer.

Three things are told apart: a label that says whose or which answer follows ("wrong answer:", "Tom's answer:"), a
remark that takes the answer before it back ("18. That would be wrong."), and a remark that leaves it as it is ("18. No
need to round."). Nothing here knows what an answer looks like.
"""

from __future__ import annotations

import re

OTHER_ANSWER = re.compile(
    r"(?:(?<![\w'-])(?:wrong|incorrect|false|bad|trap|invalid|previous|earlier|old|former|first|initial|original|"
    r"preliminary|"
    r"tentative|draft|rejected|eliminated|excluded|discarded|naive|tempting|popular|common|typical|a possible|"
    r"one possible|"
    r"alternative|another|other|second(?:[- ]best)?|worst|(?:least|less) likely|mistaken|unlikely|hypothetical|"
    r"intermediate|"
    r"partial|example|sample|(?:the|a|one) (?:student|user|friend|reader|teacher|book|website)|student|user|their|"
    r"his|her|"
    r"not (?:the|an?|my)|no)\s(?:final |correct |right |best )?|"
    r"(?!it's|here's|that's|let's|what's|there's|today's|question's|problem's|passage's)\b[a-z]+'s (?:final )?)$",
    re.IGNORECASE,
)
"""Before "answer", what makes it somebody else's, an earlier one, or a wrong one."""

_OTHER_LABEL = re.compile(
    r"[\s*_#>•-]{0,8}(?:(?:the|one|a|an|their|his|her|my|our) )?(?:goal|target|budget|pin|phone|code|wrong|"
    r"incorrect|invalid|trap|typical|before|initial(?:ly)?|previous(?:ly)?|earlier|old|rejected|"
    r"eliminated?|"
    r"excluded?|discarded|ruled out|worst|least|less|second|next best|runner-up|not|never|draft|distractors?|"
    r"traps?|mistakes?|"
    r"errors?|examples?|hints?|answer (?:options|choices|key)|tokens|options|choices|candidates?|alternatives?|"
    r"possible|input|given|questions?|problems?|prompt|grade|"
    r"score|confidence|id|page|version|date|level|difficulty|points|topic|subject|section|chapter|figure|user|human|"
    r"student|friend)\b[^:\n]{0,30}:(?=[*_ \t]{0,4}\S)"
    r"(?![^\n]*\b(?:answer|so|therefore|thus|hence|total|confirmed|final|result|verdict)\b)",
    re.IGNORECASE,
)
_SOMEBODYS_ANSWER = re.compile(
    r"\W{0,4}(?!It's|Here's|That's|Let's|What's|There's|Today's)[A-Z][a-z]+'s (?:final )?answer:"
)
_LEAD = (
    r"\W{0,4}(?:(?:but|or|and|well|oh|hmm+|wait|actually|sorry|um+|ah|hang on|hold on|just|except|only)\b"
    r"[\s,.—-]{0,4}){0,3}"
)
_TAKEN_BACK = re.compile(
    rf"{_LEAD}(?:(?:no|nope|nah|not|not (?:really|quite|so fast|at all)|never ?mind|wrong|incorrect|false|untrue|"
    rf"kidding|joking|or not|"
    r"maybe not|perhaps not)\W{0,4}$|"
    r"(?:forget|scratch|strike|ignore|disregard|delete|cancel) (?:it|that|this|what I)\b|"
    r"(?:edit|correction|update|erratum|errata):|"
    r"I (?:take (?:it|that|this) back|retract|withdraw|(?:don't|do not) (?:believe|buy|trust|mean) (?:it|that|this)|"
    r"(?:don't|do not) think so|doubt (?:it|that|this)|was (?:wrong|mistaken|joking|kidding)|misread|miscounted|"
    r"misspoke|"
    r"miscalculated|(?:made|have made) (?:a|an) (?:\w+ )?(?:mistake|error)|lied)\b)",
    re.IGNORECASE,
)
_ABOUT_IT = re.compile(
    rf"{_LEAD}(?:that|this|it|which|(?:the|my|this|that) (?:above |first |last )?(?:answer|result|guess|value|choice))"
    r"(?P<said>(?:'s| is| was| would| must| has to| seems| looks| sounds| can't| cannot| isn't| wasn't| wouldn't|"
    r" doesn't| does)"
    r"\b[^.!?\d]{0,60})\W{0,4}$",
    re.IGNORECASE,
)
_WRONG = re.compile(
    r"\b(?:(?:wrong|incorrect|false|untrue)(?! (?:to|for|in|if|of|when|only|under|about)\b)|mistaken|(?:a|an|"
    r"my) (?:\w+ )?(?:mistake|error|joke|lie|trap)|"
    r"nonsense|impossible|"
    r"absurd)\b",
    re.IGNORECASE,
)
_RIGHT = re.compile(r"\b(?:right|correct|true|(?:my|the|an) (?:\w+ )?answer|work|fit|make sense)\b", re.IGNORECASE)
_NOT = re.compile(r"\b(?:not|never|cannot|hardly)\b|n't\b", re.IGNORECASE)
_BARE_NOT = re.compile(r"\b(?:is|was|would be|does|are)(?:n't| not)\W{0,4}$", re.IGNORECASE)
_DISTANCED = re.compile(
    r"^\W{0,4}(?:but|however|or|though|although|except|unless|if|yet|then again|at least)\b|\?\W{0,3}$|"
    r"\b(?:would (?:say|think|claim|argue)|I'd (?:say|think)|not (?:sure|certain)|unsure|guess(?:ing|ed)?|"
    r"I disagree|trap|"
    r"tempting|careless|naive|kidding|joking|instead|on second thou?ght|mistake|however|depends?)\b",
    re.IGNORECASE,
)


_CONCESSION = re.compile(r"^\W{0,4}(?:although|though|even though|while) [^,?]{1,120}, (?=\w+ \w+)", re.IGNORECASE)

# "Yes. However, cyclists must use the other side."
_RESERVATION = re.compile(r"^\W{0,4}(?:however,|but) (?=\w+ \w+)", re.IGNORECASE)
_UNDERMINED = re.compile(
    r"\b(?:wrong|incorrect|false|true|mistake\w*|error|answer|question|also|too|as well|equally|could|might|maybe|"
    r"perhaps|"
    r"possib\w+|actually|rather|better|right|correct|sure|certain|know|think|say|says|then|wait|if|should|would|no|yes|"
    r"another|other way|alternativ\w+|instead|both)\b|\d|n't\b",
    re.IGNORECASE,
)


def is_other_label(line: str) -> bool:
    """Whether a line begins with a label that is not one of an answer: "Wrong: C", "Bob's answer: 18"."""
    return bool(_OTHER_LABEL.match(line) or _SOMEBODYS_ANSWER.match(line))


def takes_back(sentence: str) -> bool:
    """Whether a sentence says of what was said before that it does not hold: "That would be wrong.", "No."."""
    if _TAKEN_BACK.match(sentence):
        return True
    about = _ABOUT_IT.match(sentence)
    if about is None:
        return False
    said = about["said"]
    if _WRONG.search(said):
        return not _NOT.search(said)
    return bool((_RIGHT.search(said) and _NOT.search(said)) or _BARE_NOT.search(said))


_CONFIRMED = re.compile(
    r"\W{0,4}(?:(?:yes|and|so),? )?(?:right|correct|exactly|perfect|indeed|clearly|obviously|definitely|certainly|"
    r"checks out|(?:that|this|it)(?:'s| is|"
    r" was| checks out| seems| looks| must be)"
    r"(?: indeed| definitely| clearly| all)?(?: (?:right|correct|it|fine|good|final|easy|clear|obvious|"
    r"the (?:final )?answer|"
    r"my (?:final )?answer))?|"
    r"no (?:doubt|question)(?: about (?:it|that))?|(?:final|my final) answer)\W{0,4}$",
    re.IGNORECASE,
)


def confirms(sentence: str) -> bool:
    """Whether a sentence only says that what was said before holds: "Right.", "That's correct."."""
    return bool(_CONFIRMED.match(sentence))


def has_alternative(words: str) -> bool:
    """Whether a parenthesis gives another answer: "24 (or 25)"."""
    return bool(
        re.search(
            r"\(\s?(?!or [\d.]{1,9} ?\\?%\))(?:(?:or|maybe|perhaps|possibly|alternatively)\b[^()]{1,60}|"
            r"[^()]{1,40}\?)\)\W{0,3}$",
            words[-200:],
            re.IGNORECASE,
        )
    )


def is_doubted(words: str) -> bool:
    """Whether a parenthesis after an answer takes it back: "18 (I don't believe it myself)"."""
    return any(not is_harmless(remark) for remark in re.findall(r"\(([^()]{3,80})\)", words[:200]))


def is_harmless(sentence: str) -> bool:
    """Whether a sentence after an answer leaves the answer as it is."""
    sentence = _CONCESSION.sub("", sentence)
    sentence = sentence if _UNDERMINED.search(sentence) else _RESERVATION.sub("", sentence)
    return not takes_back(sentence) and not _DISTANCED.search(sentence)
