"""Reads true/false and yes/no answers.

"Not true", "isn't true" and "no longer true" are false. A hedge ("partly true", "might be true") and a question are
no answers.
"""

from __future__ import annotations

import re

from opd_align.tasks.characters import strip_markup
from opd_align.tasks.extract import AMBIGUOUS, Placement
from opd_align.tasks.remarks import is_harmless
from opd_align.tasks.statements import CONCLUDED, CONCLUSION, HEDGE, SENTENCE_END, strip_lead_in
from opd_align.tasks.truth_words import OPPOSITE, TRUTH

_WORDS = "|".join(sorted(TRUTH, key=len, reverse=True))
_FIRST = re.compile(
    rf"\W{{0,4}}(?P<negated>(?:not|n't|never)\s(?:at all\s|quite\s|really\s|entirely\s|necessarily\s|always\s)?)?"
    rf"(?P<word>{_WORDS})(?![\w])(?!['’]\w)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_REPLIES = ("yes", "no", "correct", "right", "yeah", "yep", "nope")
_ALSO = re.compile(
    r"\W{0,3}(?:(?:or|and|and/or|/|,|\||nor|but|或|和)(?:,| also| maybe| possibly| perhaps| partly| then)?)"
    r"\W{0,3}(not\s)?(true|false|yes|no|真|假|是|否)(?![\w])"
    r"(?! (?:one|doubt|other|longer|matter|reason|further)\b)(?! \w+ (?:is|are|was|were|has|have)\b)",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\W{0,3}(?:$|[.,;:!()\-—]|(?:because|since|as|it|that|the|based|according|this|he|she|they|there|for|"
    r"given|in|due|"
    r"by|from|so|not|and|but|you|we|I|rather|instead)\b)",
    re.IGNORECASE,
)
# A predicate, not "a true story".
_PREDICATE = re.compile(
    r"\b(?P<word>true|false(?! that (?:the answer|it|this|that)\b)|untrue|correct|incorrect(?! to\b)|"
    r"wrong(?! to\b)|falsch|wahr|vraie?|"
    r"faux|fausse|fals[oa]|verdader[oa]|verdadeir[oa]|richtig|cierto|accurate|inaccurate|holds?|myth|misconception|"
    r"supported|unsupported|"
    r"fallacy|yes|right(?=\W*$|[:,;] )|no(?= *$))\b(?![ -]+(?!because|since|as|according|based|for|in|that|given|"
    r"and|but|from|due|to|up|when|at|by|of|or|here|so|with|per|even|although|despite|statement|claim|assertion|not|today|anymore|any)[a-z])"
    r"|(?P<chinese>(?<!不)(?:正确|错误|对|错)(?:的)?(?!\w))",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:nobody|no (?:one|part|aspect)|(?:wrong|incorrect|false) to (?:say|think|claim|believe|call|deny|"
    r"conclude)|not|nicht|pas|"
    r"no es|none of|nothing|never|no longer|hardly|neither|nor|cannot|far from|"
    r"anything but|without being|ceased to be|"
    r"stopped being|fails? to be|false that|wrong that|untrue that|incorrect that)\b|n't\b|(?:不|并非|没有)",
    re.IGNORECASE,
)
_UNCERTAIN = re.compile(
    r"\b(?:partly|partially|half|sometimes|somewhat|mostly|largely|nearly|almost|might|may|could|possibly|perhaps|"
    r"premise|assumption|(?:first|second|last) (?:part|half|sentence|clause)|parts? of|rarely|seldom|occasionally|"
    r"often|usually|legend has it|either|between|too good to be|true or false|doubt|"
    r"wish|if only|were|rings|sounds|"
    r"(?:believed|thought|said|claimed|rumou?red|reported|supposed|considered|assumed|known) to be|opposite|"
    r"contrary|converse|reverse|no (?:evidence|proof|"
    r"indication|"
    r"information|way|mention)|both|used to|was once|would|maybe|some (?:say|people|would|claim|argue|think|"
    r"believe|sense|cases|extent|ways)|less than|"
    r"(?!I|we|passage|text|article|paragraph|author|source|context|document|excerpt|sentence|evidence|research|"
    r"study|it|who|which|that|and|also|"
    r"clearly|explicitly|directly|then|to|would|this)\b\w+(?: \w+ly)? (?:says|said|claims|claimed|thinks|thought|"
    r"believes|believed|argues|argued|calls|call)|those who|"
    r"(?:nobody|no one|many|most|people|others|they|s?he|critics|skeptics|fans|teacher|friend)(?: \w+)? (?:says?|"
    r"said|believes?|thinks?|"
    r"thought|claims?|claimed|argues?))\b",
    re.IGNORECASE,
)
_OPPOSITE_TRUE = re.compile(
    r"^\W{0,3}(?:(?:no|so|in fact|actually),? )?(?:the )?(?:opposite|reverse|contrary) is (?:true|the case|"
    r"correct)\W{0,3}$",
    re.IGNORECASE,
)
_SEMICOLON = re.compile(r"; ")
_SOMEBODY = re.compile(r"\b(?:he|she|they|who|you|critics|people)(?:'s|'re| is| are| was| were)\s*$", re.IGNORECASE)
_NOT_ONLY = re.compile(r"\bnot only\b", re.IGNORECASE)
_FOR_SOME = re.compile(
    r"\bas (?:true|false) as\b|\b(?:true|false) (?:for|in) [^,;.]{1,30}[,;] (?:but )?(?:not|false|true)\b|"
    r"\b(?:true|false|yes|no) or not\b|\b(?:true|false) (?:for|in) (?:some|others|part|parts|theory|practice)\b|"
    r"\bbut (?:(?:it|this|that) )?(?:isn't|is not)(?: (?:now|today|any ?more|here|true))?\W*$",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\b(?:true or false|yes or no)\b\W?", re.IGNORECASE)
# "In short, yes", "Oh yes", "I must say no"
_LEADING = re.compile(
    r"^\W{0,3}(?:(?!hard|part|possib|rare|scarce|bare|near|most|large|supposed|alleged|seeming|reported|arguab|"
    r"conceivab|on)[a-z]+ly(?: speaking)?|in (?:reality|fact|truth|general|the end|short|a word|one word)|"
    r"as (?:it turns out|stated)|ergo|as (?:for|to) [^,]{3,80}(?=,)|in (?:answer|response|reply) to "
    r"[^,:]{3,60}(?=[,:])|to answer (?:the|your|this) question(?=[,:])|by definition|for the most part|"
    r"(?:according to|based on|per|given) the (?:passage|text|article|above|context)[^,:]{0,20}(?=[,:])|simply put|"
    r"hmm+|alas|sadly|unfortunately|long story short|in (?:brief|sum|summary|a nutshell)|all in all|after all|"
    r"overall|all things considered|on balance|"
    r"given (?:this|that|all this|the above)|"
    r"judging by [^,]{1,40}(?=,)|oh|of course|why|but|and|well|still|(?:definitely |clearly |"
    r"certainly )?a(?: clear| definite| resounding| big| hard| firm| simple)?|"
    r"I (?:must|have to) say|ok|okay|sure)[,:]? (?=(?:yes|no|true|false)\b)",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"\W{0,3}(?:let(?:'s| us| me)|I (?:can|will|would be|could)\b|I'(?:ll|d be)|here(?:'s| is| are)|to (?:its|his|"
    r"her|their|the|form|life)\b|"
    r"enough|now\b|away\b|me if|answers?\b)",
    re.IGNORECASE,
)  # "Yes, I can help you with that!", "Right, let's look at it.", "True to its name"
_IN_PART = re.compile(
    r"\W{0,3}(?:but )?(?:only |just )?(?:partly|partially|in part|to (?:some|a certain) (?:extent|degree)|"
    r"up to a point|sort of|kind of|more or "
    r"less|in a sense|in theory|on paper)\b",
    re.IGNORECASE,
)
_OPPOSED = re.compile(
    r"(?:[(,;—]|\.{3})\s?(?:that is,? |i\.e\.,? |but |or rather |rather |then |and )?(?:here |now |today |"
    r"in this case,? )?(?P<word>yes|no|true|false)\b"
    r"(?=\W*(?:$|[).]|today|now|tomorrow|otherwise|elsewhere|in (?:the|my|\d)))",
    re.IGNORECASE,
)
# Nothing but assent or dissent: "Absolutely.", "It doesn't."
# "the claim that it's false is wrong"
_EMBEDDED = re.compile(
    r"\bcall(?:ing)? (?:it|this|that) (?:true|false) (?:is|would be)\b|\b(?:claim|idea|view|belief|notion|"
    r"suggestion|assertion|opinion) that (?:it|this|that)(?:'s| is)\b",
    re.IGNORECASE,
)
_ASSENT = re.compile(
    r"\W{0,3}(?:(?:yes|indeed|well|oh),? )?(?:indeed|absolutely|certainly|definitely|sir|quite right|right you are|"
    r"so it is|a fact|factually correct|I (?:agree|concur)(?: with (?:it|this|that|the (?:statement|claim)))?|"
    r"(?:it|(?:the|this) (?:statement|claim)) (?:checks out|holds up|stands|(?:has been|can be|is) (?:confirmed|"
    r"verified))|of course|"
    r"exactly|precisely|"
    r"you bet|surely|(?:I (?:think|believe)|I(?:'d| would) say) so|most (?:definitely|certainly)|for sure|sure is|"
    r"(?:certainly|sure|absolutely|definitely|of course|indeed|surely),? (?:it|they|he|she|there|this|that|you|"
    r"one|we) (?:is|"
    r"are|was|were|does|do|did|can|has|have|will|must)|"
    r"very much so|"
    r"without (?:a|any) doubt|beyond doubt|(?:that|this|it)(?:'s| is) (?:indeed )?(?:a fact|so|the case|how it is)|"
    r"(?:it|they|he|she|there|this|that|you|one|we)(?: \w+ly)? (?:is|are|was|were|does|do|did|can|has|have|will|"
    r"must)(?: indeed)?)\W{0,3}"
)
_ASSENT = re.compile(_ASSENT.pattern, re.IGNORECASE)
_DISSENT = re.compile(
    r"\W{0,3}(?:(?:that|it|this)(?:'s| is) )?a myth\W{0,3}|\W{0,3}I (?:disagree|(?:don't|"
    r"do not) agree)(?: with (?:it|this|that|the (?:statement|claim)))?\W{0,3}|"
    r"\W{0,3}(?:I(?:'m| am) afraid not|no longer|not any ?more|I (?:don't|do not) (?:think|believe) so|"
    r"not according to the (?:passage|text|article|author)|"
    r"(?:quite )?the (?:very )?opposite|quite the (?:opposite|contrary)|on the contrary|far from it|"
    r"(?:(?:it|they|he|she|there|this|that)(?: \w+)?(?:n't| not)|not so), no)\W{0,3}|"
    r"\W{0,3}(?:no,? )?(?:it|they|he|she|there|this|that|you|one|we) (?:is|are|was|were|does|do|did|can|has|have|"
    r"will|must)(?:n't| ?not)"
    r"\W{0,3}",
    re.IGNORECASE,
)
# What the text says about the statement.
_ATTESTED = re.compile(
    r"\b(?:passage|text|article|paragraph|excerpt|source|evidence)s?(?: itself)?(?: \w+ly)? (?:(?P<yes>confirms?|"
    r"supports?|backs?(?: up)?|"
    r"agrees? with|verif(?:y|ies)|corroborates?|proves?)|(?P<no>contradicts?|refutes?|den(?:y|ies)|disproves?|"
    r"rejects?|(?:does not|doesn't) "
    r"(?:support|confirm)))(?: \w+ly)? (?:this|it|that|the (?:statement|claim|idea|assertion|premise))\b|"
    r"(?:^\W{0,3}(?:this|that|it)|\b(?:statement|claim|assertion)) (?:(?P<fits>matches|agrees with|is (?:clearly |"
    r"explicitly |directly )?(?:supported by|consistent "
    r"with|in line with|confirmed (?:by|in)|stated in|backed up by|verified by))|"
    r"(?P<clashes>contradicts|is (?:contradicted|refuted|disproved|not supported|unsupported) by|"
    r"is (?:inconsistent|at odds) with)) "
    r"(?:the|what the) (?:passage|text|article|source|facts|evidence)\b",
    re.IGNORECASE,
)
_SAYS_SO = re.compile(
    r"\b(?:passage|text|article|paragraph|excerpt|source|author|sentence|line)s?(?P<no>(?: (?:does|do)(?: not|n't)))?"
    r"(?: (?:clearly|explicitly|directly|does|do|indeed|itself|actually|also)){0,3} (?:says?|states?|confirms?|"
    r"implies) (?P<what>so|as much|exactly (?:that|this)|otherwise|the (?:very |exact )?(?:opposite|contrary))\b"
    r"|^\W{0,3}(?:so )?(?:this|that|which|it)(?:'s| is)(?P<not> not)?(?: exactly| precisely)? what the (?:passage|text|"
    r"article|author|source) (?:says|states|claims|implies)(?: \w+ly)?\W{0,3}$"
    r"|(?:^\W{0,3}(?:so )?(?:this|that|which)(?: \w+ly)?|,)(?= \w+(?:s|ing) (?:the|"
    r"this)) (?:(?P<against>contradict(?:s|ing)|refut(?:es|ing)|disprov(?:es|ing))|"
    r"(?:confirm(?:s|ing)|support(?:s|ing)|prov(?:es|ing))) (?:the|this) (?:statement|claim|assertion|premise|"
    r"idea)\W{0,3}$",
    re.IGNORECASE,
)
# "X is indeed part of Y", "There is in fact no tunnel"
_INDEED = re.compile(
    r"\b(?:is|are|was|were|do|does|did|has|have|had|can|will|must)(?P<before> not|n't)?,? "
    r"(?:(?P<indeed>indeed)|in fact|actually|really),? ?(?P<after>not|no|never)?\b|^\W{0,3}(?P<first>indeed)\b,? |"
    r"^\W{0,3}(?:it|this|that|they|there) (?P<early>indeed) (?:is|are|was|were|does|do|did|has|have)\b(?! not)",
    re.IGNORECASE,
)
_CERTAIN = re.compile(r"\b(?:part of|between|were|both)\b", re.IGNORECASE)  # "It is indeed part of it" is not hedged
_CONTRASTED = re.compile(
    r"\b(?:but|however|yet|although|though|while|whereas|despite|except|whether|if|only|unclear|believed?|myth|"
    r"misconception|false|untrue|wrong|incorrect|neither|nor|none|hardly|no longer|nothing)\b|\?",
    re.IGNORECASE,
)
_VALUE_IS_ANSWER = re.compile(
    r"\W{0,4}(?P<word>yes|no|true|false)\W{1,3}is (?:indeed |clearly |therefore )?(?:the|my) (?:(?:right|correct|"
    r"best|final|only) )*(?:answer|one|choice|reply)"
    r"\W{0,3}",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"^\W{0,3}\(?[A-Da-d12]\)[.:]? ?(?=(?:yes|no|true|false)\b)", re.IGNORECASE)  # "A) Yes"
_REPLY_FIRST = re.compile(r"\W{0,3}(?:yes|no)\b", re.IGNORECASE)
_YES_OR_NO = ("yes", "no", "yep", "nope", "yeah", "false")
# "I agree with the statement, as ...", "I disagree with the claim because ..."
_AGREEMENT = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence|yes|no|overall),? )?I (?:(?:fully |strongly |completely |would |must |"
    r"have to )*)"
    r"(?:(?P<no>disagree|(?:do not|don't|cannot|can't) agree)|agree) with (?:this|that|the|it)"
    r"(?: (?:statement|claim|assertion|proposition))?(?=[.!]?\s*$|,? (?:as|because|since|given|for)\b)",
    re.IGNORECASE,
)
# "It is, yes.", "You can't, no."
_TAG = re.compile(
    r"\b(?:is|are|was|were|can|do|does|did|has|have|had|will|must|should)(?P<not>n't| not)?, (?P<word>yes|"
    r"no)[.!\s]{0,3}$",
    re.IGNORECASE,
)
_CONCEDED = re.compile(r"\b(?:true|correct|right|accurate) (?:that|in that)\b", re.IGNORECASE)
_AS_WRITTEN = re.compile(
    r",? (?:according to|based on|as per|per|going by|judging by) (?:the|this) (?:passage|text|article|paragraph|"
    r"context|"
    r"excerpt|information)(?: (?:above|given|provided))?(?=[.!]?\s*$)",
    re.IGNORECASE,
)
_AFTER_FIRST = re.compile(
    r"\s(?:because|since|due to|as (?=it|the|they|s?he|there|this)|it's|they're|s?he's|there's)|"
    r"\s?[.,:;!(—-]|$|\s(?:it|they|he|she|there|you|we|that|one) (?:is|are|do|does|can|was|were|has|have|did|"
    r"may)(?:n't| not)?\b",
    re.IGNORECASE,
)
_DENIED_FLATLY = re.compile(
    r"\W{0,3}(?:no way|not (?:at all|so|in the least|by any means|really)|by no means|(?:absolutely|certainly|"
    r"definitely|of course|"
    r"clearly|surely|obviously|probably) not|not a chance|(?:sadly|unfortunately|actually|apparently|alas) not|"
    r"there(?:'s| is) no truth (?:to|in) (?:this|it|that|the (?:claim|statement))|never)(?=\s?[.,;:!—-]|\W*$)",
    re.IGNORECASE,
)
_CONTRADICTED = re.compile(
    r"\W{0,3}(?:you(?:'re| are) (?:right|correct)\W{1,3}(?:that )?)?(?:it|this|that|the (?:statement|claim|answer|"
    r"assertion))"
    r"(?:'s|(?P<not>isn't)| is)(?P<also>n't| not)? (?:indeed |actually )?(?P<word>true|false|correct|wrong|"
    r"incorrect|untrue)\b(?! that [^.?!]{1,200}(?:,|;) (?:but|however|yet)\b)",
    re.IGNORECASE,
)
_SO = re.compile(
    r"^\W{0,3}(?:(?:so|thus|therefore|hence|no|yes),? )?(?:this|that|it)(?: is|'s| was| isn't|"
    r" wasn't)(?: not)?(?: indeed| actually)? "
    r"(?:so|the case)[.! ]{0,3}$|"
    r"\b(?:it|this|that) is(?: not|n't)?(?: indeed| actually)? the case[.! ]{0,3}$",
    re.IGNORECASE,
)
_ENDING = re.compile(
    r"(?::|—| - |^\W{0,3}(?:because|since|as|given)\b[^,.;]{1,150}, |,? so |,? but (?=no\b|yes\b)|"
    r"\bbut\b[^.;]{1,40}, )\s?(true|false|yes|no)[.!\s]{0,3}$",
    re.IGNORECASE,
)
_BOTH_NAMED = re.compile(r"^\(?(?:true|yes)(?:\s?/\s?| or )(?:false|no)(?:\)?:?|\?)\s+(?=\w)", re.IGNORECASE)
_DENIED = re.compile(
    r"\W{0,3}(?:is|was|would be|seems|can|cannot|can't|isn't)\b.{0,20}?(?:incorrect|wrong|false|not|be\b|"
    r"right|correct)|\s?(?:->|→|=>)",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"\b(?:it|this|that|which|ist|est|es|aussage|statement|claim|answer|assertion|sentence|question|"
    r"passage|proposition|does|doesn't|says|said|is|are|was|"
    r"isn't|aren't|wasn't)\b|'s\b|说法|陈述|是",
    re.IGNORECASE,
)


def read_true_false(words: str, placement: Placement) -> str | None:
    """The truth value that a text gives as its answer; an `extract.Reader`."""
    stripped = _LABELLED.sub("", strip_markup(words))
    text = strip_lead_in(stripped)
    if placement in (Placement.BARE, Placement.SENTENCE) and (
        short := _ASSENT.fullmatch(stripped) or _DISSENT.fullmatch(stripped)
    ):
        replied = _REPLY_FIRST.match(stripped)  # "Yes, they have."
        if placement is Placement.SENTENCE and not replied:
            return AMBIGUOUS  # what "It isn't" denies is in the sentence before it
        return "True" if short.re is _ASSENT else "False"
    if placement is Placement.SENTENCE:
        alone = _FIRST.fullmatch(stripped)
        if alone and not re.search(r"\w", alone["rest"]):
            return _first_word(alone, Placement.BARE)  # "They're different. No."
        last = _FIRST.fullmatch(CONCLUDED.split(stripped)[-1].lstrip(" ,:"))
        if last and last["word"].lower() in _YES_OR_NO and not last["negated"]:
            found = _first_word(last, Placement.OPENING)  # "Yes, they have.", "..., so yes - it can"
            if found is not None:
                return found
        conclusion = CONCLUSION.match(stripped)
        if conclusion and (first := _FIRST.fullmatch(stripped[conclusion.end() :])):
            found = _first_word(first, Placement.OPENING)
            if found is not None:
                return found
        return _predicate(stripped)
    if placement is Placement.LOOSE:
        return _predicate(stripped)
    if placement is not Placement.BOX and (flat := _DENIED_FLATLY.match(stripped)):
        return None if placement is Placement.BARE and re.search(r"\w", stripped[flat.end() :]) else "False"
    text = _LEADING.sub("", _BOTH_NAMED.sub("", stripped if _LEADING.match(stripped) else text))
    first = _FIRST.fullmatch(_BOTH_NAMED.sub("", stripped)) or _FIRST.fullmatch(text)
    is_sentence = placement is Placement.MARKED or _is_all_one(stripped)
    if first is None:
        return _predicate(stripped) if placement in (Placement.MARKED, Placement.OPENING) and is_sentence else None
    found = _first_word(first, placement)
    if found is None and placement is Placement.OPENING and is_sentence:
        return _predicate(stripped)
    return found


def _is_all_one(text: str) -> bool:
    """Whether the sentences after the first one leave it as it is."""
    first, *others = SENTENCE_END.split(text)
    value = _predicate(first)
    return all(is_harmless(sentence) and _predicate(sentence) in (None, value) for sentence in others if sentence)


def _affirmed(text: str) -> str | None:
    """What "indeed" affirms, and what "not" and "in fact" deny together: "It is indeed part of the suite"."""
    indeed = _INDEED.search(text)
    if indeed is None or _CONTRASTED.search(text) or HEDGE.search(text):
        return None
    if _UNCERTAIN.search(_CERTAIN.sub("", text)):
        return None
    denied = indeed["before"] or indeed["after"]
    if _NEGATION.search(text[indeed.end() :] if denied else text) or (denied and indeed["before"] and indeed["after"]):
        return None
    return "False" if denied else "True" if indeed["indeed"] or indeed["first"] or indeed["early"] else None


def _first_word(first: re.Match[str], placement: Placement) -> str | None:
    word, rest = first["word"].lower(), first["rest"]
    value = TRUTH[word]
    if (again := _ALSO.fullmatch(rest.rstrip(" .!"))) and not again[1] and TRUTH[again[2].lower()] == value:
        rest = "" if not first["negated"] else rest  # "No/False"
    if placement in (Placement.BARE, Placement.BOX) and re.search(r"\w", rest):
        return None if placement is Placement.BARE else AMBIGUOUS if _ALSO.match(rest) else None
    also = _ALSO.match(rest)
    said = OPPOSITE[value] if first["negated"] else value
    if also and (TRUTH[also.group(2).lower()] != said) != bool(also.group(1)):
        return AMBIGUOUS
    if word == "yeah" and re.match(r"\W{0,3}(?:right|sure|no)\b", rest, re.IGNORECASE):
        return AMBIGUOUS
    if re.fullmatch(r"\W{0,4}not\W{0,3}", rest, re.IGNORECASE):
        return AMBIGUOUS  # "Yes, not."
    if _POLITE.match(rest) or re.match(r"\. ?\d", rest):
        return AMBIGUOUS
    if re.match(r"\W{0,3}(?:(?:but )?(?:only )?if|or not|!=|==|\\ne)", rest, re.IGNORECASE) or _IN_PART.match(rest):
        return AMBIGUOUS
    if any(TRUTH[opposed["word"].lower()] != said for opposed in _OPPOSED.finditer(rest[:120])):
        return AMBIGUOUS  # "Yes in 1990, no today"
    if placement is Placement.OPENING and not _AFTER_FIRST.match(rest):
        return None  # "No doubt ..."
    if len(word) == 1 and word.isascii() and re.search(r"\w", rest):
        return None
    if word == "no" and re.match(r"\W{0,3}you(?:'re| are) (?:right|correct)\b", rest, re.IGNORECASE):
        return AMBIGUOUS
    contradicted = _CONTRADICTED.match(rest)
    if (
        contradicted
        and word in _REPLIES
        and (TRUTH[contradicted["word"].lower()] != value) != bool(contradicted["not"] or contradicted["also"])
    ):
        concluded = CONCLUDED.split(rest)  # "No, it's true only in the north, so it's false."
        return value if len(concluded) > 1 and _predicate(concluded[-1]) == value else AMBIGUOUS  # "No, it's true."
    if rest.lstrip("\"')").startswith("?") or _DENIED.match(rest):
        return AMBIGUOUS
    if word not in ("true", "false") and not _REASON.match(rest) and word.isascii():
        return None
    in_part = re.match(r"\W{0,3}(?:for|in) (?:some|part|most|certain)\b", rest, re.IGNORECASE)
    if in_part and not (word == "yes" and rest.startswith(",")):
        return AMBIGUOUS
    return OPPOSITE[value] if first["negated"] else value


def _predicate(text: str) -> str | None:
    """The truth value of sentences such as "the statement is not true"."""
    text = _AS_WRITTEN.sub("", _NOT_ONLY.sub("", _EITHER.sub("", text)))
    if agreement := _AGREEMENT.match(text):
        return "False" if agreement["no"] else "True"
    if (tag := _TAG.search(text)) and not HEDGE.search(text):
        return AMBIGUOUS if bool(tag["not"]) != (tag["word"].lower() == "no") else TRUTH[tag["word"].lower()]
    if _FOR_SOME.search(text) or _EMBEDDED.search(text):
        return AMBIGUOUS
    if _OPPOSITE_TRUE.search(text):
        return "False"
    if so := _SO.search(text):  # "This isn't so."
        return None if _UNCERTAIN.search(text) or HEDGE.search(text) else "False" if _NEGATION.search(so[0]) else "True"
    if answer := _VALUE_IS_ANSWER.fullmatch(text):
        return TRUTH[answer["word"].lower()]
    if (attested := _ATTESTED.search(text)) and not HEDGE.search(text):
        return "True" if attested["yes"] or attested["fits"] else "False"
    if (says := _SAYS_SO.search(text)) and not HEDGE.search(text) and not _CONTRASTED.search(text):
        opposed = (says["what"] or "").lower().startswith(("otherwise", "the"))
        if says["no"]:
            return None  # "The passage doesn't say so" denies nothing
        return "False" if opposed or says["not"] or says["against"] else "True"
    if ending := _ENDING.search(text):
        return TRUTH[ending[1].lower()]  # "No doubt about it: yes."
    for pattern in (CONCLUDED, _SEMICOLON):  # "It's false that all birds can fly, so the statement is true."
        parts = pattern.split(text)
        if len(parts) > 1 and (found := _predicate(parts[-1])) is not None:
            return found
    later = re.split(
        r"(?<!anything)(?<!nothing),? \b(?:but|however|yet|sondern|mais|pero)\b", text, flags=re.IGNORECASE
    )
    if len(later) > 1 and (found := _predicate(later[-1])) is not None:
        return found  # "It is true that it was shot in Canada, but the statement is false."
    if len(later) > 1 and _CONCEDED.search(later[0]):
        return None  # "It is true that it has 24 episodes, but the last one did not air in May."
    values: set[str] = set()
    aside: set[str] = set()
    hedged = False
    for match in _PREDICATE.finditer(text):
        word = (match["word"] or match["chinese"]).lower()
        start = max(text.rfind(mark, 0, match.start()) for mark in (". ", "; ", "? ", "! ")) + 1
        before = text[max(start, match.start() - 80) : match.start()]
        before = re.sub(r"\bI(?: would|'d)\b", "I", before)
        before = re.split(r"(?i)(?<!anything),? but |, (?:so|and|which) ", before)[-1]
        if (
            _SOMEBODY.search(before)
            or _UNCERTAIN.search(before)
            or HEDGE.search(before)
            or text[match.end() :].lstrip(" \"'").startswith("?")
        ):
            hedged = True
            continue
        if not _SUBJECT.search(before) and before.strip(" ,:"):
            aside.add(TRUTH[word])
            continue
        negations = len(_NEGATION.findall(before))
        value = TRUTH[word]
        values.add(OPPOSITE[value] if negations % 2 else value)
    if len(values) > 1 or (hedged and not values) or (values and aside - values):
        return AMBIGUOUS
    if not values and not aside:
        return _affirmed(text)
    return values.pop() if values else None
