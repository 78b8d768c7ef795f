r"""Finds the answer that a model's text commits to.

Commitments are, from the last one back to the first:

- a marker: `Answer:` (also `Ans:`, `答案：`, `Answer` as a heading, `<answer>`), which ends the search;
- a closed `\boxed{...}`;
- a sentence such as "the answer is B" or "I would go with B", unless it is negated, hypothetical or a question.

Without a commitment, the last line counts if it is nothing but an answer, then the last sentence ("Therefore, Janet
makes $18 per day."), then the first line of a text that begins with its answer. An answer that is taken back ("Wait,
that's wrong") does not count; if another one follows, that one does.

Thinking is not searched: everything between `<think>` and `</think>` is removed. Many chat templates put `<think>` into
the prompt, so everything before an unopened `</think>` is thinking as well. A text that ends while thinking has no
answer. A text without either tag is searched as a whole: a completion truncated while thinking, under a template that
opens the thinking in the prompt, looks the same as one without thinking; callers that know about the truncation (the
engine does) override the verdict.

What counts as a letter or a number is decided by the reader function that is passed in. Every pattern is bounded and
only the last `MAX_RESPONSE_CHARS` characters are searched, so that time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum

from opd_align.tasks.characters import MAX_ANSWER_CHARS, plain_characters
from opd_align.tasks.prepare import prepared
from opd_align.tasks.remarks import (
    OTHER_ANSWER,
    confirms,
    has_alternative,
    is_doubted,
    is_harmless,
    is_other_label,
    takes_back,
)
from opd_align.tasks.statements import (
    CONCLUSION,
    DENIAL_AFTER,
    SENTENCE_END,
    is_aside,
    is_supposed_case,
    sentences_from_the_end,
    without_asides,
)


class Placement(Enum):
    """Where the text given to a reader was found, which decides how strictly it must be read."""

    MARKED = "after a marker: starts with the answer, a remark may follow"
    BOX = "content of a box: LaTeX, nothing but the answer"
    BARE = "a line of its own: contains nothing but the answer"
    OPENING = "the only line of a text: an answer, a punctuation mark, then a remark"
    LOOSE = "a sentence after a marker, when nothing stricter matched"
    SENTENCE = "the last sentence of a text without a marker"


AMBIGUOUS = ""
"""Returned by a reader for text with more than one answer, such as "A or B", and for answers that are denied."""

Reader = Callable[[str, Placement], str | None]
"""Function from text to the answer in canonical form, `AMBIGUOUS`, or `None` if there is no answer."""

MAX_RESPONSE_CHARS = 30_000
"""Number of characters at the end of a response that are searched."""

MAX_COMMITMENTS = 40
"""Number of markers, boxes and phrases that are read, from the last one."""

_MAX_REMARKS = 8
_MAX_JOINED = 6
_JOINED = re.compile(r"\}[$\s\\)\]*]{0,6}(?:,|;|and|or|,\s?and|,\s?or)[$\s\\(\[*]{0,6}(?:[a-z]\s?=\s?)?$")

_END_OF_TURN = re.compile(r"<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end)\|>|</s>|<end_of_turn>|<eos>")
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
# A model that repeats its instructions ("'Answer: $LETTER'") has not answered yet.
_PLACEHOLDER = r"(?![^\w\n]{0,4}(?:LETTER|ANSWER|NUMBER|YOUR[ _]ANSWER)\b)"
_NEXT_QUESTION = re.compile(
    r"(?<=[.)])\sQ:|\n[ \t*#]{0,6}(?:Question|Q|Problem|User|Human|Instruction)[ \t]?\d{0,3}[*_]{0,2}:"
)
_COMMITMENT = re.compile(
    r"(?P<marker>"
    rf"\b(?:answer|ans|respuesta|r[ée]ponse|antwort|risposta|resposta)\b[*_` \t]{{0,6}}(?:[:=](?!=)|->|→|"
    rf"(?<=ans )(?=[A-J]\b)|"
    rf"[-—][ \t]|(?<=\bans)\.)"
    rf"{_PLACEHOLDER}"
    r"|here(?:'s|[ \t]is)[ \t](?:the|my)[ \t]answer[^:.\n]{0,60}:|<(?:final_?)?answer>|<(?:final|result|choice|"
    r"response|solution)>|\[(?:final )?answer\]|"
    r"^\W{0,4}(?:(?:final )?(?:verdict|evaluation|judge?ment|assessment|decision|classification|label|conclusion)|"
    r"bottom line|tl;?dr|in short|in brief|in a nutshell)[*_]{0,2}(?::|(?<=dr)[*_]{0,2}\s?[-—]{1,2}\s)|"
    r"\b(?:correct|right|best|final)[ \t](?:option|choice|letter|result|value)[*_ \t]{0,4}(?:[:=](?!=)|->|→|"
    r"[-—][ \t])|(?:答案|答え|正解|정답)(?:应该|应)?(?:是|为|選|选|は|은|는)?(?![*_ ]{0,3}不)[*_ \t]{0,4}:?|"
    r"答[*_ ]{0,3}:"
    r"|(?:ответ)[*_ \t]{0,4}:"
    r"|^[ \t]{0,8}(?:#{1,6}[ \t]{0,4}|\*\*|__){1,2}(?:the[ \t])?(?:(?:final|correct|my)[ \t])?answer[ \t*_#]{0,8}$"
    r")|(?P<box>\\(?:f?boxed|fbox|framebox)\s{0,3}\{)|(?P<phrase>"
    r"\b(?:(?:answer|(?:correct|right|best|true|final|my|only)[ \t](?:option|choice|statement|letter|one|pick|guess|"
    r"selection|response|result|solution))"
    r"(?:[ \t](?:to|for|here|among|that|which|I|we)\b[^.:\n]{0,80}?)?(?:,[ \t][\w ]{1,24},)?(?:[ \t]\w{1,12}ly,?)?"
    r"(?:(?:'s|[*_ \t]{1,4}is)|[*_ \t]{1,4}(?:is|should[ \t]be|must[ \t]be|would[ \t]be|will[ \t]be|"
    r"has[ \t]to[ \t]be|to[ \t]be|comes[ \t](?:out[ \t])?to|"
    r"becomes|equals))\b"
    r"|\b(?:one|option|choice)[ \t](?:that|which)[ \t](?:best[ \t])?(?:fits|matches|works|"
    r"applies)[^.:\n]{0,30}?[ \t]is\b|"
    r"^[ \t*]{0,4}(?:so[ \t])?(?:choose|pick|select)\b"
    r"|I(?:'m|[ \t]am)[ \t](?:choosing|picking|selecting|voting[ \t]for)\b|I[ \t]vote[ \t]for\b|my[ \t](?:vote|"
    r"money)[ \t](?:goes[ \t]to|is[ \t](?:on|for))\b"
    r"|^(?:going|settling|sticking)[ \t](?:with|on|for)\b|(?:I(?:'m|[ \t]am)[ \t]going|(?:let's[ \t]|^)go)[ \t]with\b"
    r"|I(?:'d|'ll|'m|[ \t]would|[ \t]will|[ \t]am|[ \t]must)?(?:[ \t](?:have|going|"
    r"inclined)[ \t]to)?[ \t](?:choose|pick|select|go[ \t](?:with|for)|opt[ \t]for|say|"
    r"answer(?:[ \t](?:it|this|the[ \t]question|this[ \t]question)?[ \t]?with)?)\b"
    r"|(?:settled?|decided?)[ \t]on\b"
    r"|(?:we|you|one)[ \t](?:should[ \t]|must[ \t])?(?:choose|pick|select|go[ \t]with)\b"
    r"|(?:respuesta[ \t](?:correcta[ \t])?es(?:[ \t]la)?|r[ée]ponse[ \t](?:correcte[ \t])?est|"
    r"antwort[ \t](?:ist|lautet)))"
    rf"(?:[ \t](?:thus|therefore|clearly|indeed|then|simply|definitely|probably|"
    rf"likely))?[*_ \t]{{0,4}}:?{_PLACEHOLDER}"
    r"|(?:故|应|應|因此|所以|我|，|,)\s?(?:该|該)?(?:选|選)(?:择|擇|项|項)?\s?[:]?|^\s?(?:选|選)(?:择|擇)?\s?[:]?|"
    r"而是)",
    re.IGNORECASE | re.MULTILINE,
)
_COMMITMENT_WORDS = (
    "answer", "ans:", "ans.", "ans ", "ans=", "ans*", "boxed", "fbox", "framebox",
    " option", " choice", " statement", " letter",
    " one ", " pick", " guess", " selection", " response", " result", " solution", " choose",
    " select", " go with", "going with", "settle", " decide",
    " opt for", " go for", " say", "choose", "pick", "select", "<final", "<result", "<choice", "<response",
    "<solution", "verdict", "conclusion", " vote", "money", "going", "settling", "sticking", "picking", "choosing",
    "bottom line", "tldr", "tl;dr", "in short", "in brief", "nutshell", "evaluation", "judgment", "judgement",
    "assessment", "decision", "classification", "label",
    "respuesta", "reponse", "antwort", "risposta", "resposta",
)  # fmt: skip
_NOT_BUT = re.compile(r"\W{0,4}not [^.,;\n]{1,40}?,? but (?:rather )?", re.IGNORECASE)
_BOX_RULED_OUT = re.compile(
    r"\b(?:not|n't|rather than|instead of|(?:less|more|greater|fewer) than|at (?:least|most)|neither|nor|never)"
    r"(?: (?:equal to|be|the answer|just))?[\s$\\(\[*:]{0,6}$",
    re.IGNORECASE,
)
_MARKED_NEGATION = re.compile(r"\W{0,6}(?:(?:not|neither|never|none|没|不)\b|n't\b)", re.IGNORECASE)
_LONG_ANSWER = re.compile(r"\blong(?:er)?\s$", re.IGNORECASE)
_QUESTION = re.compile(r"\W{0,3}[^.!?\n]{1,60}\?[\"')*]{0,3}\s+(?=\S)")
_UNDECIDED = re.compile(
    r"^\W{0,3}(?:suppose|assume|imagine|let's (?:assume|suppose))\b[^.]{1,120}\.\s+(?:then|so|"
    r"in that case)\b[^.]{1,80}\.?$|\b(?:answer|it|that|this)(?: really| all)? depends\b",
    re.IGNORECASE,
)
_QUESTIONED = re.compile(r"[$\s\\)\]*]{0,6}\?")
_UNSURE = re.compile(
    r"\b(?:not (?:sure|certain)|unsure|(?:can't|cannot) (?:be (?:sure|certain)|prove)|don't know|(?:only|"
    r"just) (?:guessing|a guess))\b",
    re.IGNORECASE,
)
_OTHER_CASE = re.compile(
    r"\b(?:if|had|were|unless)\b.*\bwould\b(?!.*\b(?:but|so|however)\b)", re.IGNORECASE | re.DOTALL
)
_ONLY_MARKUP = re.compile(r"(?:[\s*_#$`>~-]|\\[\[\]()])*")
# What makes "the answer is C" something else than an answer, in the clause before it.
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|doubt|neither|cannot|if|whether|unless|suppose|supposing|assum\w{1,4}|imagine|why|how|until|"
    r"hardly|wrong|expect(?:s|ed|ing)?|(?:(?:was|were) (?:going|about|inclined|ready)|tempted|used|wanted?|like|"
    r"able|refuse|wish|love|"
    r"hate|silly|"
    r"wrong) to|(?:false|untrue|incorrect) that|mistaken\w{0,2}|(?:hard|difficult|unlikely|impossible|"
    r"implausible) (?:to|that)|no longer|no way|were|had|is|could)\b|"
    r"n't\b)(?![^,;:]{0,60}[,;:])"
    r"|\b(?:at first|initially|(?:might|may|could|would)(?: \w{1,8})? (?:think|say|believe|guess|assume|argue)|"
    r"tempt(?:ing|ed)(?![^,;:]{0,60}[,;:])|people (?:think|say)|(?!I|we|passage|text|article|author)\b\w{2,} "
    r"(?:says?|said|claims?|claimed|thinks?|thought|believes?|believed|argues?) (?![^,;:]{0,60}[,;:])|"
    r"(?:I|we) (?:first|originally|previously) )",
    re.IGNORECASE,
)
_CLAUSE_START = re.compile(
    r"[.!?\n](?=\s|$)|\n|[;]| [-—]+ |\b(?:so|thus|therefore|hence|but|because|then|and)\b|:", re.IGNORECASE
)
_RETRACTION = re.compile(
    r"\b(?:(?:that|this|it|the above|my (?:previous |first )?answer)(?:'s| is| was| can't be| cannot be| isn't|"
    r" would be)"
    r"(?: (?:not|all|actually|clearly))? ?(?:wrong|incorrect|right|correct|a mistake|an error)\b|scratch that|"
    r"I (?:made|have made) (?:a|an) (?:mistake|error)|take that back|disregard|ignore (?:that|this)|"
    r"I was wrong(?! about)|"
    r"correction:|(?:he|she|they) (?:is|are|was|were) (?:wrong|mistaken)|on second thou?ght)",
    re.IGNORECASE,
)
_RIGHT_AFTER_ALL = re.compile(r"(?:'s| is| was)(?: all| actually| clearly)? ?(?:right|correct)$", re.IGNORECASE)
_SECOND_THOUGHT = re.compile(
    r"(?:\b(?:wait|actually|hmm+|hold on|no(?=,)|oops|sorry|just kidding|correction|scratch that|rather(?=,)|I mean|"
    r"on second thought|"
    r"but (?:actually|no|wait)|let me (?:correct|redo|reconsider|fix)|instead(?=,))\b)[\s,.:!—-]{0,6}",
    re.IGNORECASE,
)


def find_answer(text: str, read: Reader, rewrite: Callable[[str], str] | None = None) -> str | None:
    """The answer of a completion in the reader's canonical form; `None` if there is none, or several.

    Args:
        text: Completion, thinking included.
        read: Reads one answer.
        rewrite: Writes forms of an answer that only this kind has as "the answer is ...".
    """
    response = strip_thinking(text)
    if response is None:
        return None
    response = plain_characters(response[-MAX_RESPONSE_CHARS:])[-MAX_RESPONSE_CHARS:]
    response = prepared(response)
    if rewrite is not None:
        response = rewrite(response)
    following = _NEXT_QUESTION.search(response, 1)
    if following:  # a base model that goes on with another question, after an answer to this one
        found = _find(response[: following.start()], read)
        if found:
            return found
    return _find(response, read)


def _find(response: str, read: Reader) -> str | None:
    found, end = _committed(response, read)
    if end is None:
        return _uncommitted(response, read) or None
    return _reconsidered(found, response[end:], read) or None


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


def boxed(text: str, start: int) -> tuple[str, int] | None:
    r"""Content of the box whose content begins at `start`, inner braces included, and its end; `None` if not closed."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_ANSWER_CHARS)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":  # \{ and \} are set braces, not grouping
            depth += 1 if character == "{" else -1
            if depth == 0:
                return text[start:position].strip().rstrip("\\ "), position + 1
    return None


def _committed(response: str, read: Reader) -> tuple[str | None, int | None]:
    """The answer of the last commitment and the position after it; no position if there is no commitment."""
    commitments = list(_commitments(response))[-MAX_COMMITMENTS:]
    boxes: list[str] = []
    for place in reversed(commitments):
        if place["box"]:
            content = boxed(response, place.end())
            if content is None:
                continue
            around = response[max(0, place.start() - 40) : place.start()], response[content[1] : content[1] + 80]
            sentence = SENTENCE_END.split(response[: place.start()][-200:])[-1]
            if (
                _QUESTIONED.match(around[1])
                or _BOX_RULED_OUT.search(around[0])
                or is_aside(sentence)
                or _OTHER_CASE.search(sentence)
            ):
                continue
            found = AMBIGUOUS if DENIAL_AFTER.match(around[1].lstrip("$ \\)]")) else read(content[0], Placement.BOX)
            if found is not None:
                if boxes_before := _joined_boxes(response, place.start()):
                    several = read(", ".join([*boxes_before, content[0]]), Placement.BOX)
                    return several if several and "," in several else AMBIGUOUS, content[1]
                return found, content[1]
            boxes.append(content[0])
            continue
        before = response[max(0, place.start() - 30) : place.start()].rpartition("\n")[2]
        if _LONG_ANSWER.search(before) or OTHER_ANSWER.search(before):
            continue  # "Short answer: no. Long answer: yes, but ...", "Wrong answer: C"
        words, following = _text_after(response, place.end())
        if place["phrase"]:
            if words is None:
                continue
            if instead := _NOT_BUT.match(words):
                words = words[instead.end() :]
            if _is_denied(response, place, words):
                continue
            found = _read_text(words, Placement.MARKED, read)
            if found is not None:
                return found, place.end()
            continue
        if words is None:  # a marker at the very end: truncated before the answer
            continue
        found = _read_text(words, Placement.MARKED, read)
        if found is None:
            # Such as "Answer: Janet starts with 16 eggs. [...] So she makes $18."
            found = read(words, Placement.LOOSE) if not following else _uncommitted(response[place.end() :], read)
        elif read(following, Placement.BARE) not in (None, found):
            return AMBIGUOUS, len(response)  # the first of a list
        return found, place.end()
    return None, (len(response) if boxes and not commitments[-1]["phrase"] else None)


def _commitments(response: str) -> Iterator[re.Match[str]]:
    """Markers, boxes and phrases in order; the pattern is slow and only applied around the words that it contains."""
    if len(response) < 200 or not response.isascii():
        yield from _COMMITMENT.finditer(response)
        return
    lowered = response.lower()
    places: list[int] = []
    for word in _COMMITMENT_WORDS:
        place = lowered.find(word)
        while place >= 0:
            places.append(place)
            place = lowered.find(word, place + len(word))
    end = 0
    for place in sorted(places):
        if place < end:
            continue
        start = max(end, place - 120, response.rfind("\n", 0, place) + 1)
        line_end = response.find("\n", place)
        end = min(place + 300, line_end if line_end >= 0 else len(response))
        for match in _COMMITMENT.finditer(response, start, end):
            yield match
            end = max(end, match.end())


def _joined_boxes(response: str, start: int) -> list[str]:
    r"""Contents of the boxes that the one at `start` continues: `\boxed{5}` and `\boxed{6}`."""
    contents: list[str] = []
    while len(contents) < _MAX_JOINED and (joined := _JOINED.search(response, max(0, start - 80), start)):
        opening = response.rfind("boxed{", max(0, start - 200), joined.start())
        content = boxed(response, opening + len("boxed{")) if opening >= 0 else None
        if content is None or content[1] != joined.start() + 1:
            return [*contents, ""]
        contents.insert(0, content[0])
        start = response.rfind("\\", 0, opening)
    return contents


def _is_denied(response: str, place: re.Match[str], words: str) -> bool:
    """Whether a phrase is negated, hypothetical or a question."""
    if _MARKED_NEGATION.match(words):
        return True
    sentence = SENTENCE_END.split(words, maxsplit=1)[0]
    if sentence.rstrip("*_\"') ").endswith("?") or _UNSURE.search(sentence):
        return True
    before = response[max(0, place.start() - 120) : place.start()]
    if "would" in place.group().lower() and re.search(r"\b(?:if|had|were|unless)\b[^.\n]*$", before, re.IGNORECASE):
        return True
    for boundary in reversed(list(_CLAUSE_START.finditer(before))):
        if boundary.group().lower() not in ("and", "because", "then"):
            before = before[boundary.end() :]
            break
    return bool(_DENIED_BEFORE.search(before))


def _reconsidered(found: str | None, rest: str, read: Reader) -> str | None:
    """The answer after what the text says about it later: taken back, or replaced by another one."""
    second = None
    for match in _SECOND_THOUGHT.finditer(rest[-4000:]):
        second = match
    if second is not None:
        later = _uncommitted(rest[-4000:][second.end() :], read, after_second_thought=True)
        if later:
            return later
    taken_back = [match for match in _RETRACTION.finditer(rest) if not _RIGHT_AFTER_ALL.search(match.group())]
    remarks = [sentence for sentence in SENTENCE_END.split(rest[:1000]) if re.search(r"\w", sentence)][1:6]
    return None if taken_back or any(map(takes_back, remarks)) else found


def _uncommitted(response: str, read: Reader, *, after_second_thought: bool = False) -> str | None:
    """The answer of a text without a marker: its last line, its last sentence, or its first line."""
    tail = response[-2 * MAX_ANSWER_CHARS :]
    lines = [line for line in tail.splitlines() if not _ONLY_MARKUP.fullmatch(line)]
    if len(response) > len(tail):
        lines = lines[1:]  # the first line may be cut in two, and its end alone could look like an answer
    lines = [line for line in lines if not is_other_label(line)]
    if (
        _is_taken_back(lines, read)
        or (lines and has_alternative(lines[-1]))
        or any(_UNDECIDED.search(line) for line in lines[-3:])
    ):
        return None
    lines = without_asides(_without_confirmation(lines, read))
    if not lines:
        return None
    if not after_second_thought and (later := _second_thought(lines, read)):
        return later
    if len(lines) == 1 and (question := _QUESTION.match(lines[0])):
        lines = [lines[0][question.end() :]]  # "True? No."
    if re.match(r"\s{0,4}\|.*\|\s{0,4}$", lines[-1]):  # the last row of a table
        cells = [cell for cell in lines[-1].split("|") if cell.strip()]
        return read(cells[-1], Placement.BARE) if cells else None
    found = read(lines[-1], Placement.BARE)
    if found is not None:
        # One item of a list, such as the choices repeated, is no answer.
        continued = lines[-1].lstrip().startswith("=")
        return (
            AMBIGUOUS
            if len(lines) > 1 and not continued and read(lines[-2], Placement.BARE) not in (None, found)
            else found
        )
    if after_second_thought and (found := read(lines[0], Placement.MARKED)) is not None:
        return found
    if len(response) == len(tail):
        if (found := _before_remarks(lines, read)) is not None:
            return found
        if len(lines) == 1:
            found = read(lines[0], Placement.OPENING)
        else:
            found = read(lines[0], Placement.BARE)
            if found is not None and any(read(line, Placement.BARE) not in (None, found) for line in lines[1:]):
                found = None  # the first of a list
        if found is not None:
            return found
    for sentence, is_last in sentences_from_the_end(lines):
        if is_aside(sentence) and not (len(lines) == 1 and sentence == lines[0] and is_supposed_case(sentence)):
            return None
        if not is_last and not CONCLUSION.match(sentence):
            return None
        found = read(sentence, Placement.SENTENCE)
        if found is not None:
            return found
        if CONCLUSION.match(sentence):
            return None
    return None


def _sentences(lines: list[str]) -> list[str]:
    return [part for line in lines for part in SENTENCE_END.split(line) if re.search(r"\w", part)]


def _is_taken_back(lines: list[str], read: Reader) -> bool:
    """Whether the last sentence takes back the one before it ("18. That would be wrong.")."""
    sentences = _sentences(lines[-2:])
    if len(sentences) < 2 or not takes_back(sentences[-1]):
        return False
    return read(sentences[-1], Placement.SENTENCE) is None or read(sentences[-2], Placement.BARE) is not None


def _without_confirmation(lines: list[str], read: Reader) -> list[str]:
    """The lines without a last sentence that only confirms the one before it: "3 × 6 = 18. Right."."""
    sentences = _sentences(lines[-1:])
    if (
        not sentences
        or len(_sentences(lines[-2:])) < 2
        or not confirms(sentences[-1])
        or read(sentences[-1], Placement.SENTENCE) is not None
    ):
        return lines
    rest = lines[-1][: lines[-1].rfind(sentences[-1])].rstrip()
    return [*lines[:-1], rest] if rest else lines[:-1]


def _before_remarks(lines: list[str], read: Reader) -> str | None:
    """The answer that a text begins with, if all that follows leaves it as it is ("18. No need to round.")."""
    sentences = _sentences(lines)
    others = sentences[1:]
    found = read(sentences[0], Placement.BARE) if 0 < len(others) <= _MAX_REMARKS else None
    if not found:
        return None
    for sentence in others:
        if not is_harmless(sentence):
            return None if read(others[-1], Placement.SENTENCE) not in (None, AMBIGUOUS, found) else AMBIGUOUS
        if not is_aside(sentence) and read(sentence, Placement.SENTENCE) not in (None, found):
            return None
    return found


def _second_thought(lines: list[str], read: Reader) -> str | None:
    """The answer after a second thought, in a text without a marker: "No, wait. Yes."."""
    text = "\n".join(lines)
    places = [match for match in _SECOND_THOUGHT.finditer(text) if re.search(r"\w", text[: match.start()])]
    return _uncommitted(text[places[-1].end() :], read, after_second_thought=True) if places else None


def _text_after(response: str, start: int) -> tuple[str | None, str]:
    """The rest of the line, or the next line with more than markup; and the line after it, if any."""
    lines = response[start : start + MAX_ANSWER_CHARS].splitlines()
    non_empty = [line for line in lines if not _ONLY_MARKUP.fullmatch(line)]
    return (non_empty[0] if non_empty else None), (non_empty[1] if len(non_empty) > 1 else "")


def _read_text(words: str, placement: Placement, read: Reader) -> str | None:
    if "(" in words and is_doubted(words):
        return AMBIGUOUS
    box = re.search(r"\\(?:f?boxed|fbox|framebox)\s{0,3}\{", words)
    content = boxed(words, box.end()) if box else None
    return read(content[0], Placement.BOX) if content else read(words, placement)
