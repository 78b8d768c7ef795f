r"""Finds the final answer in a model's text.

Searched in this order; the first place that contains an answer decides:

1. after the last `Answer:` (also `Answer` as a heading, `<answer>`); anything before it is ignored;
2. the last complete `\boxed{...}`;
3. the last sentence such as "the answer is B", unless it is negated;
4. the last line, if it is nothing but an answer;
5. the start of a text that is one line long, such as "Yes, there will be a third season."

Thinking is not searched: everything between `<think>` and `</think>` is removed. Many chat templates put `<think>` into
the prompt, so everything before an unopened `</think>` is thinking as well. A text that ends while thinking has no
answer. A text without either tag is searched as a whole: a completion truncated while thinking, under a template that
opens the thinking in the prompt, looks the same as one without thinking; callers that know about the truncation (the
engine does) override the verdict.

What counts as a letter or a number is decided by the reader function that is passed in. Every pattern is bounded, so
that time is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import Enum


class Placement(Enum):
    """Where the text given to a reader was found, which decides how strictly it must be read."""

    MARKED = "after a marker: starts with the answer, a remark may follow"
    BARE = "a line of its own: contains nothing but the answer"
    OPENING = "the only line of a text: an answer, a punctuation mark, then a remark"
    LOOSE = "a sentence after a marker, when nothing stricter matched"


AMBIGUOUS = ""
"""Returned by a reader for text with more than one answer, such as "A or B"."""

Reader = Callable[[str, Placement], str | None]
"""Function from text to the answer in canonical form, `AMBIGUOUS`, or `None` if there is no answer."""

MAX_ANSWER_CHARS = 600
"""Maximum number of characters after a marker that are read as its answer."""

_END_OF_TURN = re.compile(r"<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end)\|>|</s>|<end_of_turn>")
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
# A model that repeats its instructions ("'Answer: $LETTER'") has not answered yet.
_PLACEHOLDER = r"(?![^\w\n]{0,4}(?:LETTER|ANSWER|NUMBER|YOUR[ _]ANSWER)\b)"
_MARKER = re.compile(
    rf"\banswer\b[*_` \t]{{0,6}}[:：=](?!=){_PLACEHOLDER}"
    r"|<answer>"
    r"|^[ \t]{0,8}(?:#{1,6}[ \t]{0,4}|\*\*|__){1,2}(?:the[ \t])?(?:(?:final|correct|my)[ \t])?answer[ \t*_#]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_PHRASE = re.compile(
    r"\b(?:answer|(?:correct|right|best)[ \t](?:option|choice|statement|letter))"
    r"(?:[ \t](?:to|for)[ \t][^.:\n]{1,80}?)?"
    rf"[ \t]{{1,4}}(?:is|should[ \t]be|must[ \t]be|would[ \t]be|will[ \t]be)\b[*_ \t]{{0,4}}:?{_PLACEHOLDER}",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\W{0,6}(?:not|n't|neither|never)\b", re.IGNORECASE)
_ONLY_MARKUP = re.compile(r"(?:[\s*_#$`>~-]|\\[\[\]()])*")
_BOX = re.compile(r"\\f?boxed\s{0,3}\{|\\fbox\s{0,3}\{")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|math(?:rm|bf|it|sf|tt|bb)|mbox|operatorname|bm)\s?\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dt]?frac\s?\{\s?(-?[\d.,]{1,40})\s?\}\s?\{\s?([\d.,]{1,40})\s?\}")
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|°")
_SPACING = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_MARKUP = re.compile(r"[*`$\"“”]|\\[()\[\]]|</?answer>|\\(?:left|right)\b|(?<!\w)_{1,2}|_{1,2}(?!\w)", re.IGNORECASE)
_LEAD_IN = re.compile(
    r"(?:\W{0,4}\b(?:(?:so|thus|therefore|hence)\b,?|(?:the|my)\b|(?:final|correct|right|best)\b|"
    r"(?:answer|option|choice|statement|letter)\b(?:\s(?:is|should be|must be))?|it(?: is|'s)\b)[\s:]{1,4}){1,6}",
    re.IGNORECASE,
)


def find_answer(text: str, read: Reader) -> str | None:
    """The answer of a completion in the reader's canonical form; `None` if there is none, or several."""
    response = strip_thinking(text)
    if response is None:
        return None
    for marker in reversed(list(_MARKER.finditer(response))):
        words, following = _text_after(response, marker.end())
        if words is None:  # a marker at the very end: truncated before the answer
            continue
        found = _read_text(words, Placement.MARKED, read)
        if found is None:
            # Such as "Answer: Janet starts with 16 eggs. [...] So the answer is 18."
            found = _find_unmarked(response[marker.end() :], read)
            if found is None and not following:
                found = read(words, Placement.LOOSE)
        elif read(following, Placement.BARE) not in (None, found):
            return None  # the first of a list
        return found or None
    return _find_unmarked(response, read) or None


def strip_thinking(text: str) -> str | None:
    """The first turn of a completion without its thinking; `None` if it ends while still thinking."""
    end = _END_OF_TURN.search(text)
    text = text[: end.start()] if end else text
    visible: list[str] = []
    thinking, position = False, 0
    for tag in _THINK_TAG.finditer(text):
        if tag.group(1):
            if not thinking:
                visible.clear()  # the prompt opened this thinking
            thinking, position = False, tag.end()
        elif not thinking:
            visible.append(text[position : tag.start()])
            thinking = True
    if thinking:
        return None
    return "\n".join([*visible, text[position:]])


def last_box(text: str) -> str | None:
    r"""Content of the last closed `\boxed{...}`, inner braces included."""
    for box in reversed(list(_BOX.finditer(text))[-20:]):
        depth = 1
        for position in range(box.end(), min(len(text), box.end() + MAX_ANSWER_CHARS)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if text[position - 1] == "\\" and text[position] in "{}":
                depth += {"{": -1, "}": 1}[text[position]]  # \{ and \} are set braces, not grouping
            if depth == 0:
                return text[box.end() : position].strip()
    return None


def strip_markup(words: str) -> str:
    """Text without Markdown, maths mode, text commands and typographic variants of characters."""
    words = (
        unicodedata.normalize("NFKC", words[:MAX_ANSWER_CHARS]).replace("−", "-").replace("–", "-").replace("⁄", "/")
    )
    words = words.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",").replace(",\\!", ",")
    words = _DEGREES.sub(" degrees", _FRACTION.sub(r"\1/\2", words))
    for _ in range(3):
        words = _WRAPPED.sub(r"\1", words)
    words = _MARKUP.sub("", _SPACING.sub(" ", words))
    words = re.sub(r"\s+", " ", words).strip(" #>'‘’")
    return words if words.count("{") == words.count("}") else words.strip(" {}")


def strip_lead_in(words: str) -> str:
    """Text without a lead-in such as "the final answer is"."""
    lead = _LEAD_IN.match(words)
    return words[lead.end() :].lstrip() if lead else words


def _find_unmarked(response: str, read: Reader) -> str | None:
    box = last_box(response)
    found = None if box is None else read(box, Placement.MARKED)
    if found is not None:
        return found
    for phrase in reversed(list(_PHRASE.finditer(response))[-20:]):
        words, _ = _text_after(response, phrase.end())
        if words is not None and not _NEGATION.match(words):
            found = _read_text(words, Placement.MARKED, read)
            break
    if found is not None:
        return found
    lines = [line for line in response[-MAX_ANSWER_CHARS:].splitlines() if not _ONLY_MARKUP.fullmatch(line)]
    if len(response) > MAX_ANSWER_CHARS:
        lines = lines[1:]  # the first line may be cut in two, and its end alone could look like an answer
    if not lines or (len(lines) > 1 and read(lines[-2], Placement.BARE) is not None):
        return None  # one item of a list, such as the choices repeated
    found = read(lines[-1], Placement.BARE)
    return (
        read(lines[0], Placement.OPENING)
        if found is None and len(lines) == 1 and len(response) <= MAX_ANSWER_CHARS
        else found
    )


def _text_after(response: str, start: int) -> tuple[str | None, str]:
    """The rest of the line, or the next line with more than markup; and the line after it, if any."""
    lines = response[start : start + MAX_ANSWER_CHARS].splitlines()
    non_empty = [line for line in lines if not _ONLY_MARKUP.fullmatch(line)]
    return (non_empty[0] if non_empty else None), (non_empty[1] if len(non_empty) > 1 else "")


def _read_text(words: str, placement: Placement, read: Reader) -> str | None:
    box = last_box(words)
    return read(words if box is None else box, placement)
