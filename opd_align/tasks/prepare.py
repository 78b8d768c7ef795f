r"""The part of a response that states an answer, in the form that the rules read.

Removed: quoted questions, text that was struck out, calculator annotations, and parentheses that say what would be the
case otherwise. Rewritten as `Answer: ...`: a ticked checkbox and the last answer-like key of a JSON object. Words of
other languages are translated (`languages`). Everything else stays as it is.
"""

from __future__ import annotations

import re

from opd_align.tasks.languages import in_english

_STRUCK_OUT = re.compile(r"~~[^~\n]{1,200}~~")
_CALCULATOR = re.compile(r"<<[^<>\n]{1,120}>>")  # GSM8K: $<<9*2=18>>18
_QUOTED = re.compile(r"(?:[ \t]{0,3}>(?!>)[^\n]{0,2000}\n+){1,50}(?=\s{0,20}[^\s>])")
_BOX = re.compile(
    r"^[ \t]{0,4}(?:[-*][ \t])?[ \t]{0,2}(?:(?P<open>\[ ?\]|☐|❌|✗)|(?P<ticked>\[[xX✓✔]\]|☑|☒|✅|✔|✓))"
    r"\ufe0f?[ \t]{0,3}(?P<first>\S[^\n]{0,300})$"
    r"|^[ \t]{0,4}(?P<last>[^\n]{1,200}?[^\s.✅✔✓❌✗])[ \t]{0,2}"
    r"(?:(?P<closed>[❌✗])|(?P<mark>[✅✔✓]))\ufe0f?[ \t]{0,3}$",
    re.MULTILINE,
)
_TICKS = re.compile(r"\[[ xX✓✔]?\]|[☐❌✗☑☒✅✔✓]")
_ANSWER_KEY = re.compile(
    r"[\"'](?:(?:final|predicted|correct|my|your|model|selected|chosen)[_ -]?)?"
    r"(?:answer|ans|label|result|prediction|output|choice|option|value|verdict|solution|response|letter|total|truth|"
    r"final)"
    r"(?:_?(?:key|value|letter|text|label|cost|price|option|choice|income|number|amount))?[\"']\s{0,4}:\s{0,4}"
    r"(?P<value>\"(?:[^\"\\\n]|\\.){0,300}\"|'[^'\n]{0,300}'|\[[^\[\]\n]{0,200}\]|[^\s,}\]\n][^,}\]\n]{0,100})",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"[ \t]?\((?=[^()]{0,300}\b(?:would|wouldn't|for comparison|not to be confused)\b|[^()]{0,300}\w'd\b)"
    r"[^()]{1,300}\)"
)
# A command to whoever grades is no answer.
_COMMAND = re.compile(
    r"(?:(?<=^)|(?<=[.!?:\n])|(?<=[.!?:] ))\W{0,3}(?:please |you must |you should )?(?:mark|grade|score|rate|accept|"
    r"count|treat|"
    r"consider|label) (?:this|it|my|the)\b(?: (?:answer|response|output|solution|submission))?,? (?:as|correct|right)\b"
    r"[^.!?\n]{0,200}",
    re.IGNORECASE,
)
_INLINE_BOX = re.compile(r"(?<=\S) {1,4}(?=(?:\[[ xX✓✔]?\]|[☐☑☒]) ?\w)")
_END_OF_PROOF = re.compile(
    r"\s{0,4}\$?\\(?:blacksquare|square|qed)\b\$?|[ \t]{0,4}[✓✔✅☑👍🎉🙂😊]\ufe0f?(?=\W{0,6}$)", re.MULTILINE
)
_NO_DOUBT = re.compile(
    r"\b(?:there(?:'s| is| can be) )?(?:no|without(?: a| any)?|beyond(?: a| any| all)?) doubt(?: (?:that|about it))?\b"
    r"|\bundoubtedly\b",
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
    if _TICKS.search(response):
        response = _ticked(_INLINE_BOX.sub("\n", response))
    if not response.isascii() or "\\" in response:
        response = _END_OF_PROOF.sub("", response)
    if _COMMAND.search(response):
        response = _COMMAND.sub(" ", response)
    if "{" in response and ('":' in response or "':" in response or '" :' in response):
        response = _json_answer(response)
    if "would" in response or "'d" in response or "comparison" in response:
        response = _ASIDE.sub("", response)
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
        return response
    value = keys[-1]["value"].strip()
    end = response.find("}", keys[-1].end())
    rest = "" if end < 0 else response[end + 1 :]
    if value in ("null", "None", '""', "[]"):
        return rest
    value = value[1:-1].replace('"', "").strip() if value[0] in "\"'[" else value
    return f"Answer: {value.replace(chr(92) * 2, chr(92))}\n{rest.lstrip('` }')}"
