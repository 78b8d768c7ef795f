"""The words that mean true and false, and the text in which a reply is written as an answer.

"False? No" is written as "True", "we can respond with yes" as "the answer is yes".
"""

from __future__ import annotations

import re

from opd_align.tasks.statements import SENTENCE_END

TRUTH = {
    "true": "True", "yes": "True", "t": "True", "correct": "True", "yep": "True", "yeah": "True", "是": "True",
    "对": "True", "正确": "True", "真": "True", "是的": "True", "right": "True", "对的": "True", "正确的": "True",
    "false": "False", "no": "False", "f": "False", "incorrect": "False", "wrong": "False", "nope": "False",
    "否": "False", "错": "False", "错误": "False", "假": "False", "不是": "False", "不对": "False",
    "ja": "True", "oui": "True", "vrai": "True", "wahr": "True", "richtig": "True", "sí": "True", "verdadero": "True",
    "cierto": "True", "vero": "True", "да": "True", "はい": "True", "nein": "False", "non": "False", "faux": "False",
    "falsch": "False", "falso": "False", "нет": "False", "いいえ": "False",
    "sim": "True", "não": "False", "verdadeiro": "True", "verdadeira": "True", "verdadera": "True", "falsa": "False",
    "vraie": "True", "fausse": "False", "sì": "True", "vera": "True", "correcto": "True", "correcta": "True",
    "incorrecto": "False", "incorrecta": "False", "correto": "True", "incorreto": "False", "неверно": "False",
    "верно": "True", "правда": "True", "истина": "True", "ложь": "False", "неправда": "False", "正しい": "True",
    "正しくない": "False", "誤り": "False", "間違い": "False", "네": "True", "예": "True", "아니요": "False",
    "참": "True",
    "거짓": "False", "si": "True", "accurate": "True", "inaccurate": "False", "affirmative": "True",
    "negative": "False", "unwahr": "False", "stimmt": "True", "y": "True", "n": "False", "holds": "True",
    "hold": "True", "supported": "True", "unsupported": "False", "myth": "False", "misconception": "False",
    "fallacy": "False",
    "不正确": "False", "错误的": "False", "错的": "False", "untrue": "False", "不正确的": "False", "不错": "True",
    "yup": "True", "debunked": "False", "agreed": "True", "factual": "True", "evet": "True",
    "doğru": "True", "hayır": "False", "yanlış": "False",
    "确实如此": "True", "确实": "True",
}  # fmt: skip
OPPOSITE = {"True": "False", "False": "True"}
_ANSWERED = re.compile(
    r"(?<![\w-])(?<!\bor )[\"'*]{0,3}(true|false|yes|no|wahr|falsch|vrai|faux)[\"'*]{0,3}\? (?:no|nope|nein|"
    r"non)\b[.,!]?",
    re.IGNORECASE,
)
# "So is the statement false? Yes, it is."
_ASKED_FALSE = re.compile(
    r"\b(?:is|was) (?:the (?:statement|claim|assertion)|it|this|that) (?:therefore |thus |then )?(?:false|"
    r"incorrect|wrong|"
    r"untrue)\? {1,2}(?P<reply>yes|yep|no|nope)\b(?:, (?:it|that|this) (?:is|was)(?:n't| not)?)?[.,!]?",
    re.IGNORECASE,
)
_WHETHER = re.compile(
    r"\banswer to (?:(?:the|this|that|your) question,? )?(?:of |as to |on )?whether\b[^.?!\n]{1,150}?\b(?:is|would be)"
    r"[:,]?(?: clearly| indeed| therefore)? [\"'*]{0,3}(?P<word>yes|no|true|false)(?=[\"'*.,;!]|\s*$)",
    re.IGNORECASE,
)
# "We can therefore respond with yes", "the evidence points to no", at the end of a text
_REPLIED = re.compile(
    r"\b(?:(?:I|we|you|one)(?:'d|'ll)?(?: (?:would|will|can|must|should|have|therefore|thus|to|then|only|safely|"
    r"confidently)){0,4} "
    r"(?:conclude|respond|reply|answer|say|lean|go|decide)(?: (?:with|towards?|on|for|this|it|the question|to))?|"
    r"(?:evidence|passage|text|article|everything|this|that|which|it all|facts|information)(?: \w+ly)? (?:points?|"
    r"leads?|"
    r"leans?|suggests?|brings?)(?: us| me)?(?: to| towards?)?(?: an?| the answer| an answer of)?|"
    r"(?:correct|right|appropriate|proper|best) (?:label|response|reply|classification|verdict|evaluation) (?:is|"
    r"would be|"
    r"should be)|(?:classified|labell?ed|marked|deemed|rated|regarded|judged) (?:as |to be )?|conclusion:? (?:is|of))"
    r":? {0,2}[\"'*]{0,3}(?P<word>yes|no|true|false)(?=[\"'*]{0,3}[.!]?[\"'*]{0,3}\s*$)",
    re.IGNORECASE,
)
_UNSAID = re.compile(
    r"\b(?:not|never|cannot|might|may|could|some|many|people|if|whether|or|why|hesitate|tempt\w*|wrong|neither|nor|"
    r"hard|difficult|mistake\w*|unless|would like|want|used|first|initially|everyone|they|he|she)\b|n't\b|\?",
    re.IGNORECASE,
)
_BOLD_ONE = re.compile(
    r"(?<![\w*])(?:(?:yes|true|no|false) ?/ ?\*\*(?P<second>no|false|yes|true)\*\*|"
    r"\*\*(?P<first>yes|true|no|false)\*\* ?/ ?(?:no|false|yes|true)(?![\w*]))",
    re.IGNORECASE,
)


def with_answered_questions(response: str) -> str:
    """The text with "False? No" written as "True", "in the affirmative" as "yes", "we respond with yes" as an "
    "answer."""
    if "/" in response and "**" in response:
        response = _BOLD_ONE.sub(lambda match: match["second"] or match["first"], response)
    if (replied := _REPLIED.search(response, max(0, len(response) - 200))) and not _UNSAID.search(
        SENTENCE_END.split(response[max(0, replied.start() - 80) : replied.start("word")])[-1]
    ):
        response = f"{response[: replied.start()]}the answer is {replied['word']}."
    if "in the " in response:
        response = re.sub(r"\bin the affirmative\b", "yes", re.sub(r"\bin the negative\b", "no", response))
    if "whether" in response:
        response = _WHETHER.sub(lambda match: f"answer is {match['word']}", response)
    if "?" in response:
        response = _ASKED_FALSE.sub(lambda match: "True." if match["reply"][0] in "nN" else "False.", response)
    return (
        _ANSWERED.sub(lambda match: f"{OPPOSITE[TRUTH[match[1].lower()]]}.", response) if "?" in response else response
    )
