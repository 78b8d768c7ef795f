"""What the commands print: names, questions and messages come from outside, and must neither control the terminal nor
show passwords.
"""

from __future__ import annotations

import codecs
import io
import sys

from opd_align.types import printable


def say(text: str = "", *, end: str = "\n") -> None:
    """Prints to the standard output, with control characters replaced."""
    print(printable(text, keep="\n\t"), end=end, flush=True)


def complain(text: object) -> None:
    """Prints an error or a warning as a line of its own, without control characters and the passwords of URLs."""
    from opd_align.backends.http_pool import hide_passwords

    print(f"opd-align: {hide_passwords(printable(str(text), keep=chr(10)))}", file=sys.stderr)


_PLAIN = {"−": "-", "–": "-", "—": "-", "±": "+/-", "×": "x", "÷": "/", "≥": ">=", "≤": "<=", "…": "...", "→": "->"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs: the characters of our tables in ASCII, and escape sequences for all others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(each) or ascii(each)[1:-1] for each in text), error.end


def print_in_any_encoding() -> None:
    """Makes printing succeed where the terminal's encoding, not UTF-8, lacks a character: minus signs become "-"."""
    codecs.register_error("opd-align-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="opd-align-plain")
