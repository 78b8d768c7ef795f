"""Statements about choices, written as the sentence that `extract` looks for: "B is correct" as "the answer is B"."""

from __future__ import annotations

import re

# "Option B is correct" means the same as "the answer is B".
_CALLED_CORRECT = re.compile(
    r"(?<![\w-])(?<![Ii]f )(?<!whether )(?<!only )(?<!option )(?<!choice )(?<!, and )(?<! or )(?:[Oo]ption |"
    r"[Cc]hoice |"
    r"[Aa]nswer |[Ss]tatement )?\*{0,2}\(?([A-Z])\)?(?:[).:][^.\n]{0,80}?| \([^()\n]{1,60}\))?\*{0,2}"
    r"(?: alone)? (?:is|must be|seems|looks|appears|has to be|(?P<would>would be))(?: to be)? (?:therefore |thus |"
    r"indeed |"
    r"clearly |definitely )?(?:the |my |"
    r"most likely the |the only )?(?:better |final |only |best )?"
    r"(?:correct|right|best|one(?=\W{0,3}$)|choice(?=\W{0,3}$)|pick(?=\W{0,3}$)|what I(?:'d| would) (?:choose|pick|"
    r"say|go with)|most (?:accurate|appropriate|likely|suitable|plausible)|answer)\b"
    r"(?! (?:if|only|when|for|in|to|under|on|according)\b)(?!,? (?:but|until|yet|though|except|at first|"
    r"at a glance|on the surface|unless|before)\b)"
)
_DESCRIBES = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:[Oo]ption |[Cc]hoice )\(?([A-Z])\)?(?: \([^()]{1,60}\))? (?:best|"
    r"most accurately|correctly|accurately) "
    r"(?:describes|answers|explains|matches|fits|states|captures|reflects)\b[^.\n]{0,80}"
)
_ONLY_ONE = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:[Oo]nly (?:option |choice )?\(?(?P<first>[A-Z])\)? (?:is|was|has|does|"
    r"meets|satisfies|answers|describes) "
    r"(?!wrong|incorrect|false|not|un|in[a-z]|n't|possible|left)[^.,;\n]{1,60}|"
    r"\(?(?P<second>[A-Z])\)? is the only one (?:that|which|by|of|from|in|with)\b"
    r"(?![^.\n]*\b(?:not|n't|wrong|false|incorrect)\b)[^.,;\n]{1,60})(?=[.!]|$)",
    re.MULTILINE,
)
_FITS = re.compile(
    r"(?:(?<=^)|(?<=[.!?;\n] )|(?<=\n))(?:(?:[Ss]o|[Tt]hus|[Hh]ence),? )?(?:[Oo]nly |[Oo]ption |"
    r"[Cc]hoice )?\(?([A-Z])\)? "
    r"(?:fits|matches|works|is the only (?:one|option|choice|answer)(?: that| which)? (?:fits|works|matches))"
    r"(?: best| perfectly| well)?(?=[.!]?\s*$)",
    re.MULTILINE,
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
    r"(?:^|(?<=[.;,] )|(?<=\n))[ \t*-]{0,6}\(?([A-Z])\)?[).:]?\*{0,2}(?:(?<=[).:])[^\n.;,:]{0,60}?(?=:|"
    r" -))?(?:[:—=]| -| is)? {0,2}(yes|no|right|wrong|"
    r"correct|incorrect|true|false)\b[.;,!]?(?=\s|$)",
    re.IGNORECASE,
)
_ORDINAL_CORRECT = re.compile(
    r"\b[Tt]he (first|second|third|fourth|fifth|last) (?:option|choice|one|answer|statement)"
    r" (?:is|must be|has to be) (?:the )?(?:correct|right|best|answer)\b(?: one| option| choice| answer)?"
)
_LISTED_CORRECT = re.compile(r"^[ \t*-]{0,6}\(?([A-Z])[).:][^\n:]{0,80}: {1,2}\*{0,2}(?:correct|right)\b", re.MULTILINE)
_CALLED_CORRECT_CHINESE = re.compile(
    r"(?:选项|option)?\s?(?<![A-Za-z])([A-Z])\s?(?:选项|option)?\s?(?:是|为)?(?:正确|对)(?:的|答案|选项|(?=[^\w]|$))"
)


def with_called_correct(response: str, letters: str) -> str:
    """The text with "B is correct" written as "the answer is B", which `extract` looks for."""
    response = _FITS.sub(r"the answer is \1.", response)
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
    response = _ORDINAL_CORRECT.sub(r"the answer is the \1 option.", response)
    response = _DESCRIBES.sub(r"the answer is \1.", response)
    return _CALLED_CORRECT.sub(lambda match: _called_correct(match, letters), response)


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
