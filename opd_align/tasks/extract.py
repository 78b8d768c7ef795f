r"""Where in a model's text its answer stands.

Looked for in this order, and the first place that holds an answer decides:

1. the last `Answer:` (also `Answer` as a heading, `<answer>`); what was said before it no longer counts;
2. the last complete `\boxed{...}`;
3. the last sentence such as "the answer is B", unless it says what the answer is not;
4. the last line, if it is nothing but an answer;
5. the opening of a text that is one line long, such as "Yes, there will be a third season."

A thought is not an answer. What stands between `<think>` and `</think>` is skipped. Many chat templates write
`<think>` into the prompt, so everything before a `</think>` that nothing opened was thought as well. A text that
ends inside a thought has no answer. A text without either tag is taken to be all answer: a completion that was cut
off while thinking in a template that opens the thought cannot be told from one that never thought, and whoever knows
that it was cut off (the engine does) overrules the verdict.

This module knows places, not meanings: what counts as a letter or a number is the business of the reader that is
passed in. Every pattern is bounded, so that time grows with the length of the text and no faster.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import Enum


class How(Enum):
    """How much a reader may trust the words it is given."""

    MARKED = "after a marker: an answer must come first, a remark may follow"
    BARE = "a line of its own: nothing but the answer"
    OPENING = "the only line of a text: an answer, a punctuation mark, then a remark"
    LOOSE = "a sentence after a marker, and nothing better in sight"


SEVERAL = ""
"""What a reader returns for words that hold more than one answer, such as "A or B"."""

Reader = Callable[[str, How], str | None]
"""From words to the answer in canonical form, `SEVERAL`, or `None` if there is none."""

REACH = 600
"""Characters after a marker that can belong to its answer."""

_END_OF_TURN = re.compile(r"<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end)\|>|</s>|<end_of_turn>")
_THOUGHT = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
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
_LEAD = re.compile(
    r"(?:\W{0,4}\b(?:(?:so|thus|therefore|hence)\b,?|(?:the|my)\b|(?:final|correct|right|best)\b|"
    r"(?:answer|option|choice|statement|letter)\b(?:\s(?:is|should be|must be))?|it(?: is|'s)\b)[\s:]{1,4}){1,6}",
    re.IGNORECASE,
)


def find_answer(text: str, read: Reader) -> str | None:
    """The answer that a completion gives, in the reader's canonical form; `None` if it gives none, or several."""
    said = without_thought(text)
    if said is None:
        return None
    for marker in reversed(list(_MARKER.finditer(said))):
        words, following = _words_after(said, marker.end())
        if words is None:  # a marker at the very end: the text was cut off before the answer
            continue
        found = _read_words(words, How.MARKED, read)
        if found is None:
            # Such as "Answer: Janet starts with 16 eggs. [...] So the answer is 18."
            found = _find_unmarked(said[marker.end() :], read)
            if found is None and not following:
                found = read(words, How.LOOSE)
        elif read(following, How.BARE) not in (None, found):
            return None  # the first of a list
        return found or None
    return _find_unmarked(said, read) or None


def without_thought(text: str) -> str | None:
    """What a completion says aloud in its first turn; `None` if it ends before its thought does."""
    end = _END_OF_TURN.search(text)
    text = text[: end.start()] if end else text
    said: list[str] = []
    thinking, position = False, 0
    for tag in _THOUGHT.finditer(text):
        if tag.group(1):
            if not thinking:
                said.clear()  # the prompt opened this thought
            thinking, position = False, tag.end()
        elif not thinking:
            said.append(text[position : tag.start()])
            thinking = True
    if thinking:
        return None
    return "\n".join([*said, text[position:]])


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` that is closed, inner braces and all."""
    for box in reversed(list(_BOX.finditer(text))[-20:]):
        depth = 1
        for position in range(box.end(), min(len(text), box.end() + REACH)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if text[position - 1] == "\\" and text[position] in "{}":
                depth += {"{": -1, "}": 1}[text[position]]  # \{ and \} are set braces, not grouping
            if depth == 0:
                return text[box.end() : position].strip()
    return None


def plain(words: str) -> str:
    """Words without their dress: Markdown, maths mode, text commands and typographic variants of a character."""
    words = unicodedata.normalize("NFKC", words[:REACH]).replace("−", "-").replace("–", "-").replace("⁄", "/")
    words = words.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",").replace(",\\!", ",")
    words = _DEGREES.sub(" degrees", _FRACTION.sub(r"\1/\2", words))
    for _ in range(3):
        words = _WRAPPED.sub(r"\1", words)
    words = _MARKUP.sub("", _SPACING.sub(" ", words))
    words = re.sub(r"\s+", " ", words).strip(" #>'‘’")
    return words if words.count("{") == words.count("}") else words.strip(" {}")


def without_lead(words: str) -> str:
    """Words without an opening such as "the final answer is"."""
    lead = _LEAD.match(words)
    return words[lead.end() :].lstrip() if lead else words


def _find_unmarked(said: str, read: Reader) -> str | None:
    box = last_box(said)
    found = None if box is None else read(box, How.MARKED)
    if found is not None:
        return found
    for phrase in reversed(list(_PHRASE.finditer(said))[-20:]):
        words, _ = _words_after(said, phrase.end())
        if words is not None and not _NEGATION.match(words):
            found = _read_words(words, How.MARKED, read)
            break
    if found is not None:
        return found
    lines = [line for line in said[-REACH:].splitlines() if not _ONLY_MARKUP.fullmatch(line)]
    if len(said) > REACH:
        lines = lines[1:]  # where the window cuts a line in two, its end alone could pass for an answer
    if not lines or (len(lines) > 1 and read(lines[-2], How.BARE) is not None):
        return None  # one of a list: the choices repeated, say
    found = read(lines[-1], How.BARE)
    return read(lines[0], How.OPENING) if found is None and len(lines) == 1 and len(said) <= REACH else found


def _words_after(said: str, start: int) -> tuple[str | None, str]:
    """The rest of the line, or the next line that holds more than markup; and the line that follows it, if any."""
    lines = said[start : start + REACH].splitlines()
    filled = [line for line in lines if not _ONLY_MARKUP.fullmatch(line)]
    return (filled[0] if filled else None), (filled[1] if len(filled) > 1 else "")


def _read_words(words: str, how: How, read: Reader) -> str | None:
    box = last_box(words)
    return read(words if box is None else box, how)
