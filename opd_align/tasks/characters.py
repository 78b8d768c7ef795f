r"""Text in the characters that the readers expect: ASCII digits and punctuation, LaTeX for what has no such character.

Superscripts, subscripts and vulgar fractions are written out before Unicode normalisation, which would glue them to
their neighbours: 10² would become 102, and 3½ would become 31/2. Chinese and Japanese text has no spaces; one is put
between its characters and letters or digits, so that "答案是18" contains the number 18.
"""

from __future__ import annotations

import functools
import re
import unicodedata

MAX_ANSWER_CHARS = 600
"""Maximum number of characters after a marker that are read as its answer."""

_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True))
_SUBSCRIPT = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPT)}]+")
_LOWERED = re.compile(f"[{''.join(_SUBSCRIPT)}]+")
_STACKED = re.compile(f"(\\d?) ?([{''.join(_SUPERSCRIPT)}]{{1,12}})[⁄/∕]([{''.join(_SUBSCRIPT)}]{{1,12}})")  # 3 ¹⁄₂
_VULGAR = re.compile(r"(\d?)([¼-¾⅐-⅞])")
_CJK = "぀-ヿ㐀-鿿가-힣"
_CJK_EDGE = re.compile(rf"(?<=[{_CJK}])(?=[\w$\\(\-+])(?![{_CJK}])|(?<=[\w$)}}%])(?<![{_CJK}])(?=[{_CJK}])")
_TYPOGRAPHY = str.maketrans(
    {"−": "-", "–": "-", "‐": "-", "‑": "-", "⁄": "/", "∕": "/", "’": "'", "‘": "'", "。": ".", "、": ",", "“": '"',
     "”": '"', "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "⩽": "\\le ", "⩾": "\\ge ", "π": "\\pi ", "∞": "\\infty ",
     "∪": "\\cup ", "∩": "\\cap ", "±": "\\pm ", "⋅": "·", "∙": "·", "【": "[", "】": "]", "「": '"', "」": '"',
     "\u200b": "", "\ufeff": "", "\u2060": ""}
)  # fmt: skip
_CUBE_ROOT = re.compile(r"∛\s?(?:\(([^()]{1,60})\)|(\d{1,20}|[a-z]))")
_ROOT = re.compile(r"√\s?(?:\(([^()]{1,60})\)|(\d{1,20}|[a-z]))")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|math(?:rm|bf|it|sf|tt|bb)|mbox|operatorname|bm|underline|"
    r"emph)\s?\{([^{}]*)\}"
)
_NUMERIC_FRACTION = re.compile(
    r"(?P<before>\d\s?|)\\[dtc]?frac\s?(?:\{\s?(?P<a>-?[\d.,]{1,40})\s?\}|(?P<b>\d))"
    r"\s?(?:\{\s?(?P<c>[\d.,]{1,40})\s?\}|(?P<d>\d))"
)
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|°|\\degree\b")
_SPACING = re.compile(r"\\[,;:! ]|~|\\q?quad\b|\\hspace\{[^{}]*\}")
_MARKUP = re.compile(
    # Not the asterisks of 2*3, 2 * 3 and 2**3.
    r"(?<![\d)])(?<![\d)] )\*{1,3}|\*{1,3}(?!\*|\s?(?:\.?\d|\$)|[-(])|[`$\"]|\\[()\[\]]|</?answer>|"
    r"\\(?:left|right|displaystyle|big[lr]?)\b"
    r"|(?<!\w)_{1,2}|_{1,2}(?!\w)",
    re.IGNORECASE,
)
_OPERATORS = [
    (re.compile(r"\\(?:times|ast)\b"), "×"),
    (re.compile(r"\\cdot\b"), "·"),
    (re.compile(r"\\approx\b|\\simeq\b"), "≈"),
    (re.compile(r"\\(?:leq|leqslant|le)\b|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|ge)\b|>="), r"\\ge "),
    (re.compile(r"\\(?:lt)\b"), "<"),
    (re.compile(r"\\(?:gt)\b"), ">"),
]
_BRACED_DIGITS = re.compile(r"([\^_])\s?\{\s?(-?\d{1,6})\s?\}")


def plain_characters(text: str) -> str:
    """The text with superscripts, fractions, full-width and typographic characters written in ASCII and LaTeX."""
    if text.isascii():
        return text
    text = _STACKED.sub(_stacked, text)
    text = _RAISED.sub(lambda m: _script("^", "".join(_SUPERSCRIPT[c] for c in m.group())), text)
    text = _LOWERED.sub(lambda m: _script("_", "".join(_SUBSCRIPT[c] for c in m.group())), text)
    text = _VULGAR.sub(_vulgar, text)
    text = unicodedata.normalize("NFKC", text.replace("…", "..."))
    text = _ROOT.sub(lambda m: f"\\sqrt{{{m.group(1) or m.group(2)}}}", text.translate(_TYPOGRAPHY))
    text = _CUBE_ROOT.sub(lambda m: f"\\sqrt[3]{{{m.group(1) or m.group(2)}}}", text) if "∛" in text else text
    return _CJK_EDGE.sub(" ", text)


def strip_markup(words: str) -> str:
    """Text without Markdown, maths mode, text commands and typographic variants of characters."""
    return _strip_markup(words[:MAX_ANSWER_CHARS])


@functools.lru_cache(maxsize=4096)  # the same lines and choices are read again and again
def _strip_markup(words: str) -> str:
    words = plain_characters(words)
    if words.isalnum():
        return words
    words = words.replace("\\%", "%").replace("\\$", "$").replace("{,}", ",").replace(",\\!", ",").replace("\\!", "")
    if "\\" in words:
        words = _DEGREES.sub(" degrees", _NUMERIC_FRACTION.sub(_fraction, words))
        for _ in range(3):
            words = _WRAPPED.sub(r"\1", words)
        words = _SPACING.sub(" ", words)
    if "\\" in words or "<" in words or ">" in words:
        for pattern, character in _OPERATORS:
            words = pattern.sub(character, words)
    words = _BRACED_DIGITS.sub(r"\1\2", words.replace("°", " degrees").replace("~", " "))
    words = _MARKUP.sub("", words)
    words = " ".join(words.split()).strip(" #'")
    return words if words.count("{") == words.count("}") else words.strip(" {}")


def _script(mark: str, digits: str) -> str:
    return f"{mark}{digits}" if len(digits) == 1 else f"{mark}{{{digits}}}"


def _stacked(match: re.Match[str]) -> str:
    top, bottom = "".join(_SUPERSCRIPT[c] for c in match[2]), "".join(_SUBSCRIPT[c] for c in match[3])
    return f"{match[1]} {top}/{bottom}".lstrip()


def _vulgar(match: re.Match[str]) -> str:
    fraction = unicodedata.normalize("NFKC", match[2]).replace("⁄", "/")
    return f"{match[1]} {fraction}" if match[1] else fraction


def _fraction(match: re.Match[str]) -> str:
    # 1\frac{1}{2} is a mixed number.
    return f"{match['before'].strip()} {match['a'] or match['b']}/{match['c'] or match['d']}".lstrip()
