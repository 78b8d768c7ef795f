"""What stands around a number and makes it something else than a stated amount: a bound, an operand, a label.

"less than 18" is a bound, "the square of 18" an operand, "page 18" a label; "a profit of 18" and "18 pages" are
amounts.
"""

from __future__ import annotations

import re

CURRENCY = "€£¥₹"

BOUND_BEFORE = re.compile(
    r"(?:\b(?:(?:less|more|greater|fewer|smaller|larger|bigger|higher|lower|older|younger|longer|shorter|"
    r"other|rather) than"
    r"|at least|at most|nearly|almost|not even|over|under|above|below|"
    r"(?<!\badd )(?<!\badds )(?<!\bround )(?<!\brounds )(?<!\brounded )(?<!\brounding )up to|between|from|"
    r"exceeds?|minimum of|"
    r"maximum of|within|not|never"
    r"|isn't|wasn't|aren't|cannot be|can't be|don't get|instead of|anything but|everything but|all but|"
    r"divisible by|multiple of|divides|factor of|reject|"
    r"discard|approach(?:es|ing)?|tends? to|tending to|goes to|close to|near|upwards of|north of|south of|no|(?:he|"
    r"she|they|everyone|people|[A-Z][a-z]+) (?:says?|said|thinks?|claims?|claimed|believes?)(?: that)?(?: it's|"
    r" it is)?|"
    r"(?:thought|guessed|as (?:many|much|large|big|long|"
    r"old|high|far) as)|ignor(?:e|es|ing)|disregard|bounded by|mod(?:ulo)?|base|except|excluding|"
    r"argue(?:d|s)? for|case (?:can be |could be )?(?:made )?for|accept(?:ing|ed)?|(?:prefer|expect)(?:s|red|ed)?)"
    r"(?: (?:exactly|about|quite|just|equal to|be|the|a))?|[<>]|\\(?:le|ge|ne|neq|to|mid|nmid|mapsto|rightarrow)\b|"
    r"(?<=[a-z)] )(?:→|->)|\bnot [≈=])"
    rf"\s{{0,2}}[-+({CURRENCY}$]{{0,3}}$",
    re.IGNORECASE,
)
"""Right before a number, what turns it into a bound or denies it."""

BOUND_AFTER = re.compile(
    r"\W{0,2}(?:or (?:more|less|fewer|higher|lower|above|below|greater|so|maybe|possibly|perhaps)\b|and (?:up|above)\b"
    r"|\+(?!\s?\d)|at (?:least|most)\b|\\(?:le|ge|ne|mid|to)\b|[<>])",
    re.IGNORECASE,
)
"""Right after a number, what turns it into a bound."""

_RULED_OUT = re.compile(r"not\b|never|isn't|wasn't|aren't|cannot|can't|don't|instead|rather|other", re.IGNORECASE)
_OPERATION_BEFORE = re.compile(
    r"(?:\b(?:twice|half(?: of)?|double|triple|thrice|roots?(?: of)?|sqrt|floor|ceil|abs|exp|log|ln|sin|cos|tan|"
    r"times|plus|minus|"
    r"over|by|of the number)"
    r"|\b[a-z](?=\()|\\[a-z]+\s?\{?|\}\s?\{|√)\s?[({€£¥₹]{0,2}$",
    re.IGNORECASE,
)
_OPERATION_AFTER = re.compile(
    r",? less\b|(?:st|nd|rd|th|[abcijpqr])\b|\s?(?:rounded (?:up|down|off)|split|reduced|increased|decreased|"
    r"squared|cubed|"
    r"factorial|plus|minus|divided|multiplied|times (?=\d|a |the |two|three|four|five|ten)|"
    r"to the (?:power|\w+th|third)|doubled|halved|tripled|mod(?:ulo)?|nowhere|"
    r"choose|(?:tenth|hundredth|"
    r"thousandth|millionth|billionth|third|fourth|fifth|quarter)s?|hal(?:f|ves)|[xyzn])\b",
    re.IGNORECASE,
)
# "the square of 18" and "a third of 18" are computed from 18; "a profit of 18" and "the sum of 18 dollars" are 18.
_COMPUTED_FROM = re.compile(
    r"\b(?:the (?!(?:amount|total|sum|price|cost|value|number|grand|full|final|same|exact|whole)\b)(?:\w+ ){0,2}?\w+|"
    r"an? (?:\w+ )?(?:multiple|factor|divisor|third|quarter|fifth|sixth|tenth|half|fraction|power|square|cube|root|"
    r"part|share|"
    r"function|percentage|permutation)|(?:multiples|factors|divisors|powers|digits|roots|squares|thirds|quarters)|"
    r"one less than|"
    r"(?:one|two|three) more than) of [$(]{0,2}$|"
    r"\bthe (?:\w+ ){0,2}(?:number|prime|integer|multiple|one|term|day) (?:right |just )?(?:after|before|following|"
    r"preceding) $|"
    r"\b(?:follows|precedes|(?:comes|lies) (?:right |just )?(?:before|after|above|below)) $",
    re.IGNORECASE,
)
_OPERATED_ON = re.compile(
    r"(?:^|[.;,:] )\W{0,3}(?:then |now |next,? |first,? |we |by )?(?:(?:add|subtract)(?:ing)?|divid(?:e|ing)|"
    r"multiply(?:ing)?|"
    r"plug(?:ging)? in|substitut(?:e|ing)|setting|start(?:ing|ed)? with|begin(?:ning)? with|given|taking|using)"
    r"(?: (?:both sides|it|this|that|everything|the \w+))?(?: by| with)? (?:\$|\\\()?(?:[a-z] ?= ?)?$",
    re.IGNORECASE,
)
# "45 tiles are not enough", "45 is one too many"
DENIED_LATER = re.compile(
    r"(?:\s\w+){0,2}?\s(?:(?:is|are|was|were|will be|would be|does|do|will|would|wo|ca)(?:n't| not) (?:be )?"
    r"(?:enough|sufficient|right|correct|it|do|suffice|work|fit|match|add up)|falls? short|"
    r"(?:is|are|was|were) (?:\w+ ){0,2}too \w+|(?:is|was) what (?:the|my|you|they|he|she|most|people)\b|"
    r"(?:is|are|was|were) (?:planned|expected|scheduled|supposed))\b|"
    r" (?:is|was) [^.,;]{1,40}, not (?:the|my|our|an) (?:final |correct )?answer\b",
    re.IGNORECASE,
)
"""After a number, what denies it."""

_NAMED_AFTER = re.compile(
    r"[\d.,]{1,30} (?:BCE?|AD|CE|[ck]arat|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*|May\b|[AP]M|"
    r"[ap]\.m\.|[A-Z]\w+ (?:Street|St|Avenue|Ave|Road|Rd|Lane|Boulevard|Blvd)\b)"
)
_NAMED_ONLY = re.compile(r"\W{0,3}(?:the|these|those)(?: (?:first|last|next))? $", re.IGNORECASE)
_NO_VERB = re.compile(r"[\d.,]{1,30}(?: [a-z]+){0,4}\W{0,3}$", re.IGNORECASE)
UNSOLVED = re.compile(
    r"(?!.*= ?[$€£]?\d[\d.,]*[kKM]\b)(?:\d+ ?[a-z]|[a-z] ?\^ ?\{?\d+\}?|[a-z] ?/ ?\d+|"
    r"(?:\d{0,6} ?(?P<variable>[a-z])(?:\^\{?\d+\}?)?)"
    r" ?(?:[-+] ?\d+(?: ?(?P=variable)\b)? ?)+) ?=[^=]+"
)
"""An equation that is not solved yet: 2x = 6, x + 3 = 10."""

_LABEL_NOUNS = (
    "page|pages|id|year|invoice|tel\\.|phone|pin|code|error|form|seat|floor|bus|p\\.|pp\\.|step|question|problem|"
    "chapter|line|lines|figure|fig\\.|equation|eq\\.|exercise|case|part|section|table|"
    "example|room|bus|no\\.|lemma|theorem|corollary|proposition|definition|formula|rule|row|column|item|version|level|"
    "attempt|article|slide|flight|gate|highway|route|appendix|volume|vol\\.|paragraph|note|footnote|reference|ref\\.|"
    "verse|track|episode|season|round|phase|stage|grade|class|type|model|player|channel|platform|apartment|unit|"
    "clause|axiom|claim|remark|task|test|trial|sample|group|option|choice|statement|answer key|degree"
)
_LABEL = re.compile(
    rf"(?:\b(?:{_LABEL_NOUNS})(?: number)?[\s-][(\[#]?|(?<!\w)#|\bout of |\b(?:by|see|from|in|using) [(\[])$",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\W{0,3}(?P<word>(?=[a-z]*[A-Z])[A-Za-z]+)\s[(\[#]?$")  # "Apollo 18", "iOS 18"
_NOTHING_ELSE = re.compile(r"[\d.,]{1,30}\W{0,3}$")
_AMOUNT_WORDS = frozenset(
    re.findall(
        r"\w+",
        "total totals sum answer result exactly about approximately roughly around only just so thus "
        "therefore hence is equals equal altogether overall finally profit income cost costs price revenue "
        "earnings area volume perimeter age distance speed time count number value average mean median max "
        "min maximum minimum remainder quotient product difference probability us usd eur gbp rs inr probably "
        "definitely surely yes no well ok okay leaving makes made gives get got has have left remaining "
        "simply final ans solution output it that this x y n k m precisely clearly then also net gross amount "
        "change tip bill payment balance salary wage score points ",
    )
)


def is_ruled_out(bound: re.Match[str] | None) -> bool:
    """Whether a bound denies the number after it ("not 18") rather than limiting it ("less than 18")."""
    return bool(bound and _RULED_OUT.match(bound.group()))


def is_label(text: str, start: int) -> bool:
    """Whether the number that starts here is the name of something: "page 18", "Apollo 18"."""
    before = text[max(0, start - 24) : start]
    if _LABEL.search(before):
        return True
    if _NAMED_AFTER.match(text, start):
        return True
    if _NAMED_ONLY.fullmatch(text[:start]) and _NO_VERB.match(text, start):
        return True  # "the first 10 primes"
    named = _NAMED.fullmatch(before) if start < 24 and _NOTHING_ELSE.match(text, start) else None
    return bool(named and named["word"].lower() not in _AMOUNT_WORDS)


def is_operand(text: str, start: int, end: int, *, only: bool) -> bool:
    """Whether something is computed from the number: "twice 18", "18 squared", "the square of 18".

    Args:
        text: Sentence that contains the number.
        start: Where the number starts.
        end: Where it ends.
        only: Whether the sentence has no other number; with others, it may state the result as well.
    """
    if _OPERATION_AFTER.match(text, end):
        return True
    before = text[max(0, start - 20) : start]
    if _OPERATION_BEFORE.search(before) and not re.search(r"\b(?:by|over|a|i) $", before, re.IGNORECASE):
        return True
    before = text[max(0, start - 60) : start]
    return only and bool(_COMPUTED_FROM.search(before) or _OPERATED_ON.search(before))
