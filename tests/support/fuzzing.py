"""What the fuzzers share: their size, and what counts as an acceptable outcome."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from opd_align.types import OpdAlignError

T = TypeVar("T")

LONG = os.environ.get("FUZZ") == "long"
LIMIT_S = 120
"""A case that takes longer hangs."""


def cases(short: int, long: int) -> range:
    """The seeds of a fuzzer; all of them with FUZZ=long."""
    return range(long if LONG else short)


@contextmanager
def no_hang(case: object) -> Iterator[None]:
    """Fails the test if the block does not end."""

    def fail(*_: object) -> None:
        raise AssertionError(f"case {case} hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(case: object, function: Callable[[], T]) -> tuple[T | None, str | None]:
    """The result or the error message. Anything else than an `OpdAlignError` of one readable line fails the test."""
    try:
        with no_hang(case):
            return function(), None
    except OpdAlignError as error:
        message = str(error)
        assert message, f"case {case}: an error without a message"
        assert len(message.splitlines()) == 1, f"case {case}: not one line: {message!r}"
        assert len(message) < 3000, f"case {case}: {len(message)} characters: {message[:200]!r}"
        assert "\x1b" not in message, f"case {case}: control characters: {message!r}"
        return None, message
    except AssertionError:
        raise
    except BaseException as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error


def mutated(text: bytes, rng: random.Random, pieces: list[bytes]) -> bytes:
    """The text after one to four edits: flipped bits, removed or repeated parts, inserted pieces."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 1, 2, 8, 40, 200)))
        edit = rng.choice(("flip", "remove", "repeat", "insert", "insert", "replace", "cut"))
        if edit == "flip" and at < len(text):
            text = text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :]
        elif edit == "remove":
            text = text[:at] + text[end:]
        elif edit == "repeat":
            text = text[:end] + text[at:end] * rng.choice((1, 1, 3)) + text[end:]
        elif edit == "insert":
            text = text[:at] + rng.choice(pieces) + text[at:]
        elif edit == "replace":
            text = text[:at] + rng.choice(pieces) + text[end:]
        elif edit == "cut" and rng.random() < 0.2:
            text = text[:at]
    return text


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value
