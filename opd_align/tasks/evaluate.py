r"""Exact values of arithmetic in LaTeX or plain text: `2^{10}`, `1\frac{1}{2}`, `\binom{5}{2}`, `10!`, `3 \times 10^5`.

Answers with a rational value need no computer algebra. Anything else (a variable, an irrational root, a number too
large to write down) has no value here and is left to math-verify.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

MAX_CHARS = 300
MAX_BITS = 4_000
MAX_FACTORIAL = 400
MAX_DEPTH = 30

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:(?:,|\{,\}|\\,|,\\!)\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\(?:[dtc]?frac|[dt]?binom|sqrt))|(?P<op>\*\*|[-+*/^!(){}\[\]×·÷]|\\(?:times|cdot|div)(?![a-z])))"
)
_NOISE = re.compile(
    r"\\(?:left|right|displaystyle|big[lr]?)\b|\$|\\[;:! ]|\\q?quad\b|\\[()\[\]]|(?:\\,)(?!\d{3}(?!\d))"
)
_REPEATING = re.compile(r"(?<![\d.])(\d{1,20})\.(\d{0,20})\\(?:overline|bar|dot)\s?\{?(\d{1,20})\}?")
_TRAILING = re.compile(r"(?:\\?%|\^\s?\{?\s?\\circ\s?\}?|°|\.)\s*$")
_SIGNS = {"×": "*", "·": "*", "÷": "/", "\\times": "*", "\\cdot": "*", "\\div": "/", "**": "^", "[": "(", "]": ")"}


class _NoValue(Exception):
    pass


def exact_value(expression: str) -> Fraction | None:
    """The value of an arithmetic expression; `None` if it is something else or too large."""
    if len(expression) > MAX_CHARS:
        return None
    text = _TRAILING.sub("", _NOISE.sub(" ", expression).replace("−", "-")).strip()
    if "\\" in text:
        text = _REPEATING.sub(_repeating, text)
    if not text:
        return None
    try:
        parser = _Parser(text)
        value = parser.sum(0)
        return value if parser.at_end() else None
    except (_NoValue, ZeroDivisionError):
        return None


def _repeating(match: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as `(15/90)`."""
    whole, fixed, period = match.groups()
    top = int(whole + fixed + period) - int(whole + fixed)
    return f"({top}/{(10 ** len(period) - 1) * 10 ** len(fixed)})"


class _Parser:
    """Recursive descent, with the usual precedences; a fraction right after an integer is added to it."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _NoValue
            kind = match.lastgroup or ""
            word = match[kind]
            self.tokens.append((kind, _SIGNS.get(word, word)))
            position = match.end()
        self.position = 0

    def at_end(self) -> bool:
        return self.position == len(self.tokens)

    def peek(self) -> tuple[str, str]:
        return ("", "") if self.at_end() else self.tokens[self.position]

    def take(self, word: str) -> bool:
        if self.peek() == ("op", word):
            self.position += 1
            return True
        return False

    def sum(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise _NoValue
        value = self.product(depth)
        while True:
            if self.take("+"):
                value += self.product(depth)
            elif self.take("-"):
                value -= self.product(depth)
            else:
                return value

    def product(self, depth: int) -> Fraction:
        if self.take("-"):
            return -self.product(depth + 1) if depth < MAX_DEPTH else _fail()
        if self.take("+"):
            return self.product(depth + 1) if depth < MAX_DEPTH else _fail()
        value = self.mixed(depth)
        while True:
            if self.take("*"):
                value = _bounded(value * self.signed(depth))
            elif self.take("/"):
                value = _bounded(value / self.signed(depth))
            elif self.peek() == ("op", "(") or self.peek()[1] in ("\\binom", "\\sqrt"):
                value = _bounded(value * self.power(depth))
            else:
                return value

    def signed(self, depth: int) -> Fraction:
        return -self.power(depth) if self.take("-") else self.power(depth)

    def mixed(self, depth: int) -> Fraction:
        whole_number = self.peek()[0] == "number" and self.peek()[1].isdigit()
        value = self.power(depth)
        kind, word = self.peek()
        if kind == "command" and word.endswith("frac"):
            part = self.power(depth)
            if not whole_number or not 0 < part < 1:
                raise _NoValue
            return value + part
        if kind == "number" and whole_number and word.isdigit():  # 2 1/2
            rest = self.tokens[self.position + 1 : self.position + 3]
            if len(rest) < 2 or rest[0] != ("op", "/") or not rest[1][1].isdigit() or not int(rest[1][1]):
                raise _NoValue
            self.position += 3
            part = Fraction(int(word), int(rest[1][1]))
            if not 0 < part < 1:
                raise _NoValue
            return value + part
        return value

    def power(self, depth: int) -> Fraction:
        value = self.atom(depth)
        while self.take("!"):
            value = _factorial(value)
        if not self.take("^"):
            return value
        exponent = self.argument(depth) if self.peek() == ("op", "{") else self.signed(depth + 1)
        if exponent.denominator != 1:
            return _root(_power(value, exponent.numerator), exponent.denominator)
        return _power(value, exponent.numerator)

    def atom(self, depth: int) -> Fraction:
        kind, word = self.peek()
        self.position += 1
        if depth > MAX_DEPTH:
            raise _NoValue
        if kind == "number":
            digits = re.sub(r"[^\d.]", "", word)
            return Fraction(digits) if len(digits) < MAX_BITS // 4 else _fail()
        if kind == "command":
            return self.command(word, depth + 1)
        if word in ("(", "{"):
            value = self.sum(depth + 1)
            if not self.take(")" if word == "(" else "}"):
                raise _NoValue
            return value
        raise _NoValue

    def command(self, word: str, depth: int) -> Fraction:
        if word == "\\sqrt":
            degree = Fraction(2)
            if self.take("("):  # \sqrt[3]{8}; sqrt(8) is not LaTeX
                degree = self.sum(depth)
                if not self.take(")"):
                    raise _NoValue
            if degree.denominator != 1 or not 2 <= degree <= 10:
                raise _NoValue
            return _root(self.argument(depth), degree.numerator)
        top, bottom = self.argument(depth), self.argument(depth)
        if word.endswith("frac"):
            return _bounded(top / bottom)
        if top.denominator != 1 or bottom.denominator != 1 or not 0 <= bottom <= top <= 1000:
            raise _NoValue
        return _bounded(Fraction(math.comb(top.numerator, bottom.numerator)))

    def argument(self, depth: int) -> Fraction:
        """`{...}`, or a single digit: `\\frac12` is one half."""
        if self.take("{"):
            value = self.sum(depth + 1)
            if not self.take("}"):
                raise _NoValue
            return value
        kind, word = self.peek()
        if kind == "number" and word.isdigit():
            if len(word) == 1:
                self.position += 1
            else:
                self.tokens[self.position] = (kind, word[1:])
            return Fraction(int(word[0]))
        if kind == "command":
            return self.power(depth + 1)
        raise _NoValue


def _fail() -> Fraction:
    raise _NoValue


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _NoValue
    return value


def _power(value: Fraction, exponent: int) -> Fraction:
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if abs(exponent) > MAX_BITS or bits * abs(exponent) > MAX_BITS or (value == 0 and exponent <= 0):
        raise _NoValue
    return _bounded(value**exponent)


def _root(value: Fraction, degree: int) -> Fraction:
    """The exact root, where there is one."""
    if value < 0 or degree > 10:
        raise _NoValue
    parts = []
    for number in (value.numerator, value.denominator):
        root = math.isqrt(number) if degree == 2 else round(number ** (1 / degree)) if number < 2**52 else 0
        if root**degree != number:
            raise _NoValue
        parts.append(root)
    return Fraction(parts[0], parts[1])


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
        raise _NoValue
    return _bounded(Fraction(math.factorial(value.numerator)))
