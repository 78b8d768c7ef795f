"""What the commands print: names, questions and messages come from outside, and must neither control the terminal nor
show passwords.
"""

from __future__ import annotations

import sys

from opd_align.types import printable


def say(text: str = "", *, end: str = "\n") -> None:
    """Prints to the standard output, with control characters replaced."""
    print(printable(text, keep="\n\t"), end=end, flush=True)


def complain(text: object) -> None:
    """Prints an error or a warning as a line of its own, without control characters and the passwords of URLs."""
    from opd_align.backends.http_pool import hide_passwords

    print(f"opd-align: {hide_passwords(printable(str(text), keep=chr(10)))}", file=sys.stderr)
