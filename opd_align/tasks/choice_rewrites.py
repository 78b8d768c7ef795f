"""Statements about choices, written as the sentence that `extract` looks for: "B is correct" as "the answer is B"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opd_align.tasks.choice_wording import normalised
from opd_align.tasks.statements import SENTENCE_END

_LONGEST_TAIL = 400
_FEWEST_OTHERS = 3
_CONCLUDING = re.compile(
    r"\b(?:so|thus|therefore|hence|answer|correct|right|best|option|choice|not|but|if|all)\b|n't\b|\?", re.IGNORECASE
)

# "Option B is correct" means the same as "the answer is B".
_CALLED_CORRECT = re.compile(
    r"(?<![\w-])(?<![Ii]f )(?<!whether )(?<!only )(?<!option )(?<!choice )(?<!, and )(?<! or )(?<![A-Z)] and )"
    r"(?:[Oo]ption |[Cc]hoice |"
    r"[Aa]nswer |[Ss]tatement )?\*{0,2}\(?([A-Z])\)?(?:[).:][^.\n]{0,80}?| \([^()\n]{1,60}\))?\*{0,2}"
    r"(?: alone)? (?:is|must be|seems|looks|appears|has to be|(?P<would>would be))(?: to be)? (?:therefore |thus |"
    r"indeed |"
    r"clearly |definitely )?(?:the |my |"
    r"most likely the |the only )?(?:better |final |only |best )?"
    r"(?:correct|right|best|one(?=\W{0,3}$| (?:that )?(?:we|I|you)(?:'re| are|'m| am)? (?:want|need|looking for|"
    r"after)\b)|choice(?=\W{0,3}$)|pick(?=\W{0,3}$)|what I(?:'d| would) (?:choose|pick|"
    r"say|go with)|most (?:accurate|appropriate|likely|suitable|plausible)|answer|better(?=[.!]?\s*$|"
    r",? (?:because|since)\b))(?!\w)"
    r"(?! (?:if|only|when|for|in|to(?! me\b)|under|on|according)\b)(?!,? (?:but|until|yet|though|except|at first|"
    r"at a glance|on the surface|unless|before)\b)"
)
_DESCRIBES = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:[Oo]ption |[Cc]hoice )\(?([A-Z])\)?(?: \([^()]{1,60}\))? (?:best|"
    r"most accurately|correctly|accurately) "
    r"(?:describes|answers|explains|matches|fits|states|captures|reflects|identifies|names|expresses|represents|gives|defines|"
    r"summari[sz]es)\b(?![^.\n]*\b(?:whereas|while|but)\b)[^.\n]{0,80}"
)
_ONLY_ONE = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:[Oo]nly (?:option |choice )?\(?(?P<first>[A-Z])\)? (?:is|was|has|"
    r"(?!fails|seems|appears|looks|sounds|contradicts|comes|is)[a-z]{3,}s) "
    r"(?!wrong|incorrect|false|not|un|in[a-z]|n't|possible|left|close|to)[^.,;\n]{1,60}|"
    r"(?:[Oo]ption |[Cc]hoice )?\(?(?P<second>[A-Z])\)? is the only one (?:that|which|by|of|from|in|with)\b"
    r"(?![^.\n]*(?:\b(?:not|wrong|false|incorrect)\b|n't\b))[^.,;\n]{1,60})(?=[.!]|$)",
    re.MULTILINE,
)
_FITS = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:(?:[Ss]o|[Tt]hus|[Hh]ence),? )?(?:[Oo]nly |[Oo]ption |"
    r"[Cc]hoice )?\(?([A-Z])\)? "
    r"(?:fits|matches|works|is the only (?:one|option|choice|answer)(?: that| which)? (?:fits|works|matches))"
    r"(?: best| perfectly| well)?(?=[.!]?\s*$)",
    re.MULTILINE,
)
# What only the last sentence of a text says: "Option B matches this result.", "C remains.", "B makes the most sense."
_FITS_LAST = re.compile(
    r"(?:(?<=^)|(?<=[.!?;:\n] )|(?<=\n))(?:(?:[Ss]o|[Tt]hus|[Hh]ence|[Tt]herefore),? )?(?:[Oo]nly |[Oo]ption |"
    r"[Cc]hoice |[Aa]nswer |[Ss]tatement )?\(?(?P<letter>[A-Z])\)?(?: \([^()\n]{1,60}\)|, [^,.\n]{1,40},)?"
    r"(?P<claim> (?:(?:fits|matches|satisfies|meets|fulfil?ls|agrees with|corresponds to|aligns with|"
    r"is consistent with|"
    r"reflects|answers) (?:(?:exactly |precisely |best )?(?:this|the|that|these|our|all|both|every|what|with)\b)"
    r"[^.,;?!\n]{0,80}|remains|is left(?: over)?|"
    r"is (?:all that|what)(?:'s| is)? (?:left|remains)|is (?:best |clearly |directly )?supported by the \w+|"
    r"(?:best|most accurately|correctly|accurately|most closely|perfectly) [a-z]+s\b[^.,;?!\n]{0,80}|"
    r"(?:applies|holds|wins)(?: here| true| best)?|makes (?:the most |the best |perfect |good |"
    r"complete )?sense(?: here)?|"
    r"stands out as the (?:correct|right|best) \w+|is (?:true|valid|what the \w+ \w+|the (?:only )?(?:valid |"
    r"viable |logical |"
    r"reasonable |sensible |possible |plausible |remaining )?(?:winner|option|possibility|choice|answer|candidate|one)"
    r"(?: (?:that|which|left|remaining|consistent|involving)\b[^.;?!\n]{0,60})?)))[.!]?\s*$"
)
# "The only valid option is B.", "The choice that best answers the question is B."
_IS_THE = re.compile(
    r"(?:(?<=^)|(?<=[.!?;:\n] )|(?<=\n))(?:(?:[Ss]o|[Tt]hus|[Hh]ence|"
    r"[Tt]herefore),? )?[Tt]he (?P<claim>(?:[a-z]+ ){0,3}"
    r"(?:option|choice|answer|description|statement|candidate|explanation|match|fit|one)(?: (?:that|"
    r"which) [^.,;:?\n]{1,60}?)?)"
    r" is (?:therefore |thus |then |clearly )?(?:option |choice )?\(?(?P<letter>[A-Z])\)?[.!]?\s*$"
)
_SPOILED = re.compile(
    r"\b(?:not|only in|partly|partially|almost|nearly|wrong|incorrect|false|except|some|if|but|or|better|less|"
    r"than|definition "
    r"of|description of|worst|least|second|next|other|first|last|third|fourth|earlier|previous|rejected|"
    r"eliminated|excluded|"
    r"unlikely|tempting|popular|common|user|student|his|her|their|bad|poor|would|might|could|first glance)\b|n't\b",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"\bI(?:'ve| have) (?:selected|chosen|picked|gone with|gone for)\b")
_NUMBERED = re.compile(r"\s*(?:(?:[Qq]uestion |[Qq])?\d{1,3}[).:]|#\d{1,3})\s+\(?([A-Z])\)?[.)]?\s*")  # "1) B"
_SAME_CLAIM = re.compile(
    r"(?<![\w'])\(?([A-Z])\)?(?: \([^()\n]{1,60}\))? (?:also |both )?(?:fits|matches|satisfies|meets|fulfil?ls|agrees|"
    r"corresponds|aligns|reflects|answers|remains|works|applies|holds|makes|is (?:also )?true|"
    r"is (?:also )?(?:correct|right|consistent|left|possible))\b"
)
# The clause or sign that a text ends in: ", which matches option C.", "→ A"
_LAST_CLAUSE = re.compile(
    r"(?:,\s(?:which|that|and (?:this|that)|this)(?: \w+ly)? (?:is|matches|corresponds to|aligns with|agrees with|"
    r"points to|"
    r"is (?:listed|given) (?:as|in)|gives(?: us)?|leads(?: us)? to)|,\s(?:matching|corresponding to|i\.e\.,?|"
    r"giving(?: us)?|"
    r"leaving(?: us with)?|pointing to|consistent with))(?: the)? (?:option|choice|answer|"
    r"letter) \(?(?P<letter>[A-Z])\)?"
    r"[*.!]{0,4}\s*$|"
    r"(?<![A-Z])(?<![A-Z] )(?<![a-z\d]\))\s?(?:→|⇒|⟹|➜|->|=>)\s?[*_]{0,2}(?:[Oo]ption |[Cc]hoice |[Aa]nswer )?\(?"
    r"(?P<sign>[A-Z])\)?[*_.!]{0,4}\s*$|"
    r"(?<=others )(?:do not|don't|are not|aren't|did not|didn't|cannot|can't|have no)\b[^.;?]{0,60}[;,.] (?:but |"
    r"only )?(?:option |"
    r"choice )?\(?(?P<alone>[A-Z])\)? (?:does|is|did|can|has)[.!]?\s*$"
)
_LAST_NEGATION = re.compile(r"\b(?:not|neither|nor|never|if|whether|might|may|could|would)\b|n't\b|\?", re.IGNORECASE)
_CONTRASTED = re.compile(
    r"(?<=[.!] )(?:(?:It|This|That) (?:differs|is (?:different|distinct)) from|(?:In|By) contrast,|Unlike)"
    r"(?![^.!?]*\b(?:answer|correct|right|option|choice|so|therefore)\b)[^.!?\n]{1,200}[.!]\s*$"
)
_ODD_ONE = re.compile(
    r"\b(?:odd one out|[Tt]he (?:only )?exception) is (?:option |choice )?\(?([A-Z])\b\)?(?=[.,:;]|\s*$)|"
    r"(?<=[;.] )(?:[Oo]ption |[Cc]hoice )?\(?(?P<alone>[A-Z])\)? is the (?:only )?exception(?=[.]?\s*$)|"
    r"(?<![\w'])(?:[Oo]ption |[Cc]hoice )?\(?(?P<odd>[A-Z])\)? is the odd one out\b"
)
_LETTER_TICK = re.compile(
    r"^[ \t>*-]{0,6}\(?(?P<letter>[A-Z])\)?[).:]?\*{0,2}(?![\w'])[^\n✅✔✓❌✗✘]{0,100}?(?:(?P<tick>[✅✔✓])|[❌✗✘])"
    r"\ufe0f?[^\n✅✔✓❌✗✘]{0,200}$",
    re.MULTILINE,
)
_IN_PARENTHESES = re.compile(r"(?<![\w'])([A-Z]) \((yes|no|true|false|right|wrong)\)(?=[,;.]|\s*$)")
_JUDGED = re.compile(
    r"(?:^|(?<=[.;,] )|(?<=\n))[ \t*-]{0,6}(?:option |"
    r"choice )?\(?([A-Z])\)?[).:]?\*{0,2}(?:(?<=[).:])[^\n.;,:]{0,60}?(?=:|"
    r" -))?(?:[:—=]| -| is)? {0,2}(yes|no|right|wrong|"
    r"correct|incorrect|true|false)\b[.;,!]?(?=\s|$)",
    re.IGNORECASE,
)
_ORDINAL_CORRECT = re.compile(
    r"\b[Tt]he (?:(?P<place>first|second|third|fourth|fifth|last)|(?:only )?(?:remaining|other)) (?:option|choice|"
    r"one|answer|"
    r"statement)(?:,? \(?(?P<letter>[A-Z])\)?,?)? (?:is|must be|has to be) (?:therefore |thus |clearly )?(?:the )?"
    r"(?:correct|right|best|answer)\b(?: one| option| choice| answer)?"
)
_PLACES = ("first", "second", "third", "fourth", "fifth")
_LISTED_CORRECT = re.compile(r"^[ \t*-]{0,6}\(?([A-Z])[).:][^\n:]{0,80}: {1,2}\*{0,2}(?:correct|right)\b", re.MULTILINE)
_CALLED_CORRECT_CHINESE = re.compile(
    r"(?:选项|option)?\s?(?<![A-Za-z])([A-Z])\s?(?:选项|option)?\s?(?:是|为)?(?:正确|对)(?:的|答案|选项|(?=[^\w]|$))"
)


def with_called_correct(response: str, letters: str, choices: Sequence[str] | None = None) -> str:
    """The text with "B is correct" written as "the answer is B", which `extract` looks for."""
    if choices is not None:
        response = _without_the_others(response, choices)
    response = _FITS.sub(r"the answer is \1.", response)
    response = _with_last_clause(_CONTRASTED.sub("", response), letters)
    if "odd one out" in response or "exception" in response:
        response = _ODD_ONE.sub(lambda match: f"the answer is {match[1] or match['alone'] or match['odd']}.", response)
    if "✅" in response or "✔" in response or "✓" in response:
        response = _with_ticked_letter(response)
    response = _IN_PARENTHESES.sub(r"\1: \2", response)
    response = _ONLY_ONE.sub(lambda match: f"the answer is {match['first'] or match['second']}", response)
    judged = _JUDGED.findall(response)
    accepted = [letter for letter, word in judged if word.lower() in ("yes", "right", "correct", "true")]
    if len(judged) > 1 and len(accepted) == 1 and len({letter for letter, _ in judged}) == len(judged):
        response = f"{_JUDGED.sub('', response)}\nAnswer: {accepted[0]}"  # "A: no. B: yes. C: no."
    if "正确" in response or "对" in response:
        response = _CALLED_CORRECT_CHINESE.sub(r"the answer is \1.", response)
    response = _LISTED_CORRECT.sub(r"the answer is \1.", response)
    response = _ORDINAL_CORRECT.sub(_ordinal, response)
    response = _DESCRIBES.sub(r"the answer is \1.", response)
    return _CALLED_CORRECT.sub(lambda match: _called_correct(match, letters), response)


def _without_the_others(response: str, choices: Sequence[str]) -> str:
    """A text without a last sentence about all choices but the one that the sentence before it names."""
    head, last = _last_two_sentences(response)
    if not head or len(choices) < _FEWEST_OTHERS or _CONCLUDING.search(last):
        return response
    folded = last.casefold()
    wordings = [normalised(choice) for choice in choices]
    named = [len(wording) > 3 and wording in folded for wording in wordings]
    if named.count(False) != 1 or len(wordings[named.index(False)]) <= 3:
        return response
    return head if wordings[named.index(False)] in SENTENCE_END.split(head)[-1].casefold() else response


def _last_two_sentences(response: str) -> tuple[str, str]:
    """What stands before the last sentence of a text, and the last sentence; the first is empty if there is "
    "only one."""
    tail = response.rstrip()[-_LONGEST_TAIL:]
    ends = [match for match in SENTENCE_END.finditer(tail) if match.end() < len(tail)]
    if not ends:
        return "", ""
    return response.rstrip()[: len(response.rstrip()) - len(tail) + ends[-1].start()], tail[ends[-1].end() :]


def _with_last_clause(response: str, letters: str) -> str:
    """A text that ends in "Option B matches this.", ", which matches option B." or "→ B" with "the answer is B"."""
    if "I've " in response or "I have " in response:
        response = _CHOSEN.sub("I choose", response)
    if (numbered := _NUMBERED.fullmatch(response)) and numbered[1] in letters:
        return numbered[1]
    tail = response[-_LONGEST_TAIL:]
    if last := _FITS_LAST.search(tail):
        same = set(_SAME_CLAIM.findall(tail)) | {last["letter"]}
        if last["letter"] in letters and len(same) == 1 and not _SPOILED.search(last["claim"]):
            return f"{response[: len(response) - len(tail) + last.start()]}the answer is {last['letter']}."
    elif last := _IS_THE.search(tail):
        if last["letter"] in letters and not _SPOILED.search(last["claim"]):
            return f"{response[: len(response) - len(tail) + last.start()]}the answer is {last['letter']}."
    elif last := _LAST_CLAUSE.search(tail):
        letter = last["letter"] or last["sign"] or last["alone"]
        sentence = SENTENCE_END.split(tail[: last.start()])[-1]
        if letter in letters and not _LAST_NEGATION.search(sentence[-80:]):
            return f"{response[: len(response) - len(tail) + last.start()]}. So the answer is {letter}."
    return response


def _ordinal(match: re.Match[str]) -> str:
    """The option that is called right by its place, its letter, or both; nothing if they disagree."""
    place, letter = match["place"], match["letter"]
    if letter is None:
        return f"the answer is the {place} option." if place else match.group()
    if place in _PLACES and letter != "ABCDE"[_PLACES.index(place)]:
        return match.group()
    return f"the answer is {letter}."


def _with_ticked_letter(response: str) -> str:
    """A list of letters with ticks, crosses and remarks as the one that is ticked."""
    lines = list(_LETTER_TICK.finditer(response))
    ticked = [line["letter"] for line in lines if line["tick"]]
    if len(lines) < 2 or len(ticked) != 1 or len({line["letter"] for line in lines}) != len(lines):
        return response
    return f"{_LETTER_TICK.sub('', response)}\nAnswer: {ticked[0]}"


def _called_correct(match: re.Match[str], letters: str) -> str:
    if match[1] not in letters:
        return match.group()  # "Statement I is right"
    return f"the answer {'would be' if match['would'] else 'is'} {match[1]}."
