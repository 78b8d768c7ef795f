"""What a sentence does with an answer: states it, denies it, supposes it, or mentions it in passing.

A text without a marker is read by its last sentence that states something. Not read are what is said to the user, what
would be the case otherwise, what somebody else says, and remarks after the answer. Within a sentence, "not X but Y"
and "..., so Y" state Y.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CHAT = re.compile(
    r"\W{0,3}(?:let me know|I hope|hope (?:this|that|it)|feel free|(?:I'm|I am) happy|thank|"
    r"if you (?:have|need|want|would)|if (?:\w+ ){1,2}(?:keeps? (?:up|going|on|this|that)|continues?)\b|"
    r"(?:please )?(?:note|remember|keep in mind|bear in mind)\b|would you like|do you (?:want|need|have)|shall I|"
    r"please|is there anything|have a|good luck|希望|如果你|如有|"
    r"(?:which|this|that) (?:is|was) (?:what|as|exactly what|"
    r"our|the (?:desired|"
    r"required))\b|(?:this|that)(?:'s| is) (?:the|our|my) (?:number|answer|result|total|value|"
    r"amount)\b[^\d]{0,60}$|as (?:desired|required|wanted|claimed|requested|was to be shown)|(?:and )?we(?:'re|"
    r" are) done|"
    r"this completes|(?:this|that|it) follows (?:since|because|from|as)|(?:this|that)(?:'s| is) (?:because|since|"
    r"due to|simply because)|(?:the )?reason(?: is|:)|(?:you|we|I) (?:can |could )?(?:check|verify|"
    r"double[- ]check) (?:this|that|it)\b|"
    r"(?:this|that) is (?:my|the|our) (?:final )?(?:answer|result)\W*$|final answer\W*$|feel free|don't hesitate|"
    r"any questions)",
    re.IGNORECASE,
)
_INERT = re.compile(
    r"\W{0,3}(?:[^\W\d]+\W{1,2}){0,6}[^\W\d]*!+\W{0,3}$|\W{0,3}(?:done|q\.?e\.?d|easy|simple|great|good|"
    r"nice)\b\W{0,3}$",
    re.IGNORECASE,
)  # "Nice and simple!"
_ANSWER_WORD = re.compile(r"\b(?:[A-Z]|(?i:true|false|yes|no|right|correct|wrong|incorrect))\b")
_ANSWER_LIKE = re.compile(r"\d|\b(?:[A-Z]|true|false|yes|no)\b")
_SHORT_LINE = 100
_UNFINISHED = re.compile(
    r"(?:[,;:(=+*/-]|\b(?:and|then|so|the|a|an|of|to|s?he|they|we|I|it|is|are|was|that|which|with|for|from|in|by|or|"
    r"but|"
    r"because|if|as|her|his|their|our|not))\s*$",
    re.IGNORECASE,
)
_REMARKS = re.compile(
    r"\W{0,6}(?:(?:some|a few|two|three|further|additional|final|side|other) )?"
    r"(?:(?:remarks?|notes?|comments?|observations?|caveats?|P\.?S\.?|side note|for comparison|(?:sanity |quick |"
    r"double[- ])?checks?(?:ing)?|"
    r"verification|verify|proof|explanation|reasoning|justification)\W{0,3}(?::|$)|"
    r"(?:to|let's|let us|let me|we can|we could|you can|as a)(?: \w+ly)? (?:double[- ]check|check|verify|confirm|"
    r"sanity check)\b)",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"\b(?:would(?:n't)?|wouldn't)\b|\b(?:it|that|there|he|she|they|this|one)'d\b|\bfor comparison\b|"
    r"\b(?:book|student|friend|brother|sister|key|teacher|calculator|websites?|people|textbook|colleague|classmate)s? "
    r"(?:says?|said|claims?|claimed|thinks?|thought|believes?|answered|wrote)\b|\b(?:was|is|were) not asked\b|"
    r"\bcommon mistake\b|^\W{0,3}(?:by the way|incidentally|P\.?S\.?|(?:sanity )?check:|verification:)(?!\w)",
    re.IGNORECASE,
)
_OTHERWISE_CLAUSE = re.compile(r"[,;] (?![^,;]{0,20}\bbut\b)[^,;.]{0,120}\b(?:would|wouldn't)\b[^,;.]{0,120}\W{0,3}$")
_CONDITION = re.compile(
    r"\W{0,3}(?:if|had|were|without|with|counting|unless|otherwise|suppose|should|but)\b",
    re.IGNORECASE,
)
_STANCE = re.compile(
    r"\b(?:I|we|you)(?: would|'d)\b|^\W{0,3}(?:that|it|this)(?:'d| would) be [^\s,.]{1,20}\W*$|\b(?:answer|result|"
    r"total|so|thus|therefore|hence|which|choice|option)\b[^.]{0,40}"
    r"\bwould\b",
    re.IGNORECASE,
)
# The only sentence of a text; a case other than that of the question would be named.
_SUPPOSED = re.compile(
    r"\W{0,3}(?:(?:so|then|well|thus|therefore|hence),? )?(?:it|that|this|there|he|she|they|you|we|I|[A-Z][a-z]+)"
    r"(?:'d| would)(?: then| therefore| thus| only| still)? (?:be|have|need|get|take|leave|make|cost|pay|earn|save|"
    r"receive|owe|require|give|come to|amount to)\b",
    re.IGNORECASE,
)
_SUPPOSED_OTHERWISE = re.compile(
    r"\b(?:if|had|were|unless|with|without|otherwise|but|instead|not|never|wrong|incorrect|mistake|guess|almost|nearly|"
    r"counting|only if|provided|assuming|impossible|absurd|surpris\w+|odd|strange|also|another|too)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(
    r"(?<= [A-Z]\.)\s+(?=(?:On|So|The|It|But|Then|Now|After|Not|That|This|However|Second|Third|Finally|Hence|Thus|"
    r"Therefore|First|Next|Final|Answer|My|I)\b)|"
    r"(?<=[.!?])(?<![^:s] "
    r"[A-Z]\.)(?<!^[A-Z]\.)(?<!Rs\.)(?<!approx\.)(?<!\bsq\.)(?<!\bp\.)(?<!\bpp\.)(?<!\b[FR]ef\.)(?<!\bFig\.)(?<!\bEq\.)(?<!\bMr\.)(?<!\bDr\.)(?<!\bNo\.)(?<!\bcf\.)(?<!\bv\.)(?<!U\.S\.)(?<!vs\.)(?<!i\.e\.)(?<!e\.g\.)"
    r"[*_\"')\]]{0,4}\s+|\s*\n\s*"
)
CONCLUSION = re.compile(
    r"\W{0,6}(?:(?:so|thus|therefore|hence|in conclusion|in summary|in total|altogether|in all|overall|"
    r"finally|as a result|"
    r"consequently|accordingly|ultimately|to conclude|this means|that means|it follows|we conclude|we get|"
    r"this gives)\b|"
    r"因此|所以|综上|故|那么|总共|一共|共)",
    re.IGNORECASE,
)
"""How a sentence begins that states a result."""

DENIAL_AFTER = re.compile(
    r"[^\w.!?]{0,4}(?:(?:is|was|are|would be|seems?|looks?|can|must be|will be|sounds)? ?(?:also |clearly |"
    r"obviously |definitely )?"
    r"(?:incorrect|wrong|false|(?:not|n't|never|cannot)(?: be)? (?:the |quite |a )?"
    r"(?:correct|right|true|answer|best|valid|possible|it|final)|impossible|ruled out|excluded|out of the question)\b"
    r"|(?:only )?(?:if|unless|provided|assuming|except(?: that)? (?:it|this|that))\b)"
    r"|[^\w.!?:,;]{0,4}(?:(?:is|was|seems|looks) (?:far |much |a bit |clearly )?too (?:low|high|small|large|big|much|"
    r"many|few)|"
    r"(?:is|was) (?:only )?(?:an?|the) (?:lower|upper) (?:bound|limit)|"
    r"(?:is|was|looks?|seems?) (?:\w+ ){1,4}but (?:wrong|incorrect|not|false)|(?:is|was) what (?:you|one|I|they|we|"
    r"he|she|most|many|"
    r"some|people|a|the)(?: \w+)?(?:'d| would| gets?| got| says?| said| claims?)|(?:is|was) the (?:wrong|"
    r"incorrect) \w+|"
    r"(?:is|was) (?:just |only |merely )?(?:an? )?(?:example|guess|estimate|placeholder|typo)|(?:is|was) (?:the|"
    r"an?) (?:\w+ )?(?:trap|distractor|mistake|error|"
    r"exception|decoy)|"
    r"(?:is|are) (?:only )?(?:possible|a possibility|one (?:option|possibility|candidate)|a candidate|plausible)|"
    r"(?:\()?I (?:don't|do not) (?:believe|trust|think)|"
    r"(?:must|has to|should|can|needs to) be (?:discarded|rejected|excluded|ruled out|ignored|eliminated|thrown)|"
    r"fails\b|(?:is|was) (?:irrelevant|discarded|extraneous|rejected|invalid|mistaken|inadmissible)|"
    r"leads? to a contradiction|"
    r"does(?:n't| not) (?:work|fit|hold|match|satisfy|count)|isn't|wasn't|can't be|cannot be|aren't|won't be|"
    r"(?:is|was|are) (?:certainly |definitely )?(?:not|never))\b",
    re.IGNORECASE,
)
"""After an answer, what denies it or makes it a condition: "C is incorrect", "C if x > 0"."""

NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|doubt|cannot|no longer|hardly|people (?:think|say)|impossible|wrong|"
    r"incorrect)\b|n't\b|不|没|非",
    re.IGNORECASE,
)
"""What makes a clause say the opposite."""

CONCLUDED = re.compile(
    r"\b(?:so|therefore|thus|hence|which (?:means(?: that)?|is(?! (?:only |about |exactly )?[\d.]+ ?(?:%|"
    r"percent) of)(?! \S+ (?:\w+ )?(?:more|less|fewer|times|higher|"
    r"lower)\b)(?! (?:already|in (?:its )?(?:lowest|simplest|reduced)|our|what|why|as (?:desired|required))\b)|"
    r"are|equals|makes|leaves|gives|(?:simplifies|reduces|evaluates|works out|rounds(?: up| down)?) to)|"
    r"(?<!\()(?<![a-z] )that is|that is(?=,)|i\.e\.|"
    r"or rather|in other words|as an? (?:decimal|fraction|percentage)(?: number)?|(?:altogether|"
    r"in total)(?=[,:]? (?:\w{1,12} ){0,4}[$€]?\d))(?!\w),?|"
    r",?\s(?:and |but )?since [^,.]{1,40},(?=\s)|"
    r",\s(?:and )?(?:leaving|giving|making|totall?ing|yielding|resulting in|meaning(?: that)?|"
    r"for an? (?:\w+ ){1,3}of(?= [$€£]?\d))(?!\w)|"
    r",? or,?(?= \S{1,30} (?:in (?:its )?(?:simplest|lowest|reduced|simplified)|simplified|when simplified|"
    r"after simplif)\w*)|所以|因此|[⇒→∴]|=>|->",
    re.IGNORECASE,
)
"""Within a sentence, what a result follows."""

_NOT_BUT_ANY = re.compile(
    r"\b(?:neither|not|none of)\b(?! only)[^.;:]{1,100}?(?:,? but(?: rather)?\b|[,;] (?:it(?:'s| is)|rather)\b)|"
    r"^\W{0,3}(?:neither|not)\b[^.:]{1,120}?(?::|\s[—–-])(?=\s)",
    re.IGNORECASE,
)


HEDGE = re.compile(
    r"\b(?:if|could be|might|(?-i:may) (?:be|have)|maybe|perhaps|possibly|doubt|whether|unless|suppose|supposing|"
    r"imagine|cannot be determined|"
    r"can't be determined|unclear|not sure|unsure|unlikely|improbable|(?:hard|difficult) to (?:believe|say|tell|see)|"
    r"don't know|do not know|answer is not (?:given|stated|known)|"
    r"enough information|(?:can't|cannot) be right|only part of the answer|one possib\w{1,6}|but the question (?:is|"
    r"asks|was)|"
    r"(?:assume|assuming|try|consider|(?:we|I|let's) (?:start|begin) with)|"
    r"which (?:is|was) (?:wrong|incorrect|false|not|a mistake|an error)|would have been|at first|initially|"
    r"no way|in an ideal world|ideally|in theory|theoretically|on paper|officially|suspect|(?:can't|"
    r"cannot) (?:be sure|prove)|it remains to|(?:we|I) (?:now |then |next )?(?:check|verify|test|consider|try)|"
    r"(?:hope[sd]?|expect(?:s|ed)?|"
    r"supposed|tried|tries|fail(?:s|ed)?) to|"
    r"(?:goal|target|budget|quota)(?: is| was| of|:)|might think|(?:could|should|might|may|ought to) have been|"
    r"last time|for now|an example (?:is|would)|one such|(?:used to|originally|first|previously|almost|nearly|"
    r"would have|"
    r"'d have) (?:think|thought|believed?|say|said|guess(?:ed)?|"
    r"wrote|chose|picked|chosen|written)|(?:answer|it|that|this) depends|"
    r"[;,] (?:but |whereas |while |and )?the question (?:asks|asked|was))\b|\blet (?:\$|\\\()?[a-z]\$? ?(?:=|be\b)|"
    r"\?\W{0,3}$|"
    # What a sentence begins with that gives a premise or a task.
    r"^\W{0,4}(?:according to (?!the\b|this\b|our\b|my\b)|(?:when|for|where) [a-z] (?:(?==)|is)|note|notice|"
    r"observe|recall|remember|keep in mind|ignore|check|testing|see|e\.g(?=\.)|say(?=,)|for (?:example|"
    r"instance)|let's (?:say|guess|"
    r"assume|try|take|check)|take|(?:we|I) (?:know|are given|were given|want|need to (?:find|show|prove|know)|"
    r"are told|are asked|started with)|it is given|"
    r"the (?:problem|question) (?:says|states|gives|tells))\b",
    re.IGNORECASE,
)
"""What makes a sentence no statement of a result."""

_LEAD_IN = re.compile(
    r"(?:\W{0,4}\b(?:(?:so|thus|therefore|hence|well|ok(?:ay)?|sure)\b,?|(?:the|my|this|your|our)\b|"
    r"(?:final|correct|right|best|most likely|numerical|numeric)\b|(?:would|should|must|will|has to) be\b|"
    r"(?:I(?:'d| would)? (?:think|believe|guess|say|choose|pick|am confident|am sure|go with|select)|"
    r"probably|definitely|"
    r"certainly|absolutely|clearly|obviously|likely|most likely|simply|indeed|actually|surely)\b(?: that\b)?,?|"
    r"(?:answer|option|choice|statement|letter|result|solution|value|total|number)\b(?:\s(?:is|should be|"
    r"must be|would be|"
    r"equals)\b)?|(?:it|that|this|which)(?: is| was|'s| must be| should be| would be)\b|(?:是|为|选项|选择|选|第)|is\b)"
    r"[\s:]{0,4}){1,8}(?<![A-Za-z](?=[A-Za-z\d]))",
    re.IGNORECASE,
)


def strip_lead_in(words: str) -> str:
    """Text without a lead-in such as "the final answer is"."""
    lead = _LEAD_IN.match(words)
    return (words[lead.end() :].lstrip() if lead else words) or words


def without_asides(lines: list[str]) -> list[str]:
    """Lines without what follows the answer: remarks, what would be the case otherwise, what is said to the user."""
    for number, line in enumerate(lines[1:], start=1):
        if _REMARKS.match(line):
            lines = lines[:number]
            break
    lines = list(lines)
    clause = _OTHERWISE_CLAUSE.search(lines[-1]) if lines else None
    if clause and not is_stance(clause.group()):
        stated = lines[-1][: clause.start()]
        if not _CONDITION.match(SENTENCE_END.split(stated)[-1]):
            lines[-1] = stated + "."
    while lines:
        starts = [0, *(match.end() for match in SENTENCE_END.finditer(lines[-1]))]
        start = next((start for start in reversed(starts) if lines[-1][start:].strip()), 0)
        sentence = lines[-1][start:]
        if not (_CHAT.match(sentence) or is_aside(sentence)) or (start == 0 and len(lines) == 1):
            return lines
        lines[-1] = lines[-1][:start].rstrip()
        if not lines[-1]:
            lines.pop()
    return lines


def is_aside(sentence: str) -> bool:
    """Whether a sentence says what would be the case otherwise, what was not asked, or nothing ("Nice!")."""
    *_, sentence = CONCLUDED.split(sentence)  # "she would make 24, but she does, so she makes 18"
    contrasted = re.split(r"\bbut\b", sentence)[-1]
    sentence = contrasted if _ANSWER_LIKE.search(contrasted) else sentence
    if ";" in sentence:
        return all(map(is_aside, sentence.split(";")))
    if _INERT.match(sentence) and not _ANSWER_WORD.search(sentence) and not NEGATION.search(sentence):
        return True
    return bool(_OTHERWISE.search(sentence)) and not is_stance(sentence)


def is_stance(sentence: str) -> bool:
    """Whether "would" states an answer: "I would say 18", "the answer would be 18"."""
    return bool(_STANCE.search(sentence))


def is_supposed_case(sentence: str) -> bool:
    """Whether "would" states the result of the case that was asked about: "She'd have 9 of them"."""
    return bool(_SUPPOSED.match(sentence)) and not _SUPPOSED_OTHERWISE.search(sentence)


def sentences_from_the_end(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """The last sentences, without what is said to the user; the second value is whether it is the last one."""
    sentences = [part for line in lines[-4:] for part in SENTENCE_END.split(line) if re.search(r"\w", part)]
    # A short response is hardly ever cut off, but "x = 204, and then" is.
    short = len(lines) == 1 and len(lines[0]) < _SHORT_LINE and not _UNFINISHED.search(lines[0])
    for number, sentence in enumerate(reversed(sentences[-4:])):
        if (number or short) or re.search(
            r"[.!\])}$*=\d]\W*$|=\s?\S*[^\s,;:](?:\s[^\W\d]{1,15}){0,3}$|:\s?\(?[A-Z]\)?$|"
            r":\s?[$€£]?\d[\d,.]*(?:\s[^\W\d]{3,15}){0,2}$",
            sentence,
        ):  # an unfinished sentence states nothing
            yield sentence, number == 0
        else:
            return


def after_denials(sentence: str) -> str:
    """What a sentence says instead of what it denies: "not B but C", "neither 2 nor 3: it is 5"."""
    denials = list(_NOT_BUT_ANY.finditer(sentence))
    instead = sentence[denials[-1].end() :] if denials else ""
    return instead if re.search(r"\w", instead) else sentence
