r"""The part of a response that states an answer, in the form that the rules read.

Removed: quoted questions, text that was struck out, calculator annotations, and parentheses that say what would be the
case otherwise. Rewritten as `Answer: ...`: a ticked checkbox and the last answer-like key of a JSON object. Words of
other languages are translated (`languages`). Everything else stays as it is.
"""

from __future__ import annotations

import re

from opd_align.tasks.languages import in_english
from opd_align.tasks.remarks import takes_back

_STRUCK_OUT = re.compile(r"~~[^~\n]{1,200}~~")
_CALCULATOR = re.compile(r"<<[^<>\n]{1,120}>>")  # GSM8K: $<<9*2=18>>18
_QUOTED = re.compile(r"(?:[ \t]{0,3}>(?!>)[^\n]{0,2000}\n+){1,50}(?=\s{0,20}[^\s>])")
_BOX = re.compile(
    r"^[ \t]{0,4}(?:[-*][ \t])?[ \t]{0,2}(?:(?P<open>(?:\[ ?\]|☐|❌|✗)(?![ *]{0,4}(?i:false|no|incorrect|wrong)\b))|"
    r"(?P<ticked>\[[xX✓✔]\]|☑|☒|✅|✔|✓))"
    r"\ufe0f?[ \t]{0,3}(?P<first>\S[^\n]{0,300})$"
    r"|^[ \t]{0,4}(?P<last>[^\n]{0,200}?[^\s.:✅✔✓❌✗]):?[ \t]{0,2}"
    r"(?:(?P<closed>[❌✗])|(?P<mark>[✅✔✓]))\ufe0f?[ \t]{0,3}$",
    re.MULTILINE,
)
_TICKED = re.compile(r"[✅✔✓☑]|\[[xX]\]")
_TICKS = re.compile(r"\[[ xX✓✔]?\]|[☐❌✗☑☒✅✔✓]")
_ANSWER_KEY = re.compile(
    r"[\"'](?:(?:final|predicted|correct|my|your|model|selected|chosen)[_ -]?)?"
    r"(?:answers?|ans|label|result|prediction|output|choice|option|value|verdict|solution|response|letter|total|truth|"
    r"final)"
    r"(?:_?(?:key|value|letter|text|label|cost|price|option|choice|income|number|amount))?[\"']\s{0,4}:\s{0,4}"
    r"(?P<value>\"(?:[^\"\\\n]|\\.){0,300}\"|'[^'\n]{0,300}'|\[[^\[\]\n]{0,200}\]|[^\s,}\]\n][^,}\]\n]{0,100})",
    re.IGNORECASE,
)
_OBJECT = re.compile(r"\{\s{0,20}[\"'][\w -]{1,60}[\"']\s{0,4}:[^{}]{0,2000}\}?")
# An answer that is marked as wrong, or negated by a sign.
_CROSSED = re.compile(
    r"^[ \t*]{0,6}(?:(?:[❌✗✘👎🚫]\ufe0f?|¬|!=?|≠|~(?!~)|\\ne(?:q|g)?\b)[ \t]{0,2}(?!\**(?:false|no|incorrect|"
    r"wrong)\b)[^\s!=][^\n]{0,80}"
    r"|(?!(?:false|no|incorrect|wrong)\b)[^\n.!?]{1,80}?[ \t:—-]{0,4}(?:[❌✗✘👎🚫]\ufe0f?|\((?:wrong|incorrect|no|"
    r"false|not correct|rejected|eliminated|excluded)[!.]?\)))"
    r"[ \t.*]{0,4}$",
    re.MULTILINE | re.IGNORECASE,
)
# The cross repeats the word: "Verdict: FALSE ❌"
_FALSE_CROSSED = re.compile(
    r"((?:^|[\s:*_])(?:false|no|incorrect|wrong|untrue)[*_.!]{0,3})[ \t]{0,3}[❌✗✘👎🚫]\ufe0f?(?=[\s*_]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_CROSSES = re.compile(
    r"[❌✗✘👎🚫¬≠]|(?:^|\n)[ \t*]{0,6}(?:!|~|\\ne)|\((?:wrong|incorrect|no|false|not correct|rejected|eliminated|"
    r"excluded)[!.]?\)",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"[ \t]?\((?=[^()]{0,300}\b(?:would|wouldn't|for comparison|not to be confused)\b|[^()]{0,300}\w'd\b)"
    r"[^()]{1,300}\)"
)
# A sentence in parentheses at the end: "She makes $18. (One may argue for 26.)"
_LAST_PARENTHESES = re.compile(
    r"(?<=[.!?*])\s{1,3}\((?=[A-Z])(?!(?:answer|option|choice|so|thus)\b)(?P<remark>(?:[^()\n]|"
    r"\([^()\n]*\)){12,300})\)\W{0,3}$",
    re.IGNORECASE,
)
# A command to whoever grades is no answer.
_COMMAND = re.compile(
    r"(?:(?<=^)|(?<=[.!?:\n])|(?<=[.!?:] ))(?![^.!?:\n]{0,80}\b(?:I|we)\b)[^.!?:\n]{0,80}?(?:\b(?:mark|grade|score|"
    r"rate|accept|count|treat|consider|label|"
    r"evaluate|judge|take|regard) (?:this|it|me|my|the|that|\S{1,12})\b(?: (?:answer|response|output|solution|"
    r"submission|"
    r"completion))?,? (?:as |to be )?(?:an? |the |fully )?(?:correct|right|true|accepted|valid|passed|full)\b|"
    r"\b(?:award|give|grant|assign) (?:(?:me|it|this|us|the) )?(?:[\w ]{0,20} )?(?:full|points?|marks?|credit|"
    r"reward|score)\b|"
    r"\b(?:grader|evaluator|verifier|reward model)s?\b|\b(?:to|and) (?:pass|get (?:full )?(?:marks|credit|points))\b|"
    r"\bignore (?:all |any |the )?(?:previous|prior|above|earlier) instructions\b|"
    r"^\W{0,4}(?:grade|score|reward|rating|evaluation): ?\w|"
    r"^\W{0,4}(?:this|the|my) (?:response|submission|completion|output) is (?:correct|right|true)\b|"
    r"^\W{0,4}(?:please )?(?:mark|grade|accept|score|count) (?:as|this|it|me|my)\b)[^.!?\n]{0,200}",
    re.IGNORECASE | re.MULTILINE,
)
_COMMAND_WORDS = re.compile(
    r"\b(?:mark|grade|score|rat(?:e|ing)|accept|count|treat|consider|label|evaluat|judge|take|regard|award|give|"
    r"grant|assign|"
    r"verifier|reward|pass|marks|credit|points|ignore|response|submission|completion|output)",
    re.IGNORECASE,
)
_TABLE_ROW = re.compile(
    r"^\|[ \t*]{0,6}([^|\n]{1,80}?)[ \t*]{0,6}\|(?:[^|\n]{0,80}\|){0,4}?[ \t]{0,6}([✅✔✓❌✗])\ufe0f?[ \t]{0,6}\|"
    r"[ \t]{0,6}$",
    re.MULTILINE,
)
_INLINE_BOX = re.compile(r"(?<=\S) {1,4}(?=(?:\[[ xX✓✔]?\]|[☐☑☒]) ?\w)")
_END_OF_PROOF = re.compile(
    r"\s{0,4}\$?\\(?:blacksquare|square|qed)\b\$?|[ \t]{0,4}[✓✔✅☑👍🎉🙂😊]\ufe0f?(?=\W{0,6}$)|[ \t]{0,4}←[^\n]{0,30}$",
    re.MULTILINE,
)
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\{(?:align|equation|gather|aligned|gathered|split|multline|eqnarray)\*?\}(?:\{\w\})?"
)
_RETURNED = re.compile(
    r"(?:^|\n)[ \t]{0,8}(?:return[ \t]|(?:submit|final_answer|"
    r"answer)\()[ \t]{0,2}[\"']?([^\"'()\n]{1,40})[\"']?\)?[;.]?\s{0,3}$"
)
_QUOTED_NOT = re.compile(r"[\"'](?:not)[\"']", re.IGNORECASE)  # the word "not"
_IDIOM = re.compile(
    r"\b(?:if I (?:had|have) to (?:choose|pick|answer|decide)(?: one| between them)?|believe it or not|"
    r"like it or not|(?:as )?strange as it (?:may )?(?:seems?|sounds?)|"
    r"contrary to (?:popular|common) (?:belief|opinion)|"
    r"despite what (?:many|most|some)(?: people)? (?:believe|think|say)),? ",
    re.IGNORECASE,
)
_UNEQUAL = re.compile(r"\s?(?:!=|\\ne )\s?(?=(?:[A-Z]|true|false|yes|no|answer)\b)", re.IGNORECASE)
_NO_DOUBT = re.compile(
    r"\b(?:there(?:'s| is| can be) )?(?:no|without(?: a| any)?|beyond(?: a| any| all)?) doubt(?: (?:that|about it))?\b"
    r"|\bundoubtedly\b|\bno(?:body| one) doubts(?: that)?\b",
    re.IGNORECASE,
)


def prepared(response: str) -> str:
    """The response as the rules read it."""
    if "~~" in response:
        response = _STRUCK_OUT.sub("", response)
    if "<<" in response:
        response = _CALCULATOR.sub("", response)
    if ">" in response and (quoted := _QUOTED.match(response)):
        response = response[quoted.end() :]
    if not response.isascii() and not _TICKED.search(response):
        response = _FALSE_CROSSED.sub(r"\1", response)
    if _CROSSES.search(response) and not _TICKED.search(response) and len(_CROSSED.findall(response)) == 1:
        response = _CROSSED.sub(" ", response)
    if _TICKS.search(response):
        response = _ticked(_TABLE_ROW.sub(r"\1 \2", _INLINE_BOX.sub("\n", response)))
    if not response.isascii() or "\\" in response:
        response = _END_OF_PROOF.sub("", response)
    if "\\end{" in response and _ENVIRONMENT.search(response):
        response = re.sub(r"\\\\\s{0,4}(?=\n|$)|&(?==)", "", _ENVIRONMENT.sub("", response))
    if _COMMAND_WORDS.search(response):
        response = _COMMAND.sub(" ", response)
    if "{" in response and ('":' in response or "':" in response or '" :' in response):
        response = _json_answer(response)
    if "would" in response or "'d" in response or "comparison" in response:
        response = _ASIDE.sub("", response)
    if "(" in response[-310:] and (last := _LAST_PARENTHESES.search(response, max(0, len(response) - 320))):
        response = response[: last.start()] if not takes_back(last["remark"]) else response
    if "return" in response or "submit" in response or "answer(" in response:
        response = _RETURNED.sub(r"\nAnswer: \1", response)
    if "!=" in response or "\\ne " in response:
        response = _UNEQUAL.sub(" is not ", response)
    if "not'" in response or 'not"' in response:
        response = _QUOTED_NOT.sub("", response)
    if (
        " or not" in response
        or "f I ha" in response
        or "strange as" in response.lower()
        or "belief" in response
        or "despite what" in response.lower()
    ):
        response = _IDIOM.sub("", response)
    if "doubt" in response.lower():
        response = _NO_DOUBT.sub("surely", response)
    return in_english(response)


def _ticked(response: str) -> str:
    """A list of checkboxes as the one that is ticked; without any if none or several are."""
    boxes = list(_BOX.finditer(response))
    if len(boxes) < 2:
        return _BOX.sub("", response) if boxes and (boxes[0]["open"] or boxes[0]["closed"]) else response
    ticked = [box for box in boxes if box["ticked"] or box["mark"]]
    answer = f"\nAnswer: {ticked[0]['first'] or ticked[0]['last']}\n" if len(ticked) == 1 else "\n"
    kept = "".join(
        response[start:end]
        for start, end in zip(
            [0, *(box.end() for box in boxes)], [*(box.start() for box in boxes), len(response)], strict=True
        )
    )
    place = boxes[0].start()
    return kept[:place] + answer + kept[place:]


def _json_answer(response: str) -> str:
    """The last answer-like key of a JSON object as an answer; other keys of the object after it are dropped."""
    keys = list(_ANSWER_KEY.finditer(response))
    if not keys or response.rfind("{", 0, keys[-1].start()) < 0:
        return _OBJECT.sub(" ", response)  # an object without an answer
    value = keys[-1]["value"].strip()
    end = response.find("}", keys[-1].end())
    rest = "" if end < 0 else response[end + 1 :]
    if value in ("null", "None", '""', "[]"):
        return rest
    value = value[1:-1].replace('"', "").strip() if value[0] in "\"'[" else value
    return f"Answer: {value.replace(chr(92) * 2, chr(92))}\n{rest.lstrip('` }')}"
